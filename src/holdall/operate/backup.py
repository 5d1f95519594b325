"""Backup and load: a store to an archive and back, as programs.

A backup reads the feed from its beginning. Each page is read at one moment, and the last one, after which there is no
change, is the moment of the backup: what changed while it ran comes again in later pages. So others can go on writing,
and no engine needs snapshots.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from .. import ops
from ..core.dispatch import Dispatcher
from ..errors import AlreadyExists, Conflict, Corrupt, InvalidInput, Unavailable
from ..model import keys
from ..model.values import decode, encode
from ..ops import ABSENT, Entry, Namespace, Record, RecordPage
from ..runtime.programs import Call, Sleep, StoreProgram, Work
from .archive import FORMAT, ArchiveReader, ArchiveWriter, writing
from .records import (
    OPERATE_NAMESPACE,
    PIECE,
    Models,
    WriteBatch,
    add_record,
    execute,
    find_model,
    note_model,
    read_clock,
    read_piece,
    split_by_root,
)
from .results import BackupInfo, Loaded

Progress = Callable[[int, int], object] | None

_PAGE = 500
_MOST_ROUNDS = 100  # of reading a large file that keeps changing


def back_up(
    store: Dispatcher, path: str | os.PathLike[str], prefix: Namespace, progress: Progress
) -> StoreProgram[BackupInfo]:
    """Write everything below a prefix to an archive."""
    made_by = version("holdall")
    base = store._resolve_prefix(prefix)
    model = yield from find_model(store)
    total: int = (yield from execute(store, [ops.Count(base)]))[0] if progress is not None else 0
    created = datetime.now(UTC).isoformat()
    header = {"format": FORMAT, "holdall": made_by, "created": created, "prefix": list(prefix)}
    if model is not None:
        header["model"] = {"number": model[0], "probe": model[1].hex()}
    info = BackupInfo(prefix=prefix, created_at=datetime.fromisoformat(created), holdall=made_by)
    with writing(path) as file:
        writer = ArchiveWriter(file)
        yield Work(writer.write_header, (header,))
        yield from _write_records(store, base, writer, info, progress, total)
        end = {"entries": info.entries, "deletions": info.deletions, "vectors": info.vectors, "files": info.files}
        yield Work(writer.finish, (end,))
        info.bytes = writer.bytes
    return info


def _write_records(
    store: Dispatcher, base: Namespace, writer: ArchiveWriter, info: BackupInfo, progress: Progress, total: int
) -> StoreProgram[None]:
    began = yield from read_clock(store)
    cursor, failures = None, 0
    while True:
        page: RecordPage = (yield from execute(store, [ops.ChangedRecords(base, cursor, _PAGE)]))[0]
        is_whole = True
        small: list[Record] = []
        for record in page.records:
            relative = ops.replace(record, namespace=record.namespace[len(base) :])
            if record.value is None:
                if record.updated < began:  # the archive has nothing of it
                    continue
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
            return
        failures += not is_whole
        if failures > _MOST_ROUNDS:
            raise Unavailable("a file of more than 64 MiB changes faster than it can be read: try again when it rests")
        if not page.records:
            yield Sleep(0.01)  # a large tree is being deleted, and its tombstones are not all written yet


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


def check_backup(path: str | os.PathLike[str]) -> BackupInfo:
    """Read a whole archive, check it, and describe it."""
    with closing(ArchiveReader(path)) as reader:
        info, _ = _check(reader)
        return info


def _check(reader: ArchiveReader) -> tuple[BackupInfo, tuple[int, bytes] | None]:
    """Read an archive to its end; return what it has, and the model of its vectors."""
    header: dict[str, Any] | None = None
    left = 0  # bytes of a large file that have to follow
    for kind, data in _blocks(reader):
        if kind == b"H":
            header = reader.read_json(data)
        elif header is None:
            raise reader._damaged("it has no header")
        elif kind == b"R" and left == 0:
            records = reader.read_records(data)
            for record in records:
                _check_record(reader, record)
            left = _missing_bytes(records)
        elif kind == b"P" and 0 < len(data) <= left:
            left -= len(data)
        elif kind == b"X":
            left = 0
        elif kind == b"E" and left == 0:
            return _describe(reader, header, reader.read_json(data)), _model_of(reader, header)
        else:
            raise reader._damaged("its blocks are not in order")
    raise AssertionError("unreachable")


def _blocks(reader: ArchiveReader) -> Iterator[tuple[bytes, bytes]]:
    while (block := reader.read_block()) is not None:
        yield block
        if block[0] == b"E":
            return


def _missing_bytes(records: list[Record]) -> int:
    """Return how many bytes of the last record's content follow in pieces."""
    last = records[-1] if records else None
    return last.size or 0 if last is not None and last.size is not None and last.content is None else 0


def _check_record(reader: ArchiveReader, record: Record) -> None:
    """Check that a record can be stored; the checksums show only that it is what was written."""
    try:
        keys.check_namespace(record.namespace, empty=True)
        keys.check_key(record.key)
        if record.value is not None and type(decode(record.value)) is not dict:
            raise Corrupt("a value is not an object")
        if record.content is not None and len(record.content) != record.size:
            raise Corrupt("a content has not the size of its file")
    except (InvalidInput, Corrupt, ValueError) as error:
        raise reader._damaged(f"the record {record.key!r} is not valid: {error}") from error


def _describe(reader: ArchiveReader, header: dict[str, Any], end: dict[str, Any]) -> BackupInfo:
    try:
        return BackupInfo(
            entries=int(end["entries"]),
            deletions=int(end["deletions"]),
            files=int(end["files"]),
            vectors=int(end["vectors"]),
            bytes=os.path.getsize(reader.path),  # noqa: PTH202  # a str
            prefix=keys.check_namespace(tuple(header["prefix"]), empty=True),
            created_at=datetime.fromisoformat(header["created"]),
            holdall=str(header["holdall"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise reader._damaged(f"its header is not valid: {error}") from error


def _model_of(reader: ArchiveReader, header: dict[str, Any]) -> tuple[int, bytes] | None:
    model = header.get("model")
    try:
        return None if model is None else (int(model["number"]), bytes.fromhex(model["probe"]))
    except (KeyError, TypeError, ValueError) as error:
        raise reader._damaged(f"its note on the model is not valid: {error}") from error


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
        info, model = yield Work(_check, (reader,))
        digest = reader.digest
    base = store._resolve_prefix(info.prefix if to is None else to)
    state_key = f"load {digest.hex()[:32]} {keys.encode(base)}"
    state: Entry | None = (yield from execute(store, [ops.Get(OPERATE_NAMESPACE, state_key)]))[0]
    if state is None:
        yield from _make_room(store, base, into, replace)
    loaded = Loaded(resumed=state is not None)
    models = yield from note_model(store, model)
    with closing(ArchiveReader(path)) as reader:
        yield from _load_blocks(store, reader, base, state_key, state, models, loaded, info, progress)
    if reader.digest != digest:
        raise Corrupt(f"the backup {path!r} was changed while it was loaded; load it again with replace=True")
    yield from execute(store, [ops.Delete(OPERATE_NAMESPACE, state_key)])
    loaded.vectors_left_out = models.left_out
    return loaded


def _make_room(store: Dispatcher, base: Namespace, into: bool, replace: bool) -> StoreProgram[None]:
    [count] = yield from execute(store, [ops.Count(base)])
    if count == 0 or into:
        return
    if not replace:
        raise AlreadyExists(
            f"the store has {count} entries: pass into=True (--into) to add the backup to them, or replace=True"
            " (--replace) to delete them first"
        )
    if base:
        yield from execute(store, [ops.DeleteTree(base)])
        return
    while roots := (yield from execute(store, [ops.Namespaces(max_depth=1, limit=1000)]))[0]:
        for root in roots:
            yield from execute(store, [ops.DeleteTree(root)])


def _load_blocks(
    store: Dispatcher,
    reader: ArchiveReader,
    base: Namespace,
    state_key: str,
    state: Entry | None,
    models: Models,
    loaded: Loaded,
    info: BackupInfo,
    progress: Progress,
) -> StoreProgram[None]:
    """Write the records block by block. Each block is one transaction with the number of the next one."""
    at_version = None if state is None else state.version
    done = 0 if state is None else int(state.value["blocks"])
    number = 0
    large: Record | None = None  # the file whose pieces follow
    while True:
        kind, data = yield Work(reader.read_block, ())
        number += 1
        if kind == b"E":
            return
        if kind != b"R":
            continue
        records: list[Record] = yield Work(reader.read_records, (data,))
        if number <= done:
            continue
        batch = WriteBatch()
        for record in records:
            target = base + record.namespace
            if not target:
                raise InvalidInput("entries of this backup are in its namespace itself, which needs a name here: to=")
            if record.value is not None and record.size is not None and record.content is None:
                large = record
                continue
            yield from add_record(batch, store, record, target, models, _no_pieces)
        if large is not None:
            number += yield from _load_large(batch, store, reader, large, base + large.namespace, models)
            large = None
        written, value = batch.ops(), encode({"blocks": number})
        expect: Any = ABSENT if at_version is None else at_version
        stored: Any = value
        put = ops.Put(OPERATE_NAMESPACE, state_key, stored, None, expect)
        if store._engine_handle.engine.capabilities.spans_roots:
            *_, entry = yield from execute(store, [*written, put])
        else:
            for group in split_by_root(written):
                yield from execute(store, group)
            [entry] = yield from execute(store, [put])
        store._engine_handle.needs_sweeping = True
        at_version = entry.version
        loaded.entries += batch.entries
        loaded.deletions += batch.deletions
        loaded.vectors += batch.vectors
        if progress is not None:
            yield Call(progress, (loaded.entries, max(loaded.entries, info.entries)))


def _load_large(
    batch: WriteBatch, store: Dispatcher, reader: ArchiveReader, record: Record, target: Namespace, models: Models
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
        yield from add_record(batch, store, record, target, models, read)
    return blocks


def _no_pieces(start: int, end: int) -> StoreProgram[bytes]:
    raise AssertionError(f"a record without its content: {start}, {end}")
    yield
