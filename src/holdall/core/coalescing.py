"""Joins ops that tasks of one event loop send at the same time into one batch.

A program that calls `await store.aput(…)` from sixty tasks pays for one round trip and one commit, not for sixty. Ops
of one turn of the event loop are one batch. While the largest number of batches runs, further ops wait for the next
one. Each event loop has its own queue. If a batch fails, it is split in two until the op that fails is alone, so
that no op fails because of another. If the embedder is unavailable, all ops that need it fail at once, instead of each
waiting for it.

The engine handle uses it for engines that talk to a server, and the LangGraph face for all of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from ..errors import EmbeddingError, StoreClosed, Unavailable
from ..ops import Get, Namespace, PointOp, Put

_LARGEST_BATCH, _SMALL_BATCH = 250, 16
#: After so many seconds, ops that wait no longer wait for a batch that runs: the server may be silent.
_PATIENCE = 0.1

_Execute: TypeAlias = Callable[[list[Any]], Coroutine[Any, Any, list[Any] | None]]
_Waiting: TypeAlias = tuple[PointOp, "asyncio.Future[Any]"]
_Address: TypeAlias = tuple[Namespace, str]


class Coalescer:
    """Collects ops for `execute`, which runs them as one batch and returns their results or exceptions, or None.

    None means that nothing was done, and that each op must run alone. At most `concurrency` batches run at once. Writes
    of one event loop to one key run in the order in which they were sent; if `concurrency` is 1, so do all ops.
    """

    def __init__(self, execute: _Execute, concurrency: int = 1) -> None:
        self._execute = execute
        self._concurrency = concurrency
        self._of_thread = threading.local()

    async def run(self, op: PointOp) -> Any:
        """Run an op in a batch with others, and return its result."""
        loop = asyncio.get_running_loop()
        queue: _Queue | None = getattr(self._of_thread, "queue", None)
        if queue is None or queue.loop is not loop:
            queue = self._of_thread.queue = _Queue(loop, self._execute, self._concurrency)
        return await queue.run(op)


class _Queue:
    """The ops of one event loop that wait for the next batch."""

    def __init__(self, loop: asyncio.AbstractEventLoop, execute: _Execute, concurrency: int) -> None:
        self.loop = loop
        self._execute = execute
        self._concurrency = concurrency
        self._running = 0
        self._written: set[_Address] = set()  # by the batches that run, if several may run at once
        self._was_joined = True  # whether the last batch had several ops: then the next is likely to have, too
        self._waiting: list[_Waiting] = []
        self._is_blocked = False  # all that wait do so for running writes to their keys; `run` starts the next batch
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, op: PointOp) -> Any:
        is_alone = not self._waiting and not self._was_joined and self._running < self._concurrency
        if is_alone and (address := self._address(op)) not in self._written:
            return await self._run_alone(op, address)
        future = self.loop.create_future()
        self._waiting.append((op, future))
        if len(self._waiting) == 1:
            self._start_soon()
        elif self._is_blocked:
            self._is_blocked = False
            self.loop.call_soon(self._start)
        return await future

    async def _run_alone(self, op: PointOp, address: _Address | None) -> Any:
        """Run an op as a batch of its own, without a task."""
        self._begin({address})
        try:
            results = await self._execute([op])
            assert results is not None
            return results[0]
        finally:
            self._end({address})

    def _start_soon(self) -> None:
        """Start the next batch after this turn of the event loop, if one more may run then."""
        self.loop.call_soon(self._start)
        if self._concurrency > 1:
            self._timer = self.loop.call_later(_PATIENCE, self._start, False)

    def _start(self, is_patient: bool = True) -> None:
        """Start the next batch in a task of its own, so that a cancelled caller does not end the batch of others."""
        if not self._waiting or (is_patient and self._running >= self._concurrency):
            return
        if self._timer is not None:
            self._timer.cancel()
        some, addresses = self._take_batch()
        self._is_blocked = not some
        if not some:
            self._timer = self.loop.call_later(_PATIENCE, self._start, False)
            return
        self._was_joined = len(some) > 1
        self._begin(addresses)
        task = self.loop.create_task(self._work(some, addresses), name="holdall-coalescing")
        self._tasks.add(task)  # the event loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)
        if self._waiting:
            self._start_soon()

    def _take_batch(self) -> tuple[list[_Waiting], set[_Address | None]]:
        """Take the ops of the next batch. A write waits for those to the same key that were sent before it."""
        if self._concurrency == 1:
            some, self._waiting = self._waiting[:_LARGEST_BATCH], self._waiting[_LARGEST_BATCH:]
            return some, set()
        some, left = [], []
        addresses: set[_Address | None] = set()
        skipped: set[_Address | None] = set()
        # Of many ops, a half first: while the server works on it, the other half is prepared. Measured with 64 tasks on
        # PostgreSQL: 48,000 puts/s instead of 37,000.
        largest = _LARGEST_BATCH if self._running else max(len(self._waiting) // 2, _SMALL_BATCH)
        for one in self._waiting:
            address = self._address(one[0])
            if len(some) == largest or (
                address is not None and (address in self._written or address in addresses or address in skipped)
            ):
                skipped.add(address)
                left.append(one)
            else:
                addresses.add(address)
                some.append(one)
        self._waiting = left
        return some, addresses

    def _address(self, op: Any) -> _Address | None:
        return None if self._concurrency == 1 or type(op) is Get else (op.namespace, op.key)

    def _begin(self, addresses: set[_Address | None]) -> None:
        self._running += 1
        self._written.update(address for address in addresses if address is not None)

    def _end(self, addresses: set[_Address | None]) -> None:
        self._running -= 1
        self._written -= addresses
        if not self.loop.is_closed():
            self._start()

    async def _work(self, some: list[_Waiting], addresses: set[_Address | None]) -> None:
        try:
            await self._perform(some)
        except asyncio.CancelledError:  # the event loop ends
            for _, future in some + self._waiting:
                future.cancel()
            self._waiting.clear()
            raise
        finally:
            self._end(addresses)

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
            if results is None:
                await asyncio.gather(*(self._perform([one]) for one in some))
                return
            for (_, future), result in zip(some, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)


def _fail(some: list[_Waiting], error: Exception) -> None:
    for _, future in some:
        if not future.done():
            future.set_exception(error)
