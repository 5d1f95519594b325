"""Sixty-four writers at once share transactions, and nothing else: each gets its own result or its own error."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdall
from holdall import ABSENT
from holdall.errors import Conflict
from holdall.ops import Check, Delete, Get, Op, Put
from support.checksums import check, sealed
from support.processes import report, run
from support.threads import together

WRITERS = 64
PARTS = [f"part{i}" for i in range(3)]


@pytest.mark.parametrize("how", ["threads", "tasks", "threads and tasks"])
def test_each_of_64_writers_gets_its_own_outcome(tmp_path: Path, scaled: Callable[[int, int], int], how: str) -> None:
    rounds = scaled(4, 60)
    [commits] = run(write_at_once, deadline=60 + rounds * 2, path=str(tmp_path / "a.db"), how=how, rounds=rounds)
    written = rounds * WRITERS * 2 / 5  # the other batches are refused
    assert commits < written / 2, "they did not share transactions: this showed nothing"


def write_at_once(path: str, how: str, rounds: int) -> None:
    store = holdall.open(path)
    present = store.put(("present",), "key", sealed(by=-1))
    with counting_commits(store) as commits:
        for number in range(rounds):
            writers = [Writer(number, i, present) for i in range(WRITERS)]
            random.shuffle(writers)
            with others_kept_waiting(path):
                threads = [threading.Thread(target=partial(*call)) for call in calls(store, writers, how)]
                for thread in threads:
                    thread.start()
                time.sleep(0.02)  # so that many wait at once; what is checked holds without it too
            for thread in threads:
                thread.join()
            for writer in writers:
                writer.check(store)
            [winner] = [writer for writer in writers if writer.races and not isinstance(writer.outcome, Conflict)]
            assert store.get(("race", str(number)), "winner").value["by"] == winner.name
    store.close()
    report(len(commits))


def calls(store: holdall.Store, writers: list[Writer], how: str) -> list[tuple[Any, ...]]:
    """What the threads are to do: a writer each, or an event loop for many of them."""
    if how == "threads":
        return [(writer.write, store) for writer in writers]
    loops = [(asyncio.run, awrite_all(store, writers[i::3])) for i in range(2)]
    if how == "tasks":
        return [*loops, (asyncio.run, awrite_all(store, writers[2::3]))]
    return [*loops, *((writer.write, store) for writer in writers[2::3])]


async def awrite_all(store: holdall.Store, writers: list[Writer]) -> None:
    await asyncio.gather(*(writer.awrite(store) for writer in writers))


class Writer:
    """One batch of five kinds: what it is, what became of it, and whether that is right."""

    def __init__(self, number: int, name: int, present: holdall.Entry) -> None:
        self.name = name
        self.home = ("own", str(number), str(name))
        self.outcome: Any = None
        value = sealed(by=name, filler="x" * random.choice([0, 500, 8000]))
        parts: list[Op] = [Put(self.home, part, value) for part in PARTS]
        race = Put(("race", str(number)), "winner", sealed(by=name), expect=ABSENT)
        self.races = name % 5 == 4
        self.batch, self.refused_at = [
            ([Put(self.home, "alone", value)], None),
            ([*parts, Get(self.home, PARTS[0]), Delete(self.home, PARTS[0])], None),
            ([Put(("present",), "key", value, expect=ABSENT)], "key"),
            ([*parts, Check(("present",), "key", present.version + 1 + name)], "key"),
            ([*parts, race], "winner"),
        ][name % 5]
        self.expected = present.version + 1 + name if name % 5 == 3 else None

    def write(self, store: holdall.Store) -> None:
        try:
            self.outcome = store.execute(self.batch)
        except Conflict as conflict:
            self.outcome = conflict

    async def awrite(self, store: holdall.Store) -> None:
        try:
            self.outcome = await store.aexecute(self.batch)
        except Conflict as conflict:
            self.outcome = conflict

    def check(self, store: holdall.Store) -> None:
        found = {entry.key: check(entry.value) for entry in store.scan(self.home)}
        if isinstance(self.outcome, Conflict):
            assert (self.outcome.key, self.outcome.expected) == (self.refused_at, self.expected)
            assert not found, f"a refused batch left {list(found)}"
            return
        assert self.refused_at is None or self.races, "a wrong expectation was met"
        for op, result in zip(self.batch, self.outcome, strict=True):
            match op:
                case Put(namespace, key, value):
                    assert (result.namespace, result.key, result.value) == (namespace, key, value)
                case Get(namespace, key):
                    assert (result.namespace, result.key) == (namespace, key)
                case Delete():
                    assert result is True
        deleted = {op.key for op in self.batch if isinstance(op, Delete)}
        written = {op.key: op.value for op in self.batch if isinstance(op, Put) and op.namespace == self.home}
        assert found == {key: value for key, value in written.items() if key not in deleted}


@contextmanager
def others_kept_waiting(path: str) -> Iterator[None]:
    """Hold SQLite's write lock, so that writers gather; then let them go."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(60_000)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


@contextmanager
def counting_commits(store: holdall.Store) -> Iterator[list[None]]:
    commits: list[None] = []
    writer = store._engine_handle.engine._writer
    writer.set_commit_hook(lambda: commits.append(None) or False)
    yield commits
    writer.set_commit_hook(None)


class Interrupted(BaseException):
    """What Ctrl-C, or a timeout made with SIGALRM, raises in the middle of whatever its thread does."""


class Clock:
    """A clock that interrupts the caller that asks for the time once too often."""

    def __init__(self) -> None:
        self.calls_left: dict[int, int] = {}  # by thread

    def __call__(self) -> int:
        thread = threading.get_ident()
        self.calls_left[thread] = left = self.calls_left.get(thread, 1_000_000) - 1
        if left < 0:
            del self.calls_left[thread]
            raise Interrupted
        return time.time_ns() // 1000


def test_an_interrupted_leader_takes_nobody_with_it(tmp_path: Path) -> None:
    """The others of its group have their own outcomes, as if it had never been, and not its interrupt."""
    reported = run(interrupt_the_leader, deadline=60, path=str(tmp_path / "a.db"))
    assert dict(reported) == {"first": None, "leader": "Interrupted", "second": "second", "third": "third"}


def interrupt_the_leader(path: str) -> None:
    clock = Clock()
    store = holdall.open(path, clock=clock)
    store.setup()
    commits = store._engine_handle.engine._commits

    def put(name: str, key: str, calls: int | None, **options: Any) -> None:
        if calls is not None:
            clock.calls_left[threading.get_ident()] = calls
        try:
            entry = store.put(("home",), key, {"by": name}, **options)
            report([name, None if name == "first" else store.get(("home",), key).value["by"]])
            assert entry.value == {"by": name}
        except Interrupted as interrupted:
            report([name, type(interrupted).__name__])

    threads = []
    with others_kept_waiting(path):
        # The first keeps the lead until the others have gathered; the leader then is interrupted at the third of its
        # group, when the second has been refused already: for what the leader wrote, and takes back.
        for name, key, calls, options in (
            ("first", "other", None, {}),
            ("leader", "key", 2, {}),
            ("second", "key", None, {"expect": ABSENT}),
            ("third", "another", None, {}),
        ):
            threads.append(threading.Thread(target=put, args=(name, key, calls), kwargs=options))
            threads[-1].start()
            while len(commits._queue) < len(threads) - 1 or not commits._has_leader:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    store.close()


def test_an_interrupted_search_leaves_a_reader_that_works(tmp_path: Path) -> None:
    run(interrupt_searches, deadline=60, path=str(tmp_path / "a.db"))


def interrupt_searches(path: str) -> None:
    together([lambda: interrupt_a_search(path)])  # a thread: the clock knows threads, and the main one uses another


def interrupt_a_search(path: str) -> None:
    clock = Clock()
    store = holdall.open(path, clock=clock)
    store.put(("home",), "key", {})
    for _ in range(20):
        clock.calls_left[threading.get_ident()] = 0
        try:
            store.search(("home",))
        except Interrupted:
            pass
        else:
            raise AssertionError("nothing interrupted the search")
        assert len(store.search(("home",))) == 1
        assert store.execute([Get(("home",), "key"), Get(("home",), "other")])[1] is None
        store.put(("home",), "key", {})
    store.close()
