"""Strands' storage on any engine: `HoldallStorage` implements `Storage`.

    agent = Agent(session_manager=SnapshotSessionManager("ada-1", storage=HoldallStorage("agent.db")))

The value of a key is a file of `store.files(namespace)`: the key "sessions/a.json" is the file "/sessions/a.json".
"""

from __future__ import annotations

import builtins
import copy
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

try:
    from strands.storage import storage as strands_storage
    from strands.storage.storage import StorageSearchResult
    from strands.types.exceptions import StorageError
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a storage for Strands", "strands") from missing

from ...errors import FileNotFound, HoldallError, IsADirectory, NotADirectory
from ...ops import Namespace
from ..base import FilesFace, translate_errors

if TYPE_CHECKING:
    from strands.storage.search.types import SearchStrategy

_MOST_FOUND = 100  # results of a search
_NO_FILE = (FileNotFound, IsADirectory, NotADirectory)  # only keys below it, or above it, exist


class HoldallStorage(FilesFace):
    """Bytes by key: the files of one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given. `search_strategy` replaces holdall's search, as in Strands' own storages.
    """

    def __init__(
        self,
        store_or_url: Any = None,
        *,
        namespace: Namespace = ("storage",),
        search_strategy: SearchStrategy[Any] | None = None,
        **options: Any,
    ) -> None:
        self._open_files(store_or_url, namespace, **options)
        self._prefix = ""
        self._search_strategy = search_strategy

    async def write(self, key: str, data: bytes) -> None:
        """Store bytes under a key, in place of others."""
        path = self._path(key)
        with _translate():
            await self.files.awrite(path, memoryview(data).tobytes())
        if self._search_strategy is not None:
            try:
                await self._search_strategy.index(self, strands_storage._normalize_key(key), data)
            except Exception as error:  # of any strategy, as in Strands' own storages
                raise StorageError(f"Wrote '{key}' but indexing failed") from error

    async def read(self, key: str) -> bytes | None:
        """Return the bytes of a key; None if there are none."""
        path = self._path(key)
        with _translate():
            try:
                return await self.files.aread(path)
            except _NO_FILE:
                return None

    async def delete(self, key: str) -> None:
        """Delete a key, if it exists."""
        path = self._path(key)
        with _translate(), suppress(*_NO_FILE):
            await self.files.adelete(path)

    async def list(self, query: str = "") -> builtins.list[str]:
        """List the keys that begin with a text, sorted."""
        start = self._prefix + strands_storage._normalize_prefix(query)
        folder, _, _ = start.rpartition("/")
        with _translate():
            paths = [info.path[1:] async for info in self.files.awalk(f"/{folder}")]
        return sorted(path[len(self._prefix) :] for path in paths if path.startswith(start))

    async def search(self, query: str) -> builtins.list[StorageSearchResult]:
        """Find keys by the text of their bytes, the best first. An empty query finds none."""
        if self._search_strategy is not None:
            return await self._search_strategy.search(self, query)
        if not query.strip():
            return []
        start, found, cursor = f"/{self._prefix}", builtins.list[StorageSearchResult](), None
        while len(found) < _MOST_FOUND:  # the keys of other views are passed over
            with _translate():
                page = await self.store.asearch(
                    self.files.namespace, query=query, recursive=False, limit=_MOST_FOUND, cursor=cursor
                )
            found += [
                StorageSearchResult(key=hit.key[len(start) :], score=hit.score or 0.0)
                for hit in page
                if hit.key.startswith(start)
            ]
            cursor = page.next
            if cursor is None:
                break
        return found[:_MOST_FOUND]

    def namespace(self, prefix: str) -> HoldallStorage:
        """Return a view of the keys below a prefix."""
        below = strands_storage._normalize_prefix(prefix).rstrip("/")
        whole = f"{self._prefix}{below}/" if below else self._prefix
        scoped = copy.copy(self)  # of a subclass, too, with its attributes
        mark = strands_storage._NAMESPACED  # Strands' own, of a view
        vars(scoped).update(_prefix=whole, _owned_store=None, _namespaced=mark)
        return scoped

    def clear(self) -> None:
        """Delete all keys that this storage shows."""
        self.files.delete(f"/{self._prefix}", recursive=True)

    def _path(self, key: str) -> str:
        return f"/{self._prefix}{strands_storage._normalize_key(key)}"


def _translate() -> AbstractContextManager[None]:
    return translate_errors(HoldallError, StorageError)
