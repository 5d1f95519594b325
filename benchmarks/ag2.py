"""AG2's knowledge: our `SqliteKnowledgeStore` beside AG2's own stores, by AG2's protocol.

A few files, logs of 0 to 50 MB, 100,000 files, and watching: how long after a write its callback is called, and what
it costs to wait for that while nothing happens. Every answer is compared before it is timed. All run in one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ag2.knowledge import DiskKnowledgeStore, KnowledgeStore, MemoryKnowledgeStore, SqliteKnowledgeStore

import holdall
from holdall.faces.ag2 import knowledge as face

from .data import as_item, files, folder_of
from .harness import OURS, Bench, Row, ahead_of, at_least

SQLITE, MEMORY, DISK = "Sqlite", "Memory", "Disk"
FEW, MANY = 1_000, 100_000
MEGABYTES = (0, 1, 10, 50)
_AT_ONCE = 1000
_KB = "x" * 1023 + "\n"
_RANDOM = random.Random(5)
_LEAST = 1e-6  # the least part of a core that can be measured
_IDLE = 2.0  # for how long it is watched what waiting costs, in seconds
_PATIENCE = 120.0


class Contender:
    """A store, and how to put many files into it at once, which AG2's protocol has no word for."""

    def __init__(self, name: str, folder: Path, runner: asyncio.Runner) -> None:
        self.name = name
        self._runner = runner
        self._path = folder / name
        makers: dict[str, Callable[[], Any]] = {
            OURS: lambda: face.SqliteKnowledgeStore(self._path),
            SQLITE: lambda: SqliteKnowledgeStore(self._path),
            MEMORY: MemoryKnowledgeStore,
            DISK: lambda: DiskKnowledgeStore(self._path),
        }
        self.store = makers[name]()
        assert isinstance(self.store, KnowledgeStore)

    def load(self, texts: Sequence[tuple[str, str]]) -> None:
        if self.name == OURS:
            for start in range(0, len(texts), _AT_ONCE):
                batch = [
                    holdall.ops.Put(("knowledge",), path, as_item(text))
                    for path, text in texts[start : start + _AT_ONCE]
                ]
                self.store.store.execute(batch)
        elif self.name == SQLITE:
            self.do("list", [("/",)])  # which makes its table
            with sqlite3.connect(self._path) as connection:
                rows = [(path, text.encode()) for path, text in texts]
                connection.executemany("INSERT INTO entries (path, content, version) VALUES (?, ?, 1)", rows)
            connection.close()
        elif self.name == MEMORY:
            self.store._data.update(texts)
        else:
            self.do("write", texts)

    def do(self, op: str, arguments: Sequence[tuple[Any, ...]]) -> Any:
        """One op with each of some arguments, in one coroutine; the last answer."""

        async def all_of_them() -> Any:
            call, answer = getattr(self.store, op), None
            for given in arguments:
                answer = await call(*given)
            return answer

        return self._runner.run(all_of_them())

    def settle(self) -> None:
        """Wait for upkeep that is under way, so that it is not taken for what is measured next."""
        if self.name == OURS:
            until = time.monotonic() + _PATIENCE
            while self.store.store._engine_handle.engine.needs_maintenance and time.monotonic() < until:
                time.sleep(0.02)

    def close(self) -> None:
        if hasattr(self.store, "close"):
            self.store.close()


def run(bench: Bench) -> None:
    texts = files(MANY)
    with asyncio.Runner() as runner:
        _among_few(bench, runner, texts[:FEW])
        _logs(bench, runner)
        _among_many(bench, runner, texts)
    bench.note(f"{SQLITE}, {MEMORY} and {DISK}: AG2's own stores; {MEMORY} and {DISK} make nothing durable")
    bench.note("ours is face.SqliteKnowledgeStore at full durability")
    bench.note(f"waiting: seconds of CPU for each second, while {MANY:,} files are watched and nothing changes")


def _contenders(bench: Bench, runner: asyncio.Runner, stack: ExitStack, what: str) -> list[Contender]:
    folder = bench.folder / what
    folder.mkdir()
    made = [Contender(name, folder, runner) for name in (OURS, SQLITE, MEMORY, DISK)]
    for contender in made:
        stack.callback(contender.close)
    return made


def _row(
    bench: Bench,
    what: str,
    contenders: list[Contender],
    op: str,
    arguments: Callable[[], tuple[Any, ...]],
    ops: dict[str, int] | int,
    *,
    rounds: int = 7,
    durable: bool = False,
    times: float = 1.0,
) -> None:
    """Hold ours against AG2's SQLite store; the answers must agree, unless each call is to be another's."""
    if not durable:
        given = arguments()
        answers = {repr(contender.do(op, [given])) for contender in contenders}
        assert len(answers) == 1, f"{op}{given} is answered differently: {answers}"
    many = ops if isinstance(ops, dict) else dict.fromkeys((OURS, SQLITE, MEMORY, DISK), ops)

    def turn(contender: Contender) -> Callable[[], object]:
        return lambda: contender.do(op, [arguments() for _ in range(many[contender.name])])

    for contender in contenders:
        contender.settle()
    target = ahead_of(SQLITE) if times == 1.0 else at_least(times, SQLITE)
    runs = {contender.name: turn(contender) for contender in contenders}
    bench.measure(what, runs, ops=many, rounds=rounds, target=target, durable=durable)


# A few files, and logs -----------------------------------------------------------------------------------------------


def _among_few(bench: Bench, runner: asyncio.Runner, texts: Sequence[tuple[str, str]]) -> None:
    with ExitStack() as stack:
        contenders = _contenders(bench, runner, stack, "few")
        for contender in contenders:
            contender.load(texts)
        new = itertools.count()
        of = f", {FEW:,} files"
        ops = {OURS: 100, SQLITE: 30, MEMORY: 100, DISK: 100}
        _row(bench, f"write, 1 KB{of}", contenders, "write", lambda: (f"/new/{next(new)}", _KB), ops, durable=True)
        _row(bench, f"read{of}", contenders, "read", lambda: (_RANDOM.choice(texts)[0],), 200)
        _row(bench, f"list, a folder of 20{of}", contenders, "list", lambda: (folder_of(_RANDOM.randrange(FEW)),), 100)


def _logs(bench: Bench, runner: asyncio.Runner) -> None:
    for size in MEGABYTES:
        with ExitStack() as stack:
            contenders = _contenders(bench, runner, stack, f"log-{size}")
            for contender in contenders:
                contender.do("write", [("/log", _KB * 1024 * size)])
            slow = {0: 30, 1: 10, 10: 2, 50: 1}[size]
            ops = {OURS: 100, SQLITE: slow, MEMORY: slow, DISK: 100}
            what = f"append 1 KB to {size} MB"
            times = 100.0 if size == 50 else 1.0
            _row(bench, what, contenders, "append", lambda: ("/log", _KB), ops, durable=True, times=times)
            if size == 50:

                def piece() -> tuple[Any, ...]:
                    start = _RANDOM.randrange((50 << 20) - 1024)
                    return ("/log", start, start + 1024)

                _row(bench, "read_range, 1 KB of 50 MB", contenders, "read_range", piece, ops, times=100.0)


# 100,000 files, and watching -----------------------------------------------------------------------------------------


def _among_many(bench: Bench, runner: asyncio.Runner, texts: Sequence[tuple[str, str]]) -> None:
    with ExitStack() as stack:
        contenders = _contenders(bench, runner, stack, "many")
        for contender in contenders:
            bench.progress(f"loading {len(texts):,} files into {contender.name}")
            contender.load(texts)
        of = f", {MANY:,} files"
        scans = {OURS: 100, SQLITE: 2, MEMORY: 5, DISK: 100}

        def folder() -> tuple[Any, ...]:
            return (folder_of(_RANDOM.randrange(MANY)),)

        quick = {OURS: 100, SQLITE: 100, MEMORY: 100, DISK: 100}
        _row(bench, f"exists, a file{of}", contenders, "exists", lambda: (_RANDOM.choice(texts)[0],), quick)
        _row(bench, f"exists, a folder{of}", contenders, "exists", folder, scans)
        _row(bench, f"exists, neither{of}", contenders, "exists", lambda: ("/area-000/none",), scans)
        _row(bench, f"list, a folder of 20{of}", contenders, "list", folder, scans)
        _row(bench, f"list, the root, of 100 folders{of}", contenders, "list", lambda: ("/",), scans)
        _watching(bench, runner, contenders)


def _watching(bench: Bench, runner: asyncio.Runner, contenders: list[Contender]) -> None:
    notified = {contender.name: asyncio.Event() for contender in contenders}

    def callback(name: str) -> Callable[[str], Any]:
        async def tell(_path: str) -> None:
            notified[name].set()

        return tell

    new = itertools.count()
    delays: dict[str, list[float]] = {}
    idle: dict[str, list[float]] = {}
    for contender in contenders:  # one after the other, so that each waits alone
        bench.progress(f"{contender.name} watches")

        async def watch(contender: Contender = contender) -> None:
            subscription = await contender.store.on_change("/", callback(contender.name))
            for _ in range(12):
                await asyncio.sleep(_RANDOM.uniform(0, 0.05))
                notified[contender.name].clear()
                await contender.store.write(f"/area-000/topic-00/new-{next(new)}", _KB)
                written = time.perf_counter()
                await notified[contender.name].wait()
                delays.setdefault(contender.name, []).append(time.perf_counter() - written)
            await asyncio.sleep(1)  # until what the writes have left to do is done
            for _ in range(3):
                began = time.process_time()
                await asyncio.sleep(_IDLE)
                idle.setdefault(contender.name, []).append(max(_LEAST, (time.process_time() - began) / _IDLE))
            await subscription.close()

        runner.run(watch())
    bench.rows.append(Row("from a write's return to its callback", delays, ahead_of(SQLITE), [], as_rate=False))
    bench.rows.append(Row(f"waiting, {MANY:,} files", idle, ahead_of(SQLITE), [], as_rate=False))
