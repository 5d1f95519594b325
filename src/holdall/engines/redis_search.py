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
from ..search import has_phrases, tokens
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
        found_by_index: Callable[[ops.Search], Program[dict[int, bytes] | None]],
        models: dict[int, _Vectors] | None = None,
        places: dict[int, bytes] | None = None,
    ) -> None:
        self._ask = ask
        self._texts = texts
        self._shards = shards
        self._home = home
        self._found_by_index = found_by_index
        self._models: dict[int, _Vectors] = {} if models is None else models
        self._places = {} if places is None else places

    def for_search(self, places: dict[int, bytes] | None = None) -> RedisRanker:
        """One for a single search, which knows where the entries are that it has met, by version. There it finds those
        that were changed meanwhile: one that others write all the time would never be at the version that it had."""
        return RedisRanker(
            self._ask, self._texts, self._shards, self._home, self._found_by_index, self._models, dict(places or {})
        )

    def behind(self) -> Program[int]:
        return (yield from self._texts.behind())

    def few(self, op: ops.Search) -> Program[Collection[int] | None]:
        if op.filter is not None and (known := (yield from self._found_by_index(op))) is not None:
            self._places.update(known)
            return known
        if not op.prefix:
            return None
        [shard] = self._shards(op.prefix)
        [(start, end)] = ranges(op.prefix, op.recursive)
        if (yield from self._ask.one(shard, "count", start, end))[1] > FEW:
            return None
        found: dict[int, bytes] = {}
        while start:
            _, entries, going_on = yield from self._ask.one(shard, "places", start, end, _PAGE, "h", 0)
            found.update((version_of(head), where) for where, head in entries)
            start = going_on.decode()
        self._places.update(found)
        return found

    def by_text(self, op: ops.Search, among: Collection[int] | None) -> Program[Ranking]:
        late: dict[int, bytes] = {}
        ranking = yield from self._texts.ranking(op.query.terms, among, late)
        self._places.update(late)
        return ranking

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
        found = yield from self._at(versions, want, op)
        if want == "c":
            return [version for version, one in found.items() if _fits(op, version, one)]
        moved = [version for version, (_, head) in found.items() if version_of(head) != version]
        if moved:  # what they are now is still to be seen
            now = yield from self._at(moved, "c", op)
            for version in moved:
                if version not in now or not _fits(op, version, now[version]):
                    del found[version]
        return found

    def load(self, op: ops.Search, versions: list[int]) -> Program[dict[int, Hit]]:
        hits: dict[int, Hit] = {}
        seen: set[bytes] = set()
        for version, one in (yield from self._at(versions, "c")).items():
            is_same = version_of(one[1]) == version  # then that it fits is known
            if one[0] not in seen and (is_same or _fits(op, version, one)):
                seen.add(one[0])
                hits[version] = to_entry(row(*parted(one[0]), one[1], one[2], one[4]), Hit)
        return hits

    def _at(self, versions: Iterable[int], want: str, op: ops.Search | None = None) -> Program[dict[int, list[Any]]]:
        """Live entries by these versions, of those that a search is about, if one is given; where it is known where
        they are, those that were changed since, too."""
        prefix = "" if op is None else keys.encode(op.prefix) + ("" if op.recursive else "\x00")
        hidden = keys.HIDDEN[0] if op is not None and not op.prefix else ""
        by_shard: dict[int, list[int]] = {}
        for version in versions:
            by_shard.setdefault(self._home(version), []).append(version)
        entries: dict[int, list[Any]] = {}
        for shard, here in by_shard.items():
            rest = here
            while rest:
                asked = [word for version in rest[:_PAGE] for word in (version, self._places.get(version, b""))]
                _, found, looked = yield from self._ask.one(shard, "versions", prefix, hidden, want, *asked)
                entries.update((rest[number - 1], one) for number, one in found)
                rest = rest[looked:]
        return entries

    # Vectors ---------------------------------------------------------------------------------------------------------

    def _of_these(self, model: int, versions: Iterable[int]) -> Program[Matrix]:
        matrix = _new_matrix()
        for version, (_, head, count, data) in (yield from self._at(versions, "w")).items():
            if model_of(head) == model:
                _add(matrix, [(version, int(count), data)])
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
                rows = [(int(version), int(number), data) for version, number, data, _ in found]
                self._places.update((int(version), where) for version, _, _, where in found)
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


def _fits(op: ops.Search, version: int, found: list[Any]) -> bool:
    """Whether an entry matches the filter of a search and has its phrases; and, if it is not at this version any more,
    whether the search is about it still."""
    where, head, value, paths, content = found
    given = row(*parted(where), head, value, content)
    if op.filter is not None and not op.filter.matches(to_entry(given).value):
        return False
    if op.query is None and op.vector is None:
        return True
    is_found = version_of(head) == version or (op.vector is not None and model_of(head) == op.vector.model)
    if op.query is None or (is_found and not op.query.phrases):
        return is_found
    index = None if paths is None else paths.decode()
    inside = texts(given[2], index, content and content[:MOST_BYTES], given[-1] is not None)
    terms = frozenset(op.query.terms)
    return has_phrases(op.query, inside) and (is_found or any(not terms.isdisjoint(tokens(text)) for text in inside))


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
