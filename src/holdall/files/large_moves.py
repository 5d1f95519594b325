"""Moves of files and folders. Large folders are moved in slices, so that no other writer waits for long.

A hidden entry, the *note*, exists from the first slice of such a move to the last. It shows a later call that the same
move was interrupted, and may go on although its destination exists. Each slice also writes the note at the version that
it has read. So two callers of the same move take turns, and a slice that comes after the end of the move is refused.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import ops
from ..engine import check_transfer, transfer_result
from ..errors import Conflict
from ..model import keys
from ..ops import ABSENT, KEEP, Entry, FileInfo, Page
from ..runtime.programs import Sleep, StoreProgram, pause_before_retry

if TYPE_CHECKING:
    from ..core.store import Store
    from ..live.leases import Lease

#: A folder with more files than this is moved in slices.
LARGE_FOLDER = 1000
_PAGE = 4096  # paths
#: How many files one transaction moves, and how many seconds it should take.
_SMALLEST_SLICE, _LARGEST_SLICE, _SLICE_SECONDS = 50, 500, 0.02
_PAUSE = 0.001  # seconds between slices, in which others can write


def move(store: Store, op: ops.Move, lease: Lease | None, checks: Sequence[ops.Check] = ()) -> StoreProgram[FileInfo]:
    """Move a file or folder, in slices if it is a large folder. The `checks` must hold in every transaction."""
    note = _Note(store, op)
    if (yield from _needs_slices(store, op, note)):
        yield from _move_in_slices(store, op, note, lease, checks)
        return transfer_result(op, None)
    results: list[Any] = yield from store._change([*checks, op], lease)
    info: FileInfo = results[-1]
    return info


def is_large(store: Store, op: ops.Move) -> StoreProgram[bool]:
    """Return whether `move` would move it in slices."""
    return (yield from _needs_slices(store, op, _Note(store, op)))


class _Note:
    """The address of the note of a move, and its version once it is known."""

    def __init__(self, store: Store, op: ops.Move) -> None:
        namespace = store._resolve_namespace(op.namespace)
        self.namespace = keys.Resolved((keys.RESERVED, namespace[0], "moves"))
        names = "\x00".join((keys.encode(namespace), op.src, op.dst))
        self.key = hashlib.blake2b(names.encode(), digest_size=16).hexdigest()
        self.version: int | None = None

    def read(self) -> StoreProgram[bool]:
        """Read the version of the note; return whether there is a note."""
        found: Entry | None = (yield [ops.Get(self.namespace, self.key)])[0]
        self.version = None if found is None else found.version
        return found is not None

    def put(self) -> ops.Put:
        expect = ABSENT if self.version is None else self.version
        return ops.Put(self.namespace, self.key, {}, None, expect, search_fields=False)

    def is_in(self, conflict: Conflict) -> bool:
        """Whether a conflict is about the note."""
        return conflict.key == self.key


def _needs_slices(store: Store, op: ops.Move, note: _Note) -> StoreProgram[bool]:
    is_plain = op.source is None and op.ttl is KEEP and op.src != op.dst
    if not (is_plain and store._engine_handle.engine.capabilities.moves_in_slices):
        return False
    found, begun = yield [ops.Stat(op.namespace, op.src), ops.Get(note.namespace, note.key)]
    if begun is not None:
        note.version = begun.version
        return True
    if found is None or not found.is_dir:
        return False
    return len((yield from _list_paths(store, op, None, LARGE_FOLDER + 1))) > LARGE_FOLDER


def _list_paths(store: Store, op: ops.Move, after: str | None, limit: int) -> StoreProgram[Page[str]]:
    namespace = store._resolve_namespace(op.namespace)
    return (yield [ops.Children(namespace, op.src + "/", after, limit, deep=True, bare=True)])[0]  # type: ignore[no-any-return]  # a page


def _move_in_slices(
    store: Store, op: ops.Move, note: _Note, lease: Lease | None, checks: Sequence[ops.Check]
) -> StoreProgram[None]:
    if note.version is None:
        yield from _begin(store, op, note, lease, checks)
    after: str | None = None
    limit, tries = _SMALLEST_SLICE, 0
    while True:
        slice_ = ops.MoveSlice(op.namespace, op.src, op.dst, after, limit)
        batch: list[Any] = [*checks, note.put(), slice_]
        began = time.monotonic()
        try:
            *_, written, after = yield from store._change(batch, lease)
        except Conflict as conflict:
            if not note.is_in(conflict):
                raise
            if not (yield from note.read()):  # another call of the same move has ended it
                return
            tries += 1
            yield from pause_before_retry(conflict, tries)
            continue
        note.version, tries = written.version, 0
        if after is None:
            break
        limit = _next_size(limit, time.monotonic() - began)
        yield Sleep(_PAUSE)
    try:
        yield [ops.Delete(note.namespace, note.key, note.version)]
    except Conflict:  # another call of the same move goes on, and finds nothing
        return


def _begin(
    store: Store, op: ops.Move, note: _Note, lease: Lease | None, checks: Sequence[ops.Check]
) -> StoreProgram[None]:
    """Write the note, if the folder can be moved."""
    there, begun = yield [ops.Stat(op.namespace, op.dst), ops.Get(note.namespace, note.key)]
    if begun is not None:  # the same move was begun just now, by another call
        note.version = begun.version
        return
    existing = [] if there is None else [op.dst + "/" if there.is_dir else op.dst]
    page: Page[str] = yield from _list_paths(store, op, None, _PAGE)
    check_transfer(op, page, existing)
    while page.next is not None and len(op.dst.encode()) > len(op.src.encode()):  # one of the new paths may be too long
        page = yield from _list_paths(store, op, page.next, _PAGE)
        check_transfer(op, page or [op.src], ())
    try:
        *_, written, _ = yield from store._change([*checks, note.put(), ops.CheckPath(op.namespace, op.dst)], lease)
    except Conflict as conflict:
        if not note.is_in(conflict) or not (yield from note.read()):
            raise
    else:
        note.version = written.version


def _next_size(size: int, seconds: float) -> int:
    """Return the size of the next slice, after one that took so many seconds."""
    if seconds > _SLICE_SECONDS:
        return max(size // 2, _SMALLEST_SLICE)
    return min(size + size // 2, _LARGEST_SLICE) if seconds < _SLICE_SECONDS / 2 else size
