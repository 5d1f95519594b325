"""The PostgreSQL engine: the contract, the state machine, and what is PostgreSQL's own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.testing import Clock, StoreContract, store_machine
from servers import postgres_url

_numbers = itertools.count()


class TestPostgres(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return f"contract_{next(_numbers)}"  # a schema for each test

    def open_store(self, url: str, **options: Any) -> holdall.Store:
        return holdall.open(postgres_url(), schema=url, **options)


def open_store(folder: Path, clock: Clock) -> holdall.Store:
    return holdall.open(postgres_url(), schema=folder.name, clock=clock, sweep_interval=None, indexed=["a", "a.b"])


TestMachine = store_machine(open_store).TestCase
TestAsyncMachine = store_machine(open_store, use_async=True).TestCase


def test_writers_whose_random_is_seeded_alike_do_not_take_each_others_writes_for_their_own() -> None:
    import random

    with holdall.open(postgres_url(), schema="seeded") as store:
        for n in range(3):
            random.seed(1)
            assert store.put(("a",), "k", {"n": n}).value == {"n": n}
        assert store.get(("a",), "k").value == {"n": 2}  # type: ignore[union-attr]  # it is there
