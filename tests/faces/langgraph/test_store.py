"""LangGraph's store contract at `HoldallStore`, sync and async, on every engine, and where its own stores fail."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
)

import holdall
from holdall.errors import InvalidInput, InvalidValue, StoreClosed, Unavailable
from holdall.faces.langgraph import AsyncHoldallStore, HoldallStore
from holdall.testing import Clock
from support.face_calls import Calls
from support.langgraph_stores import Open

HOME = ("users", "ada", "memories")


@pytest.fixture
def calls(open_store: Open, runner: asyncio.Runner | None) -> Iterator[Calls]:
    with open_store(sweep_interval=None) as store:
        yield Calls(HoldallStore(store), runner)


def keys(items: list[SearchItem]) -> list[str]:
    return [item.key for item in items]


# Items ---------------------------------------------------------------------------------------------------------------


def test_an_item_comes_back_as_langgraphs_own_type(calls: Calls) -> None:
    before = datetime.now(UTC)
    calls.put(HOME, "diet", {"text": "no peanuts", "tags": ["food", None], "n": 1.5})
    item = calls.get(HOME, "diet")
    assert type(item) is Item
    assert (item.namespace, item.key) == (HOME, "diet")
    assert item.value == {"text": "no peanuts", "tags": ["food", None], "n": 1.5}
    assert item.created_at.utcoffset() == item.updated_at.utcoffset() == before.utcoffset()
    [found] = calls.search(("users",))
    assert type(found) is SearchItem
    assert (found.dict() | {"score": None}) == (item.dict() | {"score": None})
    assert found.score is None
    assert calls.get(HOME, "nothing") is None
    assert calls.delete(HOME, "diet") is None
    assert calls.delete(HOME, "diet") is None
    assert calls.get(HOME, "diet") is None


def test_it_is_a_base_store_that_supports_ttl(calls: Calls) -> None:
    assert isinstance(calls.face, BaseStore)
    assert calls.face.supports_ttl
    assert calls.face  # the server asks for it so
    assert calls.face.index_config is None


def test_a_key_becomes_a_str_and_any_mapping_is_a_value(calls: Calls) -> None:
    calls.put(HOME, 7, MappingProxyType({"a": 1}))
    assert calls.get(HOME, "7").value == calls.get(HOME, 7).value == {"a": 1}


def test_putting_none_deletes(calls: Calls) -> None:
    calls.put(HOME, "k", {"a": 1})
    calls.put(HOME, "k", None)
    assert calls.get(HOME, "k") is None


def test_overwriting_keeps_created_at(open_store: Open, runner: asyncio.Runner | None) -> None:
    """LangGraph's SqliteStore and InMemoryStore set it again."""
    clock = Clock()
    with open_store(clock=clock) as store:
        calls = Calls(HoldallStore(store), runner)
        calls.put(HOME, "k", {"n": 1})
        first = calls.get(HOME, "k")
        clock.advance(60)
        calls.put(HOME, "k", {"n": 2})
        second = calls.get(HOME, "k")
    assert second.created_at == first.created_at == first.updated_at < second.updated_at


def test_a_returned_value_is_a_copy(calls: Calls) -> None:
    """LangGraph's InMemoryStore hands out live references."""
    value = {"tags": ["a"]}
    calls.put(HOME, "k", value)
    value["tags"].append("mine")
    calls.get(HOME, "k").value["tags"].append("got")
    calls.search(HOME)[0].value["tags"].append("found")
    assert calls.get(HOME, "k").value == {"tags": ["a"]}


def test_threads_may_share_a_store(open_store: Open) -> None:
    """LangGraph's InMemoryStore breaks under threads: "dictionary changed size during iteration"."""
    with open_store() as store, ThreadPoolExecutor(8) as threads:
        face = HoldallStore(store)

        def work(number: int) -> int:
            for turn in range(20):
                face.put(("t", str(number), str(turn)), "k", {"n": turn})
                face.list_namespaces(prefix=("t",))
            return len(face.search(("t", str(number)), limit=100))

        assert list(threads.map(work, range(8))) == [20] * 8


def test_four_connections_never_find_the_database_locked(tmp_path: Path) -> None:
    """Of 240 puts through four connections, 122 answered "database is locked"."""
    # Options that differ make engines that share nothing, as four processes would.
    faces = [HoldallStore(holdall.open(tmp_path / "agent.db", timeout=30 + number)) for number in range(4)]

    def put_all(number: int) -> None:
        for turn in range(60):
            faces[number].put(HOME, f"{number}-{turn}", {"n": turn})

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(put_all, range(4)))
    assert [len(face.search(HOME, limit=1000)) for face in faces] == [240] * 4
    for face in faces:
        face.store.close()


@pytest.mark.parametrize("value", [{"text": "\ud800"}, {"\udfff": 1}, {"n": float("nan")}, {"f": object()}])
def test_values_that_json_cannot_hold_are_refused(calls: Calls, value: dict[str, Any]) -> None:
    """CVE-2025-64439: a lone surrogate sent a value through a deserialiser that ran code."""
    with pytest.raises(InvalidValue):
        calls.put(HOME, "k", value)
    assert calls.get(HOME, "k") is None


def test_what_looks_like_a_serialised_object_stays_data(calls: Calls) -> None:
    """CVE-2025-64439, the other half: nothing that is stored is imported, constructed or run when it is read."""
    trap = {"lc": 2, "type": "constructor", "id": ["builtins", "eval"], "method": [None], "args": ["1/0"]}
    calls.put(HOME, "k", trap)
    assert calls.get(HOME, "k").value == calls.search(HOME)[0].value == trap


# Namespaces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "namespace", [("a.b",), ("",), (1,), ("a", "\x00"), ("\ud800",), (["a"],), ("__holdall__",), ("x" * 2000,)]
)
def test_bad_labels_raise_langgraphs_own_error(calls: Calls, namespace: Any) -> None:
    for call in (
        lambda: calls.put(namespace, "k", {}),
        lambda: calls.get(namespace, "k"),
        lambda: calls.delete(namespace, "k"),
        lambda: calls.search(namespace),
        lambda: calls.list_namespaces(prefix=namespace),
        lambda: calls.list_namespaces(suffix=namespace),
        lambda: calls.batch([PutOp(namespace, "k", {})]),
        lambda: calls.batch([GetOp(namespace, "k")]),
        lambda: calls.batch([SearchOp(namespace)]),
        lambda: calls.batch([ListNamespacesOp((MatchCondition("prefix", namespace),))]),
    ):
        with pytest.raises(InvalidNamespaceError):
            call()
    assert calls.search(()) == []


@pytest.mark.parametrize("namespace", [(), ("langgraph",), ("langgraph", "x")])
def test_put_refuses_the_empty_namespace_and_langgraphs_own(calls: Calls, namespace: tuple[str, ...]) -> None:
    with pytest.raises(InvalidNamespaceError):
        calls.put(namespace, "k", {})
    assert calls.get(namespace, "k") is None
    assert calls.delete(namespace, "k") is None
    assert calls.batch([GetOp(namespace, "k"), PutOp(namespace, "k", None)]) == [None, None]
    if not namespace:
        with pytest.raises(InvalidNamespaceError):
            calls.batch([PutOp(namespace, "k", {})])


def test_a_batch_may_write_to_langgraphs_own_namespace(calls: Calls) -> None:
    """As LangGraph's own does: only `put` and `aput` refuse that root."""
    assert calls.batch([PutOp(("langgraph", "foo"), "k", {"n": 1})]) == [None]
    assert calls.get(("langgraph", "foo"), "k").value == {"n": 1}
    assert [item.key for item in calls.search(("langgraph",))] == ["k"]


SPACES = [
    ("a", "b", "c"),
    ("a", "b", "d", "e"),
    ("a", "b", "d", "i"),
    ("a", "b", "f"),
    ("a", "c", "f"),
    ("b", "b", "c"),
]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, SPACES),
        ({"prefix": ("a", "b")}, SPACES[:4]),
        ({"prefix": ("a", "b"), "max_depth": 3}, [("a", "b", "c"), ("a", "b", "d"), ("a", "b", "f")]),
        ({"suffix": ("f",)}, [("a", "b", "f"), ("a", "c", "f")]),
        ({"prefix": ("a",), "suffix": ("c",)}, [("a", "b", "c")]),
        ({"prefix": ("*", "b")}, [*SPACES[:4], SPACES[5]]),
        ({"prefix": ("a", "*", "f")}, [("a", "b", "f"), ("a", "c", "f")]),
        ({"suffix": ("d", "*")}, [("a", "b", "d", "e"), ("a", "b", "d", "i")]),
        ({"suffix": ("b", "*")}, [("a", "b", "c"), ("a", "b", "f"), ("b", "b", "c")]),
        ({"max_depth": 1}, [("a",), ("b",)]),
        ({"max_depth": 2}, [("a", "b"), ("a", "c"), ("b", "b")]),
        ({"max_depth": 2, "limit": 1, "offset": 1}, [("a", "c")]),
        ({"limit": 2}, SPACES[:2]),
        ({"limit": 2, "offset": 5}, SPACES[5:]),
        ({"offset": 6}, []),
        ({"prefix": ("a", "b", "d", "e", "x")}, []),
        ({"prefix": ("A",)}, []),
    ],
)
def test_listing_namespaces(calls: Calls, asked: dict[str, Any], found: list[tuple[str, ...]]) -> None:
    for namespace in SPACES:  # no batch: on a Redis Cluster one has to stay within a root
        calls.put(namespace, "k", {})
    assert calls.list_namespaces(**asked) == found


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ([("prefix", ("a", "*", "f")), ("prefix", ("*", "b"))], [("a", "b", "f")]),
        ([("prefix", ("a",)), ("prefix", ("b",))], []),
        ([("suffix", ("f",)), ("suffix", ("c", "*"))], [("a", "c", "f")]),
        ([("prefix", ("a",)), ("suffix", ("*", "c")), ("suffix", ("b", "*"))], [("a", "b", "c")]),
        ([("prefix", ()), ("suffix", ())], SPACES),
    ],
)
def test_all_conditions_of_a_listing_must_hold(calls: Calls, conditions: list[Any], found: Any) -> None:
    for namespace in SPACES:  # no batch: on a Redis Cluster one has to stay within a root
        calls.put(namespace, "k", {})
    [listed] = calls.batch([ListNamespacesOp(tuple(MatchCondition(*condition) for condition in conditions))])
    assert listed == found


def test_an_unknown_match_type_is_an_error(calls: Calls) -> None:
    with pytest.raises(InvalidInput, match="match_type"):
        calls.batch([ListNamespacesOp((MatchCondition("infix", ("a",)),))])  # type: ignore[arg-type]  # so it is


def test_reading_leaves_no_namespace_behind(calls: Calls) -> None:
    """LangGraph's InMemoryStore lists what was only looked at."""
    calls.get(("ghost",), "k")
    calls.search(("ghost", "too"))
    calls.delete(("ghost", "three"), "k")
    calls.put(("real",), "k", {})
    calls.put(("gone",), "k", {})
    calls.delete(("gone",), "k")
    assert calls.list_namespaces() == [("real",)]


def test_a_search_prefix_matches_whole_labels(calls: Calls) -> None:
    """`("tenant", "acme")` returned the items of `acme-corp`, too."""
    calls.put(("tenant", "acme"), "mine", {})
    calls.put(("tenant", "acme", "deep"), "below", {})
    calls.put(("tenant", "acme-corp"), "theirs", {})
    assert keys(calls.search(("tenant", "acme"))) == ["below", "mine"]
    assert calls.list_namespaces(prefix=("tenant", "acme")) == [("tenant", "acme"), ("tenant", "acme", "deep")]


@pytest.mark.parametrize("label", ["u_1", "%", "u?1", "u[1]", "U1", "*"])
def test_a_label_is_no_pattern(calls: Calls, label: str) -> None:
    """`_` acted as a wildcard of LIKE, and case did not matter on SQLite."""
    calls.put((label,), "mine", {})
    for other in ("uX1", "u1", "u11", "u"):
        calls.put((other,), "theirs", {})
    assert keys(calls.search((label,))) == ["mine"]


# Batches -------------------------------------------------------------------------------------------------------------


def test_a_batch_reads_before_it_writes_and_answers_in_order(calls: Calls) -> None:
    calls.put(HOME, "old", {"n": 1})
    put, got, found, listed, gone, new = calls.batch(
        [
            PutOp(HOME, "new", {"n": 2}),
            GetOp(HOME, "new"),
            SearchOp(("users",)),
            ListNamespacesOp(),
            PutOp(HOME, "old", None),
            GetOp(HOME, "old"),
        ]
    )
    assert (put, got, gone, listed) == (None, None, None, [HOME])
    assert keys(found) == ["old"]
    assert new.value == {"n": 1}
    assert keys(calls.search(())) == ["new"]
    assert calls.batch([]) == []


def test_of_several_puts_to_one_key_the_last_counts(open_store: Open, runner: asyncio.Runner | None) -> None:
    clock = Clock()
    with open_store(clock=clock) as store:
        calls = Calls(HoldallStore(store), runner)
        calls.put(HOME, "k", {"n": 0})
        created = calls.get(HOME, "k").created_at
        clock.advance(1)
        calls.batch([PutOp(HOME, "k", {"n": 1}), PutOp(HOME, "k", None), PutOp(HOME, "k", {"n": 3})])
        item = calls.get(HOME, "k")
        assert (item.value, item.created_at) == ({"n": 3}, created), "it was never deleted"
        calls.batch([PutOp(HOME, "k", {"n": 4}), PutOp(HOME, "k", None)])
        assert calls.get(HOME, "k") is None
        calls.batch([PutOp(HOME, "a", {}), PutOp(HOME, "b", {}), PutOp(HOME, "a", {"n": 2})])
        assert keys(calls.search(HOME)) == ["a", "b"], "newest first, where each was put last"


def test_a_batch_that_fails_leaves_nothing_behind(calls: Calls) -> None:
    """LangGraph's SqliteStore committed what came before the error."""
    calls.put(HOME, "there", {"n": 1})
    for bad in (
        PutOp(HOME, "bad", {"n": float("inf")}),
        PutOp(HOME, "bad\x00", {}),
        PutOp(("a.b",), "bad", {}),
        PutOp(HOME, "bad", {}, ttl=-1),
        SearchOp(HOME, filter={"n": {"$nonsense": 1}}),
    ):
        with pytest.raises(ValueError):
            calls.batch([PutOp(HOME, "a", {}), PutOp(HOME, "there", None), bad])
    assert keys(calls.search(())) == ["there"]


def test_a_batch_refuses_objects_that_are_not_ops(calls: Calls) -> None:
    with pytest.raises(InvalidInput, match="GetOp"):
        calls.batch([("get", HOME, "k")])


# Searching -----------------------------------------------------------------------------------------------------------


def test_search_without_a_query_gives_the_newest_first_with_exact_pages(calls: Calls) -> None:
    calls.batch([PutOp(("docs", str(n % 3)), f"k{n:02}", {"n": n}) for n in range(25)])
    assert keys(calls.search(("docs",))) == [f"k{n:02}" for n in range(24, 14, -1)]
    pages = [keys(calls.search(("docs",), limit=7, offset=offset)) for offset in range(0, 28, 7)]
    assert [key for page in pages for key in page] == [f"k{n:02}" for n in range(24, -1, -1)]
    assert calls.search(("docs",), limit=0) == []
    assert calls.search((), limit=100, offset=25) == []


DOCS = {
    "a": {"n": 5, "status": "open", "tags": ["x", "y"], "meta": {"lang": "en", "rank": 1}},
    "b": {"n": 10, "status": "closed", "tags": [], "meta": {"lang": "de"}},
    "c": {"n": 100, "status": "open", "flag": True},
    "d": {"n": 9.5, "status": None, "title": "a, b"},
    "e": {"n": "10"},
}


@pytest.mark.parametrize(
    ("filter", "found"),
    [
        ({"status": "open"}, "ac"),
        ({"n": {"$eq": 10}}, "b"),
        ({"n": {"$ne": 10}}, "acde"),
        ({"n": {"$gt": 9.5}}, "bc"),
        ({"n": {"$gte": 10}}, "bc"),  # as text, "100" and "9.5" change places
        ({"n": {"$lt": 10}}, "ad"),
        ({"n": {"$lte": 9.5}}, "ad"),
        ({"n": {"$gte": 5, "$lt": 10}}, "ad"),
        ({"n": {"$in": [5, 100]}}, "ac"),
        ({"n": {"$nin": [5, 100]}}, "bde"),
        ({"flag": {"$exists": True}}, "c"),
        ({"flag": {"$exists": False}}, "abde"),
        ({"flag": True}, "c"),
        ({"status": None}, "de"),
        ({"tags": {"$contains": "x"}}, "a"),
        ({"title": {"$contains": ", "}}, "d"),
        ({"meta": {"lang": "en"}}, "a"),
        ({"meta.lang": "de"}, "b"),
        ({"$or": [{"n": 5}, {"n": 10}]}, "ab"),
        ({"$not": {"status": "open"}}, "bde"),
        ({"$and": [{"status": "open"}, {"n": {"$gt": 50}}]}, "c"),  # as the server adds its own
        ({"status": "open", "$and": [{"n": 5}]}, "a"),
    ],
)
def test_filters(calls: Calls, filter: dict[str, Any], found: str) -> None:
    calls.batch([PutOp(("docs",), key, value) for key, value in DOCS.items()])
    assert sorted(keys(calls.search(("docs",), filter=filter))) == list(found)


def test_numbers_are_compared_as_numbers(calls: Calls) -> None:
    """`{"$gte": 10}` compared as text on PostgreSQL, so that 9 was more and 100 was less."""
    calls.batch(
        [PutOp(("docs",), str(n), {"n": n}) for n in (9, 10, 100, -5, 10.5)] + [PutOp(("docs",), "t", {"n": "99"})]
    )
    assert sorted(keys(calls.search(("docs",), filter={"n": {"$gte": 10}}))) == ["10", "10.5", "100"]
    assert sorted(keys(calls.search(("docs",), filter={"n": {"$lt": 10}}))) == ["-5", "9"]


@pytest.mark.parametrize(
    "key",
    ["') OR 1=1 --", "n') = 5 OR ('1'='1", "a'; DROP TABLE holdall_entries; --", 'n"', "n{}", "%s", "$$", "x' || 'y"],
)
def test_a_filters_keys_and_operators_cannot_inject(calls: Calls, key: str) -> None:
    """CVE-2025-8709 and CVE-2025-67644: filter keys and operators were spliced into SQL."""
    calls.put(("docs",), "secret", {"n": 5})
    calls.put(("docs",), "own", {key: 7})
    assert keys(calls.search(("docs",), filter={key: 7})) == ["own"]
    assert keys(calls.search(("docs",), filter={key: {"$gt": 6}})) == ["own"]
    assert keys(calls.search(("docs",), filter={key: {"$ne": 7}})) == ["secret"]
    assert calls.search(("docs",), filter={"n": {f"$gt {key}": 1}}) == []
    with pytest.raises(ValueError, match="nonsense"):
        calls.search(("docs",), filter={"n": {"$nonsense": 1}})
    assert len(calls.search(("docs",))) == 2


# Lifetimes -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    return Clock()


def timed(open_store: Open, clock: Clock, runner: asyncio.Runner | None, **options: Any) -> Calls:
    ttl: Any = options or None
    return Calls(HoldallStore(open_store(clock=clock, sweep_interval=None), ttl=ttl), runner)


def test_a_ttl_is_minutes(open_store: Open, clock: Clock, runner: asyncio.Runner | None) -> None:
    calls = timed(open_store, clock, runner)
    calls.put(HOME, "short", {}, ttl=1)
    calls.put(HOME, "long", {}, ttl=2.5)
    calls.put(HOME, "for ever", {})
    clock.advance(61)
    assert [calls.get(HOME, key) is None for key in ("short", "long", "for ever")] == [True, False, False]
    clock.advance(149)
    assert calls.get(HOME, "long", refresh_ttl=False) is not None, "it was read, so its TTL was restarted"
    clock.advance(2)
    assert calls.get(HOME, "long") is None
    calls.face.store.close()


def test_a_part_of_a_minute_lasts_as_long_however_often_it_is_read(
    open_store: Open, clock: Clock, runner: asyncio.Runner | None
) -> None:
    """`ttl=0.4` was cut to 0 on PostgreSQL, and one read expired the item."""
    calls = timed(open_store, clock, runner)
    calls.put(HOME, "k", {}, ttl=0.4)
    for _ in range(5):
        clock.advance(20)
        assert calls.get(HOME, "k") is not None
    clock.advance(25)
    assert calls.get(HOME, "k") is None
    calls.face.store.close()


def test_the_default_ttl_applies_to_puts_without_one(
    open_store: Open, clock: Clock, runner: asyncio.Runner | None
) -> None:
    calls = timed(open_store, clock, runner, default_ttl=1)
    calls.put(HOME, "default", {})
    calls.put(HOME, "none", {}, ttl=None)
    calls.put(HOME, "own", {}, ttl=10)
    calls.batch([PutOp(HOME, "op", {})])  # an op says what it means
    clock.advance(61)
    assert sorted(keys(calls.search(HOME))) == ["none", "op", "own"]
    calls.face.store.close()


def test_the_stores_own_ttl_holds_where_none_is_configured(open_store: Open, clock: Clock) -> None:
    with open_store(clock=clock, ttl=60, sweep_interval=None) as store:
        face = HoldallStore(store)
        assert face.ttl_config == {"default_ttl": 1.0, "refresh_on_read": False}
        face.put(HOME, "k", {})
        clock.advance(59)
        assert face.get(HOME, "k") is not None
        clock.advance(2)
        assert face.get(HOME, "k") is None


@pytest.mark.parametrize("read", ["get", "search", "batch get", "batch search"])
@pytest.mark.parametrize(
    ("configured", "asked", "refreshes"),
    [(None, None, True), (True, None, True), (False, None, False), (False, True, True), (True, False, False)],
)
def test_reading_refreshes_as_asked_or_as_configured(
    open_store: Open,
    clock: Clock,
    runner: asyncio.Runner | None,
    read: str,
    configured: bool | None,
    asked: bool | None,
    refreshes: bool,
) -> None:
    calls = timed(open_store, clock, runner, **({} if configured is None else {"refresh_on_read": configured}))
    calls.put(HOME, "k", {"n": 1}, ttl=1)
    version = calls.face.store.get(HOME, "k").version
    clock.advance(40)
    match read:
        case "get":
            assert calls.get(HOME, "k", refresh_ttl=asked)
        case "search":
            assert calls.search(HOME, refresh_ttl=asked)
        case "batch get":
            refreshes = asked is not False
            assert calls.batch([GetOp(HOME, "k") if asked is None else GetOp(HOME, "k", asked)])
        case "batch search":
            refreshes = asked is not False
            assert calls.batch([SearchOp(HOME) if asked is None else SearchOp(HOME, refresh_ttl=asked)])
    clock.advance(40)
    entry = calls.face.store.get(HOME, "k")
    assert (entry is not None) == refreshes
    assert entry is None or entry.version == version, "a refresh is no change"
    calls.face.store.close()


def test_any_true_value_refreshes_as_in_langgraphs_stores(
    open_store: Open, clock: Clock, runner: asyncio.Runner | None
) -> None:
    calls = timed(open_store, clock, runner, refresh_on_read=0)
    calls.put(HOME, "k", {"n": 1}, ttl=1)
    clock.advance(40)
    assert calls.get(HOME, "k")
    assert calls.get(HOME, "k", refresh_ttl=1)
    clock.advance(40)
    assert calls.get(HOME, "k"), "asked to refresh, it did"
    clock.advance(40)
    assert calls.get(HOME, "k") is None
    calls.face.store.close()


@pytest.mark.parametrize("omit_expired", [True, False])
def test_expired_items_are_never_returned_swept_or_not(
    open_store: Open, clock: Clock, runner: asyncio.Runner | None, omit_expired: bool
) -> None:
    calls = timed(open_store, clock, runner, omit_expired=omit_expired)
    calls.put(HOME, "k", {}, ttl=1)
    calls.put(("other",), "k", {})
    clock.advance(60)
    assert calls.get(HOME, "k") is None
    assert keys(calls.search(())) == ["k"]
    assert calls.list_namespaces() == [("other",)]
    assert calls.face.sweep_ttl() == 1
    assert calls.face.sweep_ttl() == 0
    calls.face.store.close()


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), "5", True])
def test_a_ttl_that_is_none_is_refused(calls: Calls, ttl: Any) -> None:
    with pytest.raises(InvalidInput, match="minutes"):
        calls.put(HOME, "k", {}, ttl=ttl)
    assert calls.get(HOME, "k") is None


def test_a_sweeper_sweeps_until_it_is_stopped(open_store: Open) -> None:
    with open_store(sweep_interval=None) as store:
        face = HoldallStore(store, ttl={"default_ttl": 0.0001})
        face.put(HOME, "k", {})
        sweeping = face.start_ttl_sweeper(0.0001)
        assert face.start_ttl_sweeper() is sweeping
        while not _is_swept(store):
            assert not sweeping.done()
        assert face.stop_ttl_sweeper(timeout=10)
        assert sweeping.result(10) is None
        assert face.stop_ttl_sweeper()
        again = face.start_ttl_sweeper(0.0001)
        assert again.cancel()
        assert face.stop_ttl_sweeper(timeout=10)
        assert HoldallStore(store).start_ttl_sweeper().done(), "there is nothing to sweep"
        left = face.start_ttl_sweeper(1000)
        del face
        gc.collect()
        assert left.result(10) is None, "who is gone sweeps no more"


def test_an_async_sweeper_sweeps_until_it_is_stopped(open_store: Open) -> None:
    asyncio.run(_sweep_in_a_task(open_store))


async def _sweep_in_a_task(open_store: Open) -> None:
    async with open_store(sweep_interval=None) as store:
        face = AsyncHoldallStore(store, ttl={"default_ttl": 0.0001})
        await face.aput(HOME, "k", {})
        sweeping = await face.start_ttl_sweeper(0.0001)
        assert await face.start_ttl_sweeper() is sweeping
        while not await asyncio.to_thread(_is_swept, store):
            assert not sweeping.done()
        assert await face.stop_ttl_sweeper(timeout=10)
        assert sweeping.done()
        assert await face.stop_ttl_sweeper()
        assert await (await AsyncHoldallStore(store).start_ttl_sweeper()) is None


@pytest.mark.parametrize("awaited", [False, True])
def test_a_sweep_that_fails_is_tried_again_and_a_closed_store_ends_it(
    awaited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = iter([Unavailable("away"), Unavailable("still away"), None, StoreClosed("closed")])

    def sweep(_: holdall.Store) -> Any:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome
        yield from ()

    monkeypatch.setattr("holdall.core.face_api.sweep", sweep)

    async def in_a_task() -> None:
        async with asyncio.timeout(30):
            await (await AsyncHoldallStore("memory:", ttl={"default_ttl": 1}).start_ttl_sweeper(0.00001))

    if awaited:
        asyncio.run(in_a_task())
    else:
        face = HoldallStore("memory:", ttl={"default_ttl": 1})
        face.start_ttl_sweeper(0.00001).result(30)
    assert next(outcomes, "none left") == "none left"


def _is_swept(store: holdall.Store) -> bool:
    """Whether an expiry has become a change, which only sweeping does."""
    changes = store._engine_handle.engine.execute([holdall.ops.Changes()])[0]
    return [change.kind for change in changes] == ["expire"]
