"""Finds what was added to a list since it was stored, without serialising the rest again.

A saver remembers the elements of lists as they were when they were stored or read: as copies that share the texts,
which cannot change. So an element that was changed in place is noticed. Measured with 4,000 messages: comparing takes
0.4 ms, serialising them takes 10 ms.

Messages that were read once are made again from such copies, in a fifth of the time of deserialising them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

_ATOMS = frozenset({str, bytes, int, float, bool, type(None)})
#: Stand for all that are empty in copies that are only compared, so that the garbage collector has less to do.
_EMPTY: dict[type, Any] = {dict: {}, list: [], tuple: ()}


class Opaque:
    """An element that can only be compared by its serialised form, and is deserialised each time."""

    __slots__ = ("typed",)

    def __init__(self, typed: Any) -> None:
        self.typed = typed


class _NotPlain(Exception):
    """A value has a part of a type that is not copied here."""


def copy_element(element: Any, typed: Any) -> Any:
    """Copy an element, or return an `Opaque` with its serialised form."""
    try:
        return _copy(_view(element), is_kept=True)
    except _NotPlain:
        return Opaque(typed)


def make_element(kind: type, copy: Any, deserialise: Callable[[Any], Any]) -> Any:
    """Make an element of this type again from a copy of one that was deserialised."""
    if type(copy) is Opaque:
        return deserialise(copy.typed)
    if not issubclass(kind, BaseMessage):
        return _copy(copy)
    message = kind.__new__(kind)
    fields = _copy(copy)
    set_attribute = object.__setattr__
    set_attribute(message, "__dict__", fields)
    set_attribute(message, "__pydantic_fields_set__", set(fields))
    set_attribute(message, "__pydantic_extra__", {})
    set_attribute(message, "__pydantic_private__", None)
    return message


class StoredList:
    """The elements of a list that is stored as a chain of links."""

    def __init__(self) -> None:
        self.copies: list[Any] = []
        self.types: list[type] = []
        self.is_opaque = False
        self.read = 0  # how many, from the beginning, are copies of what was read, so that they can be made again
        self.ends: dict[bytes, int] = {}  # of each link, from the first on: how many elements there are up to its end

    def __len__(self) -> int:
        return len(self.copies)

    @property
    def last_link(self) -> bytes:
        return next(reversed(self.ends), b"")

    def add(self, link: bytes, elements: Sequence[Any], typed: Sequence[Any]) -> None:
        """Add the elements of one link."""
        for element, serialised in zip(elements, typed, strict=True):
            copy = copy_element(element, serialised)
            self.copies.append(copy)
            self.types.append(type(element))
            self.is_opaque = self.is_opaque or type(copy) is Opaque
        self.ends[link] = len(self.copies)

    def make(self, deserialise: Callable[[Any], Any]) -> list[Any]:
        """Make the elements again, all of which were read: what is read may have other types than what was put."""
        return [make_element(kind, copy, deserialise) for kind, copy in zip(self.types, self.copies, strict=True)]

    def begins(self, value: list[Any], serialise: Callable[[Any], Any]) -> bool:
        """Whether a list begins with exactly these elements."""
        size = len(self.copies)
        if len(value) < size:
            return False
        head = value if len(value) == size else value[:size]
        if self.is_opaque:
            return self.common(head, serialise) == size
        if list(map(type, head)) != self.types:
            return False
        try:
            return _views(head) == self.copies
        except _NotPlain:  # a message that has got further fields since
            return False

    def common(self, value: list[Any], serialise: Callable[[Any], Any]) -> int:
        """Count the elements at the beginning that a list has in common with this one."""
        count = 0
        for element, kind, copy in zip(value, self.types, self.copies, strict=False):
            if type(element) is not kind:
                break
            try:
                is_same = serialise(element) == copy.typed if type(copy) is Opaque else _view(element) == copy
            except _NotPlain:
                is_same = False
            if not is_same:
                break
            count += 1
        return count

    def cut(self, most: int) -> StoredList:
        """Return the longest part, from the beginning, that ends with a link and has at most so many elements."""
        part = StoredList()
        part.ends = {link: end for link, end in self.ends.items() if end <= most}
        size = max(part.ends.values(), default=0)
        part.copies, part.types, part.is_opaque = self.copies[:size], self.types[:size], self.is_opaque
        part.read = min(self.read, size)
        return part


def _views(elements: list[Any]) -> list[Any]:
    """Return `_view` of each. For messages it takes a third of the time: 0.3 ms less for 4,000."""
    if not all(issubclass(kind, BaseMessage) for kind in set(map(type, elements))):
        return [_view(element) for element in elements]
    if any(each.__pydantic_extra__ or each.__pydantic_private__ for each in elements):
        raise _NotPlain
    return [element.__dict__ for element in elements]


def _view(element: Any) -> Any:
    """Return what decides whether an element has changed: of a message, its fields."""
    if isinstance(element, BaseMessage):
        if element.__pydantic_extra__ or element.__pydantic_private__:
            raise _NotPlain
        return element.__dict__
    return element


def _copy(value: Any, is_kept: bool = False) -> Any:
    """Copy plain data. The texts in it are shared; in a copy that is kept, and only compared, so is what is empty."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if is_kept and not value and kind in _EMPTY:
        return _EMPTY[kind]
    if kind is dict:
        same = value.copy()
        for key, item in value.items():
            if type(item) not in _ATOMS:
                same[key] = _copy(item, is_kept)
        return same
    if kind is list:
        return [item if type(item) in _ATOMS else _copy(item, is_kept) for item in value]
    if kind is tuple:
        return tuple(_copy(item, is_kept) for item in value)
    raise _NotPlain
