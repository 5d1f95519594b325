"""Cursors as users have them: an engine's own, and which search it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import InvalidInput, shown
from .ops import Namespace
from .values import to_plain


def digest(prefix: Namespace, filter: Mapping[str, Any] | None, recursive: bool, query: Any) -> str:
    """What a cursor belongs to, so that one of another search is refused."""
    import hashlib  # not before it is needed

    asked = [prefix, None if filter is None else to_plain(filter, finite=False), recursive]
    if query is not None:
        asked.append(query)
    return hashlib.blake2b(repr(asked).encode(), digest_size=8).hexdigest()


def unwrapped(cursor: Any, query: str) -> str:
    if not isinstance(cursor, str) or "." not in cursor:
        raise InvalidInput(f"not a search cursor: {shown(cursor)}; pass a page's next")
    owner, mark = cursor.split(".", 1)
    if owner != query:
        raise InvalidInput(
            "this cursor belongs to another search: keep the namespace, the query and its mode, the filter, recursive="
            " and rest= the same"
        )
    return mark
