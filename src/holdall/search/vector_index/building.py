"""Building an index, in steps that a caller makes between its reads: no step takes long, or much memory.

1. `train` computes centroids from a sample, by k-means. It can be left out: then a search compares all vectors.
2. `place` takes every vector once, and decides its cell.
3. `allocate` returns the size that the index needs.
4. `lay_out` takes the caller's buffer of that size, and writes all but the codes of new vectors.
5. `fill` takes every vector again, and writes its codes.
6. `finish` writes the checksums and the header; `index` returns the index.

An index can extend an older one. Then only the vectors that came after it are taken; the others are copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .index import COMPARED, VectorIndex
from .layout import Doubles, Header, Ints, Sections, Singles, size_of

_ROUNDS = 8
#: The sample has so many vectors for each cell.
_SAMPLED = 32
#: How many vectors are compared with all centroids at a time.
_PIECE = 1024
#: A cell without a centroid has so many vectors.
_PLAIN_CELL = 4096


def sample_size(count: int) -> int:
    """Return how many vectors `train` should get, for an index of `count`; 0 if it needs no centroids."""
    return 0 if count <= COMPARED else _SAMPLED * _cell_count(count)


def _cell_count(count: int) -> int:
    return max(1, round(4 * math.sqrt(count)))


class IndexBuilder:
    """An index that is being built. `header` says what is known before: build, model, metric, dims and last."""

    def __init__(self, header: Header, old: VectorIndex | None = None) -> None:
        self._header = header
        self._old = None if old is None else old._sections
        self._kept: Ints = np.arange(0)  # the rows of the old index that are copied
        self._centroids: Singles | None = None
        self._trained = 0
        if self._old is not None:
            self._kept = np.arange(self._old.header.count)
            if self._old.header.trained:
                self._centroids, self._trained = self._old.centroids, self._old.header.trained
        self._ids: list[Ints] = []
        self._versions: list[Ints] = []
        self._cells: list[Ints] = []

    def keep(self, alive: Sequence[int]) -> None:
        """Copy only these versions of the old index."""
        assert self._old is not None
        self._kept = np.flatnonzero(np.isin(self._old.versions, np.asarray(alive, np.int64)))

    def train(self, sample: Sequence[bytes], count: int) -> Iterator[None]:
        """Compute the centroids for an index of about `count` vectors, a step at a time."""
        vectors = self._in_space(self._rows(sample))
        random = np.random.default_rng(len(vectors))
        cells = min(_cell_count(count), len(vectors))
        centroids = vectors[random.choice(len(vectors), cells, replace=False)].copy()
        nearest = np.empty(len(vectors), np.int64)
        for _ in range(_ROUNDS):
            for at in range(0, len(vectors), _PIECE):
                nearest[at : at + _PIECE] = _nearest(vectors[at : at + _PIECE], centroids)
                yield
            order = np.argsort(nearest, kind="stable")
            sizes = np.bincount(nearest, minlength=cells)
            used = np.flatnonzero(sizes)
            starts = np.cumsum(sizes[used]) - sizes[used]
            centroids[used] = np.add.reduceat(vectors[order], starts, axis=0) / sizes[used][:, None]
            empty = np.flatnonzero(sizes == 0)
            centroids[empty] = vectors[random.integers(0, len(vectors), len(empty))]
            yield
        self._centroids, self._trained = centroids, max(count, 1)

    def place(self, ids: Sequence[int], versions: Sequence[int], vectors: Sequence[bytes]) -> None:
        """Decide the cells of vectors. Ids are in order, and above all earlier ones."""
        self._ids.append(np.asarray(ids, np.int64))
        self._versions.append(np.asarray(versions, np.int64))
        if self._centroids is None:
            return
        rows = self._in_space(self._rows(vectors))
        for at in range(0, len(rows), _PIECE):
            self._cells.append(_nearest(rows[at : at + _PIECE], self._centroids))

    def allocate(self) -> int:
        """Return the number of bytes of the index, once every vector has its cell."""
        self._new_ids = np.concatenate([*self._ids, np.empty(0, np.int64)])
        versions = np.concatenate([np.empty(0, np.int64), *self._versions])
        old = self._old
        if old is not None:
            versions = np.concatenate([old.versions[self._kept], versions])
        count, centroids = len(versions), self._centroids
        if centroids is None:
            cells = np.arange(count) // _PLAIN_CELL
        else:
            cells = np.concatenate([np.empty(0, np.int64), *self._cells])
            if old is not None:
                assigned = np.searchsorted(old.starts, self._kept, "right") - 1
                cells = np.concatenate([assigned, cells])
        number = -(-count // _PLAIN_CELL) if centroids is None else len(centroids)
        self._order = np.argsort(cells, kind="stable")
        self._sizes = np.bincount(cells, minlength=number)
        self._row_of = np.empty(count, np.int64)  # by the order in which vectors came, those of the old index first
        self._row_of[self._order] = np.arange(count)
        self._all_versions = versions
        self._header = replace(self._header, count=count, cells=number, trained=self._trained)
        self._ids, self._versions, self._cells = [], [], []
        return size_of(self._header)

    def lay_out(self, buffer: Any) -> Iterator[None]:
        """Begin to write to a buffer: all that is not of new vectors."""
        self._sections = sections = Sections(self._header, buffer)
        if self._centroids is not None:
            sections.centroids[:] = self._centroids
        sections.starts[0], sections.starts[1:] = 0, np.cumsum(self._sizes)
        sections.versions[:] = self._all_versions[self._order]
        by_version = np.argsort(sections.versions, kind="stable")
        sections.sorted_versions[:], sections.sorted_rows[:] = sections.versions[by_version], by_version
        old = self._old
        for at in range(0, len(self._kept), _PLAIN_CELL):
            assert old is not None
            rows = self._row_of[at : at + _PLAIN_CELL][: len(self._kept) - at]
            kept = self._kept[at : at + _PLAIN_CELL]
            sections.codes[rows] = old.codes[kept]
            for mine, theirs in (
                (sections.scales, old.scales),
                (sections.errors, old.errors),
                (sections.lengths, old.lengths),
            ):
                mine[rows] = theirs[kept]
            yield

    def fill(self, ids: Sequence[int], versions: Sequence[int], vectors: Sequence[bytes]) -> None:
        """Write the codes of vectors. One that was removed since it was placed is left out."""
        del versions  # known since they were placed
        places = np.searchsorted(self._new_ids, np.asarray(ids, np.int64))
        rows = self._row_of[places + len(self._kept)]
        given = self._rows(vectors).astype(np.float64)
        largest = np.abs(given).max(axis=1, initial=0.0)
        scales = (largest / 127).astype(np.float32)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            codes = np.where(scales[:, None] > 0, np.rint(given / scales[:, None].astype(np.float64)), 0.0)
        codes = np.clip(np.nan_to_num(codes), -127, 127)
        gaps = given - codes * scales[:, None].astype(np.float64)
        errors = np.sqrt((gaps * gaps).sum(axis=1)) * (1 + 2.0**-40)
        sections = self._sections
        sections.codes[rows] = codes.astype(np.int8)
        sections.scales[rows] = scales
        with np.errstate(over="ignore"):
            sections.errors[rows] = np.nextafter(errors.astype(np.float32), np.float32(np.inf))
        sections.lengths[rows] = np.sqrt((given * given).sum(axis=1))

    def finish(self) -> Iterator[None]:
        """Write the checksums, and the header."""
        sections = self._sections
        for cell in range(self._header.cells):
            sections.checksums[cell] = sections.cell_checksum(cell)
            if cell % 64 == 0:
                yield
        sections.write_header()

    def index(self) -> VectorIndex:
        """Return the index that was built."""
        return VectorIndex(self._sections)

    def _rows(self, vectors: Sequence[bytes]) -> Singles:
        return np.frombuffer(b"".join(vectors), "<f4").reshape(-1, self._header.dims)

    def _in_space(self, vectors: Singles) -> Singles:
        """Return vectors as k-means compares them: by direction for the cosine, else as they are."""
        if self._header.metric != "cosine":
            return vectors
        wide: Doubles = vectors.astype(np.float64)
        lengths = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
        directions: Singles = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0).astype(np.float32)
        return directions


def _nearest(vectors: Singles, centroids: Singles) -> Ints:
    """Return the nearest centroid of each vector."""
    with np.errstate(over="ignore", invalid="ignore"):
        nearest: Ints = np.argmax(vectors @ centroids.T - (centroids * centroids).sum(axis=1) / 2, axis=1)
    return nearest
