"""The PostgreSQL engine: the same store for a fleet.

psycopg 3, sync and natively async, over one small pool. A batch of one op is one autocommit statement; a larger one is
a transaction in two round trips. Nothing is kept in a session between batches, so a pooler in transaction mode may
stand in between.

A lost connection is not the caller's problem where it can be helped. Reads are done again. A write learns its fate: a
transaction by the id that it had asked for before it committed, a single statement by the token that it left in the
row. Only where neither tells does the caller get `Unavailable`, which says so.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import pq, waiting
from psycopg.errors import _WaitTimeout

from ..engine import Capabilities, Options
from ..errors import Conflict, HoldallError, InvalidInput, StoreClosed, Timeout, Unavailable
from ..ops import READS, WALKS, Delete, Op, Put, Refresh
from ..programs import Program, Sleep, adrive, drive
from .pool import Lent, Pool
from .postgres_sql import PostgresDialect, PostgresSql, new_token
from .sql import Rows, Statement

_BEGIN: Statement = ("BEGIN", {})
_BEGIN_SNAPSHOT: Statement = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", {})
_COMMIT: Statement = ("COMMIT", {})
_ROLLBACK: Statement = ("ROLLBACK", {})
_OWN_XID: Statement = ("SELECT pg_current_xact_id()::text", {})
#: What PostgreSQL undoes by itself and asks to be tried again.
_UNDONE = (pg.DeadlockDetected, pg.SerializationFailure)
#: The connection, not the statement, is at fault.
_LOST = (psycopg.OperationalError, psycopg.InterfaceError)
_GRACE = 0.5  # seconds, for the server to hear that nobody waits for its answer any more


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """PostgreSQL's own options of `holdall.open`."""

    schema: str = "holdall"
    pool_min: int = 1
    pool_max: int = 10
    pool_timeout: float = 30.0
    prepare: bool | None = None  # None: unless a pooler stands in between
    connection: Any = None

    def __post_init__(self) -> None:
        lent = self.connection
        if lent is not None and not hasattr(lent, "getconn"):
            if not isinstance(lent, psycopg.Connection | psycopg.AsyncConnection):
                raise InvalidInput(f"connection is a connection or pool of psycopg's, not {lent!r:.60}")
            if not lent.autocommit:
                raise InvalidInput(
                    "connection= needs a connection with autocommit=True: batches are transactions of their own"
                )
        if (
            not isinstance(self.schema, str)
            or not self.schema
            or "\x00" in self.schema
            or len(self.schema.encode("utf-8", "surrogatepass")) > 63
            or any("\ud800" <= letter <= "\udfff" for letter in self.schema)
        ):
            raise InvalidInput(f"schema is the name of a PostgreSQL schema, not {self.schema!r}")
        for name, least in (("pool_min", 0), ("pool_max", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidInput(f"{name} is a number of connections, at least {least}, not {value!r}")
        if not isinstance(self.pool_timeout, (int, float)) or not 0 < self.pool_timeout < 1e9:
            raise InvalidInput(f"pool_timeout is a number of seconds, not {self.pool_timeout!r}")


@dataclass(frozen=True, slots=True)
class _Take:
    """A request for a connection."""

    deadline: float


@dataclass(frozen=True, slots=True)
class _Give:
    """A request to give one back."""

    connection: Any


@dataclass(frozen=True, slots=True)
class _Run:
    """A request to run statements on one, in one round trip."""

    connection: Any
    statements: list[Statement]
    deadline: float
    prepare: bool | None = None  # False: plan for these values, as no plan is good for all


class PostgresEngine:
    """Entries in one schema of a PostgreSQL database."""

    capabilities = Capabilities(durable=True, multiprocess=True)

    def __init__(self, url: str, options: Options, own: PostgresOptions) -> None:
        self._url = url
        self._options = options
        self._own = own
        clock = options.clock
        self._dialect = PostgresDialect(own.schema, options.indexed, server_clock=clock is None)
        self._sql = PostgresSql(self._dialect, clock or (lambda: None))
        self._prepare_threshold = None if own.prepare is False else 2
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        """A state with nothing open: at the beginning, and in a forked child."""
        own = self._own
        self._pool: Pool | Lent = (
            Pool(own.pool_min, own.pool_max, own.pool_timeout, _discard)
            if own.connection is None
            else Lent(own.connection, own.pool_timeout)
        )
        self._is_set_up = False
        self._newest_seen = 0  # the highest version that we know to be older than what we write next

    # The engine's methods --------------------------------------------------------------------------------------------

    def execute(self, batch: Sequence[Op]) -> list[Any]:
        return drive(self._work(batch), self._perform)

    async def aexecute(self, batch: Sequence[Op]) -> list[Any]:
        return await adrive(self._work(batch), self._aperform)

    def setup(self) -> None:
        drive(self._set_up(self._deadline()), self._perform)

    async def asetup(self) -> None:
        await adrive(self._set_up(self._deadline()), self._aperform)

    def close(self) -> None:
        self._closed = True
        self._pool.close()

    def before_fork(self) -> None:
        """Nothing: a child leaves the parent's sockets alone."""

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            _abandoned.append(self._pool)
            self._reset()

    # Work, as programs -----------------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        return time.monotonic() + self._options.timeout

    def _work(self, batch: Sequence[Op]) -> Program[list[Any]]:
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")
        deadline = self._deadline()
        if not self._is_set_up:
            yield from self._set_up(deadline)
        if type(batch[0]) in WALKS:
            return [(yield from self._read(self._sql.walk, batch[0], deadline))]
        if all(type(op) in READS for op in batch):
            results: list[Any] = yield from self._read(self._sql.batch, batch, deadline, snapshot=len(batch) > 1)
        elif len(batch) == 1 and isinstance(batch[0], Put | Delete | Refresh):
            results = [(yield from self._write_one(batch[0], deadline))]
        else:
            results = yield from self._write(batch, deadline)
        for result in results:
            self._newest_seen = max(self._newest_seen, getattr(result, "version", 0))
        return results

    def _read(self, make: Any, asked: Any, deadline: float, snapshot: bool = True) -> Program[Any]:
        """Run a program of the SQL's that only reads, as of one moment, again if the connection is lost."""
        for tries in itertools.count():
            connection = yield from self._connected(deadline)
            try:
                return (
                    yield from self._returning(
                        connection, self._reading(connection, make(asked), deadline, snapshot, _filters(asked))
                    )
                )
            except _LOST as error:
                yield from self._pause_before_retry(error, tries, deadline)
        raise AssertionError("unreachable")

    def _reading(
        self, connection: Any, program: Program[Any], deadline: float, snapshot: bool, filters: bool
    ) -> Program[Any]:
        if not snapshot:
            return (yield from self._asking(connection, program, deadline))
        try:
            # Prepared, a filter's statement would soon get one plan for whatever is asked: to read the whole table.
            prepare = False if filters else None
            result = yield from self._asking(connection, program, deadline, [_BEGIN_SNAPSHOT], prepare=prepare)
        except HoldallError:
            if not connection.closed:
                yield _Run(connection, [_ROLLBACK], deadline)
            raise
        yield _Run(connection, [_COMMIT], deadline)
        return result

    def _write_one(self, op: Put | Delete | Refresh, deadline: float) -> Program[Any]:
        """One autocommit statement. Said again, it is the same one, which a put that was done already ignores."""
        statement = self._sql.once(op)
        expect = getattr(op, "expect", 0)
        seen = 0
        lost: Exception | None = None
        for tries in itertools.count():
            connection = yield from self._connected(deadline)
            if lost is None:
                seen = max(self._newest_seen, expect if isinstance(expect, int) else 0)
            refused: Exception | None = None
            try:
                result = yield from self._returning(
                    connection, self._asking(connection, self._sql.one(op, statement), deadline)
                )
                if lost is None or result is not False:
                    return result
            except _UNDONE as error:
                yield from self._pause_before_retry(error, tries, deadline)
                continue
            except _LOST as error:
                if isinstance(op, Refresh):  # may be done twice
                    yield from self._pause_before_retry(error, tries, deadline)
                    continue
                lost = refused = error
            except Conflict as error:
                if lost is None:
                    raise
                refused = error
            assert not isinstance(op, Refresh)
            assert lost is not None
            # The server may have gone on with it after the connection was lost, and be done by now.
            fate = self._fate_of_one(op, statement, seen, lost, deadline)
            was_done, was = yield from self._learning(fate, lost, tries, deadline)
            if was_done:
                return was
            if refused is None:
                return result
            if refused is not lost:
                raise refused
        raise AssertionError("unreachable")

    def _fate_of_one(
        self, op: Put | Delete, statement: Statement, seen: int, error: Exception, deadline: float
    ) -> Program[tuple[bool, Any]]:
        """What became of a statement whose reply was lost: whether it was done, and then its result.

        The row tells: it has our token; or it is no newer than what we knew before we wrote, so we did not.
        """
        rows = yield from self._read(self._sql.last_write, statement[1], deadline, snapshot=False)
        if not rows:
            return False, None
        token, *columns = rows[0]
        if token == statement[1]["token"]:
            return True, self._sql.result(op, statement[1], [tuple(columns)])
        if columns[0] <= seen:
            return False, None
        raise Unavailable(
            f"the connection was lost while {op.key!r} in {op.namespace!r} was written, and somebody else has written"
            " it since: the outcome is unknown; read it and decide"
        ) from error

    def _write(self, batch: Sequence[Op], deadline: float) -> Program[list[Any]]:
        """A transaction: done in one round trip, judged, and committed in another."""
        for tries in itertools.count():
            connection = yield from self._connected(deadline)
            done: list[Any] = []  # the transaction's id and its results, once only the commit is missing
            token = new_token()
            try:
                yield from self._returning(connection, self._transact(connection, batch, token, done, deadline))
            except _UNDONE as error:
                yield from self._pause_before_retry(error, tries, deadline)
            except _LOST as error:
                if not done:  # nor asked to be
                    yield from self._pause_before_retry(error, tries, deadline)
                elif (
                    yield from self._learning(
                        self._was_committed(done[0], token, error, deadline), error, tries, deadline
                    )
                ):
                    return done[1]  # type: ignore[no-any-return]  # the results
            else:
                return done[1]  # type: ignore[no-any-return]  # the results
        raise AssertionError("unreachable")

    def _transact(
        self, connection: Any, batch: Sequence[Op], token: int, done: list[Any], deadline: float
    ) -> Program[None]:
        before: list[Rows] = []
        try:
            program = self._sql.batch(batch, token)
            results = yield from self._asking(connection, program, deadline, [_BEGIN, _OWN_XID], before)
        except HoldallError:
            if not connection.closed:
                yield _Run(connection, [_ROLLBACK], deadline)
            raise
        done += [before[1][0][0], results]
        yield _Run(connection, [_COMMIT], deadline)

    def _was_committed(self, xid: str, token: int, error: Exception, deadline: float) -> Program[bool]:
        """Whether a transaction, whose commit was under way when the connection was lost, was done."""
        for tries in itertools.count():
            status = yield from self._read(lambda _: self._sql.status_of(xid, token), None, deadline, snapshot=False)
            if status != "in progress":
                break
            yield from self._pause_before_retry(error, tries, deadline)
        if status in ("committed", "aborted"):
            return bool(status == "committed")
        raise Unavailable(
            "the connection was lost during a commit, whose outcome is unknown; read and decide"
        ) from error

    def _learning(self, fate: Program[Any], error: Exception, tries: int, deadline: float) -> Program[Any]:
        """Ask for a write's fate; who cannot be told it is told so."""
        try:
            yield from self._pause_before_retry(error, tries, deadline)
            return (yield from fate)
        except Unavailable as unavailable:
            if "unknown" in str(unavailable):
                raise
            raise Unavailable(
                f"the connection was lost during a write, whose outcome is unknown; read and decide: {unavailable}"
            ) from unavailable

    def _asking(
        self,
        connection: Any,
        program: Program[Any],
        deadline: float,
        before: Sequence[Statement] = (),
        replies_before: list[Rows] | None = None,
        prepare: bool | None = None,
    ) -> Program[Any]:
        """Run one of the SQL's programs, which yields statements and is sent their rows.

        The statements `before` go with its first ones, in the same round trip.
        """
        try:
            statements = next(program)
            while True:
                try:
                    replies = yield _Run(connection, [*before, *statements], deadline, prepare)
                except BaseException as error:
                    statements = program.throw(error)
                else:
                    if before and replies_before is not None:
                        replies_before += replies[: len(before)]
                    statements, before = program.send(replies[len(before) :]), ()
        except StopIteration as stop:
            return stop.value

    def _connected(self, deadline: float) -> Program[Any]:
        """A connection; while there is no server, nothing has been said to it that could not be said again."""
        for tries in itertools.count():
            try:
                return (yield _Take(deadline))
            except _LOST as error:
                yield from self._pause_before_retry(error, tries, deadline)
        raise AssertionError("unreachable")

    def _returning(self, connection: Any, program: Program[Any]) -> Program[Any]:
        """Run a program on a connection and give it back, whatever happens."""
        try:
            result = yield from program
        except BaseException:
            yield _Give(connection)
            raise
        yield _Give(connection)
        return result

    def _pause_before_retry(self, error: Exception, tries: int, deadline: float) -> Program[None]:
        pause = 0.01 * 2 ** min(tries, 6) * random.uniform(0.5, 1)
        if time.monotonic() + pause > deadline:
            raise Unavailable(f"PostgreSQL could not be reached for {self._options.timeout} s: {error}") from error
        yield Sleep(pause)

    # Setting up ------------------------------------------------------------------------------------------------------

    def _set_up(self, deadline: float) -> Program[None]:
        """Create and migrate what is missing; touch nothing where nothing is."""
        for tries in itertools.count():
            connection = yield from self._connected(deadline)
            try:
                yield from self._returning(connection, self._migrate(connection, deadline))
            except _LOST as error:
                yield from self._pause_before_retry(error, tries, deadline)
            else:
                self._is_set_up = True
                return

    def _migrate(self, connection: Any, deadline: float) -> Program[None]:
        if self._own.prepare is None and self._own.connection is None:
            # A pooler invents the process that it says we talk to. It may give us another's session, in which the name
            # of our prepared statement is missing, or stands for another's.
            [[(pid,)]] = yield _Run(connection, [("SELECT pg_backend_pid()", {})], deadline)
            if pid != connection.info.backend_pid:
                self._prepare_threshold = connection.prepare_threshold = None
        missing = yield from self._asking(connection, self._sql.missing(), deadline)
        if missing:
            # One process at a time; the others find nothing missing when it is their turn.
            lock = ("SELECT pg_advisory_xact_lock(hashtext(:p0))", {"p0": f"holdall {self._dialect.schema}"})
            yield _Run(connection, [_BEGIN, lock], deadline)
            for sql in (yield from self._asking(connection, self._sql.missing(), deadline)):
                yield _Run(connection, [(sql, {})], deadline)
            yield _Run(connection, [_COMMIT], deadline)
        [[(newest,)]] = yield _Run(
            connection, [(f"SELECT last_value FROM {self._dialect.schema}.versions", {})], deadline
        )
        self._newest_seen = max(self._newest_seen, newest)

    # Performing what programs ask for --------------------------------------------------------------------------------

    def _perform(self, request: Any) -> Any:
        match request:
            case _Run(connection, statements, deadline, prepare):
                connection.deadline = deadline
                try:
                    if len(statements) == 1:
                        return [_rows(_for_one(connection).execute(*self._spoken(statements[0]), prepare=prepare))]
                    with connection.pipeline():
                        cursors = [connection.execute(*self._spoken(one), prepare=prepare) for one in statements]
                    return [_rows(cursor) for cursor in cursors]
                except psycopg.Error as error:
                    raise self._translated(error) from error
            case _Take(deadline):
                return self._pool.take(lambda: _Sync.connect(self._url, **self._connecting(deadline)))
            case _Give(connection):
                return self._pool.give_back(None, connection, not _is_idle(connection))
            case Sleep(seconds):
                return time.sleep(seconds)
        raise TypeError(f"not a request: {request!r}")

    async def _aperform(self, request: Any) -> Any:
        match request:
            case _Run(connection, statements, deadline, prepare):
                connection.deadline = deadline
                try:
                    if len(statements) == 1:
                        cursor = _for_one(connection)
                        return [await _arows(await cursor.execute(*self._spoken(statements[0]), prepare=prepare))]
                    async with connection.pipeline():
                        cursors = [await connection.execute(*self._spoken(one), prepare=prepare) for one in statements]
                    return [await _arows(cursor) for cursor in cursors]
                except psycopg.Error as error:
                    raise self._translated(error) from error
            case _Take(deadline):
                return await self._pool.atake(lambda: _Async.connect(self._url, **self._connecting(deadline)))
            case _Give(connection):
                owner, broken = asyncio.get_running_loop(), not _is_idle(connection)
                returning = self._pool.give_back(owner, connection, broken)
                return await returning if returning is not None else None
            case Sleep(seconds):
                return await asyncio.sleep(seconds)
        raise TypeError(f"not a request: {request!r}")

    def _connecting(self, deadline: float) -> dict[str, Any]:
        return {
            "autocommit": True,
            "prepare_threshold": self._prepare_threshold,
            "connect_timeout": max(2, round(deadline - time.monotonic())),
        }

    def _spoken(self, statement: Statement) -> tuple[str, dict[str, Any] | None]:
        sql, params = statement
        return (self._dialect.translated(sql), params) if params else (sql, None)

    def _translated(self, error: psycopg.Error) -> Exception:
        """Ours for a driver's error. A lost connection stays what it is: the programs above deal with it."""
        match error:
            case pg.QueryCanceled() | pg.LockNotAvailable() | _WaitTimeout():
                return Timeout(
                    f"PostgreSQL did not answer within {self._options.timeout} s; what was being written may"
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
        if isinstance(error, (*_LOST, *_UNDONE)):
            return error
        return Unavailable(f"PostgreSQL cannot do it: {error}")


class _Sync(psycopg.Connection[Any]):
    """A connection that waits no longer than it should, and leaves nothing running on the server when it gives up."""

    deadline: float | None = None
    kept_cursor: Any = None

    def __del__(self, *_: Any) -> None:
        """No warning: a pool closes what must be closed, and a forked child must not."""

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


class _Async(psycopg.AsyncConnection[Any]):
    """The same, awaited."""

    deadline: float | None = None
    kept_cursor: Any = None

    def __del__(self, *_: Any) -> None:
        """As above."""

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


def _for_one(connection: Any) -> Any:
    """What executes a single statement: a cursor that is kept, since making one costs a tenth of a get."""
    if not isinstance(connection, _Sync | _Async):  # lent
        return connection
    if connection.kept_cursor is None:
        connection.kept_cursor = connection.cursor()
    return connection.kept_cursor


def _filters(asked: Any) -> bool:
    return getattr(asked, "filter", None) is not None


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.001, deadline - time.monotonic())


def _is_idle(connection: Any) -> bool:
    return not connection.closed and connection.pgconn.transaction_status == pq.TransactionStatus.IDLE


def _discard(connection: Any) -> None:
    """Close at once, from any thread and whoever's it is."""
    connection.pgconn.finish()


def _has_rows(cursor: Any) -> bool:
    return bool(cursor.pgresult.status == pq.ExecStatus.TUPLES_OK)  # `description` would describe every column first


def _rows(cursor: Any) -> Rows:
    return cursor.fetchall() if _has_rows(cursor) else []


async def _arows(cursor: Any) -> Rows:
    return await cursor.fetchall() if _has_rows(cursor) else []


_abandoned: list[
    Pool | Lent
] = []  # a parent's connections in its forked child: kept, because letting go would end them
