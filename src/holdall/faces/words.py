"""The words in which deepagents and spoon_ai speak of files; spoon_ai took them over from deepagents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .. import seam
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
from ..files import Files, Match
from ..ops import FileInfo
from ..programs import Program

T = TypeVar("T")

_MOST = 2**31 - 2


def absolute(path: Any) -> Any:
    """A path as the frameworks' own tools understand it: from the root on, where it does not say so."""
    return path if not isinstance(path, str) or path.startswith("/") else f"/{path}"


def number(name: str, given: Any) -> int:
    """A line number or a count as models give them, which may be in quotes: none below 0."""
    try:
        asked = int(given)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{name} is a number, not {shown(given)}") from None
    if asked > _MOST:
        raise InvalidInput(f"{name} is at most {_MOST}, not {shown(given)}")
    return max(asked, 0)


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


def not_found(path: str) -> str:
    return f"Error: File '{path}' not found"


def not_edited(path: str, old: str, error: HoldallError, hint: str) -> str:
    """Why an edit was not made. `hint` ends the advice for a text that is there more than once."""
    match error:
        case NotFound() | IsADirectory():
            return not_found(path)
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


def _code(error: HoldallError) -> str:
    """What became of one file of several that were uploaded or downloaded."""
    if isinstance(error, NotFound):
        return "file_not_found"
    if isinstance(error, IsADirectory):
        return "is_directory"
    is_path = isinstance(error, InvalidInput) and not isinstance(error, InvalidValue)
    return "invalid_path" if is_path or isinstance(error, NotADirectory) else str(error)


def uploaded(volume: Files, files: Any, response: Callable[[str, str | None], T]) -> Program[list[T]]:
    """Create or replace files, each for itself: an answer for whatever was given, in its order."""
    if not _is_several(files):
        return [response(shown(files), f"expected a list: {shown(files)}")]
    given = list(files)
    pairs = {place: one for place, one in enumerate(given) if isinstance(one, tuple | list) and len(one) == 2}
    answers = yield from seam.write_each(volume, [(absolute(path), content) for path, content in pairs.values()])
    done = dict(zip(pairs, answers, strict=True))
    return [
        response(one[0], _outcome(done[place]))
        if place in done
        else response(shown(one), f"expected a path and its content: {shown(one)}")
        for place, one in enumerate(given)
    ]


def downloaded(volume: Files, paths: Any, response: Callable[[str, bytes | None, str | None], T]) -> Program[list[T]]:
    """The bytes of files, each for itself: an answer for whatever was given, in its order."""
    if not _is_several(paths):
        return [response(shown(paths), None, f"expected a list: {shown(paths)}")]
    given = list(paths)
    found = yield from seam.read_each(volume, map(absolute, given))
    return [
        response(path, None if isinstance(answer, HoldallError) else answer, _outcome(answer))
        for path, answer in zip(given, found, strict=True)
    ]


def _is_several(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str | bytes | type)


def _outcome(answer: object) -> str | None:
    return _code(answer) if isinstance(answer, HoldallError) else None
