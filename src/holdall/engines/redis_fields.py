"""Indexed fields in Redis, and what else a filter lets scripts leave out.

A field that is declared with `indexed=` has a set in lexicographic order, of its values and the places that have them:
strings by their bytes, numbers so that their bytes sort as they do. Scripts do not look into values, so who puts an
entry says what its fields are; a shard knows which are declared, and has every client that does not learn them first.

Of other fields, a filter says what a value's text must have in it somewhere: `"type":"note"`. Either way, what is found
is verified in Python.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from .. import filters
from ..shapes import FIELDS
from ..values import check_text, decode

#: Where in a field's set the wanted values are.
Span: TypeAlias = tuple[bytes, bytes]

_LONGEST = 200  # bytes of a string that count
_MOST_NEEDLES = 50
_EXACT = 10**9  # up to where a whole number is written in one way, but for a fraction of zeros


def tokens(declared: Sequence[tuple[str, str]], text: str) -> bytes:
    """The declared fields of a value as scripts take them; `declared` are pairs of a number and a path."""
    if not declared:
        return b""
    value = decode(text)
    found: list[bytes] = []
    for number, path in declared:
        for token in {_token(item) for item in filters._fields(value, path)} - {None}:
            assert token is not None
            found.append(b"%s %d %s" % (number.encode(), len(token), token))
    return b"".join(found)


def _token(item: Any) -> bytes | None:
    if isinstance(item, bool):
        return b"b%d" % item
    if isinstance(item, str):
        return b"s" + item.encode()[:_LONGEST]
    if isinstance(item, (int, float)):
        return b"n" + _sortable(item)
    return None


def _sortable(number: float) -> bytes:
    """Eight bytes that sort as numbers do; large ones are rounded, always to the same side of others."""
    try:
        rounded = float(number) + 0.0
    except OverflowError:
        rounded = float("inf") if number > 0 else float("-inf")
    (bits,) = struct.unpack(">Q", struct.pack(">d", rounded))
    bits = bits ^ 0xFFFFFFFFFFFFFFFF if bits >> 63 else bits | 1 << 63
    return struct.pack(">Q", bits)


def spans(filter: filters.Filter | None, declared: Sequence[tuple[str, str]]) -> tuple[str, list[Span]] | None:
    """Which declared field finds all that can match a filter, and where in it; None where none does."""
    if filter is None or not declared:
        return None
    numbers = {path: number for number, path in declared}
    best: tuple[int, str, list[Span]] | None = None
    for path, node in _conditions(filter.root, ""):
        number = numbers.get(path)
        if number is None or path.split(".")[0] in FIELDS:
            continue
        found = _spans_of(node)
        if found is not None and (best is None or _worth(node) < best[0]):
            best = (_worth(node), number, found)
    return None if best is None else best[1:]


def _worth(node: filters.Node) -> int:
    return 0 if isinstance(node, filters.Equal) else 1 if isinstance(node, filters.In) else 2


def _conditions(node: filters.Node, path: str) -> Iterator[tuple[str, filters.Node]]:
    """What must hold in any case, of which field: a path with dots."""
    if isinstance(node, filters.All):
        for part in node.parts:
            yield from _conditions(part, path)
    elif isinstance(node, filters.Field) and not (path and "." in node.key):
        yield from _conditions(node.condition, f"{path}.{node.key}" if path else node.key)
    elif isinstance(node, filters.Equal | filters.In | filters.Order) and path:
        yield path, node


def _spans_of(node: filters.Node) -> list[Span] | None:
    if isinstance(node, filters.Equal):
        span = _equal(node.operand)
        return None if span is None else [span]
    if isinstance(node, filters.In):
        found = [_equal(operand) for operand in node.operands]
        return None if None in found or len(found) > _MOST_NEEDLES else [span for span in found if span is not None]
    if isinstance(node, filters.Order):
        span = _equal(node.operand)
        if span is None or isinstance(node.operand, bool):
            return None
        kind = span[0][:1]
        return [(span[0], bytes([kind[0] + 1])) if node.operator in ("$gt", "$gte") else (kind, span[1])]
    return None


def _equal(operand: Any) -> Span | None:
    if operand != operand or (isinstance(operand, str) and ("\x00" in operand or "\x01" in operand)):
        return None
    token = _token(operand)
    if token is None:
        return None
    return token, token + (b"\x01" if isinstance(operand, str) and len(token) <= _LONGEST else b"\xff")


def needles(filter: filters.Filter | None) -> list[Any]:
    """What the text of a matching value has in it, as scripts take it: groups, of each of which it has one."""
    if filter is None:
        return [0]
    groups: list[list[bytes]] = []
    for path, node in _conditions(filter.root, ""):
        operands = [node.operand] if isinstance(node, filters.Equal) else getattr(node, "operands", None)
        if operands is None or path.split(".")[0] in FIELDS:
            continue
        group = [needle for operand in operands for needle in _written(path, operand)]
        if group and len(group) <= _MOST_NEEDLES and all(_written(path, operand) for operand in operands):
            groups.append(group)
    return [len(groups), *(word for group in groups for word in (len(group), *group))]


def _written(path: str, operand: Any) -> list[bytes]:
    """How a field that has a value may be written; nothing where that is not sure."""
    names = {check_text(path), check_text(path.rpartition(".")[2])}
    if isinstance(operand, bool | str):
        return [b"%s:%s" % (name, check_text(operand)) for name in names]
    if isinstance(operand, int | float) and operand == operand and abs(operand) < _EXACT and operand == int(operand):
        signs = ("", "-") if operand == 0 else ("",)
        return [b"%s:%s%d" % (name, sign.encode(), int(operand)) for name in names for sign in signs]
    return []
