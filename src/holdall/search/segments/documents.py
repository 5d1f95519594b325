"""What the index stores of documents: the terms of each (its *forward list*), and the documents of a part.

A forward list has two runs of terms: those that occur once, and those that occur several times. It has the lengths of
both runs, the gaps between the sorted terms of the first run, those of the second, and the counts of the second, a byte
each. Lengths and gaps are stored in groups of 7 bits, the lowest first; the last byte of a number is below 128.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec


def hash_entry(ns: str, key: str) -> int:
    """Return a hash of an entry's address, by which its document is found. Two entries may have the same one.

    It has 24 bits and a sign, which SQLite stores in 3 bytes.
    """
    return (zlib.crc32(key.encode(), zlib.crc32(ns.encode())) & 0xFFFFFF) - (1 << 23)


def encode_forward(once: Sequence[int], several: Sequence[int], counts: bytes | bytearray) -> bytes:
    """Encode the sorted terms of a document that occur once, and those that occur several times, with their counts."""
    data = bytearray()
    for number in (len(once), len(several), *_gaps(once), *_gaps(several)):
        while number > 127:
            data.append(number & 127 | 128)
            number >>= 7  # noqa: PLW2901  # the rest of the number
        data.append(number)
    return bytes(data + counts)


def _gaps(numbers: Sequence[int]) -> Iterator[int]:
    before = 0
    for number in numbers:
        yield number - before
        before = number


def decode_forward(data: bytes) -> tuple[list[int], list[int]]:
    """Return the terms of a document, and how often it has each."""
    once, several, start = split_forward(data)
    gaps: list[int] = []
    number = shift = 0
    for byte in data[start : len(data) - several]:
        if byte > 127:
            number |= (byte & 127) << shift
            shift += 7
        elif shift:
            gaps.append(number | byte << shift)
            number = shift = 0
        else:
            gaps.append(byte)
    terms = [*accumulate(gaps[:once]), *accumulate(gaps[once:])]
    return terms, [1] * once + [*data[len(data) - several :]]


def split_forward(data: bytes) -> tuple[int, int, int]:
    """Return the lengths of both runs of a forward list, and where the gaps begin."""
    if data[0] < 128 and data[1] < 128:
        return data[0], data[1], 2
    numbers: list[int] = []
    at = 0
    while len(numbers) < 2:
        number = shift = 0
        while data[at] > 127:
            number |= (data[at] & 127) << shift
            shift += 7
            at += 1
        numbers.append(number | data[at] << shift)
        at += 1
    return numbers[0], numbers[1], at


class Directory(msgspec.Struct, array_like=True, frozen=True):
    """The documents of a part, in the order of their numbers: versions, lengths, and the namespaces in order.

    `starts` has the number of the first document of each namespace. Numbers are packed as narrow as they all fit.
    """

    count: int
    versions: bytes
    lengths: bytes
    namespaces: list[str]
    starts: bytes


class Small(msgspec.Struct, array_like=True, frozen=True):
    """A small segment: its documents, a block of posting lists, and the change of the counts of some terms."""

    directory: Directory
    block: bytes
    terms: bytes
    counts: bytes


class Document(NamedTuple):
    """A document that is added to a segment."""

    ns: str
    version: int
    length: int


encode = msgspec.msgpack.Encoder().encode
_decode_directory = msgspec.msgpack.Decoder(Directory).decode
decode_small = msgspec.msgpack.Decoder(Small).decode


def decode_directory(data: bytes) -> Documents:
    """Return the documents of a part."""
    return Documents(_decode_directory(data))


def make_directory(documents: Sequence[Document]) -> Directory:
    """Make the directory of documents that are sorted by namespace."""
    namespaces: list[str] = []
    starts: list[int] = []
    for number, document in enumerate(documents):
        if not namespaces or namespaces[-1] != document.ns:
            namespaces.append(document.ns)
            starts.append(number)
    versions = _pack_least("Iq", [document.version for document in documents])
    lengths = _pack_least("HI", [document.length for document in documents])
    return Directory(len(documents), versions, lengths, namespaces, pack("I", starts))


class Documents:
    """The documents of a part, parsed."""

    __slots__ = ("_sizes", "lengths", "namespaces", "size", "starts", "versions")

    def __init__(self, directory: Directory) -> None:
        count = directory.count
        self.versions = unpack("I" if len(directory.versions) == 4 * count else "q", directory.versions)
        self.lengths = unpack("H" if len(directory.lengths) == 2 * count else "I", directory.lengths)
        self.namespaces = directory.namespaces
        self.starts = unpack("I", directory.starts)
        self._sizes: Sizes | None = None
        #: About how many bytes of memory it takes.
        self.size = 13 * count + sum(64 + len(ns) for ns in self.namespaces)

    @classmethod
    def of(cls, versions: list[int], lengths: list[int]) -> Documents:
        """Return documents without namespaces."""
        return cls(Directory(len(versions), pack("q", versions), pack("I", lengths), [], b""))

    def __len__(self) -> int:
        return len(self.versions)

    @property
    def sizes(self) -> Sizes:
        """The classes of the lengths."""
        if self._sizes is None:
            self._sizes = Sizes.of(self.lengths)
        return self._sizes

    def range_of(self, low: str, high: str | None) -> tuple[int, int]:
        """Return the first document from a namespace on, and the first one from another namespace on."""
        first = bisect_left(self.namespaces, low)
        last = len(self.namespaces) if high is None else bisect_left(self.namespaces, high)
        return self._start(first), self._start(last)

    def _start(self, index: int) -> int:
        return self.starts[index] if index < len(self.starts) else len(self.versions)

    def ranges(self) -> Iterator[tuple[str, int, int]]:
        """Yield each namespace, its first document, and the first one after it."""
        for index, ns in enumerate(self.namespaces):
            yield ns, self.starts[index], self._start(index + 1)


class Sizes(NamedTuple):
    """The lengths of documents in 15 classes, from 1 on."""

    lowest: tuple[int, ...]  # the lowest length of each class; class 0 is not used
    classes: bytes  # of the documents, in the upper four bits

    @classmethod
    def of(cls, lengths: array[int]) -> Sizes:
        """Return the classes of lengths."""
        distinct = set(lengths) or {1}
        shortest = max(1, min(distinct))
        growth = max(distinct) / shortest
        lowest = (0, *(int(shortest * growth ** (number / 15)) for number in range(15)))
        class_of = {length: max(1, bisect_right(lowest, length) - 1) << 4 for length in distinct}
        return cls(lowest, bytes(map(class_of.__getitem__, lengths)))


def _pack_least(kinds: str, numbers: list[int]) -> bytes:
    """Pack numbers as the first of two types if they fit, else as the second."""
    try:
        return pack(kinds[0], numbers)
    except OverflowError:
        return pack(kinds[1], numbers)


def pack(kind: str, numbers: Iterable[int]) -> bytes:
    """Pack numbers as little-endian bytes."""
    packed = array(kind, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(kind: str, data: bytes) -> array[int]:
    """Return packed numbers."""
    numbers: array[int] = array(kind)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
