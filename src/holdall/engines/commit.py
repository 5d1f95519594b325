"""Group commit: concurrent writers share one transaction and one fsync.

The first writer to come leads: it commits its own batch at once, in its own thread, and pays nothing for the others.
Who comes while it is at it queues, and the first in the queue leads next, with all that has gathered by then. A sync
writer leads in its own thread; for async writers a worker thread does, and one call into each event loop brings a whole
group's outcomes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

from ..errors import StoreClosed
from ..ops import Op

_LARGEST_GROUP = 512
_MOST_TRIES = 4


class Submission:
    """One batch on its way, and what became of it."""

    __slots__ = ("batch", "began", "error", "finished", "future", "gate", "group", "left", "results")

    def __init__(self, batch: Sequence[Op]) -> None:
        self.batch = batch
        self.began = time.monotonic()
        self.results: list[Any] = []
        self.error: BaseException | None = None
        self.finished = False
        self.left = False  # by a sync caller that was interrupted
        self.group: list[Submission] = []  # those it leads, itself among them
        self.gate: threading.Lock | None = None  # a sync caller waits here
        self.future: asyncio.Future[list[Any]] | None = None  # an async caller waits here

    @property
    def cancelled(self) -> bool:
        """Nobody waits any more: drop it, if it has not begun. Any thread may ask: it is so for good."""
        return self.left or (self.future is not None and self.future.cancelled())

    def outcome(self) -> list[Any]:
        error, self.error = self.error, None  # or its traceback would come back to it, for the collector to find
        try:
            if error is not None:
                raise error
        finally:
            del error
        return self.results

    def shut_gate(self) -> None:
        """Have a sync caller wait, until the gate is released."""
        self.gate = threading.Lock()
        self.gate.acquire()

    def wait(self) -> None:
        """Wait, as a sync caller, for the outcome or for the lead."""
        assert self.gate is not None
        self.gate.acquire()

    def awaited(self) -> asyncio.Future[list[Any]]:
        """Where an async caller waits for the outcome."""
        self.future = asyncio.get_running_loop().create_future()
        return self.future


def finishing(group: Iterable[Submission]) -> Iterator[None]:
    """To be consumed by a function of Python's own: all are finished then, and no signal comes between two of them."""
    kind: Any = Submission
    return map(kind.finished.__set__, group, repeat(True))


def announce(group: Iterable[Submission]) -> None:
    """Tell the callers of finished submissions: each sync one, and each event loop once."""
    loops: dict[asyncio.AbstractEventLoop, list[Submission]] = {}
    for submission in group:
        if submission.gate is not None:
            with contextlib.suppress(RuntimeError):  # told already: who was interrupted here begins again
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

    `commit(group)` runs submissions of the group that are not cancelled, the first at least, sets their `results` or
    `error`, and once that is durable, `finished`. `spawn(function)` has a worker thread run functions, one after
    another; it raises `StoreClosed` where none can be had.

    One submission leads at a time, and only it can hand the lead over. A thread can be interrupted (Ctrl-C) between any
    two steps, so each step here can be taken twice, and whoever is interrupted hands over on its way out.
    """

    def __init__(self, commit: Callable[[list[Submission]], None], spawn: Callable[[Callable[[], None]], Any]) -> None:
        self._commit = commit
        self._spawn = spawn
        self._mutex = threading.Lock()
        self._queue: deque[Submission] = deque()
        self._leader: Submission | None = None
        self._closed = False

    def submit(self, batch: Sequence[Op]) -> list[Any]:
        """Commit a batch from this thread."""
        submission = Submission(batch)
        try:
            if not self._enter(submission):
                submission.wait()
            if not submission.finished:
                self._lead(submission)
        except BaseException:
            submission.left = True
            self._conclude(submission)
            self._find_leader_a_thread()
            raise
        return submission.outcome()

    async def asubmit(self, batch: Sequence[Op]) -> list[Any]:
        """Commit a batch from an event loop."""
        submission = Submission(batch)
        outcome = submission.awaited()
        try:
            if self._enter(submission) and not self._lead_elsewhere(submission):
                self._hand_over(submission)
        except BaseException:
            outcome.cancel()
            self._find_leader_a_thread()
            raise
        return await outcome

    def pause(self, turn: Submission) -> None:
        """Lead without committing anything: until this turn is resumed, no batch is under way. For forking and closing.

        A turn is a submission of nothing, which whoever pauses has made before: so it can be resumed, come what may.
        """
        try:
            with self._mutex:
                waits = self._leader is not None
                if waits:
                    turn.shut_gate()
                    self._queue.appendleft(turn)
                else:
                    self._leader = turn
            if waits:
                turn.wait()
        except BaseException:
            self.resume(turn)
            raise

    def resume(self, turn: Submission) -> None:
        try:
            turn.left = True  # where it still queues
            self._hand_over(turn)
        except BaseException:
            self._hand_over(turn)
            self._find_leader_a_thread()
            raise

    def close(self) -> None:
        """Let the group under way finish; refuse the rest."""
        with self._mutex:
            self._closed = True
            refused = [one for one in self._queue if one is not self._leader]
            self._queue.clear()
        for submission in refused:
            submission.error = StoreClosed("the store was closed before this batch began; nothing of it was written")
            submission.finished = True
        announce(refused)
        turn = Submission(())
        try:
            self.pause(turn)
            self.resume(turn)
        except BaseException:
            self.resume(turn)
            raise

    def _enter(self, submission: Submission) -> bool:
        """Lead, if nobody does; else queue."""
        with self._mutex:
            if self._closed:
                raise StoreClosed("this store is closed; open a new one")
            if self._leader is None:
                self._leader = submission
                return True
            if submission.future is None:
                submission.shut_gate()
            self._queue.append(submission)
            return False

    def _lead(self, first: Submission) -> None:
        """Commit a group, led by `first`; then hand over to whoever has come since."""
        # No mutex is needed yet: if this one leads, only it can give the lead away, and as long as whoever made it lead
        # has not taken it out of the queue, there is something in it.
        if self._leader is not first:
            return
        group = first.group = [first]
        try:
            if self._queue:
                self._gather(group)
            self._commit(group)
        except BaseException as error:
            # Only what no batch can cause comes here: the leader's thread was interrupted, or a fault of ours. It is
            # the leader's alone.
            first.error, first.finished = error, True
            raise
        finally:
            self._conclude(first)

    def _gather(self, group: list[Submission]) -> None:
        """Have those who queue by now join a group."""
        with self._mutex:
            if group[0] in self._queue:
                self._queue.remove(group[0])
            while self._queue and len(group) < _LARGEST_GROUP and self._queue[0].batch:
                group.append(self._queue[0])
                self._queue.popleft()

    def _conclude(self, first: Submission) -> None:
        """Hand over, and tell the members of a group what became of them; who has no outcome yet queues again."""
        with self._mutex:
            if self._leader is first:
                if len(first.group) == 1 and first.finished and first.future is None and not self._queue:
                    self._leader = None
                    first.group.clear()
                    return  # the usual case: nobody else to see to
                undone = [one for one in first.group if not (one.finished or one.cancelled or one in self._queue)]
                self._queue.extendleft(reversed(undone))
        try:
            self._hand_over(first)
        finally:
            finished = [one for one in first.group if one.finished]
            announce(one for one in finished if one is not first or first.future is not None)
            first.group.clear()  # the leader itself is in it: a cycle would keep all of them until the collector comes

    def _hand_over(self, leader: Submission) -> None:
        """If it does lead, let the next in the queue lead."""
        while True:
            with self._mutex:
                if self._leader is not leader:
                    return
                while self._queue and (self._queue[0].cancelled or self._queue[0] is leader):
                    self._queue.popleft()
                following = self._leader = self._queue[0] if self._queue else None
                if following is None:
                    return
                if following.gate is not None:
                    following.gate.release()
                self._queue.popleft()  # last: an interrupt before this leaves a leader who knows that it leads
            if following.gate is not None or self._lead_elsewhere(following):
                return
            leader = following

    def _lead_elsewhere(self, submission: Submission) -> bool:
        """Lead in a worker thread, for a submission that has no thread of its own; False: none can be had.

        To be interrupted here is nothing to who is to lead, but that of whoever has this thread. It may have been too
        late: who is asked to lead twice finds that it does not lead any more.
        """
        failure: BaseException | None = None
        for _ in range(_MOST_TRIES):
            try:
                self._spawn(lambda: self._lead(submission))
                break
            except BaseException as error:
                failure = error
        else:
            submission.error, submission.finished = failure, True
            announce([submission])
            return False
        if failure is not None and not isinstance(failure, StoreClosed):
            raise failure
        return True

    def _find_leader_a_thread(self) -> None:
        """After an interrupt: whoever was about to have a task lead may not have come to it."""
        leader = self._leader
        if leader is not None and leader.future is not None and not self._lead_elsewhere(leader):
            self._hand_over(leader)
