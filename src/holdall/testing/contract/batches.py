"""Atomic batches of ops."""

from __future__ import annotations

from typing import Any

import pytest

from ... import ABSENT
from ...errors import Conflict, InvalidInput, StoreClosed
from ...ops import Check, Delete, DeleteTree, Get, Put, Refresh, Search, Sweep
from ..caller import Caller
from ..clock import Clock
from .base import Contract, Opener

NS = ("batches",)


class BatchContract(Contract):
    def test_ops_run_in_order_and_read_their_own_writes(self, store: Caller) -> None:
        results = store.execute(
            [
                Get(NS, "k"),
                Put(NS, "k", {"n": 1}),
                Get(NS, "k"),
                Put(NS, "k", {"n": 2}),
                Check(NS, "other", ABSENT),
                Get(NS, "k"),
                Delete(NS, "k"),
                Delete(NS, "k"),
                Get(NS, "k"),
                Put(NS, "k", {"n": 3}),
            ]
        )
        first, second, last = results[1], results[3], results[9]
        assert results[0] is None
        assert results[2] == first
        assert results[4] is None
        assert results[5] == second
        assert results[6:9] == [True, False, None]
        assert first.version < second.version < last.version
        assert store.get(NS, "k") == last

    def test_delete_tree_sees_the_writes_before_it_and_spares_those_after(self, store: Caller) -> None:
        store.put((*NS, "a"), "old", {})
        results = store.execute(
            [
                Put((*NS, "b"), "new", {}),
                DeleteTree(NS),
                Get((*NS, "b"), "new"),
                Put(NS, "after", {}),
                DeleteTree((*NS, "x")),
            ]
        )
        assert results[1:3] == [2, None]
        assert results[4] == 0
        assert [entry.key for entry in store.scan()] == ["after"]

    def test_a_conflict_reports_the_version_that_the_op_found(self, store: Caller) -> None:
        for first in (Put(NS, "k", {}, expect=99), Delete(NS, "k", expect=99), Check(NS, "k", 99)):
            with pytest.raises(Conflict) as caught:
                store.execute([first, Put(NS, "k", {})])
            assert (caught.value.expected, caught.value.actual) == (99, None)

    def test_what_is_no_list_of_ops_is_refused(self, store: Caller) -> None:
        for other in (Get(NS, "k"), None, 5):
            with pytest.raises(InvalidInput, match="list of point ops"):
                store.execute(other)

    def test_an_empty_batch_is_fine(self, store: Caller) -> None:
        assert store.execute([]) == []
        store.close()
        with pytest.raises(StoreClosed):
            store.execute([])

    @pytest.mark.parametrize("index", [0, 2, 4])
    def test_a_conflict_anywhere_leaves_nothing_of_the_batch(self, store: Caller, index: int) -> None:
        """A failed batch kept part of its writes in LangGraph's stores."""
        kept = store.put(NS, "kept", {"n": 1})
        doomed = store.put(NS, "doomed", {"n": 1})
        batch = [Put(NS, "kept", {"n": 2}), Delete(NS, "doomed"), Put(NS, "new", {}), DeleteTree((*NS, "x"))]
        store.put((*NS, "x"), "deep", {})
        for failing in (Check(NS, "kept", 0), Put(NS, "other", {}, expect=12345), Delete(NS, "nothing", expect=1)):
            with pytest.raises(Conflict):
                store.execute([*batch[:index], failing, *batch[index:]])
            assert store.get(NS, "kept") == kept
            assert store.get(NS, "doomed") == doomed
            assert store.get(NS, "new") is None
            assert store.count((*NS, "x")) == 1
        assert [hit.key for hit in store.search(NS)] == ["deep", "doomed", "kept"]

    def test_invalid_input_anywhere_leaves_nothing_of_the_batch(self, store: Caller) -> None:
        no_version: Any = None
        for bad in (
            Put(NS, "", {}),
            Put(NS, "k", {"x": float("nan")}),
            Get((), "k"),
            Put(NS, "k", {}, expect=no_version),
        ):
            with pytest.raises(InvalidInput):
                store.execute([Put(NS, "first", {}), bad, Put(NS, "last", {})])
        assert store.count() == 0

    def test_check_guards_the_writes_beside_it(self, store: Caller) -> None:
        defer_signals = store.put(NS, "guard", {})
        store.execute([Check(NS, "guard", defer_signals), Put(NS, "a", {})])
        store.put(NS, "guard", {})
        with pytest.raises(Conflict):
            store.execute([Check(NS, "guard", defer_signals), Put(NS, "b", {})])
        assert store.get(NS, "a") is not None
        assert store.get(NS, "b") is None

    def test_the_same_key_twice_with_expectations(self, store: Caller) -> None:
        first, *_ = store.execute([Put(NS, "k", {}, expect=ABSENT)])
        with pytest.raises(Conflict):
            store.execute([Put(NS, "k", {"n": 1}, expect=first), Put(NS, "k", {"n": 2}, expect=first)])
        assert store.get(NS, "k") == first

    def test_a_thousand_ops_are_one_batch(self, store: Caller) -> None:
        entries = store.execute([Put((*NS, str(i % 10)), f"k{i}", {"i": i}) for i in range(1000)])
        assert [entry.version for entry in entries] == sorted({entry.version for entry in entries})
        assert store.count(NS) == 1000
        with pytest.raises(Conflict):
            store.execute([*(Delete((*NS, str(i % 10)), f"k{i}") for i in range(1000)), Check(NS, "no", 1)])
        assert store.count(NS) == 1000

    @pytest.mark.parametrize("other", [Search(NS), Sweep(), "put", None, ("ns", "key")], ids=repr)
    def test_what_is_not_a_point_op_is_refused(self, store: Caller, other: object) -> None:
        with pytest.raises(InvalidInput, match="point ops"):
            store.execute([Put(NS, "k", {}), other])
        assert store.get(NS, "k") is None

    def test_refreshing_is_undone_with_its_batch(self, opened: Opener, clock: Clock) -> None:
        store = opened()
        store.put(NS, "k", {}, ttl=10)
        clock.advance(6)
        with pytest.raises(Conflict):
            store.execute([Refresh(NS, "k"), Check(NS, "k", ABSENT)])
        clock.advance(6)
        assert store.get(NS, "k") is None
