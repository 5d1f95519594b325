"""Stores of the disk engine for its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdall


def opened(folder: Path, **options: Any) -> holdall.Store:
    """Open a disk store, without fsync unless `durability` is given."""
    return holdall.open(f"disk:///{folder}", **{"durability": "relaxed", **options})
