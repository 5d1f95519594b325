"""What searching costs the process that searches: memory of its own, and punctuality of its event loop."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import holdall

#: Arguments of `Store.search`.
Search: TypeAlias = dict[str, Any]

TASKS, TICK, SECONDS = 8, 0.001, 5.0


@dataclass(frozen=True, slots=True)
class Footprint:
    memory: int  # the most bytes of its own that the process had more after searches than before the first
    alone: float  # 99th percentile of how late a tick was in an idle loop, in seconds
    busy: float  # the same while tasks search
    searches: int  # how many they did


def of_searches(url: str, options: dict[str, Any], searches: Sequence[Search]) -> Footprint:
    """Search in a new process: one after the other, then by eight tasks beside a ticker of 1 ms."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_search, args=(url, options, searches, there), daemon=True)
    process.start()
    there.close()
    footprint: Footprint = here.recv()
    process.join()
    return footprint


def _search(url: str, options: dict[str, Any], searches: Sequence[Search], answer: Connection) -> None:
    with holdall.open(url, **options) as store:
        store.count(("nothing",))
        before = most = _own_memory()
        for number, search in enumerate(searches):
            store.search(**search)
            if number % 10 == 0:
                most = max(most, _own_memory())
        most = max(most, _own_memory())
        alone, _ = asyncio.run(_lateness(store, ()))
        busy, done = asyncio.run(_lateness(store, searches))
        most = max(most, _own_memory())
    answer.send(Footprint(most - before, _percentile(alone), _percentile(busy), done))


async def _lateness(store: holdall.Store, searches: Sequence[Search]) -> tuple[list[float], int]:
    """How late each tick was while tasks search, and the number of searches."""
    done = itertools.count()
    waiting = itertools.cycle(searches)

    async def search() -> None:
        while True:
            await store.asearch(**next(waiting))
            next(done)

    tasks = [asyncio.create_task(search()) for _ in range(TASKS if searches else 0)]
    late: list[float] = []
    end = time.perf_counter() + SECONDS
    while (began := time.perf_counter()) < end:
        await asyncio.sleep(TICK)
        late.append(time.perf_counter() - began - TICK)
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(ended, asyncio.CancelledError), f"a search failed beside the ticker: {ended!r}"
    return late, next(done)


def _percentile(late: list[float]) -> float:
    return sorted(late)[int(len(late) * 0.99)]


def _own_memory() -> int:
    """Bytes that no other process shares: not those of mapped files, which the system can drop."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the best that other systems have
    [line] = (line for line in status.read_text().splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024
