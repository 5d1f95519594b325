"""Connections that an event loop watches: they end well, however they end."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from holdall.engines.net.sockets import ConnectionLost, SocketConnection

_TIMEOUT = 20.0  # seconds

Pair = tuple[SocketConnection, socket.socket]


def connected() -> Pair:
    """Return a connection of an event loop, and the server's end of it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return SocketConnection(ours), theirs


@pytest.fixture
def pair() -> Iterator[Pair]:
    connection, server = connected()
    with server:
        yield connection, server
    connection.close()


async def ask(connection: SocketConnection, data: bytes = b"question", timeout: float = _TIMEOUT) -> bytes:
    """Exchange bytes for one answer, which ends with a dot."""
    received: list[bytes] = []

    def feed(data: bytes) -> bool:
        received.append(data)
        return data.endswith(b".")

    async with asyncio.timeout(_TIMEOUT + 10):
        await connection.aexchange(data, feed, time.monotonic() + timeout)
    return b"".join(received)


async def ask_and_answer(connection: SocketConnection, server: socket.socket) -> None:
    server.send(b"answer.")
    assert await ask(connection) == b"answer."
    assert server.recv(100) == b"question"


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(_TIMEOUT):
        while not is_true():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("sent", [b"", b"what nobody asked for"])
def test_an_idle_connection_is_closed_when_its_server_closes_it_or_sends_what_is_no_answer(
    pair: Pair, sent: bytes
) -> None:
    connection, server = pair

    async def end() -> None:
        await ask_and_answer(connection, server)
        if sent:
            server.send(sent)
        else:
            server.shutdown(socket.SHUT_WR)
        await until(lambda: connection.socket.fileno() == -1)
        with pytest.raises(ConnectionLost) as lost:
            await ask(connection)
        assert not lost.value.was_sent

    asyncio.run(end())


def test_an_idle_connection_is_closed_once_by_an_event_loop_that_runs_in_another_thread_now(pair: Pair) -> None:
    connection, server = pair
    loop = asyncio.new_event_loop()
    loop.run_until_complete(ask_and_answer(connection, server))
    running = threading.Thread(target=loop.run_forever)
    running.start()
    server.shutdown(socket.SHUT_WR)
    asyncio.run(until(connection.is_closed))
    loop.call_soon_threadsafe(loop.stop)
    running.join()
    loop.close()


def test_a_connection_of_an_event_loop_that_does_not_run_is_closed_at_once_by_another_thread(pair: Pair) -> None:
    connection, server = pair
    loop = asyncio.new_event_loop()
    loop.run_until_complete(ask_and_answer(connection, server))
    closing = threading.Thread(target=connection.close)
    closing.start()
    closing.join()
    assert connection.is_closed()
    loop.close()


def test_a_connection_does_not_keep_the_context_of_its_first_task(pair: Pair) -> None:
    connection, server = pair

    class Request:
        pass

    request = Request()
    variable: contextvars.ContextVar[Request] = contextvars.ContextVar("request")
    reference = weakref.ref(request)

    async def ask_for(request: Request) -> None:
        variable.set(request)
        server.send(b"answer.")
        await connection.aexchange(b"question", lambda data: data.endswith(b"."), time.monotonic() + _TIMEOUT)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(loop.create_task(ask_for(request)))
    del request
    gc.collect()
    assert reference() is None
    connection.close()
    loop.close()


def test_an_event_loop_forgets_what_a_thread_closes_before_another_socket_gets_its_number() -> None:
    async def replace() -> None:
        connection, server = connected()
        with server:
            await ask_and_answer(connection, server)
            closing = threading.Thread(target=connection.close)
            closing.start()
            closing.join()
            assert server.recv(1) == b"", "it is closed at once for the server"
        other, server = connected()
        with server:
            await ask_and_answer(other, server)
            other.close()
        await until(lambda: connection.socket.fileno() == -1)

    asyncio.run(replace())


def test_a_connection_can_be_closed_after_its_event_loop_and_does_not_keep_it() -> None:
    for collect in (False, True):
        connection, server = connected()
        loop = asyncio.new_event_loop()
        reference = weakref.ref(loop)
        loop.run_until_complete(ask_and_answer(connection, server))
        loop.close()
        if collect:
            del loop
            gc.collect()
            assert reference() is None
        connection.close()
        assert server.recv(1) == b""
        server.close()


@pytest.mark.parametrize(("first", "second"), [(0.1, 0.4), (_TIMEOUT, 0.1)])
def test_each_answer_has_its_own_deadline(pair: Pair, first: float, second: float) -> None:
    connection, server = pair

    async def wait() -> None:
        server.send(b"answer.")
        await ask(connection, timeout=first)
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match="timed out") as lost:
            await ask(connection, timeout=second)
        assert lost.value.was_sent
        assert second <= time.monotonic() - began < second + 10

    asyncio.run(wait())


def test_an_error_of_a_signal_handler_while_an_answer_is_received_leaves_no_task_waiting(pair: Pair) -> None:
    connection, server = pair

    def interrupt(_received: bytes) -> bool:
        raise KeyboardInterrupt

    server.send(b"answer.")
    loop = asyncio.new_event_loop()
    asking = loop.create_task(connection.aexchange(b"question", interrupt, time.monotonic() + _TIMEOUT))
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(asking)
    with pytest.raises(ConnectionLost, match="signal handler") as lost:
        loop.run_until_complete(asking)
    assert lost.value.was_sent
    loop.close()


def test_an_answer_that_begins_before_all_was_sent_is_received(pair: Pair) -> None:
    """As the first of two commands is answered, while the second is being sent."""
    connection, server = pair
    data = b"x" * (1 << 24)

    def answer_early() -> None:
        server.send(b"first, ")
        time.sleep(0.1)
        left = len(data)
        while left:
            left -= len(server.recv(1 << 20))
        server.send(b"second.")

    async def exchange() -> None:
        await ask_and_answer(connection, server)
        answering = threading.Thread(target=answer_early)
        answering.start()
        assert await ask(connection, data) == b"first, second."
        answering.join()

    asyncio.run(exchange())
