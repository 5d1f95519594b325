"""Keeps the catalogue of a `disk:` store and its plain files consistent, also when a process is killed.

The engine calls this on the connection that writes, while it holds the store's lock. A write has two phases:

1. Before the commit, in the transaction of the batch, `prepare` gives each changed entry a path. If the batch has only
   new contents, as most have, `prepare` stages them as files, and the catalogue refers to those. If it moves, removes,
   copies or appends, the new bytes stay in the catalogue, and the changes are recorded as *pending*.
2. After the commit, `publish_staged` renames the staged files to their paths, or `apply_pending` writes, moves and
   removes files, and replaces the bytes in the catalogue by references.

The commit decides. A crash before it leaves staged files that no entry refers to, and they are removed. A crash after
it leaves staged files whose stamps the catalogue has, or pending changes. The next process that takes the lock finds
them and repeats the second phase; each of its steps may be repeated. A file that another program has changed since the
commit is never overwritten: that edit is newer. `external_edits.py` imports such edits.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...engine import system_clock
from ...errors import InvalidInput
from ...model import keys
from ...model.values import indent_json
from ...ops import Namespace
from ..sql.feed import insert_first_entry
from ..sql.files import PIECE
from .dialect import (
    DELETE_APPLIED_VERSION,
    DELETE_UNUSED,
    FROM_CHANGED_ENTRIES,
    INSERT_APPLIED_VERSION,
    SCHEMA,
    SELECT_APPLIED_VERSION,
    SELECT_OLD_FILES,
    SELECT_PATH_WHERE,
    UNSHARE_BODY,
    UPDATE_STAMP,
    insert_file,
    is_utf8,
    set_reference,
)
from .file_names import build_alternative, build_names, split_long_name
from .folder import STAGING_FOLDER, FileChanged, Folder
from .stamps import get_size, has_same_inode, is_edited, is_unreadable, make_stamp


@dataclass(slots=True)
class _ChangedEntry:
    """An entry that a batch has written."""

    version: int
    ns: str
    key: str
    value: str
    body: int
    size: int | None  # of a file; None for an item
    path: str | None  # None: it has no file yet
    stamp: str | None  # of its file before the batch
    content: bytes | None = None  # all bytes of a file that is one piece


class _StagedFile(NamedTuple):
    version: int
    path: str
    stamp: str
    replaced: str | None  # the stamp of the file that it replaces


class _MovedFile(NamedTuple):
    """A file whose bytes are those of a file at another path."""

    version: int
    body: int
    path: str
    reference: str  # the file at the other path
    size: int


class _GrownFile(NamedTuple):
    version: int
    path: str
    stamp: str  # before
    body: int  # has the reference to the file, and the bytes to append


@dataclass(slots=True)
class _FileChanges:
    """What `apply_pending` has to do with the files, and what results from it."""

    staged: list[tuple[int, str]] = field(default_factory=list)  # versions and paths of files to publish
    grown: list[_GrownFile] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)  # paths of files that stay, though bytes may be appended to them
    stamps: dict[str, str] = field(default_factory=dict)  # the new stamp of the file at each path
    edited: set[str] = field(default_factory=set)  # paths of files that another program has edited meanwhile

    def keep_edit(self, path: str, size: int | None) -> None:
        """Leave an edited file as it is. It gets a stamp that no file has, and is imported by the next comparison."""
        self.edited.add(path)
        self.stamps[path] = _impossible_stamp(size)


class Catalogue:
    """Both phases of a write."""

    def __init__(self, folder: Folder, sync: bool) -> None:
        self._folder, self._sync = folder, sync
        self.volume: Namespace = ("filesystem",)
        self.is_copied = False  # the folder was copied, so that its files have other inodes than the stamps
        self.staged_files: list[_StagedFile] = []  # of the batch that is being written, or committed ones to publish
        self.unsynced_folders: set[str] = set()  # their names may not survive a power cut
        # The newest version of all entries. Known while all files are up to date, and no other process has written.
        self.newest_version: int | None = None
        self._version_when_published: int | None = None  # the next value of `newest_version`

    def set_up(self, writer: Any, volume: Namespace | None) -> None:
        """Create the tables, or read which volume is stored in the folder itself, and whether the folder is a copy."""
        if not writer.execute("SELECT 1 FROM sqlite_schema WHERE name = 'holdall_places'").fetchall():
            self.volume = volume or self.volume
            writer.execute(SCHEMA)
            writer.execute("INSERT INTO holdall_state VALUES ('volume', ?)", (keys.encode(self.volume),))
            self.record_identity(writer)
            if not self._folder.is_empty():  # the catalogue may have been deleted: continue above its versions
                writer.run([insert_first_entry(system_clock())])
            return
        state = dict(writer.execute("SELECT name, value FROM holdall_state WHERE name IN ('volume', 'identity')"))
        self.is_copied = state.get("identity") != self._folder.identity
        self.volume = keys.decode(state["volume"])
        if volume not in (None, self.volume):
            raise InvalidInput(
                f"the folder {self._folder.root!r} holds the files of {self.volume!r}, not of {volume!r};"
                " leave volume= out, or name another folder"
            )

    def record_identity(self, writer: Any) -> None:
        """Record that the stamps are those of the files in this folder."""
        writer.execute("INSERT OR REPLACE INTO holdall_state VALUES ('identity', ?)", (self._folder.identity,))

    # Before the commit -----------------------------------------------------------------------------------------------

    def read_newest_version(self, writer: Any) -> None:
        """Read the newest version, if it is not known: all above it are changes of the batch that follows."""
        if self.newest_version is None:
            sql = "SELECT coalesce(max(version), 0) FROM holdall_entries"
            [(self.newest_version,)] = writer.execute(sql).fetchall()

    def prepare(self, writer: Any, is_one_change: bool) -> None:
        """Give each changed entry a path, and stage its file, or record the changes as pending."""
        before = self.newest_version
        self.newest_version = self._version_when_published = None
        self.staged_files = []
        self._copy_old_contents(writer, before or 0)
        rows = writer.execute(
            f"SELECT entry.version, entry.ns, entry.key, entry.value, entry.body, entry.size,"
            f" place.path, place.is_file, place.stamp {FROM_CHANGED_ENTRIES} ORDER BY entry.ns, entry.key",
            (before,),
        ).fetchall()
        left: list[tuple[str, str, str]] = []  # paths that their entries no longer use, and these entries
        changed: list[_ChangedEntry] = []
        for version, ns, key, value, body, size, path, was_file, stamp in rows:
            if _is_hidden(ns):
                continue
            keeps_path = path is not None and value is not None and bool(was_file) is (size is not None)
            if path is not None and not keeps_path:
                left.append((path, ns, key))
            if value is not None:
                old = (path, stamp) if keeps_path else (None, None)
                changed.append(_ChangedEntry(version, ns, key, value, body, size, *old))
        if left:
            writer.executemany("INSERT OR IGNORE INTO holdall_doomed VALUES (?)", [(path,) for path, *_ in left])
            writer.executemany("DELETE FROM holdall_places WHERE ns = ? AND key = ?", [entry for _, *entry in left])
            self._check_writable([path for path, *_ in left], is_new=False)
        if not left and all(entry.size is None or self._has_only_new_bytes(writer, entry) for entry in changed):
            self._stage_all(writer, changed, is_one_change)
            self._version_when_published = max((row[0] for row in rows), default=before)
            return
        for entry in changed:
            if entry.path is None:
                entry.path = self._choose_path(writer, entry)
                is_file = entry.size is not None
                insert_file(writer, self._folder, entry.path, entry.ns, entry.key, is_file, None)
        self._check_writable([str(entry.path) for entry in changed], is_new=True)
        self._check_readable(writer, [entry.body for entry in changed if entry.size is not None])
        writer.execute(INSERT_APPLIED_VERSION, (str(before),))

    def _copy_old_contents(self, writer: Any, before: int) -> None:
        """Copy the contents of files that the batch replaces into the catalogue, for the history.

        A plain file is about to be replaced, moved or removed, and other programs may write to it in place.
        """
        for ended, body, size in writer.execute(SELECT_OLD_FILES, (before,)).fetchall():
            pieces = writer.execute(
                "SELECT start, data FROM holdall_chunks WHERE body_id = ? AND start < ? ORDER BY start", (body, size)
            ).fetchall()
            content = b"".join(self._folder.read(data) if type(data) is str else data for _, data in pieces)[:size]
            rows = [(-ended, start, content[start : start + PIECE]) for start in range(0, size, PIECE)]
            writer.executemany("INSERT INTO holdall_chunks VALUES (?, ?, ?)", rows)
            writer.execute("UPDATE holdall_history SET body = ? WHERE ended = ?", (-ended, ended))
            writer.execute(DELETE_UNUSED, (body,))

    def drop_lost_contents(self, writer: Any) -> None:
        """Remove old versions of files that another program has changed: their contents are gone."""
        for ended, body, _ in writer.execute(SELECT_OLD_FILES, (0,)).fetchall():
            writer.execute("DELETE FROM holdall_history WHERE ended = ?", (ended,))
            writer.execute(DELETE_UNUSED, (body,))

    @property
    def is_batch_staged(self) -> bool:
        """Whether `publish_staged` completes the batch that `prepare` was called for; else `apply_pending` does."""
        return self._version_when_published is not None

    def _has_only_new_bytes(self, writer: Any, entry: _ChangedEntry) -> bool:
        """Whether all bytes of a file are in the catalogue, and none in another file. Keeps them if they are few."""
        assert entry.size is not None
        if not 0 < entry.size <= PIECE:
            return self._get_reference(writer, entry.body) is None
        sql = "SELECT data FROM holdall_chunks WHERE body_id = ? AND start = 0"
        [(data,)] = writer.execute(sql, (entry.body,)).fetchall()
        if type(data) is str:
            return False
        if len(data) == entry.size:
            entry.content = data
        return True

    def _check_writable(self, paths: Iterable[str], is_new: bool) -> None:
        """Raise an `OSError` for changes that could never be applied: once committed, they would block all others."""
        one_in_each_folder = {path.rpartition("/")[0]: path for path in paths}
        for path in one_in_each_folder.values():
            self._folder.check_writable(path, is_new)

    def _check_readable(self, writer: Any, bodies: Iterable[int]) -> None:
        """Raise an `OSError` for a file that would have to be copied, but may not be read."""
        for body in bodies:
            reference = self._get_reference(writer, body)
            if reference is not None and is_unreadable(reference):
                raise PermissionError(errno.EACCES, f"{reference.partition('/')[2]!r}: {os.strerror(errno.EACCES)}")

    def _stage_all(self, writer: Any, changed: list[_ChangedEntry], is_one_change: bool) -> None:
        """Stage the files of all changed entries, and let the catalogue refer to them."""
        is_one_new_entry = is_one_change and len(changed) == 1 and changed[0].path is None
        checked_folder = None
        for entry in changed:
            is_new = entry.path is None
            path = entry.path = entry.path or self._choose_path(writer, entry, is_alone=len(changed) == 1)
            if checked_folder != (checked_folder := path.rpartition("/")[0]):
                self._folder.check_writable(path, is_new=True)
            state = self._folder.stat_before_write(path)
            if is_edited(state, entry.stamp):  # the edit comes first: import it, then run the batch again
                raise FileChanged(path)
            self.staged_files.append(_StagedFile(entry.version, path, "", entry.stamp))
            stamp = self._folder.stage(entry.version, self._get_content(writer, entry), self._sync, state)
            self.staged_files[-1] = _StagedFile(entry.version, path, stamp, entry.stamp)
            if is_new:
                insert_file(writer, self._folder, path, entry.ns, entry.key, entry.size is not None, stamp)
            else:
                writer.execute(UPDATE_STAMP, (stamp, self._folder.fold(path)))
        # Without this, a power cut could take the only name of a committed file. A single new entry does not need it,
        # which saves one fsync of four: the write returns after the final name is synced, and if the file is lost
        # before, the entry counts as deleted.
        if self._sync and not is_one_new_entry:
            self._folder.sync_staging()
        shared = [(entry.version,) for entry in changed if entry.size is not None and entry.body != entry.version]
        writer.executemany(UNSHARE_BODY, shared)
        for entry, staged in zip(changed, self.staged_files, strict=True):
            if entry.size is not None:
                set_reference(writer, entry.version, f"{staged.stamp}/{staged.path}" if entry.size else None)

    def _get_content(self, writer: Any, entry: _ChangedEntry) -> Iterable[bytes]:
        """Return the bytes of the file of an entry."""
        if entry.size is None:
            return (indent_json(entry.value),)
        return _read_pieces(writer, entry.body) if entry.content is None else (entry.content,)

    def _choose_path(self, writer: Any, entry: _ChangedEntry, is_alone: bool = False) -> str:
        """Return a free path for a new entry.

        `is_alone`: it is the only change. Then the catalogue matches the folder, and only the folder is checked.
        """
        names = build_names(keys.decode(entry.ns), entry.key, entry.size is not None, self.volume)
        path = _join(names)
        if (
            not self._folder.is_case_insensitive
            and (is_alone or self._is_unused(writer, path))
            and self._folder.is_free(path)
        ):
            return path
        for depth in range(len(names)):
            while self._is_taken(writer, names[: depth + 1], depth == len(names) - 1):
                names[depth] = build_alternative(names[depth])
        return _join(names)

    def _is_unused(self, writer: Any, path: str) -> bool:
        """Whether no entry has this path, a path below it, or the path of a folder that it is in."""
        folders = [path[:end] for end, letter in enumerate(path) if letter == "/"]
        placeholders = ", ".join("?" * (len(folders) + 1))
        below = f"SELECT * FROM ({SELECT_PATH_WHERE} > ? AND folded < ? LIMIT 1)"
        sql = f"{SELECT_PATH_WHERE} IN ({placeholders}) UNION ALL {below}"
        return not writer.execute(sql, (*folders, path, path + "/", path + "0")).fetchall()

    def _is_taken(self, writer: Any, names: list[str], is_last: bool) -> bool:
        """Whether a path is taken: by a file, if a folder is needed there, or the other way round.

        On a case-insensitive file system, a folder whose name differs only in case takes it too.
        """
        path = _join(names)
        folded = self._folder.fold(path)
        if writer.execute(f"{SELECT_PATH_WHERE} = ?", (folded,)).fetchall():
            return True
        if is_last or self._folder.is_case_insensitive:
            sql = f"{SELECT_PATH_WHERE} > ? AND folded < ? LIMIT 1"
            inside = writer.execute(sql, (folded + "/", folded + "0")).fetchall()
            if inside and (is_last or not inside[0][0].startswith(path + "/")):
                return True
        is_doomed = "SELECT 1 FROM holdall_doomed WHERE path = ?"
        return any(
            not is_utf8(obstacle) or not writer.execute(is_doomed, (obstacle,)).fetchall()
            for obstacle in self._folder.find_obstacles(path, is_last)
        )

    def discard_staged(self) -> None:
        """Remove the staged files of a batch that was not committed."""
        for staged in self.staged_files:
            self._folder.remove_staged(staged.version)
        self.staged_files = []
        self._folder.release_parent()

    # After the commit: staged files ----------------------------------------------------------------------------------

    def publish_staged(self) -> tuple[dict[str, str], set[str]]:
        """Rename committed staged files to their paths. Return their stamps by path, and the paths of edited files.

        A file that another program has changed since the commit is newer than the staged one, and stays.
        """
        changed_folders: set[str] = set()
        published: dict[str, str] = {}
        edited: set[str] = set()
        try:
            for staged in self.staged_files:
                if self._folder.is_edited(staged.path, staged.replaced, staged.stamp):
                    self._folder.remove_staged(staged.version)
                    edited.add(staged.path)
                else:
                    self._folder.publish(staged.version, staged.path, changed_folders)
                    published[staged.path] = staged.stamp
        except Exception:  # the others stay staged, and must survive a power cut there
            self.sync_folders({*changed_folders, STAGING_FOLDER})
            raise
        self.staged_files = []
        self.sync_folders(changed_folders)
        self.newest_version, self._version_when_published = self._version_when_published, None
        return published, edited

    def sync_folders(self, folders: Iterable[str] = ()) -> None:
        """Fsync folders, and those where an earlier attempt failed."""
        if self._sync:
            self.unsynced_folders.update(folders)
            self._folder.sync_folders(self.unsynced_folders)
            self.unsynced_folders.clear()

    def find_committed_staged(self, writer: Any) -> list[int]:
        """Find staged files that a killed process had committed, for `publish_staged`; return all other versions."""
        self.staged_files, self._version_when_published = [], None
        uncommitted: list[int] = []
        for version in self._folder.list_staged():
            rows = writer.execute(
                "SELECT path, stamp, before FROM holdall_entries AS entry JOIN holdall_places AS place"
                " ON place.ns = entry.ns AND place.key = entry.key WHERE entry.version = ?",
                (version,),
            ).fetchall()
            if rows and rows[0][1] == self._folder.get_staged_stamp(version):
                self.staged_files.append(_StagedFile(version, *rows[0]))
            else:
                uncommitted.append(version)
        return uncommitted

    def remove_staged(self, versions: list[int]) -> None:
        """Remove staged files that were never committed."""
        for version in versions:
            self._folder.remove_staged(version)

    # After the commit: pending changes -------------------------------------------------------------------------------

    def has_pending(self, writer: Any) -> bool:
        """Whether committed changes have yet to be applied to the files."""
        return bool(writer.execute(SELECT_APPLIED_VERSION).fetchall())

    def apply_pending(self, writer: Any, is_retry: bool) -> tuple[dict[str, str], set[str]]:
        """Apply pending changes to the files. Return the files' stamps by path, and the paths of edited files.

        `is_retry`: an earlier attempt may have done some of the steps.
        """
        [(applied_version,)] = writer.execute(SELECT_APPLIED_VERSION).fetchall()
        rows = writer.execute(
            f"SELECT entry.version, entry.value, entry.body, entry.size, place.path, place.stamp"
            f"{FROM_CHANGED_ENTRIES} AND place.path IS NOT NULL ORDER BY entry.version",
            (applied_version,),
        ).fetchall()
        doomed = dict(writer.execute("SELECT path, 0 FROM holdall_doomed").fetchall())
        paths = {row[4] for row in rows}
        references = {body: self._get_reference(writer, body) for _, _, body, size, *_ in rows if size is not None}
        sources = {reference.partition("/")[2] for reference in references.values() if reference is not None}
        changes = _FileChanges()
        changed_folders: set[str] = set()
        for path in doomed.keys() - paths - sources:  # first: if the disk is full, the other steps need this space
            self._folder.remove(path, changed_folders)
        moved: list[_MovedFile] = []
        for version, value, body, size, path, stamp in rows:
            reference = references.get(body)
            if reference is None:
                pieces = [indent_json(value)] if size is None else _read_pieces(writer, body)
                if path not in doomed and self._is_edited(path, stamp, pieces):
                    changes.keep_edit(path, size)
                    continue
                pieces = [indent_json(value)] if size is None else _read_pieces(writer, body)
                state = self._folder.stat_before_write(path)
                changes.stamps[path] = self._folder.stage(version, pieces, self._sync, state)
                changes.staged.append((version, path))
                continue
            known, _, source = reference.partition("/")
            if source != path:
                moved.append(_MovedFile(version, body, path, reference, size))
                continue
            changes.stamps[path] = known
            changes.kept.add(path)
            if size > get_size(known):
                changes.grown.append(_GrownFile(version, path, known, body))
        if moved:
            self._stage_moved(writer, changes, moved, {*doomed, *paths} - changes.kept, is_retry)
        for path in (doomed.keys() - paths) & sources:
            self._folder.remove(path, changed_folders)
        for version, path in changes.staged:
            self._folder.publish(version, path, changed_folders, may_be_link=bool(moved))
        for grown in changes.grown:
            self._append(writer, changes, grown, is_retry, changed_folders)
        one_in_each_folder = {path.rpartition("/")[0]: path for path in doomed}
        for path in one_in_each_folder.values():
            self._folder.remove_empty_parents(path, changed_folders)
        self.sync_folders(changed_folders)
        for _, _, _, size, path, _ in rows:
            if size is not None and get_size(changes.stamps[path]) != size:
                changes.keep_edit(path, size)
        # Before any reference changes, each entry gets a body of its own: others may still refer to a shared one.
        writer.executemany(UNSHARE_BODY, [(version,) for version, _, _, size, *_ in rows if size is not None])
        for version, _, _, size, path, _ in rows:
            if size is not None:
                set_reference(writer, version, f"{changes.stamps[path]}/{path}" if size else None)
        stamps = [(stamp, self._folder.fold(path)) for path, stamp in changes.stamps.items()]
        writer.executemany(UPDATE_STAMP, stamps)
        writer.execute("DELETE FROM holdall_doomed")
        writer.execute(DELETE_APPLIED_VERSION)
        return dict.fromkeys(doomed, "") | changes.stamps, changes.edited

    def _is_edited(self, path: str, stamp: str | None, pieces: Iterable[bytes]) -> bool:
        """Whether a file is neither as it was, nor what a killed process was about to write."""
        if not self._folder.is_edited(path, stamp):
            return False
        try:
            return self._folder.read_current(path) != b"".join(pieces)
        except PermissionError:
            return True

    def _get_reference(self, writer: Any, body: int) -> str | None:
        """Return the reference that a body starts with; None if it starts with bytes, or is empty."""
        sql = "SELECT data FROM holdall_chunks WHERE body_id = ? AND start = 0 AND typeof(data) = 'text'"
        rows = writer.execute(sql, (body,)).fetchall()
        return rows[0][0] if rows else None

    def _stage_moved(
        self, writer: Any, changes: _FileChanges, moved: list[_MovedFile], left: set[str], is_retry: bool
    ) -> None:
        """Stage files that come from another path: as a hard link if that path is left, else as a copy.

        `left` has the paths whose present files no entry needs. A linked one is taken out, so that the next entry with
        the same source gets a copy.
        """
        for version, body, path, reference, size in moved:
            known, _, source = reference.partition("/")
            source_state = self._folder.stat(source)
            has_appended_bytes = size > get_size(known)
            if source_state is None or make_stamp(source_state) != known:  # moved by an earlier attempt, or edited
                state = self._folder.stat(path)
                staged = self._folder.get_staged_stamp(version) if is_retry else None
                if staged is not None and get_size(staged) == size:  # it was staged completely
                    changes.stamps[path] = staged
                    changes.staged.append((version, path))
                    continue
                if is_retry and state is not None and (has_same_inode(known, state) or state.st_size == size):
                    changes.stamps[path] = make_stamp(state)
                    continue
                changes.edited.add(path)
                if source_state is None:
                    changes.stamps[path] = ""
                    continue
            if source in left and not has_appended_bytes and self._folder.stage_link(version, source):
                left.discard(source)
                changes.stamps[path] = known
            else:
                is_source_edited = path in changes.edited
                copied = source_state.st_size if is_source_edited else get_size(known)
                pieces = _prepend_file(source, copied, _read_pieces(writer, body))
                state = self._folder.stat_before_write(source)
                staged = self._folder.stage(version, pieces, self._sync, state)
                changes.stamps[path] = _impossible_stamp(size) if is_source_edited else staged
            changes.staged.append((version, path))
        if self._sync:
            self._folder.sync_staging()

    def _append(
        self, writer: Any, changes: _FileChanges, grown: _GrownFile, is_retry: bool, changed_folders: set[str]
    ) -> None:
        """Append bytes at the end of a file, wherever that is: another program may have appended to it just now."""
        version, path, known, body = grown
        added = b"".join(_read_pieces(writer, body))
        size_before, size_after = get_size(known), get_size(known) + len(added)
        state = self._folder.stat(path)
        if state is not None and has_same_inode(known, state) and state.st_size >= size_before:
            already = (self._folder.read_current(path, size_before, len(added)) or b"") if is_retry else b""
            missing = added.removeprefix(already)  # a killed process may have appended some of the bytes
            try:
                stamp = self._folder.append(path, missing, self._sync)
            except PermissionError:  # a read-only file can still be replaced
                stamp = self._replace(version, path, _prepend_file(path, state.st_size, [missing]), changed_folders)
            if get_size(stamp) == size_after:
                changes.stamps[path] = stamp
                return
        else:
            pieces = [added] if state is None else _prepend_file(path, state.st_size, [added])
            self._replace(version, path, pieces, changed_folders)
        changes.keep_edit(path, size_after)

    def _replace(
        self, version: int, path: str, pieces: Iterable[bytes | tuple[str, int]], changed_folders: set[str]
    ) -> str:
        stamp = self._folder.stage(version, pieces, self._sync, self._folder.stat_before_write(path))
        self._folder.publish(version, path, changed_folders)
        return stamp


def _impossible_stamp(size: int | None) -> str:
    """Return a stamp that no file has, so that the next comparison finds the file edited."""
    return f"0.0.{size or 0}"


def _is_hidden(ns: str) -> bool:
    """Whether a namespace is for holdall's own entries, which have no files."""
    return keys.is_reserved(ns)


def _join(names: list[str]) -> str:
    return "/".join(map(split_long_name, names))


def _read_pieces(writer: Any, body: int) -> Iterator[bytes]:
    """Yield the bytes of a body that are in the catalogue."""
    sql = "SELECT data FROM holdall_chunks WHERE body_id = ? AND typeof(data) = 'blob' ORDER BY start"
    for (data,) in writer.execute(sql, (body,)):
        yield data


def _prepend_file(path: str, size: int, pieces: Iterable[bytes]) -> Iterator[bytes | tuple[str, int]]:
    """Yield the pieces of a staged file that starts with the bytes of another file."""
    yield path, size
    yield from pieces
