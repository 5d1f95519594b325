"""How much of the suite runs, and how hard it tries: see `support/extent.py`."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from unittest import mock

import pytest
from _pytest.runner import runtestprotocol
from _pytest.unittest import TestCaseFunction
from hypothesis import HealthCheck, settings

from holdall.engines.sql import files as sql_files
from support.extent import EXTENT, IS_LONG, IS_SHORT

# Otherwise every process that a test starts would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests kill processes and servers, and never the machine: in memory, what they write outlives that as on a disk.
_MEMORY = Path("/dev/shm")
if IS_SHORT and "TMPDIR" not in os.environ and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 4 << 30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)

#: Of these engines, each test of a face is on one in the short form.
_THIRD_ENGINES = ("postgres", "redis", "disk")
#: Single tests of these modules take up to ten seconds: they run first, so that no worker waits for one at the end.
_FIRST = ("test_docs.py", "test_examples.py", "test_machine.py", "test_ranking.py")
#: Parts of the contract in which the catalogue of a disk store, which is a SQLite store, does everything.
_WITHOUT_FILES = (
    "EmbeddingContract",
    "FilterContract",
    "LearningContract",
    "LeaseContract",
    "LifetimeContract",
    "RankContract",
    "SearchContract",
)

# Without limits of time, which a busy machine exceeds. The short form tries the same examples each time, so that a
# failure is the fault of the change; the others try new ones.
for _extent, _examples in (("short", 16), ("all", 100), ("long", 300)):
    settings.register_profile(
        _extent,
        max_examples=_examples,
        deadline=None,
        derandomize=IS_SHORT,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(EXTENT)


@pytest.fixture
def scaled() -> Callable[[int, int], int]:
    """`scaled(8, 50)`: rounds or seconds; 4 in `make test`, 8 in `make test-all`, 50 in `make torture`."""
    if IS_SHORT:
        return lambda short, _: (short + 1) // 2
    return lambda short, long: long if IS_LONG else short


@pytest.fixture(scope="session", autouse=True)
def contents_index() -> Iterator[None]:
    """In tests, a grep of SQL engines asks the index of contents, however few files there are."""
    with mock.patch.object(sql_files, "_FEW_FILES", 0):
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest tests first. In the short form, leave out parts of the contract and tests marked `not_short`.

    Tests that are asked for by name are not left out.
    """
    is_asked_for = config.option.keyword or any("::" in argument for argument in config.args)
    if IS_SHORT and not is_asked_for:
        items[:] = [item for item in items if _is_in_short_form(item)]
    items.sort(key=lambda item: item.path.name not in _FIRST)


def _is_in_short_form(item: pytest.Item) -> bool:
    """The whole contract on memory; on the other engines, what an engine takes part in, each test sync or async.

    Tests of faces are on memory, on SQLite, and on one of the other engines. Tests of the faults of servers are sync or
    async, and so are state machines.
    """
    if item.get_closest_marker("not_short") is not None or not _is_on_engine_of(item) or not _is_machine_of_turn(item):
        return False
    if "torture" in item.path.parts:
        return _is_turn_of(item)
    bases = item.cls.__mro__ if isinstance(item, pytest.Function) and item.cls is not None else ()
    if not any(base.__name__.endswith("Contract") for base in bases) or item.cls.__name__ == "TestMemory":
        return True
    part = item.function.__qualname__.partition(".")[0]
    if item.cls.__name__ == "TestDisk" and part in _WITHOUT_FILES:
        return False
    return part != "RefusalContract" and _is_turn_of(item)


def _is_turn_of(item: pytest.Item) -> bool:
    """Choose the sync or the async form of a test by its name, so that each engine has half of its tests in each."""
    name, _, parameters = item.name.partition("[")
    words = parameters.rstrip("]").split("-")
    if "sync" not in words and "async" not in words:
        return True
    others = [name, *(word for word in words if word not in ("sync", "async"))]
    return ("sync" in words) == (zlib.crc32("-".join(others).encode()) % 2 == 0)


def _is_machine_of_turn(item: pytest.Item) -> bool:
    """Of a state machine that a module has sync and async, choose one. Machines of files and of items differ."""
    if not isinstance(item, TestCaseFunction) or item.parent is None or not isinstance(item, pytest.Function):
        return True
    kind = item.parent.name.replace("Async", "")
    if sum(name.replace("Async", "") == kind for name in vars(item.module)) < 2:
        return True
    turn = zlib.crc32(item.module.__name__.encode()) + ("File" in kind)
    return ("Async" in item.parent.name) == (turn % 2 == 0)


def _is_on_engine_of(item: pytest.Item) -> bool:
    """Choose the third engine of a test of a face by its name and parameters, so that each engine has as many."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    engine = parameters.get("any_store", parameters.get("open_store"))
    if engine not in _THIRD_ENGINES:
        return True
    name, _, words = item.nodeid.partition("[")
    chosen = zlib.crc32((name + words.replace(engine, "", 1)).encode()) % len(_THIRD_ENGINES)
    return bool(engine == _THIRD_ENGINES[chosen])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, and keep them out of later garbage collections.

    Every worker imports every framework, which makes next to no garbage: without this, it takes 2 of 8 seconds longer.
    Many tests ask for a garbage collection, which would take long, too.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def short_garbage_collections() -> Iterator[None]:
    """Keep what a module has imported out of later garbage collections, too: frameworks are millions of objects."""
    yield
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Try a test that is marked `timed` again if it fails: what else the machine does can only add to its times."""
    if item.get_closest_marker("timed") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for failures in range(3):
        if failures:
            item.user_properties = [("failures", failures)]
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not any(report.failed for report in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that passed only when they were tried again."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, number in report.user_properties:
            if name == "failures":
                terminalreporter.write_line(f"AGAIN {report.nodeid}: it failed {number} times before")
