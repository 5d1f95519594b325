"""PostgreSQL's words: the schema, how it reads fields, and how its feed is read safely.

Versions come from a sequence, drawn after the row is locked, so that one entry's only grow; writers never wait for each
other otherwise. A sequence is not in the order of commits, so the feed does not trust it: every row names the
transaction that wrote it (`xid`), and a position is a snapshot. What changed since is what that snapshot could not see.
Nothing is missed however long a transaction runs, and nothing waits for it.

`projection` is the value as jsonb, for filters alone; NUL, which jsonb refuses, is U+0001 there. `token` tells a writer
that lost its connection whether the last write was its own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, TypeVar

import msgspec

from .. import keys, ops
from ..engine import NO_FILE, to_entry
from ..errors import InvalidInput, SchemaTooNew
from ..filters import check_field
from ..ops import ABSENT, Change, Hit, Op, Page
from ..programs import Program
from ..values import decode, ttl_microseconds
from .narrowing import Binder, Path, narrow
from .sql import Dialect, Sql, is_plain_put, within
from .sql_files import SqlFiles
from .statements import LIVE, OLD_IS_LIVE, Rows, Statement

T = TypeVar("T")

#: Numbered and additive: the release before must keep working on the newer schema.
MIGRATIONS = (
    """
    CREATE SEQUENCE {schema}.versions;
    CREATE TABLE {schema}.entries (
        ns text COLLATE "C" NOT NULL,
        key text COLLATE "C" NOT NULL,
        version bigint NOT NULL,
        value text,
        projection jsonb,
        created bigint NOT NULL,
        updated bigint NOT NULL,
        expires bigint,
        ttl bigint,
        kind text,
        xid xid8 NOT NULL,
        token bigint,
        body bigint,
        size bigint,
        appended bigint,
        shared bigint,
        PRIMARY KEY (ns, key)
    );
    CREATE TABLE {schema}.chunks (
        body_id bigint NOT NULL,
        start bigint NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (body_id, start)
    );
    CREATE INDEX entries_files ON {schema}.entries (ns, key) WHERE body IS NOT NULL;
    CREATE INDEX entries_shared ON {schema}.entries (body) WHERE shared IS NOT NULL;
    CREATE FUNCTION {schema}.forget_body() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        DELETE FROM {schema}.chunks WHERE body_id = old.body AND NOT EXISTS (
            SELECT 1 FROM {schema}.entries WHERE shared IS NOT NULL AND body = old.body
        );
        RETURN NULL;
    END
    $$;
    CREATE INDEX entries_large ON {schema}.entries (ns) WHERE size > 1048576;
    -- Which contents are new to the index of what they contain, or gone from it; and that index: of each content, the
    -- groups of three bytes that are in it, as numbers.
    CREATE TABLE {schema}.unindexed (version bigint PRIMARY KEY, gone boolean);
    CREATE TABLE {schema}.contents (version bigint PRIMARY KEY, grams int[] NOT NULL);
    CREATE INDEX contents_grams ON {schema}.contents USING gin (grams) WITH (gin_pending_list_limit = 1024);
    CREATE FUNCTION {schema}.note_content() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'UPDATE' AND old.body IS NOT NULL THEN
            INSERT INTO {schema}.unindexed VALUES (old.version, true)
                ON CONFLICT (version) DO UPDATE SET gone = true;
        END IF;
        IF new.body IS NOT NULL THEN
            INSERT INTO {schema}.unindexed VALUES (new.version, NULL);
        END IF;
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER entries_new AFTER INSERT ON {schema}.entries FOR EACH ROW
        WHEN (new.body IS NOT NULL) EXECUTE FUNCTION {schema}.note_content();
    CREATE TRIGGER entries_changed AFTER UPDATE OF version ON {schema}.entries FOR EACH ROW
        WHEN (old.body IS NOT NULL OR new.body IS NOT NULL) EXECUTE FUNCTION {schema}.note_content();
    CREATE TRIGGER entries_unused AFTER UPDATE OF body ON {schema}.entries FOR EACH ROW
        WHEN (old.body IS NOT NULL AND old.body IS DISTINCT FROM new.body)
        EXECUTE FUNCTION {schema}.forget_body();
    CREATE UNIQUE INDEX entries_version ON {schema}.entries (version);
    CREATE INDEX entries_xid ON {schema}.entries (xid);
    CREATE INDEX entries_newest ON {schema}.entries (ns, version) WHERE value IS NOT NULL;
    CREATE INDEX entries_expiring ON {schema}.entries (expires) WHERE expires IS NOT NULL;
    -- Every search reads what waits to be sorted in: not more than it would read anyway.
    CREATE INDEX entries_projection ON {schema}.entries USING gin (projection jsonb_path_ops)
        WITH (gin_pending_list_limit = 256);
    -- A declared field as it is indexed. What would not fit an index row is left out; numbers of so many digits that
    -- only an integer can have them become one that compares alike.
    CREATE FUNCTION {schema}.field(projection jsonb, path text[]) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT CASE
            WHEN length(projection #>> path) <= 400 THEN projection #> path
            WHEN jsonb_typeof(projection #> path) = 'number'
                THEN CASE WHEN projection #>> path LIKE '-%' THEN '-1e400'::jsonb ELSE '1e400'::jsonb END
        END
    $$;
    """,
)

_TYPES = {
    **dict.fromkeys(("ns", "key", "value", "projection", "low", "high", "after_ns", "after_key"), "text"),
    **dict.fromkeys(("after", "dst", "to", "hidden_low", "hidden_high"), "text"),
    **dict.fromkeys(("now", "ttl", "expect", "limit", "below", "above", "token"), "bigint"),
    **dict.fromkeys(("size", "more", "start", "end", "body", "own", "mark", "version"), "bigint"),
    **dict.fromkeys(("cut", "depth"), "integer"),
}
_SERVER_NOW = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
_PARAMETER = re.compile(r"""(?<!:):([a-z]\w*)|"(?:[^"]|"")*"|'(?:[^']|'')*'""")
_INDEX_LIKE = re.compile(r"-?\d+")
_ESCAPED_NUL = "\\u0000"
_LONGEST_TEXT = 100  # of a string in the projection

_SNAPSHOT = r"\d{1,18}:\d{1,18}:(?:\d{1,18}(?:,\d{1,18})*)?"
_POSITION = re.compile(rf"({_SNAPSHOT})?(?:/({_SNAPSHOT})/(\d{{1,18}}))?", re.ASCII)


class PostgresDialect(Dialect):
    skip_locked = " FOR UPDATE SKIP LOCKED"
    first_version: str
    redrawn_version: str

    def __init__(self, schema: str, indexed: Sequence[str], server_clock: bool) -> None:
        self.schema_name = schema
        self.schema = '"' + schema.replace('"', '""') + '"'
        self.table = f"{self.schema}.entries"
        draw = f"nextval('{self.schema.replace(chr(39), chr(39) * 2)}.versions')"
        self.next_version = self.first_version = self.redrawn_version = self.next_versions = self.next_body = draw
        self.chunks, self.unindexed = f"{self.schema}.chunks", f"{self.schema}.unindexed"
        pieces = f"SELECT string_agg(data, ''::bytea ORDER BY start) FROM {self.chunks} WHERE body_id = body"
        self.content = f"CASE WHEN size > 0 THEN ({pieces}) END"
        self.stamps = {"xid": "pg_current_xact_id()", "token": ":token"}
        self.projections = {"projection": "coalesce(:projection, :value)::jsonb"}
        self._indexed: set[Path] = set()
        for field in indexed:
            path = check_field(field)
            if "\x00" in field or "\x01" in field:
                raise InvalidInput(f"indexed= cannot name a field with NUL or U+0001: {field!r}")
            self._indexed |= {path, (field,)}  # a key with dots means both
        self.translated = lru_cache(maxsize=512)(lambda sql: _translated(sql, server_clock))

    def parameters(self, op: Op) -> dict[str, Any]:
        token = {"token": new_token()}
        if not isinstance(op, ops.Put):
            return token
        value = op.value.shape if isinstance(op.value, ops.File) else str(op.value)
        return token | {"projection": projected(value)}

    def bury(self, which: str, kind: str) -> str:
        return f"""
            WITH doomed AS (SELECT ns, key FROM {self.table} WHERE {which} FOR UPDATE)
            UPDATE {self.table} AS entry SET
                version = {self.next_version}, value = NULL, projection = NULL, expires = NULL, ttl = NULL,
                updated = :now, kind = '{kind}', xid = pg_current_xact_id(), token = :token,
                body = NULL, size = NULL, appended = NULL, shared = NULL
            FROM doomed WHERE entry.ns = doomed.ns AND entry.key = doomed.key RETURNING version"""

    def position(self, text: str, part: str) -> str:
        return f"strpos({text}, {part})"

    def character(self, code: int) -> str:
        return f"chr({code})"

    def among(self, column: str, numbers: list[int]) -> tuple[str, dict[str, Any]]:
        return f"{column} = ANY(:all_numbers::bigint[])", {"all_numbers": numbers}

    def learn(self, texts: list[tuple[int, str]]) -> list[Any]:
        sql = f"INSERT INTO {self.schema}.contents VALUES (:version, :all_grams::int[]) ON CONFLICT DO NOTHING"
        return [(sql, {"version": version, "all_grams": sorted(_grams(text))}) for version, text in texts]

    def forget(self, versions: list[int]) -> Any:
        among, params = self.among("version", versions)
        return f"DELETE FROM {self.schema}.contents WHERE {among}", params

    def mentions(self, grams: list[str]) -> Statement | None:
        numbers = sorted(set().union(*map(_grams, grams)))
        if not numbers:
            return None
        return f"SELECT version FROM {self.schema}.contents WHERE grams @> :all_grams::int[]", {"all_grams": numbers}

    def one_of(self, column: str, query: str) -> str:
        return f"{column} = ANY(ARRAY({query}))"

    def contains(self, data: str, part: str) -> str:
        return f"position({part} IN {data}) > 0"

    def after(self, ns: str, depth: int | None) -> str:
        if depth is None:
            return f"{ns} || chr(1)"
        first_labels = f"substring({ns} FROM E'^(?:[^\\x01]*\\x01){{{depth:d}}}')"
        return f"coalesce(left({first_labels}, -1) || chr(2), {ns} || chr(1))"

    # Fields ----------------------------------------------------------------------------------------------------------

    def compare(self, path: Path, operator: str, operand: Any, bind: Binder) -> str | None:
        if not _is_safe(path):
            return None
        if isinstance(operand, str):  # as it is projected: of two texts, the beginnings are in the same order
            operand = operand[:_LONGEST_TEXT]
        if operator == "IN":
            parts = [self.compare(path, "=", item, bind) for item in operand]
            return None if None in parts else f"({' OR '.join(part for part in parts if part)})"
        if isinstance(operand, str) and operator != "=":  # jsonb compares text by the database's collation
            return f'({self._at(path, ">>", bind)}) COLLATE "C" {operator} {bind(operand)}::text'
        if self.is_indexed(path):
            return f"{self._declared(path)} {operator} {_json(operand, bind)}"
        if operator == "=":
            for label in reversed(path):
                operand = {label: operand}
            return f"projection @> {_json(operand, bind)}"
        return f"{self._at(path, '>', bind)} {operator} {_json(operand, bind)}"

    def is_null(self, path: Path, bind: Binder) -> str | None:
        if not _is_safe(path) or any(_INDEX_LIKE.fullmatch(label) for label in path):
            return None
        return f"coalesce({self._at(path, '>', bind)}, 'null') = 'null'"

    def is_there(self, path: Path, bind: Binder) -> str | None:
        return f"{self._at(path, '>', bind)} IS NOT NULL" if _is_safe(path) else None

    def is_indexed(self, path: Path) -> bool:
        return path in self._indexed

    def indexes(self) -> Iterator[tuple[str, str]]:
        """Name and statement of each declared index."""
        for path in sorted(self._indexed):
            name = "field_" + ".".join(path) + ("" if len(path) == 1 else "_nested")
            name = name if len(name.encode()) < 64 else f"field_{hash_of(name)}"
            quoted = '"' + name.replace('"', '""') + '"'
            yield name, f"CREATE INDEX IF NOT EXISTS {quoted} ON {self.table} ({self._declared(path)}, ns)"

    def _declared(self, path: Path) -> str:
        """Word for word what the index says, or PostgreSQL would not use it."""
        labels = ", ".join("'" + label.replace("'", "''") + "'" for label in path)
        return f"{self.schema}.field(projection, ARRAY[{labels}])"

    def _at(self, path: Path, arrow: str, bind: Binder) -> str:
        return f"projection #{arrow} {bind(list(path))}::text[]"


def _grams(text: str) -> set[int]:
    """The groups of three bytes in a text, whatever the case of its letters, as numbers."""
    data = text.encode().lower()
    return {first << 16 | second << 8 | third for first, second, third in zip(data, data[1:], data[2:], strict=False)}


def _is_safe(path: Path) -> bool:
    return not any("\x00" in label or "\x01" in label for label in path)


def _json(operand: Any, bind: Binder) -> str:
    return f"{bind(msgspec.json.encode(operand).decode())}::jsonb"


def projected(value: str) -> str | None:
    """What jsonb is made of where it is not made of the value itself: without NUL, and of long texts the beginning."""
    if len(value) <= _LONGEST_TEXT and _ESCAPED_NUL not in value:
        return None
    return msgspec.json.encode(_shortened(decode(value))).decode()


def _shortened(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return value[:_LONGEST_TEXT].replace("\x00", "\x01")
    if kind is dict:
        return {key.replace("\x00", "\x01"): _shortened(item) for key, item in value.items()}
    if kind is list:
        return [_shortened(item) for item in value]
    return value


def new_token() -> int:
    """One that nobody else has: not from `random`, which users seed and forks copy."""
    return secrets.randbits(62)


def hash_of(text: str) -> str:
    """A short name for a long one."""
    import hashlib

    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _translated(sql: str, server_clock: bool) -> str:
    """psycopg's placeholders for ours, each with its type."""

    def placeholder(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:  # a quoted name or text, which may have anything in it
            return match[0]
        if name == "now" and server_clock:
            return _SERVER_NOW
        if name.startswith(("all_", "data")):
            return f"%({name})b"  # lists and bytes are sent faster so
        kind = _TYPES.get(name)
        return f"%({name})s::{kind}" if kind else f"%({name})s"

    return _PARAMETER.sub(placeholder, sql.replace("%", "%%"))


class PostgresSql(Sql):
    """The ops as programs over PostgreSQL's statements."""

    _dialect: PostgresDialect

    def __init__(self, dialect: PostgresDialect, clock: Callable[[], int | None]) -> None:
        super().__init__(dialect, clock)
        rows = (
            "unnest(:all_ns::text[], :all_key::text[], :all_value::text[], :all_projection::text[], :all_ttl::bigint[])"
        )
        self._put_many = self._upsert(
            f"SELECT {dialect.next_version}, ns, key, value, :now, :now, :now + ttl, ttl, pg_current_xact_id(), :token,"
            f" coalesce(projection, value)::jsonb, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint"
            f" FROM {rows} AS row (ns, key, value, projection, ttl)",
            returning="RETURNING ns, key, version, created, updated, expires",
        )
        self._put_once = {
            self._put_any[keep]: self._put(keep, "WHERE old.token IS DISTINCT FROM excluded.token")
            for keep in (False, True)
        }
        # Row by row, as the lists are sorted: a join would rather read the whole table.
        self._lock = (
            f"SELECT FROM unnest(:all_ns::text[], :all_key::text[]) AS row (ns, key) CROSS JOIN LATERAL ("
            f"SELECT FROM {self._table} AS entry WHERE entry.ns = row.ns AND entry.key = row.key FOR UPDATE) AS locked"
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
        known = ("SELECT indexname::text FROM pg_indexes WHERE schemaname = :p0", {"p0": dialect.schema_name})
        [rows] = yield [known]
        names = {name for (name,) in rows}
        return statements + [sql for name, sql in dialect.indexes() if name not in names]

    # Batches ---------------------------------------------------------------------------------------------------------

    def batch(self, batch: Sequence[Op], token: int | None = None) -> Program[list[Any]]:
        """As few statements as there can be, all in one round trip, and one token in all that they change.

        The rows that will be written are locked first and in order, so that two batches do not wait for each other.
        """
        if all(type(op) in ops.READS for op in batch):
            return (yield from super().batch(batch))
        if not any(map(SqlFiles.takes_several, batch)):
            return (yield from self._together(batch, [self._locking(batch)], token))
        yield [self._locking(batch)]
        results: list[Any] = []
        for several, group in groupby(batch, SqlFiles.takes_several):
            members = list(group)
            if not several:
                results += yield from self._together(members, [], token)
            for op in members if several else ():
                results.append((yield from _with_token(self._files.perform(op, self._clock()), token)))
        return results

    def _together(self, batch: Sequence[Op], before: list[Statement], token: int | None) -> Program[list[Any]]:
        groups = list(_grouped(batch))
        statements = [self._many(group) if len(group) > 1 else self._guarding(group[0]) for group in groups]
        for _, params in statements:
            if "token" in params:
                params["token"] = token
        replies = yield [*before, *statements]
        results: list[Any] = []
        for group, (_, params), rows in zip(groups, statements, replies[len(before) :], strict=True):
            if len(group) > 1:
                written = {(row[0], row[1]): row[2:] for row in rows}
                places = zip(params["all_ns"], params["all_key"], params["all_value"], strict=True)
                results += [to_entry((ns, key, value, *written[ns, key], *NO_FILE)) for ns, key, value in places]
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
        sql, params = self.statement(op)
        return self._put_once.get(sql, sql), params

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
            "all_ns": [keys.encode(put.namespace) for put in group],
            "all_key": [put.key for put in group],
            "all_value": [put.value for put in group],
            "all_projection": [projected(put.value) for put in group],
            "all_ttl": [ttl_microseconds(put.ttl) for put in group],
            "now": self._clock(),
            "token": None,
        }

    def _locking(self, batch: Sequence[Op]) -> Statement:
        places = sorted({(keys.encode(op.namespace), op.key) for op in batch if isinstance(op, _WRITES)})
        return self._lock, {"all_ns": [ns for ns, _ in places], "all_key": [key for _, key in places]}

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
            for *row, after in rows:
                hit: Hit = to_entry(tuple(row), Hit)
                if op.filter is None or op.filter.matches(hit.value):
                    found.append((hit, after))
            if len(rows) < size:
                break
            position = next_position
        return found[:want]

    def _changes(self, op: ops.Changes) -> Program[Page[Change]]:
        params: dict[str, Any] = {}
        where = f"kind IS DISTINCT FROM 'none' {within(op.prefix, True, params)}"
        columns = "ns, key, coalesce(kind, 'put'), version"
        rows, position = yield from self._since(op.since or "", columns, where, params, op.limit)
        changes = [Change(version, keys.decode(ns), key, kind, after) for ns, key, kind, version, after in rows]
        return Page(changes, position)

    def _since(
        self, position: str, columns: str, where: str, params: dict[str, Any], limit: int
    ) -> Program[tuple[Rows, str]]:
        """Rows that changed after a position, by version, each with the position after it; and the one after them all.

        A position is a snapshot, or `from/to/version`: within what changed between two snapshots, after a version.
        """
        match = _POSITION.fullmatch(position)
        if match is None or not all(_is_snapshot(text) for text in match.groups()[:2] if text):
            raise InvalidInput(f"not a cursor of this store: {position!r:.60}")
        since, until, above = match[1] or "", match[2], int(match[3] or 0)
        found: Rows = []
        while True:
            resumed = until is not None
            until = until if until is not None else (yield from self.position())
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


def _is_snapshot(text: str) -> bool:
    """Whether PostgreSQL would take this for a snapshot: `xmin:xmax:running,…`, in order."""
    least, most, running = text.split(":")
    between = [int(xid) for xid in running.split(",")] if running else []
    return (
        0 < int(least) <= int(most)
        and between == sorted(set(between))
        and all(int(least) <= xid < int(most) for xid in between)
    )


_WRITES = (ops.Put, ops.Delete, ops.Refresh, ops.Append)


def _with_token(program: Program[T], token: int | None) -> Program[T]:
    """A program whose statements all have this token."""
    replies: Any = None
    while True:
        try:
            statements = program.send(replies)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # StopIteration.value is untyped
        for _, params in statements:
            if "token" in params:
                params["token"] = token
        replies = yield statements


def _grouped(batch: Sequence[Op]) -> Iterator[list[Any]]:
    """Runs of unconditional puts to different places, which one statement can do; every other op alone."""
    group: list[Op] = []
    places: set[tuple[Any, str]] = set()
    for op in batch:
        place = (op.namespace, op.key) if is_plain_put(op) else None
        if group and (place is None or place in places):
            yield group
            group, places = [], set()
        if place is None:
            yield [op]
        else:
            group.append(op)
            places.add(place)
    if group:
        yield group
