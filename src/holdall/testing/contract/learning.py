"""`Store.stats`, and learned filter indexes: they are built, and never change what a filter finds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from ...model import filters
from ...ops import Append, LearnFields, Put, Stats
from ..caller import Caller
from ..clock import Clock
from .base import Contract, Opener
from .filtering import EXAMPLES, NS, VALUES

FIELDS = ("n", "s", "tags", "user.id", "a.b.c", "a.b")
NESTED: dict[str, dict[str, Any]] = {
    "nested": {"a": {"b": {"c": 1}}},
    "dotted": {"a.b.c": 1},
    "dotted first": {"a.b": {"c": 1}},
    "dotted last": {"a": {"b.c": 1}},
    "long": {"s": "x" * 150 + "a", "n": -5},
    "longer": {"s": "x" * 150 + "b", "n": -5.5},
    "control": {"s": "x\x01", "n": 1e300},
}
MORE_FILTERS: list[dict[str, Any]] = [
    {"a.b.c": 1},
    {"a.b": {"c": 1}},
    {"a": {"b.c": 1}},
    {"a": {"b": {"c": 1}}},
    {"s": "x" * 150 + "a"},
    {"s": {"$gt": "x" * 150 + "a"}},
    {"s": {"$lte": "x" * 150 + "a"}},
    {"s": {"$gte": "x"}, "n": {"$lt": 0}},
    {"n": {"$gte": -5.5, "$lte": -5}},
    {"s": "x\x01"},
    {"n": 1e300},
    {"$or": [{"n": 10}, {"user.id": "u1"}]},
    {"$or": [{"n": 10}, {"m": 1}]},
    {"$or": []},
    {"$and": [{"n": {"$in": [1, 9, 10]}}, {"s": {"$in": ["banana", "apple"]}}]},
    {"n": {"$in": list(range(200))}},
]


class LearningContract(Contract):
    @pytest.fixture
    def learn(self, store: Caller, runner: asyncio.Runner | None) -> Callable[..., None]:
        """Give a function that has the engine index fields, however small the store is."""
        engine = store.store._engine_handle.engine
        store.setup()

        def learn(*names: str, limit: int = 3) -> None:
            op = LearnFields(names, names, least=0, limit=limit)
            until = time.monotonic() + 30
            while (engine.execute([op]) if runner is None else runner.run(engine.aexecute([op])))[0]:
                assert time.monotonic() < until
                time.sleep(0.001)
                op = LearnFields(limit=limit)
            if engine.capabilities.learns:
                states = {field.name: field.state for field in store.stats().learned_fields}
                assert {name: states.get(name) for name in names} == dict.fromkeys(names, "ready")

        return learn

    def check(self, store: Caller, values: dict[str, dict[str, Any]], namespace: tuple[str, ...] = NS) -> None:
        """Check that every filter finds what the matcher finds."""
        for filter in [*(example for example, _ in EXAMPLES), *MORE_FILTERS]:
            parsed = filters.parse(filter)
            expected = sorted(key for key, value in values.items() if parsed is None or parsed.matches(value))
            assert sorted(hit.key for hit in store.search(namespace, filter=filter, limit=100)) == expected, filter
            assert store.count(namespace, filter=filter) == len(expected), filter

    def test_stats_count_what_is_there(self, store: Caller, clock: Clock) -> None:
        assert (store.stats().entries, store.stats().files) == (0, 0)
        for key in ("a", "b", "c"):
            store.put(NS, key, {"n": 1})
        store.put(NS, "d", {"n": 1}, ttl=5)
        store.files().write("/a.txt", b"text")
        store.execute([Append(("filesystem",), "/b.txt", b"text", ttl=5)])
        store.delete(NS, "c")
        assert (store.stats().entries, store.stats().files, store.count()) == (5, 2, 5)
        clock.advance(6)
        assert (store.stats().entries, store.stats().files, store.count()) == (3, 1, 3)
        store.sweep()
        assert (store.stats().entries, store.stats().files, store.count()) == (3, 1, 3)

    def test_stats_measure_each_root(self, store: Caller) -> None:
        store.put(("a",), "k", {"n": 1})
        store.put(("a", "b"), "k", {"n": 22})
        store.put(("ab",), "k", {"n": 333})
        store.files(("c\x01d",)).write("/f", b"x" * 1000)
        store.put(("gone",), "k", {"n": 1})
        store.delete(("gone",), "k")
        stats = store.stats()
        if stats.root_bytes is None:
            return
        assert set(stats.root_bytes) == {"a", "ab", "c\x01d"}
        assert stats.root_bytes["a"] > stats.root_bytes["ab"] > 0
        assert 1000 <= stats.root_bytes["c\x01d"] < 1500
        assert sum(stats.root_bytes.values()) == stats.bytes

    def test_stats_of_a_scope_have_nothing_else(
        self, store: Caller, opened: Opener, learn: Callable[..., None]
    ) -> None:
        for root in ("a", "b"):
            store.put((root,), "k", {"n": 1})
            store.files((root, "files")).write("/f", b"x")
        learn("n")
        stats = store.scoped(("a",)).stats()
        assert stats == Stats(entries=2, files=1, bytes=stats.bytes)
        assert stats.bytes is None or len('{"n":1}') < stats.bytes < 100
        for number in range(3):
            store.put(("b",), f"more{number}", {"text": "x" * 1000})
            store.put(("ab",), f"more{number}", {"text": "x" * 1000})
        store.files(("b", "files")).write("/f", b"x" * 5000)
        assert store.scoped(("a",)).stats() == stats, "what others hold shows in nothing"

    def test_stats_have_the_declared_fields(self, opened: Opener) -> None:
        store = opened(filter_fields=["n", "user.id"])
        store.put(NS, "k", {"n": 1})
        assert set(store.stats().declared_fields) == {"n", "user.id"}

    def test_stats_have_the_lag_of_the_text_index(self, store: Caller) -> None:
        store.put(NS, "a", {"text": "apple"})
        assert store.stats().text_index_lag is None
        store.search(NS, query="apple")
        for number in range(30):
            store.put(NS, f"k{number}", {"text": "apple " * 200})
        store.search(NS, query="apple")
        store.put(NS, "b", {"text": "pear"})
        assert store.stats().text_index_lag in (0, 1, 2)

    def test_a_learned_field_finds_the_same(self, store: Caller, learn: Callable[..., None]) -> None:
        values = VALUES | NESTED
        half = len(values) // 2
        for key, value in list(values.items())[:half]:
            store.put(NS, key, value)
        learn(*FIELDS)
        for key, value in list(values.items())[half:]:  # these are indexed as they are written
            store.put(NS, key, value)
        self.check(store, values)

    def test_a_learned_field_follows_all_changes(self, store: Caller, clock: Clock, learn: Callable[..., None]) -> None:
        values = VALUES | NESTED
        for key, value in values.items():
            store.put(NS, key, value)
            store.put((*NS, "below"), key, value)
            store.put(("other",), key, {"n": 10, "s": "banana"})
        learn(*FIELDS)
        names = list(values)
        swapped = dict(zip(names, [values[name] for name in reversed(names)], strict=True))
        store.execute([Put(NS, key, value) for key, value in swapped.items()])
        store.delete(NS, "ten")
        store.put(NS, "missing", {"n": 10}, ttl=5)
        clock.advance(6)
        store.delete_tree((*NS, "below"))
        store.files(NS).write("/n", b'{"n": 10}')
        del swapped["ten"], swapped["missing"]
        assert store.count(NS, filter={"n": 10}) == sum(value.get("n") == 10 for value in swapped.values())
        store.files(NS).delete("/n")
        self.check(store, swapped)
        store.sweep()
        self.check(store, swapped)

    def test_a_store_that_was_open_before_keeps_the_index_right(
        self, store: Caller, opened: Opener, learn: Callable[..., None]
    ) -> None:
        other = opened()
        if not other.store._engine_handle.engine.capabilities.multiprocess:
            pytest.skip("one process only")
        for key, value in VALUES.items():
            other.put(NS, key, value)
        learn("n", "s")
        for key, value in NESTED.items():
            other.put(NS, key, value)
        other.delete(NS, "nine")
        values = {key: value for key, value in (VALUES | NESTED).items() if key != "nine"}
        self.check(store, values)
        self.check(other, values)

    def test_pages_of_a_learned_field_are_in_order(self, store: Caller, learn: Callable[..., None]) -> None:
        for number in range(40):
            store.put((*NS, str(number % 3)), f"k{number}", {"n": number % 4, "s": "x"})
        learn("n")
        for prefix in ((), NS, (*NS, "1")):
            expected = [hit.key for hit in store.search(prefix, limit=100) if hit.value["n"] == 2]
            found, page = [], store.search(prefix, filter={"n": 2}, limit=3)
            found += [hit.key for hit in page]
            while page.next is not None:
                page = store.search(prefix, filter={"n": 2}, limit=3, cursor=page.next)
                found += [hit.key for hit in page]
            assert found == expected

    def test_at_most_eight_fields_are_learned(self, store: Caller, learn: Callable[..., None]) -> None:
        if not store.store._engine_handle.engine.capabilities.learns:
            pytest.skip("it learns nothing")
        store.put(NS, "k", {f"f{number}": number for number in range(10)})
        learn(*(f"f{number}" for number in range(8)))
        engine = store.store._engine_handle.engine
        store.search(NS)
        engine.execute([LearnFields(("f8",), ("f8",), least=0)])  # none is old enough to be dropped
        assert {field.name for field in store.stats().learned_fields} == {f"f{number}" for number in range(8)}
        assert [hit.key for hit in store.search(NS, filter={"f8": 8})] == ["k"]
