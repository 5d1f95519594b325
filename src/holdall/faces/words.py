"""The words in which deepagents and spoon_ai speak of files; spoon_ai took them over from deepagents."""

from __future__ import annotations

from typing import Any

from ..errors import HoldallError, InvalidInput, InvalidValue, IsADirectory, NotADirectory, NotFound
from ..files import Match
from ..ops import FileInfo

EMPTY_OLD_STRING = "Error: old_string cannot be empty. Provide the exact text to replace."
BINARY = "Error: Cannot edit binary files with text replacements."


def absolute(path: Any) -> Any:
    """A path as the frameworks' own tools understand it: from the root on, where it does not say so."""
    return path if not isinstance(path, str) or path.startswith("/") else f"/{path}"


def as_dict(info: FileInfo) -> Any:
    """What a listing says of a file or folder."""
    modified = "" if info.modified_at is None else info.modified_at.isoformat()
    return {"path": info.path, "is_dir": info.is_dir, "size": info.size, "modified_at": modified}


def newest_first(files: list[FileInfo]) -> list[Any]:
    """The order in which both give what a glob finds. Folders, which have no times, are none of them."""
    return [as_dict(info) for info in sorted(files, key=lambda info: (info.modified_at, info.version), reverse=True)]


def as_match(match: Match) -> Any:
    """What a search says of a line."""
    return {"path": match.path, "line": match.line, "text": match.text}


def code(error: HoldallError) -> str:
    """What became of one file of several that were uploaded or downloaded."""
    if isinstance(error, NotFound):
        return "file_not_found"
    if isinstance(error, IsADirectory):
        return "is_directory"
    is_path = isinstance(error, InvalidInput) and not isinstance(error, InvalidValue)
    return "invalid_path" if is_path or isinstance(error, NotADirectory) else str(error)
