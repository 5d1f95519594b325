"""A process that forks while its threads and tasks use a store; the children go on with the store they inherited."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdall
from holdall.ops import Put
from holdall.testing.embedder import embed
from support.checksums import check, sealed
from support.processes import report, run
from support.resources import find_leaks, new_counted_location, resources
from support.servers import redis_url
from support.stores import open_at


@pytest.mark.parametrize("first_to_close", ["parent", "child"])
@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
def test_children_write_through_the_store_they_inherited(
    tmp_path: Path, scaled: Callable[[int, int], int], how: str, first_to_close: str
) -> None:
    path = str(tmp_path / "agent.db")
    children = scaled(5, 40)
    reported = run(
        fork_while_writing, deadline=60, path=path, how=how, first_to_close=first_to_close, children=children
    )
    check_reported(path, reported, [f"child{i}" for i in range(children)])


def check_reported(path: str, reported: list[Any], children: list[str]) -> None:
    """Everything acknowledged is there, and everybody did write."""
    last = dict(reported)
    assert last.keys() == {"thread0", "thread1", "task0", "task1", *children}
    with holdall.open(path) as store:
        for name, step in last.items():
            steps = sorted(check(entry.value)["step"] for entry in store.scan((name,)))
            assert steps == list(range(1, step + 1)), f"{name} put {step}, {len(steps)} are there"


def fork_while_writing(path: str, how: str, first_to_close: str, children: int) -> None:
    store = holdall.open(path)
    release = multiprocessing.get_context("fork").Event()

    def in_child(number: int) -> None:
        write(store, f"child{number}", 10)
        if first_to_close == "parent":
            assert release.wait(60)
        write(store, f"child{number}", 10, begin=11)
        asyncio.run(awrite(store, f"child{number}", 10, begin=21))
        if number % 2:  # the others just end
            store.close()

    with writing_meanwhile(store):
        waits = [fork(in_child, how, number) for number in range(children)]
        if first_to_close == "child":
            for wait in waits:
                wait()
    store.close()
    release.set()
    if first_to_close == "parent":
        for wait in waits:
            wait()


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis", "disk"])
def test_forking_in_quick_succession_while_threads_read_and_write(
    tmp_path: Path, scaled: Callable[[int, int], int], engine: str
) -> None:
    """Each fork may close the parent's connections, so at the next one its threads are busy opening new ones."""
    forks = scaled(20, 400)
    at = new_counted_location(engine, tmp_path) | {"durability": "relaxed"}
    *children, (leaked, written) = run(fork_amid_threads, deadline=60 + forks, engine=engine, at=at, forks=forks)
    assert sorted(children) == list(range(forks))
    assert not leaked
    with open_at(at) as store:
        assert {check(entry.value)["step"] for entry in store.scan(("children",))} == set(range(forks))
        for name, steps in written.items():
            found = sorted(check(entry.value)["step"] for entry in store.scan((name,)))
            assert found == list(range(1, steps + 1)), f"{name} put {steps}, {len(found)} are there"


def fork_amid_threads(engine: str, at: dict[str, str], forks: int) -> None:
    before = resources(engine, at)
    store = open_at(at)
    store.put(("home",), "key", sealed(step=0))
    stop = threading.Event()
    written: dict[str, int] = {}

    def read() -> None:
        while not stop.is_set():
            check(store.get(("home",), "key").value)
            assert store.count(("home",)) == 1

    def write_on(name: str) -> None:
        while not stop.is_set():
            step = written.get(name, 0) + 1
            store.put((name,), str(step), sealed(step=step))
            written[name] = step

    def in_child(number: int) -> None:
        check(store.get(("home",), "key").value)
        store.put(("children",), str(number), sealed(step=number))
        report(store.get(("children",), str(number)).value["step"])

    with ThreadPoolExecutor() as pool:
        threads = [pool.submit(read) for _ in range(4)] + [pool.submit(write_on, f"thread{i}") for i in range(2)]
        waits: deque[Callable[[], None]] = deque()
        try:
            for number in range(forks):
                waits.append(fork(in_child, "os.fork", number))
                if len(waits) == 8:
                    waits.popleft()()
            for wait in waits:
                wait()
        finally:
            stop.set()
        for thread in threads:
            thread.result()
    store.close()
    report([find_leaks(engine, at, before), written])


def test_a_fork_waits_for_the_batch_that_is_under_way(tmp_path: Path) -> None:
    """However short the timeout is: that is for other processes. A child must never inherit half a transaction."""
    path = str(tmp_path / "agent.db")
    reported = run(fork_while_a_long_batch_runs, deadline=60, path=path)
    assert sorted(reported) == ["batch done"] * 3 + ["child done"] * 3
    with holdall.open(path) as store:
        assert store.count(("batch",)) == 3 * 5000
        assert store.count(("child",)) == 3
    assert apsw.Connection(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def fork_while_a_long_batch_runs(path: str) -> None:
    store = holdall.open(path, timeout=0.02, clock=Noticed())
    store.setup()

    def in_child(number: int) -> None:
        while True:
            try:
                store.put(("child",), str(number), sealed(step=number))
                break
            except holdall.errors.Timeout:  # the parent's next batch may take longer than we care to wait
                continue
        report("child done")

    for number in range(3):
        batch = [Put(("batch",), f"{number}.{i}", sealed(step=i)) for i in range(5000)]
        Noticed.happened.clear()
        thread = threading.Thread(target=lambda batch=batch: (store.execute(batch), report("batch done")))
        thread.start()
        assert Noticed.happened.wait(60)  # the batch has begun
        fork(in_child, "os.fork", number)()
        thread.join()
    store.close()


class Noticed:
    """A clock that shows when somebody looks at it."""

    happened = threading.Event()

    def __call__(self) -> int:
        self.happened.set()
        return time.time_ns() // 1000


def test_forking_after_closing_does_not_wait(tmp_path: Path) -> None:
    [seconds] = run(fork_after_closing, deadline=60, path=str(tmp_path / "agent.db"))
    assert seconds < 5


def fork_after_closing(path: str) -> None:
    store = holdall.open(path)
    store.put(("home",), "key", {})
    store.get(("home",), "key")
    store.close()
    began = time.monotonic()
    fork(lambda number: None, "os.fork", 0)()
    report(time.monotonic() - began)


def test_forking_while_a_store_is_being_opened_leaves_the_folder_unlocked(tmp_path: Path) -> None:
    """A child that inherited the lock on the folder would keep everybody else out for as long as it lives."""
    (tmp_path / "agent.db").touch()
    [seconds] = run(fork_while_opening, deadline=60, path=str(tmp_path / "agent.db"))
    assert seconds < 5


def fork_while_opening(path: str) -> None:
    busy = apsw.Connection(path)
    busy.pragma("journal_mode", "wal")
    busy.execute("BEGIN IMMEDIATE")  # opening has to wait for this before it can create its tables
    store = holdall.open(path)
    opening = threading.Thread(target=store.setup)
    opening.start()
    while not is_locked(Path(path).parent):
        time.sleep(0.001)
    threading.Timer(0.2, busy.execute, ["ROLLBACK"]).start()  # whether it forks before or after, it must not hang
    ended = multiprocessing.get_context("fork").Event()
    wait = fork(lambda number: ended.wait(50), "os.fork", 0)
    opening.join()
    began = time.monotonic()
    with holdall.open(path, timeout=10.0) as other:  # other options: it opens the file again
        other.put(("home",), "key", {})
    report(time.monotonic() - began)
    ended.set()
    wait()
    store.close()


def is_locked(folder: Path) -> bool:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def test_a_child_has_its_own_copy_of_a_store_in_memory(scaled: Callable[[int, int], int]) -> None:
    children = scaled(40, 400)
    reported = run(fork_with_memory, deadline=60 + children, children=children)
    assert sorted(reported) == list(range(children))


def fork_with_memory(children: int) -> None:
    sys.setswitchinterval(1e-5)  # so that threads are often interrupted in the middle of a batch
    store = holdall.open("memory:shared")
    store.put(("before",), "key", sealed(step=0))
    stop = threading.Event()
    keys = [str(i) for i in range(20)]

    def write_and_read() -> None:
        for step in itertools.count():
            store.execute([Put(("parent",), key, sealed(step=step)) for key in keys])
            assert store.get(("parent",), keys[0]) is not None
            if stop.is_set():
                break

    def in_child(number: int) -> None:
        check(store.get(("before",), "key").value)
        batch = [check(entry.value)["step"] for entry in store.scan(("parent",))]
        assert len(set(batch)) <= 1 and len(batch) in (0, len(keys)), f"half a batch: {batch}"
        inherited = store.count()
        asyncio.run(store.aput(("child",), "key", sealed(step=number)))
        thread = threading.Thread(target=store.put, args=(("child",), "from a thread", sealed(step=number)))
        thread.start()
        thread.join()
        assert store.count() == inherited + 2 == len(store.search(limit=1000))
        report(number)

    threads = [threading.Thread(target=write_and_read) for _ in range(3)]
    threads.append(threading.Thread(target=asyncio.run, args=(as_task(write_and_read),)))
    for thread in threads:
        thread.start()
    for wait in [fork(in_child, "os.fork", number) for number in range(children)]:
        wait()
    stop.set()
    for thread in threads:
        thread.join()
    assert store.count(("child",)) == 0
    store.close()


async def as_task(function: Callable[[], None]) -> None:
    function()


def fork(function: Callable[[int], None], how: str, number: int) -> Callable[[], None]:
    """Run a function in a forked child; what to call to wait for its good end."""
    if how == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=function, args=(number,))
        child.start()

        def wait() -> None:
            child.join()
            assert child.exitcode == 0

        return wait
    pid = os.fork()
    if not pid:
        try:
            function(number)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def wait_for_pid() -> None:
        assert os.waitpid(pid, 0)[1] == 0

    return wait_for_pid


@contextmanager
def writing_meanwhile(store: holdall.Store) -> Iterator[None]:
    """Two threads and a loop with two tasks that write, each telling its step, until the end of the block."""
    stop = threading.Event()

    async def tasks() -> None:
        await asyncio.gather(*(awrite(store, f"task{i}", None, stop=stop) for i in range(2)))

    threads = [threading.Thread(target=write, args=(store, f"thread{i}", None, 1, stop)) for i in range(2)]
    threads.append(threading.Thread(target=asyncio.run, args=(tasks(),)))
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


def write(
    store: holdall.Store, name: str, count: int | None, begin: int = 1, stop: threading.Event | None = None
) -> None:
    for step in itertools.count(begin) if count is None else range(begin, begin + count):
        store.put((name,), str(step), sealed(step=step))
        report([name, step])
        assert store.get((name,), str(step)) is not None
        if stop is not None and stop.is_set():
            break


async def awrite(
    store: holdall.Store, name: str, count: int | None, begin: int = 1, stop: threading.Event | None = None
) -> None:
    for step in itertools.count(begin) if count is None else range(begin, begin + count):
        await store.aput((name,), str(step), sealed(step=step))
        report([name, step])
        assert await store.aget((name,), str(step)) is not None
        if stop is not None and stop.is_set():
            break


def test_a_child_that_is_forked_while_a_thread_takes_in_vectors_searches_with_its_own() -> None:
    """The lock that the thread holds is held in the child for ever."""
    assert run(fork_while_vectors_come, deadline=60, url=redis_url()) == ["found"]


def fork_while_vectors_come(url: str) -> None:
    from holdall.engines.redis.search.ranker import _Vectors

    def in_child(_: int) -> None:
        signal.alarm(20)
        store.put(("n",), "other", {"text": "green tea"})
        assert len(store.search(query="tea", mode="semantic")) == 2
        report("found")

    with holdall.open(url, embed=embed, sweep_interval=None, key_prefix="forked") as store:
        store.put(("n",), "k", {"text": "tea"})
        assert store.search(query="tea", mode="semantic")
        [vectors] = [one for one in gc.get_objects() if isinstance(one, _Vectors)]
        with vectors._lock:
            wait = fork(in_child, "os.fork", 0)
        wait()
