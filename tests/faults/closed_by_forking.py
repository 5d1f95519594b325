"""A forked child whose store has nothing left."""

from holdall.engines.memory import MemoryEngine
from holdall.engines.postgres import PostgresEngine
from holdall.engines.redis import RedisEngine
from holdall.engines.sqlite import SqliteEngine


def close_in_child(engine):
    after_fork = engine.after_fork

    def closing(self, in_child):
        after_fork(self, in_child)
        if in_child:
            self.close()

    engine.after_fork = closing


for engine in (MemoryEngine, SqliteEngine, PostgresEngine, RedisEngine):
    close_in_child(engine)
