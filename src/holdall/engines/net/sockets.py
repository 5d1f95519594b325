"""A connection over a socket, for threads and event loops: bytes are sent, and what comes back is fed to a parser.

A thread waits in `recv`, an event loop until the socket is readable; all else is the same. So no connection depends on
an event loop that may be closed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from ...runtime.signals import SIGNAL_CHECK_INTERVAL, is_in_main_thread, run_pending_handlers

T = TypeVar("T")
#: Takes what was received, and returns whether the answer is complete.
Feed: TypeAlias = Callable[[bytes], bool]
_RECEIVE_BYTES = 1 << 16


class ConnectionLost(Exception):
    """A connection could not be opened, or broke. If `was_sent`, the server may have executed the request."""

    def __init__(self, message: str, was_sent: bool = False) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class SocketConnection:
    """A connected socket. It is blocking for threads, and non-blocking for an event loop."""

    #: The errors of a socket, and those of a parser, after which the connection cannot be used any more.
    errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected

    def exchange(self, data: bytes, feed: Feed, deadline: float) -> None:
        """Send bytes, and receive until `feed` has a complete answer."""
        was_sent = False
        try:
            self._send(data, deadline)
            was_sent = True
            while not feed(_not_empty(self._wait_with_handlers(self.socket.recv, _RECEIVE_BYTES, deadline))):
                pass
        except self.errors as error:
            raise to_connection_lost(error, was_sent) from error

    def _send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._wait_with_handlers(self.socket.send, rest, deadline) :]

    def _wait_with_handlers(self, function: Callable[[Any], T], argument: Any, deadline: float) -> T:
        """Call a function of the socket. While it waits, run pending signal handlers."""
        while True:
            until = min(deadline, time.monotonic() + SIGNAL_CHECK_INTERVAL) if is_in_main_thread() else deadline
            self._set_timeout(until)
            try:
                return function(argument)
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise
                run_pending_handlers()

    def _set_timeout(self, deadline: float) -> None:
        """Set the socket's timeout to the time that is left: it is for one `recv`, and a reply may need many."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.socket.settimeout(left)

    async def aexchange(self, data: bytes, feed: Feed, deadline: float) -> None:
        """`exchange`, in an event loop."""
        loop = asyncio.get_running_loop()
        unsent = memoryview(data)
        try:
            while unsent:
                try:
                    unsent = unsent[self.socket.send(unsent) :]
                except (BlockingIOError, ssl.SSLWantWriteError):
                    await _wait_for_socket(loop.add_writer, loop.remove_writer, self.socket, deadline)
                except ssl.SSLWantReadError:
                    await _wait_for_socket(loop.add_reader, loop.remove_reader, self.socket, deadline)
            while True:
                await _wait_for_socket(loop.add_reader, loop.remove_reader, self.socket, deadline)
                try:
                    while True:  # TLS may have buffered bytes, for which the socket is not readable
                        received = self.socket.recv(_RECEIVE_BYTES)
                        if feed(_not_empty(received)):
                            return
                        if len(received) < _RECEIVE_BYTES and not isinstance(self.socket, ssl.SSLSocket):
                            break
                except (BlockingIOError, ssl.SSLWantReadError):
                    pass
                except ssl.SSLWantWriteError:
                    await _wait_for_socket(loop.add_writer, loop.remove_writer, self.socket, deadline)
        except self.errors as error:
            raise to_connection_lost(error, was_sent=not unsent) from error

    def close(self) -> None:
        """Close at once, from any thread."""
        self.socket.close()


def to_connection_lost(error: Exception, was_sent: bool = False) -> ConnectionLost:
    """Translate an error of a socket or a parser."""
    return ConnectionLost(str(error) or type(error).__name__, was_sent)


def _not_empty(data: bytes) -> bytes:
    if not data:
        raise ConnectionResetError("the server closed the connection")
    return data


async def _wait_for_socket(
    add: Callable[..., Any], remove: Callable[[Any], Any], watched: socket.socket, deadline: float
) -> None:
    """Wait until a socket is readable or writable: `add` and `remove` are the event loop's methods for either."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    number = watched.fileno()
    add(number, _settle, future)
    alarm = loop.call_later(max(deadline - time.monotonic(), 0), _settle, future, TimeoutError("timed out"))
    try:
        await future
    finally:
        alarm.cancel()
        remove(number)


def _settle(future: asyncio.Future[None], error: Exception | None = None) -> None:
    if not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
