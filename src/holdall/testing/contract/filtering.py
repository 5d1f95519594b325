"""The filter language, by examples and against the matcher itself."""

from __future__ import annotations

from datetime import date
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ...model import filters
from ..caller import Caller
from .base import Contract, Opener
from .items import many, texts

NS = ("filters",)
NAN, INF = float("nan"), float("inf")

VALUES: dict[str, dict[str, Any]] = {
    "one": {"n": 1, "s": "apple", "tags": ["x", "y"], "user": {"id": "u1", "age": 30}},
    "one.0": {"n": 1.0, "s": "Apple", "tags": "xyz", "user": {"id": "u2", "age": 10}},
    "true": {"n": True, "s": "1", "tags": [], "user": None},
    "ten": {"n": 10, "s": "banana", "tags": [1, None], "user.id": "u1"},
    "nine": {"n": 9, "s": "b%_", "tags": [True], "user": "u1"},
    "text": {"n": "10", "s": "", "user": {"id": None}},
    "null": {"n": None, "s": None, "tags": None},
    "missing": {},
    "big": {"n": 2**53 + 1, "s": "é漢", "tags": [{"a": 1, "b": 2}]},
    "fraction": {"n": 0.1, "s": "a\x00b", "tags": [["x"]]},
    "hostile": {"a') OR 1=1 --": 1, "$.x": 2, '"': 3, "a[0]": 4, "\\": 5, "$": {"x": 6}},
}

EXAMPLES: list[tuple[dict[str, Any], str]] = [
    ({}, "one one.0 true ten nine text null missing big fraction hostile"),
    ({"n": 1}, "one one.0"),
    ({"n": 1.0}, "one one.0"),
    ({"n": True}, "true"),
    ({"n": "10"}, "text"),
    ({"n": None}, "null missing hostile"),
    ({"n": {"$eq": 10}}, "ten"),
    ({"n": {"$eq": None}}, "null missing hostile"),
    ({"n": {"$ne": 1}}, "true ten nine text null missing big fraction hostile"),
    ({"n": {"$ne": None}}, "one one.0 true ten nine text big fraction"),
    ({"n": {"$gt": 1}}, "ten nine big"),
    ({"n": {"$gte": 10}}, "ten big"),
    ({"n": {"$gte": 9}}, "ten nine big"),
    ({"n": {"$lt": 10}}, "one one.0 nine fraction"),
    ({"n": {"$lte": 0.1}}, "fraction"),
    ({"n": {"$gte": 0.1, "$lt": 1}}, "fraction"),
    ({"n": 0.1}, "fraction"),
    ({"n": 2**53 + 1}, "big"),
    ({"n": 2**53}, ""),
    ({"n": {"$gt": 2**53}}, "big"),
    ({"n": {"$gt": "1"}}, "text"),
    ({"n": {"$gt": False}}, "true"),
    ({"n": {"$gt": None}}, ""),
    ({"n": {"$lt": [1]}}, ""),
    ({"n": {"$in": [1, "10", None]}}, "one one.0 text null missing hostile"),
    ({"n": {"$in": [9, 10]}}, "ten nine"),
    ({"n": {"$in": []}}, ""),
    ({"n": {"$nin": [1, "10", None]}}, "true ten nine big fraction"),
    ({"n": {"$nin": []}}, "one one.0 true ten nine text null missing big fraction hostile"),
    ({"n": {"$exists": True}}, "one one.0 true ten nine text null big fraction"),
    ({"n": {"$exists": False}}, "missing hostile"),
    ({"n": NAN}, ""),
    ({"n": {"$ne": NAN}}, "one one.0 true ten nine text null missing big fraction hostile"),
    ({"n": {"$lt": INF}}, "one one.0 ten nine big fraction"),
    ({"n": {"$gt": -INF}}, "one one.0 ten nine big fraction"),
    ({"n": {"$gt": INF}}, ""),
    ({"n": {"$in": [NAN, 1]}}, "one one.0"),
    ({"s": "apple"}, "one"),
    ({"s": {"$gt": "a"}}, "one ten nine big fraction"),
    ({"s": {"$lt": "a"}}, "one.0 true text"),
    ({"s": "a\x00b"}, "fraction"),
    ({"s": {"$gte": "a\x00"}}, "one ten nine big fraction"),
    ({"s": {"$contains": "an"}}, "ten"),
    ({"s": {"$contains": "%_"}}, "nine"),
    ({"s": {"$contains": "_"}}, "nine"),
    ({"s": {"$contains": ""}}, "one one.0 true ten nine text big fraction"),
    ({"s": {"$contains": 1}}, ""),
    ({"tags": {"$contains": "x"}}, "one one.0"),
    ({"tags": {"$contains": 1}}, "ten"),
    ({"tags": {"$contains": True}}, "nine"),
    ({"tags": {"$contains": None}}, "ten"),
    ({"tags": {"$contains": {"b": 2.0, "a": 1}}}, "big"),
    ({"tags": {"$contains": {"a": 1}}}, ""),
    ({"tags": ["x", "y"]}, "one"),
    ({"tags": ["y", "x"]}, ""),
    ({"tags": []}, "true"),
    ({"user": {"id": "u1"}}, "one"),
    ({"user": {"age": {"$gte": 20}}}, "one"),
    ({"user": {"id": "u2", "age": 10.0}}, "one.0"),
    ({"user": {}}, "one one.0 text"),
    ({"user": {"id": None}}, "text"),
    ({"user": {"$eq": {"id": "u2", "age": 10}}}, "one.0"),
    ({"user": {"$eq": {"id": "u2"}}}, ""),
    ({"user.id": "u1"}, "one ten"),
    ({"user.id": {"$ne": "u1"}}, "one.0 true nine text null missing big fraction hostile"),
    ({"user.id": None}, "true nine text null missing big fraction hostile"),
    ({"user.id": {"$exists": True}}, "one one.0 ten text"),
    ({"user.age": {"$lt": 20}}, "one.0"),
    ({"user.id.x": None}, "one one.0 true ten nine text null missing big fraction hostile"),
    ({"n": 1, "s": "apple"}, "one"),
    ({"$and": [{"n": 1}, {"s": "apple"}]}, "one"),
    ({"$and": []}, "one one.0 true ten nine text null missing big fraction hostile"),
    ({"$or": [{"n": 10}, {"s": "apple"}]}, "one ten"),
    ({"$or": []}, ""),
    ({"$not": {"n": {"$exists": True}}}, "missing hostile"),
    ({"$not": {"$or": [{"n": 1}, {"n": {"$ne": 1}}]}}, ""),
    ({"n": {"$not": {"$gt": 1}}}, "one one.0 true text null missing fraction hostile"),
    ({"n": {"$or": [{"$lt": 1}, {"$gt": 9}]}}, "ten big fraction"),
    ({"n": {"$and": [{"$gt": 1}, {"$lt": 10}]}}, "nine"),
    ({"a') OR 1=1 --": 1}, "hostile"),
    ({"a') OR 1=1 --": 2}, ""),
    ({"$.x": 2}, "hostile"),
    ({"$.x": 6}, "hostile"),
    ({"$.x": 7}, ""),
    ({'"': 3}, "hostile"),
    ({"a[0]": 4}, "hostile"),
    ({"\\": 5}, "hostile"),
    ({"' OR '1'='1": None}, "one one.0 true ten nine text null missing big fraction hostile"),
    ({"x\x00y": 1}, ""),
    ({"s": "' OR 1=1 --"}, ""),
    ({"s": {"$in": ["') --", "banana"]}}, "ten"),
    ({"n": {"$in": list(range(9, 3000))}}, "ten nine"),
    ({"$or": [{"n": i} for i in range(9, 700)]}, "ten nine"),
    (
        {"$and": [{"n": {"$ne": i}} for i in range(10, 700)]},
        "one one.0 true nine text null missing big fraction hostile",
    ),
    ({"s": date(2026, 1, 1)}, ""),
]

# Small enough that random values and random filters meet.
labels = st.sampled_from(["a", "b", "a.b", "c.d"])
atoms = (
    st.sampled_from(
        [None, True, False, 0, 1, -1, 1.0, 0.5, -0.0, 2**60, 2**70, "", "a", "ab", "é", "\x00", "1", "*", "[a]?"]
    )
    | texts
)
data = st.recursive(
    atoms, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(labels, inner, max_size=2), max_leaves=4
)
values = st.dictionaries(labels, data, max_size=4)
operands = data | st.just(NAN) | st.just(INF)
operators = st.one_of(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$contains"), operands)
    ),
    st.fixed_dictionaries({}, optional={name: st.lists(operands, max_size=3) for name in ("$in", "$nin")}),
    st.fixed_dictionaries({"$exists": st.booleans()}),
).filter(bool)
conditions = operands | operators | st.builds(lambda inner: {"$not": inner}, operators)
random_filters = st.recursive(
    st.dictionaries(labels, conditions, max_size=3),
    lambda inner: st.one_of(
        st.builds(lambda parts: {"$and": parts}, st.lists(inner, max_size=3)),
        st.builds(lambda parts: {"$or": parts}, st.lists(inner, max_size=3)),
        st.builds(lambda part: {"$not": part}, inner),
        st.dictionaries(labels, inner, max_size=2),
    ),
    max_leaves=4,
)


class FilterContract(Contract):
    @pytest.fixture(params=[(), ("n", "s", "tags", "user.id", "user.age")], ids=["undeclared", "declared"])
    def filled(self, opened: Opener, request: pytest.FixtureRequest) -> Caller:
        store = opened(filter_fields=request.param)
        for key, value in reversed(VALUES.items()):
            store.put(NS, key, value)
        return store

    def test_every_example(self, filled: Caller) -> None:
        """LangGraph's stores compared `$gte 10` as text, and ran SQL in keys (CVE-2025-8709, CVE-2025-67644)."""
        for filter, keys in EXAMPLES:
            found = [hit.key for hit in filled.search(NS, filter=filter, limit=100)]
            assert found == keys.split(), filter
            assert filled.count(filter=filter) == len(found), filter

    def test_large_filters_are_answered(self, filled: Caller) -> None:
        many = [{"n": i} for i in range(9, 209)]
        for filter in (
            {"$or": [{"$or": [{"$or": many}, *many]}, *many]},
            {"$or": [{"$and": [{"n": {"$gte": 9}}, {"$or": many[:50]}]} for _ in range(100)]},
            {"$or": [{"n": {"$in": list(range(9, 109))}} for _ in range(100)]},
        ):
            assert [hit.key for hit in filled.search(NS, filter=filter)] == ["ten", "nine"]

    def test_a_key_with_a_nul_is_not_taken_for_another(self, opened: Opener) -> None:
        """To SQLite's JSON paths a key ends at its first NUL."""
        for store in (opened(), opened(filter_fields=["a", "x.b"])):
            store.put(NS, "k", {"a\x00": False, "a": 0.5, "x\x00y": {"b": 1}, "x": {"b": 2}, "least": 1 - 10**4300})
            store.put(NS, "other", {"list": [{"a\x00": 0.5}], "a\x00": 0.5})
            for filter in (
                {"a": 0.5},
                {"a": {"$gt": 0.4}},
                {"x.b": 2},
                {"x": {"b": {"$gte": 2}}},
                {"a": {"$exists": True}},
            ):
                assert [hit.key for hit in store.search(NS, filter=filter)] == ["k"], filter
                assert store.count(filter=filter) == 1
            assert store.count(filter={"a": None}) == 1
            assert [hit.key for hit in store.search(NS, filter={"a\x00": 0.5})] == ["other"]

    def test_any_mapping_is_a_filter(self, filled: Caller) -> None:
        assert [hit.key for hit in filled.search(NS, filter=MappingProxyType({"n": 10}))] == ["ten"]

    @many
    @given(stored=st.lists(values, min_size=1, max_size=6), filter=random_filters)
    def test_random_filters_find_what_the_matcher_finds(
        self, filled: Caller, stored: list[dict[str, Any]], filter: dict[str, Any]
    ) -> None:
        filled.delete_tree(NS)
        for i, value in enumerate(stored):
            filled.put(NS, str(i), value)
        parsed = filters.parse(filter)
        expected = {str(i) for i, value in enumerate(stored) if parsed is None or parsed.matches(value)}
        assert {hit.key for hit in filled.search(NS, filter=filter)} == expected
        assert filled.count(NS, filter=filter) == len(expected)

    @many
    @given(stored=values, filter=random_filters)
    def test_ne_and_nin_are_exactly_not_eq_and_not_in(
        self, filled: Caller, stored: dict[str, Any], filter: dict[str, Any]
    ) -> None:
        filled.delete_tree(NS)
        filled.put(NS, "k", stored)
        for operand in (filter, [filter], 1, None):
            for field in ("a", "a.b"):
                eq, ne = ({field: {op: operand}} for op in ("$eq", "$ne"))
                assert filled.count(NS, filter=eq) + filled.count(NS, filter=ne) == 1
                among, outside = ({field: {op: [operand, "a"]}} for op in ("$in", "$nin"))
                assert filled.count(NS, filter=among) + filled.count(NS, filter=outside) == 1
