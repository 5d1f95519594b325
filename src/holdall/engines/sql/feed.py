"""The feed: rows of the table of entries in the order of their changes, and trees that were deleted as a whole.

A position in the feed is a text. Here it is the version of the last change before it; an engine may have another kind.
A deleted entry stays in the feed as a tombstone until it is purged. The *purge mark* tells how far that went: the
position of the last tombstone that was removed. It is the value of a hidden entry, written in the same transaction. A
cursor from before the purge mark has expired, because its reader would miss those deletions.

A large tree is deleted by a note of its range (`DeletedTrees`). Its entries become tombstones later, a slice at a time,
at versions that were reserved for them. Until then, readers of the feed wait before those versions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from ... import ops
from ...engine import HistorySetting, feed_from, parse_revision, to_change
from ...model import keys
from ...model.values import decode, encode
from ...ops import Change, Namespace, Page
from ...runtime.programs import Work
from .dialect import Dialect
from .narrowing import narrow
from .statements import (
    AT_OR_BELOW,
    LIVE,
    UNEXPIRED,
    Rows,
    SqlProgram,
    Statement,
    at_or_below,
    chosen_by,
    in_deleted_tree,
    outside_deleted_trees,
    within,
)

# Stored data: the names must not change.
MARK_NAMESPACE, MARK_KEY = (keys.RESERVED, "history"), "forgotten"

#: A tree with more entries than this is deleted by a note of its range.
LARGE_TREE = 1000
#: How many rows of such a tree one transaction reads, and how many seconds its statements should take, so that
#: other writers need not wait long.
_LARGEST_SLICE, _SLICE_SECONDS = 500, 0.008
#: For how long a reader of the feed writes tombstones that it waits for, before it returns what it has.
HELD_SECONDS = 0.2


class Learned(Protocol):
    """Learned fields in a table of their own (`engines/learned`)."""

    def find_candidates(self, filter: str, params: dict[str, Any], inside: str) -> SqlProgram[str | None]:
        """Return the condition that an index finds a row, or None if none finds few."""


class LargeDeleteTree(ops.Op, frozen=True):
    """`DeleteTree` of a large tree. It exists only inside an engine."""

    namespace: Namespace
    path: str | None
    count: int  # of entries, also expired ones, when `position` was the end of the feed
    position: str
    take_snapshot: Callable[[], None]  # called in the transaction, before it writes
    acting: str | None = None


class DeleteTreeSlice(ops.Op, frozen=True):
    """Delete some entries of a tree, in key order -> how many, and the last of them; None if there are no more.

    It exists only inside an engine.
    """

    namespace: Namespace
    path: str | None
    until: int  # entries up to this version are deleted
    limit: int
    after: tuple[str, str] | None = None  # the encoded namespace and the key after which the slice begins
    acting: str | None = None


class HeldPage(Page[Change]):
    """A page of changes that is not full: the next ones are tombstones of a deleted tree, not written yet."""


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
        [[row]] = yield [(f"SELECT {self.position_columns()}", {})]
        return self.to_position(row)

    def position_columns(self) -> str:
        """Return the columns of which `to_position` makes the position after the last change."""
        return f"(SELECT coalesce(max(version), 0) FROM {self._table})"

    def to_position(self, row: tuple[Any, ...]) -> str:
        [newest] = row
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
        if op.limit == 0:
            end, _, _ = yield from self.resume(op.since)
            return Page((), end)
        rows, cursor, is_held = yield from self.changed_rows(op, "ns, key, coalesce(kind, 'put'), version, acting", now)
        changes = [to_change(version, ns, key, kind, after, acting) for ns, key, kind, version, acting, after in rows]
        return HeldPage(changes, cursor) if is_held else Page(changes, cursor)

    def changed_rows(
        self, op: ops.Changes | ops.ChangedRecords, columns: str, now: int | None
    ) -> SqlProgram[tuple[Rows, str, bool]]:
        """Return rows that changed after a cursor, each with the cursor after it as a further column; the next cursor;
        and whether the page ends before tombstones of a deleted tree that are not written yet."""
        end, position, make_cursor = yield from self.resume(op.since)
        # An expired entry cannot be read. Its expiry becomes a change of its own, once it is swept.
        params: dict[str, Any] = {"now": now}
        # The same is true of an entry of a deleted tree.
        where = (
            f"kind IS DISTINCT FROM 'none' AND {UNEXPIRED} AND (value IS NULL OR {outside_deleted_trees()})"
            f" {_changed_within(op, params)}"
        )
        held = yield from self._find_hold(position)
        if held is not None:
            end, condition = held
            where += condition
        rows, position = yield from self.since(position, columns, where, params, op.limit, end)
        found = [(*row[:-1], make_cursor(row[-1])) for row in rows]
        return found, make_cursor(position), held is not None and len(rows) < op.limit

    def past_conditions(
        self, cursor: str, setting: HistorySetting, params: dict[str, Any]
    ) -> SqlProgram[tuple[str, str]]:
        """Return the conditions that a present and an old row are as of a cursor, and add their parameters."""
        position, _ = feed_from(cursor, int((yield from self.position())), 0)
        setting.check_position(position, cursor)
        params["at"] = position
        return "version <= :at", "version <= :at AND ended > :at"

    def _find_hold(self, position: str) -> SqlProgram[tuple[str, str] | None]:
        """Return how far the feed may be read after a position, because tombstones follow that are not written yet.

        That is a position, and a further condition on rows; None if no tombstone is missing.
        """
        sql = f"SELECT min(next_version) FROM {self._dialect.trees} WHERE last_version > :above"
        [[(held,)]] = yield [(sql, {"above": parse_revision(position or "0")})]
        return None if held is None else (str(held - 1), f" AND version < {held:d}")

    def indexable_end(self) -> SqlProgram[str | None]:
        """Return the position that the text index must not pass; None for the end of the feed.

        Here no tree is deleted while the index reads the feed, and those before are cleared.
        """
        return None
        yield

    def tree_columns(self) -> SqlProgram[dict[str, Any]]:
        """Return further columns of the note of a tree that is deleted now."""
        return {}
        yield

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

    def find_tombstones(self, op: ops.Forget) -> SqlProgram[tuple[list[int], int]]:
        """Return the versions of tombstones of a namespace or a key, and the purge mark once they are removed."""
        params: dict[str, Any] = {"limit": op.limit}
        sql = (
            f"SELECT version, CASE WHEN kind = 'none' THEN 0 ELSE {self._dialect.feed_mark} END FROM {self._table}"
            f" WHERE value IS NULL {chosen_by(op, params)} LIMIT :limit"
        )
        [found, known] = yield [(sql, params), self._read_mark]
        return [version for version, _ in found], max([_parse_mark(known), *(mark for _, mark in found)])

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
        inside = within(op.prefix, op.recursive, params, hides=True)
        inside, narrowed, is_indexed = yield from self.narrow(op.filter, inside, params)
        return f"{LIVE} {inside}" + (f" AND {narrowed}" if narrowed else ""), is_indexed


class DeletedTrees:
    """Trees that were deleted as a whole, and whose entries are not all tombstones yet.

        low, high                   the range of namespaces        until     entries up to this version are deleted
        path, path_low, path_high   null, or the range of keys     deleted   when, in microseconds
        from_ns, from_key           where the next slice begins    next_version, last_version   of its tombstones

    To every op, entries of such a tree do not exist (`statements.live`). So the tree is gone as soon as its row is
    committed, and whatever is put after that has a later version. `clear` writes the tombstones, a slice at a time, in
    any process; it may be interrupted at any moment.
    """

    def __init__(self, dialect: Dialect, feed: SqlFeed) -> None:
        self._dialect = dialect
        self._table = dialect.table
        self._feed = feed
        #: Whether a tree is known that has to be cleared.
        self.needs_clearing = False
        self._slice = 100  # rows of the next slice

    def prepare(
        self, op: ops.DeleteTree, now: int | None, take_snapshot: Callable[[], None]
    ) -> SqlProgram[LargeDeleteTree | None]:
        """Count the entries of a tree, before its deletion; return None if they are few."""
        where, params = _in_tree(op)
        some = f"SELECT count(*) FROM (SELECT 1 FROM {self._table} WHERE {where} LIMIT {LARGE_TREE + 1}) AS first_ones"
        [[(count,)]] = yield [(some, {**params, "now": now})]
        if count <= LARGE_TREE:
            return None
        position = yield from self._feed.position()
        # Expired ones too: by a clock that was set back, they have not expired when the tree is deleted.
        inside = {**params, "now": 0}
        [[(count,)]] = yield [(f"SELECT count(*) FROM {self._table} WHERE {where}", inside)]
        return LargeDeleteTree(op.namespace, op.path, count, position, take_snapshot, op.acting)

    def count(self, op: ops.DeleteTree | LargeDeleteTree, now: int | None) -> SqlProgram[int]:
        """Return the exact number of entries of a tree at a time, in the snapshot of this transaction."""
        where, params = _in_tree(op)
        then = where.replace(":now", ":deleted")  # `:now` may stand for the time of the server
        [[(count,)]] = yield [(f"SELECT count(*) FROM {self._table} WHERE {then}", {**params, "deleted": now})]
        return count  # type: ignore[no-any-return]  # a row's column

    def delete(self, op: LargeDeleteTree, now: int | None) -> SqlProgram[int]:
        """Delete a tree: note its range, and reserve a version for each of its entries. Returns the time."""
        yield Work(op.take_snapshot, ())
        count = op.count + (yield from self._feed.count_since(op.position))  # at least as many as there are now
        until = yield from self._dialect.reserve_versions(count, now)
        low, high = keys.below(keys.encode(op.namespace))
        params: dict[str, Any] = {"path": None, "path_low": None, "path_high": None, "from_key": op.path or ""}
        if op.path is not None:
            high = low + "\x01"  # exactly this namespace
            here = at_or_below(low, op.path)
            params |= {"path": op.path, "path_low": here["low"], "path_high": here["high"]}
        params |= {"low": low, "high": high, "from_ns": low, "until": until}
        params |= {"next_version": until + 1, "last_version": until + count, "acting": op.acting}
        params |= yield from self._feed.tree_columns()
        names, values = ", ".join(params), ", ".join(f":{name}" for name in params)
        insert = f"INSERT INTO {self._dialect.trees} ({names}, deleted) VALUES ({values}, :now) RETURNING deleted"
        [[(deleted,)]] = yield [(insert, {**params, "now": now})]
        self.needs_clearing = True
        return deleted  # type: ignore[no-any-return]  # a row's column

    def delete_slice(self, op: DeleteTreeSlice, now: int | None) -> SqlProgram[tuple[int, tuple[str, str] | None]]:
        """Delete some entries of a tree, for an engine that does not note trees."""
        where, params = _in_tree(op)
        if op.after is not None:
            where += " AND (ns, key) > (:after_ns, :after_key)"
            params |= {"after_ns": op.after[0], "after_key": op.after[1]}
        page = (
            f"SELECT ns, key, version FROM {self._table} WHERE {where} AND version <= :until"
            f" ORDER BY ns, key LIMIT :limit"
        )
        [rows] = yield [(page, {**params, "until": op.until, "limit": op.limit, "now": now})]
        if rows:
            among, versions = self._dialect.among("version", [row[2] for row in rows])
            tombstones = self._dialect.make_tombstones(f"{among} AND value IS NOT NULL ORDER BY ns, key", "delete")
            yield [(tombstones, {**versions, "now": now, **self._dialect.parameters(op)})]
        return len(rows), rows[-1][:2] if len(rows) == op.limit else None

    def count_left(self) -> SqlProgram[int]:
        """Return about how many entries of deleted trees are not tombstones yet."""
        sql = f"SELECT coalesce(sum(last_version - next_version + 2), 0) FROM {self._dialect.trees}"
        [[(left,)]] = yield [(sql, {})]
        if left:  # not false otherwise: this snapshot may be older than a tree that is known
            self.needs_clearing = True
        return int(left)

    def clear(self) -> SqlProgram[bool]:
        """Replace some entries of the first deleted tree with tombstones; return whether there may be more."""
        start, limit = time.monotonic(), min(self._slice, _LARGEST_SLICE)
        sql = (
            f"SELECT id, deleted, high, path_high, next_version, from_ns, from_key, acting FROM {self._dialect.trees}"
            f" ORDER BY id LIMIT 1{self._dialect.for_update}"
        )
        [trees] = yield [(sql, {})]
        if not trees:  # or another process has just deleted the row of the first one
            self.needs_clearing = False
            return (yield from self.count_left()) > 0
        self.needs_clearing = True
        [(number, deleted, high, path_high, first, from_ns, from_key, acting)] = trees
        here: dict[str, Any] = {"from_ns": from_ns, "from_key": from_key, "number": number, "limit": limit}
        if path_high is None:
            where, here["high"] = "(ns, key) >= (:from_ns, :from_key) AND ns < :high", high
        else:
            where, here["high"] = "ns = :from_ns AND key >= :from_key AND key < :high", path_high
        is_deleted = f"value IS NOT NULL AND {in_deleted_tree(tree='tree.id = :number')}"
        # All rows count, also those that stay: otherwise one slice might have to read any number of them.
        page = f"SELECT ns, key, version, {is_deleted} FROM {self._table} WHERE {where} ORDER BY ns, key LIMIT :limit"
        [rows] = yield [(page, here)]
        versions = [row[2] for row in rows if row[3]]
        count = 0
        if versions:
            among, params = self._dialect.among("version", versions)
            tombstones = self._dialect.make_tombstones(
                f"{among} AND value IS NOT NULL ORDER BY ns, key", "delete", ":first"
            )
            params |= {"now": deleted, "first": first - 1, "number": number}
            further = self._dialect.parameters(ops.DeleteTree((), None, acting))
            [written] = yield [(tombstones, {**params, **further})]
            count = len(written)
        self._slice = max(20, limit // 2) if time.monotonic() - start > _SLICE_SECONDS else limit + 20
        if len(rows) < limit:
            yield [(f"DELETE FROM {self._dialect.trees} WHERE id = :number", {"number": number})]
            return True
        ns, key = rows[-1][:2]
        moved = (
            f"UPDATE {self._dialect.trees} SET next_version = :first, from_ns = :ns, from_key = :key WHERE id = :number"
        )
        yield [(moved, {"first": first + count, "ns": ns, "key": key + "\x01", "number": number})]
        return True


def _in_tree(op: ops.DeleteTree | LargeDeleteTree | DeleteTreeSlice) -> tuple[str, dict[str, Any]]:
    """Return the condition that a row is an entry of a tree, and its parameters."""
    if op.path is None:
        params: dict[str, Any] = {}
        return f"{LIVE} {within(op.namespace, True, params)}", params
    params = at_or_below(keys.encode(op.namespace), op.path)
    return f"ns = :ns AND body IS NOT NULL AND {LIVE} AND {AT_OR_BELOW}", params


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


def _changed_within(op: ops.Changes | ops.ChangedRecords, params: dict[str, Any]) -> str:
    if isinstance(op, ops.ChangedRecords) or op.path is None:
        return within(op.prefix, True, params)
    params.update(at_or_below(keys.encode(op.prefix), op.path))
    return f"AND ns = :ns AND {AT_OR_BELOW}"


def _parse_mark(rows: Rows) -> int:
    mark: Any = decode(rows[0][0])["mark"] if rows else 0
    return int(mark)
