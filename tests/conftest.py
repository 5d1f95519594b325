"""How hard the tests that race, kill and try at random work: little in `make test`, for minutes in `make torture`."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import settings

LONG = os.environ.get("HOLDALL_TORTURE") == "long"

settings.register_profile("short", max_examples=30)
settings.register_profile("long", max_examples=300)
settings.load_profile("long" if LONG else "short")


@pytest.fixture
def scaled() -> Callable[[int, int], int]:
    """`scaled(8, 50)`: rounds, or seconds, in the short form and in the long one."""
    return lambda short, long: long if LONG else short
