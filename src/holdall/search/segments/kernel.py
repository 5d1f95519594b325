"""What the index computes over many numbers, with numpy where it is installed.

A *posting* is one number: the part, the term, whether the term occurs more than once, the document, and how often, at
most 255 times. So sorted postings are in the order in which a block has them. A *block* has the posting lists of some
terms of a part:

    count of terms, 4 bytes; the terms, 4 bytes each
    for each term, 2 bytes: in how many documents it occurs once; then for each: in how many it occurs several times
    for each term: the documents in which it occurs once, then the others, as numbers of 2 bytes, or as bits if shorter
    how often it occurs in those others, a byte each

Scores are the same to the last bit with numpy and without: both do the same operations in the same order.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias

from ..scoring import Weights
from ..tokens import Numbering

#: The bits of a posting, from the lowest: 8 for the count, 16 for the document, 1, 31 for the term, 7 for the part.
DOCUMENT, SEVERAL, TERM, PART = 8, 24, 25, 56
DOCUMENT_MASK, TERM_MASK = (1 << 16) - 1, (1 << 31) - 1


def bitmap_words(documents: int) -> int:
    """Return how many 2-byte words a list takes as bits. A longer list of numbers is stored so."""
    return (documents + 15) // 16


class Found(NamedTuple):
    """The part of a posting list that a search reads; the numbers start at the first document that it reads."""

    term: int  # its index in the query
    once: Any  # numbers of documents
    several: Any
    counts: Any  # of those in `several`


#: Terms, and a number for each.
Counts: TypeAlias = tuple[Sequence[int], Sequence[int]]


class Block(Protocol):
    """A parsed block."""

    def find(self, term: int, start: int, stop: int) -> tuple[Any, Any, Any] | None:
        """Return the documents `[start, stop)` with a term once, the others, and their counts; None for no list."""

    def postings(self, low: int, high: int) -> Any:
        """Return the postings of the terms `[low, high)`."""


class Scored(Protocol):
    """Documents that can be scored, by their numbers."""

    @property
    def versions(self) -> array[int]: ...

    @property
    def lengths(self) -> array[int]: ...


class Scores(Protocol):
    """The scores of a search."""

    def add(self, documents: Scored, start: int, stop: int, found: Sequence[Found]) -> None:
        """Score the documents `[start, stop)` of a part. The lists are in the order of the query's terms."""

    def add_scored(self, scores: dict[int, float]) -> None:
        """Add versions that have their scores already."""

    def ranked(self) -> Iterator[tuple[int, float]]:
        """Yield versions and scores, best first; of equal scores, the newest version first."""


class Kernel(Protocol):
    """Arithmetic on many numbers. Postings are of the kernel's own type."""

    def count(self, documents: Sequence[Sequence[int]]) -> Any:
        """Return the sorted postings of documents, each given as its terms, in one part."""

    def forward(self, postings: Any, documents: int) -> list[bytes]:
        """Return the forward list of each document."""

    def encode(self, postings: Any, documents: int, size: int) -> list[tuple[int, bytes]]:
        """Return blocks of about `size` bytes, each with its first term, for sorted postings of one part."""

    def parse(self, block: bytes, documents: int) -> Block:
        """Parse a block of a part that has so many documents."""

    def move(self, postings: Any, numbers: Sequence[int], part: int) -> Any:
        """Give documents new numbers, across parts of `part` documents; drop those whose new number is -1."""

    def join(self, several: Sequence[Any]) -> Any:
        """Return all postings, sorted."""

    def split(self, postings: Any) -> list[tuple[int, Any]]:
        """Split sorted postings by part. The results have no part."""

    def between(self, postings: Any, low: int, high: int) -> Any:
        """Return those of sorted postings of one part whose term is in `[low, high)`."""

    def count_terms(self, postings: Any) -> Counts:
        """Return how many documents have each term, for sorted postings of one part."""

    def add_counts(self, several: Sequence[Counts]) -> tuple[bytes, bytes]:
        """Add counts; return the sorted terms whose sum is not 0, packed, and the sums, packed."""

    def find_terms(self, forward: Sequence[bytes], terms: Sequence[int]) -> list[Found]:
        """Find terms in the forward lists of documents, which are numbered in their order."""

    def count_removed(self, forward: Sequence[bytes]) -> Counts:
        """Return the change of the count of each term when documents are removed, by their forward lists."""

    def read_list(self, documents: array[int], counts: bytearray, removed: array[int]) -> tuple[Any, Any]:
        """Return the documents of a posting list and their counts, without the removed documents."""

    def select(self, documents: Any, counts: Any, few: Sequence[int]) -> tuple[Any, Any]:
        """Return which of a few documents a list of `read_list` has, by their index, and their counts.

        The documents are sorted in both.
        """

    def scores(self, weights: Weights) -> Scores:
        """Return an empty `Scores`, which computes scores with these weights."""

    def numbering(self) -> Numbering:
        """Return an empty `Numbering`."""


@cache
def kernel() -> Kernel:
    """Return the kernel of this process."""
    try:
        from .arrays import ArrayKernel
    except ModuleNotFoundError:
        from .plain import PlainKernel

        return PlainKernel()
    return ArrayKernel()
