"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ..errors import InvalidInput
from ..model.values import to_datetime


class Clock:
    """A clock for `holdall.open(url, clock=clock)`: the store uses its time."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        if start.tzinfo is None:
            raise InvalidInput(f"the start of a clock must be an aware datetime, not {start!r}")
        self._microseconds = int(start.timestamp()) * 1_000_000 + start.microsecond

    def __call__(self) -> int:
        return self._microseconds

    def advance(self, time: float | timedelta) -> None:
        """Move the clock forward by seconds, or by a timedelta."""
        seconds = time.total_seconds() if isinstance(time, timedelta) else time
        self._microseconds += round(seconds * 1_000_000)

    @property
    def now(self) -> datetime:
        """The current time of this clock."""
        return to_datetime(self._microseconds)
