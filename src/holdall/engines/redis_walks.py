"""Walks over a Redis store, as programs: each asks scripts that look at so much at a time, and no more.

Redis has no snapshots. A walk in key order needs none: what was there all along is met once. One in order of change
asks at its end what has changed since it began, and mends its answer.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from typing import Any

from .. import filters, keys, ops, shapes
from ..engine import Row, feed_from, history_gone, not_a_cursor, parse_revision, search, to_entry
from ..errors import HistoryGone, InvalidInput
from ..ops import Change, FileInfo, Hit, Namespace, Op, Page
from ..programs import Program, Work
from ..ranking import FEW, ranked
from . import redis_fields
from .redis_ops import folder_range, info, kind_of, model_of, parted, place, ranges, row, version_of
from .redis_search import RedisRanker
from .redis_shards import Shards
from .redis_texts import RedisTexts

_FIRST_PAGE, _LARGEST_PAGE = 64, 500
_FEED_PAGE = 1000
_GREP_PAGE, _GREP_BYTES = 500, 1 << 20  # of contents that one page of candidates holds, more or less
_ROOTS = 64  # that a walk in key order over many shards looks up at once
_EVERYTHING = 1 << 60
_MOST_TRIES = 5  # of a ranked search, while others write what it is about

#: The fields that a shard has indexed: what tells them from others, and their numbers and paths.
Declared = Callable[[int], tuple[bytes, Sequence[tuple[str, str]]]]


@dataclass(slots=True)
class _Stream:
    """The newest entries of one shard, as far as they were read."""

    shard: int
    bound: int | None  # all that follow are below this version
    size: int
    ready: deque[Hit] = field(default_factory=deque)
    is_over: bool = False
    began: bytes = b""  # where the feed stood at first
    newest: bytes = b""  # and at last


class RedisWalks:
    """The walks, over one shard or over many."""

    def __init__(self, shards: Shards, declared: Declared, declare: Callable[[int], Program[None]]) -> None:
        self._shards = shards
        self._declared, self._declare = declared, declare
        self.texts = RedisTexts(shards, shards.all)
        self._ranker = RedisRanker(shards, self.texts, shards.under, shards.of_version, self._found_by_index)

    def walk(self, op: Op) -> Program[Any]:
        match op:
            case ops.Search():
                if op.query is None and op.vector is None:
                    return (yield from search(self, op))
                return (yield from self._ranked(op))
            case ops.Unembedded():
                rows = yield from self._in_key_order(op.prefix, op.after, op.limit, op.model)
                return [(to_entry(one), paths) for one, paths in rows]
            case ops.Count():
                return (yield from self._count(op))
            case ops.Scan():
                return [to_entry(one) for one, _ in (yield from self._in_key_order(op.prefix, op.after, op.limit))]
            case ops.Namespaces():
                return (yield from self._namespaces(op))
            case ops.Changes():
                return (yield from self._changes(op))
            case ops.Children():
                return (yield from self._children(op))
            case ops.Grep():
                return (yield from self._grep(op))
        raise TypeError(f"not a walk: {op!r}")

    def _ranked(self, op: ops.Search) -> Program[Any]:
        """A ranked page, as if of one moment: begun again where what it is about has changed meanwhile."""
        shards = self._shards.under(op.prefix)
        page: Any = None
        for _ in range(_MOST_TRIES):
            began = yield from self._stands(shards)
            page = yield from ranked(self._ranker.for_search(), op, self.older)
            stands = yield from self._stands(shards)
            for shard in shards:
                since = began[shard][0]
                if stands[shard][0] != since:
                    words = _feed_words(since, _FEED_PAGE, op.prefix)
                    _, found, _, more, *_ = yield from self._shards.one(shard, "changes", *words)
                    if found or more:
                        break
            else:
                break
        return page

    # Newest first ----------------------------------------------------------------------------------------------------

    def position(self) -> Program[str]:
        stands = yield from self._stands(self._shards.all)
        return self._written({shard: stand for shard, (stand, _) in stands.items()})

    def older(self, op: ops.Search, below: int | None, want: int) -> Program[list[Hit]]:
        """The newest first, of all shards in turn: none is taken while another may have a newer one."""
        known = yield from self._found_by_index(op)
        if known is not None:
            return (yield from self._these(op, known, below, want))
        size = want if op.filter is None else max(want, _FIRST_PAGE)
        streams = [_Stream(shard, below, size) for shard in self._shards.under(op.prefix)]
        hits: list[Hit] = []
        while len(hits) < want:
            best = max((one for one in streams if one.ready), key=lambda one: one.ready[0].version, default=None)
            unread = [
                stream
                for stream in streams
                if not (stream.ready or stream.is_over)
                and (best is None or stream.bound is None or stream.bound > best.ready[0].version)
            ]
            if unread:
                yield from self._read_on(op, unread)
            elif best is None:
                break
            else:
                hits.append(best.ready.popleft())
        moved = [stream for stream in streams if stream.newest != stream.began]
        return (yield from self._mended(op, hits, moved, below, want)) if moved else hits

    def _read_on(self, op: ops.Search, streams: list[_Stream]) -> Program[None]:
        encoded = keys.encode(op.prefix)
        if op.recursive:
            low, high = keys.below(encoded)
            spaces = ("", "") if high is None else (f"[{low}", f"({high}")
            prefix = encoded
        else:
            spaces, prefix = (f"[{encoded}", f"[{encoded}"), f"{encoded}\x00"
        hidden = "" if op.prefix else keys.HIDDEN[0]
        needles = redis_fields.needles(op.filter)
        alike: dict[tuple[Any, int], list[_Stream]] = {}
        for stream in streams:
            bound = "" if stream.bound is None else stream.bound
            alike.setdefault((bound, min(stream.size, _LARGEST_PAGE)), []).append(stream)
        for (bound, size), several in alike.items():
            args = (bound, *spaces, prefix, hidden, size, "c", *needles)
            replies = yield from self._shards.each([stream.shard for stream in several], "newest", *args)
            for stream, (_, found, going_on, newest) in zip(several, replies, strict=True):
                stream.began, stream.newest = stream.began or newest, newest
                stream.is_over, stream.size = not going_on, stream.size * 4
                stream.bound = int(going_on) if going_on else stream.bound
                stream.ready.extend(_matching(found, op.filter))

    def _mended(
        self, op: ops.Search, hits: list[Hit], moved: list[_Stream], below: int | None, want: int
    ) -> Program[list[Hit]]:
        """What was found, where somebody has written meanwhile: some of it may be gone, or be where it was looked for
        already. On a first page it comes as it is now; on others, what changed comes on a later page."""
        changed: list[Hit] = []
        places: set[tuple[Namespace, str]] = set()
        for stream in moved:
            since, more = stream.began.decode(), True
            while more:
                words = _feed_words(since, _FEED_PAGE, op.prefix, "c", op.recursive)
                _, found, after, more, *_ = yield from self._shards.one(stream.shard, "changes", *words)
                since = after.decode()
                for where, head, value, _, content in found:
                    ns, key = parted(where)
                    places.add((keys.decode(ns), key))
                    if value is not None and below is None:
                        changed += _matching([[where, head, value, None, content]], op.filter)
        kept = [hit for hit in hits if (hit.namespace, hit.key) not in places]
        mended = sorted([*changed, *kept], key=lambda hit: -hit.version)
        if len(mended) < len(hits) == want:  # there may be more where it stopped
            return (yield from self.older(op, below, want))
        return mended[:want]

    def newer(self, op: ops.Search, position: str, want: int) -> Program[list[tuple[Hit, str]]]:
        stands = self._read_position(position)
        hits: list[tuple[Hit, str]] = []
        for shard in self._shards.under(op.prefix):
            since, more = str(parse_revision(stands[shard])), True
            while more:
                words = _feed_words(since, _FEED_PAGE, op.prefix, "l", op.recursive)
                _, found, after, more, *_ = yield from self._shards.one(shard, "changes", *words)
                since = after.decode()
                for hit in _matching(found, op.filter):
                    stands[shard] = str(hit.version)
                    hits.append((hit, self._written(stands)))
                    if len(hits) == want:
                        return hits
            stands[shard] = since
        return hits

    # By an index -----------------------------------------------------------------------------------------------------

    def _found_by_index(self, op: ops.Search | ops.Count) -> Program[dict[int, bytes] | None]:
        """The versions and places of all that can match a filter, where an indexed field finds few; else None."""
        prefix = keys.encode(op.prefix) + ("" if op.recursive else "\x00")
        hidden = "" if op.prefix else keys.HIDDEN[0]
        places: dict[int, bytes] = {}
        for shard in self._shards.under(op.prefix):
            found: Any = b"fields"
            while found == b"fields":  # others are by now: another store has declared some, or all was flushed
                stamp, declared = self._declared(shard)
                chosen = redis_fields.spans(op.filter, declared)
                if chosen is None:
                    return None
                number, spans = chosen
                args = (number, prefix, hidden, FEW, stamp, *(bound for span in spans for bound in span))
                _, found = yield from self._shards.one(shard, "lookup", *args)
                if found == b"fields":
                    yield from self._declare(shard)
            if found == b"many":
                return None
            places.update(zip(map(int, found[::2]), found[1::2], strict=True))
            if len(places) > FEW:
                return None
        return places

    def _these(self, op: ops.Search, places: dict[int, bytes], below: int | None, want: int) -> Program[list[Hit]]:
        """Those of some versions, at these places, that match, newest first. What has changed meanwhile comes as it is
        now on a first page; after others, it comes on a later page."""
        hits: list[Hit] = []
        rest = sorted((version for version in places if below is None or version < below), reverse=True)
        size = max(want, _FIRST_PAGE)
        ranker = self._ranker.for_search(places)
        while rest and len(hits) < want:
            found = (yield from ranker.load(op, rest[:size])).values()
            hits += [
                hit
                for hit in found
                if (below is None or hit.version < below) and (op.filter is None or op.filter.matches(hit.value))
            ]
            rest, size = rest[size:], min(size * 4, _LARGEST_PAGE)
        return sorted(hits, key=lambda hit: -hit.version)[:want]

    # The feed --------------------------------------------------------------------------------------------------------

    def _stands(self, shards: Sequence[int]) -> Program[dict[int, tuple[str, int]]]:
        """Where the feed of each shard stands, and how much of it is forgotten."""
        replies = yield from self._shards.each(shards, "changes", *_feed_words("+inf", 1))
        return {shard: (reply[4].decode(), int(reply[5])) for shard, reply in zip(shards, replies, strict=True)}

    def _read_position(self, position: str) -> dict[int, str]:
        """A position in the feed: a number, or on a cluster one for each shard in which anything ever changed."""
        if not self._shards.is_cluster:
            return {0: position}
        stands = dict.fromkeys(self._shards.all, "0")
        for part in position.split("_") if position != "0" else ():
            shard, sign, stand = part.partition("~")
            is_stand = re.fullmatch(r"\d{1,18}(-\d{1,18})?", stand, re.ASCII)
            if not (is_stand and sign and re.fullmatch(r"\d{1,2}", shard, re.ASCII) and int(shard) in stands):
                raise not_a_cursor(position)
            stands[int(shard)] = stand
        return stands

    def _written(self, stands: Mapping[int, str]) -> str:
        """A position as text."""
        if not self._shards.is_cluster:
            return stands[0]
        return "_".join(f"{shard}~{stand}" for shard, stand in stands.items() if stand != "0") or "0"

    def _changes(self, op: ops.Changes) -> Program[Page[Change]]:
        stands = yield from self._stands(self._shards.all)
        newest = {shard: stand for shard, (stand, _) in stands.items()}
        if op.limit == 0:
            return Page((), self._written(newest))
        given = {} if op.since is None else self._read_position(op.since)
        shards = self._shards.under(op.prefix)
        positions, starts, cursors = dict(given), {}, {}
        for shard in self._shards.all if op.since is None else shards:
            try:
                starts[shard], cursors[shard] = feed_from(given.get(shard), int(newest[shard]), stands[shard][1])
            except HistoryGone:
                raise history_gone(op.since) from None
            except InvalidInput:
                raise not_a_cursor(op.since) from None
            positions[shard] = cursors[shard](starts[shard])
        size = _FEED_PAGE if op.prefix else min(op.limit, _FEED_PAGE)
        asked = [(shard, _feed_words(str(starts[shard]), size, op.prefix, path=op.path)) for shard in shards]
        replies = yield from self._shards.many("changes", asked)
        pages: list[list[tuple[int, int, str, str, Any]]] = []
        for shard, reply in zip(shards, replies, strict=True):
            found, end = yield from self._changes_in(shard, op, starts[shard], reply)
            pages.append(found)
            newest[shard] = cursors[shard](end)
        changes: Page[Change] = Page()
        left = {shard: len(found) for shard, found in zip(shards, pages, strict=True)}
        for version, shard, ns, key, kind in merge(*pages):
            if len(changes) == op.limit:
                break
            left[shard] -= 1
            positions[shard] = cursors[shard](version)
            changes.append(Change(version, keys.decode(ns), key, kind, self._written(positions)))
        if len(changes) < op.limit:
            positions.update(newest)  # elsewhere there is nothing that is asked for
        else:
            positions.update((shard, newest[shard]) for shard, count in left.items() if not count)
        changes.next = self._written(positions)
        return changes

    def _changes_in(
        self, shard: int, op: ops.Changes, since: int, reply: list[Any]
    ) -> Program[tuple[list[tuple[int, int, str, str, Any]], int]]:
        """Up to as many as are wanted of one shard, and the position after them."""
        changes: list[tuple[int, int, str, str, Any]] = []
        while True:
            _, found, after, more, *_ = reply
            for where, head in found:
                version = version_of(head)
                changes.append((version, shard, *parted(where), kind_of(head)))
                if len(changes) == op.limit:
                    return changes, version
            since = max(since, int(after))
            if not more:
                return changes, since
            size = _FEED_PAGE if op.prefix else min(op.limit - len(changes), _FEED_PAGE)
            words = _feed_words(str(since), size, op.prefix, path=op.path)
            reply = yield from self._shards.one(shard, "changes", *words)

    # In key order ----------------------------------------------------------------------------------------------------

    def _in_key_order(
        self, prefix: Namespace, after: tuple[Namespace, str] | None, limit: int, model: int | None = None
    ) -> Program[list[tuple[Row, str | None]]]:
        """Rows, and what each is found by; those without vectors of a model, if one is given."""
        rows: list[tuple[Row, str | None]] = []
        last = None if after is None else place(*after)
        if prefix or not self._shards.is_cluster:
            yield from self._rows_of(self._shards.home(prefix or ("",)), prefix, last, limit, model, rows)
            return rows
        begin = "" if after is None else keys.encode(after[0][:1])
        while len(rows) < limit:
            roots = yield from self._roots(begin)
            for root in roots:
                yield from self._rows_of(self._shards.home(root), root, last, limit, model, rows)
                if len(rows) == limit:
                    return rows
            if len(roots) < _ROOTS:
                return rows
            begin = keys.after(keys.encode(roots[-1]), 1)
        return rows

    def _roots(self, begin: str) -> Program[list[Namespace]]:
        """The first labels of namespaces, from one on, in order."""
        roots: set[str] = set()
        for low, high in ranges(()):
            from_ = low if low != "-" and low[1:] > begin else f"[{begin}"
            if high != "+" and high[1:] <= begin:
                continue
            for _, spaces, _ in (yield from self._shards.each(self._shards.all, "spaces", from_, high, _ROOTS, 1)):
                roots.update(keys.decode(encoded.decode())[0] for encoded in spaces)
        return [(root,) for root in sorted(roots)[:_ROOTS]]

    def _rows_of(
        self,
        shard: int,
        prefix: Namespace,
        last: str | None,
        limit: int,
        model: int | None,
        rows: list[tuple[Row, str | None]],
    ) -> Program[None]:
        for begin, high in ranges(prefix):
            low = begin
            if last is not None:
                if high != "+" and high[1:] <= last:
                    continue
                if low == "-" or low[1:] <= last:
                    low = f"({last}"
            while low and len(rows) < limit:
                size = min(limit - len(rows), _LARGEST_PAGE)
                _, found, going_on = yield from self._shards.one(shard, "places", low, high, size, "c", _EVERYTHING)
                for where, head, value, paths, content in found:
                    if model is None or _is_unembedded(head, value, paths, model):
                        given = row(*parted(where), head, value, content)
                        rows.append((given, None if paths is None else paths.decode()))
                low = going_on.decode()

    def _count(self, op: ops.Count) -> Program[int]:
        shards = self._shards.under(op.prefix)
        if op.filter is None and op.unembedded is None:
            bounds = [bound for pair in ranges(op.prefix, op.recursive) for bound in pair]
            return sum(reply[1] for reply in (yield from self._shards.each(shards, "count", *bounds)))
        if op.unembedded is None and (known := (yield from self._found_by_index(op))) is not None:
            walk = ops.Search(op.prefix, op.filter, recursive=op.recursive)
            return len((yield from self._these(walk, known, None, len(known) + 1)))
        total = 0
        needles = redis_fields.needles(op.filter)
        want = "v" if op.filter is None else "c"
        for shard in shards:
            for begin, high in ranges(op.prefix, op.recursive):
                low = begin
                while low:
                    args = (low, high, _LARGEST_PAGE, want, _EVERYTHING, *needles)
                    _, found, going_on = yield from self._shards.one(shard, "places", *args)
                    if op.unembedded is not None:
                        found = [one for one in found if _is_unembedded(one[1], one[2], one[3], op.unembedded)]
                    total += sum(1 for _ in _matching(found, op.filter)) if op.filter else len(found)
                    low = going_on.decode()
        return total

    def _namespaces(self, op: ops.Namespaces) -> Program[list[Namespace]]:
        if op.limit == 0:
            return []
        start = op.base + keys.literal_prefix(op.prefix)
        found: set[Namespace] = set()
        for shard in self._shards.under(start):
            found.update((yield from self._namespaces_in(shard, start, op)))
        return sorted(found)[op.offset : op.offset + op.limit]

    def _namespaces_in(self, shard: int, start: Namespace, op: ops.Namespaces) -> Program[list[Namespace]]:
        low, high = keys.below(keys.encode(start))
        picky = bool(op.suffix) or "*" in op.prefix  # else every namespace in the range matches
        depth = "" if op.max_depth is None or picky else len(op.base) + op.max_depth
        wanted = op.offset + op.limit
        found: list[Namespace] = []
        for begin, end in ranges(()) if high is None else [(f"[{low}", f"({high}")]:
            from_ = begin
            while from_ and len(found) < wanted:
                size = _LARGEST_PAGE if picky else min(wanted - len(found), _LARGEST_PAGE)
                _, spaces, going_on = yield from self._shards.one(shard, "spaces", from_, end, size, depth)
                for encoded in spaces:
                    namespace = keys.decode(encoded.decode())[len(op.base) :]
                    if not picky or keys.matches(namespace, op.prefix, op.suffix):
                        given = namespace[: op.max_depth]
                        if not found or found[-1] != given:
                            found.append(given)
                from_ = going_on.decode()
        return found

    # Files -----------------------------------------------------------------------------------------------------------

    def _children(self, op: ops.Children) -> Program[Page[Any]]:
        found: Page[Any] = Page()
        low, high = folder_range(op.namespace, op.path)
        from_ = f"[{low if op.after is None else place(op.namespace, keys.next_key(op.after))}"
        shard, start = self._shards.home(op.namespace), len(keys.encode(op.namespace)) + 1
        last = op.after
        while True:
            size = 1000 if op.matches else max(min(op.limit - len(found), 1000), 1)
            args = (low, from_, f"({high}", size, int(op.deep), int(op.bare))
            _, listed, going_on = yield from self._shards.one(shard, "children", *args)
            for number in range(0, len(listed), 2):
                path = listed[number].decode()[start:]
                is_folder = path.endswith("/")
                if is_folder or op.matches is None or op.matches(path):
                    if len(found) == op.limit:
                        found.next = last
                        return found
                    if op.bare:
                        found.append(path)
                    else:
                        found.append(FileInfo(path, is_dir=True) if is_folder else info(path, listed[number + 1]))
                last = path
            if not going_on:
                return found
            from_ = going_on.decode()

    def _grep(self, op: ops.Grep) -> Program[Page[tuple[str, bytes]]]:
        found: Page[tuple[str, bytes]] = Page()
        shard = self._shards.home(op.namespace)
        texts = () if op.ignore_case else tuple(text.encode(errors="replace") for text in op.literals[:8])
        walk = ops.Children(op.namespace, op.path, op.after, _GREP_PAGE, deep=True, matches=op.matches, bare=True)
        room = _GREP_BYTES
        while True:
            paths = yield from self._children(walk)
            rest = list(paths)
            while rest:
                places = [place(op.namespace, path) for path in rest]
                _, contents, looked = yield from self._shards.one(shard, "contents", len(texts), *texts, *places)
                for number, given in contents:
                    content = given
                    if content is None:  # too large for one answer
                        content = yield from self._shards.read(shard, places[number - 1])
                        if content is None or not (yield Work(_has_all, (content, texts))):
                            continue
                    found.append((rest[number - 1], content))
                    room -= len(content)
                last, rest = rest[looked - 1], rest[looked:]
                if room < 0:
                    found.next = last
                    return found
            if paths.next is None:
                return found
            walk = replace(walk, after=paths.next)


def _has_all(content: bytes, texts: Sequence[bytes]) -> bool:
    return all(text in content for text in texts)


def _feed_words(
    since: str,
    size: int,
    prefix: Namespace = (),
    want: str = "h",
    recursive: bool = True,
    path: str | None = None,
) -> tuple[Any, ...]:
    """What the script `changes` is asked: for so many after a position, and how much of each (`h`, its head)."""
    encoded = keys.encode(prefix)
    inside = encoded if recursive else f"{encoded}\x00"
    exact, folder = "", ""
    if path is not None:
        exact, folder = place(prefix, path), place(prefix, path.rstrip("/") + "/")
    hidden = "" if prefix else keys.HIDDEN[0]
    return since, inside, hidden, exact, folder, size, want, _EVERYTHING


def _matching(found: Iterable[list[Any]], filter: filters.Filter | None) -> Iterator[Hit]:
    for where, head, value, _, content in found:
        hit: Hit = to_entry(row(*parted(where), head, value, content), Hit)
        if filter is None or filter.matches(hit.value):
            yield hit


def _is_unembedded(head: bytes, value: bytes, paths: bytes | None, model: int) -> bool:
    """Whether it has texts to be found by, but no vectors of a model."""
    return model_of(head) != model and paths != b"[]" and value.decode() not in shapes.WRITTEN
