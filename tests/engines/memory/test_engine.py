"""The memory engine: the contract, and what is its own."""

from __future__ import annotations

import itertools

import pytest

import holdall
from holdall.testing import StoreContract, file_machine, store_machine
from support.naive_engine import NaiveEngine

_names = itertools.count()


class TestMemory(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return f"memory:test-{next(_names)}"


# Memory is what the other engines are compared with, and is itself compared with something too simple to be wrong.
TestMachine = store_machine(
    lambda folder, clock: holdall.open("memory:", clock=clock, sweep_interval=None),
    open_reference=lambda clock: holdall.open(NaiveEngine, clock=clock, sweep_interval=None),
).TestCase

TestFileMachine = file_machine(lambda folder, clock: holdall.open("memory:", clock=clock, sweep_interval=None)).TestCase


def test_a_bare_memory_url_is_private_and_a_named_one_is_shared():
    with holdall.open("memory:") as one, holdall.open("memory:") as other:
        one.put(("a",), "k", {})
        assert other.get(("a",), "k") is None
    with holdall.open("memory:shared") as one, holdall.open("memory:shared") as other:
        one.put(("a",), "k", {})
        assert other.get(("a",), "k") is not None


def test_a_named_store_lasts_until_its_last_user_closes():
    first, second = holdall.open("memory:lasting"), holdall.open("memory:lasting")
    first.put(("a",), "k", {})
    first.close()
    assert second.get(("a",), "k") is not None
    second.close()
    with holdall.open("memory:lasting") as later:
        assert later.get(("a",), "k") is None
