"""A store on each engine, and a loop for async calls, for tests that are written once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdall
from support import stores
from support.extent import FEW_FSYNCS
from support.langgraph_stores import Open, opener
from support.postgres_schemas import empty_schema
from support.servers import postgres_url
from support.stores import FACE_ENGINES, open_at

_numbers = itertools.count()


@pytest.fixture(scope="module", params=FACE_ENGINES)
def any_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[holdall.Store]:
    """A store for all tests of a module, each of which uses its own namespace."""
    with open_on(request.param, tmp_path_factory) as store:
        yield store


def open_on(engine: str, folders: pytest.TempPathFactory) -> holdall.Store:
    """Open a new store on an engine."""
    return open_at(stores.new_location(engine, folders.mktemp("store")), **FEW_FSYNCS)


@pytest.fixture(params=FACE_ENGINES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """A function that opens a store of this test, the same one each time, with the given options."""
    if request.param == "postgres":
        with empty_schema() as schema:
            yield lambda **options: holdall.open(postgres_url(), schema=schema, **options)
    else:
        yield opener(request.param, tmp_path)


@pytest.fixture
def place() -> tuple[str, ...]:
    """A namespace that no other test uses."""
    return ("faces", f"test-{next(_numbers)}")


@pytest.fixture(scope="module", params=["sync", "async"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    """None for sync; otherwise the event loop that runs the async methods."""
    if request.param == "sync":
        yield None
        return
    with asyncio.Runner() as loop:
        yield loop
