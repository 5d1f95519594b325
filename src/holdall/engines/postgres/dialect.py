"""The SQL of PostgreSQL: the schema, the conditions of filters, and the parameters of statements.

Two columns are PostgreSQL's own. `projection` is the value as jsonb, for filters only; it has U+0001 for NUL, which
jsonb cannot hold. `token` is a random number of the last write: a writer that lost its connection can see from it
whether that write was its own.

Statements have named parameters (`:ns`), which `number_parameters` turns into PostgreSQL's (`$1`). The type of a
parameter follows from its value and from the statement, never from its name. An int is a bigint, bytes are a bytea. The
type of a text, a list or None is the one that the statement needs there; where that is open, the statement has a cast.
The parameter `:now` is the server's time when the transaction began, unless the store was opened with a clock.
"""

from __future__ import annotations

import os
import random
import re
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from ... import ops
from ...errors import InvalidInput
from ...model.filters import check_field
from ...model.values import decode
from ...ops import Op
from ..checks.sql import TableChecks
from ..history.sql import copy_row, is_kept
from ..sql.dialect import ContentQuery, Dialect, choose_grams
from ..sql.narrowing import Binder, Path, index_name
from ..sql.statements import TREES, SqlProgram, Statement, in_deleted_tree, outside_deleted_trees
from .indexes.trigrams import TrigramIndex
from .views import REPLACED_VIEW, VIEWS

#: SQL with numbered parameters, and the name of each.
NumberedSql: TypeAlias = tuple[bytes, tuple[str, ...]]


class BinaryValue(bytes):
    """A parameter in PostgreSQL's binary format. The statement has a cast to its type."""


#: In order. Each only adds: the release before must keep working on the newer schema.
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
    -- The files whose contents wait to be indexed, or to be removed from the index; and the index (`trigrams`).
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
    -- Runs when a file changes. Statements that can change a file set `body` or `size`; others do not fire the trigger.
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
        IF old.body IS NOT NULL AND old.body IS DISTINCT FROM new.body THEN  -- delete chunks, unless they are shared
            IF old.shared IS NOT NULL THEN  -- one at a time: of two at once, each would see the other's row
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
    -- With pgvector, the server compares vectors. Without it, clients do.
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
    -- A declared field as it is indexed. Texts that do not fit an index row are left out. Numbers with so many digits
    -- can only be integers; they become a number that compares in the same way.
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
    # The text index of segments; terms, documents and texts were the one before. Its data does not compress.
    """
    CREATE TABLE {schema}.words (term text COLLATE "C" PRIMARY KEY, id bigint NOT NULL);
    CREATE TABLE {schema}.forward (
        version bigint PRIMARY KEY,
        entry bigint NOT NULL,
        length bigint NOT NULL,
        data bytea NOT NULL
    );
    CREATE INDEX forward_of ON {schema}.forward (entry);
    CREATE TABLE {schema}.lists (id bigint PRIMARY KEY, data bytea NOT NULL);
    ALTER TABLE {schema}.lists ALTER data SET STORAGE EXTERNAL;
    """,
    # Deleted trees (`feed.DeletedTrees`). `xid` and `snapshot` are those of the deletion. Every write locks the table
    # `tree_gate`, by naming it; a transaction that adds a tree waits until no write is under way. Roles have the rights
    # that they have on the entries.
    """
    CREATE TABLE {schema}.trees (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        low text COLLATE "C" NOT NULL,
        high text COLLATE "C" NOT NULL,
        path text COLLATE "C",
        path_low text COLLATE "C",
        path_high text COLLATE "C",
        until bigint NOT NULL,
        deleted bigint NOT NULL,
        next_version bigint NOT NULL,
        last_version bigint NOT NULL,
        from_ns text COLLATE "C" NOT NULL,
        from_key text COLLATE "C" NOT NULL,
        xid xid8 NOT NULL,
        snapshot text NOT NULL
    );
    CREATE TABLE {schema}.tree_gate (is_closed boolean);
    ANALYZE {schema}.trees, {schema}.tree_gate;  -- otherwise the planner expects many rows in these empty tables
    DO $$
    DECLARE
        granted record;
    BEGIN
        FOR granted IN SELECT acl.* FROM pg_class, aclexplode(relacl) AS acl
            WHERE relname = 'entries' AND relnamespace =
                (SELECT relnamespace FROM pg_class WHERE oid = (SELECT min(tableoid) FROM {schema}.schema_version))
        LOOP
            EXECUTE 'GRANT ' || granted.privilege_type || $do$ ON {schema}.trees, {schema}.tree_gate TO $do$
                || CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END;
        END LOOP;
    END
    $$;
    """
    + REPLACED_VIEW,
    # History (`engines/history`), and the author and reason of a change
    f"""
    ALTER TABLE {{schema}}.entries ADD changed bigint, ADD acting text;
    ALTER TABLE {{schema}}.trees ADD acting text;
    CREATE TABLE {{schema}}.history (
        ended bigint PRIMARY KEY,
        ns text COLLATE "C" NOT NULL,
        key text COLLATE "C" NOT NULL,
        version bigint NOT NULL,
        created bigint NOT NULL,
        updated bigint NOT NULL,
        changed bigint NOT NULL,
        expires bigint,
        ttl bigint,
        body bigint,
        size bigint,
        appended bigint,
        fields text,
        acting text,
        ended_kind text NOT NULL,
        ended_at bigint NOT NULL,
        ended_acting text,
        xid xid8 NOT NULL,
        ended_xid xid8 NOT NULL,
        value text NOT NULL
    );
    CREATE INDEX history_of ON {{schema}}.history (ns, key, ended);
    CREATE INDEX history_bodies ON {{schema}}.history (body) WHERE body IS NOT NULL;
    CREATE FUNCTION {{schema}}.keep_old() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        {copy_row("{schema}.history", {"xid": "old.xid", "ended_xid": "new.xid"})};
        RETURN NULL;
    END
    $$;
    CREATE OR REPLACE FUNCTION {{schema}}.file_changed() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF old.version <> new.version THEN
            IF old.body IS NOT NULL THEN
                INSERT INTO {{schema}}.unindexed VALUES (old.version, true)
                    ON CONFLICT (version) DO UPDATE SET gone = true;
            END IF;
            IF new.body IS NOT NULL THEN
                INSERT INTO {{schema}}.unindexed VALUES (new.version, NULL) ON CONFLICT DO NOTHING;
            END IF;
        END IF;
        IF old.body IS NOT NULL AND old.body IS DISTINCT FROM new.body THEN  -- delete chunks, unless they are shared
            IF old.shared IS NOT NULL OR EXISTS (SELECT 1 FROM {{schema}}.history WHERE body = old.body) THEN
                PERFORM pg_advisory_xact_lock(hashtextextended(TG_TABLE_SCHEMA || ' body', old.body));
            END IF;
            DELETE FROM {{schema}}.chunks WHERE body_id = old.body AND NOT EXISTS (
                SELECT 1 FROM {{schema}}.entries WHERE shared IS NOT NULL AND body = old.body
            ) AND NOT EXISTS (SELECT 1 FROM {{schema}}.history WHERE body = old.body);
        END IF;
        RETURN NULL;
    END
    $$;
    """,
    # The gate has rows while there are deleted trees, so that a write has to look at one table only.
    """
    CREATE FUNCTION {schema}.trees_changed() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO {schema}.tree_gate VALUES (true);
        ELSE
            LOCK TABLE {schema}.tree_gate IN ROW EXCLUSIVE MODE;  -- nobody adds a tree until the end
            DELETE FROM {schema}.tree_gate WHERE NOT EXISTS (SELECT 1 FROM {schema}.trees);
        END IF;
        RETURN NULL;
    END
    $$;
    LOCK TABLE {schema}.tree_gate IN ACCESS EXCLUSIVE MODE;
    CREATE TRIGGER trees_changed AFTER INSERT OR DELETE ON {schema}.trees
        EXECUTE FUNCTION {schema}.trees_changed();
    INSERT INTO {schema}.tree_gate SELECT true WHERE EXISTS (SELECT 1 FROM {schema}.trees);
    """,
    """
    ALTER TABLE {schema}.history ADD COLUMN delta text;
    CREATE INDEX history_large ON {schema}.history (ended) WHERE delta IS NULL AND size > 131072;
    """,
)

#: The types of the columns that `insert_many` and `delete_many` are called for.
_COLUMN_TYPES = {
    **dict.fromkeys(("ns", "key", "term"), "text"),
    **dict.fromkeys(("id", "version", "entry", "length"), "bigint"),
    "data": "bytea",
}
# Not extract, which is slower, as it computes with numeric. In a double, microseconds are exact until the year 2106.
_MICROSECONDS = "(date_part('epoch', {}) * 1000000)::bigint"
#: One time for all changes of a transaction: no moment of the past is between them.
_SERVER_NOW = _MICROSECONDS.format("transaction_timestamp()")
#: A parameter; or a quoted name or text, in which a colon is only a colon.
_PARAMETER = re.compile(r"""(?<!:):([a-z]\w*)|"(?:[^"]|"")*"|'(?:[^']|'')*'""")
_ARRAY_INDEX = re.compile(r"-?\d+")
_ESCAPED_NUL = "\\u0000"
_MAX_TEXT = 100  # characters of a string in the projection
_encode = msgspec.json.Encoder().encode


class PostgresDialect(Dialect):
    """What the statements of `engines/sql` contain that is PostgreSQL's own, for one schema."""

    feed_mark = "xid::text::bigint"
    history_mark = "ended_xid::text::bigint"
    settled = "AND xid < pg_snapshot_xmin(pg_current_snapshot())"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    most_files, most_bytes = 1024, 1 << 20
    for_update = " FOR UPDATE"
    #: Set for the queries of grep: without it, PostgreSQL prefers to read the whole table, and plans each query again,
    #: which takes longer than the query.
    by_index: Sequence[Statement] = (
        (
            "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),"
            " set_config('plan_cache_mode', 'force_generic_plan', true)",
            {},
        ),
    )

    #: Without it, PostgreSQL sorts a whole namespace where its statistics are missing or old.
    in_index_order = (
        [("SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)", {})],
        [("SELECT set_config('enable_bitmapscan', 'on', true), set_config('enable_sort', 'on', true)", {})],
    )

    def __init__(self, schema: str, filter_fields: Sequence[str], server_clock: bool) -> None:
        self.schema_name = schema
        self.schema = '"' + schema.replace('"', '""') + '"'
        self.table = f"{self.schema}.entries"
        draw = f"nextval('{self.schema.replace(chr(39), chr(39) * 2)}.versions')"
        self.next_version = self.first_version = self.version_on_conflict = self.next_versions = self.next_body = draw
        self._index = TrigramIndex(self.schema)
        self.maintenance_lock = (self._index.lock,)
        self.chunks, self.unindexed = f"{self.schema}.chunks", f"{self.schema}.unindexed"
        pieces = f"SELECT string_agg(data, ''::bytea ORDER BY start) FROM {self.chunks} WHERE body_id = body"
        self.content = f"CASE WHEN size > 0 THEN ({pieces}) END"
        self.head = f"({pieces} AND start < 1048576)"
        self.state, self.words, self.forward, self.lists, self.vectors = (
            f"{self.schema}.{name}" for name in ("state", "words", "forward", "lists", "vectors")
        )
        self.trees, self.tree_gate = f"{self.schema}.trees", f"{self.schema}.tree_gate"
        #: The condition, for a write, that there are no deleted trees. It locks the gate until the transaction ends.
        self.has_no_trees = f"NOT EXISTS (SELECT 1 FROM {self.tree_gate})"
        #: Locks the gate, too.
        self.read_xid = f"SELECT pg_current_xact_id()::text, EXISTS (SELECT 1 FROM {self.tree_gate})"
        self.old_texts = f"{self.schema}.terms", f"{self.schema}.documents", f"{self.schema}.texts"
        self.purge_lock = f"SELECT pg_try_advisory_xact_lock({lock_id(f'holdall history {schema}')})"
        self.stamps = {"xid": "pg_current_xact_id()", "token": ":token", "acting": ":acting", "changed": "NULL"}
        self.history = f"{self.schema}.history"
        self.checks = TableChecks(self)
        self.indexed_contents = f"SELECT version FROM {self.schema}.contents"
        self.clear_contents = tuple(f"DELETE FROM {self.schema}.{name}" for name in ("contents", "parts", "grams"))
        self.server_time = _MICROSECONDS.format("clock_timestamp()")
        self.history_lock = ((f"SELECT pg_advisory_xact_lock({lock_id(f'holdall history setting {schema}')})", {}),)
        self.old_content = f"CASE WHEN size > 0 THEN ({pieces} AND start < size) END"
        # Triggers run in the order of their names: this one before `entries_file_changed`, which removes the pieces of
        # a body that no old row refers to. The index finds the entry that still has the body of an old row.
        self.start_history = (
            f"CREATE TRIGGER entries_changed AFTER UPDATE OF version ON {self.table} FOR EACH ROW"
            f" WHEN ({is_kept(self)}) EXECUTE FUNCTION {self.schema}.keep_old()",
            f"CREATE INDEX IF NOT EXISTS entries_bodies ON {self.table} (body) WHERE body IS NOT NULL",
        )
        self.stop_history = (
            f"DROP TRIGGER IF EXISTS entries_changed ON {self.table}",
            f"DROP INDEX IF EXISTS {self.schema}.entries_bodies",
        )
        #: The definition of `ranker.GeneralIndex`. Every search reads the pending list, so it is kept short.
        self.general_index = (
            f"entries_projection ON {self.table} USING gin (projection jsonb_path_ops)"
            f" WITH (gin_pending_list_limit = 256)"
        )
        #: Whether a filter was translated that the general index serves.
        self.wants_general_index = False
        self.projections = {"projection": "coalesce(:projection, :value)::jsonb"}
        self.pgvector: str | None = None  # the schema of pgvector, if the column of vectors has its type
        self.pgvector_version: tuple[int, ...] = ()
        #: The expression of a parameter with many vectors, and a function that makes it of their bytes.
        self.vectors_in: tuple[str, Callable[[list[bytes]], Any]] = ":all_data::bytea[]", list
        self.declared = tuple(filter_fields)
        self._indexed: set[Path] = set()
        for field in filter_fields:
            path = check_field(field)
            if "\x00" in field or "\x01" in field:
                raise InvalidInput(f"a field with NUL or U+0001 in its name cannot be filter_fields: {field!r}")
            self._indexed |= {path, (field,)}  # with dots, it names both a nested field and a key
        #: Returns SQL with numbered parameters in place of named ones.
        self.number_parameters = lru_cache(maxsize=512)(
            lambda sql: _number_parameters(self._name_trees(sql), server_clock)
        )

    def use_pgvector(self, schema: str, version: tuple[int, ...], oid: int) -> None:
        """Read and write vectors as pgvector's type, which is in this schema and has this OID."""
        self.pgvector, self.pgvector_version = schema, version
        self.vector_in = f":data::{schema}.vector", lambda data: {"data": to_pgvector(data)}
        self.vectors_in = f":all_data::{schema}.vector[]", lambda vectors: _to_array(oid, map(to_pgvector, vectors))
        self.vector_out = f"{schema}.vector_send(data)", from_pgvector

    def parameters(self, op: Op) -> dict[str, Any]:
        token = {"token": new_token(), "acting": getattr(op, "acting", None)}
        if not isinstance(op, ops.Put):
            return token
        value = op.value.template if isinstance(op.value, ops.File) else str(op.value)
        return token | {"projection": project(value)}

    def lock_bodies(self, bodies: Sequence[int]) -> Sequence[Statement]:
        # One statement each: in which order one statement would lock them is not known.
        lock = "SELECT pg_advisory_xact_lock(hashtextextended(:p0::text, :body::bigint))"
        return [(lock, {"p0": f"{self.schema_name} body", "body": body}) for body in sorted(bodies)]

    def history_position(self) -> SqlProgram[int]:
        # Not the present transaction: a cursor ends after the last one that has written an entry.
        last = f"SELECT coalesce((SELECT xid FROM {self.table} ORDER BY xid DESC LIMIT 1), '2')::text::bigint"
        [[(xid,)]] = yield [(last, {})]
        return int(xid)

    def _name_trees(self, sql: str) -> str:
        """Return a statement with the name of our table of trees. If it writes, it names the gate, too."""
        if sql.lstrip()[:6] != "SELECT":
            for row in ("", "old.", "file.", "near."):
                outside = outside_deleted_trees(row)
                sql = sql.replace(outside, f"({self.has_no_trees} OR NOT {in_deleted_tree(row)})")
        return sql.replace(TREES, self.trees)

    def make_tombstones(self, which: str, kind: str, above: str = "") -> str:
        chosen = f"SELECT ns, key FROM {self.table} WHERE {which} FOR UPDATE"
        version, xid = self.next_version, "pg_current_xact_id()"
        if above:  # the change belongs to the transaction that has deleted the tree
            chosen = f"SELECT ns, key, row_number() OVER (ORDER BY ns, key) AS number FROM ({chosen}) AS locked"
            version, xid = (
                f"{above} + deleted.number",
                f"(SELECT tree.xid FROM {self.trees} AS tree WHERE id = :number)",
            )
        return f"""
            WITH deleted AS ({chosen})
            UPDATE {self.table} AS entry SET
                version = {version}, value = NULL, projection = NULL, expires = NULL, ttl = NULL,
                updated = :now, kind = '{kind}', xid = {xid}, token = :token,
                changed = NULL, acting = :acting,
                body = NULL, size = NULL, appended = NULL, shared = NULL, fields = NULL, vectors = NULL
            FROM deleted WHERE entry.ns = deleted.ns AND entry.key = deleted.key RETURNING version"""

    def reserve_versions(self, count: int, now: int | None) -> SqlProgram[int]:
        del now
        drawn = f"WITH drawn AS MATERIALIZED (SELECT {self.next_version} AS until)"
        sql = f"{drawn} SELECT until, setval(:versions::regclass, until + :count) FROM drawn"
        [[(until, _)]] = yield [(sql, {"versions": f"{self.schema}.versions", "count": count})]
        return int(until)

    def find_text(self, text: str, part: str) -> str:
        return f"strpos({text}, {part})"

    def character(self, code: int) -> str:
        return f"chr({code})"

    def among(self, column: str, numbers: list[int]) -> tuple[str, dict[str, Any]]:
        return f"{column} = ANY(:all_numbers::bigint[])", {"all_numbers": numbers}

    def each_number(self, numbers: list[int]) -> tuple[str, dict[str, Any]]:
        return "unnest(:all_numbers::bigint[]) AS each_number (value)", {"all_numbers": numbers}

    def among_texts(self, column: str, texts: list[str]) -> tuple[str, dict[str, Any]]:
        return f"{column} = ANY(:all_texts::text[])", {"all_texts": texts}

    def index_contents(self, texts: list[tuple[int, str]]) -> SqlProgram[None]:
        return self._index.add(texts)

    def remove_contents(self, versions: list[int]) -> SqlProgram[bool]:
        return self._index.remove(versions)

    def find_contents(self, grams: list[str]) -> ContentQuery | None:
        return self._index.find(choose_grams(grams))

    def index_order(self) -> SqlProgram[None]:
        # Not in the migrations: only searches with neighbours need it, and it makes every put slower.
        missing = (
            "SELECT 1 FROM pg_class WHERE oid = :table::regclass AND pg_has_role(relowner, 'USAGE')"
            " AND has_schema_privilege(relnamespace, 'CREATE') AND NOT EXISTS ("
            "SELECT 1 FROM pg_indexes WHERE schemaname = :schema AND indexname = 'entries_order')"
        )
        [rows] = yield [(missing, {"table": self.table, "schema": self.schema_name})]
        if rows:
            lock = f"SELECT pg_advisory_xact_lock({lock_id(f'holdall order {self.schema_name}')})"
            columns = "(ns, created, key) WHERE value IS NOT NULL"
            create = f"CREATE INDEX IF NOT EXISTS entries_order ON {self.table} {columns}"
            yield [(lock, {}), (create, {})]

    def insert_many(self, table: str, columns: str, rows: list[tuple[Any, ...]], conflict: str) -> Statement:
        source, params = _unnest(columns, rows)
        return f"INSERT INTO {table} AS old ({columns}) SELECT * FROM {source} ON CONFLICT {conflict}", params

    def join_file(self, key: str) -> str:
        # LATERAL reads row by row; for a plain join, PostgreSQL would read the whole namespace.
        return f"LATERAL (SELECT * FROM {self.table} WHERE ns = :ns AND key = {key} OFFSET 0) AS file ON true"

    def one_of(self, column: str, query: str) -> str:
        return f"{column} = ANY(ARRAY({query}))"

    def contains(self, data: str, part: str) -> str:
        return f"position({part} IN {data}) > 0"

    def next_namespace(self, ns: str, depth: int | None) -> str:
        if depth is None:
            return f"{ns} || chr(1)"
        first_labels = f"substring({ns} FROM E'^(?:[^\\x01]*\\x01){{{depth:d}}}')"
        return f"coalesce(left({first_labels}, -1) || chr(2), {ns} || chr(1))"

    # Fields ----------------------------------------------------------------------------------------------------------

    def compare(self, path: Path, operator: str, operand: Any, bind: Binder) -> str | None:
        if not _is_safe(path):
            return None
        if isinstance(operand, str):  # the projection has only the beginnings of texts, which compare in the same order
            operand = operand[:_MAX_TEXT]
        if operator == "IN":
            parts = [self.compare(path, "=", item, bind) for item in operand]
            return None if None in parts else f"({' OR '.join(part for part in parts if part)})"
        if isinstance(operand, str) and operator != "=":  # jsonb compares text by the database's collation
            return f'({self._at(path, ">>", bind)}) COLLATE "C" {operator} {bind(operand)}::text'
        if self.is_indexed(path):
            return f"{self._indexed_field(path)} {operator} {_bind_json(operand, bind)}"
        if operator == "=":
            for label in reversed(path):
                operand = {label: operand}
            self.wants_general_index = True
            return f"projection @> {_bind_json(operand, bind)}"
        return f"{self._at(path, '>', bind)} {operator} {_bind_json(operand, bind)}"

    def is_null(self, path: Path, bind: Binder) -> str | None:
        if not _is_safe(path) or any(_ARRAY_INDEX.fullmatch(label) for label in path):
            return None
        return f"coalesce({self._at(path, '>', bind)}, 'null') = 'null'"

    def exists(self, path: Path, bind: Binder) -> str | None:
        return f"{self._at(path, '>', bind)} IS NOT NULL" if _is_safe(path) else None

    def is_indexed(self, path: Path) -> bool:
        return path in self._indexed

    @property
    def has_declared_fields(self) -> bool:
        """Whether fields are declared by `filter_fields=`, each of which has an index."""
        return bool(self._indexed)

    def missing_indexes(self, present: Mapping[str, str]) -> Iterator[str]:
        """Yield the statement of each declared index that is missing. `present` maps names to definitions."""
        for path in sorted(self._indexed):
            name = _shorten_name(index_name(path))
            # Older releases gave names without a number, and one name could stand for two fields.
            old_name = _shorten_name("field_" + ".".join(path) + ("" if len(path) == 1 else "_nested"))
            labels = ", ".join(f"{_quote(label)}::text" for label in path)  # as PostgreSQL prints it
            if name in present or f"(projection, ARRAY[{labels}]), ns)" in present.get(old_name, ""):
                continue
            quoted = '"' + name.replace('"', '""') + '"'
            yield f"CREATE INDEX IF NOT EXISTS {quoted} ON {self.table} ({self._indexed_field(path)}, ns)"

    def _indexed_field(self, path: Path) -> str:
        """Return the expression of a declared index: PostgreSQL only uses the index for exactly this expression."""
        labels = ", ".join(map(_quote, path))
        return f"{self.schema}.field(projection, ARRAY[{labels}])"

    def _at(self, path: Path, arrow: str, bind: Binder) -> str:
        """Return the expression of the field at a path: as jsonb (`>`) or as text (`>>`)."""
        return f"projection #{arrow} {bind(list(path))}::text[]"


def to_pgvector(data: bytes) -> BinaryValue:
    """Return a vector of little-endian float32 in the binary format of pgvector: dimensions, and big-endian float32."""
    numbers = array("I", data)
    numbers.byteswap()
    return BinaryValue(struct.pack(">hh", len(numbers), 0) + numbers.tobytes())


def from_pgvector(value: bytes) -> bytes:
    """Return the little-endian float32 of a vector in the binary format of pgvector."""
    numbers = array("I", value[4:])
    numbers.byteswap()
    return numbers.tobytes()


def _to_array(oid: int, values: Iterable[bytes]) -> BinaryValue:
    """Return values in binary format as an array of their type, which has this OID."""
    elements = list(values)
    parts = [struct.pack(">iiIii", 1, 0, oid, len(elements), 1)]
    for element in elements:
        parts += (struct.pack(">i", len(element)), element)
    return BinaryValue(b"".join(parts))


def _unnest(columns: str, rows: list[tuple[Any, ...]]) -> Statement:
    """Return a FROM item with these rows, and its parameters."""
    names = columns.split(", ")
    arrays = ", ".join(f":all_{name}::{_COLUMN_TYPES[name]}[]" for name in names)
    return f"unnest({arrays})", {
        f"all_{name}": list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def _shorten_name(name: str) -> str:
    """Return a name that PostgreSQL does not truncate."""
    return name if len(name.encode()) < 64 else f"field_{hash_of(name)}"


def _quote(label: str) -> str:
    return "'" + label.replace("'", "''") + "'"


def _is_safe(path: Path) -> bool:
    """Whether the projection has these labels unchanged."""
    return not any("\x00" in label or "\x01" in label for label in path)


def _bind_json(operand: Any, bind: Binder) -> str:
    """Bind a JSON value as a parameter of type jsonb."""
    return f"{bind(msgspec.json.encode(operand).decode())}::jsonb"


def project(value: str) -> str | None:
    """Return the JSON of the projection; None where it is the value itself.

    It has no NUL, and only the beginnings of long texts.
    """
    if len(value) <= _MAX_TEXT and _ESCAPED_NUL not in value:
        return None
    decoded = decode(value)
    if _ESCAPED_NUL in value:
        return _encode(_without_nul(decoded)).decode()
    return _encode(decoded).decode() if _truncate_texts(decoded) else None


def _without_nul(value: Any) -> Any:
    """Return a value with long texts truncated, and U+0001 for NUL."""
    kind = type(value)
    if kind is str:
        return value[:_MAX_TEXT].replace("\x00", "\x01")
    if kind is dict:
        return {key.replace("\x00", "\x01"): _without_nul(item) for key, item in value.items()}
    if kind is list:
        return [_without_nul(item) for item in value]
    return value


def _truncate_texts(value: Any) -> bool:
    """Truncate long texts in place -> whether there were any. For values without NUL: half the time of a copy."""
    changed = False
    for index, item in value.items() if type(value) is dict else enumerate(value):
        kind = type(item)
        if kind is str:
            if len(item) > _MAX_TEXT:
                value[index] = item[:_MAX_TEXT]
                changed = True
        elif (kind is dict or kind is list) and _truncate_texts(item):
            changed = True
    return changed


_random = random.Random()  # not the shared one, which users may seed
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)  # else a child would draw the same numbers as its parent


def new_token() -> int:
    """Return a random number, to recognize a write by."""
    return _random.getrandbits(62)


def lock_id(text: str) -> int:
    """Return the number of the advisory lock that this text names."""
    import hashlib

    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def hash_of(text: str) -> str:
    """Return a short name for a long one."""
    import hashlib

    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _number_parameters(sql: str, server_clock: bool) -> NumberedSql:
    """Replace named parameters by numbered ones; with `server_clock`, replace `:now` by the server's time."""
    names: list[str] = []

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:  # a quoted name or text
            return match[0]
        if name == "now" and server_clock:
            return _SERVER_NOW
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _PARAMETER.sub(replace, sql).encode(), tuple(names)
