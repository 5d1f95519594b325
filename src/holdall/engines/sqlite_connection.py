"""A connection to a SQLite file: how it waits for others, and how it runs statements."""

from __future__ import annotations

import time
from typing import Any

import apsw

from .. import keys
from ..programs import Work
from .sqlite_sql import PUT_NEW
from .statements import ManyTimes, Rows, Statement
from .turns import Turns

_BUSY_SLEEP = 0.0005


class Connection(apsw.Connection):
    """A connection that runs a program's statements."""

    # What follows is a writer's.
    turns: Turns | None = None
    unconditional: frozenset[str] = frozenset()  # statements that put, whatever is there
    left_by_put = ""  # and the one that reads what they have left

    def __init__(self, path: str, flags: int, timeout: float) -> None:
        super().__init__(path, flags=flags)
        self.patience = Patience(timeout)
        self.set_busy_handler(self.patience)
        after: Any = keys.after
        self.create_scalar_function("holdall_after", after, 2, deterministic=True)
        self.create_aggregate_function("holdall_joined", joined_bytes, 1)
        pragma(self, "temp_store", "MEMORY")
        pragma(self, "cache_size", "-8000")
        self.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # else it plans anew for each value that is bound

    def run(self, statements: list[Statement | ManyTimes] | Work) -> Any:
        if isinstance(statements, Work):  # this is a thread already
            return statements.function(*statements.args)
        return [
            self.executemany(sql, params).fetchall()
            if isinstance(params, list)
            else self._put(sql, params)
            if sql in self.unconditional
            else self.execute(sql, params).fetchall()
            for sql, params in statements
        ]

    def begin(self) -> None:
        """Begin to write, when it is our turn."""
        if self.in_transaction:  # an interrupt has left it there
            self.execute("ROLLBACK")
        self.stand_back()
        try:
            self.execute("BEGIN IMMEDIATE")
        finally:
            if self.turns is not None and self.turns.waits:
                self.turns.stop_waiting()

    def stand_back(self) -> None:
        """Let others go first, who wait while we write and write."""
        if self.turns is not None and time.monotonic() >= self.turns.next_look:
            self.turns.let_others_in(lambda: pragma(self, "data_version"))

    def close(self, force: bool = False) -> None:
        super().close(force)
        if self.turns is not None:
            self.turns.close()

    def put_new(self, row: tuple[Any, ...]) -> int | None:
        """A plain put where nothing is there yet: its version; None where something is, and nothing was done."""
        self.execute(PUT_NEW, row)
        return self.last_insert_rowid() if self.changes() else None

    def put_over(self, sql: str, params: tuple[Any, ...] | dict[str, Any], ns: str, key: str) -> Rows:
        """A put without RETURNING, which would double its time: what it left is read."""
        self.execute(sql, params)
        return self.execute(self.left_by_put, (ns, key)).fetchall()

    def _put(self, sql: str, params: dict[str, Any]) -> Rows:
        """What is new, as it mostly is, needs half the time of what may replace something."""
        ns, key, now, ttl = params["ns"], params["key"], params["now"], params["ttl"]
        if params["size"] is None and params["fields"] is None and params["model"] is None:
            version = self.put_new((ns, key, params["value"], now, ttl))
            if version is not None:
                return [(version, now, now, None if ttl is None else now + ttl)]
        return self.put_over(sql, params, ns, key)


class Patience:
    """A busy handler: sleeps briefly and often, because SQLite's own backs off for far too long."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._began = 0.0
        self.turns: Turns | None = None
        self.deadline: float | None = None  # of whoever has waited longest already, in a queue

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._began = now
        if now >= (self._began + self._timeout if self.deadline is None else self.deadline):
            return False
        if self.turns is not None:
            self.turns.wait()
        time.sleep(_BUSY_SLEEP)
        return True


def joined_bytes() -> Any:
    """An aggregate that SQLite does not have, as apsw wants it: what it has at first, a step, and the end."""
    return [], lambda pieces, data: pieces.append(data), b"".join


def pragma(connection: apsw.Connection, name: str, value: str | None = None) -> Any:
    """Set a PRAGMA, one at a time, and give what it is now."""
    if value is not None:
        connection.execute(f"PRAGMA {name} = {value}").fetchall()
    rows = connection.execute(f"PRAGMA {name}").fetchall()
    return rows[0][0] if rows else None
