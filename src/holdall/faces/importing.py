"""Moving in, whatever from: how the data of a framework's own store comes into a holdall store.

A `Source` reads what is there, a page at a time, and never writes. What is here already stays, unless what is there is
newer, where that can be told; so an import that was cut short goes on where it ended when it is run again.
"""

from __future__ import annotations

import itertools
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from .. import keys, ops, seam
from ..errors import Conflict, InvalidInput, NotFound
from ..ops import ABSENT, Entry, Namespace
from ..programs import Call, Program, Work, before_retry
from ..store import Store
from .opening import opened

Progress: TypeAlias = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Refused:
    """An item that cannot be stored here, and why."""

    namespace: Namespace
    key: str
    why: str


@dataclass(slots=True)
class Imported:
    """What came of an import."""

    total: int = 0  # items there
    imported: int = 0  # brought here
    vectors: int = 0  # of these, with the vectors that they had
    present: int = 0  # here already, as new or newer
    expired: int = 0  # gone there, too
    refused: list[Refused] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found:
    """An item that is there; with its times, where those are known."""

    put: ops.Put
    created_at: datetime | None = None
    updated_at: datetime | None = None
    expires_at: datetime | None = None

    def is_newer(self, here: Entry | None) -> bool:
        return here is None or (self.updated_at is not None and here.updated_at < self.updated_at)

    def dates(self) -> list[ops.Backdate]:
        if self.created_at is None or self.updated_at is None:
            return []
        return [ops.Backdate(self.put.namespace, self.put.key, self.created_at, self.updated_at, self.expires_at)]


class Source(ABC):
    """A store of a framework's own. Its methods may take long."""

    @abstractmethod
    def count(self) -> int:
        """How many items there are. It is asked first."""

    @abstractmethod
    def page(self) -> list[Found | Refused | None]:
        """The next items, None for one that has expired; nothing after the last."""

    def carried(self, store: Store, puts: list[ops.Put]) -> Program[list[ops.Put]]:  # noqa: ARG002  # for who needs it
        """Puts with the vectors that they have there, where a store can use them."""
        yield from ()
        return puts

    @abstractmethod
    def close(self) -> None:
        """Let go of what was opened. Nothing may have been."""


def import_all(source: Source, into: Any, progress: Progress | None) -> Imported:
    """Bring all that a source has into a URL, a store or a face."""
    store, is_ours = opened(into)
    try:
        return seam.run(store, _moving(store, source, progress))
    finally:
        if is_ours:
            store.close()


async def aimport_all(source: Source, into: Any, progress: Progress | None) -> Imported:
    """`import_all`, awaited."""
    store, is_ours = opened(into)
    try:
        return await seam.arun(store, _moving(store, source, progress))
    finally:
        if is_ours:
            await store.aclose()


def _moving(store: Store, source: Source, progress: Progress | None) -> Program[Imported]:
    keys.check_function("progress", progress)
    with closing(source):
        outcome = Imported(total=(yield Work(source.count, ())))
        done = 0
        while page := (yield Work(source.page, ())):
            items = _sorted_out(store, page, outcome)
            if items:
                yield from _bring(store, items, source, outcome)
            done += len(page)
            if progress is not None:
                yield Call(progress, (done, max(done, outcome.total)))
        return outcome


def _sorted_out(store: Store, page: list[Found | Refused | None], outcome: Imported) -> list[Found]:
    """What of a page can be stored here; of several for one place, the first."""
    items: dict[tuple[Namespace, str], Found] = {}
    for one in page:
        if one is None:
            outcome.expired += 1
        elif isinstance(one, Refused):
            outcome.refused.append(one)
        else:
            place = one.put.namespace, one.put.key
            try:
                seam.check(store, one.put)
            except InvalidInput as error:
                outcome.refused.append(Refused(*place, str(error)))
            else:
                outcome.present += place in items
                items.setdefault(place, one)
    return list(items.values())


def _bring(store: Store, items: list[Found], source: Source, outcome: Imported) -> Program[None]:
    """Those of a page that are newer than what is here: looked at again if somebody writes one of them meanwhile."""
    for tries in itertools.count(1):
        here: list[Entry | None] = yield [ops.Get(item.put.namespace, item.put.key) for item in items]
        newer = [
            (item, replace(item.put, expect=ABSENT if entry is None else entry))
            for item, entry in zip(items, here, strict=True)
            if item.is_newer(entry)
        ]
        puts = yield from source.carried(store, [put for _, put in newer])
        dates = [date for item, _ in newer for date in item.dates()]
        try:
            if puts:
                yield from seam.written(store, [*puts, *dates])
        except Conflict as conflict:
            yield from before_retry(conflict, tries)
            continue
        outcome.vectors += sum(put.vectors is not None for put in puts)
        outcome.imported += len(newer)
        outcome.present += len(items) - len(newer)
        return


def read_only(path: str) -> sqlite3.Connection:
    """A SQLite file that is there, to be read from any thread, one at a time."""
    place = Path(path)
    if not place.is_file():
        raise NotFound(f"there is no file {path!r} to import from")
    return sqlite3.connect(f"{place.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)


@contextmanager
def reading(path: str, whose: str) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise InvalidInput(f"{path!r} is not a database of {whose}: {error}") from error
