"""The stores that tests of the saver run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdall
from holdall.faces.langgraph import HoldallSaver
from support.extent import FEW_FSYNCS, IS_SHORT
from support.stores import FACE_ENGINES, new_location, open_at


@pytest.fixture(scope="module", params=["sqlite"] if IS_SHORT else FACE_ENGINES)
def saver_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[holdall.Store]:
    """A store for all tests of a module: in `make test` on one engine, as the conformance suite runs on all."""
    with open_at(new_location(request.param, tmp_path_factory.mktemp("store")), **FEW_FSYNCS) as store:
        yield store


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[HoldallSaver]:
    """A saver on a file of its own."""
    with HoldallSaver(str(tmp_path / "agent.db")) as saver:
        yield saver
