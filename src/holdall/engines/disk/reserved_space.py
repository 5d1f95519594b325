"""Disk space that a `disk:` store reserves, so that entries can be deleted when the disk is full.

To commit a delete, the catalogue has to write some pages. When the disk has no space for them, the engine releases the
reserved space, tries again, and reserves it again later.
"""

from __future__ import annotations

import os
from pathlib import Path

_SIZE = 1 << 18  # bytes


class ReservedSpace:
    """A file whose only use is the space that it takes."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._is_reserved = False

    def reserve(self) -> None:
        """Write the file, unless it exists or the disk is full."""
        if self._is_reserved:
            return
        try:
            if not self._path.exists():
                self._path.write_bytes(os.urandom(_SIZE))  # random bytes: a file system cannot compress them
            self._is_reserved = True
        except OSError:
            self.release()

    def release(self) -> bool:
        """Delete the file; return whether it existed."""
        self._is_reserved = False
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
