"""Events as lines of a log, in AG2's format, and back.

A line is `{"type": …, "data": …}`: the qualified name of a class, and its fields. What JSON has no word for is marked
inside them as AG2 marks it, such as `{"__uuid__": …}`.

A log says what to make of it by names alone, so whoever writes one could have anything imported or called by whoever
reads it. Here nothing is imported on the way out, and only classes are called that are there for such data: AG2's
events, dataclasses, pydantic models and enums that this process has imported already, and those that were registered.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any
from uuid import UUID

from ..errors import InvalidInput, shown
from .ag2_protocol import UnknownEvent

_DICT = "builtins.dict"
_EVENT, _DATACLASS, _PYDANTIC, _ENUM = "__event__", "__dataclass__", "__pydantic__", "__enum__"
_BYTES, _UUID, _EXCEPTION = "__bytes__", "__uuid__", "__exception__"
_MARKS = (_EVENT, _BYTES, _UUID, _ENUM, _EXCEPTION, _DATACLASS, _PYDANTIC)
_NO_JSON = (ValueError, RecursionError)

Classes = Mapping[str, type]


class _NotHere(Exception):
    """A class that a log names is not one that can be made here."""


def name_of(kind: type) -> str:
    """What a log calls a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


# To lines ------------------------------------------------------------------------------------------------------------


def to_line(event: Any) -> str:
    """An event as a line, without its end."""
    if isinstance(event, UnknownEvent) and event.type_name:  # as it was, for those who know it
        record = {"type": event.type_name, "data": event.data}
    else:
        record = {"type": _DICT if isinstance(event, dict) else name_of(type(event)), "data": _fields(event)}
    return json.dumps(record, default=str)


def _fields(event: Any) -> Any:
    kind = type(event)
    if isinstance(event, Mapping):
        return _plain(dict(event))
    if isinstance(event, type):
        raise InvalidInput(f"an event is an instance, not the class {shown(event)}")
    if _is_event(kind):
        return event.to_dict()
    if _has_own_form(kind):
        return _plain(event.to_dict())
    if is_dataclass(kind):
        return _of_dataclass(event)
    if _is_model(kind):
        return _plain(event.model_dump(mode="python"))
    if callable(getattr(event, "to_dict", None)):
        return _plain(event.to_dict())
    raise InvalidInput(
        f"an event is a dict, a dataclass, a pydantic model, or has to_dict(); not {kind.__name__} {shown(event)}"
    )


def _of_dataclass(value: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _plain(value: Any) -> Any:
    """A value as JSON has it, with marks for what it has not."""
    match value:
        case Enum():
            return {_ENUM: name_of(type(value)), "value": value.value}
        case Exception():
            return {_EXCEPTION: type(value).__name__, "message": str(value)}
        case Mapping():
            return {key: _plain(inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(inner) for inner in value]
        case bytes() | bytearray():
            return {_BYTES: base64.b64encode(value).decode()}
        case UUID():
            return {_UUID: str(value)}
    kind = type(value)
    if _is_event(kind):
        return {_EVENT: name_of(kind), **value.to_dict()}
    if is_dataclass(kind):
        return {_DATACLASS: name_of(kind), "data": _of_dataclass(value)}
    if _is_model(kind):
        return {_PYDANTIC: name_of(kind), "data": _plain(value.model_dump(mode="python"))}
    return value


# From lines ----------------------------------------------------------------------------------------------------------


def from_line(line: str, classes: Classes) -> Any:
    """The event of a line; an `UnknownEvent` with what the line says, where it cannot be had or the line is none."""
    try:
        record = json.loads(line)
    except _NO_JSON:
        return UnknownEvent(type_name="", data={"line": line})
    if not isinstance(record, dict) or not isinstance(record.get("type"), str) or "data" not in record:
        return UnknownEvent(type_name="", data=record if isinstance(record, dict) else {"line": line})
    name, data = record["type"], record["data"]
    try:
        return _made(name, data, classes)
    except Exception:  # a class may refuse its fields with whatever it likes: those of another version, say
        return UnknownEvent(type_name=name, data=data if isinstance(data, dict) else {"data": data})


def is_whole(line: str) -> bool:
    """Whether a line is JSON; if not, and it is the last, somebody may still be writing it."""
    try:
        json.loads(line)
    except _NO_JSON:
        return False
    return True


def _made(name: str, data: Any, classes: Classes) -> Any:
    values = _restored(data, classes)
    if name == _DICT:
        return values
    kind = _found(name, classes)
    if _has_own_form(kind) and (name in classes or is_dataclass(kind) or _is_model(kind)):
        return kind.from_dict(values)  # type: ignore[attr-defined]  # a class that has it
    return _called(kind, values)


def _called(kind: type, values: dict[str, Any]) -> Any:
    """An instance with these fields, of a class that is there to have fields."""
    if _is_event(kind):
        return kind.from_dict(values)  # type: ignore[attr-defined]  # a class that has it
    if is_dataclass(kind):
        return kind(**{field.name: values[field.name] for field in fields(kind) if field.init and field.name in values})
    if _is_model(kind):
        return kind.model_validate(values)  # type: ignore[attr-defined]  # a class that has it
    raise _NotHere(name_of(kind))


def _restored(value: Any, classes: Classes) -> Any:
    if isinstance(value, list):
        return [_restored(inner, classes) for inner in value]
    if not isinstance(value, dict):
        return value
    for mark in _MARKS:
        if mark in value:
            return _unmarked(mark, value, classes)
    return {key: _restored(inner, classes) for key, inner in value.items()}


def _unmarked(mark: str, value: dict[str, Any], classes: Classes) -> Any:
    if mark == _BYTES:
        return base64.b64decode(value[mark])
    if mark == _UUID:
        return UUID(value[mark])
    if mark == _EXCEPTION:
        return Exception(value.get("message", ""))
    if mark == _ENUM:
        try:
            kind = _found(value[mark], classes)
            return kind(value["value"]) if issubclass(kind, Enum) else value["value"]
        except (_NotHere, ValueError):  # as AG2 does: what it stands for is better than nothing
            return value["value"]
    data = {key: inner for key, inner in value.items() if key != mark} if mark == _EVENT else value.get("data", {})
    return _called(_found(value[mark], classes), _restored(data, classes))


def _found(name: str, classes: Classes) -> type:
    """A class that was registered, or that a module which is imported already has under this name."""
    if name in classes:
        return classes[name]
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:length]))
        for part in parts[length:]:
            found = getattr(found, "__dict__", {}).get(part)  # never by getattr, which may import
        if isinstance(found, type):
            return found
    if name.startswith("autogen.beta."):  # as AG2 was called before 1.0
        return _found("ag2." + name.removeprefix("autogen.beta."), classes)
    raise _NotHere(name)


def can_be_made(kind: type) -> bool:
    """Whether events of this class can be had back from a log."""
    return _is_event(kind) or _has_own_form(kind) or is_dataclass(kind) or _is_model(kind) or issubclass(kind, Enum)


def _has_own_form(kind: type) -> bool:
    """Whether a class says itself what its fields are, and what to make of them."""
    return callable(getattr(kind, "to_dict", None)) and callable(getattr(kind, "from_dict", None))


def _is_event(kind: type) -> bool:
    """Whether this is a class of AG2's events."""
    return hasattr(kind, "_event_fields_") and hasattr(kind, "from_dict")


def _is_model(kind: type) -> bool:
    """Whether this is a pydantic model's class."""
    return hasattr(kind, "model_validate") and hasattr(kind, "model_dump")
