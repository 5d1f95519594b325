"""PostgreSQL's programs: batches in few statements, the schema brought up to date, and a feed that is read safely.

Versions come from a sequence, drawn after the row is locked, so that one entry's only grow; writers never wait for each
other otherwise. A sequence is not in the order of commits, so the feed does not trust it: every row names the
transaction that wrote it (`xid`), and a position is a snapshot. What changed since is what that snapshot could not see.
Nothing is missed however long a transaction runs, and nothing waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

from .. import keys, ops
from ..engine import history_gone, not_a_cursor, put_entry, to_entry
from ..errors import SchemaTooNew
from ..ops import ABSENT, Hit, Op
from ..programs import Program, Work
from ..values import decode, ttl_microseconds
from .history import mark_of
from .narrowing import narrow
from .postgres_dialect import MIGRATIONS, Numbers, PostgresDialect, Texts, new_token, projected
from .postgres_search import PostgresRanker
from .sql import Sql, is_plain_put, takes_several, within
from .sql_search import reckoned
from .statements import LIVE, OLD_IS_LIVE, Rows, Statement

T = TypeVar("T")

_SNAPSHOT = r"\d{1,18}:\d{1,18}:(?:\d{1,18}(?:,\d{1,18})*)?"
_POSITION = re.compile(rf"({_SNAPSHOT})?(?:/({_SNAPSHOT})/(\d{{1,18}}))?", re.ASCII)


class PostgresSql(Sql):
    """The ops as programs over PostgreSQL's statements."""

    _dialect: PostgresDialect

    def __init__(self, dialect: PostgresDialect, clock: Callable[[], int | None]) -> None:
        super().__init__(dialect, clock)
        self._ranker = PostgresRanker(dialect, clock, self.columns, self._conditions, self._texts)
        rows = (
            "unnest(:all_ns::text[], :all_key::text[], :all_value::text[], :all_projection::text[], :all_ttl::bigint[])"
        )
        nothing = "NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint"
        self._put_many = self._upsert(
            f"SELECT {dialect.next_version}, ns, key, value, :now, :now, :now + ttl, ttl, pg_current_xact_id(), :token,"
            f" coalesce(projection, value)::jsonb, {nothing}"
            f" FROM {rows} AS row (ns, key, value, projection, ttl)",
            self._following,
            returning="RETURNING version, created, updated",
        )
        once = "WHERE old.token IS DISTINCT FROM excluded.token"
        self._put_once = {self._put_any[keep]: self._put(keep, once) for keep in (False, True)}
        # The most frequent: an item that lives for ever, over such a one or nothing. Where no column of a file's is set
        # nor that of vectors, no trigger looks for what has to go with them.
        following = {**dialect.projections, "fields": "NULL"}
        self._put_item = self._upsert(
            self._values("NULL, NULL", following),
            following,
            lifetime="expires = NULL, ttl = NULL",
            where=f"{once} AND old.body IS NULL AND old.vectors IS NULL",
        )
        self._lock_here = (
            f"SELECT FROM {self._table} WHERE ns = :ns AND key = ANY(:all_key::text[]) ORDER BY ns, key FOR UPDATE"
        )
        # Row by row, as the lists are sorted: a join would rather read the whole table.
        self._lock = (
            f"SELECT FROM unnest(:all_ns::text[], :all_key::text[]) AS row (ns, key) CROSS JOIN LATERAL ("
            f"SELECT FROM {self._table} AS entry WHERE entry.ns = row.ns AND entry.key = row.key FOR UPDATE) AS locked"
        )
        self._get_many = (
            f"SELECT place, found.*"
            f" FROM unnest(:all_ns::text[], :all_key::text[]) WITH ORDINALITY AS row (ns, key, place)"
            f" CROSS JOIN LATERAL (SELECT {self.columns} FROM {self._table} AS entry"
            f" WHERE entry.ns = row.ns AND entry.key = row.key AND {LIVE}) AS found"
        )
        self._hold = (
            f"INSERT INTO {self._table} AS old (ns, key, version, created, updated, kind, xid)"
            f" VALUES (:ns, :key, {dialect.next_version}, :now, :now, 'none', pg_current_xact_id())"
            f" ON CONFLICT (ns, key) DO UPDATE SET key = excluded.key RETURNING"
            f" CASE WHEN {OLD_IS_LIVE} THEN version END"
        )

    # The schema ------------------------------------------------------------------------------------------------------

    def missing(self) -> Program[list[str]]:
        """The statements that would bring the schema up to date."""
        dialect, schema = self._dialect, self._dialect.schema
        present, oldest = 0, 0
        # Not to_regclass: it may answer from what this session remembers from before another one's migration.
        tables = "SELECT 1 FROM pg_tables WHERE schemaname = :p0 AND tablename = 'schema_version'"
        [found] = yield [(tables, {"p0": dialect.schema_name})]
        if found:
            [[(present, oldest)]] = yield [(f"SELECT version, oldest FROM {schema}.schema_version", {})]
        if oldest > len(MIGRATIONS):
            raise SchemaTooNew(
                f"the schema {schema} has version {present}, for holdall's {oldest} or newer;"
                f" this one knows up to {len(MIGRATIONS)}: upgrade holdall"
            )
        statements = []
        if present == 0:
            statements += [
                f"CREATE SCHEMA IF NOT EXISTS {schema}",
                f"CREATE TABLE {schema}.schema_version (version int NOT NULL, oldest int NOT NULL)",
                f"INSERT INTO {schema}.schema_version VALUES (0, 0)",
            ]
        for number, statement in enumerate(MIGRATIONS[present:], present + 1):
            statements += [
                statement.replace("{schema}", schema),
                f"UPDATE {schema}.schema_version SET version = {number}, oldest = 1",
            ]
        if present:
            statements += yield from self._strange()
        known = "SELECT indexname::text, indexdef FROM pg_indexes WHERE schemaname = :p0"
        [rows] = yield [(known, {"p0": dialect.schema_name})]
        return [*statements, *dialect.missing_indexes(dict(rows))]

    def _strange(self) -> Program[list[str]]:
        """The statements that a schema needs which was copied from another server, as from a dump.

        Its rows name transactions of that server. Where this one has not come as far, nobody could tell what is new:
        so they become older than all, the index of texts begins anew, and who reads the feed from before is told so.
        """
        dialect, strange = self._dialect, "xid >= pg_snapshot_xmax(pg_current_snapshot())"
        [rows] = yield [(f"SELECT 1 FROM {self._table} WHERE {strange} LIMIT 1", {})]
        if not rows:
            return []
        return [
            f"UPDATE {self._table} SET xid = '3' WHERE {strange}",
            f"DELETE FROM {dialect.state} WHERE name = 'texts'",
            *(f"DELETE FROM {table}" for table in (dialect.terms, dialect.documents, dialect.texts)),
            self._history.move_mark("pg_current_xact_id()"),
        ]

    def look_for_pgvector(self) -> Program[None]:
        """See what type vectors are of: pgvector's own, if it was there when their table was made."""
        sql = (
            "SELECT quote_ident(nspname) FROM pg_attribute AS attribute"
            " JOIN pg_type AS kind ON kind.oid = attribute.atttypid"
            " JOIN pg_namespace AS home ON home.oid = kind.typnamespace"
            " WHERE attrelid = :p0::regclass AND attname = 'data' AND typname = 'vector'"
        )
        [rows] = yield [(sql, {"p0": self._dialect.vectors})]
        if rows:
            self._dialect.use_pgvector(rows[0][0])

    # Batches ---------------------------------------------------------------------------------------------------------

    def batch(self, batch: Sequence[Op], token: int | None = None) -> Program[list[Any]]:
        """As few statements as there can be, all in one round trip, and one token in all that they change.

        The rows that will be written are locked first and in order, so that two batches do not wait for each other.
        """
        if len(batch) > 1 and all(type(op) is ops.Get for op in batch):
            return (yield from self._got(batch))
        if all(type(op) in ops.READS for op in batch):
            return (yield from super().batch(batch))
        if not any(map(takes_several, batch)):
            return (yield from self._together(batch, [self._locking(batch)], token))
        yield [self._locking(batch)]
        results: list[Any] = []
        for several, group in groupby(batch, takes_several):
            members = list(group)
            if not several:
                results += yield from self._together(members, [], token)
            for op in members if several else ():
                results.append((yield from _with_token(self.perform(op, self._clock()), token)))
        return results

    def _got(self, batch: Sequence[Any]) -> Program[list[Any]]:
        """Many gets in one statement, which needs no transaction to see one moment."""
        params = {"all_ns": [keys.encode(op.namespace) for op in batch], "all_key": [op.key for op in batch]}
        [rows] = yield [(self._get_many, {**params, "now": self._clock()})]
        found = {place: row for place, *row in rows}
        return [to_entry(tuple(found[place])) if place in found else None for place in range(1, len(batch) + 1)]

    def _together(self, batch: Sequence[Op], before: list[Statement], token: int | None) -> Program[list[Any]]:
        groups = list(_grouped(batch))
        said: list[Statement] = []
        values: list[list[dict[str, Any]]] = []

        def statements() -> Iterator[Statement]:
            """Made one by one, so that the server has begun with the first when the last is made.

            And while it is at work, what has been said to it is decoded for the answer.
            """
            yield from before
            for group in groups:
                sql, params = self._many(group) if len(group) > 1 else self._guarding(group[0])
                if "token" in params:
                    params["token"] = token
                said.append((sql, params))
                yield said[-1]
                values.append([decode(put.value) for put in group] if len(group) > 1 else [])

        replies = yield statements()
        results: list[Any] = []
        for group, (_, params), decoded, rows in zip(groups, said, values, replies[len(before) :], strict=True):
            if len(group) > 1:  # its rows are in its order, since the versions are
                written = zip(group, decoded, params["all_ttl"], sorted(rows), strict=True)
                results += [
                    put_entry(put, value, version, created, updated, None if ttl is None else updated + ttl)
                    for put, value, ttl, (version, created, updated) in written
                ]
            else:
                results.append((yield from self._outcome(group[0], params, rows)))
        return results

    def _actual(self, params: dict[str, Any]) -> Program[int | None]:
        yield [("ROLLBACK", {})]  # what the ops after the one that failed have written is not what it found
        return (yield from super()._actual(params))

    def found_instead(self, params: dict[str, Any]) -> Program[int | None]:
        """What a statement alone found in place of the version that it expected."""
        return (yield from super()._actual(params))

    def once(self, op: Op) -> Statement:
        """An op's statement, to be said until it is known to be done."""
        if is_plain_put(op) and op.ttl is None:
            value: Any = op.value
            return self._put_item, {
                "ns": keys.encode(op.namespace),
                "key": op.key,
                "value": value,
                "projection": projected(value),
                "now": self._clock(),
                "token": new_token(),
                "size": None,
            }
        sql, params = self.statement(op)
        return self._put_once.get(sql, sql), params

    def over_more(self, statement: Statement) -> Statement | None:
        """What is to be said where a statement has done nothing: it may have found a file, or vectors, in its place."""
        sql, params = statement
        if sql is not self._put_item:
            return None
        return self._put_once[self._put_any[False]], {**params, "ttl": None, "fields": None, "model": None}

    def last_write(self, params: dict[str, Any]) -> Program[Rows]:
        """Who wrote an entry last (its token), and what that made of it."""
        sql = f"SELECT token, version, created, updated, expires FROM {self._table} WHERE ns = :ns AND key = :key"
        [rows] = yield [(sql, {"ns": params["ns"], "key": params["key"]})]
        return rows  # type: ignore[no-any-return]  # a reply

    def status_of(self, xid: str, token: int) -> Program[str | None]:
        """What became of a transaction: `committed`, `aborted`, `in progress`, or None where nobody can know.

        A crash forgets the last ids, and they are given out again. So one from the future never was; and one that was
        committed is taken for ours only where a row has our token too.
        """
        sql = "SELECT CASE WHEN :p0::xid8 < pg_current_xact_id() THEN pg_xact_status(:p0::xid8) ELSE 'aborted' END"
        [[(status,)]] = yield [(sql, {"p0": xid})]
        if status == "committed":
            sql = f"SELECT 1 FROM {self._table} WHERE xid = :p0::xid8 AND token = :token LIMIT 1"
            [rows] = yield [(sql, {"p0": xid, "token": token})]
            return "committed" if rows else None
        return str(status) if status else None

    def _many(self, group: list[Any]) -> Statement:
        return self._put_many, {
            "all_ns": Texts([keys.encode(put.namespace) for put in group]),
            "all_key": Texts([put.key for put in group]),
            "all_value": Texts([put.value for put in group]),
            "all_projection": Texts([projected(put.value) for put in group]),
            "all_ttl": Numbers([ttl_microseconds(put.ttl) for put in group]),
            "now": self._clock(),
            "token": None,
        }

    def _locking(self, batch: Sequence[Op]) -> Statement:
        places = sorted({(keys.encode(op.namespace), op.key) for op in batch if isinstance(op, _WRITES)})
        here = Texts([key for _, key in places])
        if places and places[0][0] == places[-1][0]:  # in one namespace, an index finds them in one go
            return self._lock_here, {"ns": places[0][0], "all_key": here}
        return self._lock, {"all_ns": Texts([ns for ns, _ in places]), "all_key": here}

    def _guarding(self, op: Op) -> Statement:
        """An op's statement; a check keeps its row as it is until the end, even one that is not there."""
        sql, params = self.statement(op)
        if sql is not self._version_of:
            return sql, params
        if isinstance(op, ops.Check | ops.Delete) and op.expect is ABSENT:
            return self._hold, params
        return f"{sql} FOR SHARE", params

    def result(self, op: Op, params: dict[str, Any], rows: Rows) -> Any:
        if rows == [(None,)]:  # a place that is held, and empty
            rows = []
        return super().result(op, params, rows)

    # The feed --------------------------------------------------------------------------------------------------------

    def position(self) -> Program[str]:
        """A snapshot, cut off after the last id that is in the table.

        What is committed survives a crash, and so does the memory of every id before it; but ids after it may be
        forgotten, and given out again to changes that this position has not seen.
        """
        last_xid = f"SELECT xid FROM {self._table} ORDER BY xid DESC LIMIT 1"
        sql = f"SELECT pg_current_snapshot()::text, coalesce(({last_xid}), '2')::text"
        [[(snapshot, last)]] = yield [(sql, {})]
        least, most, running = snapshot.split(":")
        end = min(int(most), int(last) + 1)
        before_end = [xid for xid in running.split(",") if xid and int(xid) < end]
        return f"{min(int(least), end)}:{end}:{','.join(before_end)}"

    def newer(self, op: ops.Search, position: str, want: int) -> Program[list[tuple[Hit, str]]]:
        params: dict[str, Any] = {"now": self._clock()}
        where = f"{LIVE} {within(op.prefix, op.recursive, params)}"
        narrowed, _ = narrow(op.filter, self._dialect, params)
        if narrowed:
            where += f" AND {narrowed}"
        found: list[tuple[Hit, str]] = []
        while len(found) < want:
            size = max(want, 64)
            rows, next_position = yield from self._since(position, self.columns, where, params, size)
            found += yield from reckoned(_matching, op, rows)
            if len(rows) < size:
                break
            position = next_position
        return found[:want]

    def _resumed(self, cursor: str | None) -> Program[tuple[str, str, Callable[[str], str]]]:
        """As of revisions, with snapshots: who could not see a tombstone that went would never learn of it."""
        [known] = yield [self._history.mark]
        here = yield from self.position()
        first, until, _ = _parsed(cursor or "")
        if first or until:
            least, most = (first or until or "").split(":")[:2]
            if not (mark_of(known) < int(least) and int(most) <= int(here.split(":")[1])):
                raise history_gone(cursor)
        return here, cursor or "", lambda position: position

    def _since(
        self, position: str, columns: str, where: str, params: dict[str, Any], limit: int, here: str | None = None
    ) -> Program[tuple[Rows, str]]:
        """Rows that changed after a position, by version, each with the position after it; and the one after them all.

        A position is a snapshot, or `from/to/version`: within what changed between two snapshots, after a version.
        """
        since, until, above = _parsed(position)
        found: Rows = []
        while True:
            resumed = until is not None
            until = until or here or (yield from self.position())
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

    def _changed_since(self, position: str) -> Program[int]:
        since, _, _ = _parsed(position)
        sql, bounds = f"SELECT count(*) FROM {self._table}", {}
        if since:
            sql += " WHERE xid >= :oldest::xid8 AND NOT pg_visible_in_snapshot(xid, :since::pg_snapshot)"
            bounds = {"since": since, "oldest": since.split(":")[0]}
        [[(count,)]] = yield [(sql, bounds)]
        return count  # type: ignore[no-any-return]  # a row's column


def _matching(op: ops.Search, rows: Rows) -> list[tuple[Hit, str]]:
    """The rows that match a filter as hits, each with the position after it."""
    hits = ((to_entry(tuple(row), Hit), after) for *row, after in rows)
    return [(hit, after) for hit, after in hits if op.filter is None or op.filter.matches(hit.value)]


def _parsed(position: str) -> tuple[str, str | None, int]:
    """The parts of a position: from which snapshot, up to which one, after which version."""
    match = _POSITION.fullmatch(position)
    if match is None or not all(_is_snapshot(text) for text in match.groups()[:2] if text):
        raise not_a_cursor(position)
    return match[1] or "", match[2], int(match[3] or 0)


def _is_snapshot(text: str) -> bool:
    """Whether PostgreSQL would take this for a snapshot: `xmin:xmax:running,…`, in order."""
    least, most, running = text.split(":")
    between = [int(xid) for xid in running.split(",")] if running else []
    return (
        0 < int(least) <= int(most)
        and between == sorted(set(between))
        and all(int(least) <= xid < int(most) for xid in between)
    )


_WRITES = (ops.Put, ops.Delete, ops.Refresh, ops.Backdate, ops.Append)
_MOST_AT_ONCE = 250  # puts in one statement


def _with_token(program: Program[T], token: int | None) -> Program[T]:
    """A program whose statements all have this token."""
    replies: Any = None
    while True:
        try:
            statements = program.send(replies)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # StopIteration.value is untyped
        for _, params in () if type(statements) is Work else statements:
            if "token" in params:
                params["token"] = token
        replies = yield statements


def _grouped(batch: Sequence[Op]) -> Iterator[list[Any]]:
    """Runs of unconditional puts to different places, which one statement can do; every other op alone.

    Not too many at once: the server is to begin while the next are still being written down.
    """
    group: list[Op] = []
    places: set[tuple[Any, str]] = set()
    for op in batch:
        place = (op.namespace, op.key) if is_plain_put(op) else None
        if group and (place is None or place in places or len(group) == _MOST_AT_ONCE):
            yield group
            group, places = [], set()
        if place is None:
            yield [op]
        else:
            group.append(op)
            places.add(place)
    if group:
        yield group
