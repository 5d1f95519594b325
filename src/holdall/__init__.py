"""holdall: one durable store for everything an agent must remember."""

from . import errors, ops
from .errors import HoldallError
from .files import Files, Match, Window
from .leases import Lease, Locks
from .ops import ABSENT, ANY, DEFAULT, Change, Entry, FileInfo, Hit, Page
from .settings import OpEvent
from .store import Store
from .urls import open
from .watch import AsyncWatch, Watch

__all__ = [
    "ABSENT",
    "ANY",
    "DEFAULT",
    "AsyncWatch",
    "Change",
    "Entry",
    "FileInfo",
    "Files",
    "Hit",
    "HoldallError",
    "Lease",
    "Locks",
    "Match",
    "OpEvent",
    "Page",
    "Store",
    "Watch",
    "Window",
    "errors",
    "open",
    "ops",
]

__version__ = "0.1.0"
