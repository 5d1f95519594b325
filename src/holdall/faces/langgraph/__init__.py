"""LangGraph: its long-term memory and its checkpoints on any engine, and the import from its own stores."""

from .saver import AsyncHoldallSaver, HoldallSaver
from .store import AsyncHoldallStore, HoldallStore, Imported, Refused, aimport_from, import_from

__all__ = [
    "AsyncHoldallSaver",
    "AsyncHoldallStore",
    "HoldallSaver",
    "HoldallStore",
    "Imported",
    "Refused",
    "aimport_from",
    "import_from",
]
