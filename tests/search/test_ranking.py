"""Every ranked search against a brute-force answer, on every engine that ranks."""

from __future__ import annotations

import itertools
from pathlib import Path
from unittest import mock

import holdall
from holdall.engines.sql import text_index
from holdall.search.segments import kernel, merging
from holdall.search.segments.plain import PlainKernel
from holdall.testing import Clock, ranking_machine
from support.servers import postgres_url
from support.small_thresholds import in_small

_numbers = itertools.count()


def open_memory(folder: Path, clock: Clock) -> holdall.Store:
    return holdall.open(f"memory:{folder.name}", clock=clock, sweep_interval=None)


def open_sqlite(folder: Path, clock: Clock) -> holdall.Store:
    """Each store with an engine of its own, as if it were in another process."""
    own = {"timeout": 30 + next(_numbers)}
    return holdall.open(folder / "store.db", clock=clock, sweep_interval=None, durability="relaxed", **own)


def open_postgres(folder: Path, clock: Clock) -> holdall.Store:
    own = {"timeout": 30 + next(_numbers)}
    return holdall.open(postgres_url(), schema=folder.name, clock=clock, sweep_interval=None, **own)


TestMemory = in_small(ranking_machine(open_memory), 2)
TestSqlite = in_small(ranking_machine(open_sqlite))
TestAsyncSqlite = in_small(ranking_machine(open_sqlite, use_async=True), 0.6)


class TestSqliteWithoutNumpy(in_small(ranking_machine(open_sqlite), 0.4)):  # type: ignore[misc]  # a class made there
    """The text index computes without numpy; the model's scores are the same."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        for module in (kernel, merging, text_index):
            patch = mock.patch.object(module, "kernel", PlainKernel)
            patch.start()
            cls.addClassCleanup(patch.stop)


TestPostgres = in_small(ranking_machine(open_postgres), 0.4)
