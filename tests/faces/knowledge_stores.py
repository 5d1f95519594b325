"""Stores for the tests of AG2's face: one on each engine, and how to open it again, here or in another process."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ParamSpec

import holdall
from servers import postgres_url

P = ParamSpec("P")
ENGINES = ["memory", "sqlite", "postgres", "disk"]
_numbers = itertools.count()


def where(engine: str, folder: Path) -> dict[str, Any]:
    """A place that is new, for `open_at`."""
    number = next(_numbers)
    if engine == "memory":
        return {"url": f"memory:knowledge-{number}"}
    if engine == "sqlite":
        return {"url": str(folder / f"knowledge-{number}.db")}
    if engine == "disk":
        return {"url": f"disk:///{folder}/knowledge-{number}", "durability": "relaxed"}
    return {"url": postgres_url(), "schema": f"knowledge_{number}"}


def open_at(at: dict[str, Any], **options: Any) -> holdall.Store:
    return holdall.open(**at, **options)


def awaited(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """An async test, run in an event loop of its own. A test that hangs fails after a while, which says where."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            async with asyncio.timeout(60):
                await test(*args, **kwargs)

        asyncio.run(main())

    return run


class Told:
    """A callback for `on_change`, and what it was told; `await told.of(3)` waits for that many."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._more = asyncio.Event()

    async def __call__(self, path: str) -> None:
        self.paths.append(path)
        self._more.set()

    async def of(self, count: int) -> list[str]:
        while len(self.paths) < count:
            self._more.clear()
            await self._more.wait()
        return self.paths
