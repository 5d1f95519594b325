"""The memory engine: the reference that the others are compared with.

Two ordered maps under one lock: entries by (namespace, key), and the feed by version, in which a deleted entry stays
as a tombstone. Values are kept as their JSON text and decoded anew for each reader, so nobody holds what is stored.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from sortedcontainers import SortedDict, SortedSet

from .. import keys, ops, shapes
from ..engine import (
    NO_FILE,
    Capabilities,
    Options,
    check_expectation,
    check_transfer,
    check_unblocked,
    feed_from,
    item_in_the_way,
    parse_revision,
    search,
    system_clock,
    to_entry,
    to_info,
    transferred,
)
from ..errors import StoreClosed
from ..ops import KEEP, WALKS, Change, Entry, FileInfo, Hit, Namespace, Op, Page
from ..programs import Program, drive
from ..ranking import ranked
from ..texts import MOST_BYTES
from ..values import ttl_microseconds
from .memory_search import MemoryRanker

_GREP_BYTES = 1 << 20  # of contents that one page of candidates holds, more or less

_Place: TypeAlias = tuple[str, str]  # encoded namespace, key


@dataclass(frozen=True, slots=True)
class _Record:
    version: int
    value: str | None  # None: a tombstone
    created: int
    updated: int
    expires: int | None = None
    ttl: int | None = None
    kind: str = "put"
    body: bytearray | None = None  # of a file: its first `size` bytes; more may follow, which are another's
    size: int | None = None
    appended: bool = False
    index: str | None = None
    vectors: ops.Vectors | None = None


class MemoryEngine:
    """Entries in this process's memory, gone with it."""

    capabilities = Capabilities(durable=False, multiprocess=False, ranks=True)

    def __init__(self, options: Options) -> None:
        self._clock = options.clock or system_clock
        self._lock = threading.RLock()
        self._entries: Any = SortedDict()  # _Place -> _Record
        self._feed: Any = SortedDict()  # version -> _Place
        self._expiring: Any = SortedSet()  # (expires, _Place)
        self._version = 0
        self._tombstones: Any = SortedSet()  # versions
        self._forgotten = 0  # the last tombstone that was removed
        self._closed = False
        self._ranker = MemoryRanker(
            self._newer_than,
            lambda op: self._under(op.prefix, self._clock(), op.recursive),
            self._at_version,
            self._can_be,
            lambda place, record: _entry(place, record, Hit),
            lambda record: None if record.size is None else _content(record, 0, MOST_BYTES),
        )

    # The engine's methods --------------------------------------------------------------------------------------------

    def execute(self, batch: Sequence[Op]) -> list[Any]:
        with self._lock:
            if self._closed:
                raise StoreClosed("this store is closed; open a new one")
            if len(batch) == 1 and type(batch[0]) in WALKS:
                return [drive(self._walk(batch[0]), _no_request)]
            undo: dict[_Place, _Record | None] = {}
            try:
                return [self._point(op, undo) for op in batch]
            except BaseException:
                for place, record in undo.items():
                    self._restore(place, record)
                raise

    async def aexecute(self, batch: Sequence[Op]) -> list[Any]:
        return self.execute(batch)

    def setup(self) -> None:
        """Nothing to set up."""

    async def asetup(self) -> None:
        """Nothing to set up."""

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._entries.clear()
            self._feed.clear()
            self._expiring.clear()
            self._tombstones.clear()
            self._ranker.forget()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            self._lock = threading.RLock()
        else:
            self._lock.release()

    # Point ops -------------------------------------------------------------------------------------------------------

    def _point(self, op: Op, undo: dict[_Place, _Record | None]) -> Any:
        now = self._clock()
        match op:
            case ops.Get(namespace, key):
                place = keys.encode(namespace), key
                record = self._live(place, now)
                return None if record is None else _entry(place, record)
            case ops.Put(namespace, key, value, ttl):
                place = keys.encode(namespace), key
                old = self._live(place, now)
                check_expectation(op, old.version if old else None)
                if ttl is KEEP:
                    expires, lifetime = (old.expires, old.ttl) if old else (None, None)
                else:
                    lifetime = ttl_microseconds(ttl)  # type: ignore[arg-type]  # the store made it seconds or None
                    expires = None if lifetime is None else now + lifetime
                record = _Record(self._next(), "", old.created if old else now, now, expires, lifetime)
                paths: Any = old.index if ttl is KEEP and op.index is None and old else op.index  # JSON or None
                record = _with_value(replace(record, index=paths, vectors=op.vectors), value)
                self._write(place, record, undo)
                return _info(key, record) if shapes.is_native(value) else _entry(place, record)
            case ops.Indexing(namespace, key):
                record = self._live((keys.encode(namespace), key), now)
                return None if record is None else record.index
            case ops.Append():
                return self._append(op, now, undo)
            case ops.ReadRange(namespace, key, start, end):
                record = self._file((keys.encode(namespace), key), now)
                return None if record is None else _content(record, start, end)
            case ops.Stat(namespace, path):
                return self._stat(keys.encode(namespace), path, now)
            case ops.CheckPath(namespace, path):
                ns = keys.encode(namespace)
                parents = (parent for parent in keys.parents(path) if self._file((ns, parent), now))
                check_unblocked(path, itertools.chain(parents, self._below(ns, path + "/", now)))
                return None
            case ops.Move() | ops.Copy():
                return self._transfer(op, now, undo)
            case ops.Tidy():
                return False
            case ops.Learn():
                return 0, False
            case ops.Embed(namespace, key, version, vectors):
                place = keys.encode(namespace), key
                record = self._live(place, now)
                if record is None or record.version != version:
                    return False
                self._write(place, replace(record, vectors=vectors), undo)
                self._ranker.forget_vectors()
                return True
            case ops.Delete(namespace, key):
                place = keys.encode(namespace), key
                old = self._live(place, now)
                check_expectation(op, old.version if old else None)
                if old is not None:
                    self._bury(place, old, "delete", now, undo)
                return old is not None
            case ops.Check(namespace, key):
                record = self._live((keys.encode(namespace), key), now)
                check_expectation(op, record.version if record else None)
                return None
            case ops.Refresh(namespace, key):
                place = keys.encode(namespace), key
                record = self._live(place, now)
                if record is None or record.ttl is None:
                    return False
                self._write(place, replace(record, expires=now + record.ttl), undo)
                return True
            case ops.Backdate(namespace, key, created, updated, expires):
                place = keys.encode(namespace), key
                record = self._live(place, now)
                if record is None:
                    return False
                times: Any = {"created": created, "updated": updated, "expires": expires or record.expires}
                self._write(place, replace(record, **times), undo)
                return True
            case ops.DeleteTree(namespace, path):
                if path is None:
                    doomed = list(self._under(namespace, now))
                else:
                    ns = keys.encode(namespace)
                    doomed = [((ns, key), self._entries[ns, key]) for key in self._tree(ns, path, now)]
                for place, record in doomed:
                    self._bury(place, record, "delete", now, undo)
                return len(doomed)
            case ops.Sweep(limit, prefix):
                due = self._expiring.irange(None, (now + 1,), inclusive=(True, False))
                expired = list(itertools.islice((place for _, place in due if _is_within(place, prefix)), limit))
                for place in expired:
                    self._bury(place, self._entries[place], "expire", now, undo)
                return len(expired)
            case ops.Forget():
                return self._forget(op, now)
        raise TypeError(f"not a point op: {op!r}")

    def _live(self, place: _Place, now: int) -> _Record | None:
        record: _Record | None = self._entries.get(place)
        return record if record is not None and _is_live(record, now) else None

    def _file(self, place: _Place, now: int) -> _Record | None:
        record = self._live(place, now)
        return record if record is not None and record.size is not None else None

    def _append(self, op: ops.Append, now: int, undo: dict[_Place, _Record | None]) -> int:
        place = keys.encode(op.namespace), op.key
        old = self._live(place, now)
        check_expectation(op, old.version if old else None)
        if old is None:
            self._point(ops.Put(op.namespace, op.key, ops.File(shapes.NATIVE, op.data), op.ttl), undo)
            return 0
        if old.body is None or old.size is None:
            raise item_in_the_way(op)
        # Where others share the bytes, the first to grow keeps them; the next has to take its own.
        body = old.body if len(old.body) == old.size else old.body[: old.size]
        body += op.data
        size = old.size + len(op.data)
        grown = replace(old, version=self._next(), updated=now, body=body, size=size, appended=True, vectors=None)
        self._write(place, grown, undo)
        return old.size

    def _stat(self, ns: str, path: str, now: int) -> FileInfo | None:
        record = self._file((ns, path), now)
        if record is not None:
            return _info(path, record)
        return FileInfo(path.rstrip("/") + "/", is_dir=True) if any(self._below(ns, path + "/", now)) else None

    def _below(self, ns: str, folder: str, now: int, after: str | None = None) -> Iterator[str]:
        """The files in a folder and below it, in path order, after a path."""
        low, high = keys.in_folder(folder)
        first = (ns, low if after is None else keys.next_key(after))
        for place in self._entries.irange(first, (ns, high), inclusive=(True, False)):
            if self._file(place, now):
                yield place[1]

    def _tree(self, ns: str, path: str, now: int) -> list[str]:
        """The file at a path, and those below it."""
        here = [path] if self._file((ns, path), now) else []
        return here + list(self._below(ns, path.rstrip("/") + "/", now))

    def _transfer(self, op: ops.Move | ops.Copy, now: int, undo: dict[_Place, _Record | None]) -> FileInfo:
        ns = keys.encode(op.namespace)
        source = keys.encode(op.source) if isinstance(op, ops.Move) and op.source is not None else ns
        found = self._tree(source, op.src, now)
        if (source, op.src) != (ns, op.dst) or not found:
            check_transfer(op, found, self._tree(ns, op.dst, now))
            self._point(ops.CheckPath(op.namespace, op.dst), undo)
            for key in found:
                old = self._entries[source, key]
                place = ns, op.dst + key[len(op.src) :]
                record = replace(old, version=self._next(), updated=now)
                if isinstance(op, ops.Move):
                    self._bury((source, key), old, "delete", now, undo)
                    if op.source is not None:
                        replaced = self._live(place, now)
                        record = replace(record, created=replaced.created if replaced else now)
                    if op.ttl is not KEEP:
                        lifetime = ttl_microseconds(op.ttl)  # type: ignore[arg-type]  # seconds or None
                        record = replace(record, ttl=lifetime, expires=None if lifetime is None else now + lifetime)
                else:
                    record = replace(record, created=now)
                self._write(place, record, undo)
        record = self._file((ns, op.dst), now)
        return transferred(op, None if record is None else _info(op.dst, record))

    def _forget(self, op: ops.Forget, now: int) -> bool:
        self._ranker.catch_up_if_begun()  # it has to know what is gone
        oldest = self._tombstones[: max(0, len(self._tombstones) - (op.keep or 0))][: op.limit]
        before = now + 1 if op.age is None else now - round(op.age * 1_000_000)
        doomed = [version for version in oldest if self._entries[self._feed[version]].updated < before]
        for version in doomed:
            self._restore(self._feed[version], None)
            self._forgotten = max(self._forgotten, version)
        return len(doomed) == op.limit

    def _next(self) -> int:
        self._version += 1
        return self._version

    def _bury(self, place: _Place, old: _Record, kind: str, now: int, undo: dict[_Place, _Record | None]) -> None:
        self._write(place, _Record(self._next(), None, old.created, now, kind=kind), undo)

    def _write(self, place: _Place, record: _Record, undo: dict[_Place, _Record | None]) -> None:
        undo.setdefault(place, self._entries.get(place))
        self._restore(place, record)

    def _restore(self, place: _Place, record: _Record | None) -> None:
        """Make this the record of a place, in both maps; None: there never was one."""
        current = self._entries.pop(place, None)
        if current is not None:
            self._feed.pop(current.version, None)
            self._expiring.discard((current.expires, place))
            if current.value is None:
                self._tombstones.discard(current.version)
        if record is not None:
            self._entries[place] = record
            self._feed[record.version] = place
            if record.expires is not None:
                self._expiring.add((record.expires, place))
            if record.value is None:
                self._tombstones.add(record.version)

    # Walks -----------------------------------------------------------------------------------------------------------

    def _walk(self, op: Op) -> Program[Any]:
        match op:
            case ops.Search():
                if op.query is not None or op.vector is not None:
                    return (yield from ranked(self._ranker, op, self.older))
                return (yield from search(self, op))
            case ops.Unembedded():
                return self._unembedded(op)
            case ops.Count(prefix, filter, recursive, model):
                found = self._under(prefix, self._clock(), recursive)
                if model is not None:
                    found = (item for item in found if _is_unembedded(item[1], model))
                return sum(
                    1 for place, record in found if filter is None or filter.matches(_entry(place, record).value)
                )
            case ops.Scan(prefix, after, limit):
                rows = self._under(prefix, self._clock(), after=after and (keys.encode(after[0]), after[1]))
                return [_entry(place, record) for (place, record), _ in zip(rows, range(limit), strict=False)]
            case ops.Namespaces():
                return self._namespaces(op)
            case ops.Changes():
                return self._changes(op)
            case ops.Children():
                return self._children(op)
            case ops.Grep():
                return self._grep(op)
        raise TypeError(f"not a walk: {op!r}")

    def position(self) -> Program[str]:
        return str(self._version)
        yield  # a program that asks for nothing

    def older(self, op: ops.Search, below: int | None, want: int) -> Program[list[Hit]]:
        found = list(self._under(op.prefix, self._clock(), op.recursive))
        found.sort(key=lambda item: -item[1].version)
        return _matching([item for item in found if below is None or item[1].version < below], op, want)
        yield

    def newer(self, op: ops.Search, position: str, want: int) -> Program[list[tuple[Hit, str]]]:
        above = parse_revision(position)
        found = [item for item in self._under(op.prefix, self._clock(), op.recursive) if item[1].version > above]
        found.sort(key=lambda item: item[1].version)
        return [(hit, str(hit.version)) for hit in _matching(found, op, want)]
        yield

    def _newer_than(self, version: int) -> Iterator[tuple[int, _Place, _Record]]:
        for newer in self._feed.irange(version, None, inclusive=(False, False)):
            place = self._feed[newer]
            if not keys.HIDDEN[0] <= place[0] < keys.HIDDEN[1]:
                yield newer, place, self._entries[place]

    def _at_version(self, version: int) -> tuple[_Place, _Record] | None:
        place = self._feed.get(version)
        return None if place is None else (place, self._entries[place])

    def _can_be(self, op: ops.Search, place: _Place, record: _Record) -> bool:
        """Whether a search can be about an entry."""
        inside = _is_within(place, op.prefix) if op.recursive else place[0] == keys.encode(op.prefix)
        return inside and _is_live(record, self._clock())

    def _unembedded(self, op: ops.Unembedded) -> list[tuple[Entry, str | None]]:
        after = op.after and (keys.encode(op.after[0]), op.after[1])
        found = (
            (_entry(place, record), record.index)
            for place, record in self._under(op.prefix, self._clock(), after=after)
            if _is_unembedded(record, op.model)
        )
        return list(itertools.islice(found, op.limit))

    def _under(
        self, prefix: Namespace, now: int, recursive: bool = True, after: _Place | None = None
    ) -> Iterator[tuple[_Place, _Record]]:
        """The live entries of a namespace, and of those below it, in key order."""
        low = keys.encode(prefix)
        high = keys.below(low)[1] if recursive else low + "\x00"
        hidden = keys.HIDDEN
        first = (low, "") if after is None or after[0] < low else after
        for place in self._entries.irange(first, None if high is None else (high, ""), inclusive=(False, False)):
            record = self._entries[place]
            if _is_live(record, now) and (prefix or not hidden[0] <= place[0] < hidden[1]):
                yield place, record

    def _namespaces(self, op: ops.Namespaces) -> list[Namespace]:
        now, depth = self._clock(), len(op.base)
        found: dict[Namespace, None] = {}
        for (encoded, _), _ in self._under(op.base + keys.literal_prefix(op.prefix), now):
            namespace = keys.decode(encoded)[depth:]
            if keys.matches(namespace, op.prefix, op.suffix):
                found[namespace[: op.max_depth]] = None
        return sorted(found)[op.offset : op.offset + op.limit]

    def _changes(self, op: ops.Changes) -> Page[Change]:
        since, cursor = feed_from(op.since, self._version, self._forgotten)
        changes: Page[Change] = Page((), str(self._version))
        if op.limit == 0:
            return changes
        now = self._clock()
        for version in self._feed.irange(since, None, inclusive=(False, False)):
            place = self._feed[version]
            record = self._entries[place]
            if record.value is not None and not _is_live(record, now):
                continue  # that it has expired is a change of its own, once it is swept
            if _is_within(place, op.prefix, op.path) and not keys.HIDDEN[0] <= place[0] < keys.HIDDEN[1]:
                changes.append(Change(version, keys.decode(place[0]), place[1], record.kind, cursor(version)))
                if len(changes) == op.limit:
                    changes.next = cursor(version)
                    break
        return changes

    def _children(self, op: ops.Children) -> Page[Any]:
        ns, now = keys.encode(op.namespace), self._clock()
        found: Page[Any] = Page()
        after = op.after
        while True:
            key = next(self._below(ns, op.path, now, after), None)
            if key is None:
                return found
            if len(found) == op.limit:
                found.next = after
                return found
            after = key
            end = key.find("/", len(op.path))
            if end >= 0 and not op.deep:
                after = key[: end + 1]
                found.append(after if op.bare else FileInfo(after, is_dir=True))
            elif op.matches is None or op.matches(key):
                found.append(key if op.bare else _info(key, self._entries[ns, key]))

    def _grep(self, op: ops.Grep) -> Page[tuple[str, bytes]]:
        ns, now = keys.encode(op.namespace), self._clock()
        found: Page[tuple[str, bytes]] = Page()
        room = _GREP_BYTES
        for key in self._below(ns, op.path, now, op.after):
            if op.matches is None or op.matches(key):
                found.append((key, _content(self._entries[ns, key])))
                room -= len(found[-1][1])
                if room < 0:
                    found.next = key
                    break
        return found


def _is_within(place: _Place, prefix: Namespace, path: str | None = None) -> bool:
    if path is not None:
        return place[0] == keys.encode(prefix) and (place[1] == path or place[1].startswith(path.rstrip("/") + "/"))
    low, high = keys.below(keys.encode(prefix))
    return low <= place[0] and (high is None or place[0] < high)


def _is_live(record: _Record, now: int) -> bool:
    return record.value is not None and (record.expires is None or record.expires > now)


def _is_unembedded(record: _Record, model: int) -> bool:
    """Whether it has texts to be found by, but no vectors of a model."""
    has_vectors = record.vectors is not None and record.vectors.model == model
    return not has_vectors and record.index != "[]" and record.value not in shapes.WRITTEN


def _entry(place: _Place, record: _Record, kind: Callable[..., Any] = Entry) -> Any:
    file = NO_FILE if record.size is None else (_content(record), int(record.appended), record.size)
    times = record.created, record.updated, record.expires
    return to_entry((*place, str(record.value), record.version, *times, *file), kind)


def _with_value(record: _Record, value: Any) -> _Record:
    if isinstance(value, ops.File):
        return replace(record, value=value.shape, body=bytearray(value.content), size=len(value.content))
    return replace(record, value=str(value))


def _content(record: _Record, start: int = 0, end: int | None = None) -> bytes:
    assert record.body is not None
    assert record.size is not None
    return bytes(memoryview(record.body)[start : record.size if end is None else min(end, record.size)])


def _info(path: str, record: _Record) -> FileInfo:
    assert record.size is not None
    return to_info(path, record.size, record.version, record.created, record.updated)


def _matching(found: list[tuple[_Place, _Record]], op: ops.Search, want: int) -> list[Hit]:
    hits: list[Hit] = []
    for place, record in found:
        hit: Hit = _entry(place, record, Hit)
        if op.filter is None or op.filter.matches(hit.value):
            hits.append(hit)
            if len(hits) == want:
                break
    return hits


def _no_request(request: Any) -> Any:
    raise TypeError(f"memory answers everything itself, not {request!r}")
