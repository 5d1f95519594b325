"""`kill -9` in the middle of a LangGraph graph: it resumes from the last acknowledged checkpoint, never half of one.

And in the middle of an import of threads: it goes on, and everything is here once.
"""

from __future__ import annotations

import itertools
import operator
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

from holdall.faces.langgraph import HoldallSaver
from support.killed_writers import kill_at_a_random_moment
from support.processes import report, start

THREAD: Any = {"configurable": {"thread_id": "thread"}}


class Steps(TypedDict):
    steps: Annotated[list[str], operator.add]
    total: int


def compile_graph(saver: HoldallSaver) -> Any:
    """A graph of two nodes, which each add what they see."""
    builder = StateGraph(Steps)
    builder.add_node("first", lambda state: {"steps": [f"first {len(state['steps'])}"], "total": len(state["steps"])})
    builder.add_node("second", lambda state: {"steps": [f"second {len(state['steps'])}"]})
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(checkpointer=saver)


def is_unfinished(saver: HoldallSaver, graph: Any) -> bool:
    """Whether a turn has to go on. If all its tasks have ended, LangGraph shows their writes, and no next task."""
    found = saver.get_tuple(THREAD)
    return found is not None and bool(graph.get_state(THREAD).next or found.pending_writes)


def run_until_killed(path: str) -> None:
    with HoldallSaver(path) as saver:
        graph = compile_graph(saver)
        if is_unfinished(saver, graph):
            graph.invoke(None, THREAD, durability="sync")
        for number in itertools.count():
            graph.invoke({"steps": [f"in {number}"]}, THREAD, durability="sync")
            report(len(graph.get_state(THREAD).values["steps"]))


def test_a_graph_resumes_after_kill_9(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    path = str(tmp_path / "agent.db")
    acknowledged = turns = 0
    for _ in range(scaled(4, 100)):
        reported = kill_at_a_random_moment(start(run_until_killed, path=path), once_it_writes=True)
        turns += len(reported)
        acknowledged = max([acknowledged, *reported])
        with HoldallSaver(path) as saver:
            graph = compile_graph(saver)
            state = graph.get_state(THREAD)
            check_steps(state.values["steps"], acknowledged)
            found = list(saver.list(THREAD))
            ids = {each.config["configurable"]["checkpoint_id"] for each in found}
            assert all(
                each.parent_config["configurable"]["checkpoint_id"] in ids for each in found if each.parent_config
            )
            if is_unfinished(saver, graph):  # the rest of the turn runs, and nothing runs twice
                after = graph.invoke(None, THREAD)["steps"]
                assert after[: len(state.values["steps"])] == state.values["steps"]
                check_steps(after, acknowledged)
                assert after[-1] == f"second {len(after) - 1}"
    assert turns > 0


def check_steps(steps: list[str], acknowledged: int) -> None:
    """Each node saw all that was before it, and what was acknowledged is there."""
    assert len(steps) >= acknowledged
    for number, step in enumerate(steps):
        word, seen = step.split()
        assert word == ("in", "first", "second")[number % 3]
        assert word == "in" or int(seen) == number


def import_until_killed(theirs: str, path: str) -> None:
    with HoldallSaver(path) as saver:
        saver.import_from(theirs, progress=lambda done, total: report(done))


def read_all(saver: Any) -> dict[tuple[str, str], Any]:
    """Return everything about each checkpoint, by its thread and ID."""
    found = {}
    for each in saver.list(None):
        here = each.config["configurable"]
        found[here["thread_id"], here["checkpoint_id"]] = tuple(each)
    return found


def test_an_import_goes_on_after_kill_9(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    theirs, path = str(tmp_path / "theirs.db"), str(tmp_path / "agent.db")
    with SqliteSaver.from_conn_string(theirs) as source:
        graph = compile_graph(source)
        for number in range(scaled(60, 300)):
            graph.invoke({"steps": [f"in {number}"]}, {"configurable": {"thread_id": f"thread {number % 3}"}})
        expected = read_all(source)
    assert any(pending_writes for *_, pending_writes in expected.values())
    found: dict[tuple[str, str], Any] = {}
    while len(found) < len(expected):
        done = min(len(found) + random.randint(1, 5), len(expected))
        importer = start(import_until_killed, theirs=theirs, path=path)
        while importer.receive() < done:
            pass
        time.sleep(random.uniform(0, 0.005))  # it reads, writes, or is between two writes of the next checkpoint
        importer.kill()
        with HoldallSaver(path) as saver:
            found = read_all(saver)
        assert len(found) >= done
        assert found == {key: expected[key] for key in found}  # also its writes: none comes without them
