"""Real AG2 agents with scripted models, whose knowledge is on every engine of ours, across a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.faces.ag2 import (
    LOG_PREFIX,
    WORKING_MEMORY_PATH,
    DefaultBootstrap,
    EventLogWriter,
    HoldallKnowledgeStore,
    LockedKnowledgeStore,
)
from support import ag2_installed as ag2
from support.ag2_callbacks import RecordedPaths, awaited
from support.processes import report, run
from support.stores import FACE_ENGINES, new_location, open_at

events = ag2.events


@pytest.fixture
def store(any_store: holdall.Store, place: tuple[str, ...]) -> HoldallKnowledgeStore:
    return HoldallKnowledgeStore(any_store, namespace=place)


def call(**arguments: str) -> Any:
    return events.ToolCallEvent(name="knowledge", arguments=json.dumps(arguments))


def agent(store: Any, *script: Any, name: str = "ada", **options: Any) -> Any:
    knowledge = ag2.KnowledgeConfig(store=store, **options)
    return ag2.Agent(name, config=ag2.testing.TestConfig(*script), knowledge=knowledge)


def results(found: list[Any]) -> list[str]:
    """What its tool answered an agent."""
    return [event.result.parts[0].content for event in found if isinstance(event, events.ToolResultEvent)]


@awaited
async def test_the_knowledge_tool_works_on_our_store(store: HoldallKnowledgeStore) -> None:
    stream = ag2.MemoryStream()
    ada = agent(
        store,
        call(action="write", path="/artifacts/report.md", content="# Report"),
        call(action="read", path="artifacts//report.md"),
        call(action="list", path="/artifacts/"),
        call(action="delete", path="/artifacts/report.md"),
        call(action="read", path="/artifacts/report.md"),
        call(action="list", path="/empty"),
        "done",
    )
    await ada.ask("work", stream=stream)
    answers = results(list(await stream.history.get_events()))
    assert answers[:2] == ["Written to /artifacts/report.md", "# Report"]
    assert answers[2].startswith("External data") and answers[2].endswith("\n---\nSKILL.md\nreport.md")
    assert answers[3:] == ["Deleted: /artifacts/report.md", "Not found: /artifacts/report.md", "Empty: /empty"]


@awaited
async def test_an_agent_lays_out_its_knowledge_once(store: HoldallKnowledgeStore) -> None:
    class Counting(DefaultBootstrap):
        calls = 0

        async def bootstrap(self, store: Any, actor_name: str) -> None:
            self.calls += 1
            await super().bootstrap(store, actor_name)

    first = Counting()
    ada = agent(store, "one", "two", "three", bootstrap=first)
    await asyncio.gather(*(ada.ask("hi", stream=ag2.MemoryStream()) for _ in range(3)))
    assert first.calls == 1
    assert await store.read("/.initialized") == "ada"
    assert "ada" in (await store.read("/SKILL.md") or "")
    second = Counting()
    await agent(store, "hello", bootstrap=second).ask("hi")
    assert second.calls == 0


@awaited
async def test_an_event_log_is_written_and_loaded_by_either_writer(store: HoldallKnowledgeStore) -> None:
    stream, recorded = ag2.MemoryStream(), RecordedPaths()
    subscription = await store.on_change(LOG_PREFIX, recorded)
    ada = agent(store, call(action="write", path="/memory/a.md", content="ü"), "done")
    await ada.ask("remember", stream=stream)
    while f"/log/{stream.id}.jsonl" not in recorded.paths:
        await recorded.of(len(recorded.paths) + 1)
    await subscription.close()
    history = list(await stream.history.get_events())
    assert len(history) >= 4
    assert await EventLogWriter(store).load(stream.id) == history
    assert await ag2.knowledge.EventLogWriter(store).load(stream.id) == history
    assert await EventLogWriter(store).tail(stream.id) == history


@awaited
async def test_a_log_that_cannot_be_written_does_not_fail_the_turn(store: HoldallKnowledgeStore) -> None:
    class Failing(HoldallKnowledgeStore):
        async def write(self, path: str, content: str, **options: Any) -> None:
            if path.startswith(LOG_PREFIX) and path.endswith(".jsonl"):
                raise OSError("disk on fire")
            await super().write(path, content, **options)

    stream, failures = ag2.MemoryStream(), []
    stream.where(events.EventLogFailed).subscribe(lambda event: failures.append(event))  # noqa: PLW0108  # a signature
    await agent(Failing(store, namespace=store.files.namespace), "done").ask("hi", stream=stream)
    assert [(failure.error_type, failure.error) for failure in failures] == [("OSError", "disk on fire")]


@awaited
async def test_compaction_keeps_what_it_drops(store: HoldallKnowledgeStore) -> None:
    stream = ag2.MemoryStream()
    ada = agent(
        store,
        *(f"answer {number}" for number in range(6)),
        compact=ag2.compact.TailWindowCompact(target=2),
        compact_trigger=ag2.compact.CompactTrigger(max_events=4),
    )
    reply = await ada.ask("question 0", stream=stream)
    for number in range(1, 6):
        reply = await reply.ask(f"question {number}")
    assert await store.list("/log", prefix=f"{stream.id}.dropped-")
    loaded = await EventLogWriter(store).load(stream.id)
    assert loaded == await ag2.knowledge.EventLogWriter(store).load(stream.id)
    asked = [event.parts[0].content for event in loaded if isinstance(event, events.ModelRequest)]
    assert asked == [f"question {number}" for number in range(6)]


@awaited
async def test_policies_find_our_store_by_ag2s_protocol(store: HoldallKnowledgeStore) -> None:
    await store.write(WORKING_MEMORY_PATH, "the user likes parrots")
    config = ag2.testing.TrackingConfig(ag2.testing.TestConfig("hello"))
    ada = ag2.Agent(
        "ada",
        config=config,
        knowledge=ag2.KnowledgeConfig(store=store, expose_tool=False),
        assembly=[ag2.policies.WorkingMemoryPolicy()],
    )
    await ada.ask("hi")
    assert not ada.tools
    if hasattr(config, "calls"):
        assert any("the user likes parrots" in prompt for prompt in config.calls[0].prompt)
    assert "no tool exposed" in (await store.read("/SKILL.md") or "")


@awaited
async def test_an_agent_works_under_locks(store: HoldallKnowledgeStore) -> None:
    stream = ag2.MemoryStream()
    ada = agent(LockedKnowledgeStore(store), call(action="write", path="/memory/a.md", content="x"), "done")
    await ada.ask("remember", stream=stream)
    assert await store.read("/memory/a.md") == "x"
    assert len(await EventLogWriter(store).load(stream.id)) >= 4


@pytest.mark.parametrize("engine", FACE_ENGINES)
@awaited
async def test_an_agents_knowledge_exists_after_a_restart(tmp_path: Path, engine: str) -> None:
    at = new_location(engine, tmp_path)
    if engine == "memory":  # which is gone with its process: here, another store object is the restart
        kept = open_at(at)
        [stream] = await session(at)
    else:
        [stream] = await asyncio.to_thread(run, first_session, at=at)
    async with HoldallKnowledgeStore(open_at(at)) as store:
        assert await store.read("/memory/likes.md") == "parrots"
        loaded = await EventLogWriter(store).load(stream)
        assert loaded[0].parts[0].content == "I like parrots"
        assert results(loaded) == ["Written to /memory/likes.md"]
        again = ag2.MemoryStream()
        await agent(store, call(action="read", path="/memory/likes.md"), "parrots!").ask("What?", stream=again)
        assert results(list(await again.history.get_events())) == ["parrots"]
        assert await store.read("/.initialized") == "ada"
        assert len(await store.list("/log")) == 3
        await store.store.aclose()
    if engine == "memory":
        kept.close()


def first_session(at: dict[str, Any]) -> None:
    [stream] = asyncio.run(session(at))
    report(stream)


async def session(at: dict[str, Any]) -> list[str]:
    async with HoldallKnowledgeStore(open_at(at)) as store:
        stream = ag2.MemoryStream()
        ada = agent(store, call(action="write", path="/memory/likes.md", content="parrots"), "noted")
        await ada.ask("I like parrots", stream=stream)
        await store.store.aclose()
    return [str(stream.id)]
