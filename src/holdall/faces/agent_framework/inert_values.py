"""Values of checkpoints as plain JSON, and back, without pickle: what is stored names no code that is run or imported.

JSON stays as it is. Everything else becomes `{"$": kind, "of": …}`. The kind of an object is the name of its class. A
name is only looked up in a table of classes that the program knows: the framework's own, and those that it was given.
An object is restored from its attributes; no method of its class is called.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import types
import typing
import uuid
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import agent_framework
from pydantic import BaseModel

from ...errors import InvalidInput, InvalidValue, shown

_TAG, _OF = "$", "of"
_FRAMEWORK: tuple[type, ...] = (
    agent_framework.AgentExecutorRequest,
    agent_framework.AgentExecutorResponse,
    agent_framework.AgentResponse,
    agent_framework.AgentResponseUpdate,
    agent_framework.ChatResponse,
    agent_framework.ChatResponseUpdate,
    agent_framework.Content,
    agent_framework.Message,
    agent_framework.SubWorkflowRequestMessage,
    agent_framework.SubWorkflowResponseMessage,
    agent_framework.WorkflowCheckpoint,
    agent_framework.WorkflowErrorDetails,
    agent_framework.WorkflowEvent,
    agent_framework.WorkflowEventSource,
    agent_framework.WorkflowInvocationKwargs,
    agent_framework.WorkflowMessage,
    agent_framework.WorkflowRunState,
    type(agent_framework.WorkflowMessage("", "").type),  # the framework does not export it
)
#: Classes that may be named as the type of an answer. Their values have kinds of their own.
_BUILTIN: tuple[type, ...] = (bool, bytes, dict, float, frozenset, int, list, object, set, str, tuple, type(None))
_BUILTIN += (date, datetime, Decimal, time, timedelta, uuid.UUID)
_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_TEXTS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    timedelta: (
        "timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: timedelta(*parts),
    ),
    Decimal: ("decimal", str, Decimal),
    uuid.UUID: ("uuid", str, uuid.UUID),
    float: ("float", str, float),  # NaN and infinities, which JSON does not have
}
_FROM_TEXT = {kind: load for kind, _, load in _TEXTS.values()}
#: Attributes that the framework itself leaves out of its JSON: objects of a model's SDK.
_LEFT_OUT = frozenset({"raw_representation"})


class InertValues:
    """Encodes and decodes values. `known` are classes of the program: dataclasses, pydantic models, enums, others."""

    def __init__(self, known: Iterable[type] = ()) -> None:
        self._known: dict[str, type] = {}
        for one in (*_FRAMEWORK, *known):
            if not isinstance(one, type):
                raise InvalidInput(f"types= takes classes, not {shown(one)}")
            self._known[_name(one)] = one
        self._named = {_name(one): one for one in _BUILTIN} | self._known

    def encode(self, value: Any, where: str = "checkpoint", within: tuple[int, ...] = ()) -> Any:
        """Return a value as JSON. One that cannot be stored is `InvalidValue`, with its place and the reason."""
        kind = type(value)
        if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
            return value
        if kind in _TEXTS:
            name, dump, _ = _TEXTS[kind]
            return {_TAG: name, _OF: dump(value)}
        if isinstance(value, type | types.GenericAlias | types.UnionType) or typing.get_origin(value) is not None:
            return {_TAG: "type", _OF: self._encode_type(value, where)}
        if id(value) in within:
            raise InvalidValue(f"{where} contains itself: a checkpoint is a tree of values")
        within += (id(value),)
        if kind is list:
            return [self.encode(item, f"{where}[{number}]", within) for number, item in enumerate(value)]
        if kind.__name__ in _CONTAINERS and kind.__module__ == "builtins":
            items = [self.encode(item, f"{where}[{number}]", within) for number, item in enumerate(value)]
            return {_TAG: kind.__name__, _OF: items}
        if kind is dict:
            if _TAG not in value and all(type(key) is str for key in value):
                return {key: self.encode(item, f"{where}[{key!r}]", within) for key, item in value.items()}
            pairs = [
                [self.encode(key, where, within), self.encode(item, f"{where}[{key!r}]", within)]
                for key, item in value.items()
            ]
            return {_TAG: "dict", _OF: pairs}
        name = _name(kind)
        if self._known.get(name) is not kind:
            raise InvalidValue(
                f"{where} is a {name}, which cannot be stored as plain data: pass the class in types= if its"
                " attributes are data, or keep a dict instead"
            )
        if isinstance(value, Enum):
            return {_TAG: name, _OF: value.name}
        state = {
            key: self.encode(item, f"{where}.{key}", within)
            for key, item in _read_attributes(value).items()
            if key not in _LEFT_OUT
        }
        return {_TAG: name, _OF: state}

    def decode(self, stored: Any) -> Any:
        """Return the value of `encode`. A class that is not known is `InvalidValue`."""
        if isinstance(stored, list):
            return [self.decode(item) for item in stored]
        if not isinstance(stored, dict):
            return stored
        if _TAG not in stored:
            return {key: self.decode(item) for key, item in stored.items()}
        kind, content = stored[_TAG], stored[_OF]
        if kind in _FROM_TEXT:
            return _FROM_TEXT[kind](content)
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](self.decode(content))
        if kind == "dict":
            return {self.decode(key): self.decode(item) for key, item in content}
        if kind == "type":
            return self._decode_type(content)
        known = self._find(kind, self._known)
        if issubclass(known, Enum):
            return known[content]
        return _restore(known, {key: self.decode(item) for key, item in content.items()})

    def _encode_type(self, value: Any, where: str) -> Any:
        if isinstance(value, type) and not isinstance(value, types.GenericAlias):
            name = _name(value)
            if self._named.get(name) is not value:
                raise InvalidValue(f"{where} is the class {name}, which is not known: pass it in types=")
            return name
        origin, arguments = typing.get_origin(value), typing.get_args(value)
        if origin in (types.UnionType, typing.Union):
            return ["|", *(self._encode_type(one, where) for one in arguments)]
        if not isinstance(origin, type) or not all(isinstance(one, type) or typing.get_args(one) for one in arguments):
            raise InvalidValue(f"{where} is the type {shown(value)}, which cannot be stored as plain data")
        return [self._encode_type(one, where) for one in (origin, *arguments)]

    def _decode_type(self, stored: Any) -> Any:
        if isinstance(stored, str):
            return self._find(stored, self._named)
        first, *others = stored
        arguments = tuple(self._decode_type(one) for one in others)
        if first == "|":
            return typing.Union[arguments]  # noqa: UP007  # a tuple of types
        return types.GenericAlias(self._decode_type(first), arguments)

    @staticmethod
    def _find(name: str, table: dict[str, type]) -> type:
        if name not in table:
            raise InvalidValue(f"the checkpoint has a {name}, which is not known: pass the class in types=")
        return table[name]


def _name(one: type) -> str:
    return f"{one.__module__}:{one.__qualname__}"


def _read_attributes(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)} | getattr(
            value, "__dict__", {}
        )
    return dict(vars(value)) if hasattr(value, "__dict__") else {}


def _restore(known: type, attributes: dict[str, Any]) -> Any:
    if issubclass(known, BaseModel):
        return known.model_construct(**attributes)
    value = object.__new__(known)
    for name in _LEFT_OUT & set(getattr(known, "DEFAULT_EXCLUDE", ())):
        object.__setattr__(value, name, None)
    for name, item in attributes.items():
        object.__setattr__(value, name, item)
    return value
