"""Renewals in the background: slow ones, and ones that fail."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import holdall
from holdall.engines.memory import MemoryEngine
from holdall.errors import LeaseLost, OutcomeUnknown
from holdall.ops import Check, Put, Refresh
from holdall.testing import Clock
from support.threads import eventually


class SlowEngine(MemoryEngine):
    """One that counts the renewals of each lease, and on which those of some leases wait."""

    slow: frozenset[str] = frozenset()
    go_on: threading.Event
    renewals: Counter[str]

    def execute(self, batch: Any) -> Any:
        if type(batch[0]) is not Check or type(batch[-1]) is not Refresh:
            return super().execute(batch)
        if batch[0].key in self.slow:
            assert self.go_on.wait(60)
        results = super().execute(batch)
        self.renewals[batch[0].key] += 1
        return results


@pytest.fixture
def slow_store() -> Iterator[holdall.Store]:
    with holdall.open(SlowEngine) as store:
        engine = store._engine_handle.engine
        engine.go_on, engine.renewals = threading.Event(), Counter()
        try:
            yield store
        finally:
            engine.go_on.set()
    assert renewers() == []


def renewers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdall-renewer"]


def make_due(*leases: holdall.Lease) -> None:
    """Have leases of a minute renewed now, as if twenty seconds had passed."""
    for lease in leases:
        lease._renewed -= 20
        assert lease._renewer is not None
        lease._renewer.add(lease)


def wait_for_renewal(lease: holdall.Lease) -> None:
    before = lease._renewed
    eventually(lambda: lease._renewed > before)


def test_slow_renewals_lose_no_other_lease(slow_store: holdall.Store) -> None:
    store, engine = slow_store, slow_store._engine_handle.engine
    engine.slow = frozenset({"slow", "slow too"})
    with store.lease("slow", 60) as slow, store.lease("slow too", 60) as slow_too:
        make_due(slow, slow_too)
        with store.lease("quick", 60) as quick, store.lease("quick too", 60) as quick_too:
            for number in range(1, 4):
                make_due(quick, quick_too)
                eventually(lambda: engine.renewals["quick"] == engine.renewals["quick too"] == number)  # noqa: B023  # now
            store.put(("home",), "k", {}, lease=quick)
            store.put(("home",), "k", {}, lease=quick_too)
        eventually(lambda: len(renewers()) <= 3)  # one that waits, and one for each that is slow
        engine.go_on.set()
        store.put(("home",), "k", {}, lease=slow)


def test_many_leases_share_few_threads(slow_store: holdall.Store) -> None:
    engine, most = slow_store._engine_handle.engine, 0
    leases = [slow_store.lease(str(number), 60).__enter__() for number in range(50)]
    for number in range(1, 4):
        make_due(*leases)
        while any(engine.renewals[lease.name] < number for lease in leases):
            most = max(most, len(renewers()))
            time.sleep(0.001)
    for lease in leases:
        slow_store.put(("home",), "k", {}, lease=lease)
        lease.__exit__(None, None, None)
    assert 1 <= most <= 10


class FailingEngine(MemoryEngine):
    """One on which so many renewals fail with an error that is not ours."""

    failures = 2
    has_renewed = False

    def execute(self, batch: Any) -> Any:
        if type(batch[-1]) is Refresh and self.failures:
            self.failures -= 1
            raise ValueError("a fault of the engine's")
        results = super().execute(batch)
        self.has_renewed = self.has_renewed or type(batch[-1]) is Refresh
        return results

    async def aexecute(self, batch: Any) -> Any:
        return self.execute(batch)


@pytest.mark.parametrize("awaited", [False, True])
def test_a_renewal_that_fails_for_whatever_reason_is_tried_again(
    awaited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with holdall.open(FailingEngine) as store, caplog.at_level(logging.ERROR, "holdall"):
        engine = store._engine_handle.engine

        def has_recovered() -> bool:
            return bool(engine.has_renewed)

        async def hold() -> None:
            async with store.alease("name", 3) as lease:
                await asyncio.to_thread(eventually, has_recovered)
                await store.aput(("home",), "k", {}, lease=lease)

        if awaited:
            asyncio.run(hold())
        else:
            with store.lease("name", 3) as lease:
                eventually(has_recovered)
                store.put(("home",), "k", {}, lease=lease)
    assert len(caplog.records) == 2
    assert "could not be renewed" in caplog.text
    assert "a fault of the engine's" in caplog.text


@pytest.mark.parametrize("awaited", [False, True])
def test_a_lease_that_could_not_be_renewed_in_its_time_is_lost(awaited: bool) -> None:
    with holdall.open(FailingEngine) as store:
        store._engine_handle.engine.failures, until = 1000, time.monotonic() + 5
        noticed = []

        async def hold() -> None:
            async with store.alease("name", 0.3) as lease:
                try:
                    await asyncio.sleep(5)
                finally:
                    noticed.append(lease.is_lost)

        with pytest.raises(LeaseLost):
            if awaited:
                asyncio.run(hold())
            else:
                with store.lease("name", 0.3) as lease:
                    while not lease.is_lost and time.monotonic() < until:
                        time.sleep(0.01)
                    noticed.append(lease.is_lost)
        assert noticed == [True]


def test_a_lease_whose_block_cannot_end_is_not_renewed_for_ever() -> None:
    """An interrupt may come at the very beginning of `__exit__`. What nobody can release must expire."""
    clock = Clock()
    with holdall.open("memory:", clock=clock) as store:
        lease = store.lease("name", 0.15).__enter__()
        wait_for_renewal(lease)
        store.put(("home",), "k", {}, lease=lease)
        gone = weakref.ref(lease)
        del lease
        gc.collect()
        eventually(lambda: gone() is None)  # a thread may be renewing it
        clock.advance(1)
        store.lease("name", 1).acquire().release()


def test_a_lease_of_which_nobody_knows_whether_it_was_acquired_is_given_back() -> None:
    class LosingEngine(MemoryEngine):
        loses = True

        def execute(self, batch: Any) -> Any:
            results = super().execute(batch)
            if type(batch[0]) is Put and batch[0].key == "name" and self.loses:
                self.loses = False
                raise OutcomeUnknown("the answer was lost")
            return results

    with holdall.open(LosingEngine) as store:
        with pytest.raises(OutcomeUnknown):
            store.lease("name", 600).acquire()
        store.lease("name", 600).acquire().release()
