"""Search cursors for users: an engine's cursor, and a digest of the search that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidInput, shown
from ..ops import Namespace
from .values import to_plain


def digest(prefix: Namespace, filter: Mapping[str, Any] | None, recursive: bool, query: Any) -> str:
    """The digest of a search, so that a cursor of another search is refused."""
    import hashlib  # here, to keep `import holdall` fast

    asked = [prefix, None if filter is None else to_plain(filter, finite=False), recursive]
    if query is not None:
        asked.append(query)
    return hashlib.blake2b(repr(asked).encode(), digest_size=8).hexdigest()


def unwrap(cursor: Any, search: str) -> str:
    """Check that a cursor belongs to the search with this digest, and return the engine's cursor."""
    if not isinstance(cursor, str) or "." not in cursor:
        raise InvalidInput(f"not a search cursor: {shown(cursor)}; pass the next of a page")
    owner, engine_cursor = cursor.split(".", 1)
    if owner != search:
        raise InvalidInput(
            "this cursor belongs to another search: keep the namespace, the query and its mode, the filter, recursive=,"
            " rest= and exact= the same"
        )
    return engine_cursor
