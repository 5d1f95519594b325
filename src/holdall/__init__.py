"""holdall: one durable store for everything an agent must remember."""

from . import errors, ops
from .errors import HoldallError
from .files import Files, Match, Window
from .ops import ABSENT, ANY, DEFAULT, Change, Entry, FileInfo, Hit, Page
from .settings import OpEvent
from .store import Store
from .urls import open

__all__ = [
    "ABSENT",
    "ANY",
    "DEFAULT",
    "Change",
    "Entry",
    "FileInfo",
    "Files",
    "Hit",
    "HoldallError",
    "Match",
    "OpEvent",
    "Page",
    "Store",
    "Window",
    "errors",
    "open",
    "ops",
]

__version__ = "0.1.0"
