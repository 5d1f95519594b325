"""`HoldallSaver` in several threads, tasks and processes that share threads."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import operator
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import holdall
from holdall import errors
from holdall.faces.langgraph import HoldallSaver
from holdall.faces.langgraph.checkpoints.known_logs import KnownLog
from holdall.faces.langgraph.checkpoints.log import Checkpoint, Codec, Log, LogWriter
from support.extent import IS_SHORT
from support.langgraph_threads import FernetCipher, chat, put_empty, say, texts, thread
from support.stores import new_location, open_at


def run_both(target: Callable[..., None], location: Any) -> None:
    """Run a function in two processes, "a" and "b", which begin their work together."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=target, args=(location, name, barrier)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0


def _resume(url: str, name: str, barrier: Any) -> None:
    with HoldallSaver(url) as saver:
        graph = chat(saver)
        saver.get_tuple(thread("t"))
        barrier.wait(60)
        for number in range(10):
            graph.invoke({"messages": [HumanMessage(f"{name} {number}", id=f"{name}-{number}")]}, thread("t"))


@pytest.mark.skipif(IS_SHORT, reason="in make test-all: two processes import LangGraph")
def test_two_processes_on_one_thread_lose_no_checkpoint(tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")
    with HoldallSaver(url) as saver:
        say(chat(saver), "t", "begin")
    run_both(_resume, url)
    with HoldallSaver(url) as saver:
        found = list(saver.list(thread("t")))
        assert len(found) == 3 + 2 * 10 * 3
        said = {message.id for each in found for message in each.checkpoint["channel_values"].get("messages", ())}
        assert {f"{name}-{number}" for name in ("a", "b") for number in range(10)} <= said
        ids = {each.config["configurable"]["checkpoint_id"] for each in found}
        parents = [each.parent_config["configurable"]["checkpoint_id"] for each in found if each.parent_config]
        assert set(parents) <= ids


class _Asked(TypedDict):
    answers: Annotated[list[str], operator.add]


def ask(saver: Any) -> Any:
    """A graph that asks, and then notes the answer."""
    builder = StateGraph(_Asked)
    builder.add_node("ask", lambda state: {"answers": [interrupt("which?")]})
    builder.add_node("note", lambda state: {"answers": [f"noted {state['answers'][-1]}"]})
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "note")
    return builder.compile(checkpointer=saver)


def _answer(location: Any, name: str, barrier: Any) -> None:
    with open_at(location) as store:
        graph = ask(HoldallSaver(store))
        interrupted = graph.get_state(thread("t")).config
        barrier.wait(60)
        graph.invoke(Command(resume=name), interrupted)


@pytest.mark.skipif(IS_SHORT, reason="in make test-all: two processes import LangGraph")
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_two_processes_resume_one_interrupt_and_both_histories_are_kept(engine: str, tmp_path: Path) -> None:
    location = new_location(engine, tmp_path)
    with open_at(location) as store:
        ask(HoldallSaver(store)).invoke({"answers": []}, thread("t"))
    run_both(_answer, location)
    with open_at(location) as store:
        saver = HoldallSaver(store)
        found = {each.config["configurable"]["checkpoint_id"]: each for each in saver.list(thread("t"))}
        ends = [each for each in found.values() if each.metadata["step"] == 2]
        assert sorted(each.checkpoint["channel_values"]["answers"] for each in ends) == [
            ["a", "noted a"],
            ["b", "noted b"],
        ]
        for end in ends:  # each has a history of its own, which goes back to the first checkpoint
            parents, at = [], end
            while at.parent_config is not None:
                at = found[at.parent_config["configurable"]["checkpoint_id"]]
                parents.append(at.checkpoint["channel_values"].get("answers", []))
            assert parents == [end.checkpoint["channel_values"]["answers"][:1], [], []]
        interrupted = next(each for each in found.values() if each.metadata["step"] == 0)
        written = {channel for _, channel, _ in interrupted.pending_writes or ()}
        assert written >= {"__interrupt__", "__resume__", "answers"}
        assert saver.threads()[0].checkpoints == len(found)


class Interleaved(HoldallSaver):
    """A saver that calls a function when it has listed the logs of a thread for the nth time."""

    def __init__(self, url: str, calls: int, call: Callable[[], None]) -> None:
        super().__init__(url)
        self._calls, self._call = calls, call

    def _addresses(self, thread_id: str) -> Any:
        found = yield from super()._addresses(thread_id)
        self._calls -= 1
        if self._calls == 0:
            self._call()
        return found


def test_a_subgraph_that_begins_while_the_last_log_is_deleted_is_listed(tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")
    checkpoint = {**empty_checkpoint(), "id": "ffffffff-0000-6000-8000-000000000000"}
    with HoldallSaver(url) as other:

        def begin_subgraph() -> None:  # the logs were counted, and the last one is about to be deleted
            other.put(thread("t", checkpoint_ns="sub:1"), checkpoint, {}, {})

        with Interleaved(url, 2, begin_subgraph) as slow:
            put_empty(slow, "t", run_id="r")
            assert other.get_tuple(thread("t", checkpoint_ns="sub:1")) is None
            slow.delete_for_runs(["r"])
            assert slow.get_tuple(thread("t")) is None
            assert [each.id for each in slow.threads()] == ["t"]
            assert len(list(slow.list(None))) == 1


def test_a_copy_has_the_subgraph_that_begins_while_it_is_made(tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")
    with HoldallSaver(url) as other:

        def begin_subgraph() -> None:  # the logs were listed, and are about to be read
            other.put(thread("t", checkpoint_ns="sub:1"), empty_checkpoint(), {}, {})
            put_empty(other, "t")

        with Interleaved(url, 1, begin_subgraph) as slow:
            put_empty(slow, "t")
            slow.copy_thread("t", "copy")
        for name in ("t", "copy"):
            assert len(list(other.list({"configurable": {"thread_id": name}}))) == 3


def test_a_thread_that_is_deleted_or_pruned_elsewhere_goes_on_whole(tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")
    with HoldallSaver(url) as one, HoldallSaver(url) as other:
        graph = chat(one)
        say(graph, "t", "one")
        other.prune(["t"])
        say(graph, "t", "two")
        assert len(texts(chat(other), "t")) == 4
        before = one.get_tuple(thread("t"))
        assert before is not None
        other.delete_thread("t")
        checkpoint: Any = {**before.checkpoint, "id": "ffffffff-0000-6000-8000-000000000000"}
        one.put(before.config, checkpoint, {"step": 9}, {})  # it refers to what is deleted
        assert len(texts(chat(other), "t")) == 4
        with pytest.raises(errors.AlreadyExists):
            one.copy_thread("t", "t")


def test_threads_read_what_another_thread_extends(saver: HoldallSaver) -> None:
    """One saver, in several threads: lists and copies of a thread that grows meanwhile."""
    secret = HoldallSaver(saver.store, namespace=("secret",), serde=EncryptedSerializer(FernetCipher()))
    graph, numbers = chat(secret), itertools.count()
    say(graph, "t", "begin")
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            list(secret.list(thread("t")))
            target = f"copy-{next(numbers)}"
            secret.copy_thread("t", target)
            found = secret.get_tuple(thread(target))
            assert found is not None
            secret.delete_thread(target)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor() as pool:
            readers = [pool.submit(read) for _ in range(3)]
            for number in range(30):
                say(graph, "t", f"more {number}")
            is_over.set()
            for reader in readers:
                reader.result()
    finally:
        is_over.set()
        sys.setswitchinterval(interval)


def test_of_two_reads_the_later_counts() -> None:
    """Two threads read the same log from the same offset on; the first to come back has read less."""
    serde, made = JsonPlusSerializer(), []
    for id in ("one", "two"):
        writer = LogWriter(Codec(serde, "t", ""), {})
        writer.add_checkpoint(id, Checkpoint(None, b"", b"", {}))
        made.append(writer.data)
    known = KnownLog(Log(Codec(serde, "t", ""), b""), None, None)
    known.extend(0, made[0])
    known.extend(0, made[0] + made[1])
    known.extend(0, made[0])
    known.extend(500, made[1])  # something before it is missing
    assert (known.log.ids, known.log.latest, known.log.size) == (["two", "one"], "two", len(made[0] + made[1]))


def test_writes_that_come_before_the_first_checkpoint_refer_to_nothing_that_may_go(tmp_path: Path) -> None:
    url, large, checkpoint = str(tmp_path / "agent.db"), "large" * 2000, empty_checkpoint()
    with HoldallSaver(url) as one, HoldallSaver(url) as other:
        config = thread("t", checkpoint_id=checkpoint["id"])
        one.put_writes(config, [("a", large)], "task-1")
        assert one.get_tuple(thread("t")) is None
        other.delete_thread("t")
        one.put_writes(config, [("a", large)], "task-2")
        one.put(thread("t"), checkpoint, {}, {})
        found = other.get_tuple(thread("t"))
        assert found is not None
        assert found.pending_writes == [("task-2", "a", large)]


def test_a_checkpoint_that_is_its_own_parent_has_no_history(saver: HoldallSaver) -> None:
    checkpoint = empty_checkpoint()
    config = saver.put(thread("t", checkpoint_id=checkpoint["id"]), checkpoint, {}, {})
    assert saver.get_delta_channel_history(config=config, channels=["a"]) == {"a": {"writes": []}}


def test_many_threads_are_written_at_once(saver_store: holdall.Store) -> None:
    saver = HoldallSaver(saver_store, namespace=("many", "threads"))
    graph = chat(saver)

    async def run() -> None:
        await asyncio.gather(
            *(graph.ainvoke({"messages": [HumanMessage(f"hello {n}")]}, thread(f"t-{n}")) for n in range(24))
        )

    asyncio.run(run())
    assert len(saver.threads()) == 24
    assert all(texts(graph, f"t-{n}") == [f"hello {n}", f"answer to hello {n}"] for n in range(24))
