"""The index of texts in SQL: the segments of `holdall.search.segments` in tables, updated a slice at a time.

    words     term -> id: the number of each term
    forward   version -> entry, length, data: the terms of each current document; `entry` is a hash of its namespace
              and key
    lists     id -> data: the rows of the segments (`holdall.search.segments.state`)
    state     the state of the index, as one row

Writers never wait for the index. If it lags far behind, a search has it updated first. The few changes that are still
missing then, the search reads from the feed itself, within its own snapshot. So a search never reads half a change,
however many writers there are.

Indexing proceeds in steps, each of which is one short transaction: a slice of changes, a merge of small segments, a
part of a merge of large ones, the deletion of some rows. A step is prepared beforehand where the database allows only
one writer. Rows of an unfinished merge belong to a segment that the state does not list. If its process dies, another
one deletes them.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from ... import ops
from ...errors import Corrupt
from ...model import keys
from ...runtime.programs import Work
from ...search.ranking import LENDERS, LocalRanking, Ranking, ThreadRanking
from ...search.scoring import Weights
from ...search.segments import state as sizes
from ...search.segments.documents import (
    Document,
    Documents,
    decode_directory,
    decode_forward,
    hash_entry,
    unpack,
)
from ...search.segments.kernel import Found, kernel
from ...search.segments.merging import LargeMerge, SmallSegment, add_to_pages, make_small, merge_small
from ...search.segments.state import DIRECTORIES, Merge, Segment, State, find_merge, row_id
from ...search.text_index import size_of, take_first, texts
from ...search.tokens import Numbering, tokens
from .dialect import Dialect
from .feed import SqlFeed
from .statements import Rows, SqlProgram, SqlRequest

#: How many bytes one slice indexes.
_SLICE_BYTES = 1 << 22
#: How many changes, and of how many bytes, a search reads from the feed itself.
_FEW_CHANGES, _FEW_BYTES = 16, 1 << 14
#: How many bytes are tokenised or parsed, and how many documents scored, without a worker thread.
_SHORT_TEXTS, _SHORT_ROWS, _FEW_DOCUMENTS = 1 << 12, 1 << 16, 512
#: A namespace with at most so many entries is scored from their forward lists.
FEW_ENTRIES = 128
#: How many changes are read at a time.
_PAGE = 512
#: How many rows of a deleted segment one step removes.
_DELETED = 2000
#: How many bytes of segments a process keeps in memory.
_CACHE_BYTES = 1 << 26
_COLUMNS = "version, ns, key, value, size, fields"
#: The name of the state; stored data.
STATE = "segments"
#: The ON CONFLICT clauses of inserts.
_REPLACE_FORWARD = "(version) DO UPDATE SET entry = excluded.entry, length = excluded.length, data = excluded.data"
_REPLACE_LIST = "(id) DO UPDATE SET data = excluded.data"
#: The state of the index of the first schema, in which more documents are removed than an index may have.
_REBUILD = msgspec.json.encode(["", 1 << 30, 0, 0, 1 << 30, 0]).decode()


#: Returns the tokens of each text.
_Tokenise: TypeAlias = Callable[[list[str]], Sequence[Sequence[Any]]]
#: A document, the hash of its entry, and its tokens, as far as possible by their numbers.
Tokenised: TypeAlias = tuple[Document, int, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step of indexing: statements, and the state after it; None if another process has changed too much."""

    statements: list[Any]
    apply: Callable[[State], State | None]
    count: int = 0
    more: bool = False  # changes are left
    new: State | None = None  # the state before it, if there was none


class PreparedIndexTexts(ops.Op, frozen=True):
    """`IndexTexts` whose step is prepared already. It exists only inside an engine."""

    limit: int
    prepared: Prepared | None  # None: there was nothing to do


@dataclass(slots=True)
class _Unindexed:
    """Changes that a search reads itself: new documents, and the forward lists of those that were removed."""

    added: list[tuple[int, int, Counter[str]]] = field(default_factory=list)  # version, length, counts
    removed: list[tuple[int, bytes]] = field(default_factory=list)  # length, forward list


class _Cache:
    """Parsed rows by their ids. The least recently used are dropped. It has no lock, which a fork would copy."""

    def __init__(self) -> None:
        self.epoch = 0
        self._rows: dict[int, tuple[Any, int]] = {}

    def get(self, id: int) -> Any:
        found = self._rows.pop(id, None)
        if found is None:
            return None
        self._rows[id] = found
        return found[0]

    def add(self, id: int, row: Any, size: int) -> None:
        self._rows[id] = row, size
        total = sum([size for _, size in self._rows.copy().values()])
        for oldest in list(self._rows)[:-1]:
            if total <= _CACHE_BYTES:
                break
            _, size = self._rows.pop(oldest, (None, 0))
            total -= size


class SqlTextIndex:
    """The index as programs over statements."""

    def __init__(self, dialect: Dialect, feed: SqlFeed) -> None:
        self._dialect = dialect
        self._feed = feed
        self._cache = _Cache()
        self._numbering = 0, Numbering()  # the epoch, and what is known of it
        self._merging: LargeMerge | None = None
        self._owner = 0, 0  # the process, and the number by which it claims merges
        self._read_state = f"SELECT value FROM {dialect.state} WHERE name = '{STATE}'"
        self._decoded = "", State()
        self._has_kernel = False

    # Indexing --------------------------------------------------------------------------------------------------------

    def has_begun(self) -> SqlProgram[bool]:
        """Return whether anything was ever indexed."""
        [rows] = yield [(self._read_state, {})]
        return bool(rows)

    def index_lag(self) -> SqlProgram[int]:
        """Return how many changes should be indexed before a search; 0 if it can read the few of them itself."""
        state, end = yield from self._state_and_end()
        if state.position == end:
            return 0
        length = "coalesce(size, length(value), 0)"
        rows, _ = yield from self._feed.since(state.position, length, "true", {}, _FEW_CHANGES + 1, end)
        if len(rows) <= _FEW_CHANGES and sum(size for size, _ in rows) <= _FEW_BYTES:
            return 0
        return (yield from self._feed.count_since(state.position))

    def count_unindexed(self) -> SqlProgram[int | None]:
        """Return how many changes the index lacks, for `Stats`; None before the first search by text."""
        if not (yield from self.has_begun()):
            return None
        state, end = yield from self._state_and_end()
        return 0 if state.position == end else (yield from self._feed.count_since(state.position))

    def read_documents(self) -> SqlProgram[tuple[State, set[int], dict[int, int]] | None]:
        """Return the state, the versions in the segments, and the length of each current document, for a check.

        None if there is no index, or if it lags.
        """
        if not (yield from self.has_begun()):
            return None
        self._cache = _Cache()  # what is stored counts
        state, end = yield from self._state_and_end()
        if state.position != end:
            return None
        yield from self._load_kernel()
        smalls = yield from self._load_small(state, [segment for segment in state.segments if not segment.parts])
        directories = yield from self._load_directories(state, state.segments)
        parts = [*(small.documents for small in smalls), *directories.values()]
        [rows] = yield [(f"SELECT version, length FROM {self._dialect.forward}", {})]
        return state, {version for documents in parts for version in documents.versions}, dict(rows)

    def read_rows(self, where: str, after: int, limit: int) -> SqlProgram[Rows]:
        """Return entries above a version, as they are indexed."""
        condition = f"value IS NOT NULL AND version > :after AND {where} ORDER BY version LIMIT :limit"
        sql = f"SELECT {_COLUMNS}, version FROM {self._dialect.table} WHERE {condition}"
        rows: Rows = (yield [(sql, {"after": after, "limit": limit})])[0]
        return rows

    def count_with_words(self, rows: Rows) -> SqlProgram[int]:
        """Return how many of some entries have words."""
        return len((yield from self._tokenise(rows, lambda texts: list(map(tokens, texts)))))

    def run_step(
        self, limit: int, prepared: Prepared | None = None, only_changes: bool = False
    ) -> SqlProgram[tuple[int, bool]]:
        """Run a step of indexing; return how many changes it has indexed, and whether more is left to do.

        A step that was prepared outside the transaction is used if the index has not changed too much since then. If
        it has, another process has done this step or another one.
        """
        dialect = self._dialect
        if not (yield from self.has_begun()):
            new = (yield from self._new_state()) if prepared is None or prepared.new is None else prepared.new
            insert = f"INSERT INTO {dialect.state} VALUES ('{STATE}', :value) ON CONFLICT DO NOTHING"
            yield [(insert, {"value": msgspec.json.encode(new).decode()})]
        state = yield from self._state(dialect.for_update)
        after = None if prepared is None else prepared.apply(state)
        if prepared is not None and after is None:
            return prepared.count, True  # not prepared again here, where other writers would have to wait for it
        if after is None:
            prepared = yield from self._prepare(limit, state, only_changes, not dialect.single_writer)
            if prepared is None:
                return 0, False
            after = prepared.apply(state)
            assert after is not None
        assert prepared is not None
        if prepared.statements:
            yield prepared.statements
        encoded = msgspec.json.encode(after).decode()
        yield [(f"UPDATE {dialect.state} SET value = :value WHERE name = '{STATE}'", {"value": encoded})]
        return prepared.count, prepared.more or (not only_changes and self._has_work(after))

    def prepare(self, limit: int) -> SqlProgram[Prepared | None]:
        """Prepare a step outside a transaction that writes: everything that takes long, without a write."""
        if (yield from self.has_begun()):
            return (yield from self._prepare(limit, (yield from self._state()), False, True))
        new = yield from self._new_state()
        prepared = yield from self._prepare(limit, new, False, True)
        return prepared and replace(prepared, new=new)

    def _new_state(self) -> SqlProgram[State]:
        """Return the state of an index that begins."""
        [rows] = yield [(f"SELECT 1 FROM {self._dialect.old_texts[1]} LIMIT 1", {})]
        return State(epoch=secrets.randbits(48), has_old=bool(rows))

    def _has_work(self, state: State) -> bool:
        """Whether this process has a merge or a deletion to do."""
        is_ours = state.merge is not None and state.merge.owner == self._owner_number()
        return bool(
            state.garbage or state.has_old or is_ours or (state.merge is None and find_merge(state, is_idle=True))
        )

    def _prepare(self, limit: int, state: State, only_changes: bool, is_committed: bool) -> SqlProgram[Prepared | None]:
        yield from self._load_kernel()
        if self._merging is not None and (state.merge is None or state.merge.output != self._merging.output):
            self._merging = None  # it is complete, or another process has given it up
        if not only_changes:
            if state.garbage:
                return (yield from self._prepare_deletion(state))
            if _is_urgent(state):
                prepared = yield from self._prepare_merge(state)
                if prepared is not None:
                    return prepared
        prepared = yield from self._prepare_slice(limit, state, is_committed)
        if prepared is None and not only_changes:
            prepared = yield from self._prepare_merge(state, is_idle=True)
            if prepared is None and state.has_old:
                prepared = yield from self._prepare_deletion_of_old()
        return prepared

    # A slice of changes

    def _prepare_slice(self, limit: int, state: State, is_committed: bool) -> SqlProgram[Prepared | None]:
        end = yield from self._feed.indexable_end()
        rows, position = yield from self._feed.since(state.position, _COLUMNS, "true", {}, limit, end)
        more = len(rows) == limit
        if len(first := take_first(rows, _SLICE_BYTES)) < len(rows):
            rows, position, more = first, first[-1][-1], True
        if not rows and position == state.position:
            return None
        # An entry that changed again while the rows were read is among them twice.
        newest = list({(row[1], row[2]): row for row in rows}.values())
        tokenised = yield from self._tokenise(newest, self._known_terms(state).tokenise)
        removed = yield from self._read_removed(newest)
        new = yield from self._number_terms(state, tokenised, is_committed)
        lengths = (document.length for document, _, _ in tokenised)
        is_long = sum(lengths) + sum(length for _, length, _ in removed) > _FEW_DOCUMENTS
        work = (tokenised, removed)
        data, forward = (yield Work(_build_segment, work)) if is_long else _build_segment(*work)
        dialect, insert = self._dialect, self._dialect.insert_many
        statements: list[Any] = []
        if removed:
            among, params = dialect.among("version", [version for version, _, _ in removed])
            statements.append((f"DELETE FROM {dialect.forward} WHERE {among}", params))
        if new:
            statements.append(insert(dialect.words, "term, id", list(new.items()), "DO NOTHING"))
        if forward:
            statements.append(insert(dialect.forward, "version, entry, length, data", forward, _REPLACE_FORWARD))
        if data is not None:
            row = row_id(state.next_segment, 0, 0), data
            statements.append(insert(dialect.lists, "id, data", [row], _REPLACE_LIST))
        count = len(tokenised) - len(removed)
        total = sum(document.length for document, _, _ in tokenised) - sum(length for _, length, _ in removed)

        def apply(now: State) -> State | None:
            if (now.epoch, now.position, now.next_segment) != (state.epoch, state.position, state.next_segment):
                return None
            added = () if data is None else (Segment(now.next_segment, len(tokenised), 0),)
            return now.change(
                position=position,
                count=now.count + count,
                total=now.total + total,
                terms=now.terms + len(new),
                next_segment=now.next_segment + len(added),
                segments=now.segments + added,
            )

        return Prepared(statements, apply, len(rows), more)

    def _tokenise(self, rows: Rows, tokenise: _Tokenise) -> SqlProgram[list[Tokenised]]:
        """Return the documents of changed rows, sorted by namespace."""
        tokenised: list[Tokenised] = []
        while rows:
            some = take_first(rows, _SLICE_BYTES)
            rows = rows[len(some) :]
            contents = yield from self._contents(some)
            if sum(size_of(row) for row in some) > _SHORT_TEXTS:
                yield Work(_tokenise_rows, (some, contents, tokenise, tokenised))
            else:
                _tokenise_rows(some, contents, tokenise, tokenised)
        tokenised.sort(key=lambda item: item[0].ns)
        return tokenised

    def _contents(self, rows: Collection[tuple[Any, ...]]) -> SqlProgram[dict[int, bytes]]:
        """Return the beginnings of the files among these rows, by version."""
        files = [row[0] for row in rows if row[4]]
        if not files:
            return {}
        among, params = self._dialect.among("version", files)
        [found] = yield [(f"SELECT version, {self._dialect.head} FROM {self._dialect.table} WHERE {among}", params)]
        return {version: bytes(head or b"") for version, head in found}

    def _read_removed(self, rows: Rows) -> SqlProgram[list[tuple[int, int, bytes]]]:
        """Return version, length and forward list of the documents that were replaced or deleted by changes.

        Those are the documents with the hash of a changed entry whose version is in no entry any more. So it does no
        harm if two entries have one hash.
        """
        dialect = self._dialect
        among, params = dialect.among("entry", [hash_entry(row[1], row[2]) for row in rows])
        sql = (
            f"SELECT version, length, data FROM {dialect.forward} AS old WHERE {among}"
            f" AND NOT EXISTS (SELECT 1 FROM {dialect.table} AS entry WHERE entry.version = old.version)"
        )
        [found] = yield [(sql, params)]
        return [(version, length, bytes(data)) for version, length, data in found]

    def _number_terms(self, state: State, tokenised: list[Tokenised], is_committed: bool) -> SqlProgram[dict[str, int]]:
        """Replace terms by their numbers. Return the new ones among them, of which frequent ones come first."""
        unnumbered = [
            found
            for _, _, found in tokenised
            if isinstance(found, list) and not all(type(term) is int for term in found)
        ]
        if not unnumbered:
            return {}
        unknown = Counter([term for found in unnumbered for term in found if type(term) is str])
        stored = yield from self._find_terms(state, list(unknown), is_committed)
        new = sorted((term for term in unknown if term not in stored), key=lambda term: -unknown[term])
        numbers = {term: number for number, term in enumerate(new, state.terms)}
        known = stored | numbers
        for found in unnumbered:
            found[:] = [known[term] if type(term) is str else term for term in found]
        return numbers

    def _known_terms(self, state: State) -> Numbering:
        epoch, numbering = self._numbering
        if epoch != state.epoch:
            numbering = kernel().numbering()
            self._numbering = state.epoch, numbering
        return numbering

    def _find_terms(self, state: State, terms: list[str], is_committed: bool = True) -> SqlProgram[dict[str, int]]:
        """Return the numbers of terms, as far as they have one. Numbers that may be rolled back are not remembered."""
        numbering = self._known_terms(state)
        found = {term: number for term in terms if (number := numbering.terms.get(term)) is not None}
        if len(found) < len(terms):
            among, params = self._dialect.among_texts("term", [term for term in terms if term not in found])
            [rows] = yield [(f"SELECT term, id FROM {self._dialect.words} WHERE {among}", params)]
            found.update(rows)
            if is_committed:
                numbering.learn(rows)
        return found

    # Merging

    def _prepare_merge(self, state: State, is_idle: bool = False) -> SqlProgram[Prepared | None]:
        merge = state.merge
        if merge is not None and merge.owner != self._owner_number() and merge.until < time.time():
            return Prepared([], _abandon(merge))
        chosen = find_merge(state, is_idle)
        if (
            chosen
            and sum(segment.documents for segment in chosen) <= sizes.SMALL
            and not any(one.parts for one in chosen)
        ):
            return (yield from self._prepare_small_merge(state, chosen))
        if merge is None and chosen:
            return Prepared([], _claim(tuple(segment.number for segment in chosen), self._owner_number()))
        if merge is not None and merge.owner == self._owner_number():
            return (yield from self._prepare_large_step(state, merge))
        return None

    def _owner_number(self) -> int:
        """Return the number by which this process claims merges: another one after a fork."""
        process, number = self._owner
        if process != os.getpid():
            number = secrets.randbits(48)
            self._owner, self._merging = (os.getpid(), number), None
        return number

    def _prepare_small_merge(self, state: State, chosen: list[Segment]) -> SqlProgram[Prepared]:
        smalls = yield from self._load_small(state, chosen)
        removed = yield from self._find_removed([small.documents for small in smalls])
        documents, data = yield Work(merge_small, (smalls, removed))
        row = row_id(state.next_segment, 0, 0), data
        statements = [self._dialect.insert_many(self._dialect.lists, "id, data", [row], _REPLACE_LIST)]

        def apply(now: State) -> State | None:
            if (now.epoch, now.next_segment) != (state.epoch, state.next_segment) or not set(chosen) <= set(
                now.segments
            ):
                return None
            return now.change(
                next_segment=now.next_segment + 1,
                segments=(*_without(now.segments, chosen), Segment(now.next_segment, documents, 0)),
                garbage=now.garbage + tuple(segment.number for segment in chosen),
            )

        return Prepared(statements, apply)

    def _prepare_large_step(self, state: State, merge: Merge) -> SqlProgram[Prepared]:
        running = self._merging
        if running is None or running.output != merge.output:
            if merge.next_term:  # this process has lost what it knew of the merge
                return Prepared([], _abandon(merge))
            running = self._merging = yield from self._begin_large_merge(state, merge)
        low = merge.next_term
        high = min(low + running.width, running.terms)
        blocks: list[list[bytes]] = []
        for first in running.parts:
            sql = (
                f"SELECT data FROM {self._dialect.lists} WHERE id < :high AND id >= coalesce("
                f"(SELECT max(id) FROM {self._dialect.lists} WHERE id <= :low AND id >= :first), :first) ORDER BY id"
            )
            [rows] = yield [(sql, {"first": first, "low": first + low, "high": first + high})]
            blocks.append([bytes(data) for (data,) in rows])
        rows = yield Work(running.step, (low, high, blocks))
        is_last = high >= running.terms
        if is_last:
            rows = [*rows, *running.directories, *(yield from self._new_counts(state, merge, running))]
        statements = []
        if rows:
            statements.append(self._dialect.insert_many(self._dialect.lists, "id, data", rows, _REPLACE_LIST))

        def apply(now: State) -> State | None:
            if now.merge != merge:
                return None
            if not is_last:
                renewed = msgspec.structs.replace(merge, next_term=high, until=time.time() + sizes.CLAIM)
                return now.change(merge=renewed)
            inputs = [segment for segment in now.segments if segment.number in merge.inputs]
            garbage = now.garbage + merge.inputs + ((now.counts,) if now.counts and running.counts[0] else ())
            added = (Segment(merge.output, running.documents, running.part_count),) if running.documents else ()
            return now.change(
                segments=_without(now.segments, inputs) + added,
                counts=merge.counts if running.counts[0] else now.counts,
                garbage=garbage,
                merge=None,
            )

        return Prepared(statements, apply)

    def _begin_large_merge(self, state: State, merge: Merge) -> SqlProgram[LargeMerge]:
        inputs = [segment for segment in state.segments if segment.number in merge.inputs]
        smalls = yield from self._load_small(state, [segment for segment in inputs if not segment.parts])
        directories = yield from self._load_directories(state, inputs)
        removed = yield from self._find_removed([*directories.values(), *(small.documents for small in smalls)])
        parts = [(row_id(segment, part, 0), documents) for (segment, part), documents in directories.items()]
        return (yield Work(LargeMerge, (merge.output, state.terms, parts, smalls, removed)))  # type: ignore[no-any-return]  # its class

    def _new_counts(self, state: State, merge: Merge, running: LargeMerge) -> SqlProgram[list[tuple[int, bytes]]]:
        """Return the rows of the counts of all large segments, if the merge changes them."""
        if not running.counts[0]:
            return []
        pages: dict[int, bytes] = {}
        if state.counts:
            first = row_id(state.counts, 0, 0)
            sql = f"SELECT id, data FROM {self._dialect.lists} WHERE id >= :low AND id < :high"
            [rows] = yield [(sql, {"low": first, "high": row_id(state.counts, 1, 0)})]
            pages = {id - first: bytes(data) for id, data in rows}
        added: list[tuple[int, bytes]] = yield Work(add_to_pages, (pages, running.counts))
        return [(row_id(merge.counts, 0, page), data) for page, data in added]

    def _find_removed(self, parts: Sequence[Documents]) -> SqlProgram[set[int]]:
        """Return the versions of removed documents of these parts."""
        removed: set[int] = set()
        each, forward = self._dialect.each_number, self._dialect.forward
        for documents in parts:
            source, params = each(documents.versions.tolist())
            sql = f"SELECT value FROM {source} WHERE NOT EXISTS (SELECT 1 FROM {forward} WHERE version = value)"
            [rows] = yield [(sql, params)]
            removed.update(version for (version,) in rows)
        return removed

    # Deleting

    def _prepare_deletion(self, state: State) -> SqlProgram[Prepared]:
        """Delete some rows of a segment that is no longer in use."""
        segment, lists = state.garbage[0], self._dialect.lists
        bounds = {"low": row_id(segment, 0, 0), "high": row_id(segment + 1, 0, 0)}
        [rows] = yield [
            (f"SELECT id FROM {lists} WHERE id >= :low AND id < :high ORDER BY id LIMIT {_DELETED}", bounds)
        ]
        last = rows[-1][0] if len(rows) == _DELETED else bounds["high"] - 1
        statement = f"DELETE FROM {lists} WHERE id >= :low AND id <= :last", {"low": bounds["low"], "last": last}

        def apply(now: State) -> State | None:
            if segment not in now.garbage:
                return None
            if len(rows) == _DELETED:
                return now.change()
            return now.change(garbage=tuple(number for number in now.garbage if number != segment))

        return Prepared([statement], apply)

    def _prepare_deletion_of_old(self) -> SqlProgram[Prepared]:
        """Delete some rows of the index of the first schema."""
        terms, documents, texts = self._dialect.old_texts
        [rows, more] = yield [(f"SELECT 1 FROM {table} LIMIT 1", {}) for table in (terms, texts)]
        # An older release that still runs takes this state as the order to build its index again.
        statements: list[Any] = [(f"UPDATE {self._dialect.state} SET value = '{_REBUILD}' WHERE name = 'texts'", {})]
        for table, columns in ((terms, "part, term"), (texts, "ns, key"), (documents, "part")):
            first = f"SELECT {columns} FROM {table} LIMIT {_DELETED}"
            statements.append((f"DELETE FROM {table} WHERE ({columns}) IN ({first})", {}))

        def apply(now: State) -> State:
            return now.change(has_old=bool(rows or more))

        return Prepared(statements, apply)

    # Reading ---------------------------------------------------------------------------------------------------------

    def _state(self, lock: str = "") -> SqlProgram[State]:
        [rows] = yield [(self._read_state + lock, {})]
        return self._decode_state(rows[0][0] if rows else None)

    def _state_and_end(self) -> SqlProgram[tuple[State, str]]:
        """Return the state, and the position after the last change, by one query: every search asks for both."""
        [[(stored, *row)]] = yield [(f"SELECT ({self._read_state}), {self._feed.position_columns()}", {})]
        return self._decode_state(stored), self._feed.to_position(tuple(row))

    def _decode_state(self, stored: str | None) -> State:
        if stored is None:
            return State()
        text, state = self._decoded
        if text != stored:
            try:
                state = msgspec.json.decode(stored, type=State)
            except msgspec.DecodeError as error:
                raise Corrupt(f"the state of the index of texts is damaged: {error}") from error
            self._decoded = stored, state
        return state

    def _load_kernel(self) -> SqlProgram[None]:
        """Import numpy, which takes long, in a thread."""
        if not self._has_kernel:
            yield Work(kernel, ())
            self._has_kernel = True

    def _load(
        self, state: State, ids: list[int], parse: Callable[[bytes], Any], measure: Callable[[Any], int]
    ) -> SqlProgram[list[Any]]:
        """Return parsed rows; those that this process has parsed before, from its memory."""
        if self._cache.epoch != state.epoch:
            self._cache = _Cache()
            self._cache.epoch = state.epoch
        cache = self._cache
        found = {id: cache.get(id) for id in ids}
        missing = [id for id, row in found.items() if row is None]
        if missing:
            among, params = self._dialect.among("id", missing)
            [rows] = yield [(f"SELECT id, data FROM {self._dialect.lists} WHERE {among}", params)]
            datas = {id: bytes(data) for id, data in rows}
            if len(datas) < len(missing):
                raise Corrupt("rows of the index of texts are missing")
            is_long = sum(map(len, datas.values())) > _SHORT_ROWS
            parsed = (yield Work(_parse_all, (parse, datas))) if is_long else _parse_all(parse, datas)
            for id, row in parsed.items():
                cache.add(id, row, measure(row))
            found.update(parsed)
        return list(found.values())

    def _load_small(self, state: State, segments: Sequence[Segment]) -> SqlProgram[list[SmallSegment]]:
        ids = [row_id(segment.number, 0, 0) for segment in segments]
        return (yield from self._load(state, ids, SmallSegment, lambda small: small.size))

    def _load_directories(
        self, state: State, segments: Sequence[Segment]
    ) -> SqlProgram[dict[tuple[int, int], Documents]]:
        """Return the documents of each part, by its segment and number."""
        places = [(segment.number, part) for segment in segments for part in range(segment.parts)]
        ids = [row_id(segment, DIRECTORIES, part) for segment, part in places]
        loaded = yield from self._load(state, ids, decode_directory, lambda documents: documents.size)
        return dict(zip(places, loaded, strict=True))

    # Ranking ---------------------------------------------------------------------------------------------------------

    def ranking(
        self, op: ops.Search, terms: tuple[str, ...], among: Collection[int] | None
    ) -> SqlProgram[Ranking[SqlRequest]]:
        """Rank versions by how well they match; outdated versions may be among them."""
        if not terms:
            return LocalRanking(iter(()))
        state, end = yield from self._state_and_end()
        yield from self._load_kernel()
        unindexed = yield from self._read_unindexed(state, end)
        stored = yield from self._find_terms(state, list(terms))
        numbers = [stored.get(term, -1) for term in terms]
        smalls = yield from self._load_small(state, [segment for segment in state.segments if not segment.parts])
        weights = yield from self._weigh(state, terms, numbers, smalls, unindexed)
        scored = {
            version: weights.score([counts[term] for term in terms], length)
            for version, length, counts in unindexed.added
            if any(term in counts for term in terms)
        }
        few = max(FEW_ENTRIES, 2 * LENDERS) if op.neighbours else FEW_ENTRIES  # each lends to two at most
        if among is not None and (op.filter is not None or len(among) <= few):
            return (yield from self._rank_few(weights, numbers, among, scored))
        return (yield from self._rank_range(op, state, weights, numbers, smalls, scored))

    def _weigh(
        self,
        state: State,
        terms: tuple[str, ...],
        numbers: list[int],
        smalls: Sequence[SmallSegment],
        unindexed: _Unindexed,
    ) -> SqlProgram[Weights]:
        """Return the weights of terms: exact counts of the documents that have them, as of this snapshot."""
        counts = [sum(small.count(number) for small in smalls) if number >= 0 else 0 for number in numbers]
        if state.counts:
            pages = {number // sizes.PAGE for number in numbers if number >= 0}
            ids = {page: row_id(state.counts, 0, page) for page in pages}
            [rows] = yield [self._select_pages(list(ids.values()))]
            first = row_id(state.counts, 0, 0)
            found = {id - first: unpack("i", bytes(data)) for id, data in rows}
            for index, number in enumerate(numbers):
                page = found.get(number // sizes.PAGE)
                if number >= 0 and page is not None:
                    counts[index] += page[number % sizes.PAGE]
        for _, data in unindexed.removed:
            removed_terms, _ = decode_forward(data)
            for index, number in enumerate(numbers):
                counts[index] -= number in removed_terms
        for _, _, found_terms in unindexed.added:
            for index, term in enumerate(terms):
                counts[index] += term in found_terms
        count = state.count + len(unindexed.added) - len(unindexed.removed)
        total = state.total + sum(length for _, length, _ in unindexed.added)
        total -= sum(length for length, _ in unindexed.removed)
        return Weights(counts, count, total)

    def _select_pages(self, ids: list[int]) -> tuple[str, dict[str, Any]]:
        among, params = self._dialect.among("id", ids)
        return f"SELECT id, data FROM {self._dialect.lists} WHERE {among}", params

    def _rank_few(
        self, weights: Weights, numbers: list[int], among: Collection[int], scored: dict[int, float]
    ) -> SqlProgram[Ranking[SqlRequest]]:
        """Score entries from their forward lists."""
        condition, params = self._dialect.among("version", list(among))
        sql = f"SELECT version, length, data FROM {self._dialect.forward} WHERE {condition}"
        [rows] = yield [(sql, params)]
        scored = {version: score for version, score in scored.items() if version in among}
        work = (weights, numbers, rows, scored)
        if len(rows) <= _FEW_DOCUMENTS:
            return LocalRanking(_score_rows(*work))
        return LocalRanking((yield Work(_score_rows, work)))

    def _rank_range(
        self,
        op: ops.Search,
        state: State,
        weights: Weights,
        numbers: list[int],
        smalls: Sequence[SmallSegment],
        scored: dict[int, float],
    ) -> SqlProgram[Ranking[SqlRequest]]:
        """Score the documents of a range of namespaces from the posting lists."""
        low = keys.encode(op.prefix)
        low, high = keys.below(low) if op.recursive else (low, low + "\x00")
        directories = yield from self._load_directories(state, state.segments)
        parts = [
            (place, documents, *bounds)
            for place, documents in directories.items()
            if (bounds := documents.range_of(low, high))[0] < bounds[1]
        ]
        known = [number for number in numbers if number >= 0]
        ids = [row_id(*place, number) for place, _, _, _ in parts for number in known]
        blocks: dict[int, bytes] = {}
        if ids:
            source, params = self._dialect.each_number(ids)
            data = (
                f"SELECT data FROM {self._dialect.lists} WHERE id <= value AND id >= value >> 32 << 32"
                " ORDER BY id DESC LIMIT 1"
            )
            [rows] = yield [(f"SELECT value, ({data}) FROM {source}", params)]
            blocks = {id: bytes(data) for id, data in rows if data is not None}

        def work() -> Iterator[tuple[int, float]]:
            arithmetic = kernel()
            scores = arithmetic.scores(weights)
            for place, documents, start, stop in parts:
                found: list[Found] = []
                for index, number in enumerate(numbers):
                    data = blocks.get(row_id(*place, number)) if number >= 0 else None
                    if data is not None:
                        lists = arithmetic.parse(data, len(documents)).find(number, start, stop)
                        if lists is not None:
                            found.append(Found(index, *lists))
                scores.add(documents, start, stop, found)
            for small in smalls:
                start, stop = small.documents.range_of(low, high)
                if start < stop:
                    lists_of = [
                        (index, small.block.find(number, start, stop))
                        for index, number in enumerate(numbers)
                        if number >= 0
                    ]
                    scores.add(
                        small.documents,
                        start,
                        stop,
                        [Found(index, *lists) for index, lists in lists_of if lists is not None],
                    )
            scores.add_scored(scored)
            return scores.ranked()

        size = sum(stop - start for _, _, start, stop in parts) + sum(len(small.documents) for small in smalls)
        if size <= _FEW_DOCUMENTS:
            return LocalRanking(work())
        return ThreadRanking((yield Work(work, ())))

    def _read_unindexed(self, state: State, end: str) -> SqlProgram[_Unindexed]:
        """Return the changes that are not indexed yet, as of this snapshot. `end` is the end of the feed."""
        unindexed, position = _Unindexed(), state.position
        if position == end:
            return unindexed
        newest: dict[tuple[str, str], tuple[Any, ...]] = {}
        while True:
            rows, position = yield from self._feed.since(position, _COLUMNS, "true", {}, _PAGE, end)
            newest.update(((row[1], row[2]), row) for row in rows)
            if len(rows) < _PAGE:
                break
        changed = list(newest.values())
        tokenised = yield from self._tokenise(changed, lambda texts: list(map(tokens, texts)))
        unindexed.added = [(document.version, document.length, Counter(found)) for document, _, found in tokenised]
        unindexed.removed = [(length, data) for _, length, data in (yield from self._read_removed(changed))]
        return unindexed


# Steps ---------------------------------------------------------------------------------------------------------------


def _tokenise_rows(rows: Rows, contents: dict[int, bytes], tokenise: _Tokenise, tokenised: list[Tokenised]) -> None:
    """Add the documents of changed rows."""
    entries: list[tuple[str, str, int, int]] = []
    found: list[str] = []
    for version, ns, key, value, size, search_fields, _ in rows:
        if value is None or keys.is_reserved(ns):
            continue
        own = texts(value, search_fields, contents.get(version), size is not None)
        if own:
            found += own
            entries.append((ns, key, version, len(own)))
    each = iter(tokenise(found))
    for ns, key, version, count in entries:
        document = next(each)
        if count > 1:
            parts: Any = (document, *islice(each, count - 1))  # lists or arrays
            document = [term for part in parts for term in (part if isinstance(part, list) else part.tolist())]
        if len(document):
            tokenised.append((Document(ns, version, len(document)), hash_entry(ns, key), document))


def _build_segment(
    tokenised: list[Tokenised], removed: list[tuple[int, int, bytes]]
) -> tuple[bytes | None, list[tuple[int, int, int, bytes]]]:
    """Return the data of a small segment, and the rows of forward lists."""
    if not tokenised and not removed:
        return None, []
    arithmetic = kernel()
    postings = arithmetic.count([found for _, _, found in tokenised])
    counts = [arithmetic.count_terms(postings), arithmetic.count_removed([data for _, _, data in removed])]
    # In the order of versions, in which the table is stored.
    forward = sorted(
        (document.version, entry, document.length, data)
        for (document, entry, _), data in zip(tokenised, arithmetic.forward(postings, len(tokenised)), strict=True)
    )
    return make_small([document for document, _, _ in tokenised], postings, counts), forward


def _is_urgent(state: State) -> bool:
    """Whether there are so many segments that merges must not wait for slices."""
    return len(state.waiting) > 3 * sizes.FACTOR


def _claim(inputs: tuple[int, ...], owner: int) -> Callable[[State], State | None]:
    """Return how the state changes when a process claims a merge."""

    def apply(now: State) -> State | None:
        if now.merge is not None or not set(inputs) <= {segment.number for segment in now.segments}:
            return None
        output = now.next_segment
        merge = Merge(inputs, output, output + 1, owner, 0, time.time() + sizes.CLAIM)
        return now.change(merge=merge, next_segment=output + 2)

    return apply


def _abandon(merge: Merge) -> Callable[[State], State | None]:
    """Return how the state changes when a merge is given up: its rows are deleted."""

    def apply(now: State) -> State | None:
        if now.merge != merge:
            return None
        return now.change(merge=None, garbage=(*now.garbage, merge.output, merge.counts))

    return apply


def _without(segments: tuple[Segment, ...], others: Collection[Segment]) -> tuple[Segment, ...]:
    return tuple(segment for segment in segments if segment not in others)


def _parse_all(parse: Callable[[bytes], Any], datas: dict[int, bytes]) -> dict[int, Any]:
    return {id: parse(data) for id, data in datas.items()}


def _score_rows(
    weights: Weights, numbers: list[int], rows: Rows, scored: dict[int, float]
) -> Iterator[tuple[int, float]]:
    """Rank documents by their forward lists, together with those that have their scores already."""
    scores = kernel().scores(weights)
    documents = Documents.of([row[0] for row in rows], [row[1] for row in rows])
    scores.add(documents, 0, len(rows), kernel().find_terms([bytes(row[2]) for row in rows], numbers))
    scores.add_scored(scored)
    return scores.ranked()
