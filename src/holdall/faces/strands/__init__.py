"""Strands Agents: its storage, session repository and memory store on any engine."""

from .memory import HoldallMemoryStore
from .sessions import HoldallSessionRepository
from .storage import HoldallStorage

__all__ = ["HoldallMemoryStore", "HoldallSessionRepository", "HoldallStorage"]
