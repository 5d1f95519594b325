"""Ranking by vectors in PostgreSQL with pgvector, if it is installed, and the approximate indexes for it.

The distances of pgvector have the precision of float32. They only select the vectors to read, which are then compared
exactly in the client, as on every engine: so the ranking is the same everywhere. A bound on the error of the distances
tells how many of the vectors that were read are surely nearer than all that were not.

A search that concerns more than `MOST_EXACT` vectors takes its candidates from an HNSW index, of which there is one for
each model, dimension and metric. A search that misses its index has it built in the background (`IndexBuilder`), and
compares all vectors until then.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import generators, waiting
from psycopg.abc import PQGen
from psycopg.errors import InsufficientPrivilege, error_from_result

from ... import ops
from ...ops import Hit
from ...runtime.programs import Work
from ...search.ranking import MOST_EXACT, Ranking
from ..sql.ranker import SMALL, SqlRanker
from ..sql.statements import Rows, SqlProgram, SqlRequest, Statement
from .dialect import PostgresDialect, lock_id, to_pgvector

logger = logging.getLogger("holdall")

_OPERATORS = {"cosine": "<=>", "dot": "<#>", "l2": "<->"}
_OPERATOR_CLASSES = {"cosine": "cosine", "dot": "ip", "l2": "l2"}
_MIN_ROWS = 64  # read at a time
_SPARE_ROWS = 16  # so many of those that are read may be no nearer than the next
#: The parameters of the indexes. Measured with 100,000 vectors of 256 dimensions in 10,000 clusters, on 2 cores:
#: ef_construction 64 builds 4,900 a second, 100 builds 3,100. Of the ten nearest, an index of float16 with the second
#: finds 98.8, 99.2 and 99.3 in 100 with ef_search 200, 250 and 300. Another build with 250 found 98.7: it is at random.
_M, _EF_CONSTRUCTION, _EF_SEARCH = 16, 100, 350
_MOST_EF_SEARCH = 1000  # that pgvector accepts
#: How many vectors an index looks at for a namespace or a filter, before all of that namespace are compared.
_MOST_SCANNED = 20_000
#: How many results an index gives at most. After that, the remaining vectors are compared exactly.
_MOST_APPROXIMATE = 1000
#: The most dimensions that an index can have: of float32, and of float16.
_MOST_DIMS, _MOST_HALF_DIMS = 2000, 4000
#: For so many seconds, a namespace that had many vectors is taken to have many, unless many entries changed.
_TRUSTED = 10.0
_MOST_SCOPES = 256  # namespaces and filters that are remembered


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
        operator = "<#>" if self.is_half else _OPERATORS[self.metric]
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


#: The general index is built in a store with more entries than this.
LEAST_ENTRIES = 5000


def index_for(dialect: PostgresDialect, model: int, dims: int, metric: str) -> VectorIndex | None:
    """Return the index for these vectors; None if the server's pgvector has none, so that they are compared exactly."""
    version = dialect.pgvector_version
    is_half = metric == "cosine" and version >= (0, 7)
    if dialect.pgvector is None or version < (0, 5) or dims > (_MOST_HALF_DIMS if is_half else _MOST_DIMS):
        return None
    return VectorIndex(model, dims, metric, is_half)


class SearchWithoutSnapshot(ops.Search, frozen=True):
    """A search by vectors in two queries: one ranks, the other loads the versions that it found.

    A version never changes. So if the second query finds all of them, both have seen the same entries, and no
    transaction is needed. `NeedsSnapshot` is raised if it does not, or if the first query was not enough.
    It exists only inside an engine.
    """


class NeedsSnapshot(Exception):
    """A search has to be done in a transaction."""


class PostgresRanker(SqlRanker):
    """The `Ranker` of PostgreSQL (`holdall.search.ranking`)."""

    _dialect: PostgresDialect

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.builder: IndexBuilder | None = None
        self._usable: set[VectorIndex] = set()
        self._large: dict[_Scope, _Large] = {}

    def insert_vectors(self, ns: str, key: str, vectors: ops.Vectors) -> list[Statement]:
        self.note_vectors(vectors, len(vectors.data))
        return super().insert_vectors(ns, key, vectors)

    def note_vectors(self, vectors: ops.Vectors, count: int) -> None:
        """Note that so many vectors like these are added: they may need an index."""
        if self.builder is None or not vectors.data:
            return
        index = index_for(self._dialect, vectors.model, len(vectors.data[0]) // 4, vectors.metric)
        if index is not None and index not in self._usable:
            self.builder.note_vectors(index, count)

    def find_few(self, op: ops.Search) -> SqlProgram[Collection[int] | None]:
        if op.query is None and self._dialect.pgvector is not None:  # the query for the nearest finds out itself
            return None
        return (yield from super().find_few(op))

    def rank_by_vector(self, op: ops.Search, among: Collection[int] | None) -> SqlProgram[Ranking[SqlRequest]]:
        assert op.vector is not None
        if among is not None or self._dialect.pgvector is None:
            ranking = yield from super().rank_by_vector(op, among)
            ranking.is_checked = among is not None  # in the same snapshot, `find_few` has checked them
            return ranking
        params: dict[str, Any] = {"now": self._clock()}
        where, _ = yield from self._feed.search_condition(op, params)
        nearest = _NearestFirst(self, op, where, params)
        index = index_for(self._dialect, op.vector.model, len(op.vector.data) // 4, op.vector.metric)
        if op.exact or index is None:
            return nearest
        return _Approximate(self, op, index, nearest, where, params)

    def without_snapshot(self, op: ops.Search) -> SearchWithoutSnapshot | None:
        """Return a search as one that needs no transaction; None if it surely takes more than one query to rank."""
        vector = op.vector
        if (
            vector is None
            or op.query is not None
            or op.filter is not None
            or op.neighbours
            or op.rest
            or self._dialect.pgvector is None
            or self.is_large(_scope(op, vector.model))
        ):
            return None
        return SearchWithoutSnapshot(
            op.prefix, None, op.limit, op.offset, op.cursor, op.recursive, vector=vector, exact=op.exact
        )

    def load(self, op: ops.Search, versions: list[int]) -> SqlProgram[dict[int, Hit]]:
        hits = yield from super().load(op, versions)
        if len(hits) < len(versions) and type(op) is SearchWithoutSnapshot:
            raise NeedsSnapshot
        return hits

    # Statements ------------------------------------------------------------------------------------------------------

    def query_nearest(
        self, vector: ops.Vector, where: str, params: dict[str, Any], limit: int, gated: bool
    ) -> Statement:
        """Return a query for the nearest vectors, by the least distance that each may have.

        The least distance is pgvector's, less its largest error. Where pgvector gives no finite number, for vectors
        that are zero or too long for float32, it is minus infinity. Rows are an id, a version, a least distance, and a
        vector. With `gated`, the first row has the number of entries that the search concerns, and the newest version.
        If they are more than `MOST_EXACT`, no vector is compared.
        """
        schema, dims = self._dialect.pgvector, len(vector.data) // 4
        given = f"(:data::{schema}.vector)"
        distance = f"vector.data OPERATOR({schema}.{_OPERATORS[vector.metric]}) {given}"
        norm = f"{schema}.vector_norm(vector.data)"
        lengths = {"cosine": "1", "dot": f":length::float8 * {norm}", "l2": f"(:length::float8 + {norm})"}
        least = f"({distance}) - :error::float8 * {lengths[vector.metric]}"
        entries = f"SELECT version FROM {self._table} WHERE {where} AND vectors = :model"
        source, gate, counted, count = f"({entries})", "", "", ""
        if gated:  # counting more than necessary tells for how many changes there will be enough
            source, gate = "found", f"AND (SELECT entries FROM counted) <= {MOST_EXACT}"
            counted = f"""
                found AS MATERIALIZED ({entries} LIMIT {2 * MOST_EXACT + 1}),
                counted AS MATERIALIZED (SELECT count(*) AS entries FROM found),"""
            newest = f"(SELECT last_value FROM {self._dialect.schema}.versions)"
            count = f"SELECT entries, {newest}, NULL::float8, NULL::bytea FROM counted UNION ALL"
        near = f"""
            SELECT id, version, least, data FROM (
                SELECT id, version, data, CASE WHEN abs(least) < 'Infinity' THEN least ELSE '-Infinity' END AS least
                FROM (
                    SELECT vector.id, vector.version, vector.data, {least} AS least FROM {source} AS entry
                    JOIN {self._vectors} AS vector ON vector.version = entry.version WHERE vector.model = :model {gate}
                ) AS each_one
            ) AS finite WHERE :beyond::float8 IS NULL OR (least, id) > (:beyond::float8, :after_id)
            ORDER BY least, id LIMIT {limit}"""
        expression, _ = self._dialect.vector_out
        sql = f"WITH {counted} near AS MATERIALIZED ({near}) {count} SELECT id, version, least, {expression} FROM near"
        params = {**params, "data": to_pgvector(vector.data), "model": vector.model, "error": _relative_error(dims)}
        if vector.metric != "cosine":
            params["length"] = math.sqrt(math.fsum(number * number for number in array("f", vector.data)))
        return sql, params

    def query_index(
        self, index: VectorIndex, vector: ops.Vector, where: str, params: dict[str, Any], limit: int
    ) -> list[Statement]:
        """Return a query for the nearest vectors by an index, and its settings.

        The first row has the number of vectors that were found, and the newest version. The others are versions and
        all their vectors, each looked up by its version. The scalar subquery keeps PostgreSQL from reading all entries
        first.
        """
        schema, (expression, _) = str(self._dialect.pgvector), self._dialect.vector_out
        distance = index.distance(schema, "vector.data", f"(:data::{schema}.vector)")
        is_entry = f"SELECT true FROM {self._table} AS entry WHERE entry.version = vector.version AND {where} OFFSET 0"
        sql = f"""
            WITH near AS MATERIALIZED (
                SELECT version FROM {self._vectors} AS vector WHERE model = {index.model} AND ({is_entry})
                ORDER BY {distance} LIMIT {limit}
            )
            SELECT count(*), (SELECT last_value FROM {self._dialect.schema}.versions), NULL::bytea FROM near
            UNION ALL SELECT NULL, version, data
            FROM (SELECT DISTINCT version FROM near) AS one CROSS JOIN LATERAL (
                SELECT {expression} AS data FROM {self._vectors}
                WHERE version = one.version AND model = {index.model} OFFSET 0
            ) AS its"""
        settings = [f"set_config('hnsw.ef_search', '{min(max(limit, _EF_SEARCH), _MOST_EF_SEARCH)}', true)"]
        if self._dialect.pgvector_version >= (0, 8):
            settings += [
                "set_config('hnsw.iterative_scan', 'relaxed_order', true)",
                f"set_config('hnsw.max_scan_tuples', '{_MOST_SCANNED}', true)",
            ]
        return [(f"SELECT {', '.join(settings)}", {}), (sql, {**params, "data": to_pgvector(vector.data)})]

    # What is known of the store --------------------------------------------------------------------------------------

    def find_index(self, index: VectorIndex) -> SqlProgram[bool]:
        """Return whether an index can be used; if not, request it."""
        if index not in self._usable:
            [rows] = yield [read_index(self._dialect, index)]
            if rows != [(True,)]:
                if self.builder is not None:
                    self.builder.request(index)
                return False
            self._usable.add(index)
        return True

    def is_large(self, scope: _Scope, newest: int | None = None) -> bool:
        """Whether a scope surely has more than `MOST_EXACT` entries with vectors.

        Each change draws a version. So a scope that had some more still has enough, until as many versions were drawn.
        """
        known = self._large.get(scope)
        if known is None:
            return False
        if time.monotonic() < known.until and (newest is None or newest < known.newest):
            return True
        self._large.pop(scope, None)
        return False

    def note_size(self, scope: _Scope, entries: int, newest: int) -> None:
        """Remember how many entries a scope has."""
        if entries > MOST_EXACT:
            if len(self._large) >= _MOST_SCOPES:
                self._large.clear()
            self._large[scope] = _Large(time.monotonic() + _TRUSTED, newest + entries - MOST_EXACT)

    def score(self, vector: ops.Vector, pairs: list[tuple[int, bytes]]) -> SqlProgram[list[tuple[int, float]]]:
        """Return versions with their exact scores, best first, given their vectors as the server sent them."""
        from ...search.vectors import rank  # imported late: it needs numpy

        _, to_bytes = self._dialect.vector_out

        def work() -> list[tuple[int, float]]:
            versions, datas = [version for version, _ in pairs], [to_bytes(data) for _, data in pairs]
            return rank(vector.data, versions, datas, vector.metric)

        if len(pairs) > SMALL:
            return (yield Work(work, ()))  # type: ignore[no-any-return]  # a reply
        return work()


#: Which entries a search concerns: prefix, recursive, filter and model.
_Scope = tuple[ops.Namespace, bool, str | None, int]


def _scope(op: ops.Search, model: int) -> _Scope:
    return op.prefix, op.recursive, op.filter, model


def rows_to_read(size: int) -> int:
    """Return how many rows to read, so that so many of them are surely the nearest."""
    return max(size + _SPARE_ROWS, _MIN_ROWS)


@dataclass(frozen=True, slots=True)
class _Large:
    """Until when, and up to which version, a scope surely has many vectors."""

    until: float
    newest: int


def read_index(dialect: PostgresDialect, index: VectorIndex | GeneralIndex) -> Statement:
    """Return a query for whether an index is valid; no row if there is none."""
    sql = (
        "SELECT indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
        " WHERE indrelid = :p0::regclass AND relname = :p1"
    )
    return sql, {"p0": index.table(dialect), "p1": index.name}


def _relative_error(dims: int) -> float:
    """Return the largest error of a dot product in float32, relative to the product of the two lengths."""
    return (2.0 * dims + 16) * 2.0**-24


class _NearestFirst:
    """A `Ranking` by vectors, exact, which reads some at a time."""

    is_checked = True

    def __init__(self, ranker: PostgresRanker, op: ops.Search, where: str, params: dict[str, Any]) -> None:
        assert op.vector is not None
        self._ranker = ranker
        self._vector = op.vector
        self._has_snapshot = type(op) is not SearchWithoutSnapshot
        self._where, self._params = where, params
        self._beyond: float | None = None  # the least distance that a vector not read yet may have
        self._last = 0
        self._taken: set[int] = set()  # versions that were returned already
        self._read: list[tuple[int, float]] = []  # other versions and their exact scores, best first
        self._is_complete = False

    def leave_out(self, versions: Collection[int]) -> None:
        """Leave out versions that were returned already."""
        self._taken.update(versions)

    def take(self, size: int) -> SqlProgram[list[tuple[int, float]]]:
        while True:
            final = len(self._read) if self._is_complete else self._count_final()
            if final >= size or self._is_complete:
                taken, self._read = self._read[:size], self._read[size:]
                self.leave_out([version for version, _ in taken])
                return taken
            if self._beyond is not None and not self._has_snapshot:
                raise NeedsSnapshot
            limit = rows_to_read(size)
            [rows] = yield [self.query(limit)]
            yield from self.add(rows, limit)

    def query(self, limit: int, gated: bool = False) -> Statement:
        """Return the query for the next vectors."""
        sql, params = self._ranker.query_nearest(self._vector, self._where, self._params, limit, gated)
        return sql, {**params, "beyond": self._beyond, "after_id": self._last}

    def add(self, rows: Rows, limit: int) -> SqlProgram[None]:
        """Add the rows of a query with this limit."""
        self._is_complete = len(rows) < limit
        if rows:
            self._beyond, self._last = max((least, id) for id, _, least, _ in rows)
        pairs = [(version, data) for _, version, _, data in rows if version not in self._taken]
        best = dict(self._read)  # an entry may have several vectors
        for version, score in (yield from self._ranker.score(self._vector, pairs)):
            best[version] = max(score, best.get(version, score))
        self._read = sorted(best.items(), key=_best_first, reverse=True)

    def _count_final(self) -> int:
        """Return how many of the entries that were read are surely nearer than all vectors that were not."""
        if self._beyond is None:
            return 0
        best_unread_score = (1.0 if self._vector.metric == "cosine" else 0.0) - self._beyond
        return bisect_left(self._read, -best_unread_score, key=lambda pair: -pair[1])


class _Approximate:
    """A `Ranking` by vectors: exact if the search concerns few, otherwise by an index."""

    is_checked = True

    def __init__(
        self,
        ranker: PostgresRanker,
        op: ops.Search,
        index: VectorIndex,
        exact: _NearestFirst,
        where: str,
        params: dict[str, Any],
    ) -> None:
        assert op.vector is not None
        self._ranker, self._vector, self._index = ranker, op.vector, index
        self._exact = exact
        self._has_snapshot = type(op) is not SearchWithoutSnapshot
        self._where, self._params = where, params
        self._scope = _scope(op, index.model)
        self._is_exact: bool | None = None  # None: not known yet
        self._taken: set[int] = set()

    def take(self, size: int) -> SqlProgram[list[tuple[int, float]]]:
        if self._is_exact is None:
            yield from self._choose(size)
        if not self._is_exact:
            found = yield from self._search_index(size)
            if found is not None:
                return found
            self._is_exact = True
            self._exact.leave_out(self._taken)
        return (yield from self._exact.take(size))

    def _choose(self, size: int) -> SqlProgram[None]:
        """Find out whether the search concerns few vectors. If so, the first of them are read with the same query."""
        if self._ranker.is_large(self._scope):
            self._is_exact = not (yield from self._ranker.find_index(self._index))
            return
        limit = rows_to_read(size)
        [[(entries, newest, _, _), *rows]] = yield [self._exact.query(limit, gated=True)]
        if entries <= MOST_EXACT:
            self._is_exact = True
            yield from self._exact.add(rows, limit)
            return
        self._ranker.note_size(self._scope, entries, newest)
        if not self._has_snapshot:
            raise NeedsSnapshot
        self._is_exact = not (yield from self._ranker.find_index(self._index))

    def _search_index(self, size: int) -> SqlProgram[list[tuple[int, float]] | None]:
        """Return the next results by the index; None if it cannot give as many."""
        enough = len(self._taken) + size
        limit = max(enough, _MIN_ROWS)
        while enough <= _MOST_APPROXIMATE:
            statements = self._ranker.query_index(self._index, self._vector, self._where, self._params, limit)
            [_, [(found, newest, _), *rows]] = yield statements
            if not self._taken and not self._ranker.is_large(self._scope, newest):
                yield from self._choose(size)
                if self._is_exact:
                    return None
            pairs = [(version, data) for _, version, data in rows if version not in self._taken]
            if len({version for version, _ in pairs}) >= size:
                taken = (yield from self._ranker.score(self._vector, pairs))[:size]
                self._taken.update(version for version, _ in taken)
                return taken
            if found < limit or limit > _MOST_APPROXIMATE:
                break
            limit *= 4  # entries have several vectors, of which many were found
        return None


def _best_first(pair: tuple[int, float]) -> tuple[float, int]:
    version, score = pair
    return score, version


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
        """Have an index built soon, unless that has just failed. A guess is not noted for a role that may build it."""
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


class _Refused(Exception):
    """The index cannot be built on this connection."""


class _Stopped(Exception):
    """The engine was closed."""


#: Seconds until an index is tried again, after a failure, and where the role has no right to build it.
_PAUSE, _LONG_PAUSE = 60.0, 600.0
#: Seconds without new vectors that are a pause, and the longest wait for a pause.
_QUIET, _LONGEST_WAIT = 1.0, 60.0
_TIME_TO_SEND = 2.0  # seconds that `close` waits for a statement to be sent
