"""The index of texts in Redis: the lists of `holdall.texts`, in each shard those of its own entries.

    :q            hash, the state: p(osition in the feed), d(ocuments), c(ount), t(otal), n (when it changed), e(poch)
    :q:E:t:TERM   hash: for each part the documents that have a term, and how often each does
    :q:E:d:PART   hash: versions, lengths, gone; :q:E:g the parts in which any are gone
    :q:E:n        hash: which document is an entry's

It is written a slice at a time, small enough for a script of a few milliseconds. A search reads the lists of its terms
and the documents that it does not remember, and scores them here. Nothing is a snapshot: what is read says at which
change the index was, and where that moves meanwhile the search reads again.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from .. import keys
from ..errors import Unavailable
from ..programs import Program, Work
from ..ranking import Ranking, Ready, Worked
from ..texts import MOST_BYTES, Texts
from . import postings
from .postings import Known, Lists, Slice, State, anew, first_few, is_worn, lists, matches, pieces, size_of
from .redis_ops import parted

#: How many changes, and of how many bytes, one slice takes in.
_SLICE, _SLICE_BYTES = 64, 1 << 16
#: How many changes, and of how many bytes, a search takes in by itself.
_FEW_CHANGES, _FEW_BYTES = 16, 1 << 14
#: How many bytes are tokenised, and how many postings read, without a thread of their own.
_SHORT_TEXTS, _SHORT_LISTS = 1 << 12, 512
_PAGE = 500
_MOST_TRIES = 100


class _Moved(Exception):
    """The index has changed while it was read."""


class Asking(Protocol):
    """How a script is asked: in one shard, or in several at once."""

    def one(self, shard: int, script: str, *args: Any) -> Program[list[Any]]: ...

    def each(self, shards: Sequence[int], script: str, *args: Any) -> Program[list[list[Any]]]: ...

    def many(self, script: str, asked: Sequence[tuple[int, Sequence[Any]]]) -> Program[list[Any]]: ...

    def clear(self, shard: int, pattern: str) -> Program[None]: ...


class RedisTexts:
    """The indexes of all shards, as programs that ask scripts."""

    def __init__(self, ask: Asking, shards: Sequence[int]) -> None:
        self._ask = ask
        self._shards = shards
        self._known = {shard: Known(-1) for shard in shards}

    # Learning --------------------------------------------------------------------------------------------------------

    def behind(self) -> Program[int]:
        """How many changes are better learned before a search; 0, too, where it can as well take them in by itself."""
        replies = yield from self._ask.each(self._shards, "texts")
        lag, size = sum(reply[3] for reply in replies), sum(reply[4] for reply in replies)
        return 0 if lag <= _FEW_CHANGES and size <= _FEW_BYTES else lag

    def learn(self, limit: int) -> Program[tuple[int, bool]]:
        """Take in a slice of what has changed: how much that was, and whether there is more."""
        replies = yield from self._ask.each(self._shards, "texts")
        count = 0
        for shard, reply in zip(self._shards, replies, strict=True):
            more = int(_state(reply).position) < int(reply[2])
            while more:
                if count >= limit:
                    return count, True
                taken, more = yield from self._learn_in(shard)
                count += taken
        return count, False

    def learn_all(self, shard: int) -> Program[None]:
        """Have the index know all that has changed, if there is one."""
        reply = yield from self._ask.one(shard, "texts")
        more = _state(reply).changes > 0
        while more:
            _, more = yield from self._learn_in(shard)

    def _learn_in(self, shard: int) -> Program[tuple[int, bool]]:
        for _ in range(_MOST_TRIES):
            try:
                return (yield from self._slice(shard))
            except _Moved:
                continue
        return 0, False  # others do it

    def _slice(self, shard: int) -> Program[tuple[int, bool]]:
        before = state = _state((yield from self._ask.one(shard, "texts")))
        if is_anew := is_worn(state):
            state = anew(state)
        elif not state.changes:  # the first: an epoch unlike any before, of which somebody may remember documents
            state = State(epoch=secrets.randbits(48))
        rows, position, more, contents = yield from self._changed(shard, state.position or "0", _SLICE, before)
        if len(first := first_few(rows, _SLICE_BYTES)) < len(rows):
            rows, position, more = first, str(first[-1][-1]), True
        if is_anew:  # what it knows of these goes away with it
            rows = [(*row[:6], None, row[7]) for row in rows]
        if not rows and not is_anew and int(position) <= int(state.position or "0"):
            return 0, False
        taken = Slice(Texts(state.documents))
        yield from _take_in(rows, contents, taken)
        is_long = len(taken.added.postings) > _SHORT_LISTS
        words = (yield Work(_written, (taken,))) if is_long else _written(taken)
        args = [before.changes, state.epoch, position, int(is_anew), *words]
        if not (yield from self._ask.one(shard, "learn", *args)):
            raise _Moved
        if is_anew:
            yield from self._ask.clear(shard, f":q:{before.epoch}:*")
        return len(rows), more

    def _changed(
        self, shard: int, since: str, size: int, state: State
    ) -> Program[tuple[list[tuple[Any, ...]], str, bool, dict[int, bytes]]]:
        """Rows as a `Slice` takes them in, the position after them, whether there are more, and contents by version."""
        args = (since, "", keys.HIDDEN[0], "", "", size, "t", MOST_BYTES, state.epoch)
        _, found, after, more, _, _, changes = yield from self._ask.one(shard, "changes", *args)
        if int(changes or 0) != state.changes:
            raise _Moved
        rows: list[tuple[Any, ...]] = []
        contents: dict[int, bytes] = {}
        for where, head, value, paths, content, old in found:
            words = head.split(b" ")
            version, length = int(words[0]), None if words[6] == b"-" else int(words[6])
            if content is not None:
                contents[version] = content
            text, index = _text(value), _text(paths)
            document = None if old is None else int(old)
            rows.append((version, *parted(where), text, length, index, document, version))
        return rows, after.decode(), bool(more), contents

    # Ranking ---------------------------------------------------------------------------------------------------------

    def ranking(
        self, terms: tuple[str, ...], among: Collection[int] | None, late: dict[int, bytes]
    ) -> Program[Ranking]:
        """Versions by how well they match, old ones among them. `late` learns where those are that the index does not
        know yet, which are given whether or not they are `among` the others: they may have changed just now."""
        if not terms:
            return Ready(iter(()))
        for _ in range(_MOST_TRIES):
            try:
                several = yield from self._lists(terms, late)
                break
            except _Moved:
                continue
        else:
            raise Unavailable("others write the index of texts faster than it can be read; try again")
        if among is not None:
            among = {*among, *late}
        size = sum(len(times) for one in several for parts in one.parts.values() for _, times in parts)
        if size <= _SHORT_LISTS:
            return Ready(_ranked(terms, several, among))
        return Worked((yield Work(_ranked, (terms, several, among))))

    def _lists(self, terms: tuple[str, ...], places: dict[int, bytes]) -> Program[list[Lists]]:
        replies = yield from self._ask.each(self._shards, "texts", *terms)
        several: list[Lists] = []
        for shard, reply in zip(self._shards, replies, strict=True):
            state = _state(reply)
            is_late = int(state.position or "0") < int(reply[2])
            if not state.documents and not is_late:
                continue
            known = yield from self._documents(shard, state)
            late = (yield from self._late(shard, state, places)) if is_late else None
            rows = [row for term, found in zip(terms, reply[5], strict=True) for row in _parts_of(term, found)]
            several.append(lists(terms, rows, known, late, state))
        return several

    def _late(self, shard: int, state: State, places: dict[int, bytes]) -> Program[Slice]:
        """What the index does not know yet, and where that is."""
        taken, position, more = Slice(Texts(state.documents)), state.position or "0", True
        newest: dict[tuple[str, str], tuple[Any, ...]] = {}
        contents: dict[int, bytes] = {}
        while more:
            rows, position, more, found = yield from self._changed(shard, position, _PAGE, state)
            newest.update(((row[1], row[2]), row) for row in rows)
            places.update((row[0], f"{row[1]}\x00{row[2]}".encode()) for row in rows)
            contents |= found
        yield from _take_in(list(newest.values()), contents, taken)
        return taken

    def _documents(self, shard: int, state: State) -> Program[Known]:
        """Versions and lengths of all documents: those that came since the last time are read."""
        known = self._known[shard]
        if known.is_of(state):
            return known
        fresh, start = known.successor(state)
        _, changes, rows = yield from self._ask.one(shard, "documents", start, postings.PART)
        if int(changes) != state.changes:
            raise _Moved
        fresh.read(known, start, sorted(tuple(row) for row in rows))
        self._known[shard] = fresh  # without a lock, which a fork would copy: of two that come at once, either will do
        return fresh


def _ranked(terms: tuple[str, ...], several: list[Lists], among: Collection[int] | None) -> Iterator[tuple[int, float]]:
    return matches(terms, several, among) if several else iter(())


def _state(reply: list[Any]) -> State:
    position, *numbers = reply[1]
    documents, count, total, changes, epoch = (int(number or 0) for number in numbers)
    return State((position or b"0").decode(), documents, count, total, changes, epoch)


def _text(found: bytes | None) -> str | None:
    return None if found is None else found.decode()


def _parts_of(term: str, found: list[bytes]) -> Iterator[tuple[Any, ...]]:
    """The lists of a term: `3d` are the documents of part 3 that have it, `3t` how often each does."""
    fields = dict(zip(found[::2], found[1::2], strict=True))
    for name, documents in fields.items():
        if name.endswith(b"d"):
            yield term, documents, fields[name[:-1] + b"t"]


def _take_in(rows: Collection[tuple[Any, ...]], contents: dict[int, bytes], taken: Slice) -> Program[None]:
    if sum(size_of(row) for row in rows) > _SHORT_TEXTS:
        yield Work(taken.take_in, (rows, contents))
    else:
        taken.take_in(rows, contents)


def _written(taken: Slice) -> list[Any]:
    """A slice as `learn.lua` takes it."""
    added = taken.added
    words: list[Any] = []
    found = pieces(added) if added.versions else []
    words.append(len(found))
    for part, term, documents, times in found:
        words += [term, part, documents, times]
    parts: dict[int, tuple[array[int], array[int]]] = {}
    for place, number in enumerate(range(added.first, added.first + len(added.versions))):
        versions, lengths = parts.setdefault(number // postings.PART, (array("q"), array("I")))
        versions.append(added.versions[place])
        lengths.append(added.lengths[place])
    words.append(len(parts))
    for part, (versions, lengths) in parts.items():
        words += [part, versions.tobytes(), lengths.tobytes()]
    words.append(len(taken.gone))
    for number in taken.gone:
        words += [number // postings.PART, number % postings.PART, array("I", [number]).tobytes()]
    words.append(len(taken.places))
    for ns, key, number in taken.places:
        words += [f"{ns}\x00{key}", number]
    words.append(len(taken.emptied))
    words += [f"{ns}\x00{key}" for ns, key in taken.emptied]
    return words
