"""Indexes that are built in the background: approximate ones of vectors, and the general one of all fields.

A search that misses an index has it requested from the `IndexBuilder`. A role that may not build it notes its wish in
the table `state`, and `setup()` of a role that may builds it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import generators, waiting
from psycopg.abc import PQGen
from psycopg.errors import InsufficientPrivilege, error_from_result

from ....search.ranking import MOST_EXACT
from ...sql.statements import Statement
from ..dialect import PostgresDialect, lock_id

logger = logging.getLogger("holdall")

#: The operators of pgvector, by metric.
OPERATORS = {"cosine": "<=>", "dot": "<#>", "l2": "<->"}
_OPERATOR_CLASSES = {"cosine": "cosine", "dot": "ip", "l2": "l2"}
#: The parameters of the indexes. Measured with 100,000 vectors of 256 dimensions in 10,000 clusters, on 2 cores:
#: ef_construction 64, 72, 80, 90 and 100 build 5,000, 4,800, 4,300, 4,000 and 3,600 a second. Of the ten nearest, an
#: index of float16 then finds 99.2, 99.4, 99.6, 99.6 and 99.6 in 100 with ef_search 350. It is at random by 0.1.
_M, _EF_CONSTRUCTION, EF_SEARCH = 16, 80, 350
#: The most dimensions that an index can have: of float32, and of float16.
_MOST_DIMS, _MOST_HALF_DIMS = 2000, 4000
#: The general index is built in a store with more entries than this.
LEAST_ENTRIES = 5000
#: Seconds until an index is tried again, after a failure, and where the role has no right to build it.
_PAUSE, _LONG_PAUSE = 60.0, 600.0
#: Seconds without new vectors that are a pause, and the longest wait for a pause.
_QUIET, _LONGEST_WAIT = 1.0, 60.0
_TIME_TO_SEND = 2.0  # seconds that `close` waits for a statement to be sent


@dataclass(frozen=True, slots=True)
class VectorIndex:
    """An approximate index of the vectors of one model, by one metric.

    For the cosine it has vectors of length 1 in float16, if pgvector can. It is smaller, so more of it is in the memory
    of the server. For the other metrics that is not safe: a long vector may not fit, and could not be stored at all.
    """

    model: int
    dims: int
    metric: str
    is_half: bool

    without = "vectors are compared exactly"

    @property
    def wish(self) -> str:
        """The name in the table `state` under which a role that may not build the index has noted it."""
        return f"vectors {self.model} {self.dims} {self.metric}"

    @property
    def least(self) -> int:
        """It is only built for more rows than this."""
        return MOST_EXACT

    def table(self, dialect: PostgresDialect) -> str:
        return dialect.vectors

    def rows(self, dialect: PostgresDialect) -> str:
        """Return the query for the rows that it has."""
        return f"SELECT FROM {dialect.vectors} WHERE model = {self.model}"

    @property
    def name(self) -> str:
        return f"vectors_{self.model}_{self.dims}_{self.metric}{'_half' if self.is_half else ''}"

    def expression(self, schema: str, vector: str) -> str:
        """Return what is indexed of a vector: PostgreSQL only uses the index for exactly this expression."""
        if self.is_half:
            return f"({schema}.l2_normalize({vector})::{schema}.halfvec({self.dims}))"
        return f"({vector}::{schema}.vector({self.dims}))"

    def distance(self, schema: str, vector: str, given: str) -> str:
        """Return the distance that the index orders by."""
        operator = "<#>" if self.is_half else OPERATORS[self.metric]
        return f"{self.expression(schema, vector)} OPERATOR({schema}.{operator}) {self.expression(schema, given)}"

    def create(self, dialect: PostgresDialect) -> str:
        """Return the statement that builds the index, while others read and write."""
        schema = str(dialect.pgvector)
        kind = "halfvec_ip_ops" if self.is_half else f"vector_{_OPERATOR_CLASSES[self.metric]}_ops"
        return (
            f"CREATE INDEX CONCURRENTLY {self.name} ON {dialect.vectors}"
            f" USING hnsw ({self.expression(schema, 'data')} {schema}.{kind})"
            f" WITH (m = {_M}, ef_construction = {_EF_CONSTRUCTION}) WHERE model = {self.model}"
        )


@dataclass(frozen=True, slots=True)
class GeneralIndex:
    """The index of all fields, for filters on fields that are not declared.

    It makes a put up to 5 % slower, so it is built once a search with such a filter was slow.
    """

    name = "entries_projection"
    wish = "projection"
    without = "filters on fields that are not declared read whole namespaces"

    @property
    def least(self) -> int:
        return LEAST_ENTRIES

    def table(self, dialect: PostgresDialect) -> str:
        return dialect.table

    def rows(self, dialect: PostgresDialect) -> str:
        return f"SELECT FROM {dialect.table}"

    def create(self, dialect: PostgresDialect) -> str:
        return f"CREATE INDEX CONCURRENTLY {dialect.general_index}"


def index_for(dialect: PostgresDialect, model: int, dims: int, metric: str) -> VectorIndex | None:
    """Return the index for these vectors; None if the server's pgvector has none, so that they are compared exactly."""
    version = dialect.pgvector_version
    is_half = metric == "cosine" and version >= (0, 7)
    if dialect.pgvector is None or version < (0, 5) or dims > (_MOST_HALF_DIMS if is_half else _MOST_DIMS):
        return None
    return VectorIndex(model, dims, metric, is_half)


def read_index(dialect: PostgresDialect, index: VectorIndex | GeneralIndex) -> Statement:
    """Return a query for whether an index is valid; no row if there is none."""
    sql = (
        "SELECT indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
        " WHERE indrelid = :p0::regclass AND relname = :p1"
    )
    return sql, {"p0": index.table(dialect), "p1": index.name}


class _Refused(Exception):
    """The index cannot be built on this connection."""


class _Stopped(Exception):
    """The engine was closed."""


class IndexBuilder:
    """Builds indexes in the background, one at a time, on a connection of its own.

    The server does the work, and completes it even if this process ends. An advisory lock keeps other processes from
    building at the same time. An index that a crash left invalid is dropped, and built again.
    """

    def __init__(self, dialect: PostgresDialect, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._dialect = dialect
        self._connect = connect
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._is_sent = threading.Event()  # the server has the statement, or there is none to send
        self._not_before: dict[VectorIndex | GeneralIndex, float] = {}
        self._is_urgent = False
        self._added = 0  # vectors since an index was last thought of
        self._last_added = 0.0

    def request(self, index: VectorIndex | GeneralIndex, is_guess: bool = False) -> None:
        """Have an index built soon, unless that has just failed. A guess is not noted for another role to build it."""
        self._is_urgent = True
        self._start(index, is_guess)

    def note_vectors(self, index: VectorIndex, count: int) -> None:
        """Note that so many vectors are added: when they are many, have the index built in the next pause of that.

        To build an index of many vectors takes a fraction of the time of adding them one by one.
        """
        self._last_added = time.monotonic()
        self._added += count
        if self._added > MOST_EXACT // 4:
            self._added = 0
            self._start(index)

    def close(self) -> None:
        """Stop waiting for the server, which completes an index that it has begun."""
        with self._lock:
            thread = self._thread
        if thread is not None and thread.is_alive():
            self._is_urgent = True
            self._is_sent.wait(_TIME_TO_SEND)
        self._stopped = True
        if thread is not None:
            thread.join(_TIME_TO_SEND)

    def _start(self, index: VectorIndex | GeneralIndex, is_guess: bool = False) -> None:
        with self._lock:
            is_busy = self._thread is not None and self._thread.is_alive()
            if is_busy or self._stopped or time.monotonic() < self._not_before.get(index, 0.0):
                return
            self._is_sent.clear()
            self._thread = threading.Thread(target=self._run, args=(index, is_guess), name="holdall-index", daemon=True)
            self._thread.start()

    def _wait_for_pause(self) -> None:
        """Wait until no vectors were added for a while, or the index is urgent."""
        began = time.monotonic()
        while not self._is_urgent and time.monotonic() < min(self._last_added + _QUIET, began + _LONGEST_WAIT):
            time.sleep(0.05)

    def _run(self, index: VectorIndex | GeneralIndex, is_guess: bool) -> None:
        pause = _PAUSE
        try:
            self._wait_for_pause()
            self._is_urgent = False
            connection = self._connect()
            try:
                self._build(connection, index, is_guess)
            finally:
                connection.pgconn.finish()  # without a wait: the server may be at work
            if isinstance(index, VectorIndex):  # searches know by themselves whether they have it
                return
        except _Stopped:
            return
        except (InsufficientPrivilege, _Refused) as error:
            pause = 0.0 if is_guess else _LONG_PAUSE
            logger.log(
                logging.DEBUG if is_guess else logging.WARNING,
                "%s, because this store may not build the index %s; run setup() once with a role that may, without a"
                " pooler: %s",
                index.without,
                index.name,
                error,
            )
        except Exception as error:  # searches work without the index
            logger.warning("the index %s could not be built, will be tried again later: %s", index.name, error)
        finally:
            self._is_sent.set()
        self._not_before[index] = time.monotonic() + pause

    def _build(self, connection: psycopg.Connection[Any], index: VectorIndex | GeneralIndex, is_guess: bool) -> None:
        schema = self._dialect.schema
        [(pid,)] = connection.execute("SELECT pg_backend_pid()")
        if pid != connection.info.backend_pid:  # the lock would stay in a session that is not ours
            raise _Refused("a connection pooler is in between; pass notify_url, a URL of the server itself")
        [(is_ours,)] = connection.execute(
            "SELECT pg_try_advisory_lock($1)", [lock_id(f"holdall vectors {self._dialect.schema_name}")]
        )
        if not is_ours:
            return
        is_valid = connection.execute(*self._numbered(read_index(self._dialect, index))).fetchall()
        some = f"{index.rows(self._dialect)} LIMIT {index.least + 1}"
        [(count,)] = connection.execute(f"SELECT count(*) FROM ({some}) AS found")
        if is_valid == [(True,)] or count <= index.least:
            return
        connection.execute("SET statement_timeout = 0")
        try:
            if is_valid:
                self._wait_for(connection, f"DROP INDEX CONCURRENTLY {schema}.{index.name}")
            connection.execute(f"SET maintenance_work_mem = {self._find_memory(connection, index)}")
            self._wait_for(connection, index.create(self._dialect))
        except InsufficientPrivilege:
            if not is_guess:
                wish = f"INSERT INTO {self._dialect.state} (name, value) VALUES ($1, '') ON CONFLICT DO NOTHING"
                connection.execute(wish, [index.wish])
            raise
        except (psycopg.errors.DiskFull, psycopg.errors.OutOfMemory):
            # Workers share the graph in shared memory, which a container may have too little of.
            connection.execute("SET max_parallel_maintenance_workers = 0")
            self._wait_for(connection, f"DROP INDEX CONCURRENTLY IF EXISTS {schema}.{index.name}")
            self._wait_for(connection, index.create(self._dialect))
        logger.info("built the index %s on %s", index.name, index.table(self._dialect))

    def _numbered(self, statement: Statement) -> tuple[bytes, list[Any]]:
        sql, params = statement
        numbered, names = self._dialect.number_parameters(sql)
        return numbered, [params[name] for name in names]

    def _find_memory(self, connection: psycopg.Connection[Any], index: VectorIndex | GeneralIndex) -> int:
        """Return the kilobytes that hold the whole index, if the server has so much: with less, building is slow."""
        [(stored, least, most)] = connection.execute(
            "SELECT pg_table_size($1::regclass), pg_size_bytes(current_setting('maintenance_work_mem')),"
            " pg_size_bytes(current_setting('effective_cache_size')) / 4",
            [index.table(self._dialect)],
        )
        return int(max(least, min(2 * stored, most))) // 1024  # the vectors, and their neighbours

    def _wait_for(self, connection: psycopg.Connection[Any], sql: str) -> None:
        """Execute a statement that may take long."""
        connection.pgconn.send_query(sql.encode())
        self._is_sent.set()
        waited = self._until_stopped(generators.execute(connection.pgconn))
        results = waiting.wait(waited, connection.pgconn.socket, interval=0.2)
        if results[-1].status == psycopg.pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(results[-1])

    def _until_stopped(self, gen: Any) -> PQGen[Any]:
        """Run a generator of psycopg's until the engine is closed."""
        try:
            wait = next(gen)
            while True:
                ready = yield wait
                if self._stopped:
                    raise _Stopped
                wait = gen.send(ready)
        except StopIteration as stop:
            return stop.value
