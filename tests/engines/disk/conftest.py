"""A folder for disk stores."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a disk store, which is created when the store is opened."""
    return tmp_path / "store"
