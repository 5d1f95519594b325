"""Vectors in PostgreSQL that pgvector compares, where it is installed.

The distances that it gives are as exact as float32, and decide only which vectors are read: those are compared again,
in the client, as everywhere, so that the ranking does not depend on where it was made. What is read is ranked as far as
nothing that has not been read can come before it, by a bound on how far those distances are off.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from .. import ops
from ..programs import Program, Work
from ..ranking import Ranking
from .postgres_dialect import PostgresDialect
from .sql_search import SMALL, SqlRanker

if TYPE_CHECKING:
    from ..vectors import Matrix

_OPERATORS = {"cosine": "<=>", "dot": "<#>", "l2": "<->"}
_LEAST = 64  # rows that are read at a time


class PostgresRanker(SqlRanker):
    """What `holdall.ranking` asks of an engine."""

    _dialect: PostgresDialect

    def by_vector(self, op: ops.Search, among: Collection[int] | None) -> Program[Ranking]:
        if among is not None or self._dialect.pgvector is None:
            return (yield from super().by_vector(op, among))
        params: dict[str, Any] = {"now": self._clock()}
        where, _ = yield from self._conditions(op, params)
        return _Nearest(self, op, where, params)

    def nearest(self, vector: ops.Vector, where: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """A query for versions in the order of how near they may be: the nearest that float32 can have meant.

        A distance that is no number, of vectors that are zero or too long for float32, may be any.
        """
        schema, numbers = self._dialect.pgvector, array("f", vector.data).tolist()
        given = f"(:all_numbers::real[]::{schema}.vector)"
        distance = f"vector.data OPERATOR({schema}.{_OPERATORS[vector.metric]}) {given}"
        norm = f"{schema}.vector_norm(vector.data)"
        lengths = {"cosine": "1", "dot": f":length::float8 * {norm}", "l2": f"(:length::float8 + {norm})"}
        least = f"({distance}) - :error::float8 * {lengths[vector.metric]}"
        inside = f"SELECT 1 FROM {self._table} WHERE {self._table}.version = vector.version AND {where}"
        sql = f"""
            SELECT version, least FROM (
                SELECT version, min(CASE WHEN abs(least) < 'Infinity' THEN least ELSE '-Infinity' END) AS least FROM (
                    SELECT vector.version, {least} AS least
                    FROM {self._vectors} AS vector WHERE vector.model = :model AND EXISTS ({inside})
                ) AS each_one GROUP BY version
            ) AS near WHERE :beyond::float8 IS NULL OR (least, version) > (:beyond::float8, :after_id)
            ORDER BY least, version LIMIT :limit"""
        params = {**params, "all_numbers": numbers, "model": vector.model, "error": _error(len(numbers))}
        if vector.metric != "cosine":
            params["length"] = math.sqrt(math.fsum(number * number for number in numbers))
        return sql, params


def _error(dims: int) -> float:
    """How far the sum of so many products may be off in float32, in parts of the product of the two lengths."""
    return (2.0 * dims + 16) * 2.0**-24


class _Nearest:
    """The ranking by vectors: a stretch of it at a time."""

    def __init__(self, ranker: PostgresRanker, op: ops.Search, where: str, params: dict[str, Any]) -> None:
        assert op.vector is not None
        self._ranker = ranker
        self._vector = op.vector
        self._query = ranker.nearest(op.vector, where, params)
        self._beyond: float | None = None  # how near what has not been read may be
        self._last = 0
        self._read: list[tuple[int, float]] = []
        self._ended = False

    def take(self, size: int) -> Program[list[tuple[int, float]]]:
        while True:
            ripe = len(self._read) if self._ended else self._ripe()
            if ripe >= size or self._ended:
                taken, self._read = self._read[:size], self._read[size:]
                return taken
            sql, params = self._query
            limit = max(size, _LEAST)
            [rows] = yield [(sql, {**params, "beyond": self._beyond, "after_id": self._last, "limit": limit})]
            self._ended = len(rows) < limit
            if rows:
                self._last, self._beyond = rows[-1]
                matrix = yield from self._ranker.of_these(self._vector.model, [version for version, _ in rows])
                if len(matrix) > SMALL:
                    yield Work(self._add, (matrix,))
                else:
                    self._add(matrix)

    def _add(self, matrix: Matrix) -> None:
        self._read += matrix.ranked(self._vector.data, self._vector.metric)
        self._read.sort(key=lambda pair: (pair[1], pair[0]), reverse=True)

    def _ripe(self) -> int:
        """How many of those that were read are nearer than anything else can be."""
        if self._beyond is None:
            return 0
        least = (1.0 if self._vector.metric == "cosine" else 0.0) - self._beyond
        return bisect_left(self._read, -least, key=lambda pair: -pair[1])
