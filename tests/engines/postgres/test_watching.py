"""How a listener learns of changes in PostgreSQL: by notifications and by reading the feed; poolers; restarts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import holdall
from holdall.engines.postgres import listener as postgres_listener
from holdall.errors import InvalidInput, LeaseLost, Unavailable
from holdall.testing.caller import WatchCaller
from support.servers import Postgres, Proxy
from support.threads import eventually

HOME = ("home",)
NEVER = 1000.0
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def schema() -> str:
    return f"watching_{next(_numbers)}"


@pytest.fixture
def store(server: Postgres, schema: str) -> Iterator[holdall.Store]:
    with holdall.open(server.url, schema=schema) as store:
        yield store


@pytest.fixture
def writer(server: Postgres, schema: str, store: holdall.Store) -> Iterator[holdall.Store]:
    """A store with another engine, whose writes do not notify subscriptions of this process."""
    with holdall.open(server.url, schema=schema, timeout=29) as writer:
        yield writer


def key_of_next(changes: holdall.Watch) -> str:
    """Return the key of the next change; fail if there is none."""
    return WatchCaller(changes, None).take(1)[0].key


def look_for_listeners(store: holdall.Store) -> Any:
    """Let the next write look for listeners, even if the last one found none; return the engine."""
    engine = store._engine_handle.engine
    engine._next_notification = 0.0
    return engine


def count_listeners(server: Postgres) -> int:
    """Return how many sessions hold the lock of a listener."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        [(count,)] = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
        )
        return int(count)


def test_no_notification_is_sent_without_a_listener(
    server: Postgres, store: holdall.Store, writer: holdall.Store
) -> None:
    """With a NOTIFY in every put, all processes would commit one by one."""
    engine = look_for_listeners(writer)
    with psycopg.connect(server.url, autocommit=True) as eavesdropper:
        eavesdropper.execute(engine._channel.listen[1])  # without the lock that shows it to writers
        writer.put(HOME, "k", {})
        assert list(eavesdropper.notifies(timeout=0.1)) == []
        asked = engine._next_notification
        writer.put(HOME, "k", {})
        assert engine._next_notification == asked, "not every put looks for listeners"
        eavesdropper.execute(engine._channel.listen[0])
        look_for_listeners(writer)
        writer.put(HOME, "k", {})
        assert len(list(eavesdropper.notifies(timeout=10, stop_after=1))) == 1


def test_a_notification_wakes_a_watch(
    server: Postgres, store: holdall.Store, writer: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("_USUALLY", "_AT_FIRST", "_AFTER_NOTIFICATION"):
        monkeypatch.setattr(postgres_listener, pause, NEVER)
    with store.watch(HOME) as changes:
        received: list[str] = []
        thread = threading.Thread(target=lambda: received.extend(key_of_next(changes) for _ in range(3)))
        thread.start()
        while not count_listeners(server):
            pass
        for number in range(3):
            look_for_listeners(writer)
            writer.put(HOME, str(number), {})
        thread.join(30)
        assert received == ["0", "1", "2"]
    eventually(lambda: count_listeners(server) == 0)  # once the server has noticed


def test_a_change_without_a_notification_is_found_by_reading_the_feed(
    store: holdall.Store, writer: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a writer that was killed between its commit and its notification."""
    monkeypatch.setattr(postgres_listener, "_USUALLY", 0.05)
    monkeypatch.setattr(postgres_listener, "_FIRST_PERIOD", 0.0)
    writer.setup()
    writer._engine_handle.engine._next_notification = float("inf")
    with store.watch(HOME) as changes:
        for key in ("a", "b"):
            threading.Timer(0.1, lambda key=key: writer.put(HOME, key, {})).start()
            assert key_of_next(changes) == key


def test_behind_a_pooler_it_looks_and_keeps_nothing_in_a_session(
    server: Postgres, store: holdall.Store, writer: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler in transaction mode gives the session to the next client, with the lock and the LISTEN in it."""
    store.setup()
    writer.setup()
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", -1)
    with store.watch(HOME) as changes:
        threading.Timer(0.1, lambda: writer.put(HOME, "k", {})).start()
        assert key_of_next(changes) == "k"
        assert count_listeners(server) == 0


def test_notify_url_is_where_it_listens(server: Postgres, schema: str, writer: holdall.Store) -> None:
    with Proxy(server.port) as pooler, holdall.open(pooler.url, schema=schema, notify_url=server.url) as store:
        pooler.hold(b"LISTEN")
        with store.watch(HOME) as changes:
            threading.Timer(0.1, lambda: writer.put(HOME, "k", {})).start()
            assert key_of_next(changes) == "k"
            while not count_listeners(server):
                pass
        assert not pooler.is_holding.is_set()
    with pytest.raises(InvalidInput, match="notify_url"):
        holdall.open(server.url, notify_url=5)  # type: ignore[arg-type]  # on purpose


def test_a_subscription_outlives_a_restart_of_the_server(server: Postgres, store: holdall.Store) -> None:
    with store.watch(HOME) as changes:
        store.put(HOME, "before", {})
        assert key_of_next(changes) == "before"
        woken: list[str] = []
        thread = threading.Thread(target=lambda: woken.append(key_of_next(changes)))
        thread.start()
        server.kill()
        server.start()
        with holdall.open(server.url, schema=store._engine_handle.engine._own.schema, timeout=29) as writer:
            writer.put(HOME, "after", {})
        thread.join(30)
        assert woken == ["after"]


@pytest.mark.timed
def test_a_holder_that_sleeps_in_a_transaction_keeps_nobody_waiting_for_long(
    server: Postgres, schema: str, store: holdall.Store
) -> None:
    """It has checked its lease and written, and sleeps before it commits: its transaction ends, and it is refused."""
    with Proxy(server.port) as way, holdall.open(way.url, schema=schema, timeout=2) as sleeper:
        lease = sleeper.lease("name", 0.2, namespace=HOME).acquire()
        outcome: list[Any] = []

        def put() -> None:
            try:
                outcome.append(sleeper.put(HOME, "k", {"by": "sleeper"}, lease=lease))
            except (LeaseLost, Unavailable) as refused:
                outcome.append(refused)

        way.hold(b"COMMIT")
        thread = threading.Thread(target=put)
        thread.start()
        assert way.is_holding.wait(30)
        heir = store.lease("name", 60, namespace=HOME, wait=20).acquire()
        store.put(HOME, "k", {"by": "heir"}, lease=heir)
        way.let_go()
        way.cut()
        thread.join(30)
        assert isinstance(outcome[0], LeaseLost | Unavailable), "its lease was over before it got an answer"
        assert store.get(HOME, "k").value == {"by": "heir"}  # type: ignore[union-attr]  # it is there
