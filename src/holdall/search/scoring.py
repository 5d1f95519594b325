"""Scores: how well documents match a query by their words (BM25), and the fusion of that with vectors.

The arithmetic is the same for every engine, and so is the ranking. Nothing here touches storage.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from math import exp, fsum, log, sqrt
from operator import add
from typing import TypeAlias

# Scores --------------------------------------------------------------------------------------------------------------

# The parameters of BM25: saturation of the term frequency, and normalisation by length. Both are low, which suits short
# and long texts.
_K1, _B = 0.9, 0.4


def idf(found: int, count: int) -> float:
    """Return the inverse document frequency of a term that `found` of `count` documents have."""
    count = max(count, found)
    return log(1 + (count - found + 0.5) / (found + 0.5))


#: How often a term counts in a document at most: counts are stored in a byte.
MOST_TIMES = 255
#: A posting list: the numbers of documents, and how often the term occurs in each, at most `MOST_TIMES`.
Part: TypeAlias = "tuple[array[int], bytes]"


class Weights:
    """The weights of a query's terms. `found` has the number of documents that have each term.

    `count` is the number of all documents, and `total` that of their tokens.
    """

    def __init__(self, found: Sequence[int], count: int, total: int) -> None:
        average = total / count if total > 0 and count > 0 else 1.0
        self.base, self.slope = _K1 * (1 - _B), _K1 * _B / average
        self.idfs = [idf(documents, count) for documents in found]

    def score(self, counts: Sequence[int], length: int) -> float:
        """Return the score of a document by its counts of the terms."""
        score = 0.0
        for weight, times in zip(self.idfs, counts, strict=True):
            if times:
                score += weight * times / (times + self.base + self.slope * length)
        return score


class TermWeights(dict[tuple[int, int], float]):
    """What one term adds to a score, by its count in a document and the length of the document."""

    __slots__ = ("_base", "_idf", "_slope")

    def __init__(self, weights: Weights, term: int) -> None:
        self._idf, self._base, self._slope = weights.idfs[term], weights.base, weights.slope

    def __missing__(self, pair: tuple[int, int]) -> float:
        times, length = pair
        weight = self[pair] = self._idf * times / (times + self._base + self._slope * length)
        return weight


def bm25(
    terms: Iterable[Sequence[Part]],
    lengths: Sequence[int],
    count: int,
    total: int,
    removed: set[int] | frozenset[int] = frozenset(),
) -> dict[int, float]:
    """Score each document that has one of the terms. `terms` has the posting lists of each term, in the query's order.

    `lengths` has the number of tokens of each document. `count` is the number of documents and `total` that of their
    tokens, without those that were `removed`. A document is in at most one list of a term.
    """
    scores: dict[int, float] = {}
    left_out: set[int] = set()
    for each in terms:
        parts = [(documents.tolist(), times) for documents, times in each]
        found = sum(len(numbers) for numbers, _ in parts)
        if removed:
            old = set[int]().union(*(removed.intersection(numbers) for numbers, _ in parts))
            found -= len(old)
            left_out |= old
        weigh = TermWeights(Weights([found], count, total), 0).__getitem__
        is_first, before = not scores, scores.get
        for numbers, times in parts:  # there may be millions, so all of this runs in C
            added = map(weigh, zip(times, map(lengths.__getitem__, numbers), strict=True))
            summed = added if is_first else map(add, map(before, numbers, _ZEROS), added)
            scores.update(zip(numbers, summed, strict=True))
    for number in left_out:
        del scores[number]
    return scores


_ZEROS = repeat(0.0)


# Fusion --------------------------------------------------------------------------------------------------------------

#: How many of the best results of each ranking are fused: for a page of at most `SHORT_PAGE` results, and otherwise.
FUSED_SHORT, FUSED, SHORT_PAGE = 64, 1000, 32
#: How many more results are looked at than are wanted, because some may be outdated.
SPARE = 8
#: How many results a ranking sorts at first: as many as a hybrid search for a short page reads.
FIRST_SORTED = FUSED_SHORT + SPARE
_TEXT, _VECTOR = 0.6, 0.4  # the weights of the two rankings
_UNMATCHED = (0.0,) * 10


def fusion_depth(limit: int) -> int:
    """Return how many of the best results of each ranking are fused for a page of `limit` results.

    A short page needs fewer: its results are among the best of both rankings. Measured on the Vaswani collection: with
    64 the normalised gain of the first ten is 0.473 instead of 0.475, as it is with 128.
    """
    return FUSED_SHORT if limit <= SHORT_PAGE else FUSED


def fuse(lexical: Mapping[int, float], semantic: Mapping[int, float], most: int) -> list[tuple[int, float]]:
    """Fuse the best `most` by full text and the best `most` by vectors into one ranking, with scores between 0 and 1.

    The scores of each ranking are standardised (distance from the mean, in standard deviations), weighted and added. So
    the range of a model's scores does not matter. A result of only one ranking gets the lowest score of the other. If
    the text ranking is complete, such a result has none of the words, so its text score is 0; a few zeros are added to
    the mean, so that a single match stands out too.
    """
    is_whole = len(lexical) < most
    by_text, no_text = _standardise(lexical, _TEXT, _UNMATCHED if is_whole else ())
    by_vector, no_vector = _standardise(semantic, _VECTOR)
    sums = {number: score + by_vector.get(number, no_vector) for number, score in by_text.items()}
    sums.update((number, no_text + score) for number, score in by_vector.items() if number not in sums)
    ranked = sorted(sums.items(), key=lambda item: (item[1], item[0]), reverse=True)
    return [(number, 1 / (1 + exp(-score))) for number, score in ranked]


def _standardise(
    scores: Mapping[int, float], weight: float, others: tuple[float, ...] = ()
) -> tuple[dict[int, float], float]:
    """Standardise scores; return them and the lowest. The sums are exact, so the order does not matter."""
    if not scores:
        return {}, 0.0
    values = (*scores.values(), *others)
    mean = fsum(values) / len(values)
    deviation = sqrt(fsum((value - mean) * (value - mean) for value in values) / len(values))
    if deviation <= 1e-6 * max(map(abs, values)):  # all are equal, apart from rounding
        return dict.fromkeys(scores, 0.0), 0.0
    scale = weight / deviation
    return {number: (score - mean) * scale for number, score in scores.items()}, (min(values) - mean) * scale
