"""What the server counts, as text for Prometheus."""

from __future__ import annotations

from collections import Counter

from starlette.requests import Request

from .access import Access

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters of one worker."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()

    def observe(self, request: Request, route: str, status: int, _access: Access | None, _seconds: float) -> None:
        """Count a request."""
        self.requests[request.scope["method"], route, status] += 1
