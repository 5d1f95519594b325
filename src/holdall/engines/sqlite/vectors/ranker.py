"""The `Ranker` of SQLite: vectors that are few are compared one by one, many through an index.

What the index does not cover yet, the *tail*, is in memory, and compared exactly. When the tail gets long, a thread in
the background builds a new index (`index_files.py`). An index has bounds of scores. The vectors that may be among the
results are read from the database, and scored exactly. So scores and order are those of every engine.
"""

from __future__ import annotations

import math
import mmap
import random
import threading
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from .... import ops
from ....ops import Vector
from ....search.embedders import Metric
from ....search.ranking import MOST_EXACT, LocalRanking, Ranking
from ...sql.ranker import SqlRanker
from ...sql.statements import SqlProgram, SqlRequest
from .index_files import IndexFiles

if TYPE_CHECKING:
    from ....search.vector_index.index import Candidates, VectorIndex
    from ....search.vectors import Matrix

T = TypeVar("T")

_PAGE = 1024
#: Vectors of at most so many entries are read from the database, without an index.
_READ = 512
#: A new index is built when the tail has this part of what the index has, and more than `MOST_EXACT`.
_TAIL = 1 / 16
#: The tail has at most so many vectors. If there are more, a search builds an index in memory.
_LONGEST_TAIL = 1 << 17
#: Centroids are computed again when an index has so many times the vectors that it had then.
_GROWTH = 2
#: In a namespace, an approximate search is used if so many of its best candidates are in that namespace.
_SAMPLE, _FITTING = 256, 26
#: An approximate search scores at most so many at a time. Only where very many are alike would there be more: 40,000
#: equal vectors took 200 ms.
_MOST_SCORED = 2048
#: How many vectors that lie together are read for the sample that centroids are computed from.
_RUN = 64
_MODELS = 4  # whose tails are kept in memory
_COUNT_INTERVAL = 10.0  # seconds between two counts of all vectors


class PublishIndex(ops.Op, frozen=True):
    """Store the name of a vector index. Only the engine sends it, to itself. Returns the names of all indexes."""

    model: int
    metric: Metric
    name: str


class _Known:
    """The vectors of a model, as far as a process knows them: an index, and the *tail* that came after it."""

    def __init__(self, index: VectorIndex | None, as_of: int) -> None:
        self.index = index
        self.index_as_of = as_of  # the index may lack vectors that were removed before this position in the feed
        self.first = self.last = 0 if index is None else index.header.last  # ids: the tail is between these
        self.tail = _new_matrix()
        self.has_outdated = False  # many results of a search were outdated
        self._steps: deque[tuple[int, int]] = deque(maxlen=64)  # positions of the last reads, and `last` before each
        self._added = self._next_look = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.tail) + (0 if self.index is None else len(self.index))

    @property
    def has_many_additions(self) -> bool:
        """Whether so many vectors were added that many may be outdated."""
        return self._added > self._next_look > 0

    def is_mostly_outdated(self, count: int) -> bool:
        """Whether to read the tail again, if the table has only `count` vectors of it."""
        self._next_look = self._added + count + 1000
        return self._added > 2 * count + 1000

    def add(self, rows: list[tuple[int, int, bytes]], position: int) -> None:
        """Add vectors that were read at a position in the feed."""
        with self._lock:
            new = [row for row in rows if row[0] > self.last]
            if new:
                self._steps.append((position, self.last))
                self.tail.add([row[1] for row in new], [row[2] for row in new])
                self._added += len(new)
                self.last = new[-1][0]
            if len(rows) < _PAGE and not self._next_look:
                self._next_look = 2 * self._added + 1000

    def add_older(self, rows: list[tuple[int, bytes]]) -> None:
        with self._lock:
            new = [(version, data) for version, data in rows if version not in self.tail]
            self.tail.add([version for version, _ in new], [data for _, data in new])
            self._added += len(new)

    def find_unsure(self, position: int) -> int | None:
        """Return the id after which vectors may be missing that a snapshot at a position has; None if none can be.

        Another thread, with a later snapshot, did not see vectors that were removed before it.
        """
        if position < self.index_as_of:
            return 0
        with self._lock:
            later = [last for read_at, last in self._steps if read_at > position]
            return self.first if len(later) == self._steps.maxlen else min(later, default=None)


class SqliteRanker(SqlRanker):
    """Ranks entries. The engine sets `files`, and `start_build`, which has an index built in the background."""

    files: IndexFiles
    start_build: Callable[[Vector], None]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.forget()

    def forget(self) -> None:
        """Forget the vectors in memory. A forked child does: threads of its parent may hold their locks."""
        self._known: dict[tuple[int, Metric], _Known] = {}
        self._building = threading.Lock()
        self._next_count = 0.0

    # Ranking ---------------------------------------------------------------------------------------------------------

    def rank_by_vector(self, op: ops.Search, among: Collection[int] | None) -> SqlProgram[Ranking[SqlRequest]]:
        assert op.vector is not None
        if among is None and (op.prefix or op.filter is not None):
            among = yield from self._find_versions(op, None if op.exact else MOST_EXACT)
        if among is not None:
            return (yield from self._rank_some(op.vector, among))
        vector = op.vector
        known = yield from self._catch_up(vector)
        index = known.index
        if index is None or op.exact or (yield from self._are_few(known)):
            return (yield from self.rank_all(vector))
        if index.compares_all:
            return (yield from self.rank_all(vector, _MOST_SCORED))
        candidates = self._compare(index, lambda: index.compare_nearest(vector.data, vector.metric))
        if candidates is None:
            return (yield from self.rank_by_vector(op, None))
        tail = known.tail.ranked(vector.data, vector.metric)
        ranking = NearestRanking(self, vector, candidates, tail, _MOST_SCORED, is_complete=False)
        if not op.prefix and op.filter is None:
            return ranking
        best = yield from ranking.take(_SAMPLE)
        fitting = yield from self.find_fitting(op, [version for version, _ in best])
        if len(fitting) < _FITTING:  # what matches is elsewhere: compare all of it
            return (yield from self._rank_some(vector, (yield from self._find_versions(op)) or ()))
        ranking.put_back([pair for pair in best if pair[0] in fitting])
        return ranking

    def _find_versions(self, op: ops.Search, most: int | None = None) -> SqlProgram[Collection[int] | None]:
        """Return the versions that a search may return. With `most`: None if they are more, or cannot be counted soon.

        A filter that no index serves is then not counted, so that what is counted may be too much.
        """
        params: dict[str, Any] = {"now": self._clock()}
        where, is_indexed = yield from self._feed.search_condition(op, params)
        if most is not None:
            if not is_indexed:
                if not op.prefix:
                    return None
                params = {"now": params["now"]}
                where, _ = yield from self._feed.search_condition(ops.Search(op.prefix, recursive=op.recursive), params)
            counted = f"SELECT count(*) FROM (SELECT 1 FROM {self._table} WHERE {where} LIMIT :limit)"
            [[(count,)]] = yield [(counted, {**params, "limit": most + 1})]
            if count > most:
                return None
        [rows] = yield [(f"SELECT version FROM {self._table} WHERE {where}", params)]
        return [version for (version,) in rows]

    def _are_few(self, known: _Known) -> SqlProgram[bool]:
        """Return whether the table has few vectors, though the index has many."""
        if len(known) <= MOST_EXACT:
            return True
        counted = f"SELECT count(*) FROM (SELECT 1 FROM {self._vectors} LIMIT :limit)"
        [[(count,)]] = yield [(counted, {"limit": MOST_EXACT + 1})]
        return bool(count <= MOST_EXACT)

    def _rank_some(self, vector: Vector, versions: Collection[int]) -> SqlProgram[Ranking[SqlRequest]]:
        """Rank the vectors of some entries exactly."""
        index = (yield from self._named_index(vector)) if len(versions) > _READ else None
        if index is not None:
            compared = self._compare(index, lambda: index.compare_some(vector.data, vector.metric, versions))
            if compared is not None:
                candidates, others = compared
                rest = (yield from self.read_vectors(vector.model, others)).ranked(vector.data, vector.metric)
                return NearestRanking(self, vector, candidates, rest)
        matrix = yield from self.read_vectors(vector.model, versions)
        return LocalRanking(matrix.ranked(vector.data, vector.metric))

    def rank_all(self, vector: Vector, most: int | None = None) -> SqlProgram[Ranking[SqlRequest]]:
        """Rank all vectors of a model; exactly, unless at most so many are to be scored at a time."""
        while True:
            known = yield from self._catch_up(vector)
            index, tail = known.index, known.tail.ranked(vector.data, vector.metric)
            if index is None:
                return LocalRanking(tail)
            candidates = self._compare(index, lambda: index.compare_all(vector.data, vector.metric))  # noqa: B023
            if candidates is not None:
                return NearestRanking(self, vector, candidates, tail, most)

    def _compare(self, index: VectorIndex, compare: Callable[[], T]) -> T | None:
        """Compare a query with an index; None if the index turns out to be damaged, and is not used again."""
        from ....search.vector_index.layout import Damaged

        try:
            return compare()
        except Damaged as error:
            self.files.drop(index.header.build, error)
            self._known = {asked: known for asked, known in self._known.items() if known.index is not index}
            return None

    def score(self, vector: Vector, versions: list[int]) -> SqlProgram[list[tuple[int, float]]]:
        """Return versions with their exact scores, best first, without those that have no vectors any more."""
        from ....search.vectors import rank

        among, params = self._dialect.among("version", versions)
        sql = f"SELECT version, data FROM {self._vectors} WHERE {among} AND model = :model"
        [rows] = yield [(sql, {**params, "model": vector.model})]
        if len(rows) < len(versions) / 2 and (known := self._known.get((vector.model, vector.metric))):
            known.has_outdated = True
        return rank(vector.data, [version for version, _ in rows], [data for _, data in rows], vector.metric)

    # The index and the tail ------------------------------------------------------------------------------------------

    def _named_index(self, vector: Vector) -> SqlProgram[VectorIndex | None]:
        """Return the index that the database names, if its file is whole."""
        sql = f"SELECT value FROM {self._dialect.state} WHERE name = :name"
        [rows] = yield [(sql, {"name": f"vectors:{vector.model}:{vector.metric}"})]
        return self.files.get(rows[0][0]) if rows else None

    def _catch_up(self, vector: Vector) -> SqlProgram[_Known]:
        """Return all vectors of a model; only those added since the last call are read."""
        asked = vector.model, vector.metric
        named = yield from self._named_index(vector)
        here = int((yield from self._feed.position()))
        known = self._known.get(asked)
        if known is None or (named is not None and named is not known.index and named.header.last >= known.first):
            known = self._keep(asked, _Known(named, here))
        [[(newest,)]] = yield [(f"SELECT coalesce(max(id), 0) FROM {self._vectors}", {})]
        if newest - known.last > _LONGEST_TAIL:
            known = yield from self._build_in_memory(vector, here)
        elif known.has_many_additions:
            counted = f"SELECT count(*) FROM {self._vectors} WHERE id > :after_id"
            [[(count,)]] = yield [(counted, {"after_id": known.first})]
            if known.is_mostly_outdated(count):
                known = self._keep(asked, _Known(known.index, known.index_as_of))
        sql = (
            f"SELECT id, version, data FROM {self._vectors} WHERE id > :after_id AND model = :model"
            f" ORDER BY id LIMIT {_PAGE}"
        )
        while True:
            [rows] = yield [(sql, {"after_id": known.last, "model": vector.model})]
            known.add(rows, here)
            if len(rows) < _PAGE:
                break
        unsure = known.find_unsure(here)
        if unsure is not None:
            yield from self._add_older(known, vector.model, unsure)
        if (yield from self._needs_build(known)):
            self.start_build(vector)
        return known

    def _keep(self, asked: tuple[int, Metric], known: _Known) -> _Known:
        if asked not in self._known and len(self._known) >= _MODELS:
            self._known = {}
        self._known[asked] = known
        return known

    def _add_older(self, known: _Known, model: int, after: int) -> SqlProgram[None]:
        """Add vectors that a thread with a later snapshot did not see, because they were removed before it."""
        sql = f"SELECT version FROM {self._vectors} WHERE id > :after_id AND model = :model"
        [rows] = yield [(sql, {"after_id": after, "model": model})]
        missing = [version for (version,) in rows if version not in known.tail]
        if known.index is not None and after < known.first:
            missing = known.index.find_missing(missing)
        if missing:
            among, params = self._dialect.among("version", missing)
            sql = f"SELECT version, data FROM {self._vectors} WHERE {among} AND model = :model"
            [found] = yield [(sql, {**params, "model": model})]
            known.add_older(found)

    def _needs_build(self, known: _Known) -> SqlProgram[bool]:
        """Return whether the tail is long, or most vectors of the index are outdated."""
        indexed = 0 if known.index is None else len(known.index)
        if len(known.tail) > max(MOST_EXACT, indexed * _TAIL):
            return True
        if known.index is not None and not known.index.header.build:  # it is in memory only
            return True
        if not known.has_outdated or time.monotonic() < self._next_count:
            return False
        known.has_outdated, self._next_count = False, time.monotonic() + _COUNT_INTERVAL
        [[(count,)]] = yield [(f"SELECT count(*) FROM {self._vectors}", {})]
        return bool(2 * count < len(known))

    # Building --------------------------------------------------------------------------------------------------------

    def _build_in_memory(self, vector: Vector, here: int) -> SqlProgram[_Known]:
        """Build an index without centroids in memory, until one in a file is ready: the tail would be too large."""
        with self._building:
            known = self._known.get((vector.model, vector.metric))
            [[(newest,)]] = yield [(f"SELECT coalesce(max(id), 0) FROM {self._vectors}", {})]
            if known is not None and newest - known.last <= _LONGEST_TAIL:
                return known  # another thread has built it
            old = None if known is None else known.index
            index = yield from self.build(vector, "", lambda size: mmap.mmap(-1, size), old, has_cells=False)
            return self._keep((vector.model, vector.metric), _Known(index, here))

    def build_file(self, vector: Vector, name: str, allocate: Callable[[int], Any]) -> SqlProgram[VectorIndex]:
        """Build an index for the name, from the one that the database names, or from nothing."""
        old = yield from self._named_index(vector)
        return (yield from self.build(vector, name, allocate, old))

    def build(
        self,
        vector: Vector,
        name: str,
        allocate: Callable[[int], Any],
        old: VectorIndex | None,
        *,
        has_cells: bool = True,
    ) -> SqlProgram[VectorIndex]:
        """Build an index of the vectors of a model. The statements need not run in one transaction.

        Vectors that are added meanwhile have higher ids, and are not in the index; removed ones may be.
        """
        from ....search.vector_index.building import IndexBuilder, sample_size
        from ....search.vector_index.layout import Header

        table, model = self._vectors, vector.model
        # The highest id that was ever used: the newest vectors may be gone, and a later index must not cover less.
        highest = "coalesce((SELECT seq FROM sqlite_sequence WHERE name = :table), 0)"
        [[(last, count)]] = yield [(f"SELECT {highest}, count(*) FROM {table}", {"table": table})]
        sampled = sample_size(count) if has_cells else 0
        if sampled and (old is None or count > _GROWTH * old.header.trained):
            old = None
        else:
            sampled = 0
        header = Header(name, model, vector.metric, len(vector.data) // 4, 0, 0, 0, last)
        builder = IndexBuilder(header, old)
        if old is not None:
            builder.keep((yield from self._read_versions()))
        if sampled:
            for _ in builder.train((yield from self._sample(model, len(vector.data), sampled, last)), count):
                yield ()
        first = 0 if old is None else old.header.last
        yield from self._pages(vector, first, last, builder.place)
        buffer = allocate(builder.allocate())
        for _ in builder.lay_out(buffer):
            yield ()
        yield from self._pages(vector, first, last, builder.fill)
        for _ in builder.finish():
            yield ()
        return builder.index()

    def _pages(
        self, vector: Vector, after: int, last: int, take: Callable[[list[int], list[int], list[bytes]], None]
    ) -> SqlProgram[None]:
        """Read the vectors of a model between two ids, and pass each page on: ids, versions and vectors."""
        sql = (
            f"SELECT id, version, data FROM {self._vectors} WHERE id > :after_id AND id <= :last AND model = :model"
            f" AND length(data) = :size ORDER BY id LIMIT {_PAGE}"
        )
        params = {"last": last, "model": vector.model, "size": len(vector.data)}
        while True:
            [rows] = yield [(sql, {**params, "after_id": after})]
            if rows:
                take([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])
                after = rows[-1][0]
            if len(rows) < _PAGE:
                return

    def _sample(self, model: int, size: int, count: int, last: int) -> SqlProgram[list[bytes]]:
        """Read some vectors, in runs from random ids on."""
        sql = (
            f"SELECT data FROM {self._vectors} WHERE id > :after_id AND id <= :last AND model = :model"
            f" AND length(data) = :size ORDER BY id LIMIT {_RUN}"
        )
        chance = random.Random(last)
        found: list[bytes] = []
        for _ in range(2 * count // _RUN):  # ids have gaps, so a run may be short
            after = chance.randrange(last)
            params = {"after_id": after, "last": min(last, after + 64 * _RUN), "model": model, "size": size}
            [rows] = yield [(sql, params)]
            found += [data for (data,) in rows]
            if len(found) >= count:
                break
        return found

    def _read_versions(self) -> SqlProgram[array[int]]:
        """Return the versions that have vectors."""
        versions, last = array("q"), 0
        sql = f"SELECT version FROM {self._vectors} WHERE version > :after ORDER BY version LIMIT 8192"
        while True:
            [rows] = yield [(sql, {"after": last})]
            versions.extend(version for (version,) in rows)
            if len(rows) < 8192:
                return versions
            last = rows[-1][0]

    def publish(self, op: PublishIndex) -> SqlProgram[list[str]]:
        """Name an index in the database, and forget the indexes of earlier models."""
        state = self._dialect.state
        older = f"DELETE FROM {state} WHERE name GLOB 'vectors:*' AND CAST(substr(name, 9) AS INTEGER) < :model"
        name = f"INSERT OR REPLACE INTO {state} VALUES (:name, :value)"
        named = f"SELECT value FROM {state} WHERE name GLOB 'vectors:*'"
        values = {"name": f"vectors:{op.model}:{op.metric}", "value": op.name}
        _, _, rows = yield [(older, {"model": op.model}), (name, values), (named, {})]
        return [value for (value,) in rows]


class NearestRanking:
    """A `Ranking` of the vectors of an index and of others, in order. It reads vectors as far as it is read.

    If it is not complete, the index has more vectors than its candidates. Where the candidates end, all are compared.
    """

    is_checked = False

    def __init__(
        self,
        ranker: SqliteRanker,
        vector: Vector,
        candidates: Candidates,
        others: Iterator[tuple[int, float]],
        most: int | None = None,  # candidates that are scored at a time
        *,
        is_complete: bool = True,
    ) -> None:
        self._ranker, self._vector, self._most = ranker, vector, most
        self._candidates, self._others = candidates, others
        self._other: tuple[int, float] | None = next(others, None)
        self._is_complete = is_complete
        self._waiting: list[tuple[int, float]] = []  # scored, but others may be better
        self._ready: list[tuple[int, float]] = []
        self._is_read = False  # all candidates
        self._first: list[tuple[int, float]] = []
        self._given: set[int] = set()
        self._rest: Ranking[SqlRequest] | None = None

    def put_back(self, pairs: list[tuple[int, float]]) -> None:
        """Return these results first."""
        self._first = pairs

    def take(self, size: int) -> SqlProgram[list[tuple[int, float]]]:
        taken, self._first = self._first[:size], self._first[size:]
        while len(taken) < size and self._rest is None:
            if not self._ready and not self._is_read:
                if not self._is_complete and not self._candidates.has_many_after(size):
                    self._rest = yield from self._ranker.rank_all(self._vector, self._most)
                    break
                yield from self._read(size - len(taken))
                continue
            if self._other is None:  # the usual case: nothing to merge
                pairs = self._ready[: size - len(taken)]
                del self._ready[: len(pairs)]
            else:
                pairs = [self._take_best(self._other)]
            if not pairs:
                return taken
            taken += [pair for pair in pairs if pair[0] not in self._given]
            self._given.update(version for version, _ in pairs)
        while len(taken) < size and self._rest is not None:
            pairs = yield from self._rest.take(size)
            taken += [pair for pair in pairs if pair[0] not in self._given]
            if len(pairs) < size:
                break
        self._first = taken[size:] + self._first
        return taken[:size]

    def _take_best(self, other: tuple[int, float]) -> tuple[int, float]:
        """Take the better of the next two results."""
        if self._ready and self._ready[0][::-1] >= other[::-1]:
            return self._ready.pop(0)
        self._other = next(self._others, None)
        return other

    def _read(self, size: int) -> SqlProgram[None]:
        """Compute the scores of the next candidates."""
        versions, lowest = self._candidates.advance(size, self._most)
        self._waiting += yield from self._ranker.score(self._vector, versions)
        self._waiting.sort(key=lambda pair: pair[::-1], reverse=True)
        end = bisect_right(self._waiting, -lowest, key=lambda pair: -pair[1])
        self._ready.extend(self._waiting[:end])
        self._waiting = self._waiting[end:]
        self._is_read = lowest == -math.inf


def _new_matrix() -> Matrix:
    from ....search.vectors import Matrix  # imported late: it needs numpy

    return Matrix()
