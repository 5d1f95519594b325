"""What PostgreSQL refuses, and when it is silent or gone: each error is raised in time, with its cause and its name.

Each test names the SQLSTATE that the server raises.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdall
from holdall.engines.postgres.connections import NotApplied
from holdall.errors import HoldallError, InvalidInput, OutcomeUnknown, Timeout, Unavailable
from holdall.ops import Put
from support.face_calls import Calls
from support.servers import Postgres, Proxy

pytestmark = pytest.mark.timed

HOME = ("home",)
AT_ONCE = 5.0  # seconds, of the 30 that `timeout` is by default: the machine may be slow


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres(max_connections="20") as server:
        with holdall.open(server.url) as store:
            store.put(HOME, "a", {"n": 0})
        server.administer(
            "CREATE ROLE app LOGIN PASSWORD 'right'",
            "CREATE ROLE few LOGIN CONNECTION LIMIT 1",
            "CREATE ROLE no_login",
            "CREATE DATABASE closed",
            "REVOKE CONNECT ON DATABASE closed FROM PUBLIC",
            "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0",
            "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0",
            *(
                grant.format(role)
                for role in ("app", "few")
                for grant in (
                    "GRANT USAGE ON SCHEMA holdall TO {}",
                    "GRANT ALL ON ALL TABLES IN SCHEMA holdall TO {}",
                    "GRANT ALL ON ALL SEQUENCES IN SCHEMA holdall TO {}",
                )
            ),
        )
        rules = server.data / "pg_hba.conf"
        rules.write_text(
            "host all app 127.0.0.1/32 scram-sha-256\nhost postgres barred 127.0.0.1/32 reject\n" + rules.read_text()
        )
        server.administer("SELECT pg_reload_conf()")
        yield server


@pytest.fixture(params=["sync", "async"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    if request.param == "sync":
        yield None
        return
    with asyncio.Runner() as runner:
        yield runner


def to(server: Postgres, user: str, database: str = "postgres") -> str:
    return f"postgresql://{user}@127.0.0.1:{server.port}/{database}"


@contextmanager
def opened(url: str, runner: asyncio.Runner | None, **options: Any) -> Iterator[Any]:
    """Sync or async methods of a store."""
    store = holdall.open(url, **options)
    try:
        yield Calls(store, runner)
    finally:
        store.close()


def refused(call: Callable[[], object], kind: type[HoldallError], *names: str, within: float = AT_ONCE) -> HoldallError:
    """The error of a call, which is exactly this one, in time, and names its cause."""
    began = time.monotonic()
    with pytest.raises(HoldallError) as raised:
        call()
    took = time.monotonic() - began
    assert type(raised.value) is kind, repr(raised.value)
    assert took < within, f"{raised.value!r} took {took:.1f} s"
    for name in names:
        assert name in str(raised.value), repr(raised.value)
    return raised.value


WRITES: dict[str, Callable[[Any], object]] = {
    "put": lambda store: store.put(HOME, "a", {"n": 1}),
    "delete": lambda store: store.delete(HOME, "a"),
    "batch": lambda store: store.execute([Put(HOME, "a", {"n": 1}), Put(HOME, "b", {"n": 1})]),
}


# Connecting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "database", "state", "name"),
    [
        ("app:wrong", "postgres", "28P01", 'password authentication failed for user "app"'),
        ("app", "postgres", "28000", "no password supplied"),
        ("nobody", "postgres", "28000", 'role "nobody" does not exist'),
        ("no_login", "postgres", "28000", 'role "no_login" is not permitted to log in'),
        ("barred", "postgres", "28000", "pg_hba.conf rejects connection"),
        ("postgres", "nowhere", "3D000", 'database "nowhere" does not exist'),
        ("few", "closed", "42501", 'permission denied for database "closed"'),
    ],
)
def test_a_refused_connection_is_raised_at_once(
    server: Postgres, runner: asyncio.Runner | None, user: str, database: str, state: str, name: str
) -> None:
    with opened(to(server, user, database), runner) as store:
        for call in (store.setup, lambda: store.get(HOME, "a"), lambda: store.put(HOME, "a", {})):
            error = refused(call, Unavailable, name, state)
            assert isinstance(error.__cause__, psycopg.Error)


def test_a_password_that_is_changed_under_an_open_store_is_named(
    server: Postgres, runner: asyncio.Runner | None
) -> None:
    with opened(to(server, "app:right"), runner) as store:
        assert store.get(HOME, "a") is not None
        server.administer("ALTER ROLE app PASSWORD 'other'")
        try:
            end_connections(server, "app")
            refused(lambda: store.get(HOME, "a"), Unavailable, "password authentication failed", "28P01")
            end_connections(server, "app")
        finally:
            server.administer("ALTER ROLE app PASSWORD 'right'")
        assert store.get(HOME, "a") is not None


def end_connections(server: Postgres, user: str) -> None:
    server.administer(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = '{user}'")


def test_too_many_connections_are_waited_for_and_named(server: Postgres, runner: asyncio.Runner | None) -> None:
    """53300."""
    url = to(server, "few")
    with opened(url, runner, timeout=2.5) as store, psycopg.connect(url) as other:
        began = time.monotonic()
        refused(lambda: store.put(HOME, "few", {}), Unavailable, 'too many connections for role "few"', "53300")
        assert time.monotonic() - began > 1, "it was not waited for"
        closing = threading.Timer(0.5, other.close)
        closing.start()
        store.put(HOME, "few", {})  # once there is room
        closing.join()


def test_a_server_without_free_connections_is_waited_for_and_named(
    server: Postgres, runner: asyncio.Runner | None
) -> None:
    """53300, of the whole server: max_connections."""
    taken: list[psycopg.Connection[Any]] = []
    try:
        with suppress(psycopg.OperationalError):
            while True:
                taken.append(psycopg.connect(server.url))
        with opened(server.url, runner, timeout=1) as store:
            refused(lambda: store.get(HOME, "a"), Unavailable, "too many clients", "53300")
            taken.pop().close()
            taken.pop().close()
            assert store.get(HOME, "a") is not None
    finally:
        for connection in taken:
            connection.close()


def test_a_full_server_is_waited_for_where_libpq_was_refused_without_tls_after_it(server: Postgres) -> None:
    """With sslmode=prefer, the error has both answers."""
    full = 'connection to server at "db", port 5432 failed: FATAL:  sorry, too many clients already'
    barred = 'connection to server at "db", port 5432 failed: FATAL:  no pg_hba.conf entry for host, no encryption'
    error = psycopg.OperationalError(f"connection failed: {full}\n{barred}")
    with holdall.open(server.url) as store:
        connections: Any = store._engine_handle.engine._connections
        assert isinstance(connections._translate_connect_error(error), NotApplied)


@pytest.mark.parametrize(("database", "encoding"), [("latin", "LATIN1"), ("ascii", "SQL_ASCII")])
def test_a_database_of_another_encoding_is_refused(
    server: Postgres, runner: asyncio.Runner | None, database: str, encoding: str
) -> None:
    with opened(to(server, "postgres", database), runner) as store:
        for call in (store.setup, lambda: store.search(HOME, query="подарок")):
            refused(call, InvalidInput, encoding, "UTF8")
    with psycopg.connect(to(server, "postgres", database)) as connection:
        assert connection.execute("SELECT FROM pg_namespace WHERE nspname = 'holdall'").fetchall() == []


# Statements ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", WRITES)
def test_a_missing_right_is_raised_at_once(server: Postgres, runner: asyncio.Runner | None, what: str) -> None:
    """42501."""
    server.administer("REVOKE INSERT, UPDATE ON holdall.entries FROM few")
    try:
        with opened(to(server, "few"), runner) as store:
            refused(lambda: WRITES[what](store), Unavailable, "permission denied for table entries", "42501")
            assert store.get(HOME, "a") is not None
    finally:
        server.administer("GRANT INSERT, UPDATE ON holdall.entries TO few")


@pytest.mark.parametrize("what", WRITES)
def test_a_read_only_server_is_raised_at_once(server: Postgres, runner: asyncio.Runner | None, what: str) -> None:
    """25006, as on a standby."""
    url = f"{server.url}?options=-c%20default_transaction_read_only%3Don"
    with opened(url, runner) as store:
        assert store.get(HOME, "a") is not None
        refused(lambda: WRITES[what](store), Unavailable, "read-only", "25006", "target_session_attrs")
        assert store.get(HOME, "a") is not None


@pytest.mark.parametrize("what", WRITES)
def test_a_servers_statement_timeout_is_a_timeout(server: Postgres, runner: asyncio.Runner | None, what: str) -> None:
    """57014. Nothing is written, also later."""
    url = f"{server.url}?options=-c%20statement_timeout%3D200"
    with opened(url, runner) as store:
        before = store.get(HOME, "a")
        with locked_rows(server):
            refused(lambda: WRITES[what](store), Timeout, "statement timeout", "57014")
        assert store.get(HOME, "a") == before
        assert store.get(HOME, "b") is None


@contextmanager
def locked_rows(server: Postgres) -> Iterator[None]:
    with psycopg.connect(server.url) as other:
        other.execute("SELECT FROM holdall.entries FOR UPDATE")
        yield
        other.rollback()


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A folder on a small tmpfs, or a skip where the test may mount none."""
    folder = Path(tempfile.mkdtemp(prefix="holdall-small-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"may not mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def test_a_full_disk_is_named_loses_nothing_and_is_gone_with_its_cause(runner: asyncio.Runner | None) -> None:
    """53100: what was acknowledged is there, what was refused is not, and the store goes on without reopening."""
    with small_disk(20) as disk, Postgres() as server:
        (disk / "space").mkdir()
        owner = server.data.stat()
        shutil.chown(disk / "space", owner.st_uid, owner.st_gid)
        space = f"CREATE TABLESPACE small LOCATION '{disk / 'space'}'"
        server.administer(space, "CREATE DATABASE small TABLESPACE small")
        ballast = disk / "ballast"
        with opened(to(server, "postgres", "small"), runner) as store:
            store.put(HOME, "first", {"n": -1})
            free = shutil.disk_usage(disk).free
            ballast.write_bytes(bytes(max(0, free - 1_000_000)))
            text = "x" * 2000
            there = {"first"}
            error = None
            for number in range(2000):
                key = f"{number}"
                try:
                    if number % 2:
                        store.put(HOME, key, {"text": text, "n": number})
                    else:
                        store.execute([Put(HOME, key, {"text": text}), Put(HOME, f"{key}b", {"text": text})])
                        there.add(f"{key}b")
                    there.add(key)
                except Unavailable as refusal:
                    error = refusal
                    break
            assert error is not None, "the disk never filled"
            assert type(error) is Unavailable
            assert "53100" in str(error)
            assert "full" in str(error)
            refused(lambda: store.put(HOME, "large", {"text": "y" * 500_000}), Unavailable, "53100")
            assert store.get(HOME, "first") is not None
            ballast.unlink()
            store.put(HOME, "last", {})
            assert {entry.key for entry in store.face.scan(HOME)} == there | {"last"}


# A server that goes away ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["put", "batch", "get", "search"])
def test_a_silent_server_is_not_waited_for_beyond_the_deadline(
    server: Postgres, runner: asyncio.Runner | None, what: str
) -> None:
    """On an open connection a write may have happened; on one that could not be opened, nothing has."""
    reads: dict[str, Callable[[Any], object]] = {
        "get": lambda store: store.get(HOME, "a"),
        "search": lambda store: store.search(HOME),
    }
    call = (WRITES | reads)[what]
    with opened(server.url, runner, timeout=0.5, pool_max=1) as store:
        store.put(HOME, "a", {"n": 0})
        store.get(HOME, "a")
        server.freeze()
        try:
            # A batch is not committed yet when the server falls silent.
            kind = OutcomeUnknown if what == "put" else Timeout
            refused(lambda: call(store), kind, "0.5 s", within=1)
            refused(lambda: call(store), Timeout, "0.5 s", within=1)
        finally:
            server.thaw()
        call(store)


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_reply_that_comes_slowly_is_not_waited_for_beyond_the_deadline(
    server: Postgres, runner: asyncio.Runner | None, is_connected: bool
) -> None:
    with Proxy(server.port) as proxy:
        with opened(proxy.url, runner) as store:
            store.put(HOME, "a", {"text": "x" * 10_000})
        with opened(proxy.url, runner, timeout=1) as store:
            if is_connected:
                store.get(HOME, "a")
            proxy.trickle(1, 0.02)  # a login takes some 400 bytes
            refused(lambda: store.get(HOME, "a"), Timeout, "1.0 s", within=2)
            proxy.trickle(0, 0)


def test_a_commit_that_is_not_answered_in_time_is_of_unknown_outcome(
    server: Postgres, runner: asyncio.Runner | None
) -> None:
    with Proxy(server.port) as proxy, opened(proxy.url, runner, timeout=1) as store:
        store.setup()
        proxy.hold(b"COMMIT")
        refused(lambda: WRITES["batch"](store), OutcomeUnknown, within=2)
        assert proxy.is_holding.is_set()


@pytest.mark.parametrize("what", ["put", "batch"])
def test_a_server_that_is_shut_down_is_waited_for_and_named(
    server: Postgres, runner: asyncio.Runner | None, what: str
) -> None:
    """57P01 on the open connection; then nobody listens. A batch was not committed; a single write may be done."""
    with opened(server.url, runner, timeout=1) as store:
        store.put(HOME, "a", {"n": 0})
        server.stop()
        began = time.monotonic()
        refused(lambda: WRITES[what](store), Unavailable if what == "batch" else OutcomeUnknown, "Connection refused")
        assert time.monotonic() - began > 0.9, "it was not waited for"
        server.start()
        WRITES[what](store)


def test_a_server_that_is_starting_is_waited_for_and_named(runner: asyncio.Runner | None) -> None:
    """57P03, here while it waits for a file of its log that does not come."""
    with Postgres() as server:
        with opened(server.url, runner) as store:
            store.put(HOME, "a", {"n": 0})
        server.stop()
        (server.data / "recovery.signal").touch()
        (waiting := server.data / "waiting").touch()
        command = f"while [ -e {waiting} ]; do sleep 0.05; done; false"
        (server.data / "postgresql.auto.conf").write_text(f"restore_command = '{command}'\nhot_standby = off\n")
        starting = threading.Thread(target=server.start)
        starting.start()
        try:
            with opened(server.url, runner, timeout=20) as store:
                wait_until_starting(server.url)
                with opened(server.url, runner, timeout=2) as hasty:
                    refused(lambda: hasty.get(HOME, "a"), Unavailable, "57P03")
                threading.Timer(0.2, waiting.unlink).start()
                assert store.get(HOME, "a") is not None
        finally:
            waiting.unlink(missing_ok=True)
            starting.join()


def wait_until_starting(url: str) -> None:
    """Wait until a server answers that it is starting; before that, it has no socket."""
    for _ in range(1000):
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError as error:
            if "starting up" in str(error) or "not yet accepting" in str(error):
                return
        time.sleep(0.01)
    raise AssertionError("the server never said that it is starting")


def test_a_connection_that_is_ended_while_it_writes_is_not_noticed(
    server: Postgres, runner: asyncio.Runner | None
) -> None:
    """57P01 in the middle of each kind of write; a row's lock holds it there."""
    for what, write in WRITES.items():
        with opened(server.url, runner) as store:
            store.put(HOME, "a", {"n": 0})
            with psycopg.connect(server.url) as other:
                other.execute("SELECT FROM holdall.entries FOR UPDATE")
                ending = threading.Thread(target=end_the_blocked, args=(server, other))
                ending.start()
                assert write(store), what
                ending.join()


def test_a_vacuum_whose_connection_is_ended_is_repeated(server: Postgres, runner: asyncio.Runner | None) -> None:
    with opened(server.url, runner) as store:
        store.put(HOME, "a", {"n": 0})
        with psycopg.connect(server.url) as other:
            other.execute("SELECT FROM holdall.entries LIMIT 1")
            ending = threading.Thread(target=end_the_blocked, args=(server, other))
            ending.start()
            assert store.erase(HOME, "a", compact=True).entries == 1
            ending.join()


def end_the_blocked(server: Postgres, holder: psycopg.Connection[Any]) -> None:
    """End the transaction that waits for a row, then free it."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        end = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        deadline = time.monotonic() + 20
        while not connection.execute(end).fetchall():
            assert time.monotonic() < deadline, "nobody was blocked"
            time.sleep(0.02)
    holder.rollback()


# Idle connections ----------------------------------------------------------------------------------------------------


def test_after_a_restart_the_first_lost_connection_ends_all_idle_ones(
    server: Postgres, runner: asyncio.Runner | None
) -> None:
    with holdall.open(server.url, pool_max=8) as store:
        store.setup()
        pool: Any = store._engine_handle.engine._pool
        if runner is None:
            connections = [store._engine_handle.engine._connections._acquire(time.monotonic() + 10) for _ in range(8)]
            for connection in connections:
                pool.release(None, connection)
        else:

            async def open_some() -> None:
                await asyncio.gather(*(store.acount(HOME) for _ in range(40)))

            runner.run(open_some())
        assert pool.size > 4
        server.stop()
        server.start()
        acquired = count_acquired(pool)
        Calls(store, runner).get(HOME, "a")
        assert len(acquired) == 2, "one that was lost, and a new one"
        assert pool.size == 1


def count_acquired(pool: Any) -> list[None]:
    """Return a list that grows by one whenever a connection is acquired."""
    acquired: list[None] = []
    reserve = pool._reserve

    def count(owner: Any) -> Any:
        acquired.append(None)
        return reserve(owner)

    pool._reserve = count
    return acquired
