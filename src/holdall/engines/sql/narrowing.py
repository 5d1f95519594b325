"""Translates a filter to an SQL condition that narrows the candidates.

Every row that matches the filter meets the condition. Other rows may meet it too, because Python checks each row
(`holdall.model.filters`). So a condition is left out or widened where a database reads values differently: NUL in
strings, numbers beyond 2**53, fractions, negation. The same holds for the fields of a file, which no database can read.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, TypeAlias

from ...model import filters
from ...model.file_values import FIELDS

Path: TypeAlias = tuple[str, ...]

_MOST_PARTS = 300  # of one condition: databases limit the depth and the parameters of a statement
_AT_LEAST_OR_MOST = {"$gt": ">=", "$gte": ">=", "$lt": "<=", "$lte": "<="}
_EXACT = 2**53  # a database may round larger numbers


def json_path(path: Path) -> str:
    return "$" + "".join(f'."{label}"' for label in path)


def index_name(path: Path) -> str:
    """Return the name of the index of a declared field.

    Two paths may have the same labels joined, and a database may ignore case. The checksum tells them apart.
    """
    return f"field_{'.'.join(path)}_{zlib.crc32(json_path(path).encode()):08x}"


class Binder:
    """Collects the parameters of a statement, so that no input of a user becomes part of its SQL."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params

    def __call__(self, value: Any) -> str:
        name = f"p{len(self.params)}"
        self.params[name] = value
        return f":{name}"


class Fields(ABC):
    """How one database reads the fields of a value. A method returns None if it may read the field wrongly."""

    @abstractmethod
    def compare(self, path: Path, operator: str, operand: Any, bind: Binder) -> str | None:
        """Compare the field at a path: `=`, `>=` or `<=` a string or number, `=` a bool, or `IN` several of these."""

    @abstractmethod
    def is_null(self, path: Path, bind: Binder) -> str | None:
        """Return the condition that the field is null or missing."""

    @abstractmethod
    def exists(self, path: Path, bind: Binder) -> str | None:
        """Return the condition that the field exists, even if it is null."""

    @abstractmethod
    def is_indexed(self, path: Path) -> bool:
        """Whether the field at this path has a declared index."""


def narrow(filter: str | None, fields: Fields, params: dict[str, Any]) -> tuple[str | None, bool]:
    """Return a condition that every matching row meets, or None; and whether a declared index serves it."""
    if filter is None:
        return None, False
    narrowing = _Narrowing(fields, Binder(params))
    return narrowing.translate(filters.load(filter).root, ((),)), narrowing.is_indexed


class _Narrowing:
    def __init__(self, fields: Fields, bind: Binder) -> None:
        self._fields = fields
        self._bind = bind
        self.is_indexed = False
        self._parts = 0

    def translate(self, node: filters.Node, paths: tuple[Path, ...]) -> str | None:
        """Translate a part of a filter, about the field at one of these paths: a key with dots means several."""
        match node:
            case filters.Field(key, condition):
                nested = [path + tuple(key.split(".")) for path in paths] if "." in key else []
                found = (*((*path, key) for path in paths), *nested)
                return self.translate(condition, found) if len(found) <= 4 else None
            case filters.All(parts):
                narrowed = [sql for part in parts[:_MOST_PARTS] if (sql := self.translate(part, paths))]
                return _join(" AND ", narrowed)
            case filters.Some(parts):
                return _any_of(self.translate(part, paths) for part in parts) if len(parts) <= _MOST_PARTS else None
            case filters.In(operands):
                return self._translate_in(operands, paths)
            case filters.Not() | filters.IsObject():
                return None
        return _any_of(self._translate_leaf(node, path) for path in paths)

    def _translate_leaf(self, node: Any, path: Path) -> str | None:
        match node:
            case filters.Exists() | filters.Equal(None) if self._is_too_long():
                return None
            case filters.Exists():
                exists = self._fields.exists(path, self._bind)
                return f"({exists} OR size IS NOT NULL)" if exists and path[0] in FIELDS else exists
            case filters.Equal(None):
                return self._fields.is_null(path, self._bind)
            case filters.Equal(bool() | str() as operand):
                return self._compare(path, "=", operand)
            case filters.Equal(int() | float() as number) if is_exact(number):
                low, high = around(number)
                if low == high:
                    return self._compare(path, "=", low)
                bounds = [self._compare(path, ">=", low), self._compare(path, "<=", high)]
                return _join(" AND ", [bound for bound in bounds if bound])
            case filters.Order(operator, str(text)):
                return self._compare(path, _AT_LEAST_OR_MOST[operator], text)
            case filters.Order(operator, int() | float() as number) if is_exact(number):
                low, high = around(number)
                bound = _AT_LEAST_OR_MOST[operator]
                return self._compare(path, bound, low if bound == ">=" else high)
        return None

    def _is_too_long(self) -> bool:
        """Count one more part; return whether the condition would have too many."""
        self._parts += 1
        return self._parts > _MOST_PARTS

    def _translate_in(self, operands: tuple[Any, ...], paths: tuple[Path, ...]) -> str | None:
        if len(operands) > 1 and all(_is_simple(operand) for operand in operands):
            if len(operands) > _MOST_PARTS:
                return None
            return _any_of(self._compare(path, "IN", list(operands)) for path in paths)
        return _any_of(self.translate(filters.Equal(operand), paths) for operand in operands)

    def _compare(self, path: Path, operator: str, operand: Any) -> str | None:
        self._parts += len(operand) - 1 if operator == "IN" else 0
        if self._is_too_long() or any(not is_safe(text) for text in (operand if operator == "IN" else [operand])):
            return None
        condition = self._fields.compare(path, operator, operand, self._bind)
        if path[0] in FIELDS:
            return condition and f"({condition} OR size IS NOT NULL)"
        self.is_indexed = self.is_indexed or (condition is not None and self._fields.is_indexed(path))
        return condition


def is_safe(operand: Any) -> bool:
    """Whether every database reads a string alike: none can store NUL, and one of them stores U+0001 instead."""
    return not isinstance(operand, str) or not ("\x00" in operand or "\x01" in operand)


def _is_simple(operand: Any) -> bool:
    """Whether every database compares this operand exactly."""
    return isinstance(operand, str) or (type(operand) is int and is_exact(operand))


def is_exact(number: float) -> bool:
    return -_EXACT <= number <= _EXACT  # false for NaN too


def around(number: float) -> tuple[float, float]:
    """Return bounds that are wide enough for a database that rounds fractions differently."""
    if number == int(number):
        return int(number), int(number)
    margin = abs(number) * 1e-12
    return number - margin, number + margin


def _any_of(parts: Iterable[str | None]) -> str | None:
    """Return the condition that one of the parts holds, or None if one of the parts is unknown."""
    conditions = list(parts)
    if not conditions:
        return "1 = 0"
    return None if None in conditions else _join(" OR ", [part for part in conditions if part is not None])


def _join(operator: str, parts: list[str]) -> str | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else f"({operator.join(parts)})"
