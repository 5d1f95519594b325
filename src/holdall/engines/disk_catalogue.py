"""What the catalogue of a `disk:` store has beside SQLite's tables, and how it and the plain files are kept together.

    path      where in the folder        ns, key   whose place that is; null: nobody's any more, to be removed
    is_file   of a volume, or an item    stamp     how the file is known again (`disk_tree`); null: not written yet
    folded    the path as the file system compares it, which may not tell "A" from "a"
    before    the stamp that was there before this one; null: none

Three steps, each within one transaction and under the lock that one process at a time has. `place`, before a batch is
committed: everything that it changed gets its place. `settle`, after that: the files are written, and every step of it
may have been taken before, by a process that was killed. `take_in`: what was edited outside becomes changes.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from .. import keys, ops, shapes
from ..engine import system_clock
from ..errors import HoldallError, InvalidInput
from ..ops import ANY, KEEP, Namespace
from ..programs import drive
from ..values import decode, encode, indented
from .disk_names import cut, names_of, other, place_of
from .disk_tree import Stale, Tree, is_same_file, size_of, stamp
from .history import beginning
from .sqlite_sql import DOUBT_FIELDS, SqliteDialect, SqliteSql, is_misread

logger = logging.getLogger("holdall")

_TICK, _SMALL, _MANY = 50_000_000, 1 << 20, 1000  # nanoseconds; bytes; files

_UNLIKE = "0.0.{}"  # a stamp as no file has it: it is to be looked at again

_SCHEMA = """
    CREATE TABLE holdall_places (
        path TEXT NOT NULL, folded TEXT NOT NULL, ns TEXT, key TEXT, is_file INTEGER NOT NULL, stamp TEXT,
        before TEXT
    );
    CREATE UNIQUE INDEX holdall_place_of ON holdall_places (ns, key) WHERE ns IS NOT NULL;
    CREATE UNIQUE INDEX holdall_place_at ON holdall_places (path) WHERE ns IS NOT NULL;
    CREATE UNIQUE INDEX holdall_place_as ON holdall_places (folded) WHERE ns IS NOT NULL;
    CREATE INDEX holdall_doomed ON holdall_places (path) WHERE ns IS NULL;
    INSERT INTO holdall_state VALUES ('settled', '0');
"""
_SETTLED = """
    SELECT (SELECT CAST(value AS INTEGER) FROM holdall_state WHERE name = 'settled'),
        (SELECT coalesce(max(version), 0) FROM holdall_entries)"""
_SETTLE = (
    "UPDATE holdall_state SET value = (SELECT coalesce(max(version), 0) FROM holdall_entries) WHERE name = 'settled'"
)
_CHANGED = """
    FROM holdall_entries AS entry NOT INDEXED LEFT JOIN holdall_places AS place
        ON place.ns = entry.ns AND place.key = entry.key
    WHERE entry.version > :settled AND NOT (entry.ns >= :low AND entry.ns < :high)"""
_KNOWN = "SELECT path, ns, key, is_file, stamp FROM holdall_places WHERE ns IS NOT NULL"
_INSERT = "INSERT INTO holdall_places VALUES (:path, :folded, :ns, :key, :is_file, :stamp, NULL)"
_STAMP = "UPDATE holdall_places SET before = stamp, stamp = ? WHERE path = ? AND ns IS NOT NULL"
_TAKEN = "SELECT path FROM holdall_places WHERE ns IS NOT NULL AND folded"
_BODY = """
    UPDATE holdall_entries SET body = version, shared = NULL
    WHERE version = ? AND (body <> version OR shared IS NOT NULL)"""


_JOINED = """
    (SELECT holdall_joined(data) FROM (SELECT data FROM holdall_chunks WHERE body_id = body ORDER BY start))"""


class DiskDialect(SqliteDialect):
    """SQLite's, where a piece of a body may be a reference to a plain file: a text, and not bytes."""

    tree: Tree
    content = f"CASE WHEN size > 0 THEN {_JOINED} END"
    # The usual body is one plain file, for good: then all that SQLite has to do with it is to say which.
    whole = f"""CASE WHEN size > 0 THEN coalesce(
        (SELECT data FROM holdall_chunks WHERE body_id = body AND start = 0 AND expires IS NULL
            AND typeof(data) = 'text' AND instr(data, '.' || size || '/') = instr(data, '/') - length(size) - 1),
        {_JOINED}
    ) END"""
    head = """(SELECT holdall_head(data) FROM (
        SELECT data FROM holdall_chunks WHERE body_id = body AND start < 1048576 ORDER BY start
    ))"""

    def part(self, piece: Any, start: int, end: int | None) -> bytes:
        return self.tree.read(piece, start, end) if isinstance(piece, str) else super().part(piece, start, end)


@dataclass(slots=True)
class _Changed:
    """An entry that a batch has written."""

    version: int
    ns: str
    key: str
    value: str
    body: int
    size: int | None
    path: str | None  # its place, if it has one
    stamp: str | None = None  # of what was there


class _Ready(NamedTuple):
    """A file that is staged."""

    version: int
    path: str  # where it goes
    stamp: str
    before: str | None  # the stamp of what it replaces


@dataclass(slots=True)
class _Work:
    """What is left to be done with the files of changed entries."""

    stamps: dict[str, str] = field(default_factory=dict)  # of each file, as it is then
    staged: list[tuple[int, str]] = field(default_factory=list)  # versions, and where they go
    grown: list[tuple[int, str, str, int]] = field(default_factory=list)  # version, path, stamp before, body
    kept: set[str] = field(default_factory=set)  # files that stay what they are, but for what is added to them
    doubtful: set[str] = field(default_factory=set)  # files that were edited outside in the very moment

    def leave(self, path: str, size: int | None) -> None:
        """What is at a path is newer, and is taken in next: till then it has a stamp as no file has it."""
        self.doubtful.add(path)
        self.stamps[path] = f"0.0.{size or 0}"


class Catalogue:
    """The three steps, on the connection that writes."""

    def __init__(self, tree: Tree, sql: SqliteSql, sync: bool) -> None:
        self._tree, self._sql, self._sync = tree, sql, sync
        self.volume: Namespace = ("filesystem",)
        self.ready: list[_Ready] = []  # what is staged and committed
        self.unsynced: set[str] = set()  # folders whose names may not survive a power cut
        self._young: dict[str, tuple[int, bytes]] = {}

    def migrate(self, writer: Any, volume: Namespace | None) -> None:
        """See that the tables are there, and which volume lies in the folder itself."""
        if not writer.execute("SELECT 1 FROM sqlite_schema WHERE name = 'holdall_places'").fetchall():
            self.volume = volume or self.volume
            writer.execute(_SCHEMA)
            writer.execute("INSERT INTO holdall_state VALUES ('volume', ?)", (keys.encode(self.volume),))
            if not self._tree.is_empty():  # versions go on where those of a catalogue that is gone may have been
                writer.run([beginning(system_clock())])
            return
        if not writer.execute("SELECT 1 FROM pragma_table_info('holdall_places') WHERE name = 'before'").fetchall():
            writer.execute("ALTER TABLE holdall_places ADD COLUMN before TEXT")
        [(known,)] = writer.execute("SELECT value FROM holdall_state WHERE name = 'volume'").fetchall()
        self.volume = keys.decode(known)
        if volume not in (None, self.volume):
            raise InvalidInput(
                f"the folder {self._tree.root!r} holds the files of {self.volume!r}, not of {volume!r};"
                " leave volume= out, or name another folder"
            )

    # Before a batch is committed -------------------------------------------------------------------------------------

    def place(self, writer: Any) -> None:
        """Give what a batch has changed its place; what has left its own is to be removed.

        Where there is nothing but new contents, these are staged at once, and settled with the commit but for a rename:
        whoever finds a temporary file with an entry's stamp knows that it was not made any more.
        """
        self.ready = []
        [(settled, _)] = writer.execute(_SETTLED).fetchall()
        rows = writer.execute(
            f"SELECT entry.version, entry.ns, entry.key, entry.value, entry.body, entry.size,"
            f" place.rowid, place.path, place.is_file, place.stamp {_CHANGED} ORDER BY entry.ns, entry.key",
            {"settled": settled, "low": keys.HIDDEN[0], "high": keys.HIDDEN[1]},
        ).fetchall()
        left: dict[int, str] = {}
        live: list[_Changed] = []
        for version, ns, key, value, body, size, row, path, was_file, known in rows:
            stays = row is not None and value is not None and bool(was_file) is (size is not None)
            if row is not None and not stays:
                left[row] = path
            if value is not None:
                there = (path, known) if stays else (None, None)
                live.append(_Changed(version, ns, key, value, body, size, *there))
        if left:
            leave = "UPDATE holdall_places SET ns = NULL, key = NULL, stamp = NULL WHERE rowid = ?"
            writer.executemany(leave, [(row,) for row in left])
        for one in live:
            if one.path is None:
                is_file = one.size is not None
                one.path = self._free_place(writer, keys.decode(one.ns), one.key, is_file)
                self._insert(writer, one.path, one.ns, one.key, is_file, None)
        self._refuse_unwritable(left.values(), live)
        if not left and all(one.size is None or self._reference(writer, one.body) is None for one in live):
            self._settle_at_once(writer, live)
            writer.execute(_SETTLE)

    def _refuse_unwritable(self, left: Iterable[str], live: Iterable[_Changed]) -> None:
        """What could never be settled must not be committed: everybody would wait for it."""
        folders = {path.rpartition("/")[0]: path for path in left}
        for path in folders.values():
            self._tree.refuse_unwritable(path, is_new=False)
        folders = {str(one.path).rpartition("/")[0]: str(one.path) for one in live}
        for path in folders.values():
            self._tree.refuse_unwritable(path, is_new=True)

    def _settle_at_once(self, writer: Any, live: list[_Changed]) -> None:
        for one in live:
            assert one.path is not None
            if self._tree.is_edited(one.path, one.stamp):  # and this comes after that
                raise Stale(one.path)
            self.ready.append(_Ready(one.version, one.path, "", one.stamp))
            pieces = [indented(one.value)] if one.size is None else _pieces(writer, one.body)
            known = self._tree.stage(one.version, pieces, self._sync, one.path)
            self.ready[-1] = _Ready(one.version, one.path, known, one.stamp)
            writer.execute(_STAMP, (known, one.path))
        if self._sync:  # else what is committed could be lost with its name in that folder
            self._tree.sync_staged()
        writer.executemany(_BODY, [(one.version,) for one in live if one.size is not None and one.body != one.version])
        for one, ready in zip(live, self.ready, strict=True):
            if one.size is not None:
                self._refer(writer, one.version, f"{ready.stamp}/{one.path}" if one.size else None)

    def discard(self) -> None:
        """The batch was not committed."""
        for one in self.ready:
            self._tree.unstage(one.version)
        self.ready = []

    def finish(self) -> tuple[dict[str, str], set[str]]:
        """The batch was committed: bring what was staged to its place; the files' stamps, and what was edited.

        What somebody has put there since, perhaps while no process was there, is newer, and stays.
        """
        touched: set[str] = set()
        written: dict[str, str] = {}
        edited: set[str] = set()
        for one in self.ready:
            if self._tree.is_edited(one.path, one.before, one.stamp):
                self._tree.unstage(one.version)
                edited.add(one.path)
            else:
                self._tree.settle(one.version, one.path, touched)
                written[one.path] = one.stamp
        self.ready = []
        self.sync(touched)
        return written, edited

    def sync(self, touched: Iterable[str] = ()) -> None:
        """Have the names in these folders survive a power cut, and those that an earlier try has left."""
        if self._sync:
            self.unsynced.update(touched)
            self._tree.sync(self.unsynced)
            self.unsynced.clear()

    def _free_place(self, writer: Any, namespace: Namespace, key: str, is_file: bool) -> str:
        names = names_of(namespace, key, is_file, self.volume)
        if not self._tree.folds and self._is_free(writer, names):  # the usual case
            return _joined(names)
        for depth in range(len(names)):
            while self._is_taken(writer, names[: depth + 1], depth == len(names) - 1):
                names[depth] = other(names[depth])
        return _joined(names)

    def _is_free(self, writer: Any, names: list[str]) -> bool:
        """Whether nothing at all is in the way."""
        path = _joined(names)
        places = [path[:end] for end, letter in enumerate(path) if letter == "/"]
        here = ", ".join("?" * (len(places) + 1))
        taken = f"{_TAKEN} IN ({here}) UNION ALL SELECT * FROM ({_TAKEN} > ? AND folded < ? LIMIT 1)"
        if writer.execute(taken, (*places, path, path + "/", path + "0")).fetchall():
            return False
        return self._tree.is_free(path)

    def _insert(self, writer: Any, path: str, ns: str, key: str, is_file: bool, known: str | None) -> None:
        row = {"path": path, "ns": ns, "key": key, "is_file": is_file, "stamp": known}
        writer.execute(_INSERT, {**row, "folded": self._tree.folded(path)})

    def _is_taken(self, writer: Any, names: list[str], is_last: bool) -> bool:
        """Whether something is there that has to stay: a file, where a folder is to be, or the other way round.

        Where "A" and "a" are the same to the file system, also a folder of the other name.
        """
        path = _joined(names)
        folded = self._tree.folded(path)
        if writer.execute(f"{_TAKEN} = ?", (folded,)).fetchall():
            return True
        if is_last or self._tree.folds:
            inside = writer.execute(f"{_TAKEN} > ? AND folded < ? LIMIT 1", (folded + "/", folded + "0")).fetchall()
            if inside and (is_last or not inside[0][0].startswith(path + "/")):
                return True
        obstacles = self._tree.obstacles(path, is_last)
        doomed = "SELECT 1 FROM holdall_places WHERE ns IS NULL AND path = ?"
        return any(not _is_text(there) or not writer.execute(doomed, (there,)).fetchall() for there in obstacles)

    # After it --------------------------------------------------------------------------------------------------------

    def is_settled(self, writer: Any) -> bool:
        [(settled, newest)] = writer.execute(_SETTLED).fetchall()
        return bool(settled == newest)

    def settle(self, writer: Any, again: bool) -> tuple[dict[str, str], set[str]]:
        """Write what is in the catalogue alone to its place: the files' stamps, and what has to be looked at again.

        `again`: somebody may have begun with it before.
        """
        [(settled, _)] = writer.execute(_SETTLED).fetchall()
        rows = writer.execute(
            f"SELECT entry.version, entry.value, entry.body, entry.size, place.path, place.stamp"
            f"{_CHANGED} AND place.path IS NOT NULL ORDER BY entry.version",
            {"settled": settled, "low": keys.HIDDEN[0], "high": keys.HIDDEN[1]},
        ).fetchall()
        doomed = dict(writer.execute("SELECT path, 0 FROM holdall_places WHERE ns IS NULL").fetchall())
        work = _Work()
        moving: list[tuple[int, int, str, str, int]] = []
        for version, value, body, size, path, before in rows:
            reference = None if size is None else self._reference(writer, body)
            if reference is None:
                pieces = [indented(value)] if size is None else _pieces(writer, body)
                if path not in doomed and self._is_edited(path, before, pieces):
                    work.leave(path, size)
                    continue
                pieces = [indented(value)] if size is None else _pieces(writer, body)
                work.stamps[path] = self._tree.stage(version, pieces, self._sync, path)
                work.staged.append((version, path))
                continue
            known, _, source = reference.partition("/")
            if source != path:
                moving.append((version, body, path, reference, size))
                continue
            work.stamps[path] = known
            work.kept.add(path)
            if size > size_of(known):
                work.grown.append((version, path, known, body))
        places = {row[4] for row in rows}
        if moving:
            self._stage_moving(writer, work, moving, {*doomed, *places} - work.kept, again)
        touched: set[str] = set()
        for path in doomed:
            if path not in places:
                self._tree.remove(path, touched)
        for version, path in work.staged:
            self._tree.settle(version, path, touched, is_link=bool(moving))
        for version, path, known, body in work.grown:
            self._append(writer, work, (version, path, known, body), again, touched)
        for path in doomed:
            self._tree.prune(path, touched)
        self.sync(touched)
        for _, _, _, size, path, _ in rows:
            if size is not None and size_of(work.stamps[path]) != size:  # edited outside just now
                work.leave(path, size)
        # First each gets a body of its own: one that several share goes with the last that leaves it.
        writer.executemany(_BODY, [(version,) for version, _, _, size, *_ in rows if size is not None])
        for version, _, _, size, path, _ in rows:
            if size is not None:
                self._refer(writer, version, f"{work.stamps[path]}/{path}" if size else None)
        writer.executemany(_STAMP, [(known, path) for path, known in work.stamps.items()])
        writer.execute("DELETE FROM holdall_places WHERE ns IS NULL")
        writer.execute(_SETTLE)
        return dict.fromkeys(doomed, "") | work.stamps, work.doubtful

    def _is_edited(self, path: str, before: str | None, pieces: Iterable[bytes]) -> bool:
        """Whether a file is neither what it was nor, by somebody who was killed, what is to be written."""
        return self._tree.is_edited(path, before) and self._tree.current(path) != b"".join(pieces)

    def _reference(self, writer: Any, body: int) -> str | None:
        """The plain file that a body begins with, if it does."""
        sql = "SELECT data FROM holdall_chunks WHERE body_id = ? AND start = 0 AND typeof(data) = 'text'"
        rows = writer.execute(sql, (body,)).fetchall()
        return rows[0][0] if rows else None

    def _refer(self, writer: Any, version: int, reference: str | None) -> None:
        """From now on, the plain file is the body."""
        writer.execute("DELETE FROM holdall_chunks WHERE body_id = ?", (version,))
        if reference is not None:
            writer.execute("INSERT INTO holdall_chunks VALUES (?, 0, ?)", (version, reference))

    def recover(self, writer: Any) -> list[int]:
        """Find what a killed process had staged and committed, for `finish`; the versions of what else it staged."""
        self.ready, strays = [], []
        for version in self._tree.all_staged():
            rows = writer.execute(
                "SELECT path, stamp, before FROM holdall_entries AS entry JOIN holdall_places AS place"
                " ON place.ns = entry.ns AND place.key = entry.key WHERE entry.version = ?",
                (version,),
            ).fetchall()
            if rows and rows[0][1] == self._tree.staged_stamp(version):
                self.ready.append(_Ready(version, *rows[0]))
            else:
                strays.append(version)
        return strays

    def forget(self, strays: list[int]) -> None:
        """Remove what was never committed."""
        for version in strays:
            self._tree.unstage(version)

    def _stage_moving(
        self, writer: Any, work: _Work, moving: list[tuple[int, int, str, str, int]], left: set[str], again: bool
    ) -> None:
        """Files that come from another place: under a second name where that one is left, else as a copy."""
        for version, body, path, reference, size in moving:
            known, _, source = reference.partition("/")
            there = self._tree.stat(source)
            has_more = size > size_of(known)
            if there is None or stamp(there) != known:  # it was brought here before we were killed, or changed outside
                here = self._tree.stat(path)
                staged = self._tree.staged_stamp(version) if again else None
                if staged is not None and size_of(staged) == size:  # else it was half written
                    work.stamps[path] = staged
                    work.staged.append((version, path))
                    continue
                if again and here is not None and (is_same_file(known, here) or here.st_size == size):
                    work.stamps[path] = stamp(here)
                    continue
                work.doubtful.add(path)
                if there is None:
                    work.stamps[path] = ""
                    continue
            if source in left and not has_more and self._tree.stage_link(version, source):
                left.discard(source)
                work.stamps[path] = known
            else:
                is_changed = path in work.doubtful
                pieces = _copied(source, there.st_size if is_changed else size_of(known), _pieces(writer, body))
                staged = self._tree.stage(version, pieces, self._sync, source)
                work.stamps[path] = _UNLIKE.format(size) if is_changed else staged
            work.staged.append((version, path))
        if self._sync:
            self._tree.sync_staged()

    def _append(
        self, writer: Any, work: _Work, grown: tuple[int, str, str, int], again: bool, touched: set[str]
    ) -> None:
        """Write on at the end of a file, wherever that is: others may have written on, too, in the very moment."""
        version, path, known, body = grown
        added = b"".join(_pieces(writer, body))
        before, after = size_of(known), size_of(known) + len(added)
        here = self._tree.stat(path)
        if here is not None and is_same_file(known, here) and here.st_size >= before:
            there = (self._tree.current(path, before, len(added)) or b"") if again else b""
            missing = added.removeprefix(there)  # who was killed had got so far
            try:
                stamped = self._tree.append(path, missing, self._sync)
            except PermissionError:  # it may be replaced, as by any other write
                stamped = self._replace(version, path, _copied(path, here.st_size, [missing]), touched)
            if size_of(stamped) == after:
                work.stamps[path] = stamped
                return
        else:
            self._replace(version, path, [added] if here is None else _copied(path, here.st_size, [added]), touched)
        work.doubtful.add(path)
        work.stamps[path] = _UNLIKE.format(after)

    def _replace(self, version: int, path: str, pieces: Iterable[bytes | tuple[str, int]], touched: set[str]) -> str:
        stamped = self._tree.stage(version, pieces, self._sync, path)
        self._tree.settle(version, path, touched)
        return stamped

    # What was edited outside -----------------------------------------------------------------------------------------

    def take_in(self, writer: Any, paths: Iterable[str], entering: Callable[[str], None]) -> Callable[[], int] | None:
        """Compare the files at or below some paths with what is known of them; None where nothing has changed.

        Else a function that makes changes of that, and says how many, within a transaction.
        """
        known: dict[str, tuple[str, str, int, str | None]] = {}
        found: dict[str, str] = {}
        for path in _outermost(paths):
            if _is_text(path):
                below = f"{_KNOWN} AND (path = ? OR path > ? AND path < ?)", (path, path + "/", path + "0")
                rows = writer.execute(*below) if path else writer.execute(_KNOWN)
                known |= {there: (ns, key, is_file, then) for there, ns, key, is_file, then in rows}
            found |= {there: stamp(state) for there, state in self._tree.scan(path, entering)}
        gone = [path for path in known if path not in found]
        changed = [
            path for path, there in found.items() if path not in known or known[path][3] != there or self._differs(path)
        ]
        if not gone and not changed:
            return None
        return lambda: self._take_in(writer, gone, changed, known, found)

    def _take_in(
        self,
        writer: Any,
        gone: list[str],
        changed: list[str],
        known: dict[str, tuple[str, str, int, str | None]],
        found: dict[str, str],
    ) -> int:
        count = 0
        for path in gone:
            ns, key, *_ = known[path]
            self._run(writer, ops.Delete(keys.decode(ns), key))
            writer.execute("DELETE FROM holdall_places WHERE path = ? AND ns IS NOT NULL", (path,))
            count += 1
        for path in sorted(changed):
            if path in known:
                ns, key, is_file, _ = known[path]
                count += self._take(writer, path, keys.decode(ns), key, bool(is_file), found[path])
                writer.execute(_STAMP, (found[path], path))
                continue
            place = place_of(path, self.volume)
            if place is None:
                logger.warning("%r cannot be the name of an entry, and is left alone", path)
                continue
            ns = keys.encode(place.namespace)
            taken = writer.execute(
                "SELECT path FROM holdall_places WHERE ns = ? AND key = ?", (ns, place.key)
            ).fetchall()
            if taken:
                logger.warning("%r would be the same entry as %r, and is left alone", path, taken[0][0])
                continue
            if self._take(writer, path, *place, found[path]):
                self._insert(writer, path, ns, place.key, place.is_file, found[path])
                count += 1
        writer.execute(_SETTLE)
        return count

    def _take(self, writer: Any, path: str, namespace: Namespace, key: str, is_file: bool, known: str) -> int:
        """Make a file an entry; whether it can be one."""
        self._remember(path, known)
        if not is_file:
            try:
                value = decode((self._tree.current(path) or b"").decode())
                put = ops.Put(namespace, key, cast(Any, encode(value)), KEEP, ANY)
            except (HoldallError, UnicodeDecodeError, RecursionError) as error:
                logger.warning("%r does not hold a JSON object, and is left alone: %s", path, error)
                return 0
            same = "SELECT 1 FROM holdall_entries WHERE ns = ? AND key = ? AND value = ? AND size IS NULL"
            if writer.execute(same, (keys.encode(namespace), key, put.value)).fetchall():  # touched, or copied
                return 0
            if is_misread(put):
                writer.execute(DOUBT_FIELDS)
            self._run(writer, put)
            return 1
        self._run(writer, ops.Put(namespace, key, ops.File(shapes.NATIVE, b""), KEEP, ANY))
        size = size_of(known)
        [(version,)] = writer.execute(
            "UPDATE holdall_entries SET size = ? WHERE ns = ? AND key = ? RETURNING version",
            (size, keys.encode(namespace), key),
        ).fetchall()
        self._refer(writer, version, f"{known}/{path}" if size else None)
        return 1

    # A clock may tick every few milliseconds only: what is changed twice in one tick has the same stamp.

    def _remember(self, path: str, known: str) -> None:
        """Of a file that was just written, what is in it."""
        if abs(time.time_ns() - int(known.split(".")[1])) < _TICK and size_of(known) <= _SMALL:
            if len(self._young) >= _MANY:
                self._young.clear()
            self._young[path] = (time.monotonic_ns(), self._digest(path))

    def _differs(self, path: str) -> bool:
        """Whether a file that somebody has written to has other contents than it had in the same tick."""
        if path not in self._young:
            return False
        then, before = self._young.pop(path)
        return time.monotonic_ns() - then < 2 * _TICK and self._digest(path) != before

    def _digest(self, path: str) -> bytes:
        return hashlib.blake2b(self._tree.current(path) or b"").digest()

    def _run(self, writer: Any, op: ops.Op) -> None:
        drive(self._sql.batch([op]), writer.run)


def _joined(names: list[str]) -> str:
    return "/".join(map(cut, names))


def _pieces(writer: Any, body: int) -> Iterator[bytes]:
    """The bytes of a body that are in the catalogue."""
    sql = "SELECT data FROM holdall_chunks WHERE body_id = ? AND typeof(data) = 'blob' ORDER BY start"
    for (data,) in writer.execute(sql, (body,)):
        yield data


def _copied(path: str, size: int, pieces: Iterable[bytes]) -> Iterator[bytes | tuple[str, int]]:
    """What a temporary file is made of: so much of another, and what follows."""
    yield path, size
    yield from pieces


def _is_text(path: str) -> bool:
    """Whether a path is UTF-8. Others may have names that are not, and then nothing there is an entry."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _outermost(paths: Iterable[str]) -> list[str]:
    """Those of some paths that are not below another."""
    outer: list[str] = []
    for path in sorted(paths, key=lambda path: path.split("/")):
        if not outer or (outer[-1] and path != outer[-1] and not path.startswith(outer[-1] + "/")):
            outer.append(path)
    return outer
