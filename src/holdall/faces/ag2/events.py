"""Converting events to lines of a log, in AG2's format, and back.

A line is `{"type": …, "data": …}`: the qualified name of a class, and its fields. Values that JSON does not have are
marked as AG2 marks them, such as `{"__uuid__": …}`.

A log names the classes of its events, so the writer of a log could make its reader import or call anything. Here
reading imports nothing. It creates only instances of registered classes, and of these that are imported already: AG2's
events, dataclasses, pydantic models and enums.
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

from ...errors import InvalidInput, shown
from .protocol import UnknownEvent

_DICT = "builtins.dict"
_EVENT, _DATACLASS, _PYDANTIC, _ENUM = "__event__", "__dataclass__", "__pydantic__", "__enum__"
_BYTES, _UUID, _EXCEPTION = "__bytes__", "__uuid__", "__exception__"
_MARKS = (_EVENT, _BYTES, _UUID, _ENUM, _EXCEPTION, _DATACLASS, _PYDANTIC)
_NO_JSON = (ValueError, RecursionError)

Classes = Mapping[str, type]


class _UnknownClass(Exception):
    """A log names a class that is not available here, or that must not be called."""


def name_of(kind: type) -> str:
    """Return the name of a class in a log."""
    return f"{kind.__module__}.{kind.__qualname__}"


# To lines ------------------------------------------------------------------------------------------------------------


def to_line(event: Any) -> str:
    """Convert an event to a line, without a newline at its end."""
    if isinstance(event, UnknownEvent) and event.type_name:  # unchanged, for readers that have its class
        record = {"type": event.type_name, "data": event.data}
    else:
        record = {"type": _DICT if isinstance(event, dict) else name_of(type(event)), "data": _event_data(event)}
    return json.dumps(record, default=str)


def _event_data(event: Any) -> Any:
    kind = type(event)
    if isinstance(event, Mapping):
        return _plain(dict(event))
    if isinstance(event, type):
        raise InvalidInput(f"an event is an instance, not the class {shown(event)}")
    if _is_event(kind):
        return event.to_dict()
    if _has_dict_methods(kind):
        return _plain(event.to_dict())
    if is_dataclass(kind):
        return _dataclass_fields(event)
    if _is_model(kind):
        return _plain(event.model_dump(mode="python"))
    if callable(getattr(event, "to_dict", None)):
        return _plain(event.to_dict())
    raise InvalidInput(
        f"an event is a dict, a dataclass, a pydantic model, or has to_dict(); not {kind.__name__} {shown(event)}"
    )


def _dataclass_fields(value: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _plain(value: Any) -> Any:
    """Convert a value to what JSON has, with marks for types that JSON does not have."""
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
        return {_DATACLASS: name_of(kind), "data": _dataclass_fields(value)}
    if _is_model(kind):
        return {_PYDANTIC: name_of(kind), "data": _plain(value.model_dump(mode="python"))}
    return value


# From lines ----------------------------------------------------------------------------------------------------------


def from_line(line: str, classes: Classes) -> Any:
    """Convert a line to its event; to an `UnknownEvent` if its class is not available or the line is no event."""
    try:
        record = json.loads(line)
    except _NO_JSON:
        return UnknownEvent(type_name="", data={"line": line})
    if not isinstance(record, dict) or not isinstance(record.get("type"), str) or "data" not in record:
        return UnknownEvent(type_name="", data=record if isinstance(record, dict) else {"line": line})
    name, data = record["type"], record["data"]
    try:
        return _restore_event(name, data, classes)
    except Exception:  # a class may refuse its fields with any exception: those of another version, for example
        return UnknownEvent(type_name=name, data=data if isinstance(data, dict) else {"data": data})


def is_complete(line: str) -> bool:
    """Whether a line is JSON. If the last line is not, another writer may not have finished it."""
    try:
        json.loads(line)
    except _NO_JSON:
        return False
    return True


def _restore_event(name: str, data: Any, classes: Classes) -> Any:
    values = _restore(data, classes)
    if name == _DICT:
        return values
    kind = _find_class(name, classes)
    if _has_dict_methods(kind) and (name in classes or is_dataclass(kind) or _is_model(kind)):
        return kind.from_dict(values)  # type: ignore[attr-defined]  # a class that has it
    return _create(kind, values)


def _create(kind: type, values: dict[str, Any]) -> Any:
    """Create an instance with these fields, if its class is one of the kinds that may be called."""
    if _is_event(kind):
        return kind.from_dict(values)  # type: ignore[attr-defined]  # a class that has it
    if is_dataclass(kind):
        return kind(**{field.name: values[field.name] for field in fields(kind) if field.init and field.name in values})
    if _is_model(kind):
        return kind.model_validate(values)  # type: ignore[attr-defined]  # a class that has it
    raise _UnknownClass(name_of(kind))


def _restore(value: Any, classes: Classes) -> Any:
    if isinstance(value, list):
        return [_restore(inner, classes) for inner in value]
    if not isinstance(value, dict):
        return value
    for mark in _MARKS:
        if mark in value:
            return _restore_marked(mark, value, classes)
    return {key: _restore(inner, classes) for key, inner in value.items()}


def _restore_marked(mark: str, value: dict[str, Any], classes: Classes) -> Any:
    if mark == _BYTES:
        return base64.b64decode(value[mark])
    if mark == _UUID:
        return UUID(value[mark])
    if mark == _EXCEPTION:
        return Exception(value.get("message", ""))
    if mark == _ENUM:
        try:
            kind = _find_class(value[mark], classes)
            return kind(value["value"]) if issubclass(kind, Enum) else value["value"]
        except (_UnknownClass, ValueError):  # AG2 also returns the plain value then
            return value["value"]
    data = {key: inner for key, inner in value.items() if key != mark} if mark == _EVENT else value.get("data", {})
    return _create(_find_class(value[mark], classes), _restore(data, classes))


def _find_class(name: str, classes: Classes) -> type:
    """Return a class by its name, if it is registered or in a module that is imported already."""
    if name in classes:
        return classes[name]
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:length]))
        for part in parts[length:]:
            found = getattr(found, "__dict__", {}).get(part)  # not getattr(found, part), which may import
        if isinstance(found, type):
            return found
    if name.startswith("autogen.beta."):  # AG2's name before 1.0
        return _find_class("ag2." + name.removeprefix("autogen.beta."), classes)
    raise _UnknownClass(name)


def can_be_restored(kind: type) -> bool:
    """Whether a log can be read as events of this class."""
    return _is_event(kind) or _has_dict_methods(kind) or is_dataclass(kind) or _is_model(kind) or issubclass(kind, Enum)


def _has_dict_methods(kind: type) -> bool:
    """Whether a class converts its instances to a dict and back."""
    return callable(getattr(kind, "to_dict", None)) and callable(getattr(kind, "from_dict", None))


def _is_event(kind: type) -> bool:
    """Whether a class is one of AG2's events."""
    return hasattr(kind, "_event_fields_") and hasattr(kind, "from_dict")


def _is_model(kind: type) -> bool:
    """Whether a class is a pydantic model."""
    return hasattr(kind, "model_validate") and hasattr(kind, "model_dump")
