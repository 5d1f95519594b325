"""Importing: copy the data of a framework's own store into a holdall store.

A `Source` reads the other store a page at a time, and never writes to it. An entry that is here already is kept, unless
the source's item is known to be newer. So an import that was interrupted can be run again, and continues.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from .. import ABSENT, Entry, Store, ops
from ..core import face_api
from ..core.face_api import Backdate, Call, StoreProgram, Work, retry_conflicts
from ..errors import FileNotFound, InvalidInput
from ..ops import Namespace
from .base import open_store

Progress: TypeAlias = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Refused:
    """An item that cannot be stored here, and why."""

    namespace: Namespace
    key: str
    why: str


@dataclass(slots=True)
class Imported:
    """The result of an import."""

    total: int = 0  # items in the source
    imported: int = 0  # items written here
    vectors: int = 0  # written items that kept their vectors
    present: int = 0  # items that are here already, as new or newer
    expired: int = 0  # items that have expired in the source
    refused: list[Refused] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SourceItem:
    """An item of the source, with its times if the source knows them."""

    put: ops.Put
    created_at: datetime | None = None
    updated_at: datetime | None = None
    expires_at: datetime | None = None

    def is_newer_than(self, entry: Entry | None) -> bool:
        """Whether this item should replace the entry that is here."""
        return entry is None or (self.updated_at is not None and entry.updated_at < self.updated_at)

    def backdates(self) -> list[Backdate]:
        """Return the op that gives the imported entry its original times, if they are known."""
        if self.created_at is None or self.updated_at is None:
            return []
        return [Backdate(self.put.namespace, self.put.key, self.created_at, self.updated_at, self.expires_at)]


class Source(ABC):
    """A framework's own store. Its methods may block; a program calls them with `Work`."""

    @abstractmethod
    def count(self) -> int:
        """Open the source and return its number of items. This is the first call."""

    @abstractmethod
    def read_page(self) -> list[SourceItem | Refused | None]:
        """Return the next items, None for one that has expired; an empty list after the last."""

    def add_vectors(self, store: Store, puts: list[ops.Put]) -> StoreProgram[list[ops.Put]]:  # noqa: ARG002  # for overrides
        """Return the puts with the vectors that their items have in the source, if the store can use them."""
        yield from ()
        return puts

    @abstractmethod
    def close(self) -> None:
        """Close the source, which may not have been opened."""


def import_all(source: Source, into: Any, progress: Progress | None) -> Imported:
    """Import all items of a source into a URL, a store or a face."""
    store, is_ours = open_store(into)
    try:
        return face_api.run(store, _import(store, source, progress))
    finally:
        if is_ours:
            store.close()


async def aimport_all(source: Source, into: Any, progress: Progress | None) -> Imported:
    """`import_all`, awaited."""
    store, is_ours = open_store(into)
    try:
        return await face_api.arun(store, _import(store, source, progress))
    finally:
        if is_ours:
            await store.aclose()


def _import(store: Store, source: Source, progress: Progress | None) -> StoreProgram[Imported]:
    face_api.check_function("progress", progress)
    with closing(source):
        outcome = Imported(total=(yield Work(source.count, ())))
        done = 0
        while page := (yield Work(source.read_page, ())):
            items = _select_storable(store, page, outcome)
            if items:
                yield from _write_newer(store, items, source, outcome)
            done += len(page)
            if progress is not None:
                yield Call(progress, (done, max(done, outcome.total)))
        return outcome


def _select_storable(store: Store, page: list[SourceItem | Refused | None], outcome: Imported) -> list[SourceItem]:
    """Return the items of a page that can be stored, the first for each namespace and key; count the others."""
    items: dict[tuple[Namespace, str], SourceItem] = {}
    for item in page:
        if item is None:
            outcome.expired += 1
        elif isinstance(item, Refused):
            outcome.refused.append(item)
        else:
            address = item.put.namespace, item.put.key
            try:
                face_api.check_op(store, item.put)
            except InvalidInput as error:
                outcome.refused.append(Refused(*address, str(error)))
            else:
                outcome.present += address in items
                items.setdefault(address, item)
    return list(items.values())


def _write_newer(store: Store, items: list[SourceItem], source: Source, outcome: Imported) -> StoreProgram[None]:
    """Write the items that are newer than the entries here, and compare again if one of those has changed meanwhile."""

    def attempt() -> StoreProgram[None]:
        entries: list[Entry | None] = yield [ops.Get(item.put.namespace, item.put.key) for item in items]
        newer = [
            (item, ops.replace(item.put, expect=ABSENT if entry is None else entry))
            for item, entry in zip(items, entries, strict=True)
            if item.is_newer_than(entry)
        ]
        puts = yield from source.add_vectors(store, [put for _, put in newer])
        backdates = [backdate for item, _ in newer for backdate in item.backdates()]
        if puts:
            yield from face_api.execute(store, [*puts, *backdates])
        outcome.vectors += sum(put.vectors is not None for put in puts)
        outcome.imported += len(newer)
        outcome.present += len(items) - len(newer)

    yield from retry_conflicts(attempt)


def open_read_only(path: str) -> sqlite3.Connection:
    """Open an existing SQLite file for reading. Any thread may use the connection, one at a time."""
    file = Path(path)
    if not file.is_file():
        raise FileNotFound(f"there is no file {path!r} to import from")
    return sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)


@contextmanager
def translate_sqlite_errors(path: str, owner: str) -> Iterator[None]:
    """Raise SQLite's errors as `InvalidInput`. `owner` names the class that should have written the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise InvalidInput(f"{path!r} is not a database of {owner}: {error}") from error
