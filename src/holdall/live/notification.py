"""Notification of changes: each engine has one `Notifier`, which all its subscriptions share.

A writer in this process notifies it after each batch. For changes by other processes, the engine provides a `Listener`,
which runs while there are subscriptions. Each subscription has an event, which is set from any thread, and waited for
in a thread or in an event loop. An event only means that there may be a change.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable
from queue import Empty, SimpleQueue
from typing import Protocol

from ..engine import Engine, Listener
from ..runtime.closers import start_closer

#: Seconds between two reads of the feed, for an engine that is used by several processes and cannot listen.
_POLL_INTERVAL = 0.1


class Event(Protocol):
    """A flag that a subscription waits for."""

    def set(self) -> None:
        """Set it: wake the thread or task that waits, or that waits next."""

    def clear(self) -> None:
        """Reset it. Call this before reading the feed, so that later changes set it again."""

    def wait(self, timeout: float | None = None) -> Awaitable[None] | None:
        """Wait until it is set, or for that many seconds."""


class ThreadEvent:
    """An event for a thread. It has no lock that the main thread could hold while its signal handler writes."""

    def __init__(self) -> None:
        self._notifications: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        if self._notifications.empty():  # once is enough
            self._notifications.put(None)

    def clear(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._notifications.get_nowait()

    def wait(self, timeout: float | None = None) -> None:
        with contextlib.suppress(Empty):
            self._notifications.get(timeout=timeout)


class LoopEvent:
    """An event for a task, made in its event loop."""

    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._is_notified = False

    def set(self) -> None:
        if not self._is_notified:  # once is enough
            self._is_notified = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        self._is_notified = False
        self._event.clear()

    async def wait(self, timeout: float | None = None) -> None:
        import asyncio

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()


class Notifier:
    """The events of all subscriptions of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._events: dict[Event, None] = {}
        self._listener: Listener | None = None
        self._closers: dict[threading.Thread, None] = {}
        can_listen = hasattr(engine, "listen")
        self.poll_interval = None if can_listen or not engine.capabilities.multiprocess else _POLL_INTERVAL

    def notify(self) -> None:
        """Set all events: there may be a change."""
        if self._events:
            for event in list(self._events):  # a copy, as this takes no lock and others may add events
                event.set()

    def add(self, event: Event) -> None:
        """Add an event. The first one starts the engine's listener."""
        with self._lock:
            self._events[event] = None
            if self._listener is None and hasattr(self._engine, "listen"):
                self._listener = self._engine.listen(self.notify)

    def remove(self, event: Event) -> None:
        """Remove an event. The last one stops the engine's listener."""
        self._events.pop(event, None)
        self._stop_unneeded_listener()

    def remove_soon(self, event: Event) -> None:
        """`remove` for a finalizer. That may run during any code, so this takes no lock and does not wait."""
        self._events.pop(event, None)
        if not self._events:
            with contextlib.suppress(RuntimeError):  # the program is ending, and so does the listener
                self._closers[start_closer(self._stop_unneeded_listener)] = None
                for ended in [one for one in list(self._closers) if one.ident is not None and not one.is_alive()]:
                    self._closers.pop(ended, None)

    def _stop_unneeded_listener(self) -> None:
        with self._lock:
            if self._events:
                return
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def stop(self) -> None:
        """Wake all subscriptions, which then find the engine closed."""
        with self._lock:
            events, self._events = list(self._events), {}
            listener, self._listener = self._listener, None
            closers = list(self._closers)
        if listener is not None:
            listener.close()
        for event in events:
            event.set()
        for thread in closers:
            if thread.ident is not None:  # else it has not started, because it waits for a fork to end
                thread.join()

    def abandon(self) -> None:
        """Drop everything in a forked child, whose subscriptions get a notifier of their own."""
        self._lock, self._events, self._closers = threading.Lock(), {}, {}
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.abandon()
