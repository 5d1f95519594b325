"""A small pool of connections for sync and async callers at once, with one limit over all of them.

A connection belongs to whoever can use it: threads share theirs, and every event loop has its own. When as many are
open as may be, a caller takes over the place of somebody else's idle one. Nothing runs in the background: a pool that
nobody uses is a few idle connections, and no thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from ..errors import InvalidInput, StoreClosed, Timeout, Unsupported, shown

_LONGEST_IDLE = 300.0  # seconds, after which what is above the minimum is closed

#: Whose a connection is: None for threads, else an event loop.
Owner: TypeAlias = asyncio.AbstractEventLoop | None


def check_options(pool_min: Any, pool_max: Any, pool_timeout: Any) -> None:
    """Refuse what a pool cannot be made of, by the names that `holdall.open` has for it."""
    for name, value, least in (("pool_min", pool_min, 0), ("pool_max", pool_max, 1)):
        if type(value) is not int or value < least:
            raise InvalidInput(f"{name} is a number of connections, at least {least}, not {shown(value)}")
    if pool_min > pool_max:
        raise InvalidInput(f"pool_min is at most pool_max, which is {pool_max}, not {pool_min}")
    if not isinstance(pool_timeout, (int, float)) or not 0 < pool_timeout < 1e9:
        raise InvalidInput(f"pool_timeout is a number of seconds, not {shown(pool_timeout)}")


class _Threads:
    """Stands for all threads where an event loop stands for itself."""


class _Waiter:
    """Somebody who waits for a place, and is given a connection or the right to make one (None)."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.is_served = False
        self.connection: Any = None
        self.gate = threading.Event()
        self.future = None if owner is None else owner.create_future()

    def wake(self) -> None:
        if self.owner is None:
            self.gate.set()
        else:
            self.owner.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class Pool:
    """`discard(connection)` closes one at once, from any thread."""

    def __init__(self, least: int, most: int, timeout: float, discard: Callable[[Any], None]) -> None:
        self._least, self._most, self._timeout = least, most, timeout
        self._discard = discard
        self._lock = threading.RLock()  # a collected event loop may come back here while it is held
        self._open = 0
        self._threads = _Threads()
        self._idle: weakref.WeakKeyDictionary[Any, deque[tuple[Any, float]]] = weakref.WeakKeyDictionary()
        self._idle_of_threads = self._idle[self._threads] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._closed = False

    @property
    def size(self) -> int:
        """How many connections are open, or being opened."""
        return self._open

    def take(self, connect: Callable[[], Any], deadline: float) -> Any:
        """A connection for this thread, made if need be."""
        found = self._enter(None)
        if isinstance(found, _Waiter):
            if not found.gate.wait(patience := _patience(self._timeout, deadline)):
                self._give_up(found, patience)
            found = found.connection
        if found is not None:
            return found
        try:
            return connect()
        except BaseException:
            self._leave(None, None)
            raise

    async def atake(self, connect: Callable[[], Awaitable[Any]], deadline: float) -> Any:
        """A connection for this event loop, made if need be."""
        found = self._enter(asyncio.get_running_loop())
        if isinstance(found, _Waiter):
            assert found.future is not None
            patience = _patience(self._timeout, deadline)
            try:
                async with asyncio.timeout(patience):
                    await found.future
            except TimeoutError:
                self._give_up(found, patience)
            except BaseException:
                self._withdraw(found)
                raise
            found = found.connection
        if found is not None:
            return found
        try:
            return await connect()
        except BaseException:
            self._leave(None, None)
            raise

    def give_back(self, owner: Owner, connection: Any, broken: bool = False) -> None:
        """Let the next who waits have a connection or its place; or keep it."""
        if broken:
            self._discard(connection)
            connection = None
        self._leave(owner, connection)

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back."""
        with self._lock:
            self._closed = True
            idle = [connection for waiting in self._idle.values() for connection, _ in waiting]
            self._idle.clear()
            self._idle_of_threads.clear()
            self._open -= len(idle)
        for connection in idle:
            self._discard(connection)

    def _enter(self, owner: Owner) -> Any:
        """An idle connection, None for the right to make one, or a waiter."""
        with self._lock:
            if self._closed:
                raise StoreClosed("this store is closed; open a new one")
            idle = self._idle_of(owner)
            if idle:
                return idle.pop()[0]
            if self._open < self._most:
                self._open += 1
                return None
            others = next((waiting for waiting in self._idle.values() if waiting), None)
            if others is None:
                self._waiters.append(_Waiter(owner))
                return self._waiters[-1]
            taken_over, _ = others.popleft()
        self._discard(taken_over)
        return None

    def _leave(self, owner: Owner, connection: Any) -> None:
        """A connection is free, or (None) the place of one."""
        superfluous: list[Any] = []
        with self._lock:
            waiter = self._waiters.popleft() if self._waiters else None
            if waiter is not None:
                waiter.is_served = True
                if waiter.owner is owner:
                    waiter.connection = connection
                elif connection is not None:
                    superfluous.append(connection)
            elif connection is None or self._closed:
                self._open -= 1
                superfluous += [] if connection is None else [connection]
            else:
                idle, now = self._idle_of(owner), time.monotonic()
                idle.append((connection, now))
                while self._open > self._least and now - idle[0][1] > _LONGEST_IDLE:
                    superfluous.append(idle.popleft()[0])
                    self._open -= 1
        for one in superfluous:
            self._discard(one)
        if waiter is not None:
            try:
                waiter.wake()
            except RuntimeError:  # its event loop was closed, and with it whoever waited
                self._withdraw(waiter)

    def _give_up(self, waiter: _Waiter, patience: float) -> None:
        """Time is up, unless something has come just now."""
        with self._lock:
            if waiter.is_served:
                return
            self._waiters.remove(waiter)
        raise Timeout(
            f"all {self._most} connections were in use for {patience:.3g} s; see pool_max, pool_timeout and timeout"
        )

    def _withdraw(self, waiter: _Waiter) -> None:
        """Whoever waited has gone; what came for it goes to the next."""
        with self._lock:
            if not waiter.is_served:
                self._waiters.remove(waiter)
                return
        self._leave(waiter.owner, waiter.connection)

    def _idle_of(self, owner: Owner) -> deque[tuple[Any, float]]:
        if owner is None:
            return self._idle_of_threads
        idle = self._idle.get(owner)
        if idle is None:
            idle = self._idle[owner] = deque()
            weakref.finalize(owner, self._drop, idle)
        return idle

    def _drop(self, idle: deque[tuple[Any, float]]) -> None:
        """An event loop has gone, and its connections with it."""
        while idle:
            self._discard(idle.popleft()[0])
            self._leave(None, None)


class Lent:
    """A connection or pool of psycopg's that somebody else opened, and will close: it stands in for a `Pool`.

    What is sync serves sync methods, what is async serves async ones. A connection is used by one caller at a time.
    """

    def __init__(self, lender: Any, timeout: float) -> None:
        self._lender = lender
        self._timeout = timeout
        self._is_pool = hasattr(lender, "getconn")
        self._is_async = asyncio.iscoroutinefunction(lender.getconn if self._is_pool else lender.execute)
        self._turn = threading.Lock()
        self._aturn = asyncio.Lock()
        self._to_restore: set[Any] = set()  # connections that are not in autocommit mode when they are at home

    def take(self, _connect: Callable[[], Any], deadline: float) -> Any:
        if self._is_async:
            raise Unsupported("the connection= that was given is async: use the methods with an 'a' before their name")
        patience = _patience(self._timeout, deadline)
        if not self._is_pool:
            if not self._turn.acquire(timeout=patience):
                raise _still_in_use(patience)
            return self._lender
        try:
            connection = self._lender.getconn(patience)
        except Exception as error:
            raise _still_in_use(patience) if _is_pool_timeout(error) else error from None
        if not connection.autocommit:
            self._to_restore.add(connection)
            connection.autocommit = True
        return connection

    async def atake(self, _connect: Callable[[], Awaitable[Any]], deadline: float) -> Any:
        if not self._is_async:
            raise Unsupported("the connection= that was given is sync: give an async one, or use the sync methods")
        patience = _patience(self._timeout, deadline)
        if not self._is_pool:
            try:
                async with asyncio.timeout(patience):
                    await self._aturn.acquire()
            except TimeoutError:
                raise _still_in_use(patience) from None
            return self._lender
        try:
            connection = await self._lender.getconn(patience)
        except Exception as error:
            raise _still_in_use(patience) if _is_pool_timeout(error) else error from None
        if not connection.autocommit:
            self._to_restore.add(connection)
            await connection.set_autocommit(True)
        return connection

    def give_back(self, _owner: Owner, connection: Any, broken: bool = False) -> Any:
        """As it was, with nothing begun. Gives something to await where the lender is async."""
        if self._is_async:
            return self._agive_back(connection, broken)
        try:
            if broken and not connection.closed:
                connection.rollback()
            if connection in self._to_restore and not connection.closed:
                connection.autocommit = False
        finally:
            self._to_restore.discard(connection)
            if self._is_pool:
                self._lender.putconn(connection)
            else:
                self._turn.release()
        return None

    async def _agive_back(self, connection: Any, broken: bool) -> None:
        try:
            if broken and not connection.closed:
                await connection.rollback()
            if connection in self._to_restore and not connection.closed:
                await connection.set_autocommit(False)
        finally:
            self._to_restore.discard(connection)
            if self._is_pool:
                await self._lender.putconn(connection)
            else:
                self._aturn.release()

    def close(self) -> None:
        """Not ours to close."""


def _patience(timeout: float, deadline: float) -> float:
    """For how long one may wait for a connection: `pool_timeout`, or what is left of `timeout`."""
    return max(0.0, min(timeout, deadline - time.monotonic()))


def _still_in_use(patience: float) -> Timeout:
    return Timeout(f"the connection= that was given stayed in use for {patience:.3g} s; see pool_timeout and timeout")


def _is_pool_timeout(error: Exception) -> bool:
    """Whether this is psycopg_pool's, which need not be installed."""
    return type(error).__name__ == "PoolTimeout"
