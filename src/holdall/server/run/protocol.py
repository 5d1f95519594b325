"""uvicorn's HTTP protocol, with a time limit for the head of a request: slow clients must not hold connections."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class TimeLimitedProtocol(HttpToolsProtocol):
    """Closes a connection on which the head of a request does not arrive in time."""

    head_timeout = 30.0  # seconds; each worker sets it to the limit of its server
    _head_timer: asyncio.TimerHandle | None = None
    _has_body = False  # whether the head that came last is of a request with a body
    _held: tuple[RequestResponseCycle, ASGI3Application] | None = None  # what will be started

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
        hosts, self._has_body = 0, False
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                self._has_body = True
            elif name == b"transfer-encoding" and value.lower() != b"chunked":
                raise ValueError("the only transfer encoding is chunked")
        if hosts > 1:
            raise ValueError("a request has one host")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._start_held()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Start the app; for a request with a body, once that is complete, or after one more look at the connection.

        Most bodies come with the head, or right after it. An app that waits for one takes longer.
        """
        if self._has_body and cycle.more_body:
            self._held = cycle, app
            self.loop.call_soon(self._start_held)
        else:
            super()._start_asgi_task(cycle, app)

    def _start_held(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            super()._start_asgi_task(*held)

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
