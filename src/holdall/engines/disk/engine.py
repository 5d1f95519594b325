"""The disk engine: a folder where each file is a plain file and each item a JSON file, for any tool to read and edit.

It is the SQLite engine with a database in `.holdall/`, the *catalogue*. The catalogue has what a plain file cannot
hold: versions, lifetimes, indexes and the feed. If it is deleted, it is built again from the files.

This module overrides how the SQLite engine reads and writes. Every read and write first imports what other programs
have edited (`external_edits.py`). A write holds a lock that only one process has at a time. It commits to the
catalogue, and then brings the plain files up to date (`catalogue.py`, where crash safety is explained). Reads hold no
lock: the catalogue has a stamp of each file, and a read of a file that does not match its stamp starts again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ... import ops
from ...engine import Options
from ...errors import HoldallError, OutcomeUnknown, StoreClosed, Timeout, Unavailable, Unsupported
from ...model import keys
from ...ops import (
    ANY,
    READS,
    WALKS,
    ChangedRecords,
    Delete,
    DeleteTree,
    Grep,
    Maintain,
    Namespace,
    Op,
    ReadRange,
    Records,
    Scan,
    Search,
    Sweep,
)
from ...runtime.signals import restart_if_signaled
from ..sql.feed import DeleteTreeSlice, LargeDeleteTree
from ..sql.text_index import PreparedIndexTexts
from ..sqlite.connection import Connection
from ..sqlite.engine import LargeDeletion, SqliteEngine
from ..sqlite.entries import SqliteEntries
from ..sqlite.group_commit import Submission
from ..sqlite.readers import ReaderPool
from .catalogue import Catalogue
from .dialect import DiskDialect
from .external_edits import ExternalEdits
from .file_names import HOLDALL_FOLDER
from .folder import FileChanged, Folder, to_unavailable
from .folder_watch import DiskListener, FolderWatch

logger = logging.getLogger("holdall")
T = TypeVar("T")

_LOCK_INTERVAL = 0.002  # seconds between attempts to take the lock; with 0.5 ms, 40 processes kept two cores busy
_UNLOCKED_ATTEMPTS, _MAX_ATTEMPTS = 3, 20  # attempts to read or replace a file that others change at the same time
_HEAD_BYTES = 1 << 20
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_REFERENCES = 10_000
#: How many entries a slice of the deletion of a large tree has at least, and how many seconds it should take.
_SMALLEST_SLICE, _SLICE_SECONDS = 20, 0.02
_PAUSE = 0.001  # seconds between slices, in which others can write


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """The options that only this engine has."""

    #: The volume that is stored in the folder itself; None: as when the store was created.
    volume: Namespace | None = None

    def __post_init__(self) -> None:
        if self.volume is not None:
            object.__setattr__(self, "volume", keys.check_namespace(self.volume))


class _SlicedDeletion(LargeDeletion):
    """The deletion of a large tree in slices, each in a transaction of its own."""

    def __init__(
        self,
        readers: ReaderPool,
        sql: SqliteEntries,
        submit: Callable[[list[Op]], list[Any]],
        others: list[Op],
        tree: LargeDeleteTree,
    ) -> None:
        super().__init__(readers, sql)
        self._submit, self._others = submit, others
        self._slice = DeleteTreeSlice(
            tree.namespace, tree.path, int(tree.position), _SMALLEST_SLICE, acting=tree.acting
        )
        self.batch = [*others, self._slice]

    def finish(self, results: list[Any]) -> list[Any]:
        """Delete the rest. A caller that was cancelled has left, and the rest stays."""
        *answers, (total, after) = results
        size = _SMALLEST_SLICE
        while after is not None and not self._has_left:
            time.sleep(_PAUSE)
            began = time.monotonic()
            *_, (count, after) = self._submit([*self._others, ops.replace(self._slice, after=after, limit=size)])
            total += count
            size = max(size // 2, _SMALLEST_SLICE) if time.monotonic() - began > _SLICE_SECONDS else size + 20
        return [*answers, total]


class _ImportEdits(Op, frozen=True):
    """Import external edits. Only this engine sends it, to itself, so that the thread that writes does the work."""


_IMPORT_EDITS = (_ImportEdits(),)


class DiskEngine(SqliteEngine):
    """Entries in one folder."""

    dialect = DiskDialect
    _at_once = frozenset()  # no read can be answered at once: external edits are imported first
    _commits_in_loop = False  # a commit writes files
    _dialect: DiskDialect

    def __init__(self, root: str, options: Options, disk_options: DiskOptions) -> None:
        self._folder = Folder(root)
        self._disk_options = disk_options
        self._watch: FolderWatch | None = None
        super().__init__(f"{root}/{HOLDALL_FOLDER}/catalogue.db", options)
        self._dialect.folder = self._folder
        self._catalogue = Catalogue(self._folder, options.durability == "full")
        self._edits = ExternalEdits(self._folder, self._sql)

    def _reset(self) -> None:
        super()._reset()
        if self._watch is not None:
            self._watch.close()
        self._watch = None
        self._has_compared_all = False  # since this process opened the store
        self._to_compare: set[str] = set()  # paths
        self._to_compare_lock = threading.Lock()
        self._is_importing = False  # changes have left the queue of the watch, and reads must wait for their import
        self._pending_error: Exception | None = None  # why committed changes could not be applied to the files
        self._references: dict[tuple[Namespace, str], str] = {}  # of files that were read
        self._lock_owner = os.urandom(16)  # in the lock file, it shows that no other process has held the lock since

    # The engine's methods --------------------------------------------------------------------------------------------

    def setup(self) -> None:
        super().setup()
        self._import_edits()

    async def asetup(self) -> None:
        await super().asetup()
        await self._commits.asubmit(_IMPORT_EDITS)

    def close(self) -> None:
        super().close()
        if self._watch is not None:
            self._watch.close()

    def listen(self, notify: Callable[[], None]) -> Any:
        self._import_edits()
        assert self._watch is not None
        return DiskListener(super().listen(notify), self._watch, self._import_edits)

    # Reading ---------------------------------------------------------------------------------------------------------

    def _read(self, batch: Sequence[Op]) -> list[Any]:
        self._import_edits()
        try:
            op = batch[0]
            with self._translating():
                if type(op) is ReadRange and (op.start, op.end, op.version) == (0, None, None) and len(batch) == 1:
                    return [self._read_whole(op)]
                return self._read_or_walk(batch)
        except FileChanged as error:
            with self._translating():
                return self._read_again(lambda: self._read_or_walk(batch), error)

    def _read_or_walk(self, batch: Sequence[Op]) -> list[Any]:
        """Run a read. A walk returns entries whose files may not be read without their contents.

        Not so for a copy or a backup, which would lose them.
        """
        op = batch[0]
        if type(op) not in WALKS or isinstance(op, Records | ChangedRecords):
            return super()._read(batch)
        with self._folder.skip_unreadable() as skipped:
            [found] = super()._read(batch)
        if skipped and isinstance(op, Grep | Scan | Search):
            unread = self._find_entries(skipped)
            if isinstance(op, Grep):
                found[:] = [match for match in found if (op.namespace, match[0]) not in unread]
            else:
                found[:] = [
                    replace(entry, value={**entry.value, "content": None, "encoding": None})
                    if (entry.namespace, entry.key) in unread
                    else entry
                    for entry in found
                ]
        return [found]

    def _find_entries(self, paths: set[str]) -> set[tuple[Namespace, str]]:
        """Return the entries whose files have these paths."""
        reader = self._readers.take()
        try:
            sql = "SELECT ns, key FROM holdall_places WHERE path IN (SELECT value FROM json_each(?))"
            return {(keys.decode(ns), key) for ns, key in reader.execute(sql, (json.dumps([*paths]),)).fetchall()}
        finally:
            self._readers.give_back(reader)

    def _read_whole(self, op: ReadRange) -> bytes | None:
        """Read a whole file. Try the reference of the last read first: its stamp shows whether it is still valid."""
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")
        entry = op.namespace, op.key
        reference = self._references.get(entry)
        if reference is not None:
            try:
                return self._folder.read(reference)
            except FileChanged:
                self._references.pop(entry, None)
        reader = self._readers.take()
        try:
            with self._translating():
                sql, params = self._sql.statement(op)
                rows = reader.execute(sql, params).fetchall()
            if rows and type(rows[0][1]) is str:
                if len(self._references) >= _MAX_REFERENCES:
                    self._references.clear()
                self._references[entry] = rows[0][1]
            content: bytes | None = self._sql.result(op, params, rows)
            return content
        finally:
            self._readers.give_back(reader)

    def _prepare_indexing(self, batch: Sequence[Op]) -> list[Op]:
        """Read the texts to index. Files that may not be read are indexed without their contents."""

        def prepare() -> list[Op]:
            with self._translating(), self._folder.skip_unreadable():
                return super(DiskEngine, self)._prepare_indexing(batch)

        try:
            return prepare()
        except FileChanged as error:
            return self._read_again(prepare, error)

    def _prepare_deletion(self, batch: Sequence[Op]) -> LargeDeletion | None:
        """Prepare the deletion of a large tree in slices. A note would not do: its plain files must not outlive it."""
        if type(batch[-1]) is DeleteTree:
            self._import_edits()
        large = super()._prepare_deletion(batch)
        if large is None:
            return None
        *others, prepared = large.batch
        assert isinstance(prepared, LargeDeleteTree)
        return _SlicedDeletion(self._readers, self._sql, self._commits.submit, others, prepared)

    def _read_again(self, read: Callable[[], T], error: FileChanged) -> T:
        """Import external edits and read again, after a file was changed during a read.

        The last attempts hold the lock, so that at least no other store changes the files.
        """
        for attempt in range(_MAX_ATTEMPTS):
            with self._to_compare_lock:
                self._to_compare.add(error.path)
            self._import_edits()
            try:
                if attempt < _UNLOCKED_ATTEMPTS:
                    return read()
                with self._lock(None, time.monotonic()), self._folder.allow_growth() as grown:
                    result = read()
                with self._to_compare_lock:
                    self._to_compare |= grown
                return result
            except FileChanged as again:
                error = again
        raise Unavailable(f"another program keeps changing the file {error.path!r}; try again")

    def _import_edits(self) -> None:
        """Import external edits, if there may be any. The thread that commits does the work; this call waits for it."""
        watch = self._watch
        if (
            watch is None
            or not self._has_compared_all
            or self._is_importing
            or self._to_compare
            or watch.waiting()
            or watch.is_comparison_due()
        ):
            self._commits.submit(_IMPORT_EDITS)

    # Writing ---------------------------------------------------------------------------------------------------------

    def _transact(self, members: list[Submission]) -> None:
        """Run batches in one transaction, and bring the files up to date before any caller gets its results."""
        writer = self._writer or self._open()
        batches = [member for member in members if member.batch is not _IMPORT_EDITS]
        try:
            with self._translating(), self._lock(writer, members[0].began):
                if self._catalogue.newest_version is not None or self._complete_earlier_writes(writer):
                    self._import_edits_locked(writer)
                    if batches:
                        self._commit_and_apply(writer, batches)
                elif batches:
                    self._commit_deletes(writer, batches)
        finally:
            self._folder.release_parent()
        for member in members:
            member.finished = True

    def _commit_and_apply(self, writer: Connection, batches: list[Submission]) -> None:
        """Commit batches to the catalogue, and bring the files up to date."""
        for attempt in range(_MAX_ATTEMPTS):
            try:
                self._commit_to_catalogue(writer, batches)
                break
            except FileChanged as error:
                self._catalogue.discard_staged()
                if attempt == _MAX_ATTEMPTS - 1:
                    raise Unavailable(f"another program keeps changing the file {error.path!r}; try again") from error
                with self._to_compare_lock:
                    self._to_compare.add(error.path)
                self._import_edits_locked(writer)
            except BaseException:
                self._catalogue.discard_staged()
                raise
        try:
            if self._catalogue.is_batch_staged:
                is_durable = self._update_files(self._catalogue.publish_staged) or not self._catalogue.unsynced_folders
            else:
                self._apply_pending(writer, is_retry=False)
                is_durable = True  # what is not in the files yet is in the catalogue
            if not is_durable:
                for member in batches:
                    member.error = member.error or OutcomeUnknown(
                        f"stored, but an fsync of a folder in {self._folder.root!r} failed, so a power cut may undo it;"
                        " after a power cut, read it to find out"
                    )
            self._folder.reserved_space.reserve()
        except Exception:  # the batch is committed: the next write completes it, and the caller must not repeat it
            logger.exception("cannot update the plain files of committed changes, trying again later")

    def _commit_deletes(self, writer: Connection, batches: list[Submission]) -> None:
        """Commit deletes while earlier writes cannot be applied to the files: they may free the space for those."""
        if not _only_delete(batches):
            raise Unavailable(
                f"{self._pending_error}; until earlier writes have reached their files, entries can only be deleted,"
                " and without expect="
            )
        self._catalogue.staged_files = []  # these are committed, and found again later: they must not be discarded
        self._commit_to_catalogue(writer, batches)
        try:
            self._complete_earlier_writes(writer)
        except Exception:  # as in `_commit_and_apply`
            logger.exception("cannot update the plain files of committed changes, trying again later")

    def _commit_to_catalogue(self, writer: Connection, batches: list[Submission]) -> None:
        """Run batches in one transaction of the catalogue."""
        self._catalogue.read_newest_version(writer)
        is_maintenance = all(type(op) in (Maintain, PreparedIndexTexts) for member in batches for op in member.batch)
        try:
            with self._folder.skip_unreadable() if is_maintenance else contextlib.nullcontext():
                super()._transact(batches)
        except Unavailable as error:
            if isinstance(error, Timeout) or not _only_delete(batches) or not self._folder.reserved_space.release():
                raise
            self._catalogue.discard_staged()
            self._catalogue.read_newest_version(writer)
            super()._transact(batches)

    def _before_commit(self, writer: Connection, members: list[Submission]) -> None:
        changes = sum(type(op) not in READS for member in members for op in member.batch)
        try:
            self._catalogue.prepare(writer, is_one_change=changes == 1)
        except OSError as error:
            raise to_unavailable(self._folder.root, error) from error

    def _complete_earlier_writes(self, writer: Connection) -> bool:
        """Complete what a killed process or a failed attempt has left; return whether all files are up to date now.

        While they are not, no edits are imported: a file that differs from the catalogue may just be old. Reads return
        what is in the catalogue.
        """
        with self._translating():
            uncommitted = self._catalogue.find_committed_staged(writer)
        is_applied = self._apply_pending(writer, is_retry=True)  # first: it may free space
        if self._catalogue.staged_files and not self._update_files(self._catalogue.publish_staged):
            return False
        if self._catalogue.unsynced_folders and not self._update_files(self._sync_folders):
            return False
        if not is_applied:
            return False
        self._pending_error = None
        self._catalogue.remove_staged(uncommitted)
        return True

    def _sync_folders(self) -> tuple[dict[str, str], set[str]]:
        self._catalogue.sync_folders()
        return {}, set()

    def _import_edits_locked(self, writer: Connection) -> None:
        """Import external edits, if there are any, while this process holds the lock."""
        assert self._watch is not None
        watch, compares_all = self._watch, not self._has_compared_all
        if not (compares_all or self._to_compare or watch.waiting() or watch.is_comparison_due()):
            return
        self._is_importing = True
        try:
            compares_all = compares_all or watch.is_comparison_due()
            paths = watch.read_changes() | ({""} if compares_all else set())
            with self._to_compare_lock:
                paths |= self._to_compare
                self._to_compare |= paths
            began = time.monotonic()
            volume = self._catalogue.volume
            is_copied = self._catalogue.is_copied
            import_found = self._edits.find(writer, volume, paths, watch.add_folder, is_copied) if paths else None
            if import_found is not None or is_copied:
                self._catalogue.newest_version = None
                with self._transaction(writer):
                    if import_found is not None:
                        import_found()
                        self._catalogue.drop_lost_contents(writer)
                    if is_copied:
                        self._catalogue.record_identity(writer)
                self._catalogue.is_copied = False
            if compares_all:
                watch.schedule_comparison(time.monotonic() - began)
            with self._to_compare_lock:
                self._to_compare -= paths
            self._has_compared_all = True
        finally:
            self._is_importing = False

    def _apply_pending(self, writer: Connection, is_retry: bool) -> bool:
        """Apply pending changes to the files; return whether that succeeded. If not, they stay in the catalogue."""

        def apply() -> tuple[dict[str, str], set[str]]:
            with self._transaction(writer, relaxed=True):
                return self._catalogue.apply_pending(writer, is_retry)

        return not self._catalogue.has_pending(writer) or self._update_files(apply)

    def _update_files(self, update: Callable[[], tuple[dict[str, str], set[str]]]) -> bool:
        """Run a function that changes files; return whether it succeeded.

        It returns the new stamps by path, and the paths of files that other programs have edited. The events that the
        watch has of the store's own changes are dropped.
        """
        assert self._watch is not None
        try:
            with self._translating():
                stamps, edited = update()
        except HoldallError as error:
            if str(error) != str(self._pending_error):  # every read tries again: log it once
                logger.warning("cannot update the plain files of committed changes, trying again later: %s", error)
            self._pending_error = error
            self._references.clear()  # they refer to the old files
            return False
        with self._to_compare_lock:
            self._to_compare |= edited
        if self._watch.waiting():
            self._is_importing = True
            try:
                changed = self._watch.read_changes()
                own = {path for path in changed & stamps.keys() if self._folder.has_stamp(path, stamps[path])}
                with self._to_compare_lock:
                    self._to_compare |= changed - own
            finally:
                self._is_importing = False
        return True

    @contextlib.contextmanager
    def _transaction(self, writer: Connection, *, relaxed: bool = False) -> Iterator[None]:
        writer.set_synchronous("NORMAL" if relaxed else self._synchronous)
        writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            writer.execute("COMMIT")
        except BaseException:
            self._roll_back(writer)
            raise

    @contextlib.contextmanager
    def _lock(self, writer: Connection | None, began: float) -> Iterator[None]:
        """Hold the store's lock, which one process has at a time. The kernel releases it if the process is killed."""
        import fcntl

        deadline = began + self._options.timeout
        turns = None if writer is None else writer.turns
        if writer is not None:
            writer.yield_turn()
        try:
            handle = os.open(f"{self._folder.root}/{HOLDALL_FOLDER}/lock", _OPEN_LOCK, 0o666)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._lost() from error
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise Timeout(
                            f"another process held the lock of {self._folder.root!r} for {self._options.timeout} s;"
                            " try again, or open the store with a longer timeout="
                        ) from None
                    restart_if_signaled()
                    if turns is not None:
                        turns.start_waiting()
                    time.sleep(_LOCK_INTERVAL)
            if turns is not None:
                turns.stop_waiting()
            self._check_files()
            if writer is not None and os.pread(handle, 16, 0) != self._lock_owner:
                self._record_lock_owner(handle)
            yield
        finally:
            try:
                fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough if a forked child has the handle, too
            except OSError:  # closing releases it in most cases
                pass
            finally:
                os.close(handle)
                if turns is not None:
                    turns.stop_waiting()

    def _record_lock_owner(self, handle: int) -> None:
        """Record that this process holds the lock. Another had it before, and may have been killed at any point."""
        self._catalogue.newest_version = None
        try:
            os.pwrite(handle, self._lock_owner, 0)
        except OSError:  # the disk is full
            os.ftruncate(handle, 0)

    def _lost(self) -> Unavailable:
        return Unavailable(
            f"the catalogue {self._path!r}, or its -wal or -shm file, was deleted, moved or replaced while it was open;"
            " close the store and open it again: the catalogue is built again from the files"
        )

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        with super()._translating():
            try:
                yield
            except OSError as error:
                if isinstance(error, HoldallError):
                    raise
                raise to_unavailable(self._folder.root, error) from error

    # Connections -----------------------------------------------------------------------------------------------------

    def _connect_writer(self) -> Connection:
        try:
            import fcntl  # noqa: F401  # the lock needs it
        except ImportError as error:
            raise Unsupported("a disk: store needs flock, which this system does not have; use sqlite:") from error
        self._folder.create()
        writer = super()._connect_writer()
        writer.has_outer_lock = True
        if self._watch is None:
            self._watch = FolderWatch(self._folder.root)
        return writer

    def _migrate(self, writer: Connection) -> None:
        super()._migrate(writer)
        with self._transaction(writer):
            self._catalogue.set_up(writer, self._disk_options.volume)

    def _connect(self, flags: int) -> Connection:
        connection = super()._connect(flags)
        connection.create_aggregate_function("holdall_joined", self._join_pieces, 1)
        connection.create_aggregate_function("holdall_head", self._join_heads, 1)
        return connection

    def _join_pieces(self) -> Any:
        """Build an SQL aggregate that joins the pieces of a body."""
        part = self._dialect.part
        return [], lambda pieces, data: pieces.append(part(data, 0, None)), b"".join

    def _join_heads(self) -> Any:
        """Build an SQL aggregate that joins the first bytes of each piece."""
        part = self._dialect.part
        return [], lambda pieces, data: pieces.append(part(data, 0, _HEAD_BYTES)), b"".join


def _only_delete(batches: list[Submission]) -> bool:
    """Whether batches only delete entries, unconditionally."""
    return all(
        type(op) in (DeleteTree, DeleteTreeSlice, Sweep) or (type(op) is Delete and op.expect is ANY)
        for member in batches
        for op in member.batch
    )
