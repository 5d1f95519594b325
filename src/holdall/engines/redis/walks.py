"""Walks over a Redis store: searches, counts, scans, the feed, and lists of namespaces and files.

The engine calls `RedisWalks.walk` with an op. Each walk is a program that runs scripts, and each script reads a limited
number of entries. Redis has no snapshots. A walk in key order needs none: it returns an entry that exists all the
time once. A walk in order of change reads, at its end, what has changed since its start, and corrects its result.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from operator import itemgetter
from typing import Any, TypeVar

from ... import ops
from ...engine import (
    PAGE_BYTES,
    Row,
    cursor_expired,
    decode_acting,
    feed_from,
    not_a_cursor,
    parse_revision,
    search,
    to_entry,
)
from ...errors import CursorExpired, InvalidInput, Unavailable
from ...model import file_values, filters, keys
from ...model.globs import compile_glob
from ...ops import Change, FileInfo, Hit, Namespace, Op, Page
from ...runtime.programs import Work
from ...search.ranking import FEW, rank_entries
from ..checks.redis import RedisChecks
from . import filter_index
from .connections import ConnectionProgram
from .encoding import (
    folder_bounds,
    list_ranges,
    make_id,
    parse_kind,
    parse_model,
    parse_version,
    ranges_after,
    split_id,
    to_file_info,
    to_record,
    to_row,
)
from .search.ranker import RedisRanker
from .search.text_index import IndexChanged, RedisTextIndex
from .shards import Shards

_FIRST_PAGE, _LARGEST_PAGE = 64, 500
_FEED_PAGE = 1000
_GREP_PAGE = 500  # files whose contents are read at once
_GREP_BYTES = 1 << 20  # of contents in one page of candidates; the last file may exceed it
_ROOTS = 64  # that a walk in key order over many shards reads at once
_ALL = 1 << 60
_MAX_TRIES = 5  # of a ranked search, while other clients write what it finds

T = TypeVar("T")

#: Returns the indexed fields of a shard: their stamp, and the number and path of each.
Declared = Callable[[int], tuple[bytes, Sequence[tuple[str, str]]]]


@dataclass(slots=True)
class _Stream:
    """The newest entries of one shard, read a page at a time."""

    shard: int
    bound: int | None  # all entries that are not read yet are below this version
    size: int
    ready: deque[Hit] = field(default_factory=deque)
    is_over: bool = False
    first_position: bytes = b""  # of the feed, when the first page was read
    last_position: bytes = b""  # and when the last page was read


class RedisWalks:
    """All walks, over one shard or over many."""

    def __init__(self, shards: Shards, declared: Declared, declare: Callable[[int], ConnectionProgram[None]]) -> None:
        self._shards = shards
        self._declared, self._declare = declared, declare
        self.text_index = RedisTextIndex(shards)
        self._ranker = RedisRanker(shards, self.text_index, self._find_by_index)

    def walk(self, op: Op) -> ConnectionProgram[Any]:
        match op:
            case ops.Search():
                if op.query is None and op.vector is None:
                    return (yield from search(self, op))
                return (yield from self._search_ranked(op))
            case ops.Unembedded():
                rows = yield from self._read_rows(op.prefix, op.after, op.limit, op.model)
                return Page([(to_entry(row), paths) for row, paths in rows], rows.next)
            case ops.Count():
                return (yield from self._count(op))
            case ops.Scan():
                rows = yield from self._read_rows(op.prefix, op.after, op.limit, hides=True)
                return Page([to_entry(row) for row, _ in rows], rows.next)
            case ops.Namespaces():
                return (yield from self._namespaces(op))
            case ops.Changes():
                return (yield from self._changes(op))
            case ops.Records():
                return (yield from self._read_records(op))
            case ops.ChangedRecords():
                return (yield from self._changed_records(op))
            case ops.FindFaults():
                return (yield from RedisChecks(self._shards).find())
            case ops.Children():
                return (yield from self._children(op))
            case ops.Grep():
                return (yield from self._grep(op))
        raise TypeError(f"not a walk: {op!r}")

    def _search_ranked(self, op: ops.Search) -> ConnectionProgram[Any]:
        """Return a ranked page. If entries that it covers have changed meanwhile, search again, a few times.

        A page of changed entries has all that match, but it may rank them by their older versions.
        """
        shards = self._shards.below(op.prefix)
        page: Any = None
        for _ in range(_MAX_TRIES):
            before = yield from self._read_feed_states(shards)
            positions = {shard: position for shard, (position, _) in before.items()}
            try:
                page = yield from rank_entries(self._ranker.for_search(since=positions), op, self.older)
            except IndexChanged:
                continue
            after = yield from self._read_feed_states(shards)
            for shard, since in positions.items():
                if after[shard][0] != since:
                    args = _encode_feed_args(since, _FEED_PAGE, op.prefix)
                    _, found, _, has_more, *_ = yield from self._shards.run(shard, "changes", *args)
                    if found or has_more:
                        break
            else:
                break
        if page is None:
            raise Unavailable("other clients rebuild the text index during each search; try again later")
        return page

    # Newest first ----------------------------------------------------------------------------------------------------

    def position(self) -> ConnectionProgram[str]:
        states = yield from self._read_feed_states(self._shards.all)
        return self._format_position({shard: position for shard, (position, _) in states.items()})

    def older(self, op: ops.Search, below: int | None, want: int) -> ConnectionProgram[list[Hit]]:
        """Return the newest entries below a version, merged from the shards: newest first."""
        known = yield from self._find_by_index(op)
        if known is not None:
            return (yield from self._read_known(op, known, below, want))
        size = want if op.filter is None else max(want, _FIRST_PAGE)
        streams = [_Stream(shard, below, size) for shard in self._shards.below(op.prefix)]
        hits: list[Hit] = []
        while len(hits) < want:
            newest = max((each for each in streams if each.ready), key=lambda each: each.ready[0].version, default=None)
            unread = [  # these may have a newer entry
                stream
                for stream in streams
                if not (stream.ready or stream.is_over)
                and (newest is None or stream.bound is None or stream.bound > newest.ready[0].version)
            ]
            if unread:
                yield from self._read_next_pages(op, unread)
            elif newest is None:
                break
            else:
                hits.append(newest.ready.popleft())
        changed = [stream for stream in streams if stream.last_position != stream.first_position]
        return (yield from self._correct(op, hits, changed, below, want)) if changed else hits

    def _read_next_pages(self, op: ops.Search, streams: list[_Stream]) -> ConnectionProgram[None]:
        encoded = keys.encode(op.prefix)
        if op.recursive:
            low, high = keys.below(encoded)
            namespaces = ("", "") if high is None else (f"[{low}", f"({high}")
            prefix = encoded
        else:
            namespaces, prefix = (f"[{encoded}", f"[{encoded}"), f"{encoded}\x00"
        reserved = "" if op.prefix else keys.RESERVED_RANGE[0]
        needles = filter_index.encode_needles(op.filter)
        by_args: dict[tuple[Any, int], list[_Stream]] = {}
        for stream in streams:
            bound = "" if stream.bound is None else stream.bound
            by_args.setdefault((bound, min(stream.size, _LARGEST_PAGE)), []).append(stream)
        for (bound, size), alike in by_args.items():
            args = (bound, *namespaces, prefix, reserved, size, "c", *needles)
            replies = yield from self._shards.run_on_each([stream.shard for stream in alike], "newest", *args)
            for stream, (_, found, next_bound, position) in zip(alike, replies, strict=True):
                stream.first_position, stream.last_position = stream.first_position or position, position
                stream.is_over, stream.size = not next_bound, stream.size * 4
                stream.bound = int(next_bound) if next_bound else stream.bound
                stream.ready.extend(_filter_hits(found, op.filter))

    def _correct(
        self, op: ops.Search, hits: list[Hit], streams: list[_Stream], below: int | None, want: int
    ) -> ConnectionProgram[list[Hit]]:
        """Correct hits for the entries that were written in these shards meanwhile.

        The first page has those entries as they are now. From a later page they are removed: they come on a page after
        it.
        """
        changed: list[Hit] = []
        changed_keys: set[tuple[Namespace, str]] = set()
        for stream in streams:
            since, has_more = stream.first_position.decode(), True
            while has_more:
                args = _encode_feed_args(since, _FEED_PAGE, op.prefix, "c", op.recursive)
                _, found, after, has_more, *_ = yield from self._shards.run(stream.shard, "changes", *args)
                since = after.decode()
                for entry_id, head, value, _, content in _leave_out_hidden(found, op):
                    ns, key = split_id(entry_id)
                    changed_keys.add((keys.decode(ns), key))
                    if value is not None and below is None:
                        changed += _filter_hits([[entry_id, head, value, None, content]], op.filter)
        unchanged = [hit for hit in hits if (hit.namespace, hit.key) not in changed_keys]
        corrected = sorted([*changed, *unchanged], key=lambda hit: -hit.version)
        if len(corrected) < len(hits) == want:  # the page has room for older entries
            return (yield from self.older(op, below, want))
        return corrected[:want]

    def newer(self, op: ops.Search, position: str, want: int) -> ConnectionProgram[list[tuple[Hit, str]]]:
        """Return entries that have changed after a position, each with the position after it."""
        positions = self.parse_position(position)
        hits: list[tuple[Hit, str]] = []
        for shard in self._shards.below(op.prefix):
            since, has_more = str(parse_revision(positions[shard])), True
            while has_more:
                args = _encode_feed_args(since, _FEED_PAGE, op.prefix, "l", op.recursive)
                _, found, after, has_more, *_ = yield from self._shards.run(shard, "changes", *args)
                since = after.decode()
                for hit in _filter_hits(_leave_out_hidden(found, op), op.filter):
                    positions[shard] = str(hit.version)
                    hits.append((hit, self._format_position(positions)))
                    if len(hits) == want:
                        return hits
            positions[shard] = since
        return hits

    # By an index -----------------------------------------------------------------------------------------------------

    def _find_by_index(self, op: ops.Search | ops.Count) -> ConnectionProgram[dict[int, bytes] | None]:
        """Return the versions and IDs of all entries that can match a filter; None if no indexed field finds few."""
        prefix = keys.encode(op.prefix) + ("" if op.recursive else "\x00")
        reserved = "" if op.prefix else keys.RESERVED_RANGE[0]
        ids: dict[int, bytes] = {}
        for shard in self._shards.below(op.prefix):
            found: Any = b"declare"
            while found == b"declare":  # another client has declared fields, or the data was flushed
                stamp, declared = self._declared(shard)
                chosen = filter_index.choose_field(op.filter, declared)
                if chosen is None:
                    return None
                number, spans = chosen
                args = (number, prefix, reserved, FEW, stamp, *(bound for span in spans for bound in span))
                _, found = yield from self._shards.run(shard, "lookup", *args)
                if found == b"declare":
                    yield from self._declare(shard)
            if found == b"too many":
                return None
            ids.update(zip(map(int, found[::2]), found[1::2], strict=True))
            if len(ids) > FEW:
                return None
        return ids

    def _read_known(
        self, op: ops.Search, ids: dict[int, bytes], below: int | None, want: int
    ) -> ConnectionProgram[list[Hit]]:
        """Return those of some entries, given by version and ID, that match: newest first.

        The first page has entries that have changed meanwhile as they are now. Later pages leave them out: they come on
        a page after it.
        """
        hits: list[Hit] = []
        rest = sorted((version for version in ids if below is None or version < below), reverse=True)
        size = max(want, _FIRST_PAGE)
        ranker = self._ranker.for_search(ids)
        while rest and len(hits) < want:
            found = yield from ranker.matching(op, rest[:size])
            hits += [hit for hit in found if below is None or hit.version < below]
            rest, size = rest[size:], min(size * 4, _LARGEST_PAGE)
        return sorted(hits, key=lambda hit: -hit.version)[:want]

    # The feed --------------------------------------------------------------------------------------------------------

    def _read_feed_states(self, shards: Sequence[int]) -> ConnectionProgram[dict[int, tuple[str, int]]]:
        """Return the position of each shard's feed, and the last purged version."""
        replies = yield from self._shards.run_on_each(shards, "changes", *_encode_feed_args("+inf", 1))
        return {shard: (reply[4].decode(), int(reply[5])) for shard, reply in zip(shards, replies, strict=True)}

    def parse_position(self, position: str) -> dict[int, str]:
        """Parse a position: a version; on a cluster, `shard~version` for each shard that has changes, joined by `_`."""
        if not self._shards.is_cluster:
            return {0: position}
        positions = dict.fromkeys(self._shards.all, "0")
        for part in position.split("_") if position != "0" else ():
            shard, separator, version = part.partition("~")
            is_version = re.fullmatch(r"\d{1,18}(-\d{1,18})?", version, re.ASCII)
            is_shard = re.fullmatch(r"\d{1,2}", shard, re.ASCII) and int(shard) in positions
            if not (is_version and separator and is_shard):
                raise not_a_cursor(position)
            positions[int(shard)] = version
        return positions

    def _format_position(self, positions: Mapping[int, str]) -> str:
        if not self._shards.is_cluster:
            return positions[0]
        return "_".join(f"{shard}~{version}" for shard, version in positions.items() if version != "0") or "0"

    def _resume(
        self, since_cursor: str | None, prefix: Namespace
    ) -> ConnectionProgram[tuple[dict[int, int], dict[int, Callable[[int], str]], dict[int, str], dict[int, str]]]:
        """Parse a cursor: return, by shard, the version to go on after, how cursors are made, and the positions of the
        cursor and of the end of the feed."""
        states = yield from self._read_feed_states(self._shards.all)
        if not self._shards.is_cluster and states[0][0] == "0":  # after a flush, a new feed begins
            yield from self._shards.run_once(0, "begin_run", ["", ""])
            states = yield from self._read_feed_states(self._shards.all)
        newest = {shard: position for shard, (position, _) in states.items()}
        since = {} if since_cursor is None else self.parse_position(since_cursor)
        positions, starts, cursors = dict(since), {}, {}
        for shard in self._shards.all if since_cursor is None else self._shards.below(prefix):
            try:
                starts[shard], cursors[shard] = feed_from(since.get(shard), int(newest[shard]), states[shard][1])
            except CursorExpired:
                raise cursor_expired(since_cursor) from None
            except InvalidInput:
                raise not_a_cursor(since_cursor) from None
            positions[shard] = cursors[shard](starts[shard])
        return starts, cursors, positions, newest

    def _changes(self, op: ops.Changes) -> ConnectionProgram[Page[Change]]:
        if op.limit == 0:
            _, _, _, newest = yield from self._resume(None, ())
            return Page((), self._format_position(newest))
        starts, cursors, positions, newest = yield from self._resume(op.since, op.prefix)
        shards = self._shards.below(op.prefix)
        size = _FEED_PAGE if op.prefix else min(op.limit, _FEED_PAGE)
        calls = []
        for shard in shards:
            cursor_version = positions[shard].rpartition("-")[2]
            args = _encode_feed_args(str(starts[shard]), size, op.prefix, path=op.path)
            calls.append((shard, (*args, "", cursor_version)))
        replies = yield from self._shards.run_many("changes", calls)
        if not all(reply[7] for reply in replies):
            raise cursor_expired(op.since)
        pages: list[list[tuple[int, int, str, str, Any, Any]]] = []
        for shard, reply in zip(shards, replies, strict=True):
            found, end = yield from self._read_changes(shard, op, starts[shard], reply)
            pages.append(found)
            newest[shard] = cursors[shard](end)
        changes: Page[Change] = Page()
        unread = {shard: len(found) for shard, found in zip(shards, pages, strict=True)}
        for version, shard, ns, key, kind, acting in merge(*pages, key=itemgetter(0)):
            if len(changes) == op.limit:
                break
            unread[shard] -= 1
            positions[shard] = cursors[shard](version)
            author = decode_acting(None if acting is None else acting.decode())
            changes.append(Change(version, keys.decode(ns), key, kind, self._format_position(positions), *author))
        if len(changes) < op.limit:
            positions.update(newest)  # there are no other changes
        else:
            positions.update((shard, newest[shard]) for shard, count in unread.items() if not count)
        changes.next = self._format_position(positions)
        return changes

    def _read_changes(
        self, shard: int, op: ops.Changes, since: int, reply: list[Any]
    ) -> ConnectionProgram[tuple[list[tuple[int, int, str, str, Any, Any]], int]]:
        """Return the changes of one shard, up to the limit, and the version after them. `reply` has the first ones."""
        changes: list[tuple[int, int, str, str, Any, Any]] = []
        while True:
            _, found, after, has_more, *_ = reply
            for entry_id, head, acting in found:
                version = parse_version(head)
                changes.append((version, shard, *split_id(entry_id), parse_kind(head), acting))
                if len(changes) == op.limit:
                    return changes, version
            since = max(since, int(after))
            if not has_more:
                return changes, since
            size = _FEED_PAGE if op.prefix else min(op.limit - len(changes), _FEED_PAGE)
            args = _encode_feed_args(str(since), size, op.prefix, path=op.path)
            reply = yield from self._shards.run(shard, "changes", *args)

    def _changed_records(self, op: ops.ChangedRecords) -> ConnectionProgram[ops.RecordPage]:
        """Return the records of a page of changes. One script reads a page of one shard: all of it at one moment."""
        starts, cursors, positions, _ = yield from self._resume(op.since, op.prefix)
        records: list[ops.Record] = []
        for shard in self._shards.below(op.prefix):
            has_more = True
            while has_more:
                size = op.limit - len(records)
                if op.prefix:  # most changes may be elsewhere
                    size = max(size, _FEED_PAGE)
                args = _encode_feed_args(str(starts[shard]), size, op.prefix, "r")
                cursor_version = positions[shard].rpartition("-")[2]
                reply = yield from self._shards.run(shard, "changes", *args, "", cursor_version)
                _, found, after, has_more, *_, is_valid = reply
                if not is_valid:
                    raise cursor_expired(op.since)
                records += map(to_record, found)
                starts[shard] = max(starts[shard], int(after))
                positions[shard] = cursors[shard](starts[shard])
                if len(records) >= op.limit or (has_more and records):
                    return ops.RecordPage(records, self._format_position(positions), True)
        return ops.RecordPage(records, self._format_position(positions), False)

    # In key order ----------------------------------------------------------------------------------------------------

    def _read_records(self, op: ops.Records) -> ConnectionProgram[ops.RecordPage]:
        found = yield from self._read_page(op.prefix, op.after, op.limit, "r", to_record)
        return ops.RecordPage(list(found), found[-1].key if found else None, found.next is not None)

    def _read_rows(
        self,
        prefix: Namespace,
        after: tuple[Namespace, str] | None,
        limit: int,
        model: int | None = None,
        hides: bool = False,
    ) -> ConnectionProgram[Page[tuple[Row, str | None]]]:
        """Read a page of rows in key order, each with its search fields. If a model is given, only entries that need
        vectors of it. If there may be more, `next` is the last key."""

        def make(reply: list[Any]) -> tuple[Row, str | None] | None:
            entry_id, head, value, paths, content = reply
            if model is not None and not _is_unembedded(head, value, paths, model):
                return None
            return to_row(*split_id(entry_id), head, value, content), None if paths is None else paths.decode()

        return (yield from self._read_page(prefix, after, limit, "c", make, hides))

    def _read_page(
        self,
        prefix: Namespace,
        after: tuple[Namespace, str] | None,
        limit: int,
        want: str,
        make: Callable[[list[Any]], T | None],
        hides: bool = False,
    ) -> ConnectionProgram[Page[T]]:
        """Read a page of entries in key order: `make` of what `scan.lua` returns, or nothing if that is None.

        `hides`: none of hidden namespaces.
        """
        rows: Page[T] = Page()
        last_id = None if after is None else make_id(*after)
        if prefix or not self._shards.is_cluster:
            shard = self._shards.of_namespace(prefix or ("",))
            yield from self._add_rows(shard, prefix, last_id, limit, want, make, rows, hides)
            return rows
        begin = "" if after is None else keys.encode(after[0][:1])
        while True:
            roots = yield from self._read_roots(begin)
            for root in roots:
                if hides and root[0].startswith(keys.HIDDEN_PREFIX):
                    continue
                yield from self._add_rows(self._shards.of_namespace(root), root, last_id, limit, want, make, rows)
                if rows.next is not None:
                    return rows
            if len(roots) < _ROOTS:
                return rows
            begin = keys.after(keys.encode(roots[-1]), 1)

    def _read_roots(self, begin: str) -> ConnectionProgram[list[Namespace]]:
        """Read the roots of all namespaces from an encoded one on, in order."""
        roots: set[str] = set()
        for low, high in list_ranges(()):
            start = low if low != "-" and low[1:] > begin else f"[{begin}"
            if high != "+" and high[1:] <= begin:
                continue
            replies = yield from self._shards.run_on_each(self._shards.all, "namespaces", start, high, _ROOTS, 1)
            for _, namespaces, _ in replies:
                roots.update(keys.decode(encoded.decode())[0] for encoded in namespaces)
        return [(root,) for root in sorted(roots)[:_ROOTS]]

    def _add_rows(
        self,
        shard: int,
        prefix: Namespace,
        last_id: str | None,
        limit: int,
        want: str,
        make: Callable[[list[Any]], T | None],
        rows: Page[T],
        hides: bool = False,
    ) -> ConnectionProgram[None]:
        """Read the entries of one shard after an ID, until the page is full."""
        room = PAGE_BYTES
        for begin, high in ranges_after(list_ranges(prefix, hides=hides), last_id):
            low = begin
            while low:
                size = min(limit - len(rows), _LARGEST_PAGE)
                _, found, next_low = yield from self._shards.run(shard, "scan", low, high, size, want, _ALL)
                for reply in found:
                    made = make(reply)
                    if made is not None:
                        rows.append(made)
                        room -= len(reply[4] or b"")
                        rows.next = split_id(reply[0])[1]
                low = next_low.decode()
                if len(rows) == limit or room < 0:
                    return
        rows.next = None

    def _count(self, op: ops.Count) -> ConnectionProgram[int]:
        shards = self._shards.below(op.prefix)
        if op.filter is None and op.unembedded is None:
            ranges = list_ranges(op.prefix, op.recursive, hides=not op.hidden)
            bounds = [bound for pair in ranges for bound in pair]
            replies = yield from self._shards.run_on_each(shards, "count", "p", *bounds)
            return sum(reply[1] for reply in replies)
        if op.unembedded is None and (known := (yield from self._find_by_index(op))) is not None:
            search_op = ops.Search(op.prefix, op.filter, recursive=op.recursive)
            matching = yield from self._ranker.for_search(known).find_fitting(search_op, list(known))
            return len({known[version] for version in matching})
        total = 0
        needles = filter_index.encode_needles(op.filter)
        want = "v" if op.filter is None else "c"
        for shard in shards:
            for begin, high in list_ranges(op.prefix, op.recursive, hides=not op.hidden):
                low = begin
                while low:
                    args = (low, high, _LARGEST_PAGE, want, _ALL, *needles)
                    _, found, next_low = yield from self._shards.run(shard, "scan", *args)
                    if op.unembedded is not None:
                        found = [
                            entry for entry in found if _is_unembedded(entry[1], entry[2], entry[3], op.unembedded)
                        ]
                    total += sum(1 for _ in _filter_hits(found, op.filter)) if op.filter else len(found)
                    low = next_low.decode()
        return total

    def count_files(self, prefix: Namespace) -> ConnectionProgram[int]:
        bounds = [bound for pair in list_ranges(prefix) for bound in pair]
        replies = yield from self._shards.run_on_each(self._shards.below(prefix), "count", "f", *bounds)
        return sum(int(reply[1]) for reply in replies)

    def _namespaces(self, op: ops.Namespaces) -> ConnectionProgram[list[Namespace]]:
        if op.limit == 0:
            return []
        start = op.base + keys.literal_prefix(op.prefix)
        found: set[Namespace] = set()
        for shard in self._shards.below(start):
            found.update((yield from self._read_namespaces(shard, start, op)))
        return sorted(found)[op.offset : op.offset + op.limit]

    def _read_namespaces(self, shard: int, start: Namespace, op: ops.Namespaces) -> ConnectionProgram[list[Namespace]]:
        has_pattern = bool(op.suffix) or "*" in op.prefix  # else every namespace in the range matches
        depth = "" if op.max_depth is None or has_pattern else len(op.base) + op.max_depth
        wanted = op.offset + op.limit
        found: list[Namespace] = []
        for begin, end in list_ranges(start, hides=True):
            start_at = begin
            while start_at and len(found) < wanted:
                size = _LARGEST_PAGE if has_pattern else min(wanted - len(found), _LARGEST_PAGE)
                _, namespaces, next_start = yield from self._shards.run(shard, "namespaces", start_at, end, size, depth)
                for encoded in namespaces:
                    namespace = keys.decode(encoded.decode())[len(op.base) :]
                    if not has_pattern or keys.matches(namespace, op.prefix, op.suffix):
                        shortened = namespace[: op.max_depth]
                        if not found or found[-1] != shortened:
                            found.append(shortened)
                start_at = next_start.decode()
        return found

    # Files -----------------------------------------------------------------------------------------------------------

    def _children(self, op: ops.Children) -> ConnectionProgram[Page[Any]]:
        found: Page[Any] = Page()
        low, high = folder_bounds(op.namespace, op.path)
        start = f"[{low if op.after is None else make_id(op.namespace, keys.next_key(op.after))}"
        shard, path_offset = self._shards.of_namespace(op.namespace), len(keys.encode(op.namespace)) + 1
        last, matches = op.after, compile_glob(op.glob, op.path)
        while True:
            size = 1000 if matches else max(min(op.limit - len(found), 1000), 1)
            args = (low, start, f"({high}", size, int(op.deep), int(op.bare))
            _, listed, next_start = yield from self._shards.run(shard, "children", *args)
            for number in range(0, len(listed), 2):
                path = listed[number].decode()[path_offset:]
                is_folder = path.endswith("/")
                if is_folder or matches is None or matches(path):
                    if len(found) == op.limit:
                        found.next = last
                        return found
                    if op.bare:
                        found.append(path)
                    elif is_folder:
                        found.append(FileInfo(path, is_dir=True))
                    else:
                        found.append(to_file_info(path, listed[number + 1]))
                last = path
            if not next_start:
                return found
            start = next_start.decode()

    def _grep(self, op: ops.Grep) -> ConnectionProgram[Page[tuple[str, bytes]]]:
        found: Page[tuple[str, bytes]] = Page()
        shard = self._shards.of_namespace(op.namespace)
        texts = () if op.ignore_case else tuple(text.encode(errors="replace") for text in op.literals[:8])
        walk = ops.Children(op.namespace, op.path, op.after, _GREP_PAGE, deep=True, glob=op.glob, bare=True)
        bytes_left = _GREP_BYTES
        while True:
            paths = yield from self._children(walk)
            rest = list(paths)
            while rest:
                ids = [make_id(op.namespace, path) for path in rest]
                _, contents, looked_at = yield from self._shards.run(shard, "contents", len(texts), *texts, *ids)
                for number, received in contents:
                    content = received
                    if content is None:  # too large for one reply
                        content = yield from self._shards.read(shard, ids[number - 1])
                        if content is None or not (yield Work(_has_all, (content, texts))):
                            continue
                    found.append((rest[number - 1], content))
                    bytes_left -= len(content)
                last, rest = rest[looked_at - 1], rest[looked_at:]
                if bytes_left < 0:
                    found.next = last
                    return found
            if paths.next is None:
                return found
            walk = ops.replace(walk, after=paths.next)


def _has_all(content: bytes, texts: Sequence[bytes]) -> bool:
    return all(text in content for text in texts)


def _encode_feed_args(
    since: str,
    size: int,
    prefix: Namespace = (),
    want: str = "h",
    recursive: bool = True,
    path: str | None = None,
) -> tuple[Any, ...]:
    """Encode the arguments of `changes.lua`: read `size` changes after a version, and `want` of each."""
    encoded = keys.encode(prefix)
    id_prefix = encoded if recursive else f"{encoded}\x00"
    exact, folder = "", ""
    if path is not None:
        exact, folder = make_id(prefix, path), make_id(prefix, path.rstrip("/") + "/")
    reserved = "" if prefix else keys.RESERVED_RANGE[0]
    return since, id_prefix, reserved, exact, folder, size, want, _ALL


def _leave_out_hidden(found: Iterable[list[Any]], op: ops.Search) -> Iterator[list[Any]]:
    """Yield those of a page of changes that are in no hidden namespace."""
    return (each for each in found if not (op.recursive and keys.is_hidden_below(split_id(each[0])[0], op.prefix)))


def _filter_hits(found: Iterable[list[Any]], filter: str | None) -> Iterator[Hit]:
    for entry_id, head, value, _, content in found:
        hit: Hit = to_entry(to_row(*split_id(entry_id), head, value, content), Hit)
        if filters.matches(filter, hit.value):
            yield hit


def _is_unembedded(head: bytes, value: bytes, paths: bytes | None, model: int) -> bool:
    """Whether an entry has texts to embed, but no vectors of a model."""
    return parse_model(head) != model and paths != b"[]" and value.decode() not in file_values.WRITTEN
