"""Puts and gets that tasks send at once: few statements for all of them, and each with its own outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import holdall
from holdall.errors import OutcomeUnknown
from holdall.ops import Entry
from support.servers import Postgres, Proxy, postgres_url

HOME = ("users", "ada")


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ops each joined batch of the engine had."""
    from holdall.engines.postgres.engine import PostgresEngine

    sizes: list[int] = []
    execute = PostgresEngine.aexecute_joined

    async def note(self: PostgresEngine, batch: Any) -> Any:
        sizes.append(len(batch))
        return await execute(self, batch)

    monkeypatch.setattr(PostgresEngine, "aexecute_joined", note)
    return sizes


@pytest.fixture
def store() -> Iterator[holdall.Store]:
    with holdall.open(postgres_url(), schema="joined") as store:
        store.delete_tree(HOME[:1])
        yield store


def test_puts_and_gets_of_tasks_are_few_statements(store: holdall.Store, joined: list[int]) -> None:
    async def all_at_once() -> list[Any]:
        put = await asyncio.gather(*(store.aput(HOME, f"k{n}", {"n": n}, ttl=60) for n in range(64)))
        got = await asyncio.gather(*(store.aget(HOME, f"k{n}") for n in range(65)))
        assert got == [*put, None]
        return put

    put = asyncio.run(all_at_once())
    assert [entry.value["n"] for entry in put] == list(range(64))
    assert len({entry.version for entry in put}) == 64
    assert joined == [32, 32, 32, 33]
    assert [store.get(HOME, f"k{n}") for n in range(64)] == put


def test_a_lone_task_does_not_wait_for_others(store: holdall.Store, joined: list[int]) -> None:
    async def one_by_one() -> None:
        for n in range(5):
            await store.aput(HOME, f"k{n}", {})

    asyncio.run(one_by_one())
    assert joined == []
    assert store.count(HOME) == 5


def test_puts_to_one_key_keep_their_order_and_each_has_a_version(store: holdall.Store) -> None:
    async def all_at_once() -> list[Entry]:
        return await asyncio.gather(*(store.aput(HOME, f"k{n % 3}", {"n": n}) for n in range(60)))

    put = asyncio.run(all_at_once())
    for key in range(3):
        versions = [entry.version for entry in put[key::3]]
        assert versions == sorted(set(versions))
        assert store.get(HOME, f"k{key}").value == {"n": 57 + key}  # type: ignore[union-attr]  # it was put


def test_a_locked_row_holds_up_no_other_task(store: holdall.Store, joined: list[int]) -> None:
    store.put(HOME, "locked", {"n": 0})

    async def all_at_once(locker: Any) -> list[Any]:
        tasks = [asyncio.create_task(store.aput(HOME, f"k{n}", {"n": n})) for n in range(8)]
        locked = asyncio.create_task(store.aput(HOME, "locked", {"n": 1}))
        began = time.monotonic()
        done = await asyncio.gather(*tasks)
        assert time.monotonic() - began < 10, "they waited for the lock"
        assert not locked.done()
        locker.rollback()
        return [*done, await locked]

    with psycopg.connect(postgres_url()) as locker:
        locker.execute("SELECT FROM joined.entries WHERE key = 'locked' FOR UPDATE")
        done = asyncio.run(all_at_once(locker))
    assert joined == [9]
    assert [store.get(entry.namespace, entry.key) for entry in done] == done


def test_a_damaged_entry_fails_only_the_task_that_reads_it(store: holdall.Store) -> None:
    for n in range(4):
        store.put(HOME, f"k{n}", {"n": n})
    with psycopg.connect(postgres_url()) as connection:
        connection.execute("UPDATE joined.entries SET value = '{' WHERE key = 'k2'")

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(store.aget(HOME, f"k{n}") for n in range(4)), return_exceptions=True)

    got = asyncio.run(all_at_once())
    assert isinstance(got[2], holdall.errors.Corrupt)
    assert [entry.value["n"] for entry in got if isinstance(entry, Entry)] == [0, 1, 3]


@pytest.mark.parametrize("replaced", [False, True])
def test_joined_puts_that_outlive_their_connection_are_done_once(replaced: bool, joined: list[int]) -> None:
    """The connection is cut while the server waits for a lock; the server goes on when the lock is free."""
    with Postgres() as server, Proxy(server.port) as proxy:
        with holdall.open(server.url) as other:
            other.put(HOME, "k0", {"n": -1})
        with psycopg.connect(server.url) as connection:
            connection.execute("""
                CREATE TABLE audit (key text, value text);
                CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                    INSERT INTO audit VALUES (new.key, new.value); RETURN new;
                END $$;
                CREATE TRIGGER audit AFTER INSERT OR UPDATE ON holdall.entries FOR EACH ROW EXECUTE FUNCTION audit();
            """)
        with holdall.open(proxy.url, timeout=20) as store, psycopg.connect(server.url) as locker:
            store.get(HOME, "k0")
            locker.execute("SELECT FROM holdall.entries WHERE key = 'k0' FOR UPDATE")
            outcomes = asyncio.run(_cut_while_blocked(store, server, proxy, locker, replaced))
        assert joined == [4]
        if replaced:
            assert isinstance(outcomes[0], OutcomeUnknown | Entry), outcomes
        others = outcomes[1:] if replaced else outcomes
        assert all(isinstance(outcome, Entry) for outcome in others), outcomes
        with psycopg.connect(server.url) as connection:
            sql = "SELECT key, count(*) FROM audit WHERE value LIKE '%joined%' GROUP BY key ORDER BY key"
            done = dict(connection.execute(sql).fetchall())
        assert done == {f"k{n}": 1 for n in range(4)}


async def _cut_while_blocked(store: holdall.Store, server: Any, proxy: Any, locker: Any, replaced: bool) -> list[Any]:
    tasks = [asyncio.create_task(store.aput(HOME, f"k{n}", {"joined": n})) for n in range(4)]
    with psycopg.connect(server.url, autocommit=True) as connection:
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        deadline = time.monotonic() + 20
        while not connection.execute(blocked).fetchall()[0][0]:
            assert time.monotonic() < deadline, "nothing was blocked"
            await asyncio.sleep(0.01)
        proxy.cut(clients_only=True)
        await asyncio.sleep(0.3)  # for the client to come again
        locker.rollback()
        if replaced:
            await asyncio.to_thread(_replace, server.url)
    return await asyncio.gather(*tasks, return_exceptions=True)


def _replace(url: str) -> None:
    with holdall.open(url) as other:
        while other.get(HOME, "k0").value == {"n": -1}:  # type: ignore[union-attr]  # it was put
            time.sleep(0.001)
        other.put(HOME, "k0", {"n": 2})
