"""The words that SQL programs and those who run them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

#: SQL with named parameters (`:ns`), and their values.
Statement: TypeAlias = tuple[str, dict[str, Any]]
#: SQL to run once for each tuple of parameters, which are in the order in which it names them.
ManyTimes: TypeAlias = tuple[str, list[tuple[Any, ...]]]
Rows: TypeAlias = list[tuple[Any, ...]]


def live(row: str = "") -> str:
    """Whether a row (`"old."`: of that name) is an entry, and not the tombstone of one or expired."""
    return f"{row}value IS NOT NULL AND ({row}expires IS NULL OR {row}expires > :now)"


LIVE = live()
#: Whether a row is an entry or a tombstone, and not one that has expired and is to become one.
UNEXPIRED = "(expires IS NULL OR expires > :now)"
#: The same of the row that an insert finds in its place.
OLD_IS_LIVE = live("old.")
#: The same as of the time that the insert says, which a database need not work out again.
OLD_IS_LIVE_THEN = OLD_IS_LIVE.replace(":now", "excluded.updated")


def assigned(columns: Mapping[str, str]) -> str:
    """Further assignments of an UPDATE: what each column is set to."""
    return "".join(f", {name} = {expression}" for name, expression in columns.items())
