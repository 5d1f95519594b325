"""Paths of files, their TTL, and volumes in a scope."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ... import ABSENT
from ...errors import AlreadyExists, Conflict, FileNotFound, HoldallError, IsADirectory, NotADirectory
from ..caller import Caller, FilesCaller
from ..clock import Clock
from .base import Contract, Opener

NS = ("filesystem",)


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
        assert volume.delete("//c/", recursive=True) == 1

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
            with pytest.raises(FileNotFound):
                volume.read(path)
            assert volume.delete(path, recursive=True) == 0
            with pytest.raises(FileNotFound):
                volume.move(path, "/x")
        assert volume.ls() == volume.ls("/d") == volume.walk() == volume.glob("*") == volume.grep("text") == []
        volume.write("/d", "no folder is in the way")
        volume.delete("/d", recursive=True)
        assert volume.append("/d/f", "new") == 0
        info = volume.stat("/d/f")
        assert info.created_at == clock.now
        assert info.version > first.version

    def test_appends_and_edits_keep_the_ttl_and_a_write_restarts_it(self, opened: Opener, clock: Clock) -> None:
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
        assert volume.delete("/", recursive=True) == 2
        assert outside.exists("/secret")
        assert store.files(("tenant", "t10", "filesystem")).exists("/secret")

    def test_no_error_reveals_the_namespace_of_a_scope(self, store: Caller) -> None:
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
