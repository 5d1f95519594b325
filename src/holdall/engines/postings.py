"""The index of texts as it is kept outside: what engines share that write the lists of `holdall.texts` somewhere.

Documents are numbered as they come, and a *part* is 1,024 of them: versions, lengths and lists are kept by part. A
`State` says how far such an index has come, a `Slice` is what was taken in of the feed and is to be written, and
`Known` is what a process remembers of the documents.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .. import keys
from ..ranking import in_order
from ..search import Part, bm25
from ..texts import Texts, texts
from .statements import Rows

PART = 1024
#: So many more documents may be gone than there are before all are indexed anew.
_SPARE = 4 * PART


class State(msgspec.Struct, array_like=True):
    """What one row says of the whole index."""

    position: str = ""  # in the feed
    documents: int = 0  # that were ever numbered
    count: int = 0  # of those that are there
    total: int = 0  # of their tokens
    changes: int = 0  # of the index
    epoch: int = 0  # how often it was begun anew


class Known:
    """What a process remembers of the documents: a few bytes of each."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.changes = -1
        self.versions: array[int] = array("q")
        self.lengths: array[int] = array("I")
        self.gone: frozenset[int] = frozenset()

    def is_of(self, state: State) -> bool:
        return (self.epoch, self.changes) == (state.epoch, state.changes)

    def successor(self, state: State) -> tuple[Known, int]:
        """What is to be known of a state, with nothing read yet, and from which part on it has to be."""
        fresh = Known(state.epoch)
        fresh.changes = state.changes
        is_older = self.epoch == state.epoch and self.changes < state.changes
        return fresh, len(self.versions) // PART if is_older else 0

    def read(self, before: Known, start: int, rows: Rows) -> None:
        """All documents: those in the parts before `start` are known, the others are in the rows, and who is gone."""
        self.versions, self.lengths = before.versions[: start * PART], before.lengths[: start * PART]
        gone: list[int] = []
        for part, versions, lengths, absent in rows:
            gone += unpacked("I", absent)
            if part >= start:
                self.versions += unpacked("q", versions)
                self.lengths += unpacked("I", lengths)
        self.gone = frozenset(gone)


@dataclass(slots=True)
class Slice:
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


def is_worn(state: State) -> bool:
    """Whether so many documents are gone that all are better indexed again."""
    return state.documents - state.count > state.count + _SPARE


def anew(state: State) -> State:
    """All is indexed again from the beginning."""
    return State(epoch=state.epoch + 1, changes=state.changes)


@dataclass(slots=True)
class Lists:
    """What an index says of the terms of a query, and of the documents that have them."""

    parts: defaultdict[str, list[Part]]
    lengths: array[int]
    versions: array[int]
    gone: frozenset[int]
    count: int
    total: int


def lists(terms: tuple[str, ...], rows: Rows, known: Known, late: Slice | None, state: State) -> Lists:
    """From what was read of each term: (term, documents, times); and with what the index does not know yet."""
    parts: defaultdict[str, list[Part]] = defaultdict(list)
    for term, documents, times in rows:
        parts[term].append((unpacked("I", documents), bytes(times)))
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
    return Lists(parts, lengths, versions, gone, count, total)


def joined(several: Sequence[Lists]) -> Lists:
    """Several indexes as one: the documents of each are numbered on from those of the one before."""
    if len(several) == 1:
        return several[0]
    whole = Lists(defaultdict(list), array("I"), array("q"), frozenset(), 0, 0)
    gone: set[int] = set()
    for one in several:
        first = len(whole.versions)
        for term, parts in one.parts.items():
            whole.parts[term] += [
                (array("I", [number + first for number in documents]), times) for documents, times in parts
            ]
        gone.update(number + first for number in one.gone)
        whole.lengths, whole.versions = whole.lengths + one.lengths, whole.versions + one.versions
        whole.count, whole.total = whole.count + one.count, whole.total + one.total
    whole.gone = frozenset(gone)
    return whole


def matches(
    terms: tuple[str, ...], several: Sequence[Lists], among: Collection[int] | None
) -> Iterator[tuple[int, float]]:
    """Versions by how well they match."""
    whole = joined(several)
    scores = bm25([whole.parts[term] for term in terms], whole.lengths, whole.count, whole.total, whole.gone)
    if among is not None:
        scores = {number: score for number, score in scores.items() if whole.versions[number] in among}
    return in_order(scores, whole.versions)


def first_few(rows: Rows, room: int) -> Rows:
    """As many as fit a slice of so many bytes, but one at least."""
    for place, row in enumerate(rows):
        room -= size_of(row)
        if room < 0:
            return rows[: place + 1]
    return rows


def size_of(row: tuple[Any, ...]) -> int:
    """How many bytes there are to index, about."""
    return row[4] or len(row[3] or "")


def pieces(added: Texts) -> list[tuple[Any, ...]]:
    """The lists of new documents, cut where a part ends, in the order in which they are stored."""
    found: list[tuple[Any, ...]] = []
    first, last = added.first // PART, (added.first + len(added.versions) - 1) // PART
    for term, (documents, times) in sorted(added.postings.items()):
        if first == last:
            found.append((first, term, documents.tobytes(), bytes(times)))
            continue
        by_part: defaultdict[int, list[int]] = defaultdict(list)
        for place, number in enumerate(documents):
            by_part[number // PART].append(place)
        for part, inside in by_part.items():
            start, end = inside[0], inside[-1] + 1
            found.append((part, term, documents[start:end].tobytes(), bytes(times[start:end])))
    return found if first == last else sorted(found)


def unpacked(kind: str, data: bytes) -> array[int]:
    numbers: array[int] = array(kind)
    numbers.frombytes(bytes(data))
    return numbers
