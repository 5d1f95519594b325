"""The public functions that use two stores: `holdall.copy` and `holdall.compare`, sync and async."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput, shown
from ..model import keys
from ..ops import Namespace
from ..runtime.programs import StoreProgram

if TYPE_CHECKING:
    from ..core.store import Store
    from .results import BackupInfo, Comparison, Copied


def copy(
    source: Store | str | os.PathLike[str],
    destination: Store | str | os.PathLike[str],
    *,
    prefix: Namespace = (),
    to: Namespace | None = None,
    follow: bool = False,
    verify: bool = False,
    restart: bool = False,
    progress: Callable[[int, int], object] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Copied:
    """Copy a store, or a namespace of it, to another one on any engine, while both are in use.

    `source` and `destination` are stores or URLs. Entries keep their times, TTLs, search fields and vectors; versions
    are the destination's own. `prefix` is the namespace to copy, `to` its name in the destination. An entry of the same
    name there is replaced.

    A copy that was interrupted continues when it is called again. With `follow`, it goes on with every later change,
    until `stop()` returns True. `verify` compares both stores at the end. `restart` begins again, for a copy that was
    interrupted for longer than the source keeps deletions. `progress(done, total)` is called after each step.
    """
    with ExitStack() as stack:
        one, other = (_open(side, stack) for side in (source, destination))
        return one._run(_copy(one, other, prefix, to, follow, verify, restart, progress, stop))


async def acopy(
    source: Store | str | os.PathLike[str],
    destination: Store | str | os.PathLike[str],
    *,
    prefix: Namespace = (),
    to: Namespace | None = None,
    follow: bool = False,
    verify: bool = False,
    restart: bool = False,
    progress: Callable[[int, int], object] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Copied:
    """`copy`, awaited. Cancelling the task is another way to stop it."""
    async with AsyncExitStack() as stack:
        one, other = (_open(side, stack) for side in (source, destination))
        return await one._arun(_copy(one, other, prefix, to, follow, verify, restart, progress, stop))


def compare(
    one: Store | str | os.PathLike[str],
    other: Store | str | os.PathLike[str],
    *,
    prefix: Namespace = (),
    to: Namespace | None = None,
    limit: int = 100,
) -> Comparison:
    """Compare two stores, or a namespace of one with `to` of the other; find at most `limit` differences.

    Everything but versions counts: values and contents, times, TTLs, search fields, and vectors of the same model.
    """
    with ExitStack() as stack:
        first, second = (_open(side, stack) for side in (one, other))
        return first._run(_compare(first, second, prefix, to, limit))


async def acompare(
    one: Store | str | os.PathLike[str],
    other: Store | str | os.PathLike[str],
    *,
    prefix: Namespace = (),
    to: Namespace | None = None,
    limit: int = 100,
) -> Comparison:
    """`compare`, awaited."""
    async with AsyncExitStack() as stack:
        first, second = (_open(side, stack) for side in (one, other))
        return await first._arun(_compare(first, second, prefix, to, limit))


def check_backup(path: str | os.PathLike[str]) -> BackupInfo:
    """Read a backup to its end, and describe it.

    `Corrupt` if it is damaged, `SchemaTooNew` if a newer holdall made it.
    """
    from .backup import check_backup as check

    return check(path)


def _open(side: Any, stack: ExitStack | AsyncExitStack) -> Store:
    """Return a store, which is opened and closed here if a URL is given."""
    from ..core.store import Store
    from ..core.urls import open

    if isinstance(side, Store):
        return side
    if not isinstance(side, str | os.PathLike):
        raise InvalidInput(f"expected a holdall.Store or a URL, not {type(side).__name__} {shown(side)}")
    store = open(side)
    if isinstance(stack, AsyncExitStack):
        stack.push_async_callback(store.aclose)
    else:
        stack.callback(store.close)
    return store


def _copy(
    one: Store,
    other: Store,
    prefix: Namespace,
    to: Namespace | None,
    follow: bool,
    verify: bool,
    restart: bool,
    progress: Callable[[int, int], object] | None,
    stop: Callable[[], bool] | None,
) -> StoreProgram[Copied]:
    from .copying import Copier

    for name, flag in (("follow", follow), ("verify", verify), ("restart", restart)):
        keys.check_flag(name, flag)
    keys.check_function("progress", progress)
    keys.check_function("stop", stop)
    copier = Copier(one, other, prefix, to)
    return (yield from copier.copy(follow=follow, verify=verify, restart=restart, progress=progress, stop=stop))


def _compare(one: Store, other: Store, prefix: Namespace, to: Namespace | None, limit: int) -> StoreProgram[Comparison]:
    from .comparing import compare as compare_stores

    keys.check_count("limit", limit, least=1)
    there = other._resolve_prefix(prefix if to is None else to)
    return (yield from compare_stores(one, other, one._resolve_prefix(prefix), there, limit))
