"""Walks over a Redis store, as programs: each asks scripts that look at so much at a time, and no more.

Redis has no snapshots. A walk in key order needs none: what was there all along is met once. One in order of change
asks at its end what has changed since it began, and mends its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from .. import filters, keys, ops, shapes
from ..engine import Row, feed_from, parse_revision, search, to_entry
from ..ops import Change, Entry, FileInfo, Hit, Namespace, Op, Page
from ..programs import Program
from .redis_ops import (
    folder_range,
    info,
    kind_of,
    model_of,
    parted,
    place,
    ranges,
    row,
    version_of,
)

_FIRST_PAGE, _LARGEST_PAGE = 64, 500
_FEED_PAGE = 1000
_GREP_PAGE, _GREP_BYTES = 500, 1 << 20  # of contents that one page of candidates holds, more or less
_EVERYTHING = 1 << 60


class Asking(Protocol):
    """How a script is asked."""

    def __call__(self, script: str, *args: Any) -> Program[list[Any]]: ...


class RedisWalks:
    """The walks of one shard, or of all that there is on one server."""

    def __init__(self, ask: Asking, needles: Callable[[filters.Filter | None], list[Any]]) -> None:
        self._ask = ask
        self._needles = needles

    def walk(self, op: Op) -> Program[Any]:
        match op:
            case ops.Search():
                return (yield from search(self, op))
            case ops.Unembedded():
                return (yield from self._unembedded(op))
            case ops.Count():
                return (yield from self._count(op))
            case ops.Scan():
                return [to_entry(one) for one, _, _ in (yield from self._in_key_order(op.prefix, op.after, op.limit))]
            case ops.Namespaces():
                return (yield from self._namespaces(op))
            case ops.Changes():
                return (yield from self._changes(op))
            case ops.Children():
                return (yield from self._children(op))
            case ops.Grep():
                return (yield from self._grep(op))
        raise TypeError(f"not a walk: {op!r}")

    # Newest first ----------------------------------------------------------------------------------------------------

    def position(self) -> Program[str]:
        _, _, _, _, newest, _ = yield from self._feed("+inf", 1)
        return newest.decode()  # type: ignore[no-any-return]  # a reply

    def older(self, op: ops.Search, below: int | None, want: int) -> Program[list[Hit]]:
        began = None
        hits: list[Hit] = []
        size = want if op.filter is None else max(want, _FIRST_PAGE)
        after = "" if below is None else str(below)
        while True:
            size = min(size, _LARGEST_PAGE)
            _, found, going_on, newest = yield from self._newest(op, after, size)
            if began is None:
                began = newest
            for hit in _hits(found):
                if op.filter is None or op.filter.matches(hit.value):
                    hits.append(hit)
                    if len(hits) == want:
                        break
            if len(hits) == want or not going_on:
                break
            after, size = going_on.decode(), size * 4
        if newest != began:
            hits = yield from self._mended(op, hits, began, below, want)
        return hits

    def _newest(self, op: ops.Search, below: str, size: int) -> Program[list[Any]]:
        encoded = keys.encode(op.prefix)
        if op.recursive:
            low, high = keys.below(encoded)
            spaces = ("", "") if high is None else (f"[{low}", f"({high}")
            prefix = encoded
        else:
            spaces, prefix = (f"[{encoded}", f"[{encoded}"), f"{encoded}\x00"
        hidden = "" if op.prefix else keys.HIDDEN[0]
        return (yield from self._ask("newest", below, *spaces, prefix, hidden, size, "c", *self._needles(op.filter)))

    def _mended(
        self, op: ops.Search, hits: list[Hit], began: bytes, below: int | None, want: int
    ) -> Program[list[Hit]]:
        """What was found, where somebody has written meanwhile: some of it may be gone, or be where it was looked for
        already. On a first page it comes as it is now; on others, what changed comes on a later page."""
        changed: list[Hit] = []
        places: set[tuple[Namespace, str]] = set()
        since = began.decode()
        while True:
            _, found, after, more, _, _ = yield from self._feed(since, _FEED_PAGE, op.prefix, "c", op.recursive)
            for where, head, value, _, content in found:
                ns, key = parted(where)
                places.add((keys.decode(ns), key))
                if value is not None and below is None:
                    changed.append(to_entry(row(ns, key, head, value, content), Hit))
            since = after.decode()
            if not more:
                break
        fitting = [hit for hit in changed if op.filter is None or op.filter.matches(hit.value)]
        kept = [hit for hit in hits if (hit.namespace, hit.key) not in places]
        mended = sorted([*fitting, *kept], key=lambda hit: -hit.version)
        if len(mended) < min(len(hits), want):
            return (yield from self.older(op, below, want))
        return mended[:want]

    def newer(self, op: ops.Search, position: str, want: int) -> Program[list[tuple[Hit, str]]]:
        hits: list[tuple[Hit, str]] = []
        since = str(parse_revision(position))
        while True:
            _, found, after, more, _, _ = yield from self._feed(since, _FEED_PAGE, op.prefix, "l", op.recursive)
            for hit in _hits(found):
                if op.filter is None or op.filter.matches(hit.value):
                    hits.append((hit, str(hit.version)))
                    if len(hits) == want:
                        return hits
            if not more:
                return hits
            since = after.decode()

    # The feed --------------------------------------------------------------------------------------------------------

    def _feed(
        self,
        since: str,
        size: int,
        prefix: Namespace = (),
        want: str = "h",
        recursive: bool = True,
        path: str | None = None,
        most: int = _EVERYTHING,
    ) -> Program[list[Any]]:
        encoded = keys.encode(prefix)
        inside = encoded if recursive else f"{encoded}\x00"
        exact, folder = "", ""
        if path is not None:
            exact, folder = place(prefix, path), place(prefix, path.rstrip("/") + "/")
        hidden = "" if prefix else keys.HIDDEN[0]
        return (yield from self._ask("changes", since, inside, hidden, exact, folder, size, want, most))

    def _changes(self, op: ops.Changes) -> Program[Page[Change]]:
        _, _, _, _, newest, forgotten = yield from self._feed("+inf", 1)
        at, cursor = feed_from(op.since, int(newest), int(forgotten))
        if op.limit == 0:
            return Page((), newest.decode())
        changes: Page[Change] = Page()
        while True:
            size = min(op.limit - len(changes), _FEED_PAGE) if not op.prefix else _FEED_PAGE
            _, found, after, more, _, _ = yield from self._feed(str(at), size, op.prefix, path=op.path)
            for where, head in found:
                ns, key = parted(where)
                version = version_of(head)
                changes.append(Change(version, keys.decode(ns), key, kind_of(head), cursor(version)))
                if len(changes) == op.limit:
                    changes.next = cursor(version)
                    return changes
            at = max(at, int(after))
            if not more:
                changes.next = cursor(at)
                return changes

    # In key order ----------------------------------------------------------------------------------------------------

    def _in_key_order(
        self, prefix: Namespace, after: tuple[Namespace, str] | None, limit: int, model: int | None = None
    ) -> Program[list[tuple[Row, str | None, bytes]]]:
        """Rows, what each is found by, and its head; those without vectors of a model, if one is given."""
        rows: list[tuple[Row, str | None, bytes]] = []
        last = None if after is None else place(*after)
        for begin, high in ranges(prefix):
            low = begin
            if last is not None:
                if high != "+" and high[1:] <= last:
                    continue
                if low == "-" or low[1:] <= last:
                    low = f"({last}"
            while low and len(rows) < limit:
                size = min(limit - len(rows), _LARGEST_PAGE)
                _, found, going_on = yield from self._ask("places", low, high, size, "c", _EVERYTHING)
                for where, head, value, paths, content in found:
                    if model is None or _is_unembedded(head, value, paths, model):
                        given = row(*parted(where), head, value, content)
                        rows.append((given, None if paths is None else paths.decode(), head))
                low = going_on.decode()
        return rows

    def _unembedded(self, op: ops.Unembedded) -> Program[list[tuple[Entry, str | None]]]:
        rows = yield from self._in_key_order(op.prefix, op.after, op.limit, op.model)
        return [(to_entry(one), paths) for one, paths, _ in rows]

    def _count(self, op: ops.Count) -> Program[int]:
        if op.filter is None and op.unembedded is None:
            bounds = [bound for pair in ranges(op.prefix, op.recursive) for bound in pair]
            return (yield from self._ask("count", *bounds))[1]  # type: ignore[no-any-return]  # a reply
        total = 0
        needles = self._needles(op.filter)
        want = "v" if op.filter is None else "c"
        for begin, high in ranges(op.prefix, op.recursive):
            low = begin
            while low:
                _, found, going_on = yield from self._ask(
                    "places", low, high, _LARGEST_PAGE, want, _EVERYTHING, *needles
                )
                for where, head, value, paths, content in found:
                    if op.unembedded is not None and not _is_unembedded(head, value, paths, op.unembedded):
                        continue
                    if op.filter is None or op.filter.matches(
                        to_entry(row(*parted(where), head, value, content)).value
                    ):
                        total += 1
                low = going_on.decode()
        return total

    def _namespaces(self, op: ops.Namespaces) -> Program[list[Namespace]]:
        if op.limit == 0:
            return []
        low, high = keys.below(keys.encode(op.base + keys.literal_prefix(op.prefix)))
        picky = bool(op.suffix) or "*" in op.prefix  # else every namespace in the range matches
        depth = "" if op.max_depth is None or picky else len(op.base) + op.max_depth
        wanted = op.offset + op.limit
        found: list[Namespace] = []
        for start, end in ranges(()) if high is None else [(f"[{low}", f"({high}")]:
            from_ = start
            while from_ and len(found) < wanted:
                size = _LARGEST_PAGE if picky else min(wanted - len(found), _LARGEST_PAGE)
                _, spaces, going_on = yield from self._ask("spaces", from_, end, size, depth)
                for encoded in spaces:
                    namespace = keys.decode(encoded.decode())[len(op.base) :]
                    if not picky or keys.matches(namespace, op.prefix, op.suffix):
                        given = namespace[: op.max_depth]
                        if not found or found[-1] != given:
                            found.append(given)
                from_ = going_on.decode()
        return found[op.offset : wanted]

    # Files -----------------------------------------------------------------------------------------------------------

    def _children(self, op: ops.Children) -> Program[Page[Any]]:
        found: Page[Any] = Page()
        low, high = folder_range(op.namespace, op.path)
        from_ = f"[{low if op.after is None else place(op.namespace, keys.next_key(op.after))}"
        folder, start = low, len(keys.encode(op.namespace)) + 1
        last = op.after
        while True:
            size = min(op.limit - len(found), 1000) if op.matches is None else 1000
            _, listed, going_on = yield from self._ask(
                "children", folder, from_, f"({high}", max(size, 1), int(op.deep), int(op.bare)
            )
            for number in range(0, len(listed), 2):
                path = listed[number].decode()[start:]
                if path.endswith("/"):
                    is_given, given = True, path if op.bare else FileInfo(path, is_dir=True)
                else:
                    is_given = op.matches is None or op.matches(path)
                    given = path if op.bare or not is_given else info(path, listed[number + 1])
                if is_given and len(found) == op.limit:
                    found.next = last
                    return found
                if is_given:
                    found.append(given)
                last = path
            if not going_on:
                return found
            from_ = going_on.decode()

    def _grep(self, op: ops.Grep) -> Program[Page[tuple[str, bytes]]]:
        found: Page[tuple[str, bytes]] = Page()
        texts = () if op.ignore_case else tuple(text.encode(errors="replace") for text in op.literals[:8])
        walk = ops.Children(op.namespace, op.path, op.after, _GREP_PAGE, deep=True, matches=op.matches, bare=True)
        room = _GREP_BYTES
        while True:
            paths = yield from self._children(walk)
            rest = list(paths)
            while rest:
                places = [place(op.namespace, path) for path in rest]
                _, contents, looked = yield from self._ask("contents", len(texts), *texts, *places)
                for number, content in contents:
                    found.append((rest[number - 1], content))
                    room -= len(content)
                last, rest = rest[looked - 1], rest[looked:]
                if room < 0:
                    found.next = last
                    return found
            if paths.next is None:
                return found
            walk = replace(walk, after=paths.next)


def _hits(found: list[list[Any]]) -> Iterator[Hit]:
    for where, head, value, _, content in found:
        yield to_entry(row(*parted(where), head, value, content), Hit)


def _is_unembedded(head: bytes, value: bytes, paths: bytes | None, model: int) -> bool:
    """Whether it has texts to be found by, but no vectors of a model."""
    return model_of(head) != model and paths != b"[]" and value != shapes.NATIVE.encode()
