"""Checkpoints of the Agent Framework's workflows: compared with its own storage in memory, and never pickled."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest
from agent_framework import (
    Agent,
    AgentResponse,
    BaseChatClient,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    Executor,
    InMemoryCheckpointStorage,
    Message,
    ResponseStream,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    WorkflowMessage,
    handler,
    response_handler,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import holdall
from holdall.errors import InvalidInput
from holdall.faces.agent_framework import HoldallCheckpointStorage


class Colour(Enum):
    RED = "red"


@dataclass
class Draft:
    text: str
    colours: list[Colour] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: tuple[int, ...] = ()


class Review(BaseModel):
    stars: int
    at: datetime


class Trap:
    """A class whose pickle would run code."""

    def __reduce__(self) -> Any:
        return (print, ("unpickled",))


TYPES = (Colour, Draft, Point, Review)


class Scripted(BaseChatClient):
    """A chat client that answers with its number of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Any, **kwargs: Any
    ) -> Awaitable[ChatResponse] | ResponseStream[ChatResponseUpdate, ChatResponse]:
        self.calls += 1
        assert not stream

        async def answer() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", [f"answer {self.calls} to {len(messages)}"])])

        return answer()


class Ask(Executor):
    """Asks a human about an agent's answer, and yields what they say."""

    @handler
    async def ask(self, answer: Any, ctx: WorkflowContext[Any, str]) -> None:
        ctx.set_state("draft", Draft(answer.agent_response.text, [Colour.RED]))
        await ctx.request_info(Draft(answer.agent_response.text), bool)

    @response_handler
    async def finish(self, request: Draft, approved: bool, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"{request.text}: {approved}, {ctx.get_state('draft').colours[0].value}")


async def work(storage: Any) -> list[Any]:
    """Run a workflow until it asks, and finish it in another object, from its last checkpoint."""

    def build() -> Any:
        agent = Agent(Scripted(), name="writer")
        return (
            WorkflowBuilder(start_executor=agent, checkpoint_storage=storage, name="writing")
            .add_edge(agent, Ask("ask"))
            .build()
        )

    events = await build().run("hello")
    [request] = events.get_request_info_events()
    latest = await storage.get_latest(workflow_name="writing")
    seen: list[Any] = [request.data, len(await storage.list_checkpoint_ids(workflow_name="writing"))]
    again = build()
    await again.run(checkpoint_id=latest.checkpoint_id, checkpoint_storage=storage)
    result = await again.run(responses={request.request_id: True})
    return [*seen, result.get_outputs(), len(await storage.list_checkpoints(workflow_name="writing"))]


def test_a_workflow_goes_on_from_a_checkpoint(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    ours = asyncio.run(work(HoldallCheckpointStorage(any_store, namespace=place, types=TYPES)))
    theirs = asyncio.run(work(InMemoryCheckpointStorage()))
    assert ours == theirs
    assert ours[2] == ["answer 1 to 1: True, red"]


def make(name: str = "w", **fields: Any) -> WorkflowCheckpoint:
    return WorkflowCheckpoint(name, "hash", **fields)


async def steps(storage: Any) -> list[Any]:
    with pytest.raises(WorkflowCheckpointException, match="missing"):
        await storage.load("missing")
    seen: list[Any] = [await storage.delete("missing"), await storage.get_latest(workflow_name="w")]
    first = make(checkpoint_id="one", timestamp="2026-01-01T00:00:00+00:00", state={"n": [1, {"a": None}]})
    second = make(
        checkpoint_id="two",
        timestamp="2025-01-01T00:00:00+00:00",
        previous_checkpoint_id="one",
        messages={"a": [WorkflowMessage(Message("user", ["hi"]).to_dict(), "a", trace_contexts=[{"t": "1"}])]},
    )
    seen += [await storage.save(checkpoint) for checkpoint in (first, second, make("other", checkpoint_id="three"))]
    first.state["n"].append("changed after it was saved")
    seen += [await storage.list_checkpoint_ids(workflow_name=name) for name in ("w", "other", "none")]
    seen += [(await storage.load("one")).state, await storage.load("two")]
    seen += [await storage.get_latest(workflow_name="w"), len(await storage.list_checkpoints(workflow_name="w"))]
    await storage.save(make("other", checkpoint_id="one", timestamp=first.timestamp))  # it moves
    seen += [sorted(await storage.list_checkpoint_ids(workflow_name=name)) for name in ("w", "other")]
    seen += [
        await storage.delete("two"),
        await storage.delete("two"),
        await storage.list_checkpoints(workflow_name="w"),
    ]
    return seen


def test_checkpoints_are_those_of_the_storage_in_memory(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    ours = asyncio.run(steps(HoldallCheckpointStorage(any_store, namespace=place)))
    for mine, theirs in zip(ours, asyncio.run(steps(InMemoryCheckpointStorage())), strict=True):
        assert mine == theirs


def test_the_latest_checkpoint_is_one_that_is_there() -> None:
    async def main() -> None:
        async with HoldallCheckpointStorage("memory:") as storage:
            for number in (1, 2):
                await storage.save(make(checkpoint_id=f"{number}", timestamp=f"2026-01-0{number}T00:00:00+00:00"))
            await storage.store.adelete(("checkpoints",), "2")  # by hand: its place in the list stays
            latest = await storage.get_latest(workflow_name="w")
            assert latest is not None
            assert latest.checkpoint_id == "1"

    asyncio.run(main())


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | texts
others = (
    st.binary(max_size=20)
    | st.datetimes(timezones=st.just(UTC) | st.none())
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.just(Colour.RED)
    | st.builds(Point, st.integers(), st.tuples(st.integers()))
    | st.builds(Review, stars=st.integers(), at=st.datetimes())
    | st.sampled_from([int, str, list[str], dict[str, int], str | None, Draft, list[Draft]])
)
keys = texts | st.just("$") | st.integers() | st.tuples(st.integers(), texts)
values = st.recursive(
    plain | others,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=4)
        | st.builds(lambda inside: Draft(inside, [inside]), inner)
        | st.builds(lambda inside: Content.from_function_call("id", "name", arguments={"of": inside}), plain)
    ),
    max_leaves=10,
)


@given(value=values)
def test_any_value_of_known_classes_comes_back(value: Any) -> None:
    async def main() -> Any:
        async with HoldallCheckpointStorage("memory:", types=TYPES) as storage:
            await storage.save(make(checkpoint_id="c", state={"value": value}))
            return (await storage.load("c")).state["value"]

    found = asyncio.run(main())
    assert type(found) is type(value)
    if not isinstance(value, Content):
        assert found == value
    else:
        assert found.to_dict() == value.to_dict()


def test_messages_of_models_come_back_without_the_objects_of_their_sdk() -> None:
    async def main() -> None:
        async with HoldallCheckpointStorage("memory:") as storage:
            answer = AgentResponse(messages=[Message("assistant", ["yes"], raw_representation=object())])
            await storage.save(make(checkpoint_id="c", state={"answer": answer, "floats": [float("inf")]}))
            found = (await storage.load("c")).state
            assert found["answer"].text == "yes" and found["answer"].messages[0].raw_representation is None
            assert found["floats"] == [float("inf")]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Trap(), r"checkpoint.state\['a'\]\[0\] is a .*Trap, which cannot be stored as plain data: pass the class"),
        (Draft("not given"), r"is a .*Draft, which cannot be stored as plain data"),
        (lambda: None, "is a builtins:function"),
        (Trap, "is the class .*Trap, which is not known"),
        (iter([]), "list_iterator"),
    ],
)
def test_what_is_not_plain_data_is_refused_by_its_place(value: Any, reason: str) -> None:
    async def main() -> None:
        async with HoldallCheckpointStorage("memory:") as storage:
            with pytest.raises(WorkflowCheckpointException, match=reason):
                await storage.save(make(state={"a": [value]}))
            assert await storage.list_checkpoint_ids(workflow_name="w") == []

    asyncio.run(main())


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)

    async def main() -> None:
        async with HoldallCheckpointStorage("memory:") as storage:
            with pytest.raises(WorkflowCheckpointException, match="contains itself"):
                await storage.save(make(state={"a": value}))

    asyncio.run(main())
    with pytest.raises(InvalidInput, match="types="):
        HoldallCheckpointStorage("memory:", types=["text"])  # type: ignore[list-item]


def test_nothing_stored_is_unpickled_or_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("unpickled")

    async def main() -> None:
        async with HoldallCheckpointStorage("memory:", types=TYPES) as storage:
            await storage.save(make(checkpoint_id="c", state={"a": [Draft("x")]}))
            monkeypatch.setattr(pickle, "loads", fail)
            monkeypatch.setattr(pickle, "Unpickler", fail)
            assert (await storage.load("c")).state == {"a": [Draft("x")]}
            entry = storage.store.get(("checkpoints",), "c")
            assert entry is not None
            for name in ("os:system", "subprocess:Popen", "agent_framework._agents:Agent"):
                changed = entry.value | {"checkpoint": {"$": name, "of": {"args": "true"}}}
                storage.store.put(("checkpoints",), "c", changed)
                with pytest.raises(WorkflowCheckpointException, match=f"{name}, which is not known"):
                    await storage.load("c")

    asyncio.run(main())
