"""Files in SQL: the ops on files as programs over statements.

The entry of a file names its `body` and the size of that. The body is stored in pieces, which are rows of a second
table:

    body_id, start   the body, and the offset of the piece in it        data   the bytes

A body belongs to one entry, or to several copies (`shared` is set). An append to such a copy first gives it a body of
its own. A third table lists versions that the index of contents has not processed yet. `Maintain` processes some of
them at a time; until then `grep` reads those files itself. Triggers of the schema write to that table. They also remove
the pieces of a body that no entry refers to any more.
"""

from __future__ import annotations

from typing import Any

from ... import ops
from ...engine import check_transfer, check_unblocked, conflict, item_exists, put_entry, to_info, transfer_result
from ...model import file_values, keys
from ...model.globs import compile_glob
from ...model.values import ttl_microseconds
from ...ops import ABSENT, ANY, KEEP, FileInfo, Op, Page
from .dialect import Dialect
from .statements import AT_OR_BELOW, LIVE, OLD_IS_LIVE, Rows, SqlProgram, Statement, assignments, at_or_below, live

#: The size of the pieces of a content that is written at once; appended pieces may be smaller.
PIECE = 1 << 16
#: Larger files are not indexed; `grep` reads them. The indexes of large files in the schemas have the same number.
INDEXED_SIZE = 1 << 20
#: A file with more pieces than this should be merged.
_MANY_PIECES = 64
#: How many files may wait to be merged.
_MANY_FILES = 64
#: How many runs of small pieces one transaction merges.
_RUNS_AT_ONCE = 32
#: How many files may wait to be indexed before maintenance is requested.
_SOME_LAG = 200
_FEW_FILES = 200  # which a grep reads without the index
_GREP_PAGE = 256  # candidates that one statement of a grep reads at most
_GREP_BYTES = 1 << 20  # of candidates, after which a page ends
_LARGE_PAGE = 4096  # rows
_COPY_BYTES = 16 << 20  # of a body that one statement copies
_FIRST_CHILDREN = 100  # keys to read before it is known whether most of them are in subfolders

#: The condition that an entry is a file, in a form that the index of files serves.
IS_FILE = "body IS NOT NULL"

_INFO = "key, size, version, created, updated"
#: The condition that a row is a file of one namespace.
_FILES = f"ns = :ns AND {IS_FILE} AND {LIVE}"


class SqlFiles:
    """The ops on files as programs over statements."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.needs_maintenance = False  # whether maintenance would help
        #: The namespaces and keys of files that have many small pieces, and the offset from which on they are merged.
        self._fragmented: dict[tuple[str, str], int] = {}
        self._lock = "" if dialect.single_writer else " FOR UPDATE"
        table, chunks = self._table, self._chunks = dialect.table, dialect.chunks
        grow = (
            f"UPDATE {table} SET version = {dialect.next_version}, updated = :now, size = size + :more, appended = 1,"
            f" vectors = NULL{assignments(dialect.stamps)} WHERE {_FILES} AND key = :key"
        )
        self._grow = f"{grow} RETURNING version, body, size, shared"
        self._grow_at_version = f"{grow} AND version = :expect RETURNING version, body, size, shared"
        self._state = f"SELECT version, size FROM {table} WHERE ns = :ns AND key = :key AND {LIVE}"
        self._insert_piece = f"INSERT INTO {chunks} (body_id, start, data) VALUES (:body, :start, :data)"
        self._insert_piece_of = (
            f"INSERT INTO {chunks} (body_id, start, data) SELECT body, :start, :data FROM {table}"
            f" WHERE ns = :ns AND key = :key"
        )
        self._queue_for_index = (
            f"INSERT INTO {dialect.unindexed} (version) SELECT version FROM {table}"
            f" WHERE ns = :ns AND {IS_FILE} AND {AT_OR_BELOW} ON CONFLICT DO NOTHING"
        )
        self._range, self._all_pieces = (
            f"SELECT piece.start, piece.data FROM {table} AS file LEFT JOIN {chunks} AS piece"
            f" ON piece.body_id = file.body{within}"
            f" WHERE file.ns = :ns AND file.key = :key AND file.body IS NOT NULL AND {live('file.')}"
            f" ORDER BY piece.start"
            for within in (
                f" AND piece.start < :end AND piece.start >= coalesce((SELECT max(start)"
                f" FROM {chunks} WHERE body_id = file.body AND start <= :start), 0)",
                "",
            )
        )
        pieces = f"SELECT count(*) FROM {chunks} WHERE body_id = body"
        self._whole = (
            f"SELECT CASE WHEN appended IS NOT NULL THEN ({pieces}) END, {dialect.whole or dialect.content}"
            f" FROM {table} WHERE {_FILES} AND key = :key"
        )
        self._info = f"SELECT {_INFO} FROM {table} WHERE {_FILES} AND key = :key"
        self._one_below = f"SELECT key FROM {table} WHERE {_FILES} AND key >= :low AND key < :high ORDER BY key LIMIT 1"
        folder = f"SELECT key, NULL, NULL, NULL, NULL FROM ({self._one_below}) AS inside"
        self._stat = f"{self._info} UNION ALL {folder} LIMIT 1"  # a file has nothing below it
        self._children = self._step_over_children()
        below = f"{_FILES} AND key >= :low AND key < :high"
        self._deep = f"SELECT {_INFO} FROM {table} WHERE {below} ORDER BY key LIMIT :limit"
        self._paths = f"SELECT key FROM {table} WHERE {below} ORDER BY key LIMIT :limit"

    # One statement each ----------------------------------------------------------------------------------------------

    def statement(self, op: Op, now: int | None) -> Statement | None:
        """Return the statement of an op on files that needs only one."""
        match op:
            case ops.CheckPath(namespace, path):
                params = {**at_or_below(keys.encode(namespace), path), "now": now}
                del params["key"]
                parents = keys.parents(path)
                params.update({f"p{index}": parent for index, parent in enumerate(parents)})
                sql = f"SELECT key FROM ({self._one_below}) AS inside"
                if parents:
                    names = ", ".join(f":p{index}" for index in range(len(parents)))
                    sql = f"SELECT key FROM {self._table} WHERE {_FILES} AND key IN ({names}) UNION ALL {sql}"
                return sql, params
            case ops.DeleteTree(namespace, path) if path is not None:
                params = {**at_or_below(keys.encode(namespace), path), "now": now, **self._dialect.parameters(op)}
                return self._dialect.make_tombstones(f"{_FILES} AND {AT_OR_BELOW} ORDER BY key", "delete"), params
        return None

    def result(self, op: Op, rows: Rows) -> Any:
        """Return the result of such an op, made of its rows."""
        match op:
            case ops.CheckPath(path=path):
                check_unblocked(path, (key for (key,) in rows))
                return None
        return len(rows)

    def stat_statement(self, op: ops.Stat, now: int | None) -> Statement:
        low, high = keys.in_folder(op.path + "/")
        return self._stat, {"ns": keys.encode(op.namespace), "now": now, "key": op.path, "low": low, "high": high}

    def stat_result(self, op: ops.Stat, rows: Rows) -> FileInfo | None:
        if not rows:
            return None
        return FileInfo(op.path + "/", is_dir=True) if rows[0][1] is None else to_info(*rows[0])

    def range_statement(self, op: ops.ReadRange, now: int | None) -> Statement:
        """Return the statement that reads a file, or a part of it."""
        params: dict[str, Any] = {"ns": keys.encode(op.namespace), "key": op.key, "now": now}
        if op.start == 0 and op.end is None:
            return self._all_pieces if self._dialect.reads_pieces else self._whole, params
        return self._range, {"end": 2**62 if op.end is None else op.end, "start": op.start, **params}

    def range_result(self, op: ops.ReadRange, rows: Rows) -> bytes | None:
        """Return the bytes of such a statement's rows; None if there is no file."""
        if not rows:
            return None
        if op.start == 0 and op.end is None and len(rows) == 1 and self._dialect.reads_pieces:
            data = rows[0][1]  # all of a small file
            return b"" if data is None else self._dialect.part(data, 0, None)
        if not self._is_one_value(op):
            if len(rows) > _MANY_PIECES:  # large files have many, but full ones
                small = sum(type(data) is bytes and len(data) < PIECE // 2 for _, data in rows)
                self._note_pieces(op, small)
            return self._cut(rows, op.start, op.end)
        [(pieces, content)] = rows
        if pieces is not None:
            self._note_pieces(op, pieces)
        return self._dialect.part(content or b"", 0, None)

    def _is_one_value(self, op: ops.ReadRange) -> bool:
        """Whether a read returns a file as one value, not as its pieces."""
        return op.start == 0 and op.end is None and not self._dialect.reads_pieces

    def _cut(self, rows: Rows, start: int, end: int | None) -> bytes:
        """Return the bytes `[start, end)`, of the pieces that have them."""
        part = self._dialect.part
        return b"".join(
            part(data, max(start - offset, 0), None if end is None else max(end - offset, 0))
            for offset, data in rows
            if data is not None
        )

    def _note_pieces(self, op: ops.ReadRange, pieces: int) -> None:
        if pieces > _MANY_PIECES:
            self._merge_soon(keys.encode(op.namespace), op.key, 0)

    def _merge_soon(self, ns: str, key: str, start: int) -> None:
        """Have maintenance merge the small pieces of a file, from an offset on."""
        if len(self._fragmented) < _MANY_FILES:
            self._fragmented[ns, key] = min(start, self._fragmented.get((ns, key), start))
            self.needs_maintenance = True

    # Several statements each -----------------------------------------------------------------------------------------

    def insert_content(self, ns: str, key: str, content: bytes) -> list[Statement]:
        """Return statements that store the content of a file whose entry has just been written."""
        here = {"ns": ns, "key": key}
        pieces = [
            (self._insert_piece_of, {**here, "start": start, "data": data})
            for start, data in split_into_pieces(content)
        ]
        return [*pieces, (self._queue_for_index, {**here, "low": key, "high": keys.next_key(key)})]

    def put_result(self, op: ops.Put, version: int, created: int, updated: int, expires: int | None) -> Any:
        """Return the result of a put of a file."""
        if not op.returns_entry:
            return None
        assert isinstance(op.value, ops.File)
        template, content = op.value.template, op.value.content
        if template in file_values.WRITTEN:
            return to_info(op.key, len(content), version, created, updated)
        item = file_values.to_item(template, content, created, updated, False, len(content))
        return put_entry(op, item, version, created, updated, expires)

    def append(self, op: ops.Append, now: int | None) -> SqlProgram[int | None]:
        """Append to a file; return the offset at which the data was written, or None if there is no file."""
        here = {"ns": keys.encode(op.namespace), "key": op.key, "now": now}
        at_version = {} if op.expect in (ANY, ABSENT) else {"expect": op.expect}
        params = {**here, **at_version, "more": len(op.data), **self._dialect.parameters(op)}
        while True:
            if op.expect is not ABSENT:
                [rows] = yield [((self._grow_at_version if at_version else self._grow), params)]
                if rows:
                    return (yield from self._append_data(op.data, here, rows))
            [found] = yield [(self._state, here)]
            actual, is_item = (found[0][0], found[0][1] is None) if found else (None, False)
            if at_version or (op.expect is ABSENT and found):
                raise conflict(op, actual)
            if is_item:
                raise item_exists(op)
            if not found:
                return None
            # The file was created after the first statement: append to it.

    def _append_data(self, data: bytes, here: dict[str, Any], grown: Rows) -> SqlProgram[int]:
        """Store appended data, for which an entry has just grown; return its offset."""
        [(version, body, size, is_shared)] = grown
        if is_shared:
            yield from self._copy_body(here, body, version, size)
            body = version
        offset = int(size - len(data))
        if data:
            yield [
                (self._insert_piece, {"body": body, "start": offset + start, "data": piece})
                for start, piece in split_into_pieces(data)
            ]
        if len(data) < PIECE // 2 and offset // PIECE < size // PIECE:  # once for about each piece that is full
            self._merge_soon(here["ns"], here["key"], max(0, offset // PIECE - 1) * PIECE)
        return offset

    def _copy_body(self, here: dict[str, Any], body: int, own: int, size: int) -> SqlProgram[None]:
        """Give an entry a body of its own instead of one that it shares. The entry's new version is its id.

        A few pieces at a time, because a database may hold all that one statement copies in memory.
        """
        copy = (
            f"INSERT INTO {self._chunks} (body_id, start, data) SELECT :own, start, data FROM {self._chunks}"
            f" WHERE body_id = :body AND start >= :start AND start < :end"
        )
        use = f"UPDATE {self._table} SET body = :own, shared = NULL WHERE ns = :ns AND key = :key"
        for start in range(0, size, _COPY_BYTES):
            yield [(copy, {"own": own, "body": body, "start": start, "end": start + _COPY_BYTES})]
        yield [(use, {"own": own, "ns": here["ns"], "key": here["key"]})]

    def maintain(self, op: ops.Maintain, now: int | None) -> SqlProgram[bool]:
        """Update the index of contents for some files, merge pieces of one file; return whether there is more to do."""
        dialect, queue = self._dialect, self._dialect.unindexed
        limit = min(op.limit, dialect.most_files)
        oldest = f"SELECT version, gone FROM {queue} ORDER BY version LIMIT :limit"
        *_, waiting = yield [*dialect.maintenance_lock, (oldest, {"limit": limit})]
        gone = [version for version, is_gone in waiting if is_gone]
        new = [version for version, is_gone in waiting if not is_gone]
        has_more = len(waiting) == limit
        if gone:
            has_more = (yield from dialect.remove_contents(gone)) or has_more
        if new:
            new, is_cut = yield from self._index_contents(new)
            has_more = has_more or is_cut
        done = (yield from self._remove_from_queue(gone, is_gone=True)) if gone else 0
        done += (yield from self._remove_from_queue(new, is_gone=False)) if new else 0
        if self._fragmented:
            (ns, key), start = self._fragmented.popitem()
            yield from self._merge(ns, key, start, now)
        has_to_merge = yield from dialect.merge_contents(has_more)
        self.needs_maintenance = bool((has_more and done) or has_to_merge or self._fragmented)
        return self.needs_maintenance

    def _index_contents(self, versions: list[int]) -> SqlProgram[tuple[list[int], bool]]:
        """Index the contents of the first of these versions; return which, and whether some are left for later."""
        dialect = self._dialect
        among, params = dialect.among("version", versions)
        [sizes] = yield [(f"SELECT version, size FROM {self._table} WHERE {among} ORDER BY version", params)]
        first = _first_to_index(sizes, dialect.most_bytes)
        later = {version for version, _ in sizes}.difference(first)
        among, params = dialect.among("version", first)
        sql = f"SELECT version, {dialect.content} FROM {self._table} WHERE {among} AND size <= {INDEXED_SIZE}"
        [rows] = yield [(sql, params)]
        texts = [(version, text) for version, data in rows if (text := _decode_text(data)) is not None]
        if texts:
            yield from dialect.index_contents(texts)
        return [version for version in versions if version not in later], bool(later)

    def _remove_from_queue(self, versions: list[int], is_gone: bool) -> SqlProgram[int]:
        """Remove processed versions from the queue of the index; return how many.

        A version that was marked as gone after it was read, or that another transaction has locked, stays.
        """
        queue = self._dialect.unindexed
        among, params = self._dialect.among("version", versions)
        state = "IS NOT NULL" if is_gone else "IS NULL"
        [rows] = yield [
            (f"SELECT version FROM {queue} WHERE {among} AND gone {state}{self._dialect.skip_locked}", params)
        ]
        if rows:
            among, params = self._dialect.among("version", [version for (version,) in rows])
            yield [(f"DELETE FROM {queue} WHERE {among}", params)]
        return len(rows)

    def _merge(self, ns: str, key: str, start: int, now: int | None) -> SqlProgram[None]:
        """Merge small neighbouring pieces of a file, up to the usual size, from an offset on."""
        unshared = f"{_FILES} AND key = :key AND shared IS NULL"
        [found] = yield [
            (f"SELECT body FROM {self._table} WHERE {unshared}{self._lock}", {"ns": ns, "key": key, "now": now})
        ]
        if not found:
            return
        [(body,)] = found
        sizes = (
            f"SELECT start, {self._dialect.piece_length} FROM {self._chunks}"
            " WHERE body_id = :body AND start >= :start ORDER BY start"
        )
        [pieces] = yield [(sizes, {"body": body, "start": start})]
        runs = _small_runs(pieces)
        if len(runs) > _RUNS_AT_ONCE:
            self._merge_soon(ns, key, runs[_RUNS_AT_ONCE][0])
        for start, end in runs[:_RUNS_AT_ONCE]:
            inside = {"body": body, "start": start, "end": end}
            which = "body_id = :body AND start >= :start AND start < :end"
            [rows] = yield [(f"SELECT data FROM {self._chunks} WHERE {which} ORDER BY start", inside)]
            joined = b"".join(bytes(data) for (data,) in rows)
            yield [
                (f"DELETE FROM {self._chunks} WHERE {which}", inside),
                (self._insert_piece, {"body": body, "start": start, "data": joined}),
            ]

    def transfer(self, op: ops.Move | ops.Copy, now: int | None) -> SqlProgram[FileInfo]:
        """Insert entries with the same bodies at the destination; a move then deletes the old entries."""
        ns = keys.encode(op.namespace)
        elsewhere = op.source if isinstance(op, ops.Move) else None
        source = ns if elsewhere is None else keys.encode(elsewhere)
        src, dst = at_or_below(source, op.src), at_or_below(ns, op.dst)
        sources = f"{_FILES} AND {AT_OR_BELOW}"
        blocked = self.statement(ops.CheckPath(op.namespace, op.dst), now)
        assert blocked is not None
        found, there, parents = yield [
            (f"SELECT key FROM {self._table} WHERE {sources} ORDER BY key{self._lock}", {**src, "now": now}),
            (f"SELECT key FROM {self._table} WHERE {sources} ORDER BY key LIMIT 2", {**dst, "now": now}),
            blocked,
        ]
        is_same = source == ns and op.src == op.dst
        if not (is_same and found):
            check_transfer(op, [key for (key,) in found], (key for (key,) in there))
            check_unblocked(op.dst, (key for (key,) in parents))
            yield from self._transfer(op, src, dst, now)
        [rows] = yield [(self._info, {"ns": ns, "key": op.dst, "now": now})]
        return transfer_result(op, to_info(*rows[0]) if rows else None)

    def move_slice(self, op: ops.MoveSlice, now: int | None) -> SqlProgram[str | None]:
        """Move the next files of a folder; return the path of the last one, or None if there was none."""
        ns = keys.encode(op.namespace)
        left = f"SELECT key FROM {self._table} WHERE {_FILES} AND {AT_OR_BELOW} AND key > :after ORDER BY key LIMIT"
        low, high = keys.in_folder(op.src + "/")
        here = {"ns": ns, "key": low, "low": low, "high": high, "after": op.after or "", "now": now}
        found: Rows = []
        while not found:  # again if others have just deleted all rows that this transaction waited to lock
            [found] = yield [(f"{left} :limit{self._lock}", {**here, "limit": op.limit})]
            if not found and not (yield [(f"{left} 1", here)])[0]:
                return None
        first, last = (str(key)[len(op.src) :] for key in (found[0][0], found[-1][0]))
        src, dst = (
            {"ns": ns, "key": folder + first, "low": folder + first, "high": keys.next_key(folder + last)}
            for folder in (op.src, op.dst)
        )
        yield from self._transfer(op, src, dst, now)
        return op.src + last

    def _transfer(
        self, op: ops.Move | ops.MoveSlice | ops.Copy, src: dict[str, Any], dst: dict[str, Any], now: int | None
    ) -> SqlProgram[None]:
        """Transfer the files of a range of paths. `src` and `dst` are parameters of `AT_OR_BELOW`."""
        sources, is_move = f"{_FILES} AND {AT_OR_BELOW}", not isinstance(op, ops.Copy)
        mark = 2 if is_move else 1  # 2: shared until the end of this move, so that the trigger keeps the body
        ttl = op.ttl if isinstance(op, ops.Move) else KEEP
        further = self._dialect.parameters(op)
        params = {**src, "now": now, "to": dst["ns"], "dst": op.dst, "cut": len(op.src) + 1, "mark": mark}
        if ttl is not KEEP:
            params["ttl"] = ttl_microseconds(ttl)  # type: ignore[arg-type]  # seconds or None
        [inserted] = yield [(self._insert_copies(op, sources), {**params, **further})]
        both = {name: params[name] for name in ("ns", "key", "low", "high", "now", "to", "dst", "cut")}
        if any(model is not None for (model,) in inserted):
            yield [(self._copy_vectors(sources), both)]
        if is_move:
            arrived = (
                f"EXISTS (SELECT 1 FROM {self._table} AS arrived WHERE arrived.ns = :to"
                f" AND arrived.key = {_moved_key(f'{self._table}.key')} AND arrived.body = {self._table}.body)"
            )
            unshare = f"UPDATE {self._table} SET shared = NULL WHERE ns = :ns AND {AT_OR_BELOW} AND shared = 2"
            delete = self._dialect.make_tombstones(f"{sources} AND {arrived} ORDER BY key", "delete")
            yield [
                (delete, {**both, **further}),
                (unshare, dst),
                (self._queue_for_index, dst),
            ]
        else:
            share = f"UPDATE {self._table} SET shared = 1 WHERE {sources} AND shared IS NULL"
            yield [(share, {**src, "now": now}), (self._queue_for_index, dst)]

    def _insert_copies(self, op: ops.Move | ops.MoveSlice | ops.Copy, sources: str) -> str:
        """Return the statement that inserts the entries at the destination, or replaces those that are there.

        A slice of a move replaces none.
        """
        replaces = isinstance(op, ops.Move) and op.source is not None
        has_ttl = isinstance(op, ops.Move) and op.ttl is not KEEP
        where = f"WHERE NOT ({OLD_IS_LIVE})" if isinstance(op, ops.MoveSlice) else ""
        dialect = self._dialect
        # Entries that were inserted since the others were locked are transferred too, and must not change either.
        lock = "" if dialect.single_writer else " ORDER BY key FOR UPDATE"
        created = ":now" if isinstance(op, ops.Copy) or replaces else "created"
        lifetime = ":now + :ttl, :ttl" if has_ttl else "expires, ttl"
        kept = f"CASE WHEN {OLD_IS_LIVE} THEN old.created ELSE excluded.created END" if replaces else "excluded.created"
        same = ["value", "updated", "expires", "ttl", "body", "size", "appended", "shared", "fields", "vectors"]
        same += [*dialect.stamps, *dialect.projections]
        names = "".join(f", {name}" for name in (*dialect.stamps, *dialect.projections))
        values = "".join(f", {expression}" for expression in (*dialect.stamps.values(), *dialect.projections))
        return f"""
            INSERT INTO {self._table} AS old (version, ns, key, value, created, updated, expires, ttl,
                body, size, appended, shared, fields, vectors{names})
            SELECT {dialect.next_versions}, :to, {_moved_key("key")}, value, {created}, :now, {lifetime},
                body, size, appended, coalesce(shared, :mark), fields, vectors{values}
            FROM {self._table} WHERE {sources}{lock}
            ON CONFLICT (ns, key) DO UPDATE SET version = {dialect.version_on_conflict}, kind = NULL,
                created = {kept}, {", ".join(f"{name} = excluded.{name}" for name in same)}
            {where} RETURNING vectors"""

    def _copy_vectors(self, sources: str) -> str:
        """Return the statement that copies vectors to the destination: the same texts have the same vectors."""
        vectors = self._dialect.vectors
        return f"""
            INSERT INTO {vectors} (version, model, data)
            SELECT arrived.version, own.model, own.data
            FROM (SELECT key, version, body FROM {self._table} WHERE {sources} AND vectors IS NOT NULL) AS source
            JOIN {vectors} AS own ON own.version = source.version
            JOIN {self._table} AS arrived ON arrived.ns = :to AND arrived.key = {_moved_key("source.key")}
                AND arrived.body = source.body
            WHERE NOT EXISTS (SELECT 1 FROM {vectors} AS there WHERE there.version = arrived.version)"""

    # Walks -----------------------------------------------------------------------------------------------------------

    def children(self, op: ops.Children, now: int | None) -> SqlProgram[Page[Any]]:
        """Read keys in order, leaving out further keys of the same subfolder.

        If these are the majority, step from child to child instead.
        """
        low, high = keys.in_folder(op.path)
        params = {"ns": keys.encode(op.namespace), "high": high, "now": now}
        found: Page[Any] = Page()
        after, depth = op.after, len(op.path)
        matches = compile_glob(op.glob, op.path)
        scan, size = self._paths if op.bare else self._deep, op.limit if op.deep else min(op.limit, _FIRST_CHILDREN)
        while True:
            if matches is not None:
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
                    if matches is None or matches(key):
                        found.append(key if op.bare else to_info(*row))
                if len(found) == op.limit:
                    found.next = after
                    return found
            if len(rows) < size:
                return found
            if not op.deep and len(found) - before < len(rows) // 2:
                scan, params["depth"] = self._children, depth
            size = op.limit - len(found)

    def _step_over_children(self) -> str:
        """Return the query that steps from one child to the next, over everything in a subfolder."""
        depth = "CAST(:depth AS integer)"
        end = self._dialect.find_text(f"substr(step.key, {depth} + 1)", "'/'")
        beyond = f"substr(step.key, 1, {depth} + {end} - 1) || '0'"
        over = f"CASE WHEN {end} = 0 THEN step.key || {self._dialect.character(1)} ELSE {beyond} END"
        first, following = (
            f"(SELECT key FROM {self._table} WHERE {_FILES} AND key >= {least} AND key < :high ORDER BY key LIMIT 1)"
            for least in (":low", over)
        )
        folder = f"substr(step.key, 1, {depth} + {end})"
        file = self._dialect.join_file("step.key")
        return f"""
            WITH RECURSIVE step(key) AS (
                SELECT {first} UNION ALL SELECT {following} FROM step WHERE step.key IS NOT NULL
            ) SELECT CASE WHEN {end} = 0 THEN step.key ELSE {folder} END, size, version, created, updated
            FROM step LEFT JOIN {file} AND {end} = 0 WHERE step.key IS NOT NULL LIMIT :limit"""

    def grep(self, op: ops.Grep, now: int | None) -> SqlProgram[Page[tuple[str, bytes]]]:
        low, high = keys.in_folder(op.path)
        params: dict[str, Any] = {"ns": keys.encode(op.namespace), "high": high, "now": now}
        where, path = f"{_FILES} AND size <= {file_values.LARGEST}", "key"
        if (content_query := self._dialect.find_contents(_grams(op))) is not None:
            ask_index, read_answer = content_query
            queue = self._dialect.unindexed
            inside = f"SELECT size FROM {self._table} WHERE ns = :ns AND {IS_FILE} AND key >= :low AND key < :high"
            *_, [(lag,)], [(count, size)] = yield [
                *self._dialect.by_index,
                (f"SELECT count(*) FROM (SELECT 1 FROM {queue} LIMIT {_LARGE_PAGE}) AS first_ones", {}),
                (
                    f"SELECT count(*), coalesce(sum(size), 0) FROM ({inside} LIMIT {_FEW_FILES + 1}) AS first_ones",
                    {"ns": params["ns"], "low": low, "high": high},
                ),
            ]
            self.needs_maintenance = self.needs_maintenance or lag > _SOME_LAG
            # The index holds all files of the store: to ask it takes longer than to read a few files here.
            answer = (yield [ask_index])[0] if count > _FEW_FILES or size > _GREP_BYTES else None
            if answer is not None and (found_by_index := read_answer(answer)) is not None:
                query, query_params = found_by_index
                large = f"SELECT version FROM {self._table} WHERE ns = :ns AND size > {INDEXED_SIZE}"
                few = f"{query} UNION ALL SELECT version FROM {queue} UNION ALL {large}"
                where += f" AND {self._dialect.one_of('version', few)}"
                path = "key || ''"  # no index has this expression: the database finds the rows first, then sorts
                params.update(query_params)
        where += f" AND {path} >= :low AND {path} < :high"
        if not op.ignore_case:
            for index, literal in enumerate(op.literals[:8]):
                params[f"data{index}"] = literal.encode(errors="replace")
                where += f" AND {self._dialect.contains(self._dialect.content, f':data{index}')}"
        sql = f"SELECT key, size FROM {self._table} WHERE {where} ORDER BY {path} LIMIT :limit"
        found: Page[tuple[str, bytes]] = Page()
        after, room = op.after, _GREP_BYTES
        matches = compile_glob(op.glob, op.path)
        while True:
            params["low"] = low if after is None else keys.next_key(after)
            [rows] = yield [(sql, {**params, "limit": _GREP_PAGE})]
            chosen: list[str] = []
            for key, size in rows:
                after = key
                if matches is None or matches(key):
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


def _moved_key(key: str) -> str:
    """Return the expression of a key below the destination of a move or copy, for one below its source."""
    return f":dst || substr({key}, CAST(:cut AS integer))"  # no database may take it for a bigint, which substr refuses


def split_into_pieces(content: bytes) -> list[tuple[int, bytes]]:
    """Split a content into pieces, each with its offset."""
    if 0 < len(content) <= PIECE:  # the usual case
        return [(0, content)]
    return [(start, content[start : start + PIECE]) for start in range(0, len(content), PIECE)]


def _small_runs(pieces: Rows) -> list[tuple[int, int]]:
    """Return the `[start, end)` of each run of two or more neighbours that fit into one piece."""
    runs: list[tuple[int, int, int]] = []
    for start, length in pieces:
        if runs and runs[-1][1] == start and start + length - runs[-1][0] <= PIECE:
            runs[-1] = runs[-1][0], start + length, runs[-1][2] + 1
        else:
            runs.append((start, start + length, 1))
    return [(start, end) for start, end, count in runs if count > 1]


def _first_to_index(sizes: Rows, room: int) -> list[int]:
    """Return the first versions, at least one, whose contents are about `room` bytes in all."""
    first: list[int] = []
    for version, size in sizes:
        if room <= 0:
            break
        first.append(version)
        room -= size if size is not None and size <= INDEXED_SIZE else 0
    return first


def _decode_text(data: bytes | None) -> str | None:
    """Return the text of a file; None if it is not text, and so not indexed."""
    try:
        return bytes(data or b"").decode()
    except UnicodeDecodeError:
        return None


def _grams(op: ops.Grep) -> list[str]:
    """Return parts of three characters (trigrams) that a file with these literals must contain.

    An index ignores case. If the search ignores case too, only letters count that no index and no regular expression
    folds to a letter outside ASCII.
    """
    grams: dict[str, None] = {}
    for literal in op.literals:
        for start in range(len(literal) - 2):
            gram = literal[start : start + 3]
            if "\x00" in gram or (op.ignore_case and (not gram.isascii() or _FOLD_BEYOND_ASCII & set(gram))):
                continue
            grams[gram] = None
    # More files have a gram with a space. Measured on SQLite: without these, a search takes three quarters of the time.
    inside_words = [gram for gram in grams if " " not in gram]
    return inside_words if len(inside_words) > 3 else list(grams)


_FOLD_BEYOND_ASCII = frozenset("iIkKsS")  # as K and the Kelvin sign
