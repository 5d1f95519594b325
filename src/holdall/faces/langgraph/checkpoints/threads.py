"""Threads as users see them: the item that lists a thread, and the filter of `threads`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from langchain_core.messages import BaseMessage

from .... import Entry
from ....core import face_api
from ....errors import InvalidInput, shown
from .known_logs import Address, Loader
from .log import Log

_PREVIEW = 200  # characters
#: The field that a query searches.
SEARCHED = ("text",)
#: The fields of a thread that a filter may name; other names are those of its metadata.
_FIELDS = frozenset({"id", "checkpoints", "checkpoint_id", "step"})
_LOGICAL = frozenset({"$and", "$or", "$not"})
_SCALARS = frozenset({int, bool, type(None)})
_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread. `step` and `metadata` are those of its last checkpoint; `preview` is the beginning of its last message.

    A thread that is encrypted has no preview.
    """

    id: str
    created_at: datetime
    updated_at: datetime
    checkpoints: int
    checkpoint_id: str
    step: int | None
    metadata: dict[str, Any]
    preview: str | None


def summarise(
    thread_id: str, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any], checkpoints: int, is_secret: bool
) -> dict[str, Any]:
    """Return the value of the item that lists a thread. `is_secret`: without what was said in it."""
    value = {
        "checkpoint_id": checkpoint["id"],
        "step": metadata.get("step"),
        "metadata": {name: item for name, item in metadata.items() if _is_text(name) and _is_json(item)},
        "preview": None if is_secret else _preview(checkpoint["channel_values"]),
    }
    return rename(value, thread_id, checkpoints)


def summarise_log(thread_id: str, log: Log, kept: Iterable[str]) -> dict[str, Any]:
    """Return the value of the item that lists a thread, from the checkpoints that are kept of its log."""
    ids = sorted(kept)
    is_secret = log.codec.cipher is not None
    if not ids:  # it has only subgraphs
        return summarise(thread_id, {"id": "", "channel_values": {}}, {}, 0, is_secret)
    last = Loader(Address(thread_id, ""), log).load(ids[-1])
    return summarise(thread_id, last.checkpoint, last.metadata, len(ids), is_secret)


def rename(value: Mapping[str, Any], thread_id: str, checkpoints: int) -> dict[str, Any]:
    """Return the value of the item that lists a thread, for another thread with so many checkpoints."""
    texts = [thread_id, *(item for item in value["metadata"].values() if isinstance(item, str)), value["preview"] or ""]
    return {**value, "id": thread_id, "checkpoints": checkpoints, "text": " ".join(texts)}


def count_for(listed: Entry, checkpoints: int) -> dict[str, int]:
    """Return what a thread's item `generation` has after some of its checkpoints were deleted.

    The item that lists the thread is not changed then: the threads are listed in the order of its changes.
    """
    return {"listed": listed.version, "checkpoints": checkpoints}


def count_of(listed: Entry, generation: Entry) -> int:
    """Return how many checkpoints a thread has."""
    newer = generation if generation.value.get("listed") == listed.version else listed
    count: int = newer.value["checkpoints"]
    return count


def to_thread(entry: Entry, generation: Entry) -> Thread:
    """Make the thread of the item that lists it, and of its item `generation`."""
    value = entry.value
    return Thread(
        entry.key,
        entry.created_at,
        entry.updated_at,
        count_of(entry, generation),
        value["checkpoint_id"],
        value["step"],
        value["metadata"],
        value["preview"],
    )


def make_filter(prefix: str | None, filter: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the filter of the items that list threads."""
    parts: list[dict[str, Any]] = []
    if prefix:
        if not isinstance(prefix, str):
            raise InvalidInput(f"prefix is the beginning of a thread_id, not {shown(prefix)}")
        parts.append({"id": {"$gte": prefix, "$lt": prefix + _LAST_CHARACTER}})
    if filter:
        face_api.parse_filter(filter)
        parts.append(_of_metadata(filter))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else {"$and": parts}


def _of_metadata(filter: Mapping[str, Any]) -> dict[str, Any]:
    """Move the names of a filter into the metadata."""
    moved: dict[str, Any] = {}
    for name, condition in filter.items():
        if name == "$not":
            moved[name] = _of_metadata(condition)
        elif name in _LOGICAL:
            moved[name] = [_of_metadata(part) for part in condition]
        else:
            moved[name if name in _FIELDS else f"metadata.{name}"] = condition
    return moved


def _is_json(value: Any) -> bool:
    if type(value) in _SCALARS:
        return True
    if isinstance(value, str):
        return _is_text(value)
    if isinstance(value, dict):
        return all(_is_text(name) and _is_json(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return isinstance(value, int) or (isinstance(value, float) and value - value == 0)


def _is_text(value: Any) -> bool:
    """Whether a value is a text without lone surrogates."""
    return isinstance(value, str) and (value.isascii() or value == value.encode(errors="ignore").decode())


def _preview(values: Mapping[str, Any]) -> str | None:
    """Return the beginning of the last message: of the channel `messages`, or of any list of messages."""
    for channel in sorted(values, key=lambda name: name != "messages"):
        value = values[channel]
        last = value[-1] if isinstance(value, list) and value else None
        if isinstance(last, BaseMessage):
            return _first_text(last)[:_PREVIEW].encode(errors="replace").decode()
    return None


def _first_text(message: BaseMessage) -> str:
    """Return the first text in the content of a message, which need not be valid: `model_construct` checks nothing."""
    content: Any = getattr(message, "content", "")
    for block in content if isinstance(content, list) else [content]:
        text = block.get("text") if isinstance(block, dict) else block
        if isinstance(text, str):
            return text
    return ""
