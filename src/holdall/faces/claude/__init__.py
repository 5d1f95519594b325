"""Claude's memory tool on any engine."""

from .memory import AsyncMemoryTool, MemoryTool

__all__ = ["AsyncMemoryTool", "MemoryTool"]
