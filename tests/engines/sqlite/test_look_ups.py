"""Look-ups that SQLite answers in the event loop's own thread: when it does and when not, and whose turn is next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

import holdall
from holdall.engines.sqlite import engine as sqlite
from holdall.engines.sqlite.connection import BusyWait
from holdall.engines.sqlite.readers import ReaderPool

NS = ("home",)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[holdall.Store]:
    with holdall.open(tmp_path / "agent.db") as store:
        store.put(NS, "key", {"a": 1})
        store.files().write("/folder/file", b"abc")
        yield store


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads in which connections ask SQLite something."""
    found: list[int] = []
    execute = sqlite.Connection.execute

    def noted(self: Any, *args: Any) -> Any:
        found.append(threading.get_ident())
        return execute(self, *args)

    monkeypatch.setattr(sqlite.Connection, "execute", noted)
    return found


def in_its_own_thread(threads: list[int]) -> bool:
    """Whether all that was asked since the last time was asked here."""
    asked = set(threads)
    threads.clear()
    assert asked
    return asked == {threading.get_ident()}


LOOK_UPS: dict[str, Callable[[holdall.Store], Awaitable[object]]] = {
    "aget": lambda store: store.aget(NS, "key"),
    "aexists": lambda store: store.files().aexists("/folder"),
    "astat": lambda store: store.files().astat("/folder/file"),
}


@pytest.mark.parametrize("name", LOOK_UPS)
def test_a_look_up_needs_no_other_thread_once_there_is_a_connection(
    store: holdall.Store, threads: list[int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_SLOW", 60.0)

    async def look_up() -> None:
        first = await LOOK_UPS[name](store)
        assert not in_its_own_thread(threads)  # opening a file may take long
        assert await LOOK_UPS[name](store) == first
        assert in_its_own_thread(threads)

    asyncio.run(look_up())


def test_what_may_be_large_or_long_is_read_in_a_thread(
    store: holdall.Store, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_SLOW", 60.0)

    async def read() -> None:
        await store.aget(NS, "key")
        threads.clear()
        files = store.files()
        as_item = store.aget(("filesystem",), "/folder/file")  # with its content
        for call in (files.aread("/folder/file"), as_item, store.asearch(NS), store.aput(NS, "other", {})):
            await call
            assert not in_its_own_thread(threads)

    asyncio.run(read())


def test_after_two_slow_look_ups_the_next_ones_go_to_a_thread_for_a_while(
    store: holdall.Store, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_up() -> bool:
        assert (await store.aget(NS, "key")).value == {"a": 1}  # type: ignore[union-attr]  # it is there
        return in_its_own_thread(threads)

    async def look_up_often() -> list[bool]:
        await look_up()
        monkeypatch.setattr(sqlite, "_SLOW", -1.0)  # from now on each is slow
        monkeypatch.setattr(sqlite, "_WARY", 60.0)
        here = [await look_up(), await look_up(), await look_up()]
        engine: Any = store._engine_handle.engine
        engine._look_up_time.wary_until -= 60.0  # that while is over
        return [*here, await look_up(), await look_up()]

    monkeypatch.setattr(sqlite, "_SLOW", 60.0)
    assert asyncio.run(look_up_often()) == [True, True, False, True, False]


def test_to_open_the_file_is_no_slow_look_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or every program would hop for its first ten seconds."""
    now = 1000.0  # which passes where connections are made, and nowhere else
    connect = sqlite.SqliteEngine._connect

    def slowly(*args: Any) -> Any:
        nonlocal now
        now += 5
        return connect(*args)

    async def look_up_twice() -> None:
        await store.aget(NS, "key")
        monkeypatch.setattr(sqlite.SqliteEngine, "_spawn", None)  # from now on there is no other thread to go to
        await store.aget(NS, "key")

    monkeypatch.setattr(sqlite.SqliteEngine, "_connect", slowly)
    monkeypatch.setattr(sqlite, "time", SimpleNamespace(monotonic=lambda: now))
    store = holdall.open(tmp_path / "new.db", sweep_interval=None)
    asyncio.run(look_up_twice())
    assert now > 1000
    monkeypatch.undo()
    store.close()


def test_who_would_have_to_wait_for_another_process_does_so_in_a_thread(
    store: holdall.Store, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = sqlite.Connection.execute

    def busy_here(self: Any, *args: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            assert self.busy_wait(0) is False  # it does not sleep in the event loop
            raise apsw.BusyError("BusyError: database is locked")
        assert self.busy_wait.deadline is None
        return execute(self, *args)

    async def look_up() -> None:
        await store.aget(NS, "key")
        monkeypatch.setattr(sqlite.Connection, "execute", busy_here)
        entry = await store.aget(NS, "key")
        assert entry is not None
        assert entry.value == {"a": 1}

    asyncio.run(look_up())


def test_others_have_their_turn_between_look_ups(store: holdall.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_SLOW", 60.0)

    async def ask_often(others: list[int]) -> list[int]:
        found = []
        for _ in range(50):
            await store.aget(NS, "key")
            found.append(len(others))
        return found

    async def both() -> list[int]:
        turns: list[int] = []

        async def take_turns() -> None:
            while True:
                turns.append(1)
                await asyncio.sleep(0)

        await store.aget(NS, "key")
        task = asyncio.create_task(take_turns())
        try:
            return await ask_often(turns)
        finally:
            task.cancel()

    seen = asyncio.run(both())
    assert seen == sorted(set(seen))  # at least one of the other's between any two


def test_no_connection_is_taken_while_a_fork_waits_for_all_to_be_closed() -> None:
    made: list[Any] = []

    class Reader:
        in_transaction = False
        busy_wait = BusyWait(1)

        def close(self) -> None:
            made.append(self)

    readers = ReaderPool(Reader)
    assert readers.take_idle() is None
    readers.give_back(readers.take())
    reader = readers.take_idle()
    assert reader is not None
    pausing = threading.Thread(target=readers.pause)
    pausing.start()
    while readers._running.is_set():
        pass
    readers.give_back(reader)
    assert readers.take_idle() is None
    pausing.join()
    assert made == [reader]
    readers.resume()
