"""One store, used by several event loops and plain threads at once, while loops come and go."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import holdall
from holdall.errors import StoreClosed
from holdall.ops import Get
from support.checksums import check, sealed
from support.processes import report, run
from support.threads import together

STEADY_LOOPS, TASKS, PASSING_LOOPS, THREADS = 4, 4, 3, 2


def test_loops_and_threads_share_a_store_while_other_loops_end(
    tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    path = str(tmp_path / "agent.db")
    seconds = scaled(2, 30)
    [(acknowledged, passed)] = run(use_from_everywhere, deadline=seconds + 60, path=path, seconds=seconds)
    assert len(acknowledged) == STEADY_LOOPS * TASKS + THREADS
    assert passed, "no loop ended while others went on: this showed nothing"
    with holdall.open(path) as store:
        for name, step in acknowledged.items():
            steps = sorted(check(entry.value)["step"] for entry in store.scan((name,)))
            assert steps == list(range(1, step + 1)), f"{name} put {step}, {len(steps)} are there"
        found = {entry.key for entry in store.scan(("passing",))}
        assert set(passed) <= found


def use_from_everywhere(path: str, seconds: float) -> None:
    sys.setswitchinterval(1e-5)  # threads change places far more often than they would
    store = holdall.open(path)
    until = time.monotonic() + seconds
    acknowledged: dict[str, int] = {}
    passed: list[str] = []

    async def steady(name: str) -> None:
        for step in itertools.count(1):
            await store.aput((name,), str(step), sealed(step=step))
            acknowledged[name] = step
            for _ in range(5):
                assert check((await store.aget((name,), str(step))).value)["step"] == step
            if time.monotonic() > until:
                break

    async def steady_loop(number: int) -> None:
        await asyncio.gather(*(steady(f"loop{number}.{i}") for i in range(TASKS)))

    async def passing_loop(name: str) -> None:
        """Ends while tasks of it still wait for the store."""
        background = [asyncio.create_task(pass_by(f"{name}.{i}")) for i in range(6)]
        await asyncio.wait(background, return_when=asyncio.FIRST_COMPLETED)

    async def pass_by(key: str) -> None:
        await asyncio.sleep(random.uniform(0, 0.003))
        await store.aput(("passing",), key, sealed(step=0))
        passed.append(key)
        await asyncio.gather(store.aget(("passing",), key), store.asearch(("passing",), limit=2))

    def pass_on(number: int) -> None:
        for turn in itertools.count():
            asyncio.run(passing_loop(f"{number}.{turn}"))
            if time.monotonic() > until:
                break

    def plain_thread(name: str) -> None:
        for step in itertools.count(1):
            store.put((name,), str(step), sealed(step=step))
            acknowledged[name] = step
            assert check(store.get((name,), str(step)).value)["step"] == step
            if time.monotonic() > until:
                break

    together(
        [lambda i=i: asyncio.run(steady_loop(i)) for i in range(STEADY_LOOPS)]
        + [lambda i=i: pass_on(i) for i in range(PASSING_LOOPS)]
        + [lambda i=i: plain_thread(f"thread{i}") for i in range(THREADS)]
    )
    store.close()
    report([acknowledged, passed])


def test_loops_that_only_read_are_all_answered(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    """Reads that are asked for at once share a thread; two loops that ask at the same instant must not both leave it to
    the other to wake one."""
    seconds = scaled(2, 20)
    [reads] = run(read_from_many_loops, deadline=seconds + 30, path=str(tmp_path / "agent.db"), seconds=seconds)
    assert reads > 1000


def read_from_many_loops(path: str, seconds: float) -> None:
    sys.setswitchinterval(1e-6)
    store = holdall.open(path)
    store.put(("home",), "key", sealed(step=0))
    until, reads = time.monotonic() + seconds, [0] * 8

    async def read(number: int) -> None:
        while time.monotonic() < until:
            await store.aget(("home",), "key")
            reads[number] += 1

    together([lambda i=i: asyncio.run(read(i)) for i in range(len(reads))])
    store.close()
    report(sum(reads))


def test_closing_answers_everybody_who_waits(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    """A call during the closing of a store gets an answer or StoreClosed, and never waits for ever."""
    rounds = scaled(25, 400)
    reported = run(close_in_the_middle, deadline=60 + rounds, folder=str(tmp_path), rounds=rounds)
    assert reported == ["closed"] * rounds


def close_in_the_middle(folder: str, rounds: int) -> None:
    sys.setswitchinterval(1e-5)
    for number in range(rounds):
        store = holdall.open(f"{folder}/{number}.db", durability="relaxed")
        if number % 2:
            store.setup()  # else it is closed while it is being opened
        loop, thread, close = (partial(use, store) for use in (until_closed_in_a_loop, until_closed, close_soon))
        together([loop, loop, loop, thread, thread, close])
        report("closed")


def until_closed(store: holdall.Store) -> None:
    with suppress(StoreClosed):
        while True:
            store.put(("a",), "key", {})
            store.get(("a",), "key")


def until_closed_in_a_loop(store: holdall.Store) -> None:
    async def repeat(call: Callable[[], Awaitable[Any]]) -> None:
        with suppress(StoreClosed):
            while True:
                await call()

    async def tasks() -> None:
        await asyncio.gather(
            repeat(lambda: store.aget(("a",), "key")),
            repeat(lambda: store.aexecute([Get(("a",), "key"), Get(("a",), "other")])),
            repeat(lambda: store.aput(("a",), "key", {})),
            repeat(lambda: store.asearch(("a",))),
        )

    asyncio.run(tasks())


def close_soon(store: holdall.Store) -> None:
    time.sleep(random.uniform(0, 0.02))
    store.close()
