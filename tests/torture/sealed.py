"""Values that show when they are torn: several fields, of many lengths, under one checksum."""

from __future__ import annotations

import json
import zlib
from typing import Any


def sealed(**fields: Any) -> dict[str, Any]:
    """A value of these fields and their seal."""
    return {**fields, "seal": _seal(fields)}


def check(value: dict[str, Any]) -> dict[str, Any]:
    """The value again, if it is whole."""
    fields = dict(value)
    assert fields.pop("seal", None) == _seal(fields), f"torn: {value!r:.300}"
    return value


def _seal(fields: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())
