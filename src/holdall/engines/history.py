"""History in SQL: for how long it is known what was deleted.

A tombstone is removed when it is old enough, and how far that went is kept in an entry of holdall's own, written in the
same transaction: the *mark* of the last tombstone that went. Whoever reads the feed from before that mark is told so.
Places that were only held for a while (`kind` is 'none') go with them, and nobody misses those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from .. import keys, ops
from ..programs import Program
from ..values import decode, encode
from .dialect import Dialect
from .sql_texts import SqlTexts
from .statements import Rows, Statement

_HOME, _KEY = (keys.RESERVED, "history"), "forgotten"


class SqlHistory:
    """Forgetting, and knowing how far."""

    def __init__(self, dialect: Dialect, put: Callable[[ops.Put, int | None], Statement], texts: SqlTexts) -> None:
        self._dialect = dialect
        self._put = put
        self._texts = texts
        table = self._table = dialect.table
        #: Asks for what `mark_of` reads.
        self.mark: Statement = (
            f"SELECT value FROM {table} WHERE ns = :ns AND key = :key",
            {"ns": keys.encode(_HOME), "key": _KEY},
        )
        oldest = (
            f"SELECT version, updated, CASE WHEN kind = 'none' THEN 0 ELSE {dialect.mark} END AS mark FROM {table}"
            f" WHERE value IS NULL AND version <= :newest {dialect.settled} ORDER BY version LIMIT :limit"
        )
        self._oldest = f"SELECT version, mark FROM ({oldest}) AS oldest WHERE updated < :now - :age"
        self._kept = (
            f"SELECT version FROM {table} WHERE value IS NULL AND kind <> 'none'"
            f" ORDER BY version DESC LIMIT 1 OFFSET :limit"
        )

    def move_mark(self, xid: str) -> str:
        """A statement, without parameters: all that was forgotten, if anything was, is before this transaction."""
        home = keys.encode(_HOME).replace("\x01", "\\x01")
        mark = f"'{{\"mark\":' || ({xid}::text::bigint - 1) || '}}'"
        return f"UPDATE {self._table} SET value = {mark}, xid = {xid} WHERE ns = E'{home}' AND key = '{_KEY}'"

    def forget(self, op: ops.Forget, now: int | None) -> Program[bool]:
        """`ops.Forget`."""
        if self._dialect.one_at_a_time:
            [[(is_ours,)]] = yield [(self._dialect.one_at_a_time, {})]
            if not is_ours:
                return False
        newest = 2**63 - 1
        if op.keep is not None:
            [rows] = yield [(self._kept, {"limit": op.keep})]
            if not rows:
                return False
            newest = rows[0][0]
        age = -1 if op.age is None else round(op.age * 1_000_000)  # one that was made just now, too
        [doomed, known] = yield [
            (self._oldest, {"newest": newest, "limit": op.limit, "now": now, "age": age}),
            self.mark,
        ]
        if not doomed:
            return False
        if (yield from self._texts.is_begun()):  # it needs them, to know what is gone
            _, more = yield from self._texts.learn(op.limit)
            if more:
                return True
        mark = max(mark_of(known), *(mark for _, mark in doomed))
        among, params = self._dialect.among("version", [version for version, _ in doomed])
        put = ops.Put(_HOME, _KEY, cast(Any, encode({"mark": mark})), None)
        # In this order: on SQLite the row with the highest version may never go, and now that is the put's.
        yield [self._put(put, now), (f"DELETE FROM {self._table} WHERE value IS NULL AND {among}", params)]
        return len(doomed) == op.limit


def beginning(version: int) -> Statement:
    """A first entry for a store that goes on where another was, of which nothing is known: with versions above its."""
    sql = (
        "INSERT INTO holdall_entries (version, ns, key, value, created, updated)"
        " VALUES (:version, :ns, :key, :value, :version, :version)"
    )
    return sql, {"version": version, "ns": keys.encode(_HOME), "key": _KEY, "value": encode({"mark": version})}


def mark_of(rows: Rows) -> int:
    """How far it was forgotten what was deleted; 0: not at all."""
    mark: Any = decode(rows[0][0])["mark"] if rows else 0
    return int(mark)
