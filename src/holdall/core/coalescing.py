"""Joins ops that tasks of one event loop send at the same time into one batch.

A framework that calls `await store.aput(…)` from sixty tasks pays for one round trip and one commit, not for sixty. The
first op starts a batch. Ops that arrive while a batch runs are in the next one. Each event loop has its own queue. If a
batch fails, it is split in two until the op that fails is alone, so that no op fails because of another. If the
embedder is unavailable, all ops that need it fail at once, instead of each waiting for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from ..errors import EmbeddingError, StoreClosed, Unavailable
from ..ops import PointOp, Put

_LARGEST_BATCH = 512

_Execute: TypeAlias = Callable[[list[PointOp]], Coroutine[Any, Any, list[Any]]]
_Waiting: TypeAlias = tuple[PointOp, "asyncio.Future[Any]"]


class Coalescer:
    """Collects ops for `execute`, which runs them as one atomic batch and returns their results.

    Ops of one event loop run in the order in which they were sent.
    """

    def __init__(self, execute: _Execute) -> None:
        self._execute = execute
        self._of_thread = threading.local()

    async def run(self, op: PointOp) -> Any:
        """Run an op in a batch with others, and return its result."""
        loop = asyncio.get_running_loop()
        queue: _Queue | None = getattr(self._of_thread, "queue", None)
        if queue is None or queue.loop is not loop:
            queue = self._of_thread.queue = _Queue(loop, self._execute)
        if queue.is_busy:
            return await queue.join(op)
        return await queue.begin(op)


class _Queue:
    """The ops of one event loop that wait for the next batch."""

    def __init__(self, loop: asyncio.AbstractEventLoop, execute: _Execute) -> None:
        self.loop = loop
        self.is_busy = False
        self._execute = execute
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    def join(self, op: PointOp) -> asyncio.Future[Any]:
        future = self.loop.create_future()
        self._waiting.append((op, future))
        return future

    async def begin(self, op: PointOp) -> Any:
        """Start a batch. An op that is still alone after one turn of the event loop needs no task."""
        self.is_busy = True
        try:
            await asyncio.sleep(0)
            if not self._waiting:
                return (await self._execute([op]))[0]
            future = self.loop.create_future()
            self._waiting.insert(0, (op, future))
        finally:
            self._start_task()
        return await future

    def _start_task(self) -> None:
        """Start a task for the ops that wait, so that a cancelled caller does not end the batch of others."""
        self.is_busy = bool(self._waiting) and not self.loop.is_closed()
        if self.is_busy:
            self._task = self.loop.create_task(self._work(), name="holdall-coalescing")

    async def _work(self) -> None:
        """Run all ops that wait in one batch, until none are left."""
        try:
            while self._waiting:
                some, self._waiting = self._waiting[:_LARGEST_BATCH], self._waiting[_LARGEST_BATCH:]
                await self._perform(some)
        except asyncio.CancelledError:  # the event loop ends
            for _, future in some + self._waiting:
                future.cancel()
            self._waiting.clear()
            raise
        finally:
            self.is_busy = False

    async def _perform(self, some: list[_Waiting]) -> None:
        some = [(op, future) for op, future in some if not future.done()]
        if not some:
            return
        try:
            results = await self._execute([op for op, _ in some])
        except Exception as error:
            if isinstance(error, EmbeddingError) and error._fails_for_all_texts:  # ops without embedding can still run
                _fail([one for one in some if type(one[0]) is Put and one[0].search_fields is not False] or some, error)
                await self._perform(some)
                return
            if len(some) > 1 and not isinstance(error, Unavailable | StoreClosed):  # these errors concern all ops
                middle = len(some) // 2
                await self._perform(some[:middle])
                await self._perform(some[middle:])
                return
            _fail(some, error)
        else:
            for (_, future), result in zip(some, results, strict=True):
                if not future.done():
                    future.set_result(result)


def _fail(some: list[_Waiting], error: Exception) -> None:
    for _, future in some:
        if not future.done():
            future.set_exception(error)
