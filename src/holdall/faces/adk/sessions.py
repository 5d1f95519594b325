"""ADK's sessions on any engine: `HoldallSessionService` implements `BaseSessionService`.

A session is a message log of events (`holdall.faces.message_log`), whose head has the session's own state. State of an
app or a user has an entry for each key, which all its sessions share. An event and its state are one transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

try:
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events.event import Event
    from google.adk.sessions import BaseSessionService, Session
    from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
    from google.adk.sessions.state import State
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a service for ADK", "adk") from missing

from ... import ABSENT, ops
from ...core import face_api
from ...core.face_api import StoreProgram
from ...errors import Conflict, NotFound
from ...ops import Namespace
from ..base import NamespaceFace, read_all
from ..message_log import Head, MessageLog

_MOST_AUTHOR = 200  # characters
_RECENT = 100  # events among which one that is passed again is found


class HoldallSessionService(NamespaceFace, BaseSessionService):
    """The sessions of ADK apps, in one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given. Several processes may append to one session: no event and no state is lost.
    """

    def __init__(self, store_or_url: Any = None, *, namespace: Namespace = ("adk",), **options: Any) -> None:
        self._open_namespace(store_or_url, namespace, **options)

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session. One with the same id is `AlreadyExistsError`."""
        name = (session_id or "").strip() or str(uuid.uuid4())
        own, shared = self._split_state(app_name, user_id, state or {})
        head = {"length": 0, "state": own, "updated": datetime.now(UTC).timestamp()}
        log = self._log(app_name, user_id, name)
        try:
            await self.store.aexecute([ops.Put(log.heads, name, head, expect=ABSENT), *shared])
        except Conflict:
            raise AlreadyExistsError(f"Session with id {name} already exists.") from None
        return _describe(app_name, user_id, name, head, await self._arun(self._read_shared(app_name, user_id)))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events, or those that `config` asks for; None if there is none."""
        return await self._arun(self._get(app_name, user_id, session_id.strip(), config or GetSessionConfig()))

    def _get(self, app: str, user: str, name: str, config: GetSessionConfig) -> StoreProgram[Session | None]:
        head, values = yield from self._log(app, user, name).read(config.num_recent_events)
        if head is None:
            return None
        events = [Event.model_validate(value) for value in values]
        if config.after_timestamp is not None:
            events = [event for event in events if event.timestamp >= config.after_timestamp]
        return _describe(app, user, name, head.value, (yield from self._read_shared(app, user)), events)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """List the sessions of a user, or of all users of an app, without events, the last changed one last."""
        return await self._arun(self._list(app_name, user_id))

    def _list(self, app: str, user: str | None) -> StoreProgram[ListSessionsResponse]:
        prefix = self._inside(app, "sessions", *([] if user is None else [user]))
        heads = yield from read_all(self.store, prefix)
        shared = {}
        for user_id in {head.namespace[-1] for head in heads}:
            shared[user_id] = yield from self._read_shared(app, user_id)
        owners = [(head, head.namespace[-1]) for head in heads]
        found = [_describe(app, owner, head.key, head.value, shared[owner]) for head, owner in owners]
        found.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=found)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events, if it exists. State of the user and the app stays."""
        await self._arun(self._log(app_name, user_id, session_id.strip()).delete())

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user, without the prefix `user:`."""
        return await self._arun(self._read_state(self._inside(app_name, "user-state", user_id)))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Add an event to a session, and apply its change of state, in one transaction.

        The session may be stale: what others have appended stays. An event that is passed again, after an error for
        example, is stored once.
        """
        if event.partial:
            return event
        store = self.store.acting(event.author[:_MOST_AUTHOR]) if event.author else self.store
        try:
            await face_api.arun(store, self._append(session, event))
        except NotFound:
            raise SessionNotFoundError(f"Session {session.id} not found.") from None
        if event not in session.events:
            await super().append_event(session=session, event=event)  # changes the caller's object
            session.last_update_time = event.timestamp
        return event

    def _append(self, session: Session, event: Event) -> StoreProgram[None]:
        delta = dict(event.actions.state_delta) if event.actions else {}
        own, shared = self._split_state(session.app_name, session.user_id, delta)
        stored = event.model_dump(mode="json", exclude_none=True)
        if delta:
            stored["actions"]["state_delta"] = {
                key: value for key, value in delta.items() if not key.startswith(State.TEMP_PREFIX)
            }

        def change(head: Head) -> Head:
            newest = max(head.get("newest", 0), event.timestamp)
            return {**head, "state": head["state"] | own, "updated": event.timestamp, "newest": newest}

        log = self._log(session.app_name, session.user_id, session.id)
        head = yield from log.read_head()
        # The newest is not always the last one: the clocks of processes differ.
        if head is not None and head.value.get("newest", head.value["updated"]) >= event.timestamp:
            _, recent = yield from log.read(_RECENT)
            if stored in recent:
                return
        yield from log.append([stored], change, create=False, further=shared)

    def _split_state(self, app: str, user: str, state: dict[str, Any]) -> tuple[dict[str, Any], list[ops.PointOp]]:
        """Return the session's own state, and the writes of what is the user's and the app's. `temp:` is left out."""
        own: dict[str, Any] = {}
        shared: list[ops.PointOp] = []
        for key, value in state.items():
            if key.startswith(State.APP_PREFIX):
                name = key.removeprefix(State.APP_PREFIX)
                shared.append(ops.Put(self._inside(app, "app-state"), name, {"value": value}))
            elif key.startswith(State.USER_PREFIX):
                name = key.removeprefix(State.USER_PREFIX)
                shared.append(ops.Put(self._inside(app, "user-state", user), name, {"value": value}))
            elif not key.startswith(State.TEMP_PREFIX):
                own[key] = value
        return own, shared

    def _read_shared(self, app: str, user: str) -> StoreProgram[dict[str, Any]]:
        """Return the state of an app and of a user, as a session shows it."""
        of_app = yield from self._read_state(self._inside(app, "app-state"))
        of_user = yield from self._read_state(self._inside(app, "user-state", user))
        return {
            **{State.APP_PREFIX + key: value for key, value in of_app.items()},
            **{State.USER_PREFIX + key: value for key, value in of_user.items()},
        }

    def _read_state(self, namespace: Namespace) -> StoreProgram[dict[str, Any]]:
        return {entry.key: entry.value["value"] for entry in (yield from read_all(self.store, namespace))}

    def _log(self, app: str, user: str, name: str) -> MessageLog:
        events = self._inside(app, "events", user, name)
        return MessageLog(self.store, self._inside(app, "sessions", user), name, events)


def _describe(
    app: str, user: str, name: str, head: Head, shared: dict[str, Any], events: Sequence[Event] = ()
) -> Session:
    return Session(
        id=name,
        app_name=app,
        user_id=user,
        state={**head["state"], **shared},
        events=list(events),
        last_update_time=head["updated"],
    )
