"""Strands' memory on any engine: `HoldallMemoryStore` implements `MemoryStore`, with holdall's search.

    agent = Agent(memory_manager=MemoryManager(stores=[HoldallMemoryStore("notes", "agent.db", writable=True)]))

A memory is an item, so other faces find it too.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

try:
    from strands.memory.types import MemoryEntry, MemoryStore, Metadata, SearchOptions
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a memory store for Strands", "strands") from missing

from ...ops import Namespace
from ..base import NamespaceFace

if TYPE_CHECKING:
    from strands.memory.extraction.types import ExtractionConfig

_MOST_FOUND = 10


class HoldallMemoryStore(NamespaceFace, MemoryStore):
    """Memories in one namespace of a holdall store, each an item with `content` and `metadata`.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given: with `embed=`, memories are also found by meaning. The other arguments are those
    of Strands' `MemoryStoreConfig`.
    """

    def __init__(
        self,
        name: str,
        store_or_url: Any = None,
        *,
        namespace: Namespace = ("memories",),
        description: str | None = None,
        max_search_results: int | None = None,
        writable: bool = True,
        extraction: ExtractionConfig | bool | None = None,
        **options: Any,
    ) -> None:
        self._open_namespace(store_or_url, namespace, **options)
        self.name = name
        self.description = description
        self.max_search_results = max_search_results
        self.writable = writable
        self.extraction = extraction

    def __repr__(self) -> str:
        return f"<HoldallMemoryStore {self.name!r} of {self._namespace!r} in {self.store!r}>"

    async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
        """Find the memories that fit a query best: none for an empty query.

        Items that other faces have put into the namespace are found, too. Their content is JSON.
        """
        if not query.strip():
            return []
        limit = (options or {}).get("max_search_results") or self.max_search_results or _MOST_FOUND
        found = await self.store.asearch(self._namespace, query=query, limit=limit)
        return [_describe(hit.value, hit.key, hit.score) for hit in found]

    async def add(self, content: str, metadata: Metadata | None = None) -> str:
        """Add a memory, and return its key. The same memory is kept once: Strands may add one twice."""
        value = {"content": content, "metadata": metadata or {}}
        key = hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]
        await self.store.aput(self._namespace, key, value, search_fields=["content"])
        return key


def _describe(value: dict[str, Any], key: str, score: float | None) -> MemoryEntry:
    content = value.get("content")
    if not isinstance(content, str):
        content = json.dumps(value, ensure_ascii=False)
    metadata = value.get("metadata")
    return MemoryEntry(
        content, metadata={**(metadata if isinstance(metadata, dict) else {}), "key": key, "score": score}
    )
