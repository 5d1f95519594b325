"""The format of a backup: one compressed file that any engine can load.

    magic, format         12 bytes, and a 2-byte number; a reader refuses a format that is newer than its own
    blocks                a letter, the length of the data and of what is stored, a checksum, and the stored bytes
    checksum              SHA-256 of everything before it; nothing follows

The data of a block is compressed with zlib. Its checksum also covers the checksum of the block before it, so a block
that was changed, removed, repeated or moved is found. The blocks are, in this order:

    H   the header, JSON: which holdall wrote it, when, of which namespace, and the note on the embedding model
    R   records, MessagePack; a later record of an entry replaces an earlier one, a tombstone removes it
    P   a piece of the file that was the last record of the block before, if its content is not in the record
    X   the file whose pieces came before is not whole, because it has changed: ignore it
    E   the end, JSON: how much there is

Data is checked against the types of `ops.Record` when it is read, and nothing in it is executed. Exports and imports
open local files with `open_local` and `replace_local`, too.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from ..errors import Corrupt, FileNotFound, HoldallError, InvalidInput, SchemaTooNew, Unavailable, shown
from ..ops import Record

MAGIC = b"\x89holdall\r\n\x1a\n"
FORMAT = 1
_VERSION = struct.Struct("<H")
_BLOCK = struct.Struct("<cII16s")
_BLOCK_BYTES = 1 << 20  # of data, after which a block of records ends
_MOST_RECORDS = 500
_LEVEL = 3  # of zlib: measured on JSON of 1 KB, a third of the time of level 6 for 8 % more bytes
_LARGEST_BLOCK = 1 << 30
_END_BYTES = 32
_OF_DISKS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.ENAMETOOLONG}
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Record])


class ArchiveWriter:
    """Writes an archive to a binary file. Its methods block."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._whole = hashlib.sha256()
        self._last = b""
        self._records: list[Record] = []
        self._room = _BLOCK_BYTES
        self.bytes = 0
        self._write(MAGIC + _VERSION.pack(FORMAT))

    def write_header(self, header: dict[str, Any]) -> None:
        self._block(b"H", msgspec.json.encode(header))

    def add(self, records: list[Record]) -> None:
        """Add records whose contents are in them."""
        for record in records:
            self._records.append(record)
            vectors = sum(map(len, record.vectors.data)) if record.vectors is not None else 0
            self._room -= len(record.value or "") + len(record.content or b"") + len(record.key) + vectors
            if self._room < 0 or len(self._records) == _MOST_RECORDS:
                self.flush()

    def add_piece(self, data: bytes) -> None:
        self._block(b"P", data)

    def drop_file(self) -> None:
        """Mark the file whose pieces were added last as not whole."""
        self._block(b"X", b"")

    def flush(self) -> None:
        """End the block of records."""
        if self._records:
            self._block(b"R", _encoder.encode(self._records))
            self._records, self._room = [], _BLOCK_BYTES

    def finish(self, end: dict[str, Any]) -> None:
        self.flush()
        self._block(b"E", msgspec.json.encode(end))
        self._write(self._whole.digest())
        self._file.flush()

    def _block(self, kind: bytes, data: bytes) -> None:
        stored = zlib.compress(data, _LEVEL)
        self._last = _checksum(self._last, kind, len(data), stored)
        self._write(_BLOCK.pack(kind, len(data), len(stored), self._last) + stored)

    def _write(self, data: bytes) -> None:
        self._whole.update(data)
        self._file.write(data)
        self.bytes += len(data)


def _check_path(path: Any) -> Path:
    """Check the name of a local file."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(name, str) or not name or "\x00" in name:
        raise InvalidInput(f"the name of a local file is a text or a path, not {shown(path)}")
    target = Path(name)
    if target.is_dir():
        raise InvalidInput(f"{name!r} is a folder; name a file")
    return target


def open_local(path: Any) -> IO[bytes]:
    """Open a local file for reading."""
    source = _check_path(path)
    try:
        return source.open("rb")
    except FileNotFoundError as error:
        raise FileNotFound(f"there is no file {str(source)!r}") from error
    except OSError as error:
        raise Unavailable(f"cannot read {str(source)!r}: {error.strerror}") from error


@contextmanager
def replace_local(path: Any) -> Iterator[IO[bytes]]:
    """Yield a temporary file, which replaces the file at `path` at the end of the block, once it is on the disk."""
    try:
        with _replace(path) as file:
            yield file
    except OSError as error:
        if isinstance(error, HoldallError) or error.errno not in _OF_DISKS:  # such as one that `progress` raises
            raise
        raise Unavailable(f"cannot write {os.fspath(path)!r}: {error.strerror}; what was there is as it was") from error


@contextmanager
def _replace(path: Any) -> Iterator[IO[bytes]]:
    target = _check_path(path)
    if target.exists() and not target.is_file():  # a device would be replaced
        raise InvalidInput(f"{str(target)!r} is no regular file; name another one")
    target = Path(os.path.realpath(target))  # a link stays one
    if target.is_symlink():
        raise InvalidInput(f"{str(target)!r} is a link to itself; name another file")
    if not target.parent.is_dir():
        raise FileNotFound(f"there is no folder {str(target.parent)!r} for the file {target.name!r}; make it first")
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name[:40]}.", delete=False) as part:
        try:
            yield part
            part.flush()
            os.fsync(part.fileno())
            part.close()
            os.replace(part.name, target)  # noqa: PTH105  # a str
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise


class ArchiveReader:
    """Reads an archive block by block, and checks it. Its methods block."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = open_local(path)
        self.path = os.fspath(path)
        self._whole = hashlib.sha256()
        self._last = b""
        self.digest = b""  # of the whole archive, once it was read to its end
        try:
            self._read_start()
        except BaseException:
            self._file.close()
            raise

    def _read_start(self) -> None:
        magic = self._read(len(MAGIC), "its beginning")
        if magic != MAGIC:
            raise Corrupt(f"{self.path!r} is not a backup of holdall, or its beginning is damaged")
        (version,) = _VERSION.unpack(self._read(_VERSION.size, "its beginning"))
        if version > FORMAT:
            raise SchemaTooNew(
                f"{self.path!r} has format {version}, made by a newer holdall; this one reads up to {FORMAT}: upgrade"
            )
        if version == 0:
            raise self.damaged("its format number is 0")

    def read_block(self) -> tuple[bytes, bytes]:
        """Return the letter and the data of the next block; of the end, once the checksum of the whole is right."""
        kind, length, stored_length, checksum = _BLOCK.unpack(self._read(_BLOCK.size, "a block"))
        if max(length, stored_length) > _LARGEST_BLOCK:
            raise self.damaged("the length of a block is damaged")
        stored = self._read(stored_length, "a block")
        self._last = _checksum(self._last, kind, length, stored)
        if self._last != checksum:
            raise self.damaged("a block does not match its checksum")
        inflater = zlib.decompressobj()
        try:
            data = inflater.decompress(stored, length + 1)
        except zlib.error as error:
            raise self.damaged(f"a block cannot be decompressed ({error})") from error
        if len(data) != length or not inflater.eof or inflater.unused_data:
            raise self.damaged("a block does not have the length that precedes it")
        if kind == b"E":
            whole = self._whole.digest()
            if self._read(_END_BYTES, "its checksum") != whole:
                raise self.damaged("the file does not match its checksum")
            if self._file.read(1):
                raise self.damaged("something follows its end")
            self.digest = whole
        return kind, data

    def position(self) -> tuple[int, int]:
        """Return how many bytes were read, and the size of the file."""
        return self._file.tell(), os.fstat(self._file.fileno()).st_size

    def read_records(self, data: bytes) -> list[Record]:
        """Decode a block of records."""
        try:
            return _decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise self.damaged(f"a record cannot be read: {error}") from error

    def read_json(self, data: bytes) -> dict[str, Any]:
        """Decode the header or the end."""
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise self.damaged(f"its header cannot be read: {error}") from error

    def _read(self, size: int, what: str) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise self.damaged(f"the file ends in {what}: it was cut, or not written to its end")
        self._whole.update(data)
        return data

    def damaged(self, why: str) -> Corrupt:
        """Return the error for an archive that is not as it was written."""
        return Corrupt(f"the backup {shown(self.path)} is damaged, and nothing of it was loaded: {why}")

    def close(self) -> None:
        self._file.close()


def _checksum(last: bytes, kind: bytes, length: int, stored: bytes) -> bytes:
    digest = hashlib.blake2b(last, digest_size=16)
    digest.update(kind + length.to_bytes(4, "little") + len(stored).to_bytes(4, "little"))
    digest.update(stored)
    return digest.digest()
