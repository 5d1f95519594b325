"""ADK's sessions, artifacts and memory, compared step by step with its services in memory, on every engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.artifacts import InMemoryArtifactService
from google.adk.cli.service_registry import ServiceRegistry
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory import InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions import InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

import holdall
from holdall.errors import InvalidInput
from holdall.faces.adk import HoldallArtifactService, HoldallMemoryService, HoldallSessionService, register
from holdall.faces.base import read_namespaces

WHO = {"app_name": "app", "user_id": "ada"}


def event_of(text: str, at: float = 0.0, **delta: Any) -> Event:
    content = types.Content(role="user", parts=[types.Part(text=text)])
    actions = EventActions(state_delta={key.replace("_", ":", 1): value for key, value in delta.items()})
    return Event(id=f"id {text}", author="user", content=content, timestamp=at, actions=actions)


def shown(session: Any) -> Any:
    if session is None:
        return None
    events = [(event.id, event.timestamp, event.actions.state_delta) for event in session.events]
    return session.id, session.user_id, session.state, events


async def session_steps(service: Any) -> list[Any]:
    state = {"app:color": "blue", "user:name": "Ada", "own": 1, "temp:x": 2}
    seen = [shown(await service.create_session(**WHO, session_id="one", state=state))]
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**WHO, session_id="one")
    two = await service.create_session(app_name="app", user_id="bob", session_id="two")
    seen.append(shown(two))
    session = await service.get_session(**WHO, session_id="one")
    for n in range(5):
        await service.append_event(session, event_of(f"event {n}", n + 1.0, own=n, user_mood="good", temp_y=1))
    await service.append_event(session, Event(author="model", partial=True))
    seen += [session.state, len(session.events), session.last_update_time]
    for config in (
        None,
        GetSessionConfig(num_recent_events=2),
        GetSessionConfig(num_recent_events=0),
        GetSessionConfig(after_timestamp=3.0),
    ):
        seen.append(shown(await service.get_session(**WHO, session_id="one", config=config)))
    seen.append(await service.get_user_state(**WHO))
    for user in ("ada", None):
        listed = await service.list_sessions(app_name="app", user_id=user)
        seen.append([(one.id, one.state, one.events) for one in listed.sessions])
    await service.delete_session(**WHO, session_id="one")
    await service.delete_session(**WHO, session_id="one")
    with pytest.raises(ValueError, match="not found"):
        await service.append_event(session, event_of("late"))
    seen += [shown(await service.get_session(**WHO, session_id=name)) for name in ("one", "missing")]
    return seen


def test_sessions_do_what_those_in_memory_do(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    ours = asyncio.run(session_steps(HoldallSessionService(any_store, namespace=place)))
    for mine, theirs in zip(ours, asyncio.run(session_steps(InMemorySessionService())), strict=True):
        assert mine == theirs


async def artifact_steps(service: Any) -> list[Any]:
    where = {**WHO, "session_id": "s"}
    seen: list[Any] = [await service.load_artifact(**where, filename="a.txt")]
    seen.append(await service.list_versions(**where, filename="a.txt"))
    for n in range(3):
        part = types.Part(text=f"text {n}")
        seen.append(await service.save_artifact(**where, filename="a.txt", artifact=part, custom_metadata={"n": n}))
    blob = types.Part.from_bytes(data=bytes(range(256)), mime_type="image/png")
    seen.append(await service.save_artifact(**WHO, filename="user:face.png", artifact=blob))
    reference = "artifact://apps/app/users/ada/sessions/s/artifacts/a.txt/versions/1"
    linked = types.Part(file_data=types.FileData(file_uri=reference))
    seen.append(await service.save_artifact(**where, filename="link", artifact=linked))
    for name, version in (("a.txt", None), ("a.txt", 0), ("a.txt", 9), ("user:face.png", None), ("link", None)):
        seen.append(await service.load_artifact(**where, filename=name, version=version))
        found = await service.get_artifact_version(**where, filename=name, version=version)
        seen.append(found and (found.version, found.mime_type, found.custom_metadata))
    seen.append(await service.list_artifact_keys(**where))
    seen.append(await service.list_artifact_keys(**WHO))
    seen.append([one.version for one in await service.list_artifact_versions(**where, filename="a.txt")])
    with pytest.raises(Exception, match="Session ID must be provided"):
        await service.save_artifact(**WHO, filename="a.txt", artifact=types.Part(text="x"))
    with pytest.raises(Exception, match="Not supported artifact type"):
        await service.save_artifact(**where, filename="a.txt", artifact=types.Part())
    await service.delete_artifact(**where, filename="a.txt")
    seen.append(await service.list_artifact_keys(**where))
    return seen


def test_artifacts_do_what_those_in_memory_do(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    ours = asyncio.run(artifact_steps(HoldallArtifactService(any_store, namespace=place)))
    for mine, theirs in zip(ours, asyncio.run(artifact_steps(InMemoryArtifactService())), strict=True):
        assert mine == theirs


def test_memory_finds_what_was_said_and_forgets_it(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    async def main(service: Any, sessions: Any) -> list[list[str | None]]:
        session = await sessions.create_session(**WHO, session_id="s")
        for n, text in enumerate(["Where is the blue notebook?", "In the kitchen.", "Thanks."]):
            await sessions.append_event(session, event_of(text, n + 1.0))
        await service.add_session_to_memory(session)
        await service.add_session_to_memory(session)

        async def find(query: str) -> list[str | None]:
            return [one.id for one in (await service.search_memory(**WHO, query=query)).memories]

        seen = [(await find("notebook"))[:1], await find("zebra")]
        await service.add_events_to_memory(**WHO, events=[event_of("A zebra.", 1e6)], session_id="s")
        seen.append(await find("zebra"))
        assert (await service.search_memory(app_name="app", user_id="bob", query="notebook")).memories == []
        return seen

    ours = HoldallMemoryService(any_store, namespace=place)
    sessions = HoldallSessionService(any_store, namespace=(*place, "sessions"))
    assert asyncio.run(main(ours, sessions)) == asyncio.run(main(InMemoryMemoryService(), InMemorySessionService()))

    async def forget() -> None:
        found = (await ours.search_memory(**WHO, query="notebook")).memories
        assert [one.content.parts[0].text for one in found] == ["Where is the blue notebook?", "In the kitchen."]  # type: ignore[index]
        await ours.delete_memory(**WHO, memory_id="id A zebra.")
        await ours.add_events_to_memory(**WHO, events=[event_of("A zebra.", 1e6)], session_id="s")
        assert (await ours.search_memory(**WHO, query="zebra")).memories == []

    asyncio.run(forget())


def test_urls_are_service_uris(tmp_path: Path) -> None:
    registry = ServiceRegistry()
    register(registry)
    uri = f"holdall+sqlite:///{tmp_path}/agent.db"
    sessions = registry.create_session_service(uri)
    assert isinstance(sessions, HoldallSessionService)
    assert isinstance(registry.create_artifact_service(uri), HoldallArtifactService)
    assert isinstance(registry.create_memory_service(uri), HoldallMemoryService)
    asyncio.run(sessions.create_session(**WHO, session_id="s"))
    with holdall.open(tmp_path / "agent.db") as store:
        assert store.get(("adk", "app", "sessions", "ada"), "s") is not None
    for url in ("memory:", "redis+cluster://localhost", "unix:///run/redis.sock"):  # none connects before its first use
        assert isinstance(registry.create_session_service(f"holdall+{url}"), HoldallSessionService)


def test_events_carry_their_author() -> None:
    with holdall.open("memory:", history=3600) as store:
        service = HoldallSessionService(store)

        async def talk() -> None:
            session = await service.create_session(**WHO, session_id="one")
            await service.append_event(session, event_of("hello"))

        asyncio.run(talk())
        [event] = list(store.scan(("adk", "app", "events")))
        assert store.history(event.namespace, event.key)[0].author == "user"


@pytest.mark.parametrize("make", [InMemorySessionService, lambda: HoldallSessionService("memory:")])
def test_an_event_that_is_passed_again_is_stored_once(make: Callable[[], Any]) -> None:
    async def main() -> None:
        service = make()
        session = await service.create_session(**WHO, session_id="one")
        stale = await service.get_session(**WHO, session_id="one")
        events = [event_of("hello"), event_of("hello").model_copy(update={"id": "another"}), event_of("bye")]
        for event in [events[0], events[0], *events, events[1].model_copy(deep=True)]:
            await service.append_event(session, event)
        stored = (await service.get_session(**WHO, session_id="one")).events
        assert [event.id for event in stored] == [event.id for event in events]
        assert [event.id for event in session.events] == [event.id for event in events]
        await service.append_event(stale, event_of("of a stale session"))
        assert len((await service.get_session(**WHO, session_id="one")).events) == 4

    asyncio.run(main())


def test_an_event_that_is_passed_again_is_stored_once_although_the_clocks_of_processes_differ() -> None:
    async def main() -> None:
        service = HoldallSessionService("memory:")
        await service.create_session(**WHO, session_id="one")
        ahead, behind = event_of("ahead", time.time() + 20), event_of("behind", time.time() + 10)
        for event in (ahead, behind, ahead):
            session = Session(**WHO, id="one")  # of another process each time
            await service.append_event(session, event)
        kept = await service.get_session(**WHO, session_id="one")
        assert kept is not None
        assert [event.id for event in kept.events] == [ahead.id, behind.id]

    asyncio.run(main())


def test_a_memory_that_is_deleted_does_not_come_back_with_a_session_that_is_added_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = HoldallMemoryService("memory:")
    events = [event_of("a secret")]

    def list_and_let_another_add(store: holdall.Store, **how: Any) -> Any:
        listed = yield from read_namespaces(store, **how)
        yield from service._add_session(Session(**WHO, id="two", events=events))
        return listed

    async def main() -> None:
        await service.add_session_to_memory(Session(**WHO, id="one", events=events))
        monkeypatch.setattr("holdall.faces.adk.memory.read_namespaces", list_and_let_another_add)
        await service.delete_memory(**WHO, memory_id="id a secret")
        assert (await service.search_memory(**WHO, query="secret")).memories == []

    asyncio.run(main())


def test_a_session_may_have_any_name_and_an_empty_query_finds_nothing() -> None:
    async def main() -> None:
        service = HoldallMemoryService("memory:")
        content = types.Content(parts=[types.Part(text="told directly")])
        await service.add_memory(**WHO, memories=[MemoryEntry(id="direct", content=content)])
        for name in ("none", "direct", "sessions"):
            await service.add_session_to_memory(Session(**WHO, id=name, events=[event_of(f"told in {name}")]))
        await service.add_session_to_memory(Session(**WHO, id="empty"))
        found = await service.search_memory(**WHO, query="told")
        assert len(found.memories) == 4
        for blank in ("", " "):
            assert (await service.search_memory(**WHO, query=blank)).memories == []

    asyncio.run(main())


def test_versions_of_artifacts_do_not_count_from_the_end() -> None:
    async def main(service: Any) -> Any:
        where = {**WHO, "session_id": "s", "filename": "f"}
        await service.save_artifact(**where, artifact=types.Part(text="x"))
        return [await service.load_artifact(**where, version=version) for version in (-1, 1)]

    assert asyncio.run(main(HoldallArtifactService("memory:"))) == asyncio.run(main(InMemoryArtifactService()))


def test_a_session_that_cannot_be_remembered_leaves_what_was_remembered_of_it() -> None:
    async def main() -> None:
        async with HoldallMemoryService("memory:") as service:
            await service.add_session_to_memory(Session(**WHO, id="s", events=[event_of("a blue notebook")]))
            too_long = event_of("a red notebook").model_copy(update={"id": "x" * 5000})
            with pytest.raises(InvalidInput):
                await service.add_session_to_memory(Session(**WHO, id="s", events=[too_long]))
            found = await service.search_memory(**WHO, query="notebook")
            assert [one.id for one in found.memories] == ["id a blue notebook"]
            await service.add_session_to_memory(Session(**WHO, id="s", events=[event_of("a red notebook")]))
            found = await service.search_memory(**WHO, query="notebook")
            assert [one.id for one in found.memories] == ["id a red notebook"]

    asyncio.run(main())
