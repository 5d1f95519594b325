"""The index of texts in SQL: the lists of `holdall.texts`, in tables, written a slice at a time.

    terms       part, term -> documents, times: the numbers of the documents that have it, and how often each does
    documents   part -> versions, lengths, gone: of each document; `gone` lists those that are no more
    texts       ns, key -> document: which one is an entry's
    state       how far in the feed the index has come, how many documents there are, and how long they are

Documents are numbered as they come, and a *part* is 1,024 of them. So a slice writes in one place, at the end, and a
list that is read is in few pieces. Who changed an entry does not wait for any of this: a search that finds the index
behind has it catch up first.
"""

from __future__ import annotations

import threading
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from .. import keys
from ..programs import Program
from ..ranking import Ranking, Ready, in_order
from ..search import Part, bm25
from ..texts import Texts, texts
from .dialect import Dialect
from .statements import Rows

PART = 1024
#: How many bytes are indexed before other writers have their turn.
_SLICE_BYTES = 1 << 20
#: So many more documents may be gone than there are before all are indexed anew.
_SPARE = 4 * PART

Since = Callable[[str, str, str, dict[str, Any], int], Program[tuple[Rows, str]]]


class State(msgspec.Struct, array_like=True):
    """What one row says of the whole index."""

    position: str = ""  # in the feed
    documents: int = 0  # that were ever numbered
    count: int = 0  # of those that are there
    total: int = 0  # of their tokens
    changes: int = 0  # of the index
    epoch: int = 0  # how often it was begun anew


class _Known:
    """What a process remembers of the documents: a few bytes of each."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.changes = -1
        self.versions: array[int] = array("q")
        self.lengths: array[int] = array("I")
        self.gone: frozenset[int] = frozenset()


class SqlTexts:
    """The index as programs over statements. `since` gives rows that changed after a position, as `Sql._since` does."""

    def __init__(self, dialect: Dialect, since: Since, position: Callable[[], Program[str]]) -> None:
        self._dialect = dialect
        self._since = since
        self._position = position
        self._lock = threading.Lock()
        self._known = _Known(-1)
        table, texts = dialect.table, dialect.texts
        self._columns = (
            f"version, ns, key, value, size, fields,"
            f" (SELECT document FROM {texts} AS known WHERE known.ns = {table}.ns AND known.key = {table}.key)"
        )
        grown = [f"{name} = {dialect.followed(f'old.{name}', f'excluded.{name}')}" for name in ("documents", "times")]
        self._grow = f"(part, term) DO UPDATE SET {', '.join(grown)}"
        self._read_state = f"SELECT value FROM {dialect.state} WHERE name = 'texts'"

    # Learning --------------------------------------------------------------------------------------------------------

    def is_begun(self) -> Program[bool]:
        """Whether there is an index at all."""
        [rows] = yield [(self._read_state, {})]
        return bool(rows)

    def is_behind(self) -> Program[bool]:
        state = yield from self._state()
        position = yield from self._position()
        return bool(state.position != position)

    def learn(self, limit: int) -> Program[bool]:
        """Take in a slice of what has changed; whether there is more."""
        dialect = self._dialect
        yield [(f"INSERT INTO {dialect.state} VALUES ('texts', '[]') ON CONFLICT DO NOTHING", {})]
        state = yield from self._state(dialect.for_update)
        if state.documents - state.count > state.count + _SPARE:
            yield [(f"DELETE FROM {table}", {}) for table in (dialect.terms, dialect.documents, dialect.texts)]
            state = State(epoch=state.epoch + 1, changes=state.changes)
        rows, position = yield from self._since(state.position, self._columns, "true", {}, limit)
        more = len(rows) == limit
        if len(first := _first_few(rows)) < len(rows):
            rows, position, more = first, first[-1][-1], True
        contents = yield from self._contents(rows)
        added, gone = Texts(state.documents), []
        places: list[tuple[str, str, int]] = []
        emptied: list[tuple[str, str]] = []
        for version, ns, key, value, size, index, old, _ in rows:
            if old is not None:
                gone.append(old)
            number = None
            if value is not None and not keys.HIDDEN[0] <= ns < keys.HIDDEN[1]:
                number = added.add(version, texts(value, index, contents.get(version), size is not None))
            if number is not None:
                places.append((ns, key, number))
            elif old is not None:
                emptied.append((ns, key))
        lost = yield from self._write_documents(added, gone)
        if added.versions:
            yield [
                dialect.insert_many(dialect.terms, "part, term, documents, times", _pieces(added), self._grow),
                dialect.insert_many(dialect.texts, "ns, key, document", places, _MOVE),
            ]
        if emptied:
            yield [dialect.delete_many(dialect.texts, "ns, key", emptied)]
        state = State(
            position,
            state.documents + len(added.versions),
            state.count + len(added.versions) - len(gone),
            state.total + sum(added.lengths) - lost,
            state.changes + 1,
            state.epoch,
        )
        encoded = msgspec.json.encode(state).decode()
        yield [(f"UPDATE {dialect.state} SET value = :value WHERE name = 'texts'", {"value": encoded})]
        return more

    def _state(self, lock: str = "") -> Program[State]:
        [rows] = yield [(self._read_state + lock, {})]
        return msgspec.json.decode(rows[0][0], type=State) if rows else State()

    def _contents(self, rows: Rows) -> Program[dict[int, bytes]]:
        """The beginnings of the files among these."""
        files = [row[0] for row in rows if row[4]]
        if not files:
            return {}
        among, params = self._dialect.among("version", files)
        [found] = yield [(f"SELECT version, {self._dialect.head} FROM {self._dialect.table} WHERE {among}", params)]
        return {version: bytes(head or b"") for version, head in found}

    def _write_documents(self, added: Texts, gone: list[int]) -> Program[int]:
        """Note the new documents, and which are gone -> how long these were."""
        first, end = added.first, added.first + len(added.versions)
        changed = {number // PART for number in gone}
        if first % PART and end > first:
            changed.add(first // PART)
        parts: dict[int, tuple[array[int], array[int], array[int]]] = {}
        if changed:
            among, params = self._dialect.among("part", sorted(changed))
            columns = "part, versions, lengths, gone"
            [rows] = yield [(f"SELECT {columns} FROM {self._dialect.documents} WHERE {among}", params)]
            parts = {row[0]: (_array("q", row[1]), _array("I", row[2]), _array("I", row[3])) for row in rows}
        for place, number in enumerate(range(first, end)):
            versions, lengths, _ = parts.setdefault(number // PART, (array("q"), array("I"), array("I")))
            versions.append(added.versions[place])
            lengths.append(added.lengths[place])
        lost = 0
        for number in gone:
            _, lengths, absent = parts[number // PART]
            absent.append(number)
            lost += lengths[number % PART]
        if parts:
            rows = [(part, *map(array.tobytes, columns)) for part, columns in sorted(parts.items())]
            columns = "part, versions, lengths, gone"
            yield [self._dialect.insert_many(self._dialect.documents, columns, rows, _REPLACE)]
        return lost

    # Ranking ---------------------------------------------------------------------------------------------------------

    def ranking(self, terms: tuple[str, ...], among: Collection[int] | None) -> Program[Ranking]:
        """Versions by how well they match, old ones among them."""
        state = yield from self._state()
        known = yield from self._documents(state)
        listed = {f"t{place}": term for place, term in enumerate(terms)}
        if not listed:
            return Ready(iter(()))
        names = ", ".join(f":{name}" for name in listed)
        among_parts, params = self._dialect.among("part", list(range(-(-state.documents // PART))))
        sql = f"SELECT term, documents, times FROM {self._dialect.terms} WHERE {among_parts} AND term IN ({names})"
        [rows] = yield [(sql, {**params, **listed})]
        parts: defaultdict[str, list[Part]] = defaultdict(list)
        for term, documents, times in rows:
            parts[term].append((_array("I", documents), bytes(times)))
        scores = bm25([parts[term] for term in terms], known.lengths, state.count, state.total, known.gone)
        versions = known.versions
        if among is not None:
            scores = {number: score for number, score in scores.items() if versions[number] in among}
        return Ready(in_order(scores, versions))

    def _documents(self, state: State) -> Program[_Known]:
        """Versions and lengths of all documents: those that came since the last time are read."""
        known = self._known
        if known.epoch == state.epoch and known.changes == state.changes:
            return known
        fresh = _Known(state.epoch)
        fresh.changes = state.changes
        start = 0
        if known.epoch == state.epoch and known.changes < state.changes:
            start = len(known.versions) // PART
            fresh.versions, fresh.lengths = known.versions[: start * PART], known.lengths[: start * PART]
        sql = (
            f"SELECT part, versions, lengths, gone FROM {self._dialect.documents}"
            f" WHERE part >= :start OR length(gone) > 0 ORDER BY part"
        )
        [rows] = yield [(sql, {"start": start})]
        gone: list[int] = []
        for part, versions, lengths, absent in rows:
            gone += _array("I", absent)
            if part >= start:
                fresh.versions += _array("q", versions)
                fresh.lengths += _array("I", lengths)
        fresh.gone = frozenset(gone)
        with self._lock:
            if (fresh.epoch, fresh.changes) > (self._known.epoch, self._known.changes):
                self._known = fresh
        return fresh


_MOVE = "(ns, key) DO UPDATE SET document = excluded.document"
_REPLACE = "(part) DO UPDATE SET versions = excluded.versions, lengths = excluded.lengths, gone = excluded.gone"


def _first_few(rows: Rows) -> Rows:
    """As many as fit a slice, but one at least."""
    room = _SLICE_BYTES
    for place, row in enumerate(rows):
        room -= row[4] or len(row[3] or "")
        if room < 0:
            return rows[: place + 1]
    return rows


def _pieces(added: Texts) -> list[tuple[Any, ...]]:
    """The lists of new documents, cut where a part ends, in the order in which they are stored."""
    pieces: list[tuple[Any, ...]] = []
    first, last = added.first // PART, (added.first + len(added.versions) - 1) // PART
    for term, (documents, times) in sorted(added.postings.items()):
        if first == last:
            pieces.append((first, term, documents.tobytes(), bytes(times)))
            continue
        by_part: defaultdict[int, list[int]] = defaultdict(list)
        for place, number in enumerate(documents):
            by_part[number // PART].append(place)
        for part, inside in by_part.items():
            start, end = inside[0], inside[-1] + 1
            pieces.append((part, term, documents[start:end].tobytes(), bytes(times[start:end])))
    return pieces if first == last else sorted(pieces)


def _array(kind: str, data: bytes) -> array[int]:
    numbers: array[int] = array(kind)
    numbers.frombytes(bytes(data))
    return numbers
