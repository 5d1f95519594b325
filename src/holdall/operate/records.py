"""Records, which copies and backups move: how one is written to a store, and what makes two equal.

A record has everything that is stored of an entry (`ops.Record`). Ops made here go to the engine as they are
(`EngineBatch`), so that the JSON text of a value stays the same.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .. import ops
from ..core.dispatch import Dispatcher
from ..errors import Conflict, Corrupt, InvalidInput, shown
from ..history.old_records import end_change
from ..history.versions import encode_acting
from ..model import file_values, keys
from ..model.field_paths import check_paths
from ..model.values import MAX_TTL, decode, encode, to_datetime, to_microseconds
from ..ops import ABSENT, Entry, Namespace, Op, Record
from ..runtime.programs import EngineBatch, StoreProgram
from ..search.embedders import is_same_model
from ..search.embedding_model import MODEL_KEY, MODEL_NAMESPACE, read_probe

#: holdall's own entries about copies and loads: the identity of a store, and how far each one is.
OPERATE_NAMESPACE = (keys.RESERVED, "copies")
_UPLOAD_TTL = 24 * 3600.0
PIECE = 4 << 20

#: Reads the bytes `[start, end)` of a large file; raises `Conflict` if it is not the same file any more.
ReadPiece: TypeAlias = Callable[[int, int], StoreProgram[bytes]]


@dataclass(slots=True)
class Models:
    """The number of the embedding model in a destination, and which vectors it made."""

    source: int | None = None  # the number in the source
    number: int | None = None  # the number in the destination, if it has the same model
    left_out: int = 0  # entries whose vectors were not written, because the destination has another model


@dataclass(slots=True)
class WriteBatch:
    """The ops of one batch for a destination. Puts come first, so that an engine can run them together."""

    olds: list[Op] = field(default_factory=list)  # what writes old versions
    old_bytes: int = 0  # of their values and contents
    puts: list[Op] = field(default_factory=list)
    others: list[Op] = field(default_factory=list)
    entries: int = 0
    deletions: int = 0
    vectors: int = 0
    versions: int = 0

    def ops(self) -> list[Op]:
        return [*self.olds, *self.puts, *self.others]


def check_record(record: Record) -> None:
    """Check a record of an untrusted source, such as an archive; raise an error if no store could have it.

    Records go to engines as they are. Engines do not check what a store usually checks for them.
    """
    keys.check_namespace(record.namespace, empty=True)
    keys.check_key(record.key)
    if record.value is not None:
        encode(decode(record.value))
    for moment in (record.created, record.updated, record.expires, record.changed):
        if moment is not None:
            to_datetime(moment)
    if record.ttl is not None and not 0 < record.ttl <= MAX_TTL * 1_000_000:
        raise InvalidInput(f"not a TTL in microseconds: {shown(record.ttl)}")
    if record.search_fields is not None:
        fields: Any = decode(record.search_fields)
        if type(fields) is not list:
            raise InvalidInput(f"search fields are a list of paths, not {shown(record.search_fields)}")
        if fields:
            check_paths(fields)
    if record.acting is not None:
        acting = decode(record.acting)
        encode_acting(acting.get("author"), acting.get("reason"))
    if record.vectors is not None and not all(data and len(data) % 4 == 0 for data in record.vectors.data):
        raise InvalidInput("a vector is float32 numbers, little-endian")
    if record.size is not None or record.content is not None:
        _check_file(record)


def _check_file(record: Record) -> None:
    if not keys.is_path(record.key):
        raise InvalidInput(f"the key of a file is a path, not {shown(record.key)}")
    if record.content is not None and len(record.content) != record.size:
        raise Corrupt("the content of a file does not have the size that its record gives")
    if record.value is None:
        raise Corrupt("a file has no template")
    template = decode(record.value)
    is_item = template.keys() <= file_values.FIELDS and template.get("content") in file_values.FORMS
    if record.value not in file_values.WRITTEN and not is_item:
        raise InvalidInput(f"not the template of a file: {shown(record.value)}")


def execute(store: Dispatcher, batch: list[Any]) -> StoreProgram[list[Any]]:
    """Run a batch on the engine of a store."""
    results: list[Any] = yield EngineBatch(store, batch)
    return results


def read_clock(store: Dispatcher) -> StoreProgram[int]:
    """Return the time by the clock that the engine writes entries with."""
    value: Any = encode({})
    [entry] = yield from execute(store, [ops.Put(OPERATE_NAMESPACE, "clock", value, None)])
    return to_microseconds(entry.updated_at)


def write_batch(store: Dispatcher, written: list[Op], state: ops.Put) -> StoreProgram[Entry]:
    """Write a batch, and how far a copy is, in one transaction where the engine can; return the entry of the state."""
    entry: Entry
    if store._engine_handle.engine.capabilities.spans_roots:
        *_, entry = yield from execute(store, [*written, state])
        return entry
    for group in split_by_root(written):
        yield from execute(store, group)
    [entry] = yield from execute(store, [state])
    return entry


def split_by_root(batch: list[Any]) -> Iterator[list[Any]]:
    """Split a batch for an engine whose transactions have one root."""
    by_root: dict[str, list[Any]] = {}
    for op in batch:
        by_root.setdefault(op.namespace[0], []).append(op)
    yield from by_root.values()


def find_model(store: Dispatcher) -> StoreProgram[tuple[int, bytes] | None]:
    """Return the number and the probe of the model that a store has noted."""
    entry: Entry | None = (yield from execute(store, [ops.Get(MODEL_NAMESPACE, MODEL_KEY)]))[0]
    return None if entry is None else (entry.version, read_probe(entry.value))


def note_model(store: Dispatcher, known: tuple[int, bytes] | None) -> StoreProgram[Models]:
    """Note the model of a source in a destination that has none; return under which number its vectors go there."""
    if known is None:
        return Models()
    number, probe = known
    value: Any = encode({"probe": base64.b64encode(probe).decode()})
    while True:
        here = yield from find_model(store)
        if here is not None:
            return Models(number, here[0] if is_same_model(here[1], probe) else None)
        try:
            yield from execute(store, [ops.Put(MODEL_NAMESPACE, MODEL_KEY, value, None, ABSENT)])
        except Conflict:  # another process was faster
            continue


def add_record(
    batch: WriteBatch,
    store: Dispatcher,
    record: Record,
    namespace: Namespace,
    models: Models,
    read: ReadPiece,
    before: Record | None = None,
) -> StoreProgram[None]:
    """Add the ops that write a record to a batch. A large file is uploaded now, and moved to its path by the batch.

    `before` is the old version that it replaces, if the batch has written that.
    """
    if record.value is None:
        batch.others += [ops.Delete(namespace, record.key), *end_change(record, namespace, before)]
        batch.deletions += 1
        return
    vectors = _renumber(record, models)
    ttl = None if record.ttl is None else record.ttl / 1_000_000
    backdate = ops.Backdate(namespace, record.key, record.created, record.updated, record.expires)
    fields: Any = record.search_fields
    value: Any = record.value
    if record.size is None:
        batch.puts.append(ops.Put(namespace, record.key, value, ttl, search_fields=fields, vectors=vectors))
    elif record.content is not None:
        file = ops.File(value, record.content)
        batch.puts.append(ops.Put(namespace, record.key, file, ttl, search_fields=fields, vectors=vectors))
        if record.appended and value not in file_values.WRITTEN:  # its item shows when it was appended to
            batch.others.append(ops.Append(namespace, record.key, b"", ttl=None))
    else:
        home, upload = (keys.RESERVED, namespace[0], "uploads"), "/" + secrets.token_hex(16)
        yield from _upload(store, record, home, upload, read)
        batch.others.append(ops.Move(namespace, upload, record.key, home, ttl))
    batch.others += [*end_change(record, namespace, before), backdate]
    batch.entries += 1
    batch.vectors += vectors is not None


def _upload(store: Dispatcher, record: Record, home: Namespace, upload: str, read: ReadPiece) -> StoreProgram[None]:
    assert record.size is not None
    value: Any = record.value
    fields: Any = record.search_fields
    first = ops.Put(home, upload, ops.File(value, b""), _UPLOAD_TTL, search_fields=fields)
    yield from execute(store, [first])
    try:
        for start in range(0, record.size, PIECE):
            data = yield from read(start, min(start + PIECE, record.size))
            yield from execute(store, [ops.Append(home, upload, data, ttl=None)])
    except Conflict:
        yield from execute(store, [ops.Delete(home, upload)])
        raise


def _renumber(record: Record, models: Models) -> ops.Vectors | None:
    """Return the vectors of a record with the number that their model has in the destination."""
    if record.vectors is None or record.vectors.model != models.source:
        return None
    if models.number is None:
        models.left_out += 1
        return None
    return ops.replace(record.vectors, model=models.number)


def read_piece(store: Dispatcher, record: Record, start: int, end: int) -> StoreProgram[bytes]:
    """Read a part of a file, as it was when its record was read; `Conflict` if it has changed."""
    check = ops.Check(record.namespace, record.key, record.version)
    _, data = yield from execute(store, [check, ops.ReadRange(record.namespace, record.key, start, end)])
    if data is None or len(data) != end - start:
        raise Conflict("ReadRange", record.namespace, record.key, record.version, None)
    return bytes(data)


#: What two records are compared by, and what a difference is called.
_COMPARED = (
    ("value", lambda record: (record.value, record.size, record.content)),
    ("created_at", lambda record: record.created),
    ("updated_at", lambda record: record.updated),
    ("expires_at", lambda record: record.expires),
    ("ttl", lambda record: record.ttl),
    ("search_fields", lambda record: record.search_fields),
)


def find_differences(one: Record, other: Record, *, vectors: bool = True) -> list[str]:
    """Return what differs between two records of one entry. Versions, and the numbers of models, are each store's own.

    The contents of large files are not in their records.
    """
    found = [name for name, of in _COMPARED if of(one) != of(other)]
    if vectors and (one.vectors and one.vectors.data) != (other.vectors and other.vectors.data):
        found.append("vectors")
    return found
