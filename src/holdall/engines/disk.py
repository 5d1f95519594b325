"""The disk engine: each file an ordinary file in a folder, each item a JSON file there, for any tool to read and edit.

It is the SQLite engine, whose database is a catalogue in `.holdall/`: what has no place in a plain file, such as
versions, lifetimes and indexes. The catalogue can be deleted, and is made anew from the files. How the two are kept
together is in `disk_catalogue.py` and `disk_edits.py`; `docs/discussions/decisions.md` says why it is safe.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .. import keys
from ..engine import Options
from ..errors import HoldallError, StoreClosed, Timeout, Unavailable, Unsupported
from ..ops import READS, Namespace, Op, ReadRange
from .commit import Submission
from .disk_catalogue import Catalogue
from .disk_edits import Edits
from .disk_names import OWN
from .disk_sql import DiskDialect
from .disk_tree import Stale, Tree
from .disk_watch import DiskListener, FolderWatch
from .sqlite import SqliteEngine
from .sqlite_connection import Connection

logger = logging.getLogger("holdall")
T = TypeVar("T")

_SLEEP = 0.0005
_UNLOCKED, _MOST = 3, 20  # tries to read what is being changed: without a lock, and in all
_HEAD = 1 << 20
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_REFERENCES = 10_000


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """The options of this engine alone."""

    volume: Namespace | None = None

    def __post_init__(self) -> None:
        if self.volume is not None:
            object.__setattr__(self, "volume", keys.check_namespace(self.volume))


class _Look(Op, frozen=True):
    """Take in what was edited outside."""


_LOOK = (_Look(),)


class DiskEngine(SqliteEngine):
    """Entries in one folder."""

    dialect = DiskDialect
    _at_once = frozenset()  # what was edited outside comes first, and that is no look-up
    _dialect: DiskDialect

    def __init__(self, root: str, options: Options, own: DiskOptions) -> None:
        self._tree = Tree(root)
        self._own = own
        self._watch: FolderWatch | None = None
        super().__init__(f"{root}/{OWN}/catalogue.db", options)
        self._dialect.tree = self._tree
        self._catalogue = Catalogue(self._tree, options.durability == "full")
        self._edits = Edits(self._tree, self._sql)

    def _reset(self) -> None:
        super()._reset()
        if self._watch is not None:
            self._watch.close()
        self._watch = None
        self._is_new = True  # to this process: all has to be compared
        self._dirty: set[str] = set()  # paths that have to be
        self._marking = threading.Lock()  # for the line above
        self._is_looking = False
        self._trouble: Exception | None = None  # why files could not be written
        self._references: dict[tuple[Namespace, str], str] = {}  # of files that were read
        self._name = os.urandom(16)  # by which we know that nobody else has had the lock since

    # The engine's methods --------------------------------------------------------------------------------------------

    def setup(self) -> None:
        super().setup()
        self._look()

    async def asetup(self) -> None:
        await super().asetup()
        await self._commits.asubmit(_LOOK)

    def close(self) -> None:
        super().close()
        if self._watch is not None:
            self._watch.close()

    def listen(self, ring: Callable[[], None]) -> Any:
        self._look()
        assert self._watch is not None
        return DiskListener(super().listen(ring), self._watch, self._look)

    # Reading ---------------------------------------------------------------------------------------------------------

    def _read(self, batch: Sequence[Op]) -> list[Any]:
        self._look()
        try:
            op = batch[0]
            if type(op) is ReadRange and op.start == 0 and op.end is None and len(batch) == 1:
                return [self._read_whole(op)]
            return super()._read(batch)
        except Stale as stale:
            return self._read_again(lambda: super(DiskEngine, self)._read(batch), stale)

    def _read_whole(self, op: ReadRange) -> bytes | None:
        """The most frequent of all. Which file it is need not be asked twice: its stamp says whether it still is."""
        if self._closed:
            raise StoreClosed("this store is closed; open a new one")
        entry = op.namespace, op.key
        reference = self._references.get(entry)
        if reference is not None:
            try:
                return self._tree.read(reference)
            except Stale:
                self._references.pop(entry, None)
        reader = self._readers.take()
        try:
            with self._translating():
                sql, params = self._sql.statement(op)
                rows = reader.execute(sql, params).fetchall()
            if rows and type(rows[0][1]) is str:
                if len(self._references) >= _REFERENCES:
                    self._references.clear()
                self._references[entry] = rows[0][1]
            content: bytes | None = self._sql.result(op, params, rows)
            return content
        finally:
            self._readers.give_back(reader)

    def _prepared(self, batch: Sequence[Op]) -> list[Op]:
        try:
            return super()._prepared(batch)
        except Stale as stale:
            return self._read_again(lambda: super(DiskEngine, self)._prepared(batch), stale)

    def _read_again(self, read: Callable[[], T], stale: Stale) -> T:
        """Somebody has changed what was being read: look, and read again; in the end, with no one else writing."""
        for tries in range(_MOST):
            with self._marking:
                self._dirty.add(stale.path)
            self._look()
            try:
                if tries < _UNLOCKED:
                    return read()
                with self._lock(None, time.monotonic()), self._tree.growing() as grown:
                    result = read()
                with self._marking:
                    self._dirty |= grown
                return result
            except Stale as again:
                stale = again
        raise Unavailable(f"the file {stale.path!r} is changed all the time from outside; try again")

    def _look(self) -> None:
        """Take in what was edited outside, if anything was."""
        watch = self._watch
        if watch is None or self._is_new or self._is_looking or self._dirty or watch.waiting() or watch.is_due():
            self._commits.submit(_LOOK)

    # Writing ---------------------------------------------------------------------------------------------------------

    def _transact(self, members: list[Submission]) -> None:
        """Run batches in one transaction, and bring what they changed to its place before anybody is told."""
        writer = self._writer or self._open()
        batches = [member for member in members if member.batch is not _LOOK]
        try:
            with self._lock(writer, members[0].began), self._translating():
                if self._catalogue.newest is not None or self._settle_rest(writer):
                    self._catch_up(writer)
                elif batches:
                    where = f"the files in {self._tree.root!r}"
                    raise Unavailable(f"{where} cannot be written; see to that first: {self._trouble}")
                if batches:
                    self._commit_steadily(writer, batches)
        except OSError as error:
            if isinstance(error, HoldallError):
                raise
            raise Unavailable(f"the folder {self._tree.root!r} cannot be used: {error}") from error
        finally:
            self._tree.let_go()
        for member in members:
            member.finished = True

    def _commit_steadily(self, writer: Connection, batches: list[Submission]) -> None:
        for tries in range(_MOST):
            try:
                self._catalogue.look(writer)
                relaxed = len(batches) == 1 and self._catalogue.may_be_told_by_file(batches[0].batch)
                with self._relaxed(writer) if relaxed else contextlib.nullcontext():
                    super()._transact(batches)
                break
            except Stale as stale:
                self._catalogue.discard()
                if tries == _MOST - 1:
                    raise Unavailable(f"the file {stale.path!r} is changed all the time from outside") from stale
                with self._marking:
                    self._dirty.add(stale.path)
                self._catch_up(writer)
            except BaseException:
                if not batches[0].finished:  # else an interrupt came after the commit: whoever is next finishes it
                    self._catalogue.discard()
                raise
        try:
            if self._catalogue.is_settled_at_once:
                is_there = self._bring(self._catalogue.finish)
                survives = is_there or not self._catalogue.unsynced
            else:
                is_there, survives = self._settle(writer, again=False), True
            if relaxed and not (is_there and self._catalogue.is_one_new):  # it needs the catalogue after all
                survives = self._tree.sync_file(self._path + "-wal") and survives
            if not survives:
                for member in batches:
                    member.error = member.error or Unavailable(
                        f"written to {self._tree.root!r}, but the disk does not say that it survives a power cut"
                    )
        except Exception:  # it is committed: whoever comes next goes on from here, and nobody begins again
            logger.exception("the plain files are behind the store, trying again later")

    def _before_commit(self, writer: Connection, members: list[Submission]) -> None:
        changes = sum(type(op) not in READS for member in members for op in member.batch)
        try:
            self._catalogue.place(writer, is_one_change=changes == 1)
        except OSError as error:
            raise Unavailable(f"cannot write to the folder {self._tree.root!r}: {error.strerror}") from error

    def _settle_rest(self, writer: Connection) -> bool:
        """Do what a killed process has left to do, or an earlier try; whether all is where it belongs now.

        Where it is not, nothing is taken in: what lies there is not what we know of, though nobody has edited it. Who
        reads is given what is known.
        """
        with self._translating():
            strays = self._catalogue.recover(writer)
        if self._catalogue.ready and not self._bring(self._catalogue.finish):
            return False
        if self._catalogue.unsynced and not self._bring(self._sync_again):
            return False
        if not self._settle(writer, again=True):
            return False
        self._catalogue.forget(strays)
        return True

    def _sync_again(self) -> tuple[dict[str, str], set[str]]:
        self._catalogue.sync()
        return {}, set()

    def _catch_up(self, writer: Connection) -> None:
        """Take in what was edited outside."""
        assert self._watch is not None
        watch, is_new = self._watch, self._is_new
        if not (is_new or self._dirty or watch.waiting() or watch.is_due()):
            return
        self._is_looking = True
        try:
            is_due = is_new or watch.is_due()
            noticed = watch.take() | ({""} if is_due else set())
            with self._marking:
                noticed |= self._dirty
                self._dirty |= noticed
            began = time.monotonic()
            volume = self._catalogue.volume
            changes = self._edits.take_in(writer, volume, noticed, watch.enter) if noticed else None
            if changes is not None:
                self._catalogue.newest = None
                with self._transaction(writer):
                    changes()
            if is_due:
                watch.compared(time.monotonic() - began)
            with self._marking:
                self._dirty -= noticed
            self._is_new = False
        finally:
            self._is_looking = False

    def _settle(self, writer: Connection, again: bool) -> bool:
        """Bring what was committed to its place. What cannot go there is safe in the catalogue, and waits."""

        def settle() -> tuple[dict[str, str], set[str]]:
            with self._translating(), self._relaxed(writer), self._transaction(writer):
                return self._catalogue.settle(writer, again)

        return self._catalogue.is_settled(writer) or self._bring(settle)

    def _bring(self, settle: Callable[[], tuple[dict[str, str], set[str]]]) -> bool:
        """Have files brought to their places, if that can be done; what we then notice of it is no news."""
        assert self._watch is not None
        try:
            written, doubtful = settle()
        except (OSError, HoldallError) as error:
            logger.warning("the plain files are behind the store, trying again later: %s", error)
            self._trouble = error
            self._references.clear()  # they still lead to what was there before
            return False
        with self._marking:
            self._dirty |= doubtful
        if self._watch.waiting():
            self._is_looking = True  # what has left the queue is nowhere else yet, and nobody must read without it
            try:
                noticed = self._watch.take()
                own = {path for path in noticed & written.keys() if self._tree.is_known(path, written[path])}
                with self._marking:
                    self._dirty |= noticed - own
            finally:
                self._is_looking = False
        return True

    @contextlib.contextmanager
    def _transaction(self, writer: Connection) -> Iterator[None]:
        writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            writer.execute("COMMIT")
        except BaseException:
            if writer.in_transaction:
                self._roll_back(writer)
            raise

    @contextlib.contextmanager
    def _lock(self, writer: Connection | None, began: float) -> Iterator[None]:
        """One process at a time; one that is killed lets go of it."""
        import fcntl

        deadline = began + self._options.timeout
        turns = None if writer is None else writer.turns
        if writer is not None:
            writer.stand_back()
        try:
            handle = os.open(f"{self._tree.root}/{OWN}/lock", _LOCK, 0o666)
        except OSError as error:
            raise self._lost() from error
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise Timeout(
                            f"another process kept {self._tree.root!r} busy for {self._options.timeout} s"
                        ) from None
                    if turns is not None:
                        turns.wait()
                    time.sleep(_SLEEP)
            if turns is not None:
                turns.stop_waiting()
            self._check_file()
            if writer is not None and os.pread(handle, 16, 0) != self._name:
                self._sign(handle)
            yield
        finally:
            try:
                fcntl.flock(handle, fcntl.LOCK_UN)  # for a child that was forked meanwhile, which has it open too
            except OSError:  # closing it does, mostly
                pass
            finally:
                os.close(handle)
                if turns is not None:
                    turns.stop_waiting()

    def _sign(self, handle: int) -> None:
        """Others have had the lock, and may have been killed at any point: now we have, and they are to know it."""
        self._catalogue.newest = None
        try:
            os.pwrite(handle, self._name, 0)
        except OSError:  # a full disk
            os.ftruncate(handle, 0)

    def _lost(self) -> Unavailable:
        return Unavailable(
            f"the catalogue {self._path!r} was deleted, moved or replaced while the store was open; close the store"
            " and open it again, and it is made anew from the files"
        )

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        with super()._translating():
            try:
                yield
            except OSError as error:
                if isinstance(error, HoldallError):
                    raise
                raise Unavailable(f"cannot read the folder {self._tree.root!r}: {error}") from error

    # Connections -----------------------------------------------------------------------------------------------------

    def _connect_writer(self) -> Connection:
        try:
            import fcntl  # noqa: F401  # what the lock needs
        except ImportError as error:
            raise Unsupported("a store on plain files needs a system with flock; use sqlite: here") from error
        self._tree.make()
        writer = super()._connect_writer()
        if self._watch is None:
            self._watch = FolderWatch(self._tree.root)
        return writer

    def _migrate(self, writer: Connection) -> None:
        super()._migrate(writer)
        with self._transaction(writer):
            self._catalogue.migrate(writer, self._own.volume)

    def _connect(self, flags: int) -> Connection:
        connection = super()._connect(flags)
        connection.create_aggregate_function("holdall_joined", self._joined, 1)
        connection.create_aggregate_function("holdall_head", self._beginning, 1)
        return connection

    def _joined(self) -> Any:
        """Joins pieces of a body."""
        part = self._dialect.part
        return [], lambda pieces, data: pieces.append(part(data, 0, None)), b"".join

    def _beginning(self) -> Any:
        """Joins the beginnings of pieces."""
        part = self._dialect.part
        return [], lambda pieces, data: pieces.append(part(data, 0, _HEAD)), b"".join
