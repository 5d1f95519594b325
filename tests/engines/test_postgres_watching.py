"""How PostgreSQL's changes are noticed: notices while somebody listens, looks behind them, poolers, restarts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import holdall
from holdall.engines import postgres_listener
from holdall.errors import InvalidInput, LeaseLost, Unavailable
from holdall.testing.caller import WatchCaller
from servers import Postgres, Proxy

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
    """Another engine, whose writes ring no bell of ours."""
    with holdall.open(server.url, schema=schema, timeout=29) as writer:
        yield writer


def key_of_next(changes: holdall.Watch) -> str:
    """What comes next; a failure if nothing does."""
    return WatchCaller(changes, None).take(1)[0].key


def announcing(store: holdall.Store) -> Any:
    """Its engine, which may think by now that nobody listens, and is to ask again."""
    engine = store._shared.engine
    engine._silent_until = 0.0
    return engine


def listening(server: Postgres) -> int:
    """How many sessions say that they listen."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        [(count,)] = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
        )
        return int(count)


def test_nothing_is_said_while_nobody_listens(server: Postgres, store: holdall.Store, writer: holdall.Store) -> None:
    """NOTIFY at every put would have a whole fleet commit one by one."""
    engine = announcing(writer)
    with psycopg.connect(server.url, autocommit=True) as eavesdropper:
        eavesdropper.execute(engine._channel.listen[1])  # without saying that it is there
        writer.put(HOME, "k", {})
        assert list(eavesdropper.notifies(timeout=0.1)) == []
        asked = engine._silent_until
        writer.put(HOME, "k", {})
        assert engine._silent_until == asked, "it is not asked at every put whether anybody listens"
        eavesdropper.execute(engine._channel.listen[0])
        announcing(writer)
        writer.put(HOME, "k", {})
        assert len(list(eavesdropper.notifies(timeout=10, stop_after=1))) == 1


def test_a_notice_wakes_who_watches(
    server: Postgres, store: holdall.Store, writer: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("_SLOW", "_AT_FIRST", "_AFTERWARDS"):
        monkeypatch.setattr(postgres_listener, pause, NEVER)
    with store.watch(HOME) as changes:
        heard: list[str] = []
        thread = threading.Thread(target=lambda: heard.extend(key_of_next(changes) for _ in range(3)))
        thread.start()
        while not listening(server):
            pass
        for number in range(3):
            announcing(writer)
            writer.put(HOME, str(number), {})
        thread.join(30)
        assert heard == ["0", "1", "2"]
    assert listening(server) == 0


def test_what_nobody_was_told_of_is_seen_by_looking(
    store: holdall.Store, writer: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that was killed between its commit and its notice."""
    monkeypatch.setattr(postgres_listener, "_SLOW", 0.05)
    monkeypatch.setattr(postgres_listener, "_BEGINNING", 0.0)
    writer.setup()
    writer._shared.engine._silent_until = float("inf")
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
        assert listening(server) == 0


def test_notify_url_is_where_it_listens(server: Postgres, schema: str, writer: holdall.Store) -> None:
    with Proxy(server.port) as pooler, holdall.open(pooler.url, schema=schema, notify_url=server.url) as store:
        pooler.hold(b"LISTEN")
        with store.watch(HOME) as changes:
            threading.Timer(0.1, lambda: writer.put(HOME, "k", {})).start()
            assert key_of_next(changes) == "k"
            while not listening(server):
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
        with holdall.open(server.url, schema=store._shared.engine._own.schema, timeout=29) as writer:
            writer.put(HOME, "after", {})
        thread.join(30)
        assert woken == ["after"]


def test_a_holder_that_sleeps_in_a_transaction_keeps_nobody_waiting_for_long(
    server: Postgres, schema: str, store: holdall.Store
) -> None:
    """It has checked its lease and written, and sleeps before it commits: its transaction ends, and it is refused."""
    with Proxy(server.port) as way, holdall.open(way.url, schema=schema, timeout=2) as sleeper:
        lease = sleeper.lease("name", 0.2, ns=HOME)
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
        heir = store.lease("name", 60, ns=HOME, wait=20)
        store.put(HOME, "k", {"by": "heir"}, lease=heir)
        way.let_go()
        way.cut()
        thread.join(30)
        assert isinstance(outcome[0], LeaseLost | Unavailable), "its time was up before it could be told"
        assert store.get(HOME, "k").value == {"by": "heir"}  # type: ignore[union-attr]  # it is there
