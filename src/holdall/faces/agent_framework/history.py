"""Histories of the Agent Framework on any engine: `HoldallHistoryProvider` implements `HistoryProvider`.

    agent = Agent(client, context_providers=[HoldallHistoryProvider("agent.db")])

A session is a message log (`holdall.faces.message_log`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    from agent_framework import HistoryProvider, Message
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a history for the Agent Framework", "agent-framework") from missing

from ...errors import InvalidInput
from ...ops import Namespace
from ..base import NamespaceFace
from ..message_log import MessageLog


class HoldallHistoryProvider(NamespaceFace, HistoryProvider):
    """The messages of sessions, in one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `flags` are those of
    `HistoryProvider`, such as `load_messages` and `store_outputs`.
    """

    def __init__(
        self,
        store_or_url: Any = None,
        *,
        namespace: Namespace = ("agent-framework",),
        source_id: str = "holdall",
        **flags: Any,
    ) -> None:
        HistoryProvider.__init__(self, source_id, **flags)
        self._open_namespace(store_or_url, namespace)

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,  # for providers that keep messages in it
        **kwargs: Any,
    ) -> list[Message]:
        """Return the messages of a session, in order."""
        _, messages = await self._arun(self._log(session_id).read())
        return [Message.from_dict(message) for message in messages]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,  # for providers that keep messages in it
        **kwargs: Any,
    ) -> None:
        """Add messages to the end of a session, all or none."""
        await self._arun(self._log(session_id).append([message.to_dict() for message in messages]))

    def _log(self, session_id: str | None) -> MessageLog:
        if session_id is None:
            raise InvalidInput("a history is kept by session: run the agent with a session that has an id")
        return MessageLog.below(self.store, self._namespace, session_id)
