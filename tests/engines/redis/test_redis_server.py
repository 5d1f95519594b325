"""The Redis engine on `redis-server`, where one is installed: the contract and the state machines once more."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.testing import Clock, StoreContract, file_machine, ranking_machine, store_machine
from support.servers import redis_url

_numbers = itertools.count()
_PROGRAM = shutil.which("redis-server")

if _PROGRAM is not None:
    PROGRAM = Path(_PROGRAM)

    class TestRedisServer(StoreContract):
        @pytest.fixture
        def url(self) -> str:
            return f"contract{next(_numbers)}"  # a prefix for each test

        def open_store(self, url: str, **options: Any) -> holdall.Store:
            return holdall.open(redis_url(PROGRAM), key_prefix=url, **options)

    def open_store(folder: Path, clock: Clock) -> holdall.Store:
        return holdall.open(
            redis_url(PROGRAM), key_prefix=folder.name, clock=clock, sweep_interval=None, filter_fields=["a"]
        )

    TestMachine = store_machine(open_store).TestCase
    TestFileMachine = file_machine(open_store).TestCase
    TestRanking = ranking_machine(open_store, use_async=True).TestCase
