"""What the file backends of deepagents and spoon_ai share: argument forms, result dicts and messages.

spoon_ai's interface is modelled on deepagents', so both use the same messages. Their texts are exactly the frameworks'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .. import FileInfo, Files, Match
from ..core import face_api
from ..core.face_api import StoreProgram
from ..errors import (
    AmbiguousMatch,
    HoldallError,
    InvalidInput,
    InvalidValue,
    IsADirectory,
    NoMatch,
    NotADirectory,
    NotFound,
    NotText,
    shown,
)

T = TypeVar("T")

_MAX_NUMBER = 2**31 - 2


def to_absolute(path: Any) -> Any:
    """Return a path with a leading "/", as the frameworks' own tools read it. What is not a str is left as it is."""
    return path if not isinstance(path, str) or path.startswith("/") else f"/{path}"


def parse_number(name: str, given: Any) -> int:
    """Return an int from what a model passed, which may be a str. Negative numbers become 0."""
    try:
        parsed = int(given)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{name} is a number, not {shown(given)}") from None
    if parsed > _MAX_NUMBER:
        raise InvalidInput(f"{name} is at most {_MAX_NUMBER}, not {shown(given)}")
    return max(parsed, 0)


def describe_file(info: FileInfo) -> Any:
    """Return the dict that a listing has for a file or folder."""
    modified = "" if info.modified_at is None else info.modified_at.isoformat()
    return {"path": info.path, "is_dir": info.is_dir, "size": info.size, "modified_at": modified}


def sort_newest_first(files: list[FileInfo]) -> list[Any]:
    """Return the dicts of the files that a glob found, the last modified first."""
    ordered = sorted(files, key=lambda info: (info.modified_at, info.version), reverse=True)
    return [describe_file(info) for info in ordered]


def describe_match(match: Match) -> Any:
    """Return the dict that a search has for a line."""
    return {"path": match.path, "line": match.line, "text": match.text}


def not_found_message(path: str) -> str:
    return f"Error: File '{path}' not found"


def edit_error_message(path: str, old: str, error: HoldallError, hint: str) -> str:
    """Return the message for an edit that failed. `hint` ends the advice for a text that occurs more than once."""
    match error:
        case NotFound() | IsADirectory():
            return not_found_message(path)
        case NotText():
            return "Error: Cannot edit binary files with text replacements."
        case NoMatch():
            return f"Error: String not found in file: '{old}'"
        case AmbiguousMatch(count=count):
            return (
                f"Error: String '{old}' appears {count} times in file. Use replace_all=True to replace all instances,"
                f" or provide a more specific string{hint}."
            )
    if old == "":
        return "Error: old_string cannot be empty. Provide the exact text to replace."
    return f"Error: {error}"


def _error_code(error: HoldallError) -> str:
    """Return the frameworks' error code for one file of an upload or download, or the message if there is no code."""
    if isinstance(error, NotFound):
        return "file_not_found"
    if isinstance(error, IsADirectory):
        return "is_directory"
    is_path = isinstance(error, InvalidInput) and not isinstance(error, InvalidValue)
    return "invalid_path" if is_path or isinstance(error, NotADirectory) else str(error)


def upload_all(volume: Files, files: Any, response: Callable[[str, str | None], T]) -> StoreProgram[list[T]]:
    """Create or replace files, each on its own. The responses are in the order of `files`, one for each element."""
    if not _is_collection(files):
        return [response(shown(files), f"expected a list: {shown(files)}")]
    given = list(files)
    pairs = {index: one for index, one in enumerate(given) if isinstance(one, tuple | list) and len(one) == 2}
    writes = [(to_absolute(path), content) for path, content in pairs.values()]
    written = dict(zip(pairs, (yield from face_api.write_each(volume, writes)), strict=True))
    return [
        response(one[0], _error_of(written[index]))
        if index in written
        else response(shown(one), f"expected a path and its content: {shown(one)}")
        for index, one in enumerate(given)
    ]


def download_all(
    volume: Files, paths: Any, response: Callable[[str, bytes | None, str | None], T]
) -> StoreProgram[list[T]]:
    """Read files as bytes, each on its own. The responses are in the order of `paths`, one for each element."""
    if not _is_collection(paths):
        return [response(shown(paths), None, f"expected a list: {shown(paths)}")]
    given = list(paths)
    found = yield from face_api.read_each(volume, map(to_absolute, given))
    return [
        response(path, None if isinstance(content, HoldallError) else content, _error_of(content))
        for path, content in zip(given, found, strict=True)
    ]


def _is_collection(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str | bytes | type)


def _error_of(outcome: object) -> str | None:
    return _error_code(outcome) if isinstance(outcome, HoldallError) else None
