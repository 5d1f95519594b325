"""The memory engine: the reference that the other engines are compared with."""

from .engine import MemoryEngine

__all__ = ["MemoryEngine"]
