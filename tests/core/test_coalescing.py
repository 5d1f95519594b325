"""Joining the ops of tasks: what waits for what. `tests/faces/langgraph` has the same through a face."""

from __future__ import annotations

import asyncio
from typing import Any

from holdall.core.coalescing import Coalescer
from holdall.ops import Put


def test_a_put_that_waits_for_a_put_of_the_same_key_holds_up_no_other() -> None:
    async def ask() -> None:
        unlocked = asyncio.Event()

        async def execute(batch: list[Any]) -> list[Any]:
            if any(op.key == "locked" for op in batch):
                await unlocked.wait()
            return [op.key for op in batch]

        async def put(key: str) -> Any:
            return await queue.run(Put(("a",), key, {}))

        queue = Coalescer(execute, concurrency=2)
        waiting = []
        for _ in range(2):
            waiting.append(asyncio.create_task(put("locked")))
            await asyncio.sleep(0.01)
        async with asyncio.timeout(5):
            assert await asyncio.gather(*map(put, ("b", "c"))) == ["b", "c"]
            assert await put("d") == "d"
        assert not any(task.done() for task in waiting)
        unlocked.set()
        assert await asyncio.gather(*waiting) == ["locked", "locked"]

    asyncio.run(ask())
