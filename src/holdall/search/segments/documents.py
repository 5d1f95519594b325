"""What the index stores of documents: the terms of each (its *forward list*), and the documents of a part.

A forward list has the numbers of a document's terms in five runs: numbers of one byte, whose term occurs once; of one
byte, several times; of two bytes, once; of two bytes, several times; of four bytes. The counts of the second, fourth
and fifth run follow. The lengths of the first four runs are at the start.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

#: Terms below these numbers are stored in one byte, and in two.
ONE_BYTE, TWO_BYTES = 255, 65_536
HEADER = struct.Struct("<BBHH")
MOST_TIMES = 255


def hash_entry(ns: str, key: str) -> int:
    """Return the number by which the document of an entry is found. Others may have it too."""
    return zlib.crc32(key.encode(), zlib.crc32(ns.encode()))


class Forward(NamedTuple):
    """A parsed forward list."""

    terms: list[int]
    counts: list[int]


def encode_forward(pairs: Iterable[tuple[int, int]]) -> bytes:
    """Encode the terms of a document and how often it has each."""
    runs: list[list[int]] = [[] for _ in range(5)]
    counts: list[list[int]] = [[] for _ in range(5)]
    for term, times in pairs:
        run = 4 if term >= TWO_BYTES else 2 * (term >= ONE_BYTE) + (times > 1)
        runs[run].append(term)
        counts[run].append(times)
    header = HEADER.pack(*map(len, runs[:4]))
    numbers = bytes(runs[0] + runs[1]) + pack("H", runs[2] + runs[3]) + pack("I", runs[4])
    return header + numbers + bytes(counts[1] + counts[3] + counts[4])


def decode_forward(data: bytes) -> Forward:
    """Return the terms of a document, and how often it has each."""
    once1, more1, once2, more2 = HEADER.unpack_from(data)
    start = HEADER.size
    end = start + once1 + more1
    terms = list(data[start:end])
    start, end = end, end + 2 * (once2 + more2)
    terms += unpack("H", data[start:end])
    many = (len(data) - end - more1 - more2) // 5
    terms += unpack("I", data[end : end + 4 * many])
    counts = data[end + 4 * many :]
    times = [1] * once1 + [*counts[:more1]] + [1] * once2 + [*counts[more1:]]
    return Forward(terms, times)


def count_terms(data: bytes, wanted: Sequence[tuple[int, bytes]]) -> list[int]:
    """Return how often a document has each of the wanted terms (`find_pattern`), without parsing all of them."""
    once1, more1, once2, more2 = HEADER.unpack_from(data)
    first = HEADER.size
    second = first + once1 + more1
    third = second + 2 * (once2 + more2)
    many = (len(data) - third - more1 - more2) // 5
    fourth = third + 4 * many
    found: list[int] = []
    for width, pattern in wanted:
        if width == 1:
            at = data.find(pattern, first, second) - first
            found.append(0 if at < 0 else 1 if at < once1 else data[fourth + at - once1])
        elif width == 2:
            at = _find_aligned(data, pattern, second, third)
            found.append(0 if at < 0 else 1 if at < once2 else data[fourth + more1 + at - once2])
        else:
            at = _find_aligned(data, pattern, third, fourth) if many else -1
            found.append(0 if at < 0 else data[fourth + more1 + more2 + at])
    return found


def find_pattern(term: int) -> tuple[int, bytes]:
    """Return the width of a term in a forward list, and its bytes there."""
    width = 1 if term < ONE_BYTE else 2 if term < TWO_BYTES else 4
    return width, term.to_bytes(width, "little")


def _find_aligned(data: bytes, pattern: bytes, start: int, end: int) -> int:
    """Return the index of a number among numbers of its width; -1 if it is not there."""
    width = len(pattern)
    at = data.find(pattern, start, end)
    while at >= 0 and (at - start) % width:
        at = data.find(pattern, at + 1, end)
    return -1 if at < 0 else (at - start) // width


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

    __slots__ = ("lengths", "namespaces", "size", "starts", "versions")

    def __init__(self, directory: Directory) -> None:
        count = directory.count
        self.versions = unpack("I" if len(directory.versions) == 4 * count else "q", directory.versions)
        self.lengths = unpack("H" if len(directory.lengths) == 2 * count else "I", directory.lengths)
        self.namespaces = directory.namespaces
        self.starts = unpack("I", directory.starts)
        #: About how many bytes of memory it takes.
        self.size = 12 * count + sum(64 + len(ns) for ns in self.namespaces)

    def __len__(self) -> int:
        return len(self.versions)

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
