"""The remote engine through a real server with two workers: the contract, and the state machines against memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.testing import Clock, StoreContract
from support.served import server


class TestRemote(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return server().serve(
            f"sqlite:///{tmp_path}/store.db", durability="relaxed", sweep_interval=None, feed_retention=0
        )

    @pytest.fixture
    def clock(self, url: str) -> Clock:
        return server().clock(url)

    def open_store(self, url: str, **options: Any) -> holdall.Store:
        return holdall.open(url, **options)
