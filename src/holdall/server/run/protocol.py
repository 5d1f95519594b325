"""uvicorn's HTTP protocol, with a time limit for the head of a request: slow clients must not hold connections."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class TimeLimitedProtocol(HttpToolsProtocol):
    """Closes a connection on which the head of a request does not arrive in time."""

    head_timeout = 30.0  # seconds; each worker sets it to the limit of its server
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._has_request():
            self._stop_timer()
        elif self._head_timer is None:  # after it was parsed: most heads arrive in one piece, and need no timer
            self._start_timer()

    def on_headers_complete(self) -> None:
        """Refuse headers that a proxy may read in another way. An error that is raised here becomes the answer 400."""
        if b"#" in self.url:  # otherwise what follows would be ignored, and "a#1" would be the key "a"
            raise ValueError("a '#' in the target of a request is %23")
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            raise ValueError("the only transfer encoding is chunked")
        if sum(name == b"host" for name, _ in self.headers) > 1:
            raise ValueError("a request has one host")
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _has_request(self) -> bool:
        """Whether the head of a request has arrived, and its answer is not complete."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete

    def _start_timer(self) -> None:
        self._head_timer = asyncio.get_running_loop().call_later(self.head_timeout, self._close_if_waiting)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_if_waiting(self) -> None:
        self._head_timer = None
        if not self._has_request() and not self.transport.is_closing():
            self.transport.close()
