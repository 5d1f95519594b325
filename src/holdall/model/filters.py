"""The filter language: one parser and one matcher for every engine.

    {"type": "note", "stars": {"$gte": 3}, "user": {"name": "Ada"}, "tags": {"$contains": "x"}, "$or": [{…}, {…}]}

`parse` turns a filter into a small tree of frozen nodes, or raises `InvalidInput`. Ops carry a filter as JSON text:
`encode` writes it, `load` parses it. Only `matches` decides; a database may use the tree to narrow the candidates
(`engines/sql/narrowing.py`).

Types compare only with their own kind: `1` is `1.0` but not `True`, and a string is never greater than a number. A
mismatch is no match, never an error. None matches null and missing alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import Any, TypeAlias

from ..errors import InvalidInput, InvalidValue, shown
from ..ops import FrozenStruct
from .values import MAX_DEPTH, check_text, to_plain

_OPERATOR = re.compile(r"\$[A-Za-z]+")
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
_OPERATORS = "$eq $ne $gt $gte $lt $lte $in $nin $exists $contains $and $or $not"


class _Missing:
    """The value of a field that is missing."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


# The tree ------------------------------------------------------------------------------------------------------------


class Equal(FrozenStruct, frozen=True):
    """The field equals this; None equals null and missing."""

    operand: Any

    def holds(self, value: Any) -> bool:
        if self.operand is None:
            return value is None or value is MISSING
        return value is not MISSING and is_equal(value, self.operand)


class Order(FrozenStruct, frozen=True):
    """The field has the operand's kind and the comparison `$gt`, `$gte`, `$lt` or `$lte` is true."""

    operator: str
    operand: Any

    def holds(self, value: Any) -> bool:
        kind = kind_of(value)
        return kind in _ORDERED and kind == kind_of(self.operand) and _ORDERS[self.operator](value, self.operand)


class In(FrozenStruct, frozen=True):
    """The field equals one of these."""

    operands: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        return any(Equal(operand).holds(value) for operand in self.operands)


class Exists(FrozenStruct, frozen=True):
    """The field exists; it may be null."""

    def holds(self, value: Any) -> bool:
        return value is not MISSING


class Contains(FrozenStruct, frozen=True):
    """The field is a list with this element, or a string with this substring."""

    operand: Any

    def holds(self, value: Any) -> bool:
        if isinstance(value, list):
            return any(is_equal(item, self.operand) for item in value)
        return isinstance(value, str) and isinstance(self.operand, str) and self.operand in value


class Field(FrozenStruct, frozen=True):
    """The condition holds for the field with this key; a key with dots also names a nested field."""

    key: str
    condition: Node

    def holds(self, value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        found = list(field_values(value, self.key))
        return any(self.condition.holds(item) for item in found) if found else self.condition.holds(MISSING)


class IsObject(FrozenStruct, frozen=True):
    """The field is an object: the meaning of `{}` as a nested filter."""

    def holds(self, value: Any) -> bool:
        return isinstance(value, dict)


class All(FrozenStruct, frozen=True):
    """Every part holds."""

    parts: tuple[Node, ...]

    def holds(self, value: Any) -> bool:
        return all(part.holds(value) for part in self.parts)


class Some(FrozenStruct, frozen=True):
    """At least one part holds."""

    parts: tuple[Node, ...]

    def holds(self, value: Any) -> bool:
        return any(part.holds(value) for part in self.parts)


class Not(FrozenStruct, frozen=True):
    """The part does not hold."""

    part: Node

    def holds(self, value: Any) -> bool:
        return not self.part.holds(value)


Node: TypeAlias = Equal | Order | In | Exists | Contains | Field | IsObject | All | Some | Not


class Filter(FrozenStruct, frozen=True):
    """A parsed filter."""

    root: Node

    def matches(self, value: dict[str, Any]) -> bool:
        """Whether an entry's value matches."""
        return self.root.holds(value)


# Parsing -------------------------------------------------------------------------------------------------------------


def parse(filter: Any) -> Filter | None:
    """Parse a filter; None if it matches everything."""
    plain = _check(filter)
    return Filter(_parse_object(plain, 0)) if plain else None


def encode(filter: Any) -> str | None:
    """Check a filter and write it as JSON text, as ops carry it; None if it matches everything."""
    plain = _check(filter)
    if not plain:
        return None
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))  # msgspec writes no NaN or Infinity
    load(text)
    return text


@lru_cache(maxsize=32)  # an engine loads the filter of an op wherever it needs it
def load(text: str) -> Filter:
    """Parse the text that `encode` wrote."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"a filter is the JSON text of a dict, not {shown(text)}: {error}") from None
    return Filter(_parse_object(plain, 0))


def matches(text: str | None, value: dict[str, Any]) -> bool:
    """Whether a value matches the filter of an op."""
    return text is None or load(text).matches(value)


def _check(filter: Any) -> Any:
    """Check that a filter is a dict of plain data, and return it."""
    if filter is None:
        return None
    if not isinstance(filter, Mapping):
        raise InvalidInput(f"a filter is a dict, e.g. {{'type': 'note'}}, not {type(filter).__name__} {shown(filter)}")
    try:
        plain = to_plain(filter, finite=False)
        check_text(plain)
    except InvalidValue as error:
        raise InvalidInput(f"in the filter: {error}") from None
    return plain


def check_field(field: Any) -> tuple[str, ...]:
    """Check a field declared with `filter_fields=` and return its path."""
    if not isinstance(field, str) or not all(field.split(".")):
        raise InvalidInput(f"filter_fields= takes field names like 'type' or 'user.id', not {shown(field)}")
    try:
        field.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"filter_fields= cannot name a field with lone surrogates: {shown(field)}") from None
    return tuple(field.split("."))


def _parse_object(filter: Any, depth: int) -> Node:
    """Parse a dict whose keys are fields or `$and`, `$or`, `$not`."""
    if not isinstance(filter, dict):
        raise InvalidInput(f"a filter is a dict, not {type(filter).__name__} {shown(filter)}")
    if depth > MAX_DEPTH:
        raise InvalidInput(f"a filter is nested at most {MAX_DEPTH} levels deep")
    return _all([_parse_entry(key, condition, depth) for key, condition in filter.items()])


def _parse_entry(key: str, condition: Any, depth: int) -> Node:
    if not _OPERATOR.fullmatch(key):
        return _parse_condition(key, condition, depth + 1)
    if key in ("$and", "$or", "$not"):
        return _parse_combination(key, condition, _parse_object, depth)
    if key in _OPERATORS.split():
        raise InvalidInput(f"{key} belongs to a field, e.g. {{'stars': {{{key!r}: …}}}}; it cannot be beside fields")
    raise _unknown(key)


def _parse_condition(field: str, condition: Any, depth: int) -> Node:
    """Parse the condition of one field: a plain value, a dict of operators, or a nested filter.

    Each leaf has its own `Field`, inside any negation. So `$ne` is exactly not `$eq`, even if a key with dots names two
    fields.
    """
    if not isinstance(condition, dict):
        return Field(field, Equal(condition))
    operators = [key for key in condition if _OPERATOR.fullmatch(key)]
    if not operators:
        return Field(field, All((IsObject(), _parse_object(condition, depth))) if condition else IsObject())
    if len(operators) < len(condition):
        plain = next(key for key in condition if key not in operators)
        raise InvalidInput(f"operators and fields cannot be in one dict: {operators[0]!r} and {plain!r}")
    return _all([_parse_operator(field, key, operand, depth) for key, operand in condition.items()])


def _parse_operator(field: str, name: str, operand: Any, depth: int) -> Node:
    match name:
        case "$eq":
            return Field(field, Equal(operand))
        case "$ne":
            return Not(Field(field, Equal(operand)))
        case "$gt" | "$gte" | "$lt" | "$lte":
            return Field(field, Order(name, operand))
        case "$in" | "$nin":
            if not isinstance(operand, list):
                raise InvalidInput(f"{name} takes a list, not {type(operand).__name__} {shown(operand)}")
            among = Field(field, In(tuple(operand)))
            return among if name == "$in" else Not(among)
        case "$exists":
            if not isinstance(operand, bool):
                raise InvalidInput(f"$exists takes True or False, not {shown(operand)}")
            return Field(field, Exists()) if operand else Not(Field(field, Exists()))
        case "$contains":
            return Field(field, Contains(operand))
        case "$and" | "$or" | "$not":
            return _parse_combination(name, operand, lambda part, deeper: _parse_condition(field, part, deeper), depth)
    raise _unknown(name)


def _parse_combination(name: str, operand: Any, parse: Callable[[Any, int], Node], depth: int) -> Node:
    if name == "$not":
        return Not(parse(operand, depth + 1))
    if not isinstance(operand, list):
        raise InvalidInput(f"{name} takes a list of filters, not {type(operand).__name__} {shown(operand)}")
    parts = [parse(part, depth + 1) for part in operand]
    return _all(parts) if name == "$and" else Some(tuple(parts))


def _all(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else All(tuple(parts))


def _unknown(name: str) -> InvalidInput:
    return InvalidInput(f"unknown filter operator {name!r}; there are {_OPERATORS}")


# Matching ------------------------------------------------------------------------------------------------------------

_ORDERED = frozenset({"number", "string", "bool"})


def kind_of(value: Any) -> str:
    """The kind of a value. Only values of one kind are compared."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return type(value).__name__


def is_equal(left: Any, right: Any) -> bool:
    """Deep equality, in which `1` equals `1.0` but not `True`."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_equal(item, right[key]) for key, item in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(is_equal(a, b) for a, b in zip(left, right, strict=True))
    return kind_of(left) == kind_of(right) and bool(left == right)


def field_values(value: dict[str, Any], key: str) -> Iterator[Any]:
    """The values that a key names in an object: the field of that name, and the nested field that its dots name."""
    if key in value:
        yield value[key]
    if "." in key:
        item: Any = value
        for label in key.split("."):
            if not isinstance(item, dict) or label not in item:
                return
            item = item[label]
        yield item
