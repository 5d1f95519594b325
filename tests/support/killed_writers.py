"""A process that writes until it is killed, and the check of what it left behind."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from typing import Any

import holdall
from holdall.ops import Delete, Get, Put
from support.checksums import check, sealed
from support.processes import Process, report

SINGLES = ["thread0", "thread1", "thread2", "task0", "task1", "task2", "task3"]
BATCHES = ["batch-thread", "batch-task"]
PARTS = [f"part{i}" for i in range(5)]


def kill_at_a_random_moment(writer: Process, once_it_writes: bool) -> list[Any]:
    """Kill most writers while they write, and some while they open the store or before."""
    reported = [writer.receive()] if once_it_writes else []
    time.sleep(random.uniform(0, 0.15 if once_it_writes else 0.1))
    return reported + writer.kill()


def check_round(path: str, number: str, reported: list[Any]) -> None:
    """Compare the acknowledged writes of a killed writer with a newly opened store."""
    last = {**dict.fromkeys([*SINGLES, *BATCHES], 0), **dict(reported)}
    with holdall.open(path, timeout=10) as store:
        store.put(("reopened",), number, sealed(step=0))
        for name in SINGLES:
            steps = sorted(check(entry.value)["step"] for entry in store.scan(("single", number, name)))
            assert steps == list(range(1, len(steps) + 1)), f"{name} lost a put: {steps}"
            assert len(steps) in (last[name], last[name] + 1), f"{name} put {last[name]}, and {len(steps)} are there"
        for name in BATCHES:
            check_batch(store, ("batch", number, name), last[name])


def check_batch(store: holdall.Store, home: tuple[str, ...], acknowledged: int) -> None:
    """Batches overwrite the same entries: all must come from the last acknowledged batch or from the next one."""
    *parts, before, after = store.execute([Get(home, key) for key in [*PARTS, "odd", "even"]])
    steps = {check(entry.value)["step"] if entry else 0 for entry in parts}
    assert len(steps) == 1, f"half a batch: {steps}"
    [step] = steps
    assert step in (acknowledged, acknowledged + 1)
    assert (before is not None, after is not None) == (step % 2 == 1, step % 2 == 0 and step > 0)


def write_until_killed(path: str, number: str) -> None:
    """Put single entries and batches from threads and tasks, and report each acknowledged step."""
    store = holdall.open(path)
    for name in ("thread0", "thread1", "thread2"):
        threading.Thread(target=put_singles, args=(store, ("single", number, name))).start()
    threading.Thread(target=put_batches, args=(store, ("batch", number, "batch-thread"))).start()
    asyncio.run(put_as_tasks(store, number))


def put_singles(store: holdall.Store, home: tuple[str, ...]) -> None:
    for step in itertools.count(1):
        store.put(home, str(step), sealed(step=step, filler="x" * (step * 997 % 7000)))
        report([home[-1], step])


def put_batches(store: holdall.Store, home: tuple[str, ...]) -> None:
    for step in itertools.count(1):
        store.execute(batch(home, step))
        report([home[-1], step])


async def put_as_tasks(store: holdall.Store, number: str) -> None:
    async def singles(name: str) -> None:
        for step in itertools.count(1):
            await store.aput(("single", number, name), str(step), sealed(step=step, filler="y" * (step % 50)))
            report([name, step])

    async def batches(name: str) -> None:
        for step in itertools.count(1):
            await store.aexecute(batch(("batch", number, name), step))
            report([name, step])

    await asyncio.gather(*(singles(f"task{i}") for i in range(4)), batches("batch-task"))


def batch(home: tuple[str, ...], step: int) -> list[Put | Delete]:
    """Make a batch of five overwrites, an entry that exists after odd steps, and one that exists after even steps."""
    come, go = ("odd", "even") if step % 2 else ("even", "odd")
    parts: list[Put | Delete] = [Put(home, key, sealed(step=step, filler="z" * (step % 3000))) for key in PARTS]
    return [*parts, Put(home, come, sealed(step=step)), Delete(home, go)]
