"""The index of texts in SQL: the lists of `holdall.texts`, in tables, written a slice at a time.

    terms       part, term -> documents, times: the numbers of the documents that have it, and how often each does
    documents   part -> versions, lengths, gone: of each document; `gone` lists those that are no more
    texts       ns, key -> document: which one is an entry's
    state       how far in the feed the index has come, how many documents there are, and how long they are

Documents are numbered as they come, and a *part* is 1,024 of them. So a slice writes in one place, at the end, and a
list that is read is in few pieces. Who changed an entry does not wait for any of this. A search that finds the index
far behind has it catch up first; the few changes that it does not know by then, the search takes in by itself, as part
of its snapshot. So it is never half a change behind, whoever writes meanwhile.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .. import keys
from ..programs import Program, Work
from ..ranking import Ranking, Ready, Worked, in_order
from ..search import Part, bm25
from ..texts import Texts, texts
from .dialect import Dialect
from .statements import Rows

PART = 1024
#: How many bytes are indexed before other writers have their turn.
_SLICE_BYTES = 1 << 20
#: So many more documents may be gone than there are before all are indexed anew.
_SPARE = 4 * PART
#: How many changes, and of how many bytes, a search takes in by itself.
_FEW_CHANGES, _FEW_BYTES = 16, 1 << 14
#: How many bytes are tokenised, and how many postings and documents read, without a thread of their own.
_SHORT_TEXTS, _SHORT_LISTS, _FEW_DOCUMENTS = 1 << 12, 512, 16 * PART
#: How many of them are read at a time.
_PAGE = 512

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

    def read(self, before: _Known, start: int, rows: Rows) -> None:
        """All documents: those in the parts before `start` are known, the others are in the rows, and who is gone."""
        self.versions, self.lengths = before.versions[: start * PART], before.lengths[: start * PART]
        gone: list[int] = []
        for part, versions, lengths, absent in rows:
            gone += _array("I", absent)
            if part >= start:
                self.versions += _array("q", versions)
                self.lengths += _array("I", lengths)
        self.gone = frozenset(gone)


@dataclass(slots=True)
class _Slice:
    """Changes that were taken in: what documents there are of them, and which are gone; and whose they are."""

    added: Texts
    gone: list[int] = field(default_factory=list)
    places: list[tuple[str, str, int]] = field(default_factory=list)
    emptied: list[tuple[str, str]] = field(default_factory=list)

    def take_in(self, rows: Collection[tuple[Any, ...]], contents: dict[int, bytes]) -> None:
        for version, ns, key, value, size, index, old, _ in rows:
            if old is not None:
                self.gone.append(old)
            number = None
            if value is not None and not keys.HIDDEN[0] <= ns < keys.HIDDEN[1]:
                number = self.added.add(version, texts(value, index, contents.get(version), size is not None))
            if number is not None:
                self.places.append((ns, key, number))
            elif old is not None:
                self.emptied.append((ns, key))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A slice that is ready to be written, if the index is still as it was."""

    state: State
    position: str  # in the feed, after it
    taken: _Slice
    additions: list[Any]  # statements
    count: int
    more: bool
    is_anew: bool
    is_over: bool  # there is nothing to write


def _anew(state: State) -> State:
    """All is indexed again from the beginning."""
    return State(epoch=state.epoch + 1, changes=state.changes)


class SqlTexts:
    """The index as programs over statements.

    `since` gives rows that changed after a position, as `Sql._since` does, and `changed` says how many there may be.
    """

    def __init__(
        self,
        dialect: Dialect,
        since: Since,
        changed: Callable[[str], Program[int]],
        position: Callable[[], Program[str]],
    ) -> None:
        self._dialect = dialect
        self._since = since
        self._changed = changed
        self.position = position
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

    def behind(self) -> Program[int]:
        """How many changes are better learned before a search; 0, too, where it can as well take them in by itself."""
        state = yield from self._state()
        if state.position == (yield from self.position()):
            return 0
        sizes = "coalesce(size, length(value), 0)"
        rows, _ = yield from self._since(state.position, sizes, "true", {}, _FEW_CHANGES + 1)
        if len(rows) <= _FEW_CHANGES and sum(size for size, _ in rows) <= _FEW_BYTES:
            return 0
        return (yield from self._changed(state.position))

    def learn(self, limit: int, prepared: Prepared | None = None) -> Program[tuple[int, bool]]:
        """Take in a slice of what has changed: how much that was, and whether there is more.

        It may be prepared before anybody else has to wait; if the index has changed since, it is prepared again.
        """
        dialect = self._dialect
        yield [(f"INSERT INTO {dialect.state} VALUES ('texts', '[]') ON CONFLICT DO NOTHING", {})]
        state = yield from self._state(dialect.for_update)
        if prepared is None or prepared.state != state:
            prepared = yield from self.prepare(limit, state)
        if prepared.is_over:
            return 0, False
        if prepared.is_anew:
            yield [(f"DELETE FROM {table}", {}) for table in (dialect.terms, dialect.documents, dialect.texts)]
            state = _anew(state)
        added, gone = prepared.taken.added, prepared.taken.gone
        lost = yield from self._write_documents(added, gone)
        if prepared.additions:
            yield prepared.additions
        if prepared.taken.emptied:
            yield [dialect.delete_many(dialect.texts, "ns, key", prepared.taken.emptied)]
        state = State(
            prepared.position,
            state.documents + len(added.versions),
            state.count + len(added.versions) - len(gone),
            state.total + sum(added.lengths) - lost,
            state.changes + 1,
            state.epoch,
        )
        encoded = msgspec.json.encode(state).decode()
        yield [(f"UPDATE {dialect.state} SET value = :value WHERE name = 'texts'", {"value": encoded})]
        return prepared.count, prepared.more

    def prepare(self, limit: int, state: State | None = None) -> Program[Prepared]:
        """A slice that is ready to be written: whatever takes long, and nothing that writes."""
        before = state = state or (yield from self._state())
        if is_anew := state.documents - state.count > state.count + _SPARE:
            state = _anew(state)
        rows, position = yield from self._since(state.position, self._columns, "true", {}, limit)
        more = len(rows) == limit
        if len(first := _first_few(rows)) < len(rows):
            rows, position, more = first, first[-1][-1], True
        taken = _Slice(Texts(state.documents))
        is_over = not rows and not is_anew and position == state.position
        additions: list[Any] = []
        if rows:
            if is_anew:  # what it knows of these goes away with it
                rows = [(*row[:6], None, row[7]) for row in rows]
            yield from self._take_in(rows, taken)
            if taken.added.versions:
                is_long = len(taken.added.postings) > _SHORT_LISTS
                additions = (yield Work(self._additions, (taken,))) if is_long else self._additions(taken)
        return Prepared(before, position, taken, additions, len(rows), more, is_anew, is_over)

    def _additions(self, taken: _Slice) -> list[Any]:
        """Statements that add a slice's lists."""
        insert = self._dialect.insert_many
        return [
            insert(self._dialect.terms, "part, term, documents, times", _pieces(taken.added), self._grow),
            insert(self._dialect.texts, "ns, key, document", taken.places, _MOVE),
        ]

    def _take_in(self, rows: Rows, taken: _Slice) -> Program[None]:
        # One that changed again while these were read is among them twice.
        newest = {(row[1], row[2]): row for row in rows}.values()
        contents = yield from self._contents(newest)
        if sum(_size(row) for row in newest) > _SHORT_TEXTS:
            yield Work(taken.take_in, (newest, contents))
        else:
            taken.take_in(newest, contents)

    def _state(self, lock: str = "") -> Program[State]:
        [rows] = yield [(self._read_state + lock, {})]
        return msgspec.json.decode(rows[0][0], type=State) if rows else State()

    def _contents(self, rows: Collection[tuple[Any, ...]]) -> Program[dict[int, bytes]]:
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
        if not terms:
            return Ready(iter(()))
        late = yield from self._late(state)
        any_part, parts_params = self._dialect.among("part", list(range(-(-state.documents // PART))))
        any_term, terms_params = self._dialect.among_texts("term", list(terms))
        sql = f"SELECT term, documents, times FROM {self._dialect.terms} WHERE {any_part} AND {any_term}"
        [rows] = yield [(sql, {**parts_params, **terms_params})]
        found = sum(len(times) for _, _, times in rows)
        if found <= _SHORT_LISTS and (late is None or state.documents <= _FEW_DOCUMENTS):  # else all are copied
            return Ready(_matches(terms, rows, known, late, state, among))
        return Worked((yield Work(_matches, (terms, rows, known, late, state, among))))

    def _late(self, state: State) -> Program[_Slice | None]:
        """What the index does not know of this snapshot."""
        if state.position == (yield from self.position()):
            return None
        taken, position = _Slice(Texts(state.documents)), state.position
        while True:
            rows, position = yield from self._since(position, self._columns, "true", {}, _PAGE)
            yield from self._take_in(rows, taken)
            if len(rows) < _PAGE:
                return taken

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
        sql = (
            f"SELECT part, CASE WHEN part >= :start THEN versions END, CASE WHEN part >= :start THEN lengths END, gone"
            f" FROM {self._dialect.documents} WHERE part >= :start OR length(gone) > 0 ORDER BY part"
        )
        [rows] = yield [(sql, {"start": start})]
        if state.documents > _FEW_DOCUMENTS:
            yield Work(fresh.read, (known, start, rows))
        else:
            fresh.read(known, start, rows)
        if (fresh.epoch, fresh.changes) > (self._known.epoch, self._known.changes):
            self._known = fresh  # without a lock, which a fork would copy: of two that come at once, either will do
        return fresh


_MOVE = "(ns, key) DO UPDATE SET document = excluded.document"
_REPLACE = "(part) DO UPDATE SET versions = excluded.versions, lengths = excluded.lengths, gone = excluded.gone"


def _matches(
    terms: tuple[str, ...],
    rows: Rows,
    known: _Known,
    late: _Slice | None,
    state: State,
    among: Collection[int] | None,
) -> Iterator[tuple[int, float]]:
    """Versions by how well they match, from the lists that were read of each term."""
    parts: defaultdict[str, list[Part]] = defaultdict(list)
    for term, documents, times in rows:
        parts[term].append((_array("I", documents), bytes(times)))
    lengths, versions, gone = known.lengths, known.versions, known.gone
    count, total = state.count, state.total
    if late is not None:
        for term in terms:
            parts[term] += late.added.parts(term)
        count += len(late.added.versions) - len(late.gone)
        total += sum(late.added.lengths) - sum(lengths[number] for number in late.gone)
        lengths, versions, gone = (
            lengths + late.added.lengths,
            versions + late.added.versions,
            gone.union(late.gone),
        )
    scores = bm25([parts[term] for term in terms], lengths, count, total, gone)
    if among is not None:
        scores = {number: score for number, score in scores.items() if versions[number] in among}
    return in_order(scores, versions)


def _first_few(rows: Rows) -> Rows:
    """As many as fit a slice, but one at least."""
    room = _SLICE_BYTES
    for place, row in enumerate(rows):
        room -= _size(row)
        if room < 0:
            return rows[: place + 1]
    return rows


def _size(row: tuple[Any, ...]) -> int:
    """How many bytes there are to index, about."""
    return row[4] or len(row[3] or "")


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
