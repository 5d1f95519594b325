"""An async batch that runs op by op, so that cancelling it leaves half of it behind."""

import asyncio

from holdall.engines.memory import MemoryEngine
from holdall.engines.postgres import PostgresEngine
from holdall.engines.redis import RedisEngine
from holdall.engines.sqlite import SqliteEngine


async def one_by_one(self, batch):
    results = []
    for op in batch:
        results += self.execute([op])
        await asyncio.sleep(0)
    return results


for engine in (MemoryEngine, SqliteEngine, PostgresEngine, RedisEngine):
    engine.aexecute = one_by_one
