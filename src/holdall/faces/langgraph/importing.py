"""Importing the data of LangGraph's own `SqliteStore` or `PostgresStore` into a holdall store.

Their tables are only read. Items keep their times and expiry, and are imported in the order of change, so that the
newest there are the newest here. Run again, an import copies the changes since then.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from langgraph.store.base import get_text_at_path

from ... import Store, ops
from ...core import face_api
from ...core.face_api import StoreProgram, Vectors, Work
from ...errors import InvalidInput, MissingExtra, Unavailable
from ..importing import (
    Imported,
    Progress,
    Refused,
    Source,
    SourceItem,
    aimport_all,
    import_all,
    open_read_only,
    translate_sqlite_errors,
)
from .conn_strings import is_postgres

_PAGE_SIZE = 500  # rows
_SAMPLES = 5  # texts that are embedded to compare the models
_Row: TypeAlias = tuple[Any, ...]


def import_from(source: str | os.PathLike[str], into: Any, *, progress: Progress | None = None) -> Imported:
    """Import the items of a `SqliteStore` (the path of its file) or a `PostgresStore` (its URL) into a store.

    `into` is a URL, a `holdall.Store` or a face. `progress(done, total)` is called after each page. An import that was
    interrupted continues when it is run again.
    """
    return import_all(_database(source), into, progress)


async def aimport_from(source: str | os.PathLike[str], into: Any, *, progress: Progress | None = None) -> Imported:
    """`import_from`, awaited."""
    return await aimport_all(_database(source), into, progress)


def _database(source: str | os.PathLike[str]) -> _Database:
    name = os.fspath(source)
    return _PostgresDatabase(name) if is_postgres(name) else _SqliteDatabase(name)


class _Vectors:
    """Copies vectors, if the store's own model made them. The first vectors are compared to find that out.

    Other items, and those without vectors, are embedded when they are put.
    """

    def __init__(self, store: Store, database: _Database) -> None:
        self._embedding = face_api.options_of(store).embedding
        self._database = database
        self._is_same_model: bool | None = None  # None: not known yet

    def add_vectors(self, puts: list[ops.Put]) -> StoreProgram[list[ops.Put]]:
        """Return the puts with the vectors that their items have in the database."""
        if self._embedding is None or self._is_same_model is False:
            return puts
        addresses = [(".".join(put.namespace), put.key) for put in puts]
        existing: list[dict[str, bytes]] = yield Work(self._database.read_vectors, (addresses,))
        if self._is_same_model is None:
            self._is_same_model = yield from self._compare_models(puts, existing)
        if not self._is_same_model:
            return puts
        model = yield from self._embedding.get_model()
        return [
            ops.replace(put, vectors=Vectors(model, tuple(vectors.values()))) if vectors else put
            for put, vectors in zip(puts, existing, strict=True)
        ]

    def _compare_models(self, puts: list[ops.Put], existing: list[dict[str, bytes]]) -> StoreProgram[bool | None]:
        """Whether the store's model gives some texts the vectors that they have; None if there are no such texts."""
        assert self._embedding is not None
        samples: dict[str, bytes] = {}
        for put, vectors in zip(puts, existing, strict=True):
            for name, vector in vectors.items():
                text = _text_at(put.value, name)
                if text is not None and text.strip() and len(samples) < _SAMPLES:
                    samples[text] = vector
        if not samples:
            return None
        embedded = yield from self._embedding.embed_documents(list(samples))
        return all(map(face_api.is_same_model, samples.values(), embedded))


def _text_at(value: Any, name: str) -> str | None:
    """Return the text that LangGraph's stores embedded under a name: a path, with a number if it leads to several."""
    texts = get_text_at_path(value, name)
    if len(texts) == 1:
        return texts[0]
    path, _, index = name.rpartition(".")
    texts = get_text_at_path(value, path) if path and index.isdecimal() else []
    return texts[int(index)] if texts and int(index) < len(texts) else None


def _read_row(row: _Row) -> SourceItem | None:
    """Convert a row to an item; None if the item has expired."""
    prefix, key, text, *times, minutes = row
    created, updated, expires = map(_parse_time, times)
    assert updated is not None
    if expires is not None and expires <= datetime.now(UTC):
        return None
    ttl = None
    if expires is not None:
        # PostgresStore stores whole minutes: a shorter TTL is known only from the expiry.
        ttl = max(timedelta(minutes=minutes or 0) or expires - updated, timedelta(milliseconds=1))
    value = face_api.decode_value(text if isinstance(text, str) else text.decode())
    return SourceItem(ops.Put(tuple(prefix.split(".")), key, value, ttl), created, updated, expires)


def _parse_time(time: datetime | str | None) -> datetime | None:
    """Return a time of a row as an aware datetime. SQLite's times are text in UTC, with or without an offset."""
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


# Databases -----------------------------------------------------------------------------------------------------------


class _Database(Source):
    """The table of a LangGraph store, read in the order of change. `count` opens it."""

    value = "value"  # an SQL expression for the value as text
    order = "rowid"  # the order of items that changed at the same time

    def __init__(self, source: str) -> None:
        self._source = source
        self._connection: Any = None
        self._rows: Any = None
        self._has_vectors: bool | None = None
        self._vectors: _Vectors | None = None

    def count(self) -> int:
        with self._translate_errors():
            self._connection = self._connect()
            return int(self._connection.execute("SELECT count(*) FROM store").fetchone()[0])

    def read_page(self) -> list[SourceItem | Refused | None]:
        with self._translate_errors():
            if self._rows is None:
                present = {column[0] for column in self._connection.execute("SELECT * FROM store LIMIT 0").description}
                has_ttl = "ttl_minutes" in present  # which old versions do not have
                lifetime = "expires_at, ttl_minutes" if has_ttl else "NULL, NULL"
                columns = f"prefix, key, {self.value}, created_at, updated_at, {lifetime}"
                self._rows = self._cursor()
                self._rows.execute(f"SELECT {columns} FROM store ORDER BY updated_at, {self.order}")  # noqa: S608  # ours
            return [_read_row(row) for row in self._rows.fetchmany(_PAGE_SIZE)]

    def add_vectors(self, store: Store, puts: list[ops.Put]) -> StoreProgram[list[ops.Put]]:
        if self._vectors is None:
            self._vectors = _Vectors(store, self)
        return self._vectors.add_vectors(puts)

    def read_vectors(self, addresses: list[tuple[str, str]]) -> list[dict[str, bytes]]:
        """Return the vectors of items by field name; none if there is no table of vectors."""
        with self._translate_errors():
            if self._has_vectors is None:
                self._has_vectors = self._has_table("store_vectors")
            return self._select_vectors(addresses) if self._has_vectors else [{} for _ in addresses]

    def close(self) -> None:
        for resource in (self._rows, self._connection):
            if resource is not None:
                resource.close()

    @abstractmethod
    def _connect(self) -> Any: ...

    @abstractmethod
    def _cursor(self) -> Any: ...

    @abstractmethod
    def _has_table(self, table: str) -> bool: ...

    @abstractmethod
    def _select_vectors(self, addresses: list[tuple[str, str]]) -> list[dict[str, bytes]]: ...

    @abstractmethod
    def _translate_errors(self) -> AbstractContextManager[None]:
        """Raise the errors of the driver as errors of holdall."""


class _SqliteDatabase(_Database):
    def _connect(self) -> sqlite3.Connection:
        return open_read_only(self._source)

    def _cursor(self) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self._connection.cursor()
        return cursor

    def _has_table(self, table: str) -> bool:
        return bool(self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchall())

    def _select_vectors(self, addresses: list[tuple[str, str]]) -> list[dict[str, bytes]]:
        sql = "SELECT field_name, embedding FROM store_vectors WHERE prefix = ? AND key = ?"
        return [dict(self._connection.execute(sql, address).fetchall()) for address in addresses]

    def _translate_errors(self) -> AbstractContextManager[None]:
        return translate_sqlite_errors(self._source, "LangGraph's SqliteStore")


class _PostgresDatabase(_Database):
    value, order = "value::text", "prefix, key"

    def _connect(self) -> Any:
        return connect_read_only(self._source)

    def _cursor(self) -> Any:
        return self._connection.cursor("holdall_import")  # a server-side cursor: the table may be large

    def _has_table(self, table: str) -> bool:
        return bool(self._connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()[0])

    def _select_vectors(self, addresses: list[tuple[str, str]]) -> list[dict[str, bytes]]:
        rows = self._connection.execute(
            "SELECT number, field_name, embedding::text FROM store_vectors"
            " JOIN unnest(%s::text[], %s::text[]) WITH ORDINALITY AS row (prefix, key, number) USING (prefix, key)",
            ([prefix for prefix, _ in addresses], [key for _, key in addresses]),
        )
        found: list[dict[str, bytes]] = [{} for _ in addresses]
        for number, name, vector in rows:
            numbers = json.loads(vector)
            found[number - 1][name] = struct.pack(f"<{len(numbers)}f", *numbers)
        return found

    def _translate_errors(self) -> AbstractContextManager[None]:
        return translate_postgres_errors("LangGraph's PostgresStore")


def connect_read_only(source: str) -> Any:
    """Open a PostgreSQL database for reading: all reads see it as it is at the first one."""
    import psycopg

    connection = psycopg.connect(source)
    connection.read_only = True
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    return connection


@contextmanager
def translate_postgres_errors(owner: str) -> Iterator[None]:
    """Raise psycopg's errors as errors of holdall. `owner` names the class that should have written the tables."""
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise MissingExtra("PostgreSQL needs the package 'psycopg': pip install 'holdall[postgres]'") from error
    try:
        yield
    except psycopg.OperationalError as error:
        raise Unavailable(f"cannot read the database to import from: {error}") from error
    except psycopg.Error as error:
        raise InvalidInput(f"the URL is not a database of {owner}: {error}") from error
