"""LangGraph's own calls on its own stores and on `HoldallStore`, which is on a SQLite file at full durability.

`SqliteStore` and `AsyncSqliteStore` are opened with their own `from_conn_string`, which leaves SQLite's defaults in
place: a rollback journal, at full durability. A second row of concurrent puts has them on a write-ahead log, which they
leave to the user. `InMemoryStore` keeps nothing; it stands beside the others where nothing has to be kept.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

from holdall.faces.langgraph import HoldallStore

from .data import MANY, RANDOM, RARE, USERS, Item, among_many, memory_of, new_keys
from .harness import OURS, Bench, ahead_of, at_most

SQLITE, ASYNC_SQLITE, MEMORY = "SqliteStore", "AsyncSqliteStore", "InMemoryStore"
TASKS = 64
DIMS = 384
_HERE = ("users", "alice", "memories")
_AT_ONCE = 1000


def run(bench: Bench) -> None:
    _get(bench)
    _put(bench)
    for wal in (False, True):
        _tasks(bench, wal)
    _batch(bench)
    _among_many(bench)
    _near(bench)


# One at a time -------------------------------------------------------------------------------------------------------


def _get(bench: Bench) -> None:
    items: list[Item] = [(_HERE, f"key-{number}", memory_of(number)) for number in range(1000)]
    order = [key for _, key, _ in RANDOM.choices(items, k=2000)]
    with ExitStack() as stack:
        stores: dict[str, BaseStore] = {**_on_files(stack, bench.folder, "get"), MEMORY: InMemoryStore()}
        _load(stores, items)

        def gets(store: BaseStore) -> Callable[[], None]:
            def run() -> None:
                for key in order:
                    store.get(_HERE, key)

            return run

        for name, store in stores.items():
            assert [store.get(*item[:2]).value for item in items] == [item[2] for item in items], name  # type: ignore[union-attr]  # it is there
        runs = {name: gets(store) for name, store in stores.items()}
        bench.measure("get", runs, ops=len(order), rounds=25, target=at_most(2, SQLITE))
        bench.also(ahead_of(SQLITE))


def _put(bench: Bench) -> None:
    ops, rounds = 100, 15
    values = [memory_of(number) for number in range(ops)]
    with ExitStack() as stack:
        stores = _on_files(stack, bench.folder, "put")

        def puts(store: BaseStore) -> Callable[[], None]:
            unused = new_keys()

            def run() -> None:
                for key, value in zip(unused, values, strict=False):
                    store.put(_HERE, key, value)

            return run

        runs = {name: puts(store) for name, store in stores.items()}
        bench.measure("put, one at a time", runs, ops=ops, rounds=rounds, target=ahead_of(SQLITE), durable=True)
        _check_counts(stores, ops * (rounds + 1))


# Many at a time ------------------------------------------------------------------------------------------------------


def _tasks(bench: Bench, wal: bool) -> None:
    """Tasks that share a namespace, and tasks that have one each."""
    each, rounds = 16, 15
    values = [memory_of(number) for number in range(each)]
    target = None if wal else ahead_of(ASYNC_SQLITE)
    theirs = "; theirs on WAL" if wal else ""
    with asyncio.Runner() as loop:

        async def opened() -> tuple[AsyncExitStack, dict[str, BaseStore]]:
            stack = AsyncExitStack()
            ours = stack.enter_context(HoldallStore(bench.folder / f"tasks-{wal}-ours.db"))
            path = str(bench.folder / f"tasks-{wal}-peer.db")
            peer = await stack.enter_async_context(AsyncSqliteStore.from_conn_string(path))
            if wal:
                await (await peer.conn.execute("PRAGMA journal_mode = WAL")).fetchall()
            await peer.setup()
            return stack, {OURS: ours, ASYNC_SQLITE: peer}

        def all_at_once(
            call: Callable[..., Coroutine[Any, Any, object]], put: bool, own: bool, prefix: str
        ) -> Callable[[], None]:
            turns = itertools.count()

            async def work(task: int, turn: int) -> None:
                space = ("users", f"user-{task}", "memories") if own else _HERE
                for number, value in enumerate(values):
                    key = f"{prefix}-{turn if put else 0}-{task}-{number}"
                    result = await (call(space, key, value) if put else call(space, key))
                    assert put or result is not None

            async def run() -> None:
                turn = next(turns)
                await asyncio.gather(*(work(task, turn) for task in range(TASKS)))

            return lambda: loop.run(run())

        stack, stores = loop.run(opened())
        for own in (False, True):
            where = "a namespace each" if own else "one namespace"
            for what, put in (("put", True), ("get", False)):
                runs = {
                    name: all_at_once(store.aput if put else store.aget, put, own, where)
                    for name, store in stores.items()
                }
                bench.measure(
                    f"{what}, {TASKS} asyncio tasks, {where}{theirs}",
                    runs,
                    ops=TASKS * each,
                    rounds=rounds,
                    target=target,
                    durable=put,
                    as_rate=True,
                )
        written = 2 * TASKS * each * (rounds + 1)
        ours = stores[OURS]
        assert isinstance(ours, HoldallStore)
        assert ours.store.count() == written
        loop.run(stack.aclose())


def _batch(bench: Bench) -> None:
    ops, rounds = 1000, 15
    values = [memory_of(number) for number in range(ops)]
    with ExitStack() as stack:
        stores = _on_files(stack, bench.folder, "batch")

        def puts(store: BaseStore) -> Callable[[], object]:
            unused = new_keys()
            return lambda: store.batch([PutOp(_HERE, *pair) for pair in zip(unused, values, strict=False)])

        runs = {name: puts(store) for name, store in stores.items()}
        bench.measure("a batch of 1,000 puts", runs, rounds=rounds, target=ahead_of(SQLITE), durable=True)
        _check_counts(stores, ops * (rounds + 1))


# Among 100,000 -------------------------------------------------------------------------------------------------------


def _among_many(bench: Bench) -> None:
    items, wanted = among_many()
    with ExitStack() as stack:
        stores: dict[str, BaseStore] = {**_on_files(stack, bench.folder, "many"), MEMORY: InMemoryStore()}
        bench.progress("loading 100,000 items, three times")
        _load(stores, items)
        del items
        for what, (field, value) in zip(("a text", "a number"), RARE[1:], strict=True):
            searches: dict[str, Callable[[], list[Any]]] = {
                name: partial(store.search, ("users",), filter={field: value}) for name, store in stores.items()
            }
            for name, search in searches.items():
                assert {item.key for item in search()} == wanted[field], f"{name} finds something else"
            bench.measure(f"search, 10 of 100,000 by {what}", searches, rounds=9, target=ahead_of(SQLITE, MEMORY))
        listings: dict[str, Callable[[], list[Any]]] = {
            name: partial(store.list_namespaces, max_depth=2) for name, store in stores.items()
        }
        for name, listing in listings.items():
            assert listing() == USERS, f"{name} lists something else"
        what = f"list_namespaces(max_depth=2), {len(USERS)} of 10,000"
        bench.measure(what, listings, rounds=15, target=ahead_of(SQLITE, MEMORY))
    bench.note("searches: no field was declared with filter_fields=")


def _near(bench: Bench) -> None:
    """The ten nearest of 100,000 vectors, of all and of one in a hundred."""
    vectors = np.random.default_rng(3).standard_normal((MANY + 20, DIMS), dtype=np.float32)

    def embed(texts: Sequence[str]) -> list[Any]:
        return [
            vectors[int(text.rpartition(" ")[2])] if text.startswith("memory ") else vectors[MANY] for text in texts
        ]

    index: Any = {"dims": DIMS, "embed": embed, "fields": ["text"]}
    with ExitStack() as stack:
        stores: dict[str, BaseStore] = {
            OURS: stack.enter_context(HoldallStore(bench.folder / "near-ours.db", index=index)),
            MEMORY: InMemoryStore(index=index),
        }
        if hasattr(sqlite3.Connection, "enable_load_extension"):
            path = str(bench.folder / "near-peer.db")
            stores[SQLITE] = stack.enter_context(SqliteStore.from_conn_string(path, index=index))
        bench.progress("loading 100,000 items with vectors")
        items: list[Item] = [
            (_HERE, f"key-{number}", {"text": f"memory {number}", "part": number % 100}) for number in range(MANY)
        ]
        _load(stores, items)
        for what, filter in (("", None), (", filtered to 1,000", {"part": 7})):
            queries = itertools.cycle(range(1, 20))

            def search(store: BaseStore, filter: Any = filter) -> list[Any]:
                return store.search(_HERE, query=f"memory {MANY + next(queries)}", filter=filter)  # noqa: B023  # now

            expected = _nearest(vectors, MANY + 1, filter is not None)
            for name, store in stores.items():
                found = store.search(_HERE, query=f"memory {MANY + 1}", filter=filter)
                assert [item.key for item in found] == expected, f"{name} finds something else"
            bench.measure(
                f"search, the 10 nearest of 100,000 × {DIMS}{what}",
                {name: partial(search, store) for name, store in stores.items()},
                rounds=9,
                target=ahead_of(*(name for name in stores if name != OURS)),
            )
    if SQLITE not in stores:
        bench.note(f"vectors: {SQLITE} cannot have any here, since this Python's sqlite3 loads no extensions")


def _nearest(vectors: Any, query: int, filtered: bool) -> list[str]:
    among = np.arange(7, MANY, 100) if filtered else np.arange(MANY)
    some = vectors[among].astype(np.float64)
    cosine = some @ vectors[query].astype(np.float64) / np.linalg.norm(some, axis=1)
    return [f"key-{among[place]}" for place in np.argsort(-cosine)[:10]]


# Set-up --------------------------------------------------------------------------------------------------------------


def _on_files(stack: ExitStack, folder: Path, name: str) -> dict[str, BaseStore]:
    peer = stack.enter_context(SqliteStore.from_conn_string(str(folder / f"{name}-peer.db")))
    peer.setup()
    return {OURS: stack.enter_context(HoldallStore(folder / f"{name}-ours.db")), SQLITE: peer}


def _load(stores: dict[str, BaseStore], items: list[Item]) -> None:
    for start in range(0, len(items), _AT_ONCE):
        some = items[start : start + _AT_ONCE]
        for store in stores.values():
            store.batch([PutOp(*item) for item in some])


def _check_counts(stores: dict[str, BaseStore], wanted: int) -> None:
    ours, peer = stores[OURS], stores[SQLITE]
    assert isinstance(ours, HoldallStore)
    assert isinstance(peer, SqliteStore)
    assert ours.store.count() == wanted
    assert peer.conn.execute("SELECT count(*) FROM store").fetchone()[0] == wanted
