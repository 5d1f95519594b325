"""Vectors in PostgreSQL that pgvector compares, where it is installed.

The distances that it gives are as exact as float32, and decide only which vectors are read: those are compared again,
in the client, as everywhere, so that the ranking does not depend on where it was made. Vectors are read in the order of
the least that their distance can be, and one is given out when all that were not read are sure to be farther.
"""

from __future__ import annotations

import math
from array import array
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
        """A query for the versions whose vectors may be nearest, with the least that their distance can be.

        A sum in float32 is off by no more than so many roundings of the product of the two lengths, as in
        `holdall.vectors`; a cosine is made of three sums. What has no distance there is read first.
        """
        schema = self._dialect.pgvector
        given = f"(:all_numbers::real[]::{schema}.vector)"
        distance = f"(vector.data OPERATOR({schema}.{_OPERATORS[vector.metric]}) {given})"
        numbers = array("f", vector.data).tolist()
        error = (1.05 * len(numbers) + 8) * 2.0**-24
        least = {
            "cosine": f"{distance} - {2 * error!r}::float8",
            "dot": f"{distance} - {error * math.hypot(*numbers)!r}::float8 * {schema}.vector_norm(vector.data)",
            "l2": f"{distance} * {1 - error!r}::float8",
        }[vector.metric]
        inside = f"SELECT 1 FROM {self._table} WHERE {self._table}.version = vector.version AND {where}"
        sql = f"""
            SELECT version, least FROM (
                SELECT vector.version, min(coalesce(nullif({least}, 'NaN'), '-Infinity')) AS least
                FROM {self._vectors} AS vector WHERE vector.model = :model AND EXISTS ({inside})
                GROUP BY vector.version
            ) AS near WHERE :beyond::float8 IS NULL OR least > :beyond::float8
            ORDER BY least FETCH FIRST (:limit) ROWS WITH TIES"""
        return sql, {**params, "all_numbers": numbers, "model": vector.model}


class _Nearest:
    """The ranking by vectors: a stretch of it at a time."""

    def __init__(self, ranker: PostgresRanker, op: ops.Search, where: str, params: dict[str, Any]) -> None:
        assert op.vector is not None
        self._ranker = ranker
        self._vector = op.vector
        self._query = ranker.nearest(op.vector, where, params)
        self._beyond: float | None = None
        self._ready: list[tuple[int, float]] = []
        self._held: list[tuple[int, float]] = []  # something that was not read may be nearer
        self._ended = False

    def take(self, size: int) -> Program[list[tuple[int, float]]]:
        while len(self._ready) < size and not self._ended:
            sql, params = self._query
            [rows] = yield [(sql, {**params, "beyond": self._beyond, "limit": size})]
            self._ended = len(rows) < size
            if rows:
                self._beyond = rows[-1][1]
                matrix = yield from self._ranker.of_these(self._vector.model, [version for version, _ in rows])
                if len(matrix) > SMALL:
                    yield Work(self._add, (matrix,))
                else:
                    self._add(matrix)
            if self._ended:
                self._ready, self._held = self._ready + self._held, []
        taken, self._ready = self._ready[:size], self._ready[size:]
        return taken

    def _add(self, matrix: Matrix) -> None:
        """Take in what was read, and make ready what is nearer than all that was not."""
        assert self._beyond is not None
        found = [*self._held, *matrix.ranked(self._vector.data, self._vector.metric)]
        found.sort(key=lambda pair: (pair[1], pair[0]), reverse=True)
        nearest = 1.0 if self._vector.metric == "cosine" else 0.0  # the score of what has no distance
        ripe = sum(nearest - score <= self._beyond for _, score in found)
        self._ready, self._held = self._ready + found[:ripe], found[ripe:]
