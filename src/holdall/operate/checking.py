"""Checking a store: every entry is read and decoded, and compared with what the engine's indexes say.

The same entries are read in key order and in order of change, by two indexes, and have to be the same. What an engine
stores besides entries it checks itself (`FindFaults`). The store can be used meanwhile: a comparison that a change has
disturbed is repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from .. import ops
from ..core.dispatch import Dispatcher
from ..errors import AccessDenied, Corrupt, CursorExpired, InvalidInput, Unsupported
from ..history import old_records
from ..model import keys
from ..model.values import decode
from ..ops import Change, Fault, Namespace, OldVersion, Page, Record, RecordPage
from ..runtime.programs import Call, Sleep, StoreProgram, Work
from .records import execute
from .results import Checked

_PAGE = 500
_MOST_TRIES = 5


def check(store: Dispatcher, repair: bool, progress: Callable[[int, int], object] | None) -> StoreProgram[Checked]:
    """Check everything, and repair what can be."""
    checked = Checked()
    if not store._scope:
        yield from _catch_up(store)
        checked.faults += yield from _find_faults(store)
        if repair and any(fault.repairable for fault in checked.faults):
            yield from execute(store, [ops.RepairFaults()])
            left = yield from _find_faults(store)
            checked.repaired = [fault for fault in checked.faults if fault not in left]
            checked.faults = left
    for kind, part in (
        ("entry", _check_entries(store, checked, progress)),
        ("history", _check_history(store, checked)),
    ):
        try:
            yield from part
        except Corrupt as error:
            checked.faults.append(Fault(kind, str(error)))
    return checked


def _catch_up(store: Dispatcher) -> StoreProgram[None]:
    """Bring the text index up to date, if there is one: only then can it be compared with the entries."""
    try:
        stats: ops.Stats = (yield from execute(store, [ops.ReadStats()]))[0]
        more = bool(stats.text_index_lag)
        while more:
            more = (yield from execute(store, [ops.IndexTexts()]))[0][1]
    except (AccessDenied, Corrupt):  # a client of a server; what is damaged is found later
        return


def _find_faults(store: Dispatcher) -> StoreProgram[list[Fault]]:
    try:
        found: list[Fault] = (yield from execute(store, [ops.FindFaults()]))[0]
    except (InvalidInput, Unsupported):  # a server checks its own storage
        return []
    except Corrupt as error:
        return [Fault("database", str(error))]
    return found


def _check_entries(
    store: Dispatcher, checked: Checked, progress: Callable[[int, int], object] | None
) -> StoreProgram[None]:
    base = store._scope
    for tries in range(_MOST_TRIES):
        start = yield from _position(store, base)
        total: int = (yield from execute(store, [ops.Count(base, hidden=True)]))[0]
        faults: list[Fault] = []
        by_key = yield from _read_by_key(store, base, faults, progress, total)
        try:
            by_change = yield from _read_by_change(store, base)
            is_steady = start == (yield from _position(store, base))
        except CursorExpired:  # an erasure has removed what was to be read
            by_change, is_steady = by_key, False
        if is_steady or tries == _MOST_TRIES - 1:
            checked.entries = by_key[0]
            checked.faults += faults
            if is_steady and by_key != by_change:
                checked.faults.append(
                    Fault("index", f"{by_key[0]} entries are listed by key, and {by_change[0]} by change: they differ")
                )
            if is_steady and total != by_key[0]:
                checked.faults.append(Fault("count", f"{total} entries are counted, but {by_key[0]} are there"))
            return


def _position(store: Dispatcher, base: Namespace) -> StoreProgram[Any]:
    page = (yield from execute(store, [ops.Changes(base, None, 0)]))[0]
    return page.next


def _read_by_key(
    store: Dispatcher, base: Namespace, faults: list[Fault], progress: Callable[[int, int], object] | None, total: int
) -> StoreProgram[tuple[int, int]]:
    """Read and check all entries in key order; return their number, and a digest that does not depend on the order."""
    after: tuple[Namespace, str] | None = None
    count = digest = 0
    dims: dict[int, int] = {}
    while True:
        page: RecordPage = (yield from execute(store, [ops.Records(base, after, _PAGE)]))[0]
        digest ^= yield Work(_check_page, (page.records, faults, dims))
        count += len(page.records)
        if progress is not None:
            yield Call(progress, (count, max(count, total)))
        if not page.records or not page.more:
            return count, digest
        after = page.records[-1].namespace, page.records[-1].key


def _read_by_change(store: Dispatcher, base: Namespace) -> StoreProgram[tuple[int, int]]:
    """Read all entries in order of change; return their number, and the same digest."""
    since: str | None = None
    count = digest = 0
    while True:
        page: RecordPage = (yield from execute(store, [ops.ChangedRecords(base, since, _PAGE)]))[0]
        live = [record for record in page.records if record.value is not None]
        count += len(live)
        for record in live:
            digest ^= _digest(record)
        since = page.next
        if not page.more:
            return count, digest
        if not page.records:
            yield Sleep(0.01)  # a large tree is being deleted, and its tombstones are not all written yet


def _check_page(records: list[Record], faults: list[Fault], dims: dict[int, int]) -> int:
    digest = 0
    for record in records:
        digest ^= _digest(record)
        problem = _find_problem(record, dims)
        if problem is not None:
            faults.append(Fault("entry", f"{record.key!r} in {record.namespace!r}: {problem}"))
    return digest


def _find_problem(record: Record, dims: dict[int, int]) -> str | None:
    """Return what is wrong with an entry."""
    try:
        keys.check_namespace(record.namespace)
        keys.check_key(record.key)
        if type(decode(str(record.value))) is not dict:
            return "its value is not an object"
        fields: Any = [] if record.search_fields is None else decode(record.search_fields)
        if type(fields) is not list:
            return "its search fields are not a list"
    except (InvalidInput, Corrupt, ValueError, TypeError) as error:
        return f"it cannot be decoded ({error})"
    if record.content is not None and len(record.content) != record.size:
        return f"its content has {len(record.content)} bytes instead of {record.size}"
    for vector in record.vectors.data if record.vectors is not None else ():
        assert record.vectors is not None
        if len(vector) != dims.setdefault(record.vectors.model, len(vector)):
            return f"a vector has {len(vector) // 4} dimensions, others of its model {dims[record.vectors.model] // 4}"
    return None


def _check_history(store: Dispatcher, checked: Checked) -> StoreProgram[None]:
    """Read the old versions of all entries in the feed."""
    if (yield from old_records.read_reach(store)) is None:
        return
    faults: list[Fault] = []
    walk = ops.Changes(store._scope)
    while True:
        try:
            page: Page[Change] = (yield from execute(store, [walk]))[0]
        except CursorExpired:  # an erasure has removed what was to be read
            faults, walk = [], ops.Changes(store._scope)
            continue
        if not page:
            checked.faults += faults
            return
        addresses = [(change.namespace, change.key) for change in page]
        listed = yield from old_records.list_versions_of(store, addresses)
        for (namespace, key), versions in zip(addresses, listed, strict=True):
            for group in old_records.split([one for one in versions if one.kind == "put"]):
                problem = yield from _find_old_problem(store, namespace, key, group)
                if problem is not None:
                    faults.append(Fault("history", f"{key!r} in {namespace!r}: {problem}"))
        walk = ops.replace(walk, since=page.next)


def _find_old_problem(
    store: Dispatcher, namespace: Namespace, key: str, versions: list[OldVersion]
) -> StoreProgram[str | None]:
    """Return what is wrong with some versions of an entry."""
    try:
        found: list[Any] = yield from execute(store, [ops.GetVersion(namespace, key, one.version) for one in versions])
    except Corrupt as error:
        return f"an old version cannot be read ({error})"
    for one, old in zip(versions, found, strict=True):
        if old is None:
            [left] = yield from old_records.list_versions_of(store, [(namespace, key)])
            if any(each.version == one.version for each in left):  # it was not purged meanwhile
                return f"its version {one.version} cannot be read"
        elif one.size is not None and (old.file is None or len(old.file.content) != one.size):
            has = 0 if old.file is None else len(old.file.content)
            return f"the content of its version {one.version} has {has} bytes instead of {one.size}"
    return None


def _digest(record: Record) -> int:
    name = repr((record.namespace, record.key, record.version)).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=16).digest())
