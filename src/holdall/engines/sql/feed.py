"""The feed: rows of the table of entries in the order of their changes, and the conditions that select rows.

A position in the feed is a text. Here it is the version of the last change before it; an engine may have another kind.
A deleted entry stays in the feed as a tombstone until it is purged. The *purge mark* tells how far that went: the
position of the last tombstone that was removed. It is the value of a hidden entry, written in the same transaction. A
cursor from before the purge mark has expired, because its reader would miss those deletions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from ... import ops
from ...engine import feed_from, parse_revision, to_change
from ...model import keys
from ...model.values import decode, encode
from ...ops import Change, Namespace, Page
from .dialect import Dialect
from .narrowing import narrow
from .statements import LIVE, UNEXPIRED, Rows, SqlProgram, Statement

# Stored data: the names must not change.
MARK_NAMESPACE, MARK_KEY = (keys.RESERVED, "history"), "forgotten"

#: The condition that a row is the entry at a path or one below it; `at_or_below` has its parameters.
AT_OR_BELOW = "key >= :key AND key < :high AND (key = :key OR key >= :low)"


class Learned(Protocol):
    """Learned fields in a table of their own (`engines/learned`)."""

    def find_candidates(self, filter: str, params: dict[str, Any], inside: str) -> SqlProgram[str | None]:
        """Return the condition that an index finds a row, or None if none finds few."""


class SqlFeed:
    """Reads the feed, as programs over statements."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._table = dialect.table
        #: False once a damaged value is known: then filters are not translated to SQL, and Python reads every value.
        self.trusts_fields = True
        self.learned: Learned | None = None  # the learned fields, if they are in a table of their own
        self._read_mark: Statement = (
            f"SELECT value FROM {self._table} WHERE ns = :ns AND key = :key",
            {"ns": keys.encode(MARK_NAMESPACE), "key": MARK_KEY},
        )

    # Positions -------------------------------------------------------------------------------------------------------

    def position(self) -> SqlProgram[str]:
        """Return the position after the last change."""
        [[(newest,)]] = yield [(f"SELECT coalesce(max(version), 0) FROM {self._table}", {})]
        return str(newest)

    def since(
        self, position: str, columns: str, where: str, params: dict[str, Any], limit: int, end: str | None = None
    ) -> SqlProgram[tuple[Rows, str]]:
        """Return rows that changed after a position, in order, and the position after them.

        Each row has the position after it as a further column. `end` is the end of the feed, if it is known.
        """
        since = parse_revision(position or "0")
        newest = int((yield from self.position()) if end is None else end)
        table = f"{self._table} {self._dialect.by_version}"
        sql = f"SELECT {columns}, version FROM {table} WHERE {where} AND version > :above ORDER BY version LIMIT :limit"
        [rows] = yield [(sql, {**params, "above": since, "limit": limit})]
        found = [(*row[:-1], str(row[-1])) for row in rows]
        return found, found[-1][-1] if len(found) == limit else str(max(since, newest))

    def count_since(self, position: str) -> SqlProgram[int]:
        """Return how many rows `since` may give in all; some of them may have been read already."""
        above = parse_revision(position or "0")
        [[(count,)]] = yield [(f"SELECT count(*) FROM {self._table} WHERE version > :above", {"above": above})]
        return count  # type: ignore[no-any-return]  # a row's column

    def resume(self, cursor: str | None) -> SqlProgram[tuple[str, str, Callable[[str], str]]]:
        """Return the end of the feed, the position of a cursor, and a function that makes cursors of positions."""
        end = yield from self.position()
        mark = yield from self.purge_mark()
        since, cursor_after = feed_from(cursor, int(end), mark)
        return end, str(since), lambda position: cursor_after(int(position))

    def changes(self, op: ops.Changes, now: int | None) -> SqlProgram[Page[Change]]:
        end, position, make_cursor = yield from self.resume(op.since)
        if op.limit == 0:
            return Page((), end)
        # An expired entry cannot be read. Its expiry becomes a change of its own, once it is swept.
        params: dict[str, Any] = {"now": now}
        where = f"kind IS DISTINCT FROM 'none' AND {UNEXPIRED} {_changed_within(op, params)}"
        columns = "ns, key, coalesce(kind, 'put'), version"
        rows, position = yield from self.since(position, columns, where, params, op.limit, end)
        changes = [to_change(version, ns, key, kind, make_cursor(after)) for ns, key, kind, version, after in rows]
        return Page(changes, make_cursor(position))

    # Tombstones ------------------------------------------------------------------------------------------------------

    def purge_mark(self) -> SqlProgram[int]:
        """Return the position up to which tombstones were purged; 0 if none were."""
        [rows] = yield [self._read_mark]
        return _parse_mark(rows)

    def find_purgeable(self, op: ops.PurgeTombstones, now: int | None) -> SqlProgram[tuple[list[int], int]]:
        """Return the versions of tombstones that may be removed, and the purge mark once they are.

        Rows that only reserved a key for a transaction (`kind` is 'none') are removed too. No reader misses them.
        """
        if self._dialect.purge_lock:
            [[(is_ours,)]] = yield [(self._dialect.purge_lock, {})]
            if not is_ours:
                return [], 0
        mark = f"CASE WHEN kind = 'none' THEN 0 ELSE {self._dialect.feed_mark} END AS mark"
        oldest = (
            f"SELECT version, updated, {mark} FROM {self._table}"
            f" WHERE value IS NULL {self._dialect.settled} ORDER BY version LIMIT :limit"
        )
        expired = f"SELECT version, mark FROM ({oldest}) AS oldest WHERE updated <= :now - :age"
        params = {"limit": op.limit, "now": now, "age": round(op.age * 1_000_000)}
        [found, known] = yield [(expired, params), self._read_mark]
        versions = [version for version, _ in found]
        return versions, max([_parse_mark(known), *(mark for _, mark in found)])

    def delete_tombstones(self, versions: list[int]) -> Statement:
        among, params = self._dialect.among("version", versions)
        return f"DELETE FROM {self._table} WHERE value IS NULL AND {among}", params

    # Conditions ------------------------------------------------------------------------------------------------------

    def narrow(
        self, filter: str | None, inside: str, params: dict[str, Any]
    ) -> SqlProgram[tuple[str, str | None, bool]]:
        """Return conditions that every row meets which matches a filter, and whether an index serves them.

        The first is `inside`, the condition on the namespace, or nothing if the second includes it; the second may be
        None.
        """
        if filter is None or not self.trusts_fields:
            return inside, None, False
        if self._dialect.misread_check:
            [[(has_misread_values,)]] = yield [(self._dialect.misread_check, {})]
            if has_misread_values:
                return inside, None, False
        narrowed, is_indexed = narrow(filter, self._dialect, params)
        if not is_indexed and self.learned is not None:
            candidates = yield from self.learned.find_candidates(filter, params, inside)
            if candidates is not None:
                # Without the condition on the namespace: SQLite may prefer to read the whole namespace.
                return "", f"{candidates} AND {narrowed}" if narrowed else candidates, True
        return inside, narrowed, is_indexed

    def search_condition(self, op: ops.Search, params: dict[str, Any]) -> SqlProgram[tuple[str, bool]]:
        """Return the condition that a row may be a result of a search, and whether an index serves the filter."""
        inside = within(op.prefix, op.recursive, params)
        inside, narrowed, is_indexed = yield from self.narrow(op.filter, inside, params)
        return f"{LIVE} {inside}" + (f" AND {narrowed}" if narrowed else ""), is_indexed


def put_purge_mark(mark: int) -> ops.Put:
    """Return the put that stores the purge mark."""
    return ops.Put(MARK_NAMESPACE, MARK_KEY, cast(Any, encode({"mark": mark})), None)


def insert_first_entry(version: int) -> Statement:
    """Return a statement for an empty SQLite table that continues a lost one: all later versions are above this one.

    The entry is the purge mark, so that every cursor of the lost table has expired.
    """
    sql = (
        "INSERT INTO holdall_entries (version, ns, key, value, created, updated)"
        " VALUES (:version, :ns, :key, :value, :version, :version)"
    )
    mark = encode({"mark": version})
    return sql, {"version": version, "ns": keys.encode(MARK_NAMESPACE), "key": MARK_KEY, "value": mark}


def within(prefix: Namespace, recursive: bool, params: dict[str, Any]) -> str:
    """Return the condition that a row is in a namespace, or below it too, and add its parameters."""
    low = keys.encode(prefix)
    if not recursive:
        params["low"] = low
        return "AND ns = :low"
    low, high = keys.below(low)
    if high is None:
        params.update(hidden_low=keys.HIDDEN[0], hidden_high=keys.HIDDEN[1])
        return "AND NOT (ns >= :hidden_low AND ns < :hidden_high)"
    params.update(low=low, high=high)
    return "AND ns >= :low AND ns < :high"


def at_or_below(ns: str, path: str) -> dict[str, Any]:
    """Return the parameters of `AT_OR_BELOW`."""
    low, high = keys.in_folder(path.rstrip("/") + "/")
    return {"ns": ns, "key": path, "low": low, "high": high}


def _changed_within(op: ops.Changes, params: dict[str, Any]) -> str:
    if op.path is None:
        return within(op.prefix, True, params)
    params.update(at_or_below(keys.encode(op.prefix), op.path))
    return f"AND ns = :ns AND {AT_OR_BELOW}"


def _parse_mark(rows: Rows) -> int:
    mark: Any = decode(rows[0][0])["mark"] if rows else 0
    return int(mark)
