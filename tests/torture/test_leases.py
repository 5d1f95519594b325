"""Leases between processes: holders that are stopped for longer than their lease lasts, and counters kept exact."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdall
from holdall.errors import Conflict, LeaseLost
from support.processes import Process, finish_together, receive, report, start, wait_to_begin
from support.stores import new_location, open_at

HOME = ("guarded",)
TTL = 0.15
PROCESSES = 8


# Stopped holders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis", "disk"])
def test_a_stopped_holder_writes_nothing_after_the_next_one(
    tmp_path: Path, scaled: Callable[[int, int], int], engine: str
) -> None:
    """The holder sleeps past its lease's end, another takes over and writes, the holder wakes up and writes on.

    With `lease=` the storage refuses that. Without, a lease is a good intention: some of these writes are accepted,
    which shows that this test would notice.
    """
    rounds = scaled(8, 200)
    at = new_location(engine, tmp_path)
    open_at(at).setup()
    assert sum(stale_writes(at, True, rounds)) == 0
    # It takes a holder that is stopped between two transactions: chance has many tries.
    assert any(stale_writes(at, False, rounds * 5))


def stale_writes(at: dict[str, str], guarded: bool, rounds: int) -> Iterator[int]:
    """How many a stopped holder wrote after the next one, in each round."""
    holder = start(hold_and_write, deadline=60 + rounds * 10, at=at, guarded=guarded)
    heir = start(take_over, deadline=60 + rounds * 10, at=at)
    try:
        holder.receive()
        heir.receive()
        for _ in range(rounds):
            yield stale_writes_of_a_round(holder, heir)
    finally:
        os.kill(holder.pid, signal.SIGCONT)
        holder.kill()
        heir.kill()


def stale_writes_of_a_round(holder: Process, heir: Process) -> int:
    holder.send("hold")
    holder.receive()
    time.sleep(random.uniform(0, 0.03))  # it writes all the time
    os.kill(holder.pid, signal.SIGSTOP)
    heir.send("take over")
    written = None
    if heir.has_message_within(TTL + 1):  # or the holder sleeps in a transaction, and nobody else can write
        written = heir.receive()
    os.kill(holder.pid, signal.SIGCONT)
    if written is None:
        written = heir.receive()
    accepted = holder.receive()
    return sum(version > written for version in accepted)


def hold_and_write(at: dict[str, str], guarded: bool) -> None:
    """Acquire, write until the lease is known to be lost, and report the versions that were accepted."""
    store = open_at(at, durability="relaxed")
    report("ready")
    while True:
        receive()
        accepted: list[int] = []
        try:
            with store.lease("name", TTL, namespace=HOME, wait=30) as lease:
                report("holds")
                while not lease.is_lost:
                    entry = store.put(HOME, "k", {"by": "holder"}, lease=lease if guarded else None)
                    accepted.append(entry.version)
                    time.sleep(random.uniform(0, 0.005))
        except LeaseLost:
            pass
        report(accepted)


def take_over(at: dict[str, str]) -> None:
    """Wait for the lease, write once, and report its version."""
    store = open_at(at, durability="relaxed")
    report("ready")
    while True:
        receive()
        with store.lease("name", 30, namespace=HOME, wait=30) as lease:
            report(store.put(HOME, "k", {"by": "heir"}, lease=lease).version)


# Counters ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_counters_of_many_processes_are_exact(tmp_path: Path, scaled: Callable[[int, int], int], engine: str) -> None:
    at = new_location(engine, tmp_path)
    by_lease, by_expectation = scaled(6, 100), scaled(20, 300)
    with open_at(at) as store:
        store.put(HOME, "leased", {"n": 0})
        store.put(HOME, "expected", {"n": 0})
        crew = [
            start(count, deadline=600, at=at, by_lease=by_lease, by_expectation=by_expectation)
            for _ in range(PROCESSES)
        ]
        conflicts = sum(reported[0] for reported in finish_together(crew))
        totals = {key: store.get(HOME, key).value["n"] for key in ("leased", "expected")}  # type: ignore[union-attr]  # it is there
    assert totals == {"leased": PROCESSES * by_lease, "expected": PROCESSES * by_expectation}
    assert conflicts >= PROCESSES - 1, "all read the same version first, which only one can replace"


def count(at: dict[str, str], by_lease: int, by_expectation: int) -> None:
    store = open_at(at, durability="relaxed")
    store.setup()
    first_read = store.get(HOME, "expected")
    wait_to_begin()
    conflicts = add_one(store, first_read) + sum(add_one(store) for _ in range(by_expectation - 1))
    for _ in range(by_lease):
        with store.lease("counter", 30, namespace=HOME, wait=300) as lease:
            value = store.get(HOME, "leased").value  # type: ignore[union-attr]  # it is there
            store.put(HOME, "leased", {"n": value["n"] + 1}, lease=lease)
    store.close()
    report(conflicts)


def add_one(store: holdall.Store, entry: holdall.Entry | None = None) -> int:
    """Read, unless `entry` was read before, and write if it is still what was read; how often it was not."""
    conflicts = 0
    while True:
        entry = entry or store.get(HOME, "expected")
        assert entry is not None
        time.sleep(random.uniform(0, 0.002))  # for somebody else to come between
        try:
            store.put(HOME, "expected", {"n": entry.value["n"] + 1}, expect=entry)
        except Conflict:
            conflicts += 1
            entry = None
        else:
            return conflicts
