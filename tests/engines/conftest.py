"""What the tests of one engine share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a disk store is to be; it is made when that is opened."""
    return tmp_path / "store"
