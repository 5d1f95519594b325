"""The fixtures that every part of the contract uses."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import holdall

from ...core.store import Store
from ...ops import Change, Changes, Page
from ..caller import Caller, FilesCaller
from ..clock import Clock

Opener: TypeAlias = Callable[..., Caller]


class Contract:
    """Override `url`, or `open_store` where an engine has no URL."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        raise NotImplementedError("override the fixture `url`: it gives the address of this engine's stores")

    def open_store(self, url: str, **options: Any) -> Store:
        """Open a store on this URL. A second one on the same URL must see the same entries."""
        return holdall.open(url, **options)

    @pytest.fixture(params=["sync", "async"])
    def runner(self, request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
        if request.param == "sync":
            yield None
        else:
            with asyncio.Runner() as runner:
                yield runner

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def opened(self, url: str, clock: Clock, runner: asyncio.Runner | None) -> Iterator[Opener]:
        """Give a function that opens a store with options. All its stores are closed at the end of the test."""
        callers: list[Caller] = []

        def opener(**options: Any) -> Caller:
            store = self.open_store(url, **{"clock": clock, "sweep_interval": None, **options})
            callers.append(Caller(store, runner))
            return callers[-1]

        yield opener
        for caller in callers:
            caller.store.close()

    @pytest.fixture
    def store(self, opened: Opener) -> Caller:
        return opened()

    @pytest.fixture
    def volume(self, store: Caller) -> FilesCaller:
        """The files of the default namespace."""
        return store.files()

    @pytest.fixture
    def changes(self, store: Caller, runner: asyncio.Runner | None) -> Any:
        """Give a function that reads changes from the engine: the store has no public method for it."""
        engine = store.store._engine_handle.engine
        store.setup()

        def walk(**query: Any) -> Page[Change]:
            batch = [Changes(**query)]
            page: Page[Change] = (engine.execute(batch) if runner is None else runner.run(engine.aexecute(batch)))[0]
            return page

        return walk


def forked(function: Callable[[], None]) -> int:
    """Run a function in a forked child, for 60 seconds at most, and return its exit status: 0 if it succeeded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, that threads do not cross a fork: we know
        pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        function()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
