"""Stamps: the catalogue uses them to tell whether a plain file has changed since it was last seen.

A stamp is text: a file's inode, its modification time in nanoseconds and its size, joined by dots. A leading "-" marks
a file that this process may not read. An empty stamp stands for a missing file.
"""

from __future__ import annotations

import os
import stat


def make_stamp(state: os.stat_result) -> str:
    """Build the stamp of a readable file."""
    return f"{state.st_ino}.{state.st_mtime_ns}.{state.st_size}"


def mark_unreadable(stamp: str) -> str:
    """Build the stamp that the same file has if this process may not read it."""
    return stamp if is_unreadable(stamp) else f"-{stamp}"


def is_unreadable(stamp: str) -> bool:
    """Whether a stamp is of a file that this process may not read."""
    return stamp.startswith("-")


def get_size(stamp: str) -> int:
    """Return the file size in a stamp; 0 for an empty stamp."""
    return int(stamp.rpartition(".")[2].lstrip("-") or 0)


def has_same_inode(stamp: str, state: os.stat_result) -> bool:
    """Whether a file is the one that a stamp is of. Its content may have changed since."""
    return stamp.partition(".")[0].lstrip("-") == str(state.st_ino)


def is_edited(state: os.stat_result | None, *stamps: str | None) -> bool:
    """Whether there is a regular file, and it has none of these stamps."""
    readable = [stamp and stamp.lstrip("-") for stamp in stamps]
    return state is not None and stat.S_ISREG(state.st_mode) and make_stamp(state) not in readable
