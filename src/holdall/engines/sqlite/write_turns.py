"""Processes that write to one SQLite file take turns.

SQLite gives its lock to the process that asks at the right instant. A process that writes without a pause frees it for
some microseconds at a time. Another one that tries every half millisecond may miss them for seconds. So a process that
waits announces it. A process that has written for a while checks whether others wait, and lets them write first.

A process announces that it waits with a shared `flock` on the write-ahead log. SQLite has no lock of its own on that
file, which exists as long as a connection does, and the lock ends with its process. Without `flock` there are no turns,
and chance decides.

`folder_lock` lets one process at a time create or migrate a file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ...errors import Timeout
from ...runtime.signals import call_start, restart_if_signaled

# All in seconds.
_SLICE = 0.01  # for how long a process writes before it checks
_LONGEST_PAUSE = 0.1  # for how long it lets others try: a busy machine may not wake them at once
_REST = 1.0  # until the next check if none of them wrote: a process that was stopped waits too
_SLEEP = 0.0005


class WriteTurns:
    """The turns of one connection."""

    def __init__(self, database: str, timeout: float) -> None:
        self._longest_pause = min(_LONGEST_PAUSE, timeout / 4)  # our callers have a timeout, too
        self._file: int | None = None
        self.is_waiting = False
        self.next_check = 0.0
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            self._flock = fcntl.flock
            self._shared, self._exclusive = fcntl.LOCK_SH | fcntl.LOCK_NB, fcntl.LOCK_EX | fcntl.LOCK_NB
            self._unlock = fcntl.LOCK_UN
            self._file = os.open(database + "-wal", os.O_RDONLY | os.O_CLOEXEC)

    def is_ours(self) -> bool:
        """Whether a transaction may begin without a pause: no other process waits, which is checked now and then."""
        now = time.monotonic()
        if self._file is None or now < self.next_check:
            return True
        if self._has_waiters():
            return False
        self.next_check = now + _SLICE
        return True

    def yield_to_waiters(self, read_version: Callable[[], object]) -> None:
        """Before a transaction: pause while others wait, until `read_version` shows that one of them has written."""
        if self.is_ours():
            return
        now = time.monotonic()
        before = read_version()
        while self._has_waiters() and read_version() == before:
            time.sleep(_SLEEP)
            if time.monotonic() > now + self._longest_pause:
                self.next_check = now + self._longest_pause + _REST
                return
        self.next_check = time.monotonic() + _SLICE

    def start_waiting(self) -> None:
        """Announce that this process waits; may be called again and again."""
        if self._file is not None and not self.is_waiting:
            try:
                self._flock(self._file, self._shared)
                self.is_waiting = True
            except OSError:  # another process checks at this moment
                pass

    def stop_waiting(self) -> None:
        """Withdraw the announcement: it is our turn, or the wait has timed out."""
        if self.is_waiting and self._file is not None:
            self.is_waiting = False
            self._flock(self._file, self._unlock)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _has_waiters(self) -> bool:
        assert self._file is not None
        try:
            self._flock(self._file, self._exclusive)
        except OSError:
            return True
        finally:
            self._flock(self._file, self._unlock)
        return False


@contextlib.contextmanager
def folder_lock(folder: Path, timeout: float) -> Iterator[None]:
    """Let one process at a time create or migrate a file in this folder.

    The lock is on the folder: closing another handle on the file itself would drop SQLite's own locks. If folders
    cannot be locked (Windows, some network file systems), only SQLite's locks protect the file.
    """
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        deadline = call_start() + timeout
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Timeout(f"another process kept {str(folder)!r} locked for {timeout} s") from None
                restart_if_signaled()
                time.sleep(_SLEEP)
            except OSError:
                break
        yield
    finally:
        with contextlib.suppress(OSError):  # closing is not enough: a child that was forked meanwhile has it open
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)
