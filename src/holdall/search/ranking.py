"""Ranked search: the entries that match a query, best first, in the same order on every engine.

An engine provides a `Ranker`: it ranks versions by full text and by vectors, old versions included, and decides which
versions are current entries that match the search. `rank_entries` reads the rankings step by step, drops versions that
do not match, lends parts of scores to neighbours, fuses two rankings into one, and returns a page.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice, pairwise
from typing import Generic, Protocol, TypeAlias, TypeVar

from ..errors import InvalidInput
from ..ops import Hit, IndexLag, Page, Search
from ..runtime.programs import Program, Work
from .scoring import SPARE, bm25, fuse, fusion_depth
from .text_index import TextIndex
from .tokens import parse_query

#: The requests of an engine's programs: `Work`, and its own.
RequestT = TypeVar("RequestT", covariant=True)
_Scored: TypeAlias = tuple[int, float]
#: `holdall.engine.Finder.older`
Older: TypeAlias = Callable[[Search, int | None, int], Program[RequestT, list[Hit]]]

#: A search among at most this many entries finds them before it scores any.
FEW = 2000
#: A search that concerns at most this many vectors compares all of them, on every engine. Above it, an engine may take
#: the nearest from an approximate index, unless `Search.exact` is set. Scores are exact in any case.
MOST_EXACT = 10_000
_FIRST_LOOK, _LARGEST_LOOK = 64, 4096
_LONG = 1 << 20  # characters of file contents; after a step with so many, the next step is not larger
#: Neighbours were created at most so long after each other, in microseconds.
LARGEST_GAP = 3_600_000_000
#: How many of the best results of a ranking lend to their neighbours.
LENDERS = 200
#: How many entries on each side are checked for the nearest that matches.
WINDOW = 8
_LONGEST_CURSOR = 1 << 27  # in bytes, decompressed: sixteen million results


class Ranking(Protocol[RequestT]):
    """Versions and their scores, best first."""

    #: Whether its results are current entries in the namespace of the search. Then only filter and phrases are checked.
    is_checked: bool

    def take(self, size: int) -> Program[RequestT, list[_Scored]]:
        """The next `size` results; fewer at the end."""


class LocalRanking:
    """A ranking that is in memory."""

    is_checked = False

    def __init__(self, pairs: Iterator[_Scored]) -> None:
        self._pairs = pairs

    def take(self, size: int) -> Program[Work, list[_Scored]]:
        return list(islice(self._pairs, size))
        yield


class ThreadRanking:
    """A ranking that is in memory, but so large that a thread reads it."""

    is_checked = False

    def __init__(self, pairs: Iterator[_Scored]) -> None:
        self._pairs = pairs

    def take(self, size: int) -> Program[Work, list[_Scored]]:
        return (yield Work(list, (islice(self._pairs, size),)))  # type: ignore[no-any-return]  # a reply


class Ranker(Protocol[RequestT]):
    """How an engine ranks entries, within one snapshot."""

    def index_lag(self) -> Program[RequestT, int]:
        """How many changes should be indexed before the search; 0 if `rank_by_text` can read the few itself."""

    def find_few(self, op: Search) -> Program[RequestT, Collection[int] | None]:
        """The versions of all entries that may match, if they are few (`FEW`); else None."""

    def rank_by_text(self, op: Search, among: Collection[int] | None) -> Program[RequestT, Ranking[RequestT]]:
        """Rank by `op.query`, without versions that have none of its terms. Old versions may be included."""

    def rank_by_vector(self, op: Search, among: Collection[int] | None) -> Program[RequestT, Ranking[RequestT]]:
        """Rank by `op.vector`, without versions that have no vectors of its model."""

    def find_fitting(self, op: Search, versions: list[int]) -> Program[RequestT, Collection[int]]:
        """Which of these versions are current entries that match the namespace, the filter and the query's phrases."""

    def find_adjacent(
        self, versions: list[int], count: int
    ) -> Program[RequestT, Mapping[int, tuple[Sequence[int], Sequence[int]]]]:
        """The versions of up to `count` entries before and after each of these, the nearest first.

        Entries of exactly the same namespace are ordered by the time of creation, then by key. Those that were created
        more than `LARGEST_GAP` earlier or later are left out. Whether they match the search is decided later.
        """

    def load(self, op: Search, versions: list[int]) -> Program[RequestT, Mapping[int, Hit]]:
        """Load entries by version. Without snapshots, an entry that has changed since may be its newer version."""


def rank_entries(
    ranker: Ranker[RequestT], op: Search, older: Older[RequestT]
) -> Program[RequestT, Page[Hit] | IndexLag]:
    """A page of a ranked search, or the index lag.

    The cursor has the versions that were returned already; the next page has the best of the others. So an entry that
    matches all the time is returned at least once, and twice only if it changes. `older` finds the rest, if `op.rest`.
    """
    if op.limit == 0:
        return Page()
    if op.query is not None and not op.caught_up and (lag := (yield from ranker.index_lag())):
        return IndexLag(lag)
    given = frozenset() if op.cursor is None else _decode_cursor(op.cursor)
    end = op.offset + op.limit
    among = yield from ranker.find_few(op)
    if op.vector is None:
        found = yield from (yield from _rank_by_text(ranker, op, among)).take(end + 1, given)
    elif op.query is None:
        found = yield from (yield from _rank_by_vector(ranker, op, among)).take(end + 1, given)
    else:
        found = yield from _fuse_rankings(ranker, op, among, end + 1, given)
    if op.query is None:  # an approximate ranking may find a better one late
        found.sort(key=lambda pair: pair[::-1], reverse=True)
    chosen = found[op.offset : end]
    hits = yield from ranker.load(op, [version for version, _ in chosen])
    # Without snapshots, an entry may be deleted by now.
    page: Page[Hit] = Page([_with_score(hits[version], score) for version, score in chosen if version in hits])
    versions = [version for version, _ in found]
    if op.rest and len(found) <= end:  # then all matches are known
        rest = yield from _find_rest(older, op, given.union(versions), end + 1 - len(found))
        page += rest[max(0, op.offset - len(found)) : end - len(found)]
        versions += [hit.version for hit in rest]
    if len(versions) > end:
        page.next = _encode_cursor(given.union(versions[:end]))
    return page


def _find_rest(older: Older[RequestT], op: Search, known: Collection[int], want: int) -> Program[RequestT, list[Hit]]:
    """Find the entries that are not in the ranking, newest first."""
    found: list[Hit] = []
    below: int | None = None
    size = want
    while len(found) < want:
        look = yield from older(op, below, size)
        found += [hit for hit in look if hit.version not in known]
        if len(look) < size:
            break
        below = look[-1].version
        if sum(map(_content_length, look)) < _LONG:
            size = max(size, min(size * 4, _LARGEST_LOOK))
    return found[:want]


def _content_length(hit: Hit) -> int:
    content = hit.value.get("content")
    return len(content) if isinstance(content, str) else 0


def _fuse_rankings(
    ranker: Ranker[RequestT], op: Search, among: Collection[int] | None, want: int, given: Collection[int]
) -> Program[RequestT, list[_Scored]]:
    """Fuse the best of both rankings. The others follow with the lowest score: by vectors first, then by text."""
    by_text = yield from _rank_by_text(ranker, op, among)
    by_vector = yield from _rank_by_vector(ranker, op, among)
    most = fusion_depth(op.limit)
    fused = fuse(dict((yield from by_text.take(most))), dict((yield from by_vector.take(most))), most)
    found = [pair for pair in fused if pair[0] not in given]
    known = {version for version, _ in fused}.union(given)
    lowest = min((score for _, score in fused), default=0.0)
    for others in (by_vector, by_text):
        rest = yield from others.take(want - len(found), known)
        found += [(version, lowest) for version, _ in rest]
        known.update(version for version, _ in rest)
    return found


def _rank_by_text(
    ranker: Ranker[RequestT], op: Search, among: Collection[int] | None
) -> Program[RequestT, _MatchingRanking[RequestT]]:
    ranking = _MatchingRanking(ranker, op, (yield from ranker.rank_by_text(op, among)))
    return (yield from _lend(ranker, op, ranking, ranker.rank_by_text, 0.0)) if op.neighbours else ranking


def _rank_by_vector(
    ranker: Ranker[RequestT], op: Search, among: Collection[int] | None
) -> Program[RequestT, _MatchingRanking[RequestT]]:
    ranking = _MatchingRanking(ranker, op, (yield from ranker.rank_by_vector(op, among)))
    if not op.neighbours:
        return ranking
    assert op.vector is not None
    zero = None if op.vector.metric == "l2" else 0.0  # distances have no score that means "unrelated"
    return (yield from _lend(ranker, op, ranking, ranker.rank_by_vector, zero))


class _MatchingRanking(Generic[RequestT]):
    """The results of a ranking that match the search, read step by step."""

    def __init__(self, ranker: Ranker[RequestT], op: Search, ranking: Ranking[RequestT]) -> None:
        self._ranker, self._op, self._ranking = ranker, op, ranking
        has_phrases = op.query is not None and bool(parse_query(op.query).phrases)
        self._is_filtered = op.filter is not None or has_phrases
        self._is_checked = getattr(ranking, "is_checked", False) and not self._is_filtered
        self._ready: list[_Scored] = []
        self._ended = False

    def take(self, want: int, known: Collection[int] = ()) -> Program[RequestT, list[_Scored]]:
        """The next results that are not known yet; fewer at the end."""
        ready = [pair for pair in self._ready if pair[0] not in known]
        size = max(want, _FIRST_LOOK) if self._is_filtered else want + len(known)
        size = min(size if self._is_checked else size + SPARE, _LARGEST_LOOK)
        while len(ready) < want and not self._ended:
            look = yield from self._ranking.take(size)
            unknown = [version for version, _ in look if version not in known]
            fitting = unknown if self._is_checked else (yield from self._ranker.find_fitting(self._op, unknown))
            wanted = set(fitting)
            ready += [(version, score) for version, score in look if version in wanted]
            self._ended = len(look) < size
            size = min(size * 4, _LARGEST_LOOK)
        self._ready = ready[max(want, 0) :]
        return ready[: max(want, 0)]


# Neighbours ----------------------------------------------------------------------------------------------------------


class _LentRanking(_MatchingRanking[RequestT]):
    """A ranking in which some entries have other scores than in the ranking that it reads."""

    def __init__(self, ranking: _MatchingRanking[RequestT], lent: Mapping[int, float]) -> None:
        self._others, self._lent = ranking, frozenset(lent)
        self._ready = list(lent.items())

    def take(self, want: int, known: Collection[int] = ()) -> Program[RequestT, list[_Scored]]:
        others = yield from self._others.take(want, self._lent.union(known))
        ready = [pair for pair in self._ready if pair[0] not in known] + others
        ready.sort(key=lambda pair: (pair[1], pair[0]), reverse=True)
        self._ready = ready[max(want, 0) :]
        return ready[: max(want, 0)]


def _lend(
    ranker: Ranker[RequestT],
    op: Search,
    ranking: _MatchingRanking[RequestT],
    rank: Callable[[Search, Collection[int]], Program[RequestT, Ranking[RequestT]]],
    zero: float | None,
) -> Program[RequestT, _MatchingRanking[RequestT]]:
    """Let the best results of a ranking lend a part of their scores to their neighbours.

    An entry gets the most that one of its neighbours lends it, on top of its own score. `zero` is the score that counts
    as none: entries without a score have it, and what a result lends is a part of what it has above it. None: the
    lowest score of those that lend.
    """
    own = dict((yield from ranking.take(LENDERS)))
    is_whole = len(own) < LENDERS
    if zero is None:
        zero = min(own.values(), default=0.0)
    lenders = {version: score for version, score in own.items() if score > zero}
    lent: dict[int, float] = {}
    for version, neighbours in (yield from _find_neighbours(ranker, op, lenders)).items():
        part = (lenders[version] - zero) * op.neighbours
        for neighbour in neighbours:
            lent[neighbour] = max(lent.get(neighbour, 0.0), part)
    unscored = lent.keys() - own.keys()
    if unscored and not is_whole:  # they may have scores further down in the ranking
        further, look = (yield from rank(op, unscored)), [(0, zero)]
        while look:  # others may be included
            look = yield from further.take(_LARGEST_LOOK)
            own.update((version, score) for version, score in look if version in unscored)
    return _LentRanking(ranking, {v: own.get(v, zero) + lent.get(v, 0.0) for v in own.keys() | lent.keys()})


def rank_texts(query: str, groups: Sequence[Sequence[str]], neighbours: float) -> list[tuple[int, int, float]]:
    """Rank the texts of several groups by BM25, best first; each lends to the one before and after it in its group.

    Returns the number of the group, the number of the text in it, and the score. Texts without a score are left out.
    """
    index = TextIndex()
    for number, text in enumerate(chain.from_iterable(groups)):
        index.add(number, [text])
    terms = [index.parts(term) for term in parse_query(query).terms]
    found = bm25(terms, index.lengths, len(index.lengths), sum(index.lengths))
    own = {index.versions[document]: score for document, score in found.items()}
    ranked: list[tuple[int, int, float]] = []
    first = 0
    for group, texts in enumerate(groups):
        scores = [own.get(number, 0.0) for number in range(first, first + len(texts))]
        around = zip([0.0, *scores], scores, [*scores[1:], 0.0], strict=False)
        lent = (score + max(before, after) * neighbours for before, score, after in around)
        ranked += [(group, number, score) for number, score in enumerate(lent) if score > 0]
        first += len(texts)
    return sorted(ranked, key=lambda match: (-match[2], match[0], match[1]))


def _find_neighbours(
    ranker: Ranker[RequestT], op: Search, versions: Collection[int]
) -> Program[RequestT, dict[int, list[int]]]:
    """The nearest entry before each of these versions that matches the search, and the nearest after it."""
    has_phrases = op.query is not None and bool(parse_query(op.query).phrases)
    count = WINDOW if op.filter is not None or has_phrases else 1
    adjacent = yield from ranker.find_adjacent(list(versions), count)
    found: dict[int, list[int]] = {version: [] for version in versions}
    unsure = [(version, side) for version, both in adjacent.items() for side in both]
    for step in range(count):
        unsure = [(version, side) for version, side in unsure if step < len(side)]
        if not unsure:
            break
        asked = {side[step] for _, side in unsure}.difference(versions)  # which are known to match
        fitting = set(versions).union((yield from ranker.find_fitting(op, sorted(asked))))
        for version, side in unsure:
            if side[step] in fitting:
                found[version].append(side[step])
        unsure = [(version, side) for version, side in unsure if side[step] not in fitting]
    return found


def sort_by_score(scores: Mapping[int, float], versions: Sequence[int]) -> Iterator[_Scored]:
    """Sort documents lazily by score, then by version, both descending; yield versions and scores."""
    values = sorted(scores.values(), reverse=True)
    index, bound, step = 0, math.inf, _FIRST_LOOK
    while index < len(values):
        least = values[min(index + step, len(values)) - 1]
        found = [(score, versions[number]) for number, score in scores.items() if least <= score < bound]
        yield from ((version, score) for score, version in sorted(found, reverse=True))
        index, bound, step = index + len(found), least, step * 16


def _encode_cursor(versions: Iterable[int]) -> str:
    """Encode versions as a cursor: compressed differences."""
    ordered = [0, *sorted(versions)]
    steps = array("q", [after - before for before, after in pairwise(ordered)])
    return base64.urlsafe_b64encode(zlib.compress(steps.tobytes())).decode()


def _decode_cursor(cursor: str) -> frozenset[int]:
    steps: array[int] = array("q")
    try:
        unpacking = zlib.decompressobj()
        steps.frombytes(unpacking.decompress(base64.b64decode(cursor, b"-_", validate=True), _LONGEST_CURSOR))
        if unpacking.unconsumed_tail or not unpacking.eof or min(steps, default=1) < 1 or sum(steps) >= 1 << 63:
            raise ValueError
    except (ValueError, zlib.error):
        raise InvalidInput(f"not a search cursor: {cursor!r:.60}") from None
    return frozenset(accumulate(steps))


def _with_score(hit: Hit, score: float) -> Hit:
    return Hit(hit.namespace, hit.key, hit.value, hit.version, hit.created_at, hit.updated_at, hit.expires_at, score)
