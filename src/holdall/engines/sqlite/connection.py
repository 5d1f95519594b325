"""A connection to a SQLite file: how it runs statements, and how it waits for other processes."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import apsw

from ...engine import corrupt_entry
from ...errors import Corrupt
from ...model import keys
from ...runtime.programs import Work
from ...runtime.signals import call_start, restart_if_signaled
from ..sql.statements import Rows, SqlRequest
from .write_turns import WriteTurns

_BUSY_SLEEP = 0.0005
#: Asks how long the log is, and copies nothing. From SQLite 3.51 on.
_NOOP: int | None = getattr(apsw, "SQLITE_CHECKPOINT_NOOP", None)
#: The next commit copies a log of so many pages into the database. This is the default of SQLite.
LONGEST_LOG = 1000
#: Commits in an event loop let the log grow to so many pages, while a thread copies it.
_LONGEST_IN_LOOP = 4000


class Connection(apsw.Connection):
    """A connection that runs a program's statements."""

    last_taken_by: int | None = None  # the thread that used it last, if it is a reader

    # Only of the connection that writes:
    _synchronous: str | None = None
    turns: WriteTurns | None = None
    has_outer_lock = False  # the engine takes turns for a lock of its own, so `begin` does not
    uncopied = 0  # how many pages of the log were not in the database when `is_free` looked

    def __init__(self, path: str, flags: int, timeout: float) -> None:
        super().__init__(path, flags=flags)
        self.busy_wait = BusyWait(timeout)
        self.set_busy_handler(self.busy_wait)
        after: Any = keys.after
        self.create_scalar_function("holdall_after", after, 2, deterministic=True)
        self.create_aggregate_function("holdall_joined", concatenate_bytes, 1)
        pragma(self, "temp_store", "MEMORY")
        pragma(self, "cache_size", "-8000")
        self.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # otherwise it may plan again for each bound value

    def run(self, statements: SqlRequest) -> Any:
        """Run what a program has yielded; return the rows of each statement."""
        if isinstance(statements, Work):  # no event loop waits: the caller is a worker thread, or synchronous
            return statements.function(*statements.args)
        return [
            self.executemany(sql, params).fetchall() if isinstance(params, list) else self.fetch(sql, params)
            for sql, params in statements
        ]

    def set_synchronous(self, level: str) -> None:
        """Set the durability of the next commits. Every commit sets it, so that none depends on an earlier one."""
        if self._synchronous != level:
            self._synchronous = None  # unknown, in case the statement fails
            self.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = level

    def fetch(self, sql: str, params: Any) -> Rows:
        """Return the rows of a statement."""
        try:
            return self.execute(sql, params).fetchall()
        except UnicodeDecodeError as error:
            raise self._find_damaged(sql, params, error) from error

    def _find_damaged(self, sql: str, params: Any, error: UnicodeDecodeError) -> Corrupt:
        """Return the error for a query with a row that is not UTF-8. It names the entry, if the query selects it."""
        rows, offset = self.execute(sql, params), 0
        with contextlib.suppress(UnicodeDecodeError):
            for offset, _ in enumerate(rows, 1):  # noqa: B007  # the number of rows before the damaged one
                pass
        rows.close()
        name = f"SELECT CAST(ns AS BLOB), CAST(key AS BLOB) FROM ({sql}) LIMIT 1 OFFSET {offset}"
        try:
            found: list[Any] = self.execute(name, params).fetchall()
            ns, key = (part.decode(errors="replace") for part in found[0])
        except (apsw.Error, LookupError, AttributeError):  # the query does not select them, or they are damaged too
            return Corrupt(f"the database is damaged: {error}")
        return corrupt_entry(ns, key, error)

    def insert(self, sql: str, params: tuple[Any, ...]) -> int | None:
        """Run an insert of one row; return the id of the row, or None if it was not inserted."""
        self.execute(sql, params)
        return self.last_insert_rowid() if self.changes() else None

    def begin(self) -> None:
        """Begin a transaction that writes, after other processes that wait."""
        if not self.has_outer_lock:
            self.yield_turn()
        try:
            self.execute("BEGIN IMMEDIATE")
        finally:
            if self.turns is not None and self.turns.is_waiting:
                self.turns.stop_waiting()

    def yield_turn(self) -> None:
        """Let other processes write first, if they wait and this one has written for a while."""
        if self.turns is not None:
            self.turns.yield_to_waiters(lambda: pragma(self, "data_version"))

    def is_free(self) -> bool:
        """Whether a small transaction needs no pause and no fsync. A commit with `synchronous=FULL` needs one anyway.

        A very long log is copied into the database after a commit, with an fsync. Once all of the log was copied, it
        starts again, with a new header that needs an fsync, too.
        """
        if _NOOP is None or not (self.has_outer_lock or self.turns is None or self.turns.is_ours()):
            return False
        length, copied = self.wal_checkpoint("main", _NOOP)
        self.uncopied = length - copied
        return length < _LONGEST_IN_LOOP and copied < length

    def close(self, force: bool = False) -> None:
        super().close(force)
        if self.turns is not None:
            self.turns.close()


class BusyWait:
    """A busy handler that sleeps briefly and often, because SQLite's own handler soon sleeps for far too long."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._start = 0.0
        self.turns: WriteTurns | None = None
        self.deadline: float | None = None  # overrides the timeout: the caller may have waited in a queue before

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._start = call_start()
        if now >= (self._start + self._timeout if self.deadline is None else self.deadline):
            return False
        restart_if_signaled()
        if self.turns is not None:
            self.turns.start_waiting()
        time.sleep(_BUSY_SLEEP)
        return True


def concatenate_bytes() -> Any:
    """Return an aggregate function that concatenates bytes: its initial state, its step, and its final function."""
    return [], _add_piece, b"".join


def _add_piece(pieces: list[bytes], data: Any) -> None:
    if type(data) is not bytes:
        raise Corrupt("a piece of a file is damaged; write or delete the file, or restore a copy of the store")
    pieces.append(data)


def pragma(connection: apsw.Connection, name: str, value: str | None = None) -> Any:
    """Set a PRAGMA if a value is given; return its current value."""
    if value is not None:
        connection.execute(f"PRAGMA {name} = {value}").fetchall()
    rows = connection.execute(f"PRAGMA {name}").fetchall()
    return rows[0][0] if rows else None
