"""Old versions of entries as records, which copies and backups move between stores that keep history.

Each store numbers versions by itself. So a version is recognised by its kind and the time of its change, which the copy
of a version keeps. A destination gets the versions that are newer than the newest one that it has. Old versions of
files larger than 64 MiB are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from .. import ops
from ..core.dispatch import Dispatcher
from ..errors import AccessDenied
from ..model import file_values
from ..model.values import encode, to_microseconds
from ..ops import HistoryReach, Namespace, OldVersion, Op, Record
from ..runtime.programs import EngineBatch, StoreProgram
from .past import split_by_bytes

#: What a version is recognised by.
Mark: TypeAlias = tuple[str, int]

_MOST_VERSIONS = 10_000  # of an entry, the newest
_MOST_LOADED = 50  # versions in one group
_SWEPT = 500  # entries in one transaction
_UNFINISHED = 24 * 3600 * 1_000_000  # microseconds in which a copy that was interrupted can be continued


def read_reach(store: Dispatcher) -> StoreProgram[HistoryReach | None]:
    """Return since when a store keeps old values; None if it keeps none, or if this client may not read them."""
    if not store._engine_handle.engine.capabilities.keeps_history:
        return None
    try:
        reach: HistoryReach | None = (yield EngineBatch(store, [ops.SetHistory()]))[0]
        yield EngineBatch(store, [ops.ListVersions(())])
    except AccessDenied:
        return None
    return reach


def end_expired(store: Dispatcher, base: Namespace) -> StoreProgram[None]:
    """Sweep what has expired below a prefix. Until then the feed lacks these entries, and so their old versions."""
    swept = _SWEPT
    with suppress(AccessDenied):  # a client of a server that may only read
        while swept == _SWEPT:
            swept = (yield EngineBatch(store, [ops.Sweep(_SWEPT, base)]))[0]


def list_marks(store: Dispatcher, addresses: Sequence[tuple[Namespace, str]]) -> StoreProgram[list[list[Mark]]]:
    """Return the marks of all versions that a store has of some entries, newest first."""
    found = yield from list_versions_of(store, addresses)
    return [[(one.kind, one.time) for one in versions] for versions in found]


def list_versions(store: Dispatcher, records: Sequence[Record]) -> StoreProgram[list[list[OldVersion]]]:
    """Return the versions of some entries up to those of their records, newest first."""
    found = yield from list_versions_of(store, [(record.namespace, record.key) for record in records])
    return [
        [one for one in versions if one.version <= record.version]
        for record, versions in zip(records, found, strict=True)
    ]


def list_versions_of(
    store: Dispatcher, addresses: Sequence[tuple[Namespace, str]]
) -> StoreProgram[list[list[OldVersion]]]:
    """Return all versions that a store has of some entries, newest first."""
    if not addresses:
        return []
    found: list[list[OldVersion]] = (yield EngineBatch(store, [ops.ListVersions((*addresses,), None, _MOST_VERSIONS)]))[
        0
    ]
    return found


def count_new(found: Sequence[Mark], known: Sequence[Mark]) -> int:
    """Return how many of the newest versions of an entry a destination lacks. Both lists are newest first."""
    if not known:
        return len(found)
    newest = known[0]
    if newest in found:  # several changes may have one time
        return found.index(newest) + max(0, found.count(newest) - known.count(newest))
    return sum(time >= newest[1] for _, time in found)


def mark_of(record: Record) -> Mark:
    """Return the mark of the version that a record has."""
    return record.kind, record.changed or 0


def find_replaced(older: Record | None, known: Sequence[Mark]) -> Record | None:
    """Return the version before those that a destination lacks, without its content, if that is the newest it has.

    Its expiry may be another there: it was refreshed later, or its TTL began when it was written there.
    """
    if older is None or not known or mark_of(older) != known[0]:
        return None
    return ops.replace(older, content=None)


def to_bare_record(namespace: Namespace, key: str, one: OldVersion) -> Record:
    """Return the record of a version without its value."""
    value = ops.Json("{}") if one.kind == "put" else None
    return Record(namespace, key, one.version, one.kind, value, expires=one.expires, changed=one.time)


def date_record(record: Record, versions: Sequence[OldVersion]) -> Record:
    """Return a record with the time and the author of its change, if that is among the versions of its entry."""
    own = next((one for one in versions if one.version == record.version), None)
    if own is None:
        return record
    return ops.replace(record, changed=own.time, acting=own.acting, kind=own.kind)


def load_records(
    store: Dispatcher, namespace: Namespace, key: str, versions: Sequence[OldVersion]
) -> StoreProgram[list[Record]]:
    """Return the records of some versions of an entry, a group of `split`, in the order given."""
    records: list[Record] = []
    puts = [one for one in versions if one.kind == "put"]
    found: dict[int, Any] = {}
    if puts:
        olds = yield EngineBatch(store, [ops.GetVersion(namespace, key, one.version) for one in puts])
        found = {one.version: old for one, old in zip(puts, olds, strict=True)}
    for one in versions:
        if one.kind != "put":
            end = Record(namespace, key, one.version, one.kind, updated=one.time)
            records.append(ops.replace(end, changed=one.time, acting=one.acting, is_old=True))
        elif (old := found[one.version]) is not None:  # not purged since it was listed
            records.append(_to_record(namespace, key, one, old))
    return records


def split(versions: Sequence[OldVersion]) -> Iterator[list[OldVersion]]:
    """Split versions into groups that fit into memory together, without files that are too large."""
    return split_by_bytes([one for one in versions if (one.size or 0) <= file_values.LARGEST], _MOST_LOADED)


def _to_record(namespace: Namespace, key: str, one: OldVersion, old: ops.OldEntry) -> Record:
    entry, file = old.entry, old.file
    expires = None if entry.expires_at is None else to_microseconds(entry.expires_at)
    return Record(
        namespace,
        key,
        one.version,
        "put",
        encode(entry.value) if file is None else file.template,
        to_microseconds(entry.created_at),
        to_microseconds(entry.updated_at),
        expires,
        old.ttl,
        old.search_fields,
        None if file is None else len(file.content),
        None if file is None else file.content,
        changed=one.time,
        acting=one.acting,
        is_old=True,
    )


def make_ops(records: Sequence[Record], namespace: Namespace, before: Record | None, now: int) -> list[Op]:
    """Return the ops that write old versions of one entry, the oldest first, which replace the version `before`.

    Those of the next version may come in a later batch. Until then, the last one does not expire: what has expired
    cannot be deleted, and a sweep would make a version of its own. The next change sets the expiry (`end_change`).
    """
    written: list[Op] = []
    for record in records:
        written += _write(record, namespace, before, now + _UNFINISHED)
        before = record
    return written


def _write(record: Record, namespace: Namespace, before: Record | None, until: int) -> list[Op]:
    change = end_change(record, namespace, before)
    if record.value is None:
        return [ops.Delete(namespace, record.key), *change]
    value: Any = record.value
    fields: Any = record.search_fields
    if record.size is not None:
        value = ops.File(value, record.content or b"")
    write: Op = ops.Put(namespace, record.key, value, _seconds(record.ttl), search_fields=fields)
    if _extends(record, before):
        assert before is not None
        assert record.content is not None
        write = ops.Append(namespace, record.key, record.content[len(before.content or b"") :], ttl=None)
    expires = None if record.expires is None else until
    return [write, *change, ops.Backdate(namespace, record.key, record.created, record.updated, expires)]


def end_change(record: Record, namespace: Namespace, before: Record | None) -> list[Op]:
    """Return the op that dates the change of a record, and the expiry of the version before it."""
    if record.changed is None:
        return []
    expires = None if before is None or before.value is None else before.expires
    return [ops.SetChange(namespace, record.key, record.changed, record.kind, record.acting, expires)]


def _extends(record: Record, before: Record | None) -> bool:
    """Whether a version of a file is the one before it, with bytes at its end: then both share their contents."""
    if before is None or not before.content or not record.content:
        return False
    same = (record.value, record.ttl, record.expires, record.created, record.search_fields)
    return same == (before.value, before.ttl, before.expires, before.created, before.search_fields) and (
        record.content.startswith(before.content)
    )


def _seconds(ttl: int | None) -> float | None:
    return None if ttl is None else ttl / 1_000_000
