"""Microsoft's Agent Framework: histories of sessions, checkpoints of workflows and files of agents, on any engine."""

from typing import TYPE_CHECKING, Any

from .checkpoints import HoldallCheckpointStorage
from .history import HoldallHistoryProvider

if TYPE_CHECKING:
    from .files import HoldallFileStore

__all__ = ["HoldallCheckpointStorage", "HoldallFileStore", "HoldallHistoryProvider"]


def __getattr__(name: str) -> Any:
    """Import the file store on first use: the framework warns that file stores are experimental."""
    if name == "HoldallFileStore":
        from .files import HoldallFileStore

        return HoldallFileStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
