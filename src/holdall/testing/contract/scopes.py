"""Scoped stores: relative namespaces in and out, and no access to anything outside."""

from __future__ import annotations

import pytest

from ... import ABSENT
from ...errors import Conflict, InvalidInput
from ...ops import Check, Delete, DeleteTree, Get, Put
from ..caller import Caller
from ..clock import Clock
from .base import Contract

TENANT = ("tenant", "t1")


class ScopeContract(Contract):
    @pytest.fixture
    def scoped(self, store: Caller) -> Caller:
        """A scope, beside entries outside that it must never show."""
        for outside in (("tenant",), ("tenant", "t2"), ("tenant", "t10"), ("tenant", "t1x", "notes"), ("notes",)):
            store.put(outside, "k", {"secret": True})
        return store.scoped(TENANT)

    def test_namespaces_are_relative_in_and_out(self, store: Caller, scoped: Caller) -> None:
        entry = scoped.put(("notes",), "k", {"n": 1})
        assert entry.namespace == ("notes",)
        assert scoped.get(("notes",), "k") == entry
        assert store.get((*TENANT, "notes"), "k").version == entry.version
        assert scoped.update(("notes",), "k", lambda value: {"n": 2}).namespace == ("notes",)
        assert [hit.namespace for hit in scoped.search(("notes",))] == [("notes",)]
        assert [found.namespace for found in scoped.scan()] == [("notes",)]
        results = scoped.execute([Get(("notes",), "k"), Put(("more",), "k", {}), Delete(("more",), "k")])
        assert [results[0].namespace, results[1].namespace, results[2]] == [("notes",), ("more",), True]

    def test_the_empty_namespace_is_the_scope_itself(self, store: Caller, scoped: Caller) -> None:
        entry = scoped.put((), "k", {"mine": True})
        assert entry.namespace == ()
        assert scoped.get((), "k") == entry
        assert store.get(TENANT, "k").value == {"mine": True}
        assert scoped.namespaces() == [()]
        assert scoped.delete((), "k") is True

    def test_nothing_outside_can_be_seen_or_touched(self, store: Caller, scoped: Caller) -> None:
        scoped.put(("notes",), "k", {"n": 1})
        outside = [entry for entry in store.scan() if entry.namespace[:2] != TENANT]
        assert scoped.get(("t2",), "k") is None
        assert [hit.value for hit in scoped.search(limit=100)] == [{"n": 1}]
        assert scoped.search(filter={"secret": True}) == []
        assert scoped.count() == 1
        assert [entry.value for entry in scoped.scan()] == [{"n": 1}]
        assert scoped.namespaces() == [("notes",)]
        assert scoped.namespaces(prefix=("*",), suffix=("*",)) == [("notes",)]
        assert scoped.namespaces(prefix=("tenant",)) == []
        assert scoped.namespaces(prefix=("*", "t2")) == []
        assert scoped.delete(("t2",), "k") is False
        assert scoped.delete_tree(()) == 1
        assert store.scan() == outside

    def test_paging_and_scanning_stay_inside(self, store: Caller, scoped: Caller) -> None:
        for i in range(600):
            scoped.put(("notes",), f"{i:03}", {})
        assert [entry.key for entry in scoped.scan()] == [f"{i:03}" for i in range(600)]
        page = scoped.search(limit=400)
        store.put(("tenant", "t2"), "new", {})
        rest = scoped.search(limit=400, cursor=page.next)
        assert (len(page), len(rest), rest.next) == (400, 200, None)
        with pytest.raises(InvalidInput, match="cursor"):
            store.scoped(("tenant", "t2")).search(limit=400, cursor=page.next)
        with pytest.raises(InvalidInput, match="cursor"):
            store.search(limit=400, cursor=page.next)

    def test_depth_is_counted_from_the_scope(self, scoped: Caller) -> None:
        for namespace in (("a", "b", "c"), ("a", "d"), ("e",)):
            scoped.put(namespace, "k", {})
        assert scoped.namespaces(max_depth=1) == [("a",), ("e",)]
        assert scoped.namespaces(max_depth=2, prefix=("a",)) == [("a", "b"), ("a", "d")]
        assert scoped.namespaces(suffix=("d",)) == [("a", "d")]

    def test_sweeping_stays_inside(self, store: Caller, scoped: Caller, clock: Clock) -> None:
        scoped.put(("notes",), "k", {}, ttl=1)
        store.put(("tenant", "t2"), "brief", {}, ttl=1)
        clock.advance(2)
        assert scoped.sweep() == 1
        assert store.sweep() == 1

    def test_scopes_nest(self, store: Caller, scoped: Caller) -> None:
        inner = scoped.scoped(("u1",))
        inner.put(("notes",), "k", {})
        assert store.get((*TENANT, "u1", "notes"), "k") is not None
        assert scoped.namespaces() == [("u1", "notes")]
        assert inner.namespaces() == [("notes",)]

    def test_a_conflict_names_the_namespace_relative_to_the_scope(self, scoped: Caller) -> None:
        scoped.put(("notes",), "k", {})
        for batch in ([Put(("notes",), "k", {}, expect=ABSENT)], [Check(("notes",), "k", 1), DeleteTree(())]):
            with pytest.raises(Conflict) as caught:
                scoped.execute(batch)
            assert caught.value.namespace == ("notes",)
            assert "tenant" not in str(caught.value)
        assert scoped.count() == 1

    def test_a_scope_that_is_too_long_in_all_is_refused(self, store: Caller) -> None:
        with pytest.raises(InvalidInput, match="bytes") as caught:
            store.scoped(("a" * 600,)).put(("b" * 600,), "k", {})
        assert "aaa" not in str(caught.value)
