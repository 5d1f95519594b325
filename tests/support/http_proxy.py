"""A proxy between a client and an HTTP server that does to requests what networks do."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

Answer: TypeAlias = tuple[int, dict[str, str], str]
Fault: TypeAlias = Literal["lose", "refuse", "late", "delay", "cut reply", "cut request", "twice"] | Answer | None

_REFUSAL = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class HttpProxy:
    """Forwards requests; `choose(method, path)` names the fault of each.

    - lose: the server gets the request, and the connection is closed without its reply.
    - refuse: 503, and the server gets nothing.
    - late: the reply comes after `seconds`.
    - delay: the request reaches the server after `seconds`; the client has gone by then.
    - cut reply, cut request: half of the body, then the connection is closed.
    - twice: the server gets the request twice; the client gets the second reply.
    - a status, headers and the name of an error: the client gets them, and the server nothing.
    """

    def __init__(self, port: int, choose: Callable[[str, str], Fault], seconds: float = 1.0) -> None:
        self._target = port
        self.choose, self._seconds = choose, seconds
        self.faults: Counter[str] = Counter()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_closed = False
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> HttpProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._is_closed:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = http.client.HTTPConnection("127.0.0.1", self._target, timeout=30)
        with contextlib.suppress(OSError, http.client.HTTPException), client, client.makefile("rb") as stream:
            while not self._is_closed and (line := stream.readline()):
                method, path, _ = line.decode().split(" ", 2)
                headers: list[tuple[str, str]] = []
                while (header := stream.readline().strip()) != b"":
                    name, _, value = header.decode().partition(":")
                    headers.append((name, value.strip()))
                length = int({name.lower(): value for name, value in headers}.get("content-length", 0))
                body = stream.read(length)
                if not self._answer(client, server, method, path, headers, body):
                    break
        server.close()

    def _answer(
        self,
        client: socket.socket,
        server: http.client.HTTPConnection,
        method: str,
        path: str,
        headers: list[tuple[str, str]],
        body: bytes,
    ) -> bool:
        """Forward one request; return whether the connection goes on."""
        fault = self.choose(method, path)
        if fault is not None:
            self.faults[fault if isinstance(fault, str) else fault[2]] += 1
        if isinstance(fault, tuple):
            status, extra, code = fault
            self._reply(client, status, [*extra.items()], f"<Error><Code>{code}</Code></Error>".encode())
            return True
        if fault == "refuse":
            self._reply(client, 503, [], _REFUSAL)
            return True
        if fault == "cut request" and body:
            self._send(server, method, path, headers, body[: len(body) // 2])
            server.close()
            return False
        if fault == "delay":
            threading.Thread(target=self._forward_later, args=(method, path, headers, body), daemon=True).start()
            return False
        if fault == "twice":
            self._send(server, method, path, headers, body)
            server.getresponse().read()
        self._send(server, method, path, headers, body)
        response = server.getresponse()
        content = response.read()
        if fault == "lose":
            return False
        if fault == "late":
            time.sleep(self._seconds)
        if fault == "cut reply" and content:
            self._reply(client, response.status, response.getheaders(), content, cut=True)
            return False
        self._reply(client, response.status, response.getheaders(), content)
        return True

    def _forward_later(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> None:
        time.sleep(self._seconds)
        server = http.client.HTTPConnection("127.0.0.1", self._target, timeout=30)
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._send(server, method, path, headers, body)
            server.getresponse().read()
        server.close()

    @staticmethod
    def _send(
        server: http.client.HTTPConnection, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> None:
        server.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            server.putheader(name, value)
        server.endheaders(body or None)

    @staticmethod
    def _reply(
        client: socket.socket, status: int, headers: list[tuple[str, Any]], content: bytes, cut: bool = False
    ) -> None:
        kept = [(name, value) for name, value in headers if name.lower() not in ("content-length", "transfer-encoding")]
        lines = "".join(f"{name}: {value}\r\n" for name, value in kept)
        head = f"HTTP/1.1 {status} x\r\n{lines}content-length: {len(content)}\r\n\r\n".encode()
        client.sendall(head + (content[: len(content) // 2] if cut else content))
