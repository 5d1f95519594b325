"""Ranking by vectors in PostgreSQL with pgvector, if it is installed.

The distances of pgvector have the precision of float32. They only select the vectors to read, which are then compared
exactly in the client, as on every engine: so the ranking is the same everywhere. A bound on the error of the distances
tells how many of the vectors that were read are surely nearer than all that were not.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ... import ops
from ...runtime.programs import Work
from ...search.ranking import Ranking
from ..sql.ranker import SMALL, SqlRanker
from ..sql.statements import SqlProgram, SqlRequest
from .dialect import PostgresDialect

if TYPE_CHECKING:
    from ...search.vectors import Matrix

_OPERATORS = {"cosine": "<=>", "dot": "<#>", "l2": "<->"}
_MIN_ROWS = 64  # read at a time


class PostgresRanker(SqlRanker):
    """The `Ranker` of PostgreSQL (`holdall.search.ranking`)."""

    _dialect: PostgresDialect

    def rank_by_vector(self, op: ops.Search, among: Collection[int] | None) -> SqlProgram[Ranking[SqlRequest]]:
        if among is not None or self._dialect.pgvector is None:
            return (yield from super().rank_by_vector(op, among))
        params: dict[str, Any] = {"now": self._clock()}
        where, _ = yield from self._feed.search_condition(op, params)
        return _NearestFirst(self, op, where, params)

    def nearest(self, vector: ops.Vector, where: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return a query for versions and the least distance that each may have, in the order of those distances.

        The least distance is pgvector's, less its largest error. Where pgvector gives no finite number, for vectors
        that are zero or too long for float32, it is minus infinity.
        """
        schema, numbers = self._dialect.pgvector, array("f", vector.data).tolist()
        given = f"(:all_numbers::real[]::{schema}.vector)"
        distance = f"vector.data OPERATOR({schema}.{_OPERATORS[vector.metric]}) {given}"
        norm = f"{schema}.vector_norm(vector.data)"
        lengths = {"cosine": "1", "dot": f":length::float8 * {norm}", "l2": f"(:length::float8 + {norm})"}
        least = f"({distance}) - :error::float8 * {lengths[vector.metric]}"
        is_candidate = f"SELECT 1 FROM {self._table} WHERE {self._table}.version = vector.version AND {where}"
        sql = f"""
            SELECT version, least FROM (
                SELECT version, min(CASE WHEN abs(least) < 'Infinity' THEN least ELSE '-Infinity' END) AS least FROM (
                    SELECT vector.version, {least} AS least
                    FROM {self._vectors} AS vector WHERE vector.model = :model AND EXISTS ({is_candidate})
                ) AS each_one GROUP BY version
            ) AS near WHERE :beyond::float8 IS NULL OR (least, version) > (:beyond::float8, :after_id)
            ORDER BY least, version LIMIT :limit"""
        params = {**params, "all_numbers": numbers, "model": vector.model, "error": _relative_error(len(numbers))}
        if vector.metric != "cosine":
            params["length"] = math.sqrt(math.fsum(number * number for number in numbers))
        return sql, params


def _relative_error(dims: int) -> float:
    """Return the largest error of a dot product in float32, relative to the product of the two lengths."""
    return (2.0 * dims + 16) * 2.0**-24


class _NearestFirst:
    """A `Ranking` by vectors, which reads some at a time."""

    def __init__(self, ranker: PostgresRanker, op: ops.Search, where: str, params: dict[str, Any]) -> None:
        assert op.vector is not None
        self._ranker = ranker
        self._vector = op.vector
        self._query = ranker.nearest(op.vector, where, params)
        self._beyond: float | None = None  # the least distance that a version not read yet may have
        self._last = 0
        self._read: list[tuple[int, float]] = []  # versions and exact scores, best first
        self._is_complete = False

    def take(self, size: int) -> SqlProgram[list[tuple[int, float]]]:
        while True:
            final = len(self._read) if self._is_complete else self._count_final()
            if final >= size or self._is_complete:
                taken, self._read = self._read[:size], self._read[size:]
                return taken
            sql, params = self._query
            limit = max(size, _MIN_ROWS)
            [rows] = yield [(sql, {**params, "beyond": self._beyond, "after_id": self._last, "limit": limit})]
            self._is_complete = len(rows) < limit
            if rows:
                self._last, self._beyond = rows[-1]
                matrix = yield from self._ranker.read_vectors(self._vector.model, [version for version, _ in rows])
                if len(matrix) > SMALL:
                    yield Work(self._add, (matrix,))
                else:
                    self._add(matrix)

    def _add(self, matrix: Matrix) -> None:
        self._read += matrix.ranked(self._vector.data, self._vector.metric)
        self._read.sort(key=lambda pair: (pair[1], pair[0]), reverse=True)

    def _count_final(self) -> int:
        """Return how many of those that were read are surely nearer than all that were not."""
        if self._beyond is None:
            return 0
        best_unread_score = (1.0 if self._vector.metric == "cosine" else 0.0) - self._beyond
        return bisect_left(self._read, -best_unread_score, key=lambda pair: -pair[1])
