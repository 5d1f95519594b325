"""Group commit: concurrent writers share one transaction and one fsync.

The first writer to come leads: it commits its own batch at once, in its own thread, and pays nothing for the others.
Who comes while it is at it queues, and the first in the queue leads next, with all that has gathered by then. A sync
writer leads in its own thread; for async writers a worker thread does, and one call into each event loop brings a whole
group's outcomes back.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import StoreClosed
from ..ops import Op

_LARGEST_GROUP = 512


class Submission:
    """One batch on its way through a thread that is not its caller's, and what became of it."""

    __slots__ = ("batch", "cancelled", "error", "finished", "future", "gate", "leads", "results")

    def __init__(self, batch: Sequence[Op]) -> None:
        self.batch = batch
        self.results: list[Any] = []
        self.error: BaseException | None = None
        self.finished = False
        self.cancelled = False  # nobody waits any more: drop it, if it has not begun
        self.leads = False
        self.gate: threading.Lock | None = None  # a sync caller waits here
        self.future: asyncio.Future[list[Any]] | None = None  # an async caller waits here

    def outcome(self) -> list[Any]:
        if self.error is not None:
            raise self.error
        return self.results

    async def arrive(self) -> list[Any]:
        """Wait, as an async caller, for the outcome."""
        assert self.future is not None
        try:
            return await self.future
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def announce(group: Iterable[Submission]) -> None:
    """Tell the callers of finished submissions: each sync one, and each event loop once."""
    loops: dict[asyncio.AbstractEventLoop, list[Submission]] = {}
    for submission in group:
        if submission.gate is not None:
            submission.gate.release()
        elif submission.future is not None:
            loops.setdefault(submission.future.get_loop(), []).append(submission)
    for loop, submissions in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve, submissions)
        except RuntimeError:  # the loop was closed: nobody is left to tell
            continue


def _resolve(submissions: list[Submission]) -> None:
    for submission in submissions:
        future = submission.future
        if future is None or future.done():
            continue
        if submission.error is not None:
            future.set_exception(submission.error)
        else:
            future.set_result(submission.results)


class GroupCommit:
    """Brings batches to `commit`, one group at a time.

    `commit(group)` runs every submission of the group that is not cancelled, sets its `results` or `error`, and once
    that is durable, `finished`. `spawn(function)` runs a function in a worker thread.
    """

    def __init__(self, commit: Callable[[list[Submission]], None], spawn: Callable[[Callable[[], None]], Any]) -> None:
        self._commit = commit
        self._spawn = spawn
        self._mutex = threading.Lock()
        self._queue: deque[Submission] = deque()
        self._led = False
        self._closed = False

    def submit(self, batch: Sequence[Op]) -> list[Any]:
        """Commit a batch from this thread."""
        submission = Submission(batch)
        try:
            with self._mutex:
                self._refuse_if_closed()
                if self._led:
                    submission.gate = threading.Lock()
                    submission.gate.acquire()
                    self._queue.append(submission)
                else:
                    submission.leads = self._led = True
            if submission.gate is not None:
                submission.gate.acquire()
            if submission.leads:
                self._lead(submission)
        except BaseException:  # an interrupt, wherever it came: withdraw, and pass the lead on
            submission.cancelled = True
            if submission.leads:
                self._hand_over(submission)
            raise
        return submission.outcome()

    async def asubmit(self, batch: Sequence[Op]) -> list[Any]:
        """Commit a batch from an event loop."""
        submission = Submission(batch)
        submission.future = asyncio.get_running_loop().create_future()
        with self._mutex:
            self._refuse_if_closed()
            self._queue.append(submission)
            leader_needed = not self._led
            self._led = True
        if leader_needed:
            self._spawn(self._lead_queue)
        return await submission.arrive()

    def pause(self) -> None:
        """Lead without committing anything: until `resume`, no batch is under way. For forking."""
        with self._mutex:
            if not self._led:
                self._led = True
                return
            turn = Submission(())
            turn.gate = threading.Lock()
            turn.gate.acquire()
            self._queue.appendleft(turn)
        turn.gate.acquire()

    def resume(self) -> None:
        self._hand_over()

    def close(self) -> None:
        """Let the group under way finish; refuse the rest."""
        with self._mutex:
            self._closed = True
            refused = list(self._queue)
            self._queue.clear()
        for submission in refused:
            submission.error = StoreClosed("the store was closed before this batch began; nothing of it was written")
            submission.finished = True
        announce(refused)
        self.pause()
        self.resume()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")

    def _lead_queue(self) -> None:
        """Lead in a worker thread, if the first in the queue still has none of its own."""
        with self._mutex:
            first = self._queue.popleft() if self._queue and self._queue[0].gate is None else None
        if first is None:
            self._hand_over()
        else:
            first.leads = True
            self._lead(first)

    def _lead(self, first: Submission) -> None:
        """Commit a group, led by `first`; then hand over to whoever has come since."""
        with self._mutex:
            group = [first]
            while self._queue and len(group) < _LARGEST_GROUP and self._queue[0].batch:
                group.append(self._queue.popleft())
        try:
            self._commit(group)
        except BaseException as error:
            # Only what no batch can cause comes here: the leader's thread was interrupted, or a fault of ours. It is
            # the leader's alone: whoever has no outcome yet goes to the next one.
            first.error, first.finished = error, True
            with self._mutex:
                self._queue.extendleft(reversed([submission for submission in group if not submission.finished]))
            raise
        finally:
            self._hand_over(first)
            finished = (submission for submission in group if submission.finished)
            announce(submission for submission in finished if submission is not first or first.future is not None)

    def _hand_over(self, leader: Submission | None = None) -> None:
        """Let the next in the queue lead, if there is one."""
        with self._mutex:
            if leader is not None:
                leader.leads = False
            while self._queue and self._queue[0].cancelled:
                self._queue.popleft()
            if not self._queue:
                self._led = False
                return
            if self._queue[0].gate is None:
                following = None
            else:
                following = self._queue.popleft()
                following.leads = True
        if following is None:
            self._spawn(self._lead_queue)
        else:
            assert following.gate is not None
            following.gate.release()
