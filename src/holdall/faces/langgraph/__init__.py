"""LangGraph: its long-term memory on any engine, and the import from its own stores."""

from .node_cache import HoldallCache
from .store import AsyncHoldallStore, HoldallStore, Imported, Refused, aimport_from, import_from

__all__ = ["AsyncHoldallStore", "HoldallCache", "HoldallStore", "Imported", "Refused", "aimport_from", "import_from"]
