"""The SQLite engine: the embedded default, one file, many processes.

WAL, `synchronous=FULL`, one connection that writes (through `commit.GroupCommit`) and a pool of connections that read
and never wait for it. Other processes' writers are waited out in short sleeps. The file is opened and migrated under a
lock on its folder. Async callers take one hop to a worker thread a batch; reads that are asked for meanwhile share the
next hop. One look-up is answered in the event loop itself, unless the disk was slow of late.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path as FilePath
from typing import Any

import apsw

from ..engine import Capabilities, Options, system_clock
from ..errors import Corrupt, HoldallError, InvalidInput, SchemaTooNew, StoreClosed, Timeout, Unavailable
from ..ops import READS, WALKS, Get, Learn, Op, Refresh, Stat, Tidy
from ..programs import drive
from .commit import GroupCommit, Submission, announce, finishing
from .notices import WalListener
from .readers import Readers
from .sql import LOOK_UPS, is_plain_put, takes_several
from .sqlite_connection import Connection, pragma
from .sqlite_sql import DOUBT_FIELDS, MIGRATIONS, SqliteDialect, SqliteSql, entry_of, is_misread
from .turns import Turns, folder_lock
from .workers import Workers

_MAPPED = 1 << 30  # bytes of the file that are read where the system has them, without a call for each page
_WALKERS = 4
_SLOW, _WARY = 0.001, 10.0  # seconds: a look-up that waited for the disk; how long the next ones go to a thread
_SAME_FILE = 0.01  # seconds: how long a file is taken to be still there
_NO_CHANGES = READS | {Refresh, Tidy, Learn}


class SqliteEngine:
    """Entries in one SQLite file."""

    capabilities = Capabilities(durable=True, multiprocess=True, ranks=True)
    dialect: type[SqliteDialect] = SqliteDialect
    _at_once: frozenset[type[Op]] = frozenset({Get, Stat})  # look-ups that may be answered in an event loop

    def __init__(self, path: str, options: Options) -> None:
        self._path = path
        self._options = options
        self._dialect = self.dialect(options.indexed)
        self._sql = SqliteSql(self._dialect, options.clock or system_clock)
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        """A state with nothing open: at the beginning, and in a forked child."""
        self._opening = threading.Lock()
        self._spawning = threading.Lock()  # not the one above, which an event loop must never wait for
        self._writer: Connection | None = None
        self._inode: int | None = None  # of the file that is open
        self._look_again = 0.0  # when to see whether it is still the one of that name
        self._readers = Readers(self._connect_reader)
        self._commits = GroupCommit(self._commit, lambda lead: self._spawn(lead, "writer", 1))
        self._workers: dict[str, Workers] = {}
        self._wary_until = 0.0
        self._reads: list[Submission] = []
        self._asking = threading.Lock()  # for the line above: several event loops ask at once

    # The engine's methods --------------------------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        return self._sql.behind

    def execute(self, batch: Sequence[Op]) -> list[Any]:
        if _only_reads(batch):
            return self._read(batch)
        if type(batch[0]) is Learn:
            batch = self._prepared(batch)
        return self._commits.submit(batch)

    async def aexecute(self, batch: Sequence[Op]) -> list[Any]:
        if not _only_reads(batch):
            if type(batch[0]) is Learn:
                batch = await asyncio.to_thread(self._prepared, batch)
            return await self._commits.asubmit(batch)
        if self._may_be_at_once(batch) and time.monotonic() > self._wary_until:
            found = self._look_up_at_once(batch[0])
            if found is not None:
                await asyncio.sleep(0)  # as others expect of who awaits something: their turn
                return found
        submission = Submission(batch)
        outcome = submission.awaited()
        if type(batch[0]) in WALKS:  # may take long: on its own
            self._spawn(lambda: self._answer([submission]), "walker", _WALKERS)
        else:
            with self._asking:
                if not self._reads:
                    self._spawn(self._answer_reads, "reader", 1)
                self._reads.append(submission)
        return await outcome

    def setup(self) -> None:
        self._open()

    async def asetup(self) -> None:
        await asyncio.to_thread(self._open)

    def close(self) -> None:
        self._commits.close()
        with self._spawning:
            self._closed = True
        for workers in self._workers.values():
            workers.close()
        with self._opening:
            self._readers.close()
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def before_fork(self) -> None:
        """SQLite must not cross a fork with a file open: not even its locks would be the child's own."""
        self._pause = Submission(())
        self._commits.pause(self._pause)
        self._readers.pause()
        self._opening.acquire()  # last: what is under way may have to open the file before it can end
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            self._reset()
            return
        self._opening.release()
        self._readers.resume()
        self._commits.resume(self._pause)

    def listen(self, ring: Callable[[], None]) -> WalListener:
        return WalListener(self._path + "-wal", self._newest, ring)

    # Reading ---------------------------------------------------------------------------------------------------------

    def _newest(self) -> object:
        """The version of the last change: the least that has to be asked."""
        reader = self._readers.take()
        try:
            with self._translating():
                return reader.execute("SELECT max(version) FROM holdall_entries").fetchall()
        finally:
            self._readers.give_back(reader)

    def _read(self, batch: Sequence[Op]) -> list[Any]:
        reader = self._readers.take()
        try:
            op = batch[0]
            walks = type(op) in WALKS
            if len(batch) == 1 and not walks:  # no need of a transaction
                return [self._look_up(reader, op) if type(op) in LOOK_UPS else self._sql.ask(op, reader.run)]
            reader.execute("BEGIN")
            results = [drive(self._sql.walk(op), reader.run)] if walks else drive(self._sql.batch(batch), reader.run)
            reader.execute("ROLLBACK")
            return results
        except apsw.Error as error:
            raise self._translated(error) from error
        finally:
            self._readers.give_back(reader)

    def _look_up(self, reader: Connection, op: Op) -> Any:
        """The most frequent of all, in as few steps as there can be."""
        sql, params = self._sql.statement(op)
        return self._sql.result(op, params, reader.execute(sql, params).fetchall())

    def _look_up_at_once(self, op: Op) -> list[Any] | None:
        """The result of a look-up, in the event loop's own thread; None where it would have to wait for anybody.

        What the system has in memory is here sooner than a thread can be woken, which costs the loop itself three times
        as much. Only the disk can be slow: one that was is not asked from here for a while.
        """
        reader = self._readers.take_idle()
        if reader is None:
            return None
        began = time.monotonic()
        reader.patience.deadline = began
        try:
            return [self._look_up(reader, op)]
        except (apsw.BusyError, apsw.LockedError):
            return None
        except apsw.Error as error:
            raise self._translated(error) from error
        finally:
            reader.patience.deadline = None
            self._readers.give_back(reader)
            now = time.monotonic()
            if now - began > _SLOW:
                self._wary_until = now + _WARY

    def _may_be_at_once(self, batch: Sequence[Op]) -> bool:
        op = batch[0]
        is_file = isinstance(op, Get) and op.key[0] == "/"  # it comes with its content, which may be large
        return len(batch) == 1 and type(op) in self._at_once and not is_file

    def _prepared(self, batch: Sequence[Op]) -> list[Op]:
        """What is learned, made ready while others write."""
        reader = self._readers.take()
        try:
            reader.execute("BEGIN")  # which ends when the reader is given back
            return [drive(self._sql.prepare(op), reader.run) for op in batch if isinstance(op, Learn)]
        except apsw.Error as error:
            raise self._translated(error) from error
        finally:
            self._readers.give_back(reader)

    def _answer_reads(self) -> None:
        """All point reads that wait by now, in one hop."""
        with self._asking:
            waiting, self._reads = self._reads, []
        self._answer(waiting)

    def _answer(self, submissions: list[Submission]) -> None:
        for submission in submissions:
            if not submission.cancelled:
                try:
                    submission.results = self._read(submission.batch)
                except Exception as error:  # whatever it is belongs to this caller alone
                    submission.error = error
        announce(submissions)

    # Writing ---------------------------------------------------------------------------------------------------------

    def _commit(self, group: list[Submission]) -> None:
        """Commit a group in one transaction; where that fails as a whole, each batch in one of its own."""
        members = group if len(group) == 1 else [submission for submission in group if not submission.cancelled]
        if len(members) > 1:
            try:
                self._transact(members)
                return
            except Timeout as error:  # nothing began: who has waited long enough is told, the others wait on
                late = max(members[0].began, time.monotonic() - self._options.timeout)
                for submission in members:
                    if submission.began <= late:
                        submission.error, submission.finished = Timeout(*error.args), True
                return
            except Exception as error:  # each member learns its own fate below
                if _is_interrupt(error):
                    raise
        for submission in members:
            if submission.finished or submission.cancelled:  # what failed came after the commit, or nobody waits
                continue
            try:
                self._transact([submission])
            except Exception as error:  # whatever else it is belongs to this caller alone
                if _is_interrupt(error):
                    raise
                submission.error, submission.finished = error, True

    def _transact(self, members: list[Submission]) -> None:
        """Run batches in one transaction. A refused one leaves nothing behind; any other error undoes them all."""
        try:
            writer, began = self._writer or self._open(), members[0].began
            writer.patience.deadline = began + self._options.timeout
            if began >= self._look_again:
                self._check_file()
                self._look_again = began + _SAME_FILE
            if type(members[0].batch[0]) not in _NO_CHANGES or not _change_nothing(members):
                self._transact_on(writer, members)
                return
            with self._relaxed(writer):  # a refresh is not worth an fsync
                self._transact_on(writer, members)
        except apsw.Error as error:
            raise self._translated(error) from error

    @contextlib.contextmanager
    def _relaxed(self, writer: Connection) -> Iterator[None]:
        """Commit without an fsync."""
        is_full = self._synchronous != "NORMAL"
        if is_full:
            writer.execute("PRAGMA synchronous = NORMAL")
        try:
            yield
        finally:
            if is_full and self._writer is writer:  # else it could not even undo something, and was left behind
                writer.execute(f"PRAGMA synchronous = {self._synchronous}")

    def _transact_on(self, writer: Connection, members: list[Submission]) -> None:
        committing = False
        for member in members:
            member.error = None  # of an earlier try, which was undone
        try:
            writer.begin()
            batch = members[0].batch
            if len(members) == 1 and len(batch) == 1:
                if is_misread(batch[0]):
                    writer.execute(DOUBT_FIELDS)
                members[0].results = [self._run_alone(writer, batch[0])]
            else:
                if any(is_misread(op) for member in members for op in member.batch):
                    writer.execute(DOUBT_FIELDS)
                if len(members) == 1:
                    members[0].results = drive(self._sql.batch(batch), writer.run)
                else:
                    self._run_members(writer, members)
            self._before_commit(writer, members)
            all_finished = finishing(members)
            committing = True
            writer.execute("COMMIT")
        except BaseException as error:
            if writer.in_transaction:
                committing = False
                try:
                    writer.execute("ROLLBACK")  # at once: a function of ours might be interrupted before it begins
                except apsw.Error:
                    self._roll_back(writer)
            elif isinstance(error, apsw.Error):
                committing = False
            raise
        finally:
            if committing:  # also where an interrupt came just after the commit: it holds
                any(all_finished)

    def _run_alone(self, writer: Connection, op: Op) -> Any:
        """A batch of one op; where it is a plain put, in as few steps as there can be."""
        if not is_plain_put(op):
            return self._sql.ask(op, writer.run)
        row = self._sql.row(op)
        version = writer.put_new(row)
        if version is not None:
            return entry_of(op, row, version)
        [(version, created, *_)] = writer.put_over(*self._sql.over(row), *row[:2])
        return entry_of(op, row, version, created)

    def _before_commit(self, writer: Connection, members: list[Submission]) -> None:
        """For an engine that keeps more than a database."""

    def _roll_back(self, writer: Connection) -> None:
        """Undo; a connection that cannot even do that is left behind."""
        try:
            writer.execute("ROLLBACK")
        except apsw.Error:
            self._writer = None
            writer.close(force=True)

    def _run_members(self, writer: Connection, members: list[Submission]) -> None:
        for plain, group in groupby(members, lambda member: all(map(is_plain_put, member.batch))):
            if plain:
                self._run_together(writer, list(group))
            else:
                for member in group:
                    self._run_member(writer, member)

    def _run_together(self, writer: Connection, members: list[Submission]) -> None:
        """Batches of which none can be refused, as one."""
        results = iter(drive(self._sql.batch([op for member in members for op in member.batch]), writer.run))
        for member in members:
            member.results = list(islice(results, len(member.batch)))

    def _run_member(self, writer: Connection, member: Submission) -> None:
        """A batch among others, which alone is undone if it is refused."""
        guarded = len(member.batch) > 1 or takes_several(member.batch[0])  # one statement is atomic by itself
        if guarded:
            writer.execute("SAVEPOINT member")
        try:
            member.results = drive(self._sql.batch(member.batch), writer.run)
        except HoldallError as error:
            member.error = error
            if guarded:
                writer.execute("ROLLBACK TO member")
        if guarded:
            writer.execute("RELEASE member")

    # Connections -----------------------------------------------------------------------------------------------------

    @property
    def _synchronous(self) -> str:
        return "FULL" if self._options.durability == "full" else "NORMAL"

    def _open(self) -> Connection:
        """The writing connection, on a file that is there and up to date."""
        with self._opening:
            if self._closed:
                raise StoreClosed("this store is closed; open a new one")
            if self._writer is None:
                try:
                    self._writer = self._connect_writer()
                except apsw.Error as error:
                    raise self._translated(error) from error
            return self._writer

    def _connect_writer(self) -> Connection:
        folder = FilePath(self._path).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"cannot make the folder {str(folder)!r} for the store: {error.strerror}") from error
        with folder_lock(folder, self._options.timeout):
            writer = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            try:
                self._refuse_foreign(writer)
                if pragma(writer, "journal_mode") != "wal" and pragma(writer, "journal_mode", "wal") != "wal":
                    raise Unavailable(
                        f"{self._path!r} lies where SQLite cannot use a write-ahead log; move it to a local disk"
                    )
                self._migrate(writer)
            except BaseException:
                writer.close()
                raise
        self._inode = self._inode_now()
        pragma(writer, "synchronous", self._synchronous)
        writer.turns = writer.patience.turns = Turns(self._path, self._options.timeout)
        writer.unconditional, writer.left_by_put = self._sql.unconditional, self._sql.left_by_put
        if self._options.durability == "full":
            pragma(writer, "fullfsync", "1")  # macOS: an fsync that reaches the disk
        return writer

    def _connect_reader(self) -> Connection:
        if self._writer is None:
            self._open()
        try:
            self._check_file()
            reader = self._connect(apsw.SQLITE_OPEN_READWRITE)
            pragma(reader, "query_only", "1")
            pragma(reader, "mmap_size", str(_MAPPED))
        except apsw.Error as error:
            raise self._translated(error) from error
        return reader

    def _connect(self, flags: int) -> Connection:
        return Connection(self._path, flags, self._options.timeout)

    def _check_file(self) -> None:
        """Where the file was deleted in use, what is written to it is lost, and others make a new one of its name."""
        if self._inode_now() != self._inode:
            raise self._lost()

    def _inode_now(self) -> int | None:
        try:
            return os.stat(self._path).st_ino  # noqa: PTH116  # the quickest
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:  # it may be there: a process can give up the right to see it
            return self._inode

    def _lost(self) -> Unavailable:
        return Unavailable(
            f"the database {self._path!r} was deleted, moved or replaced while it was open; close every store on it in"
            " this process, and open it again"
        )

    def _refuse_foreign(self, writer: Connection) -> None:
        """A database that others made is left alone: whoever named it here hardly meant to have our tables in it."""
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
        """Run something in a thread for its kind of job: long walks must keep neither writers nor readers waiting."""
        with self._spawning:
            if self._closed:
                raise StoreClosed("this store is closed; open a new one")
            if job not in self._workers:
                self._workers[job] = Workers(most, f"holdall-{job}")
            try:
                self._workers[job].submit(function)
            except RuntimeError as error:  # Python's, when the program ends; or no thread can be had
                raise StoreClosed(f"no more work can begin in this process: {error}") from error

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: apsw.Error) -> HoldallError:
        """Ours for a driver's error."""
        where = f"{self._path!r}: {error}"
        match error:
            case apsw.BusyError() | apsw.LockedError():
                return Timeout(f"another process kept the database busy for {self._options.timeout} s: {where}")
            case apsw.NotADBError():
                return Corrupt(f"not a SQLite database: {where}")
            case apsw.CorruptError() | apsw.FormatError():
                return Corrupt(f"the database is damaged: {where}")
            case apsw.TooBigError():
                return InvalidInput(f"larger than SQLite can store: {where}")
            case apsw.FullError():
                return Unavailable(f"the disk is full; nothing was written: {where}")
            case apsw.ConnectionClosedError():
                return StoreClosed(f"the store was closed meanwhile: {where}")
            case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
                return Unavailable(f"cannot write there; see that the file and its folder are writable: {where}")
            case apsw.IOError():
                return Unavailable(f"the disk or file system failed: {where}")
            case apsw.SQLError() if "malformed JSON" in str(error):
                return Corrupt(f"a stored value is not JSON: {where}")
        return HoldallError(f"SQLite refused what holdall asked of it; please report this: {where}")


def _only_reads(batch: Sequence[Op]) -> bool:
    if len(batch) == 1:
        kind = type(batch[0])
        return kind in READS or kind in WALKS
    return all(type(op) in READS for op in batch)


def _is_interrupt(error: Exception) -> bool:
    """Whether a signal's handler may have raised it: it is nothing of a batch's then, but the main thread's own."""
    return not isinstance(error, HoldallError) and threading.current_thread() is threading.main_thread()


def _change_nothing(members: list[Submission]) -> bool:
    return all(type(op) in _NO_CHANGES for member in members for op in member.batch)


def _schema_version(connection: Connection) -> int:
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'holdall_schema'").fetchall():
        return 0
    rows = connection.execute("SELECT version FROM holdall_schema").fetchall()
    return int(str(rows[0][0])) if rows else 0
