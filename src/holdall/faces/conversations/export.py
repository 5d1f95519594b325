"""Exporting the messages of conversations, one per line, as JSONL or CSV."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, Self

from ...errors import FileNotFound, InvalidInput, IsADirectory, Unavailable, shown

if TYPE_CHECKING:
    from .repository import Conversation

_COLUMNS = (
    *("user_id", "thread_id", "conversation", "checkpoint_at", "archived_at", "position", "type", "name", "text"),
    *("author", "reason"),
)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class Sink(Protocol):
    """An object that text can be written to."""

    def write(self, text: str, /) -> object: ...


class MessageExport:
    """Writes messages to a path or a text file. A file at a path is written whole, or not changed."""

    def __init__(self, target: str | os.PathLike[str] | Sink, format: Literal["jsonl", "csv"] | None) -> None:
        self._path = Path(target) if isinstance(target, str | os.PathLike) else None
        if self._path is None and not callable(getattr(target, "write", None)):
            raise InvalidInput(f"the target of an export is a path or an open text file, not {shown(target)}")
        chosen = format or (self._path.suffix.removeprefix(".") if self._path is not None else "jsonl")
        if chosen not in ("jsonl", "csv"):
            raise InvalidInput(f"the format is 'jsonl' or 'csv', not {shown(chosen)}; pass format=")
        self._as_csv = chosen == "csv"
        self._sink: Any = target
        self._part: IO[str] | None = None  # the temporary file that replaces the path at the end
        self.written = 0

    def __enter__(self) -> Self:
        if self._path is not None:
            self._part = self._sink = _open_beside(self._path)
        try:
            self._sink.write("")
        except (TypeError, ValueError, OSError) as error:  # a binary file, a closed one, or one for reading
            raise InvalidInput(f"{shown(self._sink)} is not a text file open for writing: {error}") from error
        if self._as_csv:
            csv.writer(self._sink).writerow(_COLUMNS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._part is None:
            return
        part = Path(self._part.name)
        try:
            self._part.close()
            if kind is None and self._path is not None:
                part.replace(self._path)
        except OSError as failure:
            raise Unavailable(f"{str(self._path)!r} cannot be written: {failure}") from failure
        finally:
            part.unlink(missing_ok=True)

    def write(
        self, conversation: Conversation, messages: list[dict[str, Any]], acting: tuple[str | None, str | None]
    ) -> None:
        """Write the messages of one conversation, with the author and the reason of its archiving."""
        for position, message in enumerate(messages):
            columns = {
                "user_id": conversation.user_id,
                "thread_id": conversation.thread_id,
                "conversation": conversation.key,
                "checkpoint_at": conversation.checkpoint_at.isoformat(),
                "archived_at": conversation.archived_at.isoformat(),
                "position": position,
                "type": message.get("type"),
                "name": message.get("name"),
                "text": message.get("content"),
                "author": acting[0],
                "reason": acting[1],
            }
            if self._as_csv:
                csv.writer(self._sink).writerow([_to_cell(value) for value in columns.values()])
            else:
                line = json.dumps(columns | {"message": message}, ensure_ascii=False)
                self._sink.write(line + "\n")
            self.written += 1


def _open_beside(path: Path) -> IO[str]:
    """Open a temporary file in the folder of the file that it replaces at the end."""
    try:
        if path.is_dir():
            raise IsADirectory(f"{str(path)!r} is a folder; name a file in it")
        if path.exists() and not path.is_file():  # a device would be replaced
            raise InvalidInput(f"{str(path)!r} is no regular file; name another one")
        return tempfile.NamedTemporaryFile(  # closed by `MessageExport`
            "w", encoding="utf-8", newline="", dir=path.parent, prefix=f".{path.name}.", delete=False
        )
    except (IsADirectory, InvalidInput):
        raise
    except FileNotFoundError as error:
        raise FileNotFound(f"there is no folder {str(path.parent)!r} for {path.name!r}; create it first") from error
    except ValueError as error:
        raise InvalidInput(f"not a path: {shown(str(path))}: {error}") from error
    except OSError as error:
        raise Unavailable(f"{str(path)!r} cannot be written: {error}") from error


def _to_cell(value: Any) -> Any:
    """Return a value that a spreadsheet shows and does not run as a formula: messages may come from anyone."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value
