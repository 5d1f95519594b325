"""A connection over a socket, for threads and event loops: bytes are sent, and what comes back is fed to a parser.

A thread waits in `recv`. An event loop watches the socket from the first answer that a task waits for until the
connection is closed. To add and remove the socket for each answer, and an alarm for its deadline, took 15 us of the
67 us of CPU time that the client needs to read a file from Redis. So the event loop also notices at once that the
server has closed an idle connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from ...runtime.signals import SIGNAL_CHECK_INTERVAL, run_pending_handlers

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
        # In an event loop: the loop that watches the socket, the thread that ran it last, and what the task waits for.
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._thread = 0
        self._on_received: Feed = _refuse
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = self._alarm_time = math.inf

    # Threads ---------------------------------------------------------------------------------------------------------

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
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            # It is for one call of the function, and a reply may need many. To set it is a system call.
            timeout = min(left, SIGNAL_CHECK_INTERVAL)
            if self.socket.gettimeout() != timeout:
                self.socket.settimeout(timeout)
            try:
                return function(argument)
            except TimeoutError:
                run_pending_handlers()

    # Event loops -----------------------------------------------------------------------------------------------------

    async def aexchange(self, data: bytes, feed: Feed, deadline: float) -> None:
        """`exchange`, in an event loop."""
        loop = asyncio.get_running_loop()
        unsent = memoryview(data)
        try:
            while unsent:
                try:
                    unsent = unsent[self.socket.send(unsent) :]
                except (BlockingIOError, ssl.SSLWantWriteError):
                    await self._wait(loop, loop.add_writer, loop.remove_writer, deadline)
                except ssl.SSLWantReadError:
                    await self._wait(loop, loop.add_reader, loop.remove_reader, deadline)
            while True:
                try:
                    await self._watch(loop, feed, deadline)
                    return
                except ssl.SSLWantWriteError:
                    await self._wait(loop, loop.add_writer, loop.remove_writer, deadline)
        except self.errors as error:
            raise to_connection_lost(error, was_sent=not unsent) from error
        finally:
            self._on_received, self._waiter = _refuse, None

    async def _wait(
        self,
        loop: asyncio.AbstractEventLoop,
        add: Callable[..., Any],
        remove: Callable[[Any], Any],
        deadline: float,
    ) -> None:
        """Wait until the socket is readable or writable: `add` and `remove` are the event loop's methods for either."""
        self._stop_watching(loop)  # what comes now is received later
        future = loop.create_future()
        number = self.socket.fileno()
        add(number, _settle, future)
        alarm = loop.call_later(max(deadline - time.monotonic(), 0), _settle, future, TimeoutError("timed out"))
        try:
            await future
        finally:
            alarm.cancel()
            remove(number)

    def _watch(self, loop: asyncio.AbstractEventLoop, feed: Feed, deadline: float) -> asyncio.Future[None]:
        """Return a future that is done when `feed` has a complete answer."""
        self._thread = threading.get_ident()
        if self._loop is None:
            # In an empty context: an event loop keeps the one of the caller, with all that it refers to.
            contextvars.Context().run(loop.add_reader, self.socket.fileno(), self._receive)
            self._loop = weakref.ref(loop)
        waiter = self._waiter = loop.create_future()
        self._on_received, self._deadline = feed, deadline
        self._set_alarm(loop)
        return waiter

    def _stop_watching(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None:
            loop.remove_reader(self.socket.fileno())
            self._loop = None

    def _receive(self) -> None:
        """Receive what has come. The event loop calls this, also when the server has closed an idle connection.

        A signal handler may raise an error anywhere in here. The connection is lost then, and no task waits for it.
        """
        waiter, self._thread = self._waiter, threading.get_ident()
        try:
            while True:  # TLS may have buffered bytes, for which the socket is not readable
                received = self.socket.recv(_RECEIVE_BYTES)
                if self._on_received(_not_empty(received)):
                    break
                if len(received) < _RECEIVE_BYTES and not isinstance(self.socket, ssl.SSLSocket):
                    return
            if waiter is not None:
                _settle(waiter)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except BaseException as error:
            is_interrupt = not isinstance(error, Exception)
            if waiter is None:
                self.close()
            else:
                _settle(waiter, ConnectionAbortedError("a signal handler raised an error") if is_interrupt else error)
            if is_interrupt:
                raise

    def _set_alarm(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the deadline checked when it comes, or before: an alarm is not set and cancelled for each answer.

        The connection has no reference to the alarm, which would keep the event loop, nor the alarm one to it.
        """
        if self._deadline < self._alarm_time:
            self._alarm_time = self._deadline
            delay = max(self._deadline - time.monotonic(), 0)
            contextvars.Context().run(loop.call_later, delay, _check_deadline, weakref.ref(self), loop)

    def _check_deadline(self, loop: asyncio.AbstractEventLoop) -> None:
        self._alarm_time = math.inf
        if self._waiter is None:
            return
        if time.monotonic() >= self._deadline:
            _settle(self._waiter, TimeoutError("timed out"))
        else:
            self._set_alarm(loop)

    def is_closed(self) -> bool:
        """Return whether it was closed, as it is when the server has closed it while it was idle."""
        return self.socket.fileno() < 0

    def close(self) -> None:
        """Close at once, from any thread."""
        loop = None if self._loop is None else self._loop()
        if loop is None or loop.is_closed():
            self.socket.close()
        elif self._thread == threading.get_ident() or not loop.is_running():
            self._stop_watching(loop)
            self.socket.close()
        else:  # the event loop has to stop watching before another socket gets the same number: `_receive` closes it
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


def to_connection_lost(error: Exception, was_sent: bool = False) -> ConnectionLost:
    """Translate an error of a socket or a parser."""
    return ConnectionLost(str(error) or type(error).__name__, was_sent)


def _refuse(_received: bytes) -> bool:
    """What an idle connection receives is no answer: the server has an error, and closes it."""
    raise ConnectionAbortedError("the server sent what was not requested")


def _not_empty(data: bytes) -> bytes:
    if not data:
        raise ConnectionResetError("the server closed the connection")
    return data


def _check_deadline(reference: weakref.ref[SocketConnection], loop: asyncio.AbstractEventLoop) -> None:
    connection = reference()
    if connection is not None:
        connection._check_deadline(loop)


def _settle(future: asyncio.Future[None], error: BaseException | None = None) -> None:
    if not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
