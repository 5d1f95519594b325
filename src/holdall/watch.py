"""Watching: every change under a prefix, in order, exactly once, from a cursor on.

A subscription reads the feed a page at a time, and waits for a bell (`holdall.waking`) when it has read all there is.
It keeps no more than a page and its cursor, so one that is slow holds nobody up, and one that was killed goes on where
it was.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from . import ops
from .batches import Batching
from .errors import InvalidInput, StoreClosed, shown
from .ops import Change, Namespace, Page
from .programs import Call, Program, arun, run
from .waking import Bell, LoopBell, ThreadBell, Waker

if TYPE_CHECKING:
    from asyncio import Future

T = TypeVar("T")


class _Subscription:
    """What both kinds of subscription are: a place in the feed."""

    _make_bell: Callable[[], Bell]

    def __init__(self, store: Batching, walk: ops.Changes) -> None:
        if not (walk.since is None or (isinstance(walk.since, str) and walk.since)):
            raise InvalidInput(f"since= is a cursor, from a change or from store.cursor(), not {shown(walk.since)}")
        self._store = store
        self._walk = walk  # its `since`: after the last page
        self._page: deque[Change] = deque()
        self._given: str | None = walk.since
        self._closed = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        """What a process needs of its own; a forked child too."""
        self._process = os.getpid()
        self._waker: Waker | None = None
        self._bell: Bell | None = None
        self._leave: weakref.finalize[Any, Any] | None = None
        self._turn = threading.Lock()

    def __repr__(self) -> str:
        return f"<holdall.{type(self).__name__} of {self._walk.prefix!r}{', closed' if self._closed else ''}>"

    @property
    def cursor(self) -> str | None:
        """After the last change that was given: `since=` this, another subscription goes on there."""
        return self._given

    def _begin(self) -> Program[None]:
        """Be somewhere in the feed: where it stands now, or after a cursor, which may prove to be none."""
        if self._walk.since is None:
            page: Page[Change] = (yield [replace(self._walk, limit=0)])[0]
            self._walk = replace(self._walk, since=page.next)
            self._given = page.next
        elif not self._page:
            yield from self._read()

    def _read(self) -> Program[None]:
        walk = self._walk
        page: Page[Change] = (yield [walk])[0]
        if self._walk is not walk:  # another task has read on meanwhile
            return
        self._page.extend(page)
        self._walk = replace(walk, since=page.next)
        if not page:
            self._given = page.next

    def _next(self) -> Program[Change | None]:
        """The next change, waited for; None once it is closed."""
        if self._walk.since is None:
            yield from self._begin()
        while not self._closed:
            if self._page:
                change = self._page.popleft()
                self._given = change.cursor
                return change
            bell, waker = self._listening()
            bell.clear()
            yield from self._read()
            if not self._page and not self._closed:
                yield Call(bell.wait, (waker.interval,))
        return None

    def _listening(self) -> tuple[Bell, Waker]:
        """A bell that rings when there may be more."""
        if self._bell is None or self._waker is None:
            self._waker, self._bell = self._store._shared.companion(Waker), self._make_bell()
            self._leave = weakref.finalize(self, self._waker.remove_soon, self._bell)
            self._leave.atexit = False
            self._waker.add(self._bell)
        return self._bell, self._waker

    def _finish(self) -> None:
        """Wake whoever waits here, and let nobody wait any more."""
        self._closed = True
        if self._bell is not None and self._process == os.getpid():
            self._bell.ring()
        if self._leave is not None and self._process == os.getpid() and self._leave.detach() is not None:
            assert self._waker is not None
            assert self._bell is not None
            self._waker.remove(self._bell)

    def _guarded(self, program: Program[T]) -> Program[T]:
        """A program that finishes with the store."""
        try:
            return (yield from program)
        except StoreClosed:
            self._finish()
            raise


class Watch(_Subscription):
    """An iterator over changes, from `Store.watch`: waits for the next one, until it is closed, from any thread."""

    _make_bell = ThreadBell

    def __init__(self, store: Batching, walk: ops.Changes) -> None:
        super().__init__(store, walk)
        store._run(self._begin())

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Change:
        if self._process != os.getpid():
            self._begin_anew()
        with self._turn:
            change = self._store._run(self._guarded(self._next()))
        if change is None:
            raise StopIteration
        return change

    def close(self) -> None:
        """End the iteration, also for a thread that waits in it. Closing twice is fine."""
        self._finish()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncWatch(_Subscription):
    """An async iterator over changes, from `Store.awatch`. Without `since=` it begins at its first step, or with
    `async with`."""

    _make_bell = LoopBell

    def __init__(self, store: Batching, walk: ops.Changes) -> None:
        super().__init__(store, walk)
        self._loop_guard: AsyncGenerator[None, None] | None = None
        self._awaited: list[Future[None]] = []

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> Change:
        if self._process != os.getpid():
            self._begin_anew()
        if self._loop_guard is None and not self._closed:
            self._loop_guard = _until_the_loop_ends(weakref.ref(self))
            await anext(self._loop_guard)
        try:
            change = await self._store._arun(self._guarded(self._next()))
            if change is None:
                raise StopAsyncIteration
        except BaseException:
            self._let_go()
            raise
        return change

    async def caught_up(self) -> None:
        """Wait until the task that iterates here has taken every change that was written before, and asks for more.

        Or until it is closed. Somebody has to iterate.
        """
        import asyncio

        if self._closed:
            return
        taken = asyncio.get_running_loop().create_future()
        self._awaited.append(taken)
        if self._bell is not None:
            self._bell.ring()
        await taken

    def _read(self) -> Program[None]:
        awaited, self._awaited = self._awaited, []  # who comes while it is read waits for the next time
        try:
            yield from super()._read()
        finally:
            self._awaited = awaited + self._awaited
        if not self._page:
            self._let_go(awaited)

    def _let_go(self, awaited: list[Future[None]] | None = None) -> None:
        for taken in list(self._awaited) if awaited is None else awaited:
            self._awaited.remove(taken)
            if not taken.done():
                taken.set_result(None)

    async def aclose(self) -> None:
        """End the iteration. Closing twice is fine."""
        import asyncio

        self._closed = True
        self._let_go()
        if self._leave is not None:
            await asyncio.to_thread(self._finish)  # it waits for a thread to end
        if self._loop_guard is not None:
            await self._loop_guard.aclose()

    async def __aenter__(self) -> AsyncWatch:
        await self._store._arun(self._begin())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _until_the_loop_ends(subscription: weakref.ref[AsyncWatch]) -> AsyncGenerator[None, None]:
    """An event loop that ends closes the async generators that were begun in it: with this one, the subscription."""
    try:
        yield
    finally:
        watch = subscription()
        if watch is not None:
            watch._finish()


class Watching(Batching):
    """The part of `Store` that watches."""

    def watch(self, ns_prefix: Namespace = (), *, since: str | None = None) -> Watch:
        """Iterate over the changes in a namespace and below it, from any thread or process, as they come.

        They come in order, each once; several of one entry may come as its newest. `since` goes on after a cursor:
        `cursor()`, that of a change, or the subscription's own. Without, it begins now.
        """
        return Watch(self, ops.Changes(self._inside(ns_prefix), since))

    def awatch(self, ns_prefix: Namespace = (), *, since: str | None = None) -> AsyncWatch:
        """`watch`, as an async iterator. Without `since` it begins at its first step, or with `async with`."""
        return AsyncWatch(self, ops.Changes(self._inside(ns_prefix), since))

    def _cursor(self) -> Program[str]:
        """Where the feed of changes stands now, for `since=`."""
        page: Page[Change] = (yield [ops.Changes(limit=0)])[0]
        return cast(str, page.next)

    cursor = run(_cursor)
    acursor = arun(_cursor)
