"""Microsoft's Agent Framework: histories of sessions, checkpoints of workflows and files of agents, on any engine."""

from .checkpoints import HoldallCheckpointStorage
from .files import HoldallFileStore
from .history import HoldallHistoryProvider

__all__ = ["HoldallCheckpointStorage", "HoldallFileStore", "HoldallHistoryProvider"]
