"""LangChain: byte stores, chat histories and the cache of model answers, on any engine."""

from .byte_store import HoldallByteStore
from .cache import HoldallCache
from .chat_history import HoldallChatMessageHistory

__all__ = ["HoldallByteStore", "HoldallCache", "HoldallChatMessageHistory"]
