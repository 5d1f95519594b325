"""Conversations: archived from a checkpointer, then found, resumed, exported and erased."""

from .repository import (
    BaseStoreRepository,
    Conversation,
    ConversationRepository,
    FoundMessage,
    PostgresStoreRepository,
)

__all__ = [
    "BaseStoreRepository",
    "Conversation",
    "ConversationRepository",
    "FoundMessage",
    "PostgresStoreRepository",
]
