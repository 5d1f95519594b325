"""HTTP connections to the server, for threads and event loops.

The engine's programs yield `Send`, and `Connections` performs it: one request and its answer on a connection that is
kept open. h11 writes the requests and parses the answers.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import zlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from urllib.parse import SplitResult

import h11

from ...errors import Unavailable
from ...runtime.programs import Sleep
from ...runtime.signals import run_pending_handlers
from ..net.pool import Pool
from ..net.sockets import ConnectionLost, SocketConnection, to_connection_lost

T = TypeVar("T")
_CONNECT_TIMEOUT = 5.0  # seconds
_MOST_HEAD_BYTES = 1 << 16


@dataclass(slots=True)
class Send:
    """A request: send this to the server -> `Answer`. `body=None`: a GET."""

    path: str
    body: bytes | None
    deadline: float
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Answer:
    """The answer to a request."""

    status: int = 0
    content_type: str = ""
    encoding: bytes = b""
    body: bytes = b""


#: A program over connections: what the engine is made of.
Request: TypeAlias = Send | Sleep
ConnectionProgram: TypeAlias = Generator[Request, Any, T]


class Connection(SocketConnection):
    """An HTTP connection that is kept open."""

    errors = (OSError, h11.RemoteProtocolError, zlib.error)

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEAD_BYTES)
        self.is_reusable = True

    def begin(self, head: list[tuple[str, str]], target: str, body: bytes | None) -> bytes:
        """Return the bytes of a request."""
        method = "GET" if body is None else "POST"
        if body is not None:
            head = [*head, ("Content-Length", str(len(body)))]
        data: bytes = self._http.send(h11.Request(method=method, target=target, headers=head)) or b""
        if body is not None:
            data += self._http.send(h11.Data(data=body)) or b""
        return data + (self._http.send(h11.EndOfMessage()) or b"")

    def take(self, received: bytes, answer: Answer, parts: list[bytes]) -> bool:
        """Parse what was received; return whether the answer is complete."""
        self._http.receive_data(received)
        while True:
            event: Any = self._http.next_event()
            if event is h11.NEED_DATA:
                return False
            if isinstance(event, h11.Response):
                answer.status = event.status_code
                headers = dict(event.headers)
                answer.content_type = headers.get(b"content-type", b"").decode("latin-1")
                answer.encoding = headers.get(b"content-encoding", b"")
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                body = b"".join(parts)
                answer.body = zlib.decompress(body, 47) if answer.encoding == b"gzip" else body
                self.is_reusable = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
                if self.is_reusable:
                    self._http.start_next_cycle()
                return True
            elif isinstance(event, h11.ConnectionClosed):
                raise h11.RemoteProtocolError("the server closed the connection")


class Connections:
    """The connections to one server."""

    def __init__(self, url: SplitResult, token: str | None, ca_file: str | None, pool: tuple[int, int, float]) -> None:
        self._host = url.hostname or "localhost"
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._context: ssl.SSLContext | None = None
        if url.scheme == "https":
            self._context = ssl.create_default_context(cafile=ca_file)
            self._context.set_alpn_protocols(["http/1.1"])
        self.head = [("Host", url.netloc), ("Accept-Encoding", "gzip")]
        if token:
            self.head.append(("Authorization", f"Bearer {token}"))
        self._prefix = url.path.rstrip("/")
        self._pool = Pool(*pool, Connection.close, Connection.is_closed)

    def perform(self, request: Request) -> Any:
        if type(request) is Sleep:
            run_pending_handlers()
            return time.sleep(request.seconds)
        assert type(request) is Send
        connection = self._pool.acquire(lambda: self.connect(request.deadline), request.deadline)
        is_done = False
        try:
            answer, parts, data = self._begin(connection, request)
            connection.exchange(data, lambda received: connection.take(received, answer, parts), request.deadline)
            is_done = connection.is_reusable
            return answer
        finally:
            self._pool.release(None, connection, broken=not is_done)

    async def aperform(self, request: Request) -> Any:
        if type(request) is Sleep:
            return await asyncio.sleep(request.seconds)
        assert type(request) is Send
        connection = await self._pool.aacquire(lambda: self._aconnect(request.deadline), request.deadline)
        is_done = False
        try:
            answer, parts, data = self._begin(connection, request)
            await connection.aexchange(
                data, lambda received: connection.take(received, answer, parts), request.deadline
            )
            is_done = connection.is_reusable
            return answer
        finally:
            self._pool.release(asyncio.get_running_loop(), connection, broken=not is_done)

    def _begin(self, connection: Connection, request: Send) -> tuple[Answer, list[bytes], bytes]:
        data = connection.begin([*self.head, *request.headers], self.target(request.path), request.body)
        return Answer(), [], data

    def target(self, path: str) -> str:
        """The target of a request for a path of the server."""
        return self._prefix + path

    def connect(self, deadline: float, is_async: bool = False) -> Connection:
        """Open a connection."""
        timeout = max(min(deadline - time.monotonic(), _CONNECT_TIMEOUT), 0.01)
        try:
            connected = socket.create_connection((self._host, self._port), timeout)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                connected = self._context.wrap_socket(connected, server_hostname=self._host)
        except ssl.SSLCertVerificationError as error:
            raise Unavailable(
                f"the certificate of the server is not trusted; name its CA with ca_file=: {error}"
            ) from error
        except OSError as error:
            raise to_connection_lost(error) from error
        if is_async:
            connected.setblocking(False)
        return Connection(connected)

    async def _aconnect(self, deadline: float) -> Connection:
        connecting = asyncio.get_running_loop().run_in_executor(None, self.connect, deadline, True)
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_close_unused)
            raise

    def drop_idle(self) -> None:
        """Close all idle connections."""
        self._pool.drop_idle()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()


def _close_unused(connecting: asyncio.Future[Connection]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


__all__ = ["Answer", "Connection", "ConnectionLost", "ConnectionProgram", "Connections", "Send"]
