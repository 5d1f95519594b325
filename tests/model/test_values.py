"""Times and durations, as engines get them and as callers give them."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import holdall
from holdall.engine import Options
from holdall.engines.memory import MemoryEngine
from holdall.errors import InvalidInput, LeaseLost
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


@pytest.mark.parametrize("seconds", [60, 60.0, timedelta(minutes=1)], ids=repr)
def test_every_duration_is_seconds_or_a_timedelta(seconds: Any) -> None:
    durations = {"timeout": seconds, "sweep_interval": seconds, "feed_retention": seconds, "ttl": seconds}
    made: list[Options] = []

    def make(options: Options) -> MemoryEngine:
        made.append(options)
        return MemoryEngine(options)

    with holdall.open(make, **durations) as store:
        assert made[0].timeout == 60
        assert store._engine_handle._sweep_interval == store._engine_handle.feed_retention == 60
        assert store._options.ttl == 60
        assert store.lease("name", seconds, wait=seconds)._wait == store.lease("name", seconds).ttl == 60
    for url in ("redis://nowhere", "postgresql://nowhere/db"):
        with contextlib.closing(holdall.open(url, pool_timeout=seconds)) as store:
            assert store._engine_handle.engine._own.pool_timeout == 60
        with pytest.raises(InvalidInput, match="pool_timeout is seconds or a timedelta, not bool True"):
            holdall.open(url, pool_timeout=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: holdall.open("memory:", ttl=holdall.DEFAULT), "ttl is seconds, a timedelta or None, not Lifetime"),
        (lambda _: holdall.open("memory:", timeout=float("inf")), "more than 0 and at most 1,000,000,000 seconds"),
        (lambda _: holdall.open("memory:", sweep_interval="1"), "is seconds, a timedelta or None, not str '1'"),
        (lambda _: holdall.open("memory:", feed_retention=-1), "feed_retention is 0 or more seconds, not -1"),
        (lambda store: store.put(("a",), "k", {}, ttl="1"), "None, holdall.DEFAULT or holdall.KEEP, not str '1'"),
        (lambda store: store.lease("name", holdall.DEFAULT), "ttl is seconds or a timedelta, not Lifetime holdall.D"),
        (lambda store: store.lease("name", 9, wait=-1), "wait is 0 or more seconds, not -1"),
        (lambda store: store.lease("", 9), "the name of a lease cannot be empty"),
        (lambda store: store.lease(5, 9), "the name of a lease is a str, not int 5"),
    ],
)
def test_a_message_names_the_argument_and_what_it_may_be(call: Any, message: str) -> None:
    with holdall.open("memory:") as store, pytest.raises(InvalidInput, match=re.escape(message)):
        call(store)


def test_a_lost_lease_names_what_to_do() -> None:
    error = LeaseLost("lease", (), "job", 5, None)
    assert "Nothing was written" not in str(error), "a block that wrote may end with it"
    assert str(error).endswith("make another one with store.lease(), and start from what is stored")
