"""ADK's memory on any engine: `HoldallMemoryService` implements `BaseMemoryService`, with holdall's search."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

try:
    from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
    from google.adk.memory.memory_entry import MemoryEntry
    from google.genai import types
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a service for ADK", "adk") from missing

from ... import ABSENT, Hit, Store, ops
from ...core import face_api
from ...core.face_api import Backdate, StoreProgram
from ...ops import Namespace
from ..base import Face, read_all, write_unchanged

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from google.adk.sessions import Session

_NEIGHBOURS = 0.3  # a question and its answer are two events
_SESSIONS = 100_000  # the most sessions of a user


class HoldallMemoryService(Face, BaseMemoryService):
    """What ADK apps remember of sessions, in one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given: with `embed=`, memory is also searched by meaning. `limit` is the most memories
    that a search returns.
    """

    def __init__(
        self, store_or_url: Any = None, *, namespace: Namespace = ("adk-memory",), limit: int = 10, **options: Any
    ) -> None:
        #: The `holdall.Store` that this face runs on.
        self.store: Store = self._open(store_or_url, **options)
        self._namespace = face_api.check_namespace(namespace)
        face_api.check_count("limit", limit)
        self._limit = limit

    def __repr__(self) -> str:
        return f"<HoldallMemoryService of {self._namespace!r} in {self.store!r}>"

    async def add_session_to_memory(self, session: Session) -> None:
        """Remember the events of a session that have content, in place of what was remembered of it before."""
        kept = {event.id for event in session.events}
        inside = self._inside(session.app_name, session.user_id, session.id)
        found = await self._arun(read_all(self.store, inside))
        batch = [ops.Delete(inside, hit.key) for hit in found if hit.key not in kept]
        await self.store.aexecute(batch)
        await self._add(session.app_name, session.user_id, session.id, session.events, {})

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember some events. An event that is remembered already, or was deleted, is left as it is."""
        await self._add(app_name, user_id, session_id or None, events, custom_metadata or {})

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember something directly. A memory without an id gets one."""
        inside = self._inside(app_name, user_id, None)
        puts = []
        for memory in memories:
            metadata = {**(custom_metadata or {}), **memory.custom_metadata}
            value = _value(memory.content, memory.author, memory.timestamp, metadata)
            puts.append(ops.Put(inside, memory.id or str(uuid.uuid4()), value, search_fields=["text"]))
        await self.store.aexecute(puts)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Find the memories of a user that fit a query best. An empty query finds none."""
        if not query.strip():
            return SearchMemoryResponse()
        prefix = (*self._namespace, "memories", app_name, user_id)
        found = await self.store.asearch(prefix, query=query, limit=self._limit, neighbours=_NEIGHBOURS)
        return SearchMemoryResponse(memories=[_describe(hit) for hit in found])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Forget a memory, or all memories of a user. A forgotten event is not remembered again."""
        prefix = (*self._namespace, "memories", app_name, user_id)
        if memory_id is None:
            await self.store.adelete_tree(prefix)
            return
        sessions = await self.store.anamespaces(prefix=prefix, limit=_SESSIONS)
        forgotten = ops.Put(self._forgotten(app_name, user_id), memory_id, {}, search_fields=False)
        await self.store.aexecute([*(ops.Delete(session, memory_id) for session in sessions), forgotten])

    async def _add(
        self, app: str, user: str, session: str | None, events: Sequence[Event], metadata: Mapping[str, object]
    ) -> None:
        await self._arun(self._add_events(app, user, session, events, metadata))

    def _add_events(
        self, app: str, user: str, session: str | None, events: Sequence[Event], metadata: Mapping[str, object]
    ) -> StoreProgram[None]:
        inside, forgotten = self._inside(app, user, session), self._forgotten(app, user)
        some = {event.id: event for event in events if event.content and event.content.parts}

        def prepare() -> StoreProgram[tuple[list[ops.PointOp], None]]:
            found = yield [ops.Get(place, key) for key in some for place in (inside, forgotten)]
            batch: list[ops.PointOp] = []
            for (key, event), here, gone in zip(some.items(), found[::2], found[1::2], strict=True):
                if here or gone:
                    continue
                at = datetime.fromtimestamp(event.timestamp, UTC)
                assert event.content is not None
                value = _value(event.content, event.author, at.isoformat(), dict(metadata))
                batch += [
                    ops.Check(forgotten, key, ABSENT),
                    ops.Put(inside, key, value, expect=ABSENT, search_fields=["text"]),
                    Backdate(inside, key, at, at),  # neighbours are found in the order of these times
                ]
            return batch, None

        yield from write_unchanged(self.store, prepare)

    def _inside(self, app: str, user: str, session: str | None) -> Namespace:
        """Return where the memories of a session are, or those that belong to none."""
        labels = ["direct"] if session is None else ["sessions", session]
        return (*self._namespace, "memories", app, user, *labels)

    def _forgotten(self, app: str, user: str) -> Namespace:
        return (*self._namespace, "forgotten", app, user)


def _value(content: types.Content, author: str | None, timestamp: str | None, metadata: dict[str, Any]) -> Any:
    text = " ".join(part.text for part in content.parts or [] if part.text)
    dumped = content.model_dump(mode="json", exclude_none=True)
    return {"text": text, "content": dumped, "author": author, "timestamp": timestamp, "metadata": metadata}


def _describe(hit: Hit) -> MemoryEntry:
    return MemoryEntry(
        id=hit.key,
        content=types.Content.model_validate(hit.value["content"]),
        author=hit.value["author"],
        timestamp=hit.value["timestamp"],
        custom_metadata=hit.value["metadata"],
    )
