"""LangChain's messages as plain JSON, and back. Whatever a message carries, archiving it must not fail."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Iterable, Mapping
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage, ChatMessage, convert_to_messages, messages_from_dict
from pydantic import BaseModel

from ..errors import shown

_DEEPEST = 100  # of what a message carries; holdall itself allows some more
_LARGE = 10**4000


def to_stored(messages: Any) -> list[dict[str, Any]]:
    """Messages, in any of the forms that LangChain takes, as dicts of their fields; `type` says what each was.

    `content` is what a message says, as text; `blocks` is there where LangChain has it in parts.
    """
    stored = [_plain(message, ()) for message in convert_to_messages(_listed(messages))]
    for fields in stored:
        if not isinstance(fields["content"], str):
            fields["blocks"] = fields["content"]
            fields["content"] = _text(fields["content"])
    return stored


def from_stored(stored: Iterable[Mapping[str, Any]]) -> list[BaseMessage]:
    """The messages that `to_stored` was given."""
    return [_message(dict(fields)) for fields in stored]


def _text(parts: list[Any]) -> str:
    """What a message says, without its pictures and calls."""
    texts = [part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, str | dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _listed(messages: Any) -> list[Any]:
    return list(messages) if isinstance(messages, list | tuple) else [messages]


def _message(fields: dict[str, Any]) -> BaseMessage:
    if "blocks" in fields:
        fields["content"] = fields.pop("blocks")
    try:
        return messages_from_dict([{"type": fields["type"], "data": fields}])[0]
    except ValueError:  # of a class that is not LangChain's
        return ChatMessage(role=str(fields["type"]), content=fields.get("content") or "", id=fields.get("id"))


def _plain(value: Any, within: tuple[int, ...]) -> Any:
    """Something that JSON can hold: as it is, as its usual form, or as what it looks like."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < _LARGE else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if id(value) not in within and len(within) < _DEEPEST:
        within += (id(value),)
        if isinstance(value, Mapping):
            return {_plain(str(key), ()): _plain(item, within) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_plain(item, within) for item in value]
        if isinstance(value, BaseModel):
            names = [*type(value).model_fields, *(value.model_extra or ())]
            return {name: _plain(getattr(value, name), within) for name in names}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {one.name: _plain(getattr(value, one.name), within) for one in dataclasses.fields(value)}
    return _plain(shown(value, 1000), ())
