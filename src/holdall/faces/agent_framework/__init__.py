"""Microsoft's Agent Framework: histories of sessions and files of agents, on any engine."""

from .files import HoldallFileStore
from .history import HoldallHistoryProvider

__all__ = ["HoldallFileStore", "HoldallHistoryProvider"]
