"""The format of an index: a header, small sections, and the codes of all vectors, cell by cell.

A vector is stored as whole numbers of one byte and a scale. The small sections have a checksum of their own, checked
when an index is opened. Each cell has one for its codes, checked when a search first reads the cell. An index never
changes once it is written.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from ..embedders import Metric

Singles: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Doubles: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_MAGIC = b"HOLDVEC1"
_PREFIX = struct.Struct("<8sII")  # the magic bytes, the length of the header, and its checksum
_HEADER_SIZE = 4096
_ALIGNMENT = 64


class Damaged(Exception):
    """The file is not a whole index. The caller ignores it, and builds another one."""


@dataclass(frozen=True, slots=True)
class Header:
    """What an index covers."""

    build: str  # the name of this index, different for each that is built
    model: int
    metric: Metric  # for which the cells are made; bounds are right for every metric
    dims: int
    count: int  # of vectors
    cells: int
    trained: int  # how many vectors there were when the centroids were computed; 0 if cells have no centroids
    last: int  # the index covers all vectors with ids up to this one


class Sections:
    """The arrays of an index, as views of a buffer."""

    def __init__(self, header: Header, buffer: Any) -> None:
        self.header = header
        self._buffer = buffer
        self._offset = _HEADER_SIZE
        count, cells, dims = header.count, header.cells, header.dims
        self.centroids: Singles = self._view("<f4", cells if header.trained else 0, dims)
        self.starts: Ints = self._view("<i8", cells + 1)  # the first row of each cell
        self.checksums: Any = self._view("<u4", cells)
        self.versions: Ints = self._view("<i8", count)
        self.scales: Singles = self._view("<f4", count)
        self.errors: Singles = self._view("<f4", count)  # the distance of each vector from its codes
        self.lengths: Doubles = self._view("<f8", count)
        self.sorted_versions: Ints = self._view("<i8", count)
        self.sorted_rows: Any = self._view("<i4", count)  # the rows of the versions above
        self._codes_offset = self._offset
        self.codes: Any = self._view("i1", count, dims)

    def _view(self, kind: str, *shape: int) -> Any:
        dtype = np.dtype(kind)
        size = int(np.prod(shape)) * dtype.itemsize
        if self._buffer is None:
            found = None
        elif self._offset + size > len(self._buffer):
            raise Damaged("it was cut")
        else:
            found = np.frombuffer(self._buffer, dtype, size // dtype.itemsize, self._offset).reshape(shape)
        self._offset += -(-size // _ALIGNMENT) * _ALIGNMENT
        return found

    @property
    def size(self) -> int:
        """The number of bytes of the whole index."""
        return self._offset

    def checksum(self) -> int:
        """Compute the checksum of the small sections."""
        return zlib.crc32(memoryview(self._buffer)[_HEADER_SIZE : self._codes_offset])

    def cell_checksum(self, cell: int) -> int:
        """Compute the checksum of the codes of a cell."""
        return zlib.crc32(self.codes[self.starts[cell] : self.starts[cell + 1]])

    def write_header(self) -> None:
        """Write the header. It comes last: without it, the rest is no index."""
        text = json.dumps(asdict(self.header) | {"checksum": self.checksum()}).encode()
        self._buffer[: _PREFIX.size] = _PREFIX.pack(_MAGIC, len(text), zlib.crc32(text))
        self._buffer[_PREFIX.size : _PREFIX.size + len(text)] = text


def size_of(header: Header) -> int:
    """Return how many bytes an index needs."""
    return Sections(header, None).size


def map_file(path: str, build: str) -> Sections:
    """Map a file that was written under this name; `Damaged` if it is not one, or not whole."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise Damaged(str(error)) from error
    try:
        buffer = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise Damaged(str(error)) from error
    finally:
        os.close(handle)
    sections = read_sections(buffer)
    if sections.header.build != build:
        raise Damaged("it is another index")
    return sections


def read_sections(buffer: Any) -> Sections:
    """Check the header and the small sections of an index."""
    try:
        magic, length, checksum = _PREFIX.unpack_from(buffer)
        text = bytes(buffer[_PREFIX.size : _PREFIX.size + length])
        if magic != _MAGIC or zlib.crc32(text) != checksum:
            raise Damaged("its header is damaged")
        fields = json.loads(text)
        expected = fields.pop("checksum")
        header = Header(**fields)
    except (struct.error, ValueError, TypeError, KeyError) as error:
        raise Damaged(str(error)) from error
    sections = Sections(header, buffer)
    if len(buffer) < sections.size or sections.checksum() != expected:
        raise Damaged("its sections are damaged")
    return sections
