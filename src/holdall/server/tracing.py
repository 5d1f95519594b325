"""Spans for OpenTelemetry, where its API is installed and the app has configured it.

A span has the method, the route and the status of a request, and continues the trace of the sender (`traceparent`). It
has no path, no values and no token.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from starlette.requests import Request

try:
    from opentelemetry import propagate, trace
except ImportError:  # an optional package
    trace = None  # type: ignore[assignment]  # asked below

_INTERVAL = 1.0  # seconds


class Tracing:
    """Whether the app has configured OpenTelemetry. It is asked once a second, since it takes 1.4 us to answer."""

    def __init__(self) -> None:
        self._is_on, self._next_check = False, 0.0

    def is_on(self) -> bool:
        """Whether requests are traced."""
        now = time.monotonic()
        if trace is not None and now >= self._next_check:
            self._next_check = now + _INTERVAL
            self._is_on = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
        return self._is_on


@contextlib.contextmanager
def request_span(request: Request, route: str) -> Iterator[Callable[[int], None]]:
    """A span around a request. It yields a function that sets the status of the answer."""
    method = request.scope["method"]
    attributes: dict[str, Any] = {"http.request.method": method, "http.route": route}
    with trace.get_tracer("holdall.server").start_as_current_span(
        f"{method} {route}",
        context=propagate.extract(dict(request.headers)),
        kind=trace.SpanKind.SERVER,
        attributes=attributes,
    ) as span:

        def set_status(status: int) -> None:
            span.set_attribute("http.response.status_code", status)
            if status >= 500:
                span.set_status(trace.StatusCode.ERROR)

        yield set_status
