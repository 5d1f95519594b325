"""A store on each engine, and a loop for async calls, for tests that are written once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdall
import places
from langgraph_calls import Open, opener
from places import ENGINES, open_at

_numbers = itertools.count()


@pytest.fixture(scope="module", params=ENGINES)
def any_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[holdall.Store]:
    """One for the tests of a module, each of which takes a namespace of its own."""
    with open_on(request.param, tmp_path_factory) as store:
        yield store


def open_on(engine: str, folders: pytest.TempPathFactory) -> holdall.Store:
    """A new store on an engine."""
    return open_at(places.place(engine, folders.mktemp("store")))


@pytest.fixture(params=ENGINES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """What opens one and the same store each time, of this test's own, with the options that it is given."""
    return opener(request.param, tmp_path)


@pytest.fixture
def place() -> tuple[str, ...]:
    """A namespace that no other test uses."""
    return ("faces", f"test-{next(_numbers)}")


@pytest.fixture(scope="module", params=["sync", "async"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    """None for sync; else the loop in which the async twins are awaited."""
    if request.param == "sync":
        yield None
        return
    with asyncio.Runner() as loop:
        yield loop
