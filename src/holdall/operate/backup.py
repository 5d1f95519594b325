"""Backup and load: a store to an archive and back, as programs.

A backup reads the feed from its beginning. Each page is read at one moment, and the last one, after which there is no
change, is the moment of the backup: what changed while it ran comes again in later pages. So others can go on writing,
and no engine needs snapshots.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from .. import ops
from ..core.dispatch import Dispatcher
from ..errors import (
    AccessDenied,
    AlreadyExists,
    Conflict,
    Corrupt,
    CursorExpired,
    HoldallError,
    InvalidInput,
    Unavailable,
)
from ..history import old_records
from ..model import keys
from ..model.values import encode
from ..ops import ABSENT, Entry, Namespace, OldVersion, Record, RecordPage
from ..runtime.programs import Call, Sleep, StoreProgram, Work
from .archive import FORMAT, ArchiveReader, ArchiveWriter, replace_local
from .records import (
    OPERATE_NAMESPACE,
    PIECE,
    Models,
    WriteBatch,
    add_record,
    check_record,
    execute,
    find_model,
    note_model,
    read_clock,
    read_piece,
    write_batch,
)
from .results import BackupInfo, Loaded

Progress = Callable[[int, int], object] | None

_PAGE = 500
_COUNTS = ("entries", "deletions", "vectors", "files", "versions")  # of a `BackupInfo`, in the end of an archive
_MOST_RESTARTS = 10
_MOST_ROUNDS = 100  # of reading a large file that keeps changing


def back_up(
    store: Dispatcher, path: str | os.PathLike[str], prefix: Namespace, progress: Progress
) -> StoreProgram[BackupInfo]:
    """Write everything below a prefix to an archive. It begins again if an erasure removes what it has to read."""
    for tries in range(_MOST_RESTARTS + 1):
        try:
            return (yield from _back_up(store, path, prefix, progress))
        except CursorExpired as error:
            if tries == _MOST_RESTARTS:
                raise Unavailable("entries are erased faster than the store can be read: try again later") from error
    raise AssertionError("unreachable")


def _back_up(
    store: Dispatcher, path: str | os.PathLike[str], prefix: Namespace, progress: Progress
) -> StoreProgram[BackupInfo]:
    made_by = version("holdall")
    base = store._resolve_prefix(prefix)
    model = yield from find_model(store)
    reach = yield from old_records.read_reach(store)
    total: int = (yield from execute(store, [ops.Count(base, hidden=True)]))[0] if progress is not None else 0
    created = datetime.now(UTC).isoformat()
    header = {"format": FORMAT, "holdall": made_by, "created": created, "prefix": list(prefix)}
    if model is not None:
        header["model"] = {"number": model[0], "probe": model[1].hex()}
    if reach is not None:
        header["history"] = {"since": reach.since}
    info = BackupInfo(prefix=prefix, created_at=datetime.fromisoformat(created), holdall=made_by)
    with replace_local(path) as file:
        writer = ArchiveWriter(file)
        yield Work(writer.write_header, (header,))
        yield from _write_records(store, base, writer, info, progress, total, reach is not None)
        end = {name: getattr(info, name) for name in _COUNTS}
        yield Work(writer.finish, (end,))
        info.bytes = writer.bytes
    return info


def _write_records(
    store: Dispatcher,
    base: Namespace,
    writer: ArchiveWriter,
    info: BackupInfo,
    progress: Progress,
    total: int,
    keeps_history: bool,
) -> StoreProgram[None]:
    began = yield from read_clock(store)
    cursor, failures, is_swept = None, 0, not keeps_history
    while True:
        page: RecordPage = (yield from execute(store, [ops.ChangedRecords(base, cursor, _PAGE)]))[0]
        is_whole = True
        small: list[Record] = []
        histories: list[list[OldVersion]] = [[] for _ in page.records]
        if keeps_history:
            histories = yield from old_records.list_versions(store, page.records)
        for record, versions in zip(page.records, histories, strict=True):
            relative = ops.replace(old_records.date_record(record, versions), namespace=record.namespace[len(base) :])
            if record.value is None and record.updated < began and not versions:
                continue  # the archive has nothing of it
            if versions:
                yield Work(writer.add, (small,))
                small = []
                yield from _write_versions(store, writer, record, relative.namespace, versions, info)
            if record.value is None:
                info.deletions += 1
            else:
                info.entries += 1
                info.files += record.size is not None
                info.vectors += record.vectors is not None
            if record.value is None or record.size is None or record.content is not None:
                small.append(relative)
                continue
            yield Work(writer.add, (small,))
            small = []
            is_whole = (yield from _write_large(store, writer, record, relative)) and is_whole
        yield Work(writer.add, (small,))
        cursor = page.next
        if progress is not None:
            yield Call(progress, (info.entries, max(info.entries, total)))
        if is_whole and not page.more:
            if is_swept:
                return
            yield from old_records.end_expired(store, base)
            is_swept = True
            continue
        failures += not is_whole
        if failures > _MOST_ROUNDS:
            raise Unavailable("a file of more than 64 MiB changes faster than it can be read: try again when it rests")
        if not page.records:
            yield Sleep(0.01)  # a large tree is being deleted, and its tombstones are not all written yet


def _write_versions(
    store: Dispatcher,
    writer: ArchiveWriter,
    record: Record,
    namespace: Namespace,
    versions: list[OldVersion],
    info: BackupInfo,
) -> StoreProgram[None]:
    """Write the old versions of an entry, the oldest first."""
    for group in old_records.split([one for one in reversed(versions) if one.version != record.version]):
        olds = yield from old_records.load_records(store, record.namespace, record.key, group)
        yield Work(writer.add, ([ops.replace(old, namespace=namespace) for old in olds],))
        info.versions += len(olds)


def _write_large(store: Dispatcher, writer: ArchiveWriter, record: Record, relative: Record) -> StoreProgram[bool]:
    """Write a file in pieces; return whether it stayed the same meanwhile."""
    assert record.size is not None
    yield Work(writer.add, ([relative],))
    yield Work(writer.flush, ())
    try:
        for start in range(0, record.size, PIECE):
            data = yield from read_piece(store, record, start, min(start + PIECE, record.size))
            yield Work(writer.add_piece, (data,))
    except Conflict:
        yield Work(writer.drop_file, ())
        return False
    return True


# Reading -------------------------------------------------------------------------------------------------------------


def check_backup(path: str | os.PathLike[str], progress: Progress) -> BackupInfo:
    """Read a whole archive, check it, and describe it."""
    with closing(ArchiveReader(path)) as reader:
        return _check(reader, progress)[0]


def _check(reader: ArchiveReader, progress: Progress = None) -> tuple[BackupInfo, tuple[int, bytes] | None, int | None]:
    """Read an archive to its end; return what it has, the model of its vectors, and since when it has old versions."""
    header: dict[str, Any] | None = None
    left = 0  # bytes of a large file that have to follow
    while True:
        kind, data = reader.read_block()
        if progress is not None:
            progress(*reader.position())
        if kind == b"H":
            header = reader.read_json(data)
        elif header is None:
            raise reader.damaged("it has no header")
        elif kind == b"R" and left == 0:
            records = reader.read_records(data)
            for record in records:
                _check_record(reader, record)
            left = _count_missing_bytes(records)
        elif kind == b"P" and left and len(data) == min(left, PIECE):
            left -= len(data)
        elif kind == b"X":
            left = 0
        elif kind == b"E" and left == 0:
            info = _describe(reader, header, reader.read_json(data))
            return info, _model_of(reader, header), _since_of(reader, header)
        else:
            raise reader.damaged("its blocks are not in order")


def _count_missing_bytes(records: list[Record]) -> int:
    """Return how many bytes of the last record's content follow in pieces."""
    last = records[-1] if records else None
    return last.size or 0 if last is not None and last.size is not None and last.content is None else 0


def _check_record(reader: ArchiveReader, record: Record) -> None:
    """Check that a record can be stored; the checksums show only that it is what was written."""
    try:
        check_record(record)
    except (HoldallError, ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
        raise reader.damaged(f"the record {record.key!r} is not valid: {error}") from error


def _describe(reader: ArchiveReader, header: dict[str, Any], end: dict[str, Any]) -> BackupInfo:
    try:
        return BackupInfo(
            **{name: int(end.get(name, 0) if name == "versions" else end[name]) for name in _COUNTS},
            bytes=os.path.getsize(reader.path),  # noqa: PTH202  # a str
            prefix=keys.check_namespace(tuple(header["prefix"]), empty=True),
            created_at=datetime.fromisoformat(header["created"]),
            holdall=str(header["holdall"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise reader.damaged(f"its header is not valid: {error}") from error


def _model_of(reader: ArchiveReader, header: dict[str, Any]) -> tuple[int, bytes] | None:
    model = header.get("model")
    try:
        return None if model is None else (int(model["number"]), bytes.fromhex(model["probe"]))
    except (KeyError, TypeError, ValueError) as error:
        raise reader.damaged(f"its note on the model is not valid: {error}") from error


def _since_of(reader: ArchiveReader, header: dict[str, Any]) -> int | None:
    try:
        return int(header["history"]["since"]) if "history" in header else None
    except (KeyError, TypeError, ValueError) as error:
        raise reader.damaged(f"its note on the history is not valid: {error}") from error


# Loading -------------------------------------------------------------------------------------------------------------


def load(
    store: Dispatcher,
    path: str | os.PathLike[str],
    to: Namespace | None,
    into: bool,
    replace: bool,
    progress: Progress,
) -> StoreProgram[Loaded]:
    """Load an archive that was checked to its end before anything is written."""
    if into and replace:
        raise InvalidInput("pass into=True or replace=True, not both")
    with closing(ArchiveReader(path)) as reader:
        info, model, since = yield Work(_check, (reader,))
        digest = reader.digest
    base = store._resolve_prefix(info.prefix if to is None else to)
    # A digest, and not the name of the namespace, which may be erased later.
    namespace = hashlib.blake2b(keys.encode(base).encode(), digest_size=16).hexdigest()
    state_key = f"load {digest.hex()[:32]} {namespace}"
    state: Entry | None = (yield from execute(store, [ops.Get(OPERATE_NAMESPACE, state_key)]))[0]
    loaded = Loaded(resumed=state is not None)
    if state is None:
        is_empty = yield from _make_room(store, base, into, replace)
        # Before the first block: without it, a load that is killed would not know later what it has written.
        first = ops.Put(OPERATE_NAMESPACE, state_key, _encode_state(0, is_empty), None, ABSENT)
        [state] = yield from execute(store, [first])
    assert state is not None
    is_empty = bool(state.value.get("empty"))
    models = yield from note_model(store, model)
    target = _Target(store, base, state_key, is_empty, models, (yield from old_records.read_reach(store)) is not None)
    with closing(ArchiveReader(path)) as reader:
        yield from _load_blocks(target, reader, state, loaded, info, progress)
    if reader.digest != digest:
        raise Corrupt(f"the backup {path!r} was changed while it was loaded; load it again with replace=True")
    if since is not None and target.keeps_history and is_empty and not base:
        with suppress(AccessDenied):  # a client of a server that may not change settings
            yield from execute(store, [ops.SetHistory(since=since)])
    yield from execute(store, [ops.Delete(OPERATE_NAMESPACE, state_key)])
    loaded.vectors_left_out = models.left_out
    return loaded


@dataclass(frozen=True, slots=True)
class _Target:
    """Where an archive is loaded to."""

    store: Dispatcher
    base: Namespace
    state_key: str  # of the entry that notes how far the load is
    was_empty: bool
    models: Models
    keeps_history: bool

    def locate(self, record: Record) -> Namespace:
        """Return the namespace of a record."""
        namespace = self.base + record.namespace
        if not namespace:
            raise InvalidInput("entries of this backup are in its namespace itself, which needs a name here: to=")
        return namespace


def _encode_state(blocks: int, was_empty: bool) -> Any:
    """Return the value of the entry that notes how far a load is."""
    return encode({"blocks": blocks, "empty": was_empty})


def _make_room(store: Dispatcher, base: Namespace, into: bool, replace: bool) -> StoreProgram[bool]:
    """Make a namespace empty, if that is allowed; return whether it was."""
    [count] = yield from execute(store, [ops.Count(base, hidden=True)])
    if count == 0 or into:
        return bool(count == 0)
    if not replace:
        raise AlreadyExists(
            f"the store has {count} entries: pass into=True (--into) to add the backup to them, or replace=True"
            " (--replace) to delete them first"
        )
    if base:
        yield from execute(store, [ops.DeleteTree(base)])
        return False
    while True:
        page: RecordPage = (yield from execute(store, [ops.Records((), limit=1)]))[0]  # it lists hidden namespaces, too
        if not page.records:
            return False
        yield from execute(store, [ops.DeleteTree(page.records[0].namespace[:1])])


def _load_blocks(
    target: _Target, reader: ArchiveReader, state: Entry, loaded: Loaded, info: BackupInfo, progress: Progress
) -> StoreProgram[None]:
    """Write the records block by block. Each block is one transaction with the number of the next one."""
    store = target.store
    at_version, done, number = state.version, int(state.value["blocks"]), 0
    may_repeat = loaded.resumed and not store._engine_handle.engine.capabilities.spans_roots
    records: list[Record] = []
    while True:
        kind, data = yield Work(reader.read_block, ())
        number += 1
        if kind == b"E":
            return
        if kind != b"R":
            continue
        last = records[-1] if records else None
        records = yield Work(reader.read_records, (data,))
        if number <= done:
            continue
        batch = WriteBatch()
        number += yield from _add_records(batch, target, reader, records, last, may_repeat)
        may_repeat = False
        put = ops.Put(OPERATE_NAMESPACE, target.state_key, _encode_state(number, target.was_empty), None, at_version)
        entry = yield from write_batch(store, batch.ops(), put)
        store._engine_handle.needs_sweeping = True
        at_version = entry.version
        loaded.entries += batch.entries
        loaded.deletions += batch.deletions
        loaded.vectors += batch.vectors
        loaded.versions += batch.versions
        if progress is not None:
            yield Call(progress, (loaded.entries, max(loaded.entries, info.entries)))


def _add_records(
    batch: WriteBatch,
    target: _Target,
    reader: ArchiveReader,
    records: list[Record],
    last: Record | None,
    may_repeat: bool,
) -> StoreProgram[int]:
    """Add the records of a block to a batch; return how many blocks the pieces of a large file were.

    `last` is the last record of the block before, of which this block may have later versions. `may_repeat` is whether
    some of the block may have been written before the load was interrupted.
    """
    blocks = 0
    groups = _group_by_entry(target, records)
    known: dict[tuple[Namespace, str], list[old_records.Mark]] = {}
    older: dict[tuple[Namespace, str], Record] = {}
    if target.keeps_history:
        older = {} if last is None or not last.is_old else {(target.locate(last), last.key): last}
        addresses = [each for each, group in groups.items() if may_repeat or group[0].is_old or each in older]
        known = dict(zip(addresses, (yield from old_records.list_marks(target.store, addresses)), strict=True))
    for address, versions in groups.items():
        namespace = address[0]
        before: Record | None = None
        if address in known:
            marks = [old_records.mark_of(one) for one in reversed(versions)]
            first = len(versions) - old_records.count_new(marks, known[address])
            if may_repeat and first == len(versions):
                continue
            before = old_records.find_replaced(versions[first - 1] if first else older.get(address), known[address])
            olds = [one for one in versions[first:] if one.is_old]
            batch.olds += old_records.make_ops(olds, namespace, before, target.store._now())
            batch.versions += len(olds)
            before = olds[-1] if olds else before
        for record in versions:
            if record.is_old:
                continue
            present = record if target.keeps_history else ops.replace(record, changed=None)
            if record.value is not None and record.size is not None and record.content is None:
                blocks += yield from _load_large(batch, target, reader, present, before)
            else:
                yield from add_record(batch, target.store, present, namespace, target.models, _no_pieces, before)
    return blocks


def _group_by_entry(target: _Target, records: list[Record]) -> dict[tuple[Namespace, str], list[Record]]:
    """Return the versions of each entry in a block: old ones, and then the present one, if the block has it.

    An entry that changed while the backup ran comes again, with all of its versions: the last time counts.
    """
    groups: dict[tuple[Namespace, str], list[Record]] = {}
    for record in records:
        address = target.locate(record), record.key
        group = groups.pop(address, [])
        if group and not group[-1].is_old:
            group = []
        group.append(record)
        groups[address] = group
    return groups


def _load_large(
    batch: WriteBatch, target: _Target, reader: ArchiveReader, record: Record, before: Record | None
) -> StoreProgram[int]:
    """Upload a file from the pieces that follow; return how many blocks they were."""
    blocks = 0

    def read(start: int, end: int) -> StoreProgram[bytes]:
        nonlocal blocks
        kind, data = yield Work(reader.read_block, ())
        blocks += 1
        if kind == b"X":
            raise Conflict("ReadRange", record.namespace, record.key, record.version, None)
        assert len(data) == end - start
        return bytes(data)

    with suppress(Conflict):  # it was not whole: a later record has it
        yield from add_record(batch, target.store, record, target.locate(record), target.models, read, before)
    return blocks


def _no_pieces(start: int, end: int) -> StoreProgram[bytes]:
    raise AssertionError(f"a record without its content: {start}, {end}")
    yield
