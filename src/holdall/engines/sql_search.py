"""Ranked search in SQL: which versions are entries that a search is about, and what their vectors are.

    vectors   version, model, data: of an entry with several texts, several rows

An entry says in `vectors` which model made its own. They belong to its version: a trigger of the schema removes those
of an entry that has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from .. import keys, ops, shapes
from ..engine import to_entry
from ..ops import Entry, Hit
from ..programs import Program, Work
from ..ranking import FEW, Ranking, Ready, Worked
from ..search import has_phrases
from ..texts import texts
from .dialect import Dialect
from .sql_texts import SqlTexts
from .statements import LIVE, Rows, Statement

if TYPE_CHECKING:
    from ..vectors import Matrix

T = TypeVar("T")

_PAGE = 4096
#: So many vectors are compared without a thread of their own.
SMALL = 256
#: So many rows, and characters in them, are looked through as well: that is done within a millisecond or so.
_FEW_ROWS, _SHORT = 64, 1 << 16
_MATRICES = 4  # models whose vectors are kept in memory

_WRITTEN = ", ".join(f"'{shape}'" for shape in shapes.WRITTEN)
#: The condition that a row has texts to be found by, but no vectors of a model.
UNEMBEDDED = (
    "(vectors IS NULL OR vectors <> :model) AND coalesce(fields, '') <> '[]'"
    f" AND (size IS NULL OR value NOT IN ({_WRITTEN}))"
)

#: The condition that a row is in a search's namespace and may match its filter, and whether an index finds such rows.
Conditions = Callable[[ops.Search, dict[str, Any]], Program[tuple[str, bool]]]


class SqlRanker:
    """What `holdall.ranking` asks of an engine, as programs over statements."""

    def __init__(
        self,
        dialect: Dialect,
        clock: Callable[[], int | None],
        columns: str,
        conditions: Conditions,
        texts: SqlTexts,
    ) -> None:
        self._dialect = dialect
        self._clock = clock
        self._columns = columns
        self._conditions = conditions
        self._texts = texts
        self._matrices: dict[int, _Cached] = {}
        self._table, self._vectors = dialect.table, dialect.vectors

    # Writing ---------------------------------------------------------------------------------------------------------

    def add(self, namespace: str, key: str, vectors: ops.Vectors) -> list[Statement]:
        """Statements that store the vectors of an entry that says already that it has them."""
        given, taken = self._dialect.vector_in
        add = (
            f"INSERT INTO {self._vectors} (version, model, data)"
            f" SELECT version, :model, {given} FROM {self._table} WHERE ns = :ns AND key = :key"
        )
        here = {"ns": namespace, "key": key, "model": vectors.model}
        return [(add, {**here, **taken(data)}) for data in vectors.data]

    def embed(self, op: ops.Embed, now: int | None) -> Program[bool]:
        ns = keys.encode(op.namespace)
        here = {"ns": ns, "key": op.key, "version": op.version}
        mark = (
            f"UPDATE {self._table} SET vectors = :model"
            f" WHERE ns = :ns AND key = :key AND version = :version AND {LIVE} RETURNING version"
        )
        [rows] = yield [(mark, {**here, "model": op.vectors.model, "now": now})]
        if rows:
            old = (f"DELETE FROM {self._vectors} WHERE version = :version", {"version": op.version})
            yield [old, *self.add(ns, op.key, op.vectors)]
        return bool(rows)

    def unembedded(self, op: ops.Unembedded, within: str, params: dict[str, Any]) -> Program[list[tuple[Entry, Any]]]:
        """Entries in key order that have no vectors of a model, and the paths that each is to be found by."""
        where = f"{LIVE} {within} AND {UNEMBEDDED}"
        params |= {"now": self._clock(), "model": op.model, "limit": op.limit}
        if op.after is not None:
            where += " AND (ns, key) > (:after_ns, :after_key)"
            params |= {"after_ns": keys.encode(op.after[0]), "after_key": op.after[1]}
        sql = f"SELECT {self._columns}, fields FROM {self._table} WHERE {where} ORDER BY ns, key LIMIT :limit"
        [rows] = yield [(sql, params)]
        return [(to_entry(row[:-1]), row[-1]) for row in rows]

    # Ranking ---------------------------------------------------------------------------------------------------------

    def behind(self) -> Program[int]:
        return (yield from self._texts.behind())

    def few(self, op: ops.Search) -> Program[Collection[int] | None]:
        if not op.prefix and op.filter is None:
            return None
        params: dict[str, Any] = {"now": self._clock(), "limit": FEW + 1}
        where, indexed = yield from self._conditions(op, params)
        if not indexed:
            params = {"now": params["now"], "limit": FEW + 1}
            where, _ = yield from self._conditions(ops.Search(op.prefix, recursive=op.recursive), params)
        [rows] = yield [(f"SELECT version FROM {self._table} WHERE {where} LIMIT :limit", params)]
        return None if len(rows) > FEW else {version for (version,) in rows}

    def by_text(self, op: ops.Search, among: Collection[int] | None) -> Program[Ranking]:
        return (yield from self._texts.ranking(op.query.terms, among))

    def by_vector(self, op: ops.Search, among: Collection[int] | None) -> Program[Ranking]:
        assert op.vector is not None
        if among is not None:
            matrix = yield from self.of_these(op.vector.model, among)
        elif self._dialect.single_writer:
            matrix = yield from self._of_all(op.vector.model)
        else:
            matrix = yield from self._read_all(op)
        asked = op.vector.data, op.vector.metric
        if len(matrix) <= SMALL:
            return Ready(matrix.ranked(*asked))
        return Worked((yield Work(matrix.ranked, asked)))

    def fitting(self, op: ops.Search, versions: list[int]) -> Program[Collection[int]]:
        if not versions:
            return ()
        phrases = op.query is not None and bool(op.query.phrases)
        params: dict[str, Any] = {"now": self._clock()}
        where, _ = yield from self._conditions(op, params)
        among, numbers = self._dialect.among("version", versions)
        params |= numbers
        if op.filter is None and not phrases:
            [rows] = yield [(f"SELECT version FROM {self._table} WHERE {among} AND {where}", params)]
            return {version for (version,) in rows}
        columns = f"{self._columns}, fields, {self._dialect.head}" if phrases else f"{self._columns}, NULL, NULL"
        [rows] = yield [(f"SELECT {columns} FROM {self._table} WHERE {among} AND {where}", params)]
        return (yield from reckoned(_fitting, op, rows))

    def load(self, op: ops.Search, versions: list[int]) -> Program[dict[int, Hit]]:
        del op  # that they fit is known
        if not versions:
            return {}
        among, params = self._dialect.among("version", versions)
        [rows] = yield [(f"SELECT {self._columns} FROM {self._table} WHERE {among}", params)]
        return {hit.version: hit for hit in (to_entry(row, Hit) for row in rows)}

    # Vectors ---------------------------------------------------------------------------------------------------------

    def of_these(self, model: int, versions: Iterable[int]) -> Program[Matrix]:
        matrix = _new_matrix()
        among, params = self._dialect.among("version", list(versions))
        shown, taken = self._dialect.vector_out
        sql = f"SELECT version, {shown} FROM {self._vectors} WHERE {among} AND model = :model"
        [rows] = yield [(sql, {**params, "model": model})]
        yield from _added(matrix, rows, taken)
        return matrix

    def _read_all(self, op: ops.Search) -> Program[Matrix]:
        """The vectors of all that a search may be about, for one search."""
        assert op.vector is not None
        matrix, last = _new_matrix(), 0
        params: dict[str, Any] = {"now": self._clock(), "model": op.vector.model, "limit": _PAGE}
        where, _ = yield from self._conditions(op, params)
        sql = (
            f"SELECT vector.id, vector.version, vector.data FROM {self._vectors} AS vector"
            f" WHERE vector.id > :after_id AND vector.model = :model AND EXISTS (SELECT 1 FROM {self._table}"
            f" WHERE {self._table}.version = vector.version AND {where}) ORDER BY vector.id LIMIT :limit"
        )
        while True:
            [rows] = yield [(sql, {**params, "after_id": last})]
            yield from _added(matrix, [row[1:] for row in rows], bytes)
            if len(rows) < _PAGE:
                return matrix
            last = rows[-1][0]

    def _of_all(self, model: int) -> Program[Matrix]:
        """All vectors of a model, kept in memory: those that came since the last time are read."""
        cached = self._matrices.get(model)
        if cached is None:
            if len(self._matrices) >= _MATRICES:
                self._matrices.clear()
            cached = self._matrices[model] = _Cached()
        if cached.is_worn:
            [[(count,)]] = yield [(f"SELECT count(*) FROM {self._vectors} WHERE model = :model", {"model": model})]
            if cached.renew(count):
                cached = self._matrices[model] = _Cached()
        here = int((yield from self._texts.position()))
        cached.as_of = max(cached.as_of, here)
        sql = (
            f"SELECT id, version, data FROM {self._vectors} WHERE id > :after_id AND model = :model"
            f" ORDER BY id LIMIT {_PAGE}"
        )
        while True:
            [rows] = yield [(sql, {"after_id": cached.last, "model": model})]
            cached.add(rows)
            if len(rows) < _PAGE:
                break
        if cached.as_of > here:
            yield from self._add_older(cached, model)
        return cached.matrix

    def _add_older(self, cached: _Cached, model: int) -> Program[None]:
        """Somebody in a later snapshot has read the vectors, when some that are there in this one had gone already."""
        [rows] = yield [(f"SELECT version FROM {self._vectors} WHERE model = :model", {"model": model})]
        missing = [version for (version,) in rows if version not in cached.matrix]
        if missing:
            among, params = self._dialect.among("version", missing)
            sql = f"SELECT version, data FROM {self._vectors} WHERE {among} AND model = :model"
            [found] = yield [(sql, {**params, "model": model})]
            cached.add_older(found)


def reckoned(function: Callable[[Any, Rows], T], op: ops.Search | ops.Count, rows: Rows) -> Program[T]:
    """What a function makes of an engine's rows; where these are many or long, not in anybody's event loop."""
    if len(rows) <= _FEW_ROWS and sum([len(row[2]) + (row[9] or 0) for row in rows]) <= _SHORT:  # a value, and a file
        return function(op, rows)
    return (yield Work(function, (op, rows)))  # type: ignore[no-any-return]  # what it gives


def _fitting(op: ops.Search, rows: Rows) -> set[int]:
    phrases = op.query is not None and bool(op.query.phrases)
    fitting: set[int] = set()
    for *row, index, head in rows:
        if op.filter is not None and not op.filter.matches(to_entry(tuple(row)).value):
            continue
        _, _, value, version, *_, size = row
        if not phrases or has_phrases(op.query, texts(value, index, head, size is not None)):
            fitting.add(version)
    return fitting


def _added(matrix: Matrix, rows: Rows, taken: Callable[[Any], bytes]) -> Program[None]:
    """Add versions and their vectors, as they were read, to a matrix."""

    def add() -> None:
        matrix.add([version for version, _ in rows], [taken(data) for _, data in rows])

    if len(rows) > SMALL:
        yield Work(add, ())
    else:
        add()


def _new_matrix() -> Matrix:
    from ..vectors import Matrix  # not before it is needed, nor the package that it needs

    return Matrix()


class _Cached:
    """A model's vectors in memory, old ones among them."""

    def __init__(self) -> None:
        self.matrix = _new_matrix()
        self.last = 0
        self.as_of = 0  # the latest position in the feed at which somebody read
        self._added = self._next_look = 0
        self._lock = threading.Lock()

    @property
    def is_worn(self) -> bool:
        """Whether so many came that many may have gone."""
        return self._added > self._next_look > 0

    def renew(self, count: int) -> bool:
        """Whether to begin anew, there being so many in truth."""
        self._next_look = self._added + count + 1000
        return self._added > 2 * count + 1000

    def add(self, rows: list[tuple[int, int, bytes]]) -> None:
        with self._lock:
            new = [row for row in rows if row[0] > self.last]
            if new:
                self.matrix.add([row[1] for row in new], [bytes(row[2]) for row in new])
                self._added += len(new)
                self.last = new[-1][0]
            if len(rows) < _PAGE and not self._next_look:
                self._next_look = 2 * self._added + 1000

    def add_older(self, rows: list[tuple[int, bytes]]) -> None:
        with self._lock:
            new = [(version, bytes(data)) for version, data in rows if version not in self.matrix]
            self.matrix.add([version for version, _ in new], [data for _, data in new])
            self._added += len(new)
