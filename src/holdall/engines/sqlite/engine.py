"""The SQLite engine: the embedded default, one file, many processes.

The file uses a write-ahead log and `synchronous=FULL`. One connection writes (through `group_commit.GroupCommit`), and
a pool of connections reads without waiting for it. While another process writes, a writer sleeps briefly and tries
again. The file is opened and migrated under a lock on its folder. A worker thread runs the batches of async callers;
reads that arrive in the meantime run together. A single look-up runs in the event loop itself, unless the disk was slow
a moment ago. So do small puts that need no fsync.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path as FilePath
from typing import Any

import apsw

from ...engine import DECODE_ERRORS, Capabilities, Options, system_clock
from ...errors import (
    Corrupt,
    HoldallError,
    InvalidInput,
    OutcomeUnknown,
    SchemaTooNew,
    StoreClosed,
    Timeout,
    Unavailable,
)
from ...ops import (
    READS,
    WALKS,
    DeleteTree,
    Get,
    IndexOrder,
    IndexTexts,
    LearnFields,
    Maintain,
    Op,
    PurgeHistory,
    Put,
    ReadRange,
    RecordPage,
    Refresh,
    Scrub,
    Scrubbed,
    Vector,
)
from ...runtime.programs import drive
from ...runtime.signals import SIGNAL_CHECK_INTERVAL, disallow_restart, run_pending_handlers
from ...runtime.workers import Workers
from ..history.sql import HeldPast
from ..sql.entries import LOOK_UPS, is_look_up, is_multi_statement, is_plain_put
from ..sql.feed import HELD_SECONDS, HeldPage, LargeDeleteTree
from ..sql.text_index import PreparedIndexTexts
from .connection import LONGEST_LOG, Connection, pragma
from .dialect import MIGRATIONS, NOTE_NUL_KEY, SCRUB_CONTENTS, SqliteDialect, has_nul_key
from .entries import INSERT_NEW, SqliteEntries, make_entry, plain_parameters
from .group_commit import GroupCommit, Submission, wake_callers
from .readers import ReaderPool
from .vectors.index_files import IndexFiles, Stopped
from .vectors.ranker import PublishIndex
from .wal_listener import WalListener
from .write_turns import WriteTurns, folder_lock

_MAPPED = 1 << 40  # bytes of the file that readers map: all of it, which saves a system call for each page
_WALKERS = 4  # threads
_SLOW = 0.001  # seconds: a look-up or a put that took longer has waited for the disk
_WARY = 10.0  # seconds: for how long look-ups or puts then run in a worker thread
_SMALL = 1 << 14  # characters of a value that is put in an event loop
_SUFFIXES = ("", "-wal", "-shm")  # the database, its log, and the index of the log, which holds SQLite's locks
_FILES_CHECK_INTERVAL = 0.01  # seconds: checking one file takes 1 to 2 us
_CHECK = "run PRAGMA integrity_check, and report this if the file is whole"
#: The driver's errors, and those that damaged bytes cause where they are decoded.
_UNREADABLE = (apsw.Error, struct.error, *DECODE_ERRORS)
#: Ops whose loss in a power cut does no harm.
_NO_CHANGES = READS | {
    Refresh,
    Maintain,
    IndexOrder,
    IndexTexts,
    LearnFields,
    PreparedIndexTexts,
    PublishIndex,
    PurgeHistory,
}
#: What changes whenever there is more of the feed to read.
_PROGRESS = (
    "SELECT max(version), NULL, NULL FROM holdall_entries UNION ALL SELECT id, from_ns, from_key FROM holdall_trees"
)

#: Errors of a disk before anything but a part of a transaction is in the log.
_BEFORE_COMMIT = (apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_WRITE)
#: Connections of a parent process, which its forked child must not even close.
_abandoned: list[Any] = []


class LoopTime:
    """What calls in an event loop took. After two in a row that waited for the disk, the next run in a thread."""

    def __init__(self) -> None:
        self._was_slow, self.wary_until = False, 0.0

    def has_ended(self, start: float) -> None:
        """Note a call that began at `start`."""
        now = time.monotonic()
        is_slow = now - start > _SLOW
        if is_slow and self._was_slow:  # a single one may have waited for the processor
            self.wary_until = now + _WARY
        self._was_slow = is_slow


class LargeDeletion:
    """The deletion of a large tree: its batch, and the snapshot in which its entries are counted after the commit.

    The transaction takes the snapshot, so that it is the state right before: nobody else can write at that time.
    """

    def __init__(self, readers: ReaderPool, sql: SqliteEntries) -> None:
        self.batch: list[Op] = []
        self._readers = readers
        self._sql = sql
        self._reader: Connection | None = None
        self._lock = threading.Lock()  # a cancelled caller leaves while the transaction runs in another thread
        self._has_left = False

    def take_snapshot(self) -> None:
        """Start to read. A transaction that is tried again takes a later snapshot."""
        with self._lock:
            if self._has_left:
                return
            if self._reader is None:
                self._reader = self._readers.take()
            else:
                self._reader.execute("ROLLBACK")
            self._reader.execute("BEGIN")
            self._reader.execute("SELECT 1 FROM holdall_trees").fetchall()  # the first query takes the snapshot

    def finish(self, results: list[Any]) -> list[Any]:
        """Return the results of the batch, with the exact count as the last one."""
        with self._lock:
            reader, self._reader = self._reader, None
        op = self.batch[-1]
        assert reader is not None
        assert isinstance(op, LargeDeleteTree)
        try:
            *others, deleted = results
            return [*others, drive(self._sql.trees.count(op, deleted), reader.run)]
        finally:
            self._readers.give_back(reader)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._has_left = True
            if self._reader is not None:
                self._readers.give_back(self._reader)


class SqliteEngine:
    """Entries in one SQLite file."""

    capabilities = Capabilities(
        durable=True,
        multiprocess=True,
        ranks=True,
        learns=True,
        keeps_history=True,
        remembers=True,
        moves_in_slices=True,
    )
    is_async_reentrant = True
    dialect: type[SqliteDialect] = SqliteDialect
    _at_once: frozenset[type[Op]] = LOOK_UPS  # the ops that `look_up` can run
    _commits_in_loop = True  # a commit without an fsync takes only as long as the database does

    def __init__(self, path: str, options: Options) -> None:
        self._path = path
        self._options = options
        self._dialect = self.dialect(options.filter_fields)
        self._clock = options.clock or system_clock
        self._sql = SqliteEntries(self._dialect, self._clock)
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        """Set the state with nothing open: for a new engine, and in a forked child."""
        self._sql.ranker.files = IndexFiles(self._path)
        self._sql.ranker.start_build = self._start_vector_build
        self._sql.ranker.forget()
        self._opening = threading.Lock()
        self._spawning = threading.RLock()  # not `_opening`, for which an event loop must never wait
        self._writer: Connection | None = None
        self._inodes: dict[str, int | None] = {}  # of the open files, by suffix
        self._next_files_check = 0.0  # when to check that the files of these names are still the same
        self._readers = ReaderPool(self._connect_reader)
        self._commits = GroupCommit(
            self._commit, lambda lead: self._spawn(lead, "writer", 1), self._commit_in_loop, self._fits_loop
        )
        self._workers: dict[str, Workers] = {}
        self._look_up_time, self._commit_time = LoopTime(), LoopTime()
        self._puts_new_keys = True  # whether the last plain put was of a new key
        self._is_copying = False  # whether a thread copies the log into the database
        self._reads: list[Submission] = []  # that wait for the worker thread
        self._reads_lock = threading.Lock()  # several event loops may read at once
        self._indexing = threading.Lock()  # of the thread that runs a step of indexing
        self._steps, self._last_step = 0, (0, True)  # how many there were, and the result of the last one

    # The engine's methods --------------------------------------------------------------------------------------------

    @property
    def needs_maintenance(self) -> bool:
        return self._sql.needs_maintenance

    def execute(self, batch: Sequence[Op]) -> list[Any]:
        if _only_reads(batch):
            return self._read(batch)
        op = batch[0]
        if type(op) is Scrub:
            return [self._scrub(op)]
        if type(op) is IndexTexts:
            return [self._index_texts(batch)]
        if type(op) is LearnFields and not self._can_learn(op):
            return [False]
        if type(batch[-1]) is DeleteTree and (large := self._prepare_deletion(batch)) is not None:
            with large, self._translating():
                return large.finish(self._commits.submit(large.batch))
        return self._commits.submit(batch)

    async def aexecute(self, batch: Sequence[Op]) -> list[Any]:
        if not _only_reads(batch):
            op = batch[0]
            if type(op) is Scrub:
                return [await asyncio.to_thread(self._scrub, op)]
            if type(op) is IndexTexts:
                return [await asyncio.to_thread(self._index_texts, batch)]
            if type(op) is LearnFields and not await asyncio.to_thread(self._can_learn, op):
                return [False]
            if type(batch[-1]) is DeleteTree:
                large = await asyncio.to_thread(self._prepare_deletion, batch)
                if large is not None:
                    with large, self._translating():
                        return await asyncio.to_thread(large.finish, await self._commits.asubmit(large.batch))
            return await self._commits.asubmit(batch)
        found = self._look_up_in_loop(batch)
        if found is not None:
            await asyncio.sleep(0)  # an await must let other tasks run
            return found
        submission = Submission(batch)
        outcome = submission.make_future()
        if type(batch[0]) in WALKS:  # may take long, so it does not share a thread with other reads
            self._spawn(lambda: self._answer([submission]), "walker", _WALKERS)
        else:
            with self._reads_lock:
                if not self._reads:
                    self._spawn(self._answer_reads, "reader", 1)
                self._reads.append(submission)
        return await outcome

    def setup(self) -> None:
        self._open()

    async def asetup(self) -> None:
        await asyncio.to_thread(self._open)

    def close(self) -> None:
        self._sql.ranker.files.is_stopping = True
        self._commits.close()
        with self._spawning:
            self._closed = True
        for workers in self._workers.values():
            workers.close()
        with self._opening:
            self._readers.close()
            if self._writer is not None:
                log = self._inodes_now()["-wal"]
                if log not in (None, self._inodes["-wal"]):  # of another database: SQLite would delete it, by its name
                    self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                self._writer.close()
                self._writer = None

    def before_fork(self) -> None:
        """Close every connection: a child must not inherit an open SQLite file, whose locks are the parent's."""
        self._commits.pause()
        try:
            self._readers.pause()
        except BaseException:
            self._commits.resume()
            raise
        self._opening.acquire()  # last: batches under way may have to open the file before they can end
        if self._writer is not None:
            self._writer.close(force=True)
            self._writer = None

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            self._sql.ranker.files.abandon()
            _abandoned.append((self._writer, self._readers))
            self._reset()
            return
        self._opening.release()
        self._readers.resume()
        self._commits.resume()

    def listen(self, notify: Callable[[], None]) -> WalListener:
        return WalListener(self._path + "-wal", self._newest, notify)

    # Reading ---------------------------------------------------------------------------------------------------------

    def _newest(self) -> object:
        """Return the version of the last change, and how far deleted trees are cleared: their tombstones follow it."""
        reader = self._readers.take()
        try:
            with self._translating():
                return reader.execute(_PROGRESS).fetchall()
        finally:
            self._readers.give_back(reader)

    def _read(self, batch: Sequence[Op]) -> list[Any]:
        results = self._read_once(batch)
        if _is_held(results[0]):  # a reader of the feed that has to wait for tombstones writes them itself
            until = time.monotonic() + HELD_SECONDS
            while _is_held(results[0]) and time.monotonic() < until:
                self._commits.submit([Maintain()])
                results = self._read_once(batch)
        while type(results[0]) is HeldPast:
            run_pending_handlers()
            self._commits.submit([Maintain()])
            results = self._read_once(batch)
        return results

    def _read_once(self, batch: Sequence[Op]) -> list[Any]:
        reader = self._readers.take()
        try:
            op = batch[0]
            is_walk = type(op) in WALKS
            if len(batch) == 1 and not is_walk:  # needs no transaction
                if is_look_up(op):
                    return [self._sql.look_up(op, reader.fetch)]
                return drive(self._sql.batch(batch), reader.run)
            reader.execute("BEGIN")
            if is_walk:
                results = [drive(self._sql.walk(op), lambda request: self._run_for_walk(reader, request))]
            else:
                results = drive(self._sql.batch(batch), reader.run)
            reader.execute("ROLLBACK")
            return results
        except HoldallError:
            raise
        except _UNREADABLE as error:
            if _is_malformed(error) and self._sql.trusts_fields:
                self._sql.trusts_fields = False  # from now on Python reads each value, and names the damaged entry
                return self._read_once(batch)
            raise self._translate_error(error) from error
        finally:
            self._readers.give_back(reader)

    def _run_for_walk(self, reader: Connection, request: Any) -> Any:
        """Run a request of a walk. A walk may take long, so signal handlers run before each request."""
        run_pending_handlers()
        return reader.run(request)

    def look_up(self, batch: Sequence[Op]) -> list[Any] | None:
        """Run a batch of one look-up in the caller's thread; return None if it is not one, or would have to wait.

        Reading from the file cache takes less time than waking a thread. This holds no lock, so a signal may interrupt
        it.
        """
        op = batch[0]
        if len(batch) > 1 or type(op) not in self._at_once or not is_look_up(op):
            return None
        reader = self._readers.take_idle()
        if reader is None:
            return None
        try:
            return [self._sql.look_up(op, reader.fetch)]
        except (apsw.BusyError, apsw.LockedError):
            return None
        except apsw.Error as error:  # only these: any other error may come from a signal handler
            raise self._translate_error(error) from error
        finally:
            self._readers.give_back(reader)

    def _look_up_in_loop(self, batch: Sequence[Op]) -> list[Any] | None:
        """Run `look_up` in an event loop; return None if a worker thread should run it.

        That is for files, whose contents may be large, and for a while after two look-ups in a row that waited for the
        disk.
        """
        op, start = batch[0], time.monotonic()
        if start <= self._look_up_time.wary_until or type(op) is ReadRange or (type(op) is Get and op.key[0] == "/"):
            return None
        found = self.look_up(batch)
        self._look_up_time.has_ended(start)
        return found

    def _index_texts(self, batch: Sequence[Op]) -> tuple[int, bool]:
        """Run a step of indexing. If another thread runs one, wait for it, and return what that one has done.

        Without this, the sweeper and each search that waits for the index would all prepare the same slice.
        """
        before = self._steps
        if not self._indexing.acquire(timeout=SIGNAL_CHECK_INTERVAL):
            return 0, True  # asked again, after signal handlers had their turn
        try:
            if self._steps == before:
                [self._last_step] = self._commits.submit(self._prepare_indexing(batch))
                self._steps += 1
            return self._last_step
        finally:
            self._indexing.release()

    def _prepare_indexing(self, batch: Sequence[Op]) -> list[Op]:
        """Prepare a step of the text index while others write."""
        reader = self._readers.take()
        try:
            reader.execute("BEGIN")  # which ends when the reader is given back
            with self._translating():
                return [drive(self._sql.prepare(op), reader.run) for op in batch if isinstance(op, IndexTexts)]
        finally:
            self._readers.give_back(reader)

    def _can_learn(self, op: LearnFields) -> bool:
        """Whether there is something to do about learned fields, for which others have to wait."""
        reader = self._readers.take()
        try:
            with self._translating():
                return drive(self._sql.learned.has_work(op), reader.run)
        finally:
            self._readers.give_back(reader)

    def _prepare_deletion(self, batch: Sequence[Op]) -> LargeDeletion | None:
        """Prepare the deletion of a large tree; return None if the tree is small, or the batch writes something else.

        Most of the work, which is counting, is done while others write.
        """
        *others, op = batch
        if not isinstance(op, DeleteTree) or not all(type(one) in READS for one in others):
            return None
        large = LargeDeletion(self._readers, self._sql)
        reader = self._readers.take()
        try:
            reader.execute("BEGIN")  # which ends when the reader is given back
            with self._translating():
                prepared = drive(self._sql.trees.prepare(op, self._clock(), large.take_snapshot), reader.run)
        finally:
            self._readers.give_back(reader)
        if prepared is None:
            return None
        large.batch = [*others, prepared]
        return large

    def _answer_reads(self) -> None:
        """Run all reads that wait by now."""
        with self._reads_lock:
            waiting, self._reads = self._reads, []
        self._answer(waiting)

    def _answer(self, submissions: list[Submission]) -> None:
        for submission in submissions:
            if not submission.cancelled:
                try:
                    submission.results = self._read(submission.batch)
                except Exception as error:  # any error belongs to this caller alone
                    submission.error = error
        wake_callers(submissions)

    # Writing ---------------------------------------------------------------------------------------------------------

    def _commit(self, group: list[Submission]) -> None:
        """Commit a group in one transaction; if that fails as a whole, each batch in a transaction of its own."""
        members = group if len(group) == 1 else [submission for submission in group if not submission.cancelled]
        if len(members) > 1 and not any(type(member.batch[-1]) is LargeDeleteTree for member in members):
            try:
                self._transact(members)
                return
            except Timeout as error:  # nothing began: the timeout is over for some members, and the others wait on
                latest = max(members[0].began, time.monotonic() - self._options.timeout)
                for submission in members:
                    if submission.began <= latest:
                        submission.error, submission.finished = Timeout(*error.args), True
                return
            except OutcomeUnknown as error:  # not tried again: the log may have it, and a second error would hide that
                for submission in members:
                    if not submission.finished:
                        submission.error, submission.finished = OutcomeUnknown(*error.args), True
                return
            except Exception:  # noqa: S110  # each member gets its own outcome below
                pass
        for submission in members:
            if submission.finished or submission.cancelled:  # the error came after its commit, or no caller waits
                continue
            try:
                self._transact([submission])
            except Exception as error:  # any error belongs to this caller alone
                submission.error, submission.finished = error, True

    def _fits_loop(self, batch: Sequence[Op]) -> bool:
        """Whether a batch is a small put that needs no fsync, and such puts have not waited for the disk."""
        op = batch[0]
        return (
            type(op) is Put
            and len(batch) == 1
            and isinstance(op.value, str)
            and len(op.value) <= _SMALL
            and op.vectors is None
            and self._commits_in_loop
            and self._synchronous == "NORMAL"
            and time.monotonic() > self._commit_time.wary_until
        )

    def _commit_in_loop(self, group: list[Submission]) -> None:
        """Commit small puts in an event loop. Leave them to a thread if they would wait or need an fsync, or fail."""
        writer, start = self._writer, time.monotonic()
        try:
            if writer is None or not writer.is_free():
                return
            writer.busy_wait.deadline = 0.0
            writer.wal_autocheckpoint(0)
            writer.set_synchronous("NORMAL")
            self._check_files_at(start)
            if len(group) > 1 or not self._insert_alone(writer, group[0]):
                self._transact_on(writer, group)
            if writer.uncopied >= LONGEST_LOG and not self._is_copying:
                self._start_copying()
        except OutcomeUnknown as error:
            for submission in group:
                submission.error, submission.finished = OutcomeUnknown(*error.args), True
        except (HoldallError, *_UNREADABLE):  # nothing was written: the thread tries again, and reports an error
            return
        self._commit_time.has_ended(start)

    def _insert_alone(self, writer: Connection, member: Submission) -> bool:
        """Put an entry of a new key by a statement that is a transaction of its own; return whether that was done.

        BEGIN and COMMIT take 5 us more. A put of a key that exists takes longer this way: after one, this waits for a
        new key.
        """
        op = member.batch[0]
        if not self._puts_new_keys or not is_plain_put(op) or has_nul_key(op):
            return False
        row = plain_parameters(op, self._clock())
        try:
            version = writer.insert(INSERT_NEW, row)
        except apsw.IOError as error:
            if getattr(error, "extendedresult", None) in _BEFORE_COMMIT:
                raise
            raise self._unknown_outcome(error) from error
        if version is None:
            self._puts_new_keys = False
            return False
        member.results, member.error, member.finished = [make_entry(op, row, version)], None, True
        return True

    def _start_copying(self) -> None:
        """Have a thread copy the log into the database. Without one, a commit does it when the log is very long."""
        self._is_copying = True
        try:
            self._spawn(self._copy_log, "copier", 1)
        except StoreClosed:
            self._is_copying = False

    def _copy_log(self) -> None:
        """Copy the log into the database while others read and write: no commit in an event loop does so.

        On a disk this takes milliseconds, mostly for two fsyncs.
        """
        try:
            reader = self._readers.take()
            try:
                reader.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_PASSIVE)
            finally:
                self._readers.give_back(reader)
        except (HoldallError, apsw.Error):  # a commit of a thread will copy it, and report an error
            pass
        finally:
            self._is_copying = False

    def _transact(self, members: list[Submission]) -> None:
        """Run batches in one transaction. A conflict undoes its own batch; any other error undoes all of them."""
        try:
            writer, began = self._writer or self._open(), members[0].began
            writer.busy_wait.deadline = began + self._options.timeout
            writer.wal_autocheckpoint(LONGEST_LOG)
            self._check_files_at(began)
            is_relaxed = type(members[0].batch[0]) in _NO_CHANGES and self._has_no_changes(members)  # no fsync
            writer.set_synchronous("NORMAL" if is_relaxed else self._synchronous)
            self._transact_on(writer, members)
            # Not `stat`: after one, Linux records an exact time with the next write, and its fsync takes 40 us longer.
            if not is_relaxed and self._synchronous == "FULL" and not os.access(self._path + "-wal", os.F_OK):
                self._next_files_check = 0.0  # refuse the next write before it begins
                lost = OutcomeUnknown(f"this write may be lost: {self._lost()}")
                for member in members:
                    member.error = lost
        except HoldallError:
            raise
        except _UNREADABLE as error:
            raise self._translate_error(error) from error

    def _check_files_at(self, now: float) -> None:
        """Check the names of the files, if that was not done a moment ago."""
        if now >= self._next_files_check:
            self._check_files()
            self._next_files_check = now + _FILES_CHECK_INTERVAL

    def _has_no_changes(self, members: list[Submission]) -> bool:
        """Whether batches write nothing that may not be lost. Tombstones of deleted trees are no such thing."""
        if self._sql.trees.needs_clearing:
            return False
        return all(type(op) in _NO_CHANGES for member in members for op in member.batch)

    def _transact_on(self, writer: Connection, members: list[Submission]) -> None:
        for member in members:
            member.error = None  # of an earlier try, which was undone
        writer.begin()
        try:
            if any(has_nul_key(op) for member in members for op in member.batch):
                writer.execute(NOTE_NUL_KEY)
            if len(members) == 1:
                members[0].results = self._run_alone(writer, members[0].batch)
            else:
                self._run_members(writer, members)
            self._before_commit(writer, members)
            disallow_restart()
            self._commit_on(writer)
        except BaseException:
            self._roll_back(writer)
            raise
        for member in members:
            member.finished = True

    def _commit_on(self, writer: Connection) -> None:
        """Commit. If the fsync fails, the log may have the whole transaction, which then appears after a crash."""
        try:
            writer.execute("COMMIT")
        except apsw.IOError as error:
            if getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_WRITE:  # the log has a part of it at most
                raise
            raise self._unknown_outcome(error) from error

    def _unknown_outcome(self, error: apsw.IOError) -> OutcomeUnknown:
        return OutcomeUnknown(
            "the disk or file system failed during a commit, so the write may appear after a crash; read before you"
            f" write again: {self._path!r}: {error}"
        )

    def _run_alone(self, writer: Connection, batch: Sequence[Op]) -> list[Any]:
        """Run the only batch of a transaction.

        A single plain put is tried as an insert first: most keys are new. Measured: 118 us instead of 129 us for
        a durable put (raw apsw: 90 us), and 38 us instead of 47 us for a relaxed one.
        """
        op = batch[0]
        if len(batch) == 1 and is_plain_put(op):
            row = plain_parameters(op, self._clock())
            version = writer.insert(INSERT_NEW, row)
            if version is not None:
                self._puts_new_keys = True
                return [make_entry(op, row, version)]
        return drive(self._sql.batch(batch), writer.run)

    def _before_commit(self, writer: Connection, members: list[Submission]) -> None:
        """Do what an engine with more than a database must do before a commit."""

    def _roll_back(self, writer: Connection) -> None:
        """Roll back the transaction; close the connection if it cannot do that."""
        try:
            if writer.in_transaction:  # after some errors SQLite has rolled back already
                writer.execute("ROLLBACK")
        except apsw.Error:
            self._writer = None
            writer.close(force=True)

    def _run_members(self, writer: Connection, members: list[Submission]) -> None:
        for is_plain, group in groupby(members, lambda member: all(map(is_plain_put, member.batch))):
            if is_plain:
                self._run_together(writer, list(group))
            else:
                for member in group:
                    self._run_member(writer, member)

    def _run_together(self, writer: Connection, members: list[Submission]) -> None:
        """Run batches as one, because none of them can raise a conflict."""
        results = iter(drive(self._sql.batch([op for member in members for op in member.batch]), writer.run))
        for member in members:
            member.results = list(islice(results, len(member.batch)))

    def _run_member(self, writer: Connection, member: Submission) -> None:
        """Run a batch among others; a conflict undoes this batch alone."""
        needs_savepoint = len(member.batch) > 1 or is_multi_statement(member.batch[0])  # one statement is atomic
        if needs_savepoint:
            writer.execute("SAVEPOINT member")
        try:
            member.results = drive(self._sql.batch(member.batch), writer.run)
        except Corrupt:  # found after a statement that has changed something: all is undone, and each batch runs alone
            raise
        except HoldallError as error:
            member.error = error
            if needs_savepoint:
                writer.execute("ROLLBACK TO member")
        if needs_savepoint:
            writer.execute("RELEASE member")

    # Erasing ---------------------------------------------------------------------------------------------------------

    def _scrub(self, op: Scrub) -> Scrubbed:
        """Clear what removed rows have left in the files: index terms, free pages, and the log."""
        [scrubbed] = self._commits.submit([op])
        while self._commits.submit([Maintain()])[0]:  # removes them from the index of contents
            pass
        self._sql.ranker.files.remove_all()
        self._sql.ranker.forget()
        cleared = [*scrubbed.cleared, "the files of vector indexes, which later searches build again"]
        connection = self._connect(apsw.SQLITE_OPEN_READWRITE)
        try:
            with self._translating():
                connection.execute(SCRUB_CONTENTS)
                if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat1'").fetchall():
                    connection.execute("ANALYZE")  # statistics that an administrator has asked for; they have keys
                connection.execute("VACUUM")
                cleared.append("the free pages of the database")
                deadline = time.monotonic() + self._options.timeout
                while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]:  # somebody still reads it
                    if time.monotonic() > deadline:
                        raise Timeout(
                            f"another process reads {self._path!r}, so its write-ahead log could not be truncated, and"
                            " may still have what was erased: call erase again"
                        )
                    run_pending_handlers()
                    time.sleep(0.01)
        finally:
            connection.close()
        beyond = "copies and backups of the files", "blocks of the disk that the files no longer use"
        return Scrubbed((*cleared, "the write-ahead log"), beyond)

    # The vector index ------------------------------------------------------------------------------------------------

    def _start_vector_build(self, vector: Vector) -> None:
        """Have a vector index built in the background, unless this process builds it already."""
        files = self._sql.ranker.files
        if not files.claim(vector.model, vector.metric):
            return

        def build(name: str, allocate: Callable[[int], Any]) -> Any:
            return drive(self._sql.ranker.build_file(vector, name, allocate), self._run_for_build)

        def publish(model: int, metric: Any, name: str) -> Any:
            return self._commits.submit([PublishIndex(model, metric, name)])[0]

        with contextlib.suppress(StoreClosed):
            self._spawn(lambda: files.build(vector.model, vector.metric, build, publish), "indexer", 1)

    def _run_for_build(self, request: Any) -> Any:
        """Run a request of a build. Each has a snapshot of its own, so that the log can be emptied in between."""
        if self._sql.ranker.files.is_stopping:
            raise Stopped
        reader = self._readers.take()
        try:
            with self._translating():
                return reader.run(request)
        finally:
            self._readers.give_back(reader)

    # Connections -----------------------------------------------------------------------------------------------------

    @property
    def _synchronous(self) -> str:
        return "FULL" if self._options.durability == "full" else "NORMAL"

    def _open(self) -> Connection:
        """Return the connection that writes, to a file that exists and has the current schema."""
        with self._opening:
            if self._closed:
                raise StoreClosed("this store is closed; open a new one")
            if self._writer is None:
                try:
                    self._writer = self._connect_writer()
                except apsw.Error as error:
                    raise self._translate_error(error) from error
            return self._writer

    def _connect_writer(self) -> Connection:
        folder = FilePath(self._path).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"cannot create the folder {str(folder)!r} for the store: {error.strerror}") from error
        with folder_lock(folder, self._options.timeout):
            writer = self._open_file()
        self._sql.trees.needs_clearing = bool(writer.execute("SELECT 1 FROM holdall_trees LIMIT 1").fetchall())
        self._inodes = self._inodes_now()
        writer.turns = writer.busy_wait.turns = WriteTurns(self._path, self._options.timeout)
        if self._options.durability == "full":
            pragma(writer, "fullfsync", "1")  # macOS: an fsync that reaches the disk
        return writer

    def _open_file(self) -> Connection:
        """Open the file, while no other process does, and have it be one of this release."""
        writer = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        try:
            self._refuse_foreign(writer)
            if pragma(writer, "journal_mode") != "wal" and pragma(writer, "journal_mode", "wal") != "wal":
                raise Unavailable(
                    f"SQLite cannot use a write-ahead log where {self._path!r} is; move it to a local disk"
                )
            self._migrate(writer)
        except BaseException:
            writer.close()
            raise
        return writer

    def _connect_reader(self) -> Connection:
        if self._writer is None:
            self._open()
        try:
            self._check_files()
            reader = self._connect(apsw.SQLITE_OPEN_READWRITE)
            try:
                pragma(reader, "query_only", "1")
                pragma(reader, "mmap_size", str(_MAPPED))
            except BaseException:
                reader.close()
                raise
        except apsw.Error as error:
            raise self._translate_error(error) from error
        return reader

    def _connect(self, flags: int) -> Connection:
        return Connection(self._path, flags, self._options.timeout)

    def _check_files(self) -> None:
        """Raise an error if a file was deleted in use: what is written to it would be lost.

        SQLite never replaces a file while a connection is open. It empties its log in place, and deletes the log and
        its index with the last connection of all processes.
        """
        if self._inodes_now() != self._inodes:
            raise StoreClosed("this store is closed; open a new one") if self._closed else self._lost()

    def _inodes_now(self) -> dict[str, int | None]:
        inodes: dict[str, int | None] = {}
        for suffix in _SUFFIXES:
            try:
                inodes[suffix] = os.stat(self._path + suffix).st_ino  # noqa: PTH116  # faster than Path.stat
            except (FileNotFoundError, NotADirectoryError):
                inodes[suffix] = None
            except OSError:  # it may exist: a process can give up the right to see it
                inodes[suffix] = self._inodes.get(suffix)
        return inodes

    def _lost(self) -> Unavailable:
        return Unavailable(
            f"the database {self._path!r}, or its -wal or -shm file, was deleted, moved or replaced while it was open;"
            " close every store on it in this process, and open it again"
        )

    def _refuse_foreign(self, writer: Connection) -> None:
        """Raise an error for a database of another program: its owner probably wants no tables of holdall's in it."""
        tables = [name for (name,) in writer.execute("SELECT name FROM sqlite_schema WHERE name NOT GLOB 'sqlite_*'")]
        if tables and "holdall_schema" not in tables:
            raise InvalidInput(
                f"{self._path!r} is another program's database (it has {tables[0]!r} and no table of holdall's);"
                " name a new file"
            )

    def _migrate(self, writer: Connection) -> None:
        present = _schema_version(writer)
        if present > len(MIGRATIONS):
            raise SchemaTooNew(
                f"{self._path!r} has schema {present}, newer than this holdall's {len(MIGRATIONS)}: upgrade holdall"
            )
        existing = {name for (name,) in writer.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")}
        missing = [sql for name, sql in self._dialect.indexes() if name not in existing]
        if present == len(MIGRATIONS) and not missing:
            return
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("CREATE TABLE IF NOT EXISTS holdall_schema (version INTEGER NOT NULL)")
        for statements in MIGRATIONS[present:]:
            writer.execute(statements)
        writer.execute("DELETE FROM holdall_schema")
        writer.execute("INSERT INTO holdall_schema VALUES (?)", (len(MIGRATIONS),))
        for sql in missing:
            writer.execute(sql)
        writer.execute("COMMIT")

    def _spawn(self, function: Callable[[], None], job: str, most: int) -> None:
        """Run a function in a worker thread for its kind of job, so that long walks delay neither writes nor reads."""
        with self._spawning:
            if self._closed:
                raise StoreClosed("this store is closed; open a new one")
            if job not in self._workers:
                self._workers[job] = Workers(most, f"holdall-{job}")
            try:
                self._workers[job].submit(function)
            except RuntimeError as error:  # Python is shutting down, or cannot start a thread
                raise StoreClosed(f"no more work can begin in this process: {error}") from error

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except HoldallError:
            raise
        except _UNREADABLE as error:
            raise self._translate_error(error) from error

    def _translate_error(self, error: Exception) -> HoldallError:
        """Return the `HoldallError` for an error of the driver, or of decoding a row."""
        where = f"{self._path!r}: {error}"
        match error:
            case apsw.BusyError() | apsw.LockedError():
                return Timeout(f"another process kept the database busy for {self._options.timeout} s: {where}")
            case apsw.NotADBError():
                return Corrupt(f"not a SQLite database: {where}")
            case apsw.CorruptError() | apsw.FormatError():
                return Corrupt(f"the database is damaged: {where}")
            case apsw.TooBigError():
                return InvalidInput(
                    f"larger than SQLite can store or return at once; read a file in pieces with Files.open: {where}"
                )
            case apsw.FullError():
                return Unavailable(f"the disk is full; nothing was written: {where}")
            case apsw.ConnectionClosedError():
                return StoreClosed(f"the store was closed during the call: {where}")
            case apsw.CantOpenError() if _has_no_handles():
                return Unavailable(f"this process has no file handles left; close some, or raise the limit: {where}")
            case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
                return Unavailable(f"cannot write; make the file and its folder writable: {where}")
            case apsw.IOError():
                return Unavailable(f"the disk or file system failed: {where}")
            case apsw.SQLError() if _is_malformed(error):
                return Corrupt(f"a stored value is not JSON: {where}")
        if isinstance(error, apsw.Error):
            return HoldallError(f"SQLite refused a statement of holdall; {_CHECK}: {where}")
        return Corrupt(f"the database has data that holdall does not write; {_CHECK}: {where} ({type(error).__name__})")


def _is_held(result: Any) -> bool:
    """Whether a page of the feed ends before tombstones that are not written yet."""
    return type(result) is HeldPage or (type(result) is RecordPage and result.more and not result.records)


def _is_malformed(error: Exception) -> bool:
    return isinstance(error, apsw.SQLError) and "malformed JSON" in str(error)


def _only_reads(batch: Sequence[Op]) -> bool:
    if len(batch) == 1:
        kind = type(batch[0])
        return kind in READS or kind in WALKS
    return all(type(op) in READS for op in batch)


def _has_no_handles() -> bool:
    """Whether this process has no file handles left. SQLite reports that like a file that cannot be opened."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _schema_version(connection: Connection) -> int:
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'holdall_schema'").fetchall():
        return 0
    rows = connection.execute("SELECT version FROM holdall_schema").fetchall()
    return int(str(rows[0][0])) if rows else 0
