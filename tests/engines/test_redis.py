"""The Redis engine on one server: the contract, the state machines, and what is Redis' own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import holdall
from holdall.engines import redis, redis_shards
from holdall.testing import Clock, StoreContract, file_machine, store_machine
from servers import redis_url

_numbers = itertools.count()


class TestRedis(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return f"contract{next(_numbers)}"  # a prefix for each test

    def open_store(self, url: str, **options: Any) -> holdall.Store:
        return holdall.open(redis_url(), prefix=url, **options)


def open_store(folder: Path, clock: Clock) -> holdall.Store:
    return holdall.open(redis_url(), prefix=folder.name, clock=clock, sweep_interval=None, indexed=["a", "a.b"])


TestMachine = store_machine(open_store).TestCase
TestAsyncMachine = store_machine(open_store, use_async=True).TestCase
TestFileMachine = file_machine(open_store).TestCase
TestAsyncFileMachine = file_machine(open_store, use_async=True).TestCase
for _machine in (TestMachine, TestAsyncMachine, TestFileMachine, TestAsyncFileMachine):  # a server takes its time
    _machine.settings = settings(_machine.settings, max_examples=15, deadline=None)


@pytest.mark.parametrize("machine", [TestMachine, TestFileMachine])
def test_trees_that_are_cleared_away_afterwards_are_gone_at_once(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in any other store, and in whichever order other things happen."""
    monkeypatch.setattr(redis, "MOST_AT_ONCE", 0)
    monkeypatch.setattr(redis_shards, "_STEP", 1)
    machine().runTest()
