"""Strands' sessions on any engine: `HoldallSessionRepository` implements `SessionRepository`.

    manager = RepositorySessionManager("ada-1", session_repository=HoldallSessionRepository("agent.db"))

A session, an agent and a message are an item each. Strands numbers messages itself. A number that another process has
already used is a `SessionException`, and not a lost message.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

try:
    from strands.session.session_repository import SessionRepository
    from strands.types.exceptions import SessionException
    from strands.types.session import Session, SessionAgent, SessionMessage, decode_bytes_values, encode_bytes_values
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a session repository for Strands", "strands") from missing

from ... import ABSENT, Hit, Page, ops
from ...core import face_api
from ...core.face_api import StoreProgram, retry_conflicts
from ...ops import Namespace
from ..base import NEIGHBOURS, NamespaceFace

if TYPE_CHECKING:
    from strands.multiagent import MultiAgentBase

_Address: TypeAlias = tuple[Namespace, str]
_DIGITS = 10


class HoldallSessionRepository(NamespaceFace, SessionRepository):
    """Sessions of agents, in one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given.
    """

    def __init__(self, store_or_url: Any = None, *, namespace: Namespace = ("strands",), **options: Any) -> None:
        self._open_namespace(store_or_url, namespace, **options)

    # Sessions --------------------------------------------------------------------------------------------------------

    def create_session(self, session: Session, **kwargs: Any) -> Session:  # Strands' signature
        """Create a session. One with the same id is a `SessionException`."""
        self._run(self._write([], self._session(session.session_id), session.to_dict(), is_new=True))
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:
        """Return a session, or None."""
        value = self._get(self._session(session_id))
        return None if value is None else Session.from_dict(value)

    def delete_session(self, session_id: str, **kwargs: Any) -> None:
        """Delete a session with its agents and messages."""
        namespace, key = self._session(session_id)
        trees = [ops.DeleteTree(self._inside(kind, session_id)) for kind in ("agents", "multi-agents", "messages")]
        was_there, *_ = self.store.execute([ops.Delete(namespace, key), *trees])
        if not was_there:
            raise SessionException(f"Session {session_id} does not exist")

    # Agents ----------------------------------------------------------------------------------------------------------

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Create an agent in a session."""
        agent = self._agent(session_id, session_agent.agent_id)
        self._run(self._write([self._session(session_id)], agent, session_agent.to_dict(), is_new=True))

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        """Return an agent, or None."""
        value = self._get(self._agent(session_id, agent_id))
        return None if value is None else SessionAgent.from_dict(value)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Replace an agent. It keeps its `created_at`."""
        agent = self._agent(session_id, session_agent.agent_id)
        written = self._run(self._write([self._session(session_id)], agent, session_agent.to_dict()))
        session_agent.created_at = written["created_at"]

    # Messages --------------------------------------------------------------------------------------------------------

    def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any) -> None:
        """Add a message to an agent. A number that is used already is a `SessionException`."""
        parents = [self._session(session_id), self._agent(session_id, agent_id)]
        message = self._message(session_id, agent_id, session_message.message_id)
        self._run(self._write(parents, message, session_message.to_dict(), is_new=True))

    def read_message(self, session_id: str, agent_id: str, message_id: int, **kwargs: Any) -> SessionMessage | None:
        """Return a message, or None."""
        value = self._get(self._message(session_id, agent_id, message_id))
        return None if value is None else SessionMessage.from_dict(value)

    def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any) -> None:
        """Replace a message. It keeps its `created_at`."""
        parents = [self._session(session_id), self._agent(session_id, agent_id)]
        message = self._message(session_id, agent_id, session_message.message_id)
        written = self._run(self._write(parents, message, session_message.to_dict()))
        session_message.created_at = written["created_at"]

    def list_messages(
        self,
        session_id: str,
        agent_id: str,
        limit: int | None = None,
        offset: int = 0,
        **kwargs: Any,
    ) -> list[SessionMessage]:
        """Return the messages of an agent by their numbers, from the one at `offset` on, and at most `limit`."""
        end = None if limit is None else offset + limit
        entries = itertools.islice(self.store.scan(self._inside("messages", session_id, agent_id)), offset, end)
        return [SessionMessage.from_dict(entry.value) for entry in entries]

    def search_messages(self, query: str, *, limit: int = 10) -> Page[Hit]:
        """Find messages of all sessions by a query. The last two labels of a hit's namespace are session and agent."""
        return self.store.search(self._inside("messages"), query=query, limit=limit, neighbours=NEIGHBOURS)

    # Several agents --------------------------------------------------------------------------------------------------

    def create_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:
        """Keep the state of a graph or swarm."""
        value = encode_bytes_values(multi_agent.serialize_state())
        address = self._multi_agent(session_id, multi_agent.id)
        self._run(self._write([self._session(session_id)], address, value, is_new=None))

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **kwargs: Any) -> dict[str, Any] | None:
        """Return the state of a graph or swarm, or None."""
        value = self._get(self._multi_agent(session_id, multi_agent_id))
        state: dict[str, Any] | None = None if value is None else decode_bytes_values(value)
        return state

    def update_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:
        """Replace the state of a graph or swarm."""
        value = encode_bytes_values(multi_agent.serialize_state())
        self._run(self._write([self._session(session_id)], self._multi_agent(session_id, multi_agent.id), value))

    def _get(self, address: _Address) -> dict[str, Any] | None:
        entry = self.store.get(*address)
        return None if entry is None else entry.value

    def _write(
        self, parents: list[_Address], address: _Address, value: dict[str, Any], *, is_new: bool | None = False
    ) -> StoreProgram[dict[str, Any]]:
        """Write a value if all above it exist, and return it. None for `is_new` creates or replaces."""

        def attempt() -> StoreProgram[dict[str, Any]]:
            *above, old = yield [ops.Get(*one) for one in [*parents, address]]
            batch: list[ops.PointOp] = []
            for parent, entry in zip(parents, above, strict=True):
                if entry is None:
                    raise SessionException(f"{_name(parent)} does not exist")
                batch.append(ops.Check(*parent, entry))
                if entry.expires_at is not None:  # what is above must not expire before what is below
                    batch.append(ops.Refresh(*parent))
            if is_new is not None and is_new is not (old is None):
                raise SessionException(f"{_name(address)} {'already exists' if is_new else 'does not exist'}")
            kept = {} if old is None or "created_at" not in old.value else {"created_at": old.value["created_at"]}
            written = {**value, **kept}
            batch.append(ops.Put(*address, written, expect=ABSENT if old is None else old))
            yield from face_api.execute(self.store, batch)
            return written

        return (yield from retry_conflicts(attempt))

    def _session(self, session_id: str) -> _Address:
        return self._inside("sessions"), session_id

    def _agent(self, session_id: str, agent_id: str) -> _Address:
        return self._inside("agents", session_id), agent_id

    def _multi_agent(self, session_id: str, multi_agent_id: str) -> _Address:
        return self._inside("multi-agents", session_id), multi_agent_id

    def _message(self, session_id: str, agent_id: str, message_id: int) -> _Address:
        if not isinstance(message_id, int):
            raise ValueError(f"message_id=<{message_id}> | message id must be an integer")  # noqa: TRY004  # Strands' own
        return self._inside("messages", session_id, agent_id), f"{message_id:0{_DIGITS}}"


def _name(address: _Address) -> str:
    """Return what an entry is, for messages."""
    namespace, key = address
    return f"{key!r} of {'/'.join(namespace)}"
