"""Searching an index: bounds of the scores of all vectors, of given versions, or of the cells nearest to a query."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from ...errors import InvalidInput
from ..embedders import Metric
from ..vectors import bound_scores, multiply, rows_at_once
from .layout import Damaged, Doubles, Ints, Sections

#: An index of at most so many vectors is always compared wholly: where clusters are small, the nearest vectors are in
#: many cells. With 100,000 vectors in clusters of ten, comparing two thirds of them gives a recall@10 of 0.97.
COMPARED = 1 << 17
#: About so many vectors of a large index are compared by an approximate search.
_SCANNED = 1 << 16
#: Bounds are computed for so many vectors at a time, which takes less memory.
_BOUNDED = 8192
#: An approximate search expects the error of a code to be at most this many standard deviations.
_DEVIATIONS = 4.0


class Candidates:
    """Versions with a lower and an upper bound of their scores. `advance` returns which scores are needed next."""

    def __init__(self, versions: Ints, rows: Ints, low: Doubles, high: Doubles) -> None:
        self._versions = versions  # of all rows of the index
        self._rows, self._low, self._high = rows, low, high
        self._is_taken = np.zeros(len(rows), np.bool_)
        self._target = 0
        self._taken: set[int] = set()

    def has_many_after(self, size: int) -> bool:
        """Whether at least as many are left as are taken after the next `size`."""
        return 2 * (self._target + size) <= len(self._low)

    def advance(self, size: int, most: int | None = None) -> tuple[list[int], float]:
        """Take the next `size` and more: every version that may have a score above one that these surely have.

        Return the versions that were not returned before, and that score; minus infinity if those were all. With
        `most`, only so many are taken at a time. So the order is approximate if more are alike, such as equal vectors.
        """
        self._target += size
        if self._target < len(self._low):
            lowest = float(np.partition(self._low, -self._target)[-self._target])
        else:
            lowest = -math.inf
        rows = np.flatnonzero((self._high >= lowest) & ~self._is_taken)
        if most is not None and len(rows) > most and lowest > -math.inf:
            rows = self._choose(rows, most)
        self._is_taken[rows] = True
        new = set(self._versions[self._rows[rows]].tolist()) - self._taken
        self._taken |= new
        return sorted(new), lowest

    def _choose(self, rows: Ints, most: int) -> Ints:
        """Return the rows with the best bounds; of those whose bounds are about the same, the newest."""
        high = self._high[rows]
        last = np.partition(high, -most)[-most]
        about = (high - self._low[rows]) / 8  # the bounds of equal vectors differ by much less
        newest = self._versions[self._rows[rows]]
        chosen: Ints = rows[np.lexsort((newest, high > last + about, high >= last - about))[-most:]]
        return chosen


class VectorIndex:
    """An index that was opened or built. Any number of threads may search it."""

    def __init__(self, sections: Sections) -> None:
        self._sections = sections
        self.header = sections.header
        self._is_checked = np.zeros(self.header.cells, np.bool_)
        self._piece = rows_at_once(self.header.dims)
        self._half_squares: Doubles | None = None  # of the lengths of centroids
        self._usual_length = 0.0

    def __len__(self) -> int:
        return self.header.count

    @property
    def compares_all(self) -> bool:
        """Whether an approximate search would compare all vectors."""
        return not self.header.trained or self.header.count <= COMPARED

    def compare_all(self, query: bytes, metric: Metric) -> Candidates:
        """Return bounds for every vector."""
        return self._compare(query, metric, np.arange(self.header.cells), 1.0)

    def compare_nearest(self, query: bytes, metric: Metric) -> Candidates:
        """Return approximate bounds for the vectors in the cells that are nearest to a query."""
        unit, length = _unit(query, self.header.dims)
        products = multiply(self._sections.centroids, unit.astype(np.float32)).astype(np.float64)
        if self._half_squares is None:
            self._usual_length = float(self._sections.lengths.mean())
            self._half_squares = (self._sections.centroids.astype(np.float64) ** 2).sum(axis=1) / 2
        # By the L2 distance, for every metric: a cell that has vectors of many directions has a short centroid, and is
        # near to all of them. The query's length matters for that metric only.
        nearness = products * {"cosine": 1.0, "dot": self._usual_length, "l2": length}[metric] - self._half_squares
        order = np.argsort(-nearness)
        starts = self._sections.starts
        sizes = np.cumsum((starts[1:] - starts[:-1])[order])
        # A little above `COMPARED`, the part that is compared falls step by step.
        wanted = max(_SCANNED, COMPARED + 2 * _SCANNED - self.header.count)
        cells = order[: int(np.searchsorted(sizes, wanted)) + 1]
        return self._compare(query, metric, np.sort(cells), min(1.0, _DEVIATIONS / math.sqrt(self.header.dims)))

    def compare_some(self, query: bytes, metric: Metric, versions: Collection[int]) -> tuple[Candidates, list[int]]:
        """Return bounds for the vectors of some versions, and the versions that are not in the index."""
        wanted, first, end = self._find(versions)
        missing = wanted[first == end].tolist()
        most = int((end - first).max(initial=0))  # an entry may have several vectors
        places = np.concatenate([first[:0], *((first + step)[first + step < end] for step in range(most))])
        picked = np.sort(self._sections.sorted_rows[places].astype(np.int64))
        cells = np.unique(np.searchsorted(self._sections.starts, picked, "right") - 1)
        self._check(cells)
        unit, length = _unit(query, self.header.dims)
        products = np.empty(len(picked), np.float64)
        codes, small = self._sections.codes, unit.astype(np.float32)
        for at in range(0, len(picked), self._piece):
            part = picked[at : at + self._piece]
            products[at : at + self._piece] = codes[part].astype(np.float32) @ small
        return self._bounds(picked, products, length, metric, 1.0), missing

    def find_missing(self, versions: Collection[int]) -> list[int]:
        """Return the versions that are not in the index."""
        wanted, first, end = self._find(versions)
        missing: list[int] = wanted[first == end].tolist()
        return missing

    def _find(self, versions: Collection[int]) -> tuple[Ints, Ints, Ints]:
        """Return versions in order, and where each begins and ends among the sorted versions of the index."""
        wanted = np.unique(np.fromiter(versions, np.int64, len(versions)))
        known = self._sections.sorted_versions
        return wanted, np.searchsorted(known, wanted), np.searchsorted(known, wanted, "right")

    def _compare(self, query: bytes, metric: Metric, cells: Ints, exactness: float) -> Candidates:
        self._check(cells)
        starts, codes = self._sections.starts, self._sections.codes
        unit, length = _unit(query, self.header.dims)
        small = unit.astype(np.float32)
        # Cells that lie together are read as one.
        is_first = np.diff(cells, prepend=-2) != 1
        firsts = starts[cells[is_first]].tolist()
        ends = starts[cells[np.roll(is_first, -1)] + 1].tolist()
        count = sum(ends) - sum(firsts)
        rows, products = np.empty(count, np.int64), np.empty(count, np.float64)
        piece = np.empty((self._piece, self.header.dims), np.float32)
        filled = done = 0
        for first, end in zip(firsts, ends, strict=True):
            rows[done + filled : done + filled + end - first] = np.arange(first, end)
            row = first
            while row < end:
                size = min(end - row, self._piece - filled)
                piece[filled : filled + size] = codes[row : row + size]
                row, filled = row + size, filled + size
                if filled == self._piece:
                    products[done : done + filled] = piece @ small
                    done, filled = done + filled, 0
        products[done:] = piece[:filled] @ small
        return self._bounds(rows, products, length, metric, exactness)

    def _bounds(self, rows: Ints, products: Doubles, length: float, metric: Metric, exactness: float) -> Candidates:
        """Return the bounds of rows in order; `products` becomes the lower ones."""
        sections, high = self._sections, np.empty(len(rows), np.float64)
        for at in range(0, len(rows), _BOUNDED):
            part, part_of = rows[at : at + _BOUNDED], slice(at, at + _BOUNDED)
            first, end = int(part[0]), int(part[-1]) + 1
            where: Any = slice(first, end) if end - first == len(part) else part
            lengths = sections.lengths[where]
            # The first part is what the codes lack; the second is for the sums in float32 (`vectors.Matrix`).
            errors = exactness * sections.errors[where] + (1.05 * self.header.dims + 8) * 2.0**-23 * lengths
            scaled = products[part_of] * sections.scales[where]
            products[part_of], high[part_of] = bound_scores(scaled, errors, lengths, length, metric)
        return Candidates(sections.versions, rows, products, high)

    def _check(self, cells: Ints) -> None:
        """Compare the checksums of cells that were not read before; `Damaged` if one is wrong."""
        for cell in cells[~self._is_checked[cells]].tolist():
            if self._sections.cell_checksum(cell) != self._sections.checksums[cell]:
                raise Damaged(f"cell {cell} is damaged")
            self._is_checked[cell] = True


def _unit(query: bytes, dims: int) -> tuple[Doubles, float]:
    """Return the direction of a query, and its length."""
    if len(query) != dims * 4:
        raise InvalidInput(f"the query's vector has {len(query) // 4} dimensions, those searched have {dims}")
    vector: Any = np.frombuffer(query, "<f4").astype(np.float64)
    length = float(np.sqrt((vector * vector).sum()))
    return vector / (length or 1.0), length
