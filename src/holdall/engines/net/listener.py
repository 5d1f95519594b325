"""The background thread in which an engine listens to a server, and which starts again after every failure."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .retry import backoff

logger = logging.getLogger("holdall")

_STABLE = 1.0  # seconds: a listener that lasted longer has recovered from earlier failures

#: A parent's connections in its forked child: kept here, because collecting them would close them for the parent.
_abandoned: list[Any] = []


class ServerListener:
    """A thread that calls `notify` when something was written, and when a notification may have been missed.

    A subclass implements `_listen`, and starts the thread at the end of its `__init__`.
    """

    _connection_errors: type[Exception]  # what `_listen` raises when a connection is lost: expected, so not logged

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._connections: list[Any] = []  # `_listen` adds what it opens; the thread closes it
        self._wake_up, self._waker = socket.socketpair()  # the first becomes readable when the thread is to stop
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdall-listener", daemon=True)

    def close(self) -> None:
        """Stop the thread and wait until it has ended."""
        self._stopped.set()
        with contextlib.suppress(OSError):  # it is closed already
            self._waker.send(b"!")
        if self._thread is not threading.current_thread():
            self._thread.join()
            self._wake_up.close()
            self._waker.close()

    def abandon(self) -> None:
        """In a forked child: leave the parent's connections open."""
        _abandoned.extend(self._connections)
        self._wake_up.close()
        self._waker.close()

    def _listen(self) -> None:
        """Connect, and listen until `_stopped` is set; raise when a connection is lost.

        Whatever it waits for, it must also wait for `_wake_up`.
        """
        raise NotImplementedError

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            started = time.monotonic()
            try:
                try:
                    self._listen()
                finally:
                    connections, self._connections = self._connections, []
                    for connection in connections:
                        connection.close()
            except Exception as error:  # any: without a listener, watchers would wait for ever
                if isinstance(error, self._connection_errors):
                    logger.info("a listener lost its connection and connects again: %s", error)
                else:
                    logger.exception("a listener failed and starts again")
                if time.monotonic() - started > _STABLE:
                    failures = 0
                self._notify()  # watchers then read the feed themselves, and may get the same error
                self._stopped.wait(backoff(failures))
                failures += 1
