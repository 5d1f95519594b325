"""The feed of PostgreSQL: a position is a snapshot.

Transactions do not commit in the order of the versions that they draw. So every row has the id of the transaction that
wrote it (`xid`). The changes since a position are the rows that its snapshot does not see. None is missed, however long
a transaction runs, and none waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ...engine import HistorySetting, cursor_expired, history_gone, not_a_cursor
from ...model import keys
from ..sql.feed import MARK_KEY, MARK_NAMESPACE, SqlFeed
from ..sql.statements import Rows, SqlProgram
from .dialect import PostgresDialect

_XID = r"[1-9]\d{0,17}"  # PostgreSQL reads a number that begins with 0 as octal
_SNAPSHOT = rf"{_XID}:{_XID}:(?:{_XID}(?:,{_XID})*)?"
_POSITION = re.compile(rf"({_SNAPSHOT})?(?:/({_SNAPSHOT})/(\d{{1,18}}))?", re.ASCII)


class PostgresFeed(SqlFeed):
    """The feed of snapshots."""

    _dialect: PostgresDialect

    def position_columns(self) -> str:
        last, last_of_trees = (
            f"(SELECT xid FROM {table} ORDER BY xid DESC LIMIT 1)" for table in (self._table, self._dialect.trees)
        )
        return f"pg_current_snapshot()::text, coalesce(greatest({last}, {last_of_trees}), '2')::text"

    def to_position(self, row: tuple[Any, ...]) -> str:
        """Return the current snapshot, cut off after the highest transaction id in the tables.

        After a crash, PostgreSQL may assign ids above it again, to changes that come after this position. Ids up to the
        highest committed one are not assigned again.
        """
        snapshot, last = row
        return _cut_off(snapshot, last)

    def indexable_end(self) -> SqlProgram[str | None]:
        """Return the end of the feed, or the position before the first tree that is not cleared.

        One query finds both: a tree may be deleted between two.
        """
        trees = self._dialect.trees
        first = f"SELECT snapshot FROM {trees} ORDER BY id LIMIT 1"
        [[(held, *row)]] = yield [(f"SELECT ({first}), {self.position_columns()}", {})]
        return held or self.to_position(tuple(row))

    def _find_hold(self, position: str) -> SqlProgram[tuple[str, str] | None]:
        since, _, _ = _parse_position(position)
        sql, params = f"SELECT snapshot FROM {self._dialect.trees}", {}
        if since:
            sql, params = f"{sql} WHERE NOT pg_visible_in_snapshot(xid, :since::pg_snapshot)", {"since": since}
        [rows] = yield [(f"{sql} ORDER BY id LIMIT 1", params)]
        return (rows[0][0], "") if rows else None

    def tree_columns(self) -> SqlProgram[dict[str, Any]]:
        """Return this transaction and the position before it. No other one writes entries at this time."""
        sql = f"SELECT pg_current_xact_id()::text, {self.position_columns()}"
        [[(xid, snapshot, last)]] = yield [(sql, {})]
        least, end, running = _cut_off(snapshot, last).split(":")
        others = {int(other) for other in running.split(",") if other}
        if int(xid) < int(end):  # PostgreSQL counts the own transaction as complete
            others.add(int(xid))
        before = f"{min(int(least), *others, int(end))}:{end}:{','.join(map(str, sorted(others)))}"
        return {"xid": xid, "snapshot": before}

    def resume(self, cursor: str | None) -> SqlProgram[tuple[str, str, Callable[[str], str]]]:
        """Return what `SqlFeed.resume` does. A cursor expires if its snapshot does not see a purged tombstone."""
        mark = yield from self.purge_mark()
        here = yield from self.position()
        first, until, _ = _parse_position(cursor or "")
        if first or until:
            least, most = (first or until or "").split(":")[:2]
            if not (mark < int(least) and int(most) <= int(here.split(":")[1])):
                raise cursor_expired(cursor)
        return here, cursor or "", lambda position: position

    def since(
        self, position: str, columns: str, where: str, params: dict[str, Any], limit: int, end: str | None = None
    ) -> SqlProgram[tuple[Rows, str]]:
        """Return the rows changed after a position, by version, each with the position after it; and the last position.

        A position is a snapshot, or `from/to/version`: after a version, among the changes between two snapshots.
        """
        since, until, above = _parse_position(position)
        found: Rows = []
        while True:
            resumed = until is not None
            until = until or end or (yield from self.position())
            condition, bounds = where, {**params, "until": until, "above": above, "limit": limit - len(found)}
            if since:
                condition += " AND xid >= :oldest::xid8 AND NOT pg_visible_in_snapshot(xid, :since::pg_snapshot)"
                bounds |= {"since": since, "oldest": since.split(":")[0]}
            sql = (
                f"SELECT {columns}, version FROM {self._table} WHERE {condition}"
                f" AND pg_visible_in_snapshot(xid, :until::pg_snapshot) AND version > :above"
                f" ORDER BY version LIMIT :limit"
            )
            [rows] = yield [(sql, bounds)]
            found += [(*row[:-1], f"{since}/{until}/{row[-1]}") for row in rows]
            if len(found) == limit:
                return found, found[-1][-1]
            since, until, above = until, None, 0
            if not resumed:
                return found, since

    def past_conditions(
        self, cursor: str, setting: HistorySetting, params: dict[str, Any]
    ) -> SqlProgram[tuple[str, str]]:
        since, until, above = _parse_position(cursor)
        here = yield from self.position()
        seen = since or until or ""
        if not seen or int(seen.split(":")[1]) > int(here.split(":")[1]):
            raise cursor_expired(cursor)
        # It must see the last change before history was on, and all that ended values which were purged.
        began = "SELECT pg_visible_in_snapshot(:p0::text::xid8, :p1::pg_snapshot)"
        [[(sees_begin,)]] = yield [(began, {"p0": str(setting.position), "p1": seen})]
        if not sees_begin or setting.purged >= int(seen.split(":")[0]):
            raise history_gone(cursor)
        conditions = []
        for xid, version in (("xid", "version"), ("ended_xid", "ended")):
            visible = [f"pg_visible_in_snapshot({xid}, :at::pg_snapshot)"] if since else []
            if until is not None:
                visible.append(f"(pg_visible_in_snapshot({xid}, :until::pg_snapshot) AND {version} <= :above)")
            conditions.append(f"({' OR '.join(visible)})")
        params.update({"at": since} if since else {})
        params.update({"until": until, "above": above} if until is not None else {})
        return conditions[0], f"{conditions[0]} AND NOT {conditions[1]}"

    def count_since(self, position: str) -> SqlProgram[int]:
        since, _, _ = _parse_position(position)
        sql, bounds = f"SELECT count(*) FROM {self._table}", {}
        if since:
            sql += " WHERE xid >= :oldest::xid8 AND NOT pg_visible_in_snapshot(xid, :since::pg_snapshot)"
            bounds = {"since": since, "oldest": since.split(":")[0]}
        [[(count,)]] = yield [(sql, bounds)]
        return count  # type: ignore[no-any-return]  # a row's column

    def move_mark(self, xid: str) -> str:
        """Return a statement without parameters: the purge mark, if there is one, is right before a transaction."""
        home = keys.encode(MARK_NAMESPACE).replace("\x01", "\\x01")
        mark = f"'{{\"mark\":' || ({xid}::text::bigint - 1) || '}}'"
        return f"UPDATE {self._table} SET value = {mark}, xid = {xid} WHERE ns = E'{home}' AND key = '{MARK_KEY}'"


def _cut_off(snapshot: str, last: str) -> str:
    """Return a snapshot without the transactions after the last one."""
    least, most, running = snapshot.split(":")
    end = min(int(most), int(last) + 1)
    before_end = [xid for xid in running.split(",") if xid and int(xid) < end]
    return f"{min(int(least), end)}:{end}:{','.join(before_end)}"


def _parse_position(position: str) -> tuple[str, str | None, int]:
    """Return the parts of a position: from which snapshot, up to which one, and after which version."""
    match = _POSITION.fullmatch(position)
    if match is None or not all(_is_snapshot(text) for text in match.groups()[:2] if text):
        raise not_a_cursor(position)
    return match[1] or "", match[2], int(match[3] or 0)


def _is_snapshot(text: str) -> bool:
    """Whether PostgreSQL accepts this as a snapshot: `xmin:xmax:running,…`, in order."""
    least, most, running = text.split(":")
    between = [int(xid) for xid in running.split(",")] if running else []
    return (
        0 < int(least) <= int(most)
        and between == sorted(set(between))
        and all(int(least) <= xid < int(most) for xid in between)
    )
