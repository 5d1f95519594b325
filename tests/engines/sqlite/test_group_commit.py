"""Which batch leads a group, and what each caller gets, where no thread can be had, or commits pause."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdall.engines.sqlite.group_commit import GroupCommit, Submission
from holdall.ops import Get, Op
from holdall.runtime.workers import Workers
from support.threads import eventually

BATCH: list[Op] = [Get(("home",), "key")]


class Committing:
    """A `GroupCommit` whose commits wait to be let through, and whose `spawn` can fail."""

    def __init__(self) -> None:
        self.commits = GroupCommit(self._commit, self._spawn)
        self.under_way, self.may_end = threading.Event(), threading.Event()
        self.committed: list[int] = []  # how many batches, by group
        self.faults: list[tuple[str, type[BaseException]]] = []
        self._workers = Workers(1, "worker")

    def _commit(self, group: list[Submission]) -> None:
        self.under_way.set()
        assert self.may_end.wait(10)
        members = [submission for submission in group if not submission.cancelled]
        self.committed.append(len(members))
        for submission in members:
            submission.results, submission.finished = ["done"], True

    def _spawn(self, lead: Callable[[], None]) -> None:
        when, fault = self.faults.pop() if self.faults else ("", None)
        if when != "before":
            self._workers.submit(lead)
        if fault is not None:
            raise fault

    def submit_in_thread(self) -> threading.Thread:
        """Begin to commit from another thread."""

        def submit() -> None:
            assert self.commits.submit(BATCH) == ["done"]

        thread = threading.Thread(target=submit)
        thread.start()
        assert self.under_way.wait(10)
        return thread


def test_a_failure_to_hand_over_is_not_the_leaders() -> None:
    """A sync leader cannot start the thread in which tasks are to lead: the first of them fails, and nobody else."""
    group = Committing()

    async def submit() -> list[Any]:
        tasks = [asyncio.ensure_future(group.commits.asubmit(BATCH)) for _ in range(5)]
        await asyncio.sleep(0)
        group.faults = [("before", MemoryError)]
        group.may_end.set()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    thread = group.submit_in_thread()
    failed, *others = asyncio.run(submit())
    assert isinstance(failed, MemoryError)
    assert others == [["done"]] * 4
    thread.join(10)
    assert not thread.is_alive()
    assert group.commits.submit(BATCH) == ["done"]
    assert group.committed == [1, 4, 1]


def test_a_sync_writer_queued_behind_a_cancelled_task_leads_in_its_own_thread() -> None:
    group, spawned = Committing(), []
    group.commits = GroupCommit(group._commit, spawned.append)
    leader = group.submit_in_thread()

    async def queue_and_cancel() -> threading.Thread:
        task = asyncio.ensure_future(group.commits.asubmit(BATCH))
        await asyncio.sleep(0)
        behind = group.submit_in_thread()
        eventually(lambda: len(group.commits._queue) == 2)
        group.may_end.set()
        eventually(lambda: bool(spawned))
        task.cancel()
        await asyncio.wait([task])
        return behind

    behind = asyncio.run(queue_and_cancel())
    spawned[0]()
    behind.join(10)
    assert not behind.is_alive()
    leader.join(10)
    assert group.committed == [1, 1]


def test_a_worker_that_cannot_hand_over_still_wakes_its_group() -> None:
    group = Committing()

    async def submit() -> list[Any]:
        first = [asyncio.ensure_future(group.commits.asubmit(BATCH)) for _ in range(3)]
        assert await asyncio.to_thread(group.under_way.wait, 10)
        later = [asyncio.ensure_future(group.commits.asubmit(BATCH)) for _ in range(2)]
        await asyncio.sleep(0)
        group.faults = [("before", MemoryError)]
        group.may_end.set()
        return await asyncio.wait_for(asyncio.gather(*first, *later, return_exceptions=True), 10)

    outcomes = asyncio.run(submit())
    assert outcomes.count(["done"]) == 4
    assert sum(isinstance(outcome, MemoryError) for outcome in outcomes) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_task_that_gets_no_thread_writes_nothing(when: str) -> None:
    group = Committing()

    async def submit() -> None:
        group.faults = [(when, MemoryError)]
        with pytest.raises(MemoryError):
            await group.commits.asubmit(BATCH)

    asyncio.run(submit())
    group.may_end.set()
    assert group.commits.submit(BATCH) == ["done"]
    assert sum(group.committed) == 1


def test_closing_and_forking_pause_one_after_the_other() -> None:
    """Each goes on only with what it has paused itself."""
    group = Committing()
    group.may_end.set()
    group.commits.pause()
    closing = threading.Thread(target=group.commits.close)
    closing.start()
    while not group.commits._queue:
        assert closing.is_alive()
    assert closing.is_alive()
    group.commits.resume()
    closing.join(10)
    assert not closing.is_alive()
    group.commits.pause()
    group.commits.resume()


def test_a_batch_waits_while_commits_pause() -> None:
    group = Committing()
    group.may_end.set()
    group.commits.pause()
    thread = threading.Thread(target=group.commits.submit, args=(BATCH,))
    thread.start()
    while not group.commits._queue:
        assert thread.is_alive()
    assert group.committed == []
    group.commits.resume()
    thread.join(10)
    assert group.committed == [1]


class CommittingInLoop(Committing):
    """Commits groups in the event loop, as long as `is_free`."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end.set()
        self.is_free = True
        self.in_loop: list[int] = []  # how many batches, by group
        self.commits = GroupCommit(self._commit, self._spawn, self._commit_in_loop, lambda batch: batch is BATCH)

    def _commit_in_loop(self, group: list[Submission]) -> None:
        if self.is_free:
            self.in_loop.append(len(group))
            for submission in group:
                submission.results, submission.finished = ["done in the loop"], True


def test_batches_of_one_turn_of_an_event_loop_are_committed_there_together() -> None:
    group = CommittingInLoop()

    async def submit() -> list[Any]:
        tasks = [asyncio.ensure_future(group.commits.asubmit(BATCH)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    first, second, third = asyncio.run(submit())
    assert first == third == ["done in the loop"]
    assert isinstance(second, asyncio.CancelledError)
    assert (group.in_loop, group.committed) == ([2], [])


def test_tasks_that_submit_again_and_again_share_each_group() -> None:
    """The one that leads goes on at once, and the others a turn later."""
    group = CommittingInLoop()

    async def submit_some() -> None:
        for _ in range(3):
            await group.commits.asubmit(BATCH)

    async def submit() -> None:
        await asyncio.wait_for(asyncio.gather(*(submit_some() for _ in range(4))), 10)

    asyncio.run(submit())
    assert (group.in_loop, group.committed) == ([4, 4, 4], [])


def test_batches_behind_a_cancelled_one_are_committed_in_the_event_loop() -> None:
    group = CommittingInLoop()

    async def submit() -> list[Any]:
        tasks = [asyncio.ensure_future(group.commits.asubmit(BATCH)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    first, *others = asyncio.run(submit())
    assert isinstance(first, asyncio.CancelledError)
    assert others == [["done in the loop"]] * 2
    assert (group.in_loop, group.committed) == ([2], [])


def test_what_an_event_loop_leaves_is_committed_by_a_thread_in_its_order() -> None:
    group = CommittingInLoop()
    other: list[Op] = [Get(("home",), "other")]

    async def submit(*batches: list[Op]) -> list[Any]:
        spawn = group.commits._spawn
        late: list[Any] = []
        group.commits._spawn = late.append
        tasks = asyncio.gather(*map(group.commits.asubmit, batches))
        for _ in range(3):  # the tasks begin, the event loop leads, and only then does a thread
            await asyncio.sleep(0)
        group.commits._spawn = spawn
        for lead in late:
            spawn(lead)
        return await asyncio.wait_for(tasks, 10)

    assert asyncio.run(submit(BATCH, other, BATCH)) == [["done in the loop"], ["done"], ["done"]]
    group.is_free = False
    assert asyncio.run(submit(BATCH, BATCH)) == [["done"]] * 2
    assert (group.in_loop, group.committed) == ([1], [2, 2])


def test_an_event_loop_leads_for_nobody_while_commits_pause_or_another_leads() -> None:
    group = CommittingInLoop()
    group.may_end.clear()

    async def submit() -> Any:
        leading = group.submit_in_thread()
        task = asyncio.ensure_future(group.commits.asubmit(BATCH))
        await asyncio.sleep(0.01)
        assert group.in_loop == []
        group.may_end.set()
        leading.join(10)
        results = [await asyncio.wait_for(task, 10)]
        group.commits.pause()
        task = asyncio.ensure_future(group.commits.asubmit(BATCH))
        await asyncio.sleep(0.01)
        assert group.in_loop == []
        group.commits.resume()
        return [*results, await asyncio.wait_for(task, 10)]

    assert asyncio.run(submit()) == [["done"]] * 2


def test_an_event_loop_wakes_a_thread_whose_batch_it_has_committed() -> None:
    group = CommittingInLoop()
    outcomes: list[Any] = []

    async def submit() -> None:
        group.commits.pause()
        waiting = threading.Thread(target=lambda: outcomes.append(group.commits.submit(BATCH)), daemon=True)
        waiting.start()
        while not group.commits._queue:
            await asyncio.sleep(0)
        group.commits._has_leader = False  # as at the moment before the thread is asked to lead
        outcomes.append(await asyncio.wait_for(group.commits.asubmit(BATCH), 10))
        waiting.join(2)

    asyncio.run(submit())
    assert outcomes == [["done in the loop"]] * 2
    assert group.in_loop == [2]


def test_a_signal_handler_wakes_an_event_loop_that_waits_whose_batch_it_has_committed() -> None:
    """Python runs the handler inside of the wait, which then goes on, unless the loop is woken."""
    commits = Committing()
    spawned: list[Any] = []
    commits.may_end.set()
    commits.commits._spawn = spawned.append  # the thread has not begun to lead

    async def submit() -> float:
        asyncio.get_running_loop().call_later(10, list)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        began = time.monotonic()
        assert await commits.commits.asubmit(BATCH) == ["done"]
        return time.monotonic() - began

    before = signal.signal(signal.SIGALRM, lambda *_: commits.commits.submit(BATCH))
    try:
        assert asyncio.run(submit()) < 5
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (len(spawned), commits.committed) == (1, [2])


def test_a_signal_handler_may_wait_for_a_thread_that_leads_wherever_it_interrupts_an_event_loop() -> None:
    group = CommittingInLoop()
    group.may_end.clear()
    outcomes: list[Any] = []

    def handle(*_: Any) -> None:
        threading.Timer(0.05, group.may_end.set).start()
        outcomes.append(group.commits.submit(BATCH))

    def refuse_if_closed() -> None:
        if not outcomes and threading.current_thread() is threading.main_thread():
            group.commits._refuse_if_closed = lambda: None  # type: ignore[method-assign]  # of the handler's own batch
            signal.raise_signal(signal.SIGALRM)

    async def submit() -> None:
        leading = group.submit_in_thread()
        group.commits._refuse_if_closed = refuse_if_closed  # type: ignore[method-assign]  # which has the mutex
        outcomes.append(await asyncio.wait_for(group.commits.asubmit(BATCH), 10))
        leading.join(10)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        asyncio.run(submit())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert outcomes in ([["done"], ["done"]], [["done"], ["done in the loop"]])


def test_an_error_of_a_commit_in_an_event_loop_is_reported_and_a_thread_commits() -> None:
    group = CommittingInLoop()
    reported: list[Any] = []

    def fail(_: list[Submission]) -> None:
        raise RuntimeError("a bug")

    group.commits._commit_in_loop = fail

    async def submit() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        return await asyncio.wait_for(group.commits.asubmit(BATCH), 10)

    assert asyncio.run(submit()) == ["done"]
    assert [str(error) for error in reported] == ["a bug"]
    assert group.committed == [1]
