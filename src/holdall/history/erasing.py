"""Erasing: removing entries so that nothing readable is left of them in the engine's own files.

Entries are deleted first, as changes that watchers see. Then their tombstones and old values are removed, and at last
the engine clears what is left in its files. Each step may be repeated, so an erasure that was interrupted is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import ops
from ..errors import InvalidInput
from ..live.leases import lease_namespace
from ..model import keys
from ..ops import Forgotten, Namespace, Page, Scrubbed
from ..runtime import arguments
from ..runtime.programs import Sleep, StoreProgram

if TYPE_CHECKING:
    from ..core.store import Store

#: Seconds in which watchers can read the deletions, before their cursors expire.
_PAUSE = 0.25


@dataclass(frozen=True, slots=True)
class Erased:
    """What `Store.erase` has removed: entries, old values and tombstones, and what else of them was cleared.

    `beyond` lists what is outside its reach.
    """

    entries: int
    versions: int
    tombstones: int
    cleared: tuple[str, ...]
    beyond: tuple[str, ...]


def erase(store: Store, namespace: Namespace, key: str | None, recursive: bool, compact: bool) -> StoreProgram[Erased]:
    """Remove an entry, or all entries of a namespace, and every trace of them."""
    arguments.check_flag("recursive", recursive)
    arguments.check_flag("compact", compact)
    if key is not None and recursive:
        raise InvalidInput("pass key= or recursive=True, not both")
    home = store._resolve_namespace(namespace)
    swept = 500
    while swept == 500:  # expired entries become tombstones
        swept = (yield [ops.Sweep(500, home)])[0]
    entries = yield from _delete(namespace, home, key, recursive)
    if entries:
        yield Sleep(_PAUSE)
    tombstones = versions = 0
    while True:
        done: Forgotten = yield from forget(ops.Forget(home, key, recursive))
        tombstones, versions = tombstones + done.tombstones, versions + done.versions
        if not done.more:
            break
    scrubbed: Scrubbed = (yield [ops.Scrub(compact)])[0]
    return Erased(entries, versions, tombstones, scrubbed.cleared, scrubbed.beyond)


def forget(op: ops.Forget) -> StoreProgram[Forgotten]:
    """Run one step of `Forget`. The last one also removes what tombstones of holdall's own say about the namespace.

    Leases are named below the namespace that they are for, and uploads, which belong to a root, carry an author.
    """
    done: Forgotten = (yield [op])[0]
    if done.more:
        return done
    leases, uploads = lease_namespace(op.namespace), (keys.RESERVED, op.namespace[0], "uploads")
    while (yield [ops.Sweep(500, leases)])[0] == 500:
        pass
    for own in (ops.Forget(leases, op.key, op.recursive), ops.Forget(uploads)):
        while (yield [own])[0].more:
            pass
    return done


def _delete(namespace: Namespace, home: Namespace, key: str | None, recursive: bool) -> StoreProgram[int]:
    """Delete the entries; return how many there were."""
    count: Any
    if key is not None:
        [count] = yield [ops.Delete(namespace, key)]
        return int(count)
    if recursive:
        [count] = yield [ops.DeleteTree(namespace)]
        return int(count)
    total = 0
    while True:
        page: Page[Any] = (yield [ops.Search(home, limit=500, recursive=False)])[0]
        if page:
            total += sum((yield [ops.Delete(namespace, entry.key) for entry in page]))
        if page.next is None:  # not until it is empty: others may go on writing
            return total
