"""LlamaIndex: its key-value store, document store and chat store on any engine."""

from .stores import HoldallChatStore, HoldallDocumentStore, HoldallKVStore

__all__ = ["HoldallChatStore", "HoldallDocumentStore", "HoldallKVStore"]
