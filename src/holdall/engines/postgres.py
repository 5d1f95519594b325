"""The PostgreSQL engine: the same store for a fleet.

psycopg 3, sync and natively async, over one small pool. A batch of one op is one autocommit statement; a larger one is
a transaction in two round trips. Nothing is kept in a session between batches, so a pooler in transaction mode may
stand in between.

A lost connection is not the caller's problem where it can be helped. Reads are done again. A write learns its fate: a
transaction by the id that it had asked for before it committed, a single statement by the token that it left in the
row. Only where neither tells does the caller get `Unavailable`, which says so.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from ..engine import Capabilities, Options, conflict, put_entry
from ..errors import Conflict, HoldallError, InvalidInput, StoreClosed, Unavailable, shown
from ..keys import RESERVED, check_flag
from ..ops import READS, WALKS, Check, Children, Delete, Embed, Get, Learn, Op, Put, Refresh, Tidy
from ..programs import Program, Sleep, Work, adrive, drive
from .pool import Lent, Pool, check_options
from .postgres_dialect import PostgresDialect, new_token
from .postgres_listener import SAID_EVERY, UNHEARD, Channel, NotifyListener
from .postgres_sql import PostgresSql
from .postgres_wire import LOST, UNDONE, Give, Run, Say, Take, Unreached, Wire, discard
from .sql import LOOK_UPS, expects_a_row, takes_several
from .statements import Rows, Statement

A = TypeVar("A")
T = TypeVar("T")

_BEGIN: Statement = ("BEGIN", {})
_BEGIN_SNAPSHOT: Statement = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", {})
_COMMIT: Statement = ("COMMIT", {})
_ROLLBACK: Statement = ("ROLLBACK", {})
_OWN_XID: Statement = ("SELECT pg_current_xact_id()::text", {})
#: Ops that are one autocommit statement.
_ALONE = LOOK_UPS | {Put, Delete, Refresh}
#: Ops that may as well be done twice.
_REPEATABLE = frozenset({Learn, Embed, Tidy})


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """PostgreSQL's own options of `holdall.open`."""

    schema: str = "holdall"
    pool_min: int = 1
    pool_max: int = 10
    pool_timeout: float = 30.0
    prepare: bool | None = None  # None: unless a pooler stands in between
    connection: Any = None
    notify_url: str | None = None  # where LISTEN works, if it does not where the others go

    def __post_init__(self) -> None:
        lent = self.connection
        if lent is not None and not hasattr(lent, "getconn"):
            if not isinstance(lent, psycopg.Connection | psycopg.AsyncConnection):
                raise InvalidInput(f"connection is a connection or pool of psycopg's, not {shown(lent)}")
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
            raise InvalidInput(f"schema is the name of a PostgreSQL schema, not {shown(self.schema)}")
        if not (self.notify_url is None or isinstance(self.notify_url, str)):
            raise InvalidInput(f"notify_url is a URL of the same database, or None, not {shown(self.notify_url)}")
        check_options(self.pool_min, self.pool_max, self.pool_timeout)
        check_flag("prepare", self.prepare, or_none=True)


class _Unknowable(Exception):
    """Nobody can tell any more what became of a write."""


class PostgresEngine:
    """Entries in one schema of a PostgreSQL database."""

    capabilities = Capabilities(durable=True, multiprocess=True, ranks=True)

    def __init__(self, url: str, options: Options, own: PostgresOptions) -> None:
        self._url = url
        self._options = options
        self._own = own
        clock = options.clock
        self._dialect = PostgresDialect(own.schema, options.indexed, server_clock=clock is None)
        self._sql = PostgresSql(self._dialect, clock or (lambda: None))
        self._channel = Channel(own.schema)
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        """A state with nothing open: at the beginning, and in a forked child."""
        own = self._own
        self._pool: Pool | Lent = (
            Pool(own.pool_min, own.pool_max, own.pool_timeout, discard)
            if own.connection is None
            else Lent(own.connection, own.pool_timeout)
        )
        threshold = None if own.prepare is False else 2
        self._wire = Wire(self._url, self._dialect, self._pool, self._options.timeout, threshold)
        self._is_set_up = False
        self._silent_until = 0.0  # who listens need not be told of a write before that
        self._newest_seen = 0  # the highest version that we know to be older than what we write next

    # The engine's methods --------------------------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        return self._sql.behind

    def execute(self, batch: Sequence[Op]) -> list[Any]:
        return drive(self._work(batch), self._wire.perform)

    async def aexecute(self, batch: Sequence[Op]) -> list[Any]:
        return await adrive(self._work(batch), self._wire.aperform)

    def setup(self) -> None:
        drive(self._set_up(self._deadline()), self._wire.perform)

    async def asetup(self) -> None:
        await adrive(self._set_up(self._deadline()), self._wire.aperform)

    def close(self) -> None:
        self._closed = True
        self._pool.close()

    def before_fork(self) -> None:
        """Nothing: a child leaves the parent's sockets alone."""

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            _abandoned.append(self._pool)
            self._reset()

    def listen(self, ring: Callable[[], None]) -> NotifyListener:
        def look(connection: Any) -> str:
            return drive(self._sql.position(), lambda said: [connection.execute(sql).fetchall() for sql, _ in said])

        url = self._own.notify_url or self._url
        return NotifyListener(lambda deadline: self._wire.connect(url, deadline), self._channel, look, ring)

    # Work, as programs -----------------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        return time.monotonic() + self._options.timeout

    def _work(self, batch: Sequence[Op]) -> Program[list[Any]]:
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")
        deadline = self._deadline()
        if not self._is_set_up:
            yield from self._set_up(deadline)
        first = batch[0]
        kind = type(first)
        if len(batch) == 1 and kind in _ALONE and not takes_several(first):
            alone: Any = self._look_up if kind in LOOK_UPS else self._write_one
            results = [(yield from alone(first, deadline))]
            if kind not in LOOK_UPS and time.monotonic() > self._silent_until:
                yield from self._announce(deadline)
        elif kind is Children and first.matches is None:  # type: ignore[attr-defined]  # Children have it
            return [(yield from self._walk_at_once(first, deadline))]
        elif kind in WALKS:
            return [(yield from self._read(self._sql.walk, first, deadline))]
        elif all(type(op) in READS for op in batch):
            several = not all(type(op) is Get for op in batch)  # statements: gets are one
            results = yield from self._read(self._sql.batch, batch, deadline, snapshot=several and len(batch) > 1)
        else:
            results = yield from self._write(batch, deadline)
            if time.monotonic() > self._silent_until:
                yield from self._announce(deadline)
        for result in results:
            version = getattr(result, "version", None)
            if version is not None and version > self._newest_seen:
                self._newest_seen = version
        return results

    def _announce(self, deadline: float) -> Program[None]:
        """Tell those who listen that something was written, if there are any."""
        began = time.monotonic()
        self._silent_until = began + SAID_EVERY
        try:
            [(heard,)] = yield Say((self._channel.announce, {}), min(deadline, began + UNHEARD))
        except (*LOST, *UNDONE, Unreached, HoldallError):  # the write is done all the same, and they look themselves
            return
        if not heard:
            self._silent_until = began + UNHEARD

    def _look_up(self, op: Op, deadline: float) -> Program[Any]:
        statement = self._sql.statement(op)
        return self._sql.result(op, statement[1], (yield from self._asked(statement, deadline)))

    def _walk_at_once(self, op: Op, deadline: float) -> Program[Any]:
        """A walk that mostly is one query, and so needs no transaction; else it begins again in one."""
        walk = self._sql.walk(op)
        [statement] = next(walk)
        rows = yield from self._asked(statement, deadline)
        try:
            walk.send([rows])
        except StopIteration as stop:
            return stop.value
        return (yield from self._read(self._sql.walk, op, deadline))

    def _asked(self, statement: Statement, deadline: float) -> Program[Rows]:
        """A query's rows; it is asked again if the connection is lost."""
        for tries in itertools.count():
            try:
                return (yield Say(statement, deadline))  # type: ignore[no-any-return]  # a reply
            except (*LOST, Unreached) as error:
                yield from self._pause_before_retry(error, tries, deadline)
        raise AssertionError("unreachable")

    def _read(self, make: Callable[[A], Program[T]], asked: A, deadline: float, snapshot: bool = True) -> Program[T]:
        """Run a program of the SQL's that only reads, as of one moment, again if the connection is lost."""
        for tries in itertools.count():
            connection = yield from self._connected(deadline)
            try:
                return (
                    yield from self._returning(
                        connection, self._reading(connection, make(asked), deadline, snapshot, _filters(asked))
                    )
                )
            except LOST as error:
                yield from self._pause_before_retry(error, tries, deadline)
        raise AssertionError("unreachable")

    def _reading(
        self, connection: Any, program: Program[T], deadline: float, snapshot: bool, filters: bool
    ) -> Program[T]:
        if not snapshot:
            return (yield from self._asking(connection, program, deadline))
        try:
            # Prepared, a filter's statement would soon get one plan for whatever is asked: to read the whole table.
            prepare = False if filters else None
            result = yield from self._asking(connection, program, deadline, [_BEGIN_SNAPSHOT], prepare=prepare)
        except HoldallError:
            if not connection.closed:
                yield Run(connection, [_ROLLBACK], deadline)
            raise
        yield Run(connection, [_COMMIT], deadline)
        return result

    def _write_one(self, op: Put | Delete | Refresh, deadline: float) -> Program[Any]:
        """One autocommit statement. Said again, it is the same one, which a put that was done already ignores."""
        statement = self._sql.once(op)
        expect = getattr(op, "expect", 0)
        seen = 0
        lost: Exception | None = None
        for tries in itertools.count():
            if lost is None:
                seen = max(self._newest_seen, expect) if type(expect) is int else self._newest_seen
            refused: Exception | None = None
            try:
                said = Say(statement, deadline, statement[1].get("value"))
                rows = yield said
                if not rows and (other := self._sql.over_more(statement)) is not None:
                    rows = yield Say(other, deadline)
                if not rows and expects_a_row(op):
                    found = yield from self._read(self._sql.found_instead, statement[1], deadline, snapshot=False)
                    raise conflict(op, found)
                if said.value is not None:
                    assert isinstance(op, Put)
                    return put_entry(op, said.value, *rows[0])
                result = self._sql.result(op, statement[1], rows)
                if lost is None or result is not False:
                    return result
            except (*UNDONE, Unreached) as error:
                yield from self._pause_before_retry(error, tries, deadline)
                continue
            except LOST as error:
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
            fate = self._fate_of_one(op, statement, seen, deadline)
            was_done, was = yield from self._learning(fate, lost, tries, deadline)
            if was_done:
                return was
            if refused is None:
                return result
            if refused is not lost:
                raise refused
        raise AssertionError("unreachable")

    def _fate_of_one(
        self, op: Put | Delete, statement: Statement, seen: int, deadline: float
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
        raise _Unknowable(
            f"the connection was lost while {op.key!r} in {op.namespace!r} was written, and somebody else has written"
            " it since: the outcome is unknown; read it and decide"
        )

    def _write(self, batch: Sequence[Op], deadline: float) -> Program[list[Any]]:
        """A transaction: done in one round trip, judged, and committed in another."""
        for tries in itertools.count():
            connection = yield from self._connected(deadline)
            done: list[Any] = []  # the transaction's id and its results, once only the commit is missing
            token = new_token()
            try:
                yield from self._returning(connection, self._transact(connection, batch, token, done, deadline))
            except UNDONE as error:
                yield from self._pause_before_retry(error, tries, deadline)
            except LOST as error:
                if not done or all(
                    type(op) in _REPEATABLE for op in batch
                ):  # nor asked to be, or nothing is lost by it
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
            beginning = [_BEGIN, _OWN_XID]
            if any(map(_is_fence, batch)) and connection.info.server_version >= 170000:
                # It keeps a lease as it is. If we sleep before we commit, the next holder must not wait for ever; and
                # not idle_in_transaction_session_timeout, which the end of a pipeline stops.
                patience = round(self._options.timeout * 1000)
                beginning.append((f"SET LOCAL transaction_timeout = {patience}", {}))
            results = yield from self._asking(connection, program, deadline, beginning, before)
        except HoldallError:
            if not connection.closed:
                yield Run(connection, [_ROLLBACK], deadline)
            raise
        done += [before[1][0][0], results]
        yield Run(connection, [_COMMIT], deadline)

    def _was_committed(self, xid: str, token: int, error: Exception, deadline: float) -> Program[bool]:
        """Whether a transaction, whose commit was under way when the connection was lost, was done."""
        for tries in itertools.count():
            status = yield from self._read(lambda _: self._sql.status_of(xid, token), None, deadline, snapshot=False)
            if status != "in progress":
                break
            yield from self._pause_before_retry(error, tries, deadline)
        if status in ("committed", "aborted"):
            return bool(status == "committed")
        raise _Unknowable("the connection was lost during a commit, whose outcome is unknown; read and decide")

    def _learning(self, fate: Program[T], error: Exception, tries: int, deadline: float) -> Program[T]:
        """Ask for a write's fate; who cannot be told it is told so."""
        try:
            yield from self._pause_before_retry(error, tries, deadline)
            return (yield from fate)
        except _Unknowable as unknowable:
            raise Unavailable(str(unknowable)) from error
        except Unavailable as unavailable:
            raise Unavailable(
                f"the connection was lost during a write, whose outcome is unknown; read and decide: {unavailable}"
            ) from unavailable

    def _asking(
        self,
        connection: Any,
        program: Program[T],
        deadline: float,
        before: Sequence[Statement] = (),
        replies_before: list[Rows] | None = None,
        prepare: bool | None = None,
    ) -> Program[T]:
        """Run one of the SQL's programs, which yields statements and is sent their rows, or `Work`.

        The statements `before` go with its first ones, in the same round trip.
        """
        try:
            statements = next(program)
            while True:
                try:
                    is_work = type(statements) is Work
                    if is_work:
                        replies = yield statements
                    else:
                        asked = itertools.chain(before, statements) if before else statements
                        replies = yield Run(connection, asked, deadline, prepare)
                except BaseException as error:
                    statements = program.throw(error)
                else:
                    if is_work:
                        statements = program.send(replies)
                        continue
                    if before and replies_before is not None:
                        replies_before += replies[: len(before)]
                    statements, before = program.send(replies[len(before) :]), ()
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # StopIteration.value is untyped

    def _connected(self, deadline: float) -> Program[Any]:
        """A connection; while there is no server, nothing has been said to it that could not be said again."""
        for tries in itertools.count():
            try:
                return (yield Take(deadline))
            except LOST as error:
                yield from self._pause_before_retry(error, tries, deadline)
        raise AssertionError("unreachable")

    def _returning(self, connection: Any, program: Program[T]) -> Program[T]:
        """Run a program on a connection and give it back, whatever happens."""
        try:
            result = yield from program
        except BaseException:
            yield Give(connection)
            raise
        yield Give(connection)
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
            except LOST as error:
                yield from self._pause_before_retry(error, tries, deadline)
            else:
                self._is_set_up = True
                return

    def _migrate(self, connection: Any, deadline: float) -> Program[None]:
        if self._own.prepare is None and self._own.connection is None:
            # A pooler invents the process that it says we talk to. It may give us another's session, in which the name
            # of our prepared statement is missing, or stands for another's.
            [[(pid,)]] = yield Run(connection, [("SELECT pg_backend_pid()", {})], deadline)
            if pid != connection.info.backend_pid:
                self._wire.prepare_threshold = connection.prepare_threshold = None
        missing = yield from self._asking(connection, self._sql.missing(), deadline)
        if missing:
            # One process at a time; the others find nothing missing when it is their turn.
            lock = ("SELECT pg_advisory_xact_lock(hashtext(:p0))", {"p0": f"holdall {self._dialect.schema}"})
            yield Run(connection, [_BEGIN, lock], deadline)
            for sql in (yield from self._asking(connection, self._sql.missing(), deadline)):
                yield Run(connection, [(sql, {})], deadline)
            yield Run(connection, [_COMMIT], deadline)
        yield from self._asking(connection, self._sql.look_for_pgvector(), deadline)
        [[(newest,)]] = yield Run(
            connection, [(f"SELECT last_value FROM {self._dialect.schema}.versions", {})], deadline
        )
        self._newest_seen = max(self._newest_seen, newest)


def _is_fence(op: Op) -> bool:
    return type(op) is Check and op.namespace[0] == RESERVED


def _filters(asked: Any) -> bool:
    return getattr(asked, "filter", None) is not None


#: A parent's connections in its forked child: kept, because letting go would end them.
_abandoned: list[Pool | Lent] = []
