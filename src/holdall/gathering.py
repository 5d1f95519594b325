"""What tasks of one event loop ask for at once, brought to the store as one batch.

A framework that calls `await store.aput(…)` from sixty tasks pays for one round trip and one commit, not for sixty. The
first to ask begins; who asks while a batch is under way is in the next. No event loop is special: each has a queue of
its own. And nobody shares another's fate: a batch that fails is cut in two, until what cannot be done stands alone.
Where the embedder is away, all that was to be embedded fails at once: it would be waited for, once for each of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from .errors import EmbeddingError, StoreClosed, Unavailable
from .ops import PointOp, Put

_LARGEST_BATCH = 512

_Execute: TypeAlias = Callable[[list[PointOp]], Coroutine[Any, Any, list[Any]]]
_Waiting: TypeAlias = tuple[PointOp, "asyncio.Future[Any]"]


class Gathering:
    """Gathers ops for `execute`, which takes an atomic batch of them and gives its results.

    What is asked for in one event loop is done in the order in which it was asked for.
    """

    def __init__(self, execute: _Execute) -> None:
        self._execute = execute
        self._of_thread = threading.local()

    async def ask(self, op: PointOp) -> Any:
        """An op's result, from whichever batch it is in."""
        loop = asyncio.get_running_loop()
        queue: _Queue | None = getattr(self._of_thread, "queue", None)
        if queue is None or queue.loop is not loop:
            queue = self._of_thread.queue = _Queue(loop, self._execute)
        if queue.is_busy:
            return await queue.join(op)
        return await queue.begin(op)


class _Queue:
    """The ops of one event loop that wait."""

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
        """Be the first. Who is still alone after a turn of the event loop needs no task and no future."""
        self.is_busy = True
        try:
            await asyncio.sleep(0)
            if not self._waiting:
                return (await self._execute([op]))[0]
            future = self.loop.create_future()
            self._waiting.insert(0, (op, future))
        finally:
            self._hand_over()
        return await future

    def _hand_over(self) -> None:
        """To a task, which no caller can cancel: there may be others in its batch."""
        self.is_busy = bool(self._waiting) and not self.loop.is_closed()
        if self.is_busy:
            self._task = self.loop.create_task(self._work(), name="holdall-gathering")

    async def _work(self) -> None:
        """Until nobody waits: all who wait by now, in one batch."""
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
            if isinstance(error, EmbeddingError) and error._is_the_model:  # what it is not asked for can still be done
                _fail([one for one in some if type(one[0]) is Put and one[0].index is not False] or some, error)
                await self._perform(some)
                return
            if len(some) > 1 and not isinstance(error, Unavailable | StoreClosed):  # which concern them all
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
