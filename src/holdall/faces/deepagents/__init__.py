"""deepagents: its file backend on any engine."""

from .backend import HoldallBackend

__all__ = ["HoldallBackend"]
