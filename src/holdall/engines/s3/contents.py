"""Contents of files in a bucket: the pieces of a body that are references, and the local copies of what they refer to.

A piece of more than `INLINE` bytes is written to an object of its own kind, a blob, before the record that names it. In
`holdall_chunks`, such a piece is text: `<blob>:<offset>:<length>`. Each cache has the same rows, and fetches a content
when it is read for the first time. Contents that a machine has written or fetched stay in a folder beside the database,
up to about `MOST_BYTES`; the oldest go first.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import Corrupt, Unavailable
from ..sqlite.connection import Connection
from ..sqlite.dialect import SqliteDialect
from .client import Client
from .objects import BLOB_ID, blob_name

#: Contents up to this size are part of a record.
INLINE = 8 << 10
#: About the most bytes of contents in the cache, beside the database.
MOST_BYTES = 1 << 30
_FETCHED_WHOLE = 1 << 20  # bytes: of a larger piece, only the part that is read is fetched
_LARGEST_BLOB = 64 << 20
_HEAD_BYTES = 1 << 20
_REFERENCE = re.compile(rf"({BLOB_ID}):(\d+):(\d+)", re.ASCII)  # the blob names a file, too, so no other name will do


class Reference(NamedTuple):
    """A part of a blob."""

    blob: str
    offset: int
    length: int

    @property
    def text(self) -> str:
        return f"{self.blob}:{self.offset}:{self.length}"


def parse_reference(text: str) -> Reference:
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise Corrupt(f"a piece of a file is damaged: {text[:100]!r}; delete the cache folder of the store")
    return Reference(found[1], int(found[2]), int(found[3]))


class S3Dialect(SqliteDialect):
    """SQLite's dialect, for bodies whose pieces may be references to blobs."""

    contents: Contents
    head = """(SELECT holdall_head(data) FROM (
        SELECT data FROM holdall_chunks WHERE body_id = body AND start < 1048576 ORDER BY start
    ))"""
    # Of a reference, more than any piece that may be merged with others.
    piece_length = "CASE typeof(data) WHEN 'text' THEN 1 << 40 ELSE length(data) END"

    # A reference ends with the length: see `Reference.text`.
    _after_blob = "substr(data, instr(data, ':') + 1)"
    whole_length = (
        f"CASE typeof(data) WHEN 'text' THEN CAST(substr({_after_blob}, instr({_after_blob}, ':') + 1) AS INTEGER)"
        " ELSE length(data) END"
    )

    def part(self, piece: Any, start: int, end: int | None) -> bytes:
        if isinstance(piece, str):
            return self.contents.read(parse_reference(piece), start, end)
        return super().part(piece, start, end)


class Contents:
    """The blobs of a store, and the local copies of their parts."""

    def __init__(self, folder: Path, client: Client, timeout: float) -> None:
        self._folder = folder
        self._client = client
        self._timeout = timeout

    def read(self, reference: Reference, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes `[start, end)` of a piece."""
        stop = reference.length if end is None else min(end, reference.length)
        if start >= stop:
            return b""
        with contextlib.suppress(OSError), self._path(reference).open("rb") as file:
            if os.fstat(file.fileno()).st_size == reference.length:
                file.seek(start)
                return file.read(stop - start)
        is_whole = reference.length <= max(_FETCHED_WHOLE, 2 * (stop - start))
        first, last = (0, reference.length) if is_whole else (start, stop)
        deadline = time.monotonic() + self._timeout
        span = reference.offset + first, reference.offset + last
        found = self._client.get(f"blob/{reference.blob}", deadline, span)
        if found is None or len(found) != last - first:
            raise Unavailable(
                f"the content {reference.blob!r} is not in the bucket; it was deleted, or this read took longer than"
                " deleted contents are kept: try again"
            )
        if not is_whole:
            return found
        self.keep(reference, found)
        return found[start:stop]

    def keep(self, reference: Reference, data: bytes) -> None:
        """Keep a copy of a piece. If the disk is full there is none, and it is fetched when it is read."""
        with contextlib.suppress(OSError):
            path = self._path(reference)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{secrets.token_hex(8)}")
            try:
                temporary.write_bytes(data)
                temporary.replace(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
            # By chance, about once in so many bytes: a process may end before it has written as many.
            if random.random() * (MOST_BYTES // 8) < len(data):
                self._trim()

    def clear(self) -> None:
        """Delete all copies."""
        try:
            for path in [*self._folder.glob("*")]:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(f"cannot delete {error.filename!r}: {error.strerror}; call erase again") from error

    def _trim(self) -> None:
        """Delete the oldest copies, if there are too many."""
        copies = []
        for entry in os.scandir(self._folder):
            with contextlib.suppress(OSError):
                status = entry.stat()
                copies.append((status.st_mtime, status.st_size, entry.path))
        total = sum(size for _, size, _ in copies)
        for _, size, path in sorted(copies):
            if total <= MOST_BYTES:
                return
            total -= size
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108  # a path as text

    def _path(self, reference: Reference) -> Path:
        return self._folder / f"{reference.blob}.{reference.offset}"

    # Writing ---------------------------------------------------------------------------------------------------------

    def move_to_blobs(
        self, writer: Connection, seq: int, put: Callable[[str, bytes], None]
    ) -> list[tuple[Reference, bytes]]:
        """Write the large pieces of a transaction to blobs, and replace them with references. Returns these."""
        rows: list[Any] = writer.execute(
            "SELECT piece.body_id, piece.start, length(piece.data)"
            " FROM (SELECT DISTINCT * FROM holdall_changed_1) AS noted"
            " JOIN holdall_chunks AS piece ON piece.body_id = noted.body_id AND piece.start = noted.start"
            " WHERE typeof(piece.data) = 'blob' ORDER BY piece.body_id, piece.start"
        ).fetchall()
        runs = [run for run in _find_runs(rows) if run[2] - run[1] > INLINE]
        if not runs:
            return []
        found: list[tuple[Reference, bytes]] = []
        batch: list[tuple[int, int, bytes]] = []
        room = _LARGEST_BLOB
        for body, start, end in runs:
            batch.append((body, start, _read_run(writer, body, start, end)))
            room -= end - start
            if room <= 0:
                found += self._write_blob(writer, batch, seq, put)
                batch, room = [], _LARGEST_BLOB
        if batch:
            found += self._write_blob(writer, batch, seq, put)
        return found

    def _write_blob(
        self,
        writer: Connection,
        batch: list[tuple[int, int, bytes]],
        seq: int,
        put: Callable[[str, bytes], None],
    ) -> Iterator[tuple[Reference, bytes]]:
        name = blob_name(seq)
        put(name, b"".join(data for _, _, data in batch))
        offset = 0
        for body, start, data in batch:
            reference = Reference(name.removeprefix("blob/"), offset, len(data))
            offset += len(data)
            writer.execute(
                "DELETE FROM holdall_chunks WHERE body_id = ? AND start >= ? AND start < ?",
                (body, start, start + len(data)),
            )
            writer.execute("INSERT INTO holdall_chunks VALUES (?, ?, ?)", (body, start, reference.text))
            yield reference, data


def find_referenced(connection: Connection) -> set[str]:
    """Return the names of the blobs that rows refer to."""
    blobs = "SELECT DISTINCT substr(data, 1, instr(data, ':') - 1) FROM holdall_chunks WHERE typeof(data) = 'text'"
    return {str(blob) for (blob,) in connection.execute(blobs)}


def _find_runs(rows: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the body, start and end of each run of pieces that follow each other."""
    runs: list[tuple[int, int, int]] = []
    for body, start, length in rows:
        if runs and runs[-1][0] == body and runs[-1][2] == start:
            runs[-1] = body, runs[-1][1], start + length
        else:
            runs.append((body, start, start + length))
    return runs


def _read_run(writer: Connection, body: int, start: int, end: int) -> bytes:
    rows = writer.execute(
        "SELECT data FROM holdall_chunks WHERE body_id = ? AND start >= ? AND start < ? ORDER BY start",
        (body, start, end),
    )
    return b"".join(data for (data,) in rows)


def join_pieces(dialect: S3Dialect) -> Any:
    """Return an SQL aggregate that joins the pieces of a body."""
    return [], lambda pieces, data: pieces.append(dialect.part(data, 0, None)), b"".join


def join_heads(dialect: S3Dialect) -> Any:
    """Return an SQL aggregate that joins the first bytes of each piece."""
    return [], lambda pieces, data: pieces.append(dialect.part(data, 0, _HEAD_BYTES)), b"".join
