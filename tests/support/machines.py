"""Stores in a bucket as several machines see them: each machine has a cache of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import holdall
from holdall.engine import Engine, Options
from holdall.engines.s3 import S3Engine, S3Options, find_address
from holdall.ops import IndexTexts, LearnFields, Op, ReadStats
from support.servers import s3_server


def make_engine(url: str, options: Options, cache: Path, **own: Any) -> S3Engine:
    """Make the engine of one machine."""
    given = S3Options(**{**s3_server().options, "cache": cache, **own})
    return S3Engine(find_address(url, given), options, given)


class Alternating:
    """An engine that runs each batch on the next of several machines.

    What each machine derives for itself, and reports, is that of the first.
    """

    is_async_reentrant = True

    def __init__(self, engines: list[S3Engine]) -> None:
        self.engines = engines
        self._turns = itertools.cycle(engines)
        self.capabilities = engines[0].capabilities

    @property
    def needs_maintenance(self) -> bool:
        return any(engine.needs_maintenance for engine in self.engines)

    def execute(self, ops: Sequence[Op]) -> list[Any]:
        return self._choose(ops).execute(ops)

    async def aexecute(self, ops: Sequence[Op]) -> list[Any]:
        return await self._choose(ops).aexecute(ops)

    def _choose(self, ops: Sequence[Op]) -> S3Engine:
        return self.engines[0] if isinstance(ops[0], LearnFields | ReadStats | IndexTexts) else next(self._turns)

    def setup(self) -> None:
        for engine in self.engines:
            engine.setup()

    async def asetup(self) -> None:
        for engine in self.engines:
            await engine.asetup()

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    def before_fork(self) -> None:
        for engine in self.engines:
            engine.before_fork()

    def after_fork(self, in_child: bool) -> None:
        for engine in reversed(self.engines):
            engine.after_fork(in_child)

    def listen(self, notify: Callable[[], None]) -> Any:
        return self.engines[0].listen(notify)


def open_alternating(url: str, folder: Path, **options: Any) -> holdall.Store:
    """Open a store whose batches run on two machines, in turns."""

    def make(given: Options) -> Engine:
        return Alternating([make_engine(url, given, folder / name) for name in ("one", "two")])

    return holdall.open(make, **options)
