"""Learned filter indexes in SQLite: a table of the values of each learned field, kept by triggers.

    holdall_learned          the fields; while `target` is not null, entries up to `position` of it are indexed
    holdall_learned_paths    the JSON paths of each field: a name with dots has two
    holdall_learned_values   field, value, ns, version -> one row for each value of an entry

`CREATE INDEX` would lock out all writers while it reads the whole table. Here, triggers add what is written from the
first moment on, in the write's own transaction and in every process, and old entries follow in slices. Searches use a
field once it is complete. Only the beginnings of long strings are stored, which compare in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from ...model.filter_indexes import Condition, find_covers
from ...model.filters import In, Order
from ...ops import LearnedField, LearnFields
from ..sql.narrowing import Binder, around, is_exact, is_safe, json_path
from ..sql.statements import SqlProgram, Statement
from .limits import find_room

MIGRATION = """
    CREATE TABLE holdall_learned (
        field INTEGER PRIMARY KEY,
        name TEXT UNIQUE, -- null: the field was dropped, and its values are being removed
        position INTEGER NOT NULL,
        target INTEGER,
        since INTEGER NOT NULL,
        uses INTEGER NOT NULL
    );
    CREATE TABLE holdall_learned_paths (
        field INTEGER NOT NULL, path TEXT NOT NULL, PRIMARY KEY (field, path)
    ) WITHOUT ROWID;
    CREATE TABLE holdall_learned_values (
        field INTEGER NOT NULL, value NOT NULL, ns TEXT NOT NULL, version INTEGER NOT NULL,
        PRIMARY KEY (field, value, ns, version)
    ) WITHOUT ROWID;
"""

#: An index that finds more candidates than this is not used: reading the newest entries first is often faster.
_MOST_CANDIDATES = 10_000
_SLICE_BYTES = 1 << 17  # of values: with 100 entries, a slice holds the write lock for a few milliseconds
_MAX_TEXT = 100  # characters of a string
_UNSAFE_LABEL = re.compile(r'["\\\x00-\x1f]')  # SQLite may misread a JSON path with one of these


def _select_values(row: str, source: str = "holdall_learned_paths") -> str:
    """Return a query for the values of a row's learned fields. A damaged value has none.

    `a.b` has two paths, which may have equal values. They are one row: in a trigger, the conflict clause of the write
    counts, and not that of the trigger's own INSERT.
    """
    field = f"json_extract({row}.value, path)"
    return (
        f"SELECT DISTINCT field,"
        f" CASE typeof({field}) WHEN 'text' THEN substr({field}, 1, {_MAX_TEXT}) ELSE {field} END,"
        f" {row}.ns, {row}.version FROM {source}"
        f" WHERE CASE WHEN json_valid({row}.value) THEN {field} IS NOT NULL END"
    )


_ADD = f"INSERT OR IGNORE INTO holdall_learned_values {_select_values('new')};"
_REMOVE = f"DELETE FROM holdall_learned_values WHERE (field, value, ns, version) IN ({_select_values('old')});"
_TRIGGERS = {
    "holdall_learned_insert": f"AFTER INSERT ON holdall_entries WHEN new.value IS NOT NULL BEGIN {_ADD} END",
    "holdall_learned_update": f"AFTER UPDATE OF version, ns, value ON holdall_entries BEGIN {_REMOVE} {_ADD} END",
    "holdall_learned_delete": f"AFTER DELETE ON holdall_entries WHEN old.value IS NOT NULL BEGIN {_REMOVE} END",
}
_BACKFILL = (
    f"INSERT OR IGNORE INTO holdall_learned_values"
    f" {_select_values('entry', 'holdall_entries AS entry NOT INDEXED, holdall_learned_paths AS learned')}"
    f" AND learned.field = :field AND entry.version > :position AND entry.version <= :last"
)
_NEXT_ENTRIES = (
    "SELECT version, octet_length(value) FROM holdall_entries NOT INDEXED"
    " WHERE version > :position AND version <= :target ORDER BY version LIMIT :limit"
)
_REMOVE_SLICE = (
    "DELETE FROM holdall_learned_values WHERE (field, value, ns, version) IN"
    " (SELECT field, value, ns, version FROM holdall_learned_values WHERE field = :field LIMIT :limit) RETURNING 1"
)
_UNFINISHED = "SELECT field, name, position, target FROM holdall_learned WHERE target IS NOT NULL OR name IS NULL"
_NEWEST = "SELECT coalesce(max(version), 0) FROM holdall_entries"


class _Field(NamedTuple):
    field: int
    name: str | None
    position: int
    target: int | None
    since: int
    uses: int


class LearnedFields:
    """The learned fields as programs over statements."""

    def __init__(self, declared: Collection[str]) -> None:
        self._declared = declared

    # Searching -------------------------------------------------------------------------------------------------------

    def find_candidates(self, filter: str, params: dict[str, Any], inside: str) -> SqlProgram[str | None]:
        """Return the condition that a learned field finds a row, or None if none finds few.

        `inside` is the condition that a row is in the namespaces of the search: the rows found meet it, too.
        """
        [rows] = yield [("SELECT name, field FROM holdall_learned WHERE target IS NULL AND name IS NOT NULL", {})]
        if not rows:
            return None
        known: dict[str, int] = dict(rows)
        covers = [
            [f"SELECT version FROM holdall_learned_values WHERE {part} {inside}" for part in parts]
            for cover in find_covers(filter, known.__contains__)
            if None not in (parts := [_translate(condition, known, Binder(params)) for condition in cover])
        ]
        if not covers:
            return None
        queries = [" UNION ALL ".join(cover) for cover in covers]
        limit = _MOST_CANDIDATES + 1
        counts = yield [(f"SELECT count(*) FROM (SELECT 1 FROM ({query}) LIMIT {limit})", params) for query in queries]
        fewest, best = min((count, number) for number, [(count,)] in enumerate(counts))
        return f"version IN ({queries[best]})" if fewest < limit else None

    # Learning --------------------------------------------------------------------------------------------------------

    def has_work(self, op: LearnFields) -> SqlProgram[bool]:
        """Return whether `learn` would write anything."""
        known = yield from self._read_fields()
        names = {field.name for field in known}
        if any(field.name is None or field.target is not None for field in known):
            return True
        if any(name in names for name, _ in op.uses):
            return True
        return any(self._can_learn(name) and name not in names for name in op.wanted)

    def learn(self, op: LearnFields, now: int) -> SqlProgram[bool]:
        """Begin with a wanted field, and do one slice; return whether more is left to do."""
        known = yield from self._read_fields()
        names = {field.name for field in known}
        uses = [(count, name) for name, count in op.uses if name in names]
        if uses:
            yield [("UPDATE holdall_learned SET uses = uses + ? WHERE name = ?", uses)]
        for name in op.wanted:
            if name not in names and self._can_learn(name):
                yield from self._begin(name, op, now)
        [rows] = yield [(f"{_UNFINISHED} ORDER BY name IS NOT NULL, field LIMIT 1", {})]
        if not rows:
            return False
        field, name, position, target = rows[0]
        if name is None:
            yield from self._remove_slice(field, op.limit)
        else:
            yield from self._index_slice(field, position, target, op.limit)
        [rows] = yield [(f"{_UNFINISHED} LIMIT 1", {})]
        return bool(rows)

    def describe(self) -> SqlProgram[tuple[LearnedField, ...]]:
        """Return the learned fields as `Stats` has them."""
        known = yield from self._read_fields()
        return tuple(
            LearnedField(field.name, "ready", uses=field.uses)
            if field.target is None
            else LearnedField(field.name, "building", field.position / max(field.target, 1), field.uses)
            for field in known
            if field.name is not None
        )

    def _read_fields(self) -> SqlProgram[list[_Field]]:
        [rows] = yield [(f"SELECT {', '.join(_Field._fields)} FROM holdall_learned ORDER BY field", {})]
        return [_Field(*row) for row in rows]

    def _can_learn(self, name: str) -> bool:
        return name not in self._declared and not _UNSAFE_LABEL.search(name)

    def _begin(self, name: str, op: LearnFields, now: int) -> SqlProgram[None]:
        """Begin the index of a field, if the store is large enough and no field in use would have to go for it."""
        count = f"SELECT count(*) FROM (SELECT 1 FROM holdall_entries LIMIT {op.least:d})"
        [[(entries,)], [(has_nul_keys,)]] = yield [(count, {}), ("PRAGMA user_version", {})]
        if entries < op.least or has_nul_keys:  # SQLite may misread keys with NUL, so no index would be used
            return
        known = {field.name: field for field in (yield from self._read_fields()) if field.name is not None}
        has_room, dropped = find_room({name: (field.since, field.uses) for name, field in known.items()}, now)
        if not has_room:
            return
        if dropped is not None:
            yield self._drop(known[dropped].field)
        # Uses are halved each time, so that those of long ago count less.
        yield [
            ("UPDATE holdall_learned SET uses = uses / 2", {}),
            (
                f"INSERT INTO holdall_learned (name, position, target, since, uses)"
                f" VALUES (:name, 0, ({_NEWEST}), :now, 0)",
                {"name": name, "now": now},
            ),
            (
                "INSERT OR IGNORE INTO holdall_learned_paths SELECT field, ? FROM holdall_learned WHERE name = ?",
                [(json_path(path), name) for path in ((name,), tuple(name.split(".")))],
            ),
            *((f"DROP TRIGGER IF EXISTS {trigger}", {}) for trigger in _TRIGGERS),  # of an earlier version
            *((f"CREATE TRIGGER {trigger} {body}", {}) for trigger, body in _TRIGGERS.items()),
        ]

    def _drop(self, field: int) -> list[Statement]:
        return [
            ("UPDATE holdall_learned SET name = NULL WHERE field = :field", {"field": field}),
            ("DELETE FROM holdall_learned_paths WHERE field = :field", {"field": field}),
        ]

    def _index_slice(self, field: int, position: int, target: int, limit: int) -> SqlProgram[None]:
        [rows] = yield [(_NEXT_ENTRIES, {"position": position, "target": target, "limit": limit})]
        if not rows:
            yield [("UPDATE holdall_learned SET target = NULL WHERE field = :field", {"field": field})]
            return
        last, room = position, _SLICE_BYTES
        for version, size in rows:
            last, room = version, room - (size or 0)
            if room < 0:
                break
        yield [
            (_BACKFILL, {"field": field, "position": position, "last": last}),
            ("UPDATE holdall_learned SET position = :last WHERE field = :field", {"field": field, "last": last}),
        ]

    def _remove_slice(self, field: int, limit: int) -> SqlProgram[None]:
        [removed] = yield [(_REMOVE_SLICE, {"field": field, "limit": limit})]
        if len(removed) < limit:
            yield [("DELETE FROM holdall_learned WHERE field = :field", {"field": field})]


def _translate(condition: Condition, known: dict[str, int], bind: Binder) -> str | None:
    """Return a condition on the table of values; None if SQLite may misread an operand."""
    name, node = condition
    operands = node.operands if isinstance(node, In) else (node.operand,)
    operator = node.operator if isinstance(node, Order) else "="
    parts = [_compare(operator, operand, bind) for operand in operands]
    if None in parts:
        return None
    return f"field = {known[name]:d} AND ({' OR '.join(part for part in parts if part)})"


def _compare(operator: str, operand: Any, bind: Callable[[Any], str]) -> str | None:
    """Return a comparison of a value.

    SQLite sorts numbers before texts, and texts before blobs: a range of one kind ends where the next one begins.
    """
    if isinstance(operand, str):
        if not is_safe(operand):
            return None
        text = bind(operand[:_MAX_TEXT])
        if operator == "=":
            return f"value = {text}"
        return f"value >= {text} AND value < x''" if operator in ("$gt", "$gte") else f"value >= '' AND value <= {text}"
    if not is_exact(operand):
        return None
    low, high = around(operand)
    if operator == "=":
        return f"value = {bind(low)}" if low == high else f"value >= {bind(low)} AND value <= {bind(high)}"
    return f"value >= {bind(low)} AND value < ''" if operator in ("$gt", "$gte") else f"value <= {bind(high)}"
