"""LangGraph threads on its own savers and on `HoldallSaver`, which is on a SQLite file at full durability.

A turn is a message of 500 characters and an answer of 500, with `MessagesState`: LangGraph puts three checkpoints and
two sets of writes for it. `InMemorySaver` keeps nothing. The peers' threads have at most 200 turns: theirs take space
with the square of that. The server of `PostgresSaver` is on the same machine.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

import holdall
from holdall.faces.langgraph import HoldallSaver
from holdall.ops import Put

from .data import RANDOM
from .harness import OURS, Bench, Size, ahead_of, at_least, at_most, within
from .postgres import new_server

SQLITE, ASYNC_SQLITE, POSTGRES, MEMORY = "SqliteSaver", "AsyncSqliteSaver", "PostgresSaver", "InMemorySaver"
DURABLE = SQLITE, ASYNC_SQLITE, POSTGRES
DESERIALISING, FRESH = "loads_typed", "10 turns"
AT_ONCE = 64
THREADS = 100_000
_THREAD: Any = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}
_WORDS = ["".join(RANDOM.choices("etaoinshrdlucmfwypvbgkjqxz", k=RANDOM.randint(2, 9))) for _ in range(3000)]


def run(bench: Bench) -> None:
    with new_server(bench) as urls, ExitStack() as stack:
        ours = {turns: _open_ours(stack, bench.folder / f"ours-{turns}.db") for turns in (10, 200, 2000)}
        theirs: dict[str, Any] = {
            SQLITE: _open_theirs(stack, bench.folder / "theirs.db"),
            POSTGRES: _open_postgres(stack, urls),
            MEMORY: InMemorySaver(),
        }
        for turns, saver in ours.items():
            bench.progress(f"{turns} turns")
            _talk(saver, turns)
        for name, peer in theirs.items():
            bench.progress(f"200 turns on {name}")
            _talk(peer, 200)
        theirs[SQLITE].conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(bench.folder / "theirs.db", bench.folder / "async.db")
        theirs[ASYNC_SQLITE] = stack.enter_context(_AsyncSqlite(bench.folder / "async.db"))
        _measure_space(bench, ours, theirs[POSTGRES])
        _get_tuple(bench, ours, theirs)
        _put(bench, ours, theirs)
        _list(bench, ours[200], theirs)
        _at_once(bench, ours[200], theirs)
        for saver in ours.values():
            saver.close()
    _threads(bench)


class _AsyncSqlite:
    """`AsyncSqliteSaver`, whose methods are awaited in an event loop of its own."""

    def __init__(self, path: Path) -> None:
        self._runner = asyncio.Runner()
        self._context = AsyncSqliteSaver.from_conn_string(str(path))

    def __enter__(self) -> _AsyncSqlite:
        self._saver = self._runner.run(self._context.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._context.__aexit__(None, None, None))
        self._runner.close()

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)

    def get_tuple(self, config: Any) -> Any:
        return self._runner.run(self._saver.aget_tuple(config))

    def put(self, *args: Any) -> Any:
        return self._runner.run(self._saver.aput(*args))

    def list(self, config: Any) -> Any:
        async def read() -> Any:
            return [found async for found in self._saver.alist(config)]

        return self._runner.run(read())

    def put_all(self, work: Sequence[tuple[Any, ...]]) -> None:
        async def put() -> None:
            await asyncio.gather(*(self._saver.aput(*args) for args in work))

        self._runner.run(put())


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


def _open_postgres(stack: ExitStack, urls: Iterator[str]) -> PostgresSaver:
    saver = stack.enter_context(PostgresSaver.from_conn_string(next(urls)))
    saver.setup()
    return saver


def _bytes_on_disk(folder: Path, name: str) -> float:
    return sum(file.stat().st_size for file in folder.glob(f"{name}*") if not file.name.endswith("-shm")) / 1e6


def _bytes_in_tables(saver: PostgresSaver) -> float:
    connection: Any = saver.conn
    tables = "checkpoints", "checkpoint_blobs", "checkpoint_writes"
    query = "SELECT pg_total_relation_size(%s) AS size"
    return float(sum(connection.execute(query, (table,)).fetchone()["size"] for table in tables)) / 1e6


def _measure_space(bench: Bench, ours: dict[int, HoldallSaver], postgres: PostgresSaver) -> None:
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
    sizes = {
        OURS: _bytes_on_disk(folder, "ours-200.db"),
        SQLITE: _bytes_on_disk(folder, "theirs.db"),
        POSTGRES: _bytes_in_tables(postgres),
    }
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
            bench.also(ahead_of(*DURABLE))

    saver = ours[200]
    serialised = saver.serde.dumps_typed(saver.get_tuple(_THREAD).checkpoint["channel_values"]["messages"])  # type: ignore[union-attr]
    runs = {
        OURS: lambda: HoldallSaver(saver.store).get_tuple(_THREAD),
        DESERIALISING: lambda: saver.serde.loads_typed(serialised),
    }
    runs |= {name: lambda peer=theirs[name]: peer.get_tuple(_THREAD) for name in DURABLE}  # type: ignore[misc]  # bound now
    target = at_most(1.3, DESERIALISING)
    bench.measure("get_tuple, 200 turns, the first of a process", runs, rounds=15, target=target)
    bench.also(ahead_of(*DURABLE))
    bench.note("the first of a process: of a saver that has read nothing, on a store that is open")


def _put(bench: Bench, ours: dict[int, HoldallSaver], theirs: dict[str, Any]) -> None:
    """Put a checkpoint with one more message, in a thread of 10, 200 and 2,000 turns."""

    def putting(saver: Any) -> Callable[[], None]:
        found = saver.get_tuple(_THREAD)
        checkpoint, config = found.checkpoint, found.config
        numbers = itertools.count()

        def put() -> None:
            nonlocal config
            values = checkpoint["channel_values"]
            values["messages"] = [*values["messages"], AIMessage(_text(), id=str(RANDOM.random()))]
            version = saver.get_next_version(checkpoint["channel_versions"]["messages"], None)
            checkpoint["channel_versions"]["messages"] = version
            checkpoint["id"] = f"ffffffff-ffff-6fff-bfff-{next(numbers):012}"  # later than all before
            config = saver.put(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {"messages": version})

        return put

    runs = {OURS: putting(ours[2000]), FRESH: putting(ours[10])}
    bench.measure("put, 2,000 turns beside 10", runs, rounds=60, target=at_most(3, FRESH), durable=True)
    runs = {OURS: putting(ours[200]), **{name: putting(peer) for name, peer in theirs.items()}}
    bench.measure("put, 200 turns", runs, rounds=30, target=ahead_of(*DURABLE), durable=True)


def _list(bench: Bench, ours: HoldallSaver, theirs: dict[str, Any]) -> None:
    contenders = {OURS: ours, **theirs}
    runs = {name: lambda saver=saver: list(saver.list(_THREAD)) for name, saver in contenders.items()}
    bench.measure("list of 600 checkpoints", runs, rounds=3, target=at_least(20, SQLITE))
    bench.also(at_least(1.5, POSTGRES))
    bench.note("list: HoldallSaver's tuples share the messages that they have in common; the peers' do not")


def _at_once(bench: Bench, ours: HoldallSaver, theirs: dict[str, Any]) -> None:
    """Put the first checkpoint of 64 new threads, in 64 threads or tasks at once."""
    numbers = itertools.count()

    def make_work() -> list[tuple[Any, ...]]:
        configs = ({"configurable": {"thread_id": f"new-{next(numbers)}", "checkpoint_ns": ""}} for _ in range(AT_ONCE))
        values = {"messages": [HumanMessage(_text())]}
        versions = {"messages": 1}
        checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": versions}
        metadata = {"source": "input", "step": -1, "parents": {}}
        return [(config, checkpoint, metadata, versions) for config in configs]

    with ThreadPoolExecutor(AT_ONCE) as pool:

        def put_all(saver: Any) -> Callable[[], None]:
            if isinstance(saver, _AsyncSqlite):
                return lambda: saver.put_all(make_work())
            return lambda: list(pool.map(lambda work: saver.put(*work), make_work())).clear()

        runs = {name: put_all(saver) for name, saver in {OURS: ours, **theirs}.items()}
        target = ahead_of(*DURABLE)
        bench.measure(f"put, {AT_ONCE} threads at once", runs, rounds=10, ops=AT_ONCE, target=target, durable=True)


def _threads(bench: Bench) -> None:
    with holdall.open(bench.folder / "threads.db", durability="relaxed") as store:
        saver = HoldallSaver(store)
        for start in range(0, THREADS, 1000):
            bench.progress(f"{start} threads")
            store.execute(
                [
                    put
                    for number in range(start, start + 1000)
                    for put in (
                        Put(saver.namespace, f"thread-{number}", _listed(number), search_fields=("text",)),
                        Put((*saver.namespace, f"thread-{number}"), "generation", {}, search_fields=False),
                    )
                ]
            )
        runs = {OURS: lambda: saver.threads(limit=100)}
        bench.measure("threads(), 100 of 100,000", runs, rounds=15, target=within(0.005))
        runs = {OURS: lambda: saver.threads(filter={"user_id": "user-7"}, limit=10)}
        bench.measure("threads(filter=), 10 of 100,000", runs, rounds=15)
        runs = {OURS: lambda: saver.threads(query="99999")}
        bench.measure("threads(query=), 1 of 100,000", runs, rounds=15, target=within(0.005))


def _listed(number: int) -> dict[str, Any]:
    return {
        "id": f"thread-{number}",
        "checkpoints": 3,
        "checkpoint_id": f"1f1e32d1-0000-6000-8000-{number:012}",
        "step": 1,
        "metadata": {"source": "loop", "step": 1, "parents": {}, "user_id": f"user-{number % 1000}"},
        "preview": _WORDS[number % 3000],
        "text": f"thread-{number} user-{number % 1000} {_WORDS[number % 3000]}",
    }
