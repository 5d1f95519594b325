"""Vectors in PostgreSQL that pgvector compares, where it is installed.

The distances that it gives are as exact as float32, and decide only which vectors are read: those are compared again,
in the client, as everywhere, so that the ranking does not depend on where it was made.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from typing import Any

from .. import ops
from ..programs import Program
from ..ranking import Ranking
from .postgres_dialect import PostgresDialect
from .sql_search import SqlRanker

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
        """A query for the versions whose vectors are nearest, with how near they are in steps of a 65,536th."""
        schema = self._dialect.pgvector
        given = f"(:all_numbers::real[]::{schema}.vector)"
        distance = f"vector.data OPERATOR({schema}.{_OPERATORS[vector.metric]}) {given}"
        inside = f"SELECT 1 FROM {self._table} WHERE {self._table}.version = vector.version AND {where}"
        sql = f"""
            SELECT version, step FROM (
                SELECT vector.version, floor(min(coalesce(nullif({distance}, 'NaN'), 1)) * 65536) AS step
                FROM {self._vectors} AS vector WHERE vector.model = :model AND EXISTS ({inside})
                GROUP BY vector.version
            ) AS near WHERE :beyond::float8 IS NULL OR step > :beyond::float8
            ORDER BY step FETCH FIRST (:limit) ROWS WITH TIES"""
        return sql, {**params, "all_numbers": array("f", vector.data).tolist(), "model": vector.model}


class _Nearest:
    """The ranking by vectors: a stretch of it at a time."""

    def __init__(self, ranker: PostgresRanker, op: ops.Search, where: str, params: dict[str, Any]) -> None:
        assert op.vector is not None
        self._ranker = ranker
        self._vector = op.vector
        self._query = ranker.nearest(op.vector, where, params)
        self._beyond: float | None = None
        self._ready: list[tuple[int, float]] = []
        self._ended = False

    def take(self, size: int) -> Program[list[tuple[int, float]]]:
        while len(self._ready) < size and not self._ended:
            sql, params = self._query
            [rows] = yield [(sql, {**params, "beyond": self._beyond, "limit": size})]
            self._ended = len(rows) < size
            if rows:
                self._beyond = rows[-1][1]
                matrix = yield from self._ranker.of_these(self._vector.model, [version for version, _ in rows])
                self._ready += matrix.ranked(self._vector.data, self._vector.metric)
        taken, self._ready = self._ready[:size], self._ready[size:]
        return taken
