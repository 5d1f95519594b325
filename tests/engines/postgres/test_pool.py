"""PostgreSQL's connections: how many there are, how long one waits for them, and whose they are."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import psycopg_pool
import pytest

import holdall
from holdall.errors import Conflict, InvalidInput, StoreClosed, Timeout, Unavailable, Unsupported
from holdall.ops import ABSENT, Delete, Get, Put
from support.processes import report, run
from support.servers import Postgres, open_connections
from support.threads import eventually

pytestmark = pytest.mark.timed

HOME = ("home",)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def schema() -> str:
    return f"pool_{next(_numbers)}"


@pytest.fixture(autouse=True)
def nothing_is_left_open(server: Postgres) -> Iterator[None]:
    yield
    gc.collect()
    assert connections(server) == 0, "a test left connections behind"


def connections(server: Postgres) -> int:
    return open_connections(server.port)


def pool_of(store: holdall.Store) -> Any:
    return store._engine_handle.engine._pool


def idle_in(store: holdall.Store) -> int:
    return sum(len(idle) for idle in pool_of(store)._idle.values())


@contextmanager
def locked(server: Postgres, schema: str) -> Iterator[None]:
    """Lock every row from another session."""
    with psycopg.connect(server.url) as other:
        other.execute(f'SELECT FROM "{schema}".entries FOR UPDATE')
        yield
        other.rollback()


def blocked(server: Postgres) -> int:
    with psycopg.connect(server.url) as other:
        [(count,)] = other.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchall()
    return int(count)


# How many ------------------------------------------------------------------------------------------------------------


def test_pool_max_holds_over_threads_and_event_loops_together(server: Postgres, schema: str) -> None:
    with holdall.open(server.url, schema=schema, pool_max=3, pool_timeout=30) as store:
        store.setup()
        most = 0
        until = time.monotonic() + 1.5
        failures: list[BaseException] = []

        def guarded(function: Callable[[], Any]) -> Callable[[], None]:
            def call() -> None:
                try:
                    function()
                except BaseException as error:
                    failures.append(error)

            return call

        def write() -> None:
            for i in itertools.count():
                if time.monotonic() > until:
                    return
                store.put(HOME, str(threading.get_ident()), {"i": i})

        async def awrite(name: int) -> None:
            for i in itertools.count():
                if time.monotonic() > until:
                    return
                await store.aput(HOME, str(name), {"i": i})
                await asyncio.sleep(0.001)

        async def main() -> None:
            await asyncio.gather(*(awrite(i) for i in range(4)))

        threads = [threading.Thread(target=guarded(write)) for _ in range(4)]
        threads += [threading.Thread(target=guarded(lambda: asyncio.run(main()))) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, connections(server), pool_of(store).size)
            time.sleep(0.005)
        assert failures == []
        assert most == 3


def test_waiting_for_a_connection_ends_with_pool_timeout(server: Postgres, schema: str) -> None:
    with holdall.open(server.url, schema=schema, pool_max=1, pool_timeout=0.4) as store:
        store.put(HOME, "a", {})
        with locked(server, schema):
            writer = threading.Thread(target=lambda: store.put(HOME, "a", {"n": 1}))
            writer.start()
            eventually(lambda: blocked(server) == 1)
            began = time.monotonic()
            with pytest.raises(Timeout, match="pool_max"):
                store.get(HOME, "a")
            with pytest.raises(Timeout, match="pool_max"):
                asyncio.run(store.aget(HOME, "a"))
            assert 0.7 < time.monotonic() - began < 3
        writer.join()
        assert store.get(HOME, "a").value == {"n": 1}
        assert asyncio.run(store.aget(HOME, "a")).value == {"n": 1}
        assert pool_of(store).size <= 1


def test_waiting_for_a_connection_ends_with_timeout(
    server: Postgres, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdall.open(server.url, schema=schema, pool_max=1, pool_timeout=60) as store:
        engine: Any = store._engine_handle.engine  # a busy machine needs more time to open it
        monkeypatch.setattr(engine, "_options", holdall.ops.replace(engine._options, timeout=0.5))
        connection = pool_of(store).acquire(lambda: pytest.fail("one is idle"), time.monotonic())
        began = time.monotonic()
        with pytest.raises(Timeout, match="pool_max"):
            store.get(HOME, "a")
        with pytest.raises(Timeout, match="pool_max"):
            asyncio.run(store.aget(HOME, "a"))
        assert time.monotonic() - began > 0.8
        monkeypatch.undo()
        pool_of(store).release(None, connection)
        assert store.get(HOME, "a") is None


# None is lost --------------------------------------------------------------------------------------------------------


def fail(store: holdall.Store) -> None:
    """Everything that can be refused once it has reached PostgreSQL."""
    with pytest.raises(Conflict):
        store.put(HOME, "a", {}, expect=ABSENT)
    with pytest.raises(Conflict):
        store.execute([Put(HOME, "b", {}), Delete(HOME, "a", expect=1_000_000)])
    with pytest.raises(InvalidInput):
        store.put(HOME, random.randbytes(9000).hex(), {})
    with pytest.raises(InvalidInput):
        store.execute([Put(HOME, "b", {}), Put(HOME, random.randbytes(9000).hex(), {})])
    with pytest.raises(InvalidInput):
        store._engine_handle.engine.execute([holdall.ops.Changes(since="nonsense")])


def test_errors_leave_the_pool_as_it_was(server: Postgres, schema: str) -> None:
    with holdall.open(server.url, schema=schema, pool_max=2, pool_timeout=2) as store:
        store.put(HOME, "a", {})
        before = (pool_of(store).size, idle_in(store))
        for _ in range(5):
            fail(store)
        assert (pool_of(store).size, idle_in(store)) in (before, (0, 0))
        assert connections(server) == pool_of(store).size
        assert store.count(HOME) == 1


def test_tasks_cancelled_at_any_moment_leave_the_pool_whole(server: Postgres, schema: str) -> None:
    with holdall.open(server.url, schema=schema, pool_max=3, pool_timeout=20) as store:
        store.put(HOME, "a", {})
        tally = {"done": 0, "cancelled": 0}

        async def one(number: int) -> None:
            match number % 4:
                case 0:
                    await store.aput(HOME, "a", {})
                case 1:
                    await store.aexecute([Put(HOME, f"{number}{i}", {"n": number}) for i in range(5)])
                case 2:
                    await store.asearch(HOME, limit=3)
                case 3:
                    with suppress(Conflict):
                        await store.aexecute([Get(HOME, "a"), Put(HOME, "a", {}, expect=1_000_000)])

        async def main() -> None:
            for round_ in range(25):
                tasks = [asyncio.create_task(one(round_ * 8 + i)) for i in range(8)]
                for task in random.sample(tasks, 5):
                    await asyncio.sleep(random.choice([0, 0, 0.0005, 0.002, 0.005]))
                    task.cancel()
                for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(outcome, asyncio.CancelledError):
                        tally["cancelled"] += 1
                    else:
                        assert outcome is None, repr(outcome)
                        tally["done"] += 1
            for _ in range(500):  # a batch that tasks share goes on when one of them is cancelled
                if pool_of(store).size == idle_in(store):
                    break
                await asyncio.sleep(0.01)
            assert pool_of(store).size == idle_in(store) <= 3
            assert not pool_of(store)._waiters
            await asyncio.gather(*(store.aput(HOME, "a", {}) for _ in range(10)))

        asyncio.run(main())
        assert tally["done"] > 20 and tally["cancelled"] > 20, tally
        for number in range(1, 200, 4):
            assert store.execute([Get(HOME, f"{number}{i}") for i in range(5)]).count(None) in (0, 5), "half a batch"


def test_connections_of_an_event_loop_that_has_gone_are_closed(server: Postgres, schema: str) -> None:
    store = holdall.open(server.url, schema=schema, pool_max=10)

    async def main() -> None:
        await asyncio.gather(*(store.aexecute([Put(HOME, f"{i}{n}", {}) for n in range(2)]) for i in range(3)))
        assert connections(server) == 3

    for _ in range(8):
        asyncio.run(main())
        gc.collect()
        assert pool_of(store).size == connections(server) == 0
    store.put(HOME, "sync", {})
    assert pool_of(store).size == connections(server) == 1
    store.close()


def test_a_loop_that_is_closed_while_tasks_wait_takes_nothing_with_it(server: Postgres, schema: str) -> None:
    with holdall.open(server.url, schema=schema, pool_max=1, pool_timeout=10) as store:
        store.put(HOME, "a", {})

        async def begin() -> None:
            for _ in range(4):
                task = asyncio.ensure_future(store.aput(HOME, "a", {"from": "loop"}))
                left.append(task)
            await asyncio.sleep(0.1)

        left: list[Any] = []
        with locked(server, schema):
            asyncio.run(begin())  # which cancels what is left, as it ends
        left.clear()
        gc.collect()
        assert store.put(HOME, "a", {"n": 2}).value == {"n": 2}
        assert pool_of(store).size == 1


def test_close_closes_what_is_idle_and_later_what_was_in_use(server: Postgres, schema: str) -> None:
    store = holdall.open(server.url, schema=schema)
    store.put(HOME, "a", {})
    outcome: list[Any] = []
    with locked(server, schema):
        writer = threading.Thread(target=lambda: outcome.append(store.put(HOME, "a", {"n": 1})))
        writer.start()
        eventually(lambda: blocked(server) == 1)
        store.get(HOME, "a")
        store.close()
        assert connections(server) == 2  # the lock's and the writer's
    writer.join()
    assert outcome[0].value == {"n": 1}
    assert connections(server) == 0
    with pytest.raises(StoreClosed):
        store.get(HOME, "a")


# How long ------------------------------------------------------------------------------------------------------------

BLOCKED_BY_A_ROW: dict[str, Callable[[holdall.Store], Any]] = {
    "put": lambda store: store.put(HOME, "a", {"n": 1}),
    "update": lambda store: store.update(HOME, "a", lambda value: {"n": 1}),
    "delete": lambda store: store.delete(HOME, "a"),
    "batch": lambda store: store.execute([Put(HOME, "a", {"n": 1}), Put(HOME, "b", {"n": 1})]),
    "tree": lambda store: store.delete_tree(HOME),
}
ABLOCKED_BY_A_ROW: dict[str, Callable[[holdall.Store], Awaitable[Any]]] = {
    "put": lambda store: store.aput(HOME, "a", {"n": 1}),
    "update": lambda store: store.aupdate(HOME, "a", lambda value: {"n": 1}),
    "delete": lambda store: store.adelete(HOME, "a"),
    "batch": lambda store: store.aexecute([Put(HOME, "a", {"n": 1}), Put(HOME, "b", {"n": 1})]),
    "tree": lambda store: store.adelete_tree(HOME),
}


@pytest.mark.parametrize("what", BLOCKED_BY_A_ROW)
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_locked_row_is_waited_for_until_the_timeout(server: Postgres, schema: str, what: str, how: str) -> None:
    with holdall.open(server.url, schema=schema) as patient:  # to set up may take longer
        patient.execute([Put(HOME, "a", {}), Put(HOME, "b", {})])
    with holdall.open(server.url, schema=schema, timeout=1, pool_max=1) as store:
        store.setup()

        async def atry() -> None:
            with pytest.raises(Timeout):
                await ABLOCKED_BY_A_ROW[what](store)
            assert await store.aget(HOME, "a") is not None

        with locked(server, schema):
            began = time.monotonic()
            if how == "sync":
                with pytest.raises(Timeout):
                    BLOCKED_BY_A_ROW[what](store)
                assert store.get(HOME, "a") is not None
            else:
                asyncio.run(atry())
            assert 0.7 < time.monotonic() - began < 5
            eventually(lambda: blocked(server) == 0, 3)  # or abandoned waiters would pile up beyond pool_max
        assert [store.get(HOME, key).value for key in "ab"] == [{}, {}], "Timeout means that nothing was written"
        store.put(HOME, "a", {"n": 2})
        assert store.get(HOME, "a").value == {"n": 2}
        assert pool_of(store).size == 1


def test_a_task_is_cancelled_in_time_even_if_the_server_does_not_answer(server: Postgres, schema: str) -> None:
    with holdall.open(server.url, schema=schema, timeout=1) as store:

        async def main() -> None:
            await store.aput(HOME, "a", {})
            server.freeze()
            task = asyncio.create_task(store.aput(HOME, "a", {}))
            await asyncio.sleep(0.2)
            began = time.monotonic()
            task.cancel()
            with pytest.raises((asyncio.CancelledError, Unavailable)):
                await task
            assert time.monotonic() - began < 4
            server.thaw()
            await store.aput(HOME, "a", {})

        try:
            asyncio.run(main())
        finally:
            server.thaw()


# Whose ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_async", [False, True], ids=["sync", "async"])
def test_a_forked_child_has_connections_of_its_own(server: Postgres, schema: str, use_async: bool) -> None:
    messages = run(fork_and_write, url=server.url, schema=schema, use_async=use_async)
    assert sorted(messages) == ["child 0", "child 1", "child 2", "parent"]
    with holdall.open(server.url, schema=schema) as store:
        assert store.count(("child",)) == 3 * 20
        assert store.count(("parent",)) == 3 * 20


def fork_and_write(url: str, schema: str, use_async: bool) -> None:
    store = holdall.open(url, schema=schema)
    loop = asyncio.new_event_loop() if use_async else None

    async def awrite(place: str, first: int) -> None:
        for number in range(first, first + 10):
            await store.aput((place,), str(number), {})

    def write(place: str, first: int) -> None:
        if loop is not None:
            loop.run_until_complete(awrite(place, first))
            return
        for number in range(first, first + 10):
            store.put((place,), str(number), {})

    for child in range(3):
        write("parent", child * 20)
        pid = os.fork()
        if pid == 0:
            for i in range(10):
                store.put(("child",), f"{child}.{i}", {})
            asyncio.run(awrite("child", child * 1000))
            if child == 1:
                store.close()
            report(f"child {child}")
            if loop is not None:  # which the child cannot close: its selector is the parent's too
                os._exit(0)
            sys.exit(0)
        write("parent", child * 20 + 10)
        assert os.waitpid(pid, 0)[1] == 0
    if loop is not None:
        loop.close()
    store.close()
    report("parent")


# The user's own connection --------------------------------------------------------------------------------------------


def use(store: holdall.Store) -> None:
    store.put(HOME, "a", {"n": 1})
    assert store.execute([Put(HOME, "b", {}), Get(HOME, "a")])[1].value == {"n": 1}
    with pytest.raises(Conflict):
        store.put(HOME, "a", {}, expect=ABSENT)
    with pytest.raises(Conflict):
        store.execute([Put(HOME, "c", {}), Put(HOME, "a", {}, expect=ABSENT)])
    with pytest.raises(InvalidInput):
        store.execute([Put(HOME, "b", {}), Put(HOME, random.randbytes(9000).hex(), {})])
    assert sorted(hit.key for hit in store.search(HOME)) == ["a", "b"]


async def ause(store: holdall.Store) -> None:
    await store.aput(HOME, "a", {"n": 1})
    assert (await store.aexecute([Put(HOME, "b", {}), Get(HOME, "a")]))[1].value == {"n": 1}
    with pytest.raises(Conflict):
        await store.aput(HOME, "a", {}, expect=ABSENT)
    with pytest.raises(Conflict):
        await store.aexecute([Put(HOME, "c", {}), Put(HOME, "a", {}, expect=ABSENT)])
    with pytest.raises(InvalidInput):
        await store.aexecute([Put(HOME, "b", {}), Put(HOME, random.randbytes(9000).hex(), {})])
    assert sorted(hit.key for hit in await store.asearch(HOME)) == ["a", "b"]


def test_a_given_connection_is_used_and_left_open(server: Postgres, schema: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as given:
        with holdall.open(server.url, schema=schema, connection=given) as store:
            use(store)
            assert connections(server) == 1
            threads = [threading.Thread(target=store.put, args=(HOME, str(i), {})) for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert store.count(HOME) == 10
            with pytest.raises(Unsupported, match="sync"):
                asyncio.run(store.aget(HOME, "a"))
        assert given.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert given.execute("SELECT 1").fetchall() == [(1,)]


def test_a_given_connection_may_have_other_row_and_cursor_factories(server: Postgres, schema: str) -> None:
    """LangGraph's stores, for example, need a connection whose rows are dicts."""
    options: Any = {"row_factory": psycopg.rows.dict_row, "cursor_factory": psycopg.ClientCursor}
    with psycopg.connect(server.url, autocommit=True, **options) as given:
        with holdall.open(server.url, schema=schema, connection=given) as store:
            use(store)
        assert given.execute("SELECT %s AS n", (1,)).fetchall() == [{"n": 1}]


def test_a_given_connection_is_not_left_in_a_failed_transaction(server: Postgres, schema: str) -> None:
    """A deadlock, or a role that may not, ends a transaction in the middle."""
    with psycopg.connect(server.url, autocommit=True) as given:
        given.execute("CREATE ROLE pool_role")
        given.execute("SET ROLE pool_role")
        store = holdall.open(server.url, schema=schema, connection=given)
        with pytest.raises(Unavailable, match="may not"):
            store.setup()
        assert given.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        given.execute("RESET ROLE")
        use(store)
        store.close()


def test_a_given_async_connection_is_used_and_left_open(server: Postgres, schema: str) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as given:
            async with holdall.open(server.url, schema=schema, connection=given) as store:
                await ause(store)
                await asyncio.gather(*(store.aput(HOME, str(i), {}) for i in range(8)))
                assert await store.acount(HOME) == 10
                assert connections(server) == 1
                with pytest.raises(Unsupported, match="async"):
                    store.get(HOME, "a")
            assert (await (await given.execute("SELECT 1")).fetchall()) == [(1,)]

    asyncio.run(main())


def test_a_given_async_connection_survives_cancelled_tasks(server: Postgres, schema: str) -> None:
    async def main() -> None:
        async with (
            await psycopg.AsyncConnection.connect(server.url, autocommit=True) as given,
            holdall.open(server.url, schema=schema, connection=given) as store,
        ):
            await store.asetup()
            for i in range(40):
                batch = [Put(HOME, f"{i}.{part}", {}) for part in range(3)]
                task = asyncio.create_task(store.aexecute(batch))
                await asyncio.sleep(random.choice([0, 0, 0.001, 0.002, 0.004]))
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                entries = await store.aexecute([Get(HOME, f"{i}.{part}") for part in range(3)])
                assert entries.count(None) in (0, 3)
                await store.aput(HOME, "after", {})

    asyncio.run(main())


def test_a_given_connection_that_stays_in_use_is_waited_for_until_pool_timeout(server: Postgres, schema: str) -> None:
    async def main() -> None:
        async with (
            await psycopg.AsyncConnection.connect(server.url, autocommit=True) as given,
            holdall.open(server.url, schema=schema, connection=given, pool_timeout=0.3) as store,
        ):
            await store.aput(HOME, "a", {})
            with locked(server, schema):
                first = asyncio.create_task(store.aput(HOME, "a", {"n": 1}))
                await asyncio.sleep(0.1)
                with pytest.raises(Timeout):
                    await store.aget(HOME, "a")
            assert (await first).value == {"n": 1}

    asyncio.run(main())


def test_a_given_pool_is_used_and_left_open(server: Postgres, schema: str) -> None:
    with psycopg_pool.ConnectionPool(server.url, min_size=1, max_size=2, open=True) as given:
        with holdall.open(server.url, schema=schema, connection=given, pool_timeout=0.3) as store:
            use(store)
            with pytest.raises(Unsupported):
                asyncio.run(store.aget(HOME, "a"))
            with given.connection(), given.connection(), pytest.raises(Timeout):
                store.get(HOME, "a")
        with given.connection() as one, given.connection() as other:
            assert (one.autocommit, other.autocommit) == (False, False), "their owner would find them changed"
            assert one.execute("SELECT 1").fetchall() == [(1,)]


def test_a_given_async_pool_is_used_and_left_open(server: Postgres, schema: str) -> None:
    async def main() -> None:
        async with psycopg_pool.AsyncConnectionPool(server.url, min_size=1, max_size=2, open=False) as given:
            async with holdall.open(server.url, schema=schema, connection=given, pool_timeout=0.3) as store:
                await ause(store)
                with pytest.raises(Unsupported):
                    store.get(HOME, "a")
                async with given.connection(), given.connection():
                    with pytest.raises(Timeout):
                        await store.aget(HOME, "a")
            async with given.connection() as one, given.connection() as other:
                assert (one.autocommit, other.autocommit) == (False, False), "their owner would find them changed"

    asyncio.run(main())


def test_a_connection_that_cannot_be_used_is_refused(server: Postgres) -> None:
    with psycopg.connect(server.url) as given, pytest.raises(InvalidInput, match="autocommit"):
        holdall.open(server.url, connection=given)
    with pytest.raises(InvalidInput, match="connection"):
        holdall.open(server.url, connection="postgresql://")
