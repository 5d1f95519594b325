"""The state of a stored text index: its segments, and which of them to merge next.

A slice of changes becomes a *small* segment, which is one row. Eight segments of about one size are merged into one.
Large ones are cut into *parts* of at most `PART` documents. The documents of a segment are in the order of their
namespaces, so a namespace is one range of documents in each segment.

The id of a row is made of three numbers: the segment, a section in it, and a position in the section.

    small segment   section 0, position 0: everything
    large segment   section P, position T: a block of posting lists of part P, whose first term is T
                    section `DIRECTORIES`, position P: the documents of part P
    counts          section 0, position N: how many documents have each of the terms of page N

The counts are those of all large segments together. A small segment has its own, which may be negative: it also counts
the documents that were removed. So the sum is exact, although the lists still name removed documents.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

#: The most documents in a part. Their numbers have 16 bits, and so do the lengths of lists.
PART = (1 << 16) - 1
#: The most parts of a segment that is merged from others: as many as there are sections beside `DIRECTORIES`.
MOST_PARTS = 15
#: The most documents of a small segment.
SMALL = 1 << 13
#: So many segments of about one size are merged, and each size is so many times the one before.
FACTOR = 8
#: So many terms have their counts in one row.
PAGE = 1 << 10
#: The section of a large segment that has its documents.
DIRECTORIES = 15
#: Seconds after which another process may take over from one that merges.
CLAIM = 60.0
#: All segments are merged when they have so many more documents than exist.
SPARE = 4096


class Segment(NamedTuple):
    """A segment: its number, how many documents it had when it was written, and its parts; 0 if it is small."""

    number: int
    documents: int
    parts: int


class Merge(msgspec.Struct, array_like=True, frozen=True):
    """A merge of segments in progress: which, by which process, how far, and until when it may stay silent."""

    inputs: tuple[int, ...]
    output: int
    counts: int  # the segment of the new counts
    owner: int
    next_term: int
    until: float


class State(msgspec.Struct, array_like=True, frozen=True):
    """The state of the whole index, stored as one row."""

    position: str = ""  # in the feed
    epoch: int = 0  # a random number: another index has another one
    changes: int = 0  # how often the state was written
    count: int = 0  # of the current documents
    total: int = 0  # of their tokens
    terms: int = 1  # the number of the next new term
    next_segment: int = 1
    counts: int = 0  # the segment that has the counts of the large ones; 0 if there are none
    segments: tuple[Segment, ...] = ()
    garbage: tuple[int, ...] = ()  # segments whose rows are to be deleted
    merge: Merge | None = None
    has_old: bool = True  # rows of the index of the first schema may be left

    def change(self, **fields: Any) -> State:
        """Return the next state."""
        return msgspec.structs.replace(self, changes=self.changes + 1, **fields)

    @property
    def indexed(self) -> int:
        """How many documents the segments have, removed ones included."""
        return sum(segment.documents for segment in self.segments)

    @property
    def waiting(self) -> list[Segment]:
        """The segments that are in no merge yet."""
        inputs = () if self.merge is None else self.merge.inputs
        return [segment for segment in self.segments if segment.number not in inputs]


def row_id(segment: int, section: int, position: int) -> int:
    """Return the id of a row."""
    return (segment << 4 | section) << 32 | position


def find_merge(state: State, is_idle: bool = False) -> list[Segment]:
    """Return the segments to merge next; none if there are enough of no size.

    While no changes wait to be indexed (`is_idle`), half as many are enough, and the last ones of several sizes are
    merged: a search reads each segment.
    """
    # Not while another merge runs: it may drop enough, and what waits for it may hold nothing that could be dropped.
    if state.merge is None and state.indexed > 2 * state.count + SPARE:
        return _take(state.waiting)  # the oldest; the merge drops removed documents, and its output is the newest
    by_size: defaultdict[int, list[Segment]] = defaultdict(list)
    for segment in state.waiting:
        by_size[_size_class(segment.documents)].append(segment)
    enough = FACTOR // 2 if is_idle else FACTOR
    for size in sorted(by_size):
        if len(by_size[size]) >= enough:
            chosen = _take(sorted(by_size[size], key=lambda segment: segment.documents)[:FACTOR])
            if len(chosen) > 1:
                return chosen
    return _find_tail(state) if is_idle and state.merge is None else []


def _find_tail(state: State) -> list[Segment]:
    """Return the smallest segments, up to the largest that has at most as many documents as those before it together.

    So what loading has left in several sizes becomes one segment, and a document is merged again only into a segment of
    twice the size. If all fit one part, the largest may have twice as many as the others: each part has most of the
    terms again. Less than half a small segment is left to the merges by size.
    """
    found: list[Segment] = []
    smaller = 0
    ordered = _take(sorted(state.waiting, key=lambda segment: segment.documents))
    for index, segment in enumerate(ordered):
        most = 2 * smaller if smaller + segment.documents <= PART else smaller
        if 2 * smaller >= SMALL and segment.documents <= most:
            found = ordered[: index + 1]
        smaller += segment.documents
    return found


def _take(segments: Iterable[Segment]) -> list[Segment]:
    """Return the first of these segments, as many as one merge may have."""
    chosen: list[Segment] = []
    room = PART * MOST_PARTS
    for segment in segments:
        room -= segment.documents
        if room < 0:
            break
        chosen.append(segment)
    return chosen


def _size_class(documents: int) -> int:
    size = 0
    while documents >= FACTOR:
        documents //= FACTOR
        size += 1
    return size
