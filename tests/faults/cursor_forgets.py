"""A cursor that never comes back to what changed since its first page."""

from holdall.engines.memory import MemoryEngine
from holdall.engines.sql import Sql


def nothing(self, op, position, want):
    return []
    yield


MemoryEngine.newer = Sql.newer = nothing
