"""What survives: which writes wait for an fsync, who shares one, and what a full disk leaves behind."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdall
from holdall.errors import HoldallError, OutcomeUnknown, Unavailable
from holdall.ops import Delete, Get, Put, Refresh
from support.processes import report, run


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "agent.db")


# Fsyncs, counted where SQLite asks the operating system for them -----------------------------------------------------


class CountingFile(apsw.VFSFile):
    """A file that counts its fsyncs, and lets a test hold them up or fail them."""

    def __init__(self, vfs: Counting, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self.vfs, self.kind = vfs, "wal" if flags[0] & apsw.SQLITE_OPEN_WAL else "db"

    def xSync(self, flags: int) -> None:  # noqa: N802  # SQLite's name for it
        self.vfs.syncs[self.kind] += 1
        self.vfs.before_sync()
        super().xSync(flags)


class Counting(apsw.VFS):
    """What every connection of the process goes through from now on."""

    def __init__(self) -> None:
        self.syncs: Counter[str] = Counter()
        self.before_sync: Callable[[], object] = lambda: None
        super().__init__("counting", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> CountingFile:  # noqa: N802  # SQLite's name for it
        return CountingFile(self, name, flags)

    def of(self, function: Callable[[], Any]) -> dict[str, int]:
        self.syncs.clear()
        function()
        return dict(self.syncs)


def test_one_put_is_one_fsync(path: str) -> None:
    run(count_lone_fsyncs, path=path)


def count_lone_fsyncs(path: str) -> None:
    vfs = Counting()
    store = holdall.open(path)
    store.put(("home",), "dated", {}, ttl=1000)
    store.put(("home",), "key", {})
    one_of_the_log = {"wal": 1}
    batch = [Put(("home",), str(i), {"n": i}) for i in range(50)] + [Delete(("home",), "0")]
    both = [Refresh(("home",), "dated"), Put(("home",), "key", {})]
    changes: dict[str, Callable[[], Any]] = {
        "put": lambda: store.put(("home",), "key", {}),
        "update": lambda: store.update(("home",), "key", lambda value: value),
        "delete": lambda: store.delete(("home",), "key"),
        "execute": lambda: store.execute(batch),
        "execute with a refresh": lambda: store.execute(both),
        "aput": lambda: asyncio.run(store.aput(("home",), "key", {})),
    }
    for name, change in changes.items():
        assert vfs.of(change) == one_of_the_log, name
    refreshes = [Refresh(("home",), "dated"), Refresh(("home",), "key")]
    no_changes: dict[str, Callable[[], Any]] = {
        "get": lambda: store.get(("home",), "key"),
        "search": lambda: store.search(("home",)),
        "aget": lambda: asyncio.run(store.aget(("home",), "key")),
        "execute refreshes": lambda: store.execute(refreshes),
        "get, refreshing": lambda: store.get(("home",), "dated", refresh=True),
        "aexecute refreshes": lambda: asyncio.run(store.aexecute(refreshes)),
    }
    for name, no_change in no_changes.items():
        assert vfs.of(no_change) == {}, name
    assert vfs.of(lambda: store.put(("home",), "key", {})) == one_of_the_log, "a refresh has not changed that"
    store.close()
    with holdall.open(path, durability="relaxed") as relaxed:
        relaxed.put(("home",), "first", {})
        assert vfs.of(lambda: relaxed.put(("home",), "key", {})) == {}


@pytest.mark.parametrize("how", ["threads", "tasks"])
def test_concurrent_writers_share_fsyncs(path: str, how: str) -> None:
    [(puts, syncs)] = run(count_shared_fsyncs, path=path, how=how)
    assert 0 < syncs < puts / 4


def count_shared_fsyncs(path: str, how: str) -> None:
    vfs = Counting()
    store = holdall.open(path)
    store.setup()
    vfs.before_sync = lambda: time.sleep(0.002)  # as long as a disk takes: in memory there would be nothing to share
    writers, each = 64, 10
    barrier = threading.Barrier(writers)

    def write(name: int) -> None:
        barrier.wait()
        for step in range(each):
            store.put(("home", str(name)), str(step), {"step": step})

    async def write_as_tasks() -> None:
        async def awrite(name: int) -> None:
            for step in range(each):
                await store.aput(("home", str(name)), str(step), {"step": step})

        await asyncio.gather(*(awrite(name) for name in range(writers)))

    def write_in_threads() -> None:
        threads = [threading.Thread(target=write, args=(name,)) for name in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    syncs = vfs.of(write_in_threads if how == "threads" else lambda: asyncio.run(write_as_tasks()))
    assert store.count() == writers * each
    store.close()
    report([writers * each, syncs["wal"]])


def test_a_write_returns_after_its_fsync_and_not_before(path: str) -> None:
    run(hold_the_fsync_up, path=path)


def hold_the_fsync_up(path: str) -> None:
    vfs = Counting()
    store = holdall.open(path)
    store.put(("home",), "first", {})
    begun, go_on, returned = threading.Semaphore(0), threading.Event(), []

    def hold() -> None:
        begun.release()
        assert go_on.wait(60)

    vfs.before_sync = hold
    threads = [threading.Thread(target=lambda: returned.append(store.put(("home",), "key", {})))]
    threads[0].start()
    assert begun.acquire(timeout=60), "there was no fsync"
    threads += [threading.Thread(target=lambda: returned.append(store.put(("home",), "other", {}))) for _ in range(3)]
    threads.append(threading.Thread(target=lambda: returned.append(asyncio.run(store.aput(("home",), "task", {})))))
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(0.1)
    assert not returned
    assert store.get(("home",), "first") is not None, "readers wait for no fsync"
    assert store.get(("home",), "key") is None
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(returned) == len(threads)
    store.close()


def test_a_failed_fsync_is_a_failed_write(path: str) -> None:
    run(fail_the_fsync, path=path)
    assert integrity(path) == [("ok",)]


def fail_the_fsync(path: str) -> None:
    vfs = Counting()
    store = holdall.open(path)
    store.put(("home",), "key", {"n": 1})

    def fail() -> None:
        raise apsw.IOError("the disk does not answer")

    vfs.before_sync = fail
    outcomes = try_at_once(
        store, {str(i): [Put(("home",), "key", {"n": 2}), Put(("new",), str(i), {})] for i in range(8)}
    )
    assert {type(outcome) for outcome in outcomes.values()} == {OutcomeUnknown}
    vfs.before_sync = lambda: None
    assert store.get(("home",), "key").value == {"n": 1}
    assert store.count(("new",)) == 0
    store.put(("home",), "key", {"n": 3})
    store.close()
    with holdall.open(path) as store:
        assert store.get(("home",), "key").value == {"n": 3}


def test_a_group_whose_fsync_failed_is_of_unknown_outcome_whatever_fails_next(path: str) -> None:
    """A file system that is read-only after the first error refuses the next write. The log may have the first."""
    run(fail_the_fsync_once, path=path)


def fail_the_fsync_once(path: str) -> None:
    vfs = Counting()
    store = holdall.open(path)
    store.put(("home",), "key", {"n": 1})
    engine = store._engine_handle.engine
    transact = engine._transact_on
    sizes: list[int] = []  # of the groups
    failed: list[int] = []

    def transact_before_the_failure(writer: Any, members: list[Any]) -> None:
        if failed:
            raise apsw.ReadOnlyError("the file system is read-only")
        sizes.append(len(members))
        transact(writer, members)

    def fail_for_a_group() -> None:
        if sizes[-1] > 1:
            failed.append(sizes[-1])
            raise apsw.IOError("the disk does not answer")

    engine._transact_on = transact_before_the_failure
    vfs.before_sync = fail_for_a_group
    outcomes = try_at_once(store, {str(i): [Put(("new",), str(i), {})] for i in range(8)})
    vfs.before_sync = lambda: None
    assert failed, "there was no group"
    assert [type(outcome) for outcome in outcomes.values()].count(OutcomeUnknown) == failed[0]


#: Writes, and the entries and files that each may leave: those from before, or these.
BEFORE = {"old": {"n": 1}, "/old": "one"}
WRITES: dict[str, tuple[Callable[[holdall.Store], object], dict[str, Any]]] = {
    "put": (lambda store: store.put(("home",), "old", {"n": 2}), {"old": {"n": 2}, "/old": "one"}),
    "put of another": (lambda store: store.put(("home",), "new", {}), {**BEFORE, "new": {}}),
    "write": (lambda store: store.files(("home",)).write("/old", "two"), {"old": {"n": 1}, "/old": "two"}),
    "append": (lambda store: store.files(("home",)).append("/old", "two"), {"old": {"n": 1}, "/old": "onetwo"}),
    "write of another": (lambda store: store.files(("home",)).write("/new", "two"), {**BEFORE, "/new": "two"}),
    "move": (lambda store: store.files(("home",)).move("/old", "/new"), {"old": {"n": 1}, "/new": "one"}),
    "delete": (lambda store: store.delete(("home",), "/old"), {"old": {"n": 1}}),
    "execute": (
        lambda store: store.execute([Put(("home",), "old", {"n": 2}), Delete(("home",), "/old")]),
        {"old": {"n": 2}},
    ),
}


@pytest.mark.parametrize("scheme", ["", "disk:///"])
def test_a_write_whose_fsync_failed_is_of_unknown_outcome_after_a_crash(tmp_path: Path, scheme: str) -> None:
    """SQLite undoes it for this process. Its log may have it all the same, and is read after a crash."""
    urls = {name: f"{scheme}{tmp_path}/{name}" for name in WRITES}
    run(die_after_a_failed_fsync, urls=urls)
    for name, (_, after) in WRITES.items():
        for _ in range(2):
            with holdall.open(urls[name]) as store:
                found = {entry.key: entry.value.get("content", entry.value) for entry in store.scan(("home",))}
            assert found in (BEFORE, after), name


def die_after_a_failed_fsync(urls: dict[str, str]) -> None:
    vfs = Counting()

    def fail() -> None:
        raise apsw.IOError("the disk does not answer")

    stores = []  # one that is collected would be closed
    for name, url in urls.items():
        vfs.before_sync = lambda: None
        store = holdall.open(url)
        stores.append(store)
        store.put(("home",), "old", {"n": 1})
        store.files(("home",)).write("/old", "one")
        vfs.before_sync = fail
        with pytest.raises(OutcomeUnknown):
            WRITES[name][0](store)
    os._exit(0)


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("relaxed", 1)])
def test_every_commit_runs_at_the_level_of_its_durability(path: str, durability: str, level: int) -> None:
    """A refresh may do with less. What it left, or what a failed statement left, is nothing to the next commit."""
    store = holdall.open(path, durability=durability)
    store.put(("home",), "dated", {}, ttl=1000)
    writer = store._engine_handle.engine._writer
    levels: list[int] = []

    def note() -> bool:
        levels.append(writer.pragma("synchronous"))
        return False

    writer.set_commit_hook(note)
    store.put(("home",), "key", {})
    store.execute([Refresh(("home",), "dated"), Refresh(("home",), "missing")])
    store.put(("home",), "key", {})
    with pytest.raises(HoldallError):
        store.put(("home",), "dated", {}, expect=holdall.ABSENT)
    store.put(("home",), "key", {})
    store.get(("home",), "dated", refresh=True)
    store.delete(("home",), "key")
    assert levels == [level, 1, level, level, 1, level]
    with pytest.MonkeyPatch.context() as patched:  # the level is set, but then the statement fails
        patched.setattr(type(writer), "begin", failing)
        with pytest.raises(HoldallError):
            store.get(("home",), "dated", refresh=True)
    store.put(("home",), "key", {})
    assert levels[-1] == level
    store.close()


def failing(_: Any) -> None:
    raise apsw.IOError("the disk does not answer")


# A full disk ---------------------------------------------------------------------------------------------------------


def try_at_once(store: holdall.Store, batches: dict[str, list[Any]]) -> dict[str, Any]:
    """Every batch in a thread or a task of its own, all in one group; what became of each."""
    outcomes: dict[str, Any] = {}

    def write(name: str) -> None:
        try:
            outcomes[name] = store.execute(batches[name])
        except HoldallError as error:
            outcomes[name] = error

    async def awrite(names: list[str]) -> None:
        results = await asyncio.gather(*(store.aexecute(batches[name]) for name in names), return_exceptions=True)
        outcomes.update(zip(names, results, strict=True))

    names = list(batches)
    threads = [threading.Thread(target=write, args=(name,)) for name in names[::2]]
    threads.append(threading.Thread(target=asyncio.run, args=(awrite(names[1::2]),)))
    holder = apsw.Connection(store._engine_handle.engine._path)
    holder.execute("BEGIN IMMEDIATE")  # they gather behind this
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(0.02)
    holder.execute("ROLLBACK")
    holder.close()
    for thread in threads:
        thread.join()
    return outcomes


def fill_the_disk(store: holdall.Store) -> None:
    """Where there is room for small batches only, those are written and no others: wholly, or not at all."""
    parts = [("tiny", {}), ("huge", {"filler": "x" * 500_000}), ("huge too", {"filler": "x" * 500_000})]
    small = {f"small{i}": [Put(("small", str(i)), part, {"n": i}) for part in "ab"] for i in range(12)}
    large = {f"large{i}": [Put(("large", str(i)), key, value) for key, value in parts] for i in range(4)}
    batches = small | large
    outcomes = try_at_once(store, {name: batches[name] for name in random.sample(list(batches), len(batches))})
    for name, outcome in outcomes.items():
        home = (name[:5], name[5:])
        if name in small:
            assert [entry.namespace for entry in outcome] == [home, home]
            assert store.count(home) == 2
        else:
            assert isinstance(outcome, Unavailable), f"{name}: {outcome!r:.200}"
            assert "agent.db" in str(outcome)
            assert store.count(home) == 0, "half a batch"
    assert store.execute([Get(("small", "0"), "a"), Get(("large", "0"), "tiny")])[1] is None


def write_again(store: holdall.Store) -> None:
    large = [Put(("large", "again"), part, {"filler": "x" * 500_000}) for part in "abcd"]
    assert len(store.execute(large)) == 4
    assert store.count(("large",)) == 4
    store.close()


def test_a_full_database_takes_what_fits_and_refuses_the_rest(path: str) -> None:
    """`max_page_count` makes SQLite itself say SQLITE_FULL, in the middle of the group."""
    store = holdall.open(path)
    store.setup()
    writer = store._engine_handle.engine._writer
    pages = writer.pragma("page_count")
    writer.pragma("max_page_count", pages + 40)
    fill_the_disk(store)
    writer.pragma("max_page_count", 1_000_000)
    write_again(store)
    assert integrity(path) == [("ok",)]


def test_a_full_disk_takes_what_fits_and_refuses_the_rest(path: str) -> None:
    """With a limit on the size of files, it is the operating system that refuses to write."""
    run(fill_up_to_a_limit, path=path)
    assert integrity(path) == [("ok",)]


def fill_up_to_a_limit(path: str) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = holdall.open(path)
    store.put(("home",), "key", {})
    for room in (400_000, 300_000):
        size = Path(path + "-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, hard))
        fill_the_disk(store)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        store.delete_tree(("small",))
    write_again(store)


def integrity(path: str) -> list[Any]:
    connection = apsw.Connection(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall()
    finally:
        connection.close()
