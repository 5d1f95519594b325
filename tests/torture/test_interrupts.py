"""Interrupts of the main thread, at each point of what it does with a store, on every engine.

After each: the store works, and holds exactly what was acknowledged, and at most the interrupted batch, whole.
Commits are as durable as before, and no connection, thread or file handle is lost.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.errors import Conflict
from holdall.ops import Delete, Get, Put
from holdall.runtime.closers import wait_for_closers
from support.interrupts import InterruptAt, Interrupted, Signals
from support.processes import report, run
from support.stores import ENGINES, new_location, open_at

NS = ("home",)
PARTS = [f"part{i}" for i in range(3)]
LEASE_SECONDS = 0.4


class Work:
    """One kind of work: `step` is interrupted, and `check` says what is wrong afterwards."""

    def __init__(self, at: dict[str, str]) -> None:
        self.at = at
        self.store = self.open()
        self.number = 0
        self.acknowledged: set[int] = set()
        self.before: dict[str, int] = {}  # the resources, when the first step has opened what it needs

    def open(self) -> holdall.Store:
        return open_at(self.at, sweep_interval=None, timeout=20)

    def step(self) -> None:
        """Called with a new `number`."""

    def check(self) -> None:
        """After `step`, which was interrupted or not."""

    def end(self) -> None:
        self.store.close()


class Putting(Work):
    def step(self) -> None:
        self.store.put(NS, str(self.number), {"n": self.number})

    def check(self) -> None:
        found = {int(entry.key) for entry in self.store.scan(NS)}
        assert self.acknowledged <= found <= self.acknowledged | {self.number}
        self.acknowledged = found


class Executing(Work):
    def step(self) -> None:
        batch = [Put((*NS, str(self.number)), part, {}) for part in PARTS]
        self.store.execute([*batch, Delete((*NS, str(self.number)), PARTS[0]), Put(NS, "last", {})])

    def check(self) -> None:
        found = {int(namespace[-1]) for namespace in self.store.namespaces(prefix=NS) if len(namespace) == 2}
        assert self.acknowledged <= found <= self.acknowledged | {self.number}
        for number in found - self.acknowledged:
            assert [entry.key for entry in self.store.scan((*NS, str(number)))] == PARTS[1:], "half a batch"
        self.acknowledged = found
        if len(found) > 20:
            for number in found:
                self.store.delete_tree((*NS, str(number)))
            self.acknowledged = set()


class Appending(Work):
    def step(self) -> None:
        self.store.files().append("/log", f"{self.number};")

    def check(self) -> None:
        content = self.store.files().read_text("/log") if self.store.files().exists("/log") else ""
        found = [int(number) for number in content.split(";")[:-1]]
        assert len(found) == len(set(found)), "appended twice"
        assert self.acknowledged <= set(found) <= self.acknowledged | {self.number}
        self.acknowledged = set(found)


class Streaming(Appending):
    """File objects: what is appended is there once, what is written is whole, and the interrupt is raised as it is."""

    def __init__(self, at: dict[str, str]) -> None:
        super().__init__(at)
        self.written = {""}

    def step(self) -> None:
        with self.store.files().open("/log", "ab") as file:
            file.write(f"{self.number};".encode())
        with self.store.files().open("/whole", "wb") as file:
            file.write(str(self.number).encode() * 1000)

    def check(self) -> None:
        wait_for_closers()  # of a file object that an interrupt has left open
        super().check()
        whole = self.store.files().read_text("/whole") if self.store.files().exists("/whole") else ""
        assert whole in self.written | {str(self.number) * 1000}, f"{len(whole)} bytes: {whole:.20}"
        self.written = {whole}


class Refreshing(Work):
    def step(self) -> None:
        self.store.get(NS, "dated", refresh=True)

    def check(self) -> None:
        if self.number == 0:
            self.store.put(NS, "dated", {}, ttl=1000)
        entry = self.store.get(NS, "dated", refresh=True)
        assert entry is not None, "it is gone"
        assert entry.expires_at is not None


class LeaseMethods(Work):
    def step(self) -> None:
        with self.store.lease("lease", LEASE_SECONDS, wait=10) as lease:
            self.store.put(NS, str(self.number), {}, lease=lease)

    def check(self) -> None:
        found = {int(entry.key) for entry in self.store.scan(NS)}
        assert self.acknowledged <= found <= self.acknowledged | {self.number}
        self.acknowledged = found
        gc.collect()
        self.store.lease("lease", LEASE_SECONDS, wait=10).acquire().release()


class WatchMethods(Work):
    """Each change is given once, also by a subscription that was interrupted."""

    def __init__(self, at: dict[str, str]) -> None:
        super().__init__(at)
        self.watch = self.store.watch(NS)
        self.given: list[str] = []
        self.put: list[str] = []

    def step(self) -> None:
        for change in self.watch:  # with `next`, an interrupt right after it would lose what it has returned
            self.given.append(change.key)
            return

    def check(self) -> None:
        """All that was put since the subscription began is given, in order. Two more puts wake the next step."""
        while self.put != self.given:
            self.given.append(next(self.watch).key)
            assert self.given == self.put[: len(self.given)]
        self.given, self.put = [], [f"{self.number}{half}" for half in "ab"]
        for key in self.put:
            self.store.put(NS, key, {})


class Subscribing(WatchMethods):
    """A subscription that ends, and another that begins."""

    def __init__(self, at: dict[str, str]) -> None:
        super().__init__(at)
        self.begun = self.watch

    def step(self) -> None:
        self.watch.close()
        self.watch = self.store.watch(NS)

    def check(self) -> None:
        if self.watch is self.begun:  # interrupted before
            self.watch.close()
            self.watch = self.store.watch(NS)
        self.begun, self.given, self.put = self.watch, [], []
        super().check()


class Closing(Work):
    """Opens, uses and closes stores of its own, beside one that stays."""

    def step(self) -> None:
        with self.open_another() as store:
            store.put(NS, str(self.number), {})

    def open_another(self) -> holdall.Store:
        return open_at(self.at, sweep_interval=None, timeout=19)  # another engine, by its options

    def check(self) -> None:
        gc.collect()
        with self.open_another() as store:
            found = {int(entry.key) for entry in store.scan(NS)}
            if not self.at["url"].startswith("memory"):
                assert self.acknowledged <= found <= self.acknowledged | {self.number}
            if len(found) > 5:  # to open a folder takes longer the more files are in it
                store.delete_tree(NS)
                found = set()
        self.acknowledged = found


class Pooled(Work):
    """With a pool of one connection, a lost connection is the end."""

    def open(self) -> holdall.Store:
        own = {"pool_max": 1, "pool_min": 0} if self.at["url"].startswith(("postgresql", "redis")) else {}
        return open_at(self.at, sweep_interval=None, timeout=20, **own)

    def step(self) -> None:
        self.store.put(NS, "key", {"n": self.number})
        self.store.execute([Get(NS, "key"), Get(NS, "other")])

    def check(self) -> None:
        self.store.put(NS, "key", {"n": -1})
        assert self.store.get(NS, "key").value == {"n": -1}  # type: ignore[union-attr]  # it was put


KINDS: dict[str, type[Work]] = {
    "put": Putting, "execute": Executing, "append": Appending, "stream": Streaming, "refresh": Refreshing,
    "lease": LeaseMethods, "watch": WatchMethods, "subscribe": Subscribing, "close": Closing, "pool": Pooled,
}  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_an_interrupt_anywhere_leaves_a_whole_store(
    engine: str, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    most = scaled(30, 400)
    places = {kind: new_location(engine, tmp_path) for kind in KINDS}
    found = run(interrupt_everywhere, deadline=scaled(120, 1800), places=places, most=most)
    assert [result["complaints"] for result in found] == [[]] * len(KINDS), found
    assert all(result["points"] >= min(most, result["of"]) / 2 for result in found), f"this showed too little: {found}"


def interrupt_everywhere(places: dict[str, dict[str, str]], most: int) -> None:
    """Some `most` points are tried, evenly distributed over all that there are."""
    for kind, at in places.items():
        work = prepare(at, kind)
        count_points(work)  # the first step of a process prepares what later ones find prepared
        passed = min(count_points(work) for _ in range(3))  # some steps have more to do than others
        work.before = resources()
        apart = max(1, passed // most)
        points, number = 0, random.randrange(apart)
        while True:
            trace = InterruptAt(number)
            with suppress(Interrupted), trace:
                work.step()
                work.acknowledged.add(work.number)
            check_after(work, trace.where)
            if trace.where is None:
                break
            points += 1
            number += random.randint(1, 2 * apart - 1)
        finish(work, points, of=passed)


def count_points(work: Work) -> int:
    """Do one step, and return the number of points at which it could have been interrupted."""
    trace = InterruptAt(sys.maxsize)
    with trace:
        work.step()
        work.acknowledged.add(work.number)
    check_after(work, None)
    return trace.passed


@pytest.mark.parametrize("engine", ENGINES)
def test_signals_at_random_moments_leave_a_whole_store(
    engine: str, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    """They also come while the main thread waits for what it asked for."""
    rounds = scaled(8, 300)
    places = {kind: new_location(engine, tmp_path) for kind in KINDS}
    found = run(interrupt_at_random, deadline=scaled(120, 1800), places=places, rounds=rounds)
    assert [result["complaints"] for result in found] == [[]] * len(KINDS), found
    assert [result["points"] for result in found] == [rounds] * len(KINDS), "too few of the signals came in time"


def interrupt_at_random(places: dict[str, dict[str, str]], rounds: int) -> None:
    for kind, at in places.items():
        work, signals = prepare(at, kind), Signals()
        took: list[float] = []
        for _ in range(5):
            began = time.perf_counter()
            work.step()
            took.append(time.perf_counter() - began)
            work.acknowledged.add(work.number)
            check_after(work, "nothing yet")
        work.before = resources()
        tries = 0
        while signals.count < rounds and tries < 10 * rounds:
            tries += 1
            began = time.perf_counter()
            with suppress(Interrupted), signals.at_random(1.2 * statistics.median(took[-5:])):
                work.step()
                work.acknowledged.add(work.number)
                took.append(time.perf_counter() - began)  # the machine may be less busy by now
            check_after(work, "a signal")
        finish(work, signals.count)


def prepare(at: dict[str, str], kind: str) -> Work:
    sys.unraisablehook = lambda _: None  # an interrupt that came while a generator was closed, or in a finalizer
    work = KINDS[kind](at)
    work.check()
    work.number += 1
    return work


def check_after(work: Work, where: str | None) -> None:
    """If something is wrong, end here: to close the store might take for ever."""
    try:
        work.check()
        check_durability(work.store)
    except BaseException as error:
        import traceback

        report({"points": 0, "complaints": [f"after {where}: {traceback.format_exc()[-1500:]} {error!r:.300}"]})
        os._exit(0)
    work.number += 1


def check_durability(store: holdall.Store) -> None:
    """SQLite's and disk's commits are as durable as they were asked to be."""
    engine: Any = store._engine_handle.engine
    writer = getattr(engine, "_writer", None)
    if writer is None:
        return
    levels: list[int] = []
    writer.set_commit_hook(lambda: bool(levels.append(writer.pragma("synchronous"))))  # False: go on
    store.execute([Put(("durable",), "a", {}), Put(("durable",), "b", {})])
    writer.set_commit_hook(None)
    assert (2 if engine._synchronous == "FULL" else 1) in levels
    assert not writer.in_transaction


def resources() -> dict[str, int]:
    return {
        "handles": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(threading.enumerate()),
    }


def finish(work: Work, points: int, of: int = 0) -> None:
    complaints: list[str] = []
    before, until = work.before, time.monotonic() + 10
    while True:
        gc.collect()
        after = resources()
        lost = {name: (before[name], after[name]) for name in after if after[name] > before[name] + 2}
        if not lost or time.monotonic() > until:
            break
        time.sleep(0.05)
    if lost:
        complaints.append(f"lost: {lost}, {[thread.name for thread in threading.enumerate()]}")
    work.end()
    with work.open() as store:
        if not work.at["url"].startswith("memory") and type(work) is Putting:
            assert {int(entry.key) for entry in store.scan(NS)} >= work.acknowledged
    report({"points": points, "of": of, "complaints": complaints})


@pytest.mark.parametrize("engine", ["postgres", "redis"])
def test_an_interrupt_while_it_waits_for_a_connection_loses_none(
    engine: str, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    wanted = scaled(10, 300)
    assert run(interrupt_waiting_caller, deadline=100, at=new_location(engine, tmp_path), wanted=wanted) == [wanted]


def interrupt_waiting_caller(at: dict[str, str], wanted: int) -> None:
    """Another thread has the only connection almost all the time."""
    store = open_at(at, pool_max=1, pool_min=0, timeout=20)
    signals, stop = Signals(), threading.Event()
    store.put(NS, "key", {})

    def keep_busy() -> None:
        while not stop.is_set():
            store.execute([Put(("other",), str(number), {"text": "x" * 1000}) for number in range(50)])

    thread = threading.Thread(target=keep_busy)
    thread.start()
    for number in itertools.count():
        with suppress(Interrupted), signals.at_random(0.002):
            store.put(NS, "key", {"n": number})
        if signals.count == wanted:
            break
        store.put(NS, "key", {"n": -number})
        assert store.get(NS, "key").value == {"n": -number}  # type: ignore[union-attr]  # it was put
    stop.set()
    thread.join()
    store.put(NS, "last", {})
    store.close()
    report(signals.count)


# A signal handler that uses the store --------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_signal_handler_may_use_the_store(engine: str, tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    """It runs in the middle of another call of its own thread, which goes on when it returns."""
    [result] = run(use_in_handler, deadline=60, at=new_location(engine, tmp_path), rounds=scaled(200, 2000))
    assert result["wrong"] == []
    assert result["handled"] > 10, "this showed nothing"


def use_in_handler(at: dict[str, str], rounds: int) -> None:
    store = open_at(at, timeout=5)
    wrong: list[str] = []
    handled = 0

    def handle(*_: Any) -> None:
        nonlocal handled
        handled += 1
        mine = handled
        store.put(NS, "handler", {"n": mine})
        found = store.get(NS, "handler")
        if found is None or found.value["n"] < mine:  # a signal may come while this handles the one before
            wrong.append(f"{found} after {mine}")
        store.files().append("/handler", "x")
        with suppress(Conflict):
            store.lease("handler", 10).acquire().release()

    signal.signal(signal.SIGALRM, handle)
    store.put(NS, "key", {})
    watch = store.watch(NS)
    for number in range(rounds):
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 0.0004))
        store.put(NS, "key", {"n": number})
        if store.get(NS, "key").value != {"n": number}:  # type: ignore[union-attr]  # it was put
            wrong.append(f"the put {number} is not there")
        store.files().append("/main", "x")
        next(watch)
    signal.setitimer(signal.ITIMER_REAL, 0)
    for path, count in (("/main", rounds), ("/handler", handled)):
        if handled and len(store.files().read(path)) != count:
            wrong.append(f"{path} has not {count} bytes")
    watch.close()
    store.close()
    report({"wrong": wrong, "handled": handled})
