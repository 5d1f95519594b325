"""LangChain's standard tests on ours, sync and async. `make test` runs the sync ones on every engine."""

from __future__ import annotations

import pytest
from langchain_tests.integration_tests import AsyncCacheTestSuite, SyncCacheTestSuite
from langchain_tests.integration_tests.base_store import BaseStoreAsyncTests, BaseStoreSyncTests

from holdall.faces.langchain import HoldallByteStore, HoldallCache
from suites.new_stores import new_store


class _Bytes:
    @pytest.fixture
    def three_values(self) -> tuple[bytes, bytes, bytes]:
        return b"foo", b"\x00\xff", b""


class TestByteStore(_Bytes, BaseStoreSyncTests[bytes]):
    @pytest.fixture
    def kv_store(self) -> HoldallByteStore:
        return HoldallByteStore(new_store())


class TestAsyncByteStore(_Bytes, BaseStoreAsyncTests[bytes]):
    @pytest.fixture
    async def kv_store(self) -> HoldallByteStore:
        return HoldallByteStore(new_store())


class TestCache(SyncCacheTestSuite):
    @pytest.fixture
    def cache(self) -> HoldallCache:
        return HoldallCache(new_store())


class TestAsyncCache(AsyncCacheTestSuite):
    @pytest.fixture
    async def cache(self) -> HoldallCache:
        return HoldallCache(new_store())
