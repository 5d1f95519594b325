"""Makes messages from their serialised form in a third of the time, without validating them again.

A message was validated before it was stored. The first of each shape is nevertheless made by LangGraph's serializer,
which also decides whether its type is allowed. If that is exactly what was stored, further ones are made directly.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import getattr_static
from typing import Any, TypeAlias

import msgspec
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2

#: The class of a message, the names of its fields, their types, and which of them are empty.
_Shape: TypeAlias = tuple[Any, ...]
#: The class of the messages of a shape, and the set of their fields; None if they have to be deserialised.
_Plan: TypeAlias = tuple[type[BaseMessage], set[str]] | None

_CLASSES = "langchain_core.messages."  # a subclass elsewhere may do something when it is made
#: Fields whose content is taken as it is. Others that contain something may be changed when they are validated.
_FREE = frozenset({"response_metadata", "usage_metadata"})
_new = object.__new__
#: What pydantic's own `model_construct` sets, as descriptors, which take a fifth less time than `object.__setattr__`.
_set_dict, _set_fields_set, _set_extra, _set_private = (
    getattr_static(BaseMessage, name).__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)
_UNKNOWN: Any = object()


class _NotPlain(Exception):
    """A message has a field with a type that only LangGraph's serializer knows."""


def _refuse(*_: Any) -> Any:
    raise _NotPlain


_decode_outer = msgspec.msgpack.Decoder().decode
_decode_inner = msgspec.msgpack.Decoder(ext_hook=_refuse).decode


class MessageMaker:
    """Makes messages from msgpack. `deserialise` is LangGraph's, for those of a new shape."""

    def __init__(self, deserialise: Callable[[bytes], Any]) -> None:
        self._deserialise = deserialise
        self._plans: dict[_Shape, _Plan] = {}

    def make(self, data: bytes) -> BaseMessage | None:
        """Make a message; None if this is no message, or one that has to be deserialised."""
        try:
            outer = _decode_outer(data)
            if type(outer) is not msgspec.msgpack.Ext or outer.code != EXT_PYDANTIC_V2:
                return None
            module, name, fields, *_ = _decode_inner(outer.data)
        except (_NotPlain, ValueError, msgspec.DecodeError):
            return None
        values = fields.values()
        shape = (module, name, *fields, *map(type, values), *map(bool, values))
        plan = self._plans.get(shape, _UNKNOWN)
        if plan is _UNKNOWN:
            plan = self._plans[shape] = self._make_plan(data, module, fields)
        if plan is None:
            return None
        kind, names = plan
        message: BaseMessage = _new(kind)
        _set_dict(message, fields)
        _set_fields_set(message, names.copy())
        _set_extra(message, {})
        _set_private(message, None)
        return message

    def _make_plan(self, data: bytes, module: str, fields: dict[str, Any]) -> _Plan:
        """Return how to make such messages, if deserialising one gives exactly its fields."""
        if not module.startswith(_CLASSES):
            return None
        if any(value and isinstance(value, dict | list) and name not in _FREE for name, value in fields.items()):
            return None
        real = self._deserialise(data)
        is_same = (
            isinstance(real, BaseMessage)
            and real.__dict__ == fields
            and real.__pydantic_fields_set__ == set(fields)
            and not real.__pydantic_extra__
            and not real.__pydantic_private__
        )
        return (type(real), set(fields)) if is_same else None
