"""Large trees: deleted or moved by an engine in many steps, with the same results for the caller as in one.

An engine may delete a tree by a note and clear it later. When the call returns, the tree is gone for every reader.

A store of the contract has no sweeper. So an engine that clears in the background has not begun when a test goes on.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from ... import ABSENT, KEEP, open
from ...errors import AlreadyExists, Conflict, FileNotFound, InvalidInput, IsADirectory, NotADirectory
from ...ops import Check, Delete, DeleteTree, FileInfo, Get, Put, Stat
from ..caller import Caller
from ..clock import Clock
from ..embedder import embed
from .base import Contract, Opener
from .ranking import ranking

#: More entries than every engine's threshold.
MANY = 1200
NS = ("tree",)


def put_tree(store: Caller, namespace: tuple[str, ...] = NS, **further: Any) -> None:
    """Put entries in 12 namespaces below this one."""
    store.execute(
        [Put((*namespace, f"{n % 12:02}"), f"k{n:04}", {"n": n, "text": "needle"}, **further) for n in range(MANY)]
    )


class LargeTreeContract(Contract):
    def test_a_large_tree_is_gone_at_once_for_every_read(self, store: Caller) -> None:
        kept = store.put(("treeless",), "k0000", {"text": "needle"})
        put_tree(store)
        home = (*NS, "00")
        files = store.files(home)
        files.write("/note.txt", "old")
        assert files.read("/note.txt") == b"old"
        assert store.delete_tree(NS) == MANY + 1
        assert store.get(home, "k0000") is None
        with pytest.raises(FileNotFound):
            files.read("/note.txt")
        files.write("/note.txt", "new")
        assert files.read("/note.txt") == b"new"
        assert files.delete("/note.txt") == 1
        assert store.execute([Get(home, "k0000"), Check(home, "k0000", ABSENT)]) == [None, None]
        assert store.count() == 1
        assert store.count(NS) == store.count(NS, filter={"n": {"$gte": 0}}) == 0
        assert list(store.scan(())) == [kept]
        assert [hit.key for hit in store.search((), limit=5)] == ["k0000"]
        assert store.search(NS, filter={"n": 5}) == store.search(home, limit=3) == []
        assert store.namespaces() == [("treeless",)]
        assert [hit.namespace for hit in store.search((), query="needle")] == [("treeless",)]
        assert store.delete_tree(NS) == 0
        store.sweep()
        assert list(store.scan(())) == [kept]
        assert store.count() == 1

    @pytest.mark.parametrize("modes", [("semantic", "hybrid"), ("lexical", "semantic")])
    def test_searches_rank_as_if_a_large_tree_had_never_been(
        self, opened: Opener, clock: Clock, modes: tuple[str, ...]
    ) -> None:
        store = ranking(opened(embed=embed))
        put_tree(store)
        home = (*NS, "00")
        store.search(query="needle", mode="lexical")  # the tree is indexed
        store.search(query="needle", mode="semantic", neighbours=0.5)
        clock.advance(1)
        assert store.delete_tree(NS) == MANY
        new = [Put(home, key, {"text": text}) for key, text in (("a", "a needle"), ("b", "tea"), ("c", "ink"))]
        store.execute(new)

        def search(store: Caller) -> list[Any]:
            asked: list[dict[str, Any]] = [{"mode": mode, "neighbours": part} for mode in modes for part in (0, 0.5)]
            asked += [{"mode": mode, "filter": {"text": {"$exists": True}}} for mode in modes]
            pages = [store.search(prefix, query="needle", **query) for query in asked for prefix in ((), home)]
            return [[(hit.key, round(hit.score, 6)) for hit in page] for page in pages]

        with open("memory:", clock=clock, embed=embed) as other:
            other.execute(new)
            expected = search(Caller(other, None))
        assert search(store) == expected
        store.sweep()
        assert search(store) == expected

    def test_what_is_put_into_a_deleted_tree_is_new_and_stays(self, store: Caller, clock: Clock) -> None:
        put_tree(store, ttl=100)
        home = (*NS, "00")
        old = store.get(home, "k0000")
        clock.advance(1)
        assert store.delete_tree(NS) == MANY
        with pytest.raises(Conflict) as caught:
            store.put(home, "k0000", {}, expect=old)
        assert caught.value.actual is None
        with pytest.raises(Conflict):
            store.execute([Check(home, "k0000", old.version)])
        assert store.delete(home, "k0000") is False
        new = store.put(home, "k0000", {"new": 1}, expect=ABSENT)
        assert new.version > old.version + MANY
        assert new.created_at == clock.now
        kept = store.put(home, "k0012", {"new": 2}, ttl=KEEP)
        assert (kept.expires_at, kept.created_at) == (None, clock.now)
        several = store.execute([Put(home, f"k{n:04}", {"new": n}) for n in (24, 36)])
        assert all(entry.created_at == clock.now for entry in several)
        store.sweep()
        assert list(store.scan(NS)) == [new, kept, *several]
        assert store.delete_tree(NS) == 4

    def test_a_large_tree_is_one_change_for_each_entry_before_those_of_later_puts(
        self, store: Caller, changes: Any
    ) -> None:
        put_tree(store)
        store.put(("other",), "before", {})
        mark = changes(limit=0).next
        store.delete_tree(NS)
        after_deletion = changes(limit=0).next
        again = store.put((*NS, "00"), "k0000", {})
        other = store.put(("other",), "after", {})
        found, cursor = take_changes(changes, mark, MANY + 1)
        assert [(change.key, change.version) for change in found[-2:]] == [
            ("k0000", again.version),
            ("after", other.version),
        ]
        assert {change.kind for change in found[:-2]} == {"delete"}
        expected = {((*NS, f"{n % 12:02}"), f"k{n:04}") for n in range(1, MANY)}
        assert {(change.namespace, change.key) for change in found[:-2]} == expected
        assert len(found) == MANY + 1
        versions = [change.version for change in found]
        assert versions == sorted(set(versions))
        assert [change.key for change in changes(since=after_deletion)] == ["k0000", "after"]
        assert changes(since=cursor) == []

    def test_the_count_of_a_large_tree_is_of_entries_that_are_there(
        self, store: Caller, clock: Clock, changes: Any
    ) -> None:
        put_tree(store)
        store.execute([Put((*NS, "00"), f"short{n}", {}, ttl=1) for n in range(7)])
        store.execute([Delete((*NS, "05"), f"k{n:04}") for n in range(5, 65, 12)])
        store.put(NS, "itself", {}, ttl=2)
        clock.advance(1)
        assert store.delete_tree(NS) == MANY - 5 + 1
        clock.advance(1)
        assert store.sweep() == 7, "an expiry after the deletion is none"
        kinds = [change.kind for change in take_changes(changes, None, MANY + 8)[0]]
        assert kinds.count("expire") == 7
        assert kinds.count("delete") == MANY + 1

    def test_overlapping_large_trees_are_deleted_once(self, store: Caller, changes: Any) -> None:
        put_tree(store, (*NS, "a"))
        put_tree(store, (*NS, "b"))
        assert store.delete_tree((*NS, "a")) == MANY
        put_tree(store, (*NS, "a"))
        store.put((*NS, "b", "00"), "new", {})
        assert store.delete_tree(NS) == 2 * MANY + 1
        assert store.count() == 0
        store.put((*NS, "a", "00"), "k0000", {})
        assert store.delete_tree(NS) == 1
        store.sweep()
        assert store.count() == 0
        found, _ = take_changes(changes, None, 2 * MANY + 1)
        assert [change.kind for change in found] == ["delete"] * (2 * MANY + 1)
        assert len({(change.namespace, change.key) for change in found}) == 2 * MANY + 1

    def test_a_large_folder_is_gone_at_once(self, store: Caller) -> None:
        volume, home = store.files(), ("filesystem",)
        store.execute([Put(home, f"/d/{n % 9}/{n:04}", {"content": "a needle"}) for n in range(MANY)])
        volume.write("/d-", "beside it, a needle")
        store.put(home, "/d/item", {"no": "file"})
        store.put((*home, "below"), "/d/f", {"content": "x"})
        assert volume.delete("/d", recursive=True) == MANY
        assert not volume.exists("/d")
        assert not volume.exists("/d/0/0000")
        assert [info.path for info in volume.ls()] == [info.path for info in volume.walk()] == ["/d-"]
        assert volume.glob("**/*0") == []
        assert [match.path for match in volume.grep("needle")] == ["/d-"]
        with pytest.raises(FileNotFound):
            volume.read("/d/0/0000")
        assert store.execute([Stat(home, "/d"), Stat(home, "/d/0/0000")]) == [None, None]
        assert volume.append("/d/0/0000", "new") == 0
        volume.move("/d-", "/d/1/moved")
        volume.write("/d/2", "a file where a folder was")
        store.sweep()
        assert [info.path for info in volume.walk()] == ["/d/0/0000", "/d/1/moved", "/d/2"]
        assert volume.read_text("/d/0/0000") == "new"
        assert store.get(home, "/d/item").value == {"no": "file"}
        assert store.count() == 5
        assert volume.delete("/", recursive=True) == 3

    def test_a_large_folder_is_moved_with_every_file(self, store: Caller, clock: Clock, changes: Any) -> None:
        volume, home = store.files(), ("filesystem",)
        store.execute([Put(home, f"/d/{n % 9}/{n:04}", {"content": f"needle {n}"}, ttl=60) for n in range(MANY)])
        volume.write("/d-", "beside it, a needle")
        store.put(home, "/d/item", {"no": "file"})
        volume.append("/d/0/0000", " grown")
        before: dict[str, Any] = {info.path: info for info in volume.walk("/d")}
        clock.advance(1)
        cursor = changes(limit=0).next
        assert volume.move("/d", "/new/e") == FileInfo("/new/e/", is_dir=True)
        moved: list[Any] = volume.walk("/new/e")
        assert ["/d" + info.path.removeprefix("/new/e") for info in moved] == [*before]
        for info in moved:
            old = before["/d" + info.path.removeprefix("/new/e")]
            assert (info.size, info.created_at, info.modified_at) == (old.size, old.created_at, clock.now)
            assert info.version > old.version
        assert volume.read_text("/new/e/0/0000") == "needle 0 grown"
        assert volume.read_text("/new/e/1/0001") == "needle 1"
        assert [info.path for info in volume.ls()] == ["/d-", "/new/"]
        assert len(volume.grep("needle")) == MANY + 1
        assert store.get(home, "/d/item").value == {"no": "file"}
        assert store.count() == MANY + 2
        assert len(store.scan(())) == MANY + 2
        found, _ = take_changes(changes, cursor, 2 * MANY)
        kinds = [(change.kind, change.key) for change in found]
        expected = [("delete", path) for path in before] + [("put", info.path) for info in moved]
        assert sorted(kinds) == sorted(expected)
        clock.advance(60)
        assert [info.path for info in volume.walk()] == ["/d-"], "each file kept its lifetime"

    def test_a_large_folder_that_cannot_be_moved_stays(self, store: Caller, changes: Any) -> None:
        volume, home = store.files(), ("filesystem",)
        store.execute([Put(home, f"/d/{n:04}", {"content": "x"}) for n in range(MANY)])
        volume.write("/d/n/" + "n" * 1000, "the last one")
        volume.write("/f", "a file")
        volume.write("/g/f", "a file")
        cursor = changes(limit=0).next
        refused = [
            ("/f", AlreadyExists),
            ("/f/d", NotADirectory),
            ("/g", IsADirectory),
            ("/" + "m" * 1000, InvalidInput),
        ]
        for path, error in refused:
            for _ in range(2):  # a move that was refused was not begun
                with pytest.raises(error):
                    volume.move("/d", path)
        assert changes(since=cursor) == []
        assert volume.move("/d", "/d").path == "/d/"
        assert len(volume.walk("/d")) == MANY + 1
        volume.delete("/g/f")
        assert volume.move("/d", "/g").path == "/g/"
        with pytest.raises(FileNotFound):
            volume.move("/d", "/g")
        volume.write("/d/x", "x")
        with pytest.raises(IsADirectory):  # the move before is over
            volume.move("/d", "/g")

    def test_a_large_folder_and_then_its_namespace_are_deleted_once(self, store: Caller, changes: Any) -> None:
        """The keys of /a- are between those of the file /a and of the folder /a."""
        home = ("filesystem",)
        store.execute([Put(home, f"/a{sign}/{n:04}", {"content": "x"}) for sign in ("", "-") for n in range(MANY)])
        assert store.files().delete("/a", recursive=True) == MANY
        assert store.delete_tree(home) == MANY
        found, _ = take_changes(changes, None, 2 * MANY)
        assert [change.key for change in found] == [f"/a{sign}/{n:04}" for sign in ("", "-") for n in range(MANY)]
        assert {change.kind for change in found} == {"delete"}
        assert store.put(home, "/a", {}).version > found[-1].version

    def test_a_large_tree_in_a_batch_with_other_writes_is_deleted_with_them(self, store: Caller) -> None:
        put_tree(store)
        new = Put((*NS, "00"), "k0000", {"new": 1})
        with pytest.raises(Conflict):
            store.execute([DeleteTree(NS), new, Check((NS[0], "none"), "none", 5)])
        assert store.count(NS) == MANY
        count, entry = store.execute([DeleteTree(NS), new])
        assert count == MANY
        assert list(store.scan(NS)) == [entry]

    def test_a_scope_deletes_its_own_large_tree(self, store: Caller) -> None:
        put_tree(store, ("scope", "a"))
        put_tree(store, ("scope2", "a"))
        scoped = store.scoped(("scope",))
        assert scoped.delete_tree(()) == MANY
        assert scoped.count() == 0
        assert store.count() == MANY


def take_changes(changes: Any, cursor: str | None, count: int) -> tuple[list[Any], str | None]:
    """Return so many changes after a cursor, and the next cursor. A page may be empty while a tree is cleared."""
    found: list[Any] = []
    until = time.monotonic() + 30
    while len(found) < count and time.monotonic() < until:
        page = changes(since=cursor, limit=500)
        found += page
        cursor = page.next
    return found, cursor
