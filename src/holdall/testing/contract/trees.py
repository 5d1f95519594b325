"""Folders: listed, walked, deleted, moved and copied whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ... import ABSENT
from ...errors import AlreadyExists, Conflict, FileNotFound, InvalidInput, IsADirectory, NotADirectory
from ...ops import Append, Check, CheckPath, Copy, DeleteTree, FileInfo, Get, Move, Put, ReadRange, Stat
from ..caller import Caller, FilesCaller
from ..clock import Clock
from .base import Contract

NS = ("filesystem",)

# In path order. "-" and "." sort before "/", "0" and "é" after it: none of them is in the folder /a.
AROUND = ["/a-", "/a-/x", "/a.txt", "/a/b", "/a/b-c", "/a/b0", "/a0", "/a0/x", "/ab", "/aé", "/b/c/d/e"]


def paths(found: list[FileInfo]) -> list[str]:
    return [info.path for info in found]


class TreeContract(Contract):
    @pytest.fixture
    def around(self, store: Caller) -> FilesCaller:
        """Names that differ only by whole labels. Some were created as items, so `/a-` is a file and a folder."""
        for path in AROUND:
            store.put(NS, path, {"content": path, "encoding": "utf-8"})
        return store.files()

    # Listing ---------------------------------------------------------------------------------------------------------

    def test_ls_gives_files_and_folders_once_in_path_order(self, around: FilesCaller) -> None:
        assert paths(around.ls()) == ["/a-", "/a-/", "/a.txt", "/a/", "/a0", "/a0/", "/ab", "/aé", "/b/"]
        assert paths(around.ls("/a")) == ["/a/b", "/a/b-c", "/a/b0"]
        assert paths(around.ls("/b")) == ["/b/c/"]
        assert paths(around.ls("/b/c/")) == ["/b/c/d/"]
        folder = around.ls("/b")[0]
        assert folder == FileInfo("/b/c/", is_dir=True)
        assert around.ls("/a/b") == around.ls("/missing") == around.ls("/a/b/c") == []

    def test_ls_gives_those_whose_names_begin_with_a_prefix(self, around: FilesCaller) -> None:
        everything = paths(around.ls())
        for prefix in ("", "a", "a-", "a.", "a0", "ab", "é", "aé", "b", "c", ".", " "):
            some = [path for path in everything if path[1:].startswith(prefix)]
            assert paths(around.ls(prefix=prefix)) == some
            assert around.names(prefix=prefix) == [path[1:] for path in some]
        assert paths(around.ls("/a", prefix="b")) == ["/a/b", "/a/b-c", "/a/b0"]
        assert paths(around.ls("/a/", prefix="b-")) == ["/a/b-c"]
        assert around.names("/a", prefix="b-") == around.names("/a/", prefix="b-") == ["b-c"]
        assert around.ls("/missing", prefix="b") == around.names("/missing") == around.names("/a/b") == []
        for bad in ("a/", "/", None, b"a", "..", "a\x00"):
            with pytest.raises(InvalidInput):
                around.ls("/", prefix=bad)

    def test_listings_agree_with_stat(self, around: FilesCaller) -> None:
        for info in around.ls():
            assert around.stat(info.path) == info
            assert around.exists(info.path)
        for info in around.walk():
            assert around.stat(info.path) == info
            assert around.stat(info.path).size == len(info.path.encode())

    def test_walk_gives_every_file_below_in_path_order(self, around: FilesCaller) -> None:
        assert paths(around.walk()) == AROUND
        assert paths(around.walk("/a")) == ["/a/b", "/a/b-c", "/a/b0"]
        assert paths(around.walk("/b/c")) == ["/b/c/d/e"]
        assert around.walk("/missing") == []
        assert not any(info.is_dir for info in around.walk())

    def test_stat_of_files_folders_and_the_root(self, volume: FilesCaller) -> None:
        assert volume.stat("/") == FileInfo("/", is_dir=True)
        assert volume.exists("/")
        volume.write("/a/b/c", "x")
        for folder in ("/a", "/a/", "/a/b", "/a/b/"):
            assert volume.stat(folder) == FileInfo(folder.rstrip("/") + "/", is_dir=True)
        for missing in ("/a/b/c/", "/a/b/cd", "/a/b/c/d", "/b"):
            assert volume.exists(missing) is False
            with pytest.raises(FileNotFound):
                volume.stat(missing)

    def test_a_folder_is_gone_with_its_last_file(self, volume: FilesCaller) -> None:
        volume.write("/a/b/c", "x")
        assert volume.delete("/a/b/c") == 1
        assert volume.ls() == []
        assert not volume.exists("/a")
        volume.write("/a", "now a file")

    def test_more_than_a_page(self, volume: FilesCaller, store: Caller) -> None:
        """Pages end at files, at folders and at the names that sort right after a folder."""
        for start in range(0, 1300, 650):
            store.execute(
                [
                    Put(NS, path, {"content": ""})
                    for n in range(start, start + 650)
                    for path in (f"/many/{n:04}/deep/x", f"/many/{n:04}0", f"/many/{n:04}-")
                ]
            )
        expected = sorted(f"/many/{n:04}{end}" for n in range(1300) for end in ("/", "0", "-"))
        assert paths(volume.ls("/many")) == expected
        assert volume.names("/many") == [path.removeprefix("/many/") for path in expected]
        assert paths(volume.ls("/many", prefix="0")) == [path for path in expected if path.startswith("/many/0")]
        assert len(volume.walk()) == 3900
        assert paths(volume.walk()) == sorted(paths(volume.walk()))
        assert len(volume.glob("/many/*0")) == 1300
        assert volume.delete("/many", recursive=True) == 3900

    def test_large_subfolders_among_many_files_are_given_once(self, volume: FilesCaller, store: Caller) -> None:
        """Subfolders come before, among and after the files, and one ends where a page ends."""
        puts = [f"/d/{folder}/{n:03}" for folder in ("0first", "5mid", "9last", "9last2") for n in range(260)]
        puts += [f"/d/{n:04}" for n in range(150)] + [f"/d/7-{n:04}" for n in range(1200)]
        for start in range(0, len(puts), 500):
            store.execute([Put(NS, path, {"content": ""}) for path in puts[start : start + 500]])
        folders = ["0first/", "5mid/", "9last/", "9last2/"]
        expected = sorted([*folders, *(path.removeprefix("/d/") for path in puts if path.count("/") == 2)])
        assert volume.names("/d") == expected
        assert paths(volume.ls("/d")) == [f"/d/{name}" for name in expected]
        assert volume.names("/d", prefix="9") == ["9last/", "9last2/"]
        assert volume.names() == ["d/"]

    def test_a_child_namespace_is_another_volume(self, store: Caller) -> None:
        """A child namespace's files leak into its parent's in deepagents."""
        parent, child = store.files(("fs",)), store.files(("fs", "child"))
        others = [child, store.files(("fsx",)), store.files(("fs", "a", "b"))]
        for other in others:
            other.write("/theirs/f", "theirs")
        assert parent.ls() == parent.walk() == parent.glob("**") == parent.grep("theirs") == []
        assert not parent.exists("/theirs")
        parent.write("/theirs", "mine, a file where they have a folder")
        assert paths(child.walk()) == ["/theirs/f"]
        assert parent.delete("/", recursive=True) == 1
        assert all(paths(other.walk()) == ["/theirs/f"] for other in others)
        parent.write("/x/f", "x")
        parent.move("/x", "/theirs")
        assert [other.read("/theirs/f") for other in others] == [b"theirs"] * 3

    def test_plain_items_are_in_no_listing_and_in_nobodys_way(self, store: Caller, volume: FilesCaller) -> None:
        """One malformed item breaks `ls` for all in deepagents."""
        malformed: dict[str, dict[str, Any]] = {
            "/d/number": {"content": 5},
            "/d/no content": {"encoding": "utf-8"},
            "/d/bad base64": {"content": "!", "encoding": "base64"},
            "/d/extra": {"content": "x", "mode": 7},
            "/d/../up": {"content": "x"},
            "/d//twice": {"content": "x"},
            "/d/": {"content": "x"},
            "/": {"content": "x"},
            "/d/new\nline": {"content": "x"},
            "relative": {"content": "x"},
        }
        for key, value in malformed.items():
            store.put(NS, key, value)
        assert volume.ls() == volume.ls("/d") == volume.walk() == volume.glob("**") == volume.grep("x") == []
        assert not volume.exists("/d")
        volume.write("/d/real", "x")
        assert paths(volume.ls()) == ["/d/"]
        assert paths(volume.ls("/d")) == paths(volume.walk()) == ["/d/real"]
        assert volume.move("/d", "/e").path == "/e/"
        assert volume.delete("/", recursive=True) == 1
        for key, value in malformed.items():
            assert store.get(NS, key).value == value
        assert volume.write("/d/number", "replaced").size == 8
        with pytest.raises(AlreadyExists):
            volume.append("/d/extra", "more")

    def test_what_is_both_file_and_folder_stays_usable(self, store: Caller, volume: FilesCaller) -> None:
        for key in ("/both", "/both/in", "/both/deep/x"):
            store.put(NS, key, {"content": key})
        assert paths(volume.ls()) == ["/both", "/both/"]
        assert paths(volume.ls("/both")) == ["/both/deep/", "/both/in"]
        assert paths(volume.walk()) == ["/both", "/both/deep/x", "/both/in"]
        assert volume.read_text("/both") == "/both"
        assert volume.read_text("/both/in") == "/both/in"
        assert volume.stat("/both").is_dir is False
        assert volume.stat("/both/").is_dir is True
        assert volume.edit("/both", "/both", "edited") == 1
        assert volume.edit("/both/in", "/in", "/edited") == 1
        assert [match.path for match in volume.grep("edited")] == ["/both", "/both/in"]
        for path in ("/both", "/both/new"):
            with pytest.raises((IsADirectory, NotADirectory)):
                volume.write(path, "no more of it")
        assert store.delete(NS, "/both") is True
        assert paths(volume.walk()) == ["/both/deep/x", "/both/in"]
        store.put(NS, "/both", {"content": "again"})
        assert volume.copy("/both", "/copied").path.rstrip("/") == "/copied"
        assert volume.delete("/both", recursive=True) == 3
        assert paths(volume.walk()) == ["/copied", "/copied/deep/x", "/copied/in"]

    # Deleting --------------------------------------------------------------------------------------------------------

    def test_delete_takes_whole_labels_and_no_patterns(self, around: FilesCaller) -> None:
        for nothing in ("/a*", "/a?", "/[a]", "/missing", "/b/c/d/e/f"):
            assert around.delete(nothing, recursive=True) == 0
        assert around.delete("/a", recursive=True) == 3
        assert paths(around.walk()) == [path for path in AROUND if not path.startswith("/a/")]
        assert around.delete("/a-", recursive=True) == 2
        assert around.delete("/a0/x", recursive=True) == 1
        assert around.delete("/", recursive=True) == 5
        assert around.walk() == []

    def test_a_folder_is_deleted_only_with_recursive(self, around: FilesCaller) -> None:
        for folder in ("/a", "/a/", "/"):
            with pytest.raises(IsADirectory, match="recursive=True"):
                around.delete(folder)
        assert paths(around.walk()) == AROUND
        assert around.delete("/missing") == 0
        assert around.delete("/a0/x") == 1
        assert around.delete("/a0/x") == 0
        assert paths(around.walk()) == [path for path in AROUND if path != "/a0/x"]
        with pytest.raises(InvalidInput, match="recursive"):
            around.delete("/a", recursive="yes")

    def test_without_recursive_a_file_with_the_name_of_a_folder_is_deleted_alone(
        self, store: Caller, volume: FilesCaller
    ) -> None:
        volume.write("/both/in", "x")
        store.put(NS, "/both", {"content": "hides the folder"})
        with pytest.raises(IsADirectory):
            volume.delete("/both/")
        assert volume.delete("/both") == 1
        assert paths(volume.walk()) == ["/both/in"]

    def test_a_path_with_a_slash_at_its_end_deletes_no_file(self, volume: FilesCaller) -> None:
        volume.write("/f", "x")
        assert volume.exists("/f/") is False
        assert volume.delete("/f/") == 0
        assert volume.exists("/f") is True

    # Moving and copying ----------------------------------------------------------------------------------------------

    def test_move_keeps_created_and_copy_restarts_it(self, volume: FilesCaller, clock: Clock) -> None:
        first = volume.write("/a", "text")
        clock.advance(1)
        moved = volume.move("/a", "/b")
        assert moved == FileInfo("/b", False, 4, moved.version, first.created_at, moved.modified_at)
        assert moved.version > first.version
        assert not volume.exists("/a")
        clock.advance(1)
        copied = volume.copy("/b", "/c")
        assert (copied.path, copied.size, copied.created_at) == ("/c", 4, clock.now)
        assert copied.version > moved.version
        assert volume.stat("/b") == moved
        assert volume.stat("/c") == copied
        assert volume.read("/b") == volume.read("/c") == b"text"

    def test_a_file_is_replaced_and_its_version_grows(self, volume: FilesCaller) -> None:
        volume.write("/src", "new")
        for transfer in (volume.copy, volume.move):
            old = volume.write("/dst", "old, and longer")
            info = transfer("/src", "/dst")
            assert info.version > old.version
            assert info.size == 3
            assert volume.read("/dst") == b"new"
        assert paths(volume.walk()) == ["/dst"]

    @pytest.mark.parametrize("name", ["move", "copy"])
    def test_a_tree_goes_whole(self, around: FilesCaller, name: str) -> None:
        info = getattr(around, name)("/a", "/new/place")
        assert info == FileInfo("/new/place/", is_dir=True)
        arrived = ["/new/place/b", "/new/place/b-c", "/new/place/b0"]
        left = AROUND if name == "copy" else [path for path in AROUND if not path.startswith("/a/")]
        assert paths(around.walk()) == [*left, *arrived]
        assert [around.read_text(path) for path in arrived] == ["/a/b", "/a/b-c", "/a/b0"]

    @pytest.mark.parametrize("name", ["move", "copy"])
    def test_a_transfer_that_cannot_be_is_refused(self, store: Caller, volume: FilesCaller, name: str) -> None:
        volume.write("/f", "f")
        volume.write("/d/x", "x")
        volume.write("/e/x", "x")
        volume.write("/n/" + "n" * 1000, "x")
        before = store.scan()
        transfer = getattr(volume, name)
        refused: list[tuple[str, str, type[Exception]]] = [
            ("/missing", "/x", FileNotFound),
            ("/missing", "/missing", FileNotFound),
            ("/f/x", "/x", FileNotFound),
            ("/f", "/d", IsADirectory),
            ("/d", "/e", IsADirectory),
            ("/d", "/f", AlreadyExists),
            ("/f", "/d/x/y", NotADirectory),
            ("/d", "/f/d", NotADirectory),
            ("/d", "/d/x", InvalidInput),
            ("/d", "/d/new/deep", InvalidInput),
            ("/f", "/f/g", InvalidInput),
            ("/", "/x", InvalidInput),
            ("/d", "/", InvalidInput),
            ("/n", "/" + "m" * 1000, InvalidInput),  # one of its files would have too long a path
        ]
        for src, dst, error in refused:
            with pytest.raises(error):
                transfer(src, dst)
            assert store.scan() == before

    @pytest.mark.parametrize("name", ["move", "copy"])
    def test_onto_itself_changes_nothing(self, store: Caller, volume: FilesCaller, name: str) -> None:
        volume.write("/f", "f")
        volume.write("/d/x", "x")
        before = store.scan()
        assert getattr(volume, name)("/f", "//f") == volume.stat("/f")
        assert getattr(volume, name)("/d", "/d/") == volume.stat("/d")
        assert store.scan() == before

    def test_a_folder_can_be_renamed_to_what_begins_like_it(self, volume: FilesCaller) -> None:
        volume.write("/d/x", "x")
        assert volume.move("/d", "/d2").path == "/d2/"
        assert volume.move("/d2", "/d").path == "/d/"
        assert paths(volume.walk()) == ["/d/x"]

    # Sharing ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("change", ["append", "write", "edit", "delete", "move"])
    @pytest.mark.parametrize("changed", ["/src", "/dst"])
    def test_copies_share_until_one_changes(self, volume: FilesCaller, change: str, changed: str) -> None:
        for n in range(5):
            volume.append("/src", f"line {n}\n")
        text = volume.read_text("/src")
        volume.copy("/src", "/dst")
        other = "/dst" if changed == "/src" else "/src"
        calls: dict[str, Callable[[], Any]] = {
            "append": lambda: volume.append(changed, "more"),
            "write": lambda: volume.write(changed, "all new"),
            "edit": lambda: volume.edit(changed, "line 3", "line three"),
            "delete": lambda: volume.delete(changed, recursive=True),
            "move": lambda: volume.move(changed, "/away"),
        }
        untouched = volume.stat(other)
        calls[change]()
        assert volume.read_text(other) == text
        assert volume.stat(other) == untouched
        assert volume.append(other, "end") == len(text)
        assert volume.read_text(other) == text + "end"
        if change == "append":
            assert volume.read_text(changed) == text + "more"
        elif change == "move":
            assert volume.read_text("/away") == text

    def test_copies_of_copies_grow_apart(self, volume: FilesCaller) -> None:
        volume.append("/0", "base")
        for n in range(4):
            volume.copy(f"/{n}", f"/{n + 1}")
        for n in (3, 0, 4, 1, 2, 0):
            volume.append(f"/{n}", f"<{n}>")
        assert [volume.read_text(f"/{n}") for n in range(5)] == [
            "base<0><0>",
            "base<1>",
            "base<2>",
            "base<3>",
            "base<4>",
        ]
        volume.delete("/0", recursive=True)
        volume.copy("/2", "/3")
        volume.write("/2", "")
        assert [volume.read_text(f"/{n}") for n in range(1, 5)] == ["base<1>", "", "base<2>", "base<4>"]

    def test_a_copied_tree_grows_apart_too(self, volume: FilesCaller) -> None:
        for name in ("a", "b"):
            volume.append(f"/src/{name}", name)
        volume.copy("/src", "/dst")
        for path in ("/src/a", "/dst/b"):
            volume.append(path, "!")
        assert [(info.path, volume.read_text(info.path)) for info in volume.walk()] == [
            ("/dst/a", "a"),
            ("/dst/b", "b!"),
            ("/src/a", "a!"),
            ("/src/b", "b"),
        ]

    # The feed, and batches -------------------------------------------------------------------------------------------

    def test_the_feed_sees_every_file_of_a_tree(self, volume: FilesCaller, changes: Any) -> None:
        for name in ("x", "y/z"):
            volume.write(f"/old/{name}", name)
        volume.write("/other", "untouched")

        def since(mark: str) -> set[tuple[str, str]]:
            page = changes(since=mark)
            assert len({change.version for change in page}) == len(page)
            return {(change.key, change.kind) for change in page}

        mark = changes().next
        volume.move("/old", "/new")
        moved = {("/old/x", "delete"), ("/old/y/z", "delete"), ("/new/x", "put"), ("/new/y/z", "put")}
        assert since(mark) == moved
        mark = changes().next
        volume.copy("/new", "/copy")
        assert since(mark) == {("/copy/x", "put"), ("/copy/y/z", "put")}
        mark = changes().next
        volume.append("/copy/x", "!")
        volume.edit("/copy/y/z", "y", "Y")
        assert since(mark) == {("/copy/x", "put"), ("/copy/y/z", "put")}
        mark = changes().next
        volume.delete("/copy", recursive=True)
        assert since(mark) == {("/copy/x", "delete"), ("/copy/y/z", "delete")}
        mark = changes().next
        assert volume.read("/new/x") == b"x"
        assert len(volume.grep("x")) == len(volume.glob("*/x")) == len(volume.ls("/new")) - 1 == 1
        assert volume.delete("/copy", recursive=True) == 0
        assert since(mark) == set()

    def test_ops_on_files_run_in_order_and_read_their_own_writes(self, store: Caller, volume: FilesCaller) -> None:
        volume.write("/d/old", "old")
        results = store.execute(
            [
                CheckPath(NS, "/d/log"),
                Append(NS, "/d/log", b"one"),
                Append(NS, "/d/log", b"two"),
                ReadRange(NS, "/d/log", 1, 5),
                Copy(NS, "/d", "/e"),
                Append(NS, "/e/log", b"!"),
                Stat(NS, "/e/log"),
                Move(NS, "/d/old", "/e/old"),
                DeleteTree(NS, "/d"),
                Stat(NS, "/d"),
                ReadRange(NS, "/d/log", 0),
                Put(NS, "/d", {"content": "a file now"}),
                Stat(NS, "/d"),
                Get(NS, "/e/log"),
            ]
        )[1:]
        assert results[:3] == [0, 3, b"netw"]
        assert results[3] == FileInfo("/e/", is_dir=True)
        assert results[4] == 6
        assert results[5].size == 7
        assert results[6].path == "/e/old"
        assert results[7:10] == [1, None, None]
        assert results[11].size == 10
        assert results[12].value["content"] == "onetwo!"
        assert volume.read("/e/old") == b"old"

    @pytest.mark.parametrize("index", [0, 3, 7])
    def test_a_failed_op_on_files_leaves_nothing_of_the_batch(
        self, store: Caller, volume: FilesCaller, changes: Any, index: int
    ) -> None:
        for path in ("/f", "/d/x", "/d/y", "/log"):
            volume.append(path, path)
        before, feed = store.scan(), [(change.key, change.version) for change in changes()]
        batch = [
            Append(NS, "/log", b"more"),
            Append(NS, "/new", b"new"),
            Copy(NS, "/d", "/copy"),
            Append(NS, "/copy/x", b"more"),
            Move(NS, "/d", "/moved"),
            DeleteTree(NS, "/moved/x"),
            Put(NS, "/f", {"content": "overwritten"}),
        ]
        failing = [
            (CheckPath(NS, "/f/x"), NotADirectory),
            (CheckPath(NS, "/log/x/y"), NotADirectory),
            (Move(NS, "/missing", "/x"), FileNotFound),
            (Copy(NS, "/log", "/f/x"), NotADirectory),
            (Append(NS, "/..", b""), InvalidInput),
        ]
        for op, error in failing:
            with pytest.raises(error):
                store.execute([*batch[:index], op, *batch[index:]])
            assert store.scan() == before
            assert [(change.key, change.version) for change in changes()] == feed
        assert volume.append("/log", "!") == len("/log")
        assert volume.read("/log") == b"/log!"

    def test_expectations_hold_for_appends(self, store: Caller, volume: FilesCaller) -> None:
        [offset] = store.execute([Append(NS, "/log", b"one", ABSENT)])
        assert offset == 0
        first = volume.stat("/log")
        for wrong in (ABSENT, first.version - 1):
            with pytest.raises(Conflict):
                store.execute([Append(NS, "/log", b"two", wrong)])
        assert store.execute([Append(NS, "/log", b"two", first.version), Check(NS, "/f", ABSENT)]) == [3, None]
        with pytest.raises(Conflict):
            store.execute([Append(NS, "/log", b"three", first.version)])
        assert volume.read("/log") == b"onetwo"
