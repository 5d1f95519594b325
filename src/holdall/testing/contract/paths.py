"""The paths that a file may have, how long it lives, and the scope that it is in."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ... import ABSENT
from ...errors import AlreadyExists, Conflict, HoldallError, InvalidInput, IsADirectory, NotADirectory, NotFound
from ...ops import Append, CheckPath, Copy, DeleteTree, Move, ReadRange, Stat
from ..caller import Caller, FilesCaller
from ..clock import Clock
from .base import Contract, Opener

NS = ("filesystem",)

BAD_PATHS: dict[str, Any] = {
    "empty": "",
    "relative": "notes.md",
    "parent": "/a/../b",
    "parent at the end": "/a/..",
    "only the parent": "..",
    "newline": "/a\nb",
    "NUL": "/a\x00b",
    "delete": "/a\x7f",
    "next line": "/a\x85b",
    "lone surrogate": "/a\ud800",
    "none": None,
    "bytes": b"/a",
    "an int": 5,
}
NOT_A_FILE = {"the root": "/", "two slashes": "//", "a folder": "/a/", "a dot": "/a/.", "too long": "/" + "n" * 10_000}


class PathContract(Contract):
    @pytest.mark.parametrize("path", ["/a//b", "/./a/b", "//a/./b", "/a/b"])
    def test_paths_are_normalised(self, volume: FilesCaller, path: str) -> None:
        assert volume.write(path, "x").path == "/a/b"
        assert volume.read(path) == b"x"
        assert [info.path for info in volume.walk()] == ["/a/b"]
        for folder in ("/a", "/a/", "//a//", "/./a/."):
            assert [info.path for info in volume.ls(folder)] == ["/a/b"]
        assert volume.append(path, "y") == 1
        assert volume.edit(path, "xy", "z") == 1
        assert volume.exists(path)
        assert volume.move(path, "//c/./d").path == "/c/d"
        assert volume.copy("/c//d", "/e//").path == "/e"
        assert volume.delete("//c/") == 1

    @pytest.mark.parametrize("path", [*BAD_PATHS.values(), *NOT_A_FILE.values()], ids=[*BAD_PATHS, *NOT_A_FILE])
    def test_a_bad_path_is_refused_and_changes_nothing(self, store: Caller, volume: FilesCaller, path: Any) -> None:
        volume.write("/b", "x")
        before = store.scan()
        attempts: list[tuple[Any, ...]] = [
            (volume.write, path, "y"),
            (volume.append, path, "y"),
            (volume.edit, path, "x", "y"),
            (volume.read, path),
            (volume.read_range, path, 0),
            (volume.read_lines, path),
            (volume.open, path, "rb"),
            (volume.open, path, "wb"),
            (volume.open, path, "ab"),
        ]
        if path in BAD_PATHS.values():
            attempts += [
                (volume.stat, path),
                (volume.exists, path),
                (volume.delete, path),
                (volume.ls, path),
                (volume.walk, path),
                (volume.glob, "*", path),
                (volume.grep, "x", path),
            ]
        if path in BAD_PATHS.values() or path in ("/", "//", NOT_A_FILE["too long"]):
            attempts += [(volume.move, path, "/c"), (volume.move, "/b", path)]
            attempts += [(volume.copy, path, "/c"), (volume.copy, "/b", path)]
        for call, *args in attempts:
            with pytest.raises(InvalidInput):
                call(*args)
        assert store.scan() == before

    @pytest.mark.parametrize("path", BAD_PATHS.values(), ids=BAD_PATHS)
    def test_a_bad_path_in_a_batch_is_refused_and_changes_nothing(
        self, store: Caller, volume: FilesCaller, path: Any
    ) -> None:
        volume.write("/b", "x")
        before = store.scan()
        batch: list[Any] = [
            Append(NS, path, b"y"),
            ReadRange(NS, path, 0),
            Stat(NS, path),
            CheckPath(NS, path),
            Move(NS, path, "/c"),
            Move(NS, "/b", path),
            Copy(NS, path, "/c"),
            Copy(NS, "/b", path),
        ]
        if path is not None:  # which means all that is in the namespace
            batch.append(DeleteTree(NS, path))
        for op in batch:
            with pytest.raises(InvalidInput):
                store.execute([Append(NS, "/b", b"more"), op])
            assert store.scan() == before

    def test_each_bad_path_gets_its_own_words(self, volume: FilesCaller) -> None:
        words = {
            "": "absolute",
            "notes.md": "did you mean '/notes.md'",
            "/a/../b": r"'\.\.'",
            "/a\nb": "control characters",
            "/a/": "folder",
            "/" + "n" * 10_000: "at most 1536 bytes",
            "/" + "漢" * 600: "at most 1536 bytes",
        }
        for path, said in words.items():
            with pytest.raises(InvalidInput, match=said) as caught:
                volume.write(path, "x")
            assert len(str(caught.value)) < 300

    def test_a_file_is_no_folder_and_a_folder_no_file(self, store: Caller, volume: FilesCaller) -> None:
        volume.write("/a/b", "x")
        volume.write("/f", "x")
        before = store.scan()
        for put in (volume.write, volume.append):
            with pytest.raises(IsADirectory):
                put("/a", "y")
            for below in ("/a/b/c", "/f/g/h/i"):
                with pytest.raises(NotADirectory):
                    put(below, "y")
        for mode in ("wb", "ab"):
            with pytest.raises(IsADirectory):
                volume.open("/a", mode)
            with pytest.raises(NotADirectory):
                volume.open("/f/g", mode)
        assert store.scan() == before

    def test_a_name_may_hold_anything_else(self, volume: FilesCaller) -> None:
        names = [
            "*",
            "?",
            "[a]",
            "{a,b}",
            "%",
            "_",
            "a b",
            "'",
            '"',
            "\\",
            "...",
            ".hidden",
            "é",
            "e\u0301",
            "漢字",
            "😀",
        ]
        names += ["\ufeff", "\U0010ffff", "~", "$HOME", "a\u2028b", "-rf"]
        for name in names:
            volume.write("/" + name, name)
        assert {info.path[1:] for info in volume.ls()} == set(names)
        for name in names:
            assert volume.read_text("/" + name) == name
            assert volume.stat("/" + name).size == len(name.encode())
        for left in range(len(names), 0, -1):
            assert volume.delete("/" + names[left - 1]) == 1
            assert len(volume.walk()) == left - 1

    def test_the_longest_name_works_everywhere(self, volume: FilesCaller) -> None:
        longest = "/" + "n" * 1535
        volume.write(longest, "x")
        assert volume.append(longest, "y") == 1
        assert [info.path for info in volume.ls()] == [longest]
        assert [match.path for match in volume.grep("xy")] == [longest]
        assert volume.move(longest, "/short").path == "/short"
        assert volume.copy("/short", longest).size == 2

    # Lifetimes -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("swept", [False, True], ids=["unswept", "swept"])
    def test_an_expired_file_is_absent_to_everything(self, opened: Opener, clock: Clock, swept: bool) -> None:
        store = opened(ttl=10)
        volume = store.files()
        first = volume.write("/d/f", "text")
        volume.append("/d/g", "text")
        clock.advance(10)
        if swept:
            assert store.sweep() == 2
        for path in ("/d/f", "/d"):
            assert volume.exists(path) is False
            with pytest.raises(NotFound):
                volume.read(path)
            assert volume.delete(path) == 0
            with pytest.raises(NotFound):
                volume.move(path, "/x")
        assert volume.ls() == volume.ls("/d") == volume.walk() == volume.glob("*") == volume.grep("text") == []
        volume.write("/d", "no folder is in the way")
        volume.delete("/d")
        assert volume.append("/d/f", "new") == 0
        info = volume.stat("/d/f")
        assert info.created_at == clock.now
        assert info.version > first.version

    def test_appends_and_edits_keep_the_lifetime_and_a_write_begins_anew(self, opened: Opener, clock: Clock) -> None:
        store = opened(ttl=10)
        volume = store.files()
        volume.write("/f", "text")
        expires = store.get(NS, "/f").expires_at
        assert expires == clock.now + timedelta(seconds=10)
        clock.advance(4)
        volume.append("/f", " more")
        assert store.get(NS, "/f").expires_at == expires
        volume.edit("/f", "more", "less")
        assert store.get(NS, "/f").expires_at == expires
        volume.move("/f", "/g")
        assert store.get(NS, "/g").expires_at == expires
        volume.write("/g", "text")
        assert store.get(NS, "/g").expires_at == clock.now + timedelta(seconds=10)

    # Scopes ----------------------------------------------------------------------------------------------------------

    def test_a_scoped_volume_stays_inside(self, store: Caller) -> None:
        outside = store.files()
        outside.write("/secret", "x")
        store.files(("tenant", "t10", "filesystem")).write("/secret", "x")
        scoped = store.scoped(("tenant", "t1"))
        volume = scoped.files()
        volume.write("/mine", "x")
        assert [info.path for info in volume.walk()] == ["/mine"]
        assert [match.path for match in volume.grep("x")] == ["/mine"]
        with volume.open("/piece", "wb") as file:
            file.write(b"by the piece")
        assert store.files(("tenant", "t1", "filesystem")).read("/piece") == b"by the piece"
        scoped.files(()).write("/own", "x")
        assert store.get(("tenant", "t1"), "/own").value["content"] == "x"
        assert volume.delete("/") == 2
        assert outside.exists("/secret")
        assert store.files(("tenant", "t10", "filesystem")).exists("/secret")

    def test_no_error_tells_where_a_scope_is(self, store: Caller) -> None:
        scoped = store.scoped(("tenant", "t1"))
        volume = scoped.files()
        scoped.put(NS, "/item", {"n": 1})
        volume.write("/f", "x")
        volume.write("/d/f", "x")
        attempts: list[tuple[Any, ...]] = [
            (volume.append, "/item", "x"),
            (volume.write, "/f/x", "x"),
            (volume.write, "/d", "x"),
            (volume.read, "/missing"),
            (volume.read, "/d"),
            (volume.move, "/missing", "/x"),
            (volume.move, "/f", "/d"),
            (volume.copy, "/d", "/f"),
        ]
        for call, *args in attempts:
            with pytest.raises(HoldallError) as caught:
                call(*args)
            assert "tenant" not in str(caught.value)
        with pytest.raises(Conflict) as conflict:
            volume.write("/f", "y", expect=ABSENT)
        assert conflict.value.namespace == NS
        with pytest.raises(AlreadyExists):
            volume.append("/item", "x")
