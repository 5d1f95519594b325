"""Tasks that are cancelled while they wait for the store, and threads that a signal interrupts."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sealed import check, sealed

import holdall
from holdall.errors import Conflict
from holdall.ops import Get, Put
from processes import run, tell

PARTS = [f"part{i}" for i in range(4)]


def test_a_cancelled_put_is_wholly_there_or_not_at_all(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    path = str(tmp_path / "agent.db")
    seconds = scaled(2, 30)
    [said] = run(cancel_at_random, deadline=seconds + 60, path=path, seconds=seconds)
    assert said["complaints"] == []
    returned, cancelled = set(said["returned"]), set(said["cancelled"])
    assert returned and cancelled and said["refused"], "this showed nothing"
    with holdall.open(path) as store:
        found = {entry.key for entry in store.scan(("single",))}
        batches = store.namespaces(prefix=("batch",), limit=1_000_000)
        for namespace in batches:
            assert len(list(store.scan(namespace))) == len(PARTS), f"half a batch: {namespace}"
        assert store.count(("refused",)) == 0
    found |= {namespace[-1] for namespace in batches}
    assert returned <= found <= returned | cancelled


def cancel_at_random(path: str, seconds: float) -> None:
    complaints: list[str] = []
    outcomes: dict[str, list[str]] = {"returned": [], "cancelled": [], "refused": []}

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["message"]))
        store = holdall.open(path)
        until, number = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            tasks = []
            for _ in range(random.choice([1, 5, 40])):
                number += 1
                tasks.append(asyncio.create_task(change(store, str(number))))
            await cancel_some(tasks)
        entry = await store.aput(("after",), "all", {})
        assert await store.aget(("after",), "all") == entry
        await store.aclose()

    async def change(store: holdall.Store, name: str) -> None:
        outcome = "cancelled"
        try:
            match random.randrange(4):
                case 0:
                    await store.aput(("single",), name, sealed(name=name))
                case 1:
                    await store.aupdate(("single",), name, lambda value: sealed(**value), default={"name": name})
                case 2:
                    await store.aexecute([Put(("batch", name), part, sealed(name=name)) for part in PARTS])
                case 3:
                    outcome = "refused"
                    try:
                        ops = [Put(("refused",), name, {}), Put(("refused",), "other", {}, expect=1)]
                        await store.aexecute(random.sample(ops, len(ops)))
                    except Conflict:
                        return
                    raise AssertionError("a wrong expectation was met")
            outcome = "returned"
        finally:
            outcomes[outcome].append(name)

    asyncio.run(main())
    gc.collect()  # a future whose exception nobody saw complains when it goes
    tell({"complaints": complaints, **outcomes})


async def cancel_some(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel some at any moment of their lives, among them the one between an outcome's arrival and its delivery."""
    doomed = random.sample(tasks, len(tasks) * 2 // 3)
    for task in doomed:
        for _ in range(random.choice([0, 0, 1, 2, 5, 20])):
            await asyncio.sleep(random.choice([0, 0, 0, 0.0001, 0.001]))
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome


def test_a_put_that_is_timed_out_leaves_a_store_that_works(tmp_path: Path) -> None:
    [count] = run(time_out, deadline=60, path=str(tmp_path / "agent.db"))
    assert count == 1


def time_out(path: str) -> None:
    async def main() -> None:
        store = holdall.open(path)
        for delay in (0, 0, 1e-6, 1e-5, 1e-4, 1e-3) * 20:
            try:
                await asyncio.wait_for(store.aget(("home",), "key"), delay)
                await asyncio.wait_for(store.aput(("home",), "key", {}), delay)
            except TimeoutError:
                pass
        await store.aput(("home",), "key", {})
        tell(await store.acount(("home",)))
        await store.aclose()

    asyncio.run(main())


class Interrupted(Exception):  # it is no error
    """Raised in the main thread by a signal, as KeyboardInterrupt is: anywhere."""


def test_an_interrupted_writer_does_not_stop_the_others(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    """Ctrl-C in one thread, or a timeout made with SIGALRM, comes in the middle of whatever that thread does."""
    path = str(tmp_path / "agent.db")
    seconds = scaled(2, 30)
    [said] = run(interrupt_at_random, deadline=seconds + 60, path=path, seconds=seconds)
    assert said["interrupted"], "no signal came in time: this showed nothing"
    with holdall.open(path) as store:
        for name, steps in said["acknowledged"].items():
            found = {check(entry.value)["step"] for entry in store.scan((name,))}
            lost = set(steps) - found
            assert not lost, f"{name} put {len(steps)}, and lost {sorted(lost)[:5]}"
            if name != "main":
                assert found == set(steps)
        for namespace in store.namespaces(prefix=("batch",), limit=1_000_000):
            assert store.count(namespace) == len(PARTS), f"half a batch: {namespace}"


def interrupt_at_random(path: str, seconds: float) -> None:
    store = holdall.open(path, durability="relaxed")  # more commits, more moments
    acknowledged: dict[str, list[int]] = {"main": [], "thread0": [], "thread1": [], "task": []}
    stop = threading.Event()
    interrupted, armed = 0, False

    def in_thread(name: str) -> None:
        while not stop.is_set():
            step = len(acknowledged[name]) + 1
            store.put((name,), str(step), sealed(step=step))
            acknowledged[name].append(step)

    async def in_task() -> None:
        while not stop.is_set():
            step = len(acknowledged["task"]) + 1
            await store.aput(("task",), str(step), sealed(step=step))
            acknowledged["task"].append(step)

    def interrupt(*_: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupted

    signal.signal(signal.SIGUSR1, interrupt)
    threads = [threading.Thread(target=in_thread, args=(f"thread{i}",)) for i in range(2)]
    threads.append(threading.Thread(target=lambda: asyncio.run(in_task())))
    threads.append(threading.Thread(target=send_signals, args=(stop,)))
    for thread in threads:
        thread.start()
    until, step = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        step += 1
        try:
            armed = True
            store.put(("main",), str(step), sealed(step=step))
            acknowledged["main"].append(step)
            store.execute([Put(("batch", str(step)), part, {}) for part in PARTS])
            assert len(store.execute([Get(("batch", str(step)), part) for part in PARTS])) == len(PARTS)
            armed = False
        except Interrupted:
            interrupted += 1
    stop.set()
    for thread in threads:
        thread.join()
    store.put(("main",), "last", sealed(step=0))
    store.close()
    tell({"acknowledged": acknowledged, "interrupted": interrupted})


def send_signals(stop: threading.Event) -> None:
    while not stop.wait(random.uniform(0, 0.004)):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
