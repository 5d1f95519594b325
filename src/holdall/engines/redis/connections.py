"""Connections to a Redis server, or to the nodes of a cluster, for threads and event loops.

The programs of `shards` yield `Execute`, and `Connections` performs it. redis-py parses the URL and connects: it does
TLS, authentication and the choice of a database. After that, commands are written to the socket itself
(`engines/net/sockets.py`), and hiredis parses the replies.
"""

from __future__ import annotations

import asyncio
import binascii
import re
import ssl
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.connection import Connection as DriverConnection
from redis.connection import parse_url
from redis.retry import Retry

from ...engine import PoolState
from ...errors import HoldallError, InvalidInput, Unavailable, shown
from ...runtime.programs import Sleep, Work
from ...runtime.signals import run_pending_handlers
from ..net.pool import Pool
from ..net.sockets import ConnectionLost, SocketConnection, to_connection_lost

Address: TypeAlias = tuple[str, int]
Command: TypeAlias = tuple[Any, ...]
#: The error that a server replies instead of a result.
ErrorReply = hiredis.ReplyError

T = TypeVar("T")
SLOTS = 16384
_CONNECT_TIMEOUT = 5.0  # seconds
_RECEIVE_BYTES = 1 << 16


@dataclass(slots=True)
class Execute:
    """A request to execute commands on the node that serves a slot -> their replies, error replies among them."""

    slot: int
    commands: Sequence[Command]
    deadline: float
    address: Address | None = None  # a certain node, even if another one serves the slot
    is_write: bool = False


#: A program over connections: what the engine is made of.
Request: TypeAlias = Execute | Work | Sleep
ConnectionProgram: TypeAlias = Generator[Request, Any, T]


def slot_of(key: str) -> int:
    """Return the slot of a key that has a hash tag."""
    tag = key[key.index("{") + 1 : key.index("}")]
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS


def parse_settings(url: str) -> dict[str, Any]:
    """Parse a URL into redis-py's connection settings; raises `InvalidInput`."""
    try:
        settings = dict(parse_url(url))  # type: ignore[no-untyped-call]  # redis-py's
        path = urlsplit(url).path
    except ValueError as error:  # the message leaves out the URL, which may have a password
        raise InvalidInput(f"invalid Redis URL: {error}") from None
    if not url.startswith("unix:") and not re.fullmatch(r"/?|/\d+", path, re.ASCII):
        raise InvalidInput(f"the path of a Redis URL is the number of a database, like /0, not {shown(path)}")
    if "max_connections" in settings:
        raise InvalidInput("max_connections is not supported in a Redis URL: pass pool_max to open() instead")
    try:
        _connection_class(settings)(**{k: value for k, value in settings.items() if k != "connection_class"})
    except (TypeError, ValueError, redis.exceptions.RedisError) as error:
        raise InvalidInput(f"the Redis URL has an invalid setting: {error}") from None
    return settings


def _connection_class(settings: dict[str, Any]) -> type[DriverConnection]:
    return settings.get("connection_class", DriverConnection)  # type: ignore[no-any-return]  # a class


def _to_permanent_error(error: BaseException) -> HoldallError | None:
    """Translate an error of connecting that no retry can solve; None for other errors."""
    if "DB index" in str(error) or "Invalid Database" in str(error):
        return InvalidInput(f"the Redis server has no such database; use another number in the URL: {error}")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Unavailable(f"the certificate of the Redis server is not trusted (see ssl_ca_certs): {error}")
        cause = cause.__cause__ or cause.__context__
    return None


class Connection(SocketConnection):
    """A connection to one server."""

    errors = (OSError, hiredis.ProtocolError)

    def __init__(self, connection: DriverConnection) -> None:
        self._connection = connection
        found: Any = connection._sock
        super().__init__(found)
        self._reader = hiredis.Reader()
        self.prepare_error: ErrorReply | None = None  # why it could not be prepared for writes

    def perform(self, request: Execute) -> list[Any]:
        return self.execute(_pack(request.commands), len(request.commands), request.deadline)

    def execute(self, data: bytes, count: int, deadline: float) -> list[Any]:
        """Send packed commands and return their replies, as many as `count`."""
        replies: list[Any] = []
        self.exchange(data, lambda received: self._take(received, replies, count), deadline)
        return replies

    async def aexecute(self, data: bytes, count: int, deadline: float) -> list[Any]:
        replies: list[Any] = []
        await self.aexchange(data, lambda received: self._take(received, replies, count), deadline)
        return replies

    def _take(self, received: bytes, replies: list[Any], count: int) -> bool:
        self._reader.feed(received)
        return self._parse(replies, count)

    def send(self, command: Command) -> None:
        """Send a command without waiting for its reply; `read` or `drain` receives it."""
        try:
            self.socket.settimeout(_CONNECT_TIMEOUT)
            self.socket.sendall(_pack([command]))
        except OSError as error:
            raise to_connection_lost(error) from error

    def drain(self) -> list[Any]:
        """Receive the messages that have come, and return them."""
        messages: list[Any] = []
        try:
            self._feed(self.socket.recv(_RECEIVE_BYTES))
            while (message := self._reader.gets()) is not False:
                messages.append(message)
        except (OSError, hiredis.ProtocolError) as error:
            raise to_connection_lost(error) from error
        return messages

    def read(self, timeout: float) -> Any:
        """Read the next reply or message; None if there is none before the timeout."""
        replies: list[Any] = []
        try:
            self.socket.settimeout(timeout)
            while not self._parse(replies, 1):
                self._feed(self.socket.recv(_RECEIVE_BYTES))
        except TimeoutError:
            return None
        except (OSError, hiredis.ProtocolError) as error:
            raise to_connection_lost(error) from error
        return replies[0]

    def _parse(self, replies: list[Any], count: int) -> bool:
        """Parse what was received, up to `count` replies, and return whether that many are there."""
        while len(replies) < count:
            reply = self._reader.gets()
            if reply is False:  # the rest of it has not been received
                return False
            replies.append(reply)
        return True

    def _feed(self, data: bytes) -> None:
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self._reader.feed(data)

    def close(self) -> None:
        super().close()
        self._connection._sock = None  # or redis-py would use the closed socket when it is collected


class Connections:
    """The connections to one server, or to the nodes of a cluster, and the map of the cluster's slots."""

    def __init__(
        self,
        settings: dict[str, Any],
        is_cluster: bool,
        least: int,
        most: int,
        timeout: float,
        prepare: Callable[[Callable[[Execute], list[Any]], float], ErrorReply | None],
    ) -> None:
        """`prepare(perform, deadline)` is called with each new connection. If it returns an error reply, that is the
        reply to a write, and the connection is closed after its first use."""
        self._prepare = prepare
        self._connection_class = _connection_class(settings)
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

    def perform(self, request: Request) -> Any:
        if type(request) is Execute:
            pool, address = self._find_pool(request)
            connection = pool.acquire(lambda: self.connect(address, request.deadline, False), request.deadline)
            replies = None
            try:
                if connection.prepare_error is not None and request.is_write:
                    return [connection.prepare_error]
                replies = connection.execute(_pack(request.commands), len(request.commands), request.deadline)
                return replies
            finally:
                pool.release(None, connection, broken=_is_spent(connection, replies))
        if type(request) is Work:
            return request.function(*request.args)
        assert type(request) is Sleep
        run_pending_handlers()
        return time.sleep(request.seconds)

    async def aperform(self, request: Request) -> Any:
        if type(request) is Execute:
            pool, address = self._find_pool(request)
            connection = await pool.aacquire(lambda: self._aconnect(address, request.deadline), request.deadline)
            replies = None
            try:
                if connection.prepare_error is not None and request.is_write:
                    return [connection.prepare_error]
                replies = await connection.aexecute(_pack(request.commands), len(request.commands), request.deadline)
                return replies
            finally:
                pool.release(asyncio.get_running_loop(), connection, broken=_is_spent(connection, replies))
        if type(request) is Work:
            return await asyncio.to_thread(request.function, *request.args)
        assert type(request) is Sleep
        return await asyncio.sleep(request.seconds)

    # Connections -----------------------------------------------------------------------------------------------------

    def connect(self, address: Address, deadline: float, is_async: bool = False) -> Connection:
        """Open a connection and prepare it."""
        timeout = max(min(deadline - time.monotonic(), _CONNECT_TIMEOUT), 0.01)
        settings = {
            **self._settings,
            "socket_connect_timeout": timeout,
            "socket_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        if "path" not in settings:
            settings["host"], settings["port"] = address
        driver_connection = self._connection_class(**settings)
        try:
            driver_connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
        except redis.exceptions.AuthenticationError as error:
            raise Unavailable(f"Redis refused the login; check the user and password in the URL: {error}") from error
        except (redis.exceptions.RedisError, OSError) as error:
            if (permanent := _to_permanent_error(error)) is not None:
                raise permanent from error
            raise ConnectionLost(str(error)) from error
        connection = Connection(driver_connection)
        try:
            connection.prepare_error = self._prepare(connection.perform, deadline)
        except ConnectionLost as error:
            connection.close()
            raise ConnectionLost(str(error)) from error  # without `was_sent`: the request itself was not sent
        if is_async:
            connection.socket.setblocking(False)
        return connection

    async def _aconnect(self, address: Address, deadline: float) -> Connection:
        return await asyncio.to_thread(self.connect, address, deadline, True)

    def address_of(self, slot: int) -> Address:
        """Return the node that serves a slot, as far as is known; else any node, which redirects to the right one."""
        return (self._owners[slot] if self.is_cluster else None) or self._nodes[0]

    def _find_pool(self, request: Execute) -> tuple[Pool, Address]:
        address = request.address or self.address_of(request.slot)
        pool = self._pools.get(address)
        if pool is None:
            with self._lock:
                pool = self._pools.get(address)
                if pool is None:
                    pool = self._pools[address] = Pool(
                        self._least, self._most, self._timeout, Connection.close, Connection.is_closed
                    )
                    if self._closed:
                        pool.close()
        return pool, address

    def describe_pools(self) -> PoolState:
        """Return the sum of the pools of all nodes."""
        pools = [pool.describe() for pool in list(self._pools.values())]
        return PoolState(*map(sum, zip(PoolState(0, 0, 0, 0), *pools, strict=True)))

    # The cluster -----------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[Address]:
        """All known nodes; the one that replied last comes first."""
        return list(dict.fromkeys([*self._nodes, self._first]))

    def set_slots(self, slots: Any, source: Address) -> None:
        """Set the map of slots from the reply of a node, `source`, to CLUSTER SLOTS."""
        owners: list[Address | None] = [None] * SLOTS
        nodes = [source]
        for start, end, (host, port, *_), *_ in slots:
            address = ((host or b"").decode() or source[0], int(port))
            nodes.append(address)
            owners[start : end + 1] = [address] * (end + 1 - start)
        self._owners, self._nodes = owners, list(dict.fromkeys(nodes))

    def parse_address(self, text: str, slot: int) -> Address:
        """Parse `host:port` in a redirection. Without a host, it is that of the node that served the slot."""
        host, _, port = text.rpartition(":")
        return host or self.address_of(slot)[0], int(port)

    def move_slot(self, slot: int, address: str) -> None:
        """Record that another node serves a slot now."""
        if self.is_cluster:
            self._owners[slot] = self.parse_address(address, slot)


def _is_spent(connection: Connection, replies: list[Any] | None) -> bool:
    """Whether to close a connection after use: it broke, or its server is a replica now, and the same host name may
    lead to another server."""
    if replies is None or connection.prepare_error is not None:
        return True
    return any(isinstance(reply, ErrorReply) and str(reply).startswith("READONLY") for reply in replies)


def _pack(commands: Sequence[Command]) -> bytes:
    packed = [hiredis.pack_command(_without_ints(command)) for command in commands]
    return packed[0] if len(packed) == 1 else b"".join(packed)


def _without_ints(command: Command) -> Command:
    """Convert the ints of a command to texts: hiredis would crash if a signal interrupted it while it does that."""
    if int not in map(type, command):
        return command
    return tuple([str(arg) if type(arg) is int else arg for arg in command])
