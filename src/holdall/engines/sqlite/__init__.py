"""The SQLite engine: the embedded default, one file for many processes."""

from .engine import SqliteEngine

__all__ = ["SqliteEngine"]
