"""Watching: how long a change takes to reach a callback, here and in another process, and what waiting for one costs.

Each contender watches a store of 100,000 files in a process of its own. First nothing changes, and its processor time
is measured; then this process writes, and both say when: from before the write to the beginning of the callback, by the
machine's clock. AG2's `SqliteKnowledgeStore` looks every half second, as it does by default.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ag2.knowledge import SqliteKnowledgeStore

import holdall

from .data import files
from .harness import OURS, Bench, Row, at_least, within
from .postgres import new_server
from .volumes import AG2, HERE, Ag2, Ours

MANY = 100_000
WATCHED = "while watched"
_CHANGES, _PAUSE = 300, 0.02
_IDLE = 10.0
_numbers = itertools.count()


def run(bench: Bench) -> None:
    _beside_ag2(bench)
    with new_server(bench) as urls:
        _on_postgres(bench, next(urls), next(urls))
    bench.note("the limits are targets of our own; 10 ms of processor time a second are 1 % of a core")


def _beside_ag2(bench: Bench) -> None:
    texts = files(MANY)
    ours, theirs = Ours(str(bench.folder / "ours.db")), Ag2(bench.folder / "ag2.db")
    bench.progress("loading")
    ours.load(texts)
    theirs.load(texts)
    ours.close()
    theirs.close()
    contenders: dict[str, tuple[Callable[..., None], Callable[[str], Callable[[str], object]], str]] = {
        OURS: (_watch, _writer, str(bench.folder / "ours.db")),
        AG2: (_watch_ag2, _ag2_writer, str(bench.folder / "ag2.db")),
    }
    idle: dict[str, list[float]] = {}
    across: dict[str, list[float]] = {}
    inside: dict[str, list[float]] = {}
    for name, (watch, writer, path) in contenders.items():
        bench.progress(f"{name}: watching")
        with _watching(watch, path) as watcher:
            idle[name] = [watcher.idle(_IDLE)]
            across[name] = watcher.latencies(writer(path))
            inside[name] = watcher.latencies_inside()
    bench.rows += [
        _limited("another process's write, until the callback", across, 0.010, "under 10 ms"),
        _limited(
            "another process's write, until the callback, 99th percentile",
            {name: [_percentile(latencies)] for name, latencies in across.items()},
            0.050,
            "under 50 ms",
        ),
        Row("a write of the same process, until the callback", inside, at_least(10, AG2), [], as_rate=False),
        _limited("processor time for a second of waiting", idle, 0.010, "under 1 % of a core"),
    ]


def _on_postgres(bench: Bench, url: str, other: str) -> None:
    bench.progress("PostgreSQL")
    with _watching(_watch, url) as watcher:
        idle = watcher.idle(_IDLE)
        across = watcher.latencies(_writer(url))
        what = "another process's write, until the callback, PostgreSQL"
        bench.rows.append(_limited(what, {OURS: across}, 0.010, "under 10 ms"))
        percentile, percent = _percentile(across) * 1e3, idle * 100
        bench.note(f"PostgreSQL: 99th percentile {percentile:.1f} ms, waiting takes {percent:.2f} % of a core")
        with holdall.open(other) as quiet, holdall.open(url) as watched:
            runs = {OURS: _puts(quiet), WATCHED: _puts(watched)}
            bench.measure("put on PostgreSQL, while nobody watches", runs, rounds=10, ops=300, durable=True)


def _puts(store: holdall.Store) -> Callable[[], object]:
    def run() -> None:
        for _ in range(300):
            store.put(("unwatched",), str(next(_numbers)), {"n": 1})

    return run


def _limited(what: str, seconds: dict[str, list[float]], most: float, words: str) -> Row:
    return Row(what, seconds, within(most, words), [], as_rate=False)


def _percentile(latencies: list[float]) -> float:
    return sorted(latencies)[int(len(latencies) * 0.99)]


# Watchers, each in a process of its own ------------------------------------------------------------------------------


class Watcher:
    """A process that watches, as this one sees it."""

    def __init__(self, orders: Connection) -> None:
        self._orders = orders

    def idle(self, seconds: float) -> float:
        """What a second of waiting costs there."""
        self._orders.send(("idle", seconds))
        cost: float = self._orders.recv()
        return cost

    def latencies(self, write: Callable[[str], object]) -> list[float]:
        """From before each write of ours until its callback there."""
        self._orders.send(("expect", _CHANGES))
        began = {}
        for number in range(_CHANGES):
            began[f"/new/{number}"] = time.monotonic()
            write(f"/new/{number}")
            time.sleep(_PAUSE)
        seen: dict[str, float] = self._orders.recv()
        return [seen[path] - then for path, then in began.items()]

    def latencies_inside(self) -> list[float]:
        """The same of writes over there."""
        self._orders.send(("inside", _CHANGES // 3))
        latencies: list[float] = self._orders.recv()
        return latencies


@contextmanager
def _watching(watch: Callable[..., None], url: str) -> Iterator[Watcher]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=watch, args=(url, there), daemon=True)
    process.start()
    assert here.recv() == "ready"
    yield Watcher(here)
    here.send(("end", 0))
    process.join()


class _Seen:
    """The events that callbacks have received, and when."""

    def __init__(self) -> None:
        self.when: dict[str, float] = {}
        self._more = threading.Condition()

    def note(self, path: str) -> None:
        with self._more:
            self.when[path] = time.monotonic()
            self._more.notify()

    def wait(self, count: int) -> dict[str, float]:
        with self._more:
            if not self._more.wait_for(lambda: len(self.when) >= count, timeout=120):
                raise AssertionError(f"only {len(self.when)} of {count} changes came")
            seen, self.when = self.when, {}
        return seen


def _obey(orders: Connection, seen: _Seen, write: Callable[[str], object]) -> None:
    orders.send("ready")
    while True:
        order, amount = orders.recv()
        if order == "idle":
            time.sleep(2)  # what is done in the beginning only
            before, began = time.process_time(), time.monotonic()
            time.sleep(amount)
            orders.send((time.process_time() - before) / (time.monotonic() - began))
        elif order == "expect":
            orders.send(seen.wait(amount))
        elif order == "inside":
            began_at: dict[str, float] = {}
            for number in range(amount):
                began_at[f"/inside/{number}"] = time.monotonic()
                write(f"/inside/{number}")
                time.sleep(_PAUSE)
            when = seen.wait(amount)
            orders.send([when[path] - then for path, then in began_at.items()])
        else:
            return


def _watch(url: str, orders: Connection) -> None:
    seen = _Seen()
    with holdall.open(url) as store:
        changes = store.files(HERE).watch()

        def follow() -> None:
            for change in changes:
                seen.note(change.key)

        thread = threading.Thread(target=follow)
        thread.start()
        volume = store.files(HERE)
        _obey(orders, seen, lambda path: volume.write(path, "x"))
        changes.close()
        thread.join()


def _watch_ag2(path: str, orders: Connection) -> None:
    seen = _Seen()

    async def main() -> None:
        store: Any = SqliteKnowledgeStore(path)
        loop = asyncio.get_running_loop()

        async def callback(changed: str) -> None:
            seen.note(changed)

        subscription = await store.on_change("/", callback)

        def write(path: str) -> None:
            asyncio.run_coroutine_threadsafe(store.write(path, "x"), loop).result()

        await asyncio.to_thread(_obey, orders, seen, write)
        await subscription.close()
        store.close()

    asyncio.run(main())


# Writers, in this process --------------------------------------------------------------------------------------------


def _writer(url: str) -> Callable[[str], object]:
    volume = holdall.open(url).files(HERE)
    return lambda path: volume.write(path, "x")


def _ag2_writer(path: str) -> Callable[[str], object]:
    store, runner = SqliteKnowledgeStore(Path(path)), asyncio.Runner()
    return lambda path: runner.run(store.write(path, "x"))
