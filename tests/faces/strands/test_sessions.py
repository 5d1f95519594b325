"""Strands' session repository on every engine, and all its faces with several processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("strands", reason="Strands has an environment of its own: make strands")

from strands import Agent
from strands.session.repository_session_manager import RepositorySessionManager
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

import holdall
from holdall.faces.strands import HoldallMemoryStore, HoldallSessionRepository, HoldallStorage
from holdall.testing import Clock
from support.face_writers import FaceWriter, check_kills, check_several, run_writer
from support.strands_models import ScriptedModel


def session(name: str = "s") -> Session:
    return Session(session_id=name, session_type=SessionType.AGENT)


def agent(name: str = "a", **state: Any) -> SessionAgent:
    return SessionAgent(agent_id=name, state=state, conversation_manager_state={})


def message(number: int, text: str = "hello") -> SessionMessage:
    return SessionMessage.from_message({"role": "user", "content": [{"text": text}]}, number)


def test_an_agent_remembers_between_managers(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    repository = HoldallSessionRepository(any_store, namespace=place)
    for answer in ("Noted.", "Peanuts."):
        manager = RepositorySessionManager("ada", session_repository=repository)
        helper = Agent(model=ScriptedModel([answer]), session_manager=manager, agent_id="helper", callback_handler=None)
        helper("I am allergic to peanuts." if answer == "Noted." else "What am I allergic to?")
    assert len(helper.messages) == len(repository.list_messages("ada", "helper")) == 4
    assert repository.list_messages("ada", "helper", limit=1, offset=2)[0].message["content"] == [
        {"text": "What am I allergic to?"}
    ]
    found = repository.search_messages("peanuts allergic")
    assert {hit.namespace[-2:] for hit in found} == {("ada", "helper")}
    assert "Noted." in str([hit.value for hit in found])  # beside the question


def test_what_is_missing_or_already_there_is_an_error(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    repository = HoldallSessionRepository(any_store, namespace=place)
    for call in (
        lambda: repository.create_agent("s", agent()),
        lambda: repository.create_message("s", "a", message(0)),
        lambda: repository.update_agent("s", agent()),
        lambda: repository.delete_session("s"),
    ):
        with pytest.raises(SessionException, match="does not exist"):
            call()
    repository.create_session(session())
    repository.create_agent("s", agent(n=1))
    repository.create_message("s", "a", message(0, "first"))
    for call in (
        lambda: repository.create_session(session()),
        lambda: repository.create_agent("s", agent()),
        lambda: repository.create_message("s", "a", message(0, "second")),
    ):
        with pytest.raises(SessionException, match="already exists"):
            call()
    kept = repository.read_message("s", "a", 0)
    assert kept is not None and kept.message["content"] == [{"text": "first"}]
    with pytest.raises(SessionException):
        repository.update_message("s", "a", message(1))
    before = repository.read_agent("s", "a")
    time.sleep(0.001)
    repository.update_agent("s", agent(n=2))
    after = repository.read_agent("s", "a")
    assert before is not None and after is not None
    assert (after.state, after.created_at) == ({"n": 2}, before.created_at)
    repository.delete_session("s")
    assert repository.read_session("s") is None and repository.list_messages("s", "a") == []
    assert any_store.count(place) == 0


@pytest.mark.parametrize("name", ["a/b", "../x", "名前 ~%", "x" * 400, " "])
def test_ids_may_be_odd(name: str) -> None:
    with HoldallSessionRepository("memory:") as repository:
        repository.create_session(session(name))
        repository.create_agent(name, agent(name))
        repository.create_message(name, name, message(0))
        assert repository.read_session(name) is not None
        assert len(repository.list_messages(name, name)) == 1


class StorageFiles(FaceWriter):
    """All write keys."""

    def __init__(self, store: holdall.Store) -> None:
        self.storage = HoldallStorage(store)

    async def write(self, name: str, number: int) -> None:
        await self.storage.write(f"{name}/{number}", f"{name} {number}".encode())

    async def read(self) -> list[str]:
        return [(await self.storage.read(key) or b"").decode() for key in await self.storage.list()]


class SessionMessages(FaceWriter):
    """All add messages to one agent: a number that is taken is tried again with the next."""

    def __init__(self, store: holdall.Store) -> None:
        self.repository = HoldallSessionRepository(store)

    async def prepare(self) -> None:
        self.repository.create_session(session())
        self.repository.create_agent("s", agent())

    async def write(self, name: str, number: int) -> None:
        free = len(self.repository.list_messages("s", "a"))
        while True:
            try:
                self.repository.create_message("s", "a", message(free, f"{name} {number}"))
            except SessionException:
                free += 1
            else:
                return

    async def read(self) -> list[str]:
        return [one.message["content"][0]["text"] for one in self.repository.list_messages("s", "a")]


class Memories(FaceWriter):
    """All add memories."""

    def __init__(self, store: holdall.Store) -> None:
        self.memory = HoldallMemoryStore("facts", store)

    async def write(self, name: str, number: int) -> None:
        await self.memory.add(f"{name} {number}")

    async def read(self) -> list[str]:
        return [entry.value["content"] for entry in self.memory.store.scan(("memories",))]


FACES: dict[str, type[FaceWriter]] = {kind.__name__: kind for kind in (StorageFiles, SessionMessages, Memories)}


def write(at: dict[str, str], face: str, name: str, count: int) -> None:
    """In a process: write through a face."""
    run_writer(FACES[face], at, name, count)


def test_a_session_that_is_used_does_not_expire() -> None:
    clock = Clock()
    with holdall.open("memory:", ttl=100, clock=clock) as store:
        repository = HoldallSessionRepository(store)
        repository.create_session(session())
        repository.create_agent("s", agent())
        for number in range(4):
            clock.advance(60)
            repository.create_message("s", "a", message(number, "hello"))
        assert [one.message_id for one in repository.list_messages("s", "a")] == [2, 3]
        clock.advance(101)
        assert repository.read_session("s") is None and repository.read_agent("s", "a") is None


@pytest.mark.parametrize("face", FACES)
def test_what_a_face_has_acknowledged_survives_kill_9(
    face: str, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    check_kills(FACES[face], "sqlite", write, tmp_path, scaled(4, 50))


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
@pytest.mark.parametrize("face", FACES)
def test_eight_processes_lose_nothing(
    face: str, engine: str, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    check_several(FACES[face], engine, write, tmp_path, scaled(10, 50))


def test_the_example_runs() -> None:
    example = Path(__file__).parents[3] / "examples" / "strands_memory.py"
    run = subprocess.run([sys.executable, example], check=False, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[:2] == ["messages: 4", "memory: Ada is allergic to peanuts"]
    assert "allergic" in run.stdout.splitlines()[2]
