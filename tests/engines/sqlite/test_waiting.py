"""Who waits for whom: writers for another process, for as long as `timeout` says and no longer; readers for nobody."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdall
from holdall.errors import Timeout, Unavailable
from holdall.ops import Get, Put
from support.processes import Process, receive, report, start

pytestmark = pytest.mark.timed

AT_ONCE = 5.0  # seconds in which an answer must come that waits for nobody, however busy the machine


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "agent.db")
    with holdall.open(path) as store:
        store.execute([Put(("home",), str(i), {"n": i}) for i in range(10)])
    return path


@contextmanager
def written_by_another_process(path: str) -> Iterator[Process]:
    """Another process is in the middle of writing: it holds the lock, and has changed everything."""
    process = start(write_without_committing, path=path)
    assert process.receive() == "writing"
    yield process
    process.send("roll back")
    assert process.finish() == ["rolled back"]


def write_without_committing(path: str) -> None:
    connection = apsw.Connection(path)
    connection.pragma("cache_size", 10)  # small, so that what is uncommitted is in the file already
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE holdall_entries SET value = '{\"n\": -1}'")
    connection.execute("CREATE TABLE filler (x)")
    for _ in range(100):
        connection.execute("INSERT INTO filler VALUES (randomblob(4000))")
    report("writing")
    receive()
    connection.execute("ROLLBACK")
    report("rolled back")


def seconds_of(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.monotonic()
    result = function()
    return time.monotonic() - began, result


def test_every_waiting_writer_gets_an_error_within_about_the_timeout(path: str) -> None:
    """Also those that came while others waited: not after them, and not after a multiple of the timeout."""
    timeout = 1.0
    store = holdall.open(path, timeout=timeout)
    store.setup()
    waits: list[float] = []

    def put() -> None:
        with pytest.raises(Timeout, match="busy"):
            store.put(("home",), "key", {})

    async def aput() -> None:
        began = time.monotonic()
        with pytest.raises(Timeout, match="busy"):
            await store.aput(("home",), "key", {})
        waits.append(time.monotonic() - began)

    async def aput_several(delay: float) -> None:
        await asyncio.sleep(delay)
        await asyncio.gather(*(aput() for _ in range(4)))

    def put_after(delay: float) -> None:
        time.sleep(delay)
        waits.append(seconds_of(put)[0])

    delays = [timeout * i / 10 for i in range(10)]
    with written_by_another_process(path):
        threads = [threading.Thread(target=put_after, args=(delay,)) for delay in delays]
        threads += [threading.Thread(target=asyncio.run, args=(aput_several(delay),)) for delay in delays[::3]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(waits) == len(delays) + 4 * len(delays[::3])
    assert min(waits) >= timeout * 0.9
    assert max(waits) < timeout * 1.7
    assert store.put(("home",), "key", {}).version > 10, "it works again, once the other process is done"
    store.close()


def test_opening_ends_within_about_the_timeout_too(tmp_path: Path) -> None:
    path = str(tmp_path / "new.db")
    connection = apsw.Connection(path)
    connection.pragma("journal_mode", "wal")
    connection.execute("BEGIN IMMEDIATE")
    store = holdall.open(path, timeout=0.5)
    for begin in (store.setup, lambda: store.get(("home",), "key"), lambda: store.put(("home",), "key", {})):
        began = time.monotonic()
        with pytest.raises(Timeout):
            begin()
        assert 0.4 <= time.monotonic() - began < 1.2
    connection.execute("ROLLBACK")
    connection.close()
    assert store.get(("home",), "key") is None, "it works, once the other is done"
    store.close()


def test_a_writer_waits_the_other_process_out(path: str) -> None:
    store = holdall.open(path, timeout=60)
    with written_by_another_process(path) as other:
        entries: list[Any] = []
        threads = [
            threading.Thread(target=lambda: entries.append(store.put(("home",), "key", {}))),
            threading.Thread(target=lambda: entries.append(asyncio.run(store.aput(("home",), "other", {})))),
        ]
        for thread in threads:
            thread.start()
        threads[0].join(0.2)
        assert not entries
        other.send("roll back")
        for thread in threads:
            thread.join()
        assert sorted(entry.key for entry in entries) == ["key", "other"]
    store.close()


READS: dict[str, Callable[[holdall.Store], Any]] = {
    "get": lambda store: store.get(("home",), "3").value["n"] == 3,
    "execute": lambda store: (
        [e.value["n"] for e in store.execute([Get(("home",), "1"), Get(("home",), "2")])] == [1, 2]
    ),
    "search": lambda store: [hit.value["n"] for hit in store.search(("home",), filter={"n": {"$gte": 8}})] == [9, 8],
    "scan": lambda store: len(list(store.scan())) == 10,
    "count": lambda store: store.count(filter={"n": {"$lt": 5}}) == 5,
    "namespaces": lambda store: store.namespaces() == [("home",)],
    "aget": lambda store: asyncio.run(store.aget(("home",), "3")).value["n"] == 3,
    "asearch": lambda store: len(asyncio.run(store.asearch(("home",)))) == 10,
    "acount": lambda store: asyncio.run(store.acount()) == 10,
}


def test_a_process_that_writes_without_a_pause_lets_others_in(path: str) -> None:
    """It frees the lock for moments only; who looks now and then would get it by chance, once in some five times."""
    with holdall.open(path) as store:
        hog = start(write_without_a_pause, path=path)
        assert hog.receive() == "writing"
        mine = []
        for i in range(30):
            time.sleep(0.005)  # until they write again
            mine.append(store.put(("mine",), str(i), {}).version)
        hog.send("stop")
        hog.finish()
    between = mine[-1] - mine[0] - (len(mine) - 1)
    assert between >= len(mine) / 2, "the other process has not written much, so this showed nothing"
    assert between < 2.5 * len(mine), f"{between} of their writes for {len(mine)} of ours"


def write_without_a_pause(path: str) -> None:
    def slow_clock() -> int:
        time.sleep(0.02)  # in the middle of the transaction, as if the disk were slow
        return time.time_ns() // 1000

    stop = threading.Event()
    threading.Thread(target=lambda: (receive(), stop.set())).start()
    with holdall.open(path, clock=slow_clock) as store:
        store.put(("theirs",), "key", {})
        report("writing")
        while not stop.is_set():
            store.put(("theirs",), "key", {})


def test_a_process_that_was_stopped_while_it_waited_holds_nobody_up(path: str) -> None:
    import fcntl

    with holdall.open(path) as store, Path(f"{path}-wal").open("rb") as log:
        store.put(("home",), "key", {})
        fcntl.flock(log, fcntl.LOCK_SH)  # as one that waits does
        began = time.monotonic()
        for _ in range(40):
            time.sleep(0.011)
            store.put(("home",), "key", {})
        assert time.monotonic() - began < 40 * 0.1 / 2


def test_standing_back_takes_a_part_of_the_timeout_only(path: str) -> None:
    import fcntl

    waits = []
    for _ in range(5):  # of which a busy machine may disturb some
        with holdall.open(path, timeout=0.04) as store, Path(f"{path}-wal").open("rb") as log:
            store.put(("home",), "key", {})
            time.sleep(0.02)
            fcntl.flock(log, fcntl.LOCK_SH)  # as one that waits does
            waits.append(seconds_of(lambda store=store: store.put(("home",), "key", {}))[0])
    assert 0.01 <= min(waits) < 0.1


@pytest.mark.parametrize("opened", ["before", "meanwhile"])
def test_readers_do_not_wait_for_another_process_that_writes(path: str, opened: str) -> None:
    """They see what was there before it began. And opening a file is reading, if it needs no change."""
    store = holdall.open(path, timeout=60)
    if opened == "before":
        store.setup()
    with written_by_another_process(path):
        for name, read in READS.items():
            seconds, right = seconds_of(lambda read=read: read(store))
            assert right, name
            assert seconds < AT_ONCE, name
    store.close()


def test_readers_do_not_wait_for_writers_of_the_same_store(path: str) -> None:
    store = holdall.open(path, timeout=60)
    store.setup()
    with written_by_another_process(path):
        writers = [threading.Thread(target=store.put, args=(("home",), "3", {"n": 3})) for _ in range(5)]
        tasks = threading.Thread(target=lambda: asyncio.run(store.aput(("home",), "3", {"n": 3})))
        for thread in (*writers, tasks):
            thread.start()
        for name, read in READS.items():
            seconds, right = seconds_of(lambda read=read: read(store))
            assert right, name
            assert seconds < AT_ONCE, name
        assert all(thread.is_alive() for thread in (*writers, tasks)), "they do wait, for the other process"
    for thread in (*writers, tasks):
        thread.join()
    store.close()


def test_async_writers_do_not_wait_for_long_searches(path: str) -> None:
    """However many searches take long, others can write and read."""
    clock = Held()
    store = holdall.open(path, clock=clock)
    store.setup()

    async def main() -> None:
        clock.holds = True
        searches = [asyncio.create_task(store.asearch(("home",))) for _ in range(12)]
        waiting = 0
        while not clock.waiting or clock.waiting > waiting:  # as many as run at once
            waiting = clock.waiting
            await asyncio.sleep(0.1)
        clock.holds = False
        seconds, _ = await aseconds_of(store.aput(("home",), "key", {}))
        assert seconds < AT_ONCE
        seconds, _ = await aseconds_of(store.aget(("home",), "key"))
        assert seconds < AT_ONCE
        assert not any(search.done() for search in searches)
        clock.released.set()
        assert all(await asyncio.gather(*searches))

    try:
        asyncio.run(main())
    finally:
        clock.released.set()
        store.close()


class Held:
    """A clock that keeps those waiting who ask while it holds. Searches ask in mid-transaction."""

    def __init__(self) -> None:
        self.holds = False
        self.waiting = 0
        self.released = threading.Event()

    def __call__(self) -> int:
        if self.holds:
            self.waiting += 1
            self.released.wait(60)
        return time.time_ns() // 1000


async def aseconds_of(awaited: Awaitable[Any]) -> tuple[float, Any]:
    began = time.monotonic()
    result = await asyncio.wait_for(awaited, 30)
    return time.monotonic() - began, result


def test_a_file_whose_last_piece_could_not_be_written_does_not_appear(path: str) -> None:
    with holdall.open(path, timeout=0.5) as store:
        files = store.files()
        files.write("/a", b"old")
        file = files.open("/a", "wb")
        file.write(b"new" * 1_000_000)
        file.write(b"the rest")
        other = start(write_without_committing, path=path)
        assert other.receive() == "writing"
        # Its lock is gone by the time that the upload would be moved to its path.
        threading.Timer(0.75, other.send, ["roll back"]).start()
        with pytest.raises(Unavailable):
            file.close()
        assert other.finish() == ["rolled back"]
        assert files.read("/a") == b"old"


def test_a_lease_that_comes_after_its_acquirer_was_cancelled_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled in the middle of the commit, and again while it gives back: the commit goes on all the same."""
    began, go = threading.Event(), threading.Event()

    async def main() -> None:
        async with holdall.open(tmp_path / "store.db") as store:
            engine: Any = store._engine_handle.engine
            transact = engine._transact

            def slowly(members: Any) -> None:
                began.set()
                assert go.wait(20)
                transact(members)

            monkeypatch.setattr(engine, "_transact", slowly)
            task = asyncio.ensure_future(store.alease("name", 600).__aenter__())
            assert await asyncio.to_thread(began.wait, 20)
            for _ in range(2):
                task.cancel()
                for _ in range(5):
                    await asyncio.sleep(0)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with store.alease("name", 600, wait=20):
                pass

    asyncio.run(main())
