"""Redis killed, disconnected and written concurrently: acknowledged writes are there once, and listed."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdall
from holdall.engines.redis import engine as redis
from holdall.engines.redis import shards as redis_shards
from holdall.errors import Conflict, Corrupt, CursorExpired, LeaseLost, OutcomeUnknown, Unavailable
from holdall.ops import Changes, Get, Put
from support.server_kills import write_while_killed
from support.servers import Proxy, Redis, RedisCluster, free_port

pytestmark = pytest.mark.timed

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
    """A write whose reply was lost is sent again, and takes effect once."""
    count = scaled(200, 5000)
    with Redis() as server, Proxy(server.port) as proxy:
        store = holdall.open(f"redis://127.0.0.1:{proxy.port}/0", pool_max=2)
        stop = threading.Event()
        cuts = 0

        def cut() -> None:
            nonlocal cuts
            while not stop.wait(random.uniform(0, 0.01)):
                proxy.cut(clients_only=True)  # the server still executes what it has received
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


@pytest.mark.parametrize("is_saved", [False, True], ids=["all is lost", "the last writes are lost"])
def test_nothing_given_out_before_a_restart_that_lost_writes_is_given_out_again(is_saved: bool) -> None:
    """Versions, lease tokens and cursors. When versions were counted, a stale one became valid again after a while."""
    with Redis("--appendonly", "no") as server, holdall.open(server.url, timeout=10, sweep_interval=None) as store:
        first = store.put(("a",), "first", {})
        early = store.cursor()
        if is_saved:
            server.ask("SAVE")
        stale = store.put(("a",), "k", {"n": 1})
        lease = store.lease("job", 60).acquire()
        lost = store.cursor()
        server.kill()
        server.start()
        assert (store.get(("a",), "first") == first) == is_saved
        if not is_saved:
            store.put(("a",), "first", {})
        with pytest.raises(CursorExpired):
            store.watch(since=lost)
        theirs = store.put(("a",), "k", {"n": 2})
        other = store.lease("job", 60).acquire()
        for number in range(5):  # by now, counted versions would have reached the lost ones
            store.put(("a",), f"more{number}", {})
        assert first.version < stale.version < lease.token < theirs.version < other.token
        with pytest.raises(Conflict):
            store.put(("a",), "k", {"n": 3}, expect=stale)
        with pytest.raises(LeaseLost):
            store.put(("a",), "k", {"n": 3}, lease=lease)
        with pytest.raises(CursorExpired):
            store.watch(since=lost)
        if is_saved:  # a cursor from before the lost writes is valid
            with store.watch(since=early) as watch:
                assert next(watch).version == theirs.version
        else:
            with pytest.raises(CursorExpired):
                store.watch(since=early)
        assert store.get(("a",), "k") == theirs


def test_versions_and_cursors_stay_good_however_often_a_server_that_loses_writes_is_killed(
    scaled: Callable[[int, int], int],
) -> None:
    """Some writes are in a snapshot, some are not. A cursor is valid if all writes before it are there."""
    rounds = scaled(8, 150)
    with Redis("--appendonly", "no") as server, holdall.open(server.url, timeout=30, sweep_interval=None) as store:
        given: set[int] = set()
        kept: list[str] = []  # cursors
        lost: list[str] = []
        entries: dict[str, int] = {}  # versions by key
        for number in range(rounds):
            is_saved = number == 0 or random.random() < 0.7
            written: dict[str, int] = {}
            for step in range(random.randrange(1, 30)):
                batch = [
                    Put(("a",), random.choice("abcdefgh"), {"n": number, "step": step}) for _ in range(step % 3 + 1)
                ]
                for entry in store.execute(batch):
                    assert entry.version not in given
                    given.add(entry.version)
                    written[entry.key] = entry.version
            cursor = store.cursor()
            if is_saved:
                server.ask("SAVE")
                entries |= written
                kept.append(cursor)
            else:
                lost.append(cursor)
            if random.random() < 0.5:  # more writes, which are not saved
                versions = [entry.version for entry in store.execute([Put(("a",), "b", {}), Put(("a",), "z", {})])]
                assert given.isdisjoint(versions)
                given.update(versions)
                lost.append(store.cursor())
            server.kill()
            server.start()
            assert {entry.key: entry.version for entry in store.scan()} == entries
            for position in random.sample(kept, min(len(kept), 5)):
                with store.watch(since=position):
                    pass
            for position in random.sample(lost, min(len(lost), 5)):
                with pytest.raises(CursorExpired):
                    store.watch(since=position)


def test_a_store_from_before_versions_were_times_goes_on() -> None:
    """Its versions and cursors are small numbers, and stay valid; new ones are greater."""
    with Redis() as server:
        with holdall.open(server.url, sweep_interval=None) as store:
            store.setup()
            made_before(server, {"k": 1, "l": 2, "m": 3})
            cursor = "2"
        with holdall.open(server.url, sweep_interval=None) as store:
            entry = store.get(("a",), "k")
            assert entry is not None
            assert entry.version == 1
            newer = store.put(("a",), "k", {"n": 1}, expect=1)
            assert newer.version > 3
            with store.watch(since=cursor) as watch:
                assert [(change.key, change.version) for change in (next(watch), next(watch))] == [
                    ("m", 3),
                    ("k", newer.version),
                ]
            assert [hit.key for hit in store.search()] == ["k", "m", "l"]


def made_before(server: Redis, versions: dict[str, int]) -> None:
    """Write entries as they were stored when versions were counted."""
    home = "holdall:{0}"
    for key, version in versions.items():
        place = f"a\x01\x00{key}"
        head = f"{version} 1700000000000000 1700000000000000 - - p - - - -"
        server.ask("HSET", f"{home}:e:{place}", "h", head, "d", "{}")
        server.ask("ZADD", f"{home}:p", 0, place)
        server.ask("ZADD", f"{home}:s", 0, "a\x01")
        server.ask("ZADD", f"{home}:n:a\x01", version, key)
        server.ask("ZADD", f"{home}:c", version, place)
    server.ask("DEL", home)
    server.ask("HSET", home, "v", max(versions.values()), "l", 1)


def test_who_watches_learns_of_a_flush() -> None:
    """Also if other clients have written as many entries as before, or more."""
    with (
        Redis() as server,
        holdall.open(server.url, sweep_interval=None) as store,
        holdall.open(f"{server.url}?client_name=other", sweep_interval=None) as other,
    ):
        empty = store.cursor()
        for number in range(3):
            store.put(("a",), f"old{number}", {})
        with store.watch(("a",)) as watch:
            store.put(("a",), "seen", {})
            assert next(watch).key == "seen"
            server.ask("FLUSHALL")
            flushed = store.cursor()
            for number in range(6):
                other.put(("a",), f"new{number}", {})
            with pytest.raises(CursorExpired):
                next(watch)
        with pytest.raises(CursorExpired):
            store.watch(since=empty)
        with store.watch(since=flushed) as watch:
            assert [next(watch).key for _ in range(6)] == [f"new{number}" for number in range(6)]


@pytest.mark.parametrize("where", ["server", pytest.param("cluster", marks=pytest.mark.not_short)])
def test_what_is_written_during_a_tree_delete_is_deleted_or_listed(
    scaled: Callable[[int, int], int], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 84 of 300 rounds, a file of AG2's Redis store was readable afterwards, and neither listed nor deletable."""
    monkeypatch.setattr(redis, "MAX_SINGLE_DELETES", 20)
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
            deleted += one.files(home).delete("/tree", recursive=True)
            one.delete_tree((*home, "items"))
            written = writing.result()
            [last] = one._engine_handle.engine.execute([Changes((*home, "items"), limit=1000)])
            for change in last:  # entries that were written after the delete are not deleted
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
            assert one.files(home).delete("/", recursive=True) == len(listed)
            assert list(one.files(home).walk()) == []
        assert survivors > 0 < deleted


def test_a_tree_of_many_entries_is_gone_at_once_and_cleared_away_in_steps(scaled: Callable[[int, int], int]) -> None:
    count = scaled(10_000, 100_000)
    with Redis() as server, holdall.open(server.url, sweep_interval=None) as store:  # nobody clears it away
        for begin in range(0, count, 1000):
            store.execute([Put(("tree", str(n % 7)), str(n), {"n": n}) for n in range(begin, begin + 1000)])
        store.put(("other",), "kept", {})
        cursor = store.cursor()
        assert store.delete_tree(("tree",)) == count
        assert store.get(("tree", "1"), "1") is None
        written = store.put(("tree", "1"), "1", {"new": True}, expect=holdall.ABSENT)
        assert server.ask("ZCARD", "holdall:{0}:p") == count + 1, "it was cleared away at once"
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
            with pytest.raises(OutcomeUnknown, match="outcome is unknown"):
                store.put(("a",), "k", {})
            with pytest.raises(Unavailable, match=r"^Redis could not be reached"):
                store.get(("a",), "k")
            with pytest.raises(
                Unavailable, match=r"^Redis could not be reached"
            ):  # no connection is left to send it on
                asyncio.run(store.aput(("a",), "k", {}))
        finally:
            server.thaw()
        assert store.put(("a",), "k", {"n": 1}) == store.get(("a",), "k")


def test_a_primary_that_is_a_replica_by_now_is_looked_up_again() -> None:
    """Its host name may lead to another server now, while the connections to the old one stay open."""
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
        assert store.delete_tree(("a",)) == rest > redis.MAX_SINGLE_DELETES
        store.put(("a",), "k", {})
        assert store.count() == 1


def test_a_server_that_is_full_refuses_large_files_and_keeps_those_that_it_took() -> None:
    """Large contents are sent in chunks before the write: the server may become full in between."""
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


def test_a_server_that_evicts_entries_is_refused_unless_that_is_accepted() -> None:
    """Of 9,000 entries 4,071 vanished, and count() said 9,000."""
    with Redis("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        store = holdall.open(server.url, sweep_interval=None)
        for call in (lambda: store.put(("a",), "k", {}), lambda: asyncio.run(store.aget(("a",), "k")), store.setup):
            with pytest.raises(Unavailable, match=r"allkeys-lru.*noeviction.*allow_eviction=True"):
                call()
        assert server.ask("KEYS", "*:e:*") == []
        with holdall.open(server.url, allow_eviction=True) as accepting:
            accepting.put(("a",), "k", {})
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        assert store.get(("a",), "k") is not None
        store.close()
    for options in (("0", "allkeys-lru"), ("100mb", "volatile-lru")):  # nothing is evicted; nothing that is the store's
        with (
            Redis("--maxmemory", options[0], "--maxmemory-policy", options[1]) as server,
            holdall.open(server.url) as store,
        ):
            store.put(("a",), "k", {})


def test_a_cluster_of_which_a_node_evicts_is_refused() -> None:
    with RedisCluster() as cluster:
        cluster.nodes[1].ask("CONFIG", "SET", "maxmemory", "100mb")
        cluster.nodes[1].ask("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        with pytest.raises(Unavailable, match="allkeys-random"), holdall.open(cluster.url):
            pass


def test_a_user_who_may_not_ask_for_the_policy_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    with Redis() as server:
        server.ask("ACL", "SETUSER", "app", "on", ">pw", "~holdall:*", "&holdall:*", "+@all", "-@dangerous")
        with holdall.open(server.url.replace("//", "//app:pw@")) as store:
            store.put(("a",), "k", {})
        assert "+info" in caplog.text
        caplog.clear()
        server.ask("ACL", "SETUSER", "app", "+info")
        with holdall.open(server.url.replace("//", "//app:pw@")) as store:
            store.put(("a",), "k", {})
        assert not caplog.text


def test_a_server_that_evicts_what_expires_keeps_all_that_a_store_needs() -> None:
    """The answers of a client too: without them, a batch whose reply was lost would take effect twice."""
    with (
        Redis("--maxmemory", "24mb", "--maxmemory-policy", "volatile-ttl") as server,
        Proxy(server.port) as proxy,
        holdall.open(f"redis://127.0.0.1:{proxy.port}/0", timeout=20, sweep_interval=None) as store,
    ):
        files = store.files()
        for number in range(5):
            store.put(("a",), str(number), {})
        files.append("/log", "0\n")
        proxy.deafen()
        later = threading.Thread(target=files.append, args=("/log", "1\n"))
        later.start()
        while server.ask("STRLEN", server.ask("KEYS", "*:b:*:0")[0]) < 4:
            time.sleep(0.01)
        for number in range(300):
            server.ask("SET", f"other{number}", "x" * 100_000, "EX", 100_000)
        assert server.ask("INFO")["evicted_keys"] > 0
        proxy.deafen(False)
        proxy.cut()
        later.join()
        assert files.read("/log") == b"0\n1\n"
        assert store.count(("a",)) == 5


def test_a_body_that_was_lost_between_its_chunks_and_the_put_is_sent_again() -> None:
    """A server that restarts without its data, or evicts keys, may lose chunks that no entry uses yet."""
    content = bytes(range(256)) * 12_000
    with Redis() as server, Proxy(server.port) as proxy, holdall.open(f"redis://127.0.0.1:{proxy.port}/0") as store:
        files = store.files()
        files.write("/other", content)  # the server has the scripts now
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
        with pytest.raises(Corrupt, match="content are missing"):
            files.read("/big")
        with pytest.raises(Corrupt, match="content are missing"):
            store.get(("filesystem",), "/value")
        with pytest.raises(Corrupt, match="content are missing"):
            list(store.scan())


def test_a_user_who_may_not_publish_gets_an_error_and_no_write_is_done_twice() -> None:
    """In Redis 7, new users have access to no channels by default."""
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


@pytest.mark.parametrize("use_async", [False, True])
def test_reads_do_not_go_on_at_a_primary_that_is_a_replica_by_now(use_async: bool) -> None:
    """Its connections stay open, and it would reply with outdated entries."""

    def run(method: str, *args: Any, **options: Any) -> Any:
        if use_async:
            return runner.run(getattr(store, f"a{method}")(*args, **options))
        return getattr(store, method)(*args, **options)

    with (
        Redis() as old,
        Redis() as new,
        Proxy(old.port) as proxy,
        holdall.open(new.url) as other,
        holdall.open(f"redis://127.0.0.1:{proxy.port}/0", sweep_interval=None) as store,
        asyncio.Runner() as runner,
    ):
        files = store.files()
        theirs = other.put(("a",), "k", {})
        asked: list[Callable[[], bool]] = [
            lambda: run("get", ("a",), "k") == theirs,
            lambda: run("execute", [Get(("a",), "k"), Get(("a",), "l")]) == [theirs, None],
            lambda: [hit.version for hit in run("search", ("a",))] == [theirs.version],
            lambda: run("count") == 2,
            lambda: files.read("/f") == b"new",
            lambda: run("put", ("a",), "k", {"n": 2}, expect=theirs).version > theirs.version,
            lambda: run("execute", [Put(("a",), "k", {}, expect=theirs), Put(("a",), "l", {})])[0].value == {},
        ]
        for is_right in asked:
            proxy.cut()
            old.ask("REPLICAOF", "NO", "ONE")
            proxy._target = old.port
            mine = run("put", ("a",), "k", {"n": 1})
            files.write("/f", "old")
            theirs = other.put(("a",), "k", {"n": 2})
            other.delete(("a",), "l")
            other.files().write("/f", "new")
            assert run("get", ("a",), "k") == mine
            proxy._target = new.port
            old.ask("REPLICAOF", "127.0.0.1", free_port())  # it keeps its entries, and refuses writes
            assert is_right()


WRITES: list[Callable[[holdall.Store, Callable[[Any], Any]], Any]] = [
    lambda store, run: store.put(("a",), "k", {}),
    lambda store, run: store.execute([Put(("a",), "k", {}), Put(("a",), "l", {})]),
    lambda store, run: store.files().append("/f", "x"),
    lambda store, run: run(store.aput(("a",), "k", {})),
    lambda store, run: run(store.aexecute([Put(("a",), "k", {}), Put(("a",), "l", {})])),
]


def test_a_write_that_never_reached_a_server_is_known_not_to_have_happened() -> None:
    with Redis() as server, holdall.open(server.url, timeout=0.3, sweep_interval=None) as store:
        store.setup()
        server.kill()
        with pytest.raises(Unavailable):  # and no connection is left from before
            store.get(("a",), "k")
        for write in WRITES:
            with pytest.raises(Unavailable, match="could not be reached") as failed:
                write(store, asyncio.run)
            assert not isinstance(failed.value, OutcomeUnknown)


def test_a_write_that_may_have_reached_a_server_is_of_unknown_outcome() -> None:
    """Whether the server then does not reply, or another one refuses the repeated write."""
    with (
        Redis() as server,
        Proxy(server.port) as proxy,
        holdall.open(f"redis://127.0.0.1:{proxy.port}/0", timeout=0.5, sweep_interval=None) as store,
        asyncio.Runner() as runner,
    ):

        def demote() -> None:
            server.ask("REPLICAOF", "127.0.0.1", free_port())
            proxy.let_go()
            proxy.cut()

        for write in WRITES:
            for why, after in (("timed out", proxy.deafen), ("READONLY", demote)):
                store.put(("a",), "k", {})
                runner.run(store.aput(("a",), "k", {}))
                proxy.hold(b"EVALSHA")
                later = threading.Timer(0.1, after)
                later.start()
                with pytest.raises(OutcomeUnknown, match=f"outcome is unknown.*{why}"):
                    write(store, runner.run)
                later.join()
                server.ask("REPLICAOF", "NO", "ONE")
                proxy.deafen(False)
                proxy.let_go()
                proxy.cut()


@pytest.mark.parametrize("use_async", [False, True])
def test_a_batch_with_a_large_answer_is_answered_again_too(use_async: bool) -> None:
    """An answer of more than 64 KB: the batch was executed, and reported as of unknown outcome."""
    with (
        Redis() as server,
        Proxy(server.port) as proxy,
        holdall.open(f"redis://127.0.0.1:{proxy.port}/0", timeout=20, sweep_interval=None) as store,
    ):
        store.files().write("/big", b"x" * 200_000)
        store.execute([Put(("filesystem",), "warm", {}), Get(("filesystem",), "warm")])
        batch = [Put(("filesystem",), "k", {"n": 1}), Get(("filesystem",), "/big"), Put(("filesystem",), "l", {})]
        proxy.deafen()
        threading.Timer(0.3, lambda: (proxy.deafen(False), proxy.cut())).start()
        put, file, other = asyncio.run(store.aexecute(batch)) if use_async else store.execute(batch)
        assert (put, other) == (store.get(("filesystem",), "k"), store.get(("filesystem",), "l"))
        assert file.value["content"] == "x" * 200_000
        assert put.created_at == put.updated_at, "it was done twice"
        [kept] = server.ask("KEYS", "*:d:*:*")
        assert 20 < server.ask("TTL", kept) <= 80


@pytest.mark.parametrize("use_async", [False, True])
def test_a_timeout_is_for_the_whole_call_however_slowly_a_reply_comes(use_async: bool) -> None:
    with (
        Redis() as server,
        Proxy(server.port) as proxy,
        holdall.open(f"redis://127.0.0.1:{proxy.port}/0", timeout=1, sweep_interval=None) as store,
    ):
        store.put(("a",), "k", {"text": "x" * 10_000})
        assert store.get(("a",), "k") is not None
        if use_async:
            asyncio.run(store.aget(("a",), "k"))
        proxy.trickle(20, 0.1)
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"for 1\.0 s"):
            asyncio.run(store.aget(("a",), "k")) if use_async else store.get(("a",), "k")
        assert time.monotonic() - began < 3
        proxy.trickle(0, 0)


def test_a_replica_that_was_promoted_without_the_last_writes_gives_out_nothing_again() -> None:
    with (
        Redis() as old,
        Redis() as new,
        Proxy(old.port) as proxy,
        holdall.open(f"redis://127.0.0.1:{proxy.port}/0", sweep_interval=None) as store,
    ):
        store.put(("a",), "k", {"n": 1})
        kept = store.cursor()
        new.ask("REPLICAOF", "127.0.0.1", old.port)
        deadline = time.monotonic() + 30
        while not new.ask("EXISTS", "holdall:{0}"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        new.ask("REPLICAOF", "NO", "ONE")
        stale = store.put(("a",), "k", {"n": 2})
        lost = store.cursor()
        proxy._target = new.port
        old.ask("REPLICAOF", "127.0.0.1", new.port)
        found = store.get(("a",), "k")
        assert found is not None
        assert found.value == {"n": 1}
        newer = store.put(("a",), "k", {"n": 3}, expect=found)
        assert newer.version > stale.version
        with pytest.raises(Conflict):
            store.put(("a",), "k", {"n": 4}, expect=stale)
        with pytest.raises(CursorExpired):
            store.watch(since=lost)
        with store.watch(since=kept) as watch:
            assert next(watch).version == newer.version


def test_reads_go_on_while_a_server_takes_no_writes() -> None:
    """Also over new connections, and on a server that was restarted."""
    with (
        Redis("--appendonly", "yes") as server,
        holdall.open(server.url, timeout=0.5, sweep_interval=None) as store,
    ):
        entry = store.put(("a",), "k", {})
        for is_restarted in (False, True):
            if is_restarted:
                server.kill()
                server.start()
            server.ask("CONFIG", "SET", "min-replicas-to-write", 1)
            for _ in range(2):
                assert store.get(("a",), "k") == asyncio.run(store.aget(("a",), "k")) == entry
                assert store.count() == 1
            with pytest.raises(Unavailable, match="NOREPLICAS"):
                store.put(("a",), "k", {})
            server.ask("CONFIG", "SET", "min-replicas-to-write", 0)
        cursor = store.cursor()
        newer = store.put(("a",), "k", {})
        with store.watch(since=cursor) as watch:
            assert next(watch).version == newer.version


@pytest.mark.parametrize("use_async", [False, True])
def test_nothing_is_written_before_it_is_noted_what_a_restart_has_lost(use_async: bool) -> None:
    """Also if the server refuses writes when a connection is opened, and accepts them a moment later."""
    with Redis("--appendonly", "no") as server, holdall.open(server.url, timeout=10, sweep_interval=None) as store:
        store.put(("a",), "k", {})
        server.ask("SAVE")
        store.put(("a",), "k", {"n": 1})
        lost = store.cursor()
        server.kill()
        server.start()
        server.ask("CONFIG", "SET", "min-replicas-to-write", 1)
        shards: Any = store._engine_handle.engine._shards  # type: ignore[attr-defined]  # Redis' own
        server.ask("SCRIPT", "LOAD", shards._scripts["put"].text)  # as another client may have
        prepare, refused = shards.connections._prepare, []

        def prepare_then_allow(*args: Any) -> Any:
            refused.append(prepare(*args))
            server.ask("CONFIG", "SET", "min-replicas-to-write", 0)
            return refused[-1]

        shards.connections._prepare = prepare_then_allow
        if use_async:
            asyncio.run(store.aput(("a",), "k", {"n": 2}))
        else:
            store.put(("a",), "k", {"n": 2})
        assert str(refused[0]).startswith("NOREPLICAS")
        with pytest.raises(CursorExpired):
            store.watch(since=lost)
