"""How the catalogue of a `disk:` store and the plain files are kept together.

Two steps, each within one transaction and under the lock that one process at a time has. `place`, before a batch is
committed: everything that it changed gets its place. `settle`, after that: the files are written, and every step of it
may have been taken before, by a process that was killed. The third, taking in what was edited outside, is in
`disk_edits.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .. import keys, shapes
from ..engine import system_clock
from ..errors import InvalidInput
from ..ops import KEEP, READS, File, Namespace, Op, Put
from ..values import indented
from .disk_names import cut, names_of, other, place_of
from .disk_sql import (
    BODY,
    CHANGED,
    DIVIDE,
    FORGET_SETTLED,
    SCHEMA,
    SETTLE,
    SETTLED,
    STAMP,
    TAKEN,
    UNSETTLED,
    insert,
    is_text,
    leap,
    refer,
)
from .disk_tree import STAGED, Stale, Tree, is_edited, is_same_file, size_of, stamp
from .history import beginning
from .sql_files import PIECE

_UNLIKE = "0.0.{}"  # a stamp as no file has it: it is to be looked at again


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
    content: bytes | None = None  # of a file, where it is not long


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
    """Both steps, on the connection that writes."""

    def __init__(self, tree: Tree, sync: bool) -> None:
        self._tree, self._sync = tree, sync
        self.volume: Namespace = ("filesystem",)
        self.ready: list[_Ready] = []  # what is staged and committed
        self.unsynced: set[str] = set()  # folders whose names may not survive a power cut
        self.newest: int | None = None  # version, where all up to it is settled and nobody else has written since
        self._placed: int | None = None  # that which it will be
        self.is_one_new = False  # all that the batch has changed is one new entry
        self._boot = _boot()

    def migrate(self, writer: Any, volume: Namespace | None) -> None:
        """See that the tables are there, and which volume lies in the folder itself."""
        if not writer.execute("SELECT 1 FROM sqlite_schema WHERE name = 'holdall_places'").fetchall():
            self.volume = volume or self.volume
            writer.execute(SCHEMA)
            writer.execute("INSERT INTO holdall_state VALUES ('volume', ?)", (keys.encode(self.volume),))
            writer.execute("INSERT INTO holdall_state VALUES ('boot', ?)", (self._boot,))
            if not self._tree.is_empty():  # versions go on where those of a catalogue that is gone may have been
                writer.run([beginning(system_clock())])
            return
        if not writer.execute(
            "SELECT 1 FROM sqlite_schema WHERE name = 'holdall_doomed' AND type = 'table'"
        ).fetchall():
            if not writer.execute("SELECT 1 FROM pragma_table_info('holdall_places') WHERE name = 'before'").fetchall():
                writer.execute("ALTER TABLE holdall_places ADD COLUMN before TEXT")
            writer.execute(DIVIDE)
        writer.execute(FORGET_SETTLED)
        leap(writer, self._boot)
        [(known,)] = writer.execute("SELECT value FROM holdall_state WHERE name = 'volume'").fetchall()
        self.volume = keys.decode(known)
        if volume not in (None, self.volume):
            raise InvalidInput(
                f"the folder {self._tree.root!r} holds the files of {self.volume!r}, not of {volume!r};"
                " leave volume= out, or name another folder"
            )

    # Before a batch is committed -------------------------------------------------------------------------------------

    def may_be_told_by_file(self, batch: Sequence[Op]) -> bool:
        """Whether all that a batch does is, most likely, to make one new entry of which a plain file says everything.

        Then the file is what has to survive a power cut, and the catalogue need not: it takes in what it has lost, as
        if it had been edited outside. `place` sees whether the entry is new: `is_one_new`.
        """
        changes = [op for op in batch if type(op) not in READS]
        op = changes[0]
        if not (self._sync and self._boot) or len(changes) > 1 or type(op) is not Put:
            return False
        is_file = type(op.value) is File
        if not (op.ttl is None or op.ttl is KEEP) or op.index is not None or op.vectors is not None:
            return False
        if is_file and op.value.shape != shapes.NATIVE:  # type: ignore[union-attr]  # a File
            return False
        path = _joined(names_of(op.namespace, op.key, is_file, self.volume))
        is_told = place_of(path, self.volume) == (op.namespace, op.key, is_file)  # not of what is holdall's own
        return is_told and self._tree.there(path) is None

    def look(self, writer: Any) -> None:
        """See which version is the last, before a batch."""
        if self.newest is None:
            [(self.newest,)] = writer.execute("SELECT coalesce(max(version), 0) FROM holdall_entries").fetchall()

    def place(self, writer: Any, is_one_change: bool) -> None:
        """Give what a batch has changed its place; what has left its own is to be removed.

        Where there is nothing but new contents, these are staged at once, and settled with the commit but for a rename:
        whoever finds a temporary file with an entry's stamp knows that it was not made any more.
        """
        before, self.newest, self.ready, self._placed = self.newest, None, [], None
        self.is_one_new = False
        rows = writer.execute(
            f"SELECT entry.version, entry.ns, entry.key, entry.value, entry.body, entry.size,"
            f" place.path, place.is_file, place.stamp {CHANGED} ORDER BY entry.ns, entry.key",
            (before,),
        ).fetchall()
        left: list[tuple[str, str, str]] = []
        live: list[_Changed] = []
        for version, ns, key, value, body, size, path, was_file, known in rows:
            if _is_hidden(ns):
                continue
            stays = path is not None and value is not None and bool(was_file) is (size is not None)
            if path is not None and not stays:
                left.append((path, ns, key))
            if value is not None:
                there = (path, known) if stays else (None, None)
                live.append(_Changed(version, ns, key, value, body, size, *there))
        if left:
            writer.executemany("INSERT OR IGNORE INTO holdall_doomed VALUES (?)", [(path,) for path, *_ in left])
            writer.executemany("DELETE FROM holdall_places WHERE ns = ? AND key = ?", [whose for _, *whose in left])
            self._refuse_unwritable([path for path, *_ in left], is_new=False)
        if not left and all(one.size is None or self._is_new(writer, one) for one in live):
            self._settle_at_once(writer, live, is_one_change)
            self._placed = max((row[0] for row in rows), default=before)
            return
        for one in live:
            if one.path is None:
                one.path = self._free_place(writer, one)
                insert(writer, self._tree, one.path, one.ns, one.key, one.size is not None, None)
        self._refuse_unwritable([str(one.path) for one in live], is_new=True)
        writer.execute(UNSETTLED, (str(before),))

    @property
    def is_settled_at_once(self) -> bool:
        """Whether the batch that was committed has nothing left to do but to `finish`."""
        return self._placed is not None

    def _is_new(self, writer: Any, one: _Changed) -> bool:
        """Whether all the bytes of a file are in the catalogue."""
        assert one.size is not None
        if not 0 < one.size <= PIECE:
            return self._reference(writer, one.body) is None
        rows = writer.execute("SELECT data FROM holdall_chunks WHERE body_id = ? AND start = 0", (one.body,)).fetchall()
        if type(rows[0][0]) is str:
            return False
        if len(rows[0][0]) == one.size:
            one.content = rows[0][0]
        return True

    def _refuse_unwritable(self, paths: Iterable[str], is_new: bool) -> None:
        """What could never be settled must not be committed: everybody would wait for it."""
        folders = {path.rpartition("/")[0]: path for path in paths}
        for path in folders.values():
            self._tree.refuse_unwritable(path, is_new)

    def _settle_at_once(self, writer: Any, live: list[_Changed], is_one_change: bool) -> None:
        self.is_one_new = is_one_change and len(live) == 1 and live[0].path is None
        writable = None
        for one in live:
            place, one.path = one.path, one.path or self._free_place(writer, one, is_alone=len(live) == 1)
            if writable != (writable := one.path.rpartition("/")[0]):
                self._tree.refuse_unwritable(one.path, is_new=True)
            there = self._tree.there(one.path)
            if is_edited(there, one.stamp):  # and this comes after that
                raise Stale(one.path)
            self.ready.append(_Ready(one.version, one.path, "", one.stamp))
            known = self._tree.stage(one.version, self._contents(writer, one), self._sync, there)
            self.ready[-1] = _Ready(one.version, one.path, known, one.stamp)
            if place is None:
                insert(writer, self._tree, one.path, one.ns, one.key, one.size is not None, known)
            else:
                writer.execute(STAMP, (known, self._tree.folded(place)))
        # Else what is committed could be lost with its name in that folder. Of a single new entry, it may, until it is
        # at its place, and that is waited for: then it was never there.
        if self._sync and not self.is_one_new:
            self._tree.sync_staged()
        writer.executemany(BODY, [(one.version,) for one in live if one.size is not None and one.body != one.version])
        for one, ready in zip(live, self.ready, strict=True):
            if one.content is not None and one.body == one.version:  # one piece, which is there
                sql = "UPDATE holdall_chunks SET data = ? WHERE body_id = ? AND start = 0"
                writer.execute(sql, (f"{ready.stamp}/{one.path}", one.body))
            elif one.size is not None:
                refer(writer, one.version, f"{ready.stamp}/{one.path}" if one.size else None)

    def _contents(self, writer: Any, one: _Changed) -> Iterable[bytes]:
        """What is to be in the file of an entry."""
        if one.size is None:
            return (indented(one.value),)
        return _pieces(writer, one.body) if one.content is None else (one.content,)

    def discard(self) -> None:
        """The batch was not committed."""
        for one in self.ready:
            self._tree.unstage(one.version)
        self.ready = []
        self._tree.let_go()

    def finish(self) -> tuple[dict[str, str], set[str]]:
        """The batch was committed: bring what was staged to its place; the files' stamps, and what was edited.

        What somebody has put there since, perhaps while no process was there, is newer, and stays.
        """
        touched: set[str] = set()
        written: dict[str, str] = {}
        edited: set[str] = set()
        try:
            for one in self.ready:
                if self._tree.is_edited(one.path, one.before, one.stamp):
                    self._tree.unstage(one.version)
                    edited.add(one.path)
                else:
                    self._tree.settle(one.version, one.path, touched)
                    written[one.path] = one.stamp
        except Exception:  # it stays where it is staged, and there it has to survive
            self.sync({*touched, STAGED})
            raise
        self.ready = []
        self.sync(touched)
        self.newest, self._placed = self._placed, None
        return written, edited

    def sync(self, touched: Iterable[str] = ()) -> None:
        """Have the names in these folders survive a power cut, and those that an earlier try has left."""
        if self._sync:
            self.unsynced.update(touched)
            self._tree.sync(self.unsynced)
            self.unsynced.clear()

    def _free_place(self, writer: Any, one: _Changed, is_alone: bool = False) -> str:
        """Where a new entry can go. Of one that is alone, what is in the folder says enough."""
        names = names_of(keys.decode(one.ns), one.key, one.size is not None, self.volume)
        path = _joined(names)
        if not self._tree.folds and (is_alone or self._has_no_neighbours(writer, path)) and self._tree.is_free(path):
            return path  # the usual case
        for depth in range(len(names)):
            while self._is_taken(writer, names[: depth + 1], depth == len(names) - 1):
                names[depth] = other(names[depth])
        return _joined(names)

    def _has_no_neighbours(self, writer: Any, path: str) -> bool:
        """Whether no entry has its place there, or where there would have to be a folder, or below."""
        places = [path[:end] for end, letter in enumerate(path) if letter == "/"]
        here = ", ".join("?" * (len(places) + 1))
        taken = f"{TAKEN} IN ({here}) UNION ALL SELECT * FROM ({TAKEN} > ? AND folded < ? LIMIT 1)"
        return not writer.execute(taken, (*places, path, path + "/", path + "0")).fetchall()

    def _is_taken(self, writer: Any, names: list[str], is_last: bool) -> bool:
        """Whether something is there that has to stay: a file, where a folder is to be, or the other way round.

        Where "A" and "a" are the same to the file system, also a folder of the other name.
        """
        path = _joined(names)
        folded = self._tree.folded(path)
        if writer.execute(f"{TAKEN} = ?", (folded,)).fetchall():
            return True
        if is_last or self._tree.folds:
            inside = writer.execute(f"{TAKEN} > ? AND folded < ? LIMIT 1", (folded + "/", folded + "0")).fetchall()
            if inside and (is_last or not inside[0][0].startswith(path + "/")):
                return True
        obstacles = self._tree.obstacles(path, is_last)
        doomed = "SELECT 1 FROM holdall_doomed WHERE path = ?"
        return any(not is_text(there) or not writer.execute(doomed, (there,)).fetchall() for there in obstacles)

    # After it --------------------------------------------------------------------------------------------------------

    def is_settled(self, writer: Any) -> bool:
        return not writer.execute(SETTLED).fetchall()

    def settle(self, writer: Any, again: bool) -> tuple[dict[str, str], set[str]]:
        """Write what is in the catalogue alone to its place: the files' stamps, and what has to be looked at again.

        `again`: somebody may have begun with it before.
        """
        [(settled,)] = writer.execute(SETTLED).fetchall()
        rows = writer.execute(
            f"SELECT entry.version, entry.value, entry.body, entry.size, place.path, place.stamp"
            f"{CHANGED} AND place.path IS NOT NULL ORDER BY entry.version",
            (settled,),
        ).fetchall()
        doomed = dict(writer.execute("SELECT path, 0 FROM holdall_doomed").fetchall())
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
                work.stamps[path] = self._tree.stage(version, pieces, self._sync, self._tree.there(path))
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
        writer.executemany(BODY, [(version,) for version, _, _, size, *_ in rows if size is not None])
        for version, _, _, size, path, _ in rows:
            if size is not None:
                refer(writer, version, f"{work.stamps[path]}/{path}" if size else None)
        writer.executemany(STAMP, [(known, self._tree.folded(path)) for path, known in work.stamps.items()])
        writer.execute("DELETE FROM holdall_doomed")
        writer.execute(SETTLE)
        return dict.fromkeys(doomed, "") | work.stamps, work.doubtful

    def _is_edited(self, path: str, before: str | None, pieces: Iterable[bytes]) -> bool:
        """Whether a file is neither what it was nor, by somebody who was killed, what is to be written."""
        return self._tree.is_edited(path, before) and self._tree.current(path) != b"".join(pieces)

    def _reference(self, writer: Any, body: int) -> str | None:
        """The plain file that a body begins with, if it does."""
        sql = "SELECT data FROM holdall_chunks WHERE body_id = ? AND start = 0 AND typeof(data) = 'text'"
        rows = writer.execute(sql, (body,)).fetchall()
        return rows[0][0] if rows else None

    def recover(self, writer: Any) -> list[int]:
        """Find what a killed process had staged and committed, for `finish`; the versions of what else it staged."""
        self.ready, self._placed, strays = [], None, []
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
                staged = self._tree.stage(version, pieces, self._sync, self._tree.there(source))
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
        stamped = self._tree.stage(version, pieces, self._sync, self._tree.there(path))
        self._tree.settle(version, path, touched)
        return stamped


def _boot() -> str:
    """What tells the time since the system was started from any other; "" where it does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _is_hidden(ns: str) -> bool:
    return keys.HIDDEN[0] <= ns < keys.HIDDEN[1]


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
