"""The words that SQL programs and those who run them share."""

from __future__ import annotations

from typing import Any, TypeAlias

#: SQL with named parameters (`:ns`), and their values.
Statement: TypeAlias = tuple[str, dict[str, Any]]
Rows: TypeAlias = list[tuple[Any, ...]]

#: Whether a row is an entry, and not the tombstone of one or expired.
LIVE = "value IS NOT NULL AND (expires IS NULL OR expires > :now)"
#: The same of the row that an insert finds in its place.
OLD_IS_LIVE = "old.value IS NOT NULL AND (old.expires IS NULL OR old.expires > :now)"
