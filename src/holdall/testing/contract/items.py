"""Put, get, update and delete of one entry."""

from __future__ import annotations

import dataclasses
import enum
import threading
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ... import ABSENT
from ...errors import Conflict, InvalidInput, InvalidValue, NotFound
from ...model.keys import RESERVED
from ...ops import Entry, Get
from ..caller import Caller
from ..clock import Clock
from .base import Contract

NS = ("users", "alice")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
)
objects = st.dictionaries(texts, json_values, max_size=5)

# Each example overwrites the last one's entry, so one store serves them all. A profile of hypothesis may ask for fewer.
many = settings(
    max_examples=min(60, settings().max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Colour(enum.Enum):
    RED = "red"


class Name(enum.StrEnum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    when: date


def identical(left: Any, right: Any) -> bool:
    """Equal, with the same types, the same order of keys and the same sign of zero."""
    return repr(left) == repr(right)


class ItemContract(Contract):
    def test_what_is_put_comes_back(self, store: Caller) -> None:
        put = store.put(NS, "k", {"likes": ["tea"], "age": 7})
        got = store.get(NS, "k")
        assert got == put
        assert got.namespace == NS
        assert got.key == "k"
        assert got.value == {"likes": ["tea"], "age": 7}

    def test_a_missing_entry_is_none(self, store: Caller) -> None:
        assert store.get(NS, "nothing") is None
        store.put(NS, "k", {})
        assert store.get((*NS, "below"), "k") is None
        assert store.get(NS[:1], "k") is None

    def test_namespaces_that_look_alike_are_apart(self, store: Caller) -> None:
        """spoon_ai joins labels with "/" and mixes these up."""
        alike = [
            ("a/b",),
            ("a", "b"),
            ("a.b",),
            ("a\x01b",),
            ("a\x02b",),
            ("ab",),
            ("a",),
            ("a", "\x01"),
            ("a", "b", "c"),
        ]
        for i, namespace in enumerate(alike):
            store.put(namespace, "k", {"i": i})
        assert [store.get(namespace, "k").value["i"] for namespace in alike] == list(range(len(alike)))
        assert store.namespaces() == sorted(alike)

    @many
    @given(value=objects)
    def test_any_json_object_comes_back_identical(self, store: Caller, value: dict[str, Any]) -> None:
        assert identical(store.put(NS, "k", value).value, value)
        assert identical(store.get(NS, "k").value, value)

    @many
    @given(
        namespace=st.lists(texts.filter(lambda t: t and "\x00" not in t and t != RESERVED), min_size=1, max_size=3).map(
            tuple
        )
    )
    def test_any_namespace_and_key_can_be_used(self, store: Caller, namespace: tuple[str, ...]) -> None:
        key = namespace[-1]
        version = store.put(namespace, key, {}).version
        entry = store.get(namespace, key)
        assert (entry.namespace, entry.key, entry.version) == (namespace, key, version)
        assert namespace in store.namespaces(limit=10_000)
        assert [hit.key for hit in store.search(namespace, recursive=False)] == [key]
        assert store.delete(namespace, key)

    @pytest.mark.parametrize(
        "value",
        [
            {"z": 1, "a": 2, "m": 3},
            {"one": 1.0, "int": 1, "zero": -0.0, "big": 1e300, "tiny": 5e-324, "exact": 0.1},
            {"huge": 10**4300 - 1, "least": 1 - 10**4300, "negative": -(2**63) - 1, "u64": 2**64},
            {"nul": "a\u0000b", "\u0000": 1, "quote": "\"'\\", "lines": "\r\n\u2028\x0c\x85"},
            {"": {"": {"": []}}, "unicode": "é漢字😀\u200b\ufeff"},
            {"a') OR 1=1 --": 1, "$.x": 2, "a.b": 3, "a[0]": 4, '"': 5, "$gt": 6},
            {"null": None, "true": True, "list": [[], {}, [None]]},
        ],
        ids=["key order", "floats", "big ints", "control characters", "unicode", "hostile keys", "empty things"],
    )
    def test_values_are_kept_exactly(self, store: Caller, value: dict[str, Any]) -> None:
        store.put(NS, "k", value)
        assert identical(store.get(NS, "k").value, value)
        assert identical(store.search(NS)[0].value, value)
        assert identical(store.scan(NS)[0].value, value)

    def test_richer_types_become_their_json_form(self, store: Caller) -> None:
        value = {
            "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "day": date(2026, 1, 2),
            "id": UUID(int=1),
            "price": Decimal("1.10"),
            "colour": Colour.RED,
            "point": Point(1, date(2026, 1, 2)),
            "pair": (1, 2),
            Colour.RED: 1,
        }
        plain = {
            "at": "2026-01-02T03:04:05+00:00",
            "day": "2026-01-02",
            "id": "00000000-0000-0000-0000-000000000001",
            "price": "1.10",
            "colour": "red",
            "point": {"x": 1, "when": "2026-01-02"},
            "pair": [1, 2],
            "red": 1,
        }
        assert identical(store.put(NS, "k", value).value, plain)
        assert identical(store.get(NS, "k").value, plain)

    def test_a_dataclass_can_be_the_whole_value(self, store: Caller) -> None:
        assert store.put(NS, "k", Point(1, date(2026, 1, 2))).value == {"x": 1, "when": "2026-01-02"}

    def test_keys_that_become_the_same_are_refused(self, store: Caller) -> None:
        with pytest.raises(InvalidValue, match="two keys become 'red': at a"):
            store.put(NS, "k", {"a": {Colour.RED: 1, "red": 2}})
        assert store.get(NS, "k") is None

    def test_a_key_of_a_richer_type_is_that_text_and_nothing_else(self, store: Caller) -> None:
        class Odd(str):
            __slots__ = ()
            __hash__ = object.__hash__

            def __eq__(self, other: object) -> bool:
                return self is other

        for key in (Odd("red"), Name.RED):
            assert type(store.put(NS, key, {"n": 1}).key) is str
            assert store.get(NS, "red") == store.get(NS, key) == store.execute([Get(NS, key)])[0]
            assert store.count(NS) == 1
            assert store.delete(NS, key)

    def test_nothing_returned_is_an_alias_of_what_is_stored(self, store: Caller) -> None:
        """LangGraph's InMemoryStore hands out live references."""
        mine: dict[str, Any] = {"list": [1]}
        put = store.put(NS, "k", mine)
        mine["list"].append(2)
        put.value["list"].append(3)
        store.get(NS, "k").value["list"].append(4)
        store.search(NS)[0].value["list"].append(5)
        store.scan(NS)[0].value["list"].append(6)
        store.execute([Get(NS, "k")])[0].value["list"].append(7)
        assert store.get(NS, "k").value == {"list": [1]}

    def test_versions_are_unique_and_grow_across_deletes(self, store: Caller) -> None:
        versions = []
        for _ in range(3):
            versions += [store.put(NS, key, {}).version for key in ("a", "b", "a")]
            store.delete(NS, "a")
            store.delete_tree(NS)
        assert versions == sorted(set(versions))

    def test_times_are_aware_utc_and_created_survives_overwrites(self, store: Caller, clock: Clock) -> None:
        """LangGraph's SqliteStore resets created_at on an overwrite."""
        first = store.put(NS, "k", {"n": 1})
        assert first.created_at == first.updated_at == clock.now
        assert first.created_at.tzinfo is not None
        assert first.created_at.utcoffset() == timedelta(0)
        clock.advance(10.000001)
        second = store.put(NS, "k", {"n": 2})
        assert second.created_at == first.created_at
        assert second.updated_at == clock.now == store.get(NS, "k").updated_at
        assert second.updated_at.microsecond == 1

    def test_created_restarts_after_a_delete(self, store: Caller, clock: Clock) -> None:
        store.put(NS, "k", {})
        store.delete(NS, "k")
        clock.advance(5)
        assert store.put(NS, "k", {}).created_at == clock.now
        assert store.get(NS, "k").created_at == clock.now

    def test_delete_returns_whether_the_entry_existed(self, store: Caller) -> None:
        store.put(NS, "k", {})
        assert store.delete(NS, "k") is True
        assert store.get(NS, "k") is None
        assert store.delete(NS, "k") is False

    def test_delete_tree_takes_whole_labels_only(self, store: Caller) -> None:
        for namespace in (("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("b",)):
            for key in ("x", "y"):
                store.put(namespace, key, {})
        assert store.delete_tree(("a", "b")) == 4
        assert store.delete_tree(("a", "b")) == 0
        assert store.delete_tree(("a",)) == 2
        assert store.namespaces() == [("ab",), ("b",)]
        assert store.count() == 4

    # expect= ---------------------------------------------------------------------------------------------------------

    def test_absent_lets_only_the_first_one_create(self, store: Caller) -> None:
        """Two create-only writes both succeed in spoon_ai."""
        first = store.put(NS, "k", {"n": 1}, expect=ABSENT)
        with pytest.raises(Conflict) as caught:
            store.put(NS, "k", {"n": 2}, expect=ABSENT)
        assert store.get(NS, "k") == first
        assert (caught.value.namespace, caught.value.key) == (NS, "k")
        assert (caught.value.expected, caught.value.actual) == (None, first.version)
        store.delete(NS, "k")
        assert store.put(NS, "k", {"n": 3}, expect=ABSENT).value == {"n": 3}

    def test_a_version_or_entry_must_still_be_there(self, store: Caller) -> None:
        first = store.put(NS, "k", {"n": 1})
        second = store.put(NS, "k", {"n": 2}, expect=first)
        with pytest.raises(Conflict) as caught:
            store.put(NS, "k", {"n": 3}, expect=first.version)
        assert (caught.value.expected, caught.value.actual) == (first.version, second.version)
        assert store.get(NS, "k") == second
        assert store.put(NS, "k", {"n": 3}, expect=second.version).value == {"n": 3}

    def test_a_version_never_matches_an_absent_entry(self, store: Caller) -> None:
        gone = store.put(NS, "k", {})
        store.delete(NS, "k")
        for version in (gone.version, gone.version + 1, 0, -1, 2**62):
            with pytest.raises(Conflict) as caught:
                store.put(NS, "k", {}, expect=version)
            assert caught.value.actual is None
        assert store.get(NS, "k") is None

    def test_an_entry_of_another_key_is_no_expectation(self, store: Caller) -> None:
        other = store.put(NS, "other", {})
        with pytest.raises(InvalidInput, match="another key"):
            store.put(NS, "k", {}, expect=other)
        assert store.get(NS, "k") is None

    def test_delete_honours_expect(self, store: Caller) -> None:
        first = store.put(NS, "k", {})
        second = store.put(NS, "k", {})
        for wrong in (first, ABSENT):
            with pytest.raises(Conflict):
                store.delete(NS, "k", expect=wrong)
        assert store.get(NS, "k") == second
        assert store.delete(NS, "k", expect=second) is True
        assert store.delete(NS, "k", expect=ABSENT) is False
        with pytest.raises(Conflict):
            store.delete(NS, "k", expect=second)

    # update ----------------------------------------------------------------------------------------------------------

    def test_update_writes_what_the_function_returns(self, store: Caller, clock: Clock) -> None:
        first = store.put(NS, "k", {"n": 1})
        clock.advance(1)
        entry = store.update(NS, "k", lambda value: {"n": value["n"] + 1})
        assert entry.value == {"n": 2}
        assert entry.created_at == first.created_at
        assert store.get(NS, "k") == entry

    def test_update_of_a_missing_entry_needs_a_default(self, store: Caller) -> None:
        with pytest.raises(NotFound):
            store.update(NS, "k", lambda value: value)
        default: dict[str, list[int]] = {"n": []}
        for expected in ([1], [1, 1]):
            assert store.update(NS, "k", lambda value: value["n"].append(1) or value, default=default).value == {
                "n": expected
            }
        assert default == {"n": []}
        seen: list[Any] = []

        def see(value: dict[str, Any]) -> dict[str, Any]:
            seen.append(value["at"])
            return value

        for _ in range(2):  # the function is given what is stored, whether it is there or not
            store.update(NS, "at", see, default={"at": date(2026, 1, 2)})
        assert seen == ["2026-01-02", "2026-01-02"]

    def test_update_writes_nothing_when_the_function_fails(self, store: Caller) -> None:
        before = store.put(NS, "k", {"n": 1})

        def fail(value: dict[str, Any]) -> None:
            value["n"] = 2
            raise RuntimeError("mine")

        with pytest.raises(RuntimeError, match="mine"):
            store.update(NS, "k", fail)
        with pytest.raises(InvalidInput, match="function"):
            store.update(NS, "k", {"n": 2})
        with pytest.raises(InvalidValue, match="returned None"):
            store.update(NS, "k", lambda value: None)
        assert store.get(NS, "k") == before

    def test_update_retries_when_somebody_else_wrote(self, store: Caller) -> None:
        store.put(NS, "k", {"n": 0})
        meddled: list[Entry] = []

        def add(value: dict[str, Any]) -> dict[str, Any]:
            if not meddled:
                meddled.append(store.store.put(NS, "k", {"n": 10}))
            return {"n": value["n"] + 1}

        assert store.update(NS, "k", add).value == {"n": 11}

    def test_updates_from_many_threads_are_all_kept(self, store: Caller) -> None:
        """deepagents: 8 threads x 40 edits reported 320 ok and kept 95."""
        store.put(NS, "k", {"n": 0})

        def add(value: dict[str, Any]) -> dict[str, Any]:
            return {"n": value["n"] + 1}

        def work() -> None:
            for _ in range(20):
                store.store.update(NS, "k", add)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.get(NS, "k").value == {"n": 160}
