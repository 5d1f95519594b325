"""Large folders, moved in slices: interrupted and called again, by several callers, while others write."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.errors import FileNotFound, IsADirectory, LeaseLost
from holdall.files import large_moves
from holdall.ops import Put
from support.stores import new_location, open_at

HOME = ("filesystem",)
NAMES = [f"{n % 3}/{n:02}" for n in range(60)]


@pytest.fixture(params=["sqlite", "postgres", "redis", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[holdall.Store]:
    for name, value in {"LARGE_FOLDER": 20, "_SMALLEST_SLICE": 3, "_LARGEST_SLICE": 5}.items():
        monkeypatch.setattr(large_moves, name, value)
    with open_at(new_location(request.param, tmp_path), durability="relaxed") as opened:
        yield opened


def write_folder(store: holdall.Store, folder: str = "/d") -> None:
    store.execute([Put(HOME, f"{folder}/{name}", {"content": name}) for name in NAMES])


def read_folder(store: holdall.Store, folder: str) -> dict[str, str]:
    """Return the contents of the files of a folder, by their names in it."""
    volume = store.files()
    return {info.path.removeprefix(folder + "/"): volume.read_text(info.path) for info in volume.walk(folder)}


class Interrupted(Exception):
    """What stops a move."""


def call_between_slices(monkeypatch: pytest.MonkeyPatch, function: Callable[[int], object]) -> None:
    """Call a function after each slice, with the number of slices so far."""
    sizes, slices = large_moves._next_size, []

    def next_size(size: int, seconds: float) -> int:
        slices.append(size)
        function(len(slices))
        return sizes(size, seconds)

    monkeypatch.setattr(large_moves, "_next_size", next_size)


def interrupt_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    def interrupt(number: int) -> None:
        if number == count:
            raise Interrupted

    call_between_slices(monkeypatch, interrupt)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_move_that_was_interrupted_goes_on_when_it_is_called_again(
    store: holdall.Store, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    volume = store.files()

    def move(src: str, dst: str) -> holdall.FileInfo:
        return asyncio.run(volume.amove(src, dst)) if is_async else volume.move(src, dst)

    write_folder(store)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt_after(patch, 3)
        move("/d", "/e")
    here, there = read_folder(store, "/d"), read_folder(store, "/e")
    assert here and there
    assert not here.keys() & there.keys()
    assert here | there == {name: name for name in NAMES}
    assert store.count() == len(NAMES)
    with pytest.raises(IsADirectory):  # another move is not the same one
        move("/e", "/d")
    assert move("/d", "/e") == holdall.FileInfo("/e/", is_dir=True)
    assert read_folder(store, "/e") == {name: name for name in NAMES}
    assert read_folder(store, "/d") == {}
    with pytest.raises(FileNotFound):
        move("/d", "/e")
    write_folder(store)
    with pytest.raises(IsADirectory):
        move("/d", "/e")


def test_a_move_that_was_interrupted_at_its_end_is_ended(store: holdall.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(store)

    def interrupt(_: int) -> None:
        if not store.files().exists("/d"):
            raise Interrupted

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        call_between_slices(patch, interrupt)
        store.files().move("/d", "/e")
    assert store.files().move("/d", "/e").path == "/e/"
    with pytest.raises(FileNotFound):
        store.files().move("/d", "/e")


def test_what_others_write_meanwhile_is_kept(store: holdall.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(store)
    volume, last = store.files(), NAMES[-1]

    def write(number: int) -> None:
        if number == 2:
            volume.write(f"/e/{last}", "another file")
            volume.write("/d/0/-", "before those that were moved")
            volume.write("/d/2/new", "after those that were moved")
            volume.append("/d/2/02", ", and more")
            volume.delete("/d/2/05")

    call_between_slices(monkeypatch, write)
    volume.move("/d", "/e")
    moved = {name: name for name in NAMES} | {"2/new": "after those that were moved", last: "another file"}
    moved["2/02"] += ", and more"
    del moved["2/05"]
    assert read_folder(store, "/e") == moved
    assert read_folder(store, "/d") == {"0/-": "before those that were moved", last: last}


def test_several_callers_of_one_move_end_it_once(store: holdall.Store, scaled: Callable[[int, int], int]) -> None:
    with ThreadPoolExecutor(4) as threads:
        for number in range(scaled(4, 40)):
            write_folder(store, f"/d{number}")
            cursor = store.cursor()

            def move(number: int = number) -> str:
                try:
                    return store.files().move(f"/d{number}", f"/e{number}").path
                except (FileNotFound, IsADirectory):  # the others have ended it, before this call or in its middle
                    return "late"

            outcomes = {call.result(60) for call in [threads.submit(move) for _ in range(4)]}
            assert f"/e{number}/" in outcomes
            assert read_folder(store, f"/e{number}") == {name: name for name in NAMES}
            assert read_folder(store, f"/d{number}") == {}
            with store.watch(HOME, since=cursor) as watch:
                changes = [next(watch) for _ in range(2 * len(NAMES))]
            assert len({(change.kind, change.key) for change in changes}) == 2 * len(NAMES)
            with pytest.raises(FileNotFound):
                store.files().move(f"/d{number}", f"/e{number}")


def test_a_caller_that_comes_after_the_end_of_its_move_moves_nothing(
    store: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another caller ends the move, and the folder is written again."""
    write_folder(store)
    volume = store.files()

    def end_it(number: int) -> None:
        if number == 2:
            volume.move("/d", "/e")
            volume.move("/e", "/f")
            write_folder(store)

    call_between_slices(monkeypatch, end_it)
    volume.move("/d", "/e")
    assert read_folder(store, "/d") == read_folder(store, "/f") == {name: name for name in NAMES}
    assert not volume.exists("/e")
    assert volume.move("/d", "/e").path == "/e/"


def test_a_lease_that_is_lost_stops_a_move(store: holdall.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(store)
    lease = store.lease("mover", 60)
    lease.acquire()
    with monkeypatch.context() as patch, pytest.raises(LeaseLost):
        call_between_slices(patch, lambda number: lease.release() if number == 2 else None)
        store.files().move("/d", "/e", lease=lease)
    assert len(read_folder(store, "/d")) + len(read_folder(store, "/e")) == len(NAMES)
    assert read_folder(store, "/d")
    store.files().move("/d", "/e")
    assert read_folder(store, "/e") == {name: name for name in NAMES}


def test_a_scope_continues_only_its_own_move(store: holdall.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = store.scoped(("users", "a")), store.scoped(("users", "b"))
    for scope in (ours, theirs):
        write_folder(scope)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt_after(patch, 2)
        ours.files().move("/d", "/e")
    theirs.files().write("/e/x", "x")
    with pytest.raises(IsADirectory):
        theirs.files().move("/d", "/e")
    ours.files().move("/d", "/e")
    assert read_folder(ours, "/e") == read_folder(theirs, "/d") == {name: name for name in NAMES}


@pytest.mark.timed
@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis"])
def test_no_writer_waits_long_while_a_large_folder_is_moved(
    engine: str, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    count = scaled(6_000, 100_000)
    waits: list[float] = []
    with open_at(new_location(engine, tmp_path)) as store:
        for begin in range(0, count, 1000):
            store.execute([Put(HOME, f"/d/{n % 77}/{n}", {"content": str(n)}) for n in range(begin, begin + 1000)])
        is_over = threading.Event()

        def write() -> None:
            while not is_over.wait(0.001):
                began = time.monotonic()
                store.put(("filesystem", "other"), "k", {})
                waits.append(time.monotonic() - began)

        writer = threading.Thread(target=write)
        writer.start()
        store.files().move("/d", "/e")
        is_over.set()
        writer.join()
        assert sum(1 for _ in store.files().walk("/e")) == count
        assert not store.files().exists("/d")
    # In one transaction or one script, it would be a second or more. A loaded machine may delay any thread.
    assert max(waits) < 0.4


def assert_each_file_is_at_one_path(found: list[Any]) -> None:
    names = [entry.key.split("/", 2)[2] for entry in found]
    assert sorted(names) == sorted(NAMES)


def test_a_reader_finds_each_file_at_one_of_its_paths(store: holdall.Store, scaled: Callable[[int, int], int]) -> None:
    """A page of `scan` is one snapshot, and its limit is above the number of files."""
    write_folder(store)
    is_over, seen = threading.Event(), set[int]()

    def read() -> int:
        reads = 0
        while not is_over.is_set():
            found = list(store.scan(HOME))
            assert_each_file_is_at_one_path(found)
            seen.add(sum(entry.key.startswith("/d/") for entry in found))
            assert store.count(HOME) == len(NAMES)
            reads += 1
        return reads

    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(read) for _ in range(2)]
        try:
            for _ in range(scaled(5, 50)):
                store.files().move("/d", "/e")
                store.files().move("/e", "/d")
        finally:
            is_over.set()
        assert all(reader.result(60) for reader in readers)
    assert len(seen) > 2, "no reader came in the middle of a move: this showed nothing"
