"""Ranking by vectors in PostgreSQL with pgvector, if it is installed.

The distances of pgvector have the precision of float32. They only select the vectors to read, which are then compared
exactly in the client, as on every engine: so the ranking is the same everywhere. A bound on the error of the distances
tells how many of the vectors that were read are surely nearer than all that were not.

A search that concerns more than `MOST_EXACT` vectors takes its candidates from an HNSW index, of which there is one for
each model, dimension and metric. A search that misses its index has it built in the background
(`indexes/background.py`), and compares all vectors until then.
"""

from __future__ import annotations

import math
import time
from array import array
from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ... import ops
from ...ops import Hit
from ...runtime.programs import Work
from ...search.ranking import MOST_EXACT, Ranking
from ..sql.ranker import SMALL, SqlRanker
from ..sql.statements import Rows, SqlProgram, SqlRequest, Statement
from .dialect import PostgresDialect, to_pgvector
from .indexes.background import EF_SEARCH, OPERATORS, IndexBuilder, VectorIndex, index_for, read_index

#: Of vectors with a length between these, pgvector computes the cosine as it should.
_SHORTEST, _LONGEST = 1e-15, 1e15
_MIN_ROWS = 64  # read at a time
_SPARE_ROWS = 16  # so many of those that are read may be no nearer than the next
_MOST_EF_SEARCH = 1000  # that pgvector accepts
#: How many vectors of an index are read for a namespace or a filter, before all of that namespace are compared.
_MOST_SCANNED = 20_000
#: How many results an index gives at most. After that, the remaining vectors are compared exactly.
_MOST_APPROXIMATE = 1000
#: For so many seconds, a namespace that had many vectors is taken to have many, unless many entries changed.
_TRUSTED = 10.0
_MOST_SCOPES = 256  # namespaces and filters that are remembered


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
        distance = f"vector.data OPERATOR({schema}.{OPERATORS[vector.metric]}) {given}"
        norm = f"{schema}.vector_norm(vector.data)"
        lengths = {"cosine": "1", "dot": f":length::float8 * {norm}", "l2": f"(:length::float8 + {norm})"}
        least = f"({distance}) - :error::float8 * {lengths[vector.metric]}"
        if vector.metric == "cosine":  # where a square is no float32, pgvector takes the cosine for 0, 1 or -1
            usual = f"BETWEEN {_SHORTEST} AND {_LONGEST}"
            least = f"CASE WHEN {norm} {usual} AND :length::float8 {usual} THEN {least} ELSE '-Infinity' END"
        entries = f"SELECT version FROM {self._table} WHERE {where} AND vectors = :model"
        source, gate, counted, count = f"({entries})", "", "", ""
        if gated:  # what is counted beyond the threshold shows after how many changes to count again
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
        settings = [f"set_config('hnsw.ef_search', '{min(max(limit, EF_SEARCH), _MOST_EF_SEARCH)}', true)"]
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
