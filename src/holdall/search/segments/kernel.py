"""What the index computes over many numbers, with numpy where it is installed.

A *posting* is one number: the part, the term, whether the term occurs more than once, the document, and how often, at
most 255 times. So sorted postings are in the order in which a block has them. A *block* has the posting lists of some
terms of a part:

    count of terms, 4 bytes, with bit `PACKED` if lists are packed; the terms, 4 bytes each
    for each term, 2 bytes: in how many documents it occurs once; then for each: in how many it occurs several times
    for each term: the documents in which it occurs once, then the others, in the shortest of three forms
    how often it occurs in those others, a byte each

A list of documents is stored as numbers of 2 bytes, as bits, or *packed*: how many of the documents of each chunk it
has, a byte each; then each document's number in its chunk, a byte each; then a byte if these are odd.

Scores are the same to the last bit with numpy and without: both do the same operations in the same order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias

from ..scoring import Weights
from ..tokens import Numbering
from .documents import Sizes

#: The bits of a posting, from the lowest: 8 for the count, 16 for the document, 1, 31 for the term, 7 for the part.
DOCUMENT, SEVERAL, TERM, PART = 8, 24, 25, 56
DOCUMENT_MASK, TERM_MASK = (1 << 16) - 1, (1 << 31) - 1


#: In the count of a block's terms: some lists are packed. Blocks of earlier versions have none.
PACKED = 1 << 31
#: So many documents are a chunk of a packed list: how many of them a list has fits a byte.
CHUNK = 255
#: A part of at most so many documents has no packed lists: most are small segments, which are merged soon.
MOST_UNPACKED = 1 << 13


class Forms(NamedTuple):
    """The forms of the lists of a part, by length: those with at most `numbers` documents are numbers, and so on."""

    numbers: int
    packed: int
    bits: int  # how many words of 2 bytes a list takes as bits
    chunks: int

    def words(self, length: int) -> int:
        """Return how many words of 2 bytes a list takes."""
        if length <= self.numbers:
            return length
        return (length + self.chunks + 1) // 2 if length <= self.packed else self.bits


@lru_cache(256)
def find_forms(documents: int, may_pack: bool) -> Forms:
    """Return the forms of lists in a part of so many documents: the shortest at each length."""
    bits, chunks = (documents + 15) // 16, -(-documents // CHUNK)
    numbers = min(bits, chunks + 1) if may_pack else bits
    return Forms(numbers, max(numbers, 2 * bits - chunks - 2) if may_pack else numbers, bits, chunks)


def find_range(data: bytes | memoryview, at: int, forms: Forms, start: int, stop: int) -> tuple[int, int, int]:
    """Return how many documents of the packed list at `at` precede the chunk of `start`, `start` itself, and `stop`."""
    chunk, inside = divmod(start, CHUNK)
    last_chunk, last_inside = divmod(stop, CHUNK)
    before_chunk = sum(data[at : at + chunk])
    before_last = before_chunk + sum(data[at + chunk : at + last_chunk])
    return (
        before_chunk,
        _count_before(data, at, forms, chunk, inside, before_chunk),
        _count_before(data, at, forms, last_chunk, last_inside, before_last),
    )


def _count_before(data: bytes | memoryview, at: int, forms: Forms, chunk: int, inside: int, before: int) -> int:
    """Return how many documents of a packed list precede one, given how many precede its chunk."""
    if not inside:
        return before
    first = at + forms.chunks
    return bisect_left(data, inside, first + before, first + before + data[at + chunk]) - first


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

    @property
    def sizes(self) -> Sizes: ...


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
