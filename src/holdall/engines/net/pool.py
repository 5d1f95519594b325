"""A connection pool for sync and async callers at once, with one limit on the number of connections.

Each connection has an owner: all threads together, or one event loop. Only its owner can use it. At the limit, an idle
connection of another owner is closed to make room. The pool has no background thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from ...engine import PoolState
from ...errors import InvalidInput, StoreClosed, Timeout, shown
from ...model.values import duration_seconds
from ...runtime.signals import SIGNAL_CHECK_INTERVAL, HandlerRaised, run_pending_handlers

_MAX_IDLE = 300.0  # seconds, after which connections above the minimum are closed

#: The owner of a connection: an event loop, or None for all threads.
Owner: TypeAlias = asyncio.AbstractEventLoop | None


def check_options(pool_min: Any, pool_max: Any, pool_timeout: Any) -> float:
    """Check the options `pool_min`, `pool_max` and `pool_timeout`, and return the last one in seconds."""
    for name, value, least in (("pool_min", pool_min, 0), ("pool_max", pool_max, 1)):
        if type(value) is not int or value < least:
            raise InvalidInput(f"{name} must be a number of connections, at least {least}, not {shown(value)}")
    if pool_min > pool_max:
        raise InvalidInput(f"pool_min must be at most pool_max, which is {pool_max}, not {pool_min}")
    return duration_seconds("pool_timeout", pool_timeout)


class _Threads:
    """Stands for all threads, as a key beside event loops."""


class _Waiter:
    """A caller that waits until a connection is free for it, or until it may open one (`connection` is None)."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.is_served = False
        self.connection: Any = None
        self.event = threading.Event()
        self.future = None if owner is None else owner.create_future()

    def wake(self) -> None:
        if self.owner is None:
            self.event.set()
        else:
            self.owner.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class Pool:
    """Between `min_size` and `max_size` connections. `close_connection` closes one at once, from any thread.

    An acquired connection is released with `release`, after an error too. `is_closed` finds an idle connection that was
    closed because its server has closed it.
    """

    def __init__(
        self,
        min_size: int,
        max_size: int,
        timeout: float,
        close_connection: Callable[[Any], None],
        is_closed: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        self._min_size, self._max_size, self._timeout = min_size, max_size, timeout
        self._close_connection, self._is_closed = close_connection, is_closed
        self._process = os.getpid()
        self._lock = threading.RLock()  # while it is held, an event loop may be collected, and `_forget` takes it again
        self._size = 0
        self._threads = _Threads()
        self._idle: weakref.WeakKeyDictionary[Any, deque[tuple[Any, float]]] = weakref.WeakKeyDictionary()
        self._idle_of_threads = self._idle[self._threads] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._closed = False

    @property
    def size(self) -> int:
        """How many connections are open, or being opened."""
        return self._size

    def describe(self) -> PoolState:
        """Return how many connections there are, and how many callers wait for one."""
        with self._lock:
            idle = [self._is_closed(connection) for own in self._idle.values() for connection, _ in own]
            return PoolState(self._size - sum(idle), len(idle) - sum(idle), self._max_size, len(self._waiters))

    def acquire(self, connect: Callable[[], Any], deadline: float) -> Any:
        """Return an idle connection of the threads, or a new one from `connect`; wait for one at the limit."""
        found = self._reserve(None)
        if isinstance(found, _Waiter):
            self._wait(found, time_to_wait(self._timeout, deadline))
            found = found.connection
        if found is not None:
            return found
        try:
            return connect()
        except BaseException:
            self._free(None, None)
            raise

    def _wait(self, waiter: _Waiter, timeout: float) -> None:
        until = time.monotonic() + timeout
        try:
            while not waiter.event.wait(min(SIGNAL_CHECK_INTERVAL, max(0.0, until - time.monotonic()))):
                if time.monotonic() >= until:
                    self._give_up(waiter, timeout)
                    return
                run_pending_handlers()
        except HandlerRaised:
            self._withdraw(waiter)
            raise

    async def aacquire(self, connect: Callable[[], Awaitable[Any]], deadline: float) -> Any:
        """`acquire`, for the running event loop."""
        found = self._reserve(asyncio.get_running_loop())
        if isinstance(found, _Waiter):
            assert found.future is not None
            timeout = time_to_wait(self._timeout, deadline)
            try:
                async with asyncio.timeout(timeout):
                    await found.future
            except TimeoutError:
                self._give_up(found, timeout)
            except BaseException:
                self._withdraw(found)
                raise
            found = found.connection
        if found is not None:
            return found
        try:
            return await connect()
        except BaseException:
            self._free(None, None)
            raise

    def release(self, owner: Owner, connection: Any, broken: bool = False) -> None:
        """Give back a connection; one that is broken is closed."""
        if broken:
            self._close_connection(connection)
            connection = None
        self._free(owner, connection)

    def drop_idle(self) -> None:
        """Close all idle connections: after one was lost, the others probably lead to the same dead server."""
        dropped: list[Any] = []
        with self._lock:
            for idle in self._idle.values():
                dropped += [connection for connection, _ in idle]
                idle.clear()
            self._size -= len(dropped)
        for connection in dropped:
            self._close_connection(connection)

    def close(self) -> None:
        """Close the idle connections now, and the others when they are released."""
        self._closed = True
        self.drop_idle()

    def _reserve(self, owner: Owner) -> Any:
        """Return an idle connection; None if the caller may open one; or a waiter."""
        with self._lock:
            if self._closed:
                raise StoreClosed("this store is closed; open a new one")
            idle = self._idle_of(owner)
            while idle:
                connection, _ = idle.pop()
                if not self._is_closed(connection):
                    return connection
                self._size -= 1
            if self._size < self._max_size:
                self._size += 1
                return None
            others = next((idle for idle in self._idle.values() if idle), None)
            if others is None:
                self._waiters.append(_Waiter(owner))
                return self._waiters[-1]
            replaced, _ = others.popleft()
        self._close_connection(replaced)
        return None

    def _free(self, owner: Owner, connection: Any) -> None:
        """Pass a connection, or the right to open one (None), to the next waiter; or keep the connection as idle."""
        to_close: list[Any] = []
        with self._lock:
            waiter = self._waiters.popleft() if self._waiters else None
            if waiter is not None:
                waiter.is_served = True
                if waiter.owner is owner:
                    waiter.connection = connection
                elif connection is not None:
                    to_close.append(connection)
            elif connection is None or self._closed:
                self._size -= 1
                to_close += [] if connection is None else [connection]
            else:
                idle, now = self._idle_of(owner), time.monotonic()
                idle.append((connection, now))
                while self._size > self._min_size and now - idle[0][1] > _MAX_IDLE:
                    to_close.append(idle.popleft()[0])
                    self._size -= 1
        for one in to_close:
            self._close_connection(one)
        if waiter is not None:
            try:
                waiter.wake()
            except RuntimeError:  # its event loop was closed, and its task with it
                self._withdraw(waiter)

    def _give_up(self, waiter: _Waiter, timeout: float) -> None:
        """Raise `Timeout`, unless the waiter was served in the last moment."""
        with self._lock:
            if waiter.is_served:
                return
            self._waiters.remove(waiter)
        raise Timeout(
            f"all {self._max_size} connections were in use for {timeout:.3g} s; raise pool_max, pool_timeout or timeout"
        )

    def _withdraw(self, waiter: _Waiter) -> None:
        """Remove a waiter that waits no longer; what it was given goes to the next one."""
        with self._lock:
            if not waiter.is_served:
                self._waiters.remove(waiter)
                return
        self._free(waiter.owner, waiter.connection)

    def _idle_of(self, owner: Owner) -> deque[tuple[Any, float]]:
        """Return the idle connections of an owner, each with the time of its release."""
        if owner is None:
            return self._idle_of_threads
        idle = self._idle.get(owner)
        if idle is None:
            idle = self._idle[owner] = deque()
            weakref.finalize(owner, self._forget, idle)
        return idle

    def _forget(self, idle: deque[tuple[Any, float]]) -> None:
        """Close the connections of an event loop that was collected.

        In a forked child, which also comes here when it exits, they are the parent's.
        """
        while idle and os.getpid() == self._process:
            self._close_connection(idle.popleft()[0])
            self._free(None, None)


def time_to_wait(pool_timeout: float, deadline: float) -> float:
    """Return the seconds to wait for a connection: `pool_timeout`, or what is left until the deadline."""
    return max(0.0, min(pool_timeout, deadline - time.monotonic()))
