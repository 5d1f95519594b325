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

from ... import ABSENT, Hit, ops
from ...core import face_api
from ...core.face_api import Backdate, StoreProgram, retry_conflicts
from ...ops import Namespace
from ..base import NEIGHBOURS, NamespaceFace, read_all, read_namespaces

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from google.adk.sessions import Session


class HoldallMemoryService(NamespaceFace, BaseMemoryService):
    """What ADK apps remember of sessions, in one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given: with `embed=`, memory is also searched by meaning. `limit` is the most memories
    that a search returns.
    """

    def __init__(
        self, store_or_url: Any = None, *, namespace: Namespace = ("adk-memory",), limit: int = 10, **options: Any
    ) -> None:
        self._open_namespace(store_or_url, namespace, **options)
        face_api.check_count("limit", limit)
        self._limit = limit

    async def add_session_to_memory(self, session: Session) -> None:
        """Remember the events of a session that have content, in place of what was remembered of it before."""
        await self._arun(self._add_session(session))

    def _add_session(self, session: Session) -> StoreProgram[None]:
        known = {event.id for event in session.events}
        namespace = self._of_session(session.app_name, session.user_id, session.id)
        found = yield from read_all(self.store, namespace)
        gone = [ops.Delete(namespace, hit.key) for hit in found if hit.key not in known]
        yield from self._add_events(session.app_name, session.user_id, session.id, session.events, {}, gone)

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
        await self._arun(self._add_events(app_name, user_id, session_id or None, events, custom_metadata or {}))

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember something directly. A memory without an id gets one."""
        namespace = self._of_session(app_name, user_id, None)
        puts = []
        for memory in memories:
            metadata = {**(custom_metadata or {}), **memory.custom_metadata}
            value = _value(memory.content, memory.author, memory.timestamp, metadata)
            puts.append(ops.Put(namespace, memory.id or str(uuid.uuid4()), value, search_fields=["text"]))
        await self.store.aexecute(puts)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Find the memories of a user that fit a query best. An empty query finds none."""
        if not query.strip():
            return SearchMemoryResponse()
        prefix = self._inside("memories", app_name, user_id)
        found = await self.store.asearch(prefix, query=query, limit=self._limit, neighbours=NEIGHBOURS)
        return SearchMemoryResponse(memories=[_describe(hit) for hit in found])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Forget a memory, or all memories of a user. A forgotten event is not remembered again."""
        prefix = self._inside("memories", app_name, user_id)
        if memory_id is None:
            await self.store.adelete_tree(prefix)
            return
        # Marked first: a session that is added now, in a namespace that is not listed yet, no longer brings it back.
        await self.store.aput(self._inside("forgotten", app_name, user_id), memory_id, {}, search_fields=False)
        sessions = await self._arun(read_namespaces(self.store, prefix=prefix))
        await self.store.aexecute([ops.Delete(session, memory_id) for session in sessions])

    def _add_events(
        self,
        app: str,
        user: str,
        session: str | None,
        events: Sequence[Event],
        metadata: Mapping[str, object],
        further: Sequence[ops.PointOp] = (),
    ) -> StoreProgram[None]:
        """Remember the events that are new and not forgotten, and run `further` ops in the same transaction."""
        namespace, forgotten = self._of_session(app, user, session), self._inside("forgotten", app, user)
        some = {event.id: event for event in events if event.content and event.content.parts}

        def attempt() -> StoreProgram[None]:
            found = yield [ops.Get(one, key) for key in some for one in (namespace, forgotten)]
            batch: list[ops.PointOp] = [*further]
            for (key, event), here, gone in zip(some.items(), found[::2], found[1::2], strict=True):
                if here or gone:
                    continue
                at = datetime.fromtimestamp(event.timestamp, UTC)
                assert event.content is not None
                value = _value(event.content, event.author, at.isoformat(), dict(metadata))
                batch += [
                    ops.Check(forgotten, key, ABSENT),
                    ops.Put(namespace, key, value, expect=ABSENT, search_fields=["text"]),
                    Backdate(namespace, key, at, at),  # neighbours are found in the order of these times
                ]
            if batch:
                yield from face_api.execute(self.store, batch)

        yield from retry_conflicts(attempt)

    def _of_session(self, app: str, user: str, session: str | None) -> Namespace:
        """Return the namespace of a session's memories, or of those that belong to none."""
        labels = ["direct"] if session is None else ["sessions", session]
        return self._inside("memories", app, user, *labels)


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
