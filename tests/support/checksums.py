"""Values with a checksum over several fields, so that a partly written value is detected."""

from __future__ import annotations

import json
import zlib
from typing import Any


def sealed(**fields: Any) -> dict[str, Any]:
    """Return a value of these fields and their checksum."""
    return {**fields, "seal": _seal(fields)}


def check(value: dict[str, Any]) -> dict[str, Any]:
    """Check the checksum of a value, and return the value."""
    fields = dict(value)
    assert fields.pop("seal", None) == _seal(fields), f"partly written: {value!r:.300}"
    return value


def _seal(fields: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())
