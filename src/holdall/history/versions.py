"""The history of a store: versions of an entry, differences between two moments, and bringing old values back.

Programs that `Store` and `Files` run. Old values are brought back as new changes, so watchers see them, and the changes
can be undone in the same way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .. import ops
from ..engine import decode_acting
from ..errors import HistoryGone, InvalidInput, Unsupported, shown
from ..model import file_values, keys
from ..model.field_paths import WHOLE
from ..model.values import decode, encode_plain, to_datetime, to_microseconds
from ..ops import ABSENT, Diff, Entry, Expectation, Namespace, OldHead, OldVersion, Page, Version
from ..runtime import arguments
from ..runtime.programs import StoreProgram, retry_conflicts
from .past import Moment, list_heads, load_entries, split_by_bytes

if TYPE_CHECKING:
    from ..core.store import Store
    from ..live.leases import Lease

#: The most changes, and bytes of values and files, that `rewind` makes in one transaction. All are in memory.
MOST_ATOMIC, MOST_BYTES = 100_000, 1 << 30
_SLICE = 500  # changes in one transaction of a sliced rewind


@dataclass(frozen=True, slots=True)
class Rewound:
    """What `Store.rewind` has done: how many entries it brought back, and how many it deleted."""

    restored: int
    deleted: int


def encode_acting(author: Any, reason: Any) -> str:
    """Check and encode an author and a reason, as changes carry them."""
    for name, text in (("author", author), ("reason", reason)):
        if not (isinstance(text, str) and text and len(text) <= 1000) and not (name == "reason" and text is None):
            raise InvalidInput(f"{name} is a text of 1 to 1000 characters, not {shown(text)}")
    return encode_plain({"author": author} if reason is None else {"author": author, "reason": reason})


def to_moment(when: Any, name: str = "when") -> Moment:
    """Check a moment: an aware datetime, or a cursor."""
    if isinstance(when, str):
        if not when or not when.isascii():
            raise InvalidInput(f"{name} is a datetime, or a cursor from store.cursor() or a change, not {shown(when)}")
        return when
    if not isinstance(when, datetime):
        raise InvalidInput(f"{name} is a datetime, or a cursor from store.cursor() or a change, not {shown(when)}")
    return to_microseconds(when, name)


def list_versions(store: Store, namespace: Namespace, key: str, limit: int) -> StoreProgram[list[OldVersion]]:
    """List the versions of an entry, newest first."""
    _check_kept(store)
    arguments.check_count("limit", limit)
    walk = ops.ListVersions(((store._resolve_namespace(namespace), keys.check_key(key)),), limit=limit)
    versions: list[list[OldVersion]] = (yield [walk])[0] if limit else [[]]
    return versions[0]


def list_folder_versions(
    store: Store, namespace: Namespace, folder: str, limit: int
) -> StoreProgram[list[tuple[str, OldVersion]]]:
    """List the versions of the files below a folder, each with its path, newest first.

    The feed has the newest change of each file, in order. So the files at its end have the newest versions.
    """
    _check_kept(store)
    arguments.check_count("limit", limit)
    inside = store._resolve_namespace(namespace)
    newest: dict[str, None] = {}
    walk = ops.Changes(inside, path=folder[:-1] or "/")
    while limit:
        page: Page[ops.Change] = (yield [walk])[0]
        for change in page:
            newest.pop(change.key, None)
            newest[change.key] = None
            if len(newest) > limit:
                del newest[next(iter(newest))]
        if not page:
            break
        walk = ops.replace(walk, since=page.next)
    found: list[tuple[str, OldVersion]] = []
    paths = list(newest)
    for start in range(0, len(paths), _SLICE):
        addresses = tuple((inside, path) for path in paths[start : start + _SLICE])
        versions: list[list[OldVersion]] = (yield [ops.ListVersions(addresses, limit=limit)])[0]
        found += [(path, one) for (_, path), ones in zip(addresses, versions, strict=True) for one in ones]
    return sorted(found, key=lambda pair: -pair[1].version)[:limit]


def read_history(store: Store, namespace: Namespace, key: str, limit: int) -> StoreProgram[list[Version]]:
    """Read the versions of an entry, newest first, with their values."""
    versions = yield from list_versions(store, namespace, key, limit)
    olds: dict[int, ops.OldEntry | None] = {}
    for group in split_by_bytes([one for one in versions if one.kind == "put"]):
        results = yield [
            ops.GetVersion(namespace, key, one.version, (one.size or 0) <= file_values.LARGEST) for one in group
        ]
        olds.update({one.version: old for one, old in zip(group, results, strict=True)})
    found: list[Version] = []
    for one in versions:
        value = None
        if one.kind == "put":
            old = olds[one.version]
            if old is None:  # purged since it was listed, as all older ones
                break
            value = old.entry.value
        found.append(replace(to_version(one), value=value))
    return found


def to_version(one: OldVersion) -> Version:
    """Make the public record of a version, without its value."""
    expires_at = None if one.expires is None else to_datetime(one.expires)
    author, reason = decode_acting(one.acting)
    return Version(one.version, one.kind, to_datetime(one.time), None, author, reason, expires_at, one.size)


def diff_pages(
    store: Store, prefix: Namespace, since: Any, until: Any
) -> Callable[[Any], StoreProgram[tuple[list[Diff], Any]]]:
    """Return the pages of the differences between two moments, in key order."""
    _check_kept(store)
    before, after = to_moment(since, "since"), None if until is None else to_moment(until, "until")
    inside, depth = store._resolve_prefix(prefix), len(store._scope)

    def page(mark: Any) -> StoreProgram[tuple[list[Diff], Any]]:
        begin, end, now = mark or (None, after, None)
        if end is None:
            end, now = (yield from _now()), store._now()
        changed, last = yield from _find_changed_heads(inside, before, end, begin, now)
        sides: list[dict[Any, Entry]] = [{}, {}]
        for side, known in enumerate(sides):
            for group in split_by_bytes([head for pair in changed if (head := pair[side]) is not None]):
                known.update({_address(entry): entry for entry in (yield from load_entries(group))})
        found: list[Diff] = []
        for pair in changed:
            at = _address(pair[0] or pair[1])
            old, new = (_cut(known.get(at), depth) for known in sides)
            found.append(Diff(at[0][depth:], at[1], old, new))
        return found, None if last is None else (last, end, now)

    return page


def _cut(entry: Entry | None, depth: int) -> Entry | None:
    """Return an entry with its namespace relative to the scope."""
    return entry if entry is None or not depth else replace(entry, namespace=entry.namespace[depth:])


def _address(one: Any) -> tuple[Namespace, str]:
    return one.namespace, one.key


def _now() -> StoreProgram[str]:
    """Return the cursor of the present."""
    page: Page[Any] = (yield [ops.Changes(limit=0)])[0]
    assert page.next is not None
    return page.next


def _find_changed_heads(
    prefix: Namespace, before: Moment, after: Moment, mark: Any, now: int | None
) -> StoreProgram[tuple[list[tuple[OldHead | None, OldHead | None]], Any]]:
    """Return the entries of some pages whose versions differ between two moments, and the mark of the next page.

    `now` is the time if `after` is the present. A cursor lists what has expired, but was not swept: that is gone.
    """
    old, old_mark = yield from list_heads(ops.ListPast(prefix, before))(mark)
    new, new_mark = yield from list_heads(ops.ListPast(prefix, after))(mark)
    # Only up to where both pages reach: an entry after the end of one page may be on its next.
    ends = [_sort_key(one) for one in (old_mark, new_mark) if one is not None]
    end = min(ends, default=None)
    both: dict[Any, list[OldHead | None]] = {}
    for side, heads in enumerate((old, new)):
        for head in heads:
            is_gone = side == 1 and now is not None and head.expires is not None and head.expires <= now
            if not is_gone and (end is None or _sort_key(_address(head)) <= end):
                both.setdefault(_address(head), [None, None])[side] = head
    changed = [
        (pair[0], pair[1])
        for _, pair in sorted(both.items(), key=lambda item: _sort_key(item[0]))
        if pair[0] is None or pair[1] is None or pair[0].version != pair[1].version
    ]
    following = None if end is None else next(m for m in (old_mark, new_mark) if m is not None and _sort_key(m) == end)
    return changed, following


def _sort_key(address: tuple[Namespace, str]) -> tuple[str, str]:
    """Return the key by which engines sort addresses."""
    return keys.encode(address[0]), address[1]


def restore(
    store: Store, namespace: Namespace, key: str, version: Any, expect: Expectation, lease: Lease | None
) -> StoreProgram[Any]:
    """Write an old version of an entry again; return what the put returns."""
    _check_kept(store)
    arguments.check_version(version)
    [old] = yield [ops.GetVersion(namespace, key, version)]
    if old is None:
        raise HistoryGone(f"version {version} of {key!r} in {namespace!r} is not kept, or is a deletion; see history()")
    # A file takes no path of a folder.
    check = [] if old.file is None else [ops.CheckPath(namespace, key)]
    batch = [*check, *_write_again(old, namespace, expect, store._now()), ops.Get(namespace, key)]
    return (yield from store._write_batch(batch, lease))[-1]


def _write_again(old: ops.OldEntry, namespace: Namespace, expect: Any, now: int) -> list[Any]:
    """Return the ops that write an old entry again: its value, its search fields and its lifetime, which restarts."""
    entry, file = old.entry, old.file
    value: Any = file
    fields: Any = None
    if file is not None and len(file.content) > file_values.LARGEST:  # its item has no content
        value = file if file_values.is_written_as_file(file) else ops.File(file_values.NATIVE, file.content)
    elif not file_values.is_written_as_file(file):
        value, fields = entry.value, WHOLE if old.search_fields is None else decode(old.search_fields) or False
    ttl = None if old.ttl is None else old.ttl / 1_000_000
    expires_at = entry.expires_at if ttl is None else None
    if expires_at is not None and to_microseconds(expires_at) <= now:  # it would be gone at once
        expires_at = None
    times = ops.Backdate(namespace, entry.key, created_at=entry.created_at, expires_at=expires_at)
    return [ops.Put(namespace, entry.key, value, ttl, expect, fields), times]


def rewind(
    store: Store, prefix: Namespace, when: Any, dry_run: bool, sliced: bool, lease: Lease | None
) -> StoreProgram[Rewound]:
    """Bring everything under a prefix back to how it was at a moment."""
    _check_kept(store)
    arguments.check_flag("dry_run", dry_run)
    arguments.check_flag("sliced", sliced)
    inside, moment = store._resolve_prefix(prefix), to_moment(when)
    if keys.is_hidden(inside):
        raise Unsupported(f"the history of hidden namespaces is not kept, so {prefix!r} cannot be rewound")
    if not inside and not sliced and not store._engine_handle.engine.capabilities.spans_roots:
        raise Unsupported(
            "this engine has no transactions over several roots (first labels): name a prefix, or pass sliced=True"
        )
    return (yield from retry_conflicts(lambda: _rewind(store, inside, moment, dry_run, sliced, lease)))


def _rewind(
    store: Store, inside: Namespace, moment: Moment, dry_run: bool, sliced: bool, lease: Lease | None
) -> StoreProgram[Rewound]:
    end = yield from _now()
    now = store._now()
    if isinstance(moment, int):  # at a later time, what will expire until then would be gone
        moment = min(moment, now)
    restored = deleted = 0
    pending: list[tuple[OldHead | None, OldHead | None]] = []
    mark = None
    while True:
        changed, mark = yield from _find_changed_heads(inside, moment, end, mark, now)
        restored += sum(old is not None for old, _ in changed)
        deleted += sum(old is None for old, _ in changed)
        if not dry_run:
            pending += changed
            if sliced:
                yield from _write_slices(store, pending, now, lease)
                pending = []
            elif len(pending) > MOST_ATOMIC:
                raise _too_large()
        if mark is None:
            break
    if not dry_run and not sliced:  # also if nothing is to be done: the lease may be lost
        yield from _write_old(store, pending, now, lease, MOST_BYTES)
    return Rewound(restored, deleted)


def _too_large() -> InvalidInput:
    return InvalidInput(
        f"rewind would change more than {MOST_ATOMIC:,} entries, or 1 GiB of values and files, in one transaction:"
        " pass sliced=True to do it in several, or name a smaller prefix"
    )


def _write_slices(store: Store, pairs: list[Any], now: int, lease: Lease | None) -> StoreProgram[None]:
    for _, group in itertools.groupby(pairs, lambda pair: (pair[0] or pair[1]).namespace[:1]):
        for some in _by_bytes(list(group)):
            yield from _write_old(store, some, now, lease)


def _by_bytes(pairs: list[Any]) -> Iterator[list[Any]]:
    """Split pairs into slices of few changes and bytes."""
    by_head = {id(old): pair for pair in pairs if (old := pair[0]) is not None}
    removed = [pair for pair in pairs if pair[0] is None]
    for start in range(0, len(removed), _SLICE):
        yield removed[start : start + _SLICE]
    for group in split_by_bytes([pair[0] for pair in pairs if pair[0] is not None]):
        yield [by_head[id(head)] for head in group]


def _write_old(
    store: Store, pairs: Sequence[Any], now: int, lease: Lease | None, room: float = math.inf
) -> StoreProgram[None]:
    """Write what some entries were, in one transaction. `Conflict` if one of them has changed since it was listed.

    `room` is for how many bytes of values and files.
    """
    batch: list[Any] = []
    heads = [old for old, _ in pairs if old is not None]
    found: dict[Any, ops.OldEntry] = {}
    room -= sum(head.size or 0 for head in heads)  # of files; the sizes of values are only known later
    for group in split_by_bytes(heads):
        if room < 0:
            raise _too_large()
        results = yield [ops.GetVersion(keys.Resolved(head.namespace), head.key, head.version) for head in group]
        for head, old in zip(group, results, strict=True):
            if old is None:
                raise HistoryGone("the history of that moment was purged during the rewind; nothing was changed")
            found[_address(head)] = old
            room -= len(encode_plain(old.entry.value)) if old.file is None else 0
    if room < 0:
        raise _too_large()
    for old_head, present in pairs:
        expect = ABSENT if present is None else present.version
        head = old_head or present
        namespace = keys.Resolved(head.namespace)
        if old_head is None:
            batch.append(ops.Delete(namespace, head.key, expect))
        else:
            batch += _write_again(found[_address(head)], namespace, expect, now)
    yield from store._write_batch(batch, lease)


def _check_kept(store: Store) -> None:
    if not store._require_open().engine.capabilities.keeps_history:
        raise Unsupported("this engine keeps no history")
