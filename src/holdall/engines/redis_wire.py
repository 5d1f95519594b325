"""How requests reach a Redis server, or the nodes of a cluster, from threads and event loops alike.

redis-py knows URLs, and connects: TLS, authentication, the choice of a database. What is said then is one buffer of
commands out and their replies in, with hiredis, on the socket itself: it is the same in a thread, which waits in
`recv`, and in an event loop, which is told when the socket can be read. So there is one kind of connection, and nothing
is bound to a loop that may be gone.
"""

from __future__ import annotations

import asyncio
import binascii
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, parse_url
from redis.retry import Retry

from ..errors import HoldallError, InvalidInput, Unavailable, shown
from ..programs import Sleep, Work
from .pool import Pool

Address: TypeAlias = tuple[str, int]
Command: TypeAlias = tuple[Any, ...]
#: What a server answers in place of a result.
Refusal = hiredis.ReplyError

SLOTS = 16384
_LONGEST_CONNECT = 5.0  # seconds


class Lost(Exception):
    """A connection could not be made, or broke: what was said may have been heard or not."""


@dataclass(slots=True)
class Say:
    """A request to say commands to whoever has a slot -> their replies, refusals among them."""

    slot: int
    commands: Sequence[Command]
    deadline: float
    address: Address | None = None  # somebody else


def slot_of(key: str) -> int:
    """The slot of a key that has a hash tag."""
    tag = key[key.index("{") + 1 : key.index("}")]
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS


def check_url(url: str) -> dict[str, Any]:
    """What redis-py makes of a URL, or `InvalidInput`."""
    try:
        settings = dict(parse_url(url))  # type: ignore[no-untyped-call]  # redis-py's
        path = urlsplit(url).path
    except ValueError as error:  # without the URL, which may have a password
        raise InvalidInput(f"not a URL of Redis: {error}") from None
    if not url.startswith("unix:") and not re.fullmatch(r"/?|/\d+", path, re.ASCII):
        raise InvalidInput(f"after the host, a URL of Redis has the number of a database, not {shown(path)}")
    if "max_connections" in settings:
        raise InvalidInput("max_connections is of redis-py's pool: pass pool_max to open() instead")
    try:
        _kind(settings)(**{name: value for name, value in settings.items() if name != "connection_class"})
    except (TypeError, ValueError, redis.exceptions.RedisError) as error:
        raise InvalidInput(f"a URL of Redis with what no connection takes: {error}") from None
    return settings


def _kind(settings: dict[str, Any]) -> type[Connection]:
    return settings.get("connection_class", Connection)  # type: ignore[no-any-return]  # a class


def _permanent(error: BaseException) -> HoldallError | None:
    """What is wrong and will stay so, of what a connection met; None for what may pass."""
    if "DB index" in str(error) or "Invalid Database" in str(error):
        return InvalidInput(f"the server has no such database: {error}")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Unavailable(f"the server's certificate is not trusted: {error}")
        cause = cause.__cause__ or cause.__context__
    return None


class Line:
    """A connection: blocking for threads, not so for an event loop."""

    def __init__(self, connection: Connection, is_async: bool) -> None:
        self._connection = connection
        found: Any = connection._sock
        self.socket: socket.socket = found
        self._reader = hiredis.Reader()
        if is_async:
            self.socket.setblocking(False)

    def ask(self, data: bytes, count: int, deadline: float) -> list[Any]:
        try:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self.socket.sendall(data)
            replies: list[Any] = []
            while True:
                if self._take(replies, count):
                    return replies
                self._hear(self.socket.recv(65536))
        except (OSError, hiredis.ProtocolError) as error:
            raise Lost(str(error) or type(error).__name__) from error

    async def aask(self, data: bytes, count: int, deadline: float) -> list[Any]:
        loop = asyncio.get_running_loop()
        try:
            rest = memoryview(data)
            while rest:
                try:
                    rest = rest[self.socket.send(rest) :]
                except (BlockingIOError, ssl.SSLWantWriteError):
                    await _ready(loop.add_writer, loop.remove_writer, self.socket, deadline)
                except ssl.SSLWantReadError:
                    await _ready(loop.add_reader, loop.remove_reader, self.socket, deadline)
            replies: list[Any] = []
            while not self._take(replies, count):
                await _ready(loop.add_reader, loop.remove_reader, self.socket, deadline)
                try:
                    while True:  # TLS may have more than it showed
                        heard = self.socket.recv(65536)
                        self._hear(heard)
                        if len(heard) < 65536 and not isinstance(self.socket, ssl.SSLSocket):
                            break
                except (BlockingIOError, ssl.SSLWantReadError):
                    pass
                except ssl.SSLWantWriteError:
                    await _ready(loop.add_writer, loop.remove_writer, self.socket, deadline)
            return replies
        except (OSError, hiredis.ProtocolError) as error:
            raise Lost(str(error) or type(error).__name__) from error

    def ask_nothing(self, command: Command) -> None:
        """Say something whose answer is `read`, or `listen`ed for."""
        try:
            self.socket.settimeout(_LONGEST_CONNECT)
            self.socket.sendall(_packed([command]))
        except OSError as error:
            raise Lost(str(error) or type(error).__name__) from error

    def listen(self) -> None:
        """Take in what has come."""
        try:
            self._hear(self.socket.recv(65536))
            while self._reader.gets() is not False:
                pass
        except (OSError, hiredis.ProtocolError) as error:
            raise Lost(str(error) or type(error).__name__) from error

    def read(self, timeout: float) -> Any:
        """What the server says by itself; None if it said nothing."""
        replies: list[Any] = []
        try:
            self.socket.settimeout(timeout)
            while not self._take(replies, 1):
                self._hear(self.socket.recv(65536))
        except TimeoutError:
            return None
        except (OSError, hiredis.ProtocolError) as error:
            raise Lost(str(error) or type(error).__name__) from error
        return replies[0]

    def _take(self, replies: list[Any], count: int) -> bool:
        while len(replies) < count:
            reply = self._reader.gets()
            if reply is False:  # not all of it has come
                return False
            replies.append(reply)
        return True

    def _hear(self, heard: bytes) -> None:
        if not heard:
            raise ConnectionResetError("the server closed the connection")
        self._reader.feed(heard)

    def close(self) -> None:
        """At once, from any thread."""
        self.socket.close()
        self._connection._sock = None  # which is all that is left to redis-py's


async def _ready(add: Callable[..., Any], remove: Callable[[Any], Any], wanted: socket.socket, deadline: float) -> None:
    """Wait until a socket can be read, or written."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    number = wanted.fileno()
    add(number, _settle, future)
    alarm = loop.call_later(max(deadline - time.monotonic(), 0.001), _settle, future, TimeoutError("timed out"))
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


class Wire:
    """The connections to one server, or to the nodes of a cluster, and who has which slot."""

    def __init__(self, settings: dict[str, Any], is_cluster: bool, least: int, most: int, timeout: float) -> None:
        self._kind = _kind(settings)
        self._settings = {name: value for name, value in settings.items() if name != "connection_class"}
        self.is_cluster = is_cluster
        self._least, self._most, self._timeout = least, most, timeout
        self._first: Address = (settings.get("host", "localhost"), int(settings.get("port", 6379)))
        self._lock = threading.Lock()
        self._pools: dict[Address, Pool] = {}
        self._owners: list[Address | None] = [None] * SLOTS if is_cluster else []
        self._nodes: list[Address] = [self._first]
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            pools = list(self._pools.values())
        for pool in pools:
            pool.close()

    # Requests --------------------------------------------------------------------------------------------------------

    def perform(self, request: Any) -> Any:
        if type(request) is Say:
            pool, address = self._pool_of(request)
            line = pool.take(lambda: self.connect(address, request.deadline, False), request.deadline)
            replies = None
            try:
                replies = line.ask(_packed(request.commands), len(request.commands), request.deadline)
                return replies
            finally:
                pool.give_back(None, line, broken=_is_spent(replies))
        if type(request) is Work:
            return request.function(*request.args)
        assert type(request) is Sleep
        return time.sleep(request.seconds)

    async def aperform(self, request: Any) -> Any:
        if type(request) is Say:
            pool, address = self._pool_of(request)
            line = await pool.atake(lambda: self._aconnect(address, request.deadline), request.deadline)
            replies = None
            try:
                replies = await line.aask(_packed(request.commands), len(request.commands), request.deadline)
                return replies
            finally:
                pool.give_back(asyncio.get_running_loop(), line, broken=_is_spent(replies))
        if type(request) is Work:
            return await asyncio.to_thread(request.function, *request.args)
        assert type(request) is Sleep
        return await asyncio.sleep(request.seconds)

    # Connections -----------------------------------------------------------------------------------------------------

    def connect(self, address: Address, deadline: float, is_async: bool = False) -> Line:
        patience = max(min(deadline - time.monotonic(), _LONGEST_CONNECT), 0.01)
        settings = {
            **self._settings,
            "socket_connect_timeout": patience,
            "socket_timeout": patience,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        if "path" not in settings:
            settings["host"], settings["port"] = address
        connection = self._kind(**settings)
        try:
            connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
        except redis.exceptions.AuthenticationError as error:
            raise Unavailable(f"Redis refused to let us in: {error}") from error
        except (redis.exceptions.RedisError, OSError) as error:
            if (permanent := _permanent(error)) is not None:
                raise permanent from error
            raise Lost(str(error)) from error
        return Line(connection, is_async)

    async def _aconnect(self, address: Address, deadline: float) -> Line:
        return await asyncio.to_thread(self.connect, address, deadline, True)

    def address_of(self, slot: int) -> Address:
        """Whoever has a slot, as far as we know; else anybody, who will say."""
        return (self._owners[slot] if self.is_cluster else None) or self._nodes[0]

    def _pool_of(self, request: Say) -> tuple[Pool, Address]:
        address = request.address or self.address_of(request.slot)
        pool = self._pools.get(address)
        if pool is None:
            with self._lock:
                pool = self._pools.get(address)
                if pool is None:
                    pool = self._pools[address] = Pool(self._least, self._most, self._timeout, Line.close)
                    if self._closed:
                        pool.close()
        return pool, address

    # The cluster -----------------------------------------------------------------------------------------------------

    @property
    def addresses(self) -> set[Address]:
        """Of all that have slots."""
        return {owner for owner in self._owners if owner is not None} or {self._nodes[0]}

    @property
    def nodes(self) -> list[Address]:
        """All that were seen, the one that answered last first."""
        return list(dict.fromkeys([*self._nodes, self._first]))

    def learn(self, slots: Any, teller: Address) -> None:
        """What a node says of who has which slots."""
        owners: list[Address | None] = [None] * SLOTS
        nodes = [teller]
        for start, end, (host, port, *_), *_ in slots:
            address = ((host or b"").decode() or teller[0], int(port))
            nodes.append(address)
            owners[start : end + 1] = [address] * (end + 1 - start)
        self._owners, self._nodes = owners, list(dict.fromkeys(nodes))

    def address_in(self, told: str, slot: int) -> Address:
        """What a node calls another, `host:port`; without a host, it is its own."""
        host, _, port = told.rpartition(":")
        return host or self.address_of(slot)[0], int(port)

    def move(self, slot: int, told: str) -> None:
        """A node says that another has a slot."""
        if self.is_cluster:
            self._owners[slot] = self.address_in(told, slot)


def _is_spent(replies: list[Any] | None) -> bool:
    """Whether a connection is of no more use: it broke, or leads to what is a replica by now, and behind the same name
    there may be another server."""
    return replies is None or any(isinstance(reply, Refusal) and str(reply).startswith("READONLY") for reply in replies)


def _packed(commands: Sequence[Command]) -> bytes:
    if len(commands) == 1:
        return hiredis.pack_command(commands[0])  # type: ignore[no-any-return]  # bytes
    return b"".join(map(hiredis.pack_command, commands))
