"""Sessions of the OpenAI Agents SDK on every engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, SQLiteSession
from agents.memory import OpenAIResponsesCompactionSession
from agents.memory.session import Session
from agents.memory.session_settings import SessionSettings

import holdall
from holdall.errors import InvalidInput, InvalidValue, StoreClosed
from holdall.faces.openai_agents import HoldallSession
from support.openai_models import ScriptedModel
from support.processes import finish_together, report, start, wait_to_begin
from support.stores import new_location, open_at


def message(text: str, role: str = "user") -> Any:
    return {"role": role, "content": text}


def test_it_does_what_the_sdks_own_session_does(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    ours, theirs = HoldallSession("s", any_store, namespace=place), SQLiteSession("s")
    assert isinstance(ours, Session)

    async def steps(session: Any) -> list[Any]:
        seen: list[Any] = [await session.get_items(), await session.pop_item()]
        await session.add_items([message(f"message {n}") for n in range(5)])
        await session.add_items([])
        seen += [await session.get_items(), await session.get_items(2), await session.get_items(0)]
        seen.append(await session.get_items(-1))
        seen += [await session.pop_item(), await session.get_items()]
        await session.add_items([message("again", "assistant")])
        seen.append(await session.get_items())
        await session.clear_session()
        seen += [await session.get_items(), await session.pop_item()]
        return seen

    assert asyncio.run(steps(ours)) == asyncio.run(steps(theirs))


def test_an_agent_remembers_between_runs_and_stores(tmp_path: Path) -> None:
    async def turn(text: str, answer: str) -> Any:
        model = ScriptedModel([answer])
        async with HoldallSession("ada", str(tmp_path / "agent.db")) as session:
            await Runner.run(Agent("helper", model=model), text, session=session)
        return model.inputs[-1]

    asyncio.run(turn("I am allergic to peanuts.", "Noted."))
    seen = asyncio.run(turn("What am I allergic to?", "Peanuts."))
    assert "allergic to peanuts" in str(seen)
    with holdall.open(tmp_path / "agent.db") as store:
        assert [hit.namespace for hit in store.search(query="peanuts")][:1] == [("sessions", "ada")]


def test_sessions_are_listed_and_searched(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    async def main() -> None:
        ada, bob = (HoldallSession(name, any_store, namespace=place) for name in ("ada", "bob"))
        await ada.add_items([message("Where is the blue notebook?"), message("In the kitchen.", "assistant")])
        await bob.add_items([message("hello")])
        await any_store.aput(place, "diet", {"text": "of another face"})
        page = await ada.list_sessions()
        assert [(info.session_id, info.items) for info in page] == [("bob", 1), ("ada", 2)]
        assert (await ada.list_sessions(limit=1)).next is not None
        found = await bob.search_sessions("blue notebook")
        assert [(hit.namespace[-1], hit.value["content"]) for hit in found] == [
            ("ada", "Where is the blue notebook?"),
            ("ada", "In the kitchen."),  # beside the question
        ]

    asyncio.run(main())


def test_settings_bound_what_is_read() -> None:
    async def main() -> None:
        async with HoldallSession("s", "memory:", session_settings=SessionSettings(limit=2)) as session:
            await session.add_items([message(str(n)) for n in range(5)])
            assert [item["content"] for item in await session.get_items()] == ["3", "4"]  # type: ignore[typeddict-item]
            with pytest.raises(InvalidValue):
                await session.add_items([message(object())])  # type: ignore[arg-type]
        with pytest.raises(StoreClosed):
            await session.add_items([])

    asyncio.run(main())
    with pytest.raises(InvalidInput, match="session_id"):
        HoldallSession("", "memory:")


@pytest.mark.not_short
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_no_two_processes_pop_the_same_item(engine: str, tmp_path: Path) -> None:
    at = new_location(engine, tmp_path)
    with open_at(at) as store:
        session = HoldallSession("shared", store)
        asyncio.run(session.add_items([message(str(n)) for n in range(40)]))
        popped = finish_together([start(pop_some, at=at) for _ in range(4)])
        assert sorted(int(text) for [some] in popped for text in some) == list(range(8, 40))
        assert [item["content"] for item in asyncio.run(session.get_items())] == [str(n) for n in range(8)]  # type: ignore[typeddict-item]


def pop_some(at: dict[str, str]) -> None:
    async def main() -> list[str]:
        async with open_at(at) as store:
            session: Any = HoldallSession("shared", store)
            wait_to_begin()
            return [(await session.pop_item())["content"] for _ in range(8)]

    report(asyncio.run(main()))


def test_a_cancelled_call_is_done_whole_or_not_at_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with HoldallSession("s", tmp_path / "agent.db", durability="relaxed") as session:
            outcomes = []
            for number in range(60):
                adding = asyncio.create_task(session.add_items([message(str(number)), message(str(number))]))
                await asyncio.sleep(number * 0.00002)
                adding.cancel()
                outcomes += await asyncio.gather(adding, return_exceptions=True)
            items: list[Any] = [item["content"] for item in await session.get_items()]  # type: ignore[typeddict-item]
            assert items[::2] == items[1::2] and items == sorted(items, key=int)
            done = {str(number) for number, outcome in enumerate(outcomes) if outcome is None}
            assert done <= set(items), "an acknowledged item is missing"
            await session.add_items([message("after")])
            assert await session.pop_item() == message("after")

    asyncio.run(main())


def compacting(session: HoldallSession, compact: Callable[..., Any]) -> OpenAIResponsesCompactionSession:
    """Return the session as the SDK compacts it, with an API that calls `compact`."""
    client: Any = SimpleNamespace(responses=SimpleNamespace(compact=compact))
    return OpenAIResponsesCompactionSession(
        session.session_id,
        session,
        client=client,
        compaction_mode="input",
        should_trigger_compaction=lambda _: True,
    )


async def run_with_last_item(session: OpenAIResponsesCompactionSession) -> None:
    agent = Agent("helper", model=ScriptedModel(["done"]))
    await Runner.run(agent, "go on", session=session, run_config=RunConfig(session_settings=SessionSettings(limit=1)))


def test_a_compaction_replaces_the_end_that_the_model_has_seen(
    any_store: holdall.Store, place: tuple[str, ...]
) -> None:
    summary = {"type": "compaction", "id": "cmp", "encrypted_content": "summary"}

    async def compact(**kwargs: Any) -> Any:
        return SimpleNamespace(output=[summary])

    async def main() -> None:
        ours = HoldallSession("s", any_store, namespace=place)
        await ours.add_items([message(str(n)) for n in range(4)])
        await run_with_last_item(compacting(ours, compact))
        assert await ours.get_items() == [message("0"), message("1"), message("2"), summary]

    asyncio.run(main())


def test_what_is_added_while_a_session_is_compacted_stays(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    async def main() -> None:
        ours = HoldallSession("s", any_store, namespace=place)
        await ours.add_items([message(str(n)) for n in range(4)])

        async def compact(**kwargs: Any) -> Any:
            await HoldallSession("s", any_store, namespace=place).add_items([message("of another process")])
            return SimpleNamespace(output=[])

        await run_with_last_item(compacting(ours, compact))
        items: Any = await ours.get_items()
        assert len(items) == 7 and items[:4] == [message(str(n)) for n in range(4)]
        assert items[-1] == message("of another process")

    asyncio.run(main())


def test_a_session_that_changes_its_items_is_not_compacted_behind_its_back() -> None:
    class Encrypting(HoldallSession):
        pass

    assert asyncio.run(Encrypting("s", "memory:")._get_compaction_snapshot(10)) is None
