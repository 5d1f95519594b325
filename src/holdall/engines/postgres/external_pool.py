"""A connection or pool that the user opened and passed as `connection=`, in place of a pool of the engine's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from ...errors import Timeout, Unsupported
from ..net.pool import Owner, time_to_wait


class ExternalPool:
    """Has the methods of `net.pool.Pool`, over a connection or pool of psycopg's, which its owner closes.

    A sync one serves the store's sync methods, an async one the async methods. A single connection is used by one
    caller at a time.
    """

    def __init__(self, source: Any, timeout: float) -> None:
        self._source = source
        self._timeout = timeout
        self._is_pool = hasattr(source, "getconn")
        self._is_async = asyncio.iscoroutinefunction(source.getconn if self._is_pool else source.execute)
        self._lock = threading.Lock()
        self._alock = asyncio.Lock()
        self._not_autocommit: set[Any] = set()  # connections to be set back when they are released

    def acquire(self, _connect: Callable[[], Any], deadline: float) -> Any:
        if self._is_async:
            raise Unsupported("the connection passed as connection= is async: call the async methods, as aget for get")
        timeout = time_to_wait(self._timeout, deadline)
        if not self._is_pool:
            if not self._lock.acquire(timeout=timeout):
                raise _in_use(timeout)
            return self._source
        try:
            connection = self._source.getconn(timeout)
        except Exception as error:
            raise _in_use(timeout) if _is_pool_timeout(error) else error from None
        if not connection.autocommit:
            self._not_autocommit.add(connection)
            connection.autocommit = True
        return connection

    async def aacquire(self, _connect: Callable[[], Awaitable[Any]], deadline: float) -> Any:
        if not self._is_async:
            raise Unsupported("the connection passed as connection= is sync: pass an async one, or call sync methods")
        timeout = time_to_wait(self._timeout, deadline)
        if not self._is_pool:
            try:
                async with asyncio.timeout(timeout):
                    await self._alock.acquire()
            except TimeoutError:
                raise _in_use(timeout) from None
            return self._source
        try:
            connection = await self._source.getconn(timeout)
        except Exception as error:
            raise _in_use(timeout) if _is_pool_timeout(error) else error from None
        if not connection.autocommit:
            self._not_autocommit.add(connection)
            await connection.set_autocommit(True)
        return connection

    def release(self, _owner: Owner, connection: Any, broken: bool = False) -> Any:
        """Give back a connection as it was, with no transaction open. Where it is async, return an awaitable."""
        if self._is_async:
            return self._arelease(connection, broken)
        try:
            if broken and not connection.closed:
                connection.rollback()
            if connection in self._not_autocommit and not connection.closed:
                connection.autocommit = False
        finally:
            self._not_autocommit.discard(connection)
            if self._is_pool:
                self._source.putconn(connection)
            else:
                self._lock.release()
        return None

    async def _arelease(self, connection: Any, broken: bool) -> None:
        try:
            if broken and not connection.closed:
                await connection.rollback()
            if connection in self._not_autocommit and not connection.closed:
                await connection.set_autocommit(False)
        finally:
            self._not_autocommit.discard(connection)
            if self._is_pool:
                await self._source.putconn(connection)
            else:
                self._alock.release()

    def drop_idle(self) -> None:
        """Do nothing: its owner drops them."""

    def close(self) -> None:
        """Do nothing: its owner closes it."""


def _in_use(timeout: float) -> Timeout:
    return Timeout(
        f"the connection passed as connection= was in use for {timeout:.3g} s; raise pool_timeout or timeout, or pass a"
        " larger pool"
    )


def _is_pool_timeout(error: Exception) -> bool:
    """Whether an error is psycopg_pool's `PoolTimeout`; that package need not be installed."""
    return type(error).__name__ == "PoolTimeout"
