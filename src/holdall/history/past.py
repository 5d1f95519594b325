"""Reading a store as it was at a moment: what `Store.at` does with the ops that the store's methods send.

`read` answers a batch of reads from two ops of the engine: `ListPast`, which lists the entries of that moment without
their values, and `GetVersion`, which reads one of them. So every method of `Store` and `Files` that only reads works on
the view, and each engine implements no more than these two.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from .. import ops
from ..engine import PAGE_BYTES, check_expectation
from ..errors import HistoryGone, InvalidInput, Unsupported
from ..model import file_values, filters, keys
from ..model.globs import compile_glob
from ..model.values import to_datetime
from ..ops import Entry, FileInfo, Hit, Namespace, OldHead, OldVersion, Op, Page
from ..runtime.programs import Program

#: A moment: a cursor, or microseconds since 1970.
Moment: TypeAlias = str | int
#: A program that yields batches of engine ops.
PastProgram: TypeAlias = Program[Sequence[Op], Any]

H = TypeVar("H", OldHead, OldVersion)

_LARGEST_PAGE = 1000  # heads
_MOST_LOADED = 200  # entries in one batch
_GREP_BYTES = 1 << 20  # of contents, after which a page ends


def read(batch: Sequence[Op], at: Moment) -> PastProgram:
    """Answer a batch of reads as the store was at a moment."""
    results: list[Any] = []
    for op in batch:
        results += [(yield from _read(op, at))]
    return results


def _read(op: Op, at: Moment) -> PastProgram:
    match op:
        case ops.ListVersions() | ops.GetVersion() | ops.ListPast():
            return (yield [op])[0]
        case ops.Get(namespace, key):
            head = yield from _find(namespace, key, at)
            return None if head is None else (yield from load_entries([head]))[0]
        case ops.ReadRange(version=version) if version is not None:
            return (yield [op])[0]
        case ops.ReadRange(namespace, key):
            head = yield from _find(namespace, key, at)
            if head is None or head.size is None:
                return None
            return _require((yield [ops.replace(op, version=head.version)])[0])
        case ops.GetSearchFields(namespace, key):
            head = yield from _find(namespace, key, at)
            if head is None:
                return None
            return _require((yield [ops.GetVersion(namespace, key, head.version, content=False)])[0]).search_fields
        case ops.CountVectors():
            return 0  # old values have none
        case ops.Check(namespace, key):
            head = yield from _find(namespace, key, at)
            return check_expectation(op, None if head is None else head.version)
        case ops.Stat(namespace, path):
            head = yield from _find(namespace, path, at)
            if head is not None and head.size is not None:
                return _info(head)
            page = (yield [ops.ListPast(namespace, at, limit=1, folder=path + "/")])[0]
            return FileInfo(path + "/", is_dir=True) if page else None
        case ops.Search():
            return (yield from _search(op, at))
        case ops.Count(prefix, filter, recursive, None):
            return (yield from _count(prefix, filter, recursive, at))
        case ops.ReadStats(prefix):
            counts = yield from _fold(ops.ListPast(prefix, at), lambda heads: (len(heads), sum(map(_is_file, heads))))
            return ops.Stats(entries=sum(count for count, _ in counts), files=sum(files for _, files in counts))
        case ops.Scan(prefix, after, limit):
            page, mark = list_heads(ops.ListPast(prefix, at, None, min(limit, _LARGEST_PAGE))), after
            while True:
                heads, mark = yield from page(mark)
                if heads or mark is None:
                    break
            first = next(split_by_bytes(heads), [])
            entries = yield from load_entries(first)
            return Page(entries, first[-1].key if len(first) < len(heads) or mark is not None else None)
        case ops.Namespaces():
            return (yield from _namespaces(op, at))
        case ops.Children():
            return (yield from _children(op, at))
        case ops.Grep():
            return (yield from _grep(op, at))
    raise Unsupported(
        f"store.at(...) shows how the store was, and can only be read, not searched by a query, watched or written to"
        f" ({type(op).__name__}); use the store itself, or store.rewind"
    )


def _find(namespace: Namespace, key: str, at: Moment) -> PastProgram:
    page: Page[OldHead] = (yield [ops.ListPast(namespace, at, limit=1, recursive=False, key=key)])[0]
    return page[0] if page else None


def _require(found: Any) -> Any:
    """Return what was read of a version, unless it was purged since it was listed."""
    if found is None:
        raise HistoryGone("the history of that moment was just purged: ask for a later one")
    return found


def split_by_bytes(heads: Sequence[H], most: int = _MOST_LOADED) -> Iterator[list[H]]:
    """Split heads or versions into groups whose contents fit into memory together."""
    group: list[H] = []
    room = PAGE_BYTES
    for head in heads:
        size = _count_loaded_bytes(head)
        if group and (size > room or len(group) == most):
            yield group
            group, room = [], PAGE_BYTES
        group.append(head)
        room -= size
    if group:
        yield group


def _count_loaded_bytes(head: OldHead | OldVersion) -> int:
    return head.size if head.size is not None and head.size <= file_values.LARGEST else 0


def load_entries(heads: Sequence[OldHead], kind: Callable[..., Any] = Entry) -> PastProgram:
    """Return the entries of some heads, with their values."""
    if not heads:
        return []
    found: list[ops.OldEntry | None] = yield [
        ops.GetVersion(keys.Resolved(head.namespace), head.key, head.version, (head.size or 0) <= file_values.LARGEST)
        for head in heads
    ]
    entries = []
    for head, old in zip(heads, found, strict=True):
        entry = _require(old).entry
        expires_at = None if head.expires is None else to_datetime(head.expires)
        entries.append(
            kind(
                entry.namespace,
                entry.key,
                entry.value,
                entry.version,
                entry.created_at,
                entry.updated_at,
                expires_at,
            )
        )
    return entries


def list_heads(walk: ops.ListPast) -> Callable[[Any], PastProgram]:
    """Return a program that reads a page of heads after a mark, and the mark of the next page, None after the last.

    Entries of hidden namespaces are left out: their past is not kept.
    """

    def page(after: Any) -> PastProgram:
        heads: Page[OldHead] = (yield [ops.replace(walk, after=after)])[0]
        shown = [head for head in heads if not keys.is_hidden(head.namespace)]
        return shown, None if heads.next is None else (heads[-1].namespace, heads[-1].key)

    return page


def _fold(walk: ops.ListPast, function: Callable[[list[OldHead]], Any]) -> PastProgram:
    """Return the results of a function for each page of a walk."""
    results, page = [], list_heads(walk)
    heads, mark = yield from page(walk.after)
    results.append(function(heads))
    while mark is not None:
        heads, mark = yield from page(mark)
        results.append(function(heads))
    return results


def _search(op: ops.Search, at: Moment) -> PastProgram:
    """Find entries that match a filter, newest change first. A cursor is the lowest version found so far."""
    if op.query is not None or op.vector is not None:
        raise Unsupported("a query ranks the store as it is now; store.at(...) takes a filter only, without query=")
    if op.limit == 0:
        return Page()
    below = None if op.cursor is None else _parse_cursor(op.cursor)
    want = op.offset + op.limit + 1

    def select(heads: list[OldHead]) -> list[OldHead]:
        older = [head for head in heads if below is None or head.version < below]
        return older if op.filter is not None else heapq.nlargest(want, older, key=_version)

    walk = ops.ListPast(op.prefix, at, recursive=op.recursive)
    found = [head for heads in (yield from _fold(walk, select)) for head in heads]
    found.sort(key=_version, reverse=True)
    hits: list[Hit] = []
    for group in split_by_bytes(found):
        if len(hits) >= want:
            break
        entries = yield from load_entries(group, Hit)
        hits += [hit for hit in entries if filters.matches(op.filter, hit.value)]
    hits = hits[op.offset : want]
    more = len(hits) > op.limit
    return Page(hits[: op.limit], str(hits[op.limit - 1].version) if more else None)


def _version(head: OldHead) -> int:
    return head.version


def _parse_cursor(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit()):
        raise InvalidInput(f"not a search cursor: {cursor!r:.60}")
    return int(cursor)


def _count(prefix: Namespace, filter: str | None, recursive: bool, at: Moment) -> PastProgram:
    walk = ops.ListPast(prefix, at, recursive=recursive)
    if filter is None:
        return sum((yield from _fold(walk, len)))
    total, page, mark = 0, list_heads(walk), None
    while True:
        heads, mark = yield from page(mark)
        for group in split_by_bytes(heads):
            total += sum(filters.matches(filter, entry.value) for entry in (yield from load_entries(group)))
        if mark is None:
            return total


def _namespaces(op: ops.Namespaces, at: Moment) -> PastProgram:
    depth = len(op.base)

    def select(heads: list[OldHead]) -> set[Namespace]:
        relative = {head.namespace[depth:] for head in heads}
        return {one[: op.max_depth] for one in relative if keys.matches(one, op.prefix, op.suffix)}

    walk = ops.ListPast(op.base + keys.literal_prefix(op.prefix), at)
    found: set[Namespace] = set().union(*(yield from _fold(walk, select)))
    return sorted(found)[op.offset : op.offset + op.limit]


def _is_file(head: OldHead) -> bool:
    return head.size is not None


def _info(head: OldHead) -> FileInfo:
    times = to_datetime(head.created), to_datetime(head.updated)
    return FileInfo(head.key, False, head.size or 0, head.version, *times)


def _children(op: ops.Children, at: Moment) -> PastProgram:
    found: Page[Any] = Page()
    matches, last = compile_glob(op.glob, op.path), op.after
    # All that is in a subfolder sorts after the path of the subfolder, and before this one.
    mark = None if op.after is None else (op.namespace, op.after + "\U0010ffff" if op.after[-1] == "/" else op.after)
    page = list_heads(ops.ListPast(op.namespace, at, folder=op.path))
    while True:
        heads, mark = yield from page(mark)
        for head in heads:
            key, end = head.key, head.key.find("/", len(op.path))
            if not op.deep and end >= 0:
                if key[: end + 1] == last:
                    continue
                one: Any = key[: end + 1] if op.bare else FileInfo(key[: end + 1], is_dir=True)
            elif matches is None or matches(key):
                one = key if op.bare else _info(head)
            else:
                continue
            if len(found) == op.limit:
                found.next = last
                return found
            last = key[: end + 1] if not op.deep and end >= 0 else key
            found.append(one)
        if mark is None:
            return found


def _grep(op: ops.Grep, at: Moment) -> PastProgram:
    found: Page[tuple[str, bytes]] = Page()
    matches, room = compile_glob(op.glob, op.path), _GREP_BYTES
    page = list_heads(ops.ListPast(op.namespace, at, folder=op.path))
    mark = None if op.after is None else (op.namespace, op.after)
    while True:
        heads, mark = yield from page(mark)
        for head in heads:
            if head.size > file_values.LARGEST or not (matches is None or matches(head.key)):
                continue
            [content] = yield [ops.ReadRange(op.namespace, head.key, 0, None, head.version)]
            found.append((head.key, _require(content)))
            room -= head.size
            if room < 0:
                found.next = head.key
                return found
        if mark is None:
            return found
