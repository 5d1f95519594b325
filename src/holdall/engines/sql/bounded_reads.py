"""Reads entries so that the contents of files in memory stay within a number of bytes.

A row comes with the content of its file if that is small. Larger contents are read later, for one group of rows at a
time. All entries are read in this way, except those that are read by key. Records have everything that is stored of an
entry, for copies, backups and comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ... import ops
from ...engine import PAGE_BYTES
from ...model import file_values, keys
from ...ops import Record, Vectors
from ...runtime.programs import Work
from .dialect import Dialect
from .statements import Rows, SqlProgram

#: A content of at most so many bytes comes with its row.
_SMALL = 1 << 14
_LARGEST_PAGE = 4096  # rows
#: So many rows, and characters in them, are processed without a worker thread: that takes about a millisecond.
_FEW_ROWS, _SHORT = 64, 1 << 16

T = TypeVar("T")

COLUMNS = "ns, key, value, version, created, updated, expires"


class BoundedReads:
    """The columns that `to_entry` makes an entry of: with small contents only, or with all contents."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.columns, self.columns_with_content = (
            f"{COLUMNS}, CASE WHEN size <= {largest} THEN {dialect.content} END, appended, size"
            for largest in (_SMALL, file_values.LARGEST)
        )

    def load_contents(self, rows: Rows) -> SqlProgram[Rows]:
        """Return the rows with their missing contents, without the rows that have changed since they were read.

        Columns after those of an entry stay as they are.
        """
        versions = [row[3] for row in rows if _count_missing_bytes(row)]
        if not versions:
            return rows
        among, params = self._dialect.among("version", versions)
        [found] = yield [(f"SELECT version, {self._dialect.content} FROM {self._dialect.table} WHERE {among}", params)]
        contents = dict(found)
        return [
            (*row[:7], contents[row[3]], *row[8:]) if _count_missing_bytes(row) else row
            for row in rows
            if row[3] in contents or not _count_missing_bytes(row)
        ]


class RecordsReader:
    """The columns of a record, and how rows of them become records."""

    def __init__(self, dialect: Dialect, reads: BoundedReads) -> None:
        self._dialect = dialect
        self._reads = reads
        self.columns = f"{reads.columns}, ttl, fields, vectors, coalesce(kind, 'put')"

    def load(self, rows: Rows) -> SqlProgram[tuple[list[Record], int]]:
        """Return the records of the first rows, as many as fit into memory, and how many rows are left."""
        if not rows:
            return [], 0
        first = next(split_by_bytes(rows))
        loaded = yield from self._reads.load_contents(first)
        vectors = yield from self._read_vectors([row[3] for row in loaded if row[12] is not None])
        return [_to_record(row, vectors) for row in loaded], len(rows) - len(first)

    def _read_vectors(self, versions: list[int]) -> SqlProgram[dict[tuple[int, int], list[bytes]]]:
        """Return the vectors of entries, by version and model."""
        found: dict[tuple[int, int], list[bytes]] = {}
        if not versions:
            return found
        among, params = self._dialect.among("version", versions)
        expression, to_bytes = self._dialect.vector_out
        table = self._dialect.vectors
        [rows] = yield [(f"SELECT version, model, {expression} FROM {table} WHERE {among} ORDER BY id", params)]
        for version, model, data in rows:
            found.setdefault((version, model), []).append(to_bytes(data))
        return found


def process_rows(function: Callable[[Any, Rows], T], op: ops.Search | ops.Count, rows: Rows) -> SqlProgram[T]:
    """Return `function(op, rows)`; if the rows are many or long, a worker thread runs it, not an event loop."""
    if len(rows) <= _FEW_ROWS and sum([len(row[2]) + (row[9] or 0) for row in rows]) <= _SHORT:  # a value, and a file
        return function(op, rows)
    return (yield Work(function, (op, rows)))  # type: ignore[no-any-return]  # the result of the function


def split_by_bytes(rows: Rows) -> Iterator[Rows]:
    """Split rows into groups whose values and missing contents fit into memory together."""
    start, room = 0, PAGE_BYTES
    for index, row in enumerate(rows):
        size = _value_length(row) + _count_missing_bytes(row)
        if size > room and index > start:
            yield rows[start:index]
            start, room = index, PAGE_BYTES
        room -= size
    yield rows[start:]


def next_page_size(size: int, rows: Rows) -> int:
    """Return how many rows to read next: four times as many as in this page, or fewer if its values are long."""
    if sum(map(_value_length, rows)) > PAGE_BYTES:
        return max(1, size // 4)
    return max(size, min(size * 4, _LARGEST_PAGE))


def _count_missing_bytes(row: tuple[Any, ...]) -> int:
    """Return how many bytes of content the row lacks."""
    size = row[9]
    return size if type(size) is int and _SMALL < size <= file_values.LARGEST else 0


def _value_length(row: tuple[Any, ...]) -> int:
    """Return the length of the value. A damaged value counts as 0 here, and raises an error where it is decoded."""
    return len(row[2]) if isinstance(row[2], str | bytes) else 0


def _to_record(row: tuple[Any, ...], vectors: dict[tuple[int, int], list[bytes]]) -> Record:
    ns, key, value, version, created, updated, expires, content, appended, size, ttl, fields, model, kind, *_ = row
    data = () if model is None else tuple(vectors.get((version, model), ()))
    return Record(
        keys.decode(ns),
        key,
        version,
        kind,
        value,
        created,
        updated,
        expires,
        ttl,
        fields,
        size,
        b"" if size == 0 else content,
        bool(appended),
        Vectors(model, data) if data else None,
    )
