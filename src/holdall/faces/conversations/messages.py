"""Converting LangChain's messages to plain JSON, and back. No content of a message may make its archiving fail."""

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

from ...errors import shown

_MAX_DEPTH = 100  # of values in a message; holdall itself allows a few more levels
_LARGE_INT = 10**4000  # Python refuses to convert longer ints (4300 digits) to text


def to_stored(messages: Any) -> list[dict[str, Any]]:
    """Convert messages, in any form that LangChain takes, to dicts of their fields. `type` is the kind of message.

    `content` is the text of a message. If LangChain has it in blocks, `blocks` has those.
    """
    stored = [to_plain(message, ()) for message in convert_to_messages(_to_list(messages))]
    for fields in stored:
        if not isinstance(fields["content"], str):
            fields["blocks"] = fields["content"]
            fields["content"] = _join_texts(fields["content"])
    return stored


def from_stored(stored: Iterable[Mapping[str, Any]]) -> list[BaseMessage]:
    """Convert the dicts of `to_stored` back to messages."""
    return [_to_message(dict(fields)) for fields in stored]


def _join_texts(blocks: list[Any]) -> str:
    """Return the text of a message's blocks, without images and tool calls."""
    texts = [block.get("text") if isinstance(block, dict) else block for block in blocks]
    return "\n".join(text for text in texts if isinstance(text, str))


def _to_list(messages: Any) -> list[Any]:
    return list(messages) if isinstance(messages, list | tuple) else [messages]


def _to_message(fields: dict[str, Any]) -> BaseMessage:
    if "blocks" in fields:
        fields["content"] = fields.pop("blocks")
    try:
        return messages_from_dict([{"type": fields["type"], "data": fields}])[0]
    except ValueError:  # a message class that is not LangChain's own
        return ChatMessage(role=str(fields["type"]), content=fields.get("content") or "", id=fields.get("id"))


def to_plain(value: Any, within: tuple[int, ...] = ()) -> Any:
    """Convert a value to what JSON has: unchanged, in its usual text form, or as its `repr`.

    `within` has the ids of the containers around it.
    """
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < _LARGE_INT else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if id(value) not in within and len(within) < _MAX_DEPTH:
        within += (id(value),)
        if isinstance(value, Mapping):
            return {to_plain(str(key), ()): to_plain(item, within) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [to_plain(item, within) for item in value]
        if isinstance(value, BaseModel):
            names = [*type(value).model_fields, *(value.model_extra or ())]
            return {name: to_plain(getattr(value, name), within) for name in names}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {one.name: to_plain(getattr(value, one.name), within) for one in dataclasses.fields(value)}
    return to_plain(shown(value, 1000), ())
