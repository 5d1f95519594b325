"""Four processes of four threads each, sync and async, write, delete and read one file at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw

import holdall
from holdall import Entry
from holdall.errors import Conflict
from holdall.ops import Check, Delete, Get, Op, Put
from support.checksums import check, sealed
from support.processes import finish_together, report, run, start, wait_to_begin

PROCESSES = 4
OWN_KEYS = [f"k{i}" for i in range(6)]
PAIRS = [f"pair{i}" for i in range(3)]
COUNTERS = [f"counter{i}" for i in range(3)]


def test_four_processes_of_four_threads_lose_nothing(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    path = str(tmp_path / "agent.db")
    seconds, seed = scaled(4, 30), random.randrange(2**32)
    crew = [start(work, deadline=seconds + 120, path=path, number=i, seconds=seconds, seed=seed) for i in range(4)]
    workers = [worker for reports in finish_together(crew) for worker in reports]

    assert len(workers) == PROCESSES * (2 + 2 * 3)
    assert min(worker["steps"] for worker in workers) > 0
    versions = Counter(version for worker in workers for version in worker["versions"])
    assert max(versions.values()) == 1, f"given twice: {versions.most_common(3)}"

    [found] = run(recall, path=path)
    for worker in workers:
        for key, value in worker["last"].items():
            assert found.pop(f"own/{worker['name']}/{key}", None) == value
    for counter in COUNTERS:
        assert found.pop(f"counters/{counter}")["total"] == sum(worker["added"].get(counter, 0) for worker in workers)
    for pair in PAIRS:
        assert found.pop(f"pairs/{pair}/left", None) == found.pop(f"pairs/{pair}/right", None)
    assert not found
    assert apsw.Connection(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def work(path: str, number: int, seconds: float, seed: int) -> None:
    """One process: two threads that call, and two event loops of three tasks each."""
    store = holdall.open(path)
    wait_to_begin()
    until = time.monotonic() + seconds
    workers = [Worker(store, f"{number}.{i}", awaits=i >= 2, seed=seed) for i in range(2 + 2 * 3)]
    shifts = [workers[0:1], workers[1:2], workers[2:5], workers[5:8]]
    with ThreadPoolExecutor(len(shifts)) as threads:
        done = [threads.submit(asyncio.run, together(shift, until)) for shift in shifts]
    for future in done:
        future.result()
    store.close()
    for worker in workers:
        report(worker.report())


async def together(workers: list[Worker], until: float) -> None:
    await asyncio.gather(*(worker.work(until) for worker in workers))


def recall(path: str) -> None:
    """What a process that has seen nothing of it finds."""
    with holdall.open(path) as store:
        report({"/".join((*entry.namespace, entry.key)): check(entry.value) for entry in store.scan()})


class Worker:
    """Owns a namespace, of which it knows the state for certain, and shares pairs and counters with all the others."""

    def __init__(self, store: holdall.Store, name: str, awaits: bool, seed: int) -> None:
        self.store, self.name, self.awaits = store, name, awaits
        self.home = ("own", name)
        self.random = random.Random(f"{seed} {name}")
        self.steps = 0
        self.last: dict[str, Any] = {}  # what was acknowledged; None: deleted
        self.at: dict[str, int] = {}  # the version of that
        self.versions: list[int] = []
        self.seen: dict[tuple[Any, ...], int] = {}
        self.added: Counter[str] = Counter()

    def report(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("name", "steps", "last", "versions", "added")}

    async def work(self, until: float) -> None:
        doing = [self.put, self.put, self.put_expecting, self.delete, self.read_own, self.write_pair]
        doing += [self.read_pair, self.read_others, self.count_up, self.batch, self.clear]
        often = [6, 6, 3, 5, 5, 4, 6, 2, 4, 3, 0.3]
        while time.monotonic() < until:
            await self.random.choices(doing, often)[0]()
            self.steps += 1

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        if self.awaits:
            return await getattr(self.store, "a" + name)(*args, **options)
        return getattr(self.store, name)(*args, **options)

    def value(self) -> dict[str, Any]:
        filler = chr(self.random.randrange(0x20, 0x7F)) * self.random.choice([0, 40, 900, 9000])
        return sealed(by=self.name, step=self.steps, filler=filler)

    def given(self, entry: Entry) -> None:
        """The store gave us a version: it must be ours alone, and newer than all we know of that entry."""
        self.versions.append(entry.version)
        assert self.look_at(entry) > 0

    def look_at(self, entry: Entry) -> int:
        """How much newer an entry is than when we last saw it; never older, not even after it was deleted."""
        check(entry.value)
        place = (*entry.namespace, entry.key)
        step = entry.version - self.seen.get(place, 0)
        assert step >= 0, f"{place} went back from {self.seen[place]} to {entry.version}"
        self.seen[place] = entry.version
        return step

    def keep(self, key: str, value: Any, entry: Entry) -> None:
        assert (entry.key, entry.value) == (key, value)
        self.given(entry)
        self.last[key], self.at[key] = value, entry.version

    async def put(self) -> None:
        key, value = self.random.choice(OWN_KEYS), self.value()
        self.keep(key, value, await self.call("put", self.home, key, value))

    async def put_expecting(self) -> None:
        key, value = self.random.choice(OWN_KEYS), self.value()
        present = self.last.get(key) is not None
        right = self.at[key] if present else holdall.ABSENT
        if self.random.random() < 0.5:
            self.keep(key, value, await self.call("put", self.home, key, value, expect=right))
            return
        wrong = holdall.ABSENT if present else 1
        try:
            await self.call("put", self.home, key, value, expect=wrong)
        except Conflict as conflict:
            assert (conflict.key, conflict.actual) == (key, self.at[key] if present else None)
        else:
            raise AssertionError("a wrong expectation was met")

    async def delete(self) -> None:
        key = self.random.choice(OWN_KEYS)
        was_there = await self.call("delete", self.home, key)
        assert was_there == (self.last.get(key) is not None)
        self.last[key] = None

    async def clear(self) -> None:
        removed = await self.call("delete_tree", self.home)
        assert removed == sum(value is not None for value in self.last.values())
        self.last = dict.fromkeys(OWN_KEYS)

    async def batch(self) -> None:
        """Reads, writes, a delete and a read of them, all in one."""
        one, two, three = self.random.sample(OWN_KEYS, 3)
        value, other = self.value(), self.value()
        here = self.at[one] if self.last.get(one) is not None else holdall.ABSENT
        ops: list[Op] = [Check(self.home, one, here), Get(self.home, one)]
        ops += [Put(self.home, one, value), Put(self.home, two, other), Delete(self.home, three), Get(self.home, one)]
        _, before, entry, second, _, again = await self.call("execute", ops)
        assert (before.value if before else None) == self.last.get(one)
        assert again == entry
        self.keep(one, value, entry)
        self.keep(two, other, second)
        self.last[three] = None

    async def read_own(self) -> None:
        key = self.random.choice(OWN_KEYS)
        entry = await self.call("get", self.home, key)
        assert (None if entry is None else entry.value) == self.last.get(key)
        if entry is not None:
            assert self.look_at(entry) == 0

    async def write_pair(self) -> None:
        pair, value = ("pairs", self.random.choice(PAIRS)), self.value()
        if self.random.random() < 0.2:
            left, right = await self.call("execute", [Delete(pair, "left"), Delete(pair, "right")])
            assert left == right
            return
        for entry in await self.call("execute", [Put(pair, "left", value), Put(pair, "right", value)]):
            self.given(entry)

    async def read_pair(self) -> None:
        pair = ("pairs", self.random.choice(PAIRS))
        left, right = await self.call("execute", [Get(pair, "left"), Get(pair, "right")])
        assert (left is None) == (right is None)
        if left is not None:
            assert left.value == right.value
            assert right.version - left.version == 1
            self.look_at(left)
            self.look_at(right)

    async def read_others(self) -> None:
        page = await self.call("search", ("own",), limit=50)
        versions = [hit.version for hit in page]
        assert versions == sorted(set(versions), reverse=True)
        assert len({(hit.namespace, hit.key) for hit in page}) == len(page)
        for hit in page:
            self.look_at(hit)

    async def count_up(self) -> None:
        counter, amount = self.random.choice(COUNTERS), self.random.randrange(1, 100)

        def add(value: dict[str, Any]) -> dict[str, Any]:
            return sealed(total=check(value)["total"] + amount, filler="x" * self.random.randrange(3000))

        self.given(await self.call("update", ("counters",), counter, add, default=sealed(total=0)))
        self.added[counter] += amount
