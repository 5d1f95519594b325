"""How the PostgreSQL engine speaks: psycopg's connections, what is asked of them, and what their errors mean.

The engine's programs yield the requests below; a `Wire` performs them, sync or awaited. No wait is longer than the
deadline that a request carries, and nothing is left running on the server when one gives up.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import generators, pq, waiting
from psycopg.abc import PQGen
from psycopg.adapt import Dumper, Transformer
from psycopg.errors import _WaitTimeout, error_from_result

from ..errors import InvalidInput, Timeout, Unavailable
from ..programs import Sleep, Work
from ..values import decode
from .pool import Lent, Pool
from .postgres_dialect import Numbered, Numbers, PostgresDialect, Texts
from .statements import Rows, Statement

#: What PostgreSQL undoes by itself and asks to be tried again.
UNDONE = (pg.DeadlockDetected, pg.SerializationFailure, pg.IdleInTransactionSessionTimeout, pg.TransactionTimeout)
#: The connection, not the statement, is at fault.
LOST = (psycopg.OperationalError, psycopg.InterfaceError)
_GRACE = 0.5  # seconds, for the server to hear that nobody waits for its answer any more


@dataclass(slots=True)
class Say:
    """A request to run one statement on any connection: taken, used and given back. Most requests are this one."""

    statement: Statement
    deadline: float
    text: str | None = None  # JSON that will be needed: it is read while the server is at work
    value: Any = None  # what it says


@dataclass(frozen=True, slots=True)
class Take:
    """A request for a connection."""

    deadline: float


@dataclass(frozen=True, slots=True)
class Give:
    """A request to give one back."""

    connection: Any


@dataclass(frozen=True, slots=True)
class Run:
    """A request to run statements on one, in one round trip."""

    connection: Any
    statements: Iterable[Statement]
    deadline: float
    prepare: bool | None = None  # False: plan for these values, as no plan is good for all


class Unreached(Exception):
    """There was no connection for a `Say`, so nothing was said that could not be said again."""


class Wire:
    """Performs requests, over one pool."""

    def __init__(
        self, url: str, dialect: PostgresDialect, pool: Pool | Lent, timeout: float, prepare_threshold: int | None
    ) -> None:
        self._url = url
        self._dialect = dialect
        self._timeout = timeout
        self.pool = pool
        self.prepare_threshold = prepare_threshold

    def perform(self, request: Any) -> Any:
        if type(request) is Say:  # asked first for the one that matters most: a match takes longer
            return self._say(request)
        match request:
            case Run(connection, statements, deadline, prepare):
                connection.deadline = deadline
                try:
                    if type(statements) is list and len(statements) == 1:
                        return [
                            _rows(
                                _for_one(connection).execute(
                                    *self._spoken(statements[0]), prepare=prepare, binary=bool(statements[0][1])
                                )
                            )
                        ]
                    with connection.pipeline():
                        cursors = [
                            connection.execute(*self._spoken(one), prepare=prepare, binary=bool(one[1]))
                            for one in statements
                        ]
                    return [_rows(cursor) for cursor in cursors]
                except psycopg.Error as error:
                    raise self._translated(error) from error
            case Take(deadline):
                return self._take(deadline)
            case Give(connection):
                return self.pool.give_back(None, connection, not _is_idle(connection))
            case Sleep(seconds):
                return time.sleep(seconds)
            case Work(function, args):
                return function(*args)
        raise TypeError(f"not a request: {request!r}")

    async def aperform(self, request: Any) -> Any:
        if type(request) is Say:
            return await self._asay(request)
        match request:
            case Run(connection, statements, deadline, prepare):
                connection.deadline = deadline
                try:
                    if type(statements) is list and len(statements) == 1:
                        cursor = _for_one(connection)
                        return [
                            await _arows(
                                await cursor.execute(
                                    *self._spoken(statements[0]), prepare=prepare, binary=bool(statements[0][1])
                                )
                            )
                        ]
                    async with connection.pipeline():
                        cursors = [
                            await connection.execute(*self._spoken(one), prepare=prepare, binary=bool(one[1]))
                            for one in statements
                        ]
                    return [await _arows(cursor) for cursor in cursors]
                except psycopg.Error as error:
                    raise self._translated(error) from error
            case Take(deadline):
                connect = self._connecting
                return await self.pool.atake(lambda: _Async.connect(self._url, **connect(deadline)), deadline)
            case Give(connection):
                owner, broken = asyncio.get_running_loop(), not _is_idle(connection)
                returning = self.pool.give_back(owner, connection, broken)
                return await returning if returning is not None else None
            case Sleep(seconds):
                return await asyncio.sleep(seconds)
            case Work(function, args):
                return await asyncio.to_thread(function, *args)
        raise TypeError(f"not a request: {request!r}")

    def connect(self, url: str, deadline: float) -> psycopg.Connection[Any]:
        """A connection for a thread."""
        return _Sync.connect(url, **self._connecting(deadline))

    def _take(self, deadline: float) -> Any:
        return self.pool.take(lambda: self.connect(self._url, deadline), deadline)

    def _say(self, request: Say) -> Rows:
        deadline = request.deadline
        try:
            connection = self._take(deadline)
        except LOST as error:
            raise Unreached(str(error)) from error
        try:
            connection.deadline = deadline
            if type(connection) is not _Sync:
                return _rows(connection.execute(*self._spoken(request.statement)))
            rows: Rows = connection.wait(_saying(connection, self._dialect.numbered(request.statement[0]), request))
            return rows
        except psycopg.Error as error:
            raise self._translated(error) from error
        finally:
            self.pool.give_back(None, connection, not _is_idle(connection))

    async def _asay(self, request: Say) -> Rows:
        deadline = request.deadline
        try:
            connection = await self.aperform(Take(deadline))
        except LOST as error:
            raise Unreached(str(error)) from error
        try:
            connection.deadline = deadline
            if type(connection) is not _Async:
                return await _arows(await connection.execute(*self._spoken(request.statement)))
            saying = _saying(connection, self._dialect.numbered(request.statement[0]), request)
            rows: Rows = await connection.wait(saying)
            return rows
        except psycopg.Error as error:
            raise self._translated(error) from error
        finally:
            await self.aperform(Give(connection))

    def _connecting(self, deadline: float) -> dict[str, Any]:
        return {
            "autocommit": True,
            "client_encoding": "utf-8",
            "prepare_threshold": self.prepare_threshold,
            "connect_timeout": max(2, round(deadline - time.monotonic())),
        }

    def _spoken(self, statement: Statement) -> tuple[str, dict[str, Any] | None]:
        sql, params = statement
        return (self._dialect.translated(sql), params) if params else (sql, None)

    def _translated(self, error: psycopg.Error) -> Exception:
        """Ours for a driver's error. A lost connection stays what it is: the engine's programs deal with it."""
        match error:
            case pg.QueryCanceled() | pg.LockNotAvailable() | _WaitTimeout():
                return Timeout(
                    f"PostgreSQL did not answer within {self._timeout} s; what was being written may"
                    f" or may not be there: {error}"
                )
            case pg.DuplicatePreparedStatement() | pg.InvalidSqlStatementName():
                return Unavailable(
                    f"a pooler stands in between that keeps no prepared statements: open with prepare=False: {error}"
                )
            case pg.InsufficientPrivilege():
                return Unavailable(f"the role may not do this; set the schema up with one that may: {error}")
            case pg.UndefinedTable() | pg.UndefinedFunction() | pg.UndefinedColumn() | pg.InvalidSchemaName():
                return Unavailable(f"the schema {self._dialect.schema} is not as holdall made it: {error}")
            case psycopg.DataError() | pg.ProgramLimitExceeded():
                return InvalidInput(f"PostgreSQL cannot store this: {error}")
        if isinstance(error, (*LOST, *UNDONE)):
            return error
        return Unavailable(f"PostgreSQL cannot do it: {error}")


# Connections ---------------------------------------------------------------------------------------------------------


class _Own(psycopg.BaseConnection[Any]):
    """What a connection of ours knows, sync or async."""

    deadline: float | None = None
    kept_cursor: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adapters.register_dumper(Texts, _TextsDumper)
        self.adapters.register_dumper(Numbers, _NumbersDumper)
        self.prepared: dict[bytes, _Prepared] = {}  # for `_saying`
        self.numbers = itertools.count()

    def __del__(self, *_: Any) -> None:
        """No warning: a pool closes what must be closed, and a forked child must not."""


class _TextsDumper(Dumper):
    """A `text[]`. psycopg's own asks of every element what it is."""

    format = pq.Format.BINARY
    oid = 1009

    def dump(self, texts: Texts) -> bytes:
        written = [None if text is None else text.encode() for text in texts]
        parts: list[bytes] = [_HEAD.pack(1, 1, 25, len(written), 1)]
        for text in written:
            parts += (_NULL,) if text is None else (_INT.pack(len(text)), text)
        return b"".join(parts)


class _NumbersDumper(Dumper):
    """A `bigint[]`."""

    format = pq.Format.BINARY
    oid = 1016

    def dump(self, numbers: Numbers) -> bytes:
        head = _HEAD.pack(1, 1, 20, len(numbers), 1)
        return head + b"".join([_NULL if number is None else _BIGINT.pack(8, number) for number in numbers])


_HEAD, _INT, _BIGINT = struct.Struct("!iiIii"), struct.Struct("!i"), struct.Struct("!iq")
_NULL = _INT.pack(-1)


class _Sync(_Own, psycopg.Connection[Any]):
    """A connection that waits no longer than it should, and leaves nothing running on the server when it gives up."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        try:
            return waiting.wait(gen, self.pgconn.socket, interval, timeout or _remaining(self.deadline))
        except (KeyboardInterrupt, _WaitTimeout):
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=_GRACE)
            self.pgconn.finish()
            with suppress(Exception):  # it would find out for itself that the connection is closed, when nobody listens
                gen.close()
            raise


class _Async(_Own, psycopg.AsyncConnection[Any]):
    """The same, awaited."""

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval, timeout or _remaining(self.deadline))
        except (asyncio.CancelledError, KeyboardInterrupt, _WaitTimeout):
            with suppress(psycopg.Error):
                await self.cancel_safe(timeout=_GRACE)
            self.pgconn.finish()
            with suppress(Exception):
                gen.close()
            raise


class _Prepared:
    """What a connection knows of a statement: its name there, and how its rows are read."""

    __slots__ = ("_known", "_reader", "name")

    def __init__(self, connection: _Own, name: bytes) -> None:
        self.name = name
        self._reader = Transformer(connection)
        self._known = False

    def rows(self, result: Any) -> Rows:
        reader = self._reader
        reader.set_pgresult(result, set_loaders=not self._known)
        self._known = True
        rows = reader.load_rows(0, result.ntuples, tuple)
        reader.set_pgresult(None, set_loaders=False)  # it may be large
        return rows


def _saying(connection: _Own, numbered: Numbered, request: Say) -> PQGen[Rows]:
    """Say the statement of an op alone, and read what it returns.

    It is psycopg's own way without a cursor, whose bookkeeping costs as much again as all else that a client does.
    """
    sql, names = numbered
    pgconn, prepared, params = connection.pgconn, connection.prepared, request.statement[1]
    values = [
        value.encode() if type(value) is str else None if value is None else b"%d" % value
        for value in map(params.__getitem__, names)
    ]
    known = prepared.get(sql)
    if known is not None:
        pgconn.send_query_prepared(known.name, values, None, _BINARY)
        if request.text is not None:
            request.value = decode(request.text)
        try:
            return known.rows(_checked((yield from generators.execute(pgconn))))
        except pg.InvalidSqlStatementName:  # psycopg says DEALLOCATE ALL after a rollback
            prepared.clear()
    known = _Prepared(connection, b"holdall_%d" % next(connection.numbers))
    if connection.prepare_threshold is None:
        pgconn.send_query_params(sql, values, None, None, _BINARY)
    else:
        pgconn.send_prepare(known.name, sql)
        _checked((yield from generators.execute(pgconn)))
        prepared[sql] = known
        pgconn.send_query_prepared(known.name, values, None, _BINARY)
    return known.rows(_checked((yield from generators.execute(pgconn))))


def _checked(results: list[Any]) -> Any:
    result = results[-1]
    if result.status not in _DONE:
        raise error_from_result(result)
    return result


_BINARY = pq.Format.BINARY
_DONE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


def _for_one(connection: Any) -> Any:
    """What executes a single statement: a cursor that is kept, since making one costs a tenth of a get."""
    if not isinstance(connection, _Sync | _Async):  # lent
        return connection
    if connection.kept_cursor is None:
        connection.kept_cursor = connection.cursor()
    return connection.kept_cursor


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.001, deadline - time.monotonic())


def _is_idle(connection: Any) -> bool:
    return bool(connection.pgconn.transaction_status == _IDLE)  # one that is closed has none


_IDLE = pq.TransactionStatus.IDLE


def discard(connection: Any) -> None:
    """Close at once, from any thread and whoever's it is."""
    connection.pgconn.finish()


def _has_rows(cursor: Any) -> bool:
    return bool(cursor.pgresult.status == pq.ExecStatus.TUPLES_OK)  # `description` would describe every column first


def _rows(cursor: Any) -> Rows:
    return cursor.fetchall() if _has_rows(cursor) else []


async def _arows(cursor: Any) -> Rows:
    return await cursor.fetchall() if _has_rows(cursor) else []
