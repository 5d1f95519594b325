"""LlamaIndex: its key-value store, document store, chat store and vector store on any engine."""

from .stores import HoldallChatStore, HoldallDocumentStore, HoldallKVStore
from .vectors import HoldallVectorStore

__all__ = ["HoldallChatStore", "HoldallDocumentStore", "HoldallKVStore", "HoldallVectorStore"]
