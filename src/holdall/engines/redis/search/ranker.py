"""Ranked search in Redis: the methods that `holdall.search.ranking` needs of an engine, as programs.

The walks make a ranker. It ranks versions: those in the text index and those of vectors. Then it reads their entries. A
process keeps the vectors of a model in memory. Each shard numbers vectors in the order of writing, so a search reads
only those that are new. Searches that begin at once read them once.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .... import ops
from ....engine import to_entry
from ....model import filters, keys
from ....ops import Hit
from ....runtime.programs import Sleep, Work
from ....search.ranking import FEW, LARGEST_GAP, LocalRanking, Ranking, ThreadRanking
from ....search.text_index import MOST_BYTES, texts
from ....search.tokens import has_phrases, parse_query, tokens
from ..connections import ConnectionProgram, Request
from ..encoding import list_ranges, parse_model, parse_version, split_id, to_row
from ..shards import Shards
from .text_index import ReadIndexes, RedisTextIndex

if TYPE_CHECKING:
    from ....search.vectors import Matrix

_PAGE = 500
#: The most vectors that are compared without a thread.
_SMALL = 256
_MOST_TRIES = 3  # to order namespaces completely, while other clients write in them
_MOST_CHANGES = 5000  # that are read to find the IDs of changed entries
_MAX_MODELS = 4  # whose vectors are kept in memory
_PAUSE, _MAX_PAUSES = 0.01, 100  # seconds between two checks of what another search has read; checks without progress


class RedisRanker:
    """Ranks and loads entries. `find_by_index(op)` returns the versions and IDs that an indexed field finds, or None.

    `ids` are the IDs of the entries that a search has met, by version. With the ID, an entry is found also after it has
    changed. `since` has the positions of the feeds at the beginning of the search, by shard.
    """

    def __init__(
        self,
        shards: Shards,
        text_index: RedisTextIndex,
        find_by_index: Callable[[ops.Search], ConnectionProgram[dict[int, bytes] | None]],
        models: dict[int, _Vectors] | None = None,
        ids: dict[int, bytes] | None = None,
        since: dict[int, str] | None = None,
    ) -> None:
        self._shards = shards
        self._text_index = text_index
        self._find_by_index = find_by_index
        self._models: dict[int, _Vectors] = {} if models is None else models
        self._ids = {} if ids is None else ids
        self._since = {} if since is None else since
        self._read = ReadIndexes()
        self._read_of_model: tuple[_Vectors, int] | None = None  # the vectors that were ranked, and how many

    def for_search(self, ids: dict[int, bytes] | None = None, since: dict[int, str] | None = None) -> RedisRanker:
        """Return a ranker for a single search, with IDs of its own.

        They are needed for an entry that is written all the time: it never has the version at which it was found.
        """
        return RedisRanker(self._shards, self._text_index, self._find_by_index, self._models, dict(ids or {}), since)

    def index_lag(self) -> ConnectionProgram[int]:
        return (yield from self._text_index.index_lag())

    def find_few(self, op: ops.Search) -> ConnectionProgram[Collection[int] | None]:
        if op.filter is not None and (known := (yield from self._find_by_index(op))) is not None:
            self._ids.update(known)
            return known
        if not op.prefix:
            return None
        [shard] = self._shards.below(op.prefix)
        [(start, end)] = list_ranges(op.prefix, op.recursive)
        if (yield from self._shards.run(shard, "count", "p", start, end))[1] > FEW:
            return None
        found: dict[int, bytes] = {}
        while start:
            _, entries, next_start = yield from self._shards.run(shard, "scan", start, end, _PAGE, "h", 0)
            found.update((parse_version(head), entry_id) for entry_id, head in entries)
            start = next_start.decode()
        self._ids.update(found)
        return found

    def rank_by_text(self, op: ops.Search, among: Collection[int] | None) -> ConnectionProgram[Ranking[Request]]:
        changed_ids: dict[int, bytes] = {}
        assert op.query is not None
        terms = parse_query(op.query).terms
        ranking = yield from self._text_index.rank(terms, among, self._since, changed_ids, self._read)
        self._ids.update(changed_ids)
        return ranking

    def rank_by_vector(self, op: ops.Search, among: Collection[int] | None) -> ConnectionProgram[Ranking[Request]]:
        assert op.vector is not None
        query = op.vector.data, op.vector.metric
        if among is not None:
            known = self._models.get(op.vector.model)
            in_memory = set() if known is None else {version for version in among if version in known.matrix}
            matrix = yield from self._read_vectors(op.vector.model, [v for v in among if v not in in_memory])
            if known is not None and in_memory:
                rankings = known.matrix.ranked(*query, allowed=in_memory), matrix.ranked(*query)
                return ThreadRanking(heapq.merge(*rankings, key=lambda pair: (-pair[1], -pair[0])))
        else:
            matrix = yield from self._read_all_vectors(op.vector.model)
        if len(matrix) <= _SMALL:
            return LocalRanking(matrix.ranked(*query))
        return ThreadRanking((yield Work(matrix.ranked, query)))

    def find_fitting(self, op: ops.Search, versions: list[int]) -> ConnectionProgram[Collection[int]]:
        def match(version: int, entry: list[Any]) -> bool:
            return _is_match(op, version, entry)

        needs_content = op.filter is not None or (op.query is not None and bool(parse_query(op.query).phrases))
        if needs_content:
            matches = yield from self._read_entries(versions, "c", op, match)
            return [version for version, is_match in matches.items() if is_match]
        found, changed = yield from self._find_live(versions, op)
        if changed:  # whether they still match depends on their new values
            matches = yield from self._read_entries(changed, "c", op, match)
            found.update(version for version, is_match in matches.items() if is_match)
        return found

    def find_adjacent(
        self, versions: list[int], count: int
    ) -> ConnectionProgram[dict[int, tuple[Sequence[int], Sequence[int]]]]:
        by_shard: dict[int, list[int]] = {}
        for version in versions:
            by_shard.setdefault(self._shards.of_version(version), []).append(version)
        adjacent: dict[int, tuple[Sequence[int], Sequence[int]]] = {}
        for shard, in_shard in by_shard.items():
            args = [arg for version in in_shard for arg in (version, self._ids.get(version, b""))]
            for tries in range(_MOST_TRIES + 1):
                is_last = int(tries == _MOST_TRIES)
                status, found = yield from self._shards.run(shard, "adjacent", count, LARGEST_GAP, is_last, *args)
                if status == b"ok":
                    break
                yield from self._order_namespaces(shard, found)
            for number, *sides in found:
                for side in sides:
                    self._ids.update(zip(map(int, side[::2]), side[1::2], strict=True))
                before, after = ([int(version) for version in side[::2]] for side in sides)
                adjacent[in_shard[number - 1]] = before, after
        return adjacent

    def _order_namespaces(self, shard: int, namespaces: list[bytes]) -> ConnectionProgram[None]:
        """Put the entries of namespaces in the order of creation; from then on, every write keeps that order."""
        unread = dict.fromkeys(namespaces, b"")
        while unread:
            calls = [(shard, (ns, start, _PAGE)) for ns, start in unread.items()]
            replies = yield from self._shards.run_many("order", calls)
            starts = zip(unread, (start for _, start in replies), strict=True)
            unread = {ns: start for ns, start in starts if start}

    def load(self, op: ops.Search, versions: list[int]) -> ConnectionProgram[dict[int, Hit]]:
        hits: dict[int, Hit] = {}
        seen: set[bytes] = set()
        for version, entry in (yield from self._read_entries(versions, "c")).items():
            is_unchanged = parse_version(entry[1]) == version  # then it is known to match
            if entry[0] not in seen and (is_unchanged or _is_match(op, version, entry)):
                seen.add(entry[0])
                hits[version] = _to_hit(entry)
        return hits

    def matching(self, op: ops.Search, versions: list[int]) -> ConnectionProgram[list[Hit]]:
        """Read the entries at these versions that match a filter."""

        def match(_: int, entry: list[Any]) -> Hit | None:
            hit = _to_hit(entry)
            return hit if filters.matches(op.filter, hit.value) else None

        found = yield from self._read_entries(versions, "c", convert=match)
        return list({(hit.namespace, hit.key): hit for hit in found.values() if hit is not None}.values())

    def _read_entries(
        self,
        versions: Iterable[int],
        want: str,
        op: ops.Search | None = None,
        convert: Callable[[int, list[Any]], Any] = lambda _, entry: entry,
    ) -> ConnectionProgram[dict[int, Any]]:
        """Read live entries by version, only those in the namespace of a search, if one is given.

        An entry that has changed since is found if its ID is known. `convert(version, entry)` is called for each entry
        as it is read, because all of them together may be large.
        """
        entries: dict[int, Any] = {}

        def take(asked: list[int], found: list[Any]) -> None:
            entries.update((asked[number - 1], convert(asked[number - 1], entry)) for number, entry in found)

        yield from self._run_for_versions(versions, want, op, take)
        return entries

    def _find_live(self, versions: Iterable[int], op: ops.Search) -> ConnectionProgram[tuple[set[int], list[int]]]:
        """Find live entries in the namespace of a search: the versions that are current, and those that have changed.

        Nothing else is read: a hybrid search asks for 2,000.
        """
        current: set[int] = set()
        changed: list[int] = []

        def take(asked: list[int], found: list[int]) -> None:
            current.update(asked[number - 1] for number in found if number > 0)
            changed.extend(asked[-number - 1] for number in found if number < 0)

        yield from self._run_for_versions(versions, "i", op, take)
        return current, changed

    def _run_for_versions(
        self, versions: Iterable[int], want: str, op: ops.Search | None, take: Callable[[list[int], list[Any]], None]
    ) -> ConnectionProgram[None]:
        """Run the script for versions; `take` gets the versions that a call was asked for, and what it found."""
        prefix = "" if op is None else keys.encode(op.prefix) + ("" if op.recursive else "\x00")
        reserved = "all" if op is None else "" if op.prefix else keys.RESERVED_RANGE[0]
        by_shard: dict[int, list[int]] = {}
        for version in versions:
            by_shard.setdefault(self._shards.of_version(version), []).append(version)
        for shard, in_shard in by_shard.items():
            rest = in_shard
            while rest:
                page = rest[:_PAGE]
                ids = [(number, self._ids[version]) for number, version in enumerate(page, 1) if version in self._ids]
                args = (" ".join(map(str, page)), *itertools.chain.from_iterable(ids))
                reply = yield from self._shards.run(shard, "versions", prefix, reserved, want, *args)
                _, found, looked_at, outdated, last_version = reply
                take(rest, found)
                unknown, rest = [rest[number - 1] for number in outdated], rest[looked_at:]
                if unknown and (since := self._since.get(shard)) and since != last_version.decode():
                    yield from self._find_changed(shard, since, unknown)
                    rest = [version for version in unknown if version in self._ids] + rest

    def _find_changed(self, shard: int, since: str, versions: list[int]) -> ConnectionProgram[None]:
        """Find the IDs of versions that were ranked, and whose entries have changed after a version of the feed."""
        self._ids.update((yield from self._text_index.find_changed(shard, since, self._read)))
        if self._read_of_model is not None:
            vectors, read = self._read_of_model
            _, found, *_ = yield from self._shards.run(shard, "changes", since, "", "", "", "", _MOST_CHANGES, "h", 0)
            self._ids.update(vectors.find_ids(versions, [entry_id for entry_id, *_ in found], read))

    # Vectors ---------------------------------------------------------------------------------------------------------

    def _read_vectors(self, model: int, versions: Iterable[int]) -> ConnectionProgram[Matrix]:
        matrix = _new_matrix()
        for version, (_, head, count, data) in (yield from self._read_entries(versions, "w")).items():
            if parse_model(head) == model:
                _add_vectors(matrix, [(version, int(count), data)])
        return matrix

    def _read_all_vectors(self, model: int) -> ConnectionProgram[Matrix]:
        """Return all vectors of a model; some may be outdated. Only new ones are read."""
        known = self._models.get(model)
        if known is None:
            if len(self._models) >= _MAX_MODELS:
                self._models.clear()
            known = self._models[model] = _Vectors()
        counts: dict[int, int] = {}
        shards = list(self._shards.all)
        is_loader = False
        try:
            while shards:
                if not is_loader:
                    yield from known.wait_for_loader()
                calls = [(shard, (model, known.last.get(shard, 0), _PAGE)) for shard in shards]
                replies = yield from self._shards.run_many("vectors", calls)
                shards = []
                if any(reply[0] == b"reset" for reply in replies):  # data was flushed or lost
                    self._models.pop(model, None)
                    return (yield from self._read_all_vectors(model))
                for (shard, (_, since, _)), (_, found, after, has_more, count) in zip(calls, replies, strict=True):
                    counts[shard] = count
                    rows = [(int(version), int(number), data, entry_id) for version, number, data, entry_id in found]
                    self._ids.update((version, entry_id) for version, _, _, entry_id in rows)
                    is_added = True
                    if len(rows) > _SMALL:
                        is_added = yield Work(known.add, (shard, since, int(after), rows))
                    elif rows:
                        is_added = known.add(shard, since, int(after), rows)
                    if has_more or not is_added:
                        shards.append(shard)
                if shards and not known.is_loading:
                    is_loader = known.is_loading = True
        finally:
            if is_loader:
                known.is_loading = False
        total = sum(counts.values())
        if known.is_mostly_outdated(total):
            self._models.pop(model, None)
            return (yield from self._read_all_vectors(model))
        self._read_of_model = known, known.entries
        return known.matrix


def _to_hit(entry: list[Any]) -> Hit:
    entry_id, head, value, _, content = entry
    hit: Hit = to_entry(to_row(*split_id(entry_id), head, value, content), Hit)
    return hit


def _is_match(op: ops.Search, version: int, entry: list[Any]) -> bool:
    """Whether an entry matches the filter and the phrases of a search. If it has changed since `version`, which was
    ranked, it must also have a term or a vector that the search can find."""
    entry_id, head, value, paths, content = entry
    row = to_row(*split_id(entry_id), head, value, content)
    if op.filter is not None and not filters.matches(op.filter, to_entry(row).value):
        return False
    if op.query is None and op.vector is None:
        return True
    is_found = parse_version(head) == version or (op.vector is not None and parse_model(head) == op.vector.model)
    query = None if op.query is None else parse_query(op.query)
    if query is None or (is_found and not query.phrases):
        return is_found
    search_fields = None if paths is None else paths.decode()
    searched = texts(row[2], search_fields, content and content[:MOST_BYTES], row[-1] is not None)
    terms = frozenset(query.terms)
    has_term = is_found or any(not terms.isdisjoint(tokens(text)) for text in searched)
    return has_term and has_phrases(query, searched)


class _Vectors:
    """A model's vectors in memory, some of them outdated, the IDs of their entries, and each shard's last number."""

    def __init__(self) -> None:
        self.matrix = _new_matrix()
        self.last: dict[int, int] = {}
        self.is_loading = False  # a search reads many pages, and others wait for it
        self.entries = 0  # that were added
        self._newest: dict[bytes, int] = {}  # the version of an ID
        self._replaced: dict[int, tuple[bytes, int]] = {}  # the ID of an older version, and `entries` at that time
        self._lock = threading.Lock()

    def add(self, shard: int, since: int, after: int, rows: list[tuple[int, int, bytes, bytes]]) -> bool:
        """Add rows that were read after number `since`; return False if another thread has added some since then."""
        with self._lock:
            if self.last.get(shard, 0) != since:
                return False
            _add_vectors(self.matrix, [row[:3] for row in rows])
            self.entries += len(rows)
            for version, _, _, entry_id in rows:
                old = self._newest.get(entry_id, version)
                if old != version:
                    self._replaced[old] = entry_id, self.entries
                self._newest[entry_id] = version
            self.last[shard] = after
            return True

    def find_ids(self, versions: Collection[int], ids: Collection[bytes], read: int) -> dict[int, bytes]:
        """Return those of the IDs, by version, that had one of the versions when `read` entries had been added."""
        with self._lock:
            newest = {self._newest[entry_id]: entry_id for entry_id in ids if entry_id in self._newest}
            found = {version: newest[version] for version in versions if version in newest}
            for version in versions:
                entry_id, replaced = self._replaced.get(version, (b"", 0))
                if replaced > read:
                    found[version] = entry_id
        return found

    def wait_for_loader(self) -> ConnectionProgram[None]:
        """Wait while another search reads many vectors, so that they are read once. It may hang: then stop waiting."""
        pauses, progress = 0, -1
        while self.is_loading and pauses < _MAX_PAUSES:
            pauses = pauses + 1 if progress == self.entries else 0
            progress = self.entries
            yield Sleep(_PAUSE)

    def is_mostly_outdated(self, count: int) -> bool:
        """Whether so many are outdated, if the store has `count`, that all should be read again."""
        return self.entries > 2 * count + 1000


def _add_vectors(matrix: Matrix, rows: list[tuple[int, int, bytes]]) -> None:
    """Add the vectors of versions, and remove those that the versions had before."""
    ids: list[int] = []
    vectors: list[bytes] = []
    for version, count, data in rows:
        size = len(data) // count if count else 0
        for number in range(count):
            ids.append(version)
            vectors.append(data[number * size : (number + 1) * size])
    matrix.change([version for version, _, _ in rows], ids, vectors)


def _new_matrix() -> Matrix:
    from ....search.vectors import Matrix  # it imports numpy, which is optional

    return Matrix()
