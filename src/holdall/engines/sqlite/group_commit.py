"""Group commit: concurrent writers share one transaction and one fsync.

The first writer is the leader: it commits its own batch at once, in its own thread. Writers that arrive in the meantime
queue. The first of them leads the next group, which is everything in the queue by then. A sync writer leads in its own
thread. For async writers a worker thread leads, and one call into each event loop delivers the results of a group. The
event loop itself leads a group of small batches that need no fsync: those that its tasks have submitted in one turn. To
pass one of them to a thread and back takes longer than to commit it. The task of the first batch leads, in the next
turn.

Signals do not interrupt a writer: `holdall.runtime.signals` defers them. Signal handlers run only while a writer waits
in the queue, or a task submits its batch and waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ...errors import StoreClosed
from ...ops import Op
from ...runtime.signals import (
    SIGNAL_CHECK_INTERVAL,
    Restart,
    call_start,
    defer_signals,
    has_pending_signal,
    is_in_main_thread,
)

_LARGEST_GROUP, _LARGEST_IN_LOOP = 512, 64


class Submission:
    """One batch, and its outcome."""

    __slots__ = ("batch", "began", "error", "finished", "future", "gate", "results")

    def __init__(self, batch: Sequence[Op]) -> None:
        self.batch = batch
        self.began = call_start()
        self.results: list[Any] = []
        self.error: BaseException | None = None
        self.finished = False
        self.gate: threading.Lock | None = None  # a sync caller waits for this lock
        self.future: asyncio.Future[list[Any]] | None = None  # an async caller waits for this

    @property
    def cancelled(self) -> bool:
        """Whether the caller has gone: the batch is dropped if it has not begun. Any thread may read this."""
        return self.future is not None and self.future.cancelled()

    def outcome(self) -> list[Any]:
        """Return the results, or raise the error."""
        error, self.error = self.error, None  # otherwise traceback and submission would refer to each other
        try:
            if error is not None:
                raise error
        finally:
            del error
        return self.results

    def shut_gate(self) -> None:
        """Make `wait` wait until the gate is released."""
        self.gate = threading.Lock()
        self.gate.acquire()

    def wait(self, seconds: float = -1) -> bool:
        """Wait, as a sync caller, for the outcome or to become the leader; return whether the wait is over."""
        assert self.gate is not None
        return self.gate.acquire(timeout=seconds)

    def make_future(self) -> asyncio.Future[list[Any]]:
        """Return the future that an async caller waits for."""
        self.future = asyncio.get_running_loop().create_future()
        return self.future


def wake_callers(group: Iterable[Submission], this_loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Wake the callers of finished submissions: each sync one, and each event loop once.

    `this_loop` is the event loop in a callback of which this is called. A signal handler is in no callback: it may run
    while its event loop waits, which only `call_soon_threadsafe` ends.
    """
    loops: dict[asyncio.AbstractEventLoop, list[Submission]] = {}
    for submission in group:
        if submission.gate is not None:
            submission.gate.release()
        elif submission.future is not None:
            loops.setdefault(submission.future.get_loop(), []).append(submission)
    for loop, submissions in loops.items():
        try:
            if loop is this_loop:
                _resolve(submissions)
            else:
                loop.call_soon_threadsafe(_resolve, submissions)
        except RuntimeError:  # the loop was closed, and its tasks with it
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
    """Passes batches to `commit`, one group at a time.

    `commit(group)` runs the submissions of the group that are not cancelled. It sets their `results` or `error` and,
    once they are durable, `finished`. It always finishes the first, unless that is cancelled; others that it leaves
    unfinished go back to the queue. `spawn(function)` runs functions in a worker thread, one after another; it raises
    `StoreClosed` if there can be no thread. `commit_in_loop` is a `commit` that never waits, and may leave everything
    unfinished. It gets batches for which `fits_loop` is true.
    """

    def __init__(
        self,
        commit: Callable[[list[Submission]], None],
        spawn: Callable[[Callable[[], None]], Any],
        commit_in_loop: Callable[[list[Submission]], None] = lambda _: None,
        fits_loop: Callable[[Sequence[Op]], bool] = lambda _: False,
    ) -> None:
        self._commit = commit
        self._spawn = spawn
        self._commit_in_loop = commit_in_loop
        self._fits_loop = fits_loop
        self._mutex = threading.RLock()  # a signal handler may call the store while an event loop has it
        self._queue: deque[Submission] = deque()
        self._has_leader = False
        self._closed = False

    def submit(self, batch: Sequence[Op]) -> list[Any]:
        """Commit a batch from this thread."""
        submission = Submission(batch)
        with self._mutex:
            self._refuse_if_closed()
            is_leader = not self._has_leader
            if is_leader:
                self._has_leader = True
            else:
                submission.shut_gate()
                self._queue.append(submission)
        if not is_leader:
            self._wait(submission)
        if not submission.finished:
            self._lead(submission)
        return submission.outcome()

    def _wait(self, submission: Submission) -> None:
        """Wait in the queue. After a signal, leave it and raise `Restart`, so that the signal handler can run."""
        if not is_in_main_thread():  # no signal handler runs here
            submission.wait()
            return
        with self._mutex_released():
            while not submission.wait(SIGNAL_CHECK_INTERVAL):
                if has_pending_signal():
                    with self._mutex:
                        if submission in self._queue:  # otherwise it has begun, or is the leader
                            self._queue.remove(submission)
                            raise Restart

    @contextlib.contextmanager
    def _mutex_released(self) -> Iterator[None]:
        """Release the mutex, which this thread has if it is in a signal handler that interrupted `asubmit`.

        The leader needs it, to let the next batch lead.
        """
        levels = 0
        with contextlib.suppress(RuntimeError):  # this thread does not have it
            while True:
                self._mutex.release()
                levels += 1
        try:
            yield
        finally:
            for _ in range(levels):
                self._mutex.acquire()

    async def asubmit(self, batch: Sequence[Op]) -> list[Any]:
        """Commit a batch from an event loop."""
        submission = Submission(batch)
        outcome = submission.make_future()
        try:
            with self._mutex:  # a signal handler may interrupt this, see `_mutex_released`
                self._refuse_if_closed()
                is_first = not self._queue
                self._queue.append(submission)
                needs_leader = not self._has_leader
            if needs_leader:
                if not self._fits_loop(batch):
                    self._spawn(self._lead_next)
                elif is_first:
                    await asyncio.sleep(0)  # those that other tasks submit in this turn are committed with it
                    self._lead_in_loop(submission, is_caller=True)
                    if submission.finished and not outcome.done():
                        return submission.outcome()
                else:
                    outcome.get_loop().call_soon(self._lead_in_loop, submission)
            return await outcome
        except BaseException:  # also an interrupt: what has not begun must not be written later
            outcome.cancel()
            raise

    def pause(self) -> None:
        """Wait until no batch is under way, and let none begin until `resume`. For forking and closing."""
        pause = Submission(())
        with self._mutex:
            must_wait = self._has_leader
            self._has_leader = True
            if must_wait:
                pause.shut_gate()
                self._queue.appendleft(pause)
        if must_wait:
            pause.wait()

    def resume(self) -> None:
        self._hand_over()

    def close(self) -> None:
        """Finish the group under way; fail the batches in the queue."""
        with self._mutex:
            self._closed = True
            refused = [submission for submission in self._queue if submission.batch]
            for submission in refused:
                self._queue.remove(submission)
        for submission in refused:
            submission.error = StoreClosed("the store was closed before this batch began; nothing of it was written")
            submission.finished = True
        wake_callers(refused)
        self.pause()
        self.resume()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")

    def _lead_next(self) -> None:
        """Lead in a worker thread, for the first in the queue, unless there is a leader."""
        with self._mutex:
            if self._has_leader:
                return
            self._drop_cancelled()
            if not self._queue:
                return
            self._has_leader = True
            first = self._queue.popleft()
        if first.gate is not None:  # async ones before it were cancelled; a sync caller leads in its own thread
            first.gate.release()
        else:
            self._lead(first)

    def _lead_in_loop(self, submission: Submission, is_caller: bool = False) -> None:
        """Lead in an event loop, unless a batch was committed with others of its turn.

        With `is_caller`, the task of the batch calls this, and takes the result itself.
        """
        if not submission.finished:
            defer_signals(self._lead_small, submission if is_caller else None)

    def _lead_small(self, own: Submission | None) -> None:
        group: list[Submission] = []
        with self._mutex:
            if self._has_leader:
                return
            while self._queue and len(group) < _LARGEST_IN_LOOP:
                if not self._queue[0].cancelled:
                    if self._queue[0] is not own and not (
                        self._queue[0].batch and self._fits_loop(self._queue[0].batch)
                    ):
                        break
                    group.append(self._queue[0])
                self._queue.popleft()
            self._has_leader = True
        try:
            if group:
                self._commit_in_loop(group)
        except Exception as error:  # a bug, which is no task's own: a thread tries again
            context = {"message": "a commit in the event loop failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        finally:
            self._end_group(group)
        others = [one for one in group if one.finished and one is not own]
        if others:
            wake_callers(others, asyncio.get_running_loop())

    def _lead(self, first: Submission) -> None:
        """Commit a group, which `first` leads; then let the next in the queue lead."""
        group = [first]
        if self._queue:
            with self._mutex:
                while self._queue and len(group) < _LARGEST_GROUP and self._queue[0].batch:
                    group.append(self._queue.popleft())
        try:
            self._commit(group)
        except BaseException as error:  # a bug in `commit`, which no batch can cause: only the leader gets it
            first.error, first.finished = error, True
        self._end_group(group)
        wake_callers(one for one in group if one.finished and (one is not first or first.future is not None))

    def _end_group(self, group: list[Submission]) -> None:
        """Put what was not done back into the queue, and let the next lead."""
        undone = [one for one in group if not (one.finished or one.cancelled)]
        if undone:
            with self._mutex:
                self._queue.extendleft(reversed(undone))
        self._hand_over()

    def _hand_over(self) -> None:
        """Let the next in the queue lead."""
        while True:
            with self._mutex:
                self._drop_cancelled()
                following = self._queue[0] if self._queue else None
                self._has_leader = following is not None and following.gate is not None
                if self._has_leader:
                    self._queue.popleft()
            if following is None:
                return
            if following.gate is not None:
                following.gate.release()
                return
            try:
                self._spawn(self._lead_next)
                return
            except BaseException as error:  # any error: the next in the queue must not wait for ever
                with self._mutex:
                    if following in self._queue:
                        self._queue.remove(following)
                        following.error, following.finished = error, True
                if following.finished:
                    wake_callers([following])

    def _drop_cancelled(self) -> None:
        while self._queue and self._queue[0].cancelled:
            self._queue.popleft()
