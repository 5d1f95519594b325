"""pydantic-ai: its conversations on any engine."""

from .conversations import HoldallConversationStore

__all__ = ["HoldallConversationStore"]
