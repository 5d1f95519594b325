"""The text index in Redis: each shard has the postings of its own entries (see `holdall.search.text_index`).

The walks and the ranker call it. Documents are numbered, and stored in parts. In an epoch E, until the index is
rebuilt, its keys are:

    :q            hash, the state: p position in the feed, d documents, c documents that are not removed, t total length
                  of these, n change number, e epoch
    :q:E:t:TERM   hash, postings: for part N, the documents that have a term (Nd), and how often (Nt)
    :q:E:d:PART   hash, documents of a part: v versions, l lengths, g numbers of removed ones
    :q:E:g        set, the parts that have removed documents
    :q:E:n        hash, entry ID to the number of its document
    :q:E:r        numbers and entry IDs of documents that were removed lately, by change number

The index is written in slices of changes, each small enough for a script of a few milliseconds. A search reads the
postings of its terms, and the documents that this process does not know yet, and computes the scores. Redis has no
snapshots: each reply contains the change number of the index. If it changes while a search reads, the search reads
again. If it changes later, `find_changed` finds the IDs of the documents that were read.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....errors import Unavailable
from ....model import keys
from ....runtime.programs import Work
from ....search.ranking import LocalRanking, Ranking, ThreadRanking
from ....search.scoring import Weights
from ....search.segments.documents import Documents
from ....search.segments.kernel import Found, kernel
from ....search.text_index import MOST_BYTES, TextIndex, size_of, take_first
from ..connections import ConnectionProgram, Request
from ..encoding import parse_size, parse_version, split_id
from ..shards import Shards
from . import postings
from .postings import (
    DocumentCache,
    Lists,
    Slice,
    State,
    build_lists,
    needs_rebuild,
    restart_state,
    split_by_part,
)

#: The most changes, and bytes of these, in one slice.
_SLICE, _SLICE_BYTES = 64, 1 << 16
#: The most changes, and bytes of these, that a search reads without indexing them first.
_FEW_CHANGES, _FEW_BYTES = 16, 1 << 14
#: The most bytes that are tokenised, and postings that are read, without a thread.
_SHORT_TEXTS, _SHORT_LISTS = 1 << 12, 512
_PAGE = 500
_MOST_TRIES = 100


class IndexChanged(Exception):
    """The index has changed while it was read."""


@dataclass(slots=True)
class ReadIndexes:
    """What a search has read of the indexes: by shard, the first state that it read, and the versions of documents."""

    states: dict[int, State] = field(default_factory=dict)
    versions: dict[int, array[int]] = field(default_factory=dict)

    def add(self, shard: int, state: State, versions: array[int]) -> None:
        if shard not in self.states or self.states[shard].epoch != state.epoch:
            self.states[shard] = state
        self.versions[shard] = versions


class RedisTextIndex:
    """The text indexes of all shards."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._known = {shard: DocumentCache(-1) for shard in shards.all}
        self._has_kernel = False  # the first ranking imports numpy, which takes long

    # Indexing --------------------------------------------------------------------------------------------------------

    def index_lag(self) -> ConnectionProgram[int]:
        """Return how many changes to index before a search; 0 if they are few, and the search can read them itself."""
        replies = yield from self._shards.run_on_each(self._shards.all, "postings")
        lag, size = sum(reply[3] for reply in replies), sum(reply[4] for reply in replies)
        return 0 if lag <= _FEW_CHANGES and size <= _FEW_BYTES else lag

    def count_unindexed(self) -> ConnectionProgram[int | None]:
        """Return how many changes the indexes lack, for `Stats`; None before the first search by text."""
        replies = yield from self._shards.run_on_each(self._shards.all, "postings")
        if not any(_parse_state(reply).epoch for reply in replies):
            return None
        return sum(int(reply[3]) for reply in replies)

    def index(self, limit: int) -> ConnectionProgram[tuple[int, bool]]:
        """Index changes, about `limit` of them; return how many were indexed, and whether there are more."""
        replies = yield from self._shards.run_on_each(self._shards.all, "postings")
        count = 0
        for shard, reply in zip(self._shards.all, replies, strict=True):
            has_more = int(_parse_state(reply).position) < int(reply[2])
            while has_more:
                if count >= limit:
                    return count, True
                indexed, has_more = yield from self._index_slice(shard)
                count += indexed
        return count, False

    def catch_up(self, shard: int) -> ConnectionProgram[None]:
        """Index all changes of a shard, if it has an index."""
        reply = yield from self._shards.run(shard, "postings")
        has_more = _parse_state(reply).epoch > 0
        while has_more:
            _, has_more = yield from self._index_slice(shard)

    def _index_slice(self, shard: int) -> ConnectionProgram[tuple[int, bool]]:
        """Index a slice of changes; return how many there were, and whether there are more.

        After `_MOST_TRIES` slices that other clients have indexed first, count one change for each and report more. The
        caller goes on until all is indexed, or as much as it was asked for.
        """
        for _ in range(_MOST_TRIES):
            try:
                return (yield from self._try_index_slice(shard))
            except IndexChanged:
                continue
        return _MOST_TRIES, True

    def _try_index_slice(self, shard: int) -> ConnectionProgram[tuple[int, bool]]:
        before = state = _parse_state((yield from self._shards.run(shard, "postings")))
        if is_rebuilt := needs_rebuild(state):
            state = restart_state(state)
        elif not state.epoch:  # a new index: processes may still know documents from before a flush
            state = State(epoch=1 + secrets.randbits(48))
        rows, position, has_more, contents = yield from self._read_changes(shard, state.position or "0", _SLICE, before)
        if len(first := take_first(rows, _SLICE_BYTES)) < len(rows):
            rows, position, has_more = first, str(first[-1][-1]), True
        if is_rebuilt:  # the documents of the old epoch are deleted with it
            rows = [(*row[:6], None, row[7]) for row in rows]
        if not rows and not is_rebuilt and int(position) <= int(state.position or "0"):
            return 0, False
        slice = Slice(TextIndex(state.documents))
        yield from _tokenise(rows, contents, slice)
        is_long = len(slice.added.postings) > _SHORT_LISTS
        encoded = (yield Work(_encode_slice, (slice,))) if is_long else _encode_slice(slice)
        args = [before.changes, state.epoch, position, int(is_rebuilt), *encoded]
        if not (yield from self._shards.run(shard, "index_texts", *args)):
            raise IndexChanged
        if is_rebuilt:
            yield from self._delete_others(shard)
        return len(rows), has_more

    def clear(self) -> ConnectionProgram[None]:
        """Remove the indexes. The next search by text builds them again, or one at the same time."""
        for shard in self._shards.all:
            yield from self._shards.run_once(shard, "clear_index", [])
            yield from self._delete_others(shard)

    def _delete_others(self, shard: int) -> ConnectionProgram[None]:
        """Delete the keys of all epochs but the present one. An epoch that has passed does not come again."""
        state, cursor = f"{self._shards.prefixes[shard]}:q", b""
        while cursor != b"0":
            cursor, found = yield from self._shards.scan_keys(shard, ":q:*", cursor or b"0")
            # After the scan: then the keys of a newer epoch cannot be among those that it has found.
            epoch = yield from self._shards.execute(shard, ("HGET", state, "e"), self._shards.make_deadline())
            kept = f"{state}:{(epoch or b'').decode()}:".encode()
            yield from self._shards.delete_keys(shard, [key for key in found if not key.startswith(kept)])

    def _read_changes(
        self, shard: int, since: str, size: int, state: State
    ) -> ConnectionProgram[tuple[list[tuple[Any, ...]], str, bool, dict[int, bytes]]]:
        """Read changes: rows for a `Slice`, the position after them, whether there are more, contents by version."""
        args = (since, "", keys.RESERVED_RANGE[0], "", "", size, "t", MOST_BYTES, state.epoch)
        _, found, after, has_more, _, _, changes, _ = yield from self._shards.run(shard, "changes", *args)
        if int(changes or 0) != state.changes:
            raise IndexChanged
        rows: list[tuple[Any, ...]] = []
        contents: dict[int, bytes] = {}
        for entry_id, head, value, paths, content, old in found:
            version, length = parse_version(head), parse_size(head)
            if content is not None:
                contents[version] = content
            text, search_fields = _decode(value), _decode(paths)
            document = None if old is None else int(old)
            rows.append((version, *split_id(entry_id), text, length, search_fields, document, version))
        return rows, after.decode(), bool(has_more), contents

    # Ranking ---------------------------------------------------------------------------------------------------------

    def rank(
        self,
        terms: tuple[str, ...],
        among: Collection[int] | None,
        since: Mapping[int, str],
        changed_ids: dict[int, bytes],
        read: ReadIndexes,
    ) -> ConnectionProgram[Ranking[Request]]:
        """Rank versions by how well they match; some may be outdated. `among` restricts the versions, if it is given.

        Entries that have changed after `since`, the positions of the shards' feeds before `among` was read, are ranked
        too, also if they are not in `among`, because they may be newer than it. So are changes that are not indexed
        yet. The IDs of both are added to `changed_ids`. What was read is added to `read`.
        """
        if not terms:
            return LocalRanking(iter(()))
        for _ in range(_MOST_TRIES):
            try:
                postings_of_shards = yield from self._read_postings(
                    terms, {} if among is None else since, changed_ids, read
                )
                break
            except IndexChanged:
                continue
        else:
            raise Unavailable("other clients change the text index faster than it can be read; try again later")
        if among is not None:
            among = {*among, *changed_ids}
        size = sum(len(times) for one in postings_of_shards for _, times in one.parts.values())
        if size <= _SHORT_LISTS and self._has_kernel:
            return LocalRanking(rank_matches(terms, postings_of_shards, among))
        ranked = yield Work(rank_matches, (terms, postings_of_shards, among))
        self._has_kernel = True
        return ThreadRanking(ranked)

    def find_changed(self, shard: int, since: str, read: ReadIndexes) -> ConnectionProgram[dict[int, bytes]]:
        """Return the versions, as they were read, and IDs of entries that have changed after a version of the feed.

        Raises `IndexChanged` if the index was rebuilt.
        """
        if not (versions := read.versions.get(shard)):
            return {}
        state = read.states[shard]
        args = (state.epoch, state.changes, since)
        _, found = yield from self._shards.run(shard, "changed_documents", *args)
        if found is None:
            raise IndexChanged
        documents = zip(map(int, found[::2]), found[1::2], strict=True)
        return {versions[number]: entry_id for number, entry_id in documents if number < len(versions)}

    def _read_postings(
        self, terms: tuple[str, ...], since: Mapping[int, str], changed_ids: dict[int, bytes], read: ReadIndexes
    ) -> ConnectionProgram[list[Lists]]:
        """Read the postings of terms in all shards, those of changes that are not indexed yet among them."""
        replies = yield from self._shards.run_on_each(self._shards.all, "postings", *terms)
        postings_of_shards: list[Lists] = []
        for shard, reply in zip(self._shards.all, replies, strict=True):
            state = _parse_state(reply)
            last_version = reply[2].decode()
            is_late = int(state.position or "0") < int(last_version)
            if not state.documents and not is_late:
                continue
            known = yield from self._read_documents(shard, state)
            read.add(shard, state, known.versions)
            late = (yield from self._read_late(shard, state, changed_ids)) if is_late else None
            if since.get(shard, last_version) != last_version:
                changed_ids.update((yield from self.find_changed(shard, since[shard], read)))
            rows = [row for term, found in zip(terms, reply[5], strict=True) for row in _list_parts(term, found)]
            postings_of_shards.append(build_lists(terms, rows, known, late, state))
        return postings_of_shards

    def _read_late(self, shard: int, state: State, late_ids: dict[int, bytes]) -> ConnectionProgram[Slice]:
        """Read the changes that are not indexed yet, and add their IDs to `late_ids`."""
        slice, position, has_more = Slice(TextIndex(state.documents)), state.position or "0", True
        newest: dict[tuple[str, str], tuple[Any, ...]] = {}
        contents: dict[int, bytes] = {}
        while has_more:
            rows, position, has_more, found = yield from self._read_changes(shard, position, _PAGE, state)
            newest.update(((row[1], row[2]), row) for row in rows)
            late_ids.update((row[0], f"{row[1]}\x00{row[2]}".encode()) for row in rows)
            contents |= found
        yield from _tokenise(sorted(newest.values()), contents, slice)  # in the order of their versions
        return slice

    def _read_documents(self, shard: int, state: State) -> ConnectionProgram[DocumentCache]:
        """Return the versions and lengths of all documents; only new ones are read."""
        known = self._known[shard]
        if known.is_current(state):
            return known
        fresh, start = known.successor(state)
        last = known.versions[start * postings.PART - 1 : start * postings.PART].tobytes() if start else b""
        _, changes, rows, start = yield from self._shards.run(shard, "documents", start, postings.PART, last)
        if int(changes) != state.changes:
            raise IndexChanged
        fresh.read(known, start, sorted(tuple(row) for row in rows))
        # Without a lock, which a fork could copy while it is held. Of two concurrent results, either is right.
        self._known[shard] = fresh
        return fresh


def rank_matches(
    terms: tuple[str, ...], several: Sequence[Lists], among: Collection[int] | None
) -> Iterator[tuple[int, float]]:
    """Rank versions by their BM25 score, over the lists of several indexes."""
    arithmetic = kernel()
    lists = [[arithmetic.read_list(*one.parts[term], one.removed) for term in terms] for one in several]
    found = [sum(len(numbers) for numbers, _ in of_term) for of_term in zip(*lists, strict=True)]
    weights = Weights(found, sum(one.count for one in several), sum(one.total for one in several))
    scores = arithmetic.scores(weights)
    for one, own in zip(several, lists, strict=True):
        documents: Documents | Lists = one
        if among is not None:
            few = one.find(among)
            documents = Documents.of([one.versions[number] for number in few], [one.lengths[number] for number in few])
            own = [arithmetic.select(*each, few) for each in own]  # noqa: PLW2901  # those of `few`
        scores.add(documents, 0, len(documents.versions), [Found(term, (), *each) for term, each in enumerate(own)])
    return scores.ranked()


def _parse_state(reply: list[Any]) -> State:
    position, *numbers = reply[1]
    documents, count, total, changes, epoch = (int(number or 0) for number in numbers)
    return State((position or b"0").decode(), documents, count, total, changes, epoch)


def _decode(text: bytes | None) -> str | None:
    return None if text is None else text.decode()


def _list_parts(term: str, found: list[bytes]) -> Iterator[tuple[Any, ...]]:
    """List the postings of a term by part: field `3d` has the documents in part 3, `3t` how often each has the term."""
    fields = dict(zip(found[::2], found[1::2], strict=True))
    for part in sorted(int(name[:-1]) for name in fields if name.endswith(b"d")):
        yield term, fields[b"%dd" % part], fields[b"%dt" % part]


def _tokenise(rows: Collection[tuple[Any, ...]], contents: dict[int, bytes], slice: Slice) -> ConnectionProgram[None]:
    """Add rows to a slice, in a thread if their texts are long."""
    if sum(size_of(row) for row in rows) > _SHORT_TEXTS:
        yield Work(slice.add_rows, (rows, contents))
    else:
        slice.add_rows(rows, contents)


def _encode_slice(slice: Slice) -> list[Any]:
    """Encode a slice as five lists for `index_texts.lua`."""
    added = slice.added
    args: list[Any] = []
    found = split_by_part(added) if added.versions else []
    args.append(len(found))
    for part, term, documents, frequencies in found:
        args += [term, part, documents, frequencies]
    parts: dict[int, tuple[array[int], array[int]]] = {}
    for index, number in enumerate(range(added.first, added.first + len(added.versions))):
        versions, lengths = parts.setdefault(number // postings.PART, (array("q"), array("I")))
        versions.append(added.versions[index])
        lengths.append(added.lengths[index])
    args.append(len(parts))
    for part, (versions, lengths) in parts.items():
        args += [part, versions.tobytes(), lengths.tobytes()]
    args.append(len(slice.removed))
    for number in slice.removed:
        args += [number // postings.PART, number % postings.PART, array("I", [number]).tobytes()]
    args.append(len(slice.documents))
    for ns, key, number in slice.documents:
        args += [f"{ns}\x00{key}", number]
    args.append(len(slice.emptied))
    args += [f"{ns}\x00{key}" for ns, key in slice.emptied]
    return args
