"""Renewals in the background: slow ones, and ones that fail."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from typing import Any

import pytest

import holdall
from holdall.engines.memory import MemoryEngine
from holdall.errors import LeaseLost, OutcomeUnknown
from holdall.ops import Check, Put, Refresh


class SlowEngine(MemoryEngine):
    """One on which the renewals of some leases wait."""

    slow: frozenset[str] = frozenset()
    go_on: threading.Event

    def execute(self, batch: Any) -> Any:
        if type(batch[0]) is Check and type(batch[-1]) is Refresh and batch[0].key in self.slow:
            assert self.go_on.wait(60)
        return super().execute(batch)


def renewers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdall-renewer"]


def test_slow_renewals_lose_no_other_lease() -> None:
    with holdall.open(SlowEngine) as store:
        engine = store._engine_handle.engine
        engine.slow, engine.go_on = frozenset({"slow", "slow too"}), threading.Event()
        try:
            with store.lease("slow", 60) as slow, store.lease("slow too", 60) as slow_too:
                for lease in (slow, slow_too):  # as if twenty seconds had passed
                    lease._renewed -= 20
                    lease._renewer.add(lease)
                with store.lease("quick", 0.3) as quick, store.lease("quick too", 0.3) as quick_too:
                    time.sleep(1.2)
                    store.put(("home",), "k", {}, lease=quick)
                    store.put(("home",), "k", {}, lease=quick_too)
                assert len(renewers()) <= 3, "one that waits, and one for each that is slow"
                engine.go_on.set()
                store.put(("home",), "k", {}, lease=slow)
        finally:
            engine.go_on.set()
    assert renewers() == []


def test_many_leases_share_few_threads() -> None:
    with holdall.open("memory:") as store:
        leases = [store.lease(str(number), 0.9).__enter__() for number in range(50)]
        until, most = time.monotonic() + 1.5, 0
        while time.monotonic() < until:
            most = max(most, len(renewers()))
            time.sleep(0.01)
        for lease in leases:
            store.put(("home",), "k", {}, lease=lease)
            lease.__exit__(None, None, None)
        assert 1 <= most <= 10
    assert renewers() == []


class FailingEngine(MemoryEngine):
    """One on which so many renewals fail with an error that is not ours."""

    failures = 2

    def execute(self, batch: Any) -> Any:
        if type(batch[-1]) is Refresh and self.failures:
            self.failures -= 1
            raise ValueError("a fault of the engine's")
        return super().execute(batch)

    async def aexecute(self, batch: Any) -> Any:
        return self.execute(batch)


@pytest.mark.parametrize("awaited", [False, True])
def test_a_renewal_that_fails_for_whatever_reason_is_tried_again(
    awaited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with holdall.open(FailingEngine) as store, caplog.at_level(logging.ERROR, "holdall"):

        async def hold() -> None:
            async with store.alease("name", 0.6) as lease:
                await asyncio.sleep(1.5)
                await store.aput(("home",), "k", {}, lease=lease)

        if awaited:
            asyncio.run(hold())
        else:
            with store.lease("name", 0.6) as lease:
                time.sleep(1.5)
                store.put(("home",), "k", {}, lease=lease)
        assert store._engine_handle.engine.failures == 0
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
    with holdall.open("memory:") as store:
        lease = store.lease("name", 0.15).__enter__()
        time.sleep(0.5)  # some renewals
        store.put(("home",), "k", {}, lease=lease)
        gone = weakref.ref(lease)
        del lease
        gc.collect()
        assert gone() is None
        store.lease("name", 1, wait=5).acquire().release()


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
