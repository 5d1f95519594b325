"""What indexes of single fields can do for a filter: the conditions that they find entries by.

The name of an indexed field may have dots, like "user.id". Its index has the values that `filters.field_values` returns
for that name: of the key with the dot, and of the nested field. A *cover* is a list of conditions of which every match
of the filter meets at least one. So indexes of their fields find all matches, and perhaps others: Python checks what
was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from . import filters
from .file_values import FIELDS
from .filters import All, Equal, Field, In, Node, Order, Some

#: The name of a field, and the condition on it.
Condition: TypeAlias = tuple[str, Equal | In | Order]

_MOST = 50  # operands of one condition, or alternatives of one `$or`


def list_conditions(filter: str) -> Iterator[Condition]:
    """List the conditions on single fields that every match of a filter meets."""
    return _list_conditions(filters.load(filter).root, ())


def _list_conditions(node: Node, path: tuple[str, ...]) -> Iterator[Condition]:
    if isinstance(node, All):
        for part in node.parts:
            yield from _list_conditions(part, path)
    elif isinstance(node, Field):
        yield from _list_conditions(node.condition, (*path, node.key))
    elif isinstance(node, Equal | In | Order) and (name := _join(path)):
        yield name, node


def find_covers(filter: str, has_index: Callable[[str], bool]) -> list[list[Condition]]:
    """Find the covers whose conditions are all on fields that have an index, and that an index can serve."""
    return _find_covers(filters.load(filter).root, (), has_index)


def _find_covers(node: Node, path: tuple[str, ...], has_index: Callable[[str], bool]) -> list[list[Condition]]:
    if isinstance(node, All):
        return [cover for part in node.parts for cover in _find_covers(part, path, has_index)]
    if isinstance(node, Some):
        found = [_find_covers(part, path, has_index) for part in node.parts]
        is_complete = all(found) and 0 < len(found) <= _MOST
        return [[condition for covers in found for condition in covers[0]]] if is_complete else []
    if isinstance(node, Field):
        return _find_covers(node.condition, (*path, node.key), has_index)
    if isinstance(node, Equal | In | Order) and path[0].split(".")[0] not in FIELDS and _is_served(node):
        name = _join(path)
        return [[(name, node)]] if name and has_index(name) else []
    return []


def list_fields(filter: str) -> dict[str, bool]:
    """List the fields whose indexes would serve a filter, and whether it compares their order."""
    found: dict[str, bool] = {}
    for cover in find_covers(filter, lambda _: True):
        for name, node in cover:
            found[name] = found.get(name, False) or isinstance(node, Order)
    return found


def _join(path: tuple[str, ...]) -> str:
    """Return the name of the field at a path; "" if the index of that name may lack some values.

    It may where a longer path has a key with a dot. The value `{"a.b": {"c": 1}}` matches the filter
    `{"a.b": {"c": 1}}`, but the index of `a.b.c` has the fields of `{"a.b.c": 1}` and `{"a": {"b": {"c": 1}}}` only.
    """
    return ".".join(path) if len(path) == 1 or not any("." in key for key in path) else ""


def _is_served(node: Equal | In | Order) -> bool:
    """Whether an index of strings, numbers and bools finds all values that meet a condition."""
    operands = node.operands if isinstance(node, In) else (node.operand,)
    if not 0 < len(operands) <= _MOST or (isinstance(node, Order) and isinstance(node.operand, bool)):
        return False
    return all(isinstance(operand, str | int | float) and operand == operand for operand in operands)
