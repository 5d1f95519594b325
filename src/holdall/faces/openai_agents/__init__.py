"""The OpenAI Agents SDK: its sessions on any engine."""

from .session import HoldallSession, SessionInfo

__all__ = ["HoldallSession", "SessionInfo"]
