"""LangGraph: its long-term memory and its checkpoints on any engine, and the import from its own stores."""

from .checkpoints import AsyncHoldallSaver, HoldallSaver, Thread
from .node_cache import HoldallCache
from .store import AsyncHoldallStore, HoldallStore, Imported, Refused, aimport_from, import_from

__all__ = [
    "AsyncHoldallSaver",
    "AsyncHoldallStore",
    "HoldallCache",
    "HoldallSaver",
    "HoldallStore",
    "Imported",
    "Refused",
    "Thread",
    "aimport_from",
    "import_from",
]
