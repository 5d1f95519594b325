"""File objects that are interrupted, at every point of their code where Python can do that."""

from __future__ import annotations

import asyncio
import builtins
import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import holdall
from holdall import Files
from holdall.engines.memory import MemoryEngine
from holdall.errors import InvalidInput, IsADirectory, Unavailable
from holdall.model import keys
from holdall.ops import Op
from holdall.runtime import closers
from support import processes
from support.interrupts import InterruptAt, Interrupted
from support.stores import new_location, open_at


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # an interrupt in a finalizer
    with holdall.open("memory:") as store:
        yield store.files()


@pytest.fixture
def late_closers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that close what was collected begin late."""
    close = closers._close_awaited

    def close_late(function: Callable[[], None]) -> None:
        time.sleep(0.05)
        close(function)

    monkeypatch.setattr(closers, "_close_awaited", close_late)


def interrupt_everywhere(function: Callable[[], object]) -> Iterator[str]:
    """Interrupt a function at each of its points, one after another, and give the location of each."""
    number = 0
    while True:
        trace = InterruptAt(number, "file_objects.py")
        with suppress(Interrupted), trace:
            function()
        if trace.where is None:
            assert number > 5, "this showed nothing"
            return
        yield trace.where
        number += 1


def test_opening_to_write_that_is_interrupted_leaves_the_file_as_it_was(files: Files) -> None:
    files.write("/a", "old")
    for where in interrupt_everywhere(lambda: files.open("/a", "wb")):
        assert files.read_text("/a") == "old", where
    assert files.read_text("/a") == "old", "it was not closed"


@pytest.mark.usefixtures("late_closers")
@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_what_is_written_while_interrupted_is_there_once_or_not_at_all(files: Files, mode: str) -> None:
    def write() -> None:
        with files.open("/a", mode) as file:
            file.write(b"new;")
            file.flush()
            file.write(b"more;")

    files.write("/a", "old;")
    for where in interrupt_everywhere(write):
        allowed = {"old;", "old;new;", "old;new;more;"} if mode == "ab" else {"old;", "new;more;"}
        found = files.read_text("/a")
        assert found in allowed, where
        closers.wait_for_closers()
        assert mode == "ab" or files.read_text("/a") == found, f"written later: {where}"
        files.write("/a", "old;")


def test_after_a_piece_that_failed_nothing_is_appended(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outcome may be unknown. A buffer would write it again."""
    file = files.open("/a", "ab")
    file.write(b"new;")
    append = Files._append

    def append_and_fail(*args: object, **kwargs: object) -> object:
        yield from append(*args, **kwargs)
        raise holdall.errors.OutcomeUnknown("the connection was lost")

    monkeypatch.setattr(Files, "_append", append_and_fail)
    with pytest.raises(holdall.errors.OutcomeUnknown):
        file.flush()
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="could not be written"):
        file.close()
    assert files.read_text("/a") == "new;"
    assert file.closed


@pytest.mark.parametrize("engine", ["memory", "sqlite", "disk"])
@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_a_file_that_is_collected_in_the_engine_does_not_make_it_wait_for_itself(
    engine: str, mode: str, tmp_path: Path
) -> None:
    processes.run(collect_in_the_engine, deadline=30, at=new_location(engine, tmp_path), mode=mode)


def collect_in_the_engine(at: dict[str, str], mode: str) -> None:
    """The engine asks for the time while it holds its lock, or leads a group of writers."""
    collects = False

    def clock() -> int:
        if collects:
            gc.collect()
        return 1_700_000_000_000_000

    with open_at(at, clock=clock, sweep_interval=None) as store:
        gc.disable()
        circle: dict[str, object] = {"file": store.files().open("/a", mode)}
        circle["file"].write(b"new;" * (1 << 20))  # type: ignore[attr-defined]  # a file object
        circle["circle"] = circle
        del circle
        collects = True
        store.put(("home",), "key", {})
        collects = False
        assert store.get(("home",), "key") is not None
        while mode == "ab" and (not store.files().exists("/a") or store.files().stat("/a").size < 4 << 20):
            time.sleep(0.01)  # closed in another thread
        assert store.files().exists("/a") == (mode == "ab")


@pytest.mark.usefixtures("late_closers")
def test_closing_a_store_waits_for_what_was_appended_to_a_file_that_was_not_closed(tmp_path: Path) -> None:
    with holdall.open(tmp_path / "agent.db") as store:
        store.files().open("/log", "ab").write(b"x")
    with holdall.open(tmp_path / "agent.db") as store:
        assert store.files().read("/log") == b"x"


def test_closing_a_store_does_not_wait_for_the_files_of_another(tmp_path: Path) -> None:
    may_write = threading.Event()
    may_write.set()

    def clock() -> int:
        may_write.wait(5)
        return 1_700_000_000_000_000

    with holdall.open("memory:", clock=clock) as slow:
        file = slow.files().open("/log", "ab")
        file.write(b"x")
        may_write.clear()
        del file
        with holdall.open(tmp_path / "agent.db") as store:
            store.put(("home",), "key", {})
        assert closers._awaited, "it waited, or there was nothing to wait for"
        may_write.set()
    assert not closers._awaited


@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_a_file_that_is_open_when_the_program_ends_is_flushed_or_discarded(mode: str, tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    processes.run(end_while_a_file_is_open, path=path, mode=mode)
    with holdall.open(path) as store:
        files = store.files()
        assert files.exists("/log") == (mode == "ab")
        assert mode == "wb" or files.read("/log") == b"1" * (2 << 20) + b"x"
        assert not count_uploads(files)


def end_while_a_file_is_open(path: str, mode: str) -> None:
    store = holdall.open(path)
    file = store.files().open("/log", mode)
    file.write(b"1" * (2 << 20))
    file.write(b"x")
    builtins.open_file = file  # type: ignore[attr-defined]  # as an interactive session keeps it


def count_uploads(files: Files) -> int:
    """Count the unfinished uploads of a volume."""
    uploads = Files(files.store, keys.Reserved(("uploads", *files.namespace)))
    return len(uploads.ls())


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_an_upload_whose_last_piece_fails_is_deleted_at_once(
    files: Files, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write() -> None:
        file = await files.aopen("/a", mode)
        await file.write(b"1" * (2 << 20))
        await file.write(b"2")
        assert count_uploads(files) == (mode == "wb")
        aexecute, failures = MemoryEngine.aexecute, iter([Unavailable("the disk is full")])

        async def fail_once(engine: MemoryEngine, batch: list[Op]) -> list[object]:
            for failure in failures:
                raise failure
            return await aexecute(engine, batch)

        monkeypatch.setattr(MemoryEngine, "aexecute", fail_once)
        with pytest.raises(Unavailable, match="the disk is full"):
            await file.close()

    asyncio.run(write())
    assert not count_uploads(files)
    assert files.exists("/a") == (mode == "ab")


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_upload_whose_path_is_taken_in_the_meantime_is_deleted_at_once(files: Files, how: str) -> None:
    async def write() -> None:
        file = await files.aopen("/a", "wb")
        await file.write(b"1")
        files.write("/a/b", "")
        await file.close()

    def write_sync() -> None:
        file = files.open("/a", "wb")
        file.write(b"1")
        files.write("/a/b", "")
        file.close()

    with pytest.raises(IsADirectory):
        write_sync() if how == "sync" else asyncio.run(write())
    assert not count_uploads(files)


@pytest.mark.parametrize("leave", ["collect", "exit", "close"])
@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_a_forked_child_neither_writes_nor_discards_what_its_parent_has_written(
    mode: str, leave: str, tmp_path: Path
) -> None:
    processes.run(fork_while_a_file_is_open, path=str(tmp_path / "agent.db"), mode=mode, leave=leave)


def fork_while_a_file_is_open(path: str, mode: str, leave: str) -> None:
    with holdall.open(path) as store:
        file = store.files().open("/a", mode)
        file.write(b"1" * (2 << 20))
        file.flush()
        file.write(b"2")  # in the buffer
        child = os.fork()
        if child == 0:
            if leave == "exit":
                file.__exit__(SystemExit, SystemExit(), None)
            elif leave == "close":
                with pytest.raises(InvalidInput, match="before a fork"):
                    file.close()
            del file
            gc.collect()
            closers.wait_for_closers()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        file.write(b"3")
        file.close()
        assert store.files().read("/a") == b"1" * (2 << 20) + b"23"


def test_a_detached_file_is_collected_without_an_error(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    file = files.open("/a", "wb")
    file.detach()
    del file
    gc.collect()
    assert not errors


def test_a_thread_that_cannot_start_leaves_nothing_to_wait_for(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    file = files.open("/a", "wb")
    monkeypatch.setattr(threading.Thread, "start", fail)
    del file
    gc.collect()
    assert not closers._awaited


@pytest.mark.parametrize(("mode", "lost"), [("ab", "the last 4 bytes are lost"), ("wb", "nothing of it is kept")])
def test_an_async_file_that_is_never_closed_warns_of_what_is_lost(files: Files, mode: str, lost: str) -> None:
    async def write_and_leave() -> None:
        file = await files.aopen("/a", mode)
        await file.write(b"more")

    files.write("/a", "text")
    with pytest.warns(ResourceWarning, match=f"'/a' was not closed, so {lost}"):
        asyncio.run(write_and_leave())
        gc.collect()
    assert files.read_text("/a") == "text"


def test_an_async_file_that_has_nothing_to_lose_does_not_warn(files: Files) -> None:
    async def use() -> None:
        for mode in ("wb", "ab"):
            async with await files.aopen("/a", mode) as file:
                await file.write(b"text")
        await (await files.aopen("/a")).read()

    with warnings.catch_warnings(record=True, action="always") as caught:
        asyncio.run(use())
        gc.collect()
    assert caught == []
