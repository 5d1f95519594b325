"""The text index of a shard, as it is stored and as it is in memory. `text_index` reads and writes it.

Documents are numbered in the order of indexing. A *part* is 1,024 of them: versions, lengths and lists are stored by
part. A `State` describes the whole index. A `Slice` has indexed changes that are to be written. `DocumentCache` is a
process's cache of the documents. `Lists` are what a search reads.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ....model import keys
from ....search.segments.documents import Sizes
from ....search.text_index import TextIndex, texts

#: Rows of a reply, as tuples.
Rows: TypeAlias = list[tuple[Any, ...]]

PART = 1024
#: The index is rebuilt when more documents were removed than exist, plus this many.
_SPARE = 4 * PART


@dataclass(frozen=True, slots=True)
class State:
    """The state of the whole index, stored as one hash."""

    position: str = ""  # in the feed
    documents: int = 0  # numbered so far
    count: int = 0  # of the current documents
    total: int = 0  # of their tokens
    changes: int = 0  # of the index: how many slices were written
    epoch: int = 0  # a random number, and one more after each rebuild: another index has another one


class DocumentCache:
    """A process's cache of the documents: a few bytes of each."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.changes = -1
        self.versions: array[int] = array("q")
        self.lengths: array[int] = array("I")
        self.removed: array[int] = array("I")

    def is_current(self, state: State) -> bool:
        """Whether the cache is up to date."""
        return (self.epoch, self.changes) == (state.epoch, state.changes)

    def successor(self, state: State) -> tuple[DocumentCache, int]:
        """An empty cache for a newer state, and the first part that must be read."""
        fresh = DocumentCache(state.epoch)
        fresh.changes = state.changes
        is_older = self.epoch == state.epoch and self.changes < state.changes
        return fresh, len(self.versions) // PART if is_older else 0

    def read(self, before: DocumentCache, start: int, rows: Rows) -> None:
        """Fill the cache: parts before `start` come from the older cache, the others from the rows."""
        self.versions, self.lengths = before.versions[: start * PART], before.lengths[: start * PART]
        for part, versions, lengths, absent in rows:
            self.removed += unpack("I", absent)
            if part >= start:
                self.versions += unpack("q", versions)
                self.lengths += unpack("I", lengths)


@dataclass(slots=True)
class Slice:
    """Indexed changes: new documents, removed documents, and the entries of both."""

    added: TextIndex
    removed: list[int] = field(default_factory=list)
    documents: list[tuple[str, str, int]] = field(default_factory=list)
    emptied: list[tuple[str, str]] = field(default_factory=list)

    def add_rows(self, rows: Collection[tuple[Any, ...]], contents: dict[int, bytes]) -> None:
        """Index changed rows; `contents` has the contents of files by version."""
        for version, ns, key, value, size, search_fields, old, _ in rows:
            if old is not None:
                self.removed.append(old)
            number = None
            if value is not None and not keys.is_reserved(ns):
                found = texts(value, search_fields, contents.get(version), size is not None)
                number = self.added.add(version, found)
            if number is not None:
                self.documents.append((ns, key, number))
            elif old is not None:
                self.emptied.append((ns, key))


def needs_rebuild(state: State) -> bool:
    """Whether so many documents were removed that the index should be rebuilt."""
    return state.documents - state.count > state.count + _SPARE


def restart_state(state: State) -> State:
    """The state in which a rebuild starts."""
    return State(epoch=state.epoch + 1, changes=state.changes)


@dataclass(slots=True)
class Lists:
    """The posting lists of a query's terms in one index, and the documents that they name."""

    parts: dict[str, tuple[array[int], bytearray]]
    lengths: array[int]
    versions: array[int]
    removed: array[int]
    count: int
    total: int

    @property
    def sizes(self) -> Sizes:
        """One class for all: to find those of all lengths for each search would take longer than they save."""
        return Sizes((0, *[1] * 15), bytes([1 << 4]) * len(self.lengths))

    def find(self, versions: Collection[int]) -> list[int]:
        """Find the documents of these versions, sorted. Documents are numbered in the order of their versions."""
        places = ((bisect_left(self.versions, version), version) for version in versions)
        return sorted(at for at, version in places if at < len(self.versions) and self.versions[at] == version)


def build_lists(terms: tuple[str, ...], rows: Rows, known: DocumentCache, late: Slice | None, state: State) -> Lists:
    """Build the lists of rows (term, documents, times), and of changes that are not indexed yet (`late`).

    The rows of a term are in the order of their parts.
    """
    parts = {term: (array("I"), bytearray()) for term in terms}
    for term, documents, times in rows:
        parts[term][0].frombytes(documents)
        parts[term][1].extend(times)
    lengths, versions, removed = known.lengths, known.versions, known.removed
    count, total = state.count, state.total
    if late is not None:
        for term in terms:
            for numbers, counts in late.added.parts(term):
                parts[term][0].extend(numbers)
                parts[term][1].extend(counts)
        count += len(late.added.versions) - len(late.removed)
        total += sum(late.added.lengths) - sum(lengths[number] for number in late.removed)
        lengths, versions = lengths + late.added.lengths, versions + late.added.versions
        removed = removed + array("I", late.removed)
    return Lists(parts, lengths, versions, removed, count, total)


def split_by_part(added: TextIndex) -> list[tuple[Any, ...]]:
    """Split the lists of new documents by part, in the order in which they are stored."""
    found: list[tuple[Any, ...]] = []
    first, last = added.first // PART, (added.first + len(added.versions) - 1) // PART
    for term, (documents, times) in sorted(added.postings.items()):
        if first == last:
            found.append((first, term, documents.tobytes(), bytes(times)))
            continue
        by_part: defaultdict[int, list[int]] = defaultdict(list)
        for index, number in enumerate(documents):
            by_part[number // PART].append(index)
        for part, inside in by_part.items():
            start, end = inside[0], inside[-1] + 1
            found.append((part, term, documents[start:end].tobytes(), bytes(times[start:end])))
    return found if first == last else sorted(found)


def unpack(kind: str, data: bytes) -> array[int]:
    """Convert stored bytes to numbers."""
    numbers: array[int] = array(kind)
    numbers.frombytes(bytes(data))
    return numbers
