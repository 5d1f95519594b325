"""Stores of the disk engine, for its tests, here and in other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdall


def opened(folder: Path, **options: Any) -> holdall.Store:
    """One that does not wait for the disk, unless it is told to."""
    return holdall.open(f"disk:///{folder}", **{"durability": "relaxed", **options})
