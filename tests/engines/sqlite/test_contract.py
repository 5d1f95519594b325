"""The SQLite engine: the contract, and the state machine against memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.testing import Clock, StoreContract, file_machine, store_machine
from support.extent import FEW_FSYNCS
from support.small_thresholds import in_small


class TestSqlite(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/store.db"

    def open_store(self, url: str, **options: Any) -> holdall.Store:
        return holdall.open(url, **(FEW_FSYNCS | options))


def open_store(folder: Path, clock: Clock) -> holdall.Store:
    return holdall.open(
        folder / "store.db", clock=clock, sweep_interval=None, durability="relaxed", filter_fields=["a", "a.b"]
    )


TestMachine = store_machine(open_store).TestCase
TestAsyncMachine = store_machine(open_store, use_async=True).TestCase
TestFileMachine = file_machine(open_store).TestCase
TestAsyncFileMachine = file_machine(open_store, use_async=True).TestCase
TestSmallMachine = in_small(store_machine(open_store), 0.6)
TestSmallAsyncMachine = in_small(store_machine(open_store, use_async=True), 0.4)
TestSmallFileMachine = in_small(file_machine(open_store), 0.4)
