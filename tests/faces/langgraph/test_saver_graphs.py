"""LangGraph graphs of our own on `HoldallSaver`, compared step by step with `InMemorySaver`."""

from __future__ import annotations

import asyncio
import itertools
import operator
import time
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, Send, interrupt

import holdall
from holdall.faces.langgraph import HoldallSaver
from support.extent import IS_SHORT

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")


THREAD: Any = {"configurable": {"thread_id": "thread"}}


class Driver:
    """Runs the steps of a scenario on a graph, sync or async, and records what LangGraph then sees."""

    def __init__(self, builder: StateGraph[Any], saver: Any, is_async: bool, durability: Any) -> None:
        self.graph = builder.compile(checkpointer=saver)
        self._is_async, self._durability = is_async, durability
        self.seen: list[Any] = []

    def invoke(self, given: Any, config: Any = THREAD) -> None:
        options: Any = {"durability": self._durability}
        try:
            if self._is_async:
                answer = asyncio.run(self.graph.ainvoke(given, config, **options))
            else:
                answer = self.graph.invoke(given, config, **options)
        except RuntimeError as error:
            answer = str(error)
        self.record(_plain(answer))

    def update(self, values: Any, config: Any = THREAD, as_node: str | None = None) -> None:
        if self._is_async:
            asyncio.run(self.graph.aupdate_state(config, values, as_node))
        else:
            self.graph.update_state(config, values, as_node)
        self.record("updated")

    def history(self, config: Any = THREAD) -> list[Any]:
        return list(self.graph.get_state_history(config))

    def record(self, answer: Any) -> None:
        """Record the answer of a step, and the whole state after it."""
        self.seen.append(answer)
        history = self.history()
        numbers = {state.config["configurable"]["checkpoint_id"]: number for number, state in enumerate(history)}
        for state in history:
            parent = state.parent_config and numbers.get(state.parent_config["configurable"]["checkpoint_id"])
            tasks = [(task.name, task.error, _plain(task.interrupts), _plain(task.result)) for task in state.tasks]
            metadata = {name: value for name, value in (state.metadata or {}).items() if name != "parents"}
            self.seen.append((_plain(state.values), state.next, metadata, parent, tasks))
        saver: Any = self.graph.checkpointer
        listed = saver.list({"configurable": {"thread_id": "thread"}})  # InMemorySaver lists each namespace on its own
        for found in sorted(listed, key=lambda each: each.checkpoint["id"], reverse=True):
            writes = [(channel, _plain(value)) for _, channel, value in found.pending_writes]
            values = {
                channel: _plain(value)
                for channel, value in found.checkpoint["channel_values"].items()
                if not channel.startswith("__pregel")
            }
            versions = {
                name: str(version).split(".")[0] for name, version in found.checkpoint["channel_versions"].items()
            }
            names = [part.split(":")[0] for part in found.config["configurable"]["checkpoint_ns"].split("|")]
            self.seen.append((names, values, sorted(versions), found.metadata["step"], writes))
        self.seen.append(_plain(self.graph.get_state(THREAD, subgraphs=True).values))


def _plain(value: Any) -> Any:
    """Make values comparable: IDs that LangGraph makes at random are left out."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "interrupts") or type(value).__name__ == "Interrupt":
        return "interrupt", _plain(value.value)
    if isinstance(value, Send):
        return "send", value.node, _plain(value.arg)
    if isinstance(value, HumanMessage | AIMessage):
        return type(value).__name__, value.content, value.additional_kwargs
    return value


# Scenarios -----------------------------------------------------------------------------------------------------------


class Notes(TypedDict):
    notes: Annotated[list[str], operator.add]
    topic: str


def ask_and_resume(make: Callable[[StateGraph[Any]], Driver]) -> Driver:
    """Two interrupts in one node, answered one after the other."""

    def ask(state: Notes) -> Any:
        name = interrupt("name?")
        age = interrupt({"age of": name})
        return {"notes": [f"{name} is {age}"]}

    builder = StateGraph(Notes)
    builder.add_node("ask", ask)
    builder.add_node("end", lambda state: {"notes": ["end"]})
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "end")
    driver = make(builder)
    driver.invoke({"notes": ["begin"], "topic": "a"})
    driver.invoke(Command(resume="Ada"))
    driver.invoke(Command(resume=36))
    driver.invoke({"notes": ["again"], "topic": "b"})
    return driver


def fan_out(make: Callable[[StateGraph[Any]], Driver]) -> Driver:
    """`Send` to several tasks, of which one interrupts."""

    def work(state: Any) -> Any:
        if state["n"] == 2:
            return {"notes": [f"{state['n']}: {interrupt('two?')}"]}
        return {"notes": [f"{state['n']} done"]}

    builder = StateGraph(Notes)
    builder.add_node("plan", lambda state: {"topic": "planned"})
    builder.add_node("work", work)
    builder.add_node("sum", lambda state: {"notes": [f"sum of {len(state['notes'])}"]})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", {"n": n}) for n in range(4)], ["work"])
    builder.add_edge("work", "sum")
    driver = make(builder)
    driver.invoke({"notes": [], "topic": "a"})
    driver.invoke(Command(resume="yes"))
    return driver


def subgraphs(make: Callable[[StateGraph[Any]], Driver]) -> Driver:
    """A subgraph with checkpoints of its own, which interrupts and remembers."""
    inner = StateGraph(Notes)
    inner.add_node("first", lambda state: {"notes": ["inner"]})
    inner.add_node("second", lambda state: {"notes": [f"inner heard {interrupt('inner?')}"]})
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    builder = StateGraph(Notes)
    builder.add_node("child", inner.compile(checkpointer=True))
    builder.add_node("after", lambda state: {"notes": ["after"]})
    builder.add_edge(START, "child")
    builder.add_edge("child", "after")
    driver = make(builder)
    driver.invoke({"notes": ["a"], "topic": "t"})
    driver.invoke(Command(resume="one"))
    driver.invoke({"notes": ["b"], "topic": "t"})
    driver.invoke(Command(resume="two"))
    return driver


def time_travel(make: Callable[[StateGraph[Any]], Driver]) -> Driver:
    """Forks: running again from an earlier checkpoint, and changing the state there."""
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [AIMessage(f"answer {len(state['messages'])}")]})
    builder.add_edge(START, "model")
    driver = make(builder)
    for number in range(3):
        driver.invoke({"messages": [HumanMessage(f"question {number}")]})
    earlier = driver.history()[len(driver.history()) // 2].config
    driver.invoke(None, earlier)
    driver.invoke({"messages": [HumanMessage("from the past")]}, earlier)
    driver.update({"messages": [HumanMessage("put in")]}, driver.history()[-2].config)
    driver.invoke(None)
    driver.update({"messages": [AIMessage("as the model")]}, as_node="model")
    driver.update(None)
    return driver


def _append(state: list[str], writes: Any) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


def delta_channels(make: Callable[[StateGraph[Any]], Driver]) -> Driver:
    """A channel that LangGraph stores as differences, with a snapshot now and then, and a fork."""

    class Deltas(TypedDict):
        log: Annotated[list[str], DeltaChannel(_append, snapshot_frequency=3)]
        count: int

    builder = StateGraph(Deltas)
    builder.add_node("one", lambda state: {"log": [f"one {len(state['log'])}"]})
    builder.add_node("two", lambda state: {"log": [f"two {len(state['log'])}"], "count": len(state["log"])})
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    driver = make(builder)
    for number in range(4):
        driver.invoke({"log": [f"in {number}"]})
    driver.invoke(None, driver.history()[len(driver.history()) // 2].config)
    driver.update({"log": ["updated"]})
    driver.invoke({"log": ["last"]})
    return driver


def crash_and_retry(make: Callable[[StateGraph[Any]], Driver]) -> Driver:
    """Of two parallel nodes one fails; on the next try only that one runs."""
    runs = {"good": 0, "bad": 0}

    def good(state: Notes) -> Any:
        runs["good"] += 1
        return {"notes": [f"good {runs['good']}"]}

    def bad(state: Notes) -> Any:
        runs["bad"] += 1
        time.sleep(0.05)  # LangGraph may drop the writes of a task that ends after another has failed
        if runs["bad"] < 3:
            raise RuntimeError(f"failure {runs['bad']}")
        return {"notes": [f"bad {runs['bad']}"]}

    builder = StateGraph(Notes)
    builder.add_node("good", good)
    builder.add_node("bad", bad)
    builder.add_edge(START, "good")
    builder.add_edge(START, "bad")
    driver = make(builder)
    driver.invoke({"notes": ["begin"], "topic": "a"})
    driver.invoke(None)
    driver.invoke(None)
    driver.seen.append(dict(runs))
    return driver


def edited_messages(make: Callable[[StateGraph[Any]], Driver]) -> Driver:
    """Messages that are edited, removed, reordered, and changed in place."""

    def edit(state: MessagesState) -> Any:
        messages: list[AnyMessage] = state["messages"]
        match messages[-1].content:
            case "remove the first":
                return {"messages": [RemoveMessage(id=str(messages[0].id))]}
            case "edit the second":
                return {"messages": [HumanMessage("edited", id=str(messages[1].id))]}
            case "in place":
                messages[0].additional_kwargs["changed"] = {"deeply": [1]}
                messages[1].content = "changed in place"
            case "deeper":
                messages[0].additional_kwargs["changed"]["deeply"].append(2)
            case "reverse":
                return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *reversed(messages)]}
        return {"messages": [AIMessage("ok", id=f"ai-{len(messages)}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("edit", edit)
    builder.add_edge(START, "edit")
    driver = make(builder)
    for number, text in enumerate(
        ["one", "two", "edit the second", "three", "in place", "deeper", "remove the first", "reverse", "four"]
    ):
        driver.invoke({"messages": [HumanMessage(text, id=f"human-{number}")]})
    return driver


SCENARIOS = [
    ask_and_resume,
    fan_out,
    subgraphs,
    time_travel,
    delta_channels,
    crash_and_retry,
    edited_messages,
]
_numbers = iter(range(1_000_000))


def _new_saver(store: holdall.Store) -> HoldallSaver:
    return HoldallSaver(store, namespace=("graphs", f"threads-{next(_numbers)}"))


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(
    ("is_async", "durability"),
    [(False, "sync"), (True, "exit")]
    if IS_SHORT
    else list(itertools.product([False, True], ["sync", "async", "exit"])),
)
def test_a_graph_sees_what_it_sees_with_memory(
    saver_store: holdall.Store, scenario: Any, durability: str, is_async: bool
) -> None:
    if durability == "async" and scenario is edited_messages:
        pytest.skip("LangGraph puts a checkpoint while the next node changes its messages: either may be first")
    ours = scenario(lambda builder: Driver(builder, _new_saver(saver_store), is_async, durability)).seen
    theirs = scenario(lambda builder: Driver(builder, InMemorySaver(), is_async, durability)).seen
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == other


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_graph_whose_saver_forgets_between_steps_sees_the_same(saver_store: holdall.Store, scenario: Any) -> None:
    """As in a new process for each step: whatever the saver remembers only saves time."""

    class Forgetful(Driver):
        def record(self, answer: Any) -> None:
            saver: Any = self.graph.checkpointer
            saver.known_logs.clear()
            super().record(answer)
            saver.known_logs.clear()

    ours = scenario(lambda builder: Forgetful(builder, _new_saver(saver_store), False, "sync")).seen
    theirs = scenario(lambda builder: Driver(builder, InMemorySaver(), False, "sync")).seen
    assert ours == theirs


def test_checkpoints_of_subgraphs_are_listed_between_those_of_their_thread(saver_store: holdall.Store) -> None:
    """Newest first, as LangGraph's savers with a database list them."""

    def list_with(saver: Any) -> list[Any]:
        subgraphs(lambda builder: Driver(builder, saver, False, "sync"))
        whole = list(saver.list({"configurable": {"thread_id": "thread"}}))
        middle = whole[5].config
        some = list(saver.list({"configurable": {"thread_id": "thread"}}, before=middle, limit=6))
        assert [each.config for each in some] == [each.config for each in whole[6:12]]
        return [(bool(each.config["configurable"]["checkpoint_ns"]), each.metadata["step"]) for each in whole]

    with SqliteSaver.from_conn_string(":memory:") as theirs:
        assert list_with(_new_saver(saver_store)) == list_with(theirs)


def test_pruning_keeps_what_delta_channels_are_made_from(saver_store: holdall.Store) -> None:
    driver = delta_channels(lambda builder: Driver(builder, _new_saver(saver_store), False, "sync"))
    saver: Any = driver.graph.checkpointer
    before = driver.graph.get_state(THREAD).values
    checkpoints = len(driver.history())
    saver.prune(["thread"])
    assert driver.graph.get_state(THREAD).values == before
    assert before["log"]
    assert len(driver.history()) < checkpoints
    driver.invoke({"log": ["after"]})
    assert driver.graph.get_state(THREAD).values["log"][: len(before["log"])] == before["log"]
