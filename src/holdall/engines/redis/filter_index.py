"""Filters in Redis: how indexed fields, and the texts of values, reduce the entries that a script returns.

A field of `filter_fields=` has a sorted set of *tokens*, each with the ID of an entry. Tokens sort as the values do: a
string's token is its bytes, a number's is eight bytes. Scripts do not parse values, so a client that puts
an entry sends its tokens. A shard has a list of the declared fields. It refuses a write of a client that has another
list, and the client reads the list and tries again.

For other fields, the client sends *needles*: texts that a matching value must contain, like `"type":"note"`. In both
cases, the walks check the entries that are found with the filter itself.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

from ...model import filters
from ...model.file_values import FIELDS
from ...model.filter_indexes import list_conditions
from ...model.values import check_text, decode

#: The bounds of a range of tokens: the first, and the first after it.
Span: TypeAlias = tuple[bytes, bytes]

_MAX_STRING_BYTES = 200  # of a string in a token
_MAX_NEEDLES = 50  # in one group, and ranges of one field
_MAX_WHOLE_NUMBER = 10**9  # the JSON text of a smaller whole number begins with its digits: 5 or 5.0


def encode_fields(declared: Sequence[tuple[str, str]], text: str) -> bytes:
    """Encode the declared fields of a value for the scripts. `declared` has the number and path of each field."""
    if not declared:
        return b""
    value = decode(text)
    found: list[bytes] = []
    for number, path in declared:
        for token in {_make_token(item) for item in filters.field_values(value, path)} - {None}:
            assert token is not None
            found.append(b"%s %d %s" % (number.encode(), len(token), token))
    return b"".join(found)


def _make_token(item: Any) -> bytes | None:
    if isinstance(item, bool):
        return b"b%d" % item
    if isinstance(item, str):
        return b"s" + item.encode()[:_MAX_STRING_BYTES]
    if isinstance(item, (int, float)):
        return b"n" + _to_sortable(item)
    return None


def _to_sortable(number: float) -> bytes:
    """Convert a number to eight bytes that sort as numbers do. Large integers are rounded to floats."""
    try:
        rounded = float(number) + 0.0
    except OverflowError:
        rounded = float("inf") if number > 0 else float("-inf")
    (bits,) = struct.unpack(">Q", struct.pack(">d", rounded))
    bits = bits ^ 0xFFFFFFFFFFFFFFFF if bits >> 63 else bits | 1 << 63
    return struct.pack(">Q", bits)


def choose_field(filter: str | None, declared: Sequence[tuple[str, str]]) -> tuple[str, list[Span]] | None:
    """Choose a declared field that finds all entries that can match a filter: its number, and the ranges of tokens.

    None if no declared field does.
    """
    if filter is None or not declared:
        return None
    numbers = {path: number for number, path in declared}
    best: tuple[int, str, list[Span]] | None = None
    for path, node in list_conditions(filter):
        number = numbers.get(path)
        if number is None or path.split(".")[0] in FIELDS:
            continue
        found = _list_spans(node)
        if found is not None and (best is None or _estimate_cost(node) < best[0]):
            best = (_estimate_cost(node), number, found)
    return None if best is None else best[1:]


def _estimate_cost(node: filters.Node) -> int:
    return 0 if isinstance(node, filters.Equal) else 1 if isinstance(node, filters.In) else 2


def _list_spans(node: filters.Node) -> list[Span] | None:
    if isinstance(node, filters.Equal):
        span = _make_span(node.operand)
        return None if span is None else [span]
    if isinstance(node, filters.In):
        found = [_make_span(operand) for operand in node.operands]
        return None if None in found or len(found) > _MAX_NEEDLES else [span for span in found if span is not None]
    if isinstance(node, filters.Order):
        span = _make_span(node.operand)
        if span is None or isinstance(node.operand, bool):
            return None
        kind = span[0][:1]
        return [(span[0], bytes([kind[0] + 1])) if node.operator in ("$gt", "$gte") else (kind, span[1])]
    return None


def _make_span(operand: Any) -> Span | None:
    if operand != operand or (isinstance(operand, str) and ("\x00" in operand or "\x01" in operand)):
        return None
    token = _make_token(operand)
    if token is None:
        return None
    return token, token + (b"\x01" if isinstance(operand, str) and len(token) <= _MAX_STRING_BYTES else b"\xff")


def encode_needles(filter: str | None) -> list[Any]:
    """Encode the needles of a filter for the scripts: a matching value contains one needle of each group."""
    if filter is None:
        return [0]
    groups: list[list[bytes]] = []
    for path, node in list_conditions(filter):
        operands = [node.operand] if isinstance(node, filters.Equal) else getattr(node, "operands", None)
        if operands is None or path.split(".")[0] in FIELDS:
            continue
        group = [needle for operand in operands for needle in _list_needles(path, operand)]
        if group and len(group) <= _MAX_NEEDLES and all(_list_needles(path, operand) for operand in operands):
            groups.append(group)
    return [len(groups), *(arg for group in groups for arg in (len(group), *group))]


def _list_needles(path: str, operand: Any) -> list[bytes]:
    """List the ways in which a field and its value may be written in JSON; none if they are not known."""
    names = {check_text(path), check_text(path.rpartition(".")[2])}
    if isinstance(operand, bool | str):
        return [b"%s:%s" % (name, check_text(operand)) for name in names]
    if isinstance(operand, int | float) and abs(operand) < _MAX_WHOLE_NUMBER and operand == int(operand):
        signs = ("", "-") if operand == 0 else ("",)
        return [b"%s:%s%d" % (name, sign.encode(), int(operand)) for name in names for sign in signs]
    return []
