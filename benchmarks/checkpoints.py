"""LangGraph threads on its own savers and on `HoldallSaver`, which is on a SQLite file at full durability.

A turn is a message of 500 characters and an answer of 500, with `MessagesState`: LangGraph puts three checkpoints and
two sets of writes for it. `InMemorySaver` keeps nothing. The peers' threads have at most 200 turns: theirs take space
with the square of that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

import holdall
from holdall.faces.langgraph import HoldallSaver
from holdall.ops import Put

from .data import RANDOM
from .harness import OURS, Bench, Size, ahead_of, at_least, at_most, within

SQLITE, MEMORY, DESERIALISING, FRESH = "SqliteSaver", "InMemorySaver", "loads_typed", "10 turns"
THREADS = 100_000
_THREAD: Any = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}
_WORDS = ["".join(RANDOM.choices("etaoinshrdlucmfwypvbgkjqxz", k=RANDOM.randint(2, 9))) for _ in range(3000)]


def run(bench: Bench) -> None:
    with ExitStack() as stack:
        ours = {turns: _open_ours(stack, bench.folder / f"ours-{turns}.db") for turns in (10, 200, 2000)}
        theirs: dict[str, Any] = {SQLITE: _open_theirs(stack, bench.folder / "theirs.db"), MEMORY: InMemorySaver()}
        for turns, saver in ours.items():
            bench.progress(f"{turns} turns")
            _talk(saver, turns)
        for peer in theirs.values():
            _talk(peer, 200)
        _measure_space(bench, ours)
        _get_tuple(bench, ours, theirs)
        _put(bench, ours, theirs)
        _list(bench, ours[200], theirs)
    _threads(bench)


def _text() -> str:
    return " ".join(RANDOM.choices(_WORDS, k=200))[:500]


def _talk(saver: Any, turns: int) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [AIMessage(_text())]})  # noqa: ARG005  # LangGraph's signature
    builder.add_edge(START, "model")
    graph = builder.compile(checkpointer=saver)
    for _ in range(turns):
        graph.invoke({"messages": [HumanMessage(_text())]}, _THREAD)


def _open_ours(stack: ExitStack, path: Path) -> HoldallSaver:
    return stack.enter_context(HoldallSaver(str(path)))


def _open_theirs(stack: ExitStack, path: Path) -> SqliteSaver:
    connection = sqlite3.connect(path, check_same_thread=False)
    stack.callback(connection.close)
    return SqliteSaver(connection)


def _bytes_on_disk(folder: Path, name: str) -> float:
    return sum(file.stat().st_size for file in folder.glob(f"{name}*") if not file.name.endswith("-shm")) / 1e6


def _measure_space(bench: Bench, ours: dict[int, HoldallSaver]) -> None:
    folder = bench.folder
    logs = {
        turns: saver.store.files((*saver.namespace, "thread")).stat("/main/log").size for turns, saver in ours.items()
    }
    for turns, saver in ours.items():
        saver.close()
        connection = sqlite3.connect(folder / f"ours-{turns}.db")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        ours[turns] = HoldallSaver(str(folder / f"ours-{turns}.db"))
    sizes = {OURS: _bytes_on_disk(folder, "ours-200.db"), SQLITE: _bytes_on_disk(folder, "theirs.db")}
    bench.sizes.append(Size("200 turns of 1 KB, on disk", sizes, "MB", 1.0))
    bench.sizes.append(Size("2,000 turns, on disk", {OURS: _bytes_on_disk(folder, "ours-2000.db")}, "MB", 10.0))
    growth = (logs[2000] - logs[200]) / 1800 / (logs[10] / 10)
    bench.sizes.append(Size("a turn after 200, beside one of the first 10, in bytes written", {OURS: growth}, "x", 1.1))


def _get_tuple(bench: Bench, ours: dict[int, HoldallSaver], theirs: dict[str, Any]) -> None:
    for turns, saver in ours.items():
        found = saver.get_tuple(_THREAD)
        assert found is not None
        messages = saver.serde.dumps_typed(found.checkpoint["channel_values"]["messages"])
        runs: dict[str, Callable[[], object]] = {
            OURS: lambda saver=saver: saver.get_tuple(_THREAD),  # type: ignore[misc]  # bound now
            DESERIALISING: lambda saver=saver, messages=messages: saver.serde.loads_typed(messages),  # type: ignore[misc]
        }
        if turns == 200:
            runs |= {name: lambda peer=peer: peer.get_tuple(_THREAD) for name, peer in theirs.items()}  # type: ignore[misc]
        bench.measure(f"get_tuple, {turns} turns", runs, rounds=15, target=at_most(1.3, DESERIALISING))
        if turns == 200:
            bench.also(ahead_of(SQLITE))

    def first_read() -> None:
        saver._known.clear()
        saver.get_tuple(_THREAD)

    saver = ours[200]
    runs = {OURS: first_read, SQLITE: lambda: theirs[SQLITE].get_tuple(_THREAD)}
    bench.measure("get_tuple, 200 turns, the first of a process", runs, rounds=15)


def _put(bench: Bench, ours: dict[int, HoldallSaver], theirs: dict[str, Any]) -> None:
    """Put a checkpoint with one more message, in a thread of 10, 200 and 2,000 turns."""

    def putting(saver: Any) -> Callable[[], None]:
        found = saver.get_tuple(_THREAD)
        checkpoint, config = found.checkpoint, found.config

        def put() -> None:
            nonlocal config
            values = checkpoint["channel_values"]
            values["messages"] = [*values["messages"], AIMessage(_text(), id=str(RANDOM.random()))]
            version = saver.get_next_version(checkpoint["channel_versions"]["messages"], None)
            checkpoint["channel_versions"]["messages"] = version
            checkpoint["id"] = f"{checkpoint['id'][:-12]}{RANDOM.randrange(10**12):012}"
            config = saver.put(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {"messages": version})

        return put

    runs = {OURS: putting(ours[2000]), FRESH: putting(ours[10])}
    bench.measure("put, 2,000 turns beside 10", runs, rounds=60, target=at_most(3, FRESH), durable=True)
    runs = {OURS: putting(ours[200]), **{name: putting(peer) for name, peer in theirs.items()}}
    bench.measure("put, 200 turns", runs, rounds=30, target=ahead_of(SQLITE), durable=True)


def _list(bench: Bench, ours: HoldallSaver, theirs: dict[str, Any]) -> None:
    contenders = {OURS: ours, **theirs}
    runs = {name: lambda saver=saver: list(saver.list(_THREAD)) for name, saver in contenders.items()}
    bench.measure("list of 600 checkpoints", runs, rounds=3, target=at_least(20, SQLITE))
    bench.note("list: HoldallSaver's tuples share the messages that they have in common; SqliteSaver's do not")


def _threads(bench: Bench) -> None:
    with holdall.open(bench.folder / "threads.db", durability="relaxed") as store:
        saver = HoldallSaver(store)
        for start in range(0, THREADS, 1000):
            bench.progress(f"{start} threads")
            store.execute(
                [
                    Put(saver.namespace, f"thread-{number}", _listed(number), search_fields=False)
                    for number in range(start, start + 1000)
                ]
            )
        runs = {OURS: lambda: saver.threads(limit=100)}
        bench.measure("threads(), 100 of 100,000", runs, rounds=15, target=within(0.005))
        runs = {OURS: lambda: saver.threads(filter={"user_id": "user-7"}, limit=10)}
        bench.measure("threads(filter=), 10 of 100,000", runs, rounds=15)
        runs = {OURS: lambda: saver.threads(query="99999")}
        bench.measure("threads(query=), 1 of 100,000", runs, rounds=3)


def _listed(number: int) -> dict[str, Any]:
    return {
        "id": f"thread-{number}",
        "checkpoints": 3,
        "checkpoint_id": f"1f1e32d1-0000-6000-8000-{number:012}",
        "step": 1,
        "metadata": {"source": "loop", "step": 1, "parents": {}, "user_id": f"user-{number % 1000}"},
        "preview": _WORDS[number % 3000],
        "words": f"thread-{number} user-{number % 1000} {_WORDS[number % 3000]}",
    }
