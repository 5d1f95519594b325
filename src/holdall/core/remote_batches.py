"""Batches that a remote engine sends: they are checked, moved into the scope of a store, and run exactly once.

The ops of such a batch were prepared by a store in another process, which may be hostile: every argument is checked
again here. Namespaces are relative to the scope. A client names few namespaces of holdall's own (leases, uploads, the
record of the embedding model, how far copies are), and each of them is translated. The server calls this through the
face API.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .. import ops, wire
from ..errors import AccessDenied, Conflict, Corrupt, HoldallError, InvalidInput, InvalidValue, OutcomeUnknown, shown
from ..files.large_moves import is_large, move
from ..history.erasing import forget
from ..history.versions import encode_acting
from ..live.leases import lease_namespace
from ..model import file_values, filters, globs, keys
from ..model.values import MAX_TTL, decode, duration_seconds, to_datetime
from ..ops import ABSENT, READS, WALKS, Entry, Namespace, Op, Page, replace
from ..runtime import arguments
from ..runtime.programs import StoreProgram
from .store import Store

#: Raises `AccessDenied` unless the token has a right, which is named.
Allow: TypeAlias = Callable[[str], None]

_LARGE_TREE = 500  # entries: a larger tree is deleted in steps, and the record of the batch is written before
_CLIENT = re.compile(r"[0-9a-f]{16,64}")
_MAINTENANCE = (ops.PurgeTombstones, ops.PurgeHistory, ops.IndexTexts)
_ADMITTED = frozenset({*ops.POINT_OPS, ops.GetSearchFields, ops.CountVectors, ops.Embed, ops.GetVersion, ops.SetChange})
#: Ops whose numbers `Store._prepare` checks, and walks for which a limit of 0 has a meaning.
_PREPARED = frozenset({ops.Get, ops.Put, ops.Delete, ops.Check, ops.Refresh, ops.Append, ops.ReadRange, ops.Backdate})
_MAY_BE_EMPTY = (ops.Search, ops.Namespaces, ops.Changes, ops.ListVersions)
_ON_LEASES = (ops.Put, ops.Get, ops.Check, ops.Refresh, ops.Delete)
_ON_UPLOADS = (ops.Put, ops.Append, ops.Delete)
_ON_MODEL = (ops.Get, ops.Check, ops.Put)
_COPIES = (keys.RESERVED, "copies")
_ON_COPIES = (ops.Get, ops.Put, ops.Delete)
_COPY_KEY = re.compile(r"identity|clock|(copy|load) [0-9a-f]{32}( .*)?", re.DOTALL)
_OF_SOURCES = ("identity", "clock")  # what a copy notes in the store that it reads
_MOST_COPY_BYTES = 1 << 14
_NOT_COMPACTED = (
    "what compacting clears: it keeps all users of the store waiting, and needs a token for the whole store"
)
_MOST_PROBE_BYTES = 1 << 18
_MOST_VECTOR_BYTES = 1 << 20


def run_batch(store: Store, batch: wire.Batch, allow: Allow) -> StoreProgram[wire.Reply]:
    """Run a batch of a remote engine. `allow(right)` raises `AccessDenied` if its token does not have that right."""
    if not batch.ops:
        raise InvalidInput("an empty batch")
    for op in batch.ops:
        allow(_right_of(op))
        _check_numbers(op)
    first: Any = batch.ops[0]
    if type(first) not in _ADMITTED and len(batch.ops) > 1:
        raise InvalidInput(f"a batch with {type(first).__name__} has no other ops")
    if type(first) in WALKS:
        return wire.Reply([wire.encode_result(first, (yield from _walk(store, first)))])
    if isinstance(first, ops.Sweep):
        done = (yield [replace(first, prefix=store._resolve_prefix(first.prefix), limit=min(first.limit, 500))])[0]
        return wire.Reply([done])
    if isinstance(first, ops.SetHistory):
        if first != ops.SetHistory() and store._scope:
            raise AccessDenied("only a token for the whole store may turn its history on or off")
        return wire.Reply([wire.encode_result(first, (yield [first])[0])])
    if isinstance(first, ops.PurgeHistory) and store._scope:
        return wire.Reply([False])
    if isinstance(first, ops.PurgeTombstones):
        retention = store._engine_handle.feed_retention
        if retention is None or store._scope:
            return wire.Reply([False])
        first = replace(first, age=max(first.age, retention))
    if isinstance(first, ops.Forget | ops.Scrub):
        return wire.Reply([wire.encode_result(first, (yield from _erase(store, first)))])
    if isinstance(first, _MAINTENANCE):
        return wire.Reply([wire.encode_result(first, (yield [first])[0])])
    admitted = [_admit(store, op) for op in batch.ops]
    if batch.slot is not None and not all(type(op) in READS for op in admitted):
        return (yield from _run_once(store, batch, admitted))
    try:
        results = yield from _write(store, admitted)
    except Conflict as conflict:
        raise _relative(store, conflict, batch.ops, admitted) from None
    return wire.Reply([wire.encode_result(op, result) for op, result in zip(batch.ops, results, strict=True)])


def view_for(store: Store, batch: wire.Batch) -> Store:
    """Return the view of a store on which a batch runs: its writes carry the author and the reason of the client."""
    acting: str | None = next(filter(None, (getattr(op, "acting", None) for op in batch.ops)), None)
    if acting is None:
        return store
    return Store(store._engine_handle, replace(store._options, acting=_check_acting(acting)), store, store._scope)


def _erase(store: Store, op: ops.Forget | ops.Scrub) -> StoreProgram[ops.Forgotten | ops.Scrubbed]:
    """Run a step of an erasure. The files belong to the whole store: clearing them takes nothing from other scopes."""
    if isinstance(op, ops.Forget):
        arguments.check_count("limit", op.limit, least=1)
        key = None if op.key is None else keys.check_key(op.key)
        namespace = store._resolve_namespace(op.namespace)
        return (yield from forget(replace(op, namespace=namespace, key=key, limit=min(op.limit, 500))))
    if not (op.compact and store._scope):
        return (yield [op])[0]  # type: ignore[no-any-return]  # `Scrubbed`
    scrubbed: ops.Scrubbed = (yield [ops.Scrub()])[0]
    return replace(scrubbed, beyond=(*scrubbed.beyond, _NOT_COMPACTED))


# Running a write exactly once ----------------------------------------------------------------------------------------


def _run_once(store: Store, batch: wire.Batch, admitted: list[Op]) -> StoreProgram[wire.Reply]:
    """Run a batch of writes. If it was run before, return its results instead, which a record has kept."""
    slot = batch.slot
    assert slot is not None
    if slot.age >= wire.REPLY_TTL:
        raise OutcomeUnknown(
            f"the write was sent {slot.age:.0f} s ago, and its outcome is no longer known: read the entries before you"
            " write again"
        )
    namespace = _record_namespace(store, admitted)
    key = _record_key(store, slot)
    expect: Any = ABSENT
    if slot.expect is not None:
        _check_integer("expect", expect := slot.expect)
    is_retry = slot.age > 0
    record: Entry | None = (yield [ops.Get(namespace, key)])[0] if is_retry else None
    while True:
        if record is not None and record.value["number"] == slot.number:
            return (yield from _replay(batch, admitted, record))
        try:
            return (yield from _write_with_record(store, batch, admitted, namespace, key, expect))
        except HoldallError as error:
            failure = error
        is_taken = isinstance(failure, Conflict) and (failure.namespace, failure.key) == (
            store._resolve_namespace(namespace),
            key,
        )
        if not is_taken and not is_retry:
            raise _relative(store, failure, batch.ops, admitted)
        # The first try of this write may have ended in the meantime: its own change makes a retry fail.
        record = (yield [ops.Get(namespace, key)])[0]
        if record is not None and record.value["number"] == slot.number:
            continue
        if not is_taken:
            raise _relative(store, failure, batch.ops, admitted)
        if record is not None and record.value["number"] > slot.number:
            raise OutcomeUnknown("a newer write of the same client came first: read the entries before you write again")
        expect = ABSENT if record is None else record.version


def _write_with_record(
    store: Store, batch: wire.Batch, admitted: list[Op], namespace: Namespace, key: str, expect: Any
) -> StoreProgram[wire.Reply]:
    assert batch.slot is not None
    number, checksum = batch.slot.number, wire.checksum(batch.ops)
    is_large = yield from _takes_steps(store, admitted)
    if store._engine_handle.engine.capabilities.remembers and not is_large:
        remember = ops.Remember(store._resolve_namespace(namespace), key, number, wire.REPLY_TTL, expect, checksum)
        results = yield from store._write_batch([*admitted, remember], None)
        version = results.pop()
    else:
        # Two steps: a retry between them finds a record without results.
        begun = ops.Put(namespace, key, {"number": number, "checksum": checksum}, wire.REPLY_TTL, expect)
        if is_large:
            yield [begun]
            results = yield from _write(store, admitted)
        else:
            results = (yield from store._write_batch([begun, *admitted], None))[1:]
        remember = ops.Remember(namespace, key, number, wire.REPLY_TTL, checksum=checksum)
        kept = wire.to_record(remember, admitted, results)
        version = (yield [replace(kept, value=decode(kept.value), expect=ops.ANY)])[0].version  # type: ignore[arg-type]  # Json
    done = [wire.encode_result(op, result) for op, result in zip(batch.ops, results, strict=True)]
    return wire.Reply(done, version)


def _replay(batch: wire.Batch, admitted: list[Op], record: Entry) -> StoreProgram[wire.Reply]:
    """Return the results of a batch that was run before. What it read is read again."""
    checksum = wire.checksum(batch.ops)
    if record.value.get("checksum", checksum) != checksum:  # an earlier holdall kept none
        raise InvalidInput("another write was sent with this number before; nothing was done")
    if "results" not in record.value:
        raise OutcomeUnknown(
            "the connection was lost during this write, and its results were not kept: read the entries before you"
            " write again"
        )
    kept = wire.from_record(record.value)[-len(admitted) :]  # the store may have added checks before these
    for index, (sent, op) in enumerate(zip(batch.ops, admitted, strict=True)):
        if type(op) in READS and not isinstance(op, ops.Check | ops.CheckPath):
            kept[index] = wire.encode_result(sent, (yield [op])[0])
    return wire.Reply(kept, record.version)


def _write(store: Store, admitted: list[Op]) -> StoreProgram[list[Any]]:
    """Run a batch. If its only write is a move, a large folder is moved in slices."""
    if (alone := _find_lone_move(admitted)) is None:
        return (yield from store._write_batch(admitted, None))
    checks, op = alone
    return [*(None for _ in checks), (yield from move(store, op, None, checks))]


def _find_lone_move(admitted: list[Op]) -> tuple[list[ops.Check], ops.Move] | None:
    """Return the checks and the move of a batch that has nothing else; None if it is another batch."""
    *others, last = admitted
    checks = [op for op in others if isinstance(op, ops.Check)]
    if not isinstance(last, ops.Move) or last.source is not None or len(checks) < len(others):
        return None
    src, dst = keys.check_paths(last.src, last.dst)
    return checks, replace(last, src=src, dst=dst)


def _takes_steps(store: Store, admitted: list[Op]) -> StoreProgram[bool]:
    """Return whether a batch is done in several steps: the deletion of a large tree, or the move of a large folder."""
    last = admitted[-1]
    if (alone := _find_lone_move(admitted)) is not None:
        return (yield from is_large(store, alone[1]))
    if not isinstance(last, ops.DeleteTree):
        return False
    if last.path is not None:
        return True
    count: int = (yield [ops.Count(store._resolve_prefix(last.namespace))])[0]
    return count > _LARGE_TREE


def _record_namespace(store: Store, admitted: list[Op]) -> Namespace:
    """The namespace of the records, in the root that the batch writes to."""
    for op in admitted:
        namespace = store._resolve_namespace(op.namespace)  # type: ignore[attr-defined]  # every point op has one
        if namespace[0] != keys.RESERVED:
            return keys.Resolved((keys.RESERVED, namespace[0], "replies"))
        if len(namespace) > 2:
            return keys.Resolved((keys.RESERVED, namespace[1], "replies"))
    return keys.Resolved((keys.RESERVED, "replies"))


def _record_key(store: Store, slot: wire.Slot) -> str:
    if not _CLIENT.fullmatch(slot.client):
        raise InvalidInput(f"not the id of a client: {shown(slot.client)}")
    return f"{scope_digest(store)}-{slot.client}-{slot.slot}"


def scope_digest(store: Store) -> str:
    """A text that only this scope has, so that clients of other scopes cannot name its records and uploads."""
    return hashlib.blake2b(keys.encode(store._scope).encode(), digest_size=8).hexdigest()


def _relative(store: Store, conflict: HoldallError, sent: Sequence[Any], admitted: Sequence[Any]) -> HoldallError:
    """Give a conflict in a namespace of holdall's own the names that the client knows."""
    if isinstance(conflict, Conflict) and conflict.namespace[:1] == (keys.RESERVED,):
        for theirs, ours in zip(sent, admitted, strict=True):
            if (store._resolve_namespace(ours.namespace), getattr(ours, "key", "")) == (
                conflict.namespace,
                conflict.key,
            ):
                conflict.namespace, conflict.key = theirs.namespace, theirs.key
                conflict.args = (conflict.op, theirs.namespace, theirs.key, conflict.expected, conflict.actual)
    return conflict


# Point ops -----------------------------------------------------------------------------------------------------------


def _right_of(op: Any) -> str:
    """The right that an op needs."""
    namespace = getattr(op, "namespace", ())
    if namespace[:1] == (keys.RESERVED,) and "leases" in namespace[1:3] and type(op) is not ops.Check:
        return "lease"
    if tuple(namespace) == _COPIES and isinstance(op, ops.Put) and op.key in _OF_SOURCES:
        return "watch"
    if isinstance(op, ops.Forget | ops.Scrub):
        return "erase"
    if isinstance(op, _MAINTENANCE) or (isinstance(op, ops.SetHistory) and op != ops.SetHistory()):
        return "admin"
    if isinstance(op, ops.GetVersion | ops.ListVersions | ops.ListPast) or getattr(op, "version", None) is not None:
        return "history" if not isinstance(op, ops.Embed) else "write"
    if isinstance(op, ops.SetHistory):
        return "read"
    if isinstance(op, ops.Changes | ops.ChangedRecords):
        return "watch"
    return "read" if type(op) in READS or type(op) in WALKS else "write"


def _check_acting(text: str) -> str:
    """Check the author and the reason that a client has encoded."""
    known = _decode_value(text)
    return encode_acting(known.get("author"), known.get("reason"))


def _admit(store: Store, op: Any) -> Op:
    """Check an op of a client, and return it as the store's own methods would have made it."""
    if type(op) not in _ADMITTED:
        raise InvalidInput(f"a remote client cannot send {type(op).__name__}")
    if op.namespace[:1] == (keys.RESERVED,):
        return _admit_own(store, op)
    if isinstance(op, ops.Move) and op.source is not None:
        purpose, inside = _purpose_of(op.source)
        if purpose != "uploads":
            raise InvalidInput("a file is moved within one namespace, or from an upload")
        _check_upload(op.src)
        return replace(op, source=keys.Reserved(("uploads", *inside)), src=_upload_key(store, op.src))
    if isinstance(op, ops.Put):
        return _admit_put(op)
    if isinstance(op, ops.Backdate):
        times = {name: getattr(op, name) for name in ("created_at", "updated_at", "expires_at")}
        given = {name: _to_time(moment) for name, moment in times.items() if moment is not None}
        return replace(op, **given)
    if isinstance(op, ops.Stat) and not op.path:  # a store prepares the root so
        return replace(op, path="/")
    if isinstance(op, ops.Embed):
        _check_vectors(op.vectors)
    if isinstance(op, ops.SetChange):
        return replace(op, acting=None if op.acting is None else _check_acting(op.acting))
    return op  # type: ignore[no-any-return]  # an Op


def _admit_put(op: ops.Put) -> Op:
    value: Any = op.value
    if isinstance(value, ops.File):
        if not file_values.is_written_as_file(value):
            value = _from_template(value)
    else:
        value = _decode_value(value)
    if op.vectors is not None:
        _check_vectors(op.vectors)
    fields: Any = op.search_fields
    if fields is not None:
        fields = _decode_json(fields)
        fields = False if fields == [] else fields
    return ops.Put(op.namespace, op.key, value, op.ttl, op.expect, fields, op.vectors)


def _from_template(file: ops.File) -> dict[str, Any]:
    """The item of a file that was put as an item."""
    fields = _decode_value(file.template)
    if not fields.keys() <= file_values.FIELDS or fields.get("content") not in file_values.FORMS:
        raise InvalidInput(f"not the template of a file: {shown(file.template)}")
    return file_values.to_item(file.template, file.content, 0, 0, False)


def _decode_value(text: str) -> dict[str, Any]:
    value = _decode_json(text)
    if type(value) is not dict:
        raise InvalidValue(f"a value is a JSON object, not {shown(value)}")
    return value


def _decode_json(text: str) -> Any:
    try:
        return decode(text)
    except (Corrupt, RecursionError, TypeError):  # a file is no text
        raise InvalidValue(f"not JSON: {shown(text)}") from None


def _to_time(microseconds: Any) -> Any:
    try:
        return to_datetime(microseconds)
    except (OverflowError, ValueError):
        raise InvalidInput(f"not a time in microseconds: {shown(microseconds)}") from None


def _check_numbers(op: Any) -> None:
    """Check the numbers of an op that a client has made without a store: engines pass them to a database."""
    if type(op) in _PREPARED:
        return
    for name in ("limit", "offset", "max_depth"):
        if getattr(op, name, None) is not None:
            least = 1 if name == "limit" and not isinstance(op, _MAY_BE_EMPTY) else 0
            arguments.check_count(name, getattr(op, name), least=least)
    for name in ("version", "before", "model", "unembedded"):
        if getattr(op, name, None) is not None:
            _check_integer(name, getattr(op, name))
    for name in ("at", "since", "time", "expires"):
        if isinstance(getattr(op, name, None), int):
            _to_time(getattr(op, name))
    for name in ("age", "keep"):
        if getattr(op, name, None) is not None:
            duration_seconds(name, getattr(op, name), least=0, most=MAX_TTL)


def _check_integer(name: str, value: Any) -> None:
    arguments.check_count(name, value, least=-(2**63), most=2**63)


def _check_vectors(vectors: ops.Vectors) -> None:
    _check_integer("model", vectors.model)
    for data in vectors.data:
        if not data or len(data) % 4 or len(data) > _MOST_VECTOR_BYTES:
            raise InvalidInput("a vector is float32 numbers, little-endian")


# Namespaces of holdall's own -----------------------------------------------------------------------------------------


def _purpose_of(namespace: Namespace) -> tuple[str, Namespace]:
    """The purpose of a namespace of holdall's own, and the user's namespace that it belongs to."""
    match tuple(namespace):
        case (_, "leases"):
            return "leases", ()
        case (_, "embedding"):
            return "embedding", ()
        case (_, "copies"):
            return "copies", ()
        case (_, root, "leases", *rest):
            return "leases", (root, *rest)
        case (_, root, "uploads"):
            return "uploads", (root,)
    raise InvalidInput(f"the namespace {shown(namespace)} is reserved for holdall itself")


def _admit_own(store: Store, op: Any) -> Op:
    purpose, inside = _purpose_of(op.namespace)
    if purpose == "leases" and isinstance(op, _ON_LEASES):
        leases = lease_namespace(store._resolve_prefix(keys.check_namespace(inside, empty=True)))
        if not isinstance(op, ops.Put):
            return replace(op, namespace=leases)
        owner = _decode_value(op.value)  # type: ignore[arg-type]  # JSON text, unless it is a file
        if set(owner) != {"owner"} or not isinstance(owner["owner"], str) or len(owner["owner"]) > 100:
            raise InvalidInput("the value of a lease is its owner")
        duration_seconds("ttl", op.ttl)
        return ops.Put(leases, keys.check_key(op.key), owner, op.ttl, op.expect)
    if purpose == "uploads" and isinstance(op, _ON_UPLOADS):
        _check_upload(op.key)
        namespace = keys.Reserved(("uploads", *keys.check_namespace(inside)))
        upload = replace(op, namespace=namespace, key=_upload_key(store, op.key))
        if not isinstance(upload, ops.Put):
            return upload
        if not isinstance(upload.value, ops.File):
            raise InvalidInput("an upload is a file")
        duration_seconds("ttl", upload.ttl)
        return _admit_put(upload)
    if purpose == "copies" and isinstance(op, _ON_COPIES):
        return _admit_copy_state(store, op)
    if purpose == "embedding" and isinstance(op, _ON_MODEL) and op.key == "model":
        namespace = keys.Reserved(("embedding",))
        if not isinstance(op, ops.Put):
            return replace(op, namespace=namespace)
        probe = _decode_value(op.value)  # type: ignore[arg-type]  # as above
        if set(probe) != {"probe"} or not isinstance(probe["probe"], str) or len(probe["probe"]) > _MOST_PROBE_BYTES:
            raise InvalidInput("the record of a model is its probe")
        if op.expect is not ABSENT and store._scope:
            raise AccessDenied("only a token for the whole store may replace the embedding model of the store")
        return ops.Put(namespace, op.key, probe, None, op.expect)
    raise InvalidInput(f"a remote client cannot send {type(op).__name__} for {shown(op.namespace)}")


def _admit_copy_state(store: Store, op: ops.Get | ops.Put | ops.Delete) -> Op:
    """Admit an op about how far copies and loads are. Each scope has its own, under keys of its own."""
    if not _COPY_KEY.fullmatch(op.key):
        raise InvalidInput(f"not a key about copies: {shown(op.key)}")
    namespace = keys.Reserved(("copies",))
    key = f"{scope_digest(store)} {op.key}" if store._scope else op.key
    if not isinstance(op, ops.Put):
        if isinstance(op, ops.Delete) and op.key in _OF_SOURCES:
            raise InvalidInput("the identity of a store stays the same")
        return replace(op, namespace=namespace, key=key)
    value = _decode_value(op.value)  # type: ignore[arg-type]  # as above
    if len(op.value) > _MOST_COPY_BYTES:  # type: ignore[arg-type]  # as above
        raise InvalidInput(f"how far a copy is takes at most {_MOST_COPY_BYTES} bytes")
    is_identity = set(value) == {"id"} and isinstance(value["id"], str) and len(value["id"]) <= 100
    if op.key == "identity" and not (is_identity and op.expect is ABSENT):
        raise InvalidInput("the identity of a store is a text, which is put once")
    if op.key == "clock" and value:
        raise InvalidInput("an entry that asks for the time has no value")
    return ops.Put(namespace, key, value, None, op.expect, search_fields=False)


def _check_upload(key: Any) -> None:
    if not re.fullmatch(r"/[0-9a-f]{32}", key):
        raise InvalidInput(f"not the key of an upload: {shown(key)}")


def _upload_key(store: Store, key: str) -> str:
    return f"/{scope_digest(store)}{key[1:]}"


# Walks ---------------------------------------------------------------------------------------------------------------


def _walk(store: Store, op: Any) -> StoreProgram[Any]:
    """Check a walk, move it into the scope, and run it."""
    if hasattr(op, "limit") and op.limit > wire.MOST_IN_PAGE and not (isinstance(op, ops.Children) and op.bare):
        op = replace(op, limit=wire.MOST_IN_PAGE)
    if getattr(op, "filter", None) is not None:
        filters.load(op.filter)
    if isinstance(op, ops.Scan | ops.Unembedded | ops.Records | ops.ListPast) and op.after is not None:
        namespace, key = op.after
        op = replace(op, after=(store._resolve_prefix(namespace), keys.check_key(key)))
    match op:
        case ops.Search():
            if op.vector is not None:
                _check_vectors(ops.Vectors(op.vector.model, (op.vector.data,)))
            arguments.check_fraction("neighbours", op.neighbours)
            walk = replace(op, prefix=store._resolve_prefix(op.prefix), caught_up=False)
            return (yield from store._find(walk))
        case ops.Namespaces():
            starts, ends = keys.check_pattern(op.prefix, "prefix"), keys.check_pattern(op.suffix, "suffix")
            base = store._resolve_prefix(op.base)
            return (yield [replace(op, prefix=starts, suffix=ends, base=base)])[0]
        case ops.ReadStats():
            if op.prefix:
                return (yield from store.scoped(op.prefix)._stats())
            return (yield from store._stats())
        case ops.Children() | ops.Grep():
            folder = keys.check_folder(op.path)
            if op.glob is not None:
                globs.split_glob(op.glob, folder)
            if op.after is not None:
                keys.check_folder(op.after)
            return (yield [replace(op, namespace=store._resolve_namespace(op.namespace), path=folder)])[0]
        case ops.Changes():
            prefix = store._resolve_prefix(op.prefix)
            path = None if op.path is None else keys.check_folder(op.path)[:-1] or "/"
            return (yield [replace(op, prefix=prefix, path=path)])[0]
        case ops.Unembedded():
            found: Page[Any] = (yield [replace(op, prefix=store._resolve_prefix(op.prefix))])[0]
            return Page([(store._strip_scope(entry), fields) for entry, fields in found], found.next)
        case ops.Records() | ops.ChangedRecords():
            read: ops.RecordPage = (yield [replace(op, prefix=store._resolve_prefix(op.prefix))])[0]
            depth = len(store._scope)
            return replace(read, records=[replace(one, namespace=one.namespace[depth:]) for one in read.records])
        case ops.ListVersions():
            addresses = tuple(
                (store._resolve_namespace(namespace), keys.check_key(key)) for namespace, key in op.addresses
            )
            return (yield [replace(op, addresses=addresses)])[0]
        case ops.ListPast():
            heads: Page[ops.OldHead] = (yield [replace(op, prefix=store._resolve_prefix(op.prefix))])[0]
            depth = len(store._scope)
            return Page([replace(one, namespace=one.namespace[depth:]) for one in heads], heads.next)
        case ops.Scan() | ops.Count():
            return (yield [replace(op, prefix=store._resolve_prefix(op.prefix))])[0]
    raise InvalidInput(f"a remote client cannot send {type(op).__name__}")
