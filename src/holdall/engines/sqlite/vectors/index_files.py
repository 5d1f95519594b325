"""The files of vector indexes, beside the database: `agent.db-vectors-` and the name of the index.

An index is derived, and never changes. The database names the index that belongs to it, in a row of its state. The row
is written after the file, so an index that a snapshot names covers every vector that the snapshot has, up to an id. A
file that is missing, damaged or of another database is ignored, and another one is built. One process at a time builds,
under a lock on a file of its own. It also removes files that the database does not name.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ....errors import HoldallError
from ....search.embedders import Metric

if TYPE_CHECKING:
    from ....search.vector_index.index import VectorIndex

logger = logging.getLogger("holdall")

#: Builds an index: `build(name, allocate)`, where `allocate(size)` returns the memory for it.
Build: TypeAlias = "Callable[[str, Callable[[int], Any]], VectorIndex]"
#: Stores the name of an index in the database, and returns the names of all indexes that it has.
Publish: TypeAlias = Callable[[int, Metric, str], list[str]]

_RETRY = 60.0  # seconds after a build that failed
_OPEN = 4  # indexes that are kept open
_NAME = re.compile(r"[0-9a-f]{16}(?:\.new)?")


class Stopped(Exception):
    """The store is being closed."""


class IndexFiles:
    """The index files of one database."""

    def __init__(self, database: str) -> None:
        self._path = database + "-vectors-"
        self._open: dict[str, VectorIndex] = {}
        self._damaged: set[str] = set()
        self._mutex = threading.Lock()
        self._wanted: dict[tuple[int, Metric], float] = {}  # builds that run, or failed: when they may be tried again
        self._lock: int | None = None
        self.is_stopping = False

    def get(self, name: str) -> VectorIndex | None:
        """Return an index that the database names; None if its file is missing or damaged."""
        found = self._open.get(name)
        if found is not None or name in self._damaged:
            return found
        from ....search.vector_index.index import VectorIndex
        from ....search.vector_index.layout import Damaged, map_file

        try:
            found = VectorIndex(map_file(self._path + name, name))
        except Damaged as error:
            self.drop(name, error)
            return None
        with self._mutex:
            while len(self._open) >= _OPEN:
                del self._open[next(iter(self._open))]
            self._open[name] = found
        return found

    def drop(self, name: str, reason: Exception) -> None:
        """Never use this index again."""
        logger.warning("the vector index %r cannot be used, and is built again: %s", self._path + name, reason)
        with self._mutex:
            self._damaged.add(name)
            self._open.pop(name, None)

    def claim(self, model: int, metric: Metric) -> bool:
        """Return whether this caller should start a build: none runs in this process, and none failed just now."""
        now = time.monotonic()
        with self._mutex:
            if self.is_stopping or self._wanted.get((model, metric), 0.0) > now:
                return False
            self._wanted[model, metric] = float("inf")
            return True

    def build(self, model: int, metric: Metric, build: Build, publish: Publish) -> None:
        """Build an index and publish it, unless another process builds one. For a thread in the background."""
        retry = 0.0
        try:
            with self._locked() as is_ours:
                if is_ours:
                    self._build(model, metric, build, publish)
                else:
                    retry = time.monotonic() + 1.0
        except Stopped:
            pass
        except (OSError, MemoryError, HoldallError) as error:
            if not self.is_stopping:
                logger.warning("cannot build the vector index %r, trying again later: %s", self._path, error)
            retry = time.monotonic() + _RETRY
        finally:
            with self._mutex:
                self._wanted[model, metric] = retry

    def _build(self, model: int, metric: Metric, build: Build, publish: Publish) -> None:
        name = secrets.token_hex(8)
        final = Path(self._path + name)
        new = final.with_name(final.name + ".new")
        handle = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), self._mode())
        try:
            buffers: list[Any] = []

            def allocate(size: int) -> Any:
                _reserve(handle, size)
                buffers.append(mmap.mmap(handle, size))
                return buffers[0]

            index = build(name, allocate)
            buffers[0].flush()
            os.fsync(handle)
            new.rename(final)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)
        with self._mutex:
            self._open[name] = index
        try:
            self._remove_others(set(publish(model, metric, name)))
        except BaseException:
            with self._mutex:
                del self._open[name]
            final.unlink(missing_ok=True)
            raise

    def _mode(self) -> int:
        """Return the permissions of the database, for its index too."""
        return os.stat(self._path.removesuffix("-vectors-")).st_mode & 0o777  # noqa: PTH116  # of a str

    def remove_all(self) -> None:
        """Remove the files of all indexes, which the database no longer names."""
        with self._mutex:
            self._open.clear()
        self._remove_others(set())

    def _remove_others(self, named: set[str]) -> None:
        folder, _, prefix = self._path.rpartition("/")
        for path in Path(folder or ".").iterdir():
            name = path.name.removeprefix(prefix)
            if name != path.name and _NAME.fullmatch(name) and name not in named:
                with contextlib.suppress(OSError):  # Windows keeps a file that another process has mapped
                    path.unlink()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the lock of builders, if no other process has it. The kernel frees it if the process is killed."""
        try:
            import fcntl
        except ImportError:  # Windows: builds of two processes do no harm to each other
            yield True
            return
        self._lock = handle = os.open(self._path + "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._mode())
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            self._lock = None
            with contextlib.suppress(OSError):  # closing is not enough: a forked child may have it open
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def abandon(self) -> None:
        """In a forked child: close the lock that the parent holds, without freeing it."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.close(self._lock)


def _reserve(handle: int, size: int) -> None:
    """Reserve the space of a file. Writing to mapped memory kills the process if the disk is full by then."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
        return
    zeros = bytes(1 << 20)
    for at in range(0, size, len(zeros)):
        os.pwrite(handle, zeros[: size - at], at)
