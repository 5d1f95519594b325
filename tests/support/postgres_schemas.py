"""PostgreSQL schemas that tests use one after the other: to empty one takes less time than to create one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier, Literal

import holdall
from support.servers import postgres_url

_free: list[tuple[str, list[Any]]] = []
_numbers = itertools.count()


@contextmanager
def empty_schema() -> Iterator[str]:
    """Lend a schema that has the tables of a new store, and no rows. Close every store on it before the block ends."""
    name, layout = _free.pop() if _free else _create_schema()
    yield name
    if _empty_schema(name, layout):
        _free.append((name, layout))


def _create_schema() -> tuple[str, list[Any]]:
    name = f"reused_{next(_numbers)}_{os.getpid()}"
    with holdall.open(postgres_url(), schema=name, sweep_interval=None) as store:
        store.setup()
    return name, _layout(name)


def _empty_schema(name: str, layout: list[Any]) -> bool:
    """Remove all rows. False if the schema has other tables, columns or indexes than a new one: it is used no more."""
    connection = _connection(os.getpid())
    try:
        if _layout(name) != layout:
            return False
        tables = sorted({table for table, kind, _, _ in layout if kind == "r"} - {"schema_version"})
        is_filled = SQL(", ").join(SQL("EXISTS (SELECT FROM {})").format(Identifier(name, table)) for table in tables)
        [filled] = connection.execute(SQL("SELECT {}").format(is_filled)).fetchall()
        to_empty = [Identifier(name, table) for table, has_rows in zip(tables, filled, strict=True) if has_rows]
        if to_empty:
            connection.execute(SQL("TRUNCATE {}").format(SQL(", ").join(to_empty)))
        connection.execute(SQL("SELECT setval({}, 1, false)").format(Literal(f'"{name}".versions')))
    except psycopg.errors.LockNotAvailable:  # a process that the test left behind still uses it
        return False
    return True


def _layout(name: str) -> list[Any]:
    query = """
        SELECT relname, relkind, attname, format_type(atttypid, atttypmod)
        FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
        WHERE relnamespace = to_regnamespace(%s) AND attnum > 0 ORDER BY 1, attnum
    """
    return _connection(os.getpid()).execute(query, [f'"{name}"']).fetchall()


@cache
def _connection(pid: int) -> psycopg.Connection[Any]:
    """A connection of this process: one that was inherited by a fork is not used."""
    return psycopg.connect(postgres_url(), autocommit=True, options="-c lock_timeout=2s")
