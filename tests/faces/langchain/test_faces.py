"""LangChain's byte stores, chat histories and cache, and LangGraph's node cache: LangChain's own suites, and more."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, Generation
from langchain_tests.integration_tests.base_store import BaseStoreSyncTests
from langchain_tests.integration_tests.cache import SyncCacheTestSuite
from langgraph.cache.memory import InMemoryCache
from langgraph.graph import END, START, StateGraph
from langgraph.types import CachePolicy

import holdall
from holdall.errors import InvalidInput, InvalidValue, Unavailable
from holdall.faces.langchain import HoldallByteStore, HoldallCache, HoldallChatMessageHistory
from holdall.faces.langgraph import HoldallCache as HoldallNodeCache


class TestByteStore(BaseStoreSyncTests[bytes]):
    @pytest.fixture
    def kv_store(self, any_store: holdall.Store, place: tuple[str, ...]) -> HoldallByteStore:
        return HoldallByteStore(any_store, namespace=place)

    @pytest.fixture
    def three_values(self) -> tuple[bytes, bytes, bytes]:
        return b"foo", b"\x00\xff", b""


class TestCache(SyncCacheTestSuite):
    @pytest.fixture
    def cache(self, any_store: holdall.Store, place: tuple[str, ...]) -> HoldallCache:
        return HoldallCache(any_store, namespace=place)


def test_bytes_are_set_all_or_none() -> None:
    async def main() -> None:
        async with HoldallByteStore("memory:") as store:
            with pytest.raises(InvalidValue):
                await store.amset([("a", b"1"), ("b", "text")])  # type: ignore[list-item]
            assert await store.amget(["a"]) == [None]
            await store.amset([("a", b"1"), ("ab", b"2"), ("c", b"3")])
            assert [key async for key in store.ayield_keys(prefix="a")] == ["a", "ab"]
            await store.amdelete(["a", "missing"])
            assert await store.amget(["a", "c"]) == [None, b"3"]

    asyncio.run(main())


def test_a_history_keeps_messages_of_every_kind(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    ours = HoldallChatMessageHistory("s", any_store, namespace=place)
    messages: list[Any] = [
        HumanMessage("hello", id="1"),
        AIMessage("", tool_calls=[{"name": "look", "args": {"x": 1}, "id": "call"}]),
        ToolMessage("found", tool_call_id="call"),
    ]
    ours.add_messages(messages)
    asyncio.run(ours.aadd_messages([AIMessage("done")]))
    ours.add_user_message("thanks")
    assert ours.messages == [*messages, AIMessage("done"), HumanMessage("thanks")]
    assert asyncio.run(ours.aget_messages()) == ours.messages
    assert any_store.search(place, query="thanks")[0].namespace == (*place, "s")
    other = HoldallChatMessageHistory("other", any_store, namespace=place)
    assert other.messages == []
    ours.clear()
    assert asyncio.run(ours.aget_messages()) == []


def test_a_model_is_asked_once_for_a_prompt(tmp_path: Path) -> None:
    cache = HoldallCache(str(tmp_path / "agent.db"), ttl=100)
    model = FakeListChatModel(responses=["first", "second"], cache=cache)
    assert [model.invoke("hello").content, model.invoke("hello").content] == ["first", "first"]
    assert model.invoke("other").content == "second"
    assert asyncio.run(cache.alookup("x", "y")) is None
    generations = [Generation(text="a", generation_info={"b": 1}), ChatGeneration(message=AIMessage("c"))]
    asyncio.run(cache.aupdate("x", "y", generations))
    assert cache.lookup("x", "y") == generations
    assert cache.lookup("xy", "") is None
    assert cache.lookup("\ud800", "y") is None
    with pytest.raises(InvalidInput, match="lone surrogates"):
        cache.update("\ud800", "y", generations)
    cache.close()
    with pytest.raises(InvalidInput):
        HoldallCache("memory:", ttl=-1)


class State(TypedDict):
    x: int


def test_a_graph_runs_a_cached_node_once(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    runs = []

    def slow(state: State) -> dict[str, int]:
        runs.append(state["x"])
        return {"x": state["x"] * 2}

    builder: Any = StateGraph(State)
    builder.add_node("slow", slow, cache_policy=CachePolicy(ttl=100))
    builder.add_edge(START, "slow")
    builder.add_edge("slow", END)
    cache = HoldallNodeCache(any_store, namespace=place)
    graph = builder.compile(cache=cache)
    assert graph.invoke({"x": 2}) == graph.invoke({"x": 2}) == {"x": 4}
    assert runs == [2]
    assert asyncio.run(graph.ainvoke({"x": 2})) == {"x": 4}
    cache.clear()
    assert graph.invoke({"x": 2}) == {"x": 4}
    assert runs == [2, 2]


def test_node_results_expire_and_are_cleared_by_namespace() -> None:
    cache: Any = HoldallNodeCache("memory:")
    keys = [(("a",), "k"), (("b",), "k"), (("a",), "short")]
    cache.set({keys[0]: ({"v": {1, 2}}, None), keys[1]: ("two", 100), keys[2]: ("gone", 0.05)})
    time.sleep(0.1)
    assert cache.get(keys) == {keys[0]: {"v": {1, 2}}, keys[1]: "two"}
    asyncio.run(cache.aclear([("a",)]))
    assert asyncio.run(cache.aget(keys)) == {keys[1]: "two"}
    cache.close()


def test_nodes_also_run_while_their_cache_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    builder: Any = StateGraph(State)
    builder.add_node("double", lambda state: {"x": state["x"] * 2}, cache_policy=CachePolicy())
    builder.add_edge(START, "double")
    with HoldallNodeCache("redis://localhost:1", timeout=0.1) as cache:
        graph = builder.compile(cache=cache)
        assert graph.invoke({"x": 2}) == asyncio.run(graph.ainvoke({"x": 2})) == {"x": 4}
        assert "not kept in the cache: Redis could not be reached" in caplog.text
        with pytest.raises(Unavailable):
            cache.clear()


def test_nothing_is_asked_for_nothing(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    byte_store, cache = HoldallByteStore(any_store, namespace=place), HoldallNodeCache(any_store, namespace=place)
    byte_store.mset([])
    byte_store.mdelete([])
    cache.set({})
    cache.clear([])
    assert (byte_store.mget([]), cache.get([])) == ([], {})
    assert (asyncio.run(byte_store.amget([])), asyncio.run(cache.aget([]))) == ([], {})


def test_node_results_are_kept_as_in_memory(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    for cache in (InMemoryCache[Any](), HoldallNodeCache(any_store, namespace=place)):
        below = (("a", "b"), "k")
        cache.set({(("a",), "k"): (1, None), below: (2, None)})
        cache.clear([("a",)])
        assert cache.get([(("a",), "k"), below]) == {below: 2}
        cache.set({below: (3, 0)})
        assert cache.get([below]) == {}
