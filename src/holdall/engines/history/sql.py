"""The history of SQL engines: old rows of the table of entries, in a table of their own.

While history is on, a trigger copies each row there that a change replaces, in the transaction of that change. While it
is off, there is no trigger, so it costs nothing, and every process obeys at once. A row is a value from its change to
its end:

    ended              the version of the change that replaced it, which is unique
    ended_kind, ended_at, ended_acting   of that change
    changed            when the value was written
    all others         as in the table of entries

The old row keeps its body: the pieces of a body are removed with the last row, in either table, that refers to it. An
append leaves the old row with the same body and its former size. So contents are shared between versions.

A large content that was replaced is compared with that of the next version in the background, once that is an old one,
too: then `delta` says how they differ, and the body has only the bytes that do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ... import ops
from ...engine import HistorySetting, Row, no_history, to_old_entry
from ...errors import Corrupt
from ...model import file_values, keys
from ...ops import OldHead, OldVersion, Page
from ..sql.bounded_reads import COLUMNS
from ..sql.dialect import Dialect
from ..sql.feed import SqlFeed
from ..sql.files import PIECE
from ..sql.statements import Rows, SqlProgram, Statement, chosen_by, within

#: The name of the setting in the table `state`. Stored data: it must not change.
SETTING = "history"
#: What the trigger copies, and what a version is read from.
KEPT = "ns, key, version, created, updated, expires, ttl, body, size, appended, fields, acting, value"
#: The columns of the table that the trigger fills, and the expression of each.
_NEW = {
    "ended": "new.version",
    **{name: f"old.{name}" for name in KEPT.split(", ")},
    "changed": "coalesce(old.changed, old.updated)",
    "ended_kind": "coalesce(new.kind, 'put')",
    "ended_at": "new.updated",
    "ended_acting": "new.acting",
}
_HEAD = "ns, key, version, created, updated, expires, size"


_LARGE = 131072  # bytes; the index of the schemas has the same number
_MOST_DELTAS = 15  # versions that are read to make the content of one
_STEP = 1 << 20  # bytes of two versions that one transaction compares
_MOST_DIFFERING = 4 << 20  # bytes that one transaction writes


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """How the content of an old version differs from that of the next one: not at its beginning, nor at its end.

    The pieces of its body are what is between. Stored data: the fields must not change.
    """

    following: int  # the next version
    prefix: int  # bytes
    suffix: int
    depth: int  # versions, with this one, that need the next one

    @classmethod
    def read(cls, text: str) -> Delta:
        """Read what is stored of one."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"how an old version of a file differs from the next cannot be read: {error}") from error


class _Link(NamedTuple):
    """What is needed of an old version of a file to read the versions that depend on it."""

    size: int
    delta: str | None  # the text of its `Delta`; None: it is whole


class _Compared(NamedTuple):
    """How far a version was compared with the next one. Old versions do not change, so it stays true."""

    ended: int
    prefix: int = 0  # bytes that are the same
    suffix: int = 0
    has_prefix: bool = False  # whether no more bytes at the beginning are the same
    is_all: bool = False


class HeldPast(Page[Any]):
    """Stands for a page that cannot be read yet: the engine must clear deleted trees first, and read again."""


def copy_row(table: str, further: dict[str, str] | None = None) -> str:
    """Return the statement of the trigger, which copies the row `old` that the row `new` replaces."""
    columns = {**_NEW, **(further or {})}
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(columns.values())})"


def is_kept(dialect: Dialect) -> str:
    """Return the condition of the trigger: the row `old` is an entry, neither holdall's own nor in a hidden namespace.

    What is in hidden namespaces has a past of its own, as the checkpoints of a thread do.
    """
    low, high = (f"'{keys.RESERVED}' || {dialect.character(code)}" for code in (1, 2))
    separator = dialect.character(1)
    is_hidden = dialect.find_text(f"{separator} || old.ns", f"{separator} || '{keys.HIDDEN_PREFIX}'")
    is_own = f"old.ns >= {low} AND old.ns < {high}"
    return f"old.value IS NOT NULL AND old.version <> new.version AND NOT ({is_own}) AND {is_hidden} = 0"


class SqlHistory:
    """The ops on old values, as programs over statements."""

    def __init__(self, dialect: Dialect, feed: SqlFeed) -> None:
        self._dialect, self._feed = dialect, feed
        self._compared = _Compared(0)
        self._table, self._old = dialect.table, dialect.history
        both = " UNION ALL ".join(
            f"SELECT {KEPT}, {delta} FROM {table}"
            f" WHERE ns = :ns AND key = :key AND version = :version AND value IS NOT NULL"
            for table, delta in ((self._table, "CAST(NULL AS text) AS delta"), (self._old, "delta"))
        )
        self._get = (
            f"SELECT {COLUMNS}, CASE WHEN :content = 1 THEN {dialect.old_content} END, appended, size, fields, ttl,"
            f" delta FROM ({both}) AS found LIMIT 1"
        )
        # Of a version and those after it: the row of each next version ended next.
        self._chain = (
            f"SELECT version, size, delta FROM {self._old} WHERE ns = :ns AND key = :key AND ended > :version"
            f" ORDER BY ended LIMIT {_MOST_DELTAS + 1}"
        )
        chunks = dialect.chunks
        self._range = (
            f"SELECT file.size, piece.start, piece.data, file.delta"
            f" FROM (SELECT body, size, delta FROM ({both}) AS found"
            f" WHERE body IS NOT NULL LIMIT 1) AS file LEFT JOIN {chunks} AS piece"
            f" ON piece.body_id = file.body AND piece.start < file.size AND piece.start < :end"
            f" AND piece.start >= coalesce((SELECT max(start) FROM {chunks}"
            f" WHERE body_id = file.body AND start <= :start), 0) ORDER BY piece.start"
        )
        here = "ns = :ns AND key = :key"
        known = "CAST(:before AS bigint) IS NULL OR"
        put = "version AS number, 'put' AS kind, {changed}, expires, size, acting"
        end = (
            "ended AS number, ended_kind AS kind, CASE WHEN ended_kind = 'expire' AND expires < ended_at THEN expires"
            " ELSE ended_at END, CAST(NULL AS bigint), CAST(NULL AS bigint), ended_acting"
        )
        old = f"FROM {self._old} WHERE {here}"
        present = put.format(changed="coalesce(changed, updated)")
        self._list = (
            f"SELECT * FROM (SELECT {present} FROM {self._table} WHERE {here} AND value IS NOT NULL) AS present"
            f" WHERE {known} number < :before UNION ALL"
            f" SELECT * FROM (SELECT {put.format(changed='changed')} {old} AND ({known} version < :before)"
            f" ORDER BY ended DESC LIMIT :limit) AS puts UNION ALL"
            f" SELECT * FROM (SELECT {end} {old} AND ({known} ended < :before) AND ended_kind <> 'put'"
            f" ORDER BY ended DESC LIMIT :limit) AS ends ORDER BY 1 DESC LIMIT :limit"
        )

    # The setting -----------------------------------------------------------------------------------------------------

    def _read_setting(self) -> SqlProgram[HistorySetting | None]:
        [rows] = yield [(f"SELECT value FROM {self._dialect.state} WHERE name = :name", {"name": SETTING})]
        return msgspec.json.decode(rows[0][0], type=HistorySetting) if rows else None

    def _write_setting(self, setting: HistorySetting) -> Statement:
        sql = (
            f"INSERT INTO {self._dialect.state} (name, value) VALUES (:name, :value)"
            f" ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        )
        return sql, {"name": SETTING, "value": msgspec.json.encode(setting).decode()}

    def set(self, op: ops.SetHistory, now: int | None) -> SqlProgram[ops.HistoryReach | None]:
        """Run `SetHistory`."""
        setting = yield from self._read_setting()
        if op.since is not None and setting is not None:
            yield [*self._dialect.history_lock]
            setting = ((yield from self._read_setting()) or setting).extend(op.since)
            yield [self._write_setting(setting)]
        if op.keep is None or (setting.keep if setting else 0) == round(op.keep * 1_000_000):
            return setting.reach() if setting else None
        dialect, keep = self._dialect, round(op.keep * 1_000_000)
        yield [*dialect.history_lock]
        setting = yield from self._read_setting()  # another process may have set it meanwhile
        if not keep:
            yield [(sql, {}) for sql in dialect.stop_history]
            yield [(f"DELETE FROM {dialect.state} WHERE name = :name", {"name": SETTING})]
            return None
        present = yield from self._now(now)
        if setting is not None:
            setting = setting.change(keep, present)
            yield [self._write_setting(setting)]
            return setting.reach()
        while (yield from self._purge_some(ops.PurgeHistory(), now, None)):  # what is left of an earlier history
            pass
        yield [(sql, {}) for sql in (*dialect.stop_history, *dialect.start_history)]
        begin = yield from dialect.history_position()
        setting = HistorySetting(keep, (yield from self._now(now)), begin)
        yield [self._write_setting(setting)]
        return setting.reach()

    def _now(self, now: int | None) -> SqlProgram[int]:
        if now is not None:
            return now
        # Not the time of the transaction: that began before others wrote what history does not have.
        [[(present,)]] = yield [(f"SELECT {self._dialect.server_time}", {})]
        return int(present)

    # Purging ---------------------------------------------------------------------------------------------------------

    def purge(self, op: ops.PurgeHistory, now: int | None) -> SqlProgram[bool]:
        """Remove old values that were kept long enough, or all if history is off. Return whether more is left."""
        return (yield from self._purge_some(op, now, (yield from self._read_setting())))

    def _purge_some(self, op: ops.PurgeHistory, now: int | None, setting: HistorySetting | None) -> SqlProgram[bool]:
        dialect = self._dialect
        # An entry's old values are removed in their order, also if the clock was set back: one may need the next.
        oldest = (
            f"SELECT ended, body, mark, max(ended_at) OVER (PARTITION BY ns, key ORDER BY ended) AS ended_at"
            f" FROM (SELECT ended, body, {dialect.history_mark} AS mark, ended_at, ns, key FROM {self._old}"
            f" ORDER BY ended LIMIT :limit) AS page"
        )
        due = "" if setting is None else " WHERE ended_at <= :now - :keep"
        params = {"limit": op.limit} if setting is None else {"limit": op.limit, "now": now, "keep": setting.keep}
        [found] = yield [(f"SELECT ended, body, mark FROM ({oldest}) AS oldest{due}", params)]
        if not found:
            return False
        yield from self.remove([row[0] for row in found], sorted({row[1] for row in found if row[1] is not None}))
        if setting is not None:
            mark = max(setting.purged, *(row[2] for row in found))
            yield [self._write_setting(ops.replace(setting, purged=mark))]
        return len(found) == op.limit

    def remove(self, ended: list[int], bodies: list[int]) -> SqlProgram[None]:
        """Remove old values, and the pieces of their bodies that no other row refers to."""
        dialect = self._dialect
        among, params = dialect.among("ended", ended)
        yield [*dialect.lock_bodies(bodies), (f"DELETE FROM {self._old} WHERE {among}", params)]
        if bodies:
            yield [self.delete_unused(bodies)]

    def forget(self, op: ops.Forget) -> SqlProgram[int]:
        """Remove old values of a namespace or a key; return how many."""
        params: dict[str, Any] = {"limit": op.limit}
        sql = f"SELECT ended, body FROM {self._old} WHERE true {chosen_by(op, params)} ORDER BY ended LIMIT :limit"
        [found] = yield [(sql, params)]
        if found:
            yield from self.remove([row[0] for row in found], sorted({row[1] for row in found if row[1] is not None}))
        return len(found)

    def delete_unused(self, bodies: list[int]) -> Statement:
        """Return the statement that removes the pieces of bodies to which no row refers."""
        among, params = self._dialect.among("body_id", bodies)
        unused = " AND ".join(
            f"NOT EXISTS (SELECT 1 FROM {table} AS user_of WHERE user_of.body = {self._dialect.chunks}.body_id)"
            for table in (self._table, self._old)
        )
        return f"DELETE FROM {self._dialect.chunks} WHERE {among} AND {unused}", params

    # Reading ---------------------------------------------------------------------------------------------------------

    def get_statement(self, op: ops.GetVersion) -> Statement:
        here = {"ns": keys.encode(op.namespace), "key": op.key, "version": op.version}
        return self._get, {**here, "content": int(op.content)}

    def get_result(self, op: ops.GetVersion, rows: Rows) -> ops.OldEntry | None:
        if not rows:
            return None
        *columns, search_fields, ttl, _ = rows[0]
        content, size = columns[7], columns[9]
        if content is not None:  # the body may have grown since
            columns[7] = bytes(content)[:size]
        elif op.content and size == 0:
            columns[7] = b""
        row: Row = tuple(columns)
        return to_old_entry(row, search_fields, ttl)

    def range_statement(self, op: ops.ReadRange) -> Statement:
        here = {"ns": keys.encode(op.namespace), "key": op.key, "version": op.version}
        return self._range, {**here, "start": op.start, "end": 2**62 if op.end is None else op.end}

    def range_result(self, op: ops.ReadRange, rows: Rows) -> bytes | None:
        if not rows:
            return None
        size = rows[0][0]
        return self._cut(rows, op.start, size if op.end is None else min(op.end, size))

    # Shared contents ---------------------------------------------------------------------------------------------

    def complete(self, op: ops.GetVersion | ops.ReadRange, rows: Rows) -> SqlProgram[Rows]:
        """Return the rows that were read of a version, with what they lack if only what differs is stored."""
        if not rows or not rows[0][-1] or (isinstance(op, ops.GetVersion) and not op.content):
            return rows
        assert op.version is not None
        start, end = (op.start, op.end) if isinstance(op, ops.ReadRange) else (0, None)
        address = keys.encode(op.namespace), op.key, op.version
        content = yield from self._read_part(*address, start, 2**62 if end is None else end)
        if content is None:
            return []
        if isinstance(op, ops.ReadRange):
            return [(start + len(content), start, content, None)]
        return [(*rows[0][:7], content, *rows[0][8:-1], None)]

    def _read_part(self, ns: str, key: str, version: int, start: int, end: int) -> SqlProgram[bytes | None]:
        """Return the bytes `[start, end)` of an old version of a file; None if it is not kept."""
        here = {"ns": ns, "key": key}
        while True:
            [rows] = yield [(self._chain, {**here, "version": version})]
            chain = {number: _Link(size, text or None) for number, size, text in rows}
            parts = _locate(chain, version, start, end)
            if parts is None:
                return None
            replies = yield [
                (self._range, {**here, "version": number, "start": low, "end": high}) for number, low, high in parts
            ]
            if all(
                found and (found[0][3] or None) == chain[number].delta
                for (number, *_), found in zip(parts, replies, strict=True)
            ):
                return b"".join(
                    self._cut(found, low, high) for (_, low, high), found in zip(parts, replies, strict=True)
                )
            # Another process has compared one of the versions, or removed it, after the first statement.

    def _cut(self, rows: Rows, start: int, end: int) -> bytes:
        """Return the bytes `[start, end)` of the pieces that the statement of a range has read."""
        part = self._dialect.part
        return b"".join(part(data, max(start - at, 0), max(end - at, 0)) for _, at, data, _ in rows if data is not None)

    def shrink(self) -> SqlProgram[bool]:
        """Compare some bytes of an old version with the next; return whether more may be left.

        At the end, its content is replaced by what differs. The next version is an old one, too, which does not change.
        The oldest versions are purged first, so the next one is there as long as this one. Each version that would make
        a chain too long is left whole. So is one that differs much: others wait while the bytes are written.
        """
        dialect, old = self._dialect, self._old
        following = f"SELECT 1 FROM {old} AS following WHERE following.ns = {old}.ns AND following.key = {old}.key"
        sql = (
            f"SELECT ended, ns, key, version, body, size FROM {old} WHERE delta IS NULL AND size > {_LARGE} AND"
            f" (ended_kind <> 'put' OR EXISTS ({following} AND following.version = {old}.ended))"
            f" ORDER BY ended LIMIT 1{dialect.for_update}"
        )
        [rows] = yield [(sql, {})]
        if not rows:
            return False
        ended, ns, key, version, body, size = rows[0]
        depth, next_size = yield from self._find_next(ns, key, version, ended, body)
        common = min(size, next_size)
        done = self._compared if self._compared.ended == ended else _Compared(ended)
        if common and size <= file_values.LARGEST and not done.is_all:
            done = self._compared = yield from self._compare(done, ns, key, version, size, next_size)
            if not done.is_all:
                return True
        differing = size - done.prefix - done.suffix
        is_whole = not common or not done.is_all or differing > min(size // 2, _MOST_DIFFERING)
        delta = None if is_whole else Delta(ended, done.prefix, done.suffix, depth)
        mark = "" if delta is None else msgspec.json.encode(delta).decode()
        change: list[Statement] = [
            (f"UPDATE {old} SET delta = :delta WHERE ended = :ended", {"delta": mark, "ended": ended})
        ]
        if delta is not None:
            middle = yield from self._read_part(ns, key, version, delta.prefix, size - delta.suffix)
            assert middle is not None
            insert = f"INSERT INTO {dialect.chunks} (body_id, start, data) VALUES (:body, :start, :data)"
            change.append((f"DELETE FROM {dialect.chunks} WHERE body_id = :body", {"body": body}))
            change += [
                (insert, {"body": body, "start": delta.prefix + at, "data": middle[at : at + PIECE]})
                for at in range(0, len(middle), PIECE)
            ]
        yield change
        return True

    def _find_next(self, ns: str, key: str, version: int, ended: int, body: int) -> SqlProgram[tuple[int, int]]:
        """Return how many versions would need the next one, and the size of that; 0 to leave this version whole."""
        old, here = self._old, {"ns": ns, "key": key}
        [[(users,)], before, following] = yield [
            (
                f"SELECT (SELECT count(*) FROM {self._table} WHERE body = :body)"
                f" + (SELECT count(*) FROM {old} WHERE body = :body)",
                {"body": body},
            ),
            (
                f"SELECT delta FROM {old} WHERE ns = :ns AND key = :key AND ended = :version",
                {**here, "version": version},
            ),
            (
                f"SELECT size FROM {old} WHERE ns = :ns AND key = :key AND version = :ended AND body IS NOT NULL",
                {**here, "ended": ended},
            ),
        ]
        depth = Delta.read(before[0][0]).depth + 1 if before and before[0][0] else 1
        if users > 1 or depth > _MOST_DELTAS or not following:  # versions that share a body cost nothing already
            return 0, 0
        return depth, following[0][0]

    def _compare(
        self, done: _Compared, ns: str, key: str, version: int, size: int, next_size: int
    ) -> SqlProgram[_Compared]:
        """Compare some more bytes of a version with those of the next one, at the beginning or at the end."""
        left = min(size, next_size) - done.prefix - done.suffix
        length = min(left, _STEP)
        low = size - done.suffix - length if done.has_prefix else done.prefix
        next_low = low + next_size - size if done.has_prefix else low
        own = yield from self._read_part(ns, key, version, low, low + length)
        following = yield from self._read_part(ns, key, done.ended, next_low, next_low + length)
        if own is None or following is None or len(own) != len(following):  # it is damaged, which `check` reports
            return _Compared(done.ended, is_all=True)
        if done.has_prefix:
            count = _count_common(own[::-1], following[::-1])
            return done._replace(suffix=done.suffix + count, is_all=count < length or count == left)
        count = _count_common(own, following)
        return done._replace(prefix=done.prefix + count, has_prefix=count < length, is_all=count == left)

    def list_versions(self, op: ops.ListVersions) -> SqlProgram[list[list[OldVersion]]]:
        if not op.addresses:
            return []
        page = {"before": op.before, "limit": op.limit}
        replies = yield [
            (self._list, {"ns": keys.encode(namespace), "key": key, **page}) for namespace, key in op.addresses
        ]
        return [[OldVersion(*row) for row in rows] for rows in replies]

    def change_statements(self, op: ops.SetChange) -> list[Statement]:
        """Return the statements of `SetChange`."""
        here, named = {"ns": keys.encode(op.namespace), "key": op.key}, "ns = :ns AND key = :key"
        of_change = {"time": op.time, "acting": op.acting, **here}
        newest = f"(SELECT version FROM {self._table} WHERE {named})"
        is_end = "value IS NULL"
        return [
            (
                f"UPDATE {self._table} SET changed = :time, acting = :acting,"
                f" kind = CASE WHEN {is_end} THEN CAST(:kind AS text) ELSE kind END WHERE {named}",
                {**of_change, "kind": op.kind},
            ),
            (
                f"UPDATE {self._old} SET ended_at = :time, ended_acting = :acting, ended_kind = CASE WHEN ended_kind ="
                f" 'put' THEN ended_kind ELSE CAST(:kind AS text) END, expires = coalesce(:expires, expires)"
                f" WHERE ended = {newest} AND {named}",
                {**of_change, "kind": op.kind, "expires": op.expires},
            ),
        ]

    def list_past(self, op: ops.ListPast, now: int | None) -> SqlProgram[Page[OldHead]]:
        setting = yield from self._read_setting()
        if setting is None:
            raise no_history()
        params: dict[str, Any] = {"limit": op.limit + 1}
        if isinstance(op.at, int):
            setting.check_time(op.at, (yield from self._now(now)))
            params["at"] = op.at
            unexpired = "(expires IS NULL OR expires > :at)"
            present = f"coalesce(changed, updated) <= :at AND {unexpired}"
            past = f"changed <= :at AND ended_at > :at AND {unexpired}"
        else:
            present, past = yield from self._feed.past_conditions(op.at, setting, params)
        inside = _select_heads(op, params)
        if op.after is not None:
            inside += " AND (ns, key) > (:after_ns, :after_key)"
            params.update(after_ns=keys.encode(op.after[0]), after_key=op.after[1])
        sql = " UNION ALL ".join(
            f"SELECT * FROM (SELECT {_HEAD} FROM {table} WHERE value IS NOT NULL AND {condition} {inside}"
            f" ORDER BY ns, key LIMIT :limit) AS {name}"
            for table, condition, name in ((self._table, present, "present"), (self._old, past, "past"))
        )
        [rows] = yield [(f"{sql} ORDER BY ns, key, version LIMIT :limit", params)]
        page: Page[OldHead] = Page()
        for ns, key, *numbers in rows[: op.limit]:
            if page and (page[-1].key, keys.encode(page[-1].namespace)) == (key, ns):  # a clock was set back
                page.pop()
            page.append(OldHead(keys.decode(ns), key, *numbers))
        if len(rows) > op.limit:
            page.next = page[-1].key
        return page


def _locate(chain: dict[int, _Link], version: int, low: int, high: int) -> list[tuple[int, int, int]] | None:
    """Return which bytes of which versions are the bytes `[low, high)` of one, in order; None if one is missing."""
    link = chain.get(version)
    if link is None:
        return None
    high = min(high, link.size)
    if low >= high:
        return []
    if link.delta is None:
        return [(version, low, high)]
    delta = Delta.read(link.delta)
    following = chain.get(delta.following)
    if following is None:
        return None
    begin, stop, shift = delta.prefix, link.size - delta.suffix, following.size - link.size
    before = _locate(chain, delta.following, low, min(high, begin))
    own = [(version, max(low, begin), min(high, stop))] if max(low, begin) < min(high, stop) else []
    after = _locate(chain, delta.following, max(low, stop) + shift, high + shift)
    return None if before is None or after is None else [*before, *own, *after]


def _count_common(one: bytes, other: bytes) -> int:
    """Return how many bytes at the beginning of two texts are the same."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # the longest common beginning, by halving
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _select_heads(op: ops.ListPast, params: dict[str, Any]) -> str:
    """Return the condition that a row is one that the walk lists, and add its parameters."""
    if op.key is not None:
        params.update(ns=keys.encode(op.prefix), key=op.key)
        return "AND ns = :ns AND key = :key"
    if op.folder is not None:
        low, high = keys.in_folder(op.folder)
        params.update(ns=keys.encode(op.prefix), low=low, high=high)
        return "AND ns = :ns AND key >= :low AND key < :high AND body IS NOT NULL"
    return within(op.prefix, op.recursive, params)
