"""The memory engine: the reference that the other engines are compared with.

It has two ordered maps under one lock: entries by namespace and key, and the feed by version, in which a deleted entry
stays as a tombstone. A value is stored as its JSON text and decoded for each reader, so no reader can change it.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from sortedcontainers import SortedDict, SortedSet

from ... import ops
from ...engine import (
    NO_FILE,
    PAGE_BYTES,
    Capabilities,
    HistorySetting,
    Options,
    Row,
    check_expectation,
    check_transfer,
    check_unblocked,
    end_of,
    feed_from,
    item_exists,
    no_history,
    parse_revision,
    search,
    system_clock,
    to_change,
    to_entry,
    to_info,
    to_old_entry,
    transfer_result,
)
from ...errors import StoreClosed
from ...model import file_values, filters, keys
from ...model.globs import compile_glob
from ...model.values import to_datetime, ttl_microseconds
from ...ops import KEEP, WALKS, Change, Entry, FileInfo, Hit, Namespace, Op, Page
from ...runtime.programs import Program, Work, drive
from ...runtime.signals import defer_signals
from ...search.ranking import LARGEST_GAP, rank_entries
from ...search.text_index import MOST_BYTES
from ...wire import to_record
from .ranker import MemoryRanker

_GREP_BYTES = 1 << 20  # of contents, after which a page of candidates ends

_Address: TypeAlias = tuple[str, str]  # encoded namespace, key


@dataclass(frozen=True, slots=True)
class _Record:
    version: int
    value: str | None  # None: a tombstone
    created: int
    updated: int
    expires: int | None = None
    ttl: int | None = None
    kind: str = "put"
    body: bytearray | None = None  # of a file: its first `size` bytes; a copy that has grown may own the rest
    size: int | None = None
    appended: bool = False
    search_fields: str | None = None  # JSON, as in a `Put` for an engine
    vectors: ops.Vectors | None = None
    changed: int = 0  # when it was written; `Backdate` does not set it
    acting: str | None = None


@dataclass(frozen=True, slots=True)
class _OldRecord:
    """A record that another one has replaced."""

    record: _Record
    ended: int  # the version that replaced it
    kind: str  # of that change
    time: int
    acting: str | None


class MemoryEngine:
    """Entries in the memory of this process, lost when it ends."""

    capabilities = Capabilities(durable=False, multiprocess=False, ranks=True, keeps_history=True, remembers=True)
    is_async_reentrant = True

    def __init__(self, options: Options) -> None:
        self._clock = options.clock or system_clock
        self._declared = options.filter_fields
        self._lock = threading.Lock()
        self._entries: Any = SortedDict()  # _Address -> _Record
        self._feed: Any = SortedDict()  # version -> _Address
        self._expiring: Any = SortedSet()  # (expires, _Address)
        self._order: Any = None  # SortedSet of (encoded namespace, created, key), made when it is needed
        self._version = 0
        self._tombstones: Any = SortedSet()  # versions
        self._purged = 0  # the version of the last tombstone that was purged
        self._setting: HistorySetting | None = None  # of the history; None: off
        self._old: Any = SortedDict()  # _Address -> [_OldRecord], in the order of their ends
        self._ends: Any = SortedDict()  # version that ended an old record -> _Address
        self._kept: list[int] = []  # the keys of `_ends` that the batch has added
        self._acting: str | None = None  # of the op that runs
        self._closed = False
        self._ranker = MemoryRanker(
            self._newer_than,
            lambda op: self._under(op.prefix, self._clock(), op.recursive, hides=True),
            self._at_version,
            self._is_searched,
            lambda address, record: _entry(address, record, Hit),
            lambda record: None if record.size is None else _content(record, 0, MOST_BYTES),
            self._around,
        )

    # The engine's methods --------------------------------------------------------------------------------------------

    def execute(self, batch: Sequence[Op]) -> list[Any]:
        with self._lock:
            if self._closed:
                raise StoreClosed("this store is closed; open a new one")
            if len(batch) == 1 and type(batch[0]) in WALKS:
                return [drive(self._walk(batch[0]), _refuse_request)]
            undo: dict[_Address, _Record | None] = {}
            self._kept = []
            now = self._clock()  # one time for all changes of a transaction
            try:
                results: list[Any] = []
                for op in batch:
                    self._acting = getattr(op, "acting", None)
                    if type(op) is ops.Remember:
                        results.append(self._point(to_record(op, batch, results), now, undo).version)
                    else:
                        results.append(self._point(op, now, undo))
                return results
            except BaseException:
                for address, record in undo.items():
                    self._restore(address, record)
                for ended in reversed(self._kept):
                    self._drop_old(ended)
                raise

    async def aexecute(self, batch: Sequence[Op]) -> list[Any]:
        return defer_signals(self.execute, batch)  # it never waits, so it may run in the event loop

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
            self._order = None
            self._tombstones.clear()
            self._old.clear()
            self._ends.clear()
            self._ranker.clear()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            self._lock = threading.Lock()
        else:
            self._lock.release()

    # Point ops -------------------------------------------------------------------------------------------------------

    def _point(self, op: Op, now: int, undo: dict[_Address, _Record | None]) -> Any:
        match op:
            case ops.Get(namespace, key):
                address = keys.encode(namespace), key
                record = self._live(address, now)
                return None if record is None else _entry(address, record)
            case ops.Put(namespace, key, value, ttl):
                address = keys.encode(namespace), key
                old = self._live(address, now)
                check_expectation(op, old.version if old else None)
                if ttl is KEEP:
                    expires, lifetime = (old.expires, old.ttl) if old else (None, None)
                else:
                    lifetime = ttl_microseconds(ttl)  # type: ignore[arg-type]  # the store made it seconds or None
                    expires = None if lifetime is None else now + lifetime
                record = _Record(self._next_version(), "", old.created if old else now, now, expires, lifetime)
                fields: Any = op.search_fields  # JSON or None
                if fields is None and ttl is KEEP and old is not None:
                    fields = old.search_fields
                record = _with_value(replace(record, search_fields=fields, vectors=op.vectors), value)
                self._write(address, record, undo)
                return _info(key, record) if file_values.is_written_as_file(value) else _entry(address, record)
            case ops.GetSearchFields(namespace, key):
                record = self._live((keys.encode(namespace), key), now)
                return None if record is None else record.search_fields
            case ops.CountVectors(namespace, key):
                record = self._live((keys.encode(namespace), key), now)
                return 0 if record is None or record.vectors is None else len(record.vectors.data)
            case ops.Append():
                return self._append(op, now, undo)
            case ops.ReadRange(namespace, key, start, end, version):
                address = keys.encode(namespace), key
                record = self._file(address, now) if version is None else self._find_version(address, version)
                return None if record is None or record.size is None else _content(record, start, end)
            case ops.GetVersion(namespace, key, version, content):
                address = keys.encode(namespace), key
                record = self._find_version(address, version)
                if record is None:
                    return None
                return to_old_entry(_row(address, record, content), record.search_fields, record.ttl)
            case ops.SetHistory():
                return self._set_history(op, now)
            case ops.SetChange():
                return self._set_change(op, undo)
            case ops.Forget():
                return self._forget(op)
            case ops.Scrub():
                self._ranker.clear()
                return ops.Scrubbed(("the memory of this process",))
            case ops.PurgeHistory(limit):
                return self._purge_history(limit, now)
            case ops.Stat(namespace, path):
                return self._stat(keys.encode(namespace), path, now)
            case ops.CheckPath(namespace, path):
                ns = keys.encode(namespace)
                parents = (parent for parent in keys.parents(path) if self._file((ns, parent), now))
                check_unblocked(path, itertools.chain(parents, self._below(ns, path + "/", now)))
                return None
            case ops.Move() | ops.Copy():
                return self._transfer(op, now, undo)
            case ops.Maintain() | ops.LearnFields():  # a search reads all values, and they are in memory
                return False
            case ops.RepairFaults():
                return 0
            case ops.IndexOrder():
                return None  # `_around` does it
            case ops.IndexTexts():
                return 0, False
            case ops.Embed(namespace, key, version, vectors):
                address = keys.encode(namespace), key
                record = self._live(address, now)
                if record is None or record.version != version:
                    return False
                self._write(address, replace(record, vectors=vectors), undo)
                self._ranker.clear_vectors()
                return True
            case ops.Delete(namespace, key):
                address = keys.encode(namespace), key
                old = self._live(address, now)
                check_expectation(op, old.version if old else None)
                if old is not None:
                    self._write_tombstone(address, old, "delete", now, undo)
                return old is not None
            case ops.Check(namespace, key):
                record = self._live((keys.encode(namespace), key), now)
                check_expectation(op, record.version if record else None)
                return None
            case ops.Refresh(namespace, key):
                address = keys.encode(namespace), key
                record = self._live(address, now)
                if record is None or record.ttl is None:
                    return False
                self._write(address, replace(record, expires=now + record.ttl), undo)
                return True
            case ops.Backdate(namespace, key, created, updated, expires):
                address = keys.encode(namespace), key
                record = self._live(address, now)
                if record is None:
                    return False
                given: Any = {"created": created, "updated": updated, "expires": expires}
                times = {name: time for name, time in given.items() if time is not None}
                self._write(address, replace(record, **times), undo)
                return True
            case ops.DeleteTree(namespace, path):
                if path is None:
                    deleted = list(self._under(namespace, now))
                else:
                    ns = keys.encode(namespace)
                    deleted = [((ns, key), self._entries[ns, key]) for key in self._at_or_below(ns, path, now)]
                for address, record in deleted:
                    self._write_tombstone(address, record, "delete", now, undo)
                return len(deleted)
            case ops.Sweep(limit, prefix):
                due = self._expiring.irange(None, (now + 1,), inclusive=(True, False))
                expired = list(itertools.islice((address for _, address in due if _is_within(address, prefix)), limit))
                for address in expired:
                    self._write_tombstone(address, self._entries[address], "expire", now, undo)
                return len(expired)
            case ops.PurgeTombstones():
                return self._purge_tombstones(op, now)
        raise TypeError(f"not a point op: {op!r}")

    def _live(self, address: _Address, now: int) -> _Record | None:
        record: _Record | None = self._entries.get(address)
        return record if record is not None and _is_live(record, now) else None

    def _file(self, address: _Address, now: int) -> _Record | None:
        record = self._live(address, now)
        return record if record is not None and record.size is not None else None

    def _append(self, op: ops.Append, now: int, undo: dict[_Address, _Record | None]) -> int:
        address = keys.encode(op.namespace), op.key
        old = self._live(address, now)
        check_expectation(op, old.version if old else None)
        if old is None:
            self._point(ops.Put(op.namespace, op.key, ops.File(file_values.NATIVE, op.data), op.ttl), now, undo)
            return 0
        if old.body is None or old.size is None:
            raise item_exists(op)
        # Copies share a body. The first one that grows keeps it; the next one must copy it.
        body = old.body if len(old.body) == old.size else old.body[: old.size]
        body += op.data
        size = old.size + len(op.data)
        grown = replace(
            old, version=self._next_version(), updated=now, body=body, size=size, appended=True, vectors=None
        )
        self._write(address, grown, undo)
        return old.size

    def _stat(self, ns: str, path: str, now: int) -> FileInfo | None:
        record = self._file((ns, path), now)
        if record is not None:
            return _info(path, record)
        return FileInfo(path.rstrip("/") + "/", is_dir=True) if any(self._below(ns, path + "/", now)) else None

    def _below(self, ns: str, folder: str, now: int, after: str | None = None) -> Iterator[str]:
        """Yield the paths of the files in a folder and below it, in order, after a path."""
        low, high = keys.in_folder(folder)
        first = (ns, low if after is None else keys.next_key(after))
        for address in self._entries.irange(first, (ns, high), inclusive=(True, False)):
            if self._file(address, now):
                yield address[1]

    def _at_or_below(self, ns: str, path: str, now: int) -> list[str]:
        """Return the paths of the file at a path and of the files below it."""
        here = [path] if self._file((ns, path), now) else []
        return here + list(self._below(ns, path.rstrip("/") + "/", now))

    def _transfer(self, op: ops.Move | ops.Copy, now: int, undo: dict[_Address, _Record | None]) -> FileInfo:
        ns = keys.encode(op.namespace)
        source = keys.encode(op.source) if isinstance(op, ops.Move) and op.source is not None else ns
        found = self._at_or_below(source, op.src, now)
        if (source, op.src) != (ns, op.dst) or not found:
            check_transfer(op, found, self._at_or_below(ns, op.dst, now))
            self._point(ops.CheckPath(op.namespace, op.dst), now, undo)
            for key in found:
                old = self._entries[source, key]
                address = ns, op.dst + key[len(op.src) :]
                record = replace(old, version=self._next_version(), updated=now)
                if isinstance(op, ops.Move):
                    self._write_tombstone((source, key), old, "delete", now, undo)
                    if op.source is not None:
                        replaced = self._live(address, now)
                        record = replace(record, created=replaced.created if replaced else now)
                    if op.ttl is not KEEP:
                        lifetime = ttl_microseconds(op.ttl)  # type: ignore[arg-type]  # seconds or None
                        record = replace(record, ttl=lifetime, expires=None if lifetime is None else now + lifetime)
                else:
                    record = replace(record, created=now)
                self._write(address, record, undo)
        record = self._file((ns, op.dst), now)
        return transfer_result(op, None if record is None else _info(op.dst, record))

    def _purge_tombstones(self, op: ops.PurgeTombstones, now: int) -> bool:
        self._ranker.catch_up_if_begun()  # tombstones tell it which documents to remove
        newest = now - round(op.age * 1_000_000)
        oldest = self._tombstones[: op.limit]
        purged = [version for version in oldest if self._entries[self._feed[version]].updated <= newest]
        for version in purged:
            self._restore(self._feed[version], None)
            self._purged = max(self._purged, version)
        return len(purged) == op.limit

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    def _write_tombstone(
        self, address: _Address, old: _Record, kind: str, now: int, undo: dict[_Address, _Record | None]
    ) -> None:
        self._write(address, _Record(self._next_version(), None, old.created, now, kind=kind), undo)

    def _write(self, address: _Address, record: _Record, undo: dict[_Address, _Record | None]) -> None:
        old: _Record | None = self._entries.get(address)
        undo.setdefault(address, old)
        if old is None or old.version != record.version:
            record = replace(record, changed=record.updated, acting=self._acting)
            if old is not None:
                self._keep_old(address, old, record)
        self._restore(address, record)

    def _restore(self, address: _Address, record: _Record | None) -> None:
        """Set the record at an address, in all maps; None removes it."""
        current = self._entries.pop(address, None)
        if current is not None:
            self._feed.pop(current.version, None)
            self._expiring.discard((current.expires, address))
            if current.value is None:
                self._tombstones.discard(current.version)
            elif self._order is not None:
                self._order.discard((address[0], current.created, address[1]))
        if record is not None:
            self._entries[address] = record
            self._feed[record.version] = address
            if record.expires is not None:
                self._expiring.add((record.expires, address))
            if record.value is None:
                self._tombstones.add(record.version)
            elif self._order is not None:
                self._order.add((address[0], record.created, address[1]))

    # History ---------------------------------------------------------------------------------------------------------

    def _set_history(self, op: ops.SetHistory, now: int) -> ops.HistoryReach | None:
        if op.keep is not None:
            duration = round(op.keep * 1_000_000)
            if not op.keep:
                self._setting = None
            elif self._setting is None:
                while self._purge_history(len(self._ends), now):  # of an earlier time
                    pass
                self._setting = HistorySetting(duration, now, self._version)
            else:
                self._setting = self._setting.change(duration, now)
        if self._setting is not None and op.since is not None:
            self._setting = self._setting.extend(op.since)
        return None if self._setting is None else self._setting.reach()

    def _set_change(self, op: ops.SetChange, undo: dict[_Address, _Record | None]) -> None:
        address = keys.encode(op.namespace), op.key
        record: _Record | None = self._entries.get(address)
        if record is None:
            return
        kind = "put" if record.value is not None else op.kind
        self._write(address, replace(record, changed=op.time, acting=op.acting, kind=kind), undo)
        olds = self._old.get(address)
        if olds and olds[-1].ended == record.version:
            ended = replace(olds[-1].record, expires=olds[-1].record.expires if op.expires is None else op.expires)
            olds[-1] = replace(olds[-1], record=ended, kind=kind, time=op.time, acting=op.acting)

    def _keep_old(self, address: _Address, old: _Record, new: _Record) -> None:
        if self._setting is None or old.value is None or not keys.keeps_history(address[0]):
            return
        kept = _OldRecord(replace(old, vectors=None), new.version, new.kind, new.changed, new.acting)
        self._old.setdefault(address, []).append(kept)
        self._ends[new.version] = address
        self._kept.append(new.version)

    def _drop_old(self, ended: int) -> None:
        address = self._ends.pop(ended)
        left = [old for old in self._old[address] if old.ended != ended]
        if left:
            self._old[address] = left
        else:
            del self._old[address]

    def _purge_history(self, limit: int, now: int) -> bool:
        setting = self._setting
        purged = 0
        for ended in self._ends.keys()[:limit]:
            old = next(old for old in self._old[self._ends[ended]] if old.ended == ended)
            if setting is not None and old.time > now - setting.keep:
                break
            self._drop_old(ended)
            if setting is not None:
                setting = self._setting = ops.replace(setting, purged=ended)
            purged += 1
        return bool(limit) and purged == limit

    def _forget(self, op: ops.Forget) -> ops.Forgotten:
        self._ranker.catch_up_if_begun()  # tombstones tell it which documents to remove

        def is_chosen(address: _Address) -> bool:
            if op.key is not None or not op.recursive:
                return address[0] == keys.encode(op.namespace) and op.key in (None, address[1])
            return _is_within(address, op.namespace)

        tombstones = [version for version in self._tombstones if is_chosen(self._feed[version])]
        ends = [ended for ended, address in self._ends.items() if is_chosen(address)]
        for version in tombstones:
            self._restore(self._feed[version], None)
            self._purged = max(self._purged, version)
        for ended in ends:
            self._drop_old(ended)
        return ops.Forgotten(len(tombstones), len(ends))

    def _find_version(self, address: _Address, version: int) -> _Record | None:
        record: _Record | None = self._entries.get(address)
        if record is not None and record.version == version and record.value is not None:
            return record
        return next((old.record for old in self._old.get(address, ()) if old.record.version == version), None)

    def _list_versions(self, op: ops.ListVersions, *address: str) -> list[ops.OldVersion]:
        current: _Record | None = self._entries.get(address)
        records = [old.record for old in self._old.get(address, ())]
        if current is not None and current.value is not None:
            records.append(current)
        found = [ops.OldVersion(one.version, "put", one.changed, one.expires, one.size, one.acting) for one in records]
        for old in self._old.get(address, ()):
            if old.kind != "put":
                time = end_of(old.kind, old.record.expires, old.time)
                found.append(ops.OldVersion(old.ended, old.kind, time, acting=old.acting))
        found.sort(key=lambda version: -version.version)
        return [one for one in found if op.before is None or one.version < op.before][: op.limit]

    def _list_past(self, op: ops.ListPast) -> Page[ops.OldHead]:
        setting = self._setting
        if setting is None:
            raise no_history()
        position = 0
        if isinstance(op.at, str):
            position, _ = feed_from(op.at, self._version, 0)
            setting.check_position(position, op.at)
        else:
            setting.check_time(op.at, self._clock())
        page: Page[ops.OldHead] = Page()
        low, high = keys.below(keys.encode(op.prefix))
        first = (low, "") if op.after is None else (keys.encode(op.after[0]), op.after[1])
        end = None if high is None else (high, "")
        addresses = (one.irange(first, end, inclusive=(False, False)) for one in (self._entries, self._old))
        for address, _ in itertools.groupby(heapq.merge(*addresses)):
            if not _is_selected(address, op):
                continue
            record = self._find_at(address, op.at, position)
            if record is None or (op.folder is not None and record.size is None):
                continue
            if len(page) == op.limit:
                page.next = page[-1].key
                break
            times = record.created, record.updated, record.expires
            page.append(ops.OldHead(keys.decode(address[0]), address[1], record.version, *times, record.size))
        return page

    def _find_at(self, address: _Address, at: int | str, position: int) -> _Record | None:
        """Return the record at an address as it was at a time, or, for a cursor, at its position."""
        time = at if isinstance(at, int) else None
        current: _Record | None = self._entries.get(address)
        if current is not None and current.value is not None:
            if time is None and current.version <= position:
                return current
            if time is not None and current.changed <= time and _is_live(current, time):
                return current
        for old in reversed(self._old.get(address, ())):
            record: _Record = old.record
            if time is None and record.version <= position < old.ended:
                return record
            if time is not None and record.changed <= time < old.time and _is_live(record, time):
                return record
        return None

    # Walks -----------------------------------------------------------------------------------------------------------

    def _walk(self, op: Op) -> Program[Work, Any]:
        match op:
            case ops.Search():
                if op.query is not None or op.vector is not None:
                    return (yield from rank_entries(self._ranker, op, self.older))
                return (yield from search(self, op))
            case ops.Unembedded():
                return self._unembedded(op)
            case ops.Count(prefix, filter, recursive, model, hidden):
                found = self._under(prefix, self._clock(), recursive, hides=not hidden)
                if model is not None:
                    found = (item for item in found if _is_unembedded(item[1], model))
                if filter is None:
                    return sum(1 for _ in found)
                return sum(1 for address, record in found if filters.matches(filter, _entry(address, record).value))
            case ops.ReadStats(prefix):
                return self._read_stats(prefix)
            case ops.Scan(prefix, after, limit):
                begin = after and (keys.encode(after[0]), after[1])
                return _make_page(self._under(prefix, self._clock(), after=begin, hides=True), limit, _entry)
            case ops.Namespaces():
                return self._namespaces(op)
            case ops.Changes():
                return self._changes(op)
            case ops.Records(prefix, after, limit):
                live = self._under(prefix, self._clock(), after=after and (keys.encode(after[0]), after[1]))
                page = _make_page(live, limit, _full_record)
                return ops.RecordPage(list(page), page[-1].key if page else None, page.next is not None)
            case ops.ChangedRecords():
                return self._changed_records(op)
            case ops.FindFaults():
                return []
            case ops.Children():
                return self._children(op)
            case ops.Grep():
                return self._grep(op)
            case ops.ListVersions():
                return [self._list_versions(op, keys.encode(namespace), key) for namespace, key in op.addresses]
            case ops.ListPast():
                return self._list_past(op)
        raise TypeError(f"not a walk: {op!r}")

    def _read_stats(self, prefix: Namespace) -> ops.Stats:
        now = self._clock()
        live = list(self._under(prefix, now))
        records = [record for _, record in live]
        stats = ops.Stats(
            entries=len(records),
            files=sum(record.size is not None for record in records),
            text_index_lag=self._ranker.count_unindexed(),
            declared_fields=self._declared,
        )
        if prefix:
            return stats
        low, high = keys.RESERVED_RANGE
        own = self._entries.irange((low, ""), (high, ""), inclusive=(True, False))
        roots, history = Counter[str](), Counter[str]()
        for (ns, _), record in live:
            roots[keys.decode(ns)[0]] += _count_bytes(record)
        for (ns, _), olds in self._old.items():
            history[keys.decode(ns)[0]] += sum(_count_bytes(old.record) for old in olds)
        oldest = min((self._entries[self._feed[version]].updated for version in self._tombstones), default=None)
        return replace(
            stats,
            bytes=roots.total(),
            root_bytes=dict(roots),
            vectors=sum(len(record.vectors.data) for record in records if record.vectors is not None),
            leases=sum("\x01leases\x01" in ns and self._live((ns, key), now) is not None for ns, key in own),
            oldest_tombstone=None if oldest is None else to_datetime(oldest),
            history_bytes=dict(history),
        )

    def position(self) -> Program[Work, str]:
        return str(self._version)
        yield  # makes it a program, which here has no requests

    def older(self, op: ops.Search, below: int | None, want: int) -> Program[Work, list[Hit]]:
        found = list(self._under(op.prefix, self._clock(), op.recursive, hides=True))
        found.sort(key=lambda item: -item[1].version)
        return _match([item for item in found if below is None or item[1].version < below], op, want)
        yield

    def newer(self, op: ops.Search, position: str, want: int) -> Program[Work, list[tuple[Hit, str]]]:
        above = parse_revision(position)
        entries = self._under(op.prefix, self._clock(), op.recursive, hides=True)
        found = [item for item in entries if item[1].version > above]
        found.sort(key=lambda item: item[1].version)
        return [(hit, str(hit.version)) for hit in _match(found, op, want)]
        yield

    def _newer_than(self, version: int) -> Iterator[tuple[int, _Address, _Record]]:
        for newer in self._feed.irange(version, None, inclusive=(False, False)):
            address = self._feed[newer]
            if not keys.is_reserved(address[0]):
                yield newer, address, self._entries[address]

    def _at_version(self, version: int) -> tuple[_Address, _Record] | None:
        address = self._feed.get(version)
        return None if address is None else (address, self._entries[address])

    def _around(self, address: _Address, record: _Record) -> tuple[Iterator[int], Iterator[int]]:
        """Return the versions of the live entries before and after one in the order of creation, the nearest first."""
        if self._order is None:
            written = (item for item in self._entries.items() if item[1].value is not None)
            self._order = SortedSet((ns, record.created, key) for (ns, key), record in written)
        (ns, key), created, now = address, record.created, self._clock()
        here, first, end = (ns, created, key), (ns, created - LARGEST_GAP), (ns, created + LARGEST_GAP + 1)

        def live(addresses: Iterator[tuple[str, int, str]]) -> Iterator[int]:
            records = (self._entries[ns, key] for ns, _, key in addresses)
            return (record.version for record in records if _is_live(record, now))

        before = self._order.irange(first, here, inclusive=(True, False), reverse=True)
        return live(before), live(self._order.irange(here, end, inclusive=(False, False)))

    def _is_searched(self, op: ops.Search, address: _Address, record: _Record) -> bool:
        """Whether an entry is live and in the namespace of a search."""
        inside = _is_within(address, op.prefix) if op.recursive else address[0] == keys.encode(op.prefix)
        is_hidden = op.recursive and keys.is_hidden_below(address[0], op.prefix)
        return inside and not is_hidden and _is_live(record, self._clock())

    def _unembedded(self, op: ops.Unembedded) -> Page[tuple[Entry, str | None]]:
        after = op.after and (keys.encode(op.after[0]), op.after[1])
        rows = self._under(op.prefix, self._clock(), after=after)
        found = (row for row in rows if _is_unembedded(row[1], op.model))
        return _make_page(found, op.limit, lambda address, record: (_entry(address, record), record.search_fields))

    def _under(
        self,
        prefix: Namespace,
        now: int,
        recursive: bool = True,
        after: _Address | None = None,
        hides: bool = False,
    ) -> Iterator[tuple[_Address, _Record]]:
        """Yield the live entries of a namespace, and of those below it, in key order; `hides`: not of hidden ones."""
        low = keys.encode(prefix)
        high = keys.below(low)[1] if recursive else low + "\x00"
        reserved, hidden = keys.RESERVED_RANGE, keys.hidden_below(low)
        first = (low, "") if after is None or after[0] < low else after
        for address in self._entries.irange(first, None if high is None else (high, ""), inclusive=(False, False)):
            record = self._entries[address]
            if hides and hidden[0] <= address[0] < hidden[1]:
                continue
            if _is_live(record, now) and (prefix or not reserved[0] <= address[0] < reserved[1]):
                yield address, record

    def _namespaces(self, op: ops.Namespaces) -> list[Namespace]:
        now, depth = self._clock(), len(op.base)
        found: dict[Namespace, None] = {}
        for (encoded, _), _ in self._under(op.base + keys.literal_prefix(op.prefix), now, hides=True):
            namespace = keys.decode(encoded)[depth:]
            if keys.matches(namespace, op.prefix, op.suffix):
                found[namespace[: op.max_depth]] = None
        return sorted(found)[op.offset : op.offset + op.limit]

    def _changes(self, op: ops.Changes) -> Page[Change]:
        since, cursor = feed_from(op.since, self._version, self._purged)
        changes: Page[Change] = Page((), str(self._version))
        if op.limit == 0:
            return changes
        for version, address, record in self._changed(op.prefix, since, op.path):
            changes.append(to_change(version, *address, record.kind, cursor(version), record.acting))
            if len(changes) == op.limit:
                changes.next = cursor(version)
                break
        return changes

    def _changed_records(self, op: ops.ChangedRecords) -> ops.RecordPage:
        since, cursor = feed_from(op.since, self._version, self._purged)
        changed = ((address, record) for _, address, record in self._changed(op.prefix, since))
        page = _make_page(changed, op.limit, _full_record)
        return ops.RecordPage(
            list(page), str(self._version) if page.next is None else cursor(page[-1].version), page.next is not None
        )

    def _changed(
        self, prefix: Namespace, since: int, path: str | None = None
    ) -> Iterator[tuple[int, _Address, _Record]]:
        """Yield the changes after a version, with their versions, in order."""
        now = self._clock()
        for version in self._feed.irange(since, None, inclusive=(False, False)):
            address = self._feed[version]
            record = self._entries[address]
            if record.value is not None and not _is_live(record, now):
                continue  # its expiry becomes a change of its own, once it is swept
            if _is_within(address, prefix, path) and not keys.is_reserved(address[0]):
                yield version, address, record

    def _children(self, op: ops.Children) -> Page[Any]:
        ns, now = keys.encode(op.namespace), self._clock()
        found: Page[Any] = Page()
        after, matches = op.after, compile_glob(op.glob, op.path)
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
            elif matches is None or matches(key):
                found.append(key if op.bare else _info(key, self._entries[ns, key]))

    def _grep(self, op: ops.Grep) -> Page[tuple[str, bytes]]:
        ns, now = keys.encode(op.namespace), self._clock()
        found: Page[tuple[str, bytes]] = Page()
        room, matches = _GREP_BYTES, compile_glob(op.glob, op.path)
        for key in self._below(ns, op.path, now, op.after):
            record = self._entries[ns, key]
            if record.size <= file_values.LARGEST and (matches is None or matches(key)):
                found.append((key, _content(record)))
                room -= len(found[-1][1])
                if room < 0:
                    found.next = key
                    break
        return found


def _is_within(address: _Address, prefix: Namespace, path: str | None = None) -> bool:
    if path is not None:
        return address[0] == keys.encode(prefix) and (
            address[1] == path or address[1].startswith(path.rstrip("/") + "/")
        )
    low, high = keys.below(keys.encode(prefix))
    return low <= address[0] and (high is None or address[0] < high)


def _is_live(record: _Record, now: int) -> bool:
    return record.value is not None and (record.expires is None or record.expires > now)


def _count_bytes(record: _Record) -> int:
    """Return how many bytes of value and content a record has."""
    return len((record.value or "").encode()) + (record.size or 0)


def _is_unembedded(record: _Record, model: int) -> bool:
    """Whether an entry has searched texts, but no vectors of a model."""
    has_vectors = record.vectors is not None and record.vectors.model == model
    return not has_vectors and record.search_fields != "[]" and record.value not in file_values.WRITTEN


def _is_selected(address: _Address, op: ops.ListPast) -> bool:
    """Whether an address is one that a walk over the past lists."""
    ns, key = address
    if op.key is not None or op.folder is not None:
        return ns == keys.encode(op.prefix) and (key == op.key or (op.folder is not None and key.startswith(op.folder)))
    if not op.recursive:
        return ns == keys.encode(op.prefix)
    return _is_within(address, op.prefix) and not (not op.prefix and keys.is_reserved(ns))


def _entry(address: _Address, record: _Record, kind: Callable[..., Any] = Entry) -> Any:
    return to_entry(_row(address, record, (record.size or 0) <= file_values.LARGEST), kind)


def _row(address: _Address, record: _Record, has_content: bool) -> Row:
    file: Any = NO_FILE
    if record.size is not None:
        file = _content(record) if has_content else None, int(record.appended), record.size
    return *address, str(record.value), record.version, record.created, record.updated, record.expires, *file


def _full_record(address: _Address, record: _Record) -> ops.Record:
    is_small = record.size is not None and record.size <= file_values.LARGEST
    kind: Any = record.kind
    value: Any = record.value
    return ops.Record(
        keys.decode(address[0]),
        address[1],
        record.version,
        kind,
        value,
        record.created,
        record.updated,
        record.expires,
        record.ttl,
        record.search_fields,
        record.size,
        _content(record) if is_small else None,
        record.appended,
        record.vectors,
    )


def _make_page(
    found: Iterable[tuple[_Address, _Record]], limit: int, make: Callable[[_Address, _Record], Any]
) -> Page[Any]:
    """Return a page of `make(address, record)`, for as many records as a page may have."""
    page: Page[Any] = Page()
    room = PAGE_BYTES
    for address, record in found:
        room -= record.size or 0
        if len(page) == limit or (page and room < 0):
            page.next = address[1]
            break
        page.append(make(address, record))
    return page


def _with_value(record: _Record, value: Any) -> _Record:
    if isinstance(value, ops.File):
        return replace(record, value=value.template, body=bytearray(value.content), size=len(value.content))
    return replace(record, value=str(value))


def _content(record: _Record, start: int = 0, end: int | None = None) -> bytes:
    assert record.body is not None
    assert record.size is not None
    return bytes(memoryview(record.body)[start : record.size if end is None else min(end, record.size)])


def _info(path: str, record: _Record) -> FileInfo:
    assert record.size is not None
    return to_info(path, record.size, record.version, record.created, record.updated)


def _match(found: list[tuple[_Address, _Record]], op: ops.Search, want: int) -> list[Hit]:
    hits: list[Hit] = []
    for address, record in found:
        hit: Hit = _entry(address, record, Hit)
        if filters.matches(op.filter, hit.value):
            hits.append(hit)
            if len(hits) == want:
                break
    return hits


def _refuse_request(request: Any) -> Any:
    raise TypeError(f"the memory engine runs no requests, got {request!r}")
