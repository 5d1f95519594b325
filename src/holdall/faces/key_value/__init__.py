"""py-key-value: an `AsyncKeyValue` store on any engine, for the state, OAuth tokens and caches of FastMCP."""

from .store import HoldallKeyValue

__all__ = ["HoldallKeyValue"]
