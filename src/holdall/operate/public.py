"""The public functions and methods of this folder: those that use two stores, and those of `Store`.

The modules with the work are imported when one is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import IO, TYPE_CHECKING, Any, Literal

from ..core.dispatch import Dispatcher
from ..errors import InvalidInput, shown
from ..ops import Namespace
from ..runtime import arguments
from ..runtime.programs import StoreProgram, arun, run

if TYPE_CHECKING:
    from ..core.store import Store
    from .results import BackupInfo, Checked, Comparison, Copied, Loaded


class OperateMethods(Dispatcher):
    """The methods of `Store` for operators."""

    def _backup(
        self,
        path: str | os.PathLike[str],
        *,
        prefix: Namespace = (),
        progress: Callable[[int, int], object] | None = None,
    ) -> StoreProgram[BackupInfo]:
        """Write the store, or a namespace of it, to one file, as it is at one moment, while others write.

        The file can be loaded into a store on any engine. It is replaced once it is whole. The moment is the end of the
        backup; on a Redis Cluster it is one for each root. `progress(done, total)` is called after each step.
        """
        from .backup import back_up

        arguments.check_function("progress", progress)
        return (yield from back_up(self, path, prefix, progress))

    backup = run(_backup)
    abackup = arun(_backup)

    def _load(
        self,
        path: str | os.PathLike[str],
        *,
        to: Namespace | None = None,
        into: bool = False,
        replace: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> StoreProgram[Loaded]:
        """Load a backup. The whole file is checked before anything is written.

        A store that is not empty is `AlreadyExists`, unless `into` adds the backup to it, replacing entries of the same
        name, or `replace` deletes what is there first. `to` is another namespace to load into. A call that was
        interrupted continues when it is repeated.
        """
        from .backup import load

        arguments.check_flag("into", into)
        arguments.check_flag("replace", replace)
        arguments.check_function("progress", progress)
        return (yield from load(self, path, to, into, replace, progress))

    load = run(_load)
    aload = arun(_load)

    def _export_entries(
        self,
        target: str | os.PathLike[str] | IO[bytes],
        *,
        prefix: Namespace = (),
        format: Literal["jsonl", "parquet"] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> StoreProgram[int]:
        """Write a row for each entry, in key order, to a file that other tools read. Returns how many.

        `target` is a path or a binary file; `format` is chosen by the name of the file. A row has what `put` can set,
        and the times. A file at a path is replaced once it is whole.
        """
        from .tables import export_entries

        arguments.check_function("progress", progress)
        store: Any = self
        return (yield from export_entries(store, target, prefix, format, progress))

    export_entries = run(_export_entries)
    aexport_entries = arun(_export_entries)

    def _import_entries(
        self,
        source: str | os.PathLike[str] | IO[bytes],
        *,
        namespace: Namespace | None = None,
        columns: Mapping[str, str | Sequence[str]] | None = None,
        format: Literal["jsonl", "parquet"] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> StoreProgram[int]:
        """Put an entry for each row of a file. Returns how many.

        It reads what `export_entries` writes, and files of other tools: `columns` names the column of each part of an
        entry, such as `{"key": "id", "value": ["title", "text"]}`, and `namespace` is for rows that have none. Without
        a column for the value, all other columns are its fields. Rows are written in pages; one that cannot be stored
        is `InvalidInput`, with its number.
        """
        from .tables import import_entries

        arguments.check_function("progress", progress)
        store: Any = self
        return (yield from import_entries(store, source, namespace, columns, format, progress))

    import_entries = run(_import_entries)
    aimport_entries = arun(_import_entries)

    def _check(
        self, *, repair: bool = False, progress: Callable[[int, int], object] | None = None
    ) -> StoreProgram[Checked]:
        """Read every entry and its old versions, and check that indexes, contents and vectors agree with them.

        On SQLite, the database's own integrity check runs too. `repair` removes contents and vectors that belong to no
        entry, has damaged indexes of texts and contents built again, and lets `reindex` make missing vectors again. In
        a scope, only its entries are checked.
        """
        from .checking import check

        arguments.check_flag("repair", repair)
        arguments.check_function("progress", progress)
        return (yield from check(self, repair, progress))

    check = run(_check)
    acheck = arun(_check)


# Two stores ----------------------------------------------------------------------------------------------------------


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
    progress: Callable[[int, int], object] | None = None,
) -> Comparison:
    """Compare two stores, or a namespace of one with `to` of the other; find at most `limit` differences.

    Everything but versions counts: values and contents, times, TTLs, search fields, and vectors of the same model.
    `progress(done, total)` is called after each step.
    """
    with ExitStack() as stack:
        first, second = (_open(side, stack) for side in (one, other))
        return first._run(_compare(first, second, prefix, to, limit, progress))


async def acompare(
    one: Store | str | os.PathLike[str],
    other: Store | str | os.PathLike[str],
    *,
    prefix: Namespace = (),
    to: Namespace | None = None,
    limit: int = 100,
    progress: Callable[[int, int], object] | None = None,
) -> Comparison:
    """`compare`, awaited."""
    async with AsyncExitStack() as stack:
        first, second = (_open(side, stack) for side in (one, other))
        return await first._arun(_compare(first, second, prefix, to, limit, progress))


def check_backup(path: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None) -> BackupInfo:
    """Read a backup to its end, and describe it.

    `Corrupt` if it is damaged, `SchemaTooNew` if a newer holdall made it. `progress(done, total)` is called after each
    step, with numbers of bytes.
    """
    from .backup import check_backup as check

    arguments.check_function("progress", progress)
    return check(path, progress)


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
        arguments.check_flag(name, flag)
    arguments.check_function("progress", progress)
    arguments.check_function("stop", stop)
    copier = Copier(one, other, prefix, to)
    return (yield from copier.copy(follow=follow, verify=verify, restart=restart, progress=progress, stop=stop))


def _compare(
    one: Store,
    other: Store,
    prefix: Namespace,
    to: Namespace | None,
    limit: int,
    progress: Callable[[int, int], object] | None,
) -> StoreProgram[Comparison]:
    from .comparing import compare as compare_stores

    arguments.check_count("limit", limit, least=1)
    arguments.check_function("progress", progress)
    there = other._resolve_prefix(prefix if to is None else to)
    return (yield from compare_stores(one, other, one._resolve_prefix(prefix), there, limit, progress=progress))
