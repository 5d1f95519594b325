"""Ranks vectors exactly. All vectors of a model are in memory (`Matrix`).

A first pass in float32 gives bounds for each score. Only rows that may be among the next results are then scored in
float64. So order and scores do not depend on the other rows.

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

try:
    import numpy as np
except ModuleNotFoundError as error:
    raise MissingExtra("vectors need numpy: pip install 'holdall[vectors]'", name="numpy") from error

__all__ = ["Matrix", "bound_scores", "rank", "score"]

_Singles: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
_Doubles: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
_Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

#: How many vectors are ranked at first, and how many times as many whenever those were not enough.
_FIRST, _GROWTH = 64, 8
#: Below this part of all vectors, those that are allowed are picked out first; above it, that costs more than it saves.
_FEW = 1 / 8
#: Rows lie in blocks of so many, so that a matrix grows without being copied.
_BLOCK = 8192
#: Rows are picked out, widened and added so many at a time.
_PIECE = 2048
#: A product of so many numbers with a vector is not shared among threads by BLAS.
_UNTHREADED = 1 << 18
#: The lengths between which the product with a query of length 1 neither runs out of digits in float32 nor overflows.
_SHORTEST, _LONGEST = 1e-30, 1e38


class Matrix:
    """An index of vectors by id. An id may have several; its best one counts.

    Any number of threads may search while others change it: a search sees the matrix as it was when it began. Rows are
    only ever added behind those that a search may be reading; rows that were removed are marked, and left behind when
    the rest moves to new blocks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dims = 0
        self._clear()

    def __len__(self) -> int:
        """How many vectors there are."""
        return self._end - self._gone

    def __contains__(self, id: int) -> bool:
        return id in self._first

    def add(self, ids: Sequence[int], vectors: Sequence[bytes]) -> None:
        """Add vectors, each under its id, beside those that the id has."""
        self.change((), ids, vectors)

    def remove(self, ids: Collection[int]) -> None:
        """Remove all vectors of the ids; one that has none is no error."""
        self.change(ids, (), ())

    def change(self, removed: Collection[int], ids: Sequence[int], vectors: Sequence[bytes]) -> None:
        """Remove and add as one: no search sees the matrix in between."""
        if len(ids) != len(vectors):
            raise InvalidInput(f"{len(ids)} ids were given for {len(vectors)} vectors")
        sizes = {len(vector) for vector in vectors}
        with self._lock:
            dims = self._dims or min(sizes, default=0) // 4
            if wrong := sizes - {dims * 4 or None}:
                raise InvalidInput(f"a vector of {dims} dimensions has {dims * 4} bytes, not {max(wrong)}")
            self._dims = dims
            for id in removed:
                self._forget(id)
            if self._gone > max(self._end // 2, _PIECE):
                self._compact()
            for at in range(0, len(ids), _PIECE):
                data = b"".join(vectors[at : at + _PIECE])
                self._append(ids[at : at + _PIECE], np.frombuffer(data, "<f4").reshape(-1, dims))

    def ranked(
        self, query: bytes, metric: Metric = "cosine", *, allowed: Collection[int] | None = None
    ) -> Iterator[tuple[int, float]]:
        """Every id, or every allowed one, with its score: best first, the highest id first among equals.

        It is computed as far as it is read. The first few dozen cost one pass; reading on costs little more.
        """
        view = self._view(allowed)
        return view.ranked(self._query(query), metric) if len(view) else iter(())

    # Changing, under the lock ----------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self._blocks: list[_Singles] = []
        self._ids: _Ints = np.empty(0, np.int64)
        self._lengths: _Doubles = np.empty(0, np.float64)
        self._live: _Flags = np.empty(0, np.bool_)
        self._end = self._gone = 0
        self._first: dict[int, int] = {}  # the row of an id's first vector
        self._others: dict[int, list[int]] = {}  # and of further ones, if it has any
        self._odd = False  # whether a row may be too short or too long for float32

    def _forget(self, id: int) -> None:
        row = self._first.pop(id, None)
        if row is not None:
            rows = [row, *self._others.pop(id, ())]
            self._live[rows] = False
            self._gone += len(rows)

    def _append(self, ids: Sequence[int] | _Ints, vectors: _Singles) -> None:
        start, end = self._end, self._end + len(ids)
        if end > len(self._ids):
            size = max(end, 2 * start)
            self._ids, self._lengths = _grown(self._ids, size), _grown(self._lengths, size)
            self._live = _grown(self._live, size)
        lengths = _lengths(vectors.astype(np.float64))
        self._ids[start:end], self._lengths[start:end], self._live[start:end] = ids, lengths, True
        self._odd = self._odd or bool(_odd(lengths).any())
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
            return self._view_of(np.flatnonzero(self._live[: self._end]) if self._gone else None)

    def _view_of(self, picked: _Ints | None) -> _View:
        end = self._end
        return _View(tuple(self._blocks), self._ids[:end], self._lengths[:end], picked, bool(self._others), self._odd)


@dataclass(frozen=True, slots=True)
class _View:
    """A matrix as it is at one moment: its rows, of which those `picked` count, or all."""

    blocks: tuple[_Singles, ...]
    ids: _Ints
    lengths: _Doubles
    picked: _Ints | None
    repeats: bool
    odd: bool

    def __len__(self) -> int:
        return len(self.ids if self.picked is None else self.picked)

    def ranked(self, query: _Doubles, metric: Metric) -> Iterator[tuple[int, float]]:
        low, high = self._bounds(query, metric)
        ranking = self._ranking(query, metric, low, high)
        return _first_of_each(ranking) if self.repeats else ranking

    def _ranking(self, query: _Doubles, metric: Metric, low: _Doubles, high: _Doubles) -> Iterator[tuple[int, float]]:
        """Rank in stretches, each `_GROWTH` times as long as what came before.

        A stretch goes down to a score that so many rows are sure to reach. Every row that may reach it is computed;
        those that do are ranked, and the others wait for the next stretch.
        """
        ids, scores = np.empty(0, np.int64), np.empty(0, np.float64)
        seen: _Flags = np.zeros(len(low), np.bool_)
        size = _FIRST
        while True:
            lowest = float(np.partition(low, -size)[-size]) if size < len(low) else -math.inf
            fresh = np.flatnonzero((high >= lowest) & ~seen)
            seen[fresh] = True
            rows = fresh if self.picked is None else self.picked[fresh]
            ids = np.concatenate((ids, self.ids[rows]))
            scores = np.concatenate((scores, self._scores(rows, query, metric)))
            ripe = scores >= lowest
            order = np.lexsort((-ids[ripe], -scores[ripe]))
            yield from zip(ids[ripe][order].tolist(), scores[ripe][order].tolist(), strict=True)
            if size >= len(low):
                return
            ids, scores = ids[~ripe], scores[~ripe]
            size *= _GROWTH

    def _bounds(self, query: _Doubles, metric: Metric) -> tuple[_Doubles, _Doubles]:
        """Two scores for each row that counts, between which its own is, from one pass in float32.

        A sum of n products, in whatever order, is off by no more than n roundings of the sum of their sizes, which is
        no more than the product of the two lengths. The few more are for the query's own rounding and what follows.
        """
        length = float(_lengths(query))
        error = (1.05 * len(query) + 8) * 2.0**-24
        products = self._products((query / (length or 1.0)).astype(np.float32)).astype(np.float64)
        lengths = self.lengths if self.picked is None else self.lengths[self.picked]
        odd = _odd(lengths) if self.odd else None
        if odd is not None:
            products[odd] = 0.0
        low, high = bound_scores(products, error * lengths, lengths, length, metric)
        if odd is not None:
            low[odd], high[odd] = -math.inf, math.inf
        return low, high

    def _products(self, unit: _Singles) -> _Singles:
        """The products of the rows that count with a query of length 1."""
        picked, end = self.picked, len(self.ids)
        with np.errstate(over="ignore", invalid="ignore"):
            if picked is not None and len(picked) < end * _FEW:
                products = np.empty(len(picked), np.float32)
                for part, vectors in self.pieces(picked):
                    products[part] = multiply(vectors, unit)
                return products
            products = np.empty(end, np.float32)
            for at, block in zip(range(0, end, _BLOCK), self.blocks, strict=True):
                products[at : at + _BLOCK] = multiply(block[: end - at], unit)
        return products if picked is None else products[picked]

    def _scores(self, rows: _Ints, query: _Doubles, metric: Metric) -> _Doubles:
        scores = np.empty(len(rows))
        for part, vectors in self.pieces(rows):
            scores[part] = _scores(vectors, query, metric)
        return scores

    def pieces(self, rows: _Ints) -> Iterator[tuple[slice, _Singles]]:
        """The vectors of some rows, which are in order, in pieces: which of the rows, and what they hold."""
        ends = np.searchsorted(rows, np.arange(1, len(self.blocks) + 1) * _BLOCK).tolist()
        for number, (start, end) in enumerate(itertools.pairwise([0, *ends])):
            for at in range(start, end, _PIECE):
                part = slice(at, min(at + _PIECE, end))
                yield part, self.blocks[number][rows[part] - number * _BLOCK]


def rows_at_once(dims: int) -> int:
    """How many rows to multiply with a vector at a time, so that BLAS does it in the caller's thread.

    Its own threads wait for each other. On a machine that is busy, the same product took 300 times as long with them.
    """
    return max(1, _UNTHREADED // max(dims, 1))


def multiply(rows: _Singles, unit: _Singles) -> _Singles:
    """The products of rows with a vector."""
    products: _Singles = np.empty(len(rows), np.float32)
    step = rows_at_once(len(unit))
    for at in range(0, len(rows), step):
        np.matmul(rows[at : at + step], unit, out=products[at : at + step])
    return products


def bound_scores(
    products: _Doubles, errors: _Doubles, lengths: _Doubles, length: float, metric: Metric
) -> tuple[_Doubles, _Doubles]:
    """Two scores for each vector, between which its own is.

    `products` are those with a query of length 1, off by at most `errors`; `length` is the length of the query itself.
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
        low = -np.sqrt(squares * (1 + 2.0**-48) - 2 * low)
        high = -np.sqrt(np.maximum(squares * (1 - 2.0**-48) - 2 * high, 0.0))
    return low, high


def rank(query: bytes, ids: Sequence[int], vectors: Sequence[bytes], metric: Metric) -> list[tuple[int, float]]:
    """Each of these ids with its score, best first. An id may be given several times; its best vector counts."""
    wanted = np.frombuffer(query, "<f4").astype(np.float64)
    if not ids:
        return []
    rows = np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), len(wanted))
    scores, given = _scores(rows, wanted, metric), np.asarray(ids, np.int64)
    order = np.lexsort((-given, -scores))
    pairs = zip(given[order].tolist(), scores[order].tolist(), strict=True)
    return list(_first_of_each(pairs))


def score(query: bytes, vectors: Sequence[bytes], metric: Metric = "cosine") -> float:
    """The score of something that has these vectors: that of the best."""
    wanted = np.frombuffer(query, "<f4").astype(np.float64)
    rows = np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), len(wanted))
    return float(_scores(rows, wanted, metric).max())


def _scores(vectors: _Singles, query: _Doubles, metric: Metric) -> _Doubles:
    """The scores of vectors, to float64's precision; sums are not left to BLAS, which sums a row by where it lies."""
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


def _odd(lengths: _Doubles) -> _Flags:
    """Which vectors are too short or too long to be compared in float32; those of zeros are not."""
    odd: _Flags = (lengths > _LONGEST) | ((lengths < _SHORTEST) & (lengths > 0))
    return odd


def _grown(array: Any, size: int) -> Any:
    """A longer copy of an array: views of the old one stay as they are."""
    longer = np.empty(size, array.dtype)
    longer[: len(array)] = array
    return longer


def _first_of_each(ranking: Iterator[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """An id's best vector comes first in a ranking, and stands for it."""
    seen: set[int] = set()
    for id, best in ranking:
        if id not in seen:
            seen.add(id)
            yield id, best
