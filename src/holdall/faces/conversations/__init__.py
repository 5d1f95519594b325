"""Conversations: archived from a checkpointer, then found, resumed, exported and erased."""

from .repository import BaseStoreRepository, Conversation, ConversationRepository, PostgresStoreRepository

__all__ = ["BaseStoreRepository", "Conversation", "ConversationRepository", "PostgresStoreRepository"]
