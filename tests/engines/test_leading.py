"""Who leads a group, and who is told what, where threads are interrupted or pause at the wrong moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from holdall.engines.commit import GroupCommit, Submission
from holdall.engines.workers import Workers
from holdall.ops import Get, Op
from threads import TimeIsUp

BATCH: list[Op] = [Get(("home",), "key")]


class Committing:
    """A `GroupCommit` whose commits wait to be let through, and whose `spawn` can be interrupted."""

    def __init__(self) -> None:
        self.commits = GroupCommit(self._commit, self._spawn)
        self.under_way, self.may_end = threading.Event(), threading.Event()
        self.committed: list[int] = []  # how many batches, by group
        self.interrupts: list[tuple[str, type[BaseException]]] = []
        self._workers = Workers(1, "worker")

    def _commit(self, group: list[Submission]) -> None:
        self.under_way.set()
        assert self.may_end.wait(10)
        members = [submission for submission in group if not submission.cancelled]
        self.committed.append(len(members))
        for submission in members:
            submission.results, submission.finished = ["done"], True

    def _spawn(self, lead: Callable[[], None]) -> None:
        when, interrupt = self.interrupts.pop() if self.interrupts else ("", None)
        if when != "before":
            self._workers.submit(lead)
        if interrupt is not None:
            raise interrupt

    def submit_in_thread(self, *interrupts: type[BaseException]) -> threading.Thread:
        """Begin to commit from another thread, which is to be interrupted in the end."""

        def submit() -> None:
            with suppress(*interrupts):
                assert self.commits.submit(BATCH) == ["done"]

        thread = threading.Thread(target=submit)
        thread.start()
        assert self.under_way.wait(10)
        return thread


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TimeIsUp])
@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_while_the_lead_is_handed_over_is_not_the_next_leaders(
    when: str, interrupt: type[BaseException], times: int
) -> None:
    """A signal comes in the thread that has to have another lead, for tasks."""
    group = Committing()

    async def submit() -> list[Any]:
        tasks = [asyncio.ensure_future(group.commits.asubmit(BATCH)) for _ in range(5)]
        await asyncio.sleep(0)
        group.interrupts = [(when, interrupt)] * times
        group.may_end.set()
        return await asyncio.wait_for(asyncio.gather(*tasks), 10)

    thread = group.submit_in_thread(interrupt)
    assert asyncio.run(submit()) == [["done"]] * 5
    thread.join(10)
    assert not thread.is_alive()
    assert not group.interrupts
    assert group.commits.submit(BATCH) == ["done"]
    assert group.committed == [1, 5, 1]


def test_a_worker_that_cannot_hand_over_tells_its_group_all_the_same() -> None:
    group = Committing()

    async def submit() -> list[Any]:
        first = [asyncio.ensure_future(group.commits.asubmit(BATCH)) for _ in range(3)]
        assert await asyncio.to_thread(group.under_way.wait, 10)
        later = [asyncio.ensure_future(group.commits.asubmit(BATCH)) for _ in range(2)]
        await asyncio.sleep(0)
        group.interrupts = [("before", MemoryError)]
        group.may_end.set()
        return await asyncio.wait_for(asyncio.gather(*first, *later), 10)

    assert asyncio.run(submit()) == [["done"]] * 5


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_task_whose_thread_is_interrupted_writes_nothing(when: str) -> None:
    group = Committing()

    async def submit() -> None:
        group.interrupts = [(when, TimeIsUp)]
        with pytest.raises(TimeIsUp):
            await group.commits.asubmit(BATCH)

    asyncio.run(submit())
    group.may_end.set()
    assert group.commits.submit(BATCH) == ["done"]
    assert sum(group.committed) == 1


def test_closing_and_forking_pause_one_after_the_other() -> None:
    """Each goes on only with what it has paused itself."""
    group = Committing()
    group.may_end.set()
    fork = Submission(())
    group.commits.pause(fork)
    closing = threading.Thread(target=group.commits.close)
    closing.start()
    while not group.commits._queue:
        assert closing.is_alive()
    group.commits.resume(fork)
    closing.join(10)
    assert not closing.is_alive()
    turn = Submission(())
    group.commits.pause(turn)
    group.commits.resume(turn)


def test_a_leader_that_was_left_in_the_queue_commits_its_batch_once() -> None:
    """A signal comes between telling the next that it leads, and taking it out of the queue."""
    group = Committing()

    class Gate:
        def __init__(self, lock: Any) -> None:
            self._lock = lock

        def release(self) -> None:
            self._lock.release()
            raise TimeIsUp

    leader = group.submit_in_thread(TimeIsUp)
    following = group.submit_in_thread()
    while not group.commits._queue:
        assert following.is_alive()
    queued: Any = group.commits._queue[0]
    queued.gate = Gate(queued.gate)
    group.may_end.set()
    for thread in (leader, following):
        thread.join(10)
        assert not thread.is_alive()
    assert group.commits.submit(BATCH) == ["done"]
    assert group.committed == [1, 1, 1]
