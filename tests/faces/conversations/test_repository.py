"""Conversations: archived from real checkpointers, resumed, found, exported, kept as long as they may be, erased."""

from __future__ import annotations

import asyncio
import csv
import io
import itertools
import json
import math
import os
import re
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import UUID

import psycopg
import pytest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ChatMessage, HumanMessage, ToolMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages

import holdall
from holdall.engines.sql import entries as sql
from holdall.errors import (
    AlreadyExists,
    Conflict,
    HoldallError,
    InvalidInput,
    IsADirectory,
    NotFound,
    Unavailable,
)
from holdall.faces.conversations import (
    BaseStoreRepository,
    Conversation,
    ConversationRepository,
    PostgresStoreRepository,
)
from holdall.faces.conversations.messages import from_stored, to_stored
from holdall.faces.langgraph import HoldallSaver
from holdall.ops import replace
from holdall.testing import Clock
from holdall.testing.embedder import embed
from support.face_calls import Calls
from support.langgraph_stores import Open, Saver
from support.servers import postgres_url

KEY = re.compile(r"(.+)_(\d{8}_\d{6})_([0-9a-f]{8})")
_numbers = itertools.count()


@pytest.fixture
def repository(open_store: Open) -> Iterator[ConversationRepository]:
    with open_store() as store:
        yield ConversationRepository(store)


@pytest.fixture
def calls(repository: ConversationRepository, runner: asyncio.Runner | None) -> Calls:
    return Calls(repository, runner)


def chat(checkpointer: Any) -> Any:
    """A graph that answers everything with what it has heard so far."""

    def answer(state: MessagesState) -> dict[str, Any]:
        heard = [message.text for message in state["messages"] if isinstance(message, HumanMessage)]
        return {"messages": [AIMessage(f"I heard: {'; '.join(heard)}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=checkpointer)


def say(graph: Any, thread: str, *texts: str) -> list[BaseMessage]:
    config = {"configurable": {"thread_id": thread}}
    for text in texts:
        state = graph.invoke({"messages": [HumanMessage(text)]}, config)
    messages: list[BaseMessage] = state["messages"]
    return messages


# Through real checkpointers ------------------------------------------------------------------------------------------


@contextmanager
def a_checkpointer(kind: str, folder: Path) -> Iterator[Any]:
    if kind == "sqlite":
        with SqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
            yield saver
    elif kind == "postgres":
        with PostgresSaver.from_conn_string(_new_database()) as saver:
            saver.setup()
            yield saver
    else:
        yield InMemorySaver()


@asynccontextmanager
async def an_async_checkpointer(kind: str, folder: Path) -> AsyncIterator[Any]:
    if kind == "sqlite":
        async with AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
            yield saver
    elif kind == "postgres":
        async with AsyncPostgresSaver.from_conn_string(_new_database()) as saver:
            await saver.setup()
            yield saver
    else:
        yield InMemorySaver()


def _new_database() -> str:
    name = f"checkpoints_{next(_numbers)}"
    with psycopg.connect(postgres_url(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    return postgres_url().replace("/postgres?", f"/{name}?")


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_a_thread_outlives_its_checkpointer(kind: str, repository: ConversationRepository, tmp_path: Path) -> None:
    with a_checkpointer(kind, tmp_path) as checkpointer:
        graph = chat(checkpointer)
        messages = say(graph, "trip", "I am Ada.", "I cannot eat peanuts.")
        say(graph, "other", "Something else.")
        archived = repository.archive("ada", "trip", checkpointer)
        repository.archive("ada", "other", graph)
        assert (archived.user_id, archived.thread_id, archived.message_count) == ("ada", "trip", 4)
        assert repository.archive("ada", "trip", checkpointer) == archived, "twice is once"
        assert [one.thread_id for one in repository.conversations("ada")] == ["other", "trip"]
        for thread in ("trip", "other"):
            checkpointer.delete_thread(thread)
        assert checkpointer.get_tuple({"configurable": {"thread_id": "trip"}}) is None

        resumed = repository.resume("ada", "trip")
        assert resumed == messages
        state = graph.invoke(
            {"messages": [*resumed, HumanMessage("What do you know?")]}, {"configurable": {"thread_id": "new"}}
        )
        assert state["messages"][-1].text == "I heard: I am Ada.; I cannot eat peanuts.; What do you know?"
    with pytest.raises(NotFound, match="trip"):
        repository.resume("bob", "trip")
    assert repository.conversations("bob") == []

    sink = io.StringIO()
    assert repository.export(sink, user_id="ada") == 6
    assert repository.erase("ada") == 2
    with pytest.raises(NotFound):
        repository.resume("ada", "trip")
    assert repository.conversations("ada") == []


def test_threads_of_the_same_store_are_archived(open_store: Open) -> None:
    with open_store() as store:
        repository, saver = ConversationRepository(store), HoldallSaver(store)
        graph = chat(saver)
        first = say(graph, "trip", "I am Ada.")
        assert repository.archive("ada", "trip").message_count == 2
        said = say(graph, "trip", "I cannot eat peanuts.")
        archived = asyncio.run(repository.aarchive("ada", "trip"))
        assert repository.archive("ada", "trip", saver) == archived
        assert repository.conversations("ada") == [archived]
        saver.delete_thread("trip")
        assert repository.resume("ada", "trip") == said
        assert said[:2] == first
        with pytest.raises(NotFound, match="no thread"):
            repository.archive("ada", "trip")
        own = HoldallSaver(store, namespace=("own",))
        say(chat(own), "trip", "In a namespace of its own.")
        assert ConversationRepository(own).archive("ada", "trip").message_count == 2


def test_a_thread_that_is_archived_again_and_again_still_expires() -> None:
    clock = Clock()
    with holdall.open("memory:", clock=clock) as store:
        saver = HoldallSaver(store, ttl=100)
        say(chat(saver), "trip", "hello")
        for repository in (ConversationRepository(store), ConversationRepository(HoldallSaver(store, ttl=100))):
            clock.advance(40)
            assert repository.archive("ada", "trip").message_count == 2
            assert asyncio.run(repository.aarchive("ada", "trip")).message_count == 2
        clock.advance(40)
        assert saver.get_tuple({"configurable": {"thread_id": "trip"}}) is None
        assert saver.threads() == []


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_a_thread_outlives_its_async_checkpointer(
    kind: str, repository: ConversationRepository, tmp_path: Path
) -> None:
    async def go() -> None:
        async with an_async_checkpointer(kind, tmp_path) as checkpointer:
            graph = chat(checkpointer)
            config = {"configurable": {"thread_id": "trip"}}
            state = await graph.ainvoke({"messages": [HumanMessage("I am Ada.")]}, config)
            archived = await repository.aarchive("ada", "trip", checkpointer)
            assert await repository.aarchive("ada", "trip", graph) == archived
            await checkpointer.adelete_thread("trip")
            assert await repository.aresume("ada", "trip") == state["messages"]
            assert len(await repository.aconversations("ada")) == 1
            with pytest.raises(NotFound, match="no thread"):
                await repository.aarchive("ada", "trip", checkpointer)

    asyncio.run(go())


def test_a_sync_checkpointer_can_be_archived_from_in_an_event_loop(
    repository: ConversationRepository, tmp_path: Path
) -> None:
    with a_checkpointer("sqlite", tmp_path) as checkpointer:
        say(chat(checkpointer), "trip", "I am Ada.")
        archived = asyncio.run(repository.aarchive("ada", "trip", checkpointer))
    assert archived.message_count == 2


def _add_all(before: Any, writes: Any) -> Any:
    return list(itertools.accumulate(writes, add_messages, initial=before))[-1]


class DeltaState(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_add_all)]


def test_messages_in_a_delta_channel_are_archived_from_the_graph(repository: ConversationRepository) -> None:
    builder = StateGraph(DeltaState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage("Yes.")]})
    builder.add_edge(START, "answer")
    checkpointer = InMemorySaver()
    graph = builder.compile(checkpointer=checkpointer)
    say(graph, "trip", "Is it?")
    with pytest.raises(NotFound, match="pass the compiled graph"):
        repository.archive("ada", "trip", checkpointer)
    assert repository.archive("ada", "trip", graph).message_count == 2
    assert [message.text for message in repository.resume("ada", "trip")] == ["Is it?", "Yes."]


# What is archived ----------------------------------------------------------------------------------------------------


def test_the_key_is_the_thread_the_checkpoints_time_and_a_hash_of_its_id(calls: Calls) -> None:
    archived = calls.archive("ada", "a_thread/1", Saver([HumanMessage("x")], ts="2026-03-04T07:06:07+02:00"))
    found = KEY.fullmatch(archived.key)
    assert found is not None
    assert found.groups()[:2] == ("a_thread/1", "20260304_050607")
    value = calls.get(("users", "ada", "conversations"), archived.key)
    assert set(value) == {"user_id", "thread_id", "checkpoint_id", "checkpoint_at", "messages"}
    assert value["checkpoint_at"] == "2026-03-04T05:06:07.000000+00:00"
    assert calls.archive("ada", "a_thread/1", Saver([HumanMessage("x")], id="1f0-b")).key != archived.key


def test_what_is_archived_twice_is_stored_once_and_stays_as_it_was(calls: Calls) -> None:
    first = calls.archive("ada", "t", Saver([HumanMessage("x")]))
    assert calls.archive("ada", "t", Saver([HumanMessage("tampered")])) == first
    assert calls.face.store.store.count() == 1
    assert [message.text for message in calls.resume("ada", "t")] == ["x"]


def test_a_thread_that_continues_is_archived_once(calls: Calls) -> None:
    said = [HumanMessage("one", id="1"), AIMessage("two", id="2"), HumanMessage("three", id="3")]

    def archive(messages: list[Any], second: int, user: str = "ada") -> Any:
        return calls.archive(user, "t", Saver(messages, id=f"1f0-{second}", ts=f"2026-03-04T05:00:0{second}+00:00"))

    archive(said[:1], 1)
    other = archive(said[:1], 1, "bob")
    second = archive(said[:2], 2)
    assert calls.conversations("ada") == [second]
    assert calls.conversations("bob") == [other], "that of another user stays"
    edited = archive([HumanMessage("edited", id="1"), *said[1:]], 3)
    assert calls.conversations("ada") == [edited, second], "it has not all messages of the one before"
    earlier = archive([HumanMessage("edited", id="1"), *said[1:]], 0)
    assert calls.conversations("ada") == [earlier, edited, second], "an earlier state replaces none"


def test_resume_gives_the_newest_checkpoint_whichever_was_archived_last(calls: Calls) -> None:
    for minute in (5, 9, 7):
        said = [HumanMessage(str(minute))]
        calls.archive("ada", "t", Saver(said, id=f"1f0-{minute}", ts=f"2026-03-04T05:0{minute}:00+00:00"))
    assert [message.text for message in calls.resume("ada", "t")] == ["9"]
    assert len(calls.conversations("ada", thread_id="t")) == 3
    assert calls.conversations("ada", thread_id="other") == []
    assert len(calls.conversations("ada", limit=2)) == 2


def test_of_two_checkpoints_of_one_moment_the_later_id_is_newer(calls: Calls) -> None:
    for minute in "364":
        calls.archive("ada", "t", Saver([HumanMessage(minute)], id=f"1f0-{minute}"))
    assert [message.text for message in calls.resume("ada", "t")] == ["6"]


def test_resume_loads_only_the_newest_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def noting(function: Any, op: Any, rows: list[tuple[Any, ...]]) -> Any:
        loaded.extend(row[1] for row in rows)
        return process_rows(function, op, rows)

    process_rows = sql.process_rows
    monkeypatch.setattr(sql, "process_rows", noting)
    with ConversationRepository(str(tmp_path / "agent.db")) as repository:
        for n in range(20):
            saver = Saver([HumanMessage(str(n))], id=f"1f0-{n:02}", ts=f"2026-03-04T05:00:{n:02}+00:00")
            repository.archive("ada", "t", saver)
        loaded.clear()
        assert [message.text for message in repository.resume("ada", "t")] == ["19"]
    assert 0 < len(loaded) <= 3, "one to give, one to know whether there are more, one to compare"


def test_one_users_thread_never_opens_anothers(calls: Calls) -> None:
    calls.archive("ada", "t", Saver([HumanMessage("secret")]))
    calls.archive("ada-2", "t", Saver([HumanMessage("theirs")]))
    for user in ("bob", "ad", "ada.x", "*", "ada_2"):
        with pytest.raises(NotFound):
            calls.resume(user, "t")
        assert calls.conversations(user) == []
        assert calls.erase(user) == 0
        assert calls.retain(timedelta(0), user_id=user) == 0
    assert [message.text for message in calls.resume("ada", "t")] == ["secret"]
    assert [message.text for message in calls.resume("ada-2", "t")] == ["theirs"]


def test_a_users_id_may_be_an_address(calls: Calls) -> None:
    """LangGraph's labels have no dots; ours may."""
    calls.archive("ada@example.org", "t", Saver([HumanMessage("x")]))
    assert [message.text for message in calls.resume("ada@example.org", "t")] == ["x"]
    assert calls.erase("ada@example.org") == 1


@pytest.mark.parametrize("user", ["", None, 7, "\x00", "__holdall__"])
def test_a_user_or_thread_that_is_none_is_refused(calls: Calls, user: Any) -> None:
    with pytest.raises(InvalidInput):
        calls.archive(user, "t", Saver([HumanMessage("x")]))
    with pytest.raises(InvalidInput):
        calls.erase(user)
    if user in ("", None, 7):
        with pytest.raises(InvalidInput):
            calls.archive("ada", user, Saver([HumanMessage("x")]))
    assert calls.face.store.store.count() == 0


def test_an_invalid_source_and_a_state_without_messages_are_refused(calls: Calls) -> None:
    with pytest.raises(InvalidInput, match="checkpointer or a compiled graph"):
        calls.archive("ada", "t", object())
    with pytest.raises(NotFound, match="channel="):
        calls.archive("ada", "t", Saver(None))
    with pytest.raises(NotFound, match="no thread"):
        calls.archive("ada", "t", InMemorySaver())
    assert calls.archive("ada", "t", Saver([])).message_count == 0
    assert calls.resume("ada", "t") == []


@pytest.mark.parametrize("channel", [[], None, 5, b"messages"])
def test_a_channel_that_is_no_name_is_refused(calls: Calls, channel: Any) -> None:
    with pytest.raises(InvalidInput, match="channel"):
        calls.archive("ada", "t", Saver([HumanMessage("x")]), channel=channel)


@pytest.mark.parametrize("odd", [5, [5], [{"no": "message"}]])
def test_a_channel_without_messages_is_refused(calls: Calls, odd: Any) -> None:
    with pytest.raises(InvalidInput, match="'messages' does not contain messages"):
        calls.archive("ada", "t", Saver(odd))


@pytest.mark.parametrize("thread", [None, "", 5, []])
def test_a_thread_that_is_none_is_not_resumed(calls: Calls, thread: Any) -> None:
    calls.archive("ada", "t", Saver([HumanMessage("x")]))
    with pytest.raises(InvalidInput, match="thread_id"):
        calls.resume("ada", thread)


def test_another_entry_under_the_key_of_an_archive_is_kept(calls: Calls) -> None:
    home = ("users", "ada", "conversations")
    archived = calls.archive("ada", "t", Saver([HumanMessage("x")]))
    calls.put(home, archived.key, {"somebody": "else's"})
    with pytest.raises(AlreadyExists, match=archived.key):
        calls.archive("ada", "t", Saver([HumanMessage("x")]))
    assert calls.get(home, archived.key) == {"somebody": "else's"}


def test_a_conversation_erased_while_it_is_archived_again_is_archived(calls: Calls) -> None:
    """Between the put that finds it and the look at what it has found."""
    store = calls.face.store.store
    archived = calls.archive("ada", "t", Saver([HumanMessage("x")]))

    def erase(event: holdall.OpEvent) -> None:
        if event.error is Conflict:
            store.erased = store.delete_tree(("users",))  # type: ignore[attr-defined]  # noted for below

    store._options = replace(store._options, on_op=erase)
    again = calls.archive("ada", "t", Saver([HumanMessage("x")]))
    assert store.erased == 1  # type: ignore[attr-defined]  # as above
    assert again.key == archived.key
    assert [message.text for message in calls.resume("ada", "t")] == ["x"]


MESSAGES: list[BaseMessage] = [
    HumanMessage("Hello — ☕", id="1", name="Ada", additional_kwargs={"k": [1, None]}),
    HumanMessage([{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "data:…"}}]),
    AIMessage("", tool_calls=[{"name": "look", "args": {"at": "it"}, "id": "c1"}], response_metadata={"m": 1}),
    ToolMessage("seen", tool_call_id="c1", artifact={"raw": [1, 2]}, status="error"),
    AIMessage("Done.", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    ChatMessage("as somebody", role="critic", more="than fields"),
]


def test_messages_come_back_as_they_were() -> None:
    stored = json.loads(json.dumps(to_stored(MESSAGES)))
    assert from_stored(stored) == MESSAGES


def test_a_message_with_any_content_can_be_archived(calls: Calls) -> None:
    loop: list[Any] = []
    loop.append(loop)
    odd = {
        "nan": math.nan,
        "inf": -math.inf,
        "surrogate": "\ud800",
        "bytes": b"\x00\xff",
        "when": datetime(2026, 1, 1, tzinfo=UTC),
        "id": UUID(int=1),
        "set": {1},
        "object": object(),
        "loop": loop,
        7: "number",
        "big": 10**5000,
        "model": HumanMessage("inner"),
    }
    calls.archive("ada", "t", Saver([AIMessage("\udfff!", response_metadata=odd), {"role": "user", "content": "y"}]))
    first, second = calls.resume("ada", "t")
    assert (first.text, second.text) == ("?!", "y")
    kept = first.response_metadata
    assert (kept["nan"], kept["inf"], kept["bytes"], kept["7"]) == (None, None, "AP8=", "number")
    assert kept["when"] == "2026-01-01T00:00:00+00:00"
    assert kept["model"]["content"] == "inner"


def test_a_message_of_an_unknown_class_is_resumed_as_a_chat_message() -> None:
    [message] = from_stored([{"type": "theirs", "content": "x", "id": "1"}])
    assert message == ChatMessage("x", role="theirs", id="1")


@pytest.mark.parametrize(
    ("content", "text"),
    [("x", "x"), ([{"type": "text", "text": "a"}, "b", {"type": "image"}], "a\nb"), ([], ""), ([{"text": 1}], "")],
)
def test_the_text_of_a_message_is_stored_whatever_blocks_it_has(content: Any, text: str) -> None:
    message = HumanMessage(content)
    [stored] = to_stored([message])
    assert stored["content"] == text
    assert from_stored([stored]) == [message]


@pytest.mark.parametrize(
    "odd",
    [{}, {"messages": "x"}, {"messages": [1]}, {"messages": [{}]}, {"checkpoint_at": "never"}, {"thread_id": None}],
)
def test_an_entry_that_only_resembles_a_conversation_is_ignored(calls: Calls, odd: dict[str, Any]) -> None:
    archived = calls.archive("ada", "t", Saver([HumanMessage("x")]))
    home = ("users", "ada", "conversations")
    value = calls.get(home, archived.key) | {"checkpoint_at": "2099-01-01T00:00:00.000000+00:00"}
    calls.put(home, "odd", {} if odd == {} else value | odd)
    assert calls.conversations("ada") == [archived]
    assert [message.text for message in calls.resume("ada", "t")] == ["x"]
    assert calls.export(io.StringIO()) == 1
    assert calls.retain(timedelta(days=-100 * 365)) == 1


# Finding -------------------------------------------------------------------------------------------------------------


def test_conversations_are_found_by_words_and_by_meaning(calls: Calls) -> None:
    for thread, said in (("diet", "I cannot eat peanuts"), ("trip", "The train leaves at nine"), ("tea", "Green tea")):
        blocks = [{"type": "text", "text": said}, {"type": "image", "data": "peanuts"}]
        calls.archive("ada", thread, Saver([HumanMessage("Hello"), HumanMessage(blocks)], id=thread))
    calls.archive("bob", "diet", Saver([HumanMessage("peanuts for me")], id="bob"))
    found = calls.conversations("ada", query="peanut")
    assert [one.thread_id for one in found] == ["diet"], "pictures are not read"
    assert found[0].score is not None
    assert calls.search(("users", "ada"), query="trains")[0]["value"]["thread_id"] == "trip"
    assert calls.conversations("ada", query="bicycles") == []

    asked: list[str] = []

    def embed_and_tell(texts: Any) -> list[list[float]]:
        asked.extend(texts)
        return embed(texts)

    index = {"dims": 32, "embed": embed_and_tell}
    meaning = Calls(ConversationRepository(calls.face, index=index), calls._runner)
    meaning.archive("ada", "again", Saver([HumanMessage("It leaves at ten"), AIMessage("Noted.")], id="again"))
    assert asked[-2:] == ["It leaves at ten", "Noted."], "each message has its own vector"
    assert meaning.conversations("ada", query="leaves at ten")[0].thread_id == "again"


def test_an_answer_is_found_beside_its_question(calls: Calls) -> None:
    turns = [
        HumanMessage("Hello"), AIMessage("Hi"), HumanMessage("What is the name of my cat?"), AIMessage("Fritz."),
        HumanMessage("Thanks"),
    ]  # fmt: skip
    calls.archive("ada", "pets", Saver(turns, id="1"))
    later = calls.archive("ada", "pets", Saver([*turns, AIMessage("Bye")], id="2"))
    calls.archive("ada", "food", Saver([HumanMessage("Buy food for the dog"), AIMessage("Done")], id="3"))
    calls.archive("bob", "pets", Saver([HumanMessage("my cat is called Tom")], id="4"))
    found = calls.find_messages("ada", "name of the cat")
    assert [(one.number, one.message) for one in found] == [(2, turns[2]), (1, turns[1]), (3, turns[3])]
    assert found[0].conversation.thread_id == "pets"
    assert found[1].score == pytest.approx(found[0].score * 0.3)
    assert [one.message.text for one in calls.find_messages("ada", "cat", neighbours=0)] == [turns[2].text]
    assert [one.number for one in calls.find_messages("ada", "cat", limit=1, neighbours=1)] == [1]
    assert calls.find_messages("ada", "cat", thread_id="food") == calls.find_messages("ada", "unicorn") == []
    assert calls.find_messages("ada", "bye", neighbours=0)[0].conversation.key == later.key
    for bad in ({"query": None}, {"neighbours": 2}, {"limit": -1}):
        with pytest.raises(InvalidInput):
            calls.find_messages(**{"user_id": "ada", "query": "cat", **bad})


# Exporting -----------------------------------------------------------------------------------------------------------


def fill(calls: Calls) -> None:
    for user, thread, texts in (
        ("ada", "t1", ["hello", "=1+1"]),
        ("ada", "t2", ['ünï\n,"quoted"']),
        ("bob", "t1", ["-x", "@y"]),
    ):
        calls.archive(user, thread, Saver([HumanMessage(text, name="n") for text in texts], id=f"{user}-{thread}"))
    calls.put(("users", "ada", "conversations"), "not one", {"checkpoint_at": "whatever", "messages": "none"})
    calls.put(("users", "ada", "memories"), "k", {"text": "not exported"})


def test_jsonl_has_everything_line_by_line(calls: Calls, tmp_path: Path) -> None:
    fill(calls)
    recorded: list[tuple[int, int]] = []
    path = tmp_path / "audit.jsonl"
    assert calls.export(path, progress=lambda *state: recorded.append(state)) == 5
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((line["user_id"], line["thread_id"], line["position"], line["text"]) for line in lines) == [
        ("ada", "t1", 0, "hello"),
        ("ada", "t1", 1, "=1+1"),
        ("ada", "t2", 0, 'ünï\n,"quoted"'),
        ("bob", "t1", 0, "-x"),
        ("bob", "t1", 1, "@y"),
    ]
    assert from_stored([line["message"] for line in lines if line["text"] == "hello"]) == [
        HumanMessage("hello", name="n")
    ]
    assert recorded[-1] == (3, 4)
    assert calls.export(path, user_id="bob") == 2
    assert len(path.read_text().splitlines()) == 2
    assert calls.export(path, thread_id="t2") == 1
    assert calls.export(path, user_id="nobody") == 0
    assert path.read_text() == ""
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_an_export_names_the_author_of_what_was_archived(calls: Calls, repository: Any, tmp_path: Path) -> None:
    fill(calls)
    agent = ConversationRepository(repository.store.store.acting("agent-7", reason="=nightly"))
    agent.archive("eve", "t1", Saver([HumanMessage("signed")], id="c1"))
    calls.export(tmp_path / "audit.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert {(line["text"] == "signed", line["author"], line["reason"]) for line in lines} == {
        (True, "agent-7", "=nightly"),
        (False, None, None),
    }
    calls.export(tmp_path / "audit.csv", user_id="eve")
    with (tmp_path / "audit.csv").open(newline="") as file:
        assert [(row["author"], row["reason"]) for row in csv.DictReader(file)] == [("agent-7", "'=nightly")]


def test_csv_is_safe_in_a_spreadsheet(calls: Calls, tmp_path: Path) -> None:
    fill(calls)
    path = tmp_path / "audit.csv"
    assert calls.export(path) == 5
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["text"] for row in rows} == {"hello", "'=1+1", 'ünï\n,"quoted"', "'-x", "'@y"}
    assert list(rows[0]) == [
        *("user_id", "thread_id", "conversation", "checkpoint_at", "archived_at", "position", "type", "name", "text"),
        *("author", "reason"),
    ]
    assert {row["type"] for row in rows} == {"human"}


def test_an_export_does_not_replace_a_device(calls: Calls, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # as /dev/null is no regular file
    with pytest.raises(InvalidInput, match="no regular file"):
        calls.export(tmp_path / "pipe", format="jsonl")
    assert (tmp_path / "pipe").is_fifo()


def test_an_export_that_fails_leaves_the_path_as_it_was(calls: Calls, tmp_path: Path) -> None:
    fill(calls)
    path = tmp_path / "audit.txt"
    path.write_text("before")

    def fail(done: int, total: int) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        calls.export(path, format="csv", progress=fail)
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
    with pytest.raises(InvalidInput, match="format"):
        calls.export(path)


def test_exporting_to_an_open_file(calls: Calls) -> None:
    fill(calls)
    sink = io.StringIO()
    assert calls.export(sink, format="csv") == 5
    assert sink.getvalue().startswith("user_id,thread_id,")


def test_a_target_that_cannot_be_written_is_an_error(calls: Calls, tmp_path: Path) -> None:
    fill(calls)
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    closed = io.StringIO()
    closed.close()
    refused: list[tuple[Any, type[HoldallError]]] = [
        (5, InvalidInput),
        (None, InvalidInput),
        (io.BytesIO(), InvalidInput),
        (closed, InvalidInput),
        ("a\x00.csv", InvalidInput),
        (tmp_path / "missing" / "x.jsonl", NotFound),
        (tmp_path / "folder.csv", IsADirectory),
        (tmp_path / "file" / "x.csv", Unavailable),
    ]
    for target, error in refused:
        with pytest.raises(error):
            calls.export(target)
    for progress in (5, "x", []):
        with pytest.raises(InvalidInput, match="progress"):
            calls.export(io.StringIO(), progress=progress)
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == [], "nothing is left behind"


def test_an_export_for_which_the_disk_has_no_space_leaves_the_path_as_it_was(tmp_path: Path) -> None:
    repository = ConversationRepository("memory:")  # it needs no space itself
    repository.archive("ada", "t1", Saver([HumanMessage("hello", name="n")], id="one"))
    (tmp_path / "audit.jsonl").write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def shrink(done: int, total: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))  # what is written last is more

    try:
        with pytest.raises(Unavailable):
            repository.export(tmp_path / "audit.jsonl", progress=shrink)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "audit.jsonl").read_text() == "before"
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


# Keeping -------------------------------------------------------------------------------------------------------------


def test_retain_deletes_what_is_older(calls: Calls) -> None:
    now = datetime.now(UTC)
    for user, days in (("ada", 1), ("ada", 40), ("bob", 41), ("bob", 29)):
        at = (now - timedelta(days=days)).isoformat()
        calls.archive(user, f"t{days}", Saver([HumanMessage("x")], id=f"1f0-{days}", ts=at))
    calls.put(("users", "ada", "conversations"), "not one", {"checkpoint_at": "0000", "messages": "none"})
    assert calls.retain(timedelta(days=30), user_id="ada") == 1
    assert calls.retain(timedelta(days=30)) == 1
    assert {one.thread_id for user in ("ada", "bob") for one in calls.conversations(user)} == {"t1", "t29"}
    assert calls.retain(now - timedelta(days=20)) == 1
    assert calls.get(("users", "ada", "conversations"), "not one") is not None
    with pytest.raises(InvalidInput, match="with a time zone"):
        calls.retain(datetime(2026, 1, 1))  # noqa: DTZ001  # which is the mistake
    for odd in (5, None, "30d", [], timedelta.max):
        with pytest.raises(InvalidInput, match="timedelta"):
            calls.retain(odd)
    with pytest.raises(InvalidInput, match="1 to 9999"):
        calls.retain(datetime.max.replace(tzinfo=timezone(timedelta(hours=-8))))


def test_many_are_retained_exported_and_resumed_in_pages(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdall.faces.conversations.repository._PAGE_SIZE", 3)
    for n in range(10):
        said = [HumanMessage(str(n))]
        calls.archive("ada", "t", Saver(said, id=f"1f0-{n}", ts=f"2026-03-0{n % 5 + 1}T05:00:0{n}+00:00"))
    assert calls.export(io.StringIO()) == 10
    assert [message.text for message in calls.resume("ada", "t")] == ["9"]
    assert calls.retain(datetime(2026, 3, 4, tzinfo=UTC)) == 6
    assert len(calls.conversations("ada")) == 4


# The repository ------------------------------------------------------------------------------------------------------


def test_the_four_methods_over_any_value(calls: Calls) -> None:
    assert isinstance(calls.face, BaseStoreRepository)
    home = ("users", "ada", "notes")
    calls.put(home, "k", {"n": 1})
    assert calls.get(home, "k") == {"n": 1}
    assert calls.get(home, "none") is None
    [found] = calls.search(("users", "ada"))
    assert (found["namespace"], found["key"], found["value"], found["score"]) == (list(home), "k", {"n": 1}, None)
    assert calls.delete(home, "k") is None
    assert calls.search(home) == []
    with pytest.raises(InvalidInput, match="langgraph"):
        calls.put(("langgraph", "notes"), "k", {})


def test_its_store_is_for_a_graph(repository: ConversationRepository) -> None:
    seen: list[Any] = []
    builder = StateGraph(MessagesState)
    builder.add_node("n", lambda state, *, store: seen.append(store))
    builder.add_edge(START, "n")
    builder.compile(store=repository.store).invoke({"messages": []})
    [store] = seen
    assert store is repository.store


def test_opening_by_url(tmp_path: Path) -> None:
    with ConversationRepository(tmp_path / "agent.db") as one:
        one.archive("ada", "t", Saver([HumanMessage("x")]))
    with ConversationRepository(tmp_path / "agent.db") as one:
        [kept] = one.conversations("ada")
        assert isinstance(kept, Conversation)
        assert ConversationRepository(one).conversations("ada") == [kept]


def test_a_repository_on_postgres() -> None:
    url = _new_database()
    with PostgresStoreRepository(url, pool_config={"max_size": 2}) as one:
        one.archive("ada", "t", Saver([HumanMessage("x")]))
        assert len(one.conversations("ada")) == 1
    with pytest.raises(holdall.errors.StoreClosed):
        one.conversations("ada")
    with pytest.raises(InvalidInput, match="PostgreSQL"):
        PostgresStoreRepository("agent.db")
