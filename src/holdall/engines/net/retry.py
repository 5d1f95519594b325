"""How long an engine that talks to a server waits before it tries again."""

from __future__ import annotations

import random
import time

_FIRST_DELAY = 0.01  # seconds
_MAX_DOUBLINGS = 6  # so the longest delay is 0.64 s
_MIN_TIME_LEFT = 0.01  # seconds: with less, another attempt cannot succeed


def backoff(failures: int) -> float:
    """Return the seconds to wait after so many failures, counted from 0: doubled each time, with random jitter."""
    return _FIRST_DELAY * (1 << min(failures, _MAX_DOUBLINGS)) * random.uniform(0.5, 1)


def retry_delay(failures: int, deadline: float) -> float | None:
    """Return `backoff`, or less if the deadline is near; None if no time is left for another attempt."""
    left = deadline - time.monotonic()
    return None if left < _MIN_TIME_LEFT else min(left / 2, backoff(failures))
