"""PostgreSQL killed, cut off and crowded: what was acknowledged is there, once; the feed misses nothing."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest

import holdall
import holdall.model.keys
from holdall.errors import Conflict, OutcomeUnknown
from holdall.ops import ABSENT, Changes, Check, Delete, Put
from support.processes import beginning, report, start
from support.server_kills import CLIENTS, WRITERS, Writer, check_all, stop_on_message, write_until, write_while_killed
from support.servers import Postgres, Proxy, open_connections
from support.threads import eventually


def test_what_was_acknowledged_is_there_once_however_often_the_server_is_killed(
    scaled: Callable[[int, int], int],
) -> None:
    with Postgres() as server:
        with holdall.open(server.url) as store:
            store.setup()
        audit(server)
        write_while_killed(server, scaled(3, 20), cut_off=lambda: cut_some_off(server))
        assert done_twice(server) == []


def cut_some_off(server: Postgres) -> int:
    with psycopg.connect(server.url) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.5"
        )
        return len(ended.fetchall())


def test_cut_connections_lose_nothing_double_nothing_and_leak_none(scaled: Callable[[int, int], int]) -> None:
    """Threads and tasks of one store write while their connections are cut, on either side or on both."""
    wanted = scaled(60, 1200)
    stop = threading.Event()
    clients = {f"client{i}": [Writer(f"client{i}.{j}") for j in range(WRITERS)] for i in range(4)}
    with Postgres() as server, Proxy(server.port) as proxy:
        with holdall.open(proxy.url, pool_max=6) as store:
            store.setup()
            audit(server)
            writing = [
                Aside(partial(write_until, stop, store, writers, use_async=i % 2 == 0))
                for i, writers in enumerate(clients.values())
            ]
            cuts = 0
            ways = itertools.cycle([partial(cut_some_off, server), partial(cut_clients_first, proxy), proxy.cut])
            while cuts < wanted:
                wait_until_each_writes([writer for writers in clients.values() for writer in writers], writing)
                cuts += next(ways)()
            stop.set()
            assert [one.outcome() for one in writing] == [None] * len(writing)
            gc.collect()  # the event loops that have ended, and their connections
            pool: Any = store._engine_handle.engine._pool
            assert pool.size == sum(map(len, pool._idle.values())) <= 6
            assert not pool._waiters
            assert open_connections(proxy.port) == pool.size
        assert open_connections(proxy.port) == 0
        eventually(lambda: backends(server) == 0)
        outcomes = {name: {str(i): writer.outcome() for i, writer in enumerate(mine)} for name, mine in clients.items()}
        print(f"{cuts} connections cut")
        assert check_all(server.url, outcomes) > cuts
        assert done_twice(server) == []


def cut_clients_first(proxy: Proxy) -> int:
    """The server goes on for a moment with what it was asked; what it has not committed then is undone."""
    cut = proxy.cut(clients_only=True)
    time.sleep(random.uniform(0, 0.2))
    return cut + proxy.cut()


def wait_until_each_writes(writers: list[Writer], writing: list[Aside]) -> None:
    before = [sum(writer.steps.values()) for writer in writers]
    deadline = time.monotonic() + 60
    while any(sum(writer.steps.values()) == steps for writer, steps in zip(writers, before, strict=True)):
        for one in writing:
            assert one.is_running(), repr(one.outcome())
        assert time.monotonic() < deadline, f"some never write: {before} {[writer.steps for writer in writers]}"
        time.sleep(0.01)


def backends(server: Postgres) -> int:
    with psycopg.connect(server.url) as connection:
        where = "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        [(count,)] = connection.execute(f"SELECT count(*) FROM pg_stat_activity {where}").fetchall()
    return int(count)


# Fates that a crash or a cut makes hard to know --------------------------------------------------------------------


@pytest.mark.parametrize("others", [0, 1, 5])
def test_a_batch_that_a_crash_undid_is_not_taken_for_another_with_its_transaction_id(others: int) -> None:
    """PostgreSQL forgets the last transaction ids in a crash and gives them out again, here to somebody who commits."""
    with (
        Postgres() as server,
        Proxy(server.port) as proxy,
        holdall.open(server.url) as other,
        holdall.open(proxy.url) as store,
    ):
        other.put(("other",), "before", {})
        store.setup()
        proxy.hold(b"COMMIT")
        batch = Aside(lambda: store.execute([Put(("home",), "a", {}), Put(("home",), "b", {})]))
        assert proxy.is_holding.wait(10)
        server.kill()
        server.start()
        for i in range(others):
            other.put(("other",), str(i), {})
        proxy.let_go()
        proxy.cut()
        outcome = batch.outcome()
        there = other.count(("home",))
        assert there in (0, 2)
        if not isinstance(outcome, OutcomeUnknown):
            assert isinstance(outcome, list), repr(outcome)
            assert there == 2, f"acknowledged, and lost: {outcome}"


class Aside:
    """A call in a thread of its own; `outcome()` is its result, or what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._outcome: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def outcome(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive(), "it hangs"
        return self._outcome

    def _run(self) -> None:
        try:
            self._outcome = self._call()
        except Exception as error:
            self._outcome = error


def test_the_feed_shows_a_change_whose_transaction_id_was_seen_to_fail_before_a_crash() -> None:
    """A position from before the crash has counted the id of a rolled back batch as seen."""
    with Postgres() as server, holdall.open(server.url) as store:
        entry = store.put(("home",), "a", {})
        for _ in range(5):
            with suppress(Conflict):
                store.execute([Put(("home",), "b", {}), Put(("home",), "a", {}, expect=entry.version - 1)])
        position = changes(store, None).next
        server.kill()
        server.start()
        seen = set()
        for i in range(8):
            store.put(("home",), f"after{i}", {})
            page = changes(store, position)
            seen |= {change.key for change in page}
            position = page.next
        assert seen == {f"after{i}" for i in range(8)}


def changes(store: holdall.Store, since: str | None, limit: int = 500) -> Any:
    return store._engine_handle.engine.execute([Changes(since=since, limit=limit)])[0]


@pytest.mark.parametrize("what", ["put", "expect", "delete"])
def test_a_write_that_outlives_its_connection_is_done_once(what: str) -> None:
    """The connection is cut while the server waits for a lock; it goes on with the write when that is free."""
    with (
        Postgres() as server,
        Proxy(server.port) as proxy,
        holdall.open(server.url) as other,
        holdall.open(proxy.url, timeout=20) as store,
    ):
        entry = other.put(("home",), "key", {"n": 0})
        audit(server)
        store.get(("home",), "key")
        calls: dict[str, Callable[[], Any]] = {
            "put": lambda: store.put(("home",), "key", {"n": 1}),
            "expect": lambda: store.put(("home",), "key", {"n": 1}, expect=entry),
            "delete": lambda: store.delete(("home",), "key"),
        }
        with psycopg.connect(server.url) as locker:
            locker.execute("SELECT FROM holdall.entries FOR UPDATE")
            write = Aside(calls[what])
            wait_until_blocked(server, 1)
            proxy.cut(clients_only=True)
            time.sleep(0.5)  # for the client to come again
        outcome = write.outcome()
        assert not isinstance(outcome, Exception) and outcome is not False, repr(outcome)
        assert times_done(server, "key", None if what == "delete" else '{"n":1}') == 1


def audit(server: Postgres) -> None:
    """Let the server itself write down every change that is done to an entry."""
    with psycopg.connect(server.url) as connection:
        connection.execute("""
            CREATE TABLE audit (ns text, key text, value text);
            CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO audit VALUES (new.ns, new.key, new.value); RETURN new;
            END $$;
            CREATE TRIGGER audit AFTER INSERT OR UPDATE ON holdall.entries FOR EACH ROW EXECUTE FUNCTION audit();
        """)


def done_twice(server: Postgres) -> list[Any]:
    """Changes that were done more than once; for writers who never write the same twice."""
    with psycopg.connect(server.url) as connection:
        sql = "SELECT ns, key, value FROM audit WHERE value IS NOT NULL GROUP BY ns, key, value HAVING count(*) > 1"
        return connection.execute(sql).fetchall()


def times_done(server: Postgres, key: str, value: str | None) -> int:
    with psycopg.connect(server.url) as connection:
        sql = "SELECT count(*) FROM audit WHERE key = %s AND value IS NOT DISTINCT FROM %s::text"
        [(count,)] = connection.execute(sql, [key, value]).fetchall()
    return int(count)


def wait_until_blocked(server: Postgres, how_many: int) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        deadline = time.monotonic() + 20
        while True:
            sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            [(blocked,)] = connection.execute(sql).fetchall()
            if blocked >= how_many:
                return
            assert time.monotonic() < deadline, "nobody was blocked"
            time.sleep(0.02)


# The feed ------------------------------------------------------------------------------------------------------------

SEEN_NEW = """
    INSERT INTO holdall.entries AS old (version, ns, key, value, created, updated, xid)
    VALUES (nextval('holdall.versions'), %(ns)s, %(key)s, '{}', 0, 0, pg_current_xact_id())
    ON CONFLICT (ns, key) DO UPDATE SET version = nextval('holdall.versions'), xid = excluded.xid"""


def test_the_feed_misses_nothing_and_repeats_nothing_beside_long_transactions(
    scaled: Callable[[int, int], int],
) -> None:
    seconds = scaled(4, 60)
    with Postgres() as server, holdall.open(server.url) as store:
        store.setup()
        with beginning(
            *(start(write_small, deadline=seconds + 60, url=server.url, name=f"small{i}") for i in range(2)),
            *(start(write_for_long, deadline=seconds + 60, url=server.url, name=f"long{i}") for i in range(2)),
        ) as writers:
            reader = FeedReader(server.url)
            until = time.monotonic() + seconds
            reconnected = 0
            while time.monotonic() < until or (
                not (reconnected and reader.late > 10) and time.monotonic() < until + 30
            ):
                reader.read(random.choice([1, 3, 50, 500]))
                if random.random() < 0.02:
                    reader.reconnect()
                    reconnected += 1
            for writer in writers:
                writer.send("stop")
            written = sum(writer.finish()[-1] for writer in writers)
        for limit in (1, 7, 500, 500):
            reader.read(limit)
        reader.read_to_the_end()
        assert reconnected and reader.late > 10, "this showed nothing"
        entries = {(entry.namespace, entry.key): entry.version for entry in store.scan()}
        assert len(entries) > 200 and written >= len(entries)
        newest = {place: versions[-1] for place, versions in reader.seen.items()}
        assert {place: version for place, version in newest.items() if place in entries} == entries
        for place, versions in reader.seen.items():
            assert versions == sorted(set(versions)), f"{place}: {versions}"
        reader.store.close()


class FeedReader:
    """Polls with its cursor; from time to time it goes back to the cursor of one change and reads on from there."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.store = holdall.open(url)
        self._position: str | None = None
        self.seen: dict[Any, list[int]] = {}
        self._newest = 0
        self.late = 0  # changes that were committed after newer ones had been seen

    def reconnect(self) -> None:
        self.store.close()
        self.store = holdall.open(self._url)

    def read(self, limit: int) -> int:
        page = changes(self.store, self._position, limit)
        assert len(page) <= limit
        self._position = page.next
        if page and random.random() < 0.5:  # as if the reader had ended after one of them
            kept = random.randrange(1, len(page) + 1)
            page, self._position = page[:kept], page[kept - 1].cursor
        for change in page:
            self.seen.setdefault((change.namespace, change.key), []).append(change.version)
            self.late += change.version < self._newest
            self._newest = max(self._newest, change.version)
        return len(page)

    def read_to_the_end(self) -> None:
        while self.read(500):
            pass


def write_small(url: str, name: str) -> None:
    """Puts and deletes, one at a time, among keys that all writers share and keys of its own."""
    stop = stop_on_message()
    with holdall.open(url) as store:
        written = 0
        while not stop.is_set():
            key = str(random.randrange(50))
            if random.random() < 0.1:
                store.delete(("shared",), key)
            else:
                store.put(("shared",), key, {"by": name})
            store.put((name,), str(written), {})
            written += 2
    report(written)


def write_for_long(url: str, name: str) -> None:
    """Large batches, and transactions that stay open between what they write."""
    stop = stop_on_message()
    written = 0
    with holdall.open(url) as store, psycopg.connect(url) as connection:
        while not stop.is_set():
            batch = [Put((name,), f"batch{written}.{i}", {}) for i in range(300)]
            shared = sorted(random.sample(range(50), 5))
            store.execute([*batch, *(Put(("shared",), str(i), {"by": name}) for i in shared)])
            ns = holdall.model.keys.encode((name,))
            with connection.transaction():
                for i in range(3):
                    connection.execute(SEEN_NEW, {"ns": ns, "key": f"raw{written}.{i}"})
                    time.sleep(random.uniform(0, 0.3))
            written += 308
    report(written)


def test_the_feed_goes_on_while_a_transaction_stays_open() -> None:
    with Postgres() as server, holdall.open(server.url) as store:
        store.put(("home",), "before", {})
        with psycopg.connect(server.url) as connection:
            connection.execute(SEEN_NEW, {"ns": holdall.model.keys.encode(("raw",)), "key": "late"})
            position = changes(store, None).next
            for i in range(20):
                store.put(("home",), str(i), {})
                page = changes(store, position)
                assert [change.key for change in page] == [str(i)], "the feed is stuck, or repeats itself"
                position = page.next
        page = changes(store, position)
        assert [change.key for change in page] == ["late"]
        assert list(changes(store, page.next)) == []
        assert list(changes(store, page[0].cursor)) == []


# Rows ----------------------------------------------------------------------------------------------------------------


def test_one_entrys_versions_only_grow(scaled: Callable[[int, int], int]) -> None:
    """Eight processes put and delete the same entry; each one's own writes, and what the server saw, only grow."""
    seconds = scaled(2, 30)
    with Postgres() as server, holdall.open(server.url) as store:
        store.setup()
        with psycopg.connect(server.url) as connection:
            connection.execute("""
                CREATE FUNCTION only_grows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                    IF new.version <= old.version THEN RAISE 'version % after %', new.version, old.version; END IF;
                    RETURN new;
                END $$;
                CREATE TRIGGER only_grows BEFORE UPDATE OF version ON holdall.entries
                FOR EACH ROW EXECUTE FUNCTION only_grows();
            """)
        with beginning(
            *(start(hammer, deadline=seconds + 60, url=server.url, seconds=seconds) for _ in range(CLIENTS))
        ) as processes:
            counts = [process.finish()[-1] for process in processes]
        assert sum(counts) > 100


def hammer(url: str, seconds: float) -> None:
    with holdall.open(url) as store:
        newest = written = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if random.random() < 0.3:
                store.delete(("home",), "key")
            else:
                version = store.put(("home",), "key", {}).version
                assert version > newest, "a version of an entry went back"
                newest = version
            entry = store.get(("home",), "key")
            assert entry is None or entry.version >= newest, "a read went back"
            written += 1
    report(written)


@pytest.mark.parametrize("state", ["never there", "deleted"])
def test_of_two_batches_that_rule_each_other_out_one_is_refused(state: str) -> None:
    """Write skew: each checks what the other writes. Without locks on what is absent, both would be done."""
    with Postgres() as server, holdall.open(server.url) as first, holdall.open(server.url, timeout=29) as second:
        both = 0
        for i in range(6):
            home = ("home", str(i))
            if state == "deleted":
                for key in ("a", "b"):
                    first.put(home, key, {})
                    first.delete(home, key)
            barrier = threading.Barrier(2)

            def race(store: holdall.Store, batch: list[Any], barrier: threading.Barrier = barrier) -> Any:
                barrier.wait()
                return store.execute(batch)

            one = Aside(partial(race, first, [Check(home, "a", ABSENT), Put(home, "b", {})]))
            two = Aside(partial(race, second, [Check(home, "b", ABSENT), Put(home, "a", {})]))
            outcomes = [one.outcome(), two.outcome()]
            refused = [outcome for outcome in outcomes if isinstance(outcome, Conflict)]
            assert len(refused) == 1, outcomes
            assert first.count(home) == 1
            both += 1
        assert both == 6


def test_batches_in_opposite_order_do_not_wait_for_a_deadlock(scaled: Callable[[int, int], int]) -> None:
    """Rows are locked in one order, whatever the batch's; PostgreSQL would find a deadlock after a second."""
    rounds = scaled(40, 400)
    with Postgres() as server, holdall.open(server.url) as store:
        keys = [str(i) for i in range(20)]
        store.execute([Put(("home",), key, {}) for key in keys])

        def write(order: list[str]) -> float:
            slowest = 0.0
            with holdall.open(server.url) as own:
                for _ in range(rounds):
                    began = time.monotonic()
                    own.execute([Put(("home",), key, {}, expect=holdall.ANY) for key in order])
                    own.execute([Delete(("home",), order[0]), *(Put(("home",), key, {}) for key in order)])
                    slowest = max(slowest, time.monotonic() - began)
            return slowest

        writers = [Aside(partial(write, order)) for order in (keys, keys[::-1]) * 3]
        for writer in writers:
            assert not isinstance(writer.outcome(), Exception), writer.outcome()
        with psycopg.connect(server.url) as connection:
            [(deadlocks,)] = connection.execute("SELECT sum(deadlocks) FROM pg_stat_database").fetchall()
        assert deadlocks == 0
