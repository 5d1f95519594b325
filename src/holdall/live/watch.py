"""Watching: every change under a prefix, in order, exactly once, from a cursor on.

A subscription reads the feed a page at a time. When it has read everything, it waits for a notification
(`holdall.live.notification`). It keeps only a page and its cursor: a slow one blocks no writer, and after a crash a new
one continues from the cursor.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .. import ops
from ..core.dispatch import Dispatcher
from ..errors import InvalidInput, StoreClosed, shown
from ..ops import Change, Namespace, Page, replace
from ..runtime.arguments import explain_renamed
from ..runtime.programs import Call, StoreProgram, arun, run
from ..runtime.signals import defer_signals
from .notification import Event, LoopEvent, Notifier, ThreadEvent

if TYPE_CHECKING:
    from asyncio import Future

T = TypeVar("T")


class _Subscription:
    """A position in the feed: what both kinds of subscription share."""

    _make_event: Callable[[], Event]

    def __init__(self, store: Dispatcher, walk: ops.Changes) -> None:
        if not (walk.since is None or (isinstance(walk.since, str) and walk.since and walk.since.isascii())):
            raise InvalidInput(f"since= is a cursor, from a change or from store.cursor(), not {shown(walk.since)}")
        self._store = store
        self._walk = walk  # its `since` is the position after the last page
        self._page: deque[Change] = deque()
        self._position: str | None = walk.since
        self._closed = False
        self._reset_process()

    def _reset_process(self) -> None:
        """Reset what belongs to one process: at the start, and in a forked child."""
        self._process = os.getpid()
        self._notifier: Notifier | None = None
        self._event: Event | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._turn = threading.Lock()

    def __repr__(self) -> str:
        return f"<holdall.{type(self).__name__} of {self._walk.prefix!r}{', closed' if self._closed else ''}>"

    @property
    def cursor(self) -> str | None:
        """The position after the last change that was returned. Another subscription continues there with `since=`."""
        return self._position

    def _begin(self) -> StoreProgram[None]:
        """Find the position: the end of the feed, or the cursor, which is checked by reading the first page."""
        if self._walk.since is None:
            page: Page[Change] = (yield [replace(self._walk, limit=0)])[0]
            walk = replace(self._walk, since=page.next)
            self._walk, self._position = walk, page.next
        elif not self._page:
            yield from self._read()

    def _read(self) -> StoreProgram[None]:
        walk = self._walk
        page: Page[Change] = (yield [walk])[0]
        if self._walk is not walk:  # another task has read this page in the meantime
            return
        following, pending = replace(walk, since=page.next), deque([*self._page, *page])
        given = self._position if page else page.next
        # In one statement without a call, so that no interrupt comes in between: each page is read exactly once.
        self._walk, self._page, self._position = following, pending, given

    def _next(self) -> StoreProgram[Change | None]:
        """Wait for the next change. It stays the first of the page. None if the subscription is closed."""
        if self._walk.since is None:
            yield from self._begin()
        while not self._closed:
            if self._page:
                return self._page[0]
            event, notifier = self._listen()
            event.clear()
            yield from self._read()
            if not self._page and not self._closed:
                yield Call(event.wait, (notifier.poll_interval,))
        return None

    def _listen(self) -> tuple[Event, Notifier]:
        """Return the event that is set when there may be more changes, and its notifier."""
        if self._event is None or self._notifier is None:
            notifier, event = self._store._engine_handle.companion(Notifier), self._make_event()
            finalizer = weakref.finalize(self, notifier.remove_soon, event)
            finalizer.atexit = False
            defer_signals(notifier.add, event)
            # Set last: an event must be added before anything waits for it.
            self._notifier, self._event, self._finalizer = notifier, event, finalizer
            if self._closed:  # in the meantime, by another thread
                self._finish()
        return self._event, self._notifier

    def _finish(self) -> None:
        """End the iteration. A thread that waits in it wakes up."""
        self._closed = True
        if self._process == os.getpid():
            defer_signals(self._stop_listening)

    def _stop_listening(self) -> None:
        if self._event is not None:
            self._event.set()
        if self._finalizer is not None and self._finalizer.detach() is not None:
            assert self._notifier is not None
            assert self._event is not None
            self._notifier.remove(self._event)

    def _end_with_store(self, program: StoreProgram[T]) -> StoreProgram[T]:
        """Run a program, and end the subscription if the store is closed."""
        try:
            return (yield from program)
        except StoreClosed:
            self._finish()
            raise


class Watch(_Subscription):
    """An iterator over changes, from `Store.watch`. It waits for the next change until any thread closes it."""

    _make_event = ThreadEvent

    def __init__(self, store: Dispatcher, walk: ops.Changes) -> None:
        super().__init__(store, walk)
        store._run(self._begin())

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Change:
        if self._process != os.getpid():
            self._reset_process()
        change: Change | None = None
        before = self._position
        try:
            with self._turn:
                first = self._store._run(self._end_with_store(self._next()))
                if first is not None:
                    change, self._position = first, first.cursor
                    del self._page[0]
        except BaseException:
            if change is not None:  # interrupted before it was returned: return it next time
                self._page.appendleft(change)
                self._position = before
            raise
        if change is None:
            raise StopIteration
        return change

    def close(self) -> None:
        """End the iteration. A thread that waits in it wakes up. Closing twice is allowed."""
        self._finish()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncWatch(_Subscription):
    """An async iterator over changes, from `Store.awatch`.

    Without `since=`, it starts with `async with`, or else with its first step.
    """

    _make_event = LoopEvent

    def __init__(self, store: Dispatcher, walk: ops.Changes) -> None:
        super().__init__(store, walk)
        import asyncio

        self._steps = asyncio.Lock()
        self._loop_guard: AsyncGenerator[None, None] | None = None
        self._awaited: list[Future[None]] = []

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> Change:
        if self._process != os.getpid():
            self._reset_process()
        if self._loop_guard is None and not self._closed:
            self._loop_guard = _close_with_loop(weakref.ref(self))
            await anext(self._loop_guard)
        try:
            async with self._steps:  # one task at a time, so that each change is returned once
                change = await self._store._arun(self._end_with_store(self._next()))
                if change is None:
                    raise StopAsyncIteration
                self._position = change.cursor
                del self._page[0]
        except BaseException:
            self._resolve_awaited()
            raise
        return change

    async def caught_up(self) -> None:
        """Wait until the task that iterates has taken every earlier change and asks for more, or until it is closed.

        Another task must iterate.
        """
        import asyncio

        if self._closed:
            return
        taken = asyncio.get_running_loop().create_future()
        self._awaited.append(taken)
        if self._event is not None:
            self._event.set()
        await taken

    def _read(self) -> StoreProgram[None]:
        awaited, self._awaited = self._awaited, []  # calls of `caught_up` during this read wait for the next one
        try:
            yield from super()._read()
        finally:
            self._awaited = awaited + self._awaited
        if not self._page:
            self._resolve_awaited(awaited)

    def _resolve_awaited(self, awaited: list[Future[None]] | None = None) -> None:
        for taken in list(self._awaited) if awaited is None else awaited:
            self._awaited.remove(taken)
            if not taken.done():
                taken.set_result(None)

    async def aclose(self) -> None:
        """End the iteration. Closing twice is allowed."""
        import asyncio

        self._closed = True
        self._resolve_awaited()
        if self._finalizer is not None:
            await asyncio.to_thread(self._finish)  # it may wait for a thread to end
        if self._loop_guard is not None:
            await self._loop_guard.aclose()

    async def __aenter__(self) -> AsyncWatch:
        await self._store._arun(self._begin())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _close_with_loop(subscription: weakref.ref[AsyncWatch]) -> AsyncGenerator[None, None]:
    """Close a subscription when its event loop ends: the loop then closes all async generators, such as this one."""
    try:
        yield
    finally:
        watch = subscription()
        if watch is not None:
            watch._finish()


class WatchMethods(Dispatcher):
    """The methods of `Store` for watching."""

    @explain_renamed
    def watch(self, prefix: Namespace = (), *, since: str | None = None) -> Watch:
        """Iterate over the changes in a namespace and below it, by any thread or process, as they happen.

        Each change comes once, in order. Several changes of one entry may be merged into its newest. `since` is the
        cursor after which to start: from `cursor()`, a change, or a subscription. Without it, the iteration starts now.
        """
        return Watch(self, ops.Changes(self._resolve_prefix(prefix), since))

    @explain_renamed
    def awatch(self, prefix: Namespace = (), *, since: str | None = None) -> AsyncWatch:
        """`watch`, as an async iterator. Without `since`, it starts with `async with`, or with its first step."""
        return AsyncWatch(self, ops.Changes(self._resolve_prefix(prefix), since))

    def _cursor(self) -> StoreProgram[str]:
        """Return the current position of the feed, for `since=`."""
        page: Page[Change] = (yield [ops.Changes(limit=0)])[0]
        return cast(str, page.next)

    cursor = run(_cursor)
    acursor = arun(_cursor)
