"""The listener of the remote engine: it notifies a store of changes that others make.

A background thread reads a stream of the server, which has a line for each change in the token's scope.
"""

from __future__ import annotations

import select
import ssl
import time
from collections.abc import Callable

from ..net.listener import ServerListener
from .connections import ConnectionLost, Connections

_CONNECT_TIMEOUT = 5.0  # seconds
_SILENCE = 45.0  # seconds without a line, after which the connection is lost
_RECEIVE_BYTES = 1 << 16


class NotificationListener(ServerListener):
    """A thread that reads the stream of notifications."""

    _connection_errors = ConnectionLost

    def __init__(self, connections: Connections, notify: Callable[[], None]) -> None:
        super().__init__(notify)
        self._server = connections
        self._thread.start()

    def _listen(self) -> None:
        connection = self._server.connect(time.monotonic() + _CONNECT_TIMEOUT)
        self._connections.append(connection)
        head = "".join(f"{name}: {value}\r\n" for name, value in self._server.head if name != "Accept-Encoding")
        target = self._server.target("/v1/engine/notifications")
        try:
            connection.socket.sendall(f"GET {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
            received = b""
            while not self._stopped.is_set():
                if not (isinstance(connection.socket, ssl.SSLSocket) and connection.socket.pending()):
                    ready, _, _ = select.select([connection.socket, self._wake_up], [], [], _SILENCE)
                    if not ready:
                        raise ConnectionLost("the server is silent")
                    if self._wake_up in ready:
                        return
                data = connection.socket.recv(_RECEIVE_BYTES)
                if not data:
                    raise ConnectionLost("the server closed the connection")
                if not received:
                    received = data
                    if not data.startswith(b"HTTP/1.1 200"):
                        raise ConnectionLost(f"the server refused to notify: {data[:100]!r}")
                    self._notify()
                elif b"*" in data:
                    self._notify()
        except OSError as error:
            raise ConnectionLost(str(error)) from error
