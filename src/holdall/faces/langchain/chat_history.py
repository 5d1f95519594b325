"""LangChain's chat histories on any engine: `HoldallChatMessageHistory` implements `BaseChatMessageHistory`.

A history is a message log (`holdall.faces.message_log`), in LangChain's own form of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a chat history for LangChain", "langchain") from missing

from ...core import face_api
from ...core.face_api import StoreProgram, async_method, sync_method
from ...ops import Namespace
from ..base import NamespaceFace
from ..message_log import MessageLog


class HoldallChatMessageHistory(NamespaceFace, BaseChatMessageHistory):
    """The messages of one session.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. Sessions are in `namespace`, one
    entry for each message. `options` are passed to `holdall.open` if a URL is given.
    """

    def __init__(
        self, session_id: str, store_or_url: Any = None, *, namespace: Namespace = ("chats",), **options: Any
    ) -> None:
        self.session_id = face_api.check_key(session_id, "session_id")
        self._open_namespace(store_or_url, namespace, **options)
        self._log = MessageLog.below(self.store, self._namespace, session_id)

    def __repr__(self) -> str:
        return f"<HoldallChatMessageHistory {self.session_id!r} of {self._namespace!r} in {self.store!r}>"

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # LangChain allows a property
        """All messages, in order."""
        return self._run(self._get_messages())

    def _get_messages(self) -> StoreProgram[list[BaseMessage]]:
        """Return all messages, in order."""
        _, messages = yield from self._log.read()
        return messages_from_dict(messages)

    aget_messages = async_method(_get_messages)

    def _add_messages(self, messages: Sequence[BaseMessage]) -> StoreProgram[None]:
        """Add messages to the end, all or none."""
        yield from self._log.append([message_to_dict(message) for message in messages])

    add_messages = sync_method(_add_messages)
    aadd_messages = async_method(_add_messages)

    def _clear(self) -> StoreProgram[None]:
        """Remove all messages."""
        yield from self._log.delete()

    clear = sync_method(_clear)
    aclear = async_method(_clear)
