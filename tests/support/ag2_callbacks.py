"""Async tests, and a callback to wait for, for the tests of the AG2 face."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec

P = ParamSpec("P")


def awaited(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test in a new event loop, for 60 seconds at most."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            async with asyncio.timeout(60):
                await test(*args, **kwargs)

        asyncio.run(main())

    return run


class RecordedPaths:
    """A callback for `on_change` that records its paths; `await recorded.of(3)` waits for three of them."""

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
