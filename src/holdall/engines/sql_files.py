"""Files in SQL: bodies in pieces, beside the entries, and the programs that ask for them.

A file's entry names its `body`, and how many bytes that has; the pieces of it are rows of a second table:

    body_id, start   which body, and where in it        data   the bytes

A body belongs to one entry, or to several copies of one that say so (`shared`); who appends to such a copy gets a body
of its own first. A third table says what is new to the index of contents, or gone from it: `Tidy` sees to that, a slice
at a time, and `grep` looks through what waits there itself. Triggers of the schema note there what changes, and remove
the pieces of a body that no entry names any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import keys, ops, shapes
from ..engine import (
    check_transfer,
    check_unblocked,
    conflict,
    item_in_the_way,
    to_entry,
    to_info,
    transferred,
)
from ..ops import ABSENT, ANY, KEEP, FileInfo, Namespace, Op, Page
from ..programs import Program
from ..values import ttl_microseconds
from .dialect import Dialect
from .statements import LIVE, OLD_IS_LIVE, Rows, Statement, assigned, live

#: The size of a piece of a body that is written in one; those that are appended may be smaller.
PIECE = 1 << 16
#: Files that are larger are not indexed, but looked through; the schemas' indexes of large files say the same number.
INDEXED_SIZE = 1 << 20
#: A file with more pieces than this is worth tidying.
_MANY_PIECES = 64
#: How many pieces are made of smaller ones before other writers have their turn.
_RUNS_AT_ONCE = 32
#: How many files may wait to be indexed before anybody is asked to see to it.
_SOME_LAG = 200
#: How many candidates of a grep one statement reads at most, and after how many bytes of them a page ends.
_GREP_PAGE, _GREP_BYTES = 256, 1 << 20
_LARGE_PAGE = 4096
_FIRST_LOOK = 100  # keys of a folder, before it is known whether most of them are in subfolders

#: Whether an entry is a file, said so that the index of files serves it.
IS_FILE = "body IS NOT NULL"

_INFO = "key, size, version, created, updated"
#: Which rows are files of one namespace.
_FILES = f"ns = :ns AND {IS_FILE} AND {LIVE}"
AT_OR_BELOW = "key >= :key AND key < :high AND (key = :key OR key >= :low)"


class SqlFiles:
    """The ops on files as programs over statements."""

    def __init__(
        self,
        dialect: Dialect,
        put: Callable[[ops.Put, int | None], Statement],
        outcome: Callable[[ops.Put, dict[str, Any], Rows], Program[Any]],
    ) -> None:
        self._dialect = dialect
        self.behind = False  # whether upkeep would help
        self.ragged: set[tuple[str, str]] = set()  # files that were found to have many pieces
        self._put_entry = put
        self._outcome = outcome
        self._lock = "" if dialect.single_writer else " FOR UPDATE"
        table, chunks = self._table, self._chunks = dialect.table, dialect.chunks
        grow = (
            f"UPDATE {table} SET version = {dialect.next_version}, updated = :now, size = size + :more, appended = 1,"
            f" vectors = NULL{assigned(dialect.stamps)} WHERE {_FILES} AND key = :key"
        )
        self._grow = f"{grow} RETURNING version, body, size, shared"
        self._grow_at = f"{grow} AND version = :expect RETURNING version, body, size, shared"
        self._state = f"SELECT version, size FROM {table} WHERE ns = :ns AND key = :key AND {LIVE}"
        self._add = f"INSERT INTO {chunks} (body_id, start, data) VALUES (:body, :start, :data)"
        self._add_first = (
            f"INSERT INTO {chunks} (body_id, start, data) SELECT body, :start, :data FROM {table}"
            f" WHERE ns = :ns AND key = :key"
        )
        self._note = (
            f"INSERT INTO {dialect.unindexed} (version) SELECT version FROM {table}"
            f" WHERE ns = :ns AND {IS_FILE} AND {AT_OR_BELOW} ON CONFLICT DO NOTHING"
        )
        self._range = (
            f"SELECT piece.start, piece.data FROM {table} AS file LEFT JOIN {chunks} AS piece"
            f" ON piece.body_id = file.body AND piece.start < :end AND piece.start >= coalesce((SELECT max(start)"
            f" FROM {chunks} WHERE body_id = file.body AND start <= :start), 0)"
            f" WHERE file.ns = :ns AND file.key = :key AND file.body IS NOT NULL AND {live('file.')}"
            f" ORDER BY piece.start"
        )
        pieces = f"SELECT count(*) FROM {chunks} WHERE body_id = body"
        self._whole = (
            f"SELECT CASE WHEN appended IS NOT NULL THEN ({pieces}) END, {dialect.whole or dialect.content}"
            f" FROM {table} WHERE {_FILES} AND key = :key"
        )
        self._info = f"SELECT {_INFO} FROM {table} WHERE {_FILES} AND key = :key"
        self._one_below = f"SELECT key FROM {table} WHERE {_FILES} AND key >= :low AND key < :high ORDER BY key LIMIT 1"
        folder = f"SELECT key, NULL, NULL, NULL, NULL FROM ({self._one_below}) AS inside"
        self._stat = f"{self._info} UNION ALL {folder} LIMIT 1"  # of a file, nobody asks what is below it
        self._children = self._stepping()
        below = f"{_FILES} AND key >= :low AND key < :high"
        self._deep = f"SELECT {_INFO} FROM {table} WHERE {below} ORDER BY key LIMIT :limit"
        self._paths = f"SELECT key FROM {table} WHERE {below} ORDER BY key LIMIT :limit"

    # One statement each ----------------------------------------------------------------------------------------------

    def statement(self, op: Op, now: int | None) -> Statement | None:
        """The statement of an op on files that needs no more than one."""
        match op:
            case ops.CheckPath(namespace, path):
                params = {**tree(keys.encode(namespace), path), "now": now}
                del params["key"]
                parents = keys.parents(path)
                params.update({f"p{place}": parent for place, parent in enumerate(parents)})
                sql = f"SELECT key FROM ({self._one_below}) AS inside"
                if parents:
                    names = ", ".join(f":p{place}" for place in range(len(parents)))
                    sql = f"SELECT key FROM {self._table} WHERE {_FILES} AND key IN ({names}) UNION ALL {sql}"
                return sql, params
            case ops.DeleteTree(namespace, path) if path is not None:
                params = {**tree(keys.encode(namespace), path), "now": now, **self._dialect.parameters(op)}
                return self._dialect.bury(f"{_FILES} AND {AT_OR_BELOW} ORDER BY key", "delete"), params
        return None

    def result(self, op: Op, rows: Rows) -> Any:
        """What the rows of such a statement mean."""
        match op:
            case ops.CheckPath(path=path):
                check_unblocked(path, (key for (key,) in rows))
                return None
        return len(rows)

    def stat_statement(self, op: ops.Stat, now: int | None) -> Statement:
        low, high = keys.in_folder(op.path + "/")
        return self._stat, {"ns": keys.encode(op.namespace), "key": op.path, "low": low, "high": high, "now": now}

    def stat_result(self, op: ops.Stat, rows: Rows) -> FileInfo | None:
        if not rows:
            return None
        return FileInfo(op.path + "/", is_dir=True) if rows[0][1] is None else to_info(*rows[0])

    def range_statement(self, op: ops.ReadRange, now: int | None) -> Statement:
        """The statement of the most frequent of them."""
        params: dict[str, Any] = {"ns": keys.encode(op.namespace), "key": op.key, "now": now}
        if op.start == 0 and op.end is None:
            return self._whole, params
        return self._range, {**params, "start": op.start, "end": 2**62 if op.end is None else op.end}

    def range_result(self, op: ops.ReadRange, rows: Rows) -> bytes | None:
        """What the rows of that mean."""
        if not rows:
            return None
        if op.start or op.end is not None:
            self._note_pieces(op.namespace, op.key, len(rows))
            return self._cut(rows, op.start, op.end)
        [(pieces, content)] = rows
        if pieces is not None:
            self._note_pieces(op.namespace, op.key, pieces)
        return self._dialect.part(content or b"", 0, None)

    def _cut(self, rows: Rows, start: int, end: int | None) -> bytes:
        """The bytes asked for, from the pieces that have them."""
        part = self._dialect.part
        return b"".join(
            part(data, max(start - at, 0), None if end is None else max(end - at, 0))
            for at, data in rows
            if data is not None
        )

    def _note_pieces(self, namespace: Namespace, key: str, pieces: int) -> None:
        if pieces > _MANY_PIECES and len(self.ragged) < _MANY_PIECES:
            self.ragged.add((keys.encode(namespace), key))
            self.behind = True

    # Several statements each -----------------------------------------------------------------------------------------

    @staticmethod
    def takes_several(op: Op) -> bool:
        """Whether an op needs more than one statement, the later of which depend on the earlier."""
        kind = type(op)
        return kind in _SEVERAL or (kind is ops.Put and type(op.value) is ops.File)  # type: ignore[attr-defined]  # a Put

    def perform(self, op: Op, now: int | None) -> Program[Any]:
        match op:
            case ops.Put():
                return (yield from self._put(op, now))
            case ops.Append():
                return (yield from self._append(op, now))
            case ops.Move() | ops.Copy():
                return (yield from self._transfer(op, now))
            case ops.Tidy():
                return (yield from self._tidy(op, now))
        raise TypeError(f"not an op on files: {op!r}")

    def _put(self, op: ops.Put, now: int | None) -> Program[Any]:
        statement = self._put_entry(op, now)
        [rows] = yield [statement]
        result = yield from self._outcome(op, statement[1], rows)
        yield from self._fill(op, statement[1]["ns"])
        return result

    def _fill(self, op: ops.Put, ns: str) -> Program[None]:
        """Store the bytes of a file whose entry has just been written."""
        assert isinstance(op.value, ops.File)
        content = op.value.content
        here = {"ns": ns, "key": op.key}
        pieces = [(self._add_first, {**here, "start": start, "data": data}) for start, data in _pieces(content)]
        yield [*pieces, (self._note, {**here, "low": op.key, "high": keys.next_key(op.key)})]

    def put_result(self, op: ops.Put, params: dict[str, Any], rows: Rows) -> Any:
        """What the statement of a put means that wrote a file's entry."""
        assert isinstance(op.value, ops.File)
        version, created, updated, expires = rows[0]
        size = len(op.value.content)
        if shapes.is_native(op.value):
            return to_info(op.key, size, version, created, updated)
        file = op.value.content, 0, size
        return to_entry((params["ns"], op.key, params["value"], version, created, updated, expires, *file))

    def _append(self, op: ops.Append, now: int | None) -> Program[int]:
        here = {"ns": keys.encode(op.namespace), "key": op.key, "now": now}
        at = {} if op.expect in (ANY, ABSENT) else {"expect": op.expect}
        params = {**here, **at, "more": len(op.data), **self._dialect.parameters(op)}
        grow = (self._grow_at if at else self._grow), params
        while True:
            [rows] = (yield [grow]) if op.expect is not ABSENT else [[]]
            if rows:
                [(version, body, size, shared)] = rows
                if shared:
                    yield from self._part(here, body, version)
                    body = version
                start = size - len(op.data)
                if op.data:
                    yield [
                        (self._add, {"body": body, "start": start + place, "data": data})
                        for place, data in _pieces(op.data)
                    ]
                return int(start)
            [found] = yield [(self._state, here)]
            actual, item = (found[0][0], found[0][1] is None) if found else (None, False)
            if op.expect is ABSENT or at:
                if actual is not None or at:
                    raise conflict(op, actual)
            elif item:
                raise item_in_the_way(op)
            elif found:  # it came meanwhile
                continue
            file = ops.File(shapes.NATIVE, op.data)
            put = ops.Put(op.namespace, op.key, file, op.ttl, ABSENT)
            statement = self._put_entry(put, now)
            [rows] = yield [statement]
            if rows:
                yield from self._fill(put, statement[1]["ns"])
                return 0
            if op.expect is ABSENT:
                yield from self._outcome(put, statement[1], rows)

    def _part(self, here: dict[str, Any], body: int, own: int) -> Program[None]:
        """Give an entry a body of its own, in place of one that it shares: it is named by the entry's new version."""
        copy = (
            f"INSERT INTO {self._chunks} (body_id, start, data)"
            f" SELECT :own, start, data FROM {self._chunks} WHERE body_id = :body"
        )
        take = f"UPDATE {self._table} SET body = :own, shared = NULL WHERE ns = :ns AND key = :key"
        yield [(copy, {"own": own, "body": body}), (take, {"own": own, "ns": here["ns"], "key": here["key"]})]

    def _tidy(self, op: ops.Tidy, now: int | None) -> Program[bool]:
        """Index some of what is new; join the pieces of a file that was found to have many."""
        dialect, queue = self._dialect, self._dialect.unindexed
        limit = min(op.limit, dialect.most_files)
        oldest = f"SELECT version, gone FROM {queue} ORDER BY version LIMIT :limit"
        *_, waiting = yield [*dialect.upkeep, (oldest, {"limit": limit})]
        gone = [version for version, is_gone in waiting if is_gone]
        new = [version for version, is_gone in waiting if not is_gone]
        more = len(waiting) == limit
        if gone:
            more = (yield from dialect.forget(gone)) or more
        if new:
            among, params = dialect.among("version", new)
            [sizes] = yield [(f"SELECT version, size FROM {self._table} WHERE {among} ORDER BY version", params)]
            few = _first_few(sizes, dialect.most_bytes)
            later = {version for version, _ in sizes}.difference(few)
            new = [version for version in new if version not in later]
            more = more or bool(later)
            among, params = dialect.among("version", few)
            sql = f"SELECT version, {dialect.content} FROM {self._table} WHERE {among} AND size <= {INDEXED_SIZE}"
            [rows] = yield [(sql, params)]
            texts = [(version, text) for version, data in rows if (text := _text(data)) is not None]
            if texts:
                yield from dialect.learn(texts)
        done = 0
        for versions, state in ((gone, "IS NOT NULL"), (new, "IS NULL")):
            # What has changed since it was read is gone now, and what others are at will be: either waits for its turn.
            among, params = dialect.among("version", versions)
            sql = f"SELECT version FROM {queue} WHERE {among} AND gone {state}{dialect.skip_locked}"
            [rows] = (yield [(sql, params)]) if versions else [[]]
            if rows:
                among, params = dialect.among("version", [version for (version,) in rows])
                yield [(f"DELETE FROM {queue} WHERE {among}", params)]
                done += len(rows)
        if self.ragged:
            yield from self._merge(*self.ragged.pop(), now)
        self.behind = bool((more and done) or self.ragged)
        return self.behind

    def _merge(self, ns: str, key: str, now: int | None) -> Program[None]:
        """Join pieces that are next to each other, up to the usual size."""
        mine = f"{_FILES} AND key = :key AND shared IS NULL"
        [found] = yield [
            (f"SELECT body FROM {self._table} WHERE {mine}{self._lock}", {"ns": ns, "key": key, "now": now})
        ]
        if not found:
            return
        [(body,)] = found
        sizes = f"SELECT start, length(data) FROM {self._chunks} WHERE body_id = :body ORDER BY start"
        [pieces] = yield [(sizes, {"body": body})]
        runs = _small_runs(pieces)
        if len(runs) > _RUNS_AT_ONCE:
            self.ragged.add((ns, key))
        for start, end in runs[:_RUNS_AT_ONCE]:
            inside = {"body": body, "start": start, "end": end}
            which = "body_id = :body AND start >= :start AND start < :end"
            [rows] = yield [(f"SELECT data FROM {self._chunks} WHERE {which} ORDER BY start", inside)]
            joined = b"".join(bytes(data) for (data,) in rows)
            yield [
                (f"DELETE FROM {self._chunks} WHERE {which}", inside),
                (self._add, {"body": body, "start": start, "data": joined}),
            ]

    def _transfer(self, op: ops.Move | ops.Copy, now: int | None) -> Program[FileInfo]:
        """Entries that name the same bodies at the destination; a move then removes those that were there before."""
        moves, ns = isinstance(op, ops.Move), keys.encode(op.namespace)
        elsewhere = op.source if isinstance(op, ops.Move) else None
        source = ns if elsewhere is None else keys.encode(elsewhere)
        src, dst = tree(source, op.src), tree(ns, op.dst)
        sources = f"{_FILES} AND {AT_OR_BELOW}"
        found, there, parents = yield [
            (f"SELECT key FROM {self._table} WHERE {sources} ORDER BY key{self._lock}", {**src, "now": now}),
            (f"SELECT key FROM {self._table} WHERE {sources} ORDER BY key LIMIT 2", {**dst, "now": now}),
            self.statement(ops.CheckPath(op.namespace, op.dst), now),
        ]
        same = source == ns and op.src == op.dst
        if not (same and found):
            check_transfer(op, [key for (key,) in found], (key for (key,) in there))
            check_unblocked(op.dst, (key for (key,) in parents))
            mark = 2 if moves else 1  # 2: shared only until the end of this move, so that its body is not forgotten
            ttl = op.ttl if isinstance(op, ops.Move) else KEEP
            further = self._dialect.parameters(op)
            params = {**src, "now": now, "ns": source, "to": ns, "dst": op.dst, "cut": len(op.src) + 1, "mark": mark}
            if ttl is not KEEP:
                params["ttl"] = ttl_microseconds(ttl)  # type: ignore[arg-type]  # seconds or None
            arriving = self._arriving(sources, moves, elsewhere is not None, ttl is not KEEP)
            [came] = yield [(arriving, {**params, **further})]
            both = {name: params[name] for name in ("ns", "key", "low", "high", "now", "to", "dst", "cut")}
            if any(model is not None for (model,) in came):
                yield [(self._take_vectors(sources), both)]
            if moves:
                arrived = (
                    f"EXISTS (SELECT 1 FROM {self._table} AS arrived WHERE arrived.ns = :to"
                    f" AND arrived.key = :dst || substr({self._table}.key, :cut) AND arrived.body = {self._table}.body)"
                )
                own = f"UPDATE {self._table} SET shared = NULL WHERE ns = :ns AND {AT_OR_BELOW} AND shared = 2"
                yield [
                    (self._dialect.bury(f"{sources} AND {arrived} ORDER BY key", "delete"), {**both, **further}),
                    (own, dst),
                    (self._note, dst),
                ]
            else:
                share = f"UPDATE {self._table} SET shared = 1 WHERE {sources} AND shared IS NULL"
                yield [(share, {**src, "now": now}), (self._note, dst)]
        [rows] = yield [(self._info, {"ns": ns, "key": op.dst, "now": now})]
        return transferred(op, to_info(*rows[0]) if rows else None)

    def _arriving(self, sources: str, moves: bool, replaces: bool, with_ttl: bool) -> str:
        dialect = self._dialect
        # Those that have come since the others were locked are taken along, and must not change either.
        lock = "" if dialect.single_writer else " ORDER BY key FOR UPDATE"
        created = "created" if moves and not replaces else ":now"
        lifetime = ":now + :ttl, :ttl" if with_ttl else "expires, ttl"
        kept = f"CASE WHEN {OLD_IS_LIVE} THEN old.created ELSE excluded.created END" if replaces else "excluded.created"
        same = ["value", "updated", "expires", "ttl", "body", "size", "appended", "shared", "fields", "vectors"]
        same += [*dialect.stamps, *dialect.projections]
        names = "".join(f", {name}" for name in (*dialect.stamps, *dialect.projections))
        values = "".join(f", {expression}" for expression in (*dialect.stamps.values(), *dialect.projections))
        return f"""
            INSERT INTO {self._table} AS old (version, ns, key, value, created, updated, expires, ttl,
                body, size, appended, shared, fields, vectors{names})
            SELECT {dialect.next_versions}, :to, :dst || substr(key, :cut), value, {created}, :now, {lifetime},
                body, size, appended, coalesce(shared, :mark), fields, vectors{values}
            FROM {self._table} WHERE {sources}{lock}
            ON CONFLICT (ns, key) DO UPDATE SET version = {dialect.redrawn_version}, kind = NULL,
                created = {kept}, {", ".join(f"{name} = excluded.{name}" for name in same)}
            RETURNING vectors"""

    def _take_vectors(self, sources: str) -> str:
        """What arrived says the same as what it came from: its vectors are the same."""
        vectors = self._dialect.vectors
        return f"""
            INSERT INTO {vectors} (version, model, data)
            SELECT arrived.version, own.model, own.data
            FROM (SELECT key, version FROM {self._table} WHERE {sources} AND vectors IS NOT NULL) AS source
            JOIN {vectors} AS own ON own.version = source.version
            JOIN {self._table} AS arrived ON arrived.ns = :to AND arrived.key = :dst || substr(source.key, :cut)"""

    # Walks -----------------------------------------------------------------------------------------------------------

    def children(self, op: ops.Children, now: int | None) -> Program[Page[Any]]:
        """Reads the keys in order, and leaves out further ones of the same subfolder; where these are most, it steps
        from child to child."""
        low, high = keys.in_folder(op.path)
        params = {"ns": keys.encode(op.namespace), "high": high, "now": now}
        found: Page[Any] = Page()
        after, depth = op.after, len(op.path)
        scan, size = self._paths if op.bare else self._deep, op.limit if op.deep else min(op.limit, _FIRST_LOOK)
        while True:
            if op.matches is not None:
                size = max(size, _LARGE_PAGE)
            params["low"] = low if after is None else keys.next_key(after)
            [rows] = yield [(scan, {**params, "limit": size})]
            before = len(found)
            for row in rows:
                key = row[0]
                end = -1 if op.deep else key.find("/", depth)
                if end >= 0:
                    if after == key[: end + 1]:
                        continue
                    after = key[: end + 1]
                    found.append(after if op.bare else FileInfo(after, is_dir=True))
                else:
                    after = key
                    if op.matches is None or op.matches(key):
                        found.append(key if op.bare else to_info(*row))
                if len(found) == op.limit:
                    found.next = after
                    return found
            if len(rows) < size:
                return found
            if not op.deep and len(found) - before < len(rows) // 2:
                scan, params["depth"] = self._children, depth
            size = op.limit - len(found)

    def _stepping(self) -> str:
        """From one child to the next, over all that is in a folder."""
        end = self._dialect.position("substr(step.key, :depth + 1)", "'/'")
        beyond = f"substr(step.key, 1, :depth + {end} - 1) || '0'"
        over = f"CASE WHEN {end} = 0 THEN step.key || {self._dialect.character(1)} ELSE {beyond} END"
        first, following = (
            f"(SELECT key FROM {self._table} WHERE {_FILES} AND key >= {least} AND key < :high ORDER BY key LIMIT 1)"
            for least in (":low", over)
        )
        folder = f"substr(step.key, 1, :depth + {end})"
        file = self._dialect.joined("step.key")
        return f"""
            WITH RECURSIVE step(key) AS (
                SELECT {first} UNION ALL SELECT {following} FROM step WHERE step.key IS NOT NULL
            ) SELECT CASE WHEN {end} = 0 THEN step.key ELSE {folder} END, size, version, created, updated
            FROM step LEFT JOIN {file} AND {end} = 0 WHERE step.key IS NOT NULL LIMIT :limit"""

    def grep(self, op: ops.Grep, now: int | None) -> Program[Page[tuple[str, bytes]]]:
        low, high = keys.in_folder(op.path)
        params: dict[str, Any] = {"ns": keys.encode(op.namespace), "high": high, "now": now}
        where, path = _FILES, "key"
        if (mentions := self._dialect.mentions(_grams(op))) is not None:
            ask, understood = mentions
            queue = self._dialect.unindexed
            *_, [(lag,)], answer = yield [
                *self._dialect.by_index,
                (f"SELECT count(*) FROM (SELECT 1 FROM {queue} LIMIT {_LARGE_PAGE}) AS first_ones", {}),
                ask,
            ]
            self.behind = self.behind or lag > _SOME_LAG
            if (known := understood(answer)) is not None:
                query, found_by = known
                large = f"SELECT version FROM {self._table} WHERE ns = :ns AND size > {INDEXED_SIZE}"
                few = f"{query} UNION ALL SELECT version FROM {queue} UNION ALL {large}"
                where += f" AND {self._dialect.one_of('version', few)}"
                path = "key || ''"  # no index has that: they are found first, and then sorted
                params.update(found_by)
        where += f" AND {path} >= :low AND {path} < :high"
        if not op.ignore_case:
            for place, literal in enumerate(op.literals[:8]):
                params[f"data{place}"] = literal.encode(errors="replace")
                where += f" AND {self._dialect.contains(self._dialect.content, f':data{place}')}"
        sql = f"SELECT key, size FROM {self._table} WHERE {where} ORDER BY {path} LIMIT :limit"
        found: Page[tuple[str, bytes]] = Page()
        after, room = op.after, _GREP_BYTES
        while True:
            params["low"] = low if after is None else keys.next_key(after)
            [rows] = yield [(sql, {**params, "limit": _GREP_PAGE})]
            chosen: list[str] = []
            for key, size in rows:
                after = key
                if op.matches is None or op.matches(key):
                    chosen.append(key)
                    room -= size
                    if room < 0:
                        break
            contents: list[Rows] = []
            if chosen:
                contents = yield [(self._whole, {"ns": params["ns"], "key": key, "now": now}) for key in chosen]
            part = self._dialect.part
            wholes = [(key, rows[0][1] or b"") for key, rows in zip(chosen, contents, strict=True) if rows]
            found += [(key, part(content, 0, None)) for key, content in wholes]
            if room < 0:
                found.next = after
                return found
            if len(rows) < _GREP_PAGE:
                return found


_SEVERAL = frozenset({ops.Append, ops.Move, ops.Copy, ops.Tidy})


def tree(ns: str, path: str) -> dict[str, Any]:
    """The parameters of what is at a path and below it."""
    low, high = keys.in_folder(path.rstrip("/") + "/")
    return {"ns": ns, "key": path, "low": low, "high": high}


def _pieces(content: bytes) -> list[tuple[int, bytes]]:
    """What is written in one, cut up, and where in it each piece begins."""
    return [(start, content[start : start + PIECE]) for start in range(0, len(content), PIECE)]


def _small_runs(pieces: Rows) -> list[tuple[int, int]]:
    """The `[start, end)` of neighbours that fit one piece together, of two or more."""
    runs: list[tuple[int, int, int]] = []
    for start, length in pieces:
        if runs and start + length - runs[-1][0] <= PIECE:
            runs[-1] = runs[-1][0], start + length, runs[-1][2] + 1
        else:
            runs.append((start, start + length, 1))
    return [(start, end) for start, end, count in runs if count > 1]


def _first_few(sizes: Rows, room: int) -> list[int]:
    """Those whose contents can be indexed while others wait: at least one, and not too many bytes in all."""
    few: list[int] = []
    for version, size in sizes:
        if room <= 0:
            break
        few.append(version)
        room -= size if size is not None and size <= INDEXED_SIZE else 0
    return few


def _text(data: bytes | None) -> str | None:
    """What of a file is indexed: nothing, if it is not text."""
    try:
        return bytes(data or b"").decode()
    except UnicodeDecodeError:
        return None


def _grams(op: ops.Grep) -> list[str]:
    """Parts of three characters, one of which every index has, that a file with these literals must contain.

    Whatever its case, since an index folds that. Where the case does not matter, only of letters that no index and no
    regular expression takes for others: those that have no relatives beyond ASCII.
    """
    grams: dict[str, None] = {}
    for literal in op.literals:
        for place in range(len(literal) - 2):
            gram = literal[place : place + 3]
            if "\x00" in gram or (op.ignore_case and (not gram.isascii() or _WITH_RELATIVES & set(gram))):
                continue
            grams[gram] = None
    return list(grams)[:_MOST_GRAMS]


_WITH_RELATIVES = frozenset("iIkKsS")
_MOST_GRAMS = 24
