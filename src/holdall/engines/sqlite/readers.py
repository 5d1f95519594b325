"""A pool of connections that read, for engines whose database is a file."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from ...errors import StoreClosed, Unavailable

Reader: TypeAlias = Any  # a connection: `in_transaction`, `busy_wait`, `last_taken_by`, `execute`, `close`

_IDLE = 8
_SLEEP = 0.0005
_LONGEST_PAUSE = 60.0  # seconds


class ReaderPool:
    """Connections that read: as many as threads read at once. Taking one and giving it back needs no lock."""

    def __init__(self, connect: Callable[[], Reader]) -> None:
        self._connect = connect
        self._idle: deque[Reader] = deque()
        self._all: weakref.WeakSet[Reader] = weakref.WeakSet()  # weak: an interrupted call may never give one back
        self._connecting = threading.Lock()
        self._running = threading.Event()  # cleared while paused
        self._running.set()
        self._closed = False

    def take(self) -> Reader:
        """Return an idle connection, or a new one."""
        while True:
            if self._closed:
                raise StoreClosed("this store is closed; open a new one")
            try:
                reader = self._idle.pop()
            except IndexError:
                with self._connecting:  # not while a fork waits until all are closed
                    reader = self._connect()
                    self._all.add(reader)
            if self._running.is_set():
                reader.busy_wait.deadline, reader.last_taken_by = None, threading.get_ident()
                return reader
            self._idle.append(reader)  # a fork is about to happen: try again after it
            self._running.wait()

    def take_idle(self) -> Reader | None:
        """Return an idle connection that never waits for a lock; None if there is none, or a fork is about to begin."""
        try:
            reader = self._idle.pop()
        except IndexError:
            return None
        if self._running.is_set():
            reader.busy_wait.deadline, reader.last_taken_by = 0.0, threading.get_ident()
            return reader
        self._idle.append(reader)
        return None

    def give_back(self, reader: Reader) -> None:
        if reader.in_transaction:  # an error, or an interrupt, left it there
            reader.execute("ROLLBACK")
        if self._closed or (len(self._idle) >= _IDLE and self._running.is_set()):
            reader.close()
            self._all.discard(reader)
            return
        self._idle.append(reader)
        if self._closed:  # since the check above
            self._close_idle()

    def pause(self) -> None:
        """Wait until no thread reads, and close all connections; later calls of `take` wait for `resume`.

        Raises `Unavailable`, without a pause, if this very thread reads: a signal handler that forks interrupted it.
        """
        self._connecting.acquire()
        self._running.clear()
        until = time.monotonic() + _LONGEST_PAUSE
        while self._all:  # `take` gives back what it takes from now on
            self._close_idle()
            is_this_thread = any(reader.last_taken_by == threading.get_ident() for reader in self._all)
            if is_this_thread or time.monotonic() > until:
                self.resume()
                raise Unavailable("a connection is in use by a call that a signal handler has interrupted")
            time.sleep(_SLEEP)

    def resume(self) -> None:
        self._running.set()
        self._connecting.release()

    def close(self) -> None:
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                reader = self._idle.pop()
                reader.close()
                self._all.discard(reader)
