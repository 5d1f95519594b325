"""A forked child whose store has nothing left."""

from holdall.engines.memory import MemoryEngine
from holdall.engines.sqlite import SqliteEngine

after_fork = {engine: engine.after_fork for engine in (MemoryEngine, SqliteEngine)}


def close_in_child(self, in_child):
    after_fork[type(self)](self, in_child)
    if in_child:
        self.close()


MemoryEngine.after_fork = SqliteEngine.after_fork = close_in_child
