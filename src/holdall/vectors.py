"""Nearest vectors, exactly: all of them in memory, each compared with the query.

An engine keeps a `Matrix` beside what it stores and reads rankings from it. The comparison is one pass of BLAS in
float32, as fast as the memory can be read. That pass alone would not do: its sums are as exact as float32, and equal
vectors get scores that differ in the last digit by where they lie. So it decides no order. Whatever may belong to the
next stretch of the ranking, by a bound on the pass's error, is computed again in float64, each row by itself: ranking
and scores do not depend on what else is in the matrix, and are those that `score` gives.

Scores are the cosine similarity, the inner product, or minus the L2 distance (as LangGraph has it): higher is nearer.
A vector of zeros has no direction; its cosine with anything is 0.

Importing this module imports numpy, so whoever needs it imports it late.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .embed import Metric
from .errors import InvalidInput, MissingExtra

try:
    import numpy as np
except ModuleNotFoundError as error:
    raise MissingExtra("vectors need numpy: pip install 'holdall[vectors]'", name="numpy") from error

__all__ = ["Matrix", "score"]

_Singles: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
_Doubles: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
_Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

#: How many vectors are ranked at first, and how many times as many whenever those were not enough.
_FIRST, _GROWTH = 64, 8
#: Below this part of all vectors, those that are allowed are picked out first; above it, that costs more than it saves.
_FEW = 1 / 8
#: Rows are read, picked out and widened so many at a time.
_PIECE = 2048
#: The lengths between which float32 neither overflows nor runs out of digits.
_SHORTEST, _LONGEST = 1e-30, 1e30


class Matrix:
    """An index of vectors by id. An id may have several; its best one counts.

    Any number of threads may search while one changes it: a search sees the matrix as it was when it began. Rows are
    only ever added behind those that a search may be reading; rows that were removed are marked, and left behind when
    the rest moves to a new array.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dims = 0
        self._vectors: _Singles = np.empty((0, 0), np.float32)
        self._ids: _Ints = np.empty(0, np.int64)
        self._lengths: _Doubles = np.empty(0, np.float64)
        self._live = np.empty(0, np.bool_)
        self._end = self._gone = 0
        self._first: dict[int, int] = {}  # the row of an id's first vector
        self._others: dict[int, list[int]] = {}  # and of further ones, if it has any
        self._shortest, self._longest = math.inf, 0.0

    def __len__(self) -> int:
        """How many vectors there are."""
        return self._end - self._gone

    def __contains__(self, id: int) -> bool:
        return id in self._first

    @property
    def nbytes(self) -> int:
        """The memory that the arrays take."""
        arrays = (self._vectors, self._ids, self._lengths, self._live)
        return sum(array.nbytes for array in arrays)

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
            dims = self._dims or max(sizes, default=0) // 4
            if sizes - {dims * 4} or (sizes and not dims):
                wrong = min(sizes - {dims * 4}, default=0)
                raise InvalidInput(f"a vector here has {dims} dimensions, {dims * 4} bytes, but one has {wrong} bytes")
            for id in removed:
                self._forget(id)
            if self._gone > max(self._end // 2, _PIECE):
                self._move(self._end - self._gone + len(ids))
            self._append(dims, ids, vectors)

    def ranked(
        self, query: bytes, metric: Metric = "cosine", *, allowed: Collection[int] | None = None
    ) -> Iterator[tuple[int, float]]:
        """Every id, or every allowed one, with its score: best first, the highest id first among equals.

        It is computed as far as it is read. The first few dozen cost one pass; reading on costs little more.
        """
        view = self._view(allowed)
        return view.ranked(_query(query, view), metric) if len(view) else iter(())

    def scores(
        self, query: bytes, metric: Metric = "cosine", *, ids: Collection[int] | None = None
    ) -> dict[int, float]:
        """The scores of the ids, or of all; those without a vector are left out."""
        view = self._view(ids)
        return view.scores(_query(query, view), metric) if len(view) else {}

    # Changing, under the lock ----------------------------------------------------------------------------------------

    def _forget(self, id: int) -> None:
        row = self._first.pop(id, None)
        if row is None:
            return
        rows = [row, *self._others.pop(id, ())]
        self._live[rows] = False
        self._gone += len(rows)

    def _append(self, dims: int, ids: Sequence[int], vectors: Sequence[bytes]) -> None:
        self._dims = dims
        if self._end + len(ids) > len(self._ids):
            self._move(max(self._end + len(ids), 2 * self._end, 16))
        for at in range(0, len(ids), _PIECE):
            added = np.asarray(ids[at : at + _PIECE], np.int64)
            rows = slice(self._end, self._end + len(added))
            data = b"".join(vectors[at : at + _PIECE])
            self._vectors[rows] = np.frombuffer(data, "<f4").reshape(len(added), dims)
            lengths = _lengths(self._vectors[rows].astype(np.float64))
            self._ids[rows], self._lengths[rows], self._live[rows] = added, lengths, True
            self._longest = max(self._longest, float(lengths.max()))
            self._shortest = min(self._shortest, float(lengths.min(initial=math.inf, where=lengths > 0)))
            for row, id in enumerate(added.tolist(), self._end):
                if self._first.setdefault(id, row) != row:
                    self._others.setdefault(id, []).append(row)
            self._end += len(added)

    def _move(self, capacity: int) -> None:
        """Go to new arrays of this capacity, without the rows that were removed."""
        kept = np.flatnonzero(self._live[: self._end])
        vectors = np.empty((capacity, self._dims), np.float32)
        for at in range(0, len(kept), _PIECE):
            vectors[at : at + _PIECE][: len(kept) - at] = self._vectors[kept[at : at + _PIECE]]
        ids, lengths = np.empty(capacity, np.int64), np.empty(capacity, np.float64)
        ids[: len(kept)], lengths[: len(kept)] = self._ids[kept], self._lengths[kept]
        self._vectors, self._ids, self._lengths = vectors, ids, lengths
        self._live = np.ones(capacity, np.bool_)
        if self._gone:
            moved = dict(zip(kept.tolist(), range(len(kept)), strict=True))
            self._first = {id: moved[row] for id, row in self._first.items()}
            self._others = {id: [moved[row] for row in rows] for id, rows in self._others.items()}
        self._end, self._gone = len(kept), 0

    # Searching -------------------------------------------------------------------------------------------------------

    def _view(self, ids: Collection[int] | None) -> _View:
        with self._lock:
            end = self._end
            if ids is not None:
                rows = [row for row in map(self._first.get, ids) if row is not None]
                if self._others:
                    rows += itertools.chain.from_iterable(self._others.get(id, ()) for id in ids)
                picked = np.unique(np.asarray(rows, np.int64))
            elif self._gone:
                picked = np.flatnonzero(self._live[:end])
            else:
                picked = None
            return _View(
                self._vectors[:end],
                self._ids[:end],
                self._lengths[:end],
                picked,
                self._shortest,
                self._longest,
                bool(self._others),
            )


@dataclass(frozen=True, slots=True)
class _View:
    """A matrix as it is at one moment: its rows, of which those `picked` count, or all."""

    vectors: _Singles
    ids: _Ints
    lengths: _Doubles
    picked: _Ints | None
    shortest: float
    longest: float
    repeats: bool

    def __len__(self) -> int:
        return len(self.ids if self.picked is None else self.picked)

    def ranked(self, query: _Doubles, metric: Metric) -> Iterator[tuple[int, float]]:
        keys, error = self._keys(query, metric)
        ranking = self._ranking(query, metric, keys, error)
        return _first_of_each(ranking) if self.repeats else ranking

    def scores(self, query: _Doubles, metric: Metric) -> dict[int, float]:
        rows = np.arange(len(self.ids)) if self.picked is None else self.picked
        scores = _exact(self.vectors, rows, query, metric)
        order = np.argsort(scores)  # so that an id's best score is written last
        return dict(zip(self.ids[rows[order]].tolist(), scores[order].tolist(), strict=True))

    def _ranking(self, query: _Doubles, metric: Metric, keys: _Doubles, error: float) -> Iterator[tuple[int, float]]:
        """Rank in stretches, each as long as all before it times `_GROWTH`.

        A stretch goes down to the key of its last row by the quick pass. The rows at which that pass may be wrong
        about being in it are computed too; those that turn out to be lower wait for the next one.
        """
        ids, scores = np.empty(0, np.int64), np.empty(0, np.float64)
        above, size = math.inf, _FIRST
        while True:
            lowest = -math.inf if size >= len(keys) else float(np.partition(keys, -size)[-size])
            below = lowest - 2 * error
            at = np.flatnonzero((keys >= below) & (keys < above))
            rows = at if self.picked is None else self.picked[at]
            ids = np.concatenate((ids, self.ids[rows]))
            scores = np.concatenate((scores, _exact(self.vectors, rows, query, metric)))
            settled = (-(scores**2) if metric == "l2" else scores) >= lowest - error
            order = np.lexsort((-ids[settled], -scores[settled]))
            yield from zip(ids[settled][order].tolist(), scores[settled][order].tolist(), strict=True)
            if size >= len(keys):
                return
            ids, scores = ids[~settled], scores[~settled]
            above, size = below, size * _GROWTH

    def _keys(self, query: _Doubles, metric: Metric) -> tuple[_Doubles, float]:
        """What the quick pass ranks by, a row each, and how far it may be from the truth.

        The key is the score, or minus its square for L2. The bound is that of a sum of products in any order.
        """
        length = float(_lengths(query))
        quick = self.shortest > _SHORTEST and self.longest < _LONGEST
        unit = query / (length or 1.0)
        products = self._products(unit.astype(np.float32)) if quick else self._products(unit)
        error = (len(query) + 8) * (2.0**-24 if quick else 2.0**-53)
        lengths = self.lengths if self.picked is None else self.lengths[self.picked]
        if metric == "cosine":
            return np.divide(products, lengths, out=np.zeros(len(products)), where=lengths > 0), error
        if metric == "dot":
            return products * length, error * length * self.longest
        keys = 2 * length * products - lengths**2 - length**2
        return keys, 2 * error * length * self.longest + 2.0**-48 * (length + self.longest) ** 2

    def _products(self, unit: _Singles | _Doubles) -> _Doubles:
        """The products of the rows with a query of length 1, at the query's precision."""
        count, end = len(self), len(self.ids)
        if unit.dtype == np.float32 and count > end * _FEW:
            products = (self.vectors @ unit).astype(np.float64)
            return products if self.picked is None else products[self.picked]
        products = np.empty(count)
        for at in range(0, count, _PIECE):
            rows = slice(at, at + _PIECE) if self.picked is None else self.picked[at : at + _PIECE]
            some: Any = self.vectors[rows]
            products[at : at + _PIECE] = some.astype(unit.dtype, copy=False) @ unit
        return products


def score(query: bytes, vectors: Sequence[bytes], metric: Metric = "cosine") -> float:
    """The score of something that has these vectors: that of the best."""
    wanted = np.frombuffer(query, "<f4").astype(np.float64)
    rows = np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), len(wanted))
    return float(_exact(rows, np.arange(len(rows)), wanted, metric).max())


def _query(query: bytes, view: _View) -> _Doubles:
    dims = view.vectors.shape[1]
    if len(query) != dims * 4:
        raise InvalidInput(f"the query's vector has {len(query) // 4} dimensions, but those searched have {dims}")
    return np.frombuffer(query, "<f4").astype(np.float64)


def _exact(vectors: _Singles, rows: _Ints, query: _Doubles, metric: Metric) -> _Doubles:
    """The scores of some rows, to float64's precision."""
    scores = np.empty(len(rows))
    length = float(_lengths(query))
    for at in range(0, len(rows), _PIECE):
        some = vectors[rows[at : at + _PIECE]].astype(np.float64)
        if metric == "l2":
            scores[at : at + _PIECE] = 0.0 - _lengths(some - query)
            continue
        products = (some * query).sum(axis=-1)  # not `@`: BLAS sums a row by where it lies
        if metric == "cosine":
            lengths = _lengths(some) * length
            products = np.divide(products, lengths, out=np.zeros(len(some)), where=lengths > 0)
        scores[at : at + _PIECE] = products
    return scores


def _lengths(rows: _Doubles) -> _Doubles:
    lengths: _Doubles = np.sqrt((rows * rows).sum(axis=-1))
    return lengths


def _first_of_each(ranking: Iterator[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """An id's best vector comes first in a ranking, and stands for it."""
    seen: set[int] = set()
    for id, best in ranking:
        if id not in seen:
            seen.add(id)
            yield id, best
