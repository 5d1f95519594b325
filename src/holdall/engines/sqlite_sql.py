"""SQLite's words: the schema, and how it reads fields.

The row's id is its version, so that the table itself is in the order of the feed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..errors import InvalidInput
from ..filters import check_field
from .narrowing import Binder, Path, index_name, json_path
from .sql import Dialect

#: Numbered and additive. A file with more of them than we know is refused.
MIGRATIONS = (
    """
    CREATE TABLE holdall_entries (
        version INTEGER PRIMARY KEY,
        ns TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT,
        created INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        expires INTEGER,
        ttl INTEGER,
        kind TEXT,
        UNIQUE (ns, key)
    );
    CREATE INDEX holdall_newest ON holdall_entries (ns, version, expires) WHERE value IS NOT NULL;
    CREATE INDEX holdall_expiring ON holdall_entries (expires) WHERE expires IS NOT NULL;
    """,
)

_GLOB_SPECIAL = re.compile(r"[*?\[]")
_UNSAFE_LABEL = re.compile(r'["\\\x00-\x1f]')  # a JSON path cannot be trusted to name these


class SqliteDialect(Dialect):
    table = "holdall_entries"
    upserts_return = False
    # Right as long as the row with the highest version is never removed, be it a tombstone.
    next_version = "(SELECT coalesce(max(version), 0) + 1 FROM holdall_entries)"
    redrawn_version = "excluded.version"

    def __init__(self, indexed: Sequence[str]) -> None:
        self._indexed: set[Path] = set()
        for field in indexed:
            path = check_field(field)
            if any(_UNSAFE_LABEL.search(label) or "'" in label for label in path):
                raise InvalidInput(
                    f"indexed= cannot name a field with quotes, backslashes or control characters: {field!r}"
                )
            self._indexed |= {path, (field,)}  # a key with dots means both

    def bury(self, which: str, kind: str) -> str:
        return f"""
            UPDATE holdall_entries SET
                version = (SELECT max(version) FROM holdall_entries) + doomed.place,
                value = NULL, expires = NULL, ttl = NULL, updated = :now, kind = '{kind}'
            FROM (
                SELECT version AS old, row_number() OVER () AS place
                FROM (SELECT version FROM holdall_entries WHERE {which})
            ) AS doomed
            WHERE version = doomed.old RETURNING version"""

    def after(self, ns: str, depth: int | None) -> str:
        return f"{ns} || char(1)" if depth is None else f"holdall_after({ns}, {depth:d})"

    def compare(self, path: Path, operator: str, operand: Any, bind: Binder) -> str | None:
        field = self._field(path, bind)
        if field is None:
            return None
        if operator == "IN":
            return f"{field} IN ({', '.join(bind(item) for item in operand)})"
        condition = f"{field} {operator} {bind(operand)}"
        if operator != "=" and self.is_indexed(path):  # else SQLite takes any range for a quarter of all rows
            return f"likelihood({condition}, 0.001)"
        if operator == "=" and not self.is_indexed(path):
            if isinstance(operand, str) and len(operand) <= 1000:
                return f"({self._mentions(msgspec.json.encode(operand).decode(), bind)} AND {condition})"
            if type(operand) is int:  # 5, 5.0 and -5 all say "5", up to 2**53
                return f"({self._mentions(str(abs(operand)), bind)} AND {condition})"
        return condition

    def is_null(self, path: Path, bind: Binder) -> str | None:
        field = self._field(path, bind)
        return field and f"{field} IS NULL"

    def is_there(self, path: Path, bind: Binder) -> str | None:
        where = self._where(path, bind)
        return where and f"json_type(value, {where}) IS NOT NULL"

    def _field(self, path: Path, bind: Binder) -> str | None:
        where = self._where(path, bind)
        return where and f"json_extract(value, {where})"

    def _mentions(self, text: str, bind: Binder) -> str:
        """Whether the value's JSON contains this text: GLOB finds that out in half the time of parsing it."""
        literal = _GLOB_SPECIAL.sub(r"[\g<0>]", text)
        return f"value GLOB {bind(f'*{literal}*')}"

    def is_indexed(self, path: Path) -> bool:
        return path in self._indexed

    def indexes(self) -> Iterator[tuple[str, str]]:
        """Name and statement of each declared index: a field's value first, then where it lives."""
        for path in sorted(self._indexed):
            name = f"holdall_{index_name(path)}"
            field = f"json_extract(value, '{json_path(path)}')"
            yield (
                name,
                (f'CREATE INDEX IF NOT EXISTS "{name}" ON holdall_entries ({field}, ns) WHERE {field} IS NOT NULL'),
            )

    def _where(self, path: Path, bind: Binder) -> str | None:
        if self.is_indexed(path):  # word for word what the index says, or SQLite would not use it
            return f"'{json_path(path)}'"
        if any(_UNSAFE_LABEL.search(label) for label in path):
            return None
        return bind(json_path(path))
