"""Wrappers that call a store and its files sync or async, so that each test is written once."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from ..core.store import Store
from ..files.file_objects import AsyncFile
from ..files.volume import Files
from ..live.leases import Lease
from ..live.watch import AsyncWatch, Watch
from ..ops import Change, FileInfo, Namespace


class Caller:
    """`caller.put(…)` is `store.put(…)`, or, with a runner, `store.aput(…)` awaited in its event loop."""

    def __init__(self, store: Store, runner: asyncio.Runner | None) -> None:
        self.store = store
        self._runner = runner

    def scoped(self, namespace: Namespace) -> Caller:
        return Caller(self.store.scoped(namespace), self._runner)

    def at(self, when: Any) -> Caller:
        return Caller(self.store.at(when), self._runner)

    def acting(self, author: Any, **options: Any) -> Caller:
        return Caller(self.store.acting(author, **options), self._runner)

    def diff(self, *args: Any) -> list[Any]:
        if self._runner is None:
            return list(self.store.diff(*args))
        return self._runner.run(_collect(self.store.adiff(*args)))

    def files(self, *args: Any) -> FilesCaller:
        return FilesCaller(self.store.files(*args), self._runner)

    def watch(self, *args: Any, **options: Any) -> WatchCaller:
        if self._runner is None:
            return WatchCaller(self.store.watch(*args, **options), None)
        return WatchCaller(self.store.awatch(*args, **options), self._runner)

    def lease(self, *args: Any, **options: Any) -> LeaseCaller:
        if self._runner is None:
            return LeaseCaller(self.store.lease(*args, **options).acquire(), None)
        return LeaseCaller(self._runner.run(self.store.alease(*args, **options).aacquire()), self._runner)

    def scan(self, *args: Any) -> list[Any]:
        if self._runner is None:
            return list(self.store.scan(*args))
        return self._runner.run(_collect(self.store.ascan(*args)))

    def __getattr__(self, name: str) -> Any:
        return _get_method(self.store, name, self._runner)


class FilesCaller:
    """A `Caller` for a volume: `volume.write(…)` is `files.write(…)`, or `files.awrite(…)` awaited."""

    def __init__(self, files: Files, runner: asyncio.Runner | None) -> None:
        self.files = files
        self._runner = runner

    def walk(self, *args: Any) -> list[FileInfo]:
        if self._runner is None:
            return list(self.files.walk(*args))
        return self._runner.run(_collect(self.files.awalk(*args)))

    def open(self, *args: Any, **options: Any) -> Any:
        if self._runner is None:
            return self.files.open(*args, **options)
        return _SyncedFile(self._runner.run(self.files.aopen(*args, **options)), self._runner)

    def watch(self, *args: Any, **options: Any) -> WatchCaller:
        if self._runner is None:
            return WatchCaller(self.files.watch(*args, **options), None)
        return WatchCaller(self.files.awatch(*args, **options), self._runner)

    def __getattr__(self, name: str) -> Any:
        return _get_method(self.files, name, self._runner)


class WatchCaller:
    """A started subscription, sync or async."""

    def __init__(self, watch: Watch | AsyncWatch, runner: asyncio.Runner | None) -> None:
        self.watch = watch
        self._runner = runner
        if runner is not None and isinstance(watch, AsyncWatch):
            runner.run(watch.__aenter__())

    def take(self, count: int, timeout: float = 30.0) -> list[Change]:
        """Wait for the next `count` changes and return them; fail if they do not come in time."""
        if self._runner is not None:
            return self._runner.run(self._atake(count, timeout))
        assert isinstance(self.watch, Watch)
        timer = threading.Timer(timeout, self.watch.close)
        timer.start()
        try:
            taken = list(itertools.islice(self.watch, count))
        finally:
            timer.cancel()
            timer.join()
        assert len(taken) == count, f"only {taken} came within {timeout} s"
        return taken

    async def _atake(self, count: int, timeout: float) -> list[Change]:
        assert isinstance(self.watch, AsyncWatch)
        async with asyncio.timeout(timeout):
            return [await anext(self.watch) for _ in range(count)]

    def close(self) -> None:
        if isinstance(self.watch, Watch):
            self.watch.close()
        elif self._runner is not None:
            self._runner.run(self.watch.aclose())


class LeaseCaller:
    """An acquired lease, which is also a `with` block that holds it, sync or async."""

    def __init__(self, lease: Lease, runner: asyncio.Runner | None) -> None:
        self.lease = lease
        self._runner = runner

    def __enter__(self) -> LeaseCaller:
        if self._runner is None:
            self.lease.__enter__()
        else:
            self._runner.run(self.lease.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is None:
            self.lease.__exit__(kind, error, trace)
        else:
            self._runner.run(self.lease.__aexit__(kind, error, trace))

    def renew(self) -> None:
        _get_method(self.lease, "renew", self._runner)()

    def release(self) -> bool:
        released: bool = _get_method(self.lease, "release", self._runner)()
        return released


class _SyncedFile:
    """An `AsyncFile` with the methods of a sync file."""

    def __init__(self, file: AsyncFile, runner: asyncio.Runner) -> None:
        self._file = file
        self._runner = runner

    def read(self, *args: Any) -> bytes:
        return self._runner.run(self._file.read(*args))

    def write(self, data: bytes) -> int:
        return self._runner.run(self._file.write(data))

    def close(self) -> None:
        self._runner.run(self._file.close())

    def __enter__(self) -> _SyncedFile:
        self._runner.run(self._file.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._file.__aexit__(kind, error, trace))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _get_method(target: Any, name: str, runner: asyncio.Runner | None) -> Any:
    if runner is None:
        return getattr(target, name)
    method = getattr(target, "a" + name)
    return lambda *args, **kwargs: runner.run(method(*args, **kwargs))


async def _collect(entries: AsyncIterator[Any]) -> list[Any]:
    return [entry async for entry in entries]
