"""Tasks that are cancelled while they wait for the store, and threads that a signal interrupts."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.errors import Conflict
from holdall.ops import Get, Put
from support.checksums import check, sealed
from support.processes import report, run
from support.resources import find_leaks, new_counted_location, resources
from support.stores import open_at

PARTS = [f"part{i}" for i in range(4)]
LENGTHS = {1: 20, 1000: 20, 100_000: 1}  # of files, in lines, and how often: the longest go to a server in pieces
FEW = 4  # names that tasks have to share
LEASES = 16
POOL = 4

# Cancelled tasks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "engine", ["memory", "sqlite", "postgres", "redis", "disk", pytest.param("s3", marks=pytest.mark.not_short)]
)
def test_cancelled_tasks_leave_nothing_behind_but_whole_batches(
    tmp_path: Path, scaled: Callable[[int, int], int], engine: str
) -> None:
    at = new_counted_location(engine, tmp_path) | {"durability": "relaxed"}  # more commits, more moments
    number = scaled(200, 10_000)
    [result] = run(cancel_at_random, deadline=120 + number // 10, engine=engine, at=at, number=number)
    outcomes = result.pop("outcomes")
    assert result == {"complaints": [], "leaked": ""}
    for kind, each in outcomes.items():
        assert each["returned"], f"this showed nothing of {kind}"
        assert each["cancelled"] or engine == "memory", f"this showed nothing of {kind}"
    if engine != "memory":
        with open_at(at) as store:
            check_all(store.scoped(("storm",)), outcomes)


def cancel_at_random(engine: str, at: dict[str, str], number: int) -> None:
    complaints: list[str] = []
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of each cancelled pipeline
    asyncio.run(storm(at, "before", 20, complaints))  # what the first use opens, or begins, may stay
    before = resources(engine, at)
    outcomes = asyncio.run(storm(at, "storm", number, complaints))
    gc.collect()  # a future whose exception nobody saw complains when it goes
    leaked = find_leaks(engine, at, before)
    report({"complaints": complaints, "leaked": leaked, "outcomes": outcomes})


async def storm(at: dict[str, str], root: str, number: int, complaints: list[str]) -> dict[str, Any]:
    """Do everything from many tasks, and cancel so many of them; what became of each."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, context: complaints.append(f"{context['message']}: {context.get('exception')!r}")
    )
    pooled = {"pool_max": POOL} if at["url"].startswith(("redis", "postgres")) else {}
    whole = open_at(at, sweep_interval=None, **pooled)
    store = whole.scoped((root,))
    await prepare(store)
    outcomes: dict[str, dict[str, list[str]]] = {kind: {"returned": [], "cancelled": []} for kind in CALLS}

    names, count, is_in_memory = map(str, range(10**9)), 0, at["url"].startswith("memory")
    while count < number or (number > 20 and not has_shown_all(outcomes, is_in_memory)):
        calls = [(kind, next(names)) for kind in random.choices(list(CALLS), k=random.choice([1, 8, 80]))]
        tasks = [asyncio.create_task(CALLS[kind](store, name)) for kind, name in calls]
        chosen = random.sample(tasks, -(-len(tasks) * 2 // 3))
        async with asyncio.timeout(90):  # nobody waits for ever
            await cancel(chosen)
            await asyncio.wait(tasks)
        for (kind, name), task in zip(calls, tasks, strict=True):
            outcomes[kind]["cancelled" if task.cancelled() else "returned"].append(name)
            if not task.cancelled():
                task.result()  # any other error is one of the store
        count += sum(is_in_memory or task.cancelled() for task in chosen)  # there, most calls are over too soon
    async with asyncio.timeout(90):
        while asyncio.all_tasks() != {asyncio.current_task()}:  # what is shielded goes on
            await asyncio.sleep(0.01)
        await use_whole_pool(store)
    check_all(store, outcomes)
    await whole.aclose()
    return outcomes


def has_shown_all(outcomes: dict[str, dict[str, list[str]]], is_in_memory: bool) -> bool:
    """Whether each kind of call has returned, and was cancelled."""
    return all(each["returned"] and (each["cancelled"] or is_in_memory) for each in outcomes.values())


async def cancel(tasks: list[asyncio.Task[None]]) -> None:
    """At any moment of their lives, among them the one between an outcome's arrival and its delivery."""
    if random.random() < 0.7:
        await asyncio.sleep(0)  # all begin
    for task in tasks:
        if random.random() < 0.2:
            for _ in range(random.choice([1, 1, 2, 5, 20])):
                await asyncio.sleep(random.choice([0, 0, 0, 0.0001, 0.001]))
        task.cancel()
        if random.random() < 0.2:  # once more, while it is busy with the first
            await asyncio.sleep(0)
            task.cancel()


async def prepare(store: holdall.Store) -> None:
    """What is there for others to find."""
    await store.aput(("kept",), "k", {}, ttl=3600)
    for number in range(FEW):
        await store.files().awrite(f"/log{number}", "")
    for key in range(10):
        await store.aput(("found",), str(key), {"text": f"tea number {key}", "even": key % 2 == 0})
        await store.files().awrite(f"/found/{key}.md", f"tea number {key}\n")
        await store.aput(("count",), str(key), {"n": 0})


async def use_whole_pool(store: holdall.Store) -> None:
    """A connection that was lost to it would be missed now; and a lease that nobody gave back."""
    await asyncio.gather(*(store.aexecute([Put(("pool",), str(key), {})] * 3) for key in range(POOL * 3)))
    for name in range(LEASES):
        async with store.alease(str(name), 300) as lease:
            await store.aput(("pool",), "leased", {}, lease=lease)


async def put(store: holdall.Store, name: str) -> None:
    await store.aput(("put",), name, sealed(name=name))


async def update(store: holdall.Store, name: str) -> None:
    await store.aupdate(("update",), name, lambda value: sealed(**value), default={"name": name})


async def add_one(store: holdall.Store, name: str) -> None:
    await store.aupdate(("count",), str(int(name) % FEW), lambda value: {"n": value["n"] + 1})


async def execute(store: holdall.Store, name: str) -> None:
    await store.aexecute([Put(("batch", name), part, sealed(name=name)) for part in PARTS])


async def be_refused(store: holdall.Store, name: str) -> None:
    ops = [Put(("refused",), name, {}), Put(("refused",), "other", {}, expect=1)]
    try:
        await store.aexecute(random.sample(ops, len(ops)))
    except Conflict:
        return
    raise AssertionError("a wrong expectation was met")


async def append(store: holdall.Store, name: str) -> None:
    await store.files().aappend(f"/log{int(name) % FEW}", f"{name}\n")


async def write(store: holdall.Store, name: str) -> None:
    await store.files().awrite(f"/written/{int(name) % FEW}", f"{name}\n" * length_of_a_file())


async def write_in_pieces(store: holdall.Store, name: str) -> None:
    async with await store.files().aopen(f"/written/{int(name) % FEW}", "wb") as file:
        length = length_of_a_file()
        await file.write(f"{name}\n".encode() * (length - length // 2))
        await file.write(f"{name}\n".encode() * (length // 2))


def length_of_a_file() -> int:
    return random.choices(list(LENGTHS), list(LENGTHS.values()))[0]


async def refresh(store: holdall.Store, name: str) -> None:
    assert await store.aget(("kept",), "k", refresh=True) is not None


async def lease(store: holdall.Store, name: str) -> None:
    async with store.alease(str(int(name) % LEASES), 300, wait=60) as lease:
        await store.aput(("leased",), name, sealed(name=name), lease=lease)


async def watch(store: holdall.Store, name: str) -> None:
    async with store.awatch(("found",), since=None if int(name) % 2 else await store.acursor()) as changes:
        await store.aput(("found",), "1", {"text": "tea number 1", "even": False})
        async for change in changes:
            assert change.namespace == ("found",)
            break


async def search(store: holdall.Store, name: str) -> None:
    assert len(await store.asearch(("found",), query="tea number", limit=3)) == 3
    assert await store.acount(("found",), filter={"even": True}) == 5


async def read_files(store: holdall.Store, name: str) -> None:
    files = store.files()
    assert await files.aread("/found/3.md") == b"tea number 3\n"
    assert len(await files.als("/found")) == 10
    assert [match.path for match in await files.agrep("number 7", "/found")] == ["/found/7.md"]


CALLS: dict[str, Callable[[holdall.Store, str], Coroutine[Any, Any, None]]] = {
    call.__name__: call
    for call in (
        *(put, update, add_one, execute, be_refused, append, write, write_in_pieces),
        *(refresh, lease, watch, search, read_files),
    )
}


def check_all(store: holdall.Store, outcomes: dict[str, Any]) -> None:
    """Everything acknowledged is there, and else at most what was cancelled: whole."""
    returned = {kind: set(each["returned"]) for kind, each in outcomes.items()}
    every = {kind: returned[kind] | set(each["cancelled"]) for kind, each in outcomes.items()}
    for kind, namespace in (("put", "put"), ("update", "update"), ("lease", "leased")):
        found = {check(entry.value)["name"] for entry in store.scan((namespace,))}
        assert returned[kind] <= found <= every[kind], kind
    batches = store.namespaces(prefix=("batch",), limit=1_000_000)
    for namespace in batches:
        assert store.count(namespace) == len(PARTS), f"half a batch: {namespace}"
    assert returned["execute"] <= {namespace[-1] for namespace in batches} <= every["execute"]
    assert store.count(("refused",)) == 0
    added = [entry.value["n"] for entry in store.scan(("count",))]
    assert len(returned["add_one"]) <= sum(added) <= len(every["add_one"])
    files = store.files()
    lines = Counter(line for number in range(FEW) for line in files.read_text(f"/log{number}").splitlines())
    assert returned["append"] <= lines.keys() <= every["append"]
    assert set(lines.values()) <= {1}, "appended twice"
    for info in files.ls("/written"):
        wrote = files.read_text(info.path).splitlines()
        assert len(wrote) in LENGTHS and len(set(wrote)) == 1, f"torn: {info}"
        assert wrote[0] in every["write"] | every["write_in_pieces"]


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
        report(await store.acount(("home",)))
        await store.aclose()

    asyncio.run(main())


class Interrupted(Exception):  # it is no error
    """Raised in the main thread by a signal, as KeyboardInterrupt is: anywhere."""


def test_an_interrupted_writer_does_not_stop_the_others(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    """Ctrl-C in one thread, or a timeout made with SIGALRM, comes in the middle of whatever that thread does."""
    path = str(tmp_path / "agent.db")
    seconds = scaled(2, 30)
    [result] = run(interrupt_at_random, deadline=seconds + 60, path=path, seconds=seconds)
    assert result["interrupted"], "no signal came in time: this showed nothing"
    with holdall.open(path) as store:
        for name, steps in result["acknowledged"].items():
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
    report({"acknowledged": acknowledged, "interrupted": interrupted})


def send_signals(stop: threading.Event) -> None:
    while not stop.wait(random.uniform(0, 0.004)):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
