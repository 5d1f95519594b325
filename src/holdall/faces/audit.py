"""What an audit is given: the messages of conversations, one a line, as JSONL or CSV."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, Self

from ..errors import InvalidInput, IsADirectory, NotFound, Unavailable, shown

if TYPE_CHECKING:
    from .conversations import Conversation

_COLUMNS = ("user_id", "thread_id", "conversation", "checkpoint_at", "archived_at", "position", "type", "name", "text")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Sink(Protocol):
    """Whatever text can be written to."""

    def write(self, text: str, /) -> object: ...


class Audit:
    """Writes messages to a path or a text file. A path has all of them in the end, or is left as it was."""

    def __init__(self, target: str | os.PathLike[str] | Sink, format: Literal["jsonl", "csv"] | None) -> None:
        self._path = Path(target) if isinstance(target, str | os.PathLike) else None
        if self._path is None and not callable(getattr(target, "write", None)):
            raise InvalidInput(f"an export goes to a path or an open text file, not to {shown(target)}")
        chosen = format or (self._path.suffix.removeprefix(".") if self._path is not None else "jsonl")
        if chosen not in ("jsonl", "csv"):
            raise InvalidInput(f"the format is 'jsonl' or 'csv', not {shown(chosen)}; say so with format=")
        self._as_csv = chosen == "csv"
        self._sink: Any = target
        self._part: IO[str] | None = None
        self.written = 0

    def __enter__(self) -> Self:
        if self._path is not None:
            self._part = self._sink = _beside(self._path)
        try:
            self._sink.write("")
        except (TypeError, ValueError, OSError) as error:  # it takes bytes, is closed, or is for reading
            raise InvalidInput(f"{shown(self._sink)} is no text file that can be written to: {error}") from error
        if self._as_csv:
            csv.writer(self._sink).writerow(_COLUMNS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._part is None:
            return
        self._part.close()
        part = Path(self._part.name)
        try:
            if kind is None and self._path is not None:
                part.replace(self._path)
        except OSError as failure:
            raise Unavailable(f"{str(self._path)!r} cannot be written: {failure}") from failure
        finally:
            part.unlink(missing_ok=True)

    def write(self, conversation: Conversation, messages: list[dict[str, Any]]) -> None:
        """The messages of one conversation."""
        for position, message in enumerate(messages):
            facts = {
                "user_id": conversation.user_id,
                "thread_id": conversation.thread_id,
                "conversation": conversation.key,
                "checkpoint_at": conversation.checkpoint_at.isoformat(),
                "archived_at": conversation.archived_at.isoformat(),
                "position": position,
                "type": message.get("type"),
                "name": message.get("name"),
                "text": message.get("content"),
            }
            if self._as_csv:
                csv.writer(self._sink).writerow([_cell(fact) for fact in facts.values()])
            else:
                line = json.dumps(facts | {"message": message}, ensure_ascii=False)
                self._sink.write(line + "\n")
            self.written += 1


def _beside(path: Path) -> IO[str]:
    """A new file in the folder of another, whose place it takes in the end."""
    try:
        if path.is_dir():
            raise IsADirectory(f"{str(path)!r} is a folder; name a file in it")
        return tempfile.NamedTemporaryFile(  # closed by `Audit`
            "w", encoding="utf-8", newline="", dir=path.parent, prefix=f".{path.name}.", delete=False
        )
    except FileNotFoundError as error:
        raise NotFound(f"there is no folder {str(path.parent)!r} to write {path.name!r} to") from error
    except ValueError as error:
        raise InvalidInput(f"not a path: {shown(str(path))}: {error}") from error
    except IsADirectory:
        raise
    except OSError as error:
        raise Unavailable(f"{str(path)!r} cannot be written: {error}") from error


def _cell(fact: Any) -> Any:
    """What a spreadsheet shows rather than computes: somebody else wrote it."""
    return f"'{fact}" if isinstance(fact, str) and fact.startswith(_FORMULA) else fact
