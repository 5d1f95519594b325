"""PostgreSQL's words: the schema, how it reads fields, and how statements are said to it.

`projection` is the value as jsonb, for filters alone; NUL, which jsonb refuses, is U+0001 there. `token` tells a writer
that lost its connection whether the last write was its own.
"""

from __future__ import annotations

import os
import random
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from .. import ops
from ..errors import InvalidInput
from ..filters import check_field
from ..ops import Op
from ..programs import Program
from ..values import decode
from .dialect import Dialect, Mentions
from .narrowing import Binder, Path, index_name
from .postgres_contents import Contents
from .postgres_views import VIEWS
from .statements import Statement

#: A statement with PostgreSQL's own placeholders, and the names of what goes there.
Numbered: TypeAlias = tuple[bytes, tuple[str, ...]]


class Texts(list[str | None]):
    """Texts that are one parameter: connections of our own write them down faster than other lists."""


class Numbers(list[int | None]):
    """The same of numbers."""


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
        fields text,
        vectors bigint,
        PRIMARY KEY (ns, key)
    );
    CREATE TABLE {schema}.chunks (
        body_id bigint NOT NULL,
        start bigint NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (body_id, start)
    );
    CREATE INDEX entries_files ON {schema}.entries (ns, key) WHERE body IS NOT NULL;
    CREATE INDEX entries_tombstones ON {schema}.entries (version) WHERE value IS NULL;
    CREATE INDEX entries_shared ON {schema}.entries (body) WHERE shared IS NOT NULL;
    CREATE INDEX entries_large ON {schema}.entries (ns) WHERE size > 1048576;
    -- Which contents are new to the index of what they contain, or gone from it; and that index (`postgres_contents`).
    CREATE TABLE {schema}.unindexed (version bigint PRIMARY KEY, gone boolean);
    CREATE TABLE {schema}.contents (place bigint PRIMARY KEY, version bigint NOT NULL UNIQUE);
    CREATE TABLE {schema}.parts (
        start bigint PRIMARY KEY,
        width bigint NOT NULL,
        level bigint NOT NULL,
        files bigint NOT NULL,
        gone bigint NOT NULL
    );
    CREATE TABLE {schema}.grams (part bigint, gram int, bits bytea NOT NULL, PRIMARY KEY (part, gram));
    -- What becomes of files that change: statements that may change one set a column of a file's, the others cost
    -- nothing here.
    CREATE FUNCTION {schema}.file_changed() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF old.version <> new.version THEN
            IF old.body IS NOT NULL THEN
                INSERT INTO {schema}.unindexed VALUES (old.version, true)
                    ON CONFLICT (version) DO UPDATE SET gone = true;
            END IF;
            IF new.body IS NOT NULL THEN
                INSERT INTO {schema}.unindexed VALUES (new.version, NULL) ON CONFLICT DO NOTHING;
            END IF;
        END IF;
        IF old.body IS NOT NULL AND old.body IS DISTINCT FROM new.body THEN  -- its pieces go, where no other has them
            IF old.shared IS NOT NULL THEN  -- one at a time, or of two that let go each would leave it to the other
                PERFORM pg_advisory_xact_lock(hashtextextended(TG_TABLE_SCHEMA || ' body', old.body));
            END IF;
            DELETE FROM {schema}.chunks WHERE body_id = old.body AND NOT EXISTS (
                SELECT 1 FROM {schema}.entries WHERE shared IS NOT NULL AND body = old.body
            );
        END IF;
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER entries_file_changed AFTER UPDATE OF body, size ON {schema}.entries FOR EACH ROW
        WHEN (old.body IS NOT NULL OR new.body IS NOT NULL) EXECUTE FUNCTION {schema}.file_changed();
    CREATE TABLE {schema}.state (name text PRIMARY KEY, value text NOT NULL);
    CREATE TABLE {schema}.terms (
        part bigint NOT NULL,
        term text COLLATE "C" NOT NULL,
        documents bytea NOT NULL,
        times bytea NOT NULL,
        PRIMARY KEY (part, term)
    );
    CREATE TABLE {schema}.documents (
        part bigint PRIMARY KEY,
        versions bytea NOT NULL,
        lengths bytea NOT NULL,
        gone bytea NOT NULL
    );
    CREATE TABLE {schema}.texts (
        ns text COLLATE "C" NOT NULL,
        key text COLLATE "C" NOT NULL,
        document bigint NOT NULL,
        PRIMARY KEY (ns, key)
    );
    CREATE TABLE {schema}.vectors (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        version bigint NOT NULL,
        model bigint NOT NULL,
        data bytea NOT NULL
    );
    -- pgvector compares vectors where they are, if it can be had.
    DO $$
    BEGIN
        CREATE EXTENSION IF NOT EXISTS vector;
    EXCEPTION WHEN OTHERS THEN
        RAISE DEBUG 'without pgvector: %', SQLERRM;
    END
    $$;
    DO $$
    DECLARE
        its_schema name := (SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'vector');
    BEGIN
        IF its_schema IS NOT NULL THEN
            EXECUTE $do$ALTER TABLE {schema}.vectors ALTER data TYPE $do$ || its_schema || '.vector USING NULL';
        END IF;
    END
    $$;
    CREATE INDEX vectors_of ON {schema}.vectors (version);
    CREATE FUNCTION {schema}.forget_vectors() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        DELETE FROM {schema}.vectors WHERE version = old.version;
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER entries_unembedded AFTER UPDATE OF vectors ON {schema}.entries FOR EACH ROW
        WHEN (old.vectors IS NOT NULL AND old.version <> new.version) EXECUTE FUNCTION {schema}.forget_vectors();
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
    VIEWS,
)

_TYPES = {
    **dict.fromkeys(("ns", "key", "value", "projection", "low", "high", "after_ns", "after_key"), "text"),
    **dict.fromkeys(("after", "dst", "to", "hidden_low", "hidden_high"), "text"),
    **dict.fromkeys(("now", "ttl", "expect", "limit", "below", "above", "token"), "bigint"),
    **dict.fromkeys(("created", "updated", "expires"), "bigint"),
    **dict.fromkeys(("size", "more", "start", "end", "body", "own", "mark", "version", "newest", "age"), "bigint"),
    **dict.fromkeys(("model", "after_id"), "bigint"),
    "fields": "text",
    **dict.fromkeys(("cut", "depth"), "integer"),
}
_COLUMN_TYPES = {
    **dict.fromkeys(("ns", "key", "term"), "text"),
    **dict.fromkeys(("part", "document"), "bigint"),
    **dict.fromkeys(("documents", "times", "versions", "lengths", "gone"), "bytea"),
}
# Not extract, which computes with numeric; in a double the microseconds are exact until the year 2106.
_SERVER_NOW = "(date_part('epoch', statement_timestamp()) * 1000000)::bigint"
_PARAMETER = re.compile(r"""(?<!:):([a-z]\w*)|"(?:[^"]|"")*"|'(?:[^']|'')*'""")
_INDEX_LIKE = re.compile(r"-?\d+")
_ESCAPED_NUL = "\\u0000"
_LONGEST_TEXT = 100  # of a string in the projection
_encode = msgspec.json.Encoder().encode


class PostgresDialect(Dialect):
    mark = "xid::text::bigint"
    settled = "AND xid < pg_snapshot_xmin(pg_current_snapshot())"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    most_files, most_bytes = 1024, 1 << 20
    for_update = " FOR UPDATE"
    #: Nor is a plan made anew for each, which takes longer than the query.
    by_index: Sequence[Statement] = (
        (
            "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),"
            " set_config('plan_cache_mode', 'force_generic_plan', true)",
            {},
        ),
    )

    def __init__(self, schema: str, indexed: Sequence[str], server_clock: bool) -> None:
        self.schema_name = schema
        self.schema = '"' + schema.replace('"', '""') + '"'
        self.table = f"{self.schema}.entries"
        draw = f"nextval('{self.schema.replace(chr(39), chr(39) * 2)}.versions')"
        self.next_version = self.first_version = self.redrawn_version = self.next_versions = self.next_body = draw
        self._index = Contents(self.schema)
        self.upkeep = (self._index.lock,)
        self.chunks, self.unindexed = f"{self.schema}.chunks", f"{self.schema}.unindexed"
        pieces = f"SELECT string_agg(data, ''::bytea ORDER BY start) FROM {self.chunks} WHERE body_id = body"
        self.content = f"CASE WHEN size > 0 THEN ({pieces}) END"
        self.head = f"({pieces} AND start < 1048576)"
        self.state, self.terms, self.documents = (f"{self.schema}.{name}" for name in ("state", "terms", "documents"))
        self.texts, self.vectors = f"{self.schema}.texts", f"{self.schema}.vectors"
        self.one_at_a_time = f"SELECT pg_try_advisory_xact_lock({lock_id(f'holdall history {schema}')})"
        self.stamps = {"xid": "pg_current_xact_id()", "token": ":token"}
        self.projections = {"projection": "coalesce(:projection, :value)::jsonb"}
        self.pgvector: str | None = None  # the schema that it is in, where vectors are of its type
        self._indexed: set[Path] = set()
        for field in indexed:
            path = check_field(field)
            if "\x00" in field or "\x01" in field:
                raise InvalidInput(f"indexed= cannot name a field with NUL or U+0001: {field!r}")
            self._indexed |= {path, (field,)}  # a key with dots means both
        self.translated = lru_cache(maxsize=512)(lambda sql: _translated(sql, server_clock))
        self.numbered = lru_cache(maxsize=64)(lambda sql: _numbered(sql, server_clock))

    def use_pgvector(self, schema: str) -> None:
        """Vectors are of its type."""
        self.pgvector = schema
        self.vector_in = f":all_data::real[]::{schema}.vector", lambda data: {"all_data": array("f", data).tolist()}
        self.vector_out = "data::real[]", lambda numbers: array("f", numbers).tobytes()

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
                body = NULL, size = NULL, appended = NULL, shared = NULL, fields = NULL, vectors = NULL
            FROM doomed WHERE entry.ns = doomed.ns AND entry.key = doomed.key RETURNING version"""

    def position(self, text: str, part: str) -> str:
        return f"strpos({text}, {part})"

    def character(self, code: int) -> str:
        return f"chr({code})"

    def among(self, column: str, numbers: list[int]) -> tuple[str, dict[str, Any]]:
        return f"{column} = ANY(:all_numbers::bigint[])", {"all_numbers": numbers}

    def among_texts(self, column: str, texts: list[str]) -> tuple[str, dict[str, Any]]:
        return f"{column} = ANY(:all_texts::text[])", {"all_texts": texts}

    def learn(self, texts: list[tuple[int, str]]) -> Program[None]:
        return self._index.learn(texts)

    def forget(self, versions: list[int]) -> Program[bool]:
        return self._index.forget(versions)

    def mentions(self, grams: list[str]) -> Mentions | None:
        return self._index.mentions(grams)

    def insert_many(self, table: str, columns: str, rows: list[tuple[Any, ...]], conflict: str) -> Statement:
        given, params = _unnested(columns, rows)
        return f"INSERT INTO {table} AS old ({columns}) SELECT * FROM {given} ON CONFLICT {conflict}", params

    def delete_many(self, table: str, columns: str, rows: list[tuple[Any, ...]]) -> Statement:
        given, params = _unnested(columns, rows)
        return f"DELETE FROM {table} WHERE ({columns}) IN (SELECT * FROM {given})", params

    def followed(self, first: str, second: str) -> str:
        return f"{first} || {second}"

    def joined(self, key: str) -> str:
        # Row by row: a join would rather read the whole namespace.
        return f"LATERAL (SELECT * FROM {self.table} WHERE ns = :ns AND key = {key} OFFSET 0) AS file ON true"

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

    def missing_indexes(self, present: Mapping[str, str]) -> Iterator[str]:
        """The statement of each declared index that is not among those that are there: their names and definitions."""
        for path in sorted(self._indexed):
            name = _fitting(index_name(path))
            # Before there was a number in it, one name could be that of two fields.
            old_name = _fitting("field_" + ".".join(path) + ("" if len(path) == 1 else "_nested"))
            labels = ", ".join(f"{_quoted(label)}::text" for label in path)  # as PostgreSQL says it
            if name in present or f"(projection, ARRAY[{labels}]), ns)" in present.get(old_name, ""):
                continue
            quoted = '"' + name.replace('"', '""') + '"'
            yield f"CREATE INDEX IF NOT EXISTS {quoted} ON {self.table} ({self._declared(path)}, ns)"

    def _declared(self, path: Path) -> str:
        """Word for word what the index says, or PostgreSQL would not use it."""
        labels = ", ".join(map(_quoted, path))
        return f"{self.schema}.field(projection, ARRAY[{labels}])"

    def _at(self, path: Path, arrow: str, bind: Binder) -> str:
        return f"projection #{arrow} {bind(list(path))}::text[]"


def _unnested(columns: str, rows: list[tuple[Any, ...]]) -> Statement:
    """Rows as a table, and its parameters."""
    names = columns.split(", ")
    arrays = ", ".join(f":all_{name}::{_COLUMN_TYPES[name]}[]" for name in names)
    return f"unnest({arrays})", {
        f"all_{name}": list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def _fitting(name: str) -> str:
    """A name that PostgreSQL does not cut short."""
    return name if len(name.encode()) < 64 else f"field_{hash_of(name)}"


def _quoted(label: str) -> str:
    return "'" + label.replace("'", "''") + "'"


def _is_safe(path: Path) -> bool:
    return not any("\x00" in label or "\x01" in label for label in path)


def _json(operand: Any, bind: Binder) -> str:
    return f"{bind(msgspec.json.encode(operand).decode())}::jsonb"


def projected(value: str) -> str | None:
    """What jsonb is made of where it is not made of the value itself: without NUL, and of long texts the beginning."""
    if len(value) <= _LONGEST_TEXT and _ESCAPED_NUL not in value:
        return None
    plain = decode(value)
    if _ESCAPED_NUL in value:
        return _encode(_shortened(plain)).decode()
    return _encode(plain).decode() if _shorten(plain) else None


def _shortened(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return value[:_LONGEST_TEXT].replace("\x00", "\x01")
    if kind is dict:
        return {key.replace("\x00", "\x01"): _shortened(item) for key, item in value.items()}
    if kind is list:
        return [_shortened(item) for item in value]
    return value


def _shorten(value: Any) -> bool:
    """The same in place, without a NUL to look for: the usual case in half the time. Whether there was any need."""
    needed = False
    for place, item in value.items() if type(value) is dict else enumerate(value):
        kind = type(item)
        if kind is str:
            if len(item) > _LONGEST_TEXT:
                value[place] = item[:_LONGEST_TEXT]
                needed = True
        elif (kind is dict or kind is list) and _shorten(item):
            needed = True
    return needed


_chance = random.Random()  # ours alone: users seed the one that all share
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_chance.seed)  # or a child would go on with the same


def new_token() -> int:
    """One that nobody else has."""
    return _chance.getrandbits(62)


def lock_id(text: str) -> int:
    """The number of an advisory lock."""
    import hashlib

    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def hash_of(text: str) -> str:
    """A short name for a long one."""
    import hashlib

    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _translated(sql: str, server_clock: bool) -> str:
    """psycopg's placeholders for ours, each with its type."""

    def placeholder(name: str) -> str:
        return f"%({name})b" if name.startswith(("all_", "data")) else f"%({name})s"  # lists and bytes: faster so

    return _replaced(sql.replace("%", "%%"), server_clock, placeholder)


def _numbered(sql: str, server_clock: bool) -> Numbered:
    """PostgreSQL's placeholders for ours, each with its type."""
    names: list[str] = []

    def placeholder(name: str) -> str:
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _replaced(sql, server_clock, placeholder).encode(), tuple(names)


def _replaced(sql: str, server_clock: bool, placeholder: Callable[[str], str]) -> str:
    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:  # a quoted name or text, which may have anything in it
            return match[0]
        if name == "now" and server_clock:
            return _SERVER_NOW
        kind = _TYPES.get(name)
        return f"{placeholder(name)}::{kind}" if kind else placeholder(name)

    return _PARAMETER.sub(replaced, sql)
