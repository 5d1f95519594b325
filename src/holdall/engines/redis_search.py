"""Ranked search in Redis: which versions are entries that a search is about, and what their vectors are.

A process keeps the vectors of a model in memory, and reads those that came since it last looked; each shard counts them
as they come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .. import keys, ops
from ..engine import to_entry
from ..ops import Hit
from ..programs import Program, Work
from ..ranking import FEW, Ranking, Ready, Worked
from ..search import has_phrases
from ..texts import MOST_BYTES, texts
from .redis_ops import model_of, parted, ranges, row, version_of
from .redis_texts import Asking, RedisTexts

if TYPE_CHECKING:
    from ..vectors import Matrix

_PAGE = 500
#: So many vectors are compared without a thread of their own.
_SMALL = 256
_MODELS = 4  # whose vectors are kept in memory


class RedisRanker:
    """What `holdall.ranking` asks of an engine, as programs that ask scripts.

    `shards` says where a namespace is, `home` where a version is.
    """

    def __init__(
        self,
        ask: Asking,
        texts: RedisTexts,
        shards: Callable[[ops.Namespace], Sequence[int]],
        home: Callable[[int], int],
        found_by_index: Callable[[ops.Search], Program[Collection[int] | None]],
    ) -> None:
        self._ask = ask
        self._texts = texts
        self._shards = shards
        self._home = home
        self._found_by_index = found_by_index
        self._models: dict[int, _Vectors] = {}

    def behind(self) -> Program[int]:
        return (yield from self._texts.behind())

    def few(self, op: ops.Search) -> Program[Collection[int] | None]:
        if op.filter is not None and (known := (yield from self._found_by_index(op))) is not None:
            return known
        if not op.prefix:
            return None
        [shard] = self._shards(op.prefix)
        [(start, end)] = ranges(op.prefix, op.recursive)
        if (yield from self._ask.one(shard, "count", start, end))[1] > FEW:
            return None
        found: set[int] = set()
        while start:
            _, entries, going_on = yield from self._ask.one(shard, "places", start, end, _PAGE, "h", 0)
            found.update(version_of(head) for _, head in entries)
            start = going_on.decode()
        return found

    def by_text(self, op: ops.Search, among: Collection[int] | None) -> Program[Ranking]:
        return (yield from self._texts.ranking(op.query.terms, among))

    def by_vector(self, op: ops.Search, among: Collection[int] | None) -> Program[Ranking]:
        assert op.vector is not None
        if among is not None:
            matrix = yield from self._of_these(op.vector.model, among)
        else:
            matrix = yield from self._of_all(op.vector.model)
        asked = op.vector.data, op.vector.metric
        if len(matrix) <= _SMALL:
            return Ready(matrix.ranked(*asked))
        return Worked((yield Work(matrix.ranked, asked)))

    def fitting(self, op: ops.Search, versions: list[int]) -> Program[Collection[int]]:
        phrases = op.query is not None and bool(op.query.phrases)
        want = "h" if op.filter is None and not phrases else "c"
        fitting: set[int] = set()
        for found in (yield from self._at(versions, want, op)):
            if want == "h":
                fitting.add(version_of(found[1]))
                continue
            where, head, value, paths, content = found
            given = row(*parted(where), head, value, content)
            if op.filter is not None and not op.filter.matches(to_entry(given).value):
                continue
            index = None if paths is None else paths.decode()
            head_ = content and content[:MOST_BYTES]
            if not phrases or has_phrases(op.query, texts(given[2], index, head_, given[-1] is not None)):
                fitting.add(given[3])
        return fitting

    def load(self, op: ops.Search, versions: list[int]) -> Program[list[Hit]]:
        del op  # that they fit is known
        found = yield from self._at(versions, "c")
        return [to_entry(row(*parted(one[0]), one[1], one[2], one[4]), Hit) for one in found]

    def _at(self, versions: Iterable[int], want: str, op: ops.Search | None = None) -> Program[list[list[Any]]]:
        """Live entries at these versions, of those that a search is about, if one is given."""
        prefix = "" if op is None else keys.encode(op.prefix) + ("" if op.recursive else "\x00")
        hidden = keys.HIDDEN[0] if op is not None and not op.prefix else ""
        by_shard: dict[int, list[int]] = {}
        for version in versions:
            by_shard.setdefault(self._home(version), []).append(version)
        entries: list[list[Any]] = []
        for shard, here in by_shard.items():
            rest = here
            while rest:
                _, found, looked = yield from self._ask.one(shard, "versions", prefix, hidden, want, *rest[:_PAGE])
                entries += found
                rest = rest[looked:]
        return entries

    # Vectors ---------------------------------------------------------------------------------------------------------

    def _of_these(self, model: int, versions: Iterable[int]) -> Program[Matrix]:
        matrix = _new_matrix()
        for _, head, count, data in (yield from self._at(versions, "w")):
            if model_of(head) == model:
                _add(matrix, [(version_of(head), int(count), data)])
        return matrix

    def _of_all(self, model: int) -> Program[Matrix]:
        """All vectors of a model, old ones among them: those that came since the last time are read."""
        known = self._models.get(model)
        if known is None:
            if len(self._models) >= _MODELS:
                self._models.clear()
            known = self._models[model] = _Vectors()
        counts: dict[int, int] = {}
        shards = list(self._shards(()))
        while shards:
            asked = [(shard, (model, known.last.get(shard, 0), _PAGE)) for shard in shards]
            replies = yield from self._ask.many("vectors", asked)
            shards = []
            if any(reply[0] == b"anew" for reply in replies):  # all was flushed, or some was lost
                self._models.pop(model, None)
                return (yield from self._of_all(model))
            for (shard, (_, since, _)), (_, found, after, more, count) in zip(asked, replies, strict=True):
                counts[shard] = count
                rows = [(int(version), int(number), data) for version, number, data in found]
                is_added = True
                if len(rows) > _SMALL:
                    is_added = yield Work(known.add, (shard, since, int(after), rows))
                elif rows:
                    is_added = known.add(shard, since, int(after), rows)
                if more or not is_added:
                    shards.append(shard)
        total = sum(counts.values())
        if known.is_worn(total):
            self._models.pop(model, None)
            return (yield from self._of_all(model))
        return known.matrix


class _Vectors:
    """A model's vectors in memory, old ones among them, and the number of the last in each shard."""

    def __init__(self) -> None:
        self.matrix = _new_matrix()
        self.last: dict[int, int] = {}
        self._entries = 0
        self._lock = threading.Lock()

    def add(self, shard: int, since: int, after: int, rows: list[tuple[int, int, bytes]]) -> bool:
        """Whether they were added: not if somebody else was faster, who may have read less; then it is asked again."""
        with self._lock:
            if self.last.get(shard, 0) != since:
                return False
            _add(self.matrix, rows)
            self._entries += len(rows)
            self.last[shard] = after
            return True

    def is_worn(self, count: int) -> bool:
        """Whether so many are old, there being so many in truth, that it is better to begin anew."""
        return self._entries > 2 * count + 1000


def _add(matrix: Matrix, rows: list[tuple[int, int, bytes]]) -> None:
    """Add the vectors of versions, in place of those that they had."""
    ids: list[int] = []
    vectors: list[bytes] = []
    for version, count, data in rows:
        size = len(data) // count if count else 0
        for number in range(count):
            ids.append(version)
            vectors.append(data[number * size : (number + 1) * size])
    matrix.change([version for version, _, _ in rows], ids, vectors)


def _new_matrix() -> Matrix:
    from ..vectors import Matrix  # not before it is needed, nor the package that it needs

    return Matrix()
