"""The object-store engine on SeaweedFS: the contract and the state machines, with two caches on one bucket."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.testing import Clock, StoreContract, contract, file_machine, ranking_machine, store_machine
from support.extent import IS_SHORT
from support.machines import open_alternating
from support.servers import s3_server
from support.small_thresholds import fewer, in_small

_numbers = itertools.count()


#: In the short form, what the writes of another machine touch in a way of its own.
PARTS: tuple[type, ...] = (
    contract.BatchContract,
    contract.FeedContract,
    contract.LifetimeContract,
)


class OnBucket:
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        self.folder = tmp_path
        return f"s3://tests/contract{os.getpid()}-{next(_numbers)}"  # forked processes use one server

    def open_store(self, url: str, **options: Any) -> holdall.Store:
        return holdall.open(url, **{**s3_server().options, "cache": self.folder / "cache", **options})


class TestAlternating(OnBucket, *(PARTS if IS_SHORT else (StoreContract,))):  # type: ignore[misc]  # chosen as it is imported
    """Each batch runs on the other of two machines."""

    def open_store(self, url: str, **options: Any) -> holdall.Store:
        return open_alternating(url, self.folder, **options)


if not IS_SHORT:

    class TestS3(OnBucket, StoreContract):
        pass

    class TestTwoMachines(OnBucket, StoreContract):
        """Each store that a test opens has a cache of its own, as on another machine."""

        def open_store(self, url: str, **options: Any) -> holdall.Store:
            return super().open_store(url, **{"cache": self.folder / f"cache{next(_numbers)}", **options})


def open_store(folder: Path, clock: Clock) -> holdall.Store:
    url = f"s3://tests{folder}"  # the same one for the same folder
    return open_alternating(url, folder, clock=clock, sweep_interval=None, filter_fields=["a", "a.b"])


TestMachine = fewer(store_machine(open_store), 0.1 if IS_SHORT else 0.4)
if not IS_SHORT:
    TestAsyncMachine = fewer(store_machine(open_store, use_async=True))
    TestFileMachine = fewer(file_machine(open_store))
    TestSmallMachine = in_small(store_machine(open_store), 0.4)
    TestSmallFileMachine = in_small(file_machine(open_store, use_async=True), 0.4)
    TestRanking = in_small(ranking_machine(open_store), 0.2)
