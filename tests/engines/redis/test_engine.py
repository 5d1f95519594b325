"""The Redis engine on one server: the contract, the state machines, and what only Redis has."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import holdall
from holdall import ops
from holdall.engine import SetHistory
from holdall.engines.redis import engine as redis
from holdall.engines.redis import shards as redis_shards
from holdall.engines.redis import walks as redis_walks
from holdall.engines.redis.filter_index import encode_needles
from holdall.engines.redis.search import postings as redis_postings
from holdall.engines.redis.search import ranker as redis_ranker
from holdall.engines.redis.search import text_index as redis_texts
from holdall.errors import Conflict, InvalidInput, MissingExtra, SchemaTooNew, Unavailable
from holdall.model import filters
from holdall.ops import Append, Copy, Delete, Get, IndexTexts, Move, Put, ReadRange
from holdall.runtime.programs import drive
from holdall.testing import Clock, StoreContract, file_machine, ranking_machine, store_machine
from holdall.testing.contract import filtering
from holdall.testing.embedder import embed
from support.extent import IS_SHORT
from support.servers import Redis, redis_url
from support.small_thresholds import in_small

_numbers = itertools.count()


class TestRedis(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return f"contract{next(_numbers)}_{os.getpid()}"  # a prefix for each test, in each process

    def open_store(self, url: str, **options: Any) -> holdall.Store:
        return holdall.open(redis_url(), key_prefix=url, **options)


def open_store(folder: Path, clock: Clock) -> holdall.Store:
    return holdall.open(
        redis_url(), key_prefix=folder.name, clock=clock, sweep_interval=None, filter_fields=["a", "a.b"]
    )


TestMachine = store_machine(open_store).TestCase
TestAsyncMachine = store_machine(open_store, use_async=True).TestCase
TestFileMachine = file_machine(open_store).TestCase
TestAsyncFileMachine = file_machine(open_store, use_async=True).TestCase
TestSmallMachine = in_small(store_machine(open_store))
TestSmallRanking = in_small(ranking_machine(open_store))
TestSmallAsyncRanking = in_small(ranking_machine(open_store, use_async=True))
for _machine in (
    *(TestMachine, TestAsyncMachine, TestFileMachine, TestAsyncFileMachine),
    *(TestSmallMachine, TestSmallRanking, TestSmallAsyncRanking),
):  # each example needs many round trips to the server
    _machine.settings = settings(_machine.settings, max_examples=10 if IS_SHORT else 15, deadline=None)
del _machine  # or it would run once more


@pytest.mark.parametrize("machine", [TestMachine, TestFileMachine])
def test_large_trees_are_deleted_at_once_though_they_are_reclaimed_later(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order with other ops: the state machines run with a limit of no entries."""
    monkeypatch.setattr(redis, "MAX_SINGLE_DELETES", 0)
    monkeypatch.setattr(redis_shards, "_STEP", 1)
    machine().runTest()


def test_a_slice_of_a_move_is_small_whatever_limit_it_is_given(store: holdall.Store) -> None:
    """A quick slice would let the next one grow, which may be the first after the server has forked."""
    home = ("filesystem",)
    store.execute([Put(home, f"/d/{n:03}", {"content": ""}) for n in range(250)])
    engine = store._engine_handle.engine
    lasts = [engine.execute([ops.MoveSlice(home, "/d", "/e", None, 500)])[0] for _ in range(4)]
    assert lasts == ["/d/099", "/d/199", "/d/249", None]
    assert store.files().exists("/e/249")


@pytest.fixture
def store() -> Iterator[holdall.Store]:
    with holdall.open(redis_url(), key_prefix=f"own{next(_numbers)}", sweep_interval=None) as store:
        yield store


def key(store: holdall.Store, name: str) -> str:
    return store._engine_handle.engine._shards.prefixes[0] + name  # type: ignore[attr-defined]  # Redis' own


def test_filters_find_the_same_whether_or_not_a_field_is_indexed() -> None:
    prefix = f"own{next(_numbers)}"
    fields = ["a", "b", "a.b", "n", "tags", "b.c"]
    with (
        holdall.open(redis_url(), key_prefix=prefix, filter_fields=fields) as indexed,
        holdall.open(redis_url(), key_prefix=prefix) as plain,
    ):
        numbers = itertools.count()

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(stored=st.lists(filtering.values, min_size=1, max_size=5), filter=filtering.random_filters)
        def check(stored: list[dict[str, Any]], filter: dict[str, Any]) -> None:
            home = (str(next(numbers)),)
            plain.execute([Put(home, str(i), value) for i, value in enumerate(stored)])
            parsed = filters.parse(filter)
            expected = {str(i) for i, value in enumerate(stored) if parsed is None or parsed.matches(value)}
            for store in (indexed, plain):
                assert {hit.key for hit in store.search(home, filter=filter)} == expected
                assert store.count(home, filter=filter) == len(expected)

        check()


@pytest.mark.parametrize("declared", ["before", "after"])
@pytest.mark.parametrize("filter", [{"kind": "rare"}, {"n": 77}, {"n": {"$gte": 1999}}, {"kind": {"$in": ["rare"]}}])
def test_a_filter_on_an_indexed_field_reads_only_the_entries_that_it_finds(
    filter: dict[str, Any], declared: str
) -> None:
    """Whether the field was declared before the entries were put or after, also if another client put them."""
    prefix = f"own{next(_numbers)}"
    if declared == "before":
        holdall.open(redis_url(), key_prefix=prefix, filter_fields=["kind", "n"]).setup()
    with holdall.open(redis_url(), key_prefix=prefix) as plain:
        plain.execute([Put(("home",), str(n), {"kind": "rare" if n == 77 else "usual", "n": n}) for n in range(2000)])
    options: dict[str, Any] = {
        "filter_fields": ["kind", "n"],
        "sweep_interval": None,
    }  # a slow search wakes the sweeper
    with holdall.open(redis_url(), key_prefix=prefix, **options) as store:
        store.setup()
        asked = Counted(store)
        assert [hit.value["n"] for hit in store.search(("home",), filter=filter)] in ([77], [1999])
        assert store.count(filter=filter) == 1
        assert asked.scripts == ["changes", *["lookup", "versions"] * 2]
        store.put(("home",), "77", {"kind": "usual", "n": 0})
        store.delete(("home",), "1999")
        assert store.search(("home",), filter=filter) == []
        found = server_keys(prefix)
        assert not any(b"rare" in member or b"\x00home\x01\x001999" in member for member in found)


def test_an_index_of_fields_is_declared_again_after_a_flush() -> None:
    """Other clients may have written since, and may have declared other fields."""
    for others in ([], ["kind"], ["kind", "type"]):
        with Redis() as server, holdall.open(server.url, filter_fields=["type"]) as store:
            store.put(("a",), "k", {"type": "note", "kind": "note"})
            assert store.count(filter={"type": "note"}) == 1
            server.ask("FLUSHALL")
            with holdall.open(f"{server.url}?client_name=other", filter_fields=others) as other:
                other.put(("a",), "k", {"type": "note", "kind": "plan"})
                assert store.count(filter={"type": "note"}) == 1
                assert store.count(filter={"type": "plan"}) == 0
                other.put(("a",), "l", {"type": "note", "kind": "plan"})
                store.put(("a",), "m", {"type": "note", "kind": "plan"})
            asked = Counted(store)
            assert len(store.search(filter={"type": "note"})) == 3
            assert "lookup" in asked.scripts


@pytest.mark.parametrize("mode", ["lexical", "semantic", "hybrid"])
def test_an_expired_entry_takes_no_room_in_a_page_of_a_search_of_everything(mode: Any) -> None:
    clock = Clock()
    with (
        Redis() as server,
        holdall.open(server.url, embed=embed, sweep_interval=None, clock=clock) as store,
    ):
        store.put(("a",), "stays", {"text": "peanuts"})
        store.put(("a",), "expires", {"text": "peanuts"}, ttl=5)
        assert len(store.search(query="peanuts", mode=mode)) == 2
        clock.advance(6)
        assert [hit.key for hit in store.search(query="peanuts", mode=mode, limit=1)] == ["stays"]


def test_texts_and_vectors_in_the_memory_of_a_process_are_not_used_after_a_flush() -> None:
    with (
        Redis() as server,
        holdall.open(server.url, embed=embed, sweep_interval=None) as store,
        holdall.open(f"{server.url}?client_name=other", embed=embed, sweep_interval=None) as other,
    ):
        for number in range(40):
            store.put(("a",), f"old{number}", {"text": f"peanuts {number}"})
        for mode in ("lexical", "semantic"):
            assert len(store.search(query="peanuts", mode=mode, limit=100)) == 40
        server.ask("FLUSHALL")
        for number in range(10):  # so that other versions have texts
            other.put(("a",), f"none{number}", {"n": number})
        for number in range(30):
            other.put(("a",), f"new{number}", {"text": f"peanuts {number}"})
        for mode in ("lexical", "semantic"):
            assert len(other.search(query="peanuts", mode=mode, limit=100)) == 30
            assert len(store.search(query="peanuts", mode=mode, limit=100)) == 30


@pytest.mark.parametrize("mode", ["lexical", "semantic"])
def test_documents_that_a_server_has_lost_are_not_taken_for_those_that_came_after_them(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has whole parts of lost documents in memory; others have indexed as many new ones."""
    monkeypatch.setattr(redis_postings, "PART", 4)
    monkeypatch.setattr(redis_texts, "_FEW_CHANGES", 0)
    with (
        Redis("--appendonly", "no") as server,
        holdall.open(server.url, embed=embed, sweep_interval=None) as store,
        holdall.open(f"{server.url}?client_name=other", embed=embed, sweep_interval=None) as other,
    ):
        store.execute([Put(("a",), f"kept{n}", {"text": f"peanuts {n}"}) for n in range(6)])
        assert len(store.search(query="peanuts", mode=mode, limit=100)) == 6
        server.ask("SAVE")
        store.execute([Put(("a",), f"lost{n}", {"text": f"peanuts {n}"}) for n in range(6)])
        assert len(store.search(query="peanuts", mode=mode, limit=100)) == 12
        server.kill()
        server.start()
        other.execute([Put(("a",), f"new{n}", {"text": f"peanuts {n}"}) for n in range(10)])
        found = [each.search(query="peanuts", mode=mode, limit=100) for each in (other, store)]
        assert [len(hits) for hits in found] == [16, 16]
        assert found[0] == found[1]


@pytest.mark.parametrize("others_went_on", [False, True])
def test_vectors_are_written_after_a_flush(others_went_on: bool) -> None:
    """The flush has deleted the record of the embedding model; another client may have written it again."""
    with (
        Redis() as server,
        holdall.open(server.url, embed=embed, sweep_interval=None) as store,
        holdall.open(f"{server.url}?client_name=other", embed=embed, sweep_interval=None) as other,
    ):
        store.put(("a",), "old", {"text": "peanuts"})
        server.ask("FLUSHALL")
        if others_went_on:
            other.put(("a",), "first", {"n": 1})
            other.put(("a",), "theirs", {"text": "peanuts"})
        store.put(("a",), "ours", {"text": "peanuts"})
        found = {hit.key for hit in other.search(query="peanuts", mode="semantic")}
        assert found == ({"ours", "theirs"} if others_went_on else {"ours"})


@pytest.mark.parametrize("prefix", [(), ("a",)])
@pytest.mark.parametrize("mode", ["lexical", "semantic", "hybrid", None])
def test_a_search_finds_what_is_overwritten_all_the_time(prefix: tuple[str, ...], mode: Any) -> None:
    """Before every script of the search: so it never reads an entry at the version at which it found it."""
    options: Any = {
        "embed": embed,
        "filter_fields": ["type"],
        "key_prefix": f"own{next(_numbers)}",
        "sweep_interval": None,
    }
    with holdall.open(redis_url(), **options) as store, holdall.open(f"{redis_url()}?protocol=2", **options) as other:
        for number in range(50):
            store.put(("a",), str(number), {"text": f"walnuts {number}", "type": "other"})
        hot = {"text": "peanuts and walnuts", "type": "note", "is": "hot"}
        store.put(("a",), "hot", hot)
        assert len(store.search(query="walnuts", mode="lexical", limit=100)) == 51  # the index knows it
        store.search(query="walnuts", mode="semantic", limit=100)
        engine: Any = store._engine_handle.engine
        command = engine._shards._make_command

        def overwritten_before(*args: Any) -> Any:
            other.put(("a",), "hot", hot)
            return command(*args)

        engine._shards._make_command = overwritten_before
        for filter in (None, {"type": "note"}, {"is": "hot"}):
            asked: Any = {"filter": filter, "limit": 100}
            if mode is not None:
                asked |= {"query": '"peanuts and" walnuts' if mode == "lexical" else "walnuts", "mode": mode}
            found = store.search(prefix, **asked)
            assert [hit.key for hit in found].count("hot") == 1
            assert len(found) == (1 if filter or mode == "lexical" else 51)
            assert store.count(prefix, filter=filter) == (1 if filter else 51)
        hot = {"text": "cashews", "type": "plan"}
        if mode == "lexical":
            assert store.search(prefix, query="peanuts", mode=mode) == []
        assert store.search(prefix, query="walnuts", mode=mode, filter={"type": "note"}) == []


@pytest.mark.parametrize("indexed_before", [{"postings"}, {"versions"}, {"postings", "versions", "changed_documents"}])
@pytest.mark.parametrize("prefix", [(), ("a",)])
@pytest.mark.parametrize("mode", ["lexical", "semantic", "hybrid"])
def test_a_search_finds_what_is_overwritten_and_indexed_all_the_time(
    monkeypatch: pytest.MonkeyPatch, mode: Any, prefix: tuple[str, ...], indexed_before: set[str]
) -> None:
    """Before every script that looks at entries. Before some of them, another process indexes what was overwritten.

    The search does not need another try, in which other entries could be missed.
    """
    monkeypatch.setattr(redis_walks, "_MAX_TRIES", 1)
    options: Any = {"embed": embed, "key_prefix": f"own{next(_numbers)}", "sweep_interval": None}
    with holdall.open(redis_url(), **options) as store, holdall.open(f"{redis_url()}?protocol=2", **options) as other:
        store.put(("a",), "hot", {"text": "peanuts"})
        store.put(("a",), "other", {"text": "walnuts"})
        other._engine_handle.engine.execute([ops.IndexTexts(100)])
        assert len(store.search(query="peanuts", mode="semantic")) == 2  # this process knows the vectors
        overwritten: list[str] = []

        def overwrite(name: str) -> None:
            other.put(("a",), "hot", {"text": "peanuts"})
            overwritten.append(name)
            if name in indexed_before:
                other._engine_handle.engine.execute([ops.IndexTexts(100)])

        call_before(store, {"count", "scan", "postings", "versions", "changed_documents"}, overwrite)
        found = store.search(prefix, query="peanuts", mode=mode)
        assert [hit.key for hit in found].count("hot") == 1
        assert "versions" in overwritten


def test_a_search_by_vectors_finds_what_is_overwritten_while_other_searches_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_walks, "_MAX_TRIES", 1)
    options: Any = {"embed": embed, "key_prefix": f"own{next(_numbers)}", "sweep_interval": None}
    with holdall.open(redis_url(), **options) as store, holdall.open(f"{redis_url()}?protocol=2", **options) as other:
        store.put(("a",), "hot", {"text": "peanuts"})
        is_searching = False

        def overwrite_and_search(_: str) -> None:
            nonlocal is_searching
            if not is_searching:
                is_searching = True
                other.put(("a",), "hot", {"text": "peanuts"})
                assert store.search(query="peanuts", mode="semantic")
                is_searching = False

        assert store.search(query="peanuts", mode="semantic")
        call_before(store, {"versions"}, overwrite_and_search)
        assert [hit.key for hit in store.search(query="peanuts", mode="semantic")] == ["hot"]


def test_a_search_during_which_the_index_is_rebuilt_reads_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"key_prefix": f"own{next(_numbers)}", "sweep_interval": None}
    with holdall.open(redis_url(), **options) as store, holdall.open(f"{redis_url()}?protocol=2", **options) as other:
        store.put(("a",), "hot", {"text": "peanuts"})
        other._engine_handle.engine.execute([ops.IndexTexts(100)])
        rebuilt: list[str] = []

        def rebuild(name: str) -> None:
            if len(rebuilt) < rebuilds:
                rebuilt.append(name)
                other.put(("a",), "hot", {"text": "peanuts"})
                with monkeypatch.context() as patch:
                    patch.setattr(redis_texts, "needs_rebuild", lambda _: True)
                    other._engine_handle.engine.execute([ops.IndexTexts(1)])

        call_before(store, {"versions"}, rebuild)
        rebuilds = 4
        assert [hit.key for hit in store.search(query="peanuts")] == ["hot"]
        assert len(rebuilt) == 4
        rebuilds = 9
        with pytest.raises(Unavailable, match="rebuild the text index"):
            store.search(query="peanuts")


def call_before(store: holdall.Store, scripts: set[str], call: Callable[[str], None]) -> None:
    """Call a function before each run of some scripts of a store."""
    shards: Any = store._engine_handle.engine._shards  # type: ignore[attr-defined]  # Redis' own
    make_command = shards._make_command

    def make_command_after_call(shard: int, name: str, *args: Any) -> Any:
        if name in scripts:
            call(name)
        return make_command(shard, name, *args)

    shards._make_command = make_command_after_call


class Counted:
    """Records the scripts that a store runs from now on."""

    def __init__(self, store: holdall.Store) -> None:
        shards: Any = store._engine_handle.engine._shards  # type: ignore[attr-defined]  # Redis' own
        self.scripts: list[str] = []
        command = shards._make_command

        def noted(shard: int, name: str, *args: Any) -> Any:
            self.scripts.append(name)
            return command(shard, name, *args)

        shards._make_command = noted


def server_keys(prefix: str) -> list[bytes]:
    """Return all members of the indexes of fields."""
    client = connect()
    return [m for name in client.scan_iter(f"{prefix}:*:i:*", count=10_000) for m in client.zrange(name, 0, -1)]


def connect() -> Any:
    import redis as driver

    return driver.Redis.from_url(redis_url(), protocol=2)


def test_searches_while_an_erasure_removes_the_index_find_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """They build a new index, of which the erasure must remove nothing."""
    prefix, found = f"own{next(_numbers)}", list[int]()
    words = " ".join(f"word{number}" for number in range(3000))  # each is a key, so the erasure needs several scans
    with (
        holdall.open(redis_url(), key_prefix=prefix, sweep_interval=None) as store,
        holdall.open(redis_url(), key_prefix=prefix, sweep_interval=None, timeout=31) as other,
    ):
        store.put(("a",), "k", {"text": words})
        assert len(other.search(query="word17")) == 1
        execute = redis_shards.Shards.execute

        def search_between(shards: Any, shard: int, command: Any, *rest: Any, **options: Any) -> Any:
            reply = yield from execute(shards, shard, command, *rest, **options)
            if command[0] in ("UNLINK", "SCAN"):
                found.extend(len(other.search(query=f"word{number}")) for number in range(0, 3000, 300))
            return reply

        monkeypatch.setattr(redis_shards.Shards, "execute", search_between)
        store.erase(("b",))
        monkeypatch.undo()
        assert len(found) >= 40, "this showed nothing"
        assert set(found) == {1}
        for number in range(0, 3000, 100):
            assert len(store.search(query=f"word{number}")) == 1


def test_a_slice_that_was_read_before_an_erasure_is_not_indexed_after_it(
    store: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the first slice of an index: what it has was erased, and no change will ever remove it."""
    store.put(("a",), "k", {"text": "confidential " * 2000})
    read = redis_texts.RedisTextIndex._read_changes

    def erase_after(index: Any, *args: Any) -> Any:
        rows = yield from read(index, *args)
        monkeypatch.undo()
        store.erase(("a",))
        return rows

    monkeypatch.setattr(redis_texts.RedisTextIndex, "_read_changes", erase_after)
    assert store.search(query="confidential") == []
    assert connect().keys(key(store, ":q:*:t:*").replace("{", "[{]")) == []


def test_the_server_does_not_send_values_that_cannot_match_a_filter(store: holdall.Store) -> None:
    """Also for a field that is not indexed."""
    store.execute([Put(("home",), str(n), {"kind": "rare" if n == 7 else "usual", "n": n}) for n in range(400)])
    shards: Any = store._engine_handle.engine._shards  # type: ignore[attr-defined]  # Redis' own
    reply = drive(
        shards.run(0, "newest", "", "", "", "", "", 500, "v", *encode_needles(filters.encode({"kind": "rare"}))),
        shards.connections.perform,
    )
    assert [found[0] for found in reply[1]] == [b"home\x01\x007"]


def test_the_newest_of_some_namespaces_are_merged_however_they_were_written(store: holdall.Store) -> None:
    """Each namespace is read in small pages, and more pages of those that have more of the newest entries."""
    versions = []
    for number in range(30):
        batch = [Put(("a", str(number % 7)), f"{number}-{n}", {"n": n % 50}) for n in range(1 + number * 13 % 97)]
        versions += [entry.version for entry in store.execute(batch)]
    newest = versions[::-1]
    for limit in (1, 10, 200, 1000, 5000):
        assert [hit.version for hit in store.search(("a",), limit=limit)] == newest[:limit]
    seen, cursor = [], None
    while not seen or cursor:
        page = store.search(("a",), limit=170, cursor=cursor)
        seen += [hit.version for hit in page]
        cursor = page.next
    assert seen == newest
    rare = [hit.version for hit in store.search(("a",), limit=5000) if hit.value == {"n": 49}]
    assert [hit.version for hit in store.search(("a",), filter={"n": 49}, limit=50)] == rare[:50]
    assert store.search(("a",), filter={"n": 50}) == []


def test_deleted_and_purged_entries_leave_no_keys(store: holdall.Store) -> None:
    """Neither bodies, vectors, fields nor indexes: only the state of the shard is left."""
    client = connect()
    with holdall.open(
        redis_url(), key_prefix=f"own{next(_numbers)}", embed=embed, feed_retention=0, filter_fields=["n"]
    ) as store:
        files = store.files()
        files.write("/a/b", b"x" * 3_000_000)
        files.append("/a/b", "more")
        files.copy("/a/b", "/c/d")
        files.append("/c/d", "other")
        files.append("/a/b", "again")
        files.move("/a", "/e")
        files.write("/c/d", "short")
        with pytest.raises(holdall.errors.Conflict):
            files.write("/never", b"y" * 3_000_000, expect=1)
        store.put(("notes",), "k", {"text": "tea", "n": 1}, ttl=1000)
        store.put(("notes",), "k", {"text": "green tea", "n": 2})
        store.search(query="tea")
        shard = store._engine_handle.engine._shards.prefixes[0]  # type: ignore[attr-defined]  # Redis' own
        assert files.read("/e/b") == b"x" * 3_000_000 + b"moreagain"
        store.delete_tree(("filesystem",))
        store.delete_tree(("notes",))
        store.sweep()
        left = {name.decode().removeprefix(shard) for name in client.keys(shard.replace("{", "[{]") + "*")}
        unused = {name for name in left if name.startswith(":b:u") and client.ttl(shard + name) > 0}
        assert len(unused) == 3, "what was sent for the put that was refused, and will expire"
        index = {name for name in left if name.startswith(":q")}
        client_id = store._engine_handle.engine._client  # type: ignore[attr-defined]  # Redis' own
        rest = left - unused - index - {f":d:{client_id}"}
        model = {name for name in rest if "__holdall__" in name}  # which model made the vectors
        assert rest - model <= {"", ":m", ":y", ":z", ":c", ":p", ":s", ":t"}
        for name in (":c", ":p", ":s"):
            assert client.zcard(shard + name) == 1, "the model's own entry"


def test_a_superseded_batch_has_no_effect(store: holdall.Store) -> None:
    """Its client has given up and sent other batches since, but the server may receive it later."""
    for n in (0, 1):  # the second one by `put_plain.lua`
        store.put(("a",), "k", {"n": n})
    engine: Any = store._engine_handle.engine
    engine._free_slots[-1][1] -= 1
    assert store.put(("a",), "k", {"n": 2}).value == {"n": 2}, "what was answered before, with a value of its own"
    assert store.get(("a",), "k").value == {"n": 1}  # type: ignore[union-attr]  # it is there
    engine._free_slots[-1][1] -= 2
    with pytest.raises(Unavailable):
        store.put(("a",), "k", {"n": 3})
    assert store.get(("a",), "k").value == {"n": 1}  # type: ignore[union-attr]  # it is there


def test_the_answers_to_a_client_are_removed_a_day_after_its_last_batch() -> None:
    """And not before, also for a client that wrote before a flush."""
    clock = Clock()
    prefix = f"own{next(_numbers)}"
    options: Any = {"key_prefix": prefix, "clock": clock, "sweep_interval": None}
    with holdall.open(redis_url(), **options) as one, holdall.open(f"{redis_url()}?client_name=b", **options) as other:

        def remembered() -> int:
            return len(connect().keys(f"{prefix}:*:d:*"))

        one.put(("a",), "k", {})
        engine: Any = one._engine_handle.engine
        connect().delete(key(one, ":m"), key(one, f":d:{engine._client}"))
        one.put(("a",), "k", {})
        one.execute([Put(("a",), "k", {}), Put(("a",), "l", {})])
        clock.advance(20 * 3600)
        other.put(("a",), "m", {})
        other.sweep()
        assert remembered() == 2
        clock.advance(5 * 3600)
        other.sweep()
        assert remembered() == 1
        clock.advance(20 * 3600)
        other.sweep()
        assert remembered() == 0


def test_a_free_slot_may_be_taken_by_another_thread(store: holdall.Store) -> None:
    class Contested(deque[list[int]]):
        def __bool__(self) -> bool:
            return True  # another thread takes the last slot after this check

    engine: Any = store._engine_handle.engine
    engine._free_slots = Contested()
    assert store.put(("a",), "k", {}) == store.get(("a",), "k")
    engine._free_slots.clear()
    assert store.execute([Delete(("a",), "k"), Put(("a",), "l", {})])[0]


def test_a_search_that_cannot_keep_up_with_the_index_raises_an_error(
    store: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lists(self: Any, *_: Any) -> Any:
        raise redis_texts.IndexChanged
        yield self

    monkeypatch.setattr(redis_texts.RedisTextIndex, "_read_postings", lists)
    store.put(("a",), "k", {"text": "peanuts"})
    with pytest.raises(Unavailable, match="faster than it can be read"):
        store.search(query="peanuts")


def test_a_client_that_others_overtake_goes_on_until_all_is_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took a part of the index for all of it, and a search then failed while the others went on."""
    monkeypatch.setattr(redis_texts, "_MOST_TRIES", 2)
    prefix = f"own{next(_numbers)}"
    first, second = (holdall.open(redis_url(), key_prefix=prefix, sweep_interval=None, timeout=29 + n) for n in (0, 1))
    read_changes = redis_texts.RedisTextIndex._read_changes
    slower: Any = first._engine_handle.engine

    def read_and_be_overtaken(self: Any, *args: Any) -> Any:
        read = yield from read_changes(self, *args)
        if self is slower._walks.text_index:
            second._engine_handle.engine.execute([IndexTexts(1)])
        return read

    monkeypatch.setattr(redis_texts.RedisTextIndex, "_read_changes", read_and_be_overtaken)
    with first, second:
        first.execute([Put(("a",), str(number), {"text": "peanuts"}) for number in range(64 * 7)])
        assert slower.execute([IndexTexts(1000)])[0][1] is False
        assert second._engine_handle.engine.execute([IndexTexts()]) == [(0, False)]


def test_a_batch_on_files_reads_its_own_writes(store: holdall.Store) -> None:
    """Appends, copies, moves and deletes, before anything is written."""
    home = ("volume",)
    store.files(home).write("/old", b"a" * (1 << 20))
    results = store.execute(
        [
            Append(home, "/old", b"b"),
            Copy(home, "/old", "/copy"),
            Append(home, "/copy", b"c"),
            Append(home, "/old", b"d"),
            ReadRange(home, "/old", (1 << 20) - 1),
            ReadRange(home, "/copy", (1 << 20) - 1),
            Append(home, "/new", b"e"),
            Move(home, "/new", "/newer"),
            Append(home, "/newer", b"f"),
            ReadRange(home, "/newer", 0),
            Delete(home, "/copy"),
            ReadRange(home, "/copy", 0),
            Get(home, "/newer"),
        ]
    )
    assert [results[place] for place in (4, 5, 9, 11)] == [b"abd", b"abc", b"ef", None]
    assert results[12].value["content"] == "ef"
    files = store.files(home)
    assert files.read("/old") == b"a" * (1 << 20) + b"bd"
    assert [info.path for info in files.walk()] == ["/newer", "/old"]
    files.delete("/", recursive=True)
    assert connect().keys(key(store, ":b:*").replace("{", "[{]")) == []


def test_times_beyond_the_exact_range_of_lua_numbers_are_exact() -> None:
    clock = Clock()
    with holdall.open(redis_url(), key_prefix=f"own{next(_numbers)}", clock=clock, sweep_interval=None) as store:
        century = 36_525 * 24 * 3600
        clock.advance(0.999_999)
        entry = store.put(("a",), "k", {}, ttl=9 * century)
        assert entry.expires_at == clock.now + timedelta(seconds=9 * century)
        clock.advance(9 * century - 1)
        clock.advance(0.999_999)
        assert store.get(("a",), "k") == entry
        assert store.sweep() == 0
        clock.advance(0.000_001)
        assert store.get(("a",), "k") is None
        assert (store.count(), store.sweep()) == (0, 1)


def test_scripts_are_sent_again_to_a_server_that_has_lost_them(store: holdall.Store) -> None:
    for _ in range(2):
        connect().script_flush()
        assert store.put(("a",), "k", {}) == store.get(("a",), "k")


def test_concurrent_semantic_searches_miss_no_vectors(store: holdall.Store) -> None:
    """Both add the vectors that they read to those in memory. The later search has read more, and adds second."""
    engine: Any = store._engine_handle.engine
    vectors = ops.Vectors(7, (struct.pack("<2f", 1.0, 0.0),))
    search = ops.Search((), vector=ops.Vector(7, vectors.data[0]))
    assert engine.execute([search]) == [[]]  # the server has the scripts now
    asked = Counted(store)

    def until_vectors_are_read() -> tuple[Any, Any]:
        program = engine._walks.walk(search)
        request = next(program)
        while asked.scripts[-1] != "vectors":
            request = program.send(engine._shards.connections.perform(request))
        return program, engine._shards.connections.perform(request)

    engine.execute([ops.Put(("a",), "first", "{}", ttl=None, vectors=vectors)])
    earlier, read = until_vectors_are_read()
    engine.execute([ops.Put(("a",), "second", "{}", ttl=None, vectors=vectors)])
    later, reply = until_vectors_are_read()
    earlier.send(read)
    with pytest.raises(StopIteration) as ended:
        while True:
            reply = engine._shards.connections.perform(later.send(reply))
    assert [hit.key for hit in ended.value.value] == ["second", "first"]


def test_vectors_are_read_once_by_searches_that_begin_at_once(
    store: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a search in a namespace takes from memory what was read before."""
    monkeypatch.setattr(redis_ranker, "_PAGE", 10)
    embedding = store.with_embedder(embed)
    embedding.execute([Put(("a", str(n % 4)), f"k{n}", {"text": f"note {n}"}) for n in range(400)])
    asked = Counted(store)
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda _: embedding.search(query="note 7", mode="semantic", limit=400), range(6)))
    assert {len(page) for page in found} == {400}
    assert asked.scripts.count("vectors") < 41 + 6 * 4  # each search by itself would ask 41 times
    del asked.scripts[:]
    expected = [hit.key for hit in found[0] if hit.namespace == ("a", "2")]
    assert [hit.key for hit in embedding.search(("a", "2"), query="note 7", mode="semantic", limit=400)] == expected
    assert asked.scripts.count("versions") <= 20  # one for each page of those that fit, and of those returned
    embedding.put(("a", "2"), "new", {"text": "note 7"})
    assert embedding.search(("a", "2"), query="note 7", mode="semantic")[0].key in {"new", "k7"}


def test_large_files_are_read_in_parts_of_one_version(store: holdall.Store) -> None:
    """No script returns more than one part, and parts of two contents are never mixed, however often it is written."""
    files = store.files()
    contents = [bytes([65 + number]) * 3_500_000 + b"needle" for number in range(3)]
    files.write("/big", contents[0])
    files.write("/empty", b"")
    asked = Counted(store)
    assert files.read("/big") == contents[0]
    assert asked.scripts == ["read"] * 4
    del asked.scripts[:]
    assert store.execute([ReadRange(("filesystem",), "/big", 1_000_000, 3_000_000)]) == [
        contents[0][1_000_000:3_000_000]
    ]
    assert asked.scripts == ["read"] * 2
    del asked.scripts[:]
    assert store.get(("filesystem",), "/big") == next(iter(store.scan(("filesystem",))))
    assert asked.scripts[:5] == ["get", *["read"] * 4]
    assert [hit.path for hit in files.grep("needle")] == ["/big"]
    assert files.grep("nothing like it") == []
    assert files.read("/empty") == b""
    stop = threading.Event()

    def write() -> None:
        for number in itertools.count():
            files.write("/big", contents[number % 3])
            if stop.is_set():
                break

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(20):
            assert files.read("/big") in contents
    finally:
        stop.set()
        thread.join()


def test_many_expired_entries_are_swept_before_a_script_skips_them() -> None:
    clock = Clock()
    with holdall.open(redis_url(), key_prefix=f"own{next(_numbers)}", clock=clock, sweep_interval=None) as store:
        files = store.files(("box",))
        file = {"content": "x", "encoding": "utf-8"}
        store.execute([Put(("box",), f"/tree/{number}", file, ttl=5) for number in range(3000)])
        store.execute([Put(("other", str(number)), "k", {}, ttl=5) for number in range(3000)])
        clock.advance(10)
        asked = Counted(store)
        assert not files.exists("/tree")
        assert asked.scripts.count("sweep") > 1
        del asked.scripts[:]
        assert store.namespaces() == []
        assert asked.scripts.count("sweep") > 1
        store.put(("box",), "/tree/2999", file)
        assert files.exists("/tree")
        assert store.namespaces() == [("box",)]


_PUTS = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from([None, 1, 5, ops.KEEP]),
    st.sampled_from([ops.ANY, ops.ABSENT]),
    st.sampled_from([None, '["text"]', "[]"]),
    st.sampled_from(["put", "put", "put", "delete", "wait", "restore"]),
)
_PUT_A, _PUT_B = ((name, None, ops.ANY, None, "put") for name in ("a", "b"))  # what `put_plain.lua` can do
_DELETE, _WAIT, _RESTORE = (("a", None, ops.ANY, None, what) for what in ("delete", "wait", "restore"))


@pytest.mark.parametrize(("history", "namespace"), [(0, ("n",)), (1000, ("n",)), (1000, ("n", ".holdall.hidden"))])
@settings(max_examples=20, deadline=None)
@given(st.lists(_PUTS, max_size=8))
@example([("a", 5, ops.ANY, '["text"]', what) for what in ("put", "delete", "put", "wait", "put")])
@example([_PUT_A, _WAIT, _PUT_A, _PUT_B])
@example([_PUT_A, _DELETE, _PUT_B])
@example([_PUT_A, _DELETE, _PUT_A])
@example([_PUT_A, ("a", 5, ops.ANY, None, "put"), _PUT_A])
@example([_PUT_A, ("a", None, ops.ANY, '["text"]', "put"), _PUT_A])
@example([_PUT_A, _RESTORE, _PUT_A])
def test_put_and_batch_scripts_leave_the_same_keys(
    history: float, namespace: tuple[str, ...], steps: list[Any]
) -> None:
    """All keys, except the answers that are kept for the client."""
    left = []
    for way in ("_put", "_run_batch"):
        clock = Clock()
        with holdall.open(redis_url(), key_prefix=f"own{next(_numbers)}", clock=clock, sweep_interval=None) as store:
            store.setup()
            client, home = connect(), key(store, "")
            engine: Any = store._engine_handle.engine
            client.hdel(home, "v", "f", "r")  # as after a flush
            engine.execute([SetHistory(history)])
            engine._shards.newest_version = 4 * 10**15  # later than any clock, so that both ways use the same versions
            for name, ttl, expect, index, what in steps:
                if what == "wait":
                    clock.advance(2)
                elif what == "delete":
                    store.delete(namespace, name)
                elif what == "restore":
                    restored = store.acting("ann")
                    restored.put(namespace, name, {"text": "x"})
                    restored.execute([ops.Backdate(namespace, name, updated_at=datetime(2001, 1, 1, tzinfo=UTC))])
                else:
                    op = ops.Put(namespace, name, '{"text": "x"}', expect=expect, ttl=ttl, search_fields=index)
                    with contextlib.suppress(Conflict):
                        drive(
                            engine._put(op) if way == "_put" else engine._run_batch([op]),
                            engine._shards.connections.perform,
                        )
            names = [
                one
                for one in client.scan_iter(home + "*", count=10_000)
                if b":d:" not in one and not one.endswith(b":m")
            ]
            left.append({one.removeprefix(home.encode()): _contents(client, one) for one in names})
    assert left[0] == left[1]
    assert left[0] or not steps


def test_a_plain_put_has_the_time_of_the_server_and_keeps_that_of_its_creation() -> None:
    with holdall.open(redis_url(), key_prefix=f"own{next(_numbers)}", sweep_interval=None) as store:
        store.setup()
        client, engine = connect(), cast(Any, store._engine_handle.engine)

        def put(way: str) -> holdall.Entry:
            op = ops.Put(("n",), "k", f'{{"way": "{way}"}}', ttl=None)
            before = client.time()
            steps = engine._put(op) if way == "plain" else engine._run_batch([op])
            put = drive(steps, engine._shards.connections.perform)
            after = client.time()
            found = store.get(("n",), "k")
            assert found is not None
            assert put in (found, [found])
            assert before <= divmod(round(found.updated_at.timestamp() * 10**6), 10**6) <= after
            return found

        entries = [put(way) for way in ("plain", "plain", "batch", "plain")]
        assert [entry.value["way"] for entry in entries] == ["plain", "plain", "batch", "plain"]
        assert {entry.created_at for entry in entries} == {entries[0].updated_at}
        assert sorted({entry.version for entry in entries}) == [entry.version for entry in entries]


def _contents(client: Any, name: bytes) -> Any:
    kind = client.type(name)
    return client.hgetall(name) if kind == b"hash" else client.zrange(name, 0, -1, withscores=True)


def test_a_store_with_a_newer_layout_is_refused(store: holdall.Store) -> None:
    connect().hset(key(store, ""), "l", 2)
    prefix = key(store, "").partition(":")[0]
    with pytest.raises(SchemaTooNew), holdall.open(redis_url(), key_prefix=prefix, timeout=9):
        pass


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://localhost", {"key_prefix": ""}),
        ("redis://localhost", {"key_prefix": "a{b}"}),
        ("redis://localhost", {"pool_max": 0}),
        ("redis://localhost", {"pool_timeout": -1}),
        ("redis://localhost", {"schema": "s"}),
        ("redis://localhost", {"pool_min": 3, "pool_max": 2}),
        ("redis://localhost/0?socket_timeout=never", {}),
        ("redis://localhost/0?max_connections=10", {}),
        ("redis://localhost/0?nonsense=1", {}),
        ("redis://localhost/agents", {}),
        ("redis://localhost/1/2", {}),
        ("redis://:s3cret@localhost:port/0", {}),
        ("rediss://localhost/0?ssl_cert_reqs=nonsense", {}),
        ("redis+cluster://localhost/3", {}),
    ],
)
def test_invalid_urls_and_options_are_refused(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        holdall.open(url, **options)
    assert "s3cret" not in str(refused.value)


def test_a_wrong_password_fails_without_retries() -> None:
    with Redis("--requirepass", "secret") as server:
        with holdall.open(server.url.replace("//", "//:secret@")) as store:
            store.put(("a",), "k", {})
        with pytest.raises(Unavailable, match="refused the login"), holdall.open(server.url.replace("//", "//:guess@")):
            pass
        with pytest.raises(Unavailable, match="refused the login"), holdall.open(server.url):
            pass


def test_a_missing_database_fails_without_retries() -> None:
    store = holdall.open(redis_url().replace("/0", "/99"), timeout=600)
    with pytest.raises(InvalidInput, match="no such database"):
        store.get(("a",), "k")
    with pytest.raises(InvalidInput, match="no such database"):
        asyncio.run(store.aget(("a",), "k"))
    store.close()


def test_an_untrusted_certificate_fails_without_retries(tmp_path: Path) -> None:
    certificate = make_untrusted_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def shake_hands() -> None:
        with contextlib.suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True):
            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=shake_hands)
        thread.start()
        url = f"rediss://127.0.0.1:{listener.getsockname()[1]}/0"
        with pytest.raises(Unavailable, match="certificate"), holdall.open(url, timeout=600):
            pass
        thread.join()


def make_untrusted_certificate(folder: Path) -> Path:
    """Make a key and a self-signed certificate, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nobody")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    made = folder / "nobody.pem"
    pem = serialization.Encoding.PEM
    made.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + builder.sign(key, hashes.SHA256()).public_bytes(pem)
    )
    return made


def test_a_unix_socket_and_another_database_work(tmp_path: Path) -> None:
    with Redis("--unixsocket", str(tmp_path / "s")) as server:
        with holdall.open(f"unix://{tmp_path}/s?db=3") as store:
            store.put(("a",), "k", {})
            asyncio.run(store.aput(("a",), "k", {"n": 1}))
        with holdall.open(server.url) as other:
            assert other.count() == 0
        with holdall.open(server.url.replace("/0", "/3")) as same:
            assert same.get(("a",), "k").value == {"n": 1}  # type: ignore[union-attr]  # it is there


def test_a_missing_driver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("holdall.engines.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hiredis", None)
    with pytest.raises(MissingExtra, match=r"holdall\[redis\]"):
        holdall.open("redis://localhost")


_INTERRUPTED = """
import signal, time
from holdall.engines.redis import connections

class Interrupt(Exception):
    pass

def interrupt(*_):
    raise Interrupt

signal.signal(signal.SIGALRM, interrupt)
command = ("EVALSHA", "x" * 40, 1, *[123456789012345678] * 500)
until, count = time.monotonic() + 1, 0
while time.monotonic() < until:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.00005)
        while True:
            connections._pack([command])
    except Interrupt:
        count += 1
print(count)
"""


def test_a_signal_while_a_command_is_packed_does_not_crash() -> None:
    """hiredis does not check whether its conversion of an int to text has failed."""
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done
    assert int(done.stdout) > 100


def test_a_model_that_was_recorded_after_a_flush_is_not_taken_for_an_earlier_one() -> None:
    """When versions were counted, both had the same number, and their vectors would have been compared."""

    def other_model(texts: list[str]) -> list[list[float]]:
        return [[1.0, float(len(text)), 0.5] for text in texts]

    with (
        Redis() as server,
        holdall.open(server.url, embed=embed, sweep_interval=None) as store,
        holdall.open(f"{server.url}?client_name=other", embed=other_model, sweep_interval=None) as other,
    ):
        store.put(("a",), "old", {"text": "peanuts"})
        server.ask("FLUSHALL")
        other.put(("a",), "theirs", {"text": "peanuts"})
        with pytest.raises(InvalidInput, match="made by another model"):
            store.put(("a",), "ours", {"text": "peanuts"})
