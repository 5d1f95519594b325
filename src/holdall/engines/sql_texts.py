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
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ..programs import Program, Work
from ..ranking import Ranking, Ready, Worked
from ..texts import Texts
from . import postings
from .dialect import Dialect
from .postings import Known, Slice, State, anew, first_few, is_worn, lists, matches, pieces, size_of, unpacked
from .statements import Rows

#: How many bytes are indexed before other writers have their turn.
_SLICE_BYTES = 1 << 20
#: How many changes, and of how many bytes, a search takes in by itself.
_FEW_CHANGES, _FEW_BYTES = 16, 1 << 14
#: How many bytes are tokenised, and how many postings and documents read, without a thread of their own.
_SHORT_TEXTS, _SHORT_LISTS, _FEW_DOCUMENTS = 1 << 12, 512, 16 * postings.PART
#: How many of them are read at a time.
_PAGE = 512

Since = Callable[[str, str, str, dict[str, Any], int], Program[tuple[Rows, str]]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A slice that is ready to be written, if the index is still as it was."""

    state: State
    position: str  # in the feed, after it
    taken: Slice
    additions: list[Any]  # statements
    count: int
    more: bool
    is_anew: bool
    is_over: bool  # there is nothing to write


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
        self._known = Known(-1)
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
            state = anew(state)
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
        if is_anew := is_worn(state):
            state = anew(state)
        rows, position = yield from self._since(state.position, self._columns, "true", {}, limit)
        more = len(rows) == limit
        if len(first := first_few(rows, _SLICE_BYTES)) < len(rows):
            rows, position, more = first, first[-1][-1], True
        taken = Slice(Texts(state.documents))
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

    def _additions(self, taken: Slice) -> list[Any]:
        """Statements that add a slice's lists."""
        insert = self._dialect.insert_many
        return [
            insert(self._dialect.terms, "part, term, documents, times", pieces(taken.added), self._grow),
            insert(self._dialect.texts, "ns, key, document", taken.places, _MOVE),
        ]

    def _take_in(self, rows: Rows, taken: Slice) -> Program[None]:
        # One that changed again while these were read is among them twice.
        newest = {(row[1], row[2]): row for row in rows}.values()
        contents = yield from self._contents(newest)
        if sum(size_of(row) for row in newest) > _SHORT_TEXTS:
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
        changed = {number // postings.PART for number in gone}
        if first % postings.PART and end > first:
            changed.add(first // postings.PART)
        parts: dict[int, tuple[array[int], array[int], array[int]]] = {}
        if changed:
            among, params = self._dialect.among("part", sorted(changed))
            columns = "part, versions, lengths, gone"
            [rows] = yield [(f"SELECT {columns} FROM {self._dialect.documents} WHERE {among}", params)]
            parts = {row[0]: (unpacked("q", row[1]), unpacked("I", row[2]), unpacked("I", row[3])) for row in rows}
        for place, number in enumerate(range(first, end)):
            versions, lengths, _ = parts.setdefault(number // postings.PART, (array("q"), array("I"), array("I")))
            versions.append(added.versions[place])
            lengths.append(added.lengths[place])
        lost = 0
        for number in gone:
            _, lengths, absent = parts[number // postings.PART]
            absent.append(number)
            lost += lengths[number % postings.PART]
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
        any_part, parts_params = self._dialect.among("part", list(range(-(-state.documents // postings.PART))))
        any_term, terms_params = self._dialect.among_texts("term", list(terms))
        sql = f"SELECT term, documents, times FROM {self._dialect.terms} WHERE {any_part} AND {any_term}"
        [rows] = yield [(sql, {**parts_params, **terms_params})]
        found = sum(len(times) for _, _, times in rows)
        if found <= _SHORT_LISTS and (late is None or state.documents <= _FEW_DOCUMENTS):  # else all are copied
            return Ready(matches(terms, [lists(terms, rows, known, late, state)], among))

        def work() -> Iterator[tuple[int, float]]:
            return matches(terms, [lists(terms, rows, known, late, state)], among)

        return Worked((yield Work(work, ())))

    def _late(self, state: State) -> Program[Slice | None]:
        """What the index does not know of this snapshot."""
        if state.position == (yield from self.position()):
            return None
        taken, position = Slice(Texts(state.documents)), state.position
        while True:
            rows, position = yield from self._since(position, self._columns, "true", {}, _PAGE)
            yield from self._take_in(rows, taken)
            if len(rows) < _PAGE:
                return taken

    def _documents(self, state: State) -> Program[Known]:
        """Versions and lengths of all documents: those that came since the last time are read."""
        known = self._known
        if known.is_of(state):
            return known
        fresh, start = known.successor(state)
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
