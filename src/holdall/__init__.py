"""holdall: one durable store for everything an agent must remember."""

from . import errors, ops
from .errors import HoldallError
from .ops import ABSENT, ANY, DEFAULT, Change, Entry, Hit, Page
from .store import OpEvent, Store
from .urls import open

__all__ = [
    "ABSENT",
    "ANY",
    "DEFAULT",
    "Change",
    "Entry",
    "Hit",
    "HoldallError",
    "OpEvent",
    "Page",
    "Store",
    "errors",
    "open",
    "ops",
]

__version__ = "0.1.0"
