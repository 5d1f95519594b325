"""Ranked search in memory: the index of texts and the vectors, brought up to date from the feed before each search."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import ops
from ..ops import Hit
from ..programs import Program
from ..ranking import FEW, Ranking, Ready, in_order
from ..search import bm25, has_phrases
from ..texts import MOST_BYTES, Texts, texts

if TYPE_CHECKING:
    from ..vectors import Matrix

_Place: TypeAlias = tuple[str, str]
#: So many more documents may be gone than there are before all are indexed anew.
_SPARE = 1024


class MemoryRanker:
    """What `holdall.ranking` asks of an engine."""

    def __init__(
        self,
        newer: Callable[[int], Iterator[tuple[int, _Place, Any]]],
        under: Callable[[ops.Search], Iterator[tuple[_Place, Any]]],
        find: Callable[[ops.Search, int], tuple[_Place, Any] | None],
        hit: Callable[[_Place, Any], Hit],
        content: Callable[[Any], bytes | None],
    ) -> None:
        self._newer = newer  # what the feed has after a version
        self._under = under  # the entries that a search can be about
        self._find = find  # the one of these that has a version
        self._hit, self._content = hit, content
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self._texts = Texts()
        self._documents: dict[_Place, int] = {}
        self._gone: set[int] = set()
        self._total = 0
        self._seen = 0
        self._matrices: dict[int, tuple[Matrix, int]] = {}

    def forget_vectors(self, model: int) -> None:
        self._matrices.pop(model, None)

    def is_behind(self) -> Program[bool]:
        return False
        yield

    def few(self, op: ops.Search) -> Program[Collection[int] | None]:
        found: set[int] = set()
        for _, record in self._under(op):
            found.add(record.version)
            if len(found) > FEW:
                return None
        return found
        yield

    def by_text(self, op: ops.Search, among: Collection[int] | None) -> Program[Ranking]:
        self._catch_up()
        index = self._texts
        scores = bm25(
            [index.parts(term) for term in op.query.terms],
            index.lengths,
            len(self._documents),
            self._total,
            self._gone,
        )
        versions = index.versions
        if among is not None:
            scores = {number: score for number, score in scores.items() if versions[number] in among}
        return Ready(in_order(scores, versions))
        yield

    def by_vector(self, op: ops.Search, among: Collection[int] | None) -> Program[Ranking]:
        assert op.vector is not None
        model = op.vector.model
        from ..vectors import Matrix  # not before it is needed, nor what it needs

        matrix, seen = self._matrices.get(model) or (Matrix(), 0)
        for version, _, record in self._newer(seen):
            seen = version
            if record.vectors is not None and record.vectors.model == model:
                data = record.vectors.data
                matrix.add([version] * len(data), data)
        self._matrices[model] = matrix, seen
        return Ready(matrix.ranked(op.vector.data, op.vector.metric, allowed=among))
        yield

    def fitting(self, op: ops.Search, versions: list[int]) -> Program[Collection[int]]:
        fitting: set[int] = set()
        for version in versions:
            found = self._find(op, version)
            if found is None or (op.filter is not None and not op.filter.matches(self._hit(*found).value)):
                continue
            if op.query is None or not op.query.phrases or has_phrases(op.query, self._texts_of(found[1])):
                fitting.add(version)
        return fitting
        yield

    def load(self, op: ops.Search, versions: list[int]) -> Program[list[Hit]]:
        return [self._hit(*found) for version in versions if (found := self._find(op, version))]
        yield

    def catch_up_if_begun(self) -> None:
        """Read the feed on, if anybody has searched by text."""
        if self._seen:
            self._catch_up()

    def _catch_up(self) -> None:
        if len(self._gone) > len(self._documents) + _SPARE:
            matrices = self._matrices
            self.forget()
            self._matrices = matrices
        for version, place, record in self._newer(self._seen):
            self._seen = version
            old = self._documents.pop(place, None)
            if old is not None:
                self._gone.add(old)
                self._total -= self._texts.lengths[old]
            number = self._texts.add(version, self._texts_of(record))
            if number is not None:
                self._documents[place] = number
                self._total += self._texts.lengths[number]

    def _texts_of(self, record: Any) -> list[str]:
        if record.value is None:
            return []
        content = self._content(record)
        return texts(record.value, record.index, content and content[:MOST_BYTES], content is not None)
