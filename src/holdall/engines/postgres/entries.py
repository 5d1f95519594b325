"""The programs of `engines/sql`, with what PostgreSQL does in its own way: batches and migrations.

`PostgresEngine` runs them. A batch takes as few statements as possible. A version is drawn from a sequence after the
row is locked, so the versions of one entry only grow, and writers of different entries do not wait for each other.
Transactions do not commit in the order of the sequence, so the feed does not rely on it (`feed.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeGuard, TypeVar

from ... import ops
from ...engine import put_entry, to_entry
from ...errors import SchemaTooNew
from ...model import filters, keys
from ...model.values import decode, ttl_microseconds
from ...ops import ABSENT, ANY, KEEP, Hit, Op
from ...runtime.programs import Work
from ...search.embedders import METRICS
from ...search.ranking import MOST_EXACT
from ..sql.bounded_reads import process_rows, split_by_bytes
from ..sql.entries import SqlEntries, is_multi_statement, is_plain_put
from ..sql.narrowing import narrow
from ..sql.statements import LIVE, OLD_IS_LIVE, Rows, SqlProgram, Statement, within
from ..sql.text_index import STATE as TEXTS_STATE
from .dialect import MIGRATIONS, PostgresDialect, new_token, project
from .feed import PostgresFeed
from .indexes.background import GeneralIndex, IndexBuilder, VectorIndex, index_for, read_index
from .ranker import PostgresRanker

T = TypeVar("T")


class PostgresEntries(SqlEntries):
    """The ops as programs that yield statements for PostgreSQL."""

    _dialect: PostgresDialect
    _feed: PostgresFeed
    ranker: PostgresRanker

    #: Whether this role may delete large trees by a note.
    can_note_trees = False

    def __init__(self, dialect: PostgresDialect, clock: Callable[[], int | None]) -> None:
        super().__init__(dialect, clock, PostgresFeed(dialect), PostgresRanker)
        rows = (
            "unnest(:all_ns::text[], :all_key::text[], :all_value::text[], :all_projection::text[], :all_ttl::bigint[],"
            " :all_acting::text[])"
        )
        # body, size, appended, shared, fields, vectors
        nulls = "NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint"
        self._put_many_of_model = self._upsert(
            f"SELECT {dialect.next_version}, ns, key, value, :now, :now, :now + ttl, ttl, pg_current_xact_id(), :token,"
            f" acting, NULL::bigint, coalesce(projection, value)::jsonb, {nulls.rsplit(', ', 2)[0]}, fields, :model"
            f" FROM {rows[:-1]}, :all_fields::text[]) AS row (ns, key, value, projection, ttl, acting, fields)",
            self._put_columns,
            returning="RETURNING version, created, updated, ns, key",
        )
        # A put that is retried finds its own token, and does nothing.
        not_done = "WHERE old.token IS DISTINCT FROM excluded.token"
        self._put_many, self._put_many_once = (
            self._upsert(
                f"SELECT {dialect.next_version}, ns, key, value, :now, :now, :now + ttl, ttl, pg_current_xact_id(),"
                f" :token, acting, NULL::bigint, coalesce(projection, value)::jsonb, {nulls}"
                f" FROM {rows} AS row (ns, key, value, projection, ttl, acting)",
                self._put_columns,
                where=where,
                returning="RETURNING version, created, updated",
            )
            for where in ("", not_done)
        )
        self._put_once = {self._put_any[keep]: self._put(keep, where=not_done) for keep in (False, True)}
        # The most frequent put: an item without expiry, over such an item or nothing. It sets neither the columns of a
        # file nor `vectors`, so no trigger fires. It does nothing while there are deleted trees: with a condition on
        # them, it would take longer even if there are none.
        following = {**dialect.projections, "fields": "NULL"}
        self._put_item = self._upsert(
            self._values("NULL, NULL", following),
            following,
            lifetime="expires = NULL, ttl = NULL",
            where=f"{not_done} AND old.body IS NULL AND old.vectors IS NULL AND {dialect.has_no_trees}",
            old_is_live="old.value IS NOT NULL AND (old.expires IS NULL OR old.expires > excluded.updated)",
        )
        self._lock_in_namespace = (
            f"SELECT FROM {self._table} WHERE ns = :ns AND key = ANY(:all_key::text[]) ORDER BY ns, key FOR UPDATE"
        )
        # LATERAL locks row by row, in the order of the lists; for a plain join, PostgreSQL would read the whole table.
        self._lock = (
            f"SELECT FROM unnest(:all_ns::text[], :all_key::text[]) AS row (ns, key) CROSS JOIN LATERAL ("
            f"SELECT FROM {self._table} AS entry WHERE entry.ns = row.ns AND entry.key = row.key FOR UPDATE) AS locked"
        )
        self._get_many = (
            f"SELECT number, found.*"
            f" FROM unnest(:all_ns::text[], :all_key::text[]) WITH ORDINALITY AS row (ns, key, number)"
            f" CROSS JOIN LATERAL (SELECT {self._reads.columns_with_content} FROM {self._table} AS entry"
            f" WHERE entry.ns = row.ns AND entry.key = row.key AND {LIVE}) AS found"
        )
        # Inserts a placeholder (`kind` is 'none') for an absent entry, so that its row can be locked.
        self._lock_absent = (
            f"INSERT INTO {self._table} AS old (ns, key, version, created, updated, kind, xid)"
            f" VALUES (:ns, :key, {dialect.next_version}, :now, :now, 'none', pg_current_xact_id())"
            f" ON CONFLICT (ns, key) DO UPDATE SET key = excluded.key RETURNING"
            f" CASE WHEN {OLD_IS_LIVE} THEN version END"
        )

    # The schema ------------------------------------------------------------------------------------------------------

    def plan_migration(self, can_build_later: bool = True) -> SqlProgram[list[str]]:
        """Return the statements that create the schema or bring it up to date.

        A new schema has the general index if it cannot be built later.
        """
        dialect, schema = self._dialect, self._dialect.schema
        present, oldest = 0, 0
        # Not to_regclass: it may use what this session has cached from before another session's migration.
        tables = "SELECT 1 FROM pg_tables WHERE schemaname = :p0 AND tablename = 'schema_version'"
        [found] = yield [(tables, {"p0": dialect.schema_name})]
        if found:
            [[(present, oldest)]] = yield [(f"SELECT version, oldest FROM {schema}.schema_version", {})]
        if oldest > len(MIGRATIONS):
            raise SchemaTooNew(
                f"the schema {schema} has version {present}, which needs a holdall that knows version {oldest}; this"
                f" one knows up to {len(MIGRATIONS)}: upgrade holdall"
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
            statements += yield from self._adopt_foreign_rows()
        elif not can_build_later:
            statements.append(f"CREATE INDEX {dialect.general_index}")
        if dialect.has_declared_fields:  # else not: to print all definitions takes a quarter of opening a store
            indexes = "SELECT indexname::text, indexdef FROM pg_indexes WHERE schemaname = :p0"
            [rows] = yield [(indexes, {"p0": dialect.schema_name})]
            statements += dialect.missing_indexes(dict(rows))
        return statements

    def _adopt_foreign_rows(self) -> SqlProgram[list[str]]:
        """Return the statements for a schema that was copied from another server, for example restored from a dump.

        Its rows have transaction ids of the other server. Some may be in the future of this server, so the feed would
        not work. They get an id older than all others, the text index is rebuilt, and older cursors expire.
        """
        dialect, is_foreign = self._dialect, "xid >= pg_snapshot_xmax(pg_current_snapshot())"
        [rows] = yield [(f"SELECT 1 FROM {self._table} WHERE {is_foreign} LIMIT 1", {})]
        if not rows:
            return []
        return [
            f"UPDATE {self._table} SET xid = '3' WHERE {is_foreign}",
            f"UPDATE {dialect.history} SET xid = '3', ended_xid = '3'",
            f"DELETE FROM {dialect.state} WHERE name = '{TEXTS_STATE}'",
            *(f"DELETE FROM {table}" for table in (dialect.words, dialect.forward, dialect.lists)),
            f"UPDATE {dialect.trees} SET xid = '3', snapshot = '3:3:'",
            self._feed.move_mark("pg_current_xact_id()"),
        ]

    def list_tables(self) -> Statement:
        """Return the query for the tables of the schema, as SQL names them."""
        sql = "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables WHERE schemaname = :p0"
        return sql, {"p0": self._dialect.schema_name}

    def clear_statistics(self) -> Statement:
        """Return the query that clears the planner's statistics, which ANALYZE leaves for an empty table.

        It needs PostgreSQL 18. Without the right to do it, they stay.
        """
        cleared = "pg_clear_attribute_stats(schemaname::text, tablename::text, attname::text, inherited)"
        may = "has_table_privilege(format('%I.%I', schemaname, tablename), 'MAINTAIN')"
        return f"SELECT {cleared} FROM pg_stats WHERE schemaname = :p0 AND {may}", {"p0": self._dialect.schema_name}

    def detect_pgvector(self) -> SqlProgram[None]:
        """Use pgvector if vectors are stored as its type: it was installed when their table was created."""
        sql = (
            "SELECT quote_ident(nspname), extversion, kind.oid::bigint FROM pg_attribute AS attribute"
            " JOIN pg_type AS kind ON kind.oid = attribute.atttypid"
            " JOIN pg_namespace AS home ON home.oid = kind.typnamespace"
            " LEFT JOIN pg_extension ON extname = 'vector'"
            " WHERE attrelid = :p0::regclass AND attname = 'data' AND typname = 'vector'"
        )
        [rows] = yield [(sql, {"p0": self._dialect.vectors})]
        if rows:
            schema, version, oid = rows[0]
            self._dialect.use_pgvector(schema, tuple(map(int, re.findall(r"\d+", version or ""))), oid)

    def detect_rights(self) -> SqlProgram[None]:
        """Find out whether this role can delete large trees by a note, and whether some are to be cleared."""
        rights_of = (
            "has_sequence_privilege(:versions::regclass, 'UPDATE'), has_table_privilege(:gate::regclass, 'DELETE'),"
            " has_table_privilege(:gate::regclass, 'INSERT')"
        )
        params = {"versions": f"{self._dialect.schema}.versions", "gate": self._dialect.tree_gate}
        [[rights]] = yield [(f"SELECT {rights_of}", params)]
        self.can_note_trees = all(rights)
        yield from self.trees.count_left()

    def progress(self) -> SqlProgram[object]:
        """Return what changes whenever there is more of the feed to read."""
        position = yield from self.position()
        trees = yield [(f"SELECT id, from_ns, from_key FROM {self._dialect.trees}", {})]
        return position, trees

    def use_index_builder(self, builder: IndexBuilder) -> None:
        """Set who builds indexes in the background."""
        self.ranker.builder = builder

    def find_missing_index(self) -> SqlProgram[VectorIndex | GeneralIndex | None]:
        """Return an index that is missing: the general one, or one of the vectors of the newest model.

        A role that may not build indexes has noted in the table `state` which ones its searches miss. Otherwise vectors
        have one for the cosine.
        """
        dialect, general = self._dialect, GeneralIndex()
        wished = f"SELECT 1 FROM {dialect.state} WHERE name = :p0"
        [is_wished, is_valid] = yield [(wished, {"p0": general.wish}), read_index(dialect, general)]
        if is_wished and is_valid != [(True,)]:
            return general
        if dialect.pgvector is None:
            return None
        newest = f"SELECT model, {dialect.pgvector}.vector_dims(data) FROM {dialect.vectors} ORDER BY id DESC LIMIT 1"
        [found] = yield [(newest, {})]
        if not found:
            return None
        [(model, dims)] = found
        some = f"SELECT FROM {dialect.vectors} WHERE model = :model LIMIT {MOST_EXACT + 1}"
        noted = f"SELECT name FROM {dialect.state} WHERE starts_with(name, :p0)"
        [[(count,)], wishes] = yield [
            (f"SELECT count(*) FROM ({some}) AS found", {"model": model}),
            (noted, {"p0": f"vectors {model} {dims} "}),
        ]
        if count <= MOST_EXACT:
            return None
        possible = {
            metric: index for metric in METRICS if (index := index_for(dialect, model, dims, metric)) is not None
        }
        present = yield [read_index(dialect, index) for index in possible.values()]
        usable = {metric for metric, rows in zip(possible, present, strict=True) if rows == [(True,)]}
        wanted = [name.split(" ")[3] for (name,) in wishes] or ([] if usable else [METRICS[0]])
        return next((possible[metric] for metric in wanted if metric in possible.keys() - usable), None)

    # Batches ---------------------------------------------------------------------------------------------------------

    def batch(self, batch: Sequence[Op], token: int | None = None) -> SqlProgram[list[Any]]:
        """Run a batch in as few statements as possible; every row that it changes gets the same token.

        The rows to be written are locked first, in key order, so that two batches cannot deadlock.
        """
        if len(batch) > 1 and all(type(op) is ops.Get for op in batch):
            return (yield from self._get_all(batch))
        if type(batch[-1]) is ops.Remember:
            return (yield from self._remember(batch, token))
        if all(type(op) in ops.READS for op in batch):
            return (yield from super().batch(batch))
        if not any(map(_needs_several, batch)):
            return (yield from self._run_together(batch, [self._lock_rows(batch)], token))
        yield [self._lock_rows(batch)]
        results: list[Any] = []
        for several, group in groupby(batch, _needs_several):
            members = list(group)
            if not several:
                results += yield from self._run_together(members, [], token)
            for op in members if several else ():
                results.append((yield from _set_token(self.perform(op, self._clock()), token)))
        return results

    def _get_all(self, batch: Sequence[Any]) -> SqlProgram[list[Any]]:
        """Run many gets as one statement, which has one snapshot without a transaction."""
        params = {"all_ns": [keys.encode(op.namespace) for op in batch], "all_key": [op.key for op in batch]}
        [rows] = yield [(self._get_many, {**params, "now": self._clock()})]
        found = {number: row for number, *row in rows}
        return [to_entry(tuple(found[number])) if number in found else None for number in range(1, len(batch) + 1)]

    def put_joined(self, puts: Sequence[Any], token: int) -> SqlProgram[list[Any] | None]:
        """Run plain puts of different keys, which are sorted by key, as one statement. The order prevents deadlocks.

        None if they were done already, by a statement with the same token.
        """
        _, params = self._put_group(puts)
        [rows] = yield [(self._put_many_once, {**params, "token": token})]
        if len(rows) < len(puts):
            return None
        return _put_results(puts, [decode(put.value) for put in puts], params["all_ttl"], rows)

    def _run_together(self, batch: Sequence[Op], first: list[Statement], token: int | None) -> SqlProgram[list[Any]]:
        """Run ops of one statement each in one round trip, after the statements `first`."""
        groups = list(_group_puts(batch))
        sent: list[Statement] = []
        values: list[list[dict[str, Any]]] = []

        def statements() -> Iterator[Statement]:
            """Yield one statement at a time: the server works on the first while the next is made.

            Meanwhile, the values that were sent are decoded for the results.
            """
            yield from first
            for group in groups:
                sql, params = self._put_group(group) if _is_group(group) else self._statement_with_lock(group[0])
                if "token" in params:
                    params["token"] = token
                sent.append((sql, params))
                yield sent[-1]
                values.append([decode(put.value) for put in group] if _is_group(group) else [])

        replies = yield statements()
        results: list[Any] = []
        for group, (_, params), decoded, rows in zip(groups, sent, values, replies[len(first) :], strict=True):
            if _is_group(group):
                results += _put_results(group, decoded, params["all_ttl"], rows)
            else:
                results.append((yield from self._outcome(group[0], params, rows)))
        return results

    def _actual(self, params: dict[str, Any]) -> SqlProgram[int | None]:
        yield [("ROLLBACK", {})]  # the ops after the failed one have run, too: read what was there before them
        return (yield from super()._actual(params))

    def find_actual_version(self, params: dict[str, Any]) -> SqlProgram[int | None]:
        """Return the version that a single statement found instead of the expected one."""
        return (yield from super()._actual(params))

    def retryable_statement(self, op: Op) -> Statement:
        """Return the statement of a single op. Executed again, a put that was done does nothing."""
        if is_plain_put(op) and op.ttl is None:
            value: Any = op.value
            return self._put_item, {
                "ns": keys.encode(op.namespace),
                "key": op.key,
                "value": value,
                "projection": project(value),
                "now": self._clock(),
                "token": new_token(),
                "acting": op.acting,
                "size": None,
            }
        sql, params = self.statement(op)
        return self._put_once.get(sql, sql), params

    def fallback_statement(self, statement: Statement) -> Statement | None:
        """Return the statement to execute next if this one did nothing.

        It may have met a file, vectors or deleted trees. None if it was not the statement for the most frequent puts.
        """
        sql, params = statement
        if sql is not self._put_item:
            return None
        return self._put_once[self._put_any[False]], {**params, "ttl": None, "fields": None, "model": None}

    def read_last_write(self, params: dict[str, Any]) -> SqlProgram[Rows]:
        """Return the token, version and times of the last write of an entry."""
        sql = f"SELECT token, version, created, updated, expires FROM {self._table} WHERE ns = :ns AND key = :key"
        [rows] = yield [(sql, {"ns": params["ns"], "key": params["key"]})]
        return rows  # type: ignore[no-any-return]  # a reply

    def read_last_writes(self, puts: Sequence[Any]) -> SqlProgram[Rows]:
        """Return the number of each put whose row exists, with the token, version and times of the row."""
        sql = (
            f"SELECT number, token, version, created, updated, expires"
            f" FROM unnest(:all_ns::text[], :all_key::text[]) WITH ORDINALITY AS row (ns, key, number)"
            f" JOIN {self._table} USING (ns, key)"
        )
        params = {"all_ns": [keys.encode(put.namespace) for put in puts], "all_key": [put.key for put in puts]}
        [rows] = yield [(sql, params)]
        return rows  # type: ignore[no-any-return]  # a reply

    def read_transaction_status(self, xid: str, token: int) -> SqlProgram[str | None]:
        """Return the status of a transaction: `committed`, `aborted`, `in progress`, or None if it is unknown.

        After a crash, PostgreSQL may assign its last ids a second time. So an id in the future was never committed, and
        a committed id is only ours if a row has our token, too.
        """
        sql = "SELECT CASE WHEN :p0::xid8 < pg_current_xact_id() THEN pg_xact_status(:p0::xid8) ELSE 'aborted' END"
        [[(status,)]] = yield [(sql, {"p0": xid})]
        if status == "committed":
            sql = f"SELECT 1 FROM {self._table} WHERE xid = :p0::xid8 AND token = :token LIMIT 1"
            [rows] = yield [(sql, {"p0": xid, "token": token})]
            return "committed" if rows else None
        return str(status) if status else None

    def _put_group(self, group: Sequence[Any]) -> Statement:
        """Return the one statement of several puts."""
        params: dict[str, Any] = {
            "all_ns": [keys.encode(put.namespace) for put in group],
            "all_key": [put.key for put in group],
            "all_value": [put.value for put in group],
            "all_projection": [project(put.value) for put in group],
            "all_ttl": [ttl_microseconds(put.ttl) for put in group],
            "all_acting": [put.acting for put in group],
            "now": self._clock(),
            "token": None,
        }
        if group[0].vectors is None:
            return self._put_many, params
        in_order = zip(params["all_ns"], group, strict=True)
        vectors = [(ns, put.key, data) for ns, put in in_order for data in put.vectors.data]
        self.ranker.note_vectors(group[0].vectors, len(vectors))
        expression, to_parameter = self._dialect.vectors_in
        sql = f"""
            WITH put AS ({self._put_many_of_model}), added AS (
                INSERT INTO {self._dialect.vectors} (version, model, data)
                SELECT put.version, :model, vector.data FROM put
                JOIN unnest(:all_vector_ns::text[], :all_vector_key::text[], {expression}) AS vector (ns, key, data)
                ON vector.ns = put.ns AND vector.key = put.key
            )
            SELECT version, created, updated FROM put"""
        return sql, {
            **params,
            "all_fields": [put.search_fields for put in group],
            "model": group[0].vectors.model,
            "all_vector_ns": [ns for ns, _, _ in vectors],
            "all_vector_key": [key for _, key, _ in vectors],
            "all_data": to_parameter([data for _, _, data in vectors]),
        }

    def _lock_rows(self, batch: Sequence[Op]) -> Statement:
        """Return the statement that locks the rows to be written, in key order."""
        rows = sorted({(keys.encode(op.namespace), op.key) for op in batch if isinstance(op, _WRITES)})
        all_keys = [key for _, key in rows]
        if rows and rows[0][0] == rows[-1][0]:  # all in one namespace: one index scan finds them
            return self._lock_in_namespace, {"ns": rows[0][0], "all_key": all_keys}
        return self._lock, {"all_ns": [ns for ns, _ in rows], "all_key": all_keys}

    def _statement_with_lock(self, op: Op) -> Statement:
        """Return an op's statement. A check locks its row until the end of the transaction, even an absent one."""
        sql, params = self.statement(op)
        if sql is not self._version_of:
            return sql, params
        if isinstance(op, ops.Check | ops.Delete) and op.expect is ABSENT:
            return self._lock_absent, params
        return f"{sql} FOR SHARE", params

    def result(self, op: Op, params: dict[str, Any], rows: Rows) -> Any:
        if rows == [(None,)]:  # `_lock_absent` found no live entry
            rows = []
        return super().result(op, params, rows)

    def newer(self, op: ops.Search, position: str, want: int) -> SqlProgram[list[tuple[Hit, str]]]:
        params: dict[str, Any] = {"now": self._clock()}
        where = f"{LIVE} {within(op.prefix, op.recursive, params, hides=True)}"
        narrowed, _ = narrow(op.filter, self._dialect, params)
        if narrowed:
            where += f" AND {narrowed}"
        found: list[tuple[Hit, str]] = []
        while len(found) < want:
            size = max(want, 64)
            rows, next_position = yield from self._feed.since(position, self._reads.columns, where, params, size)
            for group in split_by_bytes(rows):
                found += yield from process_rows(_matching, op, (yield from self._reads.load_contents(group)))
                if len(found) >= want:
                    return found[:want]
            if len(rows) < size:
                break
            position = next_position
        return found[:want]


def _matching(op: ops.Search, rows: Rows) -> list[tuple[Hit, str]]:
    """Return the rows that match a filter as hits, each with the position after it."""
    hits = ((to_entry(tuple(row), Hit), after) for *row, after in rows)
    return [(hit, after) for hit, after in hits if filters.matches(op.filter, hit.value)]


_WRITES = (ops.Put, ops.Delete, ops.Refresh, ops.Backdate, ops.Append)
_MAX_GROUP = 250  # puts in one statement: while the server executes it, the next is encoded


def _set_token(program: SqlProgram[T], token: int | None) -> SqlProgram[T]:
    """Run a program, with this token in all its statements."""
    replies: Any = None
    while True:
        try:
            statements = program.send(replies)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # StopIteration.value is untyped
        for _, params in () if isinstance(statements, Work) else statements:
            if "token" in params and isinstance(params, dict):
                params["token"] = token
        replies = yield statements


def _has_plain_vectors(op: Op) -> TypeGuard[ops.Put]:
    """Whether an op puts a JSON value with vectors, under no condition: such puts can go together, too."""
    return (
        type(op) is ops.Put
        and op.vectors is not None
        and op.expect is ANY
        and op.ttl is not KEEP
        and type(op.value) is not ops.File
    )


def _needs_several(op: Op) -> bool:
    """Whether an op needs several statements here."""
    return is_multi_statement(op) and not _has_plain_vectors(op)


def _is_group(group: list[Any]) -> bool:
    """Whether `_put_group` makes the statement of a group."""
    return len(group) > 1 or _has_plain_vectors(group[0])


def _put_results(puts: Sequence[Any], values: list[Any], ttls: list[int | None], rows: Rows) -> list[Any]:
    """Return the entries that one statement has put. Sorted by version, its rows are in the order of the puts."""
    return [
        put_entry(put, value, version, created, updated, None if ttl is None else updated + ttl)
        for put, value, ttl, (version, created, updated) in zip(puts, values, ttls, sorted(rows), strict=True)
    ]


def _group_puts(batch: Sequence[Op]) -> Iterator[list[Any]]:
    """Yield runs of unconditional puts of different keys, which one statement can do; and every other op alone."""
    group: list[Any] = []
    in_group: set[tuple[Any, str]] = set()
    for op in batch:
        key = (op.namespace, op.key) if is_plain_put(op) or _has_plain_vectors(op) else None
        if group and (
            key is None or key in in_group or len(group) == _MAX_GROUP or _model_of(group[0]) != _model_of(op)
        ):
            yield group
            group, in_group = [], set()
        if key is None:
            yield [op]
        else:
            group.append(op)
            in_group.add(key)
    if group:
        yield group


def _model_of(op: Any) -> int | None:
    return None if op.vectors is None else op.vectors.model
