"""Search while many processes write: each answer is of one moment, and indexes survive a writer's death."""

from __future__ import annotations

import asyncio
import mmap
import random
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.ops import Delete, IndexTexts, Op, Put
from holdall.search.segments import merging
from holdall.search.segments import state as segments
from holdall.testing import embed
from support.brute_force import check_lexical, check_semantic
from support.processes import Process, finish_together, report, start, wait_to_begin
from support.stores import new_location, open_at

PROCESSES, KEYS = 4, 6
NS = ("notes",)


LONGER = [pytest.param(engine, marks=pytest.mark.not_short) for engine in ("redis", "cluster")]


@pytest.fixture(params=["sqlite", "postgres", *LONGER])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    return new_location(request.param, tmp_path)


class Ledger:
    """What every process has begun and what was acknowledged to it, for all to see: steps, by writer and key."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), PROCESSES * KEYS * 16)

    @staticmethod
    def make(path: Path) -> str:
        path.write_bytes(bytes(PROCESSES * KEYS * 16))
        return str(path)

    def begin(self, writer: int, key: int, step: int) -> None:
        self._write((writer * KEYS + key) * 16, step)

    def acknowledge(self, writer: int, key: int, step: int) -> None:
        self._write((writer * KEYS + key) * 16 + 8, step)

    def _write(self, offset: int, step: int) -> None:
        """In one piece: `struct.pack_into` writes zeros first, and another process could read them."""
        self._memory[offset : offset + 8] = struct.pack("q", step)

    def read(self) -> tuple[list[int], list[int]]:
        """What was begun, and what was acknowledged."""
        numbers = struct.unpack(f"{PROCESSES * KEYS * 2}q", self._memory[:])
        return list(numbers[::2]), list(numbers[1::2])


def is_there(step: int) -> bool:
    """Whether a key is there after a step: each is deleted now and then."""
    return step > 0 and step % 5 != 4


# Everybody at once ---------------------------------------------------------------------------------------------------


def test_every_search_sees_what_was_written_before_it(
    at: dict[str, str], tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    """From any process; and nothing that was overwritten or deleted before it."""
    open_at(at, embed=embed).put(("warm",), "k", {"text": "up"})
    ledger, seconds = Ledger.make(tmp_path / "ledger"), scaled(3, 30)
    crew = [
        start(work, deadline=seconds + 120, at=at, ledger=ledger, number=n, seconds=seconds) for n in range(PROCESSES)
    ]
    for [result] in finish_together(crew):
        assert result["wrong"] == []
        assert min(result["searches"].values()) > 0, result
    with open_at(at, embed=embed) as store:
        check_lexical(store, "tea", "w0x0 w1x1 w2x2", "sugar")
        check_semantic(store, "tea", "w0x0x7")


def work(at: dict[str, str], ledger: str, number: int, seconds: float) -> None:
    """One process: a thread that writes, two that search, and an event loop that writes."""
    store = open_at(at, embed=embed)
    store.setup()
    worker = Worker(store, Ledger(ledger), number)
    wait_to_begin()
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(4) as threads:
        done = [
            threads.submit(worker.write, until, range(KEYS // 2)),
            threads.submit(worker.search, until),
            threads.submit(worker.search, until),
            threads.submit(asyncio.run, worker.awrite(until, range(KEYS // 2, KEYS))),
        ]
        for job in done:
            job.result()
    report({"wrong": worker.wrong[:5], "searches": worker.searches})
    store.close()


class Worker:
    def __init__(self, store: holdall.Store, ledger: Ledger, number: int) -> None:
        self.store, self.ledger, self.number = store, ledger, number
        self.random = random.Random()
        self.steps = [0] * KEYS
        self.searches = {"lexical": 0, "semantic": 0, "hybrid": 0}
        self.wrong: list[Any] = []

    def step(self, key: int) -> list[Op]:
        """Begin the next step of a key."""
        step = self.steps[key] = self.steps[key] + 1
        self.ledger.begin(self.number, key, step)
        name = f"{self.number}.{key}"
        if not is_there(step):
            return [Delete(NS, name)]
        word = f"w{self.number}x{key}x{step} w{self.number}x{key}"
        return [Put(NS, name, {"text": f"tea {word} {'sugar ' * (step % 3)}", "step": step, "by": self.number})]

    def write(self, until: float, keys: range) -> None:
        while time.monotonic() < until:
            chosen = self.random.sample(keys, self.random.choice([1, 1, 2]))
            self.store.execute([op for key in chosen for op in self.step(key)])
            for key in chosen:
                self.ledger.acknowledge(self.number, key, self.steps[key])

    async def awrite(self, until: float, keys: range) -> None:
        while time.monotonic() < until:
            key = self.random.choice(keys)
            await self.store.aexecute(self.step(key))
            self.ledger.acknowledge(self.number, key, self.steps[key])
            await asyncio.sleep(0.002)

    def search(self, until: float) -> None:
        while time.monotonic() < until or 0 in self.searches.values():  # a busy machine may leave time for few
            mode: Any = self.random.choice(list(self.searches))
            filter = self.random.choice([None, None, {"by": self.random.randrange(PROCESSES)}])
            ns = self.random.choice([(), NS])
            _, known = self.ledger.read()
            hits = self.store.search(ns, query="tea sugar", mode=mode, filter=filter, limit=1000)
            begun, _ = self.ledger.read()
            self.searches[mode] += 1
            self.judge(f"{mode} {filter} {ns}", hits, known, begun, filter)

    def judge(self, what: str, hits: list[holdall.Hit], known: list[int], begun: list[int], filter: Any) -> None:
        """Each key was, at one moment of the search, as it is found; what was there all the while is found."""
        found = {hit.key: hit.value["step"] for hit in hits if hit.namespace == NS}
        if len(found) != len([hit for hit in hits if hit.namespace == NS]):
            self.wrong.append([what, "twice", [hit.key for hit in hits]])
        for writer in range(PROCESSES):
            for key in range(KEYS):
                first, last = known[writer * KEYS + key], begun[writer * KEYS + key]
                step = found.get(f"{writer}.{key}")
                possible = {number if is_there(number) else None for number in range(first, last + 1)}
                if filter is not None and filter["by"] != writer:
                    possible = {None}
                if step not in possible:
                    self.wrong.append([what, f"{writer}.{key}", f"found at {step}", f"was {first} to {last}"])


def test_processes_that_learn_at_once_find_the_same(at: dict[str, str], scaled: Callable[[int, int], int]) -> None:
    with open_at(at, embed=embed) as store:
        for n in range(0, scaled(2000, 20_000), 500):
            store.execute([Put(NS, str(m), {"text": f"tea {m % 50}"}) for m in range(n, n + 500)])
        crew = [start(ask, at=at) for _ in range(PROCESSES)]
        answers = finish_together(crew)
        expected = [hit.key for hit in store.search(query="tea 7", mode="lexical", limit=100)]
        assert answers == [[expected]] * PROCESSES
        check_lexical(store, "tea 7", "49")


def ask(at: dict[str, str]) -> None:
    with open_at(at) as store:
        wait_to_begin()
        report([hit.key for hit in store.search(query="tea 7", limit=100)])


# Somebody dies -------------------------------------------------------------------------------------------------------


def test_indexes_survive_kill_9(at: dict[str, str], scaled: Callable[[int, int], int]) -> None:
    """In the middle of learning, of a put with vectors, of a search: afterwards all is as if nobody had died."""
    with open_at(at, embed=embed) as store:
        store.put(NS, "k", {"text": "tea"})
        acknowledged = 0
        for number in range(scaled(4, 40)):
            writer = start(write_and_learn, at=at, number=number)
            reported = kill_soon(writer)
            acknowledged += len(reported)
            check_lexical(store, "tea", f"round{number}", "milk sugar")
            check_semantic(store, f"tea round{number}")
            steps = [hit.value["step"] for hit in store.search(query=f"round{number}", mode="lexical", limit=10_000)]
            assert max(steps, default=0) in (max(reported, default=0), max(reported, default=0) + 1)
        assert acknowledged > 0, "the writers were killed before they could write: this showed nothing"
    with open_at(at, embed=embed, timeout=29) as again:
        check_lexical(again, "tea", "milk sugar")
        check_semantic(again, "tea")


def kill_soon(writer: Process) -> list[Any]:
    reported = [writer.receive()]
    time.sleep(random.uniform(0, 0.12))
    return reported + writer.kill()


def write_and_learn(at: dict[str, str], number: int) -> None:
    """Batches that overwrite each other, each indexed in slices and merged, while another thread searches."""
    for name, size in {"SMALL": 16, "PART": 32, "FACTOR": 3, "CLAIM": 0}.items():
        setattr(segments, name, size)
    merging.STEP, merging.BLOCK = 32, 50
    store = open_at(at, embed=embed)
    store.setup()
    searching = ThreadPoolExecutor(1)
    step = 0
    while True:
        step += 1
        store.execute(
            [
                Put(
                    NS, f"{n}", {"text": f"tea round{number} {'milk ' * (n % 3)} {'sugar ' * (step % 2)}", "step": step}
                )
                for n in range(12)
            ]
        )
        report(step)
        searching.submit(store.search, query="tea", mode="hybrid")
        for _ in range(8):
            store._engine_handle.engine.execute([IndexTexts(5)])
