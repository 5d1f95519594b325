"""`HoldallSaver`: hidden namespaces, space, values, and opening."""

from __future__ import annotations

import asyncio
import base64
import gc
import itertools
import operator
import os
import weakref
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph

import holdall
from holdall import errors
from holdall.faces.langgraph import AsyncHoldallSaver, HoldallSaver, HoldallStore
from holdall.faces.langgraph.checkpoints.known_logs import Address, KnownLogs
from support.langgraph_threads import FernetCipher, chat, put_empty, put_values, say, size_of_log, texts, thread

# Where the threads are -----------------------------------------------------------------------------------------------


def test_checkpoints_are_hidden_from_the_memories_beside_them(saver_store: holdall.Store) -> None:
    store = saver_store.scoped(("hidden",))
    memories, graph = HoldallStore(store), chat(HoldallSaver(store))
    memories.put(("memories",), "one", {"text": "hello"})
    say(graph, "t1", "hello")
    assert [item.key for item in memories.search(())] == ["one"]
    assert [item.key for item in memories.search((), query="hello")] == ["one"]
    assert memories.list_namespaces() == [("memories",)]
    assert store.count() == 1
    assert [entry.key for entry in store.scan()] == ["one"]
    assert store.count((".holdall.threads",)) == 3
    assert store.stats().entries == 4


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_copies_and_backups_have_the_threads_and_an_erasure_removes_them(tmp_path: Path, is_encrypted: bool) -> None:
    serde = EncryptedSerializer(FernetCipher()) if is_encrypted else None
    with holdall.open(tmp_path / "agent.db") as store:
        saver = HoldallSaver(store, serde=serde)
        graph = chat(saver)
        say(graph, "t", "one swordfish")
        say(graph, "t", "two")
        saver.prune(["t"])
        say(graph, "t", "three", user_id="ada")
        before = [tuple(found) for found in saver.list(None)]
        store.backup(tmp_path / "agent.backup")
        with holdall.open("memory:") as copied, holdall.open(tmp_path / "loaded.db") as loaded:
            holdall.copy(store, copied)
            loaded.load(tmp_path / "agent.backup")
            for other in (copied, loaded):
                there = HoldallSaver(other, serde=serde)
                assert [tuple(found) for found in there.list(None)] == before
                [listed] = there.threads(filter={"user_id": "ada"})
                assert (listed.id, listed.checkpoints) == ("t", 4)
                say(chat(there), "t", "four")
                assert len(texts(chat(there), "t")) == 8
        store.erase((*saver.namespace, "t"))
        store.erase(saver.namespace, "t")
        assert HoldallSaver(store, serde=serde).get_tuple(thread("t")) is None
        assert saver.threads() == []
    assert all(b"swordfish" not in file.read_bytes() for file in tmp_path.glob("agent.db*"))


def test_a_scope_has_threads_of_its_own(saver_store: holdall.Store) -> None:
    graphs = [chat(HoldallSaver(saver_store.scoped(("scopes", tenant)))) for tenant in ("a", "b")]
    for graph, text in zip(graphs, ("for a", "for b"), strict=True):
        say(graph, "same", text)
    assert [texts(graph, "same")[0] for graph in graphs] == ["for a", "for b"]


def test_a_scope_reaches_no_threads_of_others(saver_store: holdall.Store) -> None:
    """Neither with IDs that look like paths, nor with calls that look through all threads."""
    inside, outside = (HoldallSaver(saver_store.scoped(scope)) for scope in (("walls", "a"), ("walls",)))
    other = HoldallSaver(saver_store.scoped(("walls", "b")))
    for saver in (other, outside):
        for _ in range(3):
            put_empty(saver, "t", run_id="r")
    for id in ("t", "../b/t", "../../b/.holdall.threads/t", "b"):
        assert inside.get_tuple(thread(id)) is None
        assert list(inside.list(thread(id))) == []
        inside.copy_thread(id, "mine")
        inside.delete_thread(id)
        with pytest.raises(errors.NotFound):
            inside.set_ttl(id, 1)
    inside.delete_for_runs(["r"])
    assert (inside.retain(keep_last=1), list(inside.list(None)), inside.threads()) == (0, [], [])
    assert [len(list(saver.list(None))) for saver in (other, outside)] == [3, 3]


# Space ---------------------------------------------------------------------------------------------------------------


def test_a_turn_costs_the_same_however_long_the_thread_is(saver: HoldallSaver) -> None:
    graph, sizes = chat(saver), [0]
    for _ in range(40):
        say(graph, "t", base64.b64encode(os.urandom(400)).decode())
        sizes.append(size_of_log(saver, "t"))
    turns = [after - before for before, after in itertools.pairwise(sizes)]
    assert max(turns[1:]) < 1.1 * min(turns[1:])
    saver.known_logs.clear()  # and no more in a process that has just begun
    say(graph, "t", base64.b64encode(os.urandom(400)).decode())
    assert size_of_log(saver, "t") - sizes[-1] < 1.1 * min(turns[1:])


def test_a_large_value_is_stored_once(saver: HoldallSaver) -> None:
    image = base64.b64encode(os.urandom(300_000)).decode()
    content: Any = [{"type": "image", "base64": image}]
    graph = chat(saver)
    graph.invoke({"messages": [HumanMessage(content, id="image")]}, thread("t"))
    before = size_of_log(saver, "t")
    for number in range(3):
        graph.invoke({"messages": [HumanMessage("more", id=f"more-{number}")]}, thread("t"))
    graph.update_state(
        thread("t"), {"messages": [HumanMessage("edited", id="more-0")]}
    )  # what follows is written again
    assert size_of_log(saver, "t") - before < 20_000
    assert graph.get_state(thread("t")).values["messages"][0].content == content


def test_what_a_saver_remembers_is_limited_in_threads_that_it_only_reads(tmp_path: Path) -> None:
    """Neither the lists that it loaded nor what others appended was counted."""
    most = 200_000
    with HoldallSaver(tmp_path / "agent.db") as writer, HoldallSaver(tmp_path / "agent.db") as reader:
        reader.known_logs = KnownLogs(most)
        for turn in range(2):
            for number in range(10):
                values = {"messages": [HumanMessage(f"{turn} {text}", id=str(text)) for text in range(50)]}
                put_values(writer, values, thread(f"t{number}"))
                assert reader.get_tuple(thread(f"t{number}")) is not None
        remembered = [reader.known_logs.recall(Address(f"t{number}", "")) for number in range(10)]
        weights = [known.weight for known in remembered if known is not None]
        assert 0 < sum(weights) <= most


# Values ---------------------------------------------------------------------------------------------------------------


def test_an_element_that_is_changed_in_place_is_stored_again(saver: HoldallSaver) -> None:
    class Plan(TypedDict):
        steps: Annotated[list[Any], operator.add]

    def work(state: Plan) -> Any:
        state["steps"][0]["done"] = len(state["steps"])
        return {"steps": [{"done": 0}]}

    builder = StateGraph(Plan)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    graph = builder.compile(checkpointer=saver)
    for _ in range(3):
        graph.invoke({"steps": [{"done": None}]}, thread("t"))
    saver.known_logs.clear()
    assert graph.get_state(thread("t")).values["steps"][0] == {"done": 5}


class Role(StrEnum):
    """A text that is serialised in another way than a text."""

    USER = "user"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 0.0}, {"a": -0.0}),
        ({"a": [[1]]}, {"a": [[1.0]]}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"role": "user"}, {"role": Role.USER}),
        ({1: "a"}, {True: "a"}),
        (HumanMessage("a", additional_kwargs={"n": 1}), HumanMessage("a", additional_kwargs={"n": True})),
        (ToolMessage("a", tool_call_id="b", artifact="user"), ToolMessage("a", tool_call_id="b", artifact=Role.USER)),
        (np.arange(2), np.arange(1, 3)),
        (None, np.arange(2)),
        ({"a": np.arange(2)}, {"a": None}),
        (ToolMessage("a", tool_call_id="b"), ToolMessage("a", tool_call_id="b", artifact=np.arange(2))),
        (ToolMessage("a", tool_call_id="b", artifact=np.arange(2)), ToolMessage("a", tool_call_id="b")),
    ],
)
@pytest.mark.parametrize("forgets", [False, True])
def test_an_element_that_is_replaced_by_an_equal_one_of_another_type_is_stored(
    saver: HoldallSaver, before: Any, after: Any, forgets: bool
) -> None:
    """Python holds True, 1 and 1.0 for equal, and dicts whatever their order is. numpy compares each number."""
    memory, found = InMemorySaver(), []
    for each in (saver, memory):
        config = put_values(each, {"list": [before, "last"]})
        if forgets:
            saver.known_logs.clear()
            assert each.get_tuple(config) is not None
        config = put_values(each, {"list": [after, "last"]}, config)
        found.append(each.get_tuple(config))
    assert repr(found[0].checkpoint["channel_values"]) == repr(found[1].checkpoint["channel_values"])


def test_what_is_read_is_the_same_before_and_after_it_is_forgotten(saver: HoldallSaver) -> None:
    class Plan(TypedDict):
        steps: Annotated[list[Any], operator.add]

    builder = StateGraph(Plan)
    builder.add_node("work", lambda state: {"steps": [(1, "a")]})
    builder.add_edge(START, "work")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"steps": [(0, "b")]}, thread("t"))
    assert graph.get_state(thread("t")).values["steps"] == [[0, "b"], [1, "a"]]  # as LangGraph deserialises tuples
    saver.known_logs.clear()
    assert graph.get_state(thread("t")).values["steps"] == [[0, "b"], [1, "a"]]


def test_nothing_is_unpickled(saver: HoldallSaver) -> None:
    class Custom:
        pass

    checkpoint: Any = {**empty_checkpoint(), "channel_values": {"a": Custom()}, "channel_versions": {"a": 1}}
    with pytest.raises(TypeError):
        saver.put(thread("t"), checkpoint, {}, {"a": 1})
    assert saver.get_tuple(thread("t")) is None


def test_an_allow_list_holds_for_its_saver_alone(saver: HoldallSaver) -> None:
    """What one of two savers remembers is not made with the allow-list of the other one."""
    strict = HoldallSaver(saver.store, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    allowed = strict.with_allowlist([(Role.__module__, Role.__qualname__)])
    config = put_values(strict, {"role": Role.USER})
    for _ in range(2):
        for each, expected in ((strict, str), (allowed, Role)):
            found = each.get_tuple(config)
            assert found is not None
            assert type(found.checkpoint["channel_values"]["role"]) is expected
    assert strict.with_allowlist([]) is strict


def test_a_saver_that_is_dropped_frees_what_it_remembers_at_once(saver: HoldallSaver) -> None:
    say(chat(saver), "t", "hello")
    other = HoldallSaver(saver.store)
    assert other.get_tuple(thread("t")) is not None
    known = other.known_logs.recall(Address("t", ""))
    assert known is not None
    codec = weakref.ref(known.log.codec)
    gc.disable()
    try:
        del other, known
        assert codec() is None
    finally:
        gc.enable()


# Opening -------------------------------------------------------------------------------------------------------------


def test_it_opens_as_langgraphs_own_savers_do(tmp_path: Path) -> None:
    with HoldallSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        saver.setup()
        say(chat(saver), "t", "hello")

    async def run() -> int:
        async with AsyncHoldallSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
            await saver.setup()
            return len([found async for found in saver.alist(thread("t"))])

    assert asyncio.run(run()) == 3


@pytest.mark.parametrize("config", [{"configurable": {}}, {}, {"configurable": {"thread_id": ""}}])
def test_a_config_without_a_thread_is_refused(saver: HoldallSaver, config: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="thread"):
        saver.get_tuple(config)


def test_ids_that_cannot_be_stored_are_refused(saver: HoldallSaver) -> None:
    wrong_ids: list[Any] = ["x" * 256, "é" * 128, "\ud800", "a\x00", 5]
    for wrong in wrong_ids:
        with pytest.raises(errors.InvalidInput, match="id"):
            saver.put(thread("t"), {**empty_checkpoint(), "id": wrong}, {}, {})
        with pytest.raises(errors.InvalidInput, match="id"):
            saver.put_writes(thread("t", checkpoint_id=wrong), [], "task")
        with pytest.raises(errors.InvalidInput, match="id"):
            saver.get_tuple(thread("t", checkpoint_id=wrong))
    for wrong in ("x" * 2000, "\ud800", 5):
        config = thread("t", checkpoint_ns=wrong)
        with pytest.raises(errors.InvalidInput, match="checkpoint_ns"):
            saver.put(config, empty_checkpoint(), {}, {})
        with pytest.raises(errors.InvalidInput, match="checkpoint_ns"):
            list(saver.list(config))


def test_a_checkpoint_namespace_may_look_like_a_path(saver: HoldallSaver) -> None:
    names = ["..", ".", "/", "a/../b", "%2E", "|".join(f"child{number}:{'x' * 36}" for number in range(8))]
    for name in names:
        saver.put(thread("t", checkpoint_ns=name), empty_checkpoint(), {}, {})
        assert saver.get_tuple(thread("t", checkpoint_ns=name)) is not None
    found = [each.config["configurable"]["checkpoint_ns"] for each in saver.list({"configurable": {"thread_id": "t"}})]
    assert sorted(found) == sorted(names)


def test_versions_of_langgraphs_savers_go_on(saver: HoldallSaver) -> None:
    assert saver.get_next_version(None, None) == 1
    assert saver.get_next_version(7, None) == 8
    assert saver.get_next_version(f"{7:032}.0.25", None).startswith(f"{8:032}.0.")
