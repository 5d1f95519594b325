"""Ranked search: the entries that fit a query, best first, the same on every engine.

An engine brings a `Ranker`: it knows the scores of versions by full text and by vectors, old ones among them, and which
versions are entries that a search is about. What is here asks for the best in turn, leaves out what is not (or no more)
there, fuses two rankings into one, and cuts the page.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, pairwise
from typing import Protocol, TypeAlias

from .errors import InvalidInput
from .ops import Hit, Page, Search
from .programs import Program, Work
from .search import FUSED, fuse

_Scored: TypeAlias = tuple[int, float]
#: `holdall.engine.Finder.older`
Older: TypeAlias = Callable[[Search, int | None, int], Program[list[Hit]]]

#: Where a search is about no more entries than this, they are known before any is scored.
FEW = 2000
_FIRST_LOOK, _LARGEST_LOOK = 64, 4096
_LONGEST_CURSOR = 1 << 27  # in bytes, unpacked: that of sixteen million results


class Ranking(Protocol):
    """Versions and their scores, best first."""

    def take(self, size: int) -> Program[list[_Scored]]:
        """The next ones; where there are fewer than that, they are the last."""


class Ready:
    """A ranking that needs to ask nothing more."""

    def __init__(self, pairs: Iterator[_Scored]) -> None:
        self._pairs = pairs

    def take(self, size: int) -> Program[list[_Scored]]:
        return list(islice(self._pairs, size))
        yield


class Worked:
    """A ranking that needs to ask nothing more, but to reckon: there are many."""

    def __init__(self, pairs: Iterator[_Scored]) -> None:
        self._pairs = pairs

    def take(self, size: int) -> Program[list[_Scored]]:
        return (yield Work(list, (islice(self._pairs, size),)))  # type: ignore[no-any-return]  # of what it is sent


class Ranker(Protocol):
    """How an engine ranks entries, all in one snapshot."""

    def behind(self) -> Program[int]:
        """How many changes the index of texts should learn before it is asked; of a few, `by_text` knows itself."""

    def few(self, op: Search) -> Program[Collection[int] | None]:
        """The versions of the entries that a search can be about, where they are few; None: there may be many."""

    def by_text(self, op: Search, among: Collection[int] | None) -> Program[Ranking]:
        """By `op.query`: what has none of its terms is left out; others may be old, or not `among` the given."""

    def by_vector(self, op: Search, among: Collection[int] | None) -> Program[Ranking]:
        """By `op.vector`: what has no vectors of its model is left out."""

    def fitting(self, op: Search, versions: list[int]) -> Program[Collection[int]]:
        """Which of these are live entries in the namespace that match the filter, and have the query's phrases."""

    def load(self, op: Search, versions: list[int]) -> Program[Mapping[int, Hit]]:
        """Entries by these versions; of an engine without snapshots, one that has changed since may be as it is now."""


def ranked(ranker: Ranker, op: Search, older: Older) -> Program[Page[Hit] | int]:
    """A page of a ranked search; or how far the index is behind.

    Its cursor says which versions were given already, and the next page has the best of the others. So whoever writes
    meanwhile, an entry that matched all along comes at least once, and twice only if it has changed. `older` finds the
    rest, where that is wanted, too.
    """
    if op.limit == 0:
        return Page()
    if op.query is not None and not op.caught_up and (behind := (yield from ranker.behind())):
        return behind
    given = frozenset() if op.cursor is None else _read(op.cursor)
    end = op.offset + op.limit
    among = yield from ranker.few(op)
    if op.vector is None:
        found = yield from _Fitting(ranker, op, (yield from ranker.by_text(op, among))).take(end + 1, given)
    elif op.query is None:
        found = yield from _Fitting(ranker, op, (yield from ranker.by_vector(op, among))).take(end + 1, given)
    else:
        found = yield from _fused(ranker, op, among, end + 1, given)
    chosen = found[op.offset : end]
    hits = yield from ranker.load(op, [version for version, _ in chosen])
    # One may have gone by now, where an engine has no snapshots.
    page: Page[Hit] = Page([_scored(hits[version], score) for version, score in chosen if version in hits])
    versions = [version for version, _ in found]
    if op.rest and len(found) <= end:  # then all that fit are known
        rest = yield from _rest(older, op, given.union(versions), end + 1 - len(found))
        page += rest[max(0, op.offset - len(found)) : end - len(found)]
        versions += [hit.version for hit in rest]
    if len(versions) > end:
        page.next = _written(given.union(versions[:end]))
    return page


def _rest(older: Older, op: Search, known: Collection[int], want: int) -> Program[list[Hit]]:
    """What is not in a ranking, newest first."""
    found: list[Hit] = []
    below: int | None = None
    size = max(want, _FIRST_LOOK)
    while len(found) < want:
        look = yield from older(op, below, size)
        found += [hit for hit in look if hit.version not in known]
        if len(look) < size:
            break
        below, size = look[-1].version, max(size, min(size * 4, _LARGEST_LOOK))
    return found[:want]


def _fused(
    ranker: Ranker, op: Search, among: Collection[int] | None, want: int, given: Collection[int]
) -> Program[list[_Scored]]:
    """The first of both rankings as one. After those that were compared come the others, which are worth no more: as
    near as they are, and then those that only have words in common with the query."""
    by_text = _Fitting(ranker, op, (yield from ranker.by_text(op, among)))
    by_vector = _Fitting(ranker, op, (yield from ranker.by_vector(op, among)))
    fused = fuse(dict((yield from by_text.take(FUSED))), dict((yield from by_vector.take(FUSED))))
    found = [pair for pair in fused if pair[0] not in given]
    known = {version for version, _ in fused}.union(given)
    lowest = min((score for _, score in fused), default=0.0)
    for others in (by_vector, by_text):
        rest = yield from others.take(want - len(found), known)
        found += [(version, lowest) for version, _ in rest]
        known.update(version for version, _ in rest)
    return found


class _Fitting:
    """Those of a ranking that fit, in turn."""

    def __init__(self, ranker: Ranker, op: Search, ranking: Ranking) -> None:
        self._ranker, self._op, self._ranking = ranker, op, ranking
        self._ready: list[_Scored] = []
        self._ended = False

    def take(self, want: int, known: Collection[int] = ()) -> Program[list[_Scored]]:
        """The next ones that are not known yet; as with a `Ranking`, fewer are the last."""
        ready = [pair for pair in self._ready if pair[0] not in known]
        size = min(max(want, _FIRST_LOOK), _LARGEST_LOOK)
        while len(ready) < want and not self._ended:
            look = yield from self._ranking.take(size)
            fitting = yield from self._ranker.fitting(
                self._op, [version for version, _ in look if version not in known]
            )
            ready += [(version, score) for version, score in look if version in fitting]
            self._ended = len(look) < size
            size = min(size * 4, _LARGEST_LOOK)
        self._ready = ready[max(want, 0) :]
        return ready[: max(want, 0)]


def in_order(scores: Mapping[int, float], versions: Sequence[int]) -> Iterator[_Scored]:
    """The versions of numbered documents by score, the newest first of those alike, as far as they are read."""
    values = sorted(scores.values(), reverse=True)
    place, bound, step = 0, math.inf, _FIRST_LOOK
    while place < len(values):
        least = values[min(place + step, len(values)) - 1]
        stretch = [(score, versions[number]) for number, score in scores.items() if least < score < bound]
        alike = [versions[number] for number, score in scores.items() if score == least]
        yield from ((version, score) for score, version in sorted(stretch, reverse=True))
        yield from ((version, least) for version in sorted(alike, reverse=True))
        place, bound, step = place + len(stretch) + len(alike), least, step * 16


def _written(versions: Iterable[int]) -> str:
    """Versions as a cursor: what each is above the one before, packed."""
    ordered = [0, *sorted(versions)]
    steps = array("q", [after - before for before, after in pairwise(ordered)])
    return base64.urlsafe_b64encode(zlib.compress(steps.tobytes())).decode()


def _read(cursor: str) -> frozenset[int]:
    steps: array[int] = array("q")
    try:
        unpacking = zlib.decompressobj()
        steps.frombytes(unpacking.decompress(base64.b64decode(cursor, b"-_", validate=True), _LONGEST_CURSOR))
        if unpacking.unconsumed_tail or not unpacking.eof:
            raise ValueError
    except (ValueError, zlib.error):
        raise InvalidInput(f"not a search cursor: {cursor!r:.60}") from None
    return frozenset(accumulate(steps))


def _scored(hit: Hit, score: float) -> Hit:
    return Hit(hit.namespace, hit.key, hit.value, hit.version, hit.created_at, hit.updated_at, hit.expires_at, score)
