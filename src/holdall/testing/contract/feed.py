"""The feed: every change in order, from a cursor."""

from __future__ import annotations

from typing import Any

from ...ops import Put
from ..caller import Caller
from ..clock import Clock
from .base import Contract

NS = ("feed",)


class FeedContract(Contract):
    def test_changes_come_in_order_with_their_kind(self, store: Caller, clock: Clock, changes: Any) -> None:
        first = store.put(NS, "a", {})
        store.put(NS, "b", {})
        store.put(NS, "c", {}, ttl=1)
        store.delete(NS, "b")
        again = store.put(NS, "a", {})
        clock.advance(1)
        store.sweep()
        page = changes()
        assert [(change.namespace, change.key, change.kind) for change in page] == [
            (NS, "b", "delete"),
            (NS, "a", "put"),
            (NS, "c", "expire"),
        ]
        assert [change.version for change in page] == sorted({change.version for change in page})
        assert page[1].version == again.version > first.version

    def test_a_watch_continues_after_any_cursor(self, store: Caller, changes: Any) -> None:
        store.execute([Put(NS, str(i), {}) for i in range(10)])
        whole = changes()
        assert [change.key for change in whole] == list("0123456789")
        assert [change.key for change in changes(since=whole[3].cursor)] == list("456789")
        page, seen = changes(limit=4), []
        while page:
            seen += [change.key for change in page]
            page = changes(limit=4, since=page.next)
        assert seen == list("0123456789")
        assert changes(since=whole.next) == []
        store.put(NS, "3", {})
        assert [change.key for change in changes(since=whole.next)] == ["3"]

    def test_a_prefix_shows_only_its_own(self, store: Caller, changes: Any) -> None:
        store.put(("feeding",), "no", {})
        store.put((*NS, "below"), "yes", {})
        store.delete((*NS, "below"), "yes")
        store.put(("other",), "no", {})
        page = changes(prefix=NS)
        assert [(change.key, change.kind) for change in page] == [("yes", "delete")]
        assert changes(prefix=NS, since=page.next) == []
        assert changes(since=page.next) == []

    def test_refreshing_is_not_a_change(self, store: Caller, changes: Any) -> None:
        store.put(NS, "k", {}, ttl=10)
        [before], position = changes(), changes().next
        store.get(NS, "k", refresh=True)
        [after] = changes()
        assert (after.version, after.key, after.kind) == (before.version, "k", "put")
        assert changes(since=position) == []

    def test_a_deleted_tree_is_one_change_for_each_entry(self, store: Caller, changes: Any) -> None:
        store.execute([Put((*NS, str(i)), "k", {}) for i in range(5)])
        mark = changes().next
        store.delete_tree(NS)
        page = changes(since=mark)
        assert sorted(change.namespace for change in page) == [(*NS, str(i)) for i in range(5)]
        assert {change.kind for change in page} == {"delete"}
        assert len({change.version for change in page}) == 5
