"""Quotas of tokens: requests a second. Each worker counts for itself, and allows its part of the rate."""

from __future__ import annotations

import os
import time

from ...errors import QuotaExceeded
from .tokens import Token

_BURST = 1.0  # seconds of the rate that may be used at once


class Quotas:
    """The use of quotas, in one worker."""

    def __init__(self) -> None:
        self._workers = max(1, int(os.environ.get("HOLDALL_WORKERS", "1")))
        self._allowance: dict[str, tuple[float, float]] = {}  # by token: what is left, and when it was computed

    def count_request(self, token: Token) -> None:
        """Count a request; `QuotaExceeded` if the token has sent too many."""
        assert token.max_requests is not None
        rate = token.max_requests / self._workers
        now = time.monotonic()
        most = max(1.0, rate * _BURST)
        left, since = self._allowance.get(token.id, (most, now))
        left = min(most, left + (now - since) * rate)
        if left < 1:
            self._allowance[token.id] = left, now
            raise QuotaExceeded(f"this token may send {token.max_requests:g} requests a second; wait and try again")
        self._allowance[token.id] = left - 1, now
