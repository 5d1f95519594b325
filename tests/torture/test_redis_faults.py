"""Redis killed, cut off and raced: what was acknowledged is there, once; what is readable is listed."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from kills import write_while_killed

import holdall
from holdall.engines import redis, redis_shards
from holdall.errors import Corrupt, Unavailable
from holdall.ops import Changes, Put
from servers import Proxy, Redis, RedisCluster

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def test_what_was_acknowledged_is_there_once_however_often_the_server_is_killed(
    scaled: Callable[[int, int], int],
) -> None:
    with Redis(*DURABLE) as server:
        with holdall.open(server.url) as store:
            store.setup()
        write_while_killed(server, scaled(3, 20), cut_off=lambda: server.ask("CLIENT", "KILL", "TYPE", "normal"))


@pytest.mark.parametrize("use_async", [False, True])
def test_what_is_appended_through_a_connection_that_breaks_again_and_again_is_there_once(
    scaled: Callable[[int, int], int], use_async: bool
) -> None:
    """A reply that is lost is asked for again, and what it was the reply to is not done again."""
    count = scaled(300, 5000)
    with Redis() as server, Proxy(server.port) as proxy:
        store = holdall.open(f"redis://127.0.0.1:{proxy.port}/0", pool_max=2)
        stop = threading.Event()
        cuts = 0

        def cut() -> None:
            nonlocal cuts
            while not stop.wait(random.uniform(0, 0.01)):
                proxy.cut(clients_only=True)  # the server goes on with what it was told
                cuts += 1

        async def append() -> list[int]:
            return [await store.files().aappend("/log", f"{n:06}\n") for n in range(count)]

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            if use_async:
                offsets = asyncio.run(append())
            else:
                offsets = [store.files().append("/log", f"{n:06}\n") for n in range(count)]
        finally:
            stop.set()
            cutter.join()
        assert cuts > 10
        assert offsets == [7 * n for n in range(count)]
        assert store.files().read_text("/log").split() == [f"{n:06}" for n in range(count)]
        store.close()


@pytest.mark.parametrize("where", ["server", "cluster"])
def test_what_is_written_during_a_tree_delete_is_deleted_or_listed(
    scaled: Callable[[int, int], int], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 84 of 300 rounds, a file of AG2's Redis store was readable afterwards, and neither listed nor deletable."""
    monkeypatch.setattr(redis, "MOST_AT_ONCE", 20)
    monkeypatch.setattr(redis_shards, "_STEP", 7)
    with (
        RedisCluster() if where == "cluster" else Redis() as server,
        holdall.open(server.url) as one,
        holdall.open(server.url, pool_max=4) as other,
        ThreadPoolExecutor() as executor,
    ):
        survivors = deleted = 0
        for number in range(scaled(15, 300)):
            home = (f"volume{number}",)
            paths = [f"/tree/{n % 5}/{n}" for n in range(60)]
            one.execute([Put((*home, "items"), path, {"old": True}) for path in paths])
            one.execute([holdall.ops.Append(home, path, b"old") for path in paths])
            gate = threading.Barrier(2)

            def write(home: tuple[str, ...] = home, gate: threading.Barrier = gate) -> dict[str, int]:
                gate.wait()
                versions = {}
                for n in range(0, 90, 3):
                    path = f"/tree/{n % 5}/{n}"
                    other.files(home).write(path, "new")
                    versions[path] = other.put((*home, "items"), path, {"new": True}).version
                return versions

            writing = executor.submit(write)
            gate.wait()
            time.sleep(random.uniform(0, 0.01))
            deleted += one.files(home).delete("/tree")
            one.delete_tree((*home, "items"))
            written = writing.result()
            [last] = one._shared.engine.execute([Changes((*home, "items"), limit=1000)])
            for change in last:  # what was written after the delete is not gone by it
                assert change.version >= written.get(change.key, 0), "a write was lost"
            for store in (one, other):
                files = store.files(home)
                listed = {info.path for info in files.walk()}
                found = {entry.key for entry in store.scan((*home, "items"))}
                for path in {f"/tree/{n % 5}/{n}" for n in range(90)}:
                    assert files.exists(path) == (path in listed)
                    assert (store.get((*home, "items"), path) is not None) == (path in found)
                    if path in listed:
                        assert files.read_text(path) == "new"
                assert store.count(home) == len(listed) + len(found)
            survivors += len(listed)
            assert one.files(home).delete("/") == len(listed)
            assert list(one.files(home).walk()) == []
        assert survivors > 0 < deleted


def test_a_tree_of_many_entries_is_gone_at_once_and_cleared_away_in_steps(scaled: Callable[[int, int], int]) -> None:
    count = scaled(5_000, 100_000)
    with Redis() as server, holdall.open(server.url) as store:
        for begin in range(0, count, 1000):
            store.execute([Put(("tree", str(n % 7)), str(n), {"n": n}) for n in range(begin, begin + 1000)])
        store.put(("other",), "kept", {})
        cursor = store.cursor()
        engine = store._shared.engine
        reclaim = engine._shards.reclaim  # type: ignore[attr-defined]  # Redis' own
        engine._shards.reclaim = lambda shard: iter(())  # type: ignore[attr-defined]  # nobody comes to clear it away
        assert store.delete_tree(("tree",)) == count
        assert store.get(("tree", "1"), "1") is None
        written = store.put(("tree", "1"), "1", {"new": True}, expect=holdall.ABSENT)
        assert server.ask("ZCARD", "holdall:{0}:p") == count + 1, "it was cleared away at once"
        engine._shards.reclaim = reclaim  # type: ignore[attr-defined]  # as it was
        assert list(store.scan(("tree",))) == [written]
        assert server.ask("ZCARD", "holdall:{0}:p") == 2
        with store.watch(since=cursor) as watch:
            changes = [next(watch) for _ in range(count)]
        assert {change.kind for change in changes[:-1]} == {"delete"}
        assert (changes[-1].key, changes[-1].kind, changes[-1].version) == ("1", "put", written.version)
        assert len({(change.namespace, change.key) for change in changes}) == count


def test_a_server_that_does_not_answer_is_no_hang() -> None:
    with Redis() as server, holdall.open(server.url, timeout=0.5) as store:
        store.put(("a",), "k", {})
        server.freeze()
        try:
            with pytest.raises(Unavailable, match="could not be reached"):
                store.get(("a",), "k")
            with pytest.raises(Unavailable, match="outcome is unknown"):
                store.put(("a",), "k", {})
            with pytest.raises(Unavailable, match="outcome is unknown"):
                asyncio.run(store.aput(("a",), "k", {}))
        finally:
            server.thaw()
        assert store.put(("a",), "k", {"n": 1}) == store.get(("a",), "k")


def test_a_primary_that_is_a_replica_by_now_is_asked_for_anew() -> None:
    """Behind the same name there may be another server by then; the connections to the old one stay open."""
    with (
        Redis() as old,
        Redis() as new,
        Proxy(old.port) as proxy,
        holdall.open(f"redis://127.0.0.1:{proxy.port}/0") as store,
    ):
        store.put(("a",), "k", {"n": 1})
        proxy._target = new.port
        old.ask("REPLICAOF", "127.0.0.1", new.port)
        assert store.put(("a",), "k", {"n": 2}) == store.get(("a",), "k")
        assert asyncio.run(store.aput(("a",), "k", {"n": 3})) == store.get(("a",), "k")


def test_a_server_that_is_full_refuses_and_keeps_nothing_of_a_batch() -> None:
    with Redis("--maxmemory", "8mb", "--maxmemory-policy", "noeviction") as server, holdall.open(server.url) as store:
        written = 0
        with pytest.raises(Unavailable, match="OOM"):
            for _ in range(1000):
                store.execute([Put(("a", str(written)), str(n), {"text": "x" * 1000}) for n in range(20)])
                written += 1
        assert written > 10
        assert store.count() == 20 * written
        assert len(list(store.scan())) == 20 * written


def test_a_server_that_is_full_still_deletes() -> None:
    with Redis("--maxmemory", "8mb", "--maxmemory-policy", "noeviction") as server, holdall.open(server.url) as store:
        with pytest.raises(Unavailable, match="OOM"):
            for number in range(1000):
                store.execute([Put(("a", str(number)), str(n), {"text": "x" * 1000}) for n in range(20)])
        assert store.delete(("a", "0"), "0")
        assert store.delete_tree(("a", "0")) == 19
        rest = store.count()
        assert store.delete_tree(("a",)) == rest > redis.MOST_AT_ONCE
        store.put(("a",), "k", {})
        assert store.count() == 1


def test_a_server_that_is_full_refuses_large_files_and_keeps_those_that_it_took() -> None:
    """Their contents are sent beforehand, a chunk at a time: it may be full in between."""
    with Redis("--maxmemory", "16mb", "--maxmemory-policy", "noeviction") as server, holdall.open(server.url) as store:
        files = store.files()
        written: dict[str, bytes] = {}
        with pytest.raises(Unavailable, match="OOM"):
            for number in range(100):
                content = bytes([number]) * 2_500_000
                files.write(f"/{number}", content)
                written[f"/{number}"] = content
        assert len(written) > 1
        assert {path: files.read(path) for path in written} == written
        assert not files.exists(f"/{len(written)}")


def test_a_server_that_evicts_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with Redis("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server, holdall.open(server.url):
        assert "maxmemory-policy allkeys-lru" in caplog.text
    caplog.clear()
    with Redis("--maxmemory", "100mb", "--maxmemory-policy", "noeviction") as server, holdall.open(server.url):
        assert not caplog.text


def test_a_body_that_was_lost_between_its_chunks_and_the_put_is_sent_again() -> None:
    """A server that restarts without its memory, or evicts, may lose chunks that nobody owns yet."""
    content = bytes(range(256)) * 12_000
    with Redis() as server, Proxy(server.port) as proxy, holdall.open(f"redis://127.0.0.1:{proxy.port}/0") as store:
        files = store.files()
        files.write("/other", content)  # the server knows the scripts
        proxy.hold(b"EVALSHA")
        writing = threading.Thread(target=files.write, args=("/big", content))
        writing.start()
        assert proxy.is_holding.wait(30)
        lost = [chunk for chunk in server.ask("KEYS", "*:b:u*") if server.ask("TTL", chunk) > 0]
        assert len(lost) == 3
        server.ask("DEL", *lost[:2])
        proxy.let_go()
        proxy.cut()
        writing.join()
        assert files.read("/big") == content
        assert files.stat("/big").size == len(content)


def test_a_file_whose_content_is_not_all_there_is_said_to_be_corrupt() -> None:
    with Redis() as server, holdall.open(server.url) as store:
        files = store.files()
        files.write("/big", b"x" * 3_000_000)
        store.put(("filesystem",), "/value", {"content": "y" * 3_000_000, "encoding": "utf-8"})
        for chunk in server.ask("KEYS", "*:b:*:1"):
            server.ask("DEL", chunk)
        with pytest.raises(Corrupt, match="not all there"):
            files.read("/big")
        with pytest.raises(Corrupt, match="not all there"):
            store.get(("filesystem",), "/value")
        with pytest.raises(Corrupt, match="not all there"):
            list(store.scan())


def test_a_user_who_may_not_publish_is_told_so_and_no_write_is_done_twice() -> None:
    """No channels is the default of Redis 7 for new users."""
    with Redis() as server:
        server.ask("ACL", "SETUSER", "app", "on", ">pw", "~holdall:*", "&holdall:*", "+@all", "-@dangerous")
        url = server.url.replace("//", "//app:pw@")
        with holdall.open(url) as store:
            store.put(("a",), "k", {"n": 0})
            server.ask("ACL", "SETUSER", "app", "resetchannels")
            assert store.put(("a",), "k", {"n": 1}).value == {"n": 1}
            files = store.files()
            files.append("/log", "line\n")
            files.append("/log", "line\n")
            assert files.read("/log") == b"line\nline\n"
            assert store.delete(("a",), "k")
        with pytest.raises(Unavailable, match="may not publish"), holdall.open(url):
            pass
