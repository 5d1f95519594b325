"""Values as JSON text, and times as integers.

`encode` checks a value and returns the exact text that is stored; `decode` is its inverse. Every value goes through
these two, so that all engines store the same text and return the same objects.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec

from ..errors import Corrupt, InvalidInput, InvalidValue, shown
from ..ops import Json, Ttl

MAX_DEPTH = 200
MAX_INT_DIGITS = 4300
MAX_TTL = 1000 * 365 * 24 * 3600
MAX_SECONDS = 1_000_000_000  # of a timeout or an interval

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC) - _EPOCH, datetime.max.replace(tzinfo=UTC) - _EPOCH
_EXACT = 2**32 * 1_000_000  # up to 2106, seconds as a float are exact to the microsecond
_SMALL = 10 ** (MAX_INT_DIGITS // 2)


# JSON ----------------------------------------------------------------------------------------------------------------


def encode(value: Any) -> Json:
    """Encode a value as the text to store; `InvalidValue` names the path to a part that is not JSON."""
    plain = value if type(value) is dict and _is_plain(value, 0) else to_plain_object(value)
    try:
        return _encode(plain).decode()  # type: ignore[return-value]  # a `Json`
    except UnicodeEncodeError:
        return encode_plain(plain)


def to_plain_object(value: Any) -> dict[str, Any]:
    """Convert a value to a dict that has only JSON types."""
    plain = value if type(value) is dict and _is_plain(value, 0) else to_plain(value)
    if type(plain) is not dict:
        raise InvalidValue(f"a value is a dict, not {type(value).__name__} {shown(value)}")
    return plain


def encode_plain(plain: dict[str, Any]) -> Json:
    """Encode what `to_plain_object` returned."""
    return Json(check_text(plain).decode())


def check_text(plain: Any) -> bytes:
    """Encode plain data as JSON; `InvalidValue` if a string in it has lone surrogates."""
    try:
        return _encode(plain)
    except UnicodeEncodeError:
        path = ascii(_surrogate_path(plain, ""))[1:-1]
        raise InvalidValue(f"lone surrogates are not text: at {path}", path) from None


def decode(text: str) -> dict[str, Any]:
    """Decode a stored value: a new object each time."""
    try:
        return _decode(text)  # type: ignore[no-any-return]  # `encode` accepts only objects
    except msgspec.DecodeError as error:
        try:
            return json.loads(text)  # type: ignore[no-any-return]  # msgspec counts an int's minus sign as a digit
        except ValueError:
            raise Corrupt(f"a stored value is not JSON: {text!r:.80}") from error


def indent_json(text: str) -> bytes:
    """Format JSON text with indentation, for people to read."""
    return msgspec.json.format(text.encode(), indent=2) + b"\n"


def to_plain(value: Any, *, finite: bool = True) -> Any:
    """Convert a value to dicts, lists, str, numbers, bools and None; `InvalidValue` if that is not possible.

    Plain data is returned as it is, not copied. `finite=False` accepts NaN and infinities, which may be in a filter but
    not in a stored value.
    """
    return _plain(value, "", finite, 0)


def _is_plain(value: dict[str, Any] | list[Any], depth: int) -> bool:
    """Whether a value is plain data. It is fast because it does not track the path, which only errors need."""
    if depth > MAX_DEPTH:
        return False
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                return False
        items: Iterable[Any] = value.values()
    else:
        items = value
    for item in items:
        kind = type(item)
        if kind is str or kind is bool or item is None:
            continue
        if kind is int:
            if not -_SMALL < item < _SMALL:
                return False
        elif kind is float:
            if not math.isfinite(item):
                return False
        elif (kind is not dict and kind is not list) or not _is_plain(item, depth + 1):
            return False
    return True


def _plain(value: Any, path: str, finite: bool, depth: int) -> Any:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        if -_SMALL < value < _SMALL or abs(value) < 10**MAX_INT_DIGITS:
            return value
        raise InvalidValue(f"an int has at most {MAX_INT_DIGITS:,} digits: at {path or 'the value'}", path)
    if kind is float:
        if not finite or math.isfinite(value):
            return value
        raise InvalidValue(f"{value} is not JSON; store None or a string instead: at {path or 'the value'}", path)
    if depth > MAX_DEPTH:
        raise InvalidValue(f"nested deeper than {MAX_DEPTH} levels, or within itself: at {path[:80]}…", path)
    if kind is dict:
        changed: dict[str, Any] | None = None
        for key, item in value.items():
            if type(key) is not str:
                return _plain(_with_plain_keys(value, path), path, finite, depth)
            item_kind = type(item)
            if item_kind is str or item_kind is bool or item is None:
                continue
            plain = _plain(item, f"{path}.{key}" if path else key, finite, depth + 1)
            if plain is not item:
                changed = dict(value) if changed is None else changed
                changed[key] = plain
        return value if changed is None else changed
    if kind is list or kind is tuple:
        plain_items = [_plain(item, f"{path}[{i}]", finite, depth + 1) for i, item in enumerate(value)]
        if kind is list and all(a is b for a, b in zip(plain_items, value, strict=True)):
            return value
        return plain_items
    return _plain(_simplify(value, path), path, finite, depth + 1)


def _with_plain_keys(value: dict[Any, Any], path: str) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in value.items():
        name = _plain_key(key, path)
        if name in plain:
            raise InvalidValue(f"two keys become {shown(name)}: at {path or 'the top'}", path)
        plain[name] = item
    return plain


def _plain_key(key: Any, path: str) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return str(key)
    raise InvalidValue(
        f"a JSON object's keys are str, not {type(key).__name__} {shown(key)}: at {path or 'the top'}", path
    )


def _simplify(value: Any, path: str) -> Any:
    """Convert a value of another type by one step towards plain JSON."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal):
        if value.is_finite():
            return str(value)
        raise InvalidValue(f"{shown(value)} is not JSON: at {path or 'the value'}", path)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump") and hasattr(
        type(value), "model_fields"
    ):  # a pydantic model; pydantic is not imported
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    bases: tuple[Callable[[Any], Any], ...] = (str, int, float, list, tuple)
    for base in bases:
        if isinstance(value, base):  # type: ignore[arg-type]  # they are types as well as functions
            return base(value)
    raise InvalidValue(
        f"{type(value).__name__} {shown(value)} is not JSON: at {path or 'the value'}; convert it first", path
    )


def _surrogate_path(value: Any, path: str) -> str | None:
    """The path to the first string that has lone surrogates."""
    if isinstance(value, str):
        return path if any("\ud800" <= char <= "\udfff" for char in value) else None
    if isinstance(value, dict):
        below = [(key, f"{path}.{key}" if path else key) for key in value] + [
            (item, f"{path}.{key}" if path else key) for key, item in value.items()
        ]
    elif isinstance(value, list):
        below = [(item, f"{path}[{i}]") for i, item in enumerate(value)]
    else:
        return None
    return next((found for item, here in below if (found := _surrogate_path(item, here)) is not None), None)


# Times ---------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)  # entries of one batch have the same time
def to_datetime(microseconds: int) -> datetime:
    """Convert microseconds since 1970, which engines store, to an aware UTC datetime."""
    if 0 <= microseconds < _EXACT:
        return datetime.fromtimestamp(microseconds / 1_000_000, UTC)
    return _EPOCH + timedelta(microseconds=microseconds)


def to_microseconds(moment: Any, name: str = "a time") -> int:
    """Convert an aware datetime, the argument `name`, to microseconds since 1970. `to_datetime` is its inverse."""
    if not isinstance(moment, datetime):
        raise InvalidInput(f"{name} is a datetime with a time zone, not {type(moment).__name__} {shown(moment)}")
    if moment.utcoffset() is None:
        raise InvalidInput(f"{name} has no time zone; pass for example datetime.now(UTC), not {shown(moment)}")
    since = moment - _EPOCH
    if not _FIRST <= since <= _LAST:  # its own time zone has that year, but UTC does not
        raise InvalidInput(f"{name} is outside of the years 1 to 9999 in UTC: {shown(moment)}")
    return since // timedelta(microseconds=1)


def duration_seconds(
    name: str, value: Any, *, least: float | None = None, most: float | None = MAX_SECONDS, or_else: str = ""
) -> float:
    """Check a duration, the argument `name`, and convert it to seconds.

    It is more than 0 or, if `least` is given, at least that. `most=None` accepts even infinity. `or_else` names what
    else the argument may be, for the message.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        kinds = f"seconds, a timedelta{or_else}" if or_else else "seconds or a timedelta"
        raise InvalidInput(f"{name} is {kinds}, not {type(value).__name__} {shown(value)}")
    if not (seconds > 0 if least is None else seconds >= least) or (most is not None and seconds > most):
        low = "more than 0" if least is None else f"{least:g} or more"
        high = "" if most is None else f" and at most {most:,}"
        raise InvalidInput(f"{name} is {low}{high} seconds, not {shown(value)}")
    return float(min(seconds, MAX_TTL))  # an int may be too large for a float


def ttl_seconds(ttl: Ttl, or_else: str = ", None, holdall.DEFAULT or holdall.KEEP") -> float | None:
    """Check a TTL and convert it to seconds. `or_else` names what else it may be, for the message."""
    return None if ttl is None else duration_seconds("ttl", ttl, most=MAX_TTL, or_else=or_else)


def ttl_microseconds(ttl: float | None) -> int | None:
    """Convert a TTL to microseconds: at least 1, however short it is."""
    return None if ttl is None else max(1, round(ttl * 1_000_000))
