"""Listening on connections to a server: a thread that begins again, however it ends."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("holdall")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # before connecting again

#: A parent's connections in its forked child: kept, because letting go would end them.
_abandoned: list[Any] = []


class ConnectedListener:
    """A thread that listens, and rings: when it hears something, and when it may have missed something.

    A subclass begins it, and knows how to `_stay`. What it waits on includes `_ears`, which wake it when it is to stop.
    """

    _lost: type[Exception]  # what it is told of a lost connection

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._connections: list[Any] = []
        self._ears, self._mouth = socket.socketpair()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="holdall-listener", daemon=True)

    def close(self) -> None:
        self._stopped.set()
        with contextlib.suppress(OSError):  # closed already
            self._mouth.send(b"!")
        if self._thread is not threading.current_thread():
            self._thread.join()
            self._ears.close()
            self._mouth.close()

    def abandon(self) -> None:
        _abandoned.extend(self._connections)
        self._ears.close()
        self._mouth.close()

    def _stay(self) -> None:
        """Connect, and listen until a connection is lost, or we are told to stop."""
        raise NotImplementedError

    def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                try:
                    self._stay()
                finally:
                    connections, self._connections = self._connections, []
                    for connection in connections:
                        connection.close()
            except Exception as error:  # whatever it is: without a listener, those who watch would wait for ever
                if isinstance(error, self._lost):
                    logger.info("a listener's connection was lost, connecting again: %s", error)
                else:
                    logger.exception("a listener failed, beginning again")
                if time.monotonic() - began > _LONGEST_PAUSE:  # it did well for a while
                    pause = _FIRST_PAUSE
                self._ring()  # those who watch look for themselves, and may meet it too
                self._stopped.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
