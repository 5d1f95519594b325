"""Statements, which SQL programs yield and drivers run, and conditions that many of them have in common."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from ... import ops
from ...model import keys
from ...ops import Namespace
from ...runtime.programs import Work

#: SQL with named parameters (`:ns`), and their values.
Statement: TypeAlias = tuple[str, dict[str, Any]]
#: SQL to run once for each tuple of parameters, in the order in which the SQL names them.
ManyTimes: TypeAlias = tuple[str, list[tuple[Any, ...]]]
Rows: TypeAlias = list[tuple[Any, ...]]

T = TypeVar("T")
#: A program that runs on one connection: it yields statements and is sent their rows, or `Work`.
SqlRequest: TypeAlias = Iterable[Statement | ManyTimes] | Work
SqlProgram: TypeAlias = Generator[SqlRequest, Any, T]

# Live rows -----------------------------------------------------------------------------------------------------------

#: The table of `feed.DeletedTrees`, as these conditions name it.
TREES = "holdall_trees"


def in_deleted_tree(row: str = "", tree: str = "true") -> str:
    """Return the condition that a row, which is no tombstone, was deleted with its tree (`feed.DeletedTrees`).

    Entries that had expired by then were not: their end is the expiry. `tree` is a condition for the tree.
    """
    return (
        f"EXISTS (SELECT 1 FROM {TREES} AS tree WHERE {tree} AND {row}version <= tree.until AND {row}ns >= tree.low"
        f" AND {row}ns < tree.high AND ({row}expires IS NULL OR {row}expires > tree.deleted)"
        f" AND (tree.path IS NULL OR ({row}body IS NOT NULL AND {row}key >= tree.path AND {row}key < tree.path_high"
        f" AND ({row}key = tree.path OR {row}key >= tree.path_low))))"
    )


def outside_deleted_trees(row: str = "") -> str:
    """Return the opposite condition. Without deleted trees, a database reads their empty table once a statement."""
    return f"(NOT EXISTS (SELECT 1 FROM {TREES}) OR NOT {in_deleted_tree(row)})"


def live(row: str = "") -> str:
    """Return the condition that a row (`"old."`: the row of that name) is an entry: not deleted, and not expired."""
    return f"{row}value IS NOT NULL AND ({row}expires IS NULL OR {row}expires > :now) AND {outside_deleted_trees(row)}"


LIVE = live()
#: The condition that a row is a tombstone, or an entry that has not expired.
UNEXPIRED = "(expires IS NULL OR expires > :now)"
#: `LIVE` for the row of the same key that an insert found.
OLD_IS_LIVE = live("old.")
#: The same at the time that the insert writes, so that the database need not compute `:now` again.
OLD_IS_LIVE_THEN = OLD_IS_LIVE.replace(":now", "excluded.updated")


# Rows of a namespace, a folder or a key ------------------------------------------------------------------------------

#: The condition that a row is the entry at a path or one below it; `at_or_below` has its parameters.
AT_OR_BELOW = "key >= :key AND key < :high AND (key = :key OR key >= :low)"


def within(prefix: Namespace, recursive: bool, params: dict[str, Any], hides: bool = False) -> str:
    """Return the condition that a row is in a namespace, or below it too, and add its parameters.

    `hides`: and not in a hidden namespace below it.
    """
    low = keys.encode(prefix)
    if not recursive:
        params["low"] = low
        return "AND ns = :low"
    if hides:
        params["hidden_low"], params["hidden_high"] = keys.hidden_below(low)
        return f"{within(prefix, True, params)} AND NOT (ns >= :hidden_low AND ns < :hidden_high)"
    low, high = keys.below(low)
    if high is None:
        params.update(reserved_low=keys.RESERVED_RANGE[0], reserved_high=keys.RESERVED_RANGE[1])
        return "AND NOT (ns >= :reserved_low AND ns < :reserved_high)"
    params.update(low=low, high=high)
    return "AND ns >= :low AND ns < :high"


def chosen_by(op: ops.Forget, params: dict[str, Any]) -> str:
    """Return the condition that a row is one that `Forget` names, and add its parameters."""
    if op.key is None:
        return within(op.namespace, op.recursive, params)
    params.update(ns=keys.encode(op.namespace), key=op.key)
    return "AND ns = :ns AND key = :key"


def at_or_below(ns: str, path: str) -> dict[str, Any]:
    """Return the parameters of `AT_OR_BELOW`."""
    low, high = keys.in_folder(path.rstrip("/") + "/")
    return {"ns": ns, "key": path, "low": low, "high": high}


# Assignments ---------------------------------------------------------------------------------------------------------


def assignments(columns: Mapping[str, str]) -> str:
    """Return further assignments of an UPDATE: each column, and the expression that it is set to."""
    return "".join(f", {name} = {expression}" for name, expression in columns.items())
