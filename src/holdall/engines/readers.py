"""A pool of connections for reading, for engines whose database is a file."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from ..errors import StoreClosed

Reader: TypeAlias = Any  # a connection: `in_transaction`, `execute`, `close`

_IDLE = 8
_SLEEP = 0.0005


class Readers:
    """Connections for reading, taken and given back without a lock; as many as threads read at once."""

    def __init__(self, connect: Callable[[], Reader]) -> None:
        self._connect = connect
        self._idle: deque[Reader] = deque()
        self._all: weakref.WeakSet[Reader] = weakref.WeakSet()  # weak: an interrupted reader loses its own
        self._making = threading.Lock()
        self._open = threading.Event()
        self._open.set()
        self._closed = False

    def take(self) -> Reader:
        while True:
            if self._closed:
                raise StoreClosed("this store is closed; open a new one")
            try:
                reader = self._idle.pop()
            except IndexError:
                with self._making:  # not while a fork waits for everything to be closed
                    reader = self._connect()
                    self._all.add(reader)
            if self._open.is_set():
                return reader
            self._idle.append(reader)  # a fork is about to happen: after it
            self._open.wait()

    def take_idle(self) -> Reader | None:
        """One that is there; None where none is, or a fork is about to happen: nobody is waited for."""
        try:
            reader = self._idle.pop()
        except IndexError:
            return None
        if self._open.is_set():
            return reader
        self._idle.append(reader)
        return None

    def give_back(self, reader: Reader) -> None:
        if reader.in_transaction:  # an error, or an interrupt, left it there
            reader.execute("ROLLBACK")
        if self._closed or (len(self._idle) >= _IDLE and self._open.is_set()):
            reader.close()
            self._all.discard(reader)
            return
        self._idle.append(reader)
        if self._closed:  # meanwhile
            self._close_idle()

    def pause(self) -> None:
        """Wait until nobody reads, and close everything; readers that come later wait for `resume`."""
        self._making.acquire()
        self._open.clear()
        while self._all:  # whoever takes one from now on puts it back
            self._close_idle()
            time.sleep(_SLEEP)

    def resume(self) -> None:
        self._open.set()
        self._making.release()

    def close(self) -> None:
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                reader = self._idle.pop()
                reader.close()
                self._all.discard(reader)
