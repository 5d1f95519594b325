"""Times, as engines store them and as callers see them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from holdall.model.values import to_datetime, to_microseconds

_LAST = to_microseconds(datetime.max.replace(tzinfo=UTC))
_ENDS = 2**32 * 1_000_000


@given(st.integers(0, 2**33 * 1_000_000) | st.integers(to_microseconds(datetime.min.replace(tzinfo=UTC)), _LAST))
@example(0)
@example(-1)
@example(_ENDS - 1)
@example(_ENDS)
@example(_LAST)
def test_a_time_is_exact_to_the_microsecond(microseconds: int) -> None:
    moment = to_datetime(microseconds)
    assert moment - datetime(1970, 1, 1, tzinfo=UTC) == timedelta(microseconds=microseconds)
    assert moment.tzinfo is UTC
    assert to_microseconds(moment) == microseconds
