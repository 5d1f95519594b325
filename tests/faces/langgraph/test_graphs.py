"""Real graphs with our store: compiled, run sync and async, in several processes, across restarts, and as agents."""

from __future__ import annotations

import asyncio
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import InjectedStore
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

import holdall
from holdall.faces.langgraph import HoldallStore
from support.langgraph_stores import Open
from support.processes import report, start
from support.servers import postgres_url

_schemas = itertools.count()


class State(TypedDict, total=False):
    user: str
    said: str
    known: list[str]
    found: list[str]


def remembering() -> StateGraph[Any]:
    """A graph that keeps what a user says, and knows what they said before."""

    def keep(state: State, *, store: BaseStore) -> State:
        home = ("users", state["user"], "said")
        count = len(store.search(home, limit=1000))
        store.put(home, f"{count:03}", {"text": state["said"], "about": state["said"].split()[0]})
        return {}

    def recall(state: State, runtime: Runtime[Any]) -> State:
        store = runtime.store
        assert store is not None
        home = ("users", state["user"], "said")
        first = store.get(home, "000")
        assert first is not None
        about = store.search(home, filter={"about": state["said"].split()[0]}, limit=100)
        known = store.search(home, limit=1000)
        return {
            "known": [item.value["text"] for item in reversed(known)],
            "found": [first.value["text"], *(item.value["text"] for item in about)],
        }

    return _of_two(keep, recall)


def remembering_async() -> StateGraph[Any]:
    async def keep(state: State, *, store: BaseStore) -> State:
        home = ("users", state["user"], "said")
        count = len(await store.asearch(home, limit=1000))
        await store.aput(home, f"{count:03}", {"text": state["said"], "about": state["said"].split()[0]})
        return {}

    async def recall(state: State, runtime: Runtime[Any]) -> State:
        store = runtime.store
        assert store is not None
        home = ("users", state["user"], "said")
        first, about, known = await asyncio.gather(
            store.aget(home, "000"),
            store.asearch(home, filter={"about": state["said"].split()[0]}, limit=100),
            store.asearch(home, limit=1000),
        )
        assert first is not None
        return {
            "known": [item.value["text"] for item in reversed(known)],
            "found": [first.value["text"], *(item.value["text"] for item in about)],
        }

    return _of_two(keep, recall)


def _of_two(keep: Callable[..., Any], recall: Callable[..., Any]) -> StateGraph[Any]:
    builder = StateGraph(State)
    builder.add_node("keep", keep)
    builder.add_node("recall", recall)
    builder.add_edge(START, "keep")
    builder.add_edge("keep", "recall")
    builder.add_edge("recall", END)
    return builder


@pytest.fixture
def store(open_store: Open) -> Iterator[HoldallStore]:
    with open_store() as opened:
        yield HoldallStore(opened)


@pytest.mark.parametrize("use_async", [False, True])
def test_nodes_of_a_compiled_graph_put_get_and_search(store: HoldallStore, use_async: bool) -> None:
    graph = (remembering_async() if use_async else remembering()).compile(store=store)

    def run(user: str, said: str) -> dict[str, Any]:
        state: Any = {"user": user, "said": said}
        result: dict[str, Any] = asyncio.run(graph.ainvoke(state)) if use_async else graph.invoke(state)
        return result

    run("ada", "peanuts are bad for me")
    run("bob", "trains are fun")
    run("ada", "tea is fine")
    result = run("ada", "peanuts again")
    assert result["known"] == ["peanuts are bad for me", "tea is fine", "peanuts again"]
    assert result["found"] == ["peanuts are bad for me", "peanuts again", "peanuts are bad for me"]
    assert store.list_namespaces(prefix=("users",)) == [("users", "ada", "said"), ("users", "bob", "said")]


def test_many_runs_at_once_share_one_store(store: HoldallStore) -> None:
    graph = remembering_async().compile(store=store)

    async def all_at_once() -> list[Any]:
        states: list[Any] = [{"user": f"user-{n}", "said": f"{n} is mine"} for n in range(32)]
        return await asyncio.gather(*(graph.ainvoke(state) for state in states))

    results = asyncio.run(all_at_once())
    assert [result["known"] for result in results] == [[f"{n} is mine"] for n in range(32)]


def test_two_processes_run_graphs_on_one_store_and_a_third_knows_it_all(tmp_path: Path) -> None:
    """One of them sync and one async, on SQLite and on PostgreSQL, and then everything is started again."""
    stores: list[Any] = [[str(tmp_path / "agent.db"), {}], [postgres_url(), {"schema": f"graphs_{next(_schemas)}"}]]
    at_once = [start(run_graphs, stores=stores, use_async=n == 1, user=f"user-{n}") for n in range(2)]
    assert [process.finish() for process in at_once] == [[3, 3], [3, 3]]
    later = start(run_graphs, stores=stores, use_async=True, user="user-0")
    assert later.finish() == [6, 6]
    for url, options in stores:
        with holdall.open(url, **options) as store:
            face = HoldallStore(store)
            assert [len(face.search(("users", f"user-{n}"), limit=100)) for n in range(2)] == [6, 3]


def run_graphs(stores: list[Any], use_async: bool, user: str) -> None:
    """In a process of its own: three runs on each store, and how much the user's memory holds in the end."""
    for url, options in stores:
        with holdall.open(url, **options) as store:
            graph = (remembering_async() if use_async else remembering()).compile(store=HoldallStore(store))
            for turn in range(3):
                state: Any = {"user": user, "said": f"turn {turn}"}
                result = asyncio.run(graph.ainvoke(state)) if use_async else graph.invoke(state)
            report(len(result["known"]))


# Agents --------------------------------------------------------------------------------------------------------------


class Scripted(GenericFakeChatModel):
    """A chat model with a scripted reply."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


def script() -> Scripted:
    def call(name: str, **args: Any) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}])

    return Scripted(
        messages=iter(
            [
                call("remember", key="diet", text="no peanuts"),
                call("remember", key="tea", text="green tea"),
                call("recall", text="peanuts"),
                call("forget", key="diet"),
                AIMessage("Done."),
            ]
        )
    )


@tool
def remember(key: str, text: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Keep something for later."""
    store.put(("memories",), key, {"text": text})
    return "kept"


@tool
def recall(text: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Find what was kept."""
    found = store.search(("memories",), query=text, limit=1)
    return "; ".join(f"{item.key}: {item.value['text']}" for item in found)


@tool
def forget(key: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Drop something."""
    store.delete(("memories",), key)
    return f"{len(store.search(('memories',)))} left"


def react_agent(store: BaseStore) -> Any:
    from langgraph.prebuilt import create_react_agent

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has moved to langchain, where create_agent is
        return create_react_agent(script(), [remember, recall, forget], store=store)


def agent(store: BaseStore) -> Any:
    from langchain.agents import create_agent

    return create_agent(script(), [remember, recall, forget], store=store)


@pytest.mark.parametrize("make", [react_agent, agent])
@pytest.mark.parametrize("use_async", [False, True])
def test_the_memory_tools_of_an_agent(store: HoldallStore, make: Callable[[BaseStore], Any], use_async: bool) -> None:
    runnable, asked = make(store), {"messages": [("user", "I cannot eat peanuts.")]}
    result = asyncio.run(runnable.ainvoke(asked)) if use_async else runnable.invoke(asked)
    answers = [message.content for message in result["messages"] if isinstance(message, ToolMessage)]
    assert answers == ["kept", "kept", "diet: no peanuts", "1 left"]


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_graph_stores_carries_its_run_and_node(is_async: bool) -> None:
    with holdall.open("memory:", history=3600) as inner:
        graph = remembering().compile(store=HoldallStore(inner))
        config: Any = {"configurable": {"thread_id": "t1"}, "metadata": {"run_id": "r7"}}
        asked = {"user": "ada", "said": "figs are fine"}
        asyncio.run(graph.ainvoke(asked, config)) if is_async else graph.invoke(asked, config)
        [version] = inner.history(("users", "ada", "said"), "000")
        assert (version.author, version.reason) == ("run r7", "node keep")
        graph.invoke(asked, {"configurable": {"thread_id": "t1"}})
        [version] = inner.history(("users", "ada", "said"), "001")
        assert version.author == "thread t1"
        HoldallStore(inner).put(("a",), "outside", {})
        assert inner.history(("a",), "outside")[0].author is None
