"""What the SQL engines share: the statements, and the programs that ask them.

One table holds the entries. A row is an entry or, with a null `value`, the tombstone of one; `version` orders the feed.

    version   the revision of the last change            ns, key   where it lives (`holdall.keys`)
    value     the exact JSON text, null once deleted     created, updated, expires, ttl   microseconds
    kind      null, or how it ended: 'delete', 'expire'  body, size, appended, shared     of a file (`sql_files`)
    fields    null, or the paths that it is found by     vectors   null, or the model that made its vectors

A program yields a list of statements and is sent a list of their rows; a driver in the engine runs them, in order, in
one transaction. Parameters are named (`:ns`); a dialect says what differs between databases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any, TypeGuard

from .. import keys, ops
from ..engine import NO_FILE, Row, check_expectation, conflict, feed_from, parse_revision, search, to_entry
from ..ops import ABSENT, ANY, KEEP, Change, Entry, Hit, Namespace, Op, Page
from ..programs import Program, drive
from ..ranking import ranked
from ..values import ttl_microseconds
from .dialect import Dialect
from .history import SqlHistory, mark_of
from .narrowing import narrow
from .sql_files import AT_OR_BELOW, SqlFiles, tree
from .sql_search import UNEMBEDDED, SqlRanker, reckoned
from .sql_texts import SqlTexts
from .statements import LIVE, OLD_IS_LIVE, OLD_IS_LIVE_THEN, UNEXPIRED, Rows, Statement, assigned

COLUMNS = "ns, key, value, version, created, updated, expires"
_RETURNING = "RETURNING version, created, updated, expires"
_FIRST_PAGE, _LARGEST_PAGE = 64, 4096
_LATEST = 1000
_EVERYTHING = 2**63 - 1
#: Ops that are one query, whose rows cannot refuse anything.
LOOK_UPS = frozenset({ops.Get, ops.ReadRange, ops.Stat})


class Sql:
    """The ops as programs over statements."""

    def __init__(self, dialect: Dialect, clock: Callable[[], int | None]) -> None:
        self._dialect = dialect
        self._clock = clock
        table = self._table = dialect.table
        self.columns = f"{COLUMNS}, {dialect.content}, appended, size"
        bodies = {
            "body": f"CASE WHEN CAST(:size AS bigint) IS NULL THEN NULL ELSE {dialect.next_body} END",
            "size": ":size",
            "appended": "NULL",
            "shared": "NULL",
        }
        self._following = {**dialect.projections, **bodies, "fields": ":fields", "vectors": ":model"}
        self._put_any = {keep: self._put(keep) for keep in (False, True)}
        self._put_absent = self._put(False, f"WHERE NOT ({OLD_IS_LIVE})", returns=True)
        here = f"ns = :ns AND key = :key AND {LIVE}"
        change = f"UPDATE {table} SET version = {dialect.next_version}, updated = :now{assigned(dialect.stamps)}"
        put = f"{change}, value = :value"
        kept = self._following | {"fields": "coalesce(:fields, fields)"}
        renewed = f"{assigned(self._following)}, expires = :now + :ttl, ttl = :ttl"
        self._put_at = {
            keep: f"{put}{further} WHERE {here} AND version = :expect {_RETURNING}"
            for keep, further in ((True, assigned(kept)), (False, renewed))
        }
        self._indexing = f"SELECT fields FROM {table} WHERE {here}"
        self.unconditional = frozenset(self._put_any.values())
        self.left_by_put = f"SELECT version, created, updated, expires FROM {table} WHERE ns = :ns AND key = :key"
        self._get = f"SELECT {self.columns} FROM {table} WHERE {here}"
        self._version_of = f"SELECT version FROM {table} WHERE {here}"
        unfollowed = assigned(dict.fromkeys(self._following, "NULL"))
        delete = f"{change}, value = NULL, expires = NULL, ttl = NULL, kind = 'delete'{unfollowed} WHERE {here}"
        self._delete = f"{delete} RETURNING version"
        self._delete_at = f"{delete} AND version = :expect RETURNING version"
        self._backdate = (
            f"UPDATE {table} SET created = :created, updated = :updated, expires = coalesce(:expires, expires)"
            f" WHERE {here} RETURNING version"
        )
        self._files = SqlFiles(dialect, self._statement, self._outcome)
        self._texts = SqlTexts(dialect, self._since, self._changed_since, self.position)
        self._ranker = SqlRanker(dialect, clock, self.columns, self._conditions, self._texts)
        self._history = SqlHistory(dialect, self._statement, self._texts)
        self._refresh = f"UPDATE {table} SET expires = :now + ttl WHERE {here} AND ttl IS NOT NULL RETURNING version"

    def _put(self, keep: bool, where: str = "", returns: bool = False) -> str:
        """One put; `keep` leaves the lifetime as it is, and what it is found by."""
        lifetime = (
            f"expires = CASE WHEN {OLD_IS_LIVE} THEN old.expires END, ttl = CASE WHEN {OLD_IS_LIVE} THEN old.ttl END"
            if keep
            else "expires = excluded.expires, ttl = excluded.ttl"
        )
        returning = _RETURNING if returns or self._dialect.upserts_return else ""
        values = self._values(":now + :ttl, :ttl", self._following)
        sql = self._upsert(values, self._following, lifetime=lifetime, where=where, returning=returning)
        if keep:
            fields = f"coalesce(excluded.fields, CASE WHEN {OLD_IS_LIVE} THEN old.fields END)"
            sql = sql.replace("fields = excluded.fields", f"fields = {fields}")
        return sql

    def _values(self, lifetime: str, following: Mapping[str, str]) -> str:
        """What one put inserts."""
        further = "".join(f", {expression}" for expression in (*self._dialect.stamps.values(), *following.values()))
        return f"VALUES ({self._dialect.first_version}, :ns, :key, :value, :now, :now, {lifetime}{further})"

    def _upsert(
        self,
        source: str,
        following: Iterable[str],
        *,
        lifetime: str = "expires = excluded.expires, ttl = excluded.ttl",
        where: str = "",
        returning: str = _RETURNING,
    ) -> str:
        """Insert what a source has, in the order of the columns; what is there already becomes it.

        Columns of a file that are not among the `following` stay as they are.
        """
        further = [*self._dialect.stamps, *following]
        return f"""
            INSERT INTO {self._table} AS old
                (version, ns, key, value, created, updated, expires, ttl{"".join(f", {name}" for name in further)})
            {source}
            ON CONFLICT (ns, key) DO UPDATE SET
                version = {self._dialect.redrawn_version}, value = excluded.value, kind = NULL,
                updated = excluded.updated,
                created = CASE WHEN {OLD_IS_LIVE_THEN} THEN old.created ELSE excluded.created END,
                {lifetime}{"".join(f", {name} = excluded.{name}" for name in further)}
            {where} {returning}"""

    @property
    def behind(self) -> bool:
        """Whether upkeep would help."""
        return self._files.behind

    # Point ops -------------------------------------------------------------------------------------------------------

    def batch(self, batch: Sequence[Op]) -> Program[list[Any]]:
        """One statement an op. One that may be refused is judged before the next; the others go together."""
        return (yield from self._one_by_one(batch, self._clock()))

    def _one_by_one(self, batch: Sequence[Op], now: int | None) -> Program[list[Any]]:
        results: list[Any] = []
        for run in _runs(batch):
            if takes_several(run[0]):
                results.append((yield from self.perform(run[0], now)))
                continue
            statements = [self._statement(op, now) for op in run]
            replies = yield statements
            for op, (_, params), rows in zip(run, statements, replies, strict=True):
                results.append((yield from self._outcome(op, params, rows)))
        return results

    def prepare(self, op: ops.Learn) -> Program[ops.Learn]:
        """The same, with all that needs no lock done."""
        return ops.Learn(op.limit, (yield from self._texts.prepare(op.limit)))

    def perform(self, op: Op, now: int | None) -> Program[Any]:
        """An op that needs more than one statement."""
        match op:
            case ops.Learn(limit, prepared):
                return (yield from self._texts.learn(limit, prepared))
            case ops.Embed():
                return (yield from self._ranker.embed(op, now))
            case ops.Forget():
                return (yield from self._history.forget(op, now))
            case ops.Put() if op.vectors is not None:
                if type(op.value) is ops.File:
                    result = yield from self._files.perform(op, now)
                else:
                    sql, params = self._statement(op, now)
                    [rows] = yield [(sql, params)]
                    result = yield from self._outcome(op, params, rows)
                yield self._ranker.add(keys.encode(op.namespace), op.key, op.vectors)
                return result
        return (yield from self._files.perform(op, now))

    def _outcome(self, op: Op, params: dict[str, Any], rows: Rows) -> Program[Any]:
        """An op's result, or the conflict that its rows tell of."""
        if not rows and expects_a_row(op):
            raise conflict(op, (yield from self._actual(params)))
        return self.result(op, params, rows)

    def ask(self, op: Op, run: Callable[[list[Any]], list[Rows]]) -> Any:
        """A batch of one op, where statements can simply be run: the most frequent of all needs no program."""
        if takes_several(op):
            return drive(self.perform(op, self._clock()), run)
        sql, params = self.statement(op)
        [rows] = run([(sql, params)])
        if not rows and expects_a_row(op):
            raise conflict(op, drive(self._actual(params), run))
        return self.result(op, params, rows)

    def statement(self, op: Op) -> Statement:
        """The one statement of a point op."""
        return self._statement(op, self._clock())

    def _statement(self, op: Op, now: int | None) -> Statement:
        if isinstance(op, ops.Get):  # asked first for those that matter most: a match takes longer
            return self._get, {"ns": keys.encode(op.namespace), "key": op.key, "now": now}
        if isinstance(op, ops.ReadRange):
            return self._files.range_statement(op, now)
        if isinstance(op, ops.Stat):
            return self._files.stat_statement(op, now)
        if isinstance(op, ops.Put):
            keep, expect, value = op.ttl is KEEP, op.expect, op.value
            is_file = type(value) is ops.File
            params: dict[str, Any] = {
                "ns": keys.encode(op.namespace),
                "key": op.key,
                "value": value.shape if is_file else value,  # type: ignore[union-attr]  # a File
                "now": now,
                "ttl": None if keep or op.ttl is None else ttl_microseconds(op.ttl),  # type: ignore[arg-type]  # seconds
                "size": len(value.content) if is_file else None,  # type: ignore[union-attr]  # a File
                "fields": op.index,
                "model": None if op.vectors is None else op.vectors.model,
            }
            if further := self._dialect.parameters(op):
                params.update(further)
            if expect is ANY:
                return self._put_any[keep], params
            if expect is ABSENT:
                return self._put_absent, params
            return self._put_at[keep], {**params, "expect": expect}
        match op:
            case ops.Delete(namespace, key, expect):
                params = {"ns": keys.encode(namespace), "key": key, "now": now, **self._dialect.parameters(op)}
                if expect is ANY:
                    return self._delete, params
                if expect is ABSENT:
                    return self._version_of, params
                return self._delete_at, {**params, "expect": expect}
            case ops.Check(namespace, key):
                return self._version_of, {"ns": keys.encode(namespace), "key": key, "now": now}
            case ops.Refresh(namespace, key):
                return self._refresh, {"ns": keys.encode(namespace), "key": key, "now": now}
            case ops.Indexing(namespace, key):
                return self._indexing, {"ns": keys.encode(namespace), "key": key, "now": now}
            case ops.Backdate(namespace, key, created, updated, expires):
                params = {"ns": keys.encode(namespace), "key": key, "now": now}
                return self._backdate, {**params, "created": created, "updated": updated, "expires": expires}
            case ops.DeleteTree(namespace, None):
                params = {"now": now, **self._dialect.parameters(op)}
                where = f"{LIVE} {within(namespace, True, params)} ORDER BY ns, key"
                return self._dialect.bury(where, "delete"), params
            case ops.Sweep(limit, prefix):
                params = {"now": now, "limit": limit, **self._dialect.parameters(op)}
                where = f"value IS NOT NULL AND expires <= :now {within(prefix, True, params) if prefix else ''}"
                return self._dialect.bury(f"{where} ORDER BY expires LIMIT :limit", "expire"), params
        statement = self._files.statement(op, now)
        if statement is None:
            raise TypeError(f"not a point op: {op!r}")
        return statement

    def result(self, op: Op, params: dict[str, Any], rows: Rows) -> Any:
        """What an op's rows mean."""
        if isinstance(op, ops.Get):
            return to_entry(rows[0]) if rows else None
        if isinstance(op, ops.ReadRange):
            return self._files.range_result(op, rows)
        if isinstance(op, ops.Stat):
            return self._files.stat_result(op, rows)
        if isinstance(op, ops.Put):
            if params["size"] is not None:
                return self._files.put_result(op, params, rows)
            return to_entry((params["ns"], params["key"], params["value"], *rows[0], *NO_FILE))
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
            case ops.Indexing():
                return rows[0][0] if rows else None
            case ops.Sweep():
                return len(rows)
        return self._files.result(op, rows)

    def _actual(self, params: dict[str, Any]) -> Program[int | None]:
        """The version that an op found instead of the one it expected."""
        [rows] = yield [(self._version_of, {name: params[name] for name in ("ns", "key", "now")})]
        return rows[0][0] if rows else None

    # Walks -----------------------------------------------------------------------------------------------------------

    def walk(self, op: Op) -> Program[Any]:
        """One walk, within one snapshot."""
        match op:
            case ops.Search():
                if op.query is None and op.vector is None:
                    return (yield from search(self, op))
                return (yield from ranked(self._ranker, op, self.older))
            case ops.Unembedded():
                params: dict[str, Any] = {}
                inside = within(op.prefix, True, params)
                return (yield from self._ranker.unembedded(op, inside, params))
            case ops.Count():
                return (yield from self._count(op))
            case ops.Scan():
                return (yield from self._scan(op))
            case ops.Namespaces():
                return (yield from self._namespaces(op))
            case ops.Changes():
                return (yield from self._changes(op))
            case ops.Children():
                return (yield from self._files.children(op, self._clock()))
            case ops.Grep():
                return (yield from self._files.grep(op, self._clock()))
        raise TypeError(f"not a walk: {op!r}")

    def position(self) -> Program[str]:
        [[(newest,)]] = yield [(f"SELECT coalesce(max(version), 0) FROM {self._table}", {})]
        return str(newest)

    def older(self, op: ops.Search, below: int | None, want: int) -> Program[list[Hit]]:
        """Matching entries with a lower version, newest first, in pages that grow while the filter finds little."""
        single = not op.recursive or (yield from self._is_leaf(op.prefix))
        params: dict[str, Any] = {"now": self._clock()}
        inside = within(op.prefix, not single, params)
        narrowed, indexed = yield from self._narrowed(op.filter, params)
        if indexed and single:  # a range, or a database would rather look through the whole namespace
            inside = "AND ns >= :low AND ns <= :low"
        where = f"{LIVE} {inside}" + (f" AND {narrowed}" if narrowed else "")
        start = _EVERYTHING if below is None else below
        # In one namespace or in all, the order of version is an index's own; elsewhere (`+`), the rows are found first
        # and sorted. Where these may be many, what is wanted is often among the latest of all: look there before.
        ordered = (single or not op.prefix) and not indexed
        if not ordered and (not indexed or (yield from self._are_many(where, params))):
            latest = f"(SELECT * FROM {self._table} WHERE version < :below ORDER BY version DESC LIMIT {_LATEST})"
            sql = f"SELECT {self.columns} FROM {latest} WHERE {where} ORDER BY version DESC LIMIT :limit"
            hits = yield from self._collect(sql, params, "below", start, op, want, bool(narrowed))
            if len(hits) == want:
                return hits
        sql = (
            f"SELECT {self.columns} FROM {self._table} WHERE version IN (SELECT version FROM {self._table}"
            f" WHERE {where} AND version < :below ORDER BY {'' if ordered else '+'}version DESC LIMIT :limit)"
            f" ORDER BY version DESC"
        )
        return (yield from self._collect(sql, params, "below", start, op, want, bool(narrowed)))

    def _narrowed(self, filter: Any, params: dict[str, Any]) -> Program[tuple[str | None, bool]]:
        """`narrow`, unless the database is known to misread fields."""
        if filter is not None and self._dialect.doubt:
            [[(doubtful,)]] = yield [(self._dialect.doubt, {})]
            if doubtful:
                return None, False
        return narrow(filter, self._dialect, params)

    def _are_many(self, where: str, params: dict[str, Any]) -> Program[bool]:
        """Whether an index finds so many rows that sorting them all would take long."""
        [[(found,)]] = yield [
            (f"SELECT count(*) FROM (SELECT 1 FROM {self._table} WHERE {where} LIMIT {_LATEST})", params)
        ]
        return bool(found == _LATEST)

    def newer(self, op: ops.Search, position: str, want: int) -> Program[list[tuple[Hit, str]]]:
        """Matching entries with a higher version, oldest first."""
        params: dict[str, Any] = {"now": self._clock()}
        inside = within(op.prefix, op.recursive, params)
        sql = (
            f"SELECT {self.columns} FROM {self._table} WHERE {LIVE} {inside} AND version > :above"
            f" ORDER BY version LIMIT :limit"
        )
        hits = yield from self._collect(sql, params, "above", parse_revision(position), op, want)
        return [(hit, str(hit.version)) for hit in hits]

    def _collect(
        self, sql: str, params: dict[str, Any], bound: str, start: int, op: ops.Search, want: int, likely: bool = False
    ) -> Program[list[Hit]]:
        """Candidates page by page, verified, until there are enough or no more; of likely ones no more than needed."""
        hits: list[Hit] = []
        params[bound] = start
        size = want if op.filter is None or likely else max(want, _FIRST_PAGE)
        while True:
            [rows] = yield [(sql, {**params, "limit": size})]
            hits += yield from reckoned(partial(_matching, want=want - len(hits)), op, rows)
            if len(hits) == want or len(rows) < size:
                return hits
            params[bound] = rows[-1][3]
            size = max(size, min(size * 4, _LARGEST_PAGE))

    def _is_leaf(self, prefix: Namespace) -> Program[bool]:
        """Whether nothing lives below this namespace, so that its own index order can be used."""
        if not prefix:
            return False
        low, high = keys.below(keys.encode(prefix))
        sql = f"SELECT 1 FROM {self._table} WHERE value IS NOT NULL AND ns > :low AND ns < :high LIMIT 1"
        [rows] = yield [(sql, {"low": low, "high": high})]
        return not rows

    def _count(self, op: ops.Count) -> Program[int]:
        params: dict[str, Any] = {"now": self._clock()}
        where = f"{LIVE} {within(op.prefix, op.recursive, params)}"
        if op.unembedded is not None:
            where += f" AND {UNEMBEDDED}"
            params["model"] = op.unembedded
        if op.filter is None:
            [[(count,)]] = yield [(f"SELECT count(*) FROM {self._table} WHERE {where}", params)]
            return count  # type: ignore[no-any-return]  # a row's column
        narrowed, _ = yield from self._narrowed(op.filter, params)
        if narrowed:
            where += f" AND {narrowed}"
        total: int = 0
        after: tuple[str, str] | None = None
        while True:
            rows = yield from self._in_key_order(where, params, after, _LARGEST_PAGE)
            total += yield from reckoned(_matching_count, op, rows)
            if len(rows) < _LARGEST_PAGE:
                return total
            after = rows[-1][:2]

    def _scan(self, op: ops.Scan) -> Program[list[Entry]]:
        params: dict[str, Any] = {"now": self._clock()}
        where = f"{LIVE} {within(op.prefix, True, params)}"
        after = None if op.after is None else (keys.encode(op.after[0]), op.after[1])
        rows = yield from self._in_key_order(where, params, after, op.limit)
        return [to_entry(row) for row in rows]

    def _in_key_order(
        self, where: str, params: dict[str, Any], after: tuple[str, str] | None, limit: int
    ) -> Program[list[Row]]:
        params = {**params, "limit": limit}
        if after is not None:
            where += " AND (ns, key) > (:after_ns, :after_key)"
            params.update(after_ns=after[0], after_key=after[1])
        sql = f"SELECT {self.columns} FROM {self._table} WHERE {where} ORDER BY ns, key LIMIT :limit"
        [rows] = yield [(sql, params)]
        return rows  # type: ignore[no-any-return]  # the driver's reply

    def _namespaces(self, op: ops.Namespaces) -> Program[list[Namespace]]:
        """Steps from one namespace to the next in the index, over whole subtrees where `max_depth` allows."""
        if op.limit == 0:
            return []
        low, high = keys.below(keys.encode(op.base + keys.literal_prefix(op.prefix)))
        picky = bool(op.suffix) or "*" in op.prefix  # else every namespace in the range matches
        # What would be cut to the same is stepped over within SQL, unless only some of it may match.
        depth = None if op.max_depth is None or picky else len(op.base) + op.max_depth
        to_end = "AND NOT (ns >= :hidden_low AND ns < :hidden_high)" if high is None else "AND ns < :high"
        first, following = (
            f"(SELECT ns FROM {self._table} WHERE {LIVE} AND ns >= {least} {to_end} ORDER BY ns LIMIT 1)"
            for least in (":low", self._dialect.after("step.ns", depth))
        )
        sql = f"""
            WITH RECURSIVE step(ns) AS (
                SELECT {first} UNION ALL SELECT {following} FROM step WHERE step.ns IS NOT NULL
            ) SELECT ns FROM step WHERE ns IS NOT NULL LIMIT :limit"""
        hidden = {"hidden_low": keys.HIDDEN[0], "hidden_high": keys.HIDDEN[1]}
        params = {"now": self._clock(), **(hidden if high is None else {"high": high})}
        found: list[Namespace] = []
        wanted = op.offset + op.limit
        while len(found) < wanted:
            size = 512 if picky else min(wanted - len(found), _LARGEST_PAGE)
            [rows] = yield [(sql, {**params, "low": low, "limit": size})]
            for (encoded,) in rows:
                namespace = keys.decode(encoded)[len(op.base) :]
                if not picky or keys.matches(namespace, op.prefix, op.suffix):
                    given = namespace[: op.max_depth]
                    if not found or found[-1] != given:
                        found.append(given)
            if len(rows) < size:
                break
            low = keys.after(rows[-1][0], depth)
        return found[op.offset : wanted]

    def _changes(self, op: ops.Changes) -> Program[Page[Change]]:
        here, position, cursor = yield from self._resumed(op.since)
        if op.limit == 0:
            return Page((), here)
        # What has expired is nothing that can be read; that it has is a change of its own, once it is swept.
        params: dict[str, Any] = {"now": self._clock()}
        where = f"kind IS DISTINCT FROM 'none' AND {UNEXPIRED} {changed_within(op, params)}"
        columns = "ns, key, coalesce(kind, 'put'), version"
        rows, position = yield from self._since(position, columns, where, params, op.limit, here)
        changes = [Change(version, keys.decode(ns), key, kind, cursor(after)) for ns, key, kind, version, after in rows]
        return Page(changes, cursor(position))

    def _resumed(self, cursor: str | None) -> Program[tuple[str, str, Callable[[str], str]]]:
        """Where the feed stands, where in it somebody goes on with a cursor, and what is theirs after a position."""
        here = yield from self.position()
        [known] = yield [self._history.mark]
        since, cursor_after = feed_from(cursor, int(here), mark_of(known))
        return here, str(since), lambda position: cursor_after(int(position))

    def _since(
        self, position: str, columns: str, where: str, params: dict[str, Any], limit: int, here: str | None = None
    ) -> Program[tuple[Rows, str]]:
        """Rows that changed after a position, in order, each with the position after it; and the one after them all.

        `here` is where the feed stands, if that is known.
        """
        since = parse_revision(position or "0")
        newest = int((yield from self.position()) if here is None else here)
        table = f"{self._table} {self._dialect.by_version}"
        sql = f"SELECT {columns}, version FROM {table} WHERE {where} AND version > :above ORDER BY version LIMIT :limit"
        [rows] = yield [(sql, {**params, "above": since, "limit": limit})]
        found = [(*row[:-1], str(row[-1])) for row in rows]
        return found, found[-1][-1] if len(found) == limit else str(max(since, newest))

    def _changed_since(self, position: str) -> Program[int]:
        """How many rows `_since` may give in all; some may have been given already."""
        above = parse_revision(position or "0")
        [[(count,)]] = yield [(f"SELECT count(*) FROM {self._table} WHERE version > :above", {"above": above})]
        return count  # type: ignore[no-any-return]  # a row's column

    def _conditions(self, op: ops.Search, params: dict[str, Any]) -> Program[tuple[str, bool]]:
        """The condition that a row can be what a search is about, and whether the filter has an index find it."""
        narrowed, indexed = yield from self._narrowed(op.filter, params)
        where = f"{LIVE} {within(op.prefix, op.recursive, params)}"
        return (f"{where} AND {narrowed}" if narrowed else where), indexed


def _matching(op: ops.Search, rows: Rows, want: int) -> list[Hit]:
    """The rows that match a filter as hits, at most so many."""
    hits = (to_entry(row, Hit) for row in rows)
    return list(islice((hit for hit in hits if op.filter is None or op.filter.matches(hit.value)), want))


def _matching_count(op: Any, rows: Rows) -> int:
    return sum(1 for row in rows if op.filter.matches(to_entry(row).value))


def _runs(batch: Sequence[Op]) -> list[Sequence[Op]]:
    """A batch, cut after each op that may be refused, and around each that takes several statements."""
    if len(batch) == 1:
        return [batch]
    cuts = {0, len(batch)}
    for place, op in enumerate(batch):
        if takes_several(op):
            cuts |= {place, place + 1}
        elif getattr(op, "expect", ANY) is not ANY or isinstance(op, ops.CheckPath):
            cuts.add(place + 1)
    return [batch[start:end] for start, end in pairwise(sorted(cuts))]


def is_plain_put(op: Op) -> TypeGuard[ops.Put]:
    """Whether it writes a value, whatever is there, and nothing else: such puts can go together."""
    return (
        type(op) is ops.Put
        and op.expect is ANY
        and op.ttl is not KEEP
        and op.index is None
        and op.vectors is None
        and type(op.value) is not ops.File
    )


_SEVERAL = frozenset({ops.Learn, ops.Embed, ops.Forget})


def takes_several(op: Op) -> bool:
    """Whether an op needs more than one statement, the later of which depend on the earlier."""
    kind = type(op)
    if kind is ops.Put:
        return type(op.value) is ops.File or op.vectors is not None  # type: ignore[attr-defined]  # a Put
    return kind in _SEVERAL or SqlFiles.takes_several(op)


def expects_a_row(op: Op) -> TypeGuard[ops.Put | ops.Delete]:
    """Whether a statement that returns nothing has met another version than it expected."""
    return isinstance(op, ops.Put) or (isinstance(op, ops.Delete) and isinstance(op.expect, int))


def changed_within(op: ops.Changes, params: dict[str, Any]) -> str:
    """The condition that a row is one of those whose changes are asked for."""
    if op.path is None:
        return within(op.prefix, True, params)
    params.update(tree(keys.encode(op.prefix), op.path))
    return f"AND ns = :ns AND {AT_OR_BELOW}"


def within(prefix: Namespace, recursive: bool, params: dict[str, Any]) -> str:
    """The condition that a row lives in this namespace, or below it."""
    low = keys.encode(prefix)
    if not recursive:
        params["low"] = low
        return "AND ns = :low"
    low, high = keys.below(low)
    if high is None:
        params.update(hidden_low=keys.HIDDEN[0], hidden_high=keys.HIDDEN[1])
        return "AND NOT (ns >= :hidden_low AND ns < :hidden_high)"
    params.update(low=low, high=high)
    return "AND ns >= :low AND ns < :high"
