"""Pauses between the tries of a read-modify-write."""

from __future__ import annotations

import pytest

from holdall.errors import Conflict
from holdall.runtime.programs import pause_before_retry

CONFLICT = Conflict("Put", ("a",), "k", 1, 2)


def test_each_pause_may_be_twice_as_long_until_half_a_second() -> None:
    """With pauses of at most 20 ms, 310 pops of one session had 35,000 conflicts."""
    for tries, most in {1: 0.002, 4: 0.016, 9: 0.5, 200: 0.5}.items():
        pauses = [next(pause_before_retry(CONFLICT, tries)).seconds for _ in range(500)]
        assert most * 0.8 < max(pauses) <= most, tries
        assert min(pauses) < most * 0.2, "they are random, so that writers come apart"


def test_after_too_many_tries_the_conflict_is_raised() -> None:
    with pytest.raises(Conflict, match="k"):
        next(pause_before_retry(CONFLICT, 1000))
