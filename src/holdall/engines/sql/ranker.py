"""Ranked search in SQL: which versions a search may return, and their vectors.

    vectors   version, model, data: an entry with several texts has several rows

The column `vectors` of an entry names the model that made its vectors. They belong to its version: a trigger of the
schema removes them when the entry changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ... import ops
from ...engine import to_entry
from ...model import file_values, filters, keys
from ...ops import Entry, Hit, Page
from ...runtime.programs import Work
from ...search.ranking import FEW, LARGEST_GAP, LocalRanking, Ranking, ThreadRanking
from ...search.text_index import texts
from ...search.tokens import has_phrases, parse_query
from .bounded_reads import BoundedReads, process_rows, split_by_bytes
from .dialect import Dialect
from .feed import SqlFeed
from .statements import LIVE, Rows, SqlProgram, SqlRequest, Statement, live, within
from .text_index import FEW_ENTRIES, SqlTextIndex

if TYPE_CHECKING:
    from ...search.vectors import Matrix

_PAGE = 4096
#: So many vectors are compared without a worker thread.
SMALL = 256
#: How many candidates of a filter or a phrase are read at a time.
_LOOKED_AT = 256

_WRITTEN = ", ".join(f"'{shape}'" for shape in file_values.WRITTEN)
#: The condition that a row has searched texts, but no vectors of a model.
UNEMBEDDED = (
    "(vectors IS NULL OR vectors <> :model) AND coalesce(fields, '') <> '[]'"
    f" AND (size IS NULL OR value NOT IN ({_WRITTEN}))"
)


class SqlRanker:
    """What `holdall.search.ranking` needs of an engine, as programs over statements."""

    def __init__(
        self,
        dialect: Dialect,
        clock: Callable[[], int | None],
        reads: BoundedReads,
        feed: SqlFeed,
        texts: SqlTextIndex,
    ) -> None:
        self._dialect = dialect
        self._clock = clock
        self._reads, self._columns = reads, reads.columns
        self._feed = feed
        self._texts = texts
        self._table, self._vectors = dialect.table, dialect.vectors

    # Writing ---------------------------------------------------------------------------------------------------------

    def insert_vectors(self, ns: str, key: str, vectors: ops.Vectors) -> list[Statement]:
        """Return statements that store the vectors of an entry that names their model already."""
        expression, to_parameter = self._dialect.vector_in
        add = (
            f"INSERT INTO {self._vectors} (version, model, data)"
            f" SELECT version, :model, {expression} FROM {self._table} WHERE ns = :ns AND key = :key"
        )
        here = {"ns": ns, "key": key, "model": vectors.model}
        return [(add, {**here, **to_parameter(data)}) for data in vectors.data]

    def embed(self, op: ops.Embed, now: int | None) -> SqlProgram[bool]:
        ns = keys.encode(op.namespace)
        here = {"ns": ns, "key": op.key, "version": op.version}
        mark = (
            f"UPDATE {self._table} SET vectors = :model"
            f" WHERE ns = :ns AND key = :key AND version = :version AND {LIVE} RETURNING version"
        )
        [rows] = yield [(mark, {**here, "model": op.vectors.model, "now": now})]
        if rows:
            old = (f"DELETE FROM {self._vectors} WHERE version = :version", {"version": op.version})
            yield [old, *self.insert_vectors(ns, op.key, op.vectors)]
        return bool(rows)

    def unembedded(self, op: ops.Unembedded) -> SqlProgram[Page[tuple[Entry, Any]]]:
        """Return entries in key order that have no vectors of a model, each with the paths of its searched texts."""
        params: dict[str, Any] = {"now": self._clock(), "model": op.model, "limit": op.limit}
        where = f"{LIVE} {within(op.prefix, True, params)} AND {UNEMBEDDED}"
        if op.after is not None:
            where += " AND (ns, key) > (:after_ns, :after_key)"
            params |= {"after_ns": keys.encode(op.after[0]), "after_key": op.after[1]}
        sql = f"SELECT {self._columns}, fields FROM {self._table} WHERE {where} ORDER BY ns, key LIMIT :limit"
        [rows] = yield [(sql, params)]
        first = next(split_by_bytes(rows))
        entries = [(to_entry(row[:-1]), row[-1]) for row in (yield from self._reads.load_contents(first))]
        return Page(entries, first[-1][1] if len(first) < len(rows) or len(rows) == op.limit else None)

    # Ranking ---------------------------------------------------------------------------------------------------------

    def index_lag(self) -> SqlProgram[int]:
        return (yield from self._texts.index_lag())

    def find_few(self, op: ops.Search) -> SqlProgram[Collection[int] | None]:
        if not op.prefix and op.filter is None:
            return None
        is_by_words = op.vector is None and op.filter is None
        few = FEW_ENTRIES if is_by_words else FEW  # of more, the text index does not use the versions
        params: dict[str, Any] = {"now": self._clock(), "limit": few + 1}
        where, is_indexed = yield from self._feed.search_condition(op, params)
        if not is_indexed:
            params = {"now": params["now"], "limit": few + 1}
            where, _ = yield from self._feed.search_condition(ops.Search(op.prefix, recursive=op.recursive), params)
        [rows] = yield [(f"SELECT version FROM {self._table} WHERE {where} LIMIT :limit", params)]
        return None if len(rows) > few else {version for (version,) in rows}

    def rank_by_text(self, op: ops.Search, among: Collection[int] | None) -> SqlProgram[Ranking[SqlRequest]]:
        assert op.query is not None
        return (yield from self._texts.ranking(op, parse_query(op.query).terms, among))

    def rank_by_vector(self, op: ops.Search, among: Collection[int] | None) -> SqlProgram[Ranking[SqlRequest]]:
        assert op.vector is not None
        if among is not None:
            matrix = yield from self.read_vectors(op.vector.model, among)
        else:
            matrix = yield from self._read_searched(op)
        asked = op.vector.data, op.vector.metric
        if len(matrix) <= SMALL:
            return LocalRanking(matrix.ranked(*asked))
        return ThreadRanking((yield Work(matrix.ranked, asked)))

    def find_fitting(self, op: ops.Search, versions: list[int]) -> SqlProgram[Collection[int]]:
        if not versions:
            return ()
        phrases = op.query is not None and bool(parse_query(op.query).phrases)
        params: dict[str, Any] = {"now": self._clock()}
        where, _ = yield from self._feed.search_condition(op, params)
        if op.filter is None and not phrases:
            among, numbers = self._dialect.among("version", versions)
            [rows] = yield [(f"SELECT version FROM {self._table} WHERE {among} AND {where}", params | numbers)]
            return {version for (version,) in rows}
        fitting: set[int] = set()
        columns = f"{self._columns}, fields, CASE WHEN size > {file_values.LARGEST} THEN {self._dialect.head} END"
        for start in range(0, len(versions), _LOOKED_AT):
            among, numbers = self._dialect.among("version", versions[start : start + _LOOKED_AT])
            [rows] = yield [(f"SELECT {columns} FROM {self._table} WHERE {among} AND {where}", params | numbers)]
            for group in split_by_bytes(rows):
                loaded = yield from self._reads.load_contents(group)
                fitting |= yield from process_rows(_fitting, op, loaded)
        return fitting

    def find_adjacent(
        self, versions: list[int], count: int
    ) -> SqlProgram[dict[int, tuple[Sequence[int], Sequence[int]]]]:
        if not versions:
            return {}

        def nearest(comparison: str, bound: str, order: str) -> str:
            # SQLite uses the index for `key` only if it is compared with something that is not a column.
            return (
                f"(SELECT string_agg(CAST(version AS text), ',' ORDER BY created {order}, key {order}) FROM ("
                f"SELECT version, created, key FROM {self._table} AS near WHERE near.ns = entry.ns"
                f" AND (near.created, near.key) {comparison} (entry.created, entry.key || '') AND near.created {bound}"
                f" AND {live('near.')} ORDER BY near.created {order}, near.key {order} LIMIT :limit) AS nearest)"
            )

        before = nearest("<", f">= entry.created - {LARGEST_GAP}", "DESC")
        after = nearest(">", f"<= entry.created + {LARGEST_GAP}", "ASC")
        among, numbers = self._dialect.among("entry.version", versions)
        sql = f"SELECT version, {before}, {after} FROM {self._table} AS entry WHERE {among}"
        first, last = self._dialect.in_index_order
        replies = yield [*first, (sql, {**numbers, "now": self._clock(), "limit": count}), *last]
        rows: Rows = replies[len(first)]
        return {version: (_parse_versions(before), _parse_versions(after)) for version, before, after in rows}

    def load(self, op: ops.Search, versions: list[int]) -> SqlProgram[dict[int, Hit]]:
        del op  # all these versions are results of the search
        if not versions:
            return {}
        among, params = self._dialect.among("version", versions)
        [rows] = yield [(f"SELECT {self._columns} FROM {self._table} WHERE {among}", params)]
        hits: dict[int, Hit] = {}
        for group in split_by_bytes(rows):
            loaded = yield from self._reads.load_contents(group)
            hits.update((row[3], to_entry(row, Hit)) for row in loaded)
        return hits

    # Vectors ---------------------------------------------------------------------------------------------------------

    def read_vectors(self, model: int, versions: Iterable[int]) -> SqlProgram[Matrix]:
        """Return the vectors of these versions."""
        matrix = _new_matrix()
        yield from self._add_vectors(matrix, model, list(versions))
        return matrix

    def _add_vectors(self, matrix: Matrix, model: int, versions: list[int]) -> SqlProgram[None]:
        among, params = self._dialect.among("version", versions)
        expression, to_bytes = self._dialect.vector_out
        sql = f"SELECT version, {expression} FROM {self._vectors} WHERE {among} AND model = :model"
        [rows] = yield [(sql, {**params, "model": model})]
        yield from _add(matrix, rows, to_bytes)

    def _read_searched(self, op: ops.Search) -> SqlProgram[Matrix]:
        """Return the vectors of all entries that a search may return, and read no others."""
        assert op.vector is not None
        matrix, model = _new_matrix(), op.vector.model
        params: dict[str, Any] = {"now": self._clock(), "model": model}
        where, _ = yield from self._feed.search_condition(op, params)
        [rows] = yield [(f"SELECT version FROM {self._table} WHERE {where} AND vectors = :model", params)]
        versions = sorted(version for (version,) in rows)
        for start in range(0, len(versions), _PAGE):
            yield from self._add_vectors(matrix, model, versions[start : start + _PAGE])
        return matrix


def _fitting(op: ops.Search, rows: Rows) -> set[int]:
    """Return the versions of the rows that match the filter and have the phrases of a search."""
    query = parse_query(op.query or "")
    fitting: set[int] = set()
    for *row, search_fields, head in rows:
        if op.filter is not None and not filters.matches(op.filter, to_entry(tuple(row)).value):
            continue
        _, _, value, version, _, _, _, content, _, size = row
        if not query.phrases or has_phrases(query, texts(value, search_fields, content or head, size is not None)):
            fitting.add(version)
    return fitting


def _parse_versions(listed: str | None) -> list[int]:
    return [int(version) for version in listed.split(",")] if listed else []


def _add(matrix: Matrix, rows: Rows, to_bytes: Callable[[Any], bytes]) -> SqlProgram[None]:
    """Add rows of a version and a vector to a matrix."""

    def add() -> None:
        matrix.add([version for version, _ in rows], [to_bytes(data) for _, data in rows])

    if len(rows) > SMALL:
        yield Work(add, ())
    else:
        add()


def _new_matrix() -> Matrix:
    from ...search.vectors import Matrix  # imported late: it needs numpy

    return Matrix()
