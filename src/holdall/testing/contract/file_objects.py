"""File objects: files read and written in parts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import time
from collections.abc import Callable
from typing import Any

import pytest

from ...errors import Conflict, InvalidInput, IsADirectory, NotADirectory
from ...ops import Changes, Count
from ..caller import Caller, FilesCaller
from ..clock import Clock
from .base import Contract

PIECE = bytes(range(256)) * 2048  # half a megabyte


class FileObjectContract(Contract):
    def test_a_file_is_read_in_pieces(self, volume: FilesCaller) -> None:
        content = PIECE * 3 + b"end"
        volume.write("/f", content)
        with volume.open("/f", "rb") as file:
            assert file.read(10) == content[:10]
            assert file.tell() == 10
            assert file.seek(len(PIECE) - 5) == len(PIECE) - 5
            assert file.read(10) == content[len(PIECE) - 5 : len(PIECE) + 5]
            assert file.read() == content[len(PIECE) + 5 :]
            assert file.read(5) == file.read() == b""
            file.seek(0)
            pieces = iter(lambda: file.read(100_000), b"")
            assert b"".join(pieces) == content
        assert file.closed
        with pytest.raises(ValueError, match="closed"):
            file.read()

    def test_a_file_is_written_in_pieces(self, volume: FilesCaller, clock: Clock) -> None:
        with volume.open("/d/f", "wb") as file:
            for _ in range(5):
                assert file.write(PIECE) == len(PIECE)
            file.write(b"end")
        assert volume.read("/d/f") == PIECE * 5 + b"end"
        info = volume.stat("/d/f")
        assert (info.size, info.created_at) == (len(PIECE) * 5 + 3, clock.now)
        clock.advance(1)
        with volume.open("/d/f", "wb"):
            pass
        emptied = volume.stat("/d/f")
        assert (emptied.size, emptied.created_at, emptied.modified_at) == (0, info.created_at, clock.now)
        assert emptied.version > info.version
        assert volume.append("/d/f", "x") == 0

    def test_a_file_is_appended_to_in_pieces(self, volume: FilesCaller) -> None:
        volume.write("/log", "old")
        with volume.open("/log", "ab") as file:
            for _ in range(3):
                file.write(PIECE)
        assert volume.read("/log") == b"old" + PIECE * 3
        with volume.open("/new", "ab") as file:
            file.write(b"x")
        assert volume.read("/new") == b"x"
        before = volume.stat("/new")
        for path in ("/new", "/empty"):  # nothing is written: a missing file is created, another is left as it is
            with volume.open(path, "ab"):
                pass
        assert volume.stat("/new") == before and volume.read("/empty") == b""

    @pytest.mark.parametrize("size", [10, len(PIECE) * 5], ids=["small", "large"])
    def test_what_is_written_shows_when_it_is_closed(
        self, store: Caller, volume: FilesCaller, changes: Any, size: int
    ) -> None:
        volume.write("/f", "old")
        mark, before = changes().next, store.scan()
        file = volume.open("/f", "wb")
        file.write(b"x" * size)
        assert self._seen(store, volume) == (before, ["/f"])
        assert volume.read("/f") == b"old"
        assert changes(since=mark) == []
        file.close()
        file.close()
        assert volume.stat("/f").size == size
        assert [(change.key, change.kind) for change in changes(since=mark)] == [("/f", "put")]

    @pytest.mark.parametrize("size", [10, len(PIECE) * 5], ids=["small", "large"])
    @pytest.mark.parametrize("existed", [True, False], ids=["over a file", "new"])
    def test_nothing_is_written_after_an_exception(
        self, store: Caller, volume: FilesCaller, changes: Any, size: int, existed: bool
    ) -> None:
        volume.write("/other", "x")
        if existed:
            volume.write("/f", "old")
        mark, before, listed = changes().next, store.scan(), [info.path for info in volume.walk()]

        def fail() -> None:
            with volume.open("/f", "wb") as file:
                file.write(b"x" * size)
                raise RuntimeError("mine")

        with pytest.raises(RuntimeError, match="mine"):
            fail()
        assert self._seen(store, volume) == (before, listed)
        assert changes(since=mark) == []
        assert self._hidden(store) == 0

    @pytest.mark.parametrize("size", [10, len(PIECE) * 5], ids=["small", "large"])
    def test_a_file_that_was_never_closed_is_not_visible_and_is_swept(
        self, store: Caller, volume: FilesCaller, clock: Clock, runner: asyncio.Runner | None, size: int
    ) -> None:
        volume.write("/other", "x")
        before = store.scan()
        # An async file object cannot close itself, so it warns.
        with contextlib.nullcontext() if runner is None else pytest.warns(ResourceWarning, match="was not closed"):
            volume.open("/f", "wb").write(b"x" * size)
            gc.collect()
        assert self._seen(store, volume) == (before, ["/other"])
        clock.advance(2 * 24 * 3600)
        store.sweep()
        assert self._hidden(store) == 0

    def test_appended_data_is_kept_without_close(self, volume: FilesCaller, runner: asyncio.Runner | None) -> None:
        """A file object that is collected without close is closed a moment later. An async one cannot be."""
        if runner is None:
            volume.open("/log", "ab").write(b"x")
            gc.collect()
            until = time.monotonic() + 10
            while not volume.exists("/log") and time.monotonic() < until:
                time.sleep(0.001)
            assert volume.read("/log") == b"x"

    @staticmethod
    def _seen(store: Caller, volume: FilesCaller) -> tuple[list[Any], list[str]]:
        """List all that a user can find, with every way to search."""
        entries = store.scan()
        places = {(entry.namespace, entry.key) for entry in entries}
        assert {(hit.namespace, hit.key) for hit in store.search(limit=1000)} == places
        assert store.count() == len(places)
        assert store.namespaces() == sorted({namespace for namespace, _ in places})
        assert store.namespaces(prefix=("*",), suffix=("*",)) == store.namespaces()
        assert {
            (change.namespace, change.key) for change in store.store._engine_handle.engine.execute([Changes()])[0]
        } >= places
        return entries, [info.path for info in volume.walk()]

    @staticmethod
    def _hidden(store: Caller) -> int:
        """Count the hidden entries, which only the engine shows."""
        count: int = store.store._engine_handle.engine.execute([Count(("__holdall__",))])[0]
        return count

    def test_a_path_that_cannot_be_fails_at_once(self, store: Caller, volume: FilesCaller) -> None:
        volume.write("/f", "x")
        volume.write("/d/f", "x")
        before = store.scan()
        for mode in ("wb", "ab"):
            with pytest.raises(NotADirectory):
                volume.open("/f/x", mode)
            with pytest.raises(IsADirectory):
                volume.open("/d", mode)
        for other in ("r", "w", "r+b", "x", "", None, "RB"):
            with pytest.raises(InvalidInput, match='"rb", "wb" or "ab"'):
                volume.open("/f", other)
        assert store.scan() == before

    def test_a_path_that_cannot_be_any_more_fails_at_the_end(self, volume: FilesCaller) -> None:
        file = volume.open("/f", "wb")
        file.write(b"x")
        volume.write("/f/now/a/folder", "x")
        with pytest.raises(IsADirectory):
            file.close()
        assert [info.path for info in volume.walk()] == ["/f/now/a/folder"]

    @pytest.mark.parametrize("change", ["write", "append", "delete", "move"])
    def test_a_file_that_changes_while_it_is_read_is_a_conflict(self, volume: FilesCaller, change: str) -> None:
        content = PIECE * 6
        volume.write("/f", content)
        calls: dict[str, Callable[[], Any]] = {
            "write": lambda: volume.write("/f", content),
            "append": lambda: volume.append("/f", "more"),
            "delete": lambda: volume.delete("/f"),
            "move": lambda: volume.move("/f", "/g"),
        }
        with volume.open("/f", "rb") as file:
            assert file.read(10) == content[:10]
            calls[change]()
            with pytest.raises(Conflict):
                file.read()

    def test_a_file_does_what_its_mode_allows(self, volume: FilesCaller) -> None:
        volume.write("/f", "x")
        with volume.open("/f", "rb") as file, pytest.raises(io.UnsupportedOperation):
            file.write(b"y")
        for mode in ("wb", "ab"):
            with volume.open("/g", mode) as file, pytest.raises(io.UnsupportedOperation):
                file.read()
        with volume.open("/f", "rb") as file, pytest.raises(ValueError, match="before the beginning"):
            file.seek(-1)

    def test_of_two_writers_of_a_path_the_last_to_close_wins(self, volume: FilesCaller) -> None:
        one, two = volume.open("/f", "wb"), volume.open("/f", "wb")
        one.write(b"one")
        two.write(b"two")
        two.close()
        one.close()
        assert volume.read("/f") == b"one"

    def test_a_stored_tree_is_deleted_with_its_unfinished_files_spared(
        self, store: Caller, volume: FilesCaller
    ) -> None:
        """`delete_tree` cannot reach what is being written."""
        file = volume.open("/f", "wb")
        file.write(PIECE * 3)
        store.delete_tree(("filesystem",))
        file.write(b"end")
        file.close()
        assert volume.read("/f") == PIECE * 3 + b"end"
