"""Finds what was added to a list since it was stored, without serialising the rest again.

A saver remembers the elements of lists as they were when they were stored, or first compared: as copies that share the
texts, which cannot change. So an element that was changed in place is noticed. Measured with 4,000 messages: comparing
takes 0.4 ms, serialising them takes 10 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from langchain_core.messages import BaseMessage

from .log import Codec, LogWriter, Typed

_ATOMS = frozenset({str, bytes, int, float, bool, type(None)})
_NUMBERS = frozenset({int, float, bool})
_CONTAINERS = frozenset({dict, list, tuple})
#: Fields of messages with a type of their own. Others, as `artifact`, may get what compares as it likes, as an array.
_TYPED_FIELDS = frozenset({"content", "id", "name", "status", "tool_call_id", "type", "usage_metadata"})
#: Stand for all that are empty, so that the garbage collector has less to do.
_EMPTY: dict[type, Any] = {dict: {}, list: [], tuple: ()}
_fields_of, _extra_of = attrgetter("__dict__"), attrgetter("__pydantic_extra__")
_OPAQUE = object()  # the copy of an element that can only be compared by its serialised form


class _NotPlain(Exception):
    """A value has a part of a type that is not copied here."""


class _Copies:
    """Copies of the first elements of a list, to compare others with."""

    def __init__(self, elements: Sequence[Any] = (), before: _Copies | None = None) -> None:
        self.values: list[Any] = [] if before is None else before.values.copy()
        self.types: list[type] = [] if before is None else before.types.copy()
        self.is_opaque: bool = before is not None and before.is_opaque
        #: Whether all are messages of classes without private attributes.
        self.are_messages: bool = before is None or before.are_messages
        for element in elements:
            kind, copy = type(element), _copy_element(element)
            self.values.append(copy)
            self.types.append(kind)
            self.is_opaque = self.is_opaque or copy is _OPAQUE
            self.are_messages = self.are_messages and issubclass(kind, BaseMessage) and not kind.__private_attributes__

    def cut(self, size: int) -> _Copies:
        part = _Copies()
        part.values, part.types = self.values[:size], self.types[:size]
        part.is_opaque, part.are_messages = self.is_opaque, self.are_messages
        return part

    def equal(self, elements: list[Any]) -> bool:
        """Whether as many elements are all equal to these."""
        if list(map(type, elements)) != self.types:
            return False
        if not self.are_messages:
            return self.values == [_view(element) for element in elements]
        # Without a call for each message: a third of the time, 0.4 ms less for 4,000.
        return not any(map(_extra_of, elements)) and self.values == list(map(_fields_of, elements))


class StoredList:
    """The elements of a list that is stored as a chain of links. `typed` are their serialised forms."""

    def __init__(self) -> None:
        self.typed: list[Typed] = []
        self.ends: dict[bytes, int] = {}  # of each link, from the first on: how many elements there are up to its end
        # Replaced as a whole, since several threads use it. What was read is copied when it is first compared.
        self._copies = _Copies()

    def __len__(self) -> int:
        return len(self.typed)

    @property
    def last_link(self) -> bytes:
        return next(reversed(self.ends), b"")

    def add(self, link: bytes, typed: Sequence[Typed], elements: Sequence[Any] = ()) -> None:
        """Add the elements of one link: their serialised forms, and themselves, if they were not read but put."""
        if elements and len(self._copies.values) == len(self.typed):
            self._copies = _Copies(elements, self._copies)
        self.typed += typed
        self.ends[link] = len(self.typed)

    def begins(self, value: list[Any], codec: Codec) -> bool:
        """Whether a list begins with exactly these elements."""
        size, copies = len(self.typed), self._copies
        if len(value) < size:
            return False
        head = value if len(value) == size else value[:size]
        if copies.is_opaque or len(copies.values) < size:
            return self.common(head, codec) == size
        try:
            return copies.equal(head)
        except _NotPlain:  # a message that has got further fields since
            return False

    def common(self, value: list[Any], codec: Codec) -> int:
        """Count the elements at the beginning that a list has in common with this one."""
        copies, count = self._copies, 0
        for element, kind, copy in zip(value, copies.types, copies.values, strict=False):
            if type(element) is not kind or not _is_same(element, copy, self.typed[count], codec):
                return count
            count += 1
        if count < len(copies.values):
            return count
        for element, typed in zip(value[count:], self.typed[count:], strict=False):
            if codec.serialise(element) != typed and not _is_equal(element, codec.deserialise(typed)):
                break
            count += 1
        self._copies = _Copies(value[len(copies.values) : count], copies)
        return count

    def cut(self, most: int) -> StoredList:
        """Return the longest part, from the beginning, that ends with a link and has at most so many elements."""
        part = StoredList()
        if most >= len(self):
            part.typed, part.ends, part._copies = self.typed.copy(), self.ends.copy(), self._copies
            return part
        part.ends = {link: end for link, end in self.ends.items() if end <= most}
        size = max(part.ends.values(), default=0)
        part.typed, part._copies = self.typed[:size], self._copies.cut(size)
        return part


def extend_list(candidates: list[StoredList], channel: str, value: list[Any], writer: LogWriter) -> StoredList:
    """Store what a list has that is not stored yet; return it as it is then stored.

    `candidates` are lists of the channel that are stored.
    """
    codec = writer.codec
    longest_first = sorted(candidates, key=len, reverse=True)
    stored = next((each for each in longest_first if each.begins(value, codec)), None)
    if stored is None:  # elements were removed, or changed
        parts = [each.cut(each.common(value, codec)) for each in candidates]
        stored = max(parts, key=len, default=StoredList())
    added = value[len(stored) :]
    if not added:
        return stored
    typed = [codec.serialise(element) for element in added]
    extended = stored.cut(len(stored))
    extended.add(writer.add_elements(channel, typed, stored.last_link), typed, added)
    return extended


def _is_same(element: Any, copy: Any, typed: Typed, codec: Codec) -> bool:
    try:
        return codec.serialise(element) == typed if copy is _OPAQUE else bool(copy == _view(element))
    except _NotPlain:
        return False


def _is_equal(element: Any, stored: Any) -> bool:
    """Whether two elements of plain data are equal: another version of LangChain may have serialised the stored one."""
    try:
        copy = _copy_element(element)
        return type(element) is type(stored) and copy is not _OPAQUE and bool(copy == _view(stored))
    except _NotPlain:
        return False


def _view(element: Any) -> Any:
    """Return what decides whether an element has changed: of a message, its fields."""
    if isinstance(element, BaseMessage):
        if element.__pydantic_extra__ or element.__pydantic_private__:
            raise _NotPlain
        return element.__dict__
    return element


def _copy_element(element: Any) -> Any:
    try:
        if not isinstance(element, BaseMessage):
            return _copy(element)
        return {name: _copy_field(name, item) for name, item in _view(element).items()}
    except _NotPlain:
        return _OPAQUE


def _copy_field(name: str, value: Any) -> Any:
    """Copy a field of a message."""
    is_exact = type(value) in _NUMBERS or (type(value) in _ATOMS and name not in _TYPED_FIELDS)
    return _Exact(value) if is_exact else _copy(value)


def _copy(value: Any) -> Any:
    """Copy plain data. The texts in it are shared, and so is what is empty."""
    kind = type(value)
    if kind is float and not (value < 0 or value > 0):  # 0.0 equals -0.0, and NaN equals nothing
        return _Exact(value)
    if kind in _ATOMS:
        return value
    if kind in _EMPTY and not value:  # an array of numpy has no truth value
        return _EMPTY[kind]
    if kind in _CONTAINERS:
        return _Exact(value)
    raise _NotPlain


class _Exact:
    """A copy that equals only values with the same serialised form. So True, 1 and 1.0 differ, as does another order.

    It must be the left operand of `==`: Python calls the `__eq__` of that operand first.
    """

    __slots__ = ("_kind", "_parts", "_types")
    __hash__ = None  # type: ignore[assignment]  # it is only compared

    def __init__(self, value: Any) -> None:
        self._kind = type(value)
        parts = _split(value)
        self._types = list(map(type, parts))
        self._parts = [_copy(part) for part in parts]

    def __eq__(self, other: object) -> bool:
        if type(other) is not self._kind:
            return False
        parts = _split(other)
        return list(map(type, parts)) == self._types and parts == self._parts


def _split(value: Any) -> list[Any]:
    """Return what a value consists of; of a number its text."""
    if type(value) is dict:
        return [*value, *value.values()]
    if type(value) in _NUMBERS:
        return [repr(value)]
    return [value] if type(value) in _ATOMS else list(value)
