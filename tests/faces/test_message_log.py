"""Message logs: several processes append to one and remove from it, and nothing is lost or given twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agent_framework import Message
from langchain_core.messages import HumanMessage
from llama_index.core.base.llms.types import ChatMessage

import holdall
from holdall import ops
from holdall.core import face_api
from holdall.errors import Conflict, InvalidInput, InvalidValue, NotFound
from holdall.faces.agent_framework import HoldallHistoryProvider
from holdall.faces.langchain import HoldallChatMessageHistory
from holdall.faces.llama_index import HoldallChatStore
from holdall.faces.message_log import MessageLog
from holdall.faces.openai_agents import HoldallSession
from holdall.testing import Clock
from support.processes import finish_together, report, start, wait_to_begin
from support.stores import new_location, open_at


def log_of(store: holdall.Store, place: tuple[str, ...] = ("logs",)) -> MessageLog:
    return MessageLog.below(store, place, "one")


def numbers(store: holdall.Store, log: MessageLog, limit: int | None = None) -> list[int]:
    return [message["n"] for message in face_api.run(store, log.read(limit))[1]]


@pytest.mark.parametrize("method", ["read", "pop", "delete", "take_all", "append", "replace"])
def test_an_item_of_something_else_is_no_log_and_stays(method: str) -> None:
    with holdall.open("memory:") as store:
        store.put(("logs",), "one", {"text": "of another face"})
        log = log_of(store)
        arguments: Any = ([{"n": 1}],) if method in ("append", "replace") else ()
        with pytest.raises(InvalidInput, match="is an item of something else"):
            face_api.run(store, getattr(log, method)(*arguments))
        assert store.count(()) == 1


def test_messages_are_read_in_order_from_the_end(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    log = log_of(any_store, place)
    assert face_api.run(any_store, log.read()) == (None, [])
    assert face_api.run(any_store, log.pop()) is None
    for first in (0, 3):
        head = face_api.run(any_store, log.append([{"n": first + index} for index in range(3)]))
    assert head.value["length"] == 6
    assert numbers(any_store, log) == [0, 1, 2, 3, 4, 5]
    assert numbers(any_store, log, 2) == [4, 5]
    assert numbers(any_store, log, 0) == []
    assert face_api.run(any_store, log.pop()) == {"n": 5}
    face_api.run(any_store, log.cut(3))
    assert numbers(any_store, log) == [0, 1, 2]
    face_api.run(any_store, log.replace([{"n": 7}]))
    assert numbers(any_store, log) == [7]
    assert any_store.count(log.messages) == 1
    assert face_api.run(any_store, log.delete()) is True
    assert face_api.run(any_store, log.delete()) is False
    assert any_store.count(place) == 0


def test_the_end_of_a_log_is_replaced_if_nothing_has_changed(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    log = log_of(any_store, place)
    seen = face_api.run(any_store, log.append([{"n": number} for number in range(6)]))
    assert face_api.run(any_store, log.replace_end(seen, 4, [{"n": 7}])) is True
    assert numbers(any_store, log) == [0, 1, 2, 3, 7]
    assert face_api.run(any_store, log.replace_end(seen, 4, [{"n": 8}])) is False
    head = face_api.run(any_store, log.read_head())
    assert head is not None
    assert face_api.run(any_store, log.replace_end(head, 4, [{"n": 9}], lambda message: message["n"] in (0, 1, 3, 7)))
    assert numbers(any_store, log) == [2, 3, 9]
    head = face_api.run(any_store, log.read_head())
    assert head is not None and head.value["length"] == 3
    assert any_store.count(log.messages) == 3


def test_a_message_that_cannot_be_stored_leaves_the_log_as_it_was() -> None:
    with holdall.open("memory:") as store:
        log = log_of(store)
        face_api.run(store, log.append([{"n": 1}]))
        with pytest.raises(InvalidValue):
            face_api.run(store, log.append([{"n": 2}, {"n": object()}]))
        assert numbers(store, log) == [1]
        missing = MessageLog.below(store, ("logs",), "two")
        with pytest.raises(NotFound):
            face_api.run(store, missing.append([{"n": 1}], create=False))


def test_a_long_log_is_read_whole() -> None:
    with holdall.open("memory:") as store:
        log = log_of(store)
        face_api.run(store, log.append([{"n": number} for number in range(2500)]))
        assert numbers(store, log) == list(range(2500))
        assert numbers(store, log, 1001) == list(range(1499, 2500))


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis"])
def test_processes_lose_no_message_and_pop_none_twice(engine: str, tmp_path: Path) -> None:
    at = new_location(engine, tmp_path)
    with open_at(at) as store:
        store.setup()
        finish_together([start(append_some, at=at, name=name) for name in range(4)])
        log = log_of(store)
        _, messages = face_api.run(store, log.read())
        assert sorted((one["by"], one["n"]) for one in messages) == [(by, n) for by in range(4) for n in range(20)]
        for by in range(4):  # each process' own messages are in its order
            assert [one["n"] for one in messages if one["by"] == by] == list(range(20))
        popped = finish_together([start(pop_some, at=at) for _ in range(4)])
        got = [tuple(one) for [some] in popped for one in some]
        assert len(got) == 40 and len(set(got)) == 40
        assert len(numbers(store, log)) == 40


def append_some(at: dict[str, str], name: int) -> None:
    with open_at(at) as store:
        log = log_of(store)
        wait_to_begin()
        for number in range(0, 20, 2):
            messages = [{"by": name, "n": number + index} for index in range(2)]
            face_api.run(store, log.append(messages))


def pop_some(at: dict[str, str]) -> None:
    with open_at(at) as store:
        log = log_of(store)
        wait_to_begin()
        found: list[Any] = [face_api.run(store, log.pop()) for _ in range(10)]
        report([[one["by"], one["n"]] for one in found])


def test_messages_are_removed_by_the_numbers_that_are_read() -> None:
    """Of an old log, the first messages may have expired."""
    clock = Clock()
    with holdall.open("memory:", ttl=100, clock=clock) as store:
        log = log_of(store)
        face_api.run(store, log.append([{"n": n} for n in range(3)]))
        clock.advance(60)
        face_api.run(store, log.append([{"n": n} for n in range(3, 7)]))
        clock.advance(60)
        assert numbers(store, log) == [3, 4, 5, 6]
        assert face_api.run(store, log.remove(1)) == {"n": 4}
        assert numbers(store, log) == [3, 5, 6]
        assert face_api.run(store, log.remove(-1)) == {"n": 6}
        assert face_api.run(store, log.remove(-3)) is None
        face_api.run(store, log.append([{"n": 9}]))
        assert numbers(store, log) == [3, 5, 9]


def test_what_is_taken_is_what_is_deleted(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    log = log_of(any_store, place)
    assert face_api.run(any_store, log.take_all()) is None
    face_api.run(any_store, log.append([{"n": 1}]))
    taking = log.take_all()
    request = next(taking)
    while not any(isinstance(op, ops.DeleteTree) for op in request):  # until it has read the messages
        request = taking.send(any_store.execute(request))
    face_api.run(any_store, log.append([{"n": 2}]))
    with pytest.raises(Conflict):
        any_store.execute(request)
    assert face_api.run(any_store, log.take_all()) == [{"n": 1}, {"n": 2}]
    assert any_store.count(place) == 0


def test_sessions_of_two_frameworks_with_one_id_are_apart() -> None:
    async def main(store: holdall.Store) -> None:
        openai, framework = HoldallSession("ada", store), HoldallHistoryProvider(store)
        langchain, llama_index = HoldallChatMessageHistory("ada", store), HoldallChatStore(store)
        await openai.add_items([{"role": "user", "content": "one"}])
        await framework.save_messages("ada", [Message("user", ["two"])])
        await langchain.aadd_messages([HumanMessage("three")])
        await llama_index.async_add_message("ada", ChatMessage("four"))
        assert await openai.get_items() == [{"role": "user", "content": "one"}]
        assert [message.text for message in await framework.get_messages("ada")] == ["two"]
        assert langchain.messages == [HumanMessage("three")]
        assert [message.content for message in llama_index.get_messages("ada")] == ["four"]

    with holdall.open("memory:") as store:
        asyncio.run(main(store))
