"""The ops of an engine, as programs over SQL statements: what SQLite and PostgreSQL share.

One table holds the entries. A row is an entry or, with a null `value`, the tombstone of one; `version` orders the feed.

    version   the revision of the last change            ns, key   the encoded namespace and the key (`model.keys`)
    value     the exact JSON text, null once deleted     created, updated, expires, ttl   microseconds
    kind      null, or the end: 'delete', 'expire'       body, size, appended, shared     of a file (`files.py`)
    fields    null, or the paths of its searched texts   vectors   null, or the model that made its vectors

A program yields a list of statements and is sent a list of their rows. A driver in the engine runs them, in order, in
one transaction. Parameters are named (`:ns`). A `Dialect` holds what differs between databases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any, TypeGuard

from ... import ops
from ...engine import (
    Row,
    check_expectation,
    conflict,
    parse_revision,
    put_entry,
    search,
    to_entry,
)
from ...model import file_values, filters, keys
from ...model.values import decode, to_datetime, ttl_microseconds
from ...ops import ABSENT, ANY, KEEP, Entry, Hit, Namespace, Op, Page
from ...search.ranking import rank_entries
from ...wire import to_record
from ..checks.indexes import CONTENTS, TEXTS, IndexChecks
from ..history.sql import HeldPast, SqlHistory
from .bounded_reads import BoundedReads, RecordsReader, next_page_size, process_rows, split_by_bytes
from .dialect import Dialect
from .feed import DeletedTrees, DeleteTreeSlice, LargeDeleteTree, SqlFeed, put_purge_mark
from .files import SqlFiles
from .ranker import UNEMBEDDED, SqlRanker
from .statements import (
    LIVE,
    OLD_IS_LIVE,
    OLD_IS_LIVE_THEN,
    Rows,
    SqlProgram,
    Statement,
    assignments,
    outside_deleted_trees,
    within,
)
from .text_index import STATE as TEXTS_STATE
from .text_index import PreparedIndexTexts, SqlTextIndex

_RETURNING = "RETURNING version, created, updated, expires"
_FIRST_PAGE = 64  # rows
_NAMESPACES_PAGE = 4096
#: The newest rows of the whole table, which a search reads before it sorts many rows.
_LATEST = 1000
_ABOVE_ALL_VERSIONS = 2**63 - 1
#: Ops that are one query, which never raises a conflict.
LOOK_UPS: frozenset[type[ops.Op]] = frozenset({ops.Get, ops.ReadRange, ops.Stat})
_MULTI_STATEMENT = frozenset(
    {
        ops.IndexTexts,
        PreparedIndexTexts,
        ops.IndexOrder,
        ops.RepairFaults,
        LargeDeleteTree,
        DeleteTreeSlice,
        ops.Embed,
        ops.PurgeTombstones,
        ops.Append,
        ops.Move,
        ops.MoveSlice,
        ops.Copy,
        ops.Maintain,
        ops.LearnFields,
        ops.SetHistory,
        ops.SetChange,
        ops.PurgeHistory,
        ops.Forget,
        ops.Scrub,
    }
)


class SqlEntries:
    """The ops as programs over statements."""

    def __init__(
        self,
        dialect: Dialect,
        clock: Callable[[], int | None],
        feed: SqlFeed | None = None,
        ranker: type[SqlRanker] = SqlRanker,
    ) -> None:
        self._dialect = dialect
        self._clock = clock
        self._table = dialect.table
        self._reads = BoundedReads(dialect)
        self._records_reader = RecordsReader(dialect, self._reads)
        self._feed = feed or SqlFeed(dialect)
        self.trees = DeletedTrees(dialect, self._feed)
        self._files = SqlFiles(dialect)
        self._texts = SqlTextIndex(dialect, self._feed)
        self._history = SqlHistory(dialect, self._feed)
        self._index_checks = IndexChecks(dialect, self._texts)
        self.ranker = ranker(dialect, clock, self._reads, self._feed, self._texts)
        self._make_statements()

    def _make_statements(self) -> None:
        dialect, table = self._dialect, self._table
        here = f"ns = :ns AND key = :key AND {LIVE}"
        change = f"UPDATE {table} SET version = {dialect.next_version}, updated = :now{assignments(dialect.stamps)}"
        #: Columns that every put sets beside the value, and to which expression.
        self._put_columns = {
            **dialect.projections,
            "body": f"CASE WHEN CAST(:size AS bigint) IS NULL THEN NULL ELSE {dialect.next_body} END",
            "size": ":size",
            "appended": "NULL",
            "shared": "NULL",
            "fields": ":fields",
            "vectors": ":model",
        }
        self._put_any = {keep: self._put(keep) for keep in (False, True)}
        self._put_absent = self._put(False, where=f"WHERE NOT ({OLD_IS_LIVE})")
        lifetime = {"expires": ":now + :ttl", "ttl": ":ttl"}
        kept_fields = {"fields": "coalesce(:fields, fields)"}
        self._put_at_version = {
            keep: f"{change}, value = :value{assignments(self._put_columns | further)}"
            f" WHERE {here} AND version = :expect {_RETURNING}"
            for keep, further in ((True, kept_fields), (False, lifetime))
        }
        nothing = assignments(dict.fromkeys(("value", "expires", "ttl", *self._put_columns), "NULL"))
        delete = f"{change}, kind = 'delete'{nothing} WHERE {here}"
        self._delete = f"{delete} RETURNING version"
        self._delete_at_version = f"{delete} AND version = :expect RETURNING version"
        self._get = f"SELECT {self._reads.columns_with_content} FROM {table} WHERE {here}"
        self._get_search_fields = f"SELECT fields FROM {table} WHERE {here}"
        self._count_vectors = (
            f"SELECT count(*) FROM {dialect.vectors} WHERE version = (SELECT version FROM {table} WHERE {here})"
        )
        self._version_of = f"SELECT version FROM {table} WHERE {here}"
        self._refresh = f"UPDATE {table} SET expires = :now + ttl WHERE {here} AND ttl IS NOT NULL RETURNING version"
        self._backdate = (
            f"UPDATE {table} SET created = coalesce(:created, created), updated = coalesce(:updated, updated),"
            f" changed = CASE WHEN CAST(:updated AS bigint) IS NULL THEN changed ELSE coalesce(changed, updated) END,"
            f" expires = coalesce(:expires, expires) WHERE {here} RETURNING version"
        )

    def _put(self, keep: bool, *, where: str = "", returning: str = _RETURNING) -> str:
        """Return the statement of a put; `keep` leaves the lifetime and the search fields as they are."""
        expires, ttl, fields = "excluded.expires", "excluded.ttl", "excluded.fields"
        if keep:
            expires, ttl, fields = (
                f"CASE WHEN {OLD_IS_LIVE} THEN old.{name} END" for name in ("expires", "ttl", "fields")
            )
            fields = f"coalesce(excluded.fields, {fields})"
        return self._upsert(
            self._values(":now + :ttl, :ttl", self._put_columns),
            self._put_columns,
            lifetime=f"expires = {expires}, ttl = {ttl}",
            fields=fields,
            where=where,
            returning=returning,
        )

    def _values(self, lifetime: str, columns: Mapping[str, str]) -> str:
        """Return the VALUES of one put; `columns` are those beside the value."""
        further = "".join(f", {expression}" for expression in (*self._dialect.stamps.values(), *columns.values()))
        return f"VALUES ({self._dialect.first_version}, :ns, :key, :value, :now, :now, {lifetime}{further})"

    def _upsert(
        self,
        source: str,
        columns: Iterable[str],
        *,
        lifetime: str = "expires = excluded.expires, ttl = excluded.ttl",
        fields: str = "excluded.fields",
        where: str = "",
        returning: str = _RETURNING,
        old_is_live: str = OLD_IS_LIVE_THEN,
    ) -> str:
        """Return a statement that inserts the rows of `source`, or replaces the rows of the same key.

        `columns` are those beside the value. Columns of a file that are not among them stay as they are.
        """
        names = [*self._dialect.stamps, *columns]
        replaced = {name: fields if name == "fields" else f"excluded.{name}" for name in names}
        return f"""
            INSERT INTO {self._table} AS old
                (version, ns, key, value, created, updated, expires, ttl{"".join(f", {name}" for name in names)})
            {source}
            ON CONFLICT (ns, key) DO UPDATE SET
                version = {self._dialect.version_on_conflict}, value = excluded.value, kind = NULL,
                updated = excluded.updated,
                created = CASE WHEN {old_is_live} THEN old.created ELSE excluded.created END,
                {lifetime}{assignments(replaced)}
            {where} {returning}"""

    @property
    def needs_maintenance(self) -> bool:
        """Whether maintenance would help."""
        return self.trees.needs_clearing or self._files.needs_maintenance

    @property
    def trusts_fields(self) -> bool:
        """Whether the database may read the fields of values; see `SqlFeed`."""
        return self._feed.trusts_fields

    @trusts_fields.setter
    def trusts_fields(self, trusts: bool) -> None:
        self._feed.trusts_fields = trusts

    # Point ops -------------------------------------------------------------------------------------------------------

    def batch(self, batch: Sequence[Op]) -> SqlProgram[list[Any]]:
        """Run a batch: statements that cannot fail go together, the others are checked before the next runs."""
        if type(batch[-1]) is ops.Remember:
            return (yield from self._remember(batch))
        return (yield from self._one_by_one(batch, self._clock()))

    def _remember(self, batch: Sequence[Op], *args: Any) -> SqlProgram[list[Any]]:
        """Run a batch that ends with `Remember`."""
        *others, last = batch
        assert isinstance(last, ops.Remember)
        results = yield from self.batch(others, *args)
        [record] = yield from self.batch([to_record(last, others, results)], *args)
        return [*results, record.version]

    def _one_by_one(self, batch: Sequence[Op], now: int | None) -> SqlProgram[list[Any]]:
        results: list[Any] = []
        for run in _split(batch):
            if is_multi_statement(run[0]):
                results.append((yield from self.perform(run[0], now)))
                continue
            statements = [self._statement(op, now) for op in run]
            replies = yield statements
            for op, (_, params), rows in zip(run, statements, replies, strict=True):
                results.append((yield from self._outcome(op, params, rows)))
        return results

    def prepare(self, op: ops.IndexTexts) -> SqlProgram[ops.IndexTexts | PreparedIndexTexts]:
        """Prepare `IndexTexts`: do everything that needs no write lock."""
        if (yield from self.trees.count_left()):  # the index must not pass versions that are reserved for tombstones
            return op
        return PreparedIndexTexts(op.limit, (yield from self._texts.prepare(op.limit)))

    def perform(self, op: Op, now: int | None) -> SqlProgram[Any]:
        """Run an op that needs more than one statement."""
        match op:
            case PreparedIndexTexts() | ops.IndexTexts():
                return (yield from self._index_texts(op))
            case LargeDeleteTree():
                return (yield from self.trees.delete(op, now))
            case DeleteTreeSlice():
                return (yield from self.trees.delete_slice(op, now))
            case ops.IndexOrder():
                return (yield from self._dialect.index_order())
            case ops.RepairFaults():
                return (yield from self._repair())
            case ops.Embed():
                return (yield from self.ranker.embed(op, now))
            case ops.PurgeTombstones():
                return (yield from self._purge_tombstones(op, now))
            case ops.Put():
                return (yield from self._put_with_parts(op, now))
            case ops.Append():
                return (yield from self._append(op, now))
            case ops.Move() | ops.Copy():
                return (yield from self._files.transfer(op, now))
            case ops.MoveSlice():
                return (yield from self._files.move_slice(op, now))
            case ops.Maintain():
                if (yield from self._clear_trees()):
                    return True
                return (yield from self._files.maintain(op, now))
            case ops.LearnFields():
                return (yield from self._learn(op, now))
            case ops.SetHistory():
                return (yield from self._history.set(op, now))
            case ops.SetChange():
                yield self._history.change_statements(op)
                return None
            case ops.Forget():
                return (yield from self._forget(op, now))
            case ops.Scrub():
                return (yield from self._drop_texts())
            case ops.PurgeHistory():
                if (yield from self._clear_trees()):  # their entries become old values
                    return True
                return (yield from self._history.purge(op, now)) or (yield from self._history.shrink())
        raise TypeError(f"not an op of several statements: {op!r}")

    def _put_with_parts(self, op: ops.Put, now: int | None) -> SqlProgram[Any]:
        """Put an entry that has a content or vectors in tables of their own."""
        sql, params = self._statement(op, now)
        [rows] = yield [(sql, params)]
        result = yield from self._outcome(op, params, rows)
        if type(op.value) is ops.File:
            yield self._files.insert_content(params["ns"], op.key, op.value.content)
        if op.vectors is not None:
            yield self.ranker.insert_vectors(params["ns"], op.key, op.vectors)
        return result

    def _append(self, op: ops.Append, now: int | None) -> SqlProgram[int]:
        """Append to a file, or create it; return the offset at which the data was written."""
        while True:
            offset = yield from self._files.append(op, now)
            if offset is not None:
                return offset
            put = ops.Put(op.namespace, op.key, ops.File(file_values.NATIVE, op.data), op.ttl, ABSENT)
            put = ops.replace(put, acting=op.acting)
            sql, params = self._statement(put, now)
            [rows] = yield [(sql, params)]
            if rows:
                yield self._files.insert_content(params["ns"], op.key, op.data)
                return 0
            if op.expect is ABSENT:
                yield from self._outcome(put, params, rows)  # raises the conflict

    def _clear_trees(self) -> SqlProgram[bool]:
        """Clear a slice of the deleted trees; return whether there may be more.

        Where no tree was known, nothing is written yet: the engine commits a slice differently from what changes
        nothing.
        """
        if self.trees.needs_clearing:
            return (yield from self.trees.clear())
        return (yield from self.trees.count_left()) > 0

    def _index_texts(self, op: PreparedIndexTexts | ops.IndexTexts) -> SqlProgram[tuple[int, bool]]:
        """Run a step of indexing. Deleted trees are cleared before: the ranking counts what the index has."""
        if (yield from self._clear_trees()):
            return 0, True
        if isinstance(op, ops.IndexTexts):
            return (yield from self._texts.run_step(op.limit))
        if op.prepared is None:
            return 0, False
        return (yield from self._texts.run_step(op.limit, op.prepared))

    def _purge_tombstones(self, op: ops.PurgeTombstones, now: int | None) -> SqlProgram[bool]:
        """Remove old tombstones; return whether there may be more."""
        if (yield from self._clear_trees()):  # otherwise readers that wait for these tombstones would miss others
            return True
        versions, mark = yield from self._feed.find_purgeable(op, now)
        if not versions:
            return False
        if (yield from self._texts.has_begun()):  # it removes the documents of entries that have tombstones
            _, more = yield from self._texts.run_step(op.limit, only_changes=True)
            if more or (yield from self.trees.count_left()):  # a tree that was deleted just now stops it
                return True
        # In this order: on SQLite the row with the highest version must stay, and the put makes another row that.
        yield [self._statement(put_purge_mark(mark), now), self._feed.delete_tombstones(versions)]
        return len(versions) == op.limit

    def index_all_tombstones(self) -> SqlProgram[None]:
        """Have the text index, if it has begun, take note of every change. Tombstones are about to be removed."""
        if (yield from self._texts.has_begun()):
            more = True
            while more:
                _, more = yield from self._texts.run_step(4096, only_changes=True)

    def _forget(self, op: ops.Forget, now: int | None) -> SqlProgram[ops.Forgotten]:
        """Remove tombstones and old values of a namespace or a key."""
        if (yield from self._clear_trees()):
            return ops.Forgotten(more=True)
        if (yield from self._texts.has_begun()) and (yield from self._texts.run_step(op.limit, only_changes=True))[1]:
            return ops.Forgotten(more=True)
        versions, mark = yield from self._feed.find_tombstones(op)
        if versions:
            # In this order, as in `_purge_tombstones`.
            yield [self._statement(put_purge_mark(mark), now), self._feed.delete_tombstones(versions)]
        old = yield from self._history.forget(op)
        return ops.Forgotten(len(versions), old, len(versions) == op.limit or old == op.limit)

    def _repair(self) -> SqlProgram[int]:
        """Repair what can be; return how many rows, where an index that is built again counts as one."""
        faults = yield from self._index_checks.find()
        if any(TEXTS in fault.message for fault in faults):
            yield from self._drop_texts()
        if any(CONTENTS in fault.message for fault in faults):
            yield self._index_checks.repair_contents()
            self._files.needs_maintenance = True
        repaired: int = yield from self._dialect.checks.repair()
        return len(faults) + repaired

    def _drop_texts(self) -> SqlProgram[ops.Scrubbed]:
        """Drop the text index, which has the words of removed entries. The next search by text builds it again."""
        dialect = self._dialect
        if not (yield from self._texts.has_begun()):
            return ops.Scrubbed()
        drop: list[Statement] = [(f"DELETE FROM {dialect.state} WHERE name = '{TEXTS_STATE}'", {})]
        yield [*drop, *((f"DELETE FROM {table}", {}) for table in (dialect.words, dialect.forward, dialect.lists))]
        return ops.Scrubbed(("the text index, which the next search by text builds again",))

    def _outcome(self, op: Op, params: dict[str, Any], rows: Rows) -> SqlProgram[Any]:
        """Return an op's result, or raise the conflict that its rows show."""
        if isinstance(op, ops.GetVersion) or (isinstance(op, ops.ReadRange) and op.version is not None):
            rows = yield from self._history.complete(op, rows)
        if not rows and expects_a_row(op):
            raise conflict(op, (yield from self._actual(params)))
        return self.result(op, params, rows)

    def statement(self, op: Op) -> Statement:
        """Return the statement of a point op that needs only one."""
        return self._statement(op, self._clock())

    def _statement(self, op: Op, now: int | None) -> Statement:
        if isinstance(op, ops.Get):  # the most frequent ops first: a match takes longer
            return self._get, {"ns": keys.encode(op.namespace), "key": op.key, "now": now}
        if isinstance(op, ops.ReadRange):
            return self._files.range_statement(op, now) if op.version is None else self._history.range_statement(op)
        if isinstance(op, ops.Stat):
            return self._files.stat_statement(op, now)
        if isinstance(op, ops.Put):
            keep, expect, value = op.ttl is KEEP, op.expect, op.value
            is_file = type(value) is ops.File
            params: dict[str, Any] = {
                "ns": keys.encode(op.namespace),
                "key": op.key,
                "value": value.template if is_file else value,  # type: ignore[union-attr]  # a File
                "now": now,
                "ttl": None if keep or op.ttl is None else ttl_microseconds(op.ttl),  # type: ignore[arg-type]  # seconds
                "size": len(value.content) if is_file else None,  # type: ignore[union-attr]  # a File
                "fields": op.search_fields,
                "model": None if op.vectors is None else op.vectors.model,
            }
            if further := self._dialect.parameters(op):
                params.update(further)
            if expect is ANY:
                return self._put_any[keep], params
            if expect is ABSENT:
                return self._put_absent, params
            return self._put_at_version[keep], {**params, "expect": expect}
        match op:
            case ops.GetVersion():
                return self._history.get_statement(op)
            case ops.Delete(namespace, key, expect):
                params = {"ns": keys.encode(namespace), "key": key, "now": now, **self._dialect.parameters(op)}
                if expect is ANY:
                    return self._delete, params
                if expect is ABSENT:
                    return self._version_of, params
                return self._delete_at_version, {**params, "expect": expect}
            case ops.Check(namespace, key):
                return self._version_of, {"ns": keys.encode(namespace), "key": key, "now": now}
            case ops.Refresh(namespace, key):
                return self._refresh, {"ns": keys.encode(namespace), "key": key, "now": now}
            case ops.GetSearchFields(namespace, key):
                return self._get_search_fields, {"ns": keys.encode(namespace), "key": key, "now": now}
            case ops.CountVectors(namespace, key):
                return self._count_vectors, {"ns": keys.encode(namespace), "key": key, "now": now}
            case ops.Backdate(namespace, key, created, updated, expires):
                params = {"ns": keys.encode(namespace), "key": key, "now": now}
                return self._backdate, {**params, "created": created, "updated": updated, "expires": expires}
            case ops.DeleteTree(namespace, None):
                params = {"now": now, **self._dialect.parameters(op)}
                where = f"{LIVE} {within(namespace, True, params)} ORDER BY ns, key"
                return self._dialect.make_tombstones(where, "delete"), params
            case ops.Sweep(limit, prefix):
                params = {"now": now, "limit": limit, **self._dialect.parameters(op)}
                where = f"value IS NOT NULL AND expires <= :now AND {outside_deleted_trees()}"
                where += f" {within(prefix, True, params)}" if prefix else ""
                return self._dialect.make_tombstones(f"{where} ORDER BY expires LIMIT :limit", "expire"), params
        statement = self._files.statement(op, now)
        if statement is None:
            raise TypeError(f"not a point op: {op!r}")
        return statement

    def result(self, op: Op, params: dict[str, Any], rows: Rows) -> Any:
        """Return an op's result, made of the rows of its statement."""
        if isinstance(op, ops.Get):
            return to_entry(rows[0]) if rows else None
        if isinstance(op, ops.ReadRange):
            return self._files.range_result(op, rows) if op.version is None else self._history.range_result(op, rows)
        if isinstance(op, ops.Stat):
            return self._files.stat_result(op, rows)
        if isinstance(op, ops.Put):
            if not op.returns_entry:
                return None
            if params["size"] is not None:
                return self._files.put_result(op, *rows[0])
            return put_entry(op, decode(params["value"]), *rows[0])
        match op:
            case ops.Delete(expect=expect):
                if expect is ABSENT:
                    check_expectation(op, rows[0][0] if rows else None)
                    return False
                return bool(rows)
            case ops.Check():
                check_expectation(op, rows[0][0] if rows else None)
                return None
            case ops.Refresh() | ops.Backdate():
                return bool(rows)
            case ops.GetSearchFields() | ops.CountVectors():
                return rows[0][0] if rows else None
            case ops.GetVersion():
                return self._history.get_result(op, rows)
            case ops.Sweep():
                return len(rows)
        return self._files.result(op, rows)

    def _actual(self, params: dict[str, Any]) -> SqlProgram[int | None]:
        """Return the version that an op found instead of the one it expected."""
        [rows] = yield [(self._version_of, {name: params[name] for name in ("ns", "key", "now")})]
        return rows[0][0] if rows else None

    # Walks -----------------------------------------------------------------------------------------------------------

    def walk(self, op: Op) -> SqlProgram[Any]:
        """Run one walk, within one snapshot."""
        match op:
            case ops.Search():
                if op.query is None and op.vector is None:
                    return (yield from search(self, op))
                if op.query is not None and not op.caught_up and (left := (yield from self.trees.count_left())):
                    return ops.IndexLag(left + (yield from self.ranker.index_lag()))  # `IndexTexts` clears them
                return (yield from rank_entries(self.ranker, op, self.older))
            case ops.Unembedded():
                return (yield from self.ranker.unembedded(op))
            case ops.Count():
                return (yield from self._count(op))
            case ops.ReadStats(prefix):
                return (yield from self._read_stats(prefix))
            case ops.Scan():
                return (yield from self._scan(op))
            case ops.Namespaces():
                return (yield from self._namespaces(op))
            case ops.Changes():
                return (yield from self._feed.changes(op, self._clock()))
            case ops.Records():
                return (yield from self._records(op))
            case ops.ChangedRecords():
                return (yield from self._changed_records(op))
            case ops.FindFaults():
                faults = yield from self._dialect.checks.find()
                return [*faults, *(yield from self._index_checks.find())]
            case ops.Children():
                return (yield from self._files.children(op, self._clock()))
            case ops.Grep():
                return (yield from self._files.grep(op, self._clock()))
            case ops.ListVersions() | ops.ListPast():
                if (yield from self.trees.count_left()):  # their entries are not old values yet
                    return HeldPast()
                if isinstance(op, ops.ListVersions):
                    return (yield from self._history.list_versions(op))
                return (yield from self._history.list_past(op, self._clock()))
        raise TypeError(f"not a walk: {op!r}")

    def position(self) -> SqlProgram[str]:
        return self._feed.position()

    def older(self, op: ops.Search, below: int | None, want: int) -> SqlProgram[list[Hit]]:
        """Return matching entries below a version, newest first, read in pages that grow while few rows match."""
        is_single = not op.recursive or (yield from self._is_leaf(op.prefix))
        params: dict[str, Any] = {"now": self._clock()}
        inside = within(op.prefix, not is_single, params, hides=True)
        inside, narrowed, is_indexed = yield from self._feed.narrow(op.filter, inside, params)
        if is_indexed and is_single and inside:  # as a range: otherwise a database prefers to read the whole namespace
            inside = "AND ns >= :low AND ns <= :low"
        where = f"{LIVE} {inside}" + (f" AND {narrowed}" if narrowed else "")
        start = _ABOVE_ALL_VERSIONS if below is None else below
        # In one namespace or in all of them, an index has the order of versions. Elsewhere the rows are found first and
        # then sorted (`+`). If they may be many, the newest rows of the table are read before: they are often enough.
        is_ordered = (is_single or not op.prefix) and not is_indexed
        if not is_ordered and (not is_indexed or (yield from self._has_many(where, params))):
            latest = f"(SELECT * FROM {self._table} WHERE version < :below ORDER BY version DESC LIMIT {_LATEST})"
            sql = f"SELECT {self._reads.columns} FROM {latest} WHERE {where} ORDER BY version DESC LIMIT :limit"
            hits = yield from self._collect(sql, params, "below", start, op, want, is_narrowed=bool(narrowed))
            if len(hits) == want:
                return hits
        sql = (
            f"SELECT {self._reads.columns} FROM {self._table} WHERE version IN (SELECT version FROM {self._table}"
            f" WHERE {where} AND version < :below ORDER BY {'' if is_ordered else '+'}version DESC LIMIT :limit)"
            f" ORDER BY version DESC"
        )
        return (yield from self._collect(sql, params, "below", start, op, want, is_narrowed=bool(narrowed)))

    def _has_many(self, where: str, params: dict[str, Any]) -> SqlProgram[bool]:
        """Return whether an index finds so many rows that sorting them would take long."""
        [[(found,)]] = yield [
            (f"SELECT count(*) FROM (SELECT 1 FROM {self._table} WHERE {where} LIMIT {_LATEST})", params)
        ]
        return bool(found == _LATEST)

    def newer(self, op: ops.Search, position: str, want: int) -> SqlProgram[list[tuple[Hit, str]]]:
        """Return matching entries after a position, oldest first, each with the position after it."""
        params: dict[str, Any] = {"now": self._clock()}
        inside = within(op.prefix, op.recursive, params, hides=True)
        sql = (
            f"SELECT {self._reads.columns} FROM {self._table} WHERE {LIVE} {inside} AND version > :above"
            f" ORDER BY version LIMIT :limit"
        )
        hits = yield from self._collect(sql, params, "above", parse_revision(position), op, want)
        return [(hit, str(hit.version)) for hit in hits]

    def _collect(
        self,
        sql: str,
        params: dict[str, Any],
        bound: str,
        start: int,
        op: ops.Search,
        want: int,
        is_narrowed: bool = False,
    ) -> SqlProgram[list[Hit]]:
        """Read candidates page by page and match them, until there are enough hits or no more rows.

        `bound` is the parameter that holds the version of the last row read. If SQL has applied the filter
        (`is_narrowed`), most candidates match, and the first page has no more rows than hits are wanted.
        """
        hits: list[Hit] = []
        params[bound] = start
        size = want if op.filter is None or is_narrowed else max(want, _FIRST_PAGE)
        while True:
            [rows] = yield [(sql, {**params, "limit": size})]
            for group in split_by_bytes(rows):
                loaded = yield from self._reads.load_contents(group)
                hits += yield from process_rows(partial(_match, want=want - len(hits)), op, loaded)
                if len(hits) == want:
                    return hits
            if len(rows) < size:
                return hits
            params[bound] = rows[-1][3]
            size = next_page_size(size, rows)

    def _is_leaf(self, prefix: Namespace) -> SqlProgram[bool]:
        """Return whether there are no namespaces below this one, so that the order of its own index can be used."""
        if not prefix:
            return False
        low, high = keys.below(keys.encode(prefix))
        sql = f"SELECT 1 FROM {self._table} WHERE value IS NOT NULL AND ns > :low AND ns < :high LIMIT 1"
        [rows] = yield [(sql, {"low": low, "high": high})]
        return not rows

    def _count(self, op: ops.Count) -> SqlProgram[int]:
        params: dict[str, Any] = {"now": self._clock()}
        inside = within(op.prefix, op.recursive, params, hides=not op.hidden)
        inside, narrowed, _ = yield from self._feed.narrow(op.filter, inside, params)
        where = f"{LIVE} {inside}" + (f" AND {narrowed}" if narrowed else "")
        if op.unembedded is not None:
            where += f" AND {UNEMBEDDED}"
            params["model"] = op.unembedded
        if op.filter is None:
            [[(count,)]] = yield [(f"SELECT count(*) FROM {self._table} WHERE {where}", params)]
            return count  # type: ignore[no-any-return]  # a row's column
        total, size = 0, 4 * _FIRST_PAGE
        after: tuple[str, str] | None = None
        while True:
            rows = yield from self._in_key_order(where, params, after, size)
            for group in split_by_bytes(rows):
                total += yield from process_rows(_count_matching, op, (yield from self._reads.load_contents(group)))
            if len(rows) < size:
                return total
            after, size = rows[-1][:2], next_page_size(size, rows)

    def _read_stats(self, prefix: Namespace) -> SqlProgram[ops.Stats]:
        entries = yield from self._count(ops.Count(prefix, hidden=True))
        params: dict[str, Any] = {"now": self._clock()}
        where = f"body IS NOT NULL AND {LIVE} {within(prefix, True, params)}"
        [[(files,)]] = yield [(f"SELECT count(*) FROM {self._table} WHERE {where}", params)]
        return ops.Stats(
            entries=entries,
            files=files,
            text_index_lag=(yield from self._texts.count_unindexed()),
            declared_fields=self._dialect.declared,
            learned_fields=(yield from self._describe_learned()),
            **(yield from self._measure(prefix, params)),
        )

    def _measure(self, prefix: Namespace, params: dict[str, Any]) -> SqlProgram[dict[str, Any]]:
        """Return the sizes of `Stats`: under a prefix, the bytes; of the whole store, all of them."""
        dialect, size = self._dialect, "coalesce(sum(octet_length(value)), 0) + coalesce(sum(size), 0)"
        where = f"{LIVE} {within(prefix, True, params)}"
        by_root = f"SELECT substr(ns, 1, {dialect.find_text('ns', dialect.character(1))}), {size} FROM"
        if prefix:
            [[(inside,)]] = yield [(f"SELECT {size} FROM {self._table} WHERE {where}", params)]
            return {"bytes": int(inside)}
        leases = f"ns >= :low AND ns < :high AND {dialect.find_text('ns', ':label')} > 0 AND {LIVE}"
        low, high = keys.RESERVED_RANGE
        reserved = {"low": low, "high": high, "label": "\x01leases\x01", "now": params["now"]}
        replies = yield [
            (f"{by_root} {self._table} WHERE {where} GROUP BY 1", params),
            (f"SELECT count(*) FROM {dialect.vectors}", {}),
            (f"SELECT count(*) FROM {self._table} WHERE {leases}", reserved),
            (f"SELECT min(updated) FROM {self._table} WHERE value IS NULL AND kind <> 'none'", {}),
            (f"{by_root} {dialect.history} GROUP BY 1", {}),
        ]
        [present, [(vectors,)], [(held,)], [(oldest,)], old] = replies
        roots, history = ({keys.decode(root)[0]: int(total) for root, total in rows} for rows in (present, old))
        return {
            "bytes": sum(roots.values()),
            "root_bytes": roots,
            "vectors": vectors,
            "leases": held,
            "oldest_tombstone": None if oldest is None else to_datetime(oldest),
            "history_bytes": history,
        }

    def _describe_learned(self) -> SqlProgram[tuple[ops.LearnedField, ...]]:
        """Return the learned fields."""
        return ()
        yield

    def _learn(self, op: ops.LearnFields, now: int | None) -> SqlProgram[bool]:
        """Do a slice of a learned index; return whether more is left."""
        del op, now
        return False
        yield

    def _scan(self, op: ops.Scan) -> SqlProgram[Page[Entry]]:
        params: dict[str, Any] = {"now": self._clock()}
        where = f"{LIVE} {within(op.prefix, True, params, hides=True)}"
        after = None if op.after is None else (keys.encode(op.after[0]), op.after[1])
        rows = yield from self._in_key_order(where, params, after, op.limit)
        first = next(split_by_bytes(rows))
        entries = [to_entry(row) for row in (yield from self._reads.load_contents(first))]
        return Page(entries, first[-1][1] if len(first) < len(rows) or len(rows) == op.limit else None)

    def _records(self, op: ops.Records) -> SqlProgram[ops.RecordPage]:
        params: dict[str, Any] = {"now": self._clock()}
        where = f"{LIVE} {within(op.prefix, True, params)}"
        after = None if op.after is None else (keys.encode(op.after[0]), op.after[1])
        rows: Rows = yield from self._in_key_order(where, params, after, op.limit, self._records_reader.columns)
        records, left = yield from self._records_reader.load(rows)
        return ops.RecordPage(records, rows[-left - 1][1] if rows else None, left > 0 or len(rows) == op.limit)

    def _changed_records(self, op: ops.ChangedRecords) -> SqlProgram[ops.RecordPage]:
        columns = self._records_reader.columns
        rows, cursor, is_held = yield from self._feed.changed_rows(op, columns, self._clock())
        records, left = yield from self._records_reader.load(rows)
        if left:
            cursor = rows[-left - 1][-1]
        return ops.RecordPage(records, cursor, left > 0 or is_held or len(rows) == op.limit)

    def _in_key_order(
        self, where: str, params: dict[str, Any], after: tuple[str, str] | None, limit: int, columns: str = ""
    ) -> SqlProgram[list[Row]]:
        params = {**params, "limit": limit}
        if after is not None:
            where += " AND (ns, key) > (:after_ns, :after_key)"
            params.update(after_ns=after[0], after_key=after[1])
        columns = columns or self._reads.columns
        sql = f"SELECT {columns} FROM {self._table} WHERE {where} ORDER BY ns, key LIMIT :limit"
        [rows] = yield [(sql, params)]
        return rows  # type: ignore[no-any-return]  # the driver's reply

    def _namespaces(self, op: ops.Namespaces) -> SqlProgram[list[Namespace]]:
        """Step from one namespace to the next in the index, over whole subtrees where `max_depth` allows it."""
        if op.limit == 0:
            return []
        low, high = keys.below(keys.encode(op.base + keys.literal_prefix(op.prefix)))
        needs_match = bool(op.suffix) or "*" in op.prefix  # otherwise every namespace in the range matches
        # SQL steps over namespaces that would be cut to the same one, unless some of them may not match.
        depth = None if op.max_depth is None or needs_match else len(op.base) + op.max_depth
        until = "AND NOT (ns >= :reserved_low AND ns < :reserved_high)" if high is None else "AND ns < :high"
        until += " AND NOT (ns >= :hidden_low AND ns < :hidden_high)"
        hidden = keys.hidden_below(low)
        first, following = (
            f"(SELECT ns FROM {self._table} WHERE {LIVE} AND ns >= {least} {until} ORDER BY ns LIMIT 1)"
            for least in (":low", self._dialect.next_namespace("step.ns", depth))
        )
        sql = f"""
            WITH RECURSIVE step(ns) AS (
                SELECT {first} UNION ALL SELECT {following} FROM step WHERE step.ns IS NOT NULL
            ) SELECT ns FROM step WHERE ns IS NOT NULL LIMIT :limit"""
        reserved = {"reserved_low": keys.RESERVED_RANGE[0], "reserved_high": keys.RESERVED_RANGE[1]}
        params = {"now": self._clock(), **(reserved if high is None else {"high": high})}
        params.update(hidden_low=hidden[0], hidden_high=hidden[1])
        found: list[Namespace] = []
        wanted = op.offset + op.limit
        while len(found) < wanted:
            size = 512 if needs_match else min(wanted - len(found), _NAMESPACES_PAGE)
            [rows] = yield [(sql, {**params, "low": low, "limit": size})]
            for (encoded,) in rows:
                namespace = keys.decode(encoded)[len(op.base) :]
                if not needs_match or keys.matches(namespace, op.prefix, op.suffix):
                    cut = namespace[: op.max_depth]
                    if not found or found[-1] != cut:
                        found.append(cut)
            if len(rows) < size:
                break
            low = keys.after(rows[-1][0], depth)
        return found[op.offset : wanted]


def _match(op: ops.Search, rows: Rows, want: int) -> list[Hit]:
    """Return the rows that match a filter as hits, at most `want`."""
    hits = (to_entry(row, Hit) for row in rows)
    return list(islice((hit for hit in hits if filters.matches(op.filter, hit.value)), want))


def _count_matching(op: Any, rows: Rows) -> int:
    return sum(1 for row in rows if filters.matches(op.filter, to_entry(row).value))


def _split(batch: Sequence[Op]) -> list[Sequence[Op]]:
    """Split a batch after each op that may raise a conflict, and around each op of several statements."""
    if len(batch) == 1:
        return [batch]
    cuts = {0, len(batch)}
    for index, op in enumerate(batch):
        if is_multi_statement(op):
            cuts |= {index, index + 1}
        elif getattr(op, "expect", ANY) is not ANY or isinstance(op, ops.CheckPath):
            cuts.add(index + 1)
    return [batch[start:end] for start, end in pairwise(sorted(cuts))]


def is_plain_put(op: Op) -> TypeGuard[ops.Put]:
    """Whether an op only puts a JSON value, under no condition: such puts can go together."""
    return is_simple_put(op) and type(op.value) is not ops.File


def is_simple_put(op: Op) -> TypeGuard[ops.Put]:
    """Whether an op only puts a JSON value or a file, under no condition."""
    return (
        type(op) is ops.Put
        and op.expect is ANY
        and op.ttl is not KEEP
        and op.search_fields is None
        and op.vectors is None
    )


def is_look_up(op: Op) -> bool:
    """Whether an op is one query: not a read of an old version, which may need others."""
    return type(op) in LOOK_UPS and (not isinstance(op, ops.ReadRange) or op.version is None)


def is_multi_statement(op: Op) -> bool:
    """Whether an op needs several statements, of which the later ones depend on the earlier."""
    kind = type(op)
    if kind is ops.Put:
        return type(op.value) is ops.File or op.vectors is not None  # type: ignore[attr-defined]  # a Put
    return kind in _MULTI_STATEMENT


def expects_a_row(op: Op) -> TypeGuard[ops.Put | ops.Delete]:
    """Whether it is a conflict if the op's statement returns no row."""
    return isinstance(op, ops.Put) or (isinstance(op, ops.Delete) and isinstance(op.expect, int))
