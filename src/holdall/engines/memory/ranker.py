"""Ranked search in memory: an index of texts and vectors, which each search first updates from the feed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

from ... import ops
from ...model import filters
from ...ops import Hit
from ...runtime.programs import Program, Work
from ...search.ranking import FEW, LocalRanking, Ranking, sort_by_score
from ...search.scoring import Weights, bm25
from ...search.text_index import MOST_BYTES, TextIndex, texts
from ...search.tokens import has_phrases, parse_query

_Address: TypeAlias = tuple[str, str]
#: The index is built again when it has so many more removed documents than current ones.
_SPARE = 1024
_MODELS = 4  # whose vectors are kept


class _Vectors:
    """The vectors of a model, up to a version of the feed, and the version of each entry that has some."""

    def __init__(self) -> None:
        from ...search.vectors import Matrix  # imported late: it needs numpy

        self.matrix = Matrix()
        self.versions: dict[_Address, int] = {}
        self.seen = 0


class MemoryRanker:
    """What `holdall.search.ranking` needs of an engine."""

    def __init__(
        self,
        newer: Callable[[int], Iterator[tuple[int, _Address, Any]]],
        under: Callable[[ops.Search], Iterator[tuple[_Address, Any]]],
        find: Callable[[int], tuple[_Address, Any] | None],
        fits: Callable[[ops.Search, _Address, Any], bool],
        hit: Callable[[_Address, Any], Hit],
        content: Callable[[Any], bytes | None],
        around: Callable[[_Address, Any], tuple[Iterator[int], Iterator[int]]],
    ) -> None:
        self._newer = newer  # the changes after a version
        self._under = under  # the live entries in the namespace of a search
        self._find, self._fits = find, fits  # the entry of a version, and whether it is one of these
        self._hit, self._content = hit, content
        self._around = around  # the versions of the entries before and after one, in the order of creation
        self.clear()

    def clear(self) -> None:
        """Remove everything; the next search reads the whole feed."""
        self._texts = TextIndex()
        self._documents: dict[_Address, int] = {}
        self._removed: set[int] = set()
        self._removed_in_order: list[int] = []
        self._removed_with: dict[str, tuple[int, int]] = {}  # of how many removed documents, how many have a term
        self._total = 0
        self._seen = 0
        self.clear_vectors()

    def clear_vectors(self) -> None:
        """Remove all vectors, because an entry got others without a new version."""
        self._vectors: dict[int, _Vectors] = {}

    def index_lag(self) -> Program[Work, int]:
        return 0
        yield

    def count_unindexed(self) -> int | None:
        """Return how many changes the text index lacks; None before the first search by text."""
        return sum(1 for _ in self._newer(self._seen)) if self._seen else None

    def find_few(self, op: ops.Search) -> Program[Work, Collection[int] | None]:
        found: set[int] = set()
        for _, record in self._under(op):
            found.add(record.version)
            if len(found) > FEW:
                return None
        return found
        yield

    def rank_by_text(self, op: ops.Search, among: Collection[int] | None) -> Program[Work, Ranking[Work]]:
        assert op.query is not None
        self._catch_up()
        index, terms = self._texts, parse_query(op.query).terms
        if among is not None:
            return LocalRanking(sort_by_score(self._score_few(terms, among), index.versions))
        parts = [index.parts(term) for term in terms]
        scores = bm25(parts, index.lengths, len(self._documents), self._total, self._removed)
        return LocalRanking(sort_by_score(scores, index.versions))
        yield

    def _score_few(self, terms: tuple[str, ...], among: Collection[int]) -> dict[int, float]:
        """Score the documents of these versions only: each is looked up in the posting lists of the terms."""
        index = self._texts
        weights = Weights([self._count(term) for term in terms], len(self._documents), self._total)
        scores: dict[int, float] = {}
        for version in among:
            number = bisect_left(index.versions, version)
            if number < len(index.versions) and index.versions[number] == version:
                counts = [index.count(term, number) for term in terms]
                if any(counts):
                    scores[number] = weights.score(counts, index.lengths[number])
        return scores

    def _count(self, term: str) -> int:
        """Return how many documents have a term: those in its list, without the removed ones.

        Removed documents are looked up in the list once, and counted from then on.
        """
        counted, removed = self._removed_with.get(term, (0, 0))
        removed += sum(self._texts.count(term, number) > 0 for number in islice(self._removed_in_order, counted, None))
        self._removed_with[term] = len(self._removed), removed
        return self._texts.list_length(term) - removed

    def rank_by_vector(self, op: ops.Search, among: Collection[int] | None) -> Program[Work, Ranking[Work]]:
        assert op.vector is not None
        if op.vector.model not in self._vectors:
            if len(self._vectors) >= _MODELS:
                self._vectors.clear()
            self._vectors[op.vector.model] = _Vectors()
        known = self._vectors[op.vector.model]
        self._catch_up_vectors(op.vector.model, known)
        return LocalRanking(known.matrix.ranked(op.vector.data, op.vector.metric, allowed=among))
        yield

    def find_fitting(self, op: ops.Search, versions: list[int]) -> Program[Work, Collection[int]]:
        query = parse_query(op.query or "")
        fitting: set[int] = set()
        for version in versions:
            found = self._find(version)
            if (
                found is None
                or not self._fits(op, *found)
                or (op.filter is not None and not filters.matches(op.filter, self._hit(*found).value))
            ):
                continue
            if not query.phrases or has_phrases(query, self._texts_of(found[1])):
                fitting.add(version)
        return fitting
        yield

    def find_adjacent(
        self, versions: list[int], count: int
    ) -> Program[Work, dict[int, tuple[Sequence[int], Sequence[int]]]]:
        found = {version: self._around(*entry) for version in versions if (entry := self._find(version))}
        return {v: (list(islice(before, count)), list(islice(after, count))) for v, (before, after) in found.items()}
        yield

    def load(self, op: ops.Search, versions: list[int]) -> Program[Work, dict[int, Hit]]:
        del op  # all these versions are results of the search
        return {version: self._hit(*found) for version in versions if (found := self._find(version))}
        yield

    def catch_up_if_begun(self) -> None:
        """Read the rest of the feed, if there was a search before."""
        if self._seen:
            self._catch_up()
        for model, known in self._vectors.items():
            self._catch_up_vectors(model, known)

    def _catch_up(self) -> None:
        if len(self._removed) > len(self._documents) + _SPARE:
            vectors = self._vectors
            self.clear()
            self._vectors = vectors
        for version, address, record in self._newer(self._seen):
            self._seen = version
            old = self._documents.pop(address, None)
            if old is not None:
                self._removed.add(old)
                self._removed_in_order.append(old)
                self._total -= self._texts.lengths[old]
            number = self._texts.add(version, self._texts_of(record))
            if number is not None:
                self._documents[address] = number
                self._total += self._texts.lengths[number]

    def _catch_up_vectors(self, model: int, known: _Vectors) -> None:
        removed: list[int] = []
        ids: list[int] = []
        added: list[bytes] = []
        for version, address, record in self._newer(known.seen):
            known.seen = version
            if (old := known.versions.pop(address, None)) is not None:
                removed.append(old)
            if record.vectors is not None and record.vectors.model == model:
                known.versions[address] = version
                ids += [version] * len(record.vectors.data)
                added += record.vectors.data
        known.matrix.change(removed, ids, added)

    def _texts_of(self, record: Any) -> list[str]:
        if record.value is None:
            return []
        content = self._content(record)
        return texts(record.value, record.search_fields, content and content[:MOST_BYTES], content is not None)
