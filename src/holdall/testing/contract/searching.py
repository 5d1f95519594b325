"""Search: order, exact limits and offsets, and cursors that stay stable while others write."""

from __future__ import annotations

from typing import Any

import pytest

from ...errors import InvalidInput
from ..caller import Caller
from ..clock import Clock
from .base import Contract, Opener

NS = ("search",)


def all_pages(store: Caller, limit: int, **query: Any) -> list[list[str]]:
    pages = [store.search(NS, limit=limit, **query)]
    while pages[-1].next is not None:
        pages.append(store.search(NS, limit=limit, cursor=pages[-1].next, **query))
        assert len(pages) < 100, "the cursor never ends"
    return [[hit.key for hit in page] for page in pages]


class SearchContract(Contract):
    @pytest.fixture
    def ten(self, store: Caller) -> Caller:
        """Ten entries, the newest first: 9, 8, … 0; the even ones in a namespace below."""
        for i in range(10):
            store.put(NS if i % 2 else (*NS, "even"), str(i), {"i": i, "half": i // 2, "kind": "digit"})
        return store

    def test_the_newest_change_comes_first(self, ten: Caller) -> None:
        assert [hit.key for hit in ten.search(NS, limit=3)] == ["9", "8", "7"]
        ten.put((*NS, "even"), "2", {"i": 2, "kind": "digit"})
        ten.update(NS, "5", lambda value: value)
        assert [hit.key for hit in ten.search(NS, limit=3)] == ["5", "2", "9"]
        assert [hit.key for hit in ten.search(limit=3)] == ["5", "2", "9"]

    def test_hits_are_whole_entries_without_a_score(self, ten: Caller) -> None:
        hit = ten.search(NS, limit=1)[0]
        entry = ten.get(NS, "9")
        assert hit.score is None
        assert (hit.namespace, hit.key, hit.value, hit.version) == (NS, "9", entry.value, entry.version)
        assert (hit.created_at, hit.updated_at, hit.expires_at) == (entry.created_at, entry.updated_at, None)

    def test_limit_and_offset_are_exact(self, ten: Caller) -> None:
        everything = [hit.key for hit in ten.search(NS, limit=100)]
        assert everything == list("9876543210")
        for filter in (None, {"kind": "digit"}, {"i": {"$gte": 0}}, {"$not": {"i": {"$lt": 0}}}):
            for offset in (0, 1, 5, 9, 10, 99):
                for limit in (0, 1, 4, 10, 99):
                    page = ten.search(NS, filter=filter, limit=limit, offset=offset)
                    assert [hit.key for hit in page] == everything[offset : offset + limit]

    def test_recursive_looks_below_and_otherwise_only_here(self, ten: Caller) -> None:
        ten.put(("searching",), "other", {})
        ten.put(("search-2",), "other", {})
        assert [hit.key for hit in ten.search(NS, recursive=False)] == list("97531")
        assert [hit.key for hit in ten.search((*NS, "even"))] == list("86420")
        assert len(ten.search(NS, limit=100)) == 10
        assert len(ten.search(limit=100)) == 12
        assert ten.search((), recursive=False) == []
        assert ten.search(("sear",)) == []

    def test_a_prefix_is_labels_not_text(self, store: Caller) -> None:
        """`("tenant", "acme")` returned `acme-corp`'s, and `_` was a wildcard, in LangGraph's PostgresStore."""
        for label in ("acme", "acme-corp", "acme_corp", "acmeXcorp", "acm", "acme\x01x", "acme\x02"):
            store.put(("tenant", label), label, {})
        for label in ("acme", "acme_corp"):
            assert [hit.key for hit in store.search(("tenant", label))] == [label]
            assert store.count(("tenant", label)) == 1
            assert [entry.key for entry in store.scan(("tenant", label))] == [label]
            assert store.delete_tree(("tenant", label)) == 1

    @pytest.mark.parametrize("filter", [None, {"kind": "digit"}, {"i": {"$ne": -1}}], ids=repr)
    @pytest.mark.parametrize("limit", [1, 3, 5, 10, 11])
    def test_pages_follow_each_other_to_the_end(self, ten: Caller, limit: int, filter: Any) -> None:
        pages = all_pages(ten, limit, filter=filter)
        assert [key for page in pages for key in page] == list("9876543210")
        assert all(len(page) == limit for page in pages[:-1])
        assert pages[-1]

    def test_an_offset_moves_the_first_page_only(self, ten: Caller) -> None:
        first = ten.search(NS, limit=3, offset=2)
        second = ten.search(NS, limit=3, cursor=first.next)
        assert [hit.key for hit in [*first, *second]] == list("765432")

    def test_an_entry_touched_while_paging_is_not_lost(self, ten: Caller) -> None:
        """Offset paging in deepagents skips files that others touch meanwhile."""
        first = ten.search(NS, limit=3)
        for key in ("1", "5"):
            ten.put(NS, key, {"i": int(key), "touched": True})
        second = ten.search(NS, limit=3, cursor=first.next)
        third = ten.search(NS, limit=3, cursor=second.next)
        ten.put((*NS, "even"), "0", {"i": 0, "touched": True})
        fourth = ten.search(NS, limit=3, cursor=third.next)
        assert [[hit.key for hit in page] for page in (first, second, third, fourth)] == [
            ["9", "8", "7"],
            ["6", "4", "3"],
            ["2", "0", "1"],
            ["5", "0"],
        ]
        assert fourth.next is None

    def test_touching_what_was_given_ends_all_the_same(self, ten: Caller) -> None:
        page = ten.search(NS, limit=4)
        seen = {hit.key for hit in page}
        while page.next is not None:
            ten.put(NS, "9", {"again": len(seen)})
            page = ten.search(NS, limit=4, cursor=page.next)
            seen |= {hit.key for hit in page}
            assert len(seen) <= 10
        assert seen == set("0123456789")

    def test_new_entries_come_after_the_rest(self, ten: Caller) -> None:
        first = ten.search(NS, limit=8)
        ten.put(NS, "new", {})
        assert [hit.key for hit in ten.search(NS, limit=8, cursor=first.next)] == ["1", "0", "new"]

    def test_deleted_and_expired_entries_leave_the_pages(self, ten: Caller, clock: Clock) -> None:
        ten.put(NS, "brief", {}, ttl=5)
        first = ten.search(NS, limit=2)
        assert [hit.key for hit in first] == ["brief", "9"]
        ten.delete(NS, "7")
        ten.delete_tree((*NS, "even"))
        clock.advance(6)
        assert [hit.key for hit in ten.search(NS, limit=9, cursor=first.next)] == ["5", "3", "1"]

    def test_an_entry_that_stops_matching_is_not_given(self, ten: Caller) -> None:
        first = ten.search(NS, filter={"kind": "digit"}, limit=5)
        ten.put(NS, "3", {"kind": "other"})
        ten.put(NS, "1", {"kind": "digit"})
        rest = ten.search(NS, filter={"kind": "digit"}, limit=9, cursor=first.next)
        assert [hit.key for hit in rest] == ["4", "2", "0", "1"]

    def test_a_page_of_none_has_no_next(self, ten: Caller) -> None:
        page = ten.search(NS, limit=0)
        assert (list(page), page.next) == ([], None)

    def test_many_entries_and_few_matches(self, store: Caller) -> None:
        """There are more candidates than an engine's internal page holds."""
        from ...ops import Put

        for start in range(0, 6000, 1000):
            store.execute(
                [Put((*NS, str(i % 7)), str(i), {"i": i, "rare": [i % 1500]}) for i in range(start, start + 1000)]
            )
        filter = {"rare": {"$contains": 77}}
        assert [hit.key for hit in store.search(NS, filter=filter)] == ["4577", "3077", "1577", "77"]
        assert [hit.key for hit in store.search(NS, filter=filter, limit=2, offset=1)] == ["3077", "1577"]
        assert all_pages(store, 3, filter=filter) == [["4577", "3077", "1577"], ["77"]]
        assert store.count(NS, filter=filter) == 4
        assert store.count(NS, filter={"i": {"$gte": 1000}}) == 5000
        assert store.count((*NS, "3")) == 857
        assert len(store.scan(NS)) == 6000
        assert store.delete_tree(NS) == 6000
        assert store.count() == 0

    @pytest.mark.parametrize("cursor", ["", "x", "a.b", ".1-1", "'; DROP TABLE x --", "." * 99, 5, "9" * 99 + ".1-1"])
    def test_what_is_not_a_cursor_is_refused(self, store: Caller, cursor: Any) -> None:
        with pytest.raises(InvalidInput, match="cursor"):
            store.search(cursor=cursor)

    def test_a_forged_cursor_is_refused(self, opened: Opener) -> None:
        store = opened()
        for i in range(3):
            store.put(NS, str(i), {})
        cursor = store.search(limit=1).next
        for forged in (
            cursor + "9" * 99,
            cursor + "x",
            cursor.replace(".", ".."),
            cursor.split(".")[0] + ".",
            cursor + "\ud800",
        ):
            with pytest.raises(InvalidInput, match="cursor"):
                store.search(cursor=forged)

    def test_a_cursor_of_another_search_is_refused(self, opened: Opener) -> None:
        store = opened()
        for i in range(3):
            store.put(NS, str(i), {"n": 1})
        cursor = store.search(NS, filter={"n": 1}, limit=1).next
        for other in ({"filter": {"n": 2}}, {"filter": {"n": 1}, "recursive": False}, {"filter": {"n": True}}, {}):
            with pytest.raises(InvalidInput, match="cursor"):
                store.search(NS, cursor=cursor, **other)
        with pytest.raises(InvalidInput, match="cursor"):
            store.search(filter={"n": 1}, cursor=cursor)
        with pytest.raises(InvalidInput, match="offset"):
            store.search(NS, filter={"n": 1}, cursor=cursor, offset=1)
