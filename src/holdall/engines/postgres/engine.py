"""The PostgreSQL engine: a store that many processes and hosts share.

It uses psycopg 3, sync and async, over one small pool. A batch of one op is one autocommit statement. A larger batch is
a transaction in two round trips. No state is kept in a session between batches, so a connection pooler in transaction
mode may stand between holdall and the server.

After a lost connection, a read is repeated. For a write, the engine finds out whether it was done: for a transaction by
its id, which was read before the commit; for a single statement by the token that it stored in the row. If neither
gives an answer, the caller gets `OutcomeUnknown`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

import psycopg

from ...engine import Capabilities, Options, PoolState, conflict, put_entry
from ...errors import (
    Conflict,
    HoldallError,
    InvalidInput,
    OutcomeUnknown,
    StoreClosed,
    Timeout,
    Unavailable,
    shown,
)
from ...model.keys import RESERVED
from ...model.keys import encode as encode_namespace
from ...model.values import decode
from ...ops import (
    READS,
    WALKS,
    Check,
    Children,
    Delete,
    DeleteTree,
    Embed,
    Forget,
    Get,
    IndexOrder,
    IndexTexts,
    LearnFields,
    Maintain,
    Op,
    PurgeHistory,
    Put,
    Refresh,
    Scrub,
    Scrubbed,
    Search,
    SetHistory,
)
from ...runtime.arguments import check_flag
from ...runtime.programs import Sleep, Work, adrive, drive
from ..history.sql import HeldPast
from ..net.pool import Pool, check_options
from ..net.retry import retry_delay
from ..sql.entries import LOOK_UPS, expects_a_row, is_look_up, is_multi_statement
from ..sql.feed import HELD_SECONDS, HeldPage, LargeDeleteTree
from ..sql.statements import Rows, SqlProgram, Statement
from .connections import (
    Acquire,
    ConnectionLost,
    ConnectionProgram,
    Connections,
    Execute,
    NotApplied,
    Pipeline,
    Release,
    RetryableError,
    close_at_once,
)
from .dialect import PostgresDialect, new_token
from .entries import PostgresEntries
from .external_pool import ExternalPool
from .indexes.background import GeneralIndex, IndexBuilder
from .listener import LISTENER_CHECK_INTERVAL, NOTIFY_INTERVAL, Channel, NotifyListener
from .ranker import NeedsSnapshot

A = TypeVar("A")
T = TypeVar("T")

_BEGIN: Statement = ("BEGIN", {})
_BEGIN_SNAPSHOT: Statement = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", {})
_COMMIT: Statement = ("COMMIT", {})
_ROLLBACK: Statement = ("ROLLBACK", {})
_READ_XID: Statement = ("SELECT pg_current_xact_id()::text", {})
#: The deletion of a large tree waits so long for writes under way, while later writes wait for it. Then it retries.
_GATE_MILLISECONDS = 20
#: Seconds after which it gives up, and deletes the tree in the usual way, which takes long.
_GATE_PATIENCE = 3.0
#: Ops that are one autocommit statement if they are a batch of their own.
_SINGLE_STATEMENT = LOOK_UPS | {Put, Delete, Refresh}
#: Seconds after which joined puts are canceled and executed one by one: a row may be locked.
_JOINED_PATIENCE = 1.0
#: Ops that change no entry that anybody can read.
_WITHOUT_CHANGES = frozenset({IndexOrder, IndexTexts, Maintain, LearnFields})
#: A search with a filter that takes more seconds has the general index built.
SLOW_FILTER = 0.01
#: Seconds that the vacuum of one table may take.
_VACUUM_SECONDS = 3600.0
#: Ops that may be done twice.
_IDEMPOTENT = frozenset({IndexOrder, IndexTexts, Embed, Maintain, SetHistory, PurgeHistory, Scrub, Forget})


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """The options of `holdall.open` that only PostgreSQL has."""

    schema: str = "holdall"
    pool_min: int = 1
    pool_max: int = 10
    pool_timeout: float = 30.0
    prepare: bool | None = None  # None: yes, unless a connection pooler is found
    connection: Any = None
    notify_url: str | None = None  # for LISTEN, if it does not work with `url`

    def __post_init__(self) -> None:
        given = self.connection
        if given is not None and not hasattr(given, "getconn"):
            if not isinstance(given, psycopg.Connection | psycopg.AsyncConnection):
                raise InvalidInput(f"connection must be a psycopg connection or pool, not {shown(given)}")
            if not given.autocommit:
                raise InvalidInput(
                    "the connection passed as connection= must be in autocommit mode, since holdall begins and commits"
                    " transactions itself: open it with autocommit=True"
                )
        if (
            not isinstance(self.schema, str)
            or not self.schema
            or "\x00" in self.schema
            or len(self.schema.encode("utf-8", "surrogatepass")) > 63
            or any("\ud800" <= letter <= "\udfff" for letter in self.schema)
        ):
            raise InvalidInput(
                f"schema must be a name for a PostgreSQL schema, of at most 63 bytes, not {shown(self.schema)}"
            )
        if not (self.notify_url is None or isinstance(self.notify_url, str)):
            raise InvalidInput(f"notify_url must be a URL of the same database, or None, not {shown(self.notify_url)}")
        seconds = check_options(self.pool_min, self.pool_max, self.pool_timeout)
        object.__setattr__(self, "pool_timeout", seconds)  # it may be given as a timedelta
        check_flag("prepare", self.prepare, or_none=True)


class PostgresEngine:
    """Entries in one schema of a PostgreSQL database."""

    capabilities = Capabilities(
        durable=True, multiprocess=True, ranks=True, keeps_history=True, remembers=True, moves_in_slices=True
    )

    def __init__(self, url: str, options: Options, own: PostgresOptions) -> None:
        self._url = url
        self._options = options
        self._own = own
        clock = options.clock
        self._dialect = PostgresDialect(own.schema, options.filter_fields, server_clock=clock is None)
        self._clock: Callable[[], int | None] = clock or (lambda: None)
        self._sql = PostgresEntries(self._dialect, self._clock)
        self._channel = Channel(own.schema)
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        """Start with nothing open: in a new engine, and in a forked child."""
        own = self._own
        self._pool: Pool | ExternalPool = (
            Pool(own.pool_min, own.pool_max, own.pool_timeout, close_at_once)
            if own.connection is None
            else ExternalPool(own.connection, own.pool_timeout)
        )
        threshold = None if own.prepare is False else 2
        self._connections = Connections(self._url, self._dialect, self._pool, self._options.timeout, threshold)
        self._index_builder = IndexBuilder(self._dialect, self._connect_to_build)
        self._sql.use_index_builder(self._index_builder)
        self._is_set_up = False
        self._next_notification = 0.0  # before that time, a write notifies no listener
        self._newest_seen = 0  # the highest version that was read: what is written from now on has a higher one

    # The engine's methods --------------------------------------------------------------------------------------------

    @property
    def needs_maintenance(self) -> bool:
        return self._sql.needs_maintenance

    def execute(self, batch: Sequence[Op]) -> list[Any]:
        return drive(self._run(batch), self._connections.perform)

    async def aexecute(self, batch: Sequence[Op]) -> list[Any]:
        return await adrive(self._run(batch), self._connections.aperform)

    async def aexecute_joined(self, batch: Sequence[Op]) -> list[Any] | None:
        return await adrive(self._run_joined(batch), self._connections.aperform)

    def setup(self) -> None:
        drive(self._set_up_with_indexes(), self._connections.perform)

    async def asetup(self) -> None:
        await adrive(self._set_up_with_indexes(), self._connections.aperform)

    def close(self) -> None:
        self._closed = True
        self._index_builder.close()
        self._pool.close()

    def describe_pool(self) -> PoolState | None:
        return self._pool.describe() if isinstance(self._pool, Pool) else None

    def before_fork(self) -> None:
        """Do nothing: a child leaves the parent's sockets alone."""

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            _abandoned.append((self._pool, self._index_builder))
            self._reset()

    def listen(self, notify: Callable[[], None]) -> NotifyListener:
        def connect(deadline: float) -> Any:
            return self._connections.connect(self._own.notify_url or self._url, deadline)

        def read_position(connection: Any) -> object:
            def execute(statements: Any) -> list[Rows]:
                return [connection.execute(sql).fetchall() for sql, _ in statements]

            return drive(self._sql.progress(), execute)

        return NotifyListener(connect, self._channel, read_position, notify)

    def _connect_to_build(self) -> psycopg.Connection[Any]:
        """Open a connection for one thread, outside the pool: building an index may take minutes."""
        return self._connections.connect(self._own.notify_url or self._url, self._deadline())

    # Programs: each yields requests of `connections` -----------------------------------------------------------------

    def _deadline(self) -> float:
        return time.monotonic() + self._options.timeout

    def _run(self, batch: Sequence[Op]) -> ConnectionProgram[list[Any]]:
        """Execute a batch."""
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")
        deadline = self._deadline()
        if not self._is_set_up:
            yield from self._set_up(deadline)
        first = batch[0]
        kind = type(first)
        if isinstance(first, Scrub):
            return [(yield from self._scrub(first, deadline))]
        is_single = len(batch) == 1 and kind in _SINGLE_STATEMENT and not is_multi_statement(first)
        if is_single and (kind not in LOOK_UPS or is_look_up(first)):
            single: Any = self._look_up if kind in LOOK_UPS else self._write_one
            results = [(yield from single(first, deadline))]
            if kind not in LOOK_UPS and time.monotonic() > self._next_notification:
                yield from self._notify_listeners(deadline)
        elif kind is Children and first.glob is None:  # type: ignore[attr-defined]  # Children have it
            return [(yield from self._list_children(first, deadline))]
        elif kind in WALKS:
            return [(yield from self._walk(first, deadline))]
        elif all(type(op) in READS for op in batch):
            several = not all(type(op) is Get for op in batch)  # statements: gets are one
            results = yield from self._read(self._sql.batch, batch, deadline, snapshot=several and len(batch) > 1)
        else:
            results = (yield from self._delete_large(batch, deadline)) or (yield from self._write(batch, deadline))
            if time.monotonic() > self._next_notification:
                yield from self._notify_listeners(deadline)
        self._note_versions(results)
        return results

    def _scrub(self, op: Scrub, deadline: float) -> ConnectionProgram[Scrubbed]:
        """Clear what removed rows have left in the tables: index terms, and dead rows."""
        [scrubbed] = yield from self._write([op], deadline)
        while (yield from self._write([Maintain()], self._deadline()))[0]:  # removes them from the index of contents
            pass
        function = "to_regprocedure('pg_clear_attribute_stats(text, text, text, boolean)')"
        [(can_clear,)] = yield from self._query((f"SELECT {function} IS NOT NULL", {}), self._deadline())
        if can_clear:
            yield from self._query(self._sql.clear_statistics(), self._deadline())
        rows = yield from self._query(self._sql.list_tables(), self._deadline())
        how = "VACUUM (FULL, ANALYZE)" if op.compact else "VACUUM (ANALYZE)"
        # The planner's statistics have some values of each column. A role that may not clear them gets a warning.
        for table in (*(name for (name,) in rows), "pg_catalog.pg_statistic"):
            yield from self._vacuum(f"{how} {table}")
        done = "the tables, which were written again" if op.compact else "dead rows of the tables"
        beyond = [
            "the server's write-ahead log and its archive",
            "replicas, dumps and other backups",
            "old statistics of the planner, before PostgreSQL 18 or if the role does not own the database",
        ]
        if not op.compact:
            beyond.insert(0, "free space inside the pages of the tables: compact=True writes them again")
        return Scrubbed((*scrubbed.cleared, done), tuple(beyond))

    def _vacuum(self, sql: str) -> ConnectionProgram[None]:
        """Vacuum a table, which may take long; repeat it if the connection is lost, or in a deadlock."""
        give_up = math.inf
        for failures in itertools.count():
            try:
                yield Execute((sql, {}), time.monotonic() + _VACUUM_SECONDS)
                return
            except RetryableError as error:
                give_up = min(give_up, self._deadline())
                yield from self._wait_before_retry(error, failures, give_up)

    def _walk(self, op: Op, deadline: float) -> ConnectionProgram[Any]:
        """Run a walk. A reader of the feed that has to wait for tombstones writes them itself."""
        if isinstance(op, Search) and (search := self._sql.ranker.without_snapshot(op)) is not None:
            try:
                return (yield from self._read(self._sql.walk, search, deadline, snapshot=False))
            except NeedsSnapshot:
                pass
        began = time.monotonic()
        result = yield from self._read(self._sql.walk, op, deadline)
        if self._dialect.wants_general_index and _has_filter(op) and time.monotonic() - began > SLOW_FILTER:
            self._index_builder.request(GeneralIndex())
        until = min(deadline, time.monotonic() + HELD_SECONDS)
        while type(result) is HeldPage and time.monotonic() < until:
            yield from self._write([Maintain()], deadline)
            yield from self._notify_listeners(deadline)  # also this one, which waits for the next tombstones
            result = yield from self._read(self._sql.walk, op, deadline)
        while type(result) is HeldPast:  # old values of a deleted tree, which have to be written first
            yield from self._write([Maintain()], deadline)
            result = yield from self._read(self._sql.walk, op, deadline)
        return result

    def _run_joined(self, batch: Sequence[Op]) -> ConnectionProgram[list[Any] | None]:
        """Execute gets, or plain puts, that do not depend on each other."""
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")
        deadline = self._deadline()
        if not self._is_set_up:
            yield from self._set_up(deadline)
        if type(batch[0]) is Get:
            results: Any = yield from self._read(self._sql.batch, batch, deadline, snapshot=False)
        else:
            results = yield from self._put_joined(batch, deadline)
            if time.monotonic() > self._next_notification:
                yield from self._notify_listeners(deadline)
        self._note_versions(results or ())
        return results  # type: ignore[no-any-return]  # a list, or None

    def _note_versions(self, results: Sequence[Any]) -> None:
        for result in results:
            version = getattr(result, "version", None)
            if version is not None and version > self._newest_seen:
                self._newest_seen = version

    def _notify_listeners(self, deadline: float) -> ConnectionProgram[None]:
        """Notify the listeners of a write, if there are any."""
        now = time.monotonic()
        self._next_notification = now + NOTIFY_INTERVAL
        try:
            [(has_listeners,)] = yield Execute((self._channel.notify, {}), min(deadline, now + LISTENER_CHECK_INTERVAL))
        except (RetryableError, HoldallError):  # the write is done, and listeners also look by themselves
            return
        if not has_listeners:
            self._next_notification = now + LISTENER_CHECK_INTERVAL

    # Reads -----------------------------------------------------------------------------------------------------------

    def _look_up(self, op: Op, deadline: float) -> ConnectionProgram[Any]:
        """Execute an op that is one query."""
        statement = self._sql.statement(op)
        return self._sql.result(op, statement[1], (yield from self._query(statement, deadline)))

    def _list_children(self, op: Op, deadline: float) -> ConnectionProgram[Any]:
        """List a folder. One query is usually enough, and needs no transaction; otherwise, start again in one."""
        walk = self._sql.walk(op)
        first: Any = next(walk)
        [statement] = first
        rows = yield from self._query(statement, deadline)
        try:
            walk.send([rows])
        except StopIteration as stop:
            return stop.value
        return (yield from self._read(self._sql.walk, op, deadline))

    def _query(self, statement: Statement, deadline: float) -> ConnectionProgram[Rows]:
        """Return the rows of one query; retry it if the connection is lost."""
        for failures in itertools.count():
            try:
                return (yield Execute(statement, deadline))  # type: ignore[no-any-return]  # a reply
            except RetryableError as error:
                yield from self._wait_before_retry(error, failures, deadline)
        raise AssertionError("unreachable")

    def _read(
        self, make: Callable[[A], SqlProgram[T]], arg: A, deadline: float, snapshot: bool = True
    ) -> ConnectionProgram[T]:
        """Run `make(arg)`, a program that yields queries, in one snapshot; retry it if the connection is lost."""
        for failures in itertools.count():
            connection = yield from self._acquire(deadline)
            try:
                return (
                    yield from self._release_after(
                        connection, self._read_on(connection, make(arg), deadline, snapshot, _has_filter(arg))
                    )
                )
            except RetryableError as error:
                yield from self._wait_before_retry(error, failures, deadline)
        raise AssertionError("unreachable")

    def _read_on(
        self, connection: Any, program: SqlProgram[T], deadline: float, snapshot: bool, has_filter: bool
    ) -> ConnectionProgram[T]:
        if not snapshot:
            return (yield from self._run_statements(connection, program, deadline))
        try:
            # Prepared, the statement of a filter would soon get one plan for all values: to read the whole table.
            prepare = False if has_filter else None
            result = yield from self._run_statements(connection, program, deadline, [_BEGIN_SNAPSHOT], prepare=prepare)
        except HoldallError:
            if not connection.closed:
                yield Pipeline(connection, [_ROLLBACK], deadline)
            raise
        yield Pipeline(connection, [_COMMIT], deadline)
        return result

    # Writes ----------------------------------------------------------------------------------------------------------

    def _write_one(self, op: Put | Delete | Refresh, deadline: float) -> ConnectionProgram[Any]:
        """Execute an op that is one autocommit statement.

        It is retried with the same token, so a put that was done already does nothing the second time.
        """
        statement = self._sql.retryable_statement(op)
        expect = getattr(op, "expect", 0)
        newest_before = 0
        lost: ConnectionLost | None = None
        try:
            for failures in itertools.count():
                if lost is None:
                    newest_before = max(self._newest_seen, expect) if type(expect) is int else self._newest_seen
                failure: Exception | None = None
                try:
                    request = Execute(statement, deadline, json=statement[1].get("value"))
                    rows = yield request
                    if not rows and (other := self._sql.fallback_statement(statement)) is not None:
                        rows = yield Execute(other, deadline)
                    if not rows and expects_a_row(op):
                        found = yield from self._read(
                            self._sql.find_actual_version, statement[1], deadline, snapshot=False
                        )
                        raise conflict(op, found)
                    if request.decoded is not None:
                        assert isinstance(op, Put)
                        return put_entry(op, request.decoded, *rows[0])
                    result = self._sql.result(op, statement[1], rows)
                    if lost is None or result is not False or isinstance(op, Refresh):
                        return result
                except NotApplied as error:
                    yield from self._wait_before_retry(error, failures, deadline)
                    continue
                except ConnectionLost as error:
                    lost = failure = error
                    yield from self._wait_before_retry(error, failures, deadline)
                    if isinstance(op, Refresh):  # it may be done twice
                        continue
                except Conflict as error:
                    if lost is None:
                        raise
                    failure = error
                assert not isinstance(op, Refresh)
                # After the connection was lost, the server may have completed the statement.
                was_done, earlier_result = yield from self._find_outcome(op, statement, newest_before, deadline)
                if was_done:
                    return earlier_result
                if failure is None:
                    return result
                if failure is not lost:
                    raise failure
        except (Unavailable, StoreClosed) as error:
            if lost is None:
                raise
            raise _to_unknown(error) from error.__cause__
        raise AssertionError("unreachable")

    def _find_outcome(
        self, op: Put | Delete, statement: Statement, newest_before: int, deadline: float
    ) -> ConnectionProgram[tuple[bool, Any]]:
        """Return whether a statement whose reply was lost was done, and its result if so.

        It was done if the row has its token. It was not done if the row's version is at most `newest_before`, the
        highest version before the write.
        """
        rows = yield from self._read(self._sql.read_last_write, statement[1], deadline, snapshot=False)
        if not rows:
            return False, None
        token, *columns = rows[0]
        if token == statement[1]["token"]:
            return True, self._sql.result(op, statement[1], [tuple(columns)])
        if columns[0] <= newest_before:
            return False, None
        raise _replaced(op)

    def _write(self, batch: Sequence[Op], deadline: float) -> ConnectionProgram[list[Any]]:
        """Execute a batch as a transaction: its statements in one round trip, and the commit in another."""
        for failures in itertools.count():
            connection = yield from self._acquire(deadline)
            ready: list[Any] = []  # the transaction's id and its results, once only the commit is missing
            token = new_token()
            try:
                yield from self._release_after(connection, self._transact(connection, batch, token, ready, deadline))
            except NotApplied as error:
                yield from self._wait_before_retry(error, failures, deadline)
            except ConnectionLost as error:
                if not ready or all(type(op) in _IDEMPOTENT for op in batch):  # no commit was sent, or it does no harm
                    yield from self._wait_before_retry(error, failures, deadline)
                elif (yield from self._was_committed(ready[0], token, error, deadline)):
                    return ready[1]  # type: ignore[no-any-return]  # the results
            else:
                return ready[1]  # type: ignore[no-any-return]  # the results
        raise AssertionError("unreachable")

    def _transact(
        self, connection: Any, batch: Sequence[Op], token: int, ready: list[Any], deadline: float
    ) -> ConnectionProgram[None]:
        first_replies: list[Rows] = []
        try:
            program = self._sql.batch(batch, token)
            changes_entries = not all(type(op) in _WITHOUT_CHANGES for op in batch)
            first = [_BEGIN, (self._dialect.read_xid, {}) if changes_entries else _READ_XID]
            if type(batch[-1]) is LargeDeleteTree:
                close_gate = f"LOCK TABLE {self._dialect.tree_gate} IN ACCESS EXCLUSIVE MODE"
                first = [_BEGIN, _READ_XID, (f"SET LOCAL lock_timeout = {_GATE_MILLISECONDS}", {}), (close_gate, {})]
            if any(map(_is_lease_check, batch)) and connection.info.server_version >= 170000:
                # The check locks the lease's row. If this process is suspended before it commits, the next holder must
                # not wait for ever. idle_in_transaction_session_timeout would not do: the end of a pipeline stops it.
                milliseconds = round(self._options.timeout * 1000)
                first.append((f"SET LOCAL transaction_timeout = {milliseconds}", {}))
            results = yield from self._run_statements(connection, program, deadline, first, first_replies)
        except HoldallError:
            if not connection.closed:
                yield Pipeline(connection, [_ROLLBACK], deadline)
            raise
        ready += [first_replies[1][0][0], results]
        yield Pipeline(connection, [_COMMIT], deadline)

    def _delete_large(self, batch: Sequence[Op], deadline: float) -> ConnectionProgram[list[Any] | None]:
        """Delete a large tree by a note of it (`feed.DeletedTrees`); return None if nothing was done.

        That is for a small tree, a batch that writes something else, and where there is no second connection or right.
        """
        *others, op = batch
        if (
            not isinstance(op, DeleteTree)
            or not all(type(one) in READS for one in others)
            or not self._sql.can_note_trees
            or self._own.connection is not None
        ):
            return None
        snapshot = _Snapshot(self._connect_to_build, self._dialect)
        prepared = yield from self._read(
            lambda op: self._sql.trees.prepare(op, self._clock(), snapshot.take), op, deadline
        )
        if prepared is None:
            return None
        is_deleted = False
        try:
            yield Work(snapshot.connect, (deadline,))
            until = min(deadline, time.monotonic() + _GATE_PATIENCE)
            for failures in itertools.count():
                try:
                    *results, deleted = yield from self._write([*others, prepared], deadline)
                    is_deleted = True
                    break
                except Timeout:  # another session writes for long, or reads the whole schema, as a dump does
                    delay = retry_delay(failures, until)
                    if delay is None:
                        return None
                    yield Sleep(delay)
            return [*results, (yield Work(snapshot.read, (self._sql.trees.count(prepared, deleted),)))]
        except psycopg.Error as error:
            if is_deleted:
                raise OutcomeUnknown(
                    f"the tree {op.namespace!r} is deleted; the connection that counted its entries was lost"
                ) from error
            return None
        finally:
            snapshot.close()

    def _put_joined(self, batch: Sequence[Any], deadline: float) -> ConnectionProgram[list[Any] | None]:
        """Execute plain puts of several tasks as one autocommit statement.

        None if nothing was written, because a key is there twice, or a row stays locked: then no put waits for the row
        of another.
        """
        by_key = {(encode_namespace(put.namespace), put.key): index for index, put in enumerate(batch)}
        if len(by_key) < len(batch):
            return None
        order = [index for _, index in sorted(by_key.items())]
        results = yield from self._put_sorted([batch[index] for index in order], deadline)
        if results is None:
            return None
        return [result for _, result in sorted(zip(order, results, strict=True), key=itemgetter(0))]

    def _put_sorted(self, puts: Sequence[Any], deadline: float) -> ConnectionProgram[list[Any] | None]:
        token, newest_before, lost = new_token(), 0, False
        try:
            for failures in itertools.count():
                patience = deadline
                if not lost:
                    newest_before = self._newest_seen
                    patience = min(deadline, time.monotonic() + _JOINED_PATIENCE)
                connection = yield from self._acquire(deadline)
                program = self._run_statements(connection, self._sql.put_joined(puts, token), patience)
                try:
                    results = yield from self._release_after(connection, program)
                except NotApplied as error:
                    yield from self._wait_before_retry(error, failures, deadline)
                    continue
                except ConnectionLost as error:
                    lost, results = True, None
                    if not (error.is_overdue and patience < deadline):
                        yield from self._wait_before_retry(error, failures, deadline)
                except Timeout:
                    if patience == deadline:
                        raise
                    return None
                results = results or (yield from self._find_outcomes(puts, token, newest_before, deadline))
                if results is not None:
                    return results
        except (Unavailable, StoreClosed) as error:
            if not lost:
                raise
            raise _to_unknown(error) from error.__cause__
        raise AssertionError("unreachable")

    def _find_outcomes(
        self, puts: Sequence[Any], token: int, newest_before: int, deadline: float
    ) -> ConnectionProgram[list[Any] | None]:
        """Return the result or the error of each put of a statement whose reply was lost, or None if it was not done.

        It was done if a row has its token. It was not done if a row is missing, or has not changed since.
        """
        rows = yield from self._read(self._sql.read_last_writes, puts, deadline, snapshot=False)
        written = {number: columns for number, row_token, *columns in rows if row_token == token}
        if not written and (len(rows) < len(puts) or any(version <= newest_before for _, _, version, *_ in rows)):
            return None
        return [
            put_entry(put, decode(put.value), *written[number]) if number in written else _replaced(put)
            for number, put in enumerate(puts, 1)
        ]

    def _was_committed(self, xid: str, token: int, error: ConnectionLost, deadline: float) -> ConnectionProgram[bool]:
        """Return whether a transaction was committed, after the connection was lost during its commit."""
        status: str | None = None
        try:
            for failures in itertools.count():
                yield from self._wait_before_retry(error, failures, deadline)
                status = yield from self._read(
                    lambda _: self._sql.read_transaction_status(xid, token), None, deadline, snapshot=False
                )
                if status != "in progress":
                    break
        except (Unavailable, StoreClosed) as unavailable:
            raise _to_unknown(unavailable) from unavailable.__cause__
        if status in ("committed", "aborted"):
            return bool(status == "committed")
        raise OutcomeUnknown(
            "the connection was lost during a commit, and the server no longer knows whether it was done: read the"
            " entries before you write again"
        ) from error.__cause__

    # Connections -----------------------------------------------------------------------------------------------------

    def _run_statements(
        self,
        connection: Any,
        program: SqlProgram[T],
        deadline: float,
        first: Sequence[Statement] = (),
        first_replies: list[Rows] | None = None,
        prepare: bool | None = None,
    ) -> ConnectionProgram[T]:
        """Run a program of `PostgresEntries`, which yields lists of statements, or `Work`, on a connection.

        The statements `first` are sent before its own, in the same round trip; `first_replies` receives their rows.
        """
        try:
            statements = next(program)
            while True:
                try:
                    is_work = isinstance(statements, Work)
                    if isinstance(statements, Work):
                        replies = yield statements
                    else:
                        all_statements: Any = itertools.chain(first, statements) if first else statements
                        replies = yield Pipeline(connection, all_statements, deadline, prepare)
                except BaseException as error:
                    statements = program.throw(error)
                else:
                    if is_work:
                        statements = program.send(replies)
                        continue
                    if first and first_replies is not None:
                        first_replies += replies[: len(first)]
                    statements, first = program.send(replies[len(first) :]), ()
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # StopIteration.value is untyped

    def _acquire(self, deadline: float) -> ConnectionProgram[Any]:
        """Acquire a connection; retry until the deadline."""
        cause: RetryableError | None = None
        for failures in itertools.count():
            try:
                return (yield Acquire(deadline))
            except RetryableError as error:
                # What the server answered before says more than that the last attempt had too little time.
                cause = cause if cause is not None and error.is_timeout else error
                yield from self._wait_before_retry(cause, failures, deadline)
        raise AssertionError("unreachable")

    def _release_after(self, connection: Any, program: ConnectionProgram[T]) -> ConnectionProgram[T]:
        """Run a program that uses a connection, then release it, after an error too."""
        try:
            result = yield from program
        except BaseException:
            yield Release(connection)
            raise
        yield Release(connection)
        return result

    def _wait_before_retry(self, error: RetryableError, failures: int, deadline: float) -> ConnectionProgram[None]:
        delay = None if error.is_overdue else retry_delay(failures, deadline)
        if delay is None:
            timeout = f"{self._options.timeout} s"
            if error.is_timeout:
                raise Timeout(
                    f"PostgreSQL did not answer within {timeout}; try again, or raise timeout"
                ) from error.__cause__
            raise Unavailable(f"PostgreSQL could not be used for {timeout}: {error}") from error.__cause__
        yield Sleep(delay)

    # Setup -----------------------------------------------------------------------------------------------------------

    def _set_up_with_indexes(self) -> ConnectionProgram[None]:
        """Create and migrate the schema, and have a missing index built in the background."""
        deadline = self._deadline()
        yield from self._set_up(deadline)
        index = yield from self._read(lambda _: self._sql.find_missing_index(), None, deadline)
        if index is not None:
            self._index_builder.request(index, is_guess=True)

    def _set_up(self, deadline: float) -> ConnectionProgram[None]:
        """Create and migrate the schema; if it is up to date, change nothing."""
        for failures in itertools.count():
            connection = yield from self._acquire(deadline)
            try:
                yield from self._release_after(connection, self._migrate(connection, deadline))
            except RetryableError as error:
                yield from self._wait_before_retry(error, failures, deadline)
            else:
                self._is_set_up = True
                return

    def _migrate(self, connection: Any, deadline: float) -> ConnectionProgram[None]:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in (None, "UTF8"):  # None: a pooler does not pass it on
            raise InvalidInput(
                f"the database {connection.info.dbname!r} has the encoding {encoding}, which cannot store every text:"
                " use a database that was created with ENCODING 'UTF8' TEMPLATE template0"
            )
        if self._own.prepare is None and self._own.connection is None:
            # A pooler makes up the process id that it reports. It may give us any session of the server, in which our
            # prepared statement does not exist, or its name stands for another.
            [[(pid,)]] = yield Pipeline(connection, [("SELECT pg_backend_pid()", {})], deadline)
            if pid != connection.info.backend_pid:
                self._connections.prepare_threshold = connection.prepare_threshold = None
        can_build_later = self._own.connection is None
        missing = yield from self._run_statements(connection, self._sql.plan_migration(can_build_later), deadline)
        if missing:
            # One process at a time: the others then find nothing missing.
            lock = ("SELECT pg_advisory_xact_lock(hashtext(:p0))", {"p0": f"holdall {self._dialect.schema}"})
            yield Pipeline(connection, [_BEGIN, lock], deadline)
            for sql in (
                yield from self._run_statements(connection, self._sql.plan_migration(can_build_later), deadline)
            ):
                yield Pipeline(connection, [(sql, {})], deadline)
            yield Pipeline(connection, [_COMMIT], deadline)
        yield from self._run_statements(connection, self._sql.detect_pgvector(), deadline)
        yield from self._run_statements(connection, self._sql.detect_rights(), deadline)
        [[(newest,)]] = yield Pipeline(
            connection, [(f"SELECT last_value FROM {self._dialect.schema}.versions", {})], deadline
        )
        self._newest_seen = max(self._newest_seen, newest)


class _Snapshot:
    """A snapshot of the entries right before a large tree is deleted, on a connection of its own.

    In it, the entries of the tree are counted after the commit, so that no other writer waits for that.
    """

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], dialect: PostgresDialect) -> None:
        self._is_taken = False
        self._connect_for_thread = connect
        self._dialect = dialect
        self._connection: Any = None

    def connect(self, deadline: float) -> None:
        self._connection = self._connect_for_thread()
        self._connection.deadline = deadline

    def take(self) -> None:
        """Take the snapshot. The transaction that calls this keeps others from writing meanwhile."""
        if self._is_taken:  # by an earlier try
            self._connection.execute("ROLLBACK")
        self._is_taken = True
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._connection.execute("SELECT pg_current_snapshot()")

    def read(self, program: SqlProgram[T]) -> T:
        """Run a program of queries in the snapshot."""

        def execute(statements: Any) -> list[Rows]:
            found: list[Rows] = []
            for sql, params in statements:
                numbered, names = self._dialect.number_parameters(sql)
                cursor = self._connection.cursor()
                found.append(cursor.execute(numbered, [params[name] for name in names], binary=True).fetchall())
            return found

        return drive(program, execute)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.pgconn.finish()


def _replaced(op: Put | Delete) -> OutcomeUnknown:
    """Make the error of a write whose reply was lost, and whose row was written again since."""
    return OutcomeUnknown(
        f"the connection was lost while {op.key!r} in {op.namespace!r} was written, and another write has replaced it"
        " since: read the entry before you write again"
    )


def _to_unknown(error: HoldallError) -> OutcomeUnknown:
    """Return the error for a write of which it cannot be found out whether it was done."""
    if isinstance(error, OutcomeUnknown):
        return error
    return OutcomeUnknown(f"it is unknown whether the write was done: read the entries before you write again: {error}")


def _is_lease_check(op: Op) -> bool:
    return type(op) is Check and op.namespace[0] == RESERVED


def _has_filter(arg: Any) -> bool:
    return getattr(arg, "filter", None) is not None


#: A parent's connections in its forked child: kept here, because collecting them would close them for the parent.
_abandoned: list[Any] = []
