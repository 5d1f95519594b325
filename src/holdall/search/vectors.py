"""Ranks vectors exactly. `Matrix` holds the vectors of a model in memory; engines without an index use it.

A first pass in float32 computes a lower and an upper bound of each score. Only rows that may be among the next results
are then scored in float64. So order and scores do not depend on the other rows.

Scores are the cosine similarity, the inner product, or minus the L2 distance (as LangGraph has it): higher is nearer.
A vector of zeros has no direction; its cosine with anything is 0.

Importing this module imports numpy, which takes long: import it only where it is needed.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import InvalidInput, MissingExtra
from .embedders import Metric
from .scoring import FIRST_SORTED

try:
    import numpy as np
except ModuleNotFoundError as error:
    raise MissingExtra("vectors need numpy: pip install 'holdall[vectors]'", name="numpy") from error

__all__ = ["Matrix", "bound_scores", "rank", "score"]

_Singles: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
_Doubles: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
_Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

#: Each time that the caller reads on, this many times as many vectors are ranked.
_GROWTH = 8
#: If fewer than this part of all vectors is allowed, only those are multiplied. Above it, selecting costs more than it
#: saves.
_FEW = 1 / 8
#: The number of rows of a block. A matrix is a list of blocks, so that it grows without being copied.
_BLOCK = 8192
#: How many rows are selected, converted to float64 and added at a time.
_PIECE = 2048
#: BLAS multiplies up to this many numbers with a vector in the caller's thread.
_UNTHREADED = 1 << 18
#: Between these lengths, the product with a query of length 1 neither underflows nor overflows in float32.
_SHORTEST, _LONGEST = 1e-30, 1e38


class Matrix:
    """An index of vectors by id. An id may have several vectors; the best of their scores is its score.

    Any number of threads may search while others change it: a search sees the matrix as it was when it began. New rows
    are added after those that a search may be reading. Removed rows are marked, and dropped when `_compact` moves the
    others to new blocks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dims = 0
        self._clear()

    def __len__(self) -> int:
        """Return how many vectors there are."""
        return self._end - self._removed

    def __contains__(self, id: int) -> bool:
        return id in self._first

    def add(self, ids: Sequence[int], vectors: Sequence[bytes]) -> None:
        """Add vectors, each under its id, beside those that the id has."""
        self.change((), ids, vectors)

    def remove(self, ids: Collection[int]) -> None:
        """Remove all vectors of the ids; one that has none is no error."""
        self.change(ids, (), ())

    def change(self, removed: Collection[int], ids: Sequence[int], vectors: Sequence[bytes]) -> None:
        """Remove and add in one step: no search sees the matrix in between."""
        if len(ids) != len(vectors):
            raise InvalidInput(f"{len(ids)} ids were given for {len(vectors)} vectors")
        sizes = {len(vector) for vector in vectors}
        with self._lock:
            dims = self._dims or min(sizes, default=0) // 4
            if wrong := sizes - {dims * 4 or None}:
                raise InvalidInput(f"a vector of {dims} dimensions has {dims * 4} bytes, not {max(wrong)}")
            self._dims = dims
            for id in removed:
                self._remove(id)
            if self._removed > max(self._end // 2, _PIECE):
                self._compact()
            for at in range(0, len(ids), _PIECE):
                data = b"".join(vectors[at : at + _PIECE])
                self._append(ids[at : at + _PIECE], np.frombuffer(data, "<f4").reshape(-1, dims))

    def ranked(
        self, query: bytes, metric: Metric = "cosine", *, allowed: Collection[int] | None = None
    ) -> Iterator[tuple[int, float]]:
        """Iterate over all ids, or the allowed ones, with their scores: best first; of equal scores, highest id first.

        Scores are computed as far as they are read. The first few dozen cost one pass; reading on costs little more.
        """
        view = self._view(allowed)
        return view.ranked(self._query(query), metric) if len(view) else iter(())

    # Changing, under the lock ----------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self._blocks: list[_Singles] = []
        self._ids: _Ints = np.empty(0, np.int64)
        self._lengths: _Doubles = np.empty(0, np.float64)
        self._live: _Flags = np.empty(0, np.bool_)
        self._end = self._removed = 0
        self._first: dict[int, int] = {}  # the row of an id's first vector
        self._others: dict[int, list[int]] = {}  # the rows of its other vectors, if it has any
        self._has_extremes = False  # whether a row may be too short or too long for float32

    def _remove(self, id: int) -> None:
        row = self._first.pop(id, None)
        if row is not None:
            rows = [row, *self._others.pop(id, ())]
            self._live[rows] = False
            self._removed += len(rows)

    def _append(self, ids: Sequence[int] | _Ints, vectors: _Singles) -> None:
        start, end = self._end, self._end + len(ids)
        if end > len(self._ids):
            size = max(end, 2 * start)
            self._ids, self._lengths = _lengthen(self._ids, size), _lengthen(self._lengths, size)
            self._live = _lengthen(self._live, size)
        lengths = _lengths(vectors.astype(np.float64))
        self._ids[start:end], self._lengths[start:end], self._live[start:end] = ids, lengths, True
        self._has_extremes = self._has_extremes or bool(_find_extremes(lengths).any())
        for row, id in enumerate(self._ids[start:end].tolist(), start):
            if self._first.setdefault(id, row) != row:
                self._others.setdefault(id, []).append(row)
        while self._end < end:
            used = self._end % _BLOCK
            if not used:
                self._blocks.append(np.empty((_BLOCK, self._dims), np.float32))
            some = vectors[self._end - start :][: _BLOCK - used]
            self._blocks[-1][used : used + len(some)] = some
            self._end += len(some)

    def _compact(self) -> None:
        """Move to new blocks, without the rows that were removed."""
        old, live = self._view_of(None), np.flatnonzero(self._live[: self._end])
        self._clear()
        for part, vectors in old.pieces(live):
            self._append(old.ids[live[part]], vectors)

    # Searching -------------------------------------------------------------------------------------------------------

    def _query(self, query: bytes) -> _Doubles:
        if len(query) != self._dims * 4:
            raise InvalidInput(f"the query's vector has {len(query) // 4} dimensions, those searched have {self._dims}")
        return np.frombuffer(query, "<f4").astype(np.float64)

    def _view(self, ids: Collection[int] | None) -> _View:
        with self._lock:
            if ids is not None:
                rows = [row for row in map(self._first.get, ids) if row is not None]
                if self._others:
                    rows += itertools.chain.from_iterable(self._others.get(id, ()) for id in ids)
                return self._view_of(np.unique(np.asarray(rows, np.int64)))
            return self._view_of(np.flatnonzero(self._live[: self._end]) if self._removed else None)

    def _view_of(self, selected: _Ints | None) -> _View:
        end = self._end
        return _View(
            tuple(self._blocks), self._ids[:end], self._lengths[:end], selected, bool(self._others), self._has_extremes
        )


@dataclass(frozen=True, slots=True)
class _View:
    """A snapshot of a matrix: all its rows, or those in `selected`."""

    blocks: tuple[_Singles, ...]
    ids: _Ints
    lengths: _Doubles
    selected: _Ints | None
    has_repeats: bool
    has_extremes: bool

    def __len__(self) -> int:
        return len(self.ids if self.selected is None else self.selected)

    def ranked(self, query: _Doubles, metric: Metric) -> Iterator[tuple[int, float]]:
        low, high = self._bounds(query, metric)
        ranking = self._ranking(query, metric, low, high)
        return _keep_best(ranking) if self.has_repeats else ranking

    def _ranking(self, query: _Doubles, metric: Metric, low: _Doubles, high: _Doubles) -> Iterator[tuple[int, float]]:
        """Rank in batches; `size`, the number of rows ranked so far, grows by `_GROWTH` with each.

        `lowest` is a score that at least `size` rows reach, by their lower bounds. Each row whose upper bound reaches
        it is scored. Rows whose score reaches it are yielded in order; the others are kept for the next batch.
        """
        ids, scores = np.empty(0, np.int64), np.empty(0, np.float64)
        seen: _Flags = np.zeros(len(low), np.bool_)
        size = FIRST_SORTED
        while True:
            lowest = float(np.partition(low, -size)[-size]) if size < len(low) else -math.inf
            new = np.flatnonzero((high >= lowest) & ~seen)
            seen[new] = True
            rows = new if self.selected is None else self.selected[new]
            ids = np.concatenate((ids, self.ids[rows]))
            scores = np.concatenate((scores, self._scores(rows, query, metric)))
            reached = scores >= lowest
            order = np.lexsort((-ids[reached], -scores[reached]))
            yield from zip(ids[reached][order].tolist(), scores[reached][order].tolist(), strict=True)
            if size >= len(low):
                return
            ids, scores = ids[~reached], scores[~reached]
            size *= _GROWTH

    def _bounds(self, query: _Doubles, metric: Metric) -> tuple[_Doubles, _Doubles]:
        """Return a lower and an upper bound of the score of each selected row, from one pass in float32.

        A sum of n products, added in any order, has an error of at most n roundings of the sum of their absolute
        values. That sum is at most the product of the two lengths. The added 8 is for the rounding of the query and of
        the steps that follow.
        """
        length = float(_lengths(query))
        error = (1.05 * len(query) + 8) * 2.0**-24
        products = self._products((query / (length or 1.0)).astype(np.float32)).astype(np.float64)
        lengths = self.lengths if self.selected is None else self.lengths[self.selected]
        extremes = _find_extremes(lengths) if self.has_extremes else None
        if extremes is not None:
            products[extremes] = 0.0
        low, high = bound_scores(products, error * lengths, lengths, length, metric)
        if extremes is not None:
            low[extremes], high[extremes] = -math.inf, math.inf
        return low, high

    def _products(self, unit: _Singles) -> _Singles:
        """Return the products of the selected rows with a query of length 1."""
        selected, end = self.selected, len(self.ids)
        with np.errstate(over="ignore", invalid="ignore"):
            if selected is not None and len(selected) < end * _FEW:
                products = np.empty(len(selected), np.float32)
                for part, vectors in self.pieces(selected):
                    products[part] = multiply(vectors, unit)
                return products
            products = np.empty(end, np.float32)
            for at, block in zip(range(0, end, _BLOCK), self.blocks, strict=True):
                products[at : at + _BLOCK] = multiply(block[: end - at], unit)
        return products if selected is None else products[selected]

    def _scores(self, rows: _Ints, query: _Doubles, metric: Metric) -> _Doubles:
        scores = np.empty(len(rows))
        for part, vectors in self.pieces(rows):
            scores[part] = _scores(vectors, query, metric)
        return scores

    def pieces(self, rows: _Ints) -> Iterator[tuple[slice, _Singles]]:
        """Yield the vectors of sorted rows in pieces: the slice of `rows`, and their vectors."""
        ends = np.searchsorted(rows, np.arange(1, len(self.blocks) + 1) * _BLOCK).tolist()
        for number, (start, end) in enumerate(itertools.pairwise([0, *ends])):
            for at in range(start, end, _PIECE):
                part = slice(at, min(at + _PIECE, end))
                yield part, self.blocks[number][rows[part] - number * _BLOCK]


def rows_at_once(dims: int) -> int:
    """Return how many rows to multiply with a vector at a time, so that BLAS does it in the caller's thread.

    The threads of BLAS wait for each other. Measured on a busy machine: the same product took 300 times as long.
    """
    return max(1, _UNTHREADED // max(dims, 1))


def multiply(rows: _Singles, unit: _Singles) -> _Singles:
    """Return the products of rows with a vector."""
    products: _Singles = np.empty(len(rows), np.float32)
    step = rows_at_once(len(unit))
    for at in range(0, len(rows), step):
        np.matmul(rows[at : at + step], unit, out=products[at : at + step])
    return products


def bound_scores(
    products: _Doubles, errors: _Doubles, lengths: _Doubles, length: float, metric: Metric
) -> tuple[_Doubles, _Doubles]:
    """Return a lower and an upper bound of the score of each vector.

    `products` are the products with a query of length 1, with errors of at most `errors`. `length` is the length of the
    query itself.
    """
    low, high = products - errors, products + errors
    if metric == "cosine":
        is_zero = lengths == 0
        divisors = np.where(is_zero, 1.0, lengths)
        low, high = np.where(is_zero, 0.0, low / divisors), np.where(is_zero, 0.0, high / divisors)
        return low - 2.0**-48, high + 2.0**-48
    low, high = low * length, high * length
    if metric == "l2":
        squares = lengths**2 + length**2
        # Of equal vectors, a rounded product may be larger than the squares: then the difference is no distance.
        low = -np.sqrt(np.maximum(squares * (1 + 2.0**-48) - 2 * low, squares * 2.0**-40))
        high = -np.sqrt(np.maximum(squares * (1 - 2.0**-48) - 2 * high, 0.0))
    return low, high


def rank(query: bytes, ids: Sequence[int], vectors: Sequence[bytes], metric: Metric) -> list[tuple[int, float]]:
    """Return each of these ids with its score, best first. An id may be given several times: its best score is used."""
    wanted = np.frombuffer(query, "<f4").astype(np.float64)
    if not ids:
        return []
    rows = np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), len(wanted))
    scores, given = _scores(rows, wanted, metric), np.asarray(ids, np.int64)
    order = np.lexsort((-given, -scores))
    pairs = zip(given[order].tolist(), scores[order].tolist(), strict=True)
    return list(_keep_best(pairs))


def score(query: bytes, vectors: Sequence[bytes], metric: Metric = "cosine") -> float:
    """Return the best of the scores of these vectors."""
    wanted = np.frombuffer(query, "<f4").astype(np.float64)
    rows = np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), len(wanted))
    return float(_scores(rows, wanted, metric).max())


def _scores(vectors: _Singles, query: _Doubles, metric: Metric) -> _Doubles:
    """Compute scores in float64. Not with BLAS: there, the order of summation depends on the position of a row."""
    rows = vectors.astype(np.float64)
    if metric == "l2":
        return 0.0 - _lengths(rows - query)
    products: _Doubles = (rows * query).sum(axis=-1)
    if metric == "dot":
        return products
    lengths = _lengths(rows) * _lengths(query)
    return np.divide(products, lengths, out=np.zeros(len(rows)), where=lengths > 0)


def _lengths(vectors: _Doubles) -> _Doubles:
    lengths: _Doubles = np.sqrt((vectors * vectors).sum(axis=-1))
    return lengths


def _find_extremes(lengths: _Doubles) -> _Flags:
    """Return which vectors are too short or too long to be compared in float32. A vector of zeros is not."""
    extremes: _Flags = (lengths > _LONGEST) | ((lengths < _SHORTEST) & (lengths > 0))
    return extremes


def _lengthen(array: Any, size: int) -> Any:
    """Return a longer copy of an array. Views of the old one do not change."""
    longer = np.empty(size, array.dtype)
    longer[: len(array)] = array
    return longer


def _keep_best(ranking: Iterator[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """Keep the first score of each id in a ranking: its best one."""
    seen: set[int] = set()
    for id, best in ranking:
        if id not in seen:
            seen.add(id)
            yield id, best
