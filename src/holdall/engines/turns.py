"""Taking turns: processes that write to one SQLite file let each other in.

SQLite's lock goes to whoever asks in the right instant. A process that writes without a pause frees it for some
microseconds at a time, and one that looks every half millisecond may miss them for seconds. So who waits says so, and
who has written for a while looks whether anybody waits, and lets them go first.

Waiting is said by a shared `flock` on the write-ahead log: SQLite has no lock of its own on that file, which is there
for as long as a connection is, and a process that dies says nothing any more. Where there is no `flock`, nobody is let
in, and chance decides.

Opening takes turns, too: `folder_lock` lets one process at a time create or migrate a file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import Timeout

_SLICE = 0.01  # for how long a process writes before it looks, in seconds
_PATIENCE = 0.1  # for how long it lets those who wait try: a busy machine may not wake them at once
_REST = 1.0  # until it looks again where nobody came: a process that was stopped waits too
_SLEEP = 0.0005


class Turns:
    """One connection's part in it."""

    def __init__(self, database: str, timeout: float) -> None:
        self._patience = min(_PATIENCE, timeout / 4)  # those whom we keep waiting have their own timeout
        self._file: int | None = None
        self.waits = False
        self.next_look = 0.0
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            self._lock = fcntl.flock
            self._shared, self._alone = fcntl.LOCK_SH | fcntl.LOCK_NB, fcntl.LOCK_EX | fcntl.LOCK_NB
            self._free = fcntl.LOCK_UN
            self._file = os.open(database + "-wal", os.O_RDONLY | os.O_CLOEXEC)

    def let_others_in(self, version: Callable[[], object]) -> None:
        """Before a transaction: stand back while others wait, until `version` says that one of them has written."""
        now = time.monotonic()
        if self._file is None:
            return
        self.next_look = now + _SLICE
        if not self._is_waited_for():
            return
        before = version()
        while self._is_waited_for() and version() == before:
            time.sleep(_SLEEP)
            if time.monotonic() > now + self._patience:
                self.next_look = now + self._patience + _REST
                return
        self.next_look = time.monotonic() + _SLICE

    def wait(self) -> None:
        """Say that we wait; again and again is fine."""
        if self._file is not None and not self.waits:
            self.waits = True  # first: an interrupt must not leave us waiting for ever
            try:
                self._lock(self._file, self._shared)
            except OSError:  # somebody looks just now
                self.waits = False

    def stop_waiting(self) -> None:
        """We were let in, or gave up."""
        if self.waits and self._file is not None:
            self.waits = False
            self._lock(self._file, self._free)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _is_waited_for(self) -> bool:
        assert self._file is not None
        try:
            self._lock(self._file, self._alone)
        except OSError:
            return True
        finally:
            self._lock(self._file, self._free)
        return False


@contextlib.contextmanager
def folder_lock(folder: Path, timeout: float) -> Iterator[None]:
    """One process at a time creates or migrates a file in this folder.

    The lock is on the folder, since closing another handle on the file itself would drop SQLite's own locks. Where
    folders cannot be locked (Windows, some network file systems), SQLite's locks have to do.
    """
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Timeout(f"another process kept {str(folder)!r} locked for {timeout} s") from None
                time.sleep(_SLEEP)
            except OSError:
                break
        yield
    finally:
        with contextlib.suppress(OSError):  # closing is not enough: a child that was forked meanwhile has it open
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)
