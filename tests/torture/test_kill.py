"""`kill -9` at random moments: what was acknowledged is there, what was not is there wholly or not at all."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from sealed import check, sealed

import holdall
from holdall.ops import Delete, Get, Put
from processes import Process, hear, start, tell

SINGLES = ["thread0", "thread1", "thread2", "task0", "task1", "task2", "task3"]
BATCHES = ["batch-thread", "batch-task"]
PARTS = [f"part{i}" for i in range(5)]


@pytest.mark.parametrize("company", ["alone", "beside another process"])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, scaled: Callable[[int, int], int], company: str) -> None:
    path = str(tmp_path / "agent.db")
    rounds = scaled(5, 50)
    bystander = start(write_on, deadline=rounds * 10 + 120, path=path) if company != "alone" else None
    acknowledged = 0
    for number in range(rounds):
        writer = start(write_until_killed, path=path, number=str(number))
        said = kill_at_a_random_moment(writer, once_it_writes=number % 4 != 3)
        check_file(path)
        check_round(path, str(number), said)
        acknowledged += len(said)
    assert acknowledged > rounds, "the writers were killed before they could write: this showed nothing"
    if bystander is not None:
        bystander.tell("stop")
        [written] = bystander.finish()
        with holdall.open(path) as store:
            assert store.count(("bystander",)) == written > 0


def kill_at_a_random_moment(writer: Process, once_it_writes: bool) -> list[Any]:
    """Most die while they write, some while they open the store or before."""
    said = [writer.hear()] if once_it_writes else []
    time.sleep(random.uniform(0, 0.15 if once_it_writes else 0.4))
    return said + writer.kill()


def check_file(path: str) -> None:
    connection = apsw.Connection(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def check_round(path: str, number: str, said: list[Any]) -> None:
    """Hold what a killed writer said against what a newly opened store has."""
    last = {**dict.fromkeys([*SINGLES, *BATCHES], 0), **dict(said)}
    with holdall.open(path, timeout=10) as store:
        store.put(("reopened",), number, sealed(step=0))
        for name in SINGLES:
            steps = sorted(check(entry.value)["step"] for entry in store.scan(("single", number, name)))
            assert steps == list(range(1, len(steps) + 1)), f"{name} lost a put: {steps}"
            assert len(steps) in (last[name], last[name] + 1), f"{name} put {last[name]}, and {len(steps)} are there"
        for name in BATCHES:
            check_batch(store, ("batch", number, name), last[name])


def check_batch(store: holdall.Store, home: tuple[str, ...], acknowledged: int) -> None:
    """Batches overwrite the same entries: all of these must come from one, the last acknowledged or the one after."""
    *parts, before, after = store.execute([Get(home, key) for key in [*PARTS, "odd", "even"]])
    steps = {check(entry.value)["step"] if entry else 0 for entry in parts}
    assert len(steps) == 1, f"half a batch: {steps}"
    [step] = steps
    assert step in (acknowledged, acknowledged + 1)
    assert (before is not None, after is not None) == (step % 2 == 1, step % 2 == 0 and step > 0)


def write_until_killed(path: str, number: str) -> None:
    """Single puts and batches, by threads and by tasks; each says its step once the store has acknowledged it."""
    store = holdall.open(path)
    for name in ("thread0", "thread1", "thread2"):
        threading.Thread(target=put_singles, args=(store, ("single", number, name))).start()
    threading.Thread(target=put_batches, args=(store, ("batch", number, "batch-thread"))).start()
    asyncio.run(put_as_tasks(store, number))


def put_singles(store: holdall.Store, home: tuple[str, ...]) -> None:
    for step in itertools.count(1):
        store.put(home, str(step), sealed(step=step, filler="x" * (step * 997 % 7000)))
        tell([home[-1], step])


def put_batches(store: holdall.Store, home: tuple[str, ...]) -> None:
    for step in itertools.count(1):
        store.execute(batch(home, step))
        tell([home[-1], step])


async def put_as_tasks(store: holdall.Store, number: str) -> None:
    async def singles(name: str) -> None:
        for step in itertools.count(1):
            await store.aput(("single", number, name), str(step), sealed(step=step, filler="y" * (step % 50)))
            tell([name, step])

    async def batches(name: str) -> None:
        for step in itertools.count(1):
            await store.aexecute(batch(("batch", number, name), step))
            tell([name, step])

    await asyncio.gather(*(singles(f"task{i}") for i in range(4)), batches("batch-task"))


def batch(home: tuple[str, ...], step: int) -> list[Put | Delete]:
    """Five overwrites, and an entry that is there after odd steps only, as another is after even ones."""
    come, go = ("odd", "even") if step % 2 else ("even", "odd")
    parts: list[Put | Delete] = [Put(home, key, sealed(step=step, filler="z" * (step % 3000))) for key in PARTS]
    return [*parts, Put(home, come, sealed(step=step)), Delete(home, go)]


def write_on(path: str) -> None:
    """Another process at the same file, which must not notice that its neighbours die."""
    store = holdall.open(path)
    told = threading.Event()
    threading.Thread(target=lambda: (hear(), told.set())).start()
    for step in itertools.count(1):
        store.put(("bystander",), str(step), sealed(step=step))
        if told.wait(0.005):
            break
    store.close()
    tell(step)
