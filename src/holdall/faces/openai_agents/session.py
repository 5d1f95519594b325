"""Sessions of the OpenAI Agents SDK on any engine: `HoldallSession` implements `Session`.

    await Runner.run(agent, "Hello", session=HoldallSession("ada-1", "agent.db"))

A session is a message log (`holdall.faces.message_log`). `add_items` and `pop_item` are atomic among processes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

try:
    from agents.memory.session import SessionABC
    from agents.memory.session_settings import SessionSettings, coerce_session_settings, resolve_session_limit
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a session of the OpenAI Agents SDK", "openai-agents") from missing

from ... import Entry, Hit, Page
from ...core import face_api
from ...core.face_api import StoreProgram
from ...ops import Namespace
from ..base import NEIGHBOURS, NamespaceFace
from ..message_log import MessageLog, is_head

if TYPE_CHECKING:
    from agents.items import TResponseInputItem


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session in a listing."""

    session_id: str
    items: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The last items of a session, as the SDK reads them before it compacts a session.

    `replace_suffix` replaces the items from a number on in one transaction. It returns False if they have changed.
    """

    items: list[TResponseInputItem]
    complete: bool
    replace_suffix: Callable[[int, list[TResponseInputItem]], Awaitable[bool]]


class HoldallSession(NamespaceFace, SessionABC):
    """The conversation of one session.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. Sessions are in `namespace`, one
    entry for each item. `options` are passed to `holdall.open` if a URL is given.
    """

    def __init__(
        self,
        session_id: str,
        store_or_url: Any = None,
        *,
        namespace: Namespace = ("sessions",),
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.session_id = face_api.check_key(session_id, "session_id")
        self.session_settings = (
            SessionSettings() if session_settings is None else coerce_session_settings(session_settings)
        )
        self._open_namespace(store_or_url, namespace, **options)
        self._log = MessageLog.below(self.store, self._namespace, self.session_id)

    def __repr__(self) -> str:
        return f"<HoldallSession {self.session_id!r} of {self._namespace!r} in {self.store!r}>"

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items in order, or the last `limit` of them. A negative limit is none, as in the SDK's own."""
        resolved = resolve_session_limit(limit, self.session_settings)
        _, items = await self._arun(self._log.read(None if resolved is None or resolved < 0 else resolved))
        return cast("list[TResponseInputItem]", items)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items to the end, all or none."""
        if items:
            await self._arun(self._log.append(cast("list[dict[str, Any]]", items)))
        else:
            await self.store.aexecute([])  # raises if the store is closed

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the last item; None if there is none. No two callers get the same one."""
        return cast("TResponseInputItem | None", await self._arun(self._log.pop()))

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._arun(self._log.delete())

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[TResponseInputItem], bool] | None = None
    ) -> _Snapshot | None:
        """Return the last items for `OpenAIResponsesCompactionSession`, which replaces them by a summary.

        The SDK calls this method of a session that has it. Of others, it removes all items in one transaction, and adds
        the summary in another. A subclass returns None: its own methods may change items on their way.
        """
        return await self._read_snapshot(limit, prune_prefix) if type(self) is HoldallSession else None

    async def _read_snapshot(self, limit: int, prune_prefix: Callable[[TResponseInputItem], bool] | None) -> _Snapshot:
        head, entries = await self._arun(self._log.read_entries(limit))

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            if head is None or start >= len(entries):
                return False
            number, items = int(entries[start].key), cast("list[dict[str, Any]]", output)
            return await self._arun(self._log.replace_end(head, number, items, prune_prefix))

        is_complete = head is None or head.value["length"] <= limit
        found = cast("list[TResponseInputItem]", [entry.value for entry in entries])
        return _Snapshot(found, is_complete, replace_suffix)

    async def list_sessions(self, *, limit: int = 100, cursor: str | None = None) -> Page[SessionInfo]:
        """List the sessions of the namespace, the last changed first. `page.next` is the cursor of the next page."""
        return await self._arun(self._list_sessions(limit, cursor))

    def _list_sessions(self, limit: int, cursor: str | None) -> StoreProgram[Page[SessionInfo]]:
        found = yield from face_api.search(self.store, self._namespace, recursive=False, limit=limit, cursor=cursor)
        return Page([_describe(entry) for entry in found if is_head(entry)], next=found.next)

    async def search_sessions(self, query: str, *, limit: int = 10) -> Page[Hit]:
        """Find items of all sessions by a query. The last label of a hit's namespace is the session's id."""
        return await self.store.asearch(self._namespace, query=query, limit=limit, neighbours=NEIGHBOURS)


def _describe(head: Entry) -> SessionInfo:
    return SessionInfo(head.key, head.value["length"], head.created_at, head.updated_at)
