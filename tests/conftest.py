"""How hard the tests that race, kill and try at random work: little in `make test`, for minutes in `make torture`."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable

import pytest
from hypothesis import settings

# Else every process that a test starts would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

LONG = os.environ.get("HOLDALL_TORTURE") == "long"

settings.register_profile("short", max_examples=30)
settings.register_profile("long", max_examples=300)
settings.load_profile("long" if LONG else "short")


@pytest.fixture
def scaled() -> Callable[[int, int], int]:
    """`scaled(8, 50)`: rounds, or seconds, in the short form and in the long one."""
    return lambda short, long: long if LONG else short


#: Contracts that take a while; those on memory and SQLite are always run whole.
ON_SERVERS = {"TestPostgres", "TestRedis", "TestRedisServer", "TestCluster", "TestDisk"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the short form, a test of a slow contract is run sync or async, and not both; unless it was asked for."""
    if LONG or config.option.keyword or any("::" in argument for argument in config.args):
        return
    items[:] = [item for item in items if item.parent is None or item.parent.name not in ON_SERVERS or _is_due(item)]


def _is_due(item: pytest.Item) -> bool:
    name, _, parameters = item.name.partition("[")
    words = parameters.rstrip("]").split("-")
    if "sync" not in words and "async" not in words:
        return True
    others = [name, *(word for word in words if word not in ("sync", "async"))]
    return ("sync" in words) == (zlib.crc32("-".join(others).encode()) % 2 == 0)
