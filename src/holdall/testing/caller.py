"""One way to call a store in tests, sync or async, so that each test is written once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ..ops import Namespace
from ..store import Store


class Caller:
    """`caller.put(…)` is `store.put(…)`, or, with a runner, `store.aput(…)` awaited in its event loop."""

    def __init__(self, store: Store, runner: asyncio.Runner | None) -> None:
        self.store = store
        self._runner = runner

    def scoped(self, namespace: Namespace) -> Caller:
        return Caller(self.store.scoped(namespace), self._runner)

    def scan(self, *args: Any) -> list[Any]:
        if self._runner is None:
            return list(self.store.scan(*args))
        return self._runner.run(_collected(self.store.ascan(*args)))

    def __getattr__(self, name: str) -> Any:
        if self._runner is None:
            return getattr(self.store, name)
        runner, method = self._runner, getattr(self.store, "a" + name)
        return lambda *args, **kwargs: runner.run(method(*args, **kwargs))


async def _collected(entries: AsyncIterator[Any]) -> list[Any]:
    return [entry async for entry in entries]
