"""Stores for the frameworks' own tests: each object under test gets one of its own."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import holdall

_folder = tempfile.TemporaryDirectory()
_numbers = itertools.count()
_opened: dict[str, holdall.Store] = {}


def new_store() -> holdall.Store:
    """Open a new store."""
    return store_at(str(next(_numbers)))


def store_at(name: str) -> holdall.Store:
    """Open the store of a name: the same one each time. A test that opens a path twice expects its data."""
    if name not in _opened:
        _opened[name] = holdall.open(Path(_folder.name) / f"{len(_opened)}.db", durability="relaxed")
    return _opened[name]
