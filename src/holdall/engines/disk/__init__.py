"""The disk engine: each file of a store is an ordinary file in a folder."""

from .engine import DiskEngine, DiskOptions

__all__ = ["DiskEngine", "DiskOptions"]
