"""Namespaces, counting and scanning."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ...model.keys import matches
from ..caller import Caller
from ..clock import Clock
from .base import Contract
from .items import many

TREE = [
    ("a",),
    ("a", "b"),
    ("a", "b", "c"),
    ("a", "b", "d"),
    ("a", "x"),
    ("a b",),
    ("ab", "b"),
    ("b", "c"),
    ("users", "u1", "docs", "v1"),
    ("users", "u1", "notes"),
    ("users", "u2", "docs"),
    ("é", "漢"),
]

few_labels = st.sampled_from(["a", "b", "c", "\x01", "\x02", "é"])
some_namespaces = st.lists(st.lists(few_labels, min_size=1, max_size=4).map(tuple), max_size=12)
patterns = st.none() | st.lists(few_labels | st.just("*"), max_size=3).map(tuple)


class ListingContract(Contract):
    @pytest.fixture
    def tree(self, store: Caller) -> Caller:
        for i, namespace in enumerate(reversed(TREE)):
            store.put(namespace, f"k{i}", {"i": i})
            store.put(namespace, "second", {"i": i})
        return store

    def test_hidden_namespaces_are_listed_only_from_inside(self, store: Caller) -> None:
        """A label that begins with ".holdall." hides what is below it."""
        hidden = [(".holdall.threads",), (".holdall.threads", "one"), ("tenant", ".holdall.threads", "two")]
        shown = [("-",), ("/",), ("tenant",), ("tenant", "-"), ("tenant", "notes.d")]
        for namespace in [*hidden, *shown]:
            store.put(namespace, ".key", {"n": 1, "text": "word"})
            store.put(namespace, "key", {"n": 2, "text": "word"})
        cases: list[tuple[tuple[str, ...], tuple[str, ...], list[tuple[str, ...]]]] = [
            ((), ("tenant",), shown[2:]),
            ((), (".holdall.threads",), hidden[:2]),
            ((), (".holdall.threads", "one"), hidden[1:2]),
            (("tenant",), (), [(), ("-",), ("notes.d",)]),
            (("tenant",), (".holdall.threads",), [(".holdall.threads", "two")]),
        ]
        for scope, prefix, expected in cases:
            view = store.scoped(scope) if scope else store
            found = [namespace for namespace in expected for _ in range(2)]
            assert sorted(hit.namespace for hit in view.search(prefix, limit=100)) == found
            assert sorted(hit.namespace for hit in view.search(prefix, filter={"n": {"$gt": 0}}, limit=99)) == found
            assert sorted(hit.namespace for hit in view.search(prefix, query="word", limit=100)) == found
            assert [entry.namespace for entry in view.scan(prefix)] == found
            assert view.count(prefix) == len(found)
            assert view.count(prefix, filter={"n": 2}) == len(expected)
            assert view.namespaces(prefix=prefix) == expected
        whole = [*shown, ("tenant", ".holdall.threads", "two")]  # only the labels right below a prefix count
        assert store.count(()) == 2 * len(whole)
        assert {hit.namespace for hit in store.search((), limit=100)} == set(whole)
        assert store.stats().entries == 2 * (len(hidden) + len(shown))
        assert store.delete_tree(("tenant",)) == 8

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ({}, TREE),
            ({"prefix": ()}, TREE),
            ({"prefix": ("a",)}, TREE[:5]),
            ({"prefix": ("a", "b")}, TREE[1:4]),
            ({"prefix": ("users", "*", "docs")}, [TREE[8], TREE[10]]),
            ({"prefix": ("*", "b")}, [*TREE[1:4], ("ab", "b")]),
            ({"prefix": ("nothing",)}, []),
            ({"suffix": ("b",)}, [("a", "b"), ("ab", "b")]),
            ({"suffix": ("docs", "*")}, [TREE[8]]),
            ({"suffix": ("*", "c")}, [("a", "b", "c"), ("b", "c")]),
            ({"prefix": ("a",), "suffix": ("c",)}, [("a", "b", "c")]),
            ({"prefix": ("a", "b"), "suffix": ("a", "b")}, [("a", "b")]),
            ({"max_depth": 1}, [("a",), ("a b",), ("ab",), ("b",), ("users",), ("é",)]),
            ({"max_depth": 2, "prefix": ("a",)}, [("a",), ("a", "b"), ("a", "x")]),
            ({"max_depth": 2, "prefix": ("users",)}, [("users", "u1"), ("users", "u2")]),
            ({"max_depth": 1, "suffix": ("docs",)}, [("users",)]),
            ({"max_depth": 2, "suffix": ("c",)}, [("a", "b"), ("b", "c")]),
            ({"max_depth": 99}, TREE),
            ({"limit": 3}, TREE[:3]),
            ({"limit": 3, "offset": 2}, TREE[2:5]),
            ({"limit": 0}, []),
            ({"offset": 99}, []),
            ({"max_depth": 1, "limit": 2, "offset": 1}, [("a b",), ("ab",)]),
        ],
        ids=repr,
    )
    def test_namespaces(self, tree: Caller, query: dict[str, Any], expected: list[tuple[str, ...]]) -> None:
        assert tree.namespaces(**query) == expected

    @many
    @given(
        namespaces=some_namespaces,
        prefix=patterns,
        suffix=patterns,
        max_depth=st.none() | st.integers(1, 4),
        limit=st.integers(0, 12),
        offset=st.integers(0, 4),
    )
    def test_random_namespaces_are_those_that_a_plain_list_has(
        self, store: Caller, namespaces: list[Any], prefix: Any, suffix: Any, max_depth: Any, limit: int, offset: int
    ) -> None:
        for namespace in store.namespaces(limit=1000, max_depth=1):
            store.delete_tree(namespace)
        for namespace in namespaces:
            store.put(namespace, "k", {})
        wanted = sorted({n[:max_depth] for n in namespaces if matches(n, prefix or (), suffix or ())})
        found = store.namespaces(prefix=prefix, suffix=suffix, max_depth=max_depth, limit=limit, offset=offset)
        assert found == wanted[offset : offset + limit]

    def test_only_namespaces_that_hold_something_are_listed(self, store: Caller, clock: Clock) -> None:
        """Reads created ghost namespaces in LangGraph's memory store."""
        store.get(("ghost",), "k")
        store.search(("ghost",))
        store.put(("deleted",), "k", {})
        store.delete(("deleted",), "k")
        store.put(("expired",), "k", {}, ttl=1)
        store.put(("kept",), "k", {})
        clock.advance(2)
        assert store.namespaces() == [("kept",)]

    def test_count_counts_what_search_finds(self, tree: Caller) -> None:
        assert tree.count() == 24
        assert tree.count(("a",)) == 10
        assert tree.count(("a",), recursive=False) == 2
        assert tree.count((), recursive=False) == 0
        assert tree.count(("a",), filter={"i": {"$gte": 10}}) == 4
        assert tree.count(("a",), filter={"i": 11}, recursive=False) == 2
        assert tree.count(("nothing",)) == 0

    def test_scan_gives_every_entry_in_key_order(self, tree: Caller) -> None:
        places = [(entry.namespace, entry.key) for entry in tree.scan()]
        assert places == sorted(places)
        assert len(places) == 24
        assert [entry.namespace for entry in tree.scan(("a", "b"))] == [n for n in TREE[1:4] for _ in range(2)]
        assert tree.scan(("nothing",)) == []

    def test_scan_goes_on_where_it_was_while_others_write(self, store: Caller) -> None:
        for i in range(1200):
            store.put(("scan",), f"{i:04}", {})
        entries = iter(store.store.scan(("scan",)))
        seen = [next(entries).key for _ in range(100)]
        for i in range(0, 1200, 2):
            store.store.put(("scan",), f"{i:04}", {"touched": True})
        store.store.delete(("scan",), "1199")
        seen += [entry.key for entry in entries]
        assert seen == [f"{i:04}" for i in range(1199)]
