"""psycopg connections for the PostgreSQL engine: the requests of its programs, and what driver errors mean.

The engine's programs yield the requests below; `Connections` performs them, sync or async. No wait lasts longer than
the deadline of its request. After a timeout, no statement is left running on the server.

An error is classified by its SQLSTATE and by whether the connection survived it. If it did, nothing was written, and a
`HoldallError` is raised at once. `NotApplied` and `ConnectionLost` are raised for the engine's programs, which retry
until the deadline.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg import generators, pq, waiting
from psycopg.abc import PQGen, PQGenConn
from psycopg.adapt import AdaptersMap, Dumper, Transformer
from psycopg.errors import _WaitTimeout, error_from_result
from psycopg.rows import tuple_row
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper

from ...errors import HoldallError, InvalidInput, Timeout, Unavailable
from ...model.values import decode
from ...runtime.programs import Sleep, Work
from ...runtime.signals import HandlerRaised, is_in_main_thread, run_pending_handlers
from ..net.pool import Pool
from ..sql.statements import Rows, Statement
from .dialect import BinaryValue, NumberedSql, PostgresDialect
from .external_pool import ExternalPool

#: SQLSTATEs after which PostgreSQL has rolled back: serialization failure, deadlock, idle and long transaction timeout.
_ROLLED_BACK = frozenset({"40001", "40P01", "25P03", "25P04"})
#: Why a server refuses a connection. libpq gives no SQLSTATE then, only a text. A text in another language is not
#: recognized: connecting is retried until the deadline, and the error shows the text. Refusals that pass with time come
#: first: after one of them, libpq may have tried without TLS, and the text then holds a second refusal for that.
_REFUSALS = {
    "53300": re.compile("too many (clients|connections)|remaining connection slots"),
    "57P03": re.compile("the database system is"),
    "28P01": re.compile("password authentication failed|SASL authentication failed"),
    "28000": re.compile(
        'authentication failed|no password supplied|pg_hba\\.conf|role ".*" does not exist|not permitted to log in'
    ),
    "3D000": re.compile('database ".*" does not exist|no such database'),
    "42501": re.compile('permission denied for database ".*"'),
}
_RETRYABLE_REFUSALS = frozenset({"53300", "57P03"})
#: Seconds that the server has to confirm that it canceled a statement, at least and at most. The most is taken from the
#: request's deadline. Without the least, a statement sent just before the deadline would run on and hold a connection.
_MIN_CANCEL_TIME, _MAX_CANCEL_TIME = 0.1, 0.5


# Requests ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Execute:
    """Run one statement on any connection of the pool, outside a transaction. The reply: its rows.

    `json` is decoded while the server works, so that the caller does not wait for both; `decoded` receives its value.
    """

    statement: Statement
    deadline: float
    json: str | None = None
    decoded: Any = None


@dataclass(frozen=True, slots=True)
class Acquire:
    """Take a connection from the pool. The reply: the connection."""

    deadline: float


@dataclass(frozen=True, slots=True)
class Release:
    """Give a connection back to the pool."""

    connection: Any


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Run statements on an acquired connection, in one round trip. The reply: the rows of each.

    With `prepare=False`, the server plans each statement for its values, and does not reuse a plan.
    """

    connection: Any
    statements: Iterable[Statement]
    deadline: float
    prepare: bool | None = None


T = TypeVar("T")
#: A program over connections: what the engine is made of. The programs of `engines/sql` run inside it.
Request: TypeAlias = Execute | Acquire | Release | Pipeline | Sleep | Work
ConnectionProgram: TypeAlias = Generator[Request, Any, T]


# Errors for the engine's programs ------------------------------------------------------------------------------------


class RetryableError(Exception):
    """A failure that may pass. The engine's programs retry until the deadline."""

    def __init__(self, error: psycopg.Error, state: str | None = None) -> None:
        super().__init__(_describe(error, state))
        self.is_overdue = isinstance(error, _WaitTimeout)  # the deadline has passed: no time is left for a retry
        self.is_timeout = self.is_overdue or isinstance(error, pg.ConnectionTimeout)


class NotApplied(RetryableError):
    """Nothing was written: there was no connection, or PostgreSQL rolled the transaction back."""


class ConnectionLost(RetryableError):
    """The connection was lost, or nothing came before the deadline: the statements may have been executed."""


class Connections:
    """Performs requests, over one pool."""

    def __init__(
        self,
        url: str,
        dialect: PostgresDialect,
        pool: Pool | ExternalPool,
        timeout: float,
        prepare_threshold: int | None,
    ) -> None:
        self._url = url
        self._dialect = dialect
        self._timeout = timeout
        self.pool = pool
        self.prepare_threshold = prepare_threshold

    def perform(self, request: Request) -> Any:
        """Perform a request of a program in this thread."""
        if type(request) is Execute:  # the most frequent one: a match takes longer
            return self._execute(request)
        match request:
            case Pipeline():
                return self._execute_pipeline(request)
            case Acquire(deadline):
                return self._acquire(deadline)
            case Release(connection):
                return self.pool.release(None, connection, broken=not _is_idle(connection))
            case Sleep(seconds):
                run_pending_handlers()
                return time.sleep(seconds)
            case Work(function, args):
                return function(*args)
        raise TypeError(f"not a request: {request!r}")

    async def aperform(self, request: Request) -> Any:
        """Perform a request of a program in this event loop."""
        if type(request) is Execute:
            return await self._aexecute(request)
        match request:
            case Pipeline():
                return await self._aexecute_pipeline(request)
            case Acquire(deadline):
                return await self._aacquire(deadline)
            case Release(connection):
                loop, broken = asyncio.get_running_loop(), not _is_idle(connection)
                releasing = self.pool.release(loop, connection, broken)
                return await releasing if releasing is not None else None
            case Sleep(seconds):
                return await asyncio.sleep(seconds)
            case Work(function, args):
                return await asyncio.to_thread(function, *args)
        raise TypeError(f"not a request: {request!r}")

    def connect(self, url: str, deadline: float) -> psycopg.Connection[Any]:
        """Open a connection for a thread."""
        with _connect_deadline(deadline):
            return _SyncConnection.connect(url, cursor_factory=psycopg.RawCursor, **self._connect_options())

    async def _aconnect(self, deadline: float) -> psycopg.AsyncConnection[Any]:
        with _connect_deadline(deadline):
            options = self._connect_options()
            return await _AsyncConnection.connect(self._url, cursor_factory=psycopg.AsyncRawCursor, **options)

    def _connect_options(self) -> dict[str, Any]:
        return {
            "autocommit": True,
            "client_encoding": "utf-8",
            "context": _ADAPTERS,
            "prepare_threshold": self.prepare_threshold,
            "connect_timeout": 1_000_000,  # `_connect_gen` has the real one
        }

    def _acquire(self, deadline: float) -> Any:
        try:
            return self.pool.acquire(lambda: self.connect(self._url, deadline), deadline)
        except psycopg.Error as error:
            raise self._translate_connect_error(error) from error

    async def _aacquire(self, deadline: float) -> Any:
        try:
            return await self.pool.aacquire(lambda: self._aconnect(deadline), deadline)
        except psycopg.Error as error:
            raise self._translate_connect_error(error) from error

    def _execute(self, request: Execute) -> Rows:
        connection = self._acquire(request.deadline)
        try:
            connection.deadline = request.deadline
            if type(connection) is not _SyncConnection:
                return _fetch(self._start(connection, request.statement))
            rows: Rows = connection.wait(
                _execute_alone(connection, self._dialect.number_parameters(request.statement[0]), request)
            )
            return rows
        except psycopg.Error as error:
            raise self._translate_error(error) from error
        finally:
            self.pool.release(None, connection, broken=not _is_idle(connection))

    async def _aexecute(self, request: Execute) -> Rows:
        connection = await self._aacquire(request.deadline)
        try:
            connection.deadline = request.deadline
            if type(connection) is not _AsyncConnection:
                return await _afetch(await self._start(connection, request.statement))
            executing = _execute_alone(connection, self._dialect.number_parameters(request.statement[0]), request)
            rows: Rows = await connection.wait(executing)
            return rows
        except psycopg.Error as error:
            raise self._translate_error(error) from error
        finally:
            await self.aperform(Release(connection))

    def _execute_pipeline(self, request: Pipeline) -> list[Rows]:
        connection, statements, prepare = request.connection, request.statements, request.prepare
        connection.deadline = request.deadline
        try:
            if type(statements) is list and len(statements) == 1:
                return [_fetch(self._start(connection, statements[0], prepare))]
            with connection.pipeline():
                cursors = [self._start(connection, statement, prepare) for statement in statements]
            return [_fetch(cursor) for cursor in cursors]
        except psycopg.Error as error:
            raise self._translate_error(error) from error

    async def _aexecute_pipeline(self, request: Pipeline) -> list[Rows]:
        connection, statements, prepare = request.connection, request.statements, request.prepare
        connection.deadline = request.deadline
        try:
            if type(statements) is list and len(statements) == 1:
                return [await _afetch(await self._start(connection, statements[0], prepare))]
            if type(connection) is not _AsyncConnection:
                # psycopg may stay in pipeline mode when a task is cancelled, and the user's connection is not closed.
                return [await _afetch(await self._start(connection, statement, prepare)) for statement in statements]
            async with connection.pipeline():
                cursors = [await self._start(connection, statement, prepare) for statement in statements]
            return [await _afetch(cursor) for cursor in cursors]
        except psycopg.Error as error:
            raise self._translate_error(error) from error

    def _start(self, connection: Any, statement: Statement, prepare: bool | None = None) -> Any:
        """Execute a statement with a new cursor and return the cursor; on an async connection, an awaitable of it."""
        sql, params = statement
        cursor = _new_cursor(connection)
        if not params:  # psycopg sends it by the simple protocol, in which a migration may be several statements
            return cursor.execute(sql, prepare=prepare)
        numbered, names = self._dialect.number_parameters(sql)
        return cursor.execute(numbered, [params[name] for name in names], prepare=prepare, binary=True)

    def _translate_connect_error(self, error: psycopg.Error) -> Exception:
        """Return our error for one of connecting. Nothing was sent to the server."""
        text = str(error)
        state = next((state for state, pattern in _REFUSALS.items() if pattern.search(text)), error.sqlstate)
        if isinstance(error, psycopg.OperationalError) and (state in _RETRYABLE_REFUSALS or state not in _REFUSALS):
            return NotApplied(error, state)
        return self._to_holdall_error(error, state or "")

    def _translate_error(self, error: psycopg.Error) -> Exception:
        """Return our error for one of a statement."""
        state = error.sqlstate
        if state in _ROLLED_BACK:
            return NotApplied(error)
        if _is_connection_lost(error):
            if not isinstance(error, _WaitTimeout):
                self.pool.drop_idle()
            return ConnectionLost(error)
        return self._to_holdall_error(error, state or "")

    def _to_holdall_error(self, error: psycopg.Error, state: str) -> HoldallError:
        """Return the error to raise at once: the connection is intact, and nothing was written."""
        why = _describe(error, state)
        match state:
            case "57014" | "55P03":
                return Timeout(
                    "PostgreSQL canceled the statement, and nothing was written; try again, or raise timeout, which is"
                    f" {self._timeout} s, or the server's statement_timeout or lock_timeout: {why}"
                )
            case "3D000":
                return Unavailable(f"the database does not exist; create it, or correct the URL: {why}")
            case "42501":
                return Unavailable(
                    f"this role may not do that; run setup() once with a role that may create the schema: {why}"
                )
            case "53100":
                return Unavailable(f"the server's disk is full; free space there, and try again: {why}")
            case "25006":
                return Unavailable(
                    "the server is read-only; connect to the primary, for example with"
                    f" target_session_attrs=read-write in the URL: {why}"
                )
            case "42P05" | "26000":
                return Unavailable(
                    "a connection pooler between holdall and PostgreSQL does not support prepared statements; open the"
                    f" store with prepare=False: {why}"
                )
            case "42P01" | "42883" | "42703" | "3F000":
                return Unavailable(
                    f"the schema {self._dialect.schema} is not as holdall created it; restore it, or open another with"
                    f" schema=: {why}"
                )
        if state.startswith("28"):
            return Unavailable(f"the server refused the login; check user, password and pg_hba.conf: {why}")
        if isinstance(error, psycopg.DataError | pg.ProgramLimitExceeded):
            return InvalidInput(f"PostgreSQL cannot store this: {why}")
        return Unavailable(f"PostgreSQL reported an error: {why}")


def _is_connection_lost(error: psycopg.Error) -> bool:
    """Whether an error has ended the connection, or comes from a server that is about to end it."""
    state = error.sqlstate
    if state is None:  # from libpq itself; a result that libpq made up becomes a plain DatabaseError
        is_made_up = type(error) is psycopg.DatabaseError
        return is_made_up or isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return (
        error.diag.severity_nonlocalized in ("FATAL", "PANIC") or state.startswith(("08", "57P0")) or state == "53300"
    )


def _describe(error: psycopg.Error, state: str | None = None) -> str:
    """Return an error's text, with its SQLSTATE if it has one."""
    state = state or error.sqlstate
    return f"{error} (SQLSTATE {state})" if state else str(error)


# Connections ---------------------------------------------------------------------------------------------------------

#: How parameters are sent. An int is a bigint, whatever its size: by default psycopg sends the smallest type that holds
#: it, and a statement would be planned once for each. A list is sent in binary, which is faster. The rest is psycopg's
#: default: a str has no type, so PostgreSQL infers it from the statement, which has a cast where the context is open.
_ADAPTERS = AdaptersMap(psycopg.adapters)


class _AsItIs(Dumper):
    """Sends a value that is in PostgreSQL's binary format already."""

    format = pq.Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return bytes(obj)


_DUMPERS = ((int, Int8BinaryDumper), (list, ListBinaryDumper), (BinaryValue, _AsItIs))
for _kind, _dumper in _DUMPERS:
    _ADAPTERS.register_dumper(_kind, _dumper)


class _DeadlineConnection(psycopg.BaseConnection[Any]):
    """What our sync and async connections share: a deadline for connecting and for waiting."""

    deadline: float | None = None  # of the request that is performed

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared: dict[bytes, _PreparedStatement] = {}  # those of `_execute_alone`
        self.statement_numbers = itertools.count()

    @classmethod
    def _connect_gen(cls, *args: Any, **options: Any) -> PQGenConn[Any]:
        """Connect as psycopg does, with a deadline.

        psycopg's own timeout is in whole seconds, at least two, for each address. Here, an address that is silent takes
        at most half of the time that is left, so that another address, or a retry, has a chance.
        """
        began, deadline = time.monotonic(), _deadline.get()
        until = began + (deadline - began) / 2
        connecting = super()._connect_gen(*args, **options)
        try:
            wait = next(connecting)
            while True:
                ready = yield wait
                if not ready:
                    run_pending_handlers()
                if time.monotonic() > (deadline if ready else until):
                    raise pg.ConnectionTimeout("the server did not accept a connection in time")
                wait = connecting.send(ready)
        except StopIteration as stop:
            return stop.value
        finally:
            connecting.close()

    def _abandon(self, gen: Any) -> None:
        """Close the connection, and a generator of psycopg's that was using it."""
        self.pgconn.finish()
        with suppress(Exception):  # it would raise that the connection is closed
            gen.close()

    def __del__(self, *_: Any) -> None:
        """Do not warn of an open connection: the pool closes those it must, and a forked child must close none."""


#: The deadline of the connection that is being opened in this thread or task.
_deadline: ContextVar[float] = ContextVar("_deadline")


@contextmanager
def _connect_deadline(deadline: float) -> Iterator[None]:
    before = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(before)


class _SyncConnection(_DeadlineConnection, psycopg.Connection[Any]):
    """A connection that waits until its deadline, and cancels the statement on the server when it gives up."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        try:
            interruptible = _run_handlers_while_waiting(gen) if is_in_main_thread() else gen
            return waiting.wait(interruptible, self.pgconn.socket, interval, timeout or _time_for_reply(self.deadline))
        except (KeyboardInterrupt, HandlerRaised, _WaitTimeout) as error:
            reply: list[Any] = []
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=_time_for_cancel(self.deadline))
                if isinstance(error, _WaitTimeout):
                    fetching = generators.fetch_many(self.pgconn)
                    reply = waiting.wait(fetching, self.pgconn.socket, interval, _time_for_cancel(self.deadline))
            self._abandon(gen)
            raise _find_cancellation(reply) or error from None


class _AsyncConnection(_DeadlineConnection, psycopg.AsyncConnection[Any]):
    """The same for an event loop."""

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        try:
            timeout = timeout or _time_for_reply(self.deadline)
            return await waiting.wait_async(gen, self.pgconn.socket, interval, timeout)
        except (asyncio.CancelledError, KeyboardInterrupt, _WaitTimeout) as error:
            reply: list[Any] = []
            try:
                with suppress(psycopg.Error):
                    patience = _time_for_cancel(self.deadline)
                    await self.cancel_safe(timeout=patience)
                    if isinstance(error, _WaitTimeout):
                        fetching = generators.fetch_many(self.pgconn)
                        patience = _time_for_cancel(self.deadline)
                        reply = await waiting.wait_async(fetching, self.pgconn.socket, interval, patience)
            finally:  # also if the task is cancelled a second time
                self._abandon(gen)
            raise _find_cancellation(reply) or error from None


def _run_handlers_while_waiting(gen: Any) -> Any:
    """Run a generator of psycopg's; while the server sends nothing, run signal handlers."""
    try:
        wait = next(gen)
        while True:
            ready = yield wait
            if not ready:
                run_pending_handlers()
            wait = gen.send(ready)
    except StopIteration as stop:
        return stop.value


def _find_cancellation(reply: list[Any]) -> psycopg.Error | None:
    """Return the server's confirmation that it canceled a statement: without it, the statement may have been done."""
    failed = next((result for result in reply if result.status == pq.ExecStatus.FATAL_ERROR), None)
    error = None if failed is None else error_from_result(failed)
    return error if isinstance(error, pg.QueryCanceled) else None


def _time_for_reply(deadline: float | None) -> float | None:
    """Return the seconds to wait for a reply. The rest of the time until the deadline is for canceling."""
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    return max(0.001, left - min(_MAX_CANCEL_TIME, left / 5))


def _time_for_cancel(deadline: float | None) -> float:
    """Return the seconds to wait until a statement is canceled."""
    if deadline is None:
        return _MAX_CANCEL_TIME
    return max(_MIN_CANCEL_TIME, min(_MAX_CANCEL_TIME, deadline - time.monotonic()))


def _is_idle(connection: Any) -> bool:
    """Whether a connection is open, and in no transaction."""
    return bool(connection.pgconn.transaction_status == _IDLE)


_IDLE = pq.TransactionStatus.IDLE


def close_at_once(connection: Any) -> None:
    """Close a connection without waiting, from any thread; it may belong to a thread or to an event loop."""
    connection.pgconn.finish()


# Statements ----------------------------------------------------------------------------------------------------------


def _new_cursor(connection: Any) -> Any:
    """Return a cursor that takes numbered parameters and gives rows as tuples."""
    if isinstance(connection, _SyncConnection | _AsyncConnection):
        return connection.cursor()
    # The connection is the user's, and may have been opened with other settings.
    kind: Any = psycopg.AsyncRawCursor if isinstance(connection, psycopg.AsyncConnection) else psycopg.RawCursor
    cursor = kind(connection, row_factory=tuple_row)
    for python_type, dumper in _DUMPERS:
        cursor.adapters.register_dumper(python_type, dumper)
    return cursor


def _has_rows(cursor: Any) -> bool:
    return bool(cursor.pgresult.status == pq.ExecStatus.TUPLES_OK)  # `description` would describe every column first


def _fetch(cursor: Any) -> Rows:
    return cursor.fetchall() if _has_rows(cursor) else []


async def _afetch(cursor: Any) -> Rows:
    return await cursor.fetchall() if _has_rows(cursor) else []


class _PreparedStatement:
    """A statement that was prepared on one connection: its name there, and the loaders of its columns."""

    __slots__ = ("_has_loaders", "_transformer", "name")

    def __init__(self, connection: _DeadlineConnection, name: bytes) -> None:
        self.name = name
        self._transformer = Transformer(connection)
        self._has_loaders = False

    def load_rows(self, result: Any) -> Rows:
        transformer = self._transformer
        transformer.set_pgresult(result, set_loaders=not self._has_loaders)
        self._has_loaders = True
        rows = transformer.load_rows(0, result.ntuples, tuple)
        transformer.set_pgresult(None, set_loaders=False)  # free the result, which may be large
        return rows


def _execute_alone(connection: _DeadlineConnection, numbered: NumberedSql, request: Execute) -> PQGen[Rows]:
    """Execute one statement, whose parameters are texts, ints and nulls, without a psycopg cursor -> its rows.

    A cursor takes another 11 us of CPU time. With one, a get takes 1.13 times as long, a put of a new key 1.12 times,
    and a put of an existing key 1.15 times. (Medians of 60 rounds of 400 calls, with a cursor for named parameters and
    PostgreSQL 18 on the same machine of 2 cores, which was busy.)
    """
    sql, names = numbered
    pgconn, prepared, params = connection.pgconn, connection.prepared, request.statement[1]
    values = [
        value.encode() if type(value) is str else None if value is None else b"%d" % value
        for value in map(params.__getitem__, names)
    ]
    statement = prepared.get(sql)
    if statement is not None:
        pgconn.send_query_prepared(statement.name, values, None, _BINARY)
        if request.json is not None:
            request.decoded = decode(request.json)
        try:
            return statement.load_rows(_check((yield from generators.execute(pgconn))))
        except pg.InvalidSqlStatementName:  # psycopg runs DEALLOCATE ALL after a rollback
            prepared.clear()
    types = [_BIGINT_OID if type(params[name]) is int else _NO_OID for name in names]
    statement = _PreparedStatement(connection, b"holdall_%d" % next(connection.statement_numbers))
    if connection.prepare_threshold is None:
        pgconn.send_query_params(sql, values, types, None, _BINARY)
    else:
        pgconn.send_prepare(statement.name, sql, types)
        _check((yield from generators.execute(pgconn)))
        prepared[sql] = statement
        pgconn.send_query_prepared(statement.name, values, None, _BINARY)
    return statement.load_rows(_check((yield from generators.execute(pgconn))))


def _check(results: list[Any]) -> Any:
    """Return the last result, or raise its error."""
    result = results[-1]
    if result.status not in _SUCCESS:
        raise error_from_result(result)
    return result


_BINARY = pq.Format.BINARY
_BIGINT_OID, _NO_OID = 20, 0  # 0: PostgreSQL infers the type
_SUCCESS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
