"""LangGraph's tests of its cache in Redis on ours: `RedisCache` is replaced, and so is the client of Redis."""

from __future__ import annotations

from typing import Any

import langgraph.cache.redis
import redis

from holdall.faces.langgraph import HoldallCache
from suites.new_stores import new_store


class Redis:
    """A client as the tests make one: of a server that is there, or of one that is not."""

    def __init__(self, host: str, **_: Any) -> None:
        self.is_there = host == "localhost"

    def ping(self) -> None:
        """Do nothing: each cache has a store of its own."""

    def flushdb(self) -> None:
        """Do nothing: each cache has a new store."""


class RedisCache(HoldallCache):
    """A `HoldallCache` with the constructor of `RedisCache`."""

    def __init__(self, client: Redis, *, prefix: str) -> None:
        if client.is_there:
            super().__init__(new_store(), namespace=(prefix,))
        else:
            super().__init__("redis://localhost:1", timeout=0.1)


redis.Redis = Redis  # type: ignore[misc, assignment]
langgraph.cache.redis.RedisCache = RedisCache  # type: ignore[misc, assignment]
