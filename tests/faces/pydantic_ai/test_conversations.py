"""pydantic-ai's conversations, compared step by step with its own store in memory, on every engine."""

from __future__ import annotations

import asyncio
import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Agent, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.function import FunctionModel

import holdall
from holdall.faces.pydantic_ai import HoldallConversationStore
from holdall.testing import Clock
from support.processes import finish_together, report, start, wait_to_begin
from support.stores import new_location, open_at


def new_agent() -> Agent[None, str]:
    numbers = itertools.count()
    return Agent(FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart(f"answer {next(numbers)}")])))


def texts(conversation: Conversation | None) -> list[str] | None:
    if conversation is None:
        return None
    return [str(part.content) for message in conversation.messages for part in message.parts]  # type: ignore[union-attr]


async def steps(store: Any) -> list[Any]:
    agent, seen = new_agent(), []

    async def turn(name: str, text: str) -> None:
        conversation = await store.load(name) or Conversation(conversation_id=name)
        await store.save(await agent.run(text, conversation=conversation), scope="team")

    for n in range(20):
        await turn("ada", f"question {n}")
    seen.append(texts(await store.load("ada")))
    seen.append(texts(await store.load("ada", limit=3)))
    seen.append(texts(await store.load("ada", scope="other")))
    fork = await store.fork("ada", at=10, new_conversation_id="fork")
    await store.save(await agent.run("in the fork", conversation=fork))
    loaded = await store.load("ada")
    branched = await store.branch("ada", at=4, expected_revision=loaded.revision)
    await store.save(await agent.run("in the branch", conversation=branched))
    seen += [texts(await store.load(name)) for name in ("ada", "fork", "missing")]
    seen.append(len((await store.read_record("ada")).branches))
    seen.append([record.conversation_id for record in await store.read_records(scope="team", limit=5)])
    with pytest.raises(ConversationConflict):  # the revision that was loaded before is gone
        await store.save(loaded)
    with pytest.raises(ConversationConflict):
        await store.save(Conversation(conversation_id="ada", messages=[]))
    record = await store.read_record("ada")
    with pytest.raises(ConversationConflict):
        await store.delete_record("ada", expected_revision="another")
    await store.delete_record("ada", expected_revision=record.revision)
    seen += [texts(await store.load(name)) for name in ("ada", "fork")]
    with pytest.raises(LookupError):
        await store.read_entry(record.head_id)
    return seen


def test_it_does_what_the_store_in_memory_does(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    ours = HoldallConversationStore(any_store, namespace=place)
    assert asyncio.run(steps(ours)) == asyncio.run(steps(InMemoryConversationStore()))
    # The fork's 12 messages are left, and nothing that only the deleted conversation had.
    assert any_store.count((*place, "messages")) == 12


@pytest.mark.parametrize("make", [InMemoryConversationStore, lambda: HoldallConversationStore("memory:")])
def test_a_fork_of_what_was_deleted_meanwhile_keeps_its_messages(make: Any) -> None:
    """It is saved after its source was deleted, and before the last conversation that shares its messages is."""

    async def main() -> None:
        store = make()
        messages: list[Any] = [ModelRequest(parts=[UserPromptPart(f"message {n}")]) for n in range(3)]
        await store.save(Conversation(conversation_id="source", messages=messages))
        await store.fork("source", new_conversation_id="first")
        source = await store.read_record("source")
        await store.delete_record("source", expected_revision=source.revision)
        late = ConversationRecord(conversation_id="late", head_id=source.head_id, forked_from="source")
        await store.write_record(late, expected_revision=None)
        first = await store.read_record("first")
        await store.delete_record("first", expected_revision=first.revision)
        assert texts(await store.load("late")) == ["message 0", "message 1", "message 2"]
        await store.delete_record("late", expected_revision=late.revision)
        with pytest.raises(LookupError):
            await store.read_entry(source.head_id)

    asyncio.run(main())


@pytest.mark.parametrize("make", [InMemoryConversationStore, lambda: HoldallConversationStore("memory:")])
def test_new_messages_may_have_any_parent_before_them(make: Any) -> None:
    async def main() -> None:
        store = make()
        root = ConversationEntry(parent_id=None, message=ModelRequest(parts=[UserPromptPart("root")]))
        left, right = (
            ConversationEntry(parent_id=root.id, message=ModelRequest(parts=[UserPromptPart(name)]))
            for name in ("left", "right")
        )
        record = ConversationRecord(conversation_id="tree", head_id=right.id, branches=[left.id])
        await store.write_record(record, new_entries=[root, left, right], expected_revision=None)
        assert texts(await store.load("tree")) == ["root", "right"]
        with pytest.raises(ConversationConflict):
            nowhere = ConversationRecord(conversation_id="other", head_id="missing")
            await store.write_record(nowhere, new_entries=[root], expected_revision=None)

    asyncio.run(main())


def test_a_conversation_outlives_its_expired_messages() -> None:
    async def main() -> None:
        clock = Clock()
        async with HoldallConversationStore("memory:", ttl=100, refresh_on_read=True, clock=clock) as store:
            messages: list[Any] = [ModelRequest(parts=[UserPromptPart(f"message {n}")]) for n in range(40)]
            for count in (20, 40):
                conversation = await store.load("chat") or Conversation(conversation_id="chat")
                conversation.messages[:] = messages[:count]
                await store.save(conversation)
                clock.advance(60)
            assert texts(await store.load("chat")) == [f"message {n}" for n in range(20, 40)]
            assert texts(await store.load("chat", limit=2)) == ["message 38", "message 39"]
            await store.fork("chat", new_conversation_id="fork")
            record = await store.read_record("chat")
            assert record is not None
            await store.delete_record("chat", expected_revision=record.revision)
            assert len(texts(await store.load("fork")) or []) == 20
            clock.advance(60)  # only the last message was written again, by the fork
            assert texts(await store.load("fork")) == ["message 39"]
            clock.advance(60)
            assert await store.load("fork") is None

    asyncio.run(main())


def test_a_long_history_is_read_in_few_steps() -> None:
    batches = 0

    def count(_: holdall.OpEvent) -> None:
        nonlocal batches
        batches += 1

    async def main() -> int:
        nonlocal batches
        async with HoldallConversationStore("memory:", on_op=count) as store:
            messages: list[Any] = [ModelRequest(parts=[UserPromptPart(f"message {n}")]) for n in range(320)]
            await store.save(Conversation(conversation_id="long", messages=messages))
            batches = 0
            assert len((await store.load("long")).messages) == 320  # type: ignore[union-attr]
            return batches

    assert asyncio.run(main()) < 25


def test_a_fork_and_a_deletion_at_once_leave_a_readable_fork(tmp_path: Path) -> None:
    async def main() -> None:
        async with HoldallConversationStore(str(tmp_path / "agent.db"), durability="relaxed") as store:
            for n in range(10):
                messages: list[Any] = [ModelRequest(parts=[UserPromptPart(f"message {i}")]) for i in range(6)]
                await store.save(Conversation(conversation_id="c", messages=messages))
                record = await store.read_record("c")
                assert record is not None
                deleted, forked = await asyncio.gather(
                    store.delete_record("c", expected_revision=record.revision),
                    store.fork("c", at=3, new_conversation_id=f"fork {n}"),
                    return_exceptions=True,
                )
                assert deleted is None
                found = await store.load(f"fork {n}")
                if isinstance(forked, BaseException):
                    assert found is None
                else:
                    assert found is not None and len(found.messages) == 3

    asyncio.run(main())


@pytest.mark.not_short
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_of_processes_that_save_at_once_one_wins_each_time(engine: str, tmp_path: Path) -> None:
    at = new_location(engine, tmp_path)
    with open_at(at) as store:
        store.setup()
        saved = finish_together([start(save_some, at=at, name=name) for name in range(4)])
        found = asyncio.run(HoldallConversationStore(store).load("shared"))
        assert sorted(texts(found) or []) == sorted(text for [some] in saved for text in some)


def save_some(at: dict[str, str], name: int) -> None:
    async def main() -> list[str]:
        done = []
        async with open_at(at) as store:
            conversations = HoldallConversationStore(store)
            wait_to_begin()
            for n in range(8):
                while True:
                    found = await conversations.load("shared") or Conversation(conversation_id="shared")
                    found.messages.append(ModelRequest(parts=[UserPromptPart(f"{name} {n}")]))
                    try:
                        await conversations.save(found)
                    except ConversationConflict:
                        continue
                    done.append(f"{name} {n}")
                    break
        return done

    report(asyncio.run(main()))


def request(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


names = st.sampled_from(["ada", "b/c", "名"])
step = st.one_of(
    st.tuples(st.just("extend"), names, st.none() | st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("rewrite"), names, st.integers(0, 4), st.integers(0, 3)),
    st.tuples(st.just("branch"), names, st.integers(0, 6), st.none()),
    st.tuples(st.just("branch back"), names, st.none(), st.none()),
    st.tuples(st.just("fork"), names, names, st.integers(0, 6)),
    st.tuples(st.just("save old"), names, st.none(), st.none()),
    st.tuples(st.just("delete"), names, st.sampled_from([None, "team", "other"]), st.none()),
)


async def take(store: Any, old: dict[str, Conversation], number: int, do: str, name: str, one: Any, more: Any) -> Any:
    """Do a step, and return what the store then shows of all conversations."""
    new = [request(f"{number}.{index}") for index in range(more or 0)]
    try:
        if do == "extend":
            conversation = await store.load(name, limit=one) or Conversation(conversation_id=name)
            old.setdefault(name, copy.deepcopy(conversation))
            conversation.messages.extend(new)
            await store.save(conversation, scope="team")
        elif do == "rewrite":
            loaded = await store.load(name)
            revision = None if loaded is None else loaded.revision
            kept = [] if loaded is None else loaded.messages[:one]
            await store.save(Conversation(conversation_id=name, messages=[*kept, *new], revision=revision))
        elif do == "branch":
            loaded = await store.load(name)
            await store.branch(name, at=one, expected_revision=None if loaded is None else loaded.revision)
        elif do == "branch back":
            record = await store.read_record(name)
            if record is not None and record.branches:
                await store.branch(name, from_entry=record.branches[0], expected_revision=record.revision)
        elif do == "fork":
            await store.fork(name, at=more, new_conversation_id=one, scope="other")
        elif do == "save old" and name in old:
            await store.save(copy.deepcopy(old[name]))
        elif do == "delete":
            await store.delete(name, scope=one)
        seen: list[Any] = []
    except UserError as error:
        seen = [type(error)]
    for each in ("ada", "b/c", "名"):
        seen += [texts(await store.load(each)), texts(await store.load(each, limit=2))]
        record = await store.read_record(each)
        if record is not None:
            lines = [await store.read_history(tip) for tip in record.branches]
            seen += [record.forked_from, [[entry.message.parts[0].content for entry in line] for line in lines]]
    for scope, limit in ((None, None), ("team", 1), ("other", None)):
        seen.append([record.conversation_id for record in await store.list_conversations(scope=scope, limit=limit)])
    return seen


@given(steps=st.lists(step, max_size=15))
def test_random_steps_give_what_the_store_in_memory_gives(steps: list[tuple[str, str, Any, Any]]) -> None:
    async def main() -> None:
        theirs, olds = InMemoryConversationStore(), ({}, {})
        async with HoldallConversationStore("memory:") as ours:
            for number, each in enumerate(steps):
                seen = [await take(store, old, number, *each) for store, old in zip((ours, theirs), olds, strict=True)]
                assert seen[0] == seen[1], each
            kept = {hit.key for hit in ours.store.search((*ours._namespace, "messages"), limit=1000)}
            assert len(kept) == len(theirs._entries)

    asyncio.run(main())
