"""Ranked search: the entries that fit a query, best first, the same on every engine.

An engine brings a `Ranker`: it knows the scores of versions by full text and by vectors, old ones among them, and which
versions are entries that a search is about. What is here asks for the best in turn, leaves out what is not (or no more)
there, fuses two rankings into one, and cuts the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol, TypeAlias

from .errors import InvalidInput
from .ops import Hit, Page, Search
from .programs import Program
from .search import FUSED, fuse

_Scored: TypeAlias = tuple[int, float]
#: `holdall.engine.Finder.older`
Older: TypeAlias = Callable[[Search, int | None, int], Program[list[Hit]]]

#: Where a search is about no more entries than this, they are known before any is scored.
FEW = 2000
_FIRST_LOOK, _LARGEST_LOOK = 64, 4096


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


class Ranker(Protocol):
    """How an engine ranks entries, all in one snapshot."""

    def is_behind(self) -> Program[bool]:
        """Whether there are changes that the index of texts does not know."""

    def few(self, op: Search) -> Program[Collection[int] | None]:
        """The versions of the entries that a search can be about, where they are few; None: there may be many."""

    def by_text(self, op: Search, among: Collection[int] | None) -> Program[Ranking]:
        """By `op.query`: what has none of its terms is left out; others may be old, or not `among` the given."""

    def by_vector(self, op: Search, among: Collection[int] | None) -> Program[Ranking]:
        """By `op.vector`: what has no vectors of its model is left out."""

    def fitting(self, op: Search, versions: list[int]) -> Program[Collection[int]]:
        """Which of these are live entries in the namespace that match the filter, and have the query's phrases."""

    def load(self, op: Search, versions: list[int]) -> Program[list[Hit]]:
        """Entries, in any order."""


def ranked(ranker: Ranker, op: Search, older: Older) -> Program[Page[Hit] | None]:
    """A page of a ranked search. Its cursor says how many came before. `older` finds what is not ranked."""
    if op.limit == 0:
        return Page()
    if op.query is not None and not op.caught_up and (yield from ranker.is_behind()):
        return None
    offset = op.offset if op.cursor is None else _place(op.cursor)
    end = offset + op.limit
    among = yield from ranker.few(op)
    found: list[_Scored]
    if op.vector is None:
        found = yield from _best(ranker, op, (yield from ranker.by_text(op, among)), end + 1)
    elif op.query is None:
        found = yield from _best(ranker, op, (yield from ranker.by_vector(op, among)), end + 1)
    else:
        by_text = yield from _best(ranker, op, (yield from ranker.by_text(op, among)), FUSED)
        nearest = yield from ranker.by_vector(op, among)
        by_vector = yield from _best(ranker, op, nearest, FUSED)
        found = fuse(dict(by_text), dict(by_vector))
        if len(found) <= end:  # after those that were compared come the others, as near as they are
            known = {version for version, _ in found}
            others = yield from _best(ranker, op, nearest, end + 1 - len(found), known)
            found += [(version, 0.0) for version, _ in others]
    chosen = found[offset:end]
    hits = {hit.version: hit for hit in (yield from ranker.load(op, [version for version, _ in chosen]))}
    page = [_scored(hits[version], score) for version, score in chosen]
    more = len(found) > end
    if op.rest and not more:  # then all that fit are known
        unranked = yield from _unranked(older, op, {version for version, _ in found}, end + 1 - len(found))
        page += unranked[max(0, offset - len(found)) : end - len(found)]
        more = len(unranked) > end - len(found)
    return Page(page, str(end) if more else None)


def _unranked(older: Older, op: Search, known: Collection[int], want: int) -> Program[list[Hit]]:
    """What a ranking left out, newest first."""
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


def _best(
    ranker: Ranker, op: Search, ranking: Ranking, want: int, known: Collection[int] = ()
) -> Program[list[_Scored]]:
    """The first of a ranking that fit, and are not known yet."""
    best: list[_Scored] = []
    size = min(max(want, _FIRST_LOOK), _LARGEST_LOOK)
    while len(best) < want:
        look = yield from ranking.take(size)
        fitting = yield from ranker.fitting(op, [version for version, _ in look if version not in known])
        best += [(version, score) for version, score in look if version in fitting]
        if len(look) < size:
            break
        size = min(size * 4, _LARGEST_LOOK)
    return best[:want]


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


def _place(cursor: str) -> int:
    if not cursor.isdecimal() or len(cursor) > 9:
        raise InvalidInput(f"not a search cursor: {cursor!r:.60}")
    return int(cursor)


def _scored(hit: Hit, score: float) -> Hit:
    return Hit(hit.namespace, hit.key, hit.value, hit.version, hit.created_at, hit.updated_at, hit.expires_at, score)
