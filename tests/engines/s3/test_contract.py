"""The object-store engine on SeaweedFS: the contract and the state machines, with two caches on one bucket."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.testing import Clock, StoreContract, contract, file_machine, store_machine
from support.extent import IS_SHORT
from support.servers import s3_server

_numbers = itertools.count()


class OnBucket:
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        self.folder = tmp_path
        return f"s3://tests/contract{next(_numbers)}"

    def open_store(self, url: str, **options: Any) -> holdall.Store:
        return holdall.open(url, **{**s3_server().options, "cache": self.folder / "cache", **options})


class TestS3(OnBucket, StoreContract):
    pass


class TestTwoMachines(OnBucket, StoreContract):
    """Each store that a test opens has a cache of its own, as on another machine."""

    def open_store(self, url: str, **options: Any) -> holdall.Store:
        return super().open_store(url, **{"cache": self.folder / f"cache{next(_numbers)}", **options})
