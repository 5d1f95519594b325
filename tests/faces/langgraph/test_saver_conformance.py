"""LangGraph's own suite for checkpointers, `langgraph-checkpoint-conformance`, on every engine: async, and sync."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate

import holdall
from holdall.faces.langgraph import HoldallSaver
from support.extent import IS_SHORT

_numbers = itertools.count()
#: How many tests each capability has.
TESTS = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


class SyncSaver(HoldallSaver):
    """A saver whose async methods, which are all that the suite calls, call the sync ones."""

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        return self.put(*args, **kwargs)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        self.put_writes(*args, **kwargs)

    async def aget_tuple(self, *args: Any, **kwargs: Any) -> Any:
        return self.get_tuple(*args, **kwargs)

    async def alist(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        for found in self.list(*args, **kwargs):
            yield found

    async def adelete_thread(self, *args: Any, **kwargs: Any) -> None:
        self.delete_thread(*args, **kwargs)

    async def adelete_for_runs(self, *args: Any, **kwargs: Any) -> None:
        self.delete_for_runs(*args, **kwargs)

    async def acopy_thread(self, *args: Any, **kwargs: Any) -> None:
        self.copy_thread(*args, **kwargs)

    async def aprune(self, *args: Any, **kwargs: Any) -> None:
        self.prune(*args, **kwargs)


@pytest.mark.parametrize("kind", [HoldallSaver] if IS_SHORT else [HoldallSaver, SyncSaver])
def test_the_conformance_suite_passes(any_store: holdall.Store, kind: type[HoldallSaver]) -> None:
    if IS_SHORT and "Sqlite" in repr(any_store):
        kind = SyncSaver

    @checkpointer_test(name=kind.__name__)
    async def make_saver() -> AsyncIterator[HoldallSaver]:
        yield kind(any_store, namespace=("suite", f"threads-{next(_numbers)}"))

    report = asyncio.run(validate(make_saver))
    failures = [failure for result in report.results.values() for failure in result.failures or ()]
    assert failures == []
    assert {name: result.tests_passed for name, result in report.results.items()} == TESTS
