"""Copying between stores: the feed of the source is read from its beginning, and each change is written once.

The destination keeps how far the copy is, in an entry of holdall's own that is written in the same transaction as each
page of changes. So a copy that was killed continues where it was, and writes nothing twice. On a Redis Cluster, a
transaction has only one root: there, the first page after an interruption is compared with what is stored already.

The feed merges the changes of an entry into its newest. Entries arrive in order of change, so that searches for the
newest entries return the same order in the copy.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from .. import ops
from ..core.dispatch import Dispatcher
from ..engine import PAGE_BYTES
from ..errors import AccessDenied, Conflict, CursorExpired, InvalidInput, Unavailable
from ..history import old_records
from ..live.notification import Event, LoopEvent, Notifier, ThreadEvent
from ..model.values import encode, to_microseconds
from ..ops import ABSENT, Entry, Namespace, OldVersion, Record, RecordPage
from ..runtime.programs import IS_ASYNC, Call, Sleep, StoreProgram
from ..runtime.signals import defer_signals
from .comparing import compare
from .records import (
    OPERATE_NAMESPACE,
    Models,
    WriteBatch,
    add_record,
    execute,
    find_model,
    note_model,
    read_clock,
    read_piece,
    split_by_root,
    write_batch,
)
from .results import Copied

_PAGE = 500  # changes that are written in one transaction
_MOST_OLDS = 3000  # ops that write old versions, in one transaction
_STOP_INTERVAL = 0.1  # seconds between two calls of `stop`
_FORMAT = 1


@dataclass(slots=True)
class _State:
    """How far a copy is, as the destination keeps it."""

    key: str
    version: int | None = None  # of the entry; None before the first page
    cursor: str | None = None
    entries: int = 0
    deletions: int = 0
    began: int = 0  # when, by the clock of the source
    owned: bool = False  # whether the destination was empty when the copy began

    def put(self, cursor: str | None, batch: WriteBatch) -> ops.Put:
        """Return the put that moves this state on, if it is still the same."""
        value: Any = encode(
            {
                "format": _FORMAT,
                "cursor": cursor,
                "entries": self.entries + batch.entries,
                "deletions": self.deletions + batch.deletions,
                "began": self.began,
                "owned": self.owned,
            }
        )
        expect: Any = ABSENT if self.version is None else self.version
        return ops.Put(OPERATE_NAMESPACE, self.key, value, None, expect)


class Copier:
    """One copy, from a namespace of a source to a namespace of a destination."""

    def __init__(self, source: Dispatcher, destination: Dispatcher, prefix: Namespace, to: Namespace | None) -> None:
        self._source, self._destination = source, destination
        self._from = source._resolve_prefix(prefix)
        self._to = destination._resolve_prefix(prefix if to is None else to)
        self._models = Models()
        self._state = _State("")
        self._result = Copied()
        self._reach: ops.HistoryReach | None = None  # of the source, if both keep history
        is_same = source._engine_handle is destination._engine_handle
        shortest = min(len(self._from), len(self._to))
        if is_same and self._from[:shortest] == self._to[:shortest]:
            raise InvalidInput("a store can be copied to itself only from one namespace to another one, beside it")

    def copy(
        self,
        *,
        follow: bool = False,
        verify: bool = False,
        restart: bool = False,
        progress: Callable[[int, int], object] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> StoreProgram[Copied]:
        """Copy everything up to now, and with `follow` every later change, until `stop()` is true."""
        self._models = yield from note_model(self._destination, (yield from find_model(self._source)))
        self._state = yield from self._read_state()
        self._result.resumed = self._state.version is not None and not restart
        if not self._result.resumed:
            self._state.cursor, self._state.entries, self._state.deletions = None, 0, 0
            self._state.began = yield from read_clock(self._source)
            # Before the first page: without it, a copy that is killed would not know later what it has written.
            [entry] = yield from execute(self._destination, [self._state.put(None, WriteBatch())])
            self._state.version = entry.version
        if (yield from old_records.read_reach(self._destination)) is not None:
            self._reach = yield from old_records.read_reach(self._source)
        count = ops.Count(self._from, hidden=True)
        total: int = (yield from execute(self._source, [count]))[0] if progress is not None else 0
        with _listening(self._source, (yield IS_ASYNC)) as event:
            while True:
                event.clear()
                yield from self._catch_up(progress, total, stop)
                is_last = not follow or (stop is not None and stop())
                if is_last and self._reach is not None:
                    yield from old_records.end_expired(self._source, self._from)
                    yield from self._catch_up(progress, total, stop)
                yield from self._extend_history()
                if is_last:
                    break
                if progress is not None:
                    total = self._state.entries
                    yield Call(progress, (total, total))
                poll = self._source._engine_handle.companion(Notifier).poll_interval
                yield Call(event.wait, (poll if stop is None else _STOP_INTERVAL,))
        if restart and self._state.owned:
            yield from self._delete_extra()
        if verify:
            yield from self._verify()
        self._result.entries, self._result.deletions = self._state.entries, self._state.deletions
        self._result.vectors_left_out = self._models.left_out
        return self._result

    def _catch_up(
        self, progress: Callable[[int, int], object] | None, total: int, stop: Callable[[], bool] | None
    ) -> StoreProgram[None]:
        """Copy pages of changes up to the end of the feed."""
        may_repeat = self._result.resumed and not self._destination._engine_handle.engine.capabilities.spans_roots
        while True:
            walk = ops.ChangedRecords(self._from, self._state.cursor, _PAGE)
            try:
                page: RecordPage = (yield from execute(self._source, [walk]))[0]
            except CursorExpired as error:
                raise CursorExpired(
                    "this copy was interrupted for longer than the source keeps deletions (feed_retention=), so it"
                    " cannot be continued: run it again with restart=True (--restart)"
                ) from error
            records = page.records
            if may_repeat and self._reach is None:
                records = yield from self._leave_out_equal(records)
            is_whole = yield from self._write(records, page.next, may_repeat)
            may_repeat = False
            if progress is not None:
                yield Call(progress, (self._state.entries, max(self._state.entries, total)))
            if (is_whole and not page.more) or (stop is not None and stop()):
                return
            if not page.records:
                yield Sleep(0.01)  # a large tree is being deleted, and its tombstones are not all written yet

    def _write(self, records: list[Record], cursor: str | None, may_repeat: bool) -> StoreProgram[bool]:
        """Write a page of changes, and how far the copy is, in one transaction where the engine can.

        `may_repeat` is whether some of the page may have been written before the copy was interrupted.
        Returns False if a large file has changed since the page was read. Then a later page has it.
        """
        batch, is_whole = WriteBatch(), True
        histories: list[list[OldVersion]] = [[] for _ in records]
        marks: list[list[old_records.Mark]] = [[] for _ in records]
        if self._reach is not None:
            histories = yield from old_records.list_versions(self._source, records)
            addresses = [(self._target(record.namespace), record.key) for record in records]
            marks = yield from old_records.list_marks(self._destination, addresses)
        for record, versions, known in zip(records, histories, marks, strict=True):
            if record.value is None and record.updated < self._state.began and not versions:
                continue  # it was gone before the copy began: an entry of that name in the destination is another
            if may_repeat and versions and not _count_new(versions, known):
                continue
            before = yield from self._add_versions(batch, record, versions, known)
            is_whole = (yield from self._add(batch, old_records.date_record(record, versions), before)) and is_whole
        if cursor == self._state.cursor and not records:
            return True
        try:
            entry = yield from write_batch(self._destination, batch.ops(), self._state.put(cursor, batch))
        except Conflict as conflict:
            if conflict.namespace == OPERATE_NAMESPACE:
                raise Unavailable(
                    "another process runs the same copy, and has written since: stop one of them"
                ) from conflict
            raise
        if any(type(op) is ops.Backdate and op.expires_at is not None for op in batch.others):
            self._destination._engine_handle.needs_sweeping = True
        self._state.version, self._state.cursor = entry.version, cursor
        self._state.entries += batch.entries
        self._state.deletions += batch.deletions
        self._result.vectors += batch.vectors
        self._result.versions += batch.versions
        return is_whole

    def _add_versions(
        self, batch: WriteBatch, record: Record, versions: list[OldVersion], known: list[old_records.Mark]
    ) -> StoreProgram[Record | None]:
        """Add the old versions that the destination lacks; return the version that the record replaces there.

        Many of them are written at once. If the copy is killed after that, it finds them in the destination.
        """
        count = _count_new(versions, known)
        new, target = versions[:count], self._target(record.namespace)
        older = old_records.to_bare_record(target, record.key, versions[count]) if count < len(versions) else None
        before = old_records.find_replaced(older, known)
        for group in old_records.split([one for one in reversed(new) if one.version != record.version]):
            olds = yield from old_records.load_records(self._source, record.namespace, record.key, group)
            batch.olds += old_records.make_ops(olds, target, before, self._destination._now())
            batch.versions += len(olds)
            before = olds[-1] if olds else before
            batch.old_bytes += sum(len(old.value or "") + len(old.content or b"") for old in olds)
            if len(batch.olds) > _MOST_OLDS or batch.old_bytes > PAGE_BYTES:
                for some in split_by_root(batch.olds):
                    yield from execute(self._destination, some)
                batch.olds, batch.old_bytes = [], 0
        return before

    def _extend_history(self) -> StoreProgram[None]:
        """Let the history of the destination begin where that of the source does, if it has nothing else."""
        if self._reach is None or not self._state.owned or self._to:
            return
        with suppress(AccessDenied):  # a client of a server that may not change settings
            yield from execute(self._destination, [ops.SetHistory(since=self._reach.since)])

    def _add(self, batch: WriteBatch, record: Record, before: Record | None) -> StoreProgram[bool]:
        if record.vectors is not None and record.vectors.model != self._models.source:  # the source has a new model
            left_out = self._models.left_out
            self._models = yield from note_model(self._destination, (yield from find_model(self._source)))
            self._models.left_out += left_out
        try:
            yield from add_record(
                batch,
                self._destination,
                record,
                self._target(record.namespace),
                self._models,
                lambda start, end: read_piece(self._source, record, start, end),
                before,
            )
        except Conflict:
            return False
        return True

    def _target(self, namespace: Namespace) -> Namespace:
        """Return the namespace of a copy."""
        target = self._to + namespace[len(self._from) :]
        if not target:
            raise InvalidInput(
                f"entries of the namespace {namespace!r} itself need a namespace in the destination; pass to="
            )
        return target

    # Resuming --------------------------------------------------------------------------------------------------------

    def _read_state(self) -> StoreProgram[_State]:
        source = yield from _identify(self._source)
        asked = repr((source, self._from, self._to)).encode()
        state = _State("copy " + hashlib.blake2b(asked, digest_size=16).hexdigest())
        entry: Entry | None = (yield from execute(self._destination, [ops.Get(OPERATE_NAMESPACE, state.key)]))[0]
        if entry is None:
            [count] = yield from execute(self._destination, [ops.Count(self._to, hidden=True)])
            state.owned = count == 0
            return state
        state.version = entry.version
        state.cursor = entry.value["cursor"]
        state.entries, state.deletions = entry.value["entries"], entry.value["deletions"]
        state.began, state.owned = entry.value["began"], entry.value["owned"]
        return state

    def _leave_out_equal(self, records: list[Record]) -> StoreProgram[list[Record]]:
        """Return the records that the destination does not have yet."""
        changed = []
        for record in records:
            get = ops.Get(self._target(record.namespace), record.key)
            here: Entry | None = (yield from execute(self._destination, [get]))[0]
            if not _is_copied(record, here):
                changed.append(record)
        return changed

    def _delete_extra(self) -> StoreProgram[None]:
        """Delete what the source does not have. Only this copy has written to the destination."""
        while True:
            found = yield from compare(self._source, self._destination, self._from, self._to, 500, only_extra=True)
            if not found.differences:
                return
            extra = [ops.Delete(self._to + one.namespace, one.key) for one in found.differences]
            for group in split_by_root(extra):
                yield from execute(self._destination, group)

    def _verify(self) -> StoreProgram[None]:
        """Compare both sides. After a difference, copy later changes and compare again, up to three times."""
        for tries in range(3):
            found = yield from compare(self._source, self._destination, self._from, self._to)
            self._result.verified, self._result.differences = found.entries, found.differences
            if not found.differences or tries == 2:
                return
            yield from self._catch_up(None, 0, None)


def _identify(store: Dispatcher) -> StoreProgram[str]:
    """Return the identity of a store. The first call makes one, so that two stores never have the same."""
    while True:
        entry: Entry | None = (yield from execute(store, [ops.Get(OPERATE_NAMESPACE, "identity")]))[0]
        if entry is not None:
            return str(entry.value["id"])
        value: Any = encode({"id": secrets.token_hex(16)})
        try:
            yield from execute(store, [ops.Put(OPERATE_NAMESPACE, "identity", value, None, ABSENT)])
        except Conflict:  # another process was faster
            continue


def _count_new(versions: list[OldVersion], known: list[old_records.Mark]) -> int:
    return old_records.count_new([(one.kind, one.time) for one in versions], known)


def _is_copied(record: Record, entry: Entry | None) -> bool:
    """Whether an entry of the destination is the copy of this record: it has the same times, to the microsecond."""
    if entry is None or record.value is None:
        return entry is None and record.value is None
    expires = None if entry.expires_at is None else to_microseconds(entry.expires_at)
    times = to_microseconds(entry.created_at), to_microseconds(entry.updated_at), expires
    return times == (record.created, record.updated, record.expires)


@contextmanager
def _listening(store: Dispatcher, is_async: bool) -> Iterator[Event]:
    """Give an event that is set when the store may have changed."""
    notifier = store._engine_handle.companion(Notifier)
    event: Event = LoopEvent() if is_async else ThreadEvent()
    defer_signals(notifier.add, event)
    try:
        yield event
    finally:
        notifier.remove_soon(event)
