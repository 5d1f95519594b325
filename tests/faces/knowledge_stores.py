"""What the tests of AG2's face share: async tests, and callbacks that are waited for."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec

P = ParamSpec("P")


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
