"""Waking those who wait for a change: one `Waker` for each engine, which all subscriptions share.

A writer in this process rings it when its batch is done. For what others write, an engine brings a `Listener`, which is
there for as long as anybody waits. A bell is one subscription's: rung from any thread, waited for in a thread or in an
event loop. It says that there may be something new, never what.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable
from typing import Protocol

from .closers import closer
from .engine import Engine, Listener

#: How often those look who use an engine that many processes may share, and that cannot listen, in seconds.
_INTERVAL = 0.1


class Bell(Protocol):
    """What somebody waits for."""

    def ring(self) -> None:
        """Wake whoever waits, or does so next."""

    def clear(self) -> None:
        """Before looking: what happens from now on rings anew."""

    def wait(self, timeout: float | None = None) -> Awaitable[None] | None:
        """Until it rings, or for so many seconds."""


class ThreadBell:
    """A bell for a thread."""

    def __init__(self) -> None:
        event = threading.Event()
        self.ring, self.clear = event.set, event.clear
        self._wait = event.wait

    def wait(self, timeout: float | None = None) -> None:
        self._wait(timeout)


class LoopBell:
    """A bell for a task, made in its event loop."""

    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._has_rung = False

    def ring(self) -> None:
        if not self._has_rung:  # once is enough, however many write
            self._has_rung = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        self._has_rung = False
        self._event.clear()

    async def wait(self, timeout: float | None = None) -> None:
        import asyncio

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()


class Waker:
    """The bells of those who wait for changes in one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # A subscription that is collected may come here in the middle of anything, even in the thread that has the
        # lock. So what is kept is changed in single steps of Python's own, and never read, changed and written back.
        self._lock = threading.RLock()
        self._bells: dict[Bell, None] = {}
        self._listener: Listener | None = None
        self._closers: dict[threading.Thread, None] = {}
        can_listen = hasattr(engine, "listen")
        self.interval = None if can_listen or not engine.capabilities.multiprocess else _INTERVAL

    def ring(self) -> None:
        """Something may have changed."""
        if self._bells:
            for bell in list(self._bells):  # others may add theirs meanwhile: ringing takes no lock
                bell.ring()

    def add(self, bell: Bell) -> None:
        """Ring this one, too. The first has the engine listen."""
        with self._lock:
            self._bells[bell] = None
            if self._listener is None and hasattr(self._engine, "listen"):
                self._listener = self._engine.listen(self.ring)

    def remove(self, bell: Bell) -> None:
        """Ring it no more. With the last, the engine need not listen any more."""
        listener = self._drop(bell)
        if listener is not None:
            listener.close()

    def remove_soon(self, bell: Bell) -> None:
        """`remove`, for a finalizer: it may run in the middle of what the listener waits for, and waits for nobody."""
        listener = self._drop(bell)
        if listener is not None:
            with contextlib.suppress(RuntimeError):  # the program is ending, and the listener with it
                self._closers[closer(listener.close)] = None
                for ended in [one for one in list(self._closers) if one.ident is not None and not one.is_alive()]:
                    self._closers.pop(ended, None)

    def _drop(self, bell: Bell) -> Listener | None:
        """Ring it no more -> the listener that nobody needs any more."""
        with self._lock:
            self._bells.pop(bell, None)
            if self._bells:
                return None
            listener, self._listener = self._listener, None
            return listener

    def stop(self) -> None:
        """The engine is closed: all wake, and find out."""
        with self._lock:
            bells, self._bells = list(self._bells), {}
            listener, self._listener = self._listener, None
            closers = list(self._closers)
        if listener is not None:
            listener.close()
        for bell in bells:
            bell.ring()
        for thread in closers:
            if thread.ident is not None:  # else it waits for a fork to end
                thread.join()

    def abandon(self) -> None:
        """In a forked child, whose subscriptions get a waker of their own."""
        self._lock, self._bells, self._closers = threading.RLock(), {}, {}
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.abandon()
