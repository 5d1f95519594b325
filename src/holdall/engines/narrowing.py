"""From a filter to an SQL condition that narrows the candidates.

Every row that matches must meet the condition; others may, since each row is verified in Python (`holdall.filters`). So
what a database reads in its own way (NUL in strings, numbers beyond 2**53, fractions, negation) is left out or widened,
and so is what it does not read at all: the fields of a file's item.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, TypeAlias

from .. import filters
from ..shapes import FIELDS

Path: TypeAlias = tuple[str, ...]

_MOST_PARTS = 300  # of one statement: databases limit its depth and its parameters
_AT_LEAST_OR_MOST = {"$gt": ">=", "$gte": ">=", "$lt": "<=", "$lte": "<="}
_EXACT = 2**53  # a database may read larger numbers as approximate ones


def json_path(path: Path) -> str:
    return "$" + "".join(f'."{label}"' for label in path)


def index_name(path: Path) -> str:
    """What the index of a declared field is called.

    A path is not its labels joined, and a database may ignore case: the number tells them apart.
    """
    return f"field_{'.'.join(path)}_{zlib.crc32(json_path(path).encode()):08x}"


class Binder:
    """Collects a statement's parameters, so that nothing a user wrote becomes part of its text."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params

    def __call__(self, value: Any) -> str:
        name = f"p{len(self.params)}"
        self.params[name] = value
        return f":{name}"


class Fields(ABC):
    """How one database reads a value's fields. Where its reading cannot be trusted, the answer is None."""

    @abstractmethod
    def compare(self, path: Path, operator: str, operand: Any, bind: Binder) -> str | None:
        """Whether the field at a path is `=`, `>=` or `<=` a string or number, `=` a bool, or `IN` several of these."""

    @abstractmethod
    def is_null(self, path: Path, bind: Binder) -> str | None:
        """Whether the field is null or missing."""

    @abstractmethod
    def is_there(self, path: Path, bind: Binder) -> str | None:
        """Whether the path leads to anything, null included."""

    @abstractmethod
    def is_indexed(self, path: Path) -> bool:
        """Whether a declared index serves this path."""


def narrow(filter: filters.Filter | None, fields: Fields, params: dict[str, Any]) -> tuple[str | None, bool]:
    """A condition that every matching row meets, or None; and whether a declared index serves it."""
    if filter is None:
        return None, False
    narrowing = _Narrowing(fields, Binder(params))
    return narrowing.of(filter.root, ((),)), narrowing.indexed


class _Narrowing:
    def __init__(self, fields: Fields, bind: Binder) -> None:
        self._fields = fields
        self._bind = bind
        self.indexed = False
        self._parts = 0

    def of(self, node: filters.Node, paths: tuple[Path, ...]) -> str | None:
        match node:
            case filters.Field(key, condition):
                nested = [path + tuple(key.split(".")) for path in paths] if "." in key else []
                found = (*((*path, key) for path in paths), *nested)
                return self.of(condition, found) if len(found) <= 4 else None
            case filters.All(parts):
                narrowed = [sql for part in parts[:_MOST_PARTS] if (sql := self.of(part, paths))]
                return _joined(" AND ", narrowed)
            case filters.Some(parts):
                return _any_of(self.of(part, paths) for part in parts) if len(parts) <= _MOST_PARTS else None
            case filters.In(operands):
                return self._among(operands, paths)
            case filters.Not() | filters.IsObject():
                return None
        return _any_of(self._leaf(node, path) for path in paths)

    def _leaf(self, node: Any, path: Path) -> str | None:
        match node:
            case filters.Exists() | filters.Equal(None) if self._is_too_much():
                return None
            case filters.Exists():
                there = self._fields.is_there(path, self._bind)
                return f"({there} OR size IS NOT NULL)" if there and path[0] in FIELDS else there
            case filters.Equal(None):
                return self._fields.is_null(path, self._bind)
            case filters.Equal(bool() | str() as operand):
                return self._compare(path, "=", operand)
            case filters.Equal(int() | float() as number) if _is_exact(number):
                low, high = _around(number)
                if low == high:
                    return self._compare(path, "=", low)
                bounds = [self._compare(path, ">=", low), self._compare(path, "<=", high)]
                return _joined(" AND ", [bound for bound in bounds if bound])
            case filters.Order(operator, str(text)):
                return self._compare(path, _AT_LEAST_OR_MOST[operator], text)
            case filters.Order(operator, int() | float() as number) if _is_exact(number):
                low, high = _around(number)
                bound = _AT_LEAST_OR_MOST[operator]
                return self._compare(path, bound, low if bound == ">=" else high)
        return None

    def _is_too_much(self) -> bool:
        self._parts += 1
        return self._parts > _MOST_PARTS

    def _among(self, operands: tuple[Any, ...], paths: tuple[Path, ...]) -> str | None:
        if len(operands) > 1 and all(_is_simple(operand) for operand in operands):
            if len(operands) > _MOST_PARTS:
                return None
            return _any_of(self._compare(path, "IN", list(operands)) for path in paths)
        return _any_of(self.of(filters.Equal(operand), paths) for operand in operands)

    def _compare(self, path: Path, operator: str, operand: Any) -> str | None:
        self._parts += len(operand) - 1 if operator == "IN" else 0
        if self._is_too_much() or any(not _is_safe(text) for text in (operand if operator == "IN" else [operand])):
            return None
        condition = self._fields.compare(path, operator, operand, self._bind)
        if path[0] in FIELDS:
            return condition and f"({condition} OR size IS NOT NULL)"
        self.indexed = self.indexed or (condition is not None and self._fields.is_indexed(path))
        return condition


def _is_safe(operand: Any) -> bool:
    """Whether a string means the same in any database: none holds NUL, and one takes U+0001 in its stead."""
    return not isinstance(operand, str) or not ("\x00" in operand or "\x01" in operand)


def _is_simple(operand: Any) -> bool:
    """Whether equality with it is exact in any database."""
    return isinstance(operand, str) or (type(operand) is int and _is_exact(operand))


def _is_exact(number: float) -> bool:
    return -_EXACT <= number <= _EXACT  # false for NaN too


def _around(number: float) -> tuple[float, float]:
    """Bounds wide enough for a database that reads fractions a little differently."""
    if number == int(number):
        return int(number), int(number)
    margin = abs(number) * 1e-12
    return number - margin, number + margin


def _any_of(parts: Iterable[str | None]) -> str | None:
    """One of the parts; nothing can be said where one of them says nothing."""
    conditions = list(parts)
    if not conditions:
        return "1 = 0"
    return None if None in conditions else _joined(" OR ", [part for part in conditions if part is not None])


def _joined(word: str, parts: list[str]) -> str | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else f"({word.join(parts)})"
