"""The PostgreSQL engine."""

from .engine import PostgresEngine, PostgresOptions

__all__ = ["PostgresEngine", "PostgresOptions"]
