"""How hard the torture tests work: a few seconds in `make test`, minutes in `make torture`, the same code in both."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

LONG = os.environ.get("HOLDALL_TORTURE") == "long"


@pytest.fixture
def scaled() -> Callable[[int, int], int]:
    """`scaled(8, 50)`: rounds, or seconds, in the short form and in the long one."""
    return lambda short, long: long if LONG else short
