"""Small puts that need no fsync are committed in the event loop's own thread: which, and when not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdall
from holdall.engines.sqlite import engine as sqlite
from holdall.engines.sqlite.connection import LONGEST_LOG
from holdall.engines.sqlite.write_turns import WriteTurns
from holdall.errors import Conflict, OutcomeUnknown, Unavailable
from support.processes import report, run

NS = ("home",)
HERE = threading.get_ident()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[holdall.Store]:
    monkeypatch.setattr(sqlite, "_SLOW", 60.0)
    with holdall.open(tmp_path / "agent.db", durability="relaxed", sweep_interval=None) as store:
        store.put(NS, "key", {"a": 1})
        yield store


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Each transaction: whether it was in this thread, and of how many batches."""
    found: list[tuple[bool, int]] = []
    transact, insert = sqlite.SqliteEngine._transact_on, sqlite.SqliteEngine._insert_alone

    def noted(self: Any, writer: Any, members: Any) -> None:
        transact(self, writer, members)
        found.append((threading.get_ident() == HERE, len(members)))

    def insert_noted(self: Any, writer: Any, member: Any) -> bool:
        is_done = insert(self, writer, member)
        if is_done:
            found.append((threading.get_ident() == HERE, 1))
        return is_done

    monkeypatch.setattr(sqlite.SqliteEngine, "_transact_on", noted)
    monkeypatch.setattr(sqlite.SqliteEngine, "_insert_alone", insert_noted)
    return found


def put_some(store: holdall.Store, number: int) -> list[holdall.Entry]:
    async def put() -> list[holdall.Entry]:
        return await asyncio.gather(*(store.aput(NS, str(n), {"n": n}) for n in range(number)))

    return asyncio.run(put())


def test_puts_of_one_turn_are_one_transaction_in_the_event_loop(
    store: holdall.Store, commits: list[tuple[bool, int]]
) -> None:
    assert put_some(store, 1)[0].value == {"n": 0}
    versions = [entry.version for entry in put_some(store, 20)]
    assert commits == [(True, 1), (True, 20)]
    assert versions == sorted(versions)
    assert store.get(NS, "19").value == {"n": 19}  # type: ignore[union-attr]  # it is there


def test_a_put_of_a_new_key_is_one_statement_until_one_of_a_key_that_exists(
    store: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    execute = sqlite.Connection.execute

    def noted(connection: Any, sql: str, *arguments: Any) -> Any:
        statements.append(sql.split()[0])
        return execute(connection, sql, *arguments)

    monkeypatch.setattr(sqlite.Connection, "execute", noted)

    async def put(key: str) -> list[str]:
        statements.clear()
        await store.aput(NS, key, {"n": 2})
        return list(statements)

    async def put_some() -> None:
        assert await put("new") == ["INSERT"]
        assert await put("key") == ["INSERT", "BEGIN", "INSERT", "INSERT", "COMMIT"]
        assert await put("key") == ["BEGIN", "INSERT", "INSERT", "COMMIT"]
        assert await put("newer") == ["BEGIN", "INSERT", "COMMIT"]
        assert await put("newest") == ["INSERT"]

    asyncio.run(put_some())
    assert [(entry.key, entry.value) for entry in store.scan(NS)] == [
        (key, {"n": 2}) for key in ("key", "new", "newer", "newest")
    ]


@pytest.mark.parametrize(
    ("result", "error", "is_tried_again"),
    [
        (apsw.SQLITE_IOERR_WRITE, Unavailable, True),
        (apsw.SQLITE_IOERR_READ, Unavailable, True),
        (apsw.SQLITE_IOERR_FSYNC, OutcomeUnknown, False),
    ],
)
def test_a_put_that_may_be_in_the_log_is_not_tried_again(
    store: holdall.Store,
    commits: list[tuple[bool, int]],
    monkeypatch: pytest.MonkeyPatch,
    result: int,
    error: type[Exception],
    is_tried_again: bool,
) -> None:
    threads: list[bool] = []

    def fail(*_: Any) -> None:
        threads.append(threading.get_ident() == HERE)
        failure: Any = apsw.IOError("the disk does not answer")
        failure.extendedresult = result
        raise failure

    monkeypatch.setattr(sqlite.Connection, "insert", fail)
    with pytest.raises(error) as raised:
        put_some(store, 1)
    assert isinstance(raised.value, OutcomeUnknown) == (not is_tried_again)
    assert threads == ([True, False] if is_tried_again else [True])
    assert commits == []


def test_a_failed_condition_in_the_event_loop_fails_its_own_put(
    store: holdall.Store, commits: list[tuple[bool, int]]
) -> None:
    async def put() -> list[Any]:
        conditional = store.aput(NS, "key", {"a": 2}, expect=holdall.ABSENT)
        return await asyncio.gather(conditional, store.aput(NS, "other", {}), return_exceptions=True)

    conflict, entry = asyncio.run(put())
    assert isinstance(conflict, Conflict)
    assert entry.key == "other"
    assert commits == [(True, 2)]


IN_A_THREAD: dict[str, Callable[[holdall.Store], Awaitable[object]]] = {
    "a large value": lambda store: store.aput(NS, "key", {"text": "x" * 20_000}),
    "a file": lambda store: store.files().awrite("/file", b"abc"),
    "a batch": lambda store: store.aexecute([holdall.ops.Put(NS, key, {}) for key in ("a", "b")]),
    "a tree": lambda store: store.adelete_tree(NS),
}


@pytest.mark.parametrize("name", IN_A_THREAD)
def test_what_may_take_long_is_written_in_a_thread(
    store: holdall.Store, commits: list[tuple[bool, int]], name: str
) -> None:
    async def write() -> None:
        await IN_A_THREAD[name](store)

    asyncio.run(write())
    assert commits
    assert not any(is_here for is_here, _ in commits)


@pytest.mark.parametrize(("scheme", "durability"), [("sqlite", "full"), ("disk", "relaxed")])
def test_what_needs_an_fsync_or_writes_files_is_written_in_a_thread(
    tmp_path: Path, commits: list[tuple[bool, int]], scheme: str, durability: Any
) -> None:
    with holdall.open(f"{scheme}:///{tmp_path}/other", durability=durability, sweep_interval=None) as store:
        store.put(NS, "key", {})
        commits.clear()
        put_some(store, 3)
    assert commits
    assert not any(is_here for is_here, _ in commits)


def test_after_two_slow_commits_the_next_ones_go_to_a_thread_for_a_while(
    store: holdall.Store, commits: list[tuple[bool, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_SLOW", -1.0)  # from now on each is slow
    for _ in range(4):
        put_some(store, 1)
    assert [is_here for is_here, _ in commits] == [True, True, False, False]


def test_a_put_that_has_to_wait_for_another_process_does_so_in_a_thread(
    store: holdall.Store, commits: list[tuple[bool, int]], tmp_path: Path
) -> None:
    async def put() -> holdall.Entry:
        other = apsw.Connection(str(tmp_path / "agent.db"))
        other.execute("BEGIN IMMEDIATE")
        task = asyncio.ensure_future(store.aput(NS, "new", {}))
        began = time.monotonic()
        await asyncio.sleep(0.01)
        assert time.monotonic() - began < 10  # the event loop did not wait for the timeout of the store
        assert not task.done()
        other.execute("COMMIT")
        other.close()
        return await asyncio.wait_for(task, 60)

    assert asyncio.run(put()).key == "new"
    assert commits == [(False, 1)]


def test_other_processes_that_wait_are_let_in_by_a_thread(
    store: holdall.Store, commits: list[tuple[bool, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WriteTurns, "_has_waiters", lambda _: True)
    store._engine_handle.engine._writer.turns.next_check = 0.0  # type: ignore[attr-defined]  # of SQLite
    put_some(store, 1)
    assert commits == [(False, 1)]


def test_no_fsync_is_ever_in_the_event_loop(tmp_path: Path) -> None:
    """Not even that of a long log, which is copied into the database, nor that of the log that starts again."""
    [(in_loop, elsewhere, here)] = run(count_fsyncs_by_thread, path=str(tmp_path / "agent.db"))
    assert in_loop == 0
    assert elsewhere >= 4  # so the log was copied and started again
    assert here > 0.9


def count_fsyncs_by_thread(path: str) -> None:
    from engines.sqlite.test_durability import Counting

    vfs, threads, commits = Counting(), [], []
    vfs.before_sync = lambda: threads.append(threading.get_ident())
    insert = sqlite.Connection.insert

    def insert_noted(connection: sqlite.Connection, sql: str, params: tuple[Any, ...]) -> int | None:
        commits.append(threading.get_ident())
        return insert(connection, sql, params)

    sqlite.Connection.insert = insert_noted  # type: ignore[method-assign]  # it inserts as before
    sqlite._SLOW = 60.0
    store = holdall.open(path, durability="relaxed", sweep_interval=None)
    store.setup()
    other = apsw.Connection(path)
    other.execute("SELECT 1 FROM holdall_entries").fetchall()  # opens the log

    async def put() -> None:
        for number in range(500):
            await store.aput(NS, str(number), {"text": "x" * 10_000})
            if number % 100 == 50:  # another process, after whose copying our next commit starts the log again
                await asyncio.to_thread(other.wal_checkpoint)

    threads.clear()
    asyncio.run(put())
    main = threading.get_ident()
    report([threads.count(main), len(threads) - threads.count(main), commits.count(main) / len(commits)])
    other.close()
    store.close()


def test_a_long_log_is_copied_by_a_thread_while_the_event_loop_commits(
    store: holdall.Store, commits: list[tuple[bool, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that copied it would keep its caller waiting for two fsyncs."""
    engine: Any = store._engine_handle.engine
    copied = threading.Event()
    copy = engine._copy_log

    def copy_and_note() -> None:
        assert threading.get_ident() != HERE
        copy()
        copied.set()

    monkeypatch.setattr(engine, "_copy_log", copy_and_note)

    async def put() -> None:
        number = 0
        while engine._writer.uncopied < LONGEST_LOG:
            number += 1
            await store.aput(NS, str(number), {"text": "x" * 10_000})
        assert await asyncio.to_thread(copied.wait, 30)

    asyncio.run(put())
    assert all(is_here for is_here, _ in commits)
    length, present = engine._writer.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_NOOP)
    assert length == present >= LONGEST_LOG
    assert not engine._is_copying
