"""Ranked search in memory: the index of texts and the vectors, brought up to date from the feed before each search."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

from .. import ops
from ..ops import Hit
from ..programs import Program
from ..ranking import FEW, Ranking, Ready, in_order
from ..search import bm25, has_phrases
from ..texts import MOST_BYTES, Texts, texts

_Place: TypeAlias = tuple[str, str]
#: So many more documents may be gone than there are before all are indexed anew.
_SPARE = 1024
_MODELS = 4  # whose vectors are kept ready


class _Vectors:
    """A model's, up to a version of the feed, and at which version each entry's were."""

    def __init__(self) -> None:
        from ..vectors import Matrix  # not before it is needed, nor what it needs

        self.matrix = Matrix()
        self.versions: dict[_Place, int] = {}
        self.seen = 0


class MemoryRanker:
    """What `holdall.ranking` asks of an engine."""

    def __init__(
        self,
        newer: Callable[[int], Iterator[tuple[int, _Place, Any]]],
        under: Callable[[ops.Search], Iterator[tuple[_Place, Any]]],
        find: Callable[[int], tuple[_Place, Any] | None],
        fits: Callable[[ops.Search, _Place, Any], bool],
        hit: Callable[[_Place, Any], Hit],
        content: Callable[[Any], bytes | None],
    ) -> None:
        self._newer = newer  # what the feed has after a version
        self._under = under  # the entries that a search can be about
        self._find, self._fits = find, fits  # the one of a version, and whether it is one of these
        self._hit, self._content = hit, content
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self._texts = Texts()
        self._documents: dict[_Place, int] = {}
        self._gone: set[int] = set()
        self._total = 0
        self._seen = 0
        self.forget_vectors()

    def forget_vectors(self) -> None:
        """Begin anew with these: an entry has others, at the same version."""
        self._vectors: dict[int, _Vectors] = {}

    def behind(self) -> Program[int]:
        return 0
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
        if op.vector.model not in self._vectors:
            if len(self._vectors) >= _MODELS:
                self._vectors.clear()
            self._vectors[op.vector.model] = _Vectors()
        known = self._vectors[op.vector.model]
        self._catch_up_vectors(op.vector.model, known)
        return Ready(known.matrix.ranked(op.vector.data, op.vector.metric, allowed=among))
        yield

    def fitting(self, op: ops.Search, versions: list[int]) -> Program[Collection[int]]:
        fitting: set[int] = set()
        for version in versions:
            found = self._find(version)
            if (
                found is None
                or not self._fits(op, *found)
                or (op.filter is not None and not op.filter.matches(self._hit(*found).value))
            ):
                continue
            if op.query is None or not op.query.phrases or has_phrases(op.query, self._texts_of(found[1])):
                fitting.add(version)
        return fitting
        yield

    def load(self, op: ops.Search, versions: list[int]) -> Program[dict[int, Hit]]:
        del op  # that they fit is known
        return {version: self._hit(*found) for version in versions if (found := self._find(version))}
        yield

    def catch_up_if_begun(self) -> None:
        """Read the feed on, if anybody has searched."""
        if self._seen:
            self._catch_up()
        for model, known in self._vectors.items():
            self._catch_up_vectors(model, known)

    def _catch_up(self) -> None:
        if len(self._gone) > len(self._documents) + _SPARE:
            vectors = self._vectors
            self.forget()
            self._vectors = vectors
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

    def _catch_up_vectors(self, model: int, known: _Vectors) -> None:
        gone: list[int] = []
        ids: list[int] = []
        added: list[bytes] = []
        for version, place, record in self._newer(known.seen):
            known.seen = version
            if (old := known.versions.pop(place, None)) is not None:
                gone.append(old)
            if record.vectors is not None and record.vectors.model == model:
                known.versions[place] = version
                ids += [version] * len(record.vectors.data)
                added += record.vectors.data
        known.matrix.change(gone, ids, added)

    def _texts_of(self, record: Any) -> list[str]:
        if record.value is None:
            return []
        content = self._content(record)
        return texts(record.value, record.index, content and content[:MOST_BYTES], content is not None)
