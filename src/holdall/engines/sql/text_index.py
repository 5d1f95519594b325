"""The index of texts in SQL: the lists of `holdall.search.text_index` in tables, updated a slice at a time.

    terms       part, term -> documents, times: the numbers of the documents with the term, and how often each has it
    documents   part -> versions, lengths, gone: of each document; `gone` lists the removed ones
    texts       ns, key -> document: the document of an entry
    state       the position in the feed up to which texts are indexed, the number of documents, and their total length

Documents are numbered in the order in which they are added, and a *part* is 1,024 of them. So a slice writes only at
the end of the tables, and a list is read in few pieces. Writers never wait for the index. If it lags far behind, a
search has it updated first. The few changes that are still missing then, the search reads from the feed itself, within
its own snapshot. So a search never sees half a change, however many writers there are.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ... import ops
from ...errors import Corrupt
from ...runtime.programs import Work
from ...search import postings
from ...search.postings import (
    DocumentCache,
    Slice,
    State,
    build_lists,
    needs_rebuild,
    rank_matches,
    restart_state,
    size_of,
    split_by_part,
    take_first,
    unpack,
)
from ...search.ranking import LocalRanking, Ranking, ThreadRanking
from ...search.text_index import TextIndex
from .dialect import Dialect
from .feed import SqlFeed
from .statements import Rows, SqlProgram, SqlRequest

#: How many bytes one transaction indexes, so that other writers need not wait long.
_SLICE_BYTES = 1 << 20
#: How many changes, and of how many bytes, a search reads from the feed itself.
_FEW_CHANGES, _FEW_BYTES = 16, 1 << 14
#: How many bytes are tokenised, and how many postings and documents read, without a worker thread.
_SHORT_TEXTS, _SHORT_LISTS, _FEW_DOCUMENTS = 1 << 12, 512, 16 * postings.PART
#: How many changes are read at a time.
_PAGE = 512


@dataclass(frozen=True, slots=True)
class Prepared:
    """A slice that can be written if the state of the index is still the same."""

    state: State
    position: str  # in the feed, after the slice
    taken: Slice
    additions: list[Any]  # statements
    count: int
    more: bool
    is_rebuild: bool  # the index is built again from the beginning
    is_empty: bool  # there is nothing to write


class PreparedIndexTexts(ops.Op, frozen=True):
    """`IndexTexts` whose slice is prepared already. It exists only inside an engine."""

    limit: int
    prepared: Prepared | None  # None: nothing could be prepared


class SqlTextIndex:
    """The index as programs over statements."""

    def __init__(self, dialect: Dialect, feed: SqlFeed) -> None:
        self._dialect = dialect
        self._feed = feed
        self._known = DocumentCache(-1)
        table, texts = dialect.table, dialect.texts
        self._columns = (
            f"version, ns, key, value, size, fields,"
            f" (SELECT document FROM {texts} AS known WHERE known.ns = {table}.ns AND known.key = {table}.key)"
        )
        grown = [
            f"{name} = {dialect.concatenate(f'old.{name}', f'excluded.{name}')}" for name in ("documents", "times")
        ]
        self._extend_term = f"(part, term) DO UPDATE SET {', '.join(grown)}"
        self._read_state = f"SELECT value FROM {dialect.state} WHERE name = 'texts'"

    # Indexing --------------------------------------------------------------------------------------------------------

    def has_begun(self) -> SqlProgram[bool]:
        """Return whether anything was ever indexed."""
        [rows] = yield [(self._read_state, {})]
        return bool(rows)

    def index_lag(self) -> SqlProgram[int]:
        """Return how many changes should be indexed before a search; 0 if it can read the few of them itself."""
        state = yield from self._state()
        if state.position == (yield from self._feed.position()):
            return 0
        sizes = "coalesce(size, length(value), 0)"
        rows, _ = yield from self._feed.since(state.position, sizes, "true", {}, _FEW_CHANGES + 1)
        if len(rows) <= _FEW_CHANGES and sum(size for size, _ in rows) <= _FEW_BYTES:
            return 0
        return (yield from self._feed.count_since(state.position))

    def index_slice(self, limit: int, prepared: Prepared | None = None) -> SqlProgram[tuple[int, bool]]:
        """Index a slice of the changes; return how many those were, and whether there are more.

        A slice that was prepared outside the transaction is used if the index has not changed since then.
        """
        dialect = self._dialect
        yield [(f"INSERT INTO {dialect.state} VALUES ('texts', '[]') ON CONFLICT DO NOTHING", {})]
        state = yield from self._state(dialect.for_update)
        if prepared is None or prepared.state != state:
            prepared = yield from self.prepare(limit, state)
        if prepared.is_empty:
            return 0, False
        if prepared.is_rebuild:
            yield [(f"DELETE FROM {table}", {}) for table in (dialect.terms, dialect.documents, dialect.texts)]
            state = restart_state(state)
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

    def prepare(self, limit: int, state: State | None = None) -> SqlProgram[Prepared]:
        """Prepare a slice: everything that takes long, without a write."""
        before = state = state or (yield from self._state())
        if is_rebuild := needs_rebuild(state):
            state = restart_state(state)
        rows, position = yield from self._feed.since(state.position, self._columns, "true", {}, limit)
        more = len(rows) == limit
        if len(first := take_first(rows, _SLICE_BYTES)) < len(rows):
            rows, position, more = first, first[-1][-1], True
        taken = Slice(TextIndex(state.documents))
        is_empty = not rows and not is_rebuild and position == state.position
        additions: list[Any] = []
        if rows:
            if is_rebuild:  # the old documents of these entries are deleted with the old index
                rows = [(*row[:6], None, row[7]) for row in rows]
            yield from self._add_rows(rows, taken)
            if taken.added.versions:
                is_long = len(taken.added.postings) > _SHORT_LISTS
                additions = (yield Work(self._additions, (taken,))) if is_long else self._additions(taken)
        return Prepared(before, position, taken, additions, len(rows), more, is_rebuild, is_empty)

    def _additions(self, taken: Slice) -> list[Any]:
        """Return the statements that add the lists of a slice."""
        insert = self._dialect.insert_many
        return [
            insert(self._dialect.terms, "part, term, documents, times", split_by_part(taken.added), self._extend_term),
            insert(self._dialect.texts, "ns, key, document", taken.documents, _REPLACE_TEXT),
        ]

    def _add_rows(self, rows: Rows, taken: Slice) -> SqlProgram[None]:
        """Add changed rows to a slice."""
        # An entry that changed again while the rows were read is among them twice.
        newest = list({(row[1], row[2]): row for row in rows}.values())
        while newest:
            some = take_first(newest, _SLICE_BYTES)
            newest = newest[len(some) :]
            contents = yield from self._contents(some)
            if sum(size_of(row) for row in some) > _SHORT_TEXTS:
                yield Work(taken.add_rows, (some, contents))
            else:
                taken.add_rows(some, contents)

    def _state(self, lock: str = "") -> SqlProgram[State]:
        [rows] = yield [(self._read_state + lock, {})]
        try:
            return msgspec.json.decode(rows[0][0], type=State) if rows else State()
        except msgspec.DecodeError as error:
            raise Corrupt(f"the state of the index of texts is damaged: {error}") from error

    def _contents(self, rows: Collection[tuple[Any, ...]]) -> SqlProgram[dict[int, bytes]]:
        """Return the beginnings of the files among these rows, by version."""
        files = [row[0] for row in rows if row[4]]
        if not files:
            return {}
        among, params = self._dialect.among("version", files)
        [found] = yield [(f"SELECT version, {self._dialect.head} FROM {self._dialect.table} WHERE {among}", params)]
        return {version: bytes(head or b"") for version, head in found}

    def _write_documents(self, added: TextIndex, gone: list[int]) -> SqlProgram[int]:
        """Add new documents and note the removed ones; return the total length of those."""
        first, end = added.first, added.first + len(added.versions)
        changed = {number // postings.PART for number in gone}
        if first % postings.PART and end > first:
            changed.add(first // postings.PART)
        parts: dict[int, tuple[array[int], array[int], array[int]]] = {}
        if changed:
            among, params = self._dialect.among("part", sorted(changed))
            columns = "part, versions, lengths, gone"
            [rows] = yield [(f"SELECT {columns} FROM {self._dialect.documents} WHERE {among}", params)]
            parts = {row[0]: (unpack("q", row[1]), unpack("I", row[2]), unpack("I", row[3])) for row in rows}
        for index, number in enumerate(range(first, end)):
            versions, lengths, _ = parts.setdefault(number // postings.PART, (array("q"), array("I"), array("I")))
            versions.append(added.versions[index])
            lengths.append(added.lengths[index])
        lost = 0
        for number in gone:
            _, lengths, absent = parts[number // postings.PART]
            absent.append(number)
            lost += lengths[number % postings.PART]
        if parts:
            rows = [(part, *map(array.tobytes, columns)) for part, columns in sorted(parts.items())]
            columns = "part, versions, lengths, gone"
            yield [self._dialect.insert_many(self._dialect.documents, columns, rows, _REPLACE_DOCUMENTS)]
        return lost

    # Ranking ---------------------------------------------------------------------------------------------------------

    def ranking(self, terms: tuple[str, ...], among: Collection[int] | None) -> SqlProgram[Ranking[SqlRequest]]:
        """Rank versions by how well they match; outdated versions may be among them."""
        state = yield from self._state()
        known = yield from self._documents(state)
        if not terms:
            return LocalRanking(iter(()))
        unindexed = yield from self._read_unindexed(state)
        in_parts, parts_params = self._dialect.among("part", list(range(-(-state.documents // postings.PART))))
        in_terms, terms_params = self._dialect.among_texts("term", list(terms))
        sql = f"SELECT term, documents, times FROM {self._dialect.terms} WHERE {in_parts} AND {in_terms}"
        [rows] = yield [(sql, {**parts_params, **terms_params})]
        found = sum(len(times) for _, _, times in rows)
        copies_few = unindexed is None or state.documents <= _FEW_DOCUMENTS  # with unindexed changes, all are copied
        if found <= _SHORT_LISTS and copies_few:
            return LocalRanking(rank_matches(terms, [build_lists(terms, rows, known, unindexed, state)], among))

        def work() -> Iterator[tuple[int, float]]:
            return rank_matches(terms, [build_lists(terms, rows, known, unindexed, state)], among)

        return ThreadRanking((yield Work(work, ())))

    def _read_unindexed(self, state: State) -> SqlProgram[Slice | None]:
        """Return the changes that are not indexed yet, as of this snapshot."""
        if state.position == (yield from self._feed.position()):
            return None
        taken, position = Slice(TextIndex(state.documents)), state.position
        while True:
            rows, position = yield from self._feed.since(position, self._columns, "true", {}, _PAGE)
            yield from self._add_rows(rows, taken)
            if len(rows) < _PAGE:
                return taken

    def _documents(self, state: State) -> SqlProgram[DocumentCache]:
        """Return versions and lengths of all documents; only those added since the last call are read."""
        known = self._known
        if known.is_current(state):
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
            self._known = fresh  # without a lock, which a fork would copy: of two threads, either may win
        return fresh


_REPLACE_TEXT = "(ns, key) DO UPDATE SET document = excluded.document"
_REPLACE_DOCUMENTS = (
    "(part) DO UPDATE SET versions = excluded.versions, lengths = excluded.lengths, gone = excluded.gone"
)
