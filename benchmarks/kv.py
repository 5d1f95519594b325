"""Items: get, put, batches, concurrent writers, filtered search and listing namespaces, with values of 1 KB.

The peers are apsw by itself, on a table of the same columns, and langgraph's stores. `SqliteStore` and
`AsyncSqliteStore` are opened with their own `from_conn_string`, which leaves SQLite's defaults in place: a rollback
journal, at full durability. Where that matters, a second row puts them on a write-ahead log, which they leave to the
user.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

import apsw
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

import holdall
from holdall.engines.sql.bounded_reads import COLUMNS
from holdall.model import keys
from holdall.model.values import encode

from .data import RANDOM, RARE, THREADS, USERS, Item, among_many, memory_of, new_keys
from .harness import Bench, ahead_of, at_least, at_most, no_slower_than

RAW, SQLITE, ASYNC_SQLITE, MEMORY = "raw apsw", "SqliteStore", "AsyncSqliteStore", "InMemoryStore"
WRITERS = 64
_HERE = ("users", "alice", "memories")

# What holdall's first migration says of the table, without the indexes that only holdall needs.
_RAW_TABLE = """
    CREATE TABLE entries (
        version INTEGER PRIMARY KEY, ns TEXT NOT NULL, key TEXT NOT NULL, value TEXT, created INTEGER NOT NULL,
        updated INTEGER NOT NULL, expires INTEGER, ttl INTEGER, kind TEXT, UNIQUE (ns, key)
    )"""
_RAW_INSERT = "INSERT INTO entries (ns, key, value, created, updated, expires, ttl) VALUES (?, ?, ?, ?, ?, ?, ?)"


def run(bench: Bench) -> None:
    _get(bench)
    _put(bench, "relaxed", "NORMAL", times=3, ops=1000, rounds=15)
    _put(bench, "full", "FULL", times=1.5, ops=100, rounds=25)
    for wal in (False, True):
        _threads(bench, wal)
    for wal in (False, True):
        _tasks(bench, wal)
    for wal in (False, True):
        _batch(bench, wal)
    _among_many(bench)


# One at a time -------------------------------------------------------------------------------------------------------


def _get(bench: Bench) -> None:
    path = bench.folder / "get.db"
    items: list[Item] = [(_HERE, f"key-{number}", memory_of(number)) for number in range(1000)]
    order = [key for _, key, _ in RANDOM.choices(items, k=2000)]
    encoded, select = keys.encode(_HERE), f"SELECT {COLUMNS} FROM holdall_entries WHERE ns = ? AND key = ?"
    with holdall.open(str(path)) as store, _langgraph(bench.folder / "get-peer.db") as peer:
        memory = InMemoryStore()
        _load(store, peer, memory, items)
        raw = _connect(path, "FULL")

        def ours() -> None:
            for key in order:
                store.get(_HERE, key)

        def theirs_raw() -> None:
            for key in order:
                raw.execute(select, (encoded, key)).fetchall()

        def theirs(langgraph: Any) -> Callable[[], None]:
            def run() -> None:
                for key in order:
                    langgraph.get(_HERE, key)

            return run

        for _, key, value in items:
            entry, item = store.get(_HERE, key), peer.get(_HERE, key)
            assert entry is not None
            assert entry.value == value == item.value
            assert raw.execute(select, (encoded, key)).fetchall()[0][2] == encode(value)
        runs = {"holdall": ours, RAW: theirs_raw, SQLITE: theirs(peer), MEMORY: theirs(memory)}
        bench.measure("get", runs, ops=len(order), rounds=15, target=at_most(3, RAW))
        raw.close()


def _put(
    bench: Bench, durability: Literal["full", "relaxed"], synchronous: str, times: float, ops: int, rounds: int
) -> None:
    full = durability == "full"
    values = [memory_of(number) for number in range(ops)]
    texts = [str(encode(value)) for value in values]
    encoded = keys.encode(_HERE)
    ours_at, raw_at, peer_at = (bench.folder / f"put-{durability}-{who}.db" for who in ("ours", "raw", "peer"))
    with holdall.open(str(ours_at), durability=durability) as store, _langgraph(peer_at) as peer:
        raw = _connect(raw_at, synchronous)
        raw.execute(_RAW_TABLE)
        made = {who: new_keys() for who in ("holdall", RAW, SQLITE)}

        def ours() -> None:
            for key, value in zip(made["holdall"], values, strict=False):
                store.put(_HERE, key, value)

        def theirs_raw() -> None:
            for key, text in zip(made[RAW], texts, strict=False):
                raw.execute(_RAW_INSERT, (encoded, key, text, 0, 0, None, None))

        def theirs() -> None:
            for key, value in zip(made[SQLITE], values, strict=False):
                peer.put(_HERE, key, value)

        runs: dict[str, Callable[[], None]] = {"holdall": ours, RAW: theirs_raw}
        if full:  # SqliteStore knows nothing else
            runs[SQLITE] = theirs
        what = f"put, durability={durability!r}"
        bench.measure(what, runs, ops=ops, rounds=rounds, target=at_most(times, RAW), durable=full)
        assert store.count() == raw.execute("SELECT count(*) FROM entries").fetchall()[0][0] == ops * (rounds + 1)
        raw.close()
    bench.note(f"put, durability={durability!r}: raw apsw in WAL with synchronous={synchronous}, a commit an insert")


# Many at a time ------------------------------------------------------------------------------------------------------


def _threads(bench: Bench, wal: bool) -> None:
    each, rounds = 16, 7
    values = [memory_of(number) for number in range(each)]
    with ExitStack() as stack:
        store, peer = _pair(stack, bench.folder, f"threads-{wal}", wal)
        threads = stack.enter_context(ThreadPoolExecutor(WRITERS))

        def all_at_once(put: Callable[..., object]) -> Callable[[], None]:
            unused = new_keys()

            def write(mine: list[str]) -> None:
                for key, value in zip(mine, values, strict=True):
                    put(_HERE, key, value)

            def run() -> None:
                list(threads.map(write, [list(itertools.islice(unused, each)) for _ in range(WRITERS)]))

            return run

        bench.measure(
            f"put, {WRITERS} threads{_on(wal)}",
            {"holdall": all_at_once(store.put), SQLITE: all_at_once(peer.put)},
            ops=WRITERS * each,
            rounds=rounds,
            target=None if wal else at_least(5, SQLITE),
            durable=True,
            as_rate=True,
        )
        _check_counts(store, peer, WRITERS * each * (rounds + 1))
        bench.note(f"{WRITERS} threads{_on(wal)}: on one {SQLITE}, with {_pragmas(peer)}")


def _tasks(bench: Bench, wal: bool) -> None:
    each, rounds = 16, 15
    values = [memory_of(number) for number in range(each)]
    store = holdall.open(str(bench.folder / f"tasks-{wal}-ours.db"))
    with asyncio.Runner() as loop:

        async def opened() -> tuple[AsyncExitStack, AsyncSqliteStore]:
            stack = AsyncExitStack()
            await stack.enter_async_context(store)
            path = str(bench.folder / f"tasks-{wal}-peer.db")
            peer = await stack.enter_async_context(AsyncSqliteStore.from_conn_string(path))
            if wal:
                await (await peer.conn.execute("PRAGMA journal_mode = WAL")).fetchall()
            await peer.setup()
            return stack, peer

        def all_at_once(aput: Callable[..., Coroutine[Any, Any, object]]) -> Callable[[], None]:
            unused = new_keys()

            async def write() -> None:
                for key, value in zip(unused, values, strict=False):
                    await aput(_HERE, key, value)

            async def run() -> None:
                await asyncio.gather(*(write() for _ in range(WRITERS)))

            return lambda: loop.run(run())

        async def pragmas() -> str:
            found = [list(await (await peer.conn.execute(f"PRAGMA {name}")).fetchall()) for name in _PRAGMAS]
            return _shown(*(rows[0][0] for rows in found))

        async def counted() -> int:
            [[count]] = await (await peer.conn.execute("SELECT count(*) FROM store")).fetchall()
            return int(count)

        stack, peer = loop.run(opened())
        bench.measure(
            f"put, {WRITERS} asyncio tasks{_on(wal)}",
            {"holdall": all_at_once(store.aput), ASYNC_SQLITE: all_at_once(peer.aput)},
            ops=WRITERS * each,
            rounds=rounds,
            target=None if wal else no_slower_than(ASYNC_SQLITE),
            durable=True,
            as_rate=True,
        )
        assert store.count() == loop.run(counted()) == WRITERS * each * (rounds + 1)
        bench.note(f"{WRITERS} asyncio tasks{_on(wal)}: on one {ASYNC_SQLITE}, with {loop.run(pragmas())}")
        loop.run(stack.aclose())


def _batch(bench: Bench, wal: bool) -> None:
    ops, rounds = 1000, 15
    values = [memory_of(number) for number in range(ops)]
    with ExitStack() as stack:
        store, peer = _pair(stack, bench.folder, f"batch-{wal}", wal)
        our_keys, their_keys = new_keys(), new_keys()

        def ours() -> None:
            store.execute([holdall.ops.Put(_HERE, *pair) for pair in zip(our_keys, values, strict=False)])

        def theirs() -> None:
            peer.batch([PutOp(_HERE, *pair) for pair in zip(their_keys, values, strict=False)])

        bench.measure(
            f"put, a batch of 1,000{_on(wal)}",
            {"holdall": ours, SQLITE: theirs},
            rounds=rounds,
            target=None if wal else ahead_of(SQLITE),
            durable=True,
        )
        _check_counts(store, peer, ops * (rounds + 1))


# Among 100,000 -------------------------------------------------------------------------------------------------------


def _among_many(bench: Bench) -> None:
    items, wanted = among_many()
    with ExitStack() as stack:
        store = stack.enter_context(holdall.open(str(bench.folder / "many-ours.db"), filter_fields=["kind"]))
        peer = stack.enter_context(_langgraph(bench.folder / "many-peer.db"))
        memory = InMemoryStore()
        bench.progress("loading 100,000 items, three times")
        _load(store, peer, memory, items)
        del items

        for what, (field, value), target in (
            ("declared field", RARE[0], at_least(100, SQLITE, MEMORY)),
            ("undeclared, text", RARE[1], ahead_of(SQLITE, MEMORY)),
            ("undeclared, number", RARE[2], ahead_of(SQLITE, MEMORY)),
        ):
            searches: dict[str, Callable[[], list[Any]]] = {
                name: partial(search, ("users",), filter={field: value})
                for name, search in (("holdall", store.search), (SQLITE, peer.search), (MEMORY, memory.search))
            }
            for name, search in searches.items():
                assert {item.key for item in search()} == wanted[field], f"{name} finds something else"
            bench.measure(f"search, 10 of 100,000, {what}", searches, rounds=9, target=target)

        for depth, listed in ((2, USERS), (3, THREADS)):
            listings: dict[str, Callable[[], list[Any]]] = {
                name: partial(namespaces, max_depth=depth, limit=max(100, len(listed)))
                for name, namespaces in (
                    ("holdall", store.namespaces),
                    (SQLITE, peer.list_namespaces),
                    (MEMORY, memory.list_namespaces),
                )
            }
            for name, listing in listings.items():
                assert listing() == listed, f"{name} lists something else"
            what = f"namespaces(max_depth={depth}), {len(listed):,} of 10,000"
            bench.measure(what, listings, rounds=9, target=at_least(20, SQLITE) if depth == 2 else None)


# Set-up --------------------------------------------------------------------------------------------------------------

_PRAGMAS = ("journal_mode", "synchronous")


def _connect(path: Path, synchronous: str) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    for pragma, value in (("journal_mode", "wal"), ("synchronous", synchronous), ("cache_size", "-8000")):
        connection.execute(f"PRAGMA {pragma} = {value}").fetchall()
    return connection


def _langgraph(path: Path) -> Any:
    return SqliteStore.from_conn_string(str(path))


def _pair(stack: ExitStack, folder: Path, name: str, wal: bool) -> tuple[holdall.Store, SqliteStore]:
    """Ours at full durability, and theirs."""
    store = stack.enter_context(holdall.open(str(folder / f"{name}-ours.db")))
    peer = stack.enter_context(_langgraph(folder / f"{name}-peer.db"))
    if wal:
        peer.conn.execute("PRAGMA journal_mode = WAL").fetchall()
    peer.setup()
    return store, peer


def _load(store: holdall.Store, peer: SqliteStore, memory: InMemoryStore, items: list[Item]) -> None:
    for start in range(0, len(items), 1000):
        some = items[start : start + 1000]
        store.execute([holdall.ops.Put(*item) for item in some])
        peer.batch([PutOp(*item) for item in some])
        memory.batch([PutOp(*item) for item in some])


def _check_counts(store: holdall.Store, peer: SqliteStore, wanted: int) -> None:
    assert store.count() == peer.conn.execute("SELECT count(*) FROM store").fetchall()[0][0] == wanted


def _on(wal: bool) -> str:
    return "; theirs on WAL" if wal else ""


def _pragmas(peer: SqliteStore) -> str:
    return _shown(*(peer.conn.execute(f"PRAGMA {name}").fetchone()[0] for name in _PRAGMAS))


def _shown(journal_mode: str, synchronous: int) -> str:
    return f"journal_mode={journal_mode}, synchronous={('OFF', 'NORMAL', 'FULL', 'EXTRA')[synchronous]}"
