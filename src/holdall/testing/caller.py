"""One way to call a store and its files in tests, sync or async, so that each test is written once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from ..files import Files
from ..ops import FileInfo, Namespace
from ..pieces import AsyncFile
from ..store import Store


class Caller:
    """`caller.put(…)` is `store.put(…)`, or, with a runner, `store.aput(…)` awaited in its event loop."""

    def __init__(self, store: Store, runner: asyncio.Runner | None) -> None:
        self.store = store
        self._runner = runner

    def scoped(self, namespace: Namespace) -> Caller:
        return Caller(self.store.scoped(namespace), self._runner)

    def files(self, *args: Any) -> FilesCaller:
        return FilesCaller(self.store.files(*args), self._runner)

    def scan(self, *args: Any) -> list[Any]:
        if self._runner is None:
            return list(self.store.scan(*args))
        return self._runner.run(_collected(self.store.ascan(*args)))

    def __getattr__(self, name: str) -> Any:
        return _method(self.store, name, self._runner)


class FilesCaller:
    """The same of a volume: `volume.write(…)` is `files.write(…)` or `files.awrite(…)`."""

    def __init__(self, files: Files, runner: asyncio.Runner | None) -> None:
        self.files = files
        self._runner = runner

    def walk(self, *args: Any) -> list[FileInfo]:
        if self._runner is None:
            return list(self.files.walk(*args))
        return self._runner.run(_collected(self.files.awalk(*args)))

    def open(self, *args: Any) -> Any:
        if self._runner is None:
            return self.files.open(*args)
        return _Opened(self._runner.run(self.files.aopen(*args)), self._runner)

    def __getattr__(self, name: str) -> Any:
        return _method(self.files, name, self._runner)


class _Opened:
    """An `AsyncFile`, used as a sync one is."""

    def __init__(self, file: AsyncFile, runner: asyncio.Runner) -> None:
        self._file = file
        self._runner = runner

    def read(self, *args: Any) -> bytes:
        return self._runner.run(self._file.read(*args))

    def write(self, data: bytes) -> int:
        return self._runner.run(self._file.write(data))

    def close(self) -> None:
        self._runner.run(self._file.close())

    def __enter__(self) -> _Opened:
        self._runner.run(self._file.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._file.__aexit__(kind, error, trace))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _method(target: Any, name: str, runner: asyncio.Runner | None) -> Any:
    if runner is None:
        return getattr(target, name)
    method = getattr(target, "a" + name)
    return lambda *args, **kwargs: runner.run(method(*args, **kwargs))


async def _collected(entries: AsyncIterator[Any]) -> list[Any]:
    return [entry async for entry in entries]
