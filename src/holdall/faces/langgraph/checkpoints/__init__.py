"""LangGraph's checkpoints: the saver, the log that it stores them in, and the list of threads."""

from .saver import AsyncHoldallSaver, HoldallSaver
from .threads import Thread

__all__ = ["AsyncHoldallSaver", "HoldallSaver", "Thread"]
