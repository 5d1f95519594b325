"""The Redis engine: one Redis or Valkey server, or a cluster."""

from .engine import RedisEngine, RedisOptions

__all__ = ["RedisEngine", "RedisOptions"]
