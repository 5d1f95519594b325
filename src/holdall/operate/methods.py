"""The methods of `Store` for operators: backup and load, export and import.

The modules with the work are imported when one is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal

from ..core.dispatch import Dispatcher
from ..model import keys
from ..ops import Namespace
from ..runtime.programs import StoreProgram, arun, run

if TYPE_CHECKING:
    from .results import BackupInfo, Loaded


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

        keys.check_function("progress", progress)
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

        keys.check_flag("into", into)
        keys.check_flag("replace", replace)
        keys.check_function("progress", progress)
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

        keys.check_function("progress", progress)
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

        keys.check_function("progress", progress)
        store: Any = self
        return (yield from import_entries(store, source, namespace, columns, format, progress))

    import_entries = run(_import_entries)
    aimport_entries = arun(_import_entries)
