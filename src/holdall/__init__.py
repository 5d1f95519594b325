"""holdall: one durable store for everything an agent must remember."""

from . import errors, ops
from .core.options import OpEvent
from .core.store import Store
from .core.urls import open
from .errors import HoldallError
from .files.volume import Files, Match, Window
from .history.erasing import Erased
from .history.versions import Rewound
from .live.leases import Lease
from .live.watch import AsyncWatch, Watch
from .operate.public import acompare, acopy, check_backup, compare, copy
from .operate.results import BackupInfo, Checked, Comparison, Copied, Difference, Loaded
from .ops import (
    ABSENT,
    ANY,
    DEFAULT,
    KEEP,
    Change,
    Diff,
    Entry,
    Fault,
    FileInfo,
    Hit,
    LearnedField,
    Page,
    Stats,
    Version,
)

__all__ = [
    "ABSENT",
    "ANY",
    "DEFAULT",
    "KEEP",
    "AsyncWatch",
    "BackupInfo",
    "Change",
    "Checked",
    "Comparison",
    "Copied",
    "Diff",
    "Difference",
    "Entry",
    "Erased",
    "Fault",
    "FileInfo",
    "Files",
    "Hit",
    "HoldallError",
    "LearnedField",
    "Lease",
    "Loaded",
    "Match",
    "OpEvent",
    "Page",
    "Rewound",
    "Stats",
    "Store",
    "Version",
    "Watch",
    "Window",
    "acompare",
    "acopy",
    "check_backup",
    "compare",
    "copy",
    "errors",
    "open",
    "ops",
]

__version__ = "0.1.0"
