"""Makes messages from their serialised form in a third of the time, without validating them again.

A message was validated before it was stored. The first of each shape is nevertheless made by LangGraph's serializer,
which also decides whether its type is allowed. If that is exactly what was stored, further ones are made directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2

#: The class of a message, the names of its fields, their types, and which of them are empty.
_Shape: TypeAlias = tuple[Any, ...]

_CLASSES = "langchain_core.messages."  # a subclass elsewhere may do something when it is made
#: Fields whose content is taken as it is. Others that contain something may be changed when they are validated.
_FREE = frozenset({"response_metadata", "usage_metadata"})
_set = object.__setattr__


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
        self._types: dict[_Shape, type[BaseMessage] | None] = {}  # None: has to be deserialised

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
        shape = module, name, tuple(fields), tuple(map(type, values)), tuple(map(bool, values))
        if shape not in self._types:
            self._types[shape] = self._find_type(data, module, fields)
        kind = self._types[shape]
        if kind is None:
            return None
        message = kind.__new__(kind)
        _set(message, "__dict__", fields)
        _set(message, "__pydantic_fields_set__", set(fields))
        _set(message, "__pydantic_extra__", {})
        _set(message, "__pydantic_private__", None)
        return message

    def _find_type(self, data: bytes, module: str, fields: dict[str, Any]) -> type[BaseMessage] | None:
        """Return the type of a message, if deserialising it gives exactly its fields."""
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
        return type(real) if is_same else None
