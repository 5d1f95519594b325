"""The methods of `Store` for operators: backup and load. The modules with the work are imported when one is called."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

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
