"""Moving in: what LangGraph's own `SqliteStore` or `PostgresStore` has stored, brought into a holdall store.

Their tables are read, never written. Items come with their times and what is left of their TTLs, oldest change first,
so that the newest there are the newest here; and run again, an import brings what has changed since.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from langgraph.store.base import get_text_at_path

from .. import ops, seam
from ..embed import same_model
from ..errors import InvalidInput, MissingExtra, Unavailable
from ..programs import Program, Work
from ..store import Store
from ..values import decode
from .conn_strings import is_postgres
from .importing import Found, Imported, Progress, Refused, Source, aimport_all, import_all, read_only, reading

_AT_ONCE = 500
_SAMPLES = 5
_Row: TypeAlias = tuple[Any, ...]


def import_from(source: str | os.PathLike[str], into: Any, *, progress: Progress | None = None) -> Imported:
    """Bring the items of a `SqliteStore` (the path of its file) or a `PostgresStore` (its URL) into a store.

    `into` is a URL, a `holdall.Store` or a face. `progress(done, total)` is called as it goes on. Run again, it goes on
    where it ended.
    """
    return import_all(_database(source), into, progress)


async def aimport_from(source: str | os.PathLike[str], into: Any, *, progress: Progress | None = None) -> Imported:
    """`import_from`, awaited."""
    return await aimport_all(_database(source), into, progress)


def _database(source: str | os.PathLike[str]) -> _Database:
    name = os.fspath(source)
    return _PostgresDatabase(name) if is_postgres(name) else _SqliteDatabase(name)


class _Vectors:
    """Brings vectors along, where the store's own model made them: that is tried with the first that come.

    Otherwise, and where an item has none, it is embedded as whatever is put.
    """

    def __init__(self, store: Store, database: _Database) -> None:
        self._embedding = seam.settings(store).embedding
        self._database = database
        self._is_same: bool | None = None  # not known yet

    def carried(self, puts: list[ops.Put]) -> Program[list[ops.Put]]:
        """The puts, with the vectors that they had."""
        if self._embedding is None or self._is_same is False:
            return puts
        there: list[dict[str, bytes]] = yield Work(
            self._database.vectors, ([(".".join(put.namespace), put.key) for put in puts],)
        )
        if self._is_same is None:
            self._is_same = yield from self._try(puts, there)
        if not self._is_same:
            return puts
        model = yield from self._embedding.known_model()
        return [
            replace(put, vectors=ops.Vectors(model, tuple(vectors.values()))) if vectors else put
            for put, vectors in zip(puts, there, strict=True)
        ]

    def _try(self, puts: list[ops.Put], there: list[dict[str, bytes]]) -> Program[bool | None]:
        """Whether the model gives for some texts what they have there; None where there are none to try it with."""
        assert self._embedding is not None
        samples: dict[str, bytes] = {}
        for put, vectors in zip(puts, there, strict=True):
            for name, vector in vectors.items():
                text = _text_at(put.value, name)
                if text is not None and text.strip() and len(samples) < _SAMPLES:
                    samples[text] = vector
        if not samples:
            return None
        given = yield from self._embedding.documents(list(samples))
        return all(map(same_model, samples.values(), given))


def _text_at(value: Any, name: str) -> str | None:
    """The text that LangGraph's stores embedded as this: a path, or one with a number where it led to several."""
    texts = get_text_at_path(value, name)
    if len(texts) == 1:
        return texts[0]
    path, _, place = name.rpartition(".")
    texts = get_text_at_path(value, path) if path and place.isdecimal() else []
    return texts[int(place)] if texts and int(place) < len(texts) else None


def _found(row: _Row) -> Found | None:
    prefix, key, text, *times, minutes = row
    created, updated, expires = map(_moment, times)
    assert updated is not None
    if expires is not None and expires <= datetime.now(UTC):
        return None
    ttl = None
    if expires is not None:
        # PostgresStore keeps whole minutes: of less than one, only the end tells.
        ttl = max(timedelta(minutes=minutes or 0) or expires - updated, timedelta(milliseconds=1))
    value = decode(text if isinstance(text, str) else text.decode())
    return Found(ops.Put(tuple(prefix.split(".")), key, value, ttl), created, updated, expires)


def _moment(time: datetime | str | None) -> datetime | None:
    """A time as their databases give it; SQLite's are text, in UTC whether they say so or not."""
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


# Their databases -----------------------------------------------------------------------------------------------------


class _Database(Source):
    """A table of LangGraph's, read from its oldest change to its newest. Opened by its first use."""

    value = "value"  # as text
    order = "rowid"  # of what was changed at the same time

    def __init__(self, source: str) -> None:
        self._source = source
        self._connection: Any = None
        self._walking: Any = None
        self._has_vectors: bool | None = None
        self._carrying: _Vectors | None = None

    def count(self) -> int:
        with self._translating():
            self._connection = self._connect()
            return int(self._connection.execute("SELECT count(*) FROM store").fetchone()[0])

    def page(self) -> list[Found | Refused | None]:
        with self._translating():
            if self._walking is None:
                there = {column[0] for column in self._connection.execute("SELECT * FROM store LIMIT 0").description}
                lifetime = "expires_at, ttl_minutes" if "ttl_minutes" in there else "NULL, NULL"  # older ones had none
                columns = f"prefix, key, {self.value}, created_at, updated_at, {lifetime}"
                self._walking = self._cursor()
                self._walking.execute(f"SELECT {columns} FROM store ORDER BY updated_at, {self.order}")  # noqa: S608  # ours
            return [_found(row) for row in self._walking.fetchmany(_AT_ONCE)]

    def carried(self, store: Store, puts: list[ops.Put]) -> Program[list[ops.Put]]:
        if self._carrying is None:
            self._carrying = _Vectors(store, self)
        return self._carrying.carried(puts)

    def vectors(self, places: list[tuple[str, str]]) -> list[dict[str, bytes]]:
        """The vectors of items, by field; they have none where there is no table for them."""
        with self._translating():
            if self._has_vectors is None:
                self._has_vectors = self._is_there("store_vectors")
            return self._vectors(places) if self._has_vectors else [{} for _ in places]

    def close(self) -> None:
        for resource in (self._walking, self._connection):
            if resource is not None:
                resource.close()

    @abstractmethod
    def _connect(self) -> Any: ...

    @abstractmethod
    def _cursor(self) -> Any: ...

    @abstractmethod
    def _is_there(self, table: str) -> bool: ...

    @abstractmethod
    def _vectors(self, places: list[tuple[str, str]]) -> list[dict[str, bytes]]: ...

    @abstractmethod
    def _translating(self) -> AbstractContextManager[None]:
        """Their driver's errors as ours."""


class _SqliteDatabase(_Database):
    def _connect(self) -> sqlite3.Connection:
        return read_only(self._source)

    def _cursor(self) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self._connection.cursor()
        return cursor

    def _is_there(self, table: str) -> bool:
        return bool(self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchall())

    def _vectors(self, places: list[tuple[str, str]]) -> list[dict[str, bytes]]:
        sql = "SELECT field_name, embedding FROM store_vectors WHERE prefix = ? AND key = ?"
        return [dict(self._connection.execute(sql, place).fetchall()) for place in places]

    def _translating(self) -> AbstractContextManager[None]:
        return reading(self._source, "LangGraph's SqliteStore")


class _PostgresDatabase(_Database):
    value, order = "value::text", "prefix, key"

    def _connect(self) -> Any:
        import psycopg

        connection = psycopg.connect(self._source)
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return connection

    def _cursor(self) -> Any:
        return self._connection.cursor("holdall_import")  # on the server: it may be large

    def _is_there(self, table: str) -> bool:
        return bool(self._connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()[0])

    def _vectors(self, places: list[tuple[str, str]]) -> list[dict[str, bytes]]:
        rows = self._connection.execute(
            "SELECT place, field_name, embedding::text FROM store_vectors"
            " JOIN unnest(%s::text[], %s::text[]) WITH ORDINALITY AS row (prefix, key, place) USING (prefix, key)",
            ([prefix for prefix, _ in places], [key for _, key in places]),
        )
        found: list[dict[str, bytes]] = [{} for _ in places]
        for place, name, vector in rows:
            numbers = json.loads(vector)
            found[place - 1][name] = struct.pack(f"<{len(numbers)}f", *numbers)
        return found

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            import psycopg
        except ModuleNotFoundError as error:
            raise MissingExtra("this URL needs the package 'psycopg': pip install 'holdall[postgres]'") from error
        try:
            yield
        except psycopg.OperationalError as error:
            raise Unavailable(f"the database to import from cannot be read: {error}") from error
        except psycopg.Error as error:
            raise InvalidInput(f"this is not a database of LangGraph's PostgresStore: {error}") from error
