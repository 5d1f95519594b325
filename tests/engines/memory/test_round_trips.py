"""Parts of the contract on an engine that gets every batch through msgspec, as a remote engine would."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Union

import msgspec
import pytest

from holdall import ops
from holdall.engines import memory
from holdall.engines.memory import MemoryEngine
from holdall.testing.contract.batches import BatchContract
from holdall.testing.contract.feed import FeedContract
from holdall.testing.contract.finding import FindContract
from holdall.testing.contract.lifetimes import LifetimeContract
from holdall.testing.contract.ranking import RankContract
from holdall.testing.contract.scopes import ScopeContract
from holdall.testing.contract.searching import SearchContract
from holdall.testing.contract.trees import TreeContract
from holdall.testing.contract.watching import WatchContract

_names = itertools.count()
_KINDS = {
    kind
    for kind in vars(ops).values()
    if isinstance(kind, type) and issubclass(kind, ops.Op) and kind not in (ops.Op, ops.PointOp)
}
_BATCH = list[Union[tuple(_KINDS)]]  # type: ignore[valid-type]  # noqa: UP007  # made of a set


def round_trip(batch: Sequence[ops.Op]) -> list[Any]:
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=_BATCH)  # type: ignore[no-any-return]
    except Exception as error:
        raise AssertionError(f"{batch!r:.500} is not plain data: {error!r}") from error


class RoundTripEngine(MemoryEngine):
    def execute(self, batch: Sequence[ops.Op]) -> list[Any]:
        return super().execute(round_trip(batch))  # `aexecute` calls this too


class TestRoundTrips(
    BatchContract,
    SearchContract,
    RankContract,
    LifetimeContract,
    ScopeContract,
    FeedContract,
    WatchContract,
    TreeContract,
    FindContract,
):
    @pytest.fixture
    def url(self, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(memory, "MemoryEngine", RoundTripEngine)
        return f"memory:round-trip-{next(_names)}"
