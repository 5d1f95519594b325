"""Joins segments into one. Documents that were removed are dropped, and the others are sorted by namespace again."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Container, Iterator, Sequence
from itertools import islice
from typing import Any

from . import state as sizes
from .documents import Document, Documents, Small, decode_small, encode, make_directory, pack, unpack
from .kernel import Block, Counts, kernel
from .state import DIRECTORIES, row_id

#: How many bytes a block of posting lists has at most, unless it has a single longer one. SQLite stores a row of this
#: length in three pages, which it fills, and the eighth of another one. Shorter rows leave more of the pages empty.
BLOCK = 12_700
#: About how many postings one step of a large merge moves.
STEP = 1 << 19


class SmallSegment:
    """A small segment, parsed."""

    def __init__(self, data: bytes) -> None:
        small = decode_small(data)
        self.documents = Documents(small.directory)
        self.block: Block = kernel().parse(small.block, len(self.documents))
        self._terms, self._counts = unpack("I", small.terms), unpack("i", small.counts)
        self.size = len(data) + self.documents.size

    def count(self, term: int) -> int:
        """Return how many more documents have a term because of this segment."""
        index = bisect_left(self._terms, term)
        return self._counts[index] if index < len(self._terms) and self._terms[index] == term else 0

    @property
    def counts(self) -> Counts:
        """The change of the count of each term."""
        return self._terms, self._counts


def make_small(documents: Sequence[Document], postings: Any, counts: Sequence[Counts]) -> bytes:
    """Encode a small segment. The documents are sorted by namespace, and numbered so in the sorted postings."""
    blocks = kernel().encode(postings, len(documents), 1 << 60)
    terms, sums = kernel().add_counts(counts)
    return encode(Small(make_directory(documents), blocks[0][1] if blocks else bytes(4), terms, sums))


class Order:
    """The new order of the documents of several parts, without the versions in `removed`."""

    def __init__(self, parts: Sequence[Documents], removed: Container[int]) -> None:
        #: For each part, the new number of each of its documents; -1 if it was removed.
        self.numbers = [array("q", [-1]) * len(part) for part in parts]
        self.count = 0
        self._parts = parts
        self._ranges = sorted(
            (ns, index, start, stop) for index, part in enumerate(parts) for ns, start, stop in part.ranges()
        )
        for _, index, start, stop in self._ranges:
            numbers, versions = self.numbers[index], parts[index].versions
            for number in range(start, stop):
                if versions[number] not in removed:
                    numbers[number] = self.count
                    self.count += 1

    def documents(self) -> Iterator[Document]:
        """Yield the documents in their new order: a million in memory would take 120 MB."""
        for ns, index, start, stop in self._ranges:
            numbers, versions, lengths = self.numbers[index], self._parts[index].versions, self._parts[index].lengths
            for number in range(start, stop):
                if numbers[number] >= 0:
                    yield Document(ns, versions[number], lengths[number])


def merge_small(segments: Sequence[SmallSegment], removed: Container[int]) -> tuple[int, bytes]:
    """Merge small segments into a small one; return how many documents it has, and its data."""
    arithmetic = kernel()
    order = Order([segment.documents for segment in segments], removed)
    moved = [
        arithmetic.move(segment.block.postings(0, 1 << 31), numbers, max(1, order.count))
        for segment, numbers in zip(segments, order.numbers, strict=True)
    ]
    data = make_small([*order.documents()], arithmetic.join(moved), [segment.counts for segment in segments])
    return order.count, data


class LargeMerge:
    """A merge into a large segment, some terms at a time. It stays in memory until it is complete."""

    def __init__(
        self,
        output: int,
        terms: int,
        parts: Sequence[tuple[int, Documents]],
        smalls: Sequence[SmallSegment],
        removed: Container[int],
    ) -> None:
        self.output, self.terms = output, terms
        self.parts = [first for first, _ in parts]  # the id of the first row of each part of a large segment
        self._documents = [documents for _, documents in parts]
        order = Order([*self._documents, *(small.documents for small in smalls)], removed)
        self._numbers = order.numbers
        terms_of_counts, counts = kernel().add_counts([small.counts for small in smalls])
        self.counts: Counts = unpack("I", terms_of_counts), unpack("i", counts)
        self._small_postings = [small.block.postings(0, 1 << 31) for small in smalls]
        self.documents = order.count
        self._part_sizes = [min(sizes.PART, self.documents - at) for at in range(0, self.documents, sizes.PART)]
        documents = order.documents()
        self.directories = [
            (row_id(output, DIRECTORIES, part), encode(make_directory([*islice(documents, size)])))
            for part, size in enumerate(self._part_sizes)
        ]
        self.width = 16  # how many terms the next step takes

    @property
    def part_count(self) -> int:
        return len(self._part_sizes)

    def step(self, low: int, high: int, blocks: Sequence[Sequence[bytes]]) -> list[tuple[int, bytes]]:
        """Return the rows of the terms `[low, high)`. `blocks` has the blocks that contain them, for each part."""
        arithmetic = kernel()
        found: list[Any] = []
        for documents, numbers, datas in zip(self._documents, self._numbers, blocks, strict=False):
            for data in datas:
                postings = arithmetic.parse(data, len(documents)).postings(low, high)
                found.append(arithmetic.move(postings, numbers, sizes.PART))
        small_numbers = self._numbers[len(self._documents) :]
        for postings, numbers in zip(self._small_postings, small_numbers, strict=True):
            found.append(arithmetic.move(arithmetic.between(postings, low, high), numbers, sizes.PART))
        joined = arithmetic.join(found)
        if len(joined) < STEP // 2:
            self.width *= 4 if len(joined) < STEP // 8 else 2
        elif len(joined) > STEP:
            self.width = max(1, self.width // 2)
        return [
            (row_id(self.output, part, first), data)
            for part, postings in arithmetic.split(joined)
            for first, data in arithmetic.encode(postings, self._part_sizes[part], BLOCK)
        ]


def add_to_pages(pages: dict[int, bytes], counts: Counts) -> list[tuple[int, bytes]]:
    """Add counts to the counts of large segments; return all pages."""
    numbers = {page: unpack("i", data) for page, data in pages.items()}
    for term, count in zip(*counts, strict=True):
        page = numbers.get(term // sizes.PAGE)
        if page is None:
            page = numbers[term // sizes.PAGE] = array("i", [0]) * sizes.PAGE
        page[term % sizes.PAGE] += count
    return [(page, pack("i", values)) for page, values in sorted(numbers.items())]
