"""The contenders of the section `files`: holdall's `Files`, and what each peer has that is like them.

`do` runs one op with each of some arguments, in one go, and gives the last answer, which `plain` makes comparable. What
a peer cannot do is not in its `can`. deepagents' `StoreBackend` stands on one of langgraph's stores, whose name it has
here.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from ag2.knowledge import SqliteKnowledgeStore
from agentfs_sdk import AgentFS, AgentFSOptions
from deepagents.backends.store import StoreBackend
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

import holdall

from .data import as_item
from .harness import OURS

SQLITE, MEMORY, AG2, AGENTFS = "SqliteStore", "InMemoryStore", "AG2", "AgentFS"
HERE = ("filesystem",)
_AT_ONCE = 1000
Texts: TypeAlias = Sequence[tuple[str, str]]


class Volume(Protocol):
    """What is measured."""

    name: str
    can: frozenset[str]

    def load(self, files: Texts) -> None: ...
    def do(self, op: str, arguments: Sequence[tuple[Any, ...]]) -> Any: ...
    def plain(self, op: str, arguments: tuple[Any, ...], answer: Any) -> Any: ...
    def close(self) -> None: ...


class Ours:
    """Files that were put as items, the way that deepagents' would be, a thousand in a batch, with no results."""

    name = OURS
    can = frozenset({"ls", "read", "glob", "grep", "delete", "write"})

    def __init__(self, url: str) -> None:
        self.store = holdall.open(url)
        self.files = self.store.files(HERE)
        self._calls: dict[str, Callable[..., Any]] = {
            "ls": self.files.ls,
            "read": self.files.read_text,
            "glob": self.files.glob,
            "grep": self.files.grep,
            "delete": self.files.delete,
            "write": self.files.write,
        }

    def load(self, files: Texts) -> None:
        for start in range(0, len(files), _AT_ONCE):
            some = files[start : start + _AT_ONCE]
            self.store.execute([holdall.ops.Put(HERE, path, as_item(text), returns_entry=False) for path, text in some])

    def do(self, op: str, arguments: Sequence[tuple[Any, ...]]) -> Any:
        call, answer = self._calls[op], None
        for given in arguments:
            answer = call(*given)
        return answer

    def plain(self, op: str, _: tuple[Any, ...], answer: Any) -> Any:
        if op in ("ls", "glob"):
            return sorted(info.path for info in answer)
        return [(match.path, match.line, match.text) for match in answer] if op == "grep" else answer

    def catch_up(self, patience: float) -> bool:
        """Wait for upkeep that is under way, so that it is not taken for what is measured next; whether it is done."""
        until = time.monotonic() + patience
        while self._is_behind() and time.monotonic() < until:
            time.sleep(0.02)
        return not self._is_behind()

    def _is_behind(self) -> bool:
        return bool(getattr(self.store._engine_handle.engine, "needs_maintenance", False))

    def close(self) -> None:
        self.store.close()


class Deepagents:
    """`StoreBackend`, over a langgraph store as it opens by itself."""

    can = frozenset({"ls", "read", "glob", "grep", "delete", "write"})

    def __init__(self, name: str, path: Path | None) -> None:
        self.name = name
        self._opened = None if path is None else SqliteStore.from_conn_string(str(path))
        self._store = InMemoryStore() if self._opened is None else self._opened.__enter__()
        if isinstance(self._store, SqliteStore):
            self._store.setup()
        self._backend = StoreBackend(namespace=lambda _: HERE, store=self._store)

    def load(self, files: Texts) -> None:
        for start in range(0, len(files), _AT_ONCE):
            self._store.batch([PutOp(HERE, path, as_item(text)) for path, text in files[start : start + _AT_ONCE]])

    def do(self, op: str, arguments: Sequence[tuple[Any, ...]]) -> Any:
        call, answer = getattr(self._backend, op), None
        for given in arguments:
            answer = call(*given)
        return answer

    def plain(self, op: str, _: tuple[Any, ...], answer: Any) -> Any:
        assert answer.error is None, answer.error
        if op == "ls":
            return sorted(entry["path"] for entry in answer.entries)
        if op == "glob":
            return sorted(entry["path"] for entry in answer.matches)
        if op == "grep":
            return sorted((match["path"], match["line"], match["text"]) for match in answer.matches)
        return answer.file_data["content"] if op == "read" else 1

    def close(self) -> None:
        if self._opened is not None:
            self._opened.__exit__(None, None, None)


class _Async:
    """A peer that is async: a round is one coroutine, so that starting the loop does not count."""

    _calls: dict[str, Callable[..., Any]]

    def __init__(self) -> None:
        self._loop = asyncio.Runner()

    def do(self, op: str, arguments: Sequence[tuple[Any, ...]]) -> Any:
        async def all_of_them() -> Any:
            call, answer = self._calls[op], None
            for given in arguments:
                answer = await call(*given)
            return answer

        return self._loop.run(all_of_them())

    def plain(self, op: str, arguments: tuple[Any, ...], answer: Any) -> Any:
        if op == "ls":
            return sorted(f"{arguments[0]}/{name}" for name in answer)
        return 1 if op == "delete" else answer


class Ag2(_Async):
    """AG2's `SqliteKnowledgeStore`. It commits every write, so it is loaded straight into its table."""

    name, can = AG2, frozenset({"ls", "read", "delete", "append", "read_range", "write"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._store = store = SqliteKnowledgeStore(path)
        self._calls = {
            "ls": store.list,
            "read": store.read,
            "delete": store.delete,
            "append": store.append,
            "read_range": store.read_range,
            "write": store.write,
        }
        self._loop.run(store.write("/made", "by itself"))

    def load(self, files: Texts) -> None:
        with sqlite3.connect(self._path) as connection:
            connection.executemany(
                "INSERT INTO entries (path, content, version) VALUES (?, ?, 1)",
                [(path, text.encode()) for path, text in files],
            )
        connection.close()

    def close(self) -> None:
        self._store.close()
        self._loop.close()


class AgentFs(_Async):
    """AgentFS, which has no glob, grep or append."""

    name, can = AGENTFS, frozenset({"ls", "read", "delete", "write"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._agent = self._loop.run(AgentFS.open(AgentFSOptions(path=str(path))))
        fs = self._agent.fs
        self._calls = {"ls": fs.readdir, "read": fs.read_file, "delete": fs.delete_file, "write": fs.write_file}

    def load(self, files: Texts) -> None:
        self.do("write", files)

    def close(self) -> None:
        self._loop.run(self._agent.close())
        self._loop.close()
