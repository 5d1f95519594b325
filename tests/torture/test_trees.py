"""Large trees, deleted and moved while others write, watch and die: each change once, and nobody waits long."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

import holdall
from holdall.engines.disk import engine as disk_engine
from holdall.engines.postgres import engine as postgres_engine
from holdall.engines.sql import feed
from holdall.engines.sqlite import engine as sqlite_engine
from holdall.errors import Conflict, FileNotFound, IsADirectory
from holdall.files import large_moves
from holdall.ops import ABSENT, Check, Maintain, Put
from holdall.testing.caller import WatchCaller
from support.killed_writers import kill_at_a_random_moment
from support.processes import report, start
from support.servers import postgres_url
from support.stores import new_location, open_at

_numbers = itertools.count()
KEYS = [f"k{n:02}" for n in range(60)]


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The arguments of `holdall.open`."""
    if request.param == "sqlite":
        return {"url": str(tmp_path / "agent.db")}
    return {"url": postgres_url(), "schema": f"trees_{next(_numbers)}_{os.getpid()}"}


def test_a_tree_is_whole_or_gone_after_kill_9_and_others_clear_it(
    where: dict[str, str], scaled: Callable[[int, int], int]
) -> None:
    deleted = unfinished = 0
    with holdall.open(**where, sweep_interval=None) as store:  # in this process, only what reads the feed clears trees
        cursor = store.cursor()
        for number in range(scaled(6, 60)):
            writer = start(delete_trees_until_killed, number=str(number), **where)
            reported = kill_at_a_random_moment(writer, once_it_writes=number % 4 != 3)
            deleted += sum(what == "deleted" for what, _ in reported)
            unfinished += bool(trees_left(where))
            check_trees(store, str(number), reported)
        store.put(("end",), "end", {})
        seen: dict[tuple[Any, str], str] = {}
        versions = []
        with store.watch(since=cursor) as watch:
            for change in watch:
                versions.append(change.version)
                seen[change.namespace, change.key] = change.kind
                if change.namespace == ("end",):
                    break
        assert versions == sorted(set(versions))
        living = {(entry.namespace, entry.key) for entry in store.scan(())}
        assert {entry for entry, kind in seen.items() if kind == "put"} == living
    assert deleted > 0 < unfinished, "the writers were killed before they deleted a tree: this showed nothing"
    for number in itertools.count():
        writer = start(delete_trees_until_killed, number=f"last {number}", **where)
        kill_at_a_random_moment(writer, once_it_writes=True)
        if trees_left(where):
            break
    with holdall.open(**where) as store:  # the next to open the store goes on
        until = time.monotonic() + 30
        while trees_left(where):
            store.put(("end",), "end", {})
            assert time.monotonic() < until
            time.sleep(0.01)


def delete_trees_until_killed(number: str, **where: str) -> None:
    feed.LARGE_TREE, feed._LARGEST_SLICE = 20, 3
    store = holdall.open(**where)
    for step in itertools.count():
        home = ("tree", number, str(step))
        store.execute([Put(home, key, {"step": step}) for key in KEYS])
        report(["put", step])
        assert store.delete_tree(home) == len(KEYS)
        report(["deleted", step])
        store.put(home, KEYS[30], {"new": step})
        report(["after", step])


def check_trees(store: holdall.Store, number: str, reported: list[Any]) -> None:
    """Compare what a killed process has acknowledged with what others read."""
    gone, new, whole = set[str](), {KEYS[30]}, set(KEYS)
    allowed = {"put": (whole, gone), "deleted": (gone, new), "after": (new,)}
    last: dict[int, str] = {step: what for what, step in reported}
    for step in range(max(last, default=-1) + 2):
        home = ("tree", number, str(step))
        entries = {entry.key: entry.value for entry in store.scan(home)}
        assert entries.keys() in allowed.get(last.get(step, ""), (gone, whole)), (last.get(step), len(entries))
        assert store.count(home) == len(entries)
        if len(entries) == 1:
            assert entries[KEYS[30]] == {"new": step}


def trees_left(where: dict[str, str]) -> int:
    if "schema" in where:
        with psycopg.connect(where["url"]) as server:
            return len(server.execute(f"SELECT 1 FROM {where['schema']}.trees").fetchall())
    connection = apsw.Connection(where["url"])
    try:
        return len(connection.execute("SELECT 1 FROM holdall_trees").fetchall())
    except apsw.SQLError:  # the process died before it created the table
        return 0
    finally:
        connection.close()


@pytest.mark.timed
def test_no_writer_waits_long_while_a_large_tree_is_deleted_and_cleared(
    where: dict[str, str], scaled: Callable[[int, int], int]
) -> None:
    count = scaled(30_000, 300_000)
    waits: list[float] = []
    with holdall.open(**where) as store:
        for begin in range(0, count, 5000):
            store.execute([Put(("tree", str(n % 77)), str(n), {"n": n}) for n in range(begin, begin + 5000)])
        cursor = store.cursor()
        is_over = threading.Event()

        def write() -> None:
            while not is_over.wait(0.001):
                began = time.monotonic()
                store.put(("other",), "k", {})
                waits.append(time.monotonic() - began)

        writer = threading.Thread(target=write)
        writer.start()
        assert store.delete_tree(("tree",)) == count
        assert store.count(("tree",)) == 0
        with store.watch(("tree",), since=cursor) as watch:
            changes = [next(watch) for _ in range(count)]
        is_over.set()
        writer.join()
        assert {change.kind for change in changes} == {"delete"}
        assert len({change.key for change in changes}) == count
    # Deleted in one transaction, it would be a second. 50 ms is the aim; a loaded machine may delay any thread.
    assert max(waits) < 0.4


def test_a_put_into_a_deleted_tree_that_is_not_cleared_yet_makes_a_new_entry(
    where: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LARGE_TREE", 1)
    home = ("tree",)
    with holdall.open(**where, sweep_interval=None) as store:
        old = {key: store.put(home, key, {"n": 1}) for key in KEYS}
        assert store.delete_tree(home) == len(KEYS)
        assert trees_left(where)
        alone = store.put(home, KEYS[0], {"n": 2})
        [batched, _] = store.execute([Put(home, KEYS[1], {"n": 2}), Put(home, KEYS[2], {"n": 2})])
        created = store.put(home, KEYS[3], {"n": 2}, expect=ABSENT)
        again = store.put(home, KEYS[0], {"n": 3})
        for entry in (alone, batched, created, again):
            assert entry.created_at > max(entry.created_at for entry in old.values())
        assert again.created_at == alone.created_at
        assert {entry.key for entry in store.scan(home)} == set(KEYS[:4])
        while store._engine_handle.engine.execute([Maintain()])[0]:
            pass
        assert not trees_left(where)
        assert {entry.key for entry in store.scan(home)} == set(KEYS[:4])
        assert store.put(home, KEYS[0], {"n": 4}).created_at == alone.created_at
        if "schema" in where:
            with psycopg.connect(where["url"]) as server:
                assert server.execute(f"SELECT * FROM {where['schema']}.tree_gate").fetchall() == []


def test_a_watcher_that_waits_for_a_tree_is_woken_though_nobody_else_clears_it(
    where: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in ((feed, "LARGE_TREE", 20), (feed, "_LARGEST_SLICE", 3)):
        monkeypatch.setattr(module, name, value)
    for module in (sqlite_engine, postgres_engine):
        monkeypatch.setattr(module, "HELD_SECONDS", 0.001)
    with holdall.open(**where, durability="relaxed", sweep_interval=None) as store:
        store.execute([Put(("tree", str(n)), key, {}) for n in range(10) for key in KEYS])
        cursor = store.cursor()
        store.delete_tree(("tree",))
        store.put(("other",), "k", {})
        with store.watch(("other",), since=cursor) as watch:
            assert [change.key for change in WatchCaller(watch, None).take(1)] == ["k"]


def test_no_conditional_write_survives_the_deletion_of_its_tree(
    where: dict[str, str], scaled: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers that only replace entries: each comes before the deletion, or finds no entry."""
    monkeypatch.setattr(feed, "LARGE_TREE", 20)
    with holdall.open(**where, durability="relaxed") as store, ThreadPoolExecutor(4) as threads:
        written = 0
        for number in range(scaled(16, 200)):
            home = ("tree", str(number))
            store.execute([Put(home, key, {}) for key in KEYS])
            writers = [threads.submit(replace_until_gone, store, home, seed, seed % 2 == 0) for seed in range(4)]
            time.sleep(random.uniform(0, 0.02))
            assert store.delete_tree(home) == len(KEYS)
            written += sum(writer.result(30) for writer in writers)
            assert list(store.scan(home)) == []
            assert store.count(home) == 0
        assert written > 0


def replace_until_gone(store: holdall.Store, home: tuple[str, ...], seed: int, in_batches: bool) -> int:
    """Replace entries at the version that was read, one by one or in pairs; return how many."""
    chance = random.Random(seed)
    for written in itertools.count():
        one, other = (store.get(home, key) for key in chance.sample(KEYS, 2))
        if one is None or other is None:
            return written
        try:
            if in_batches:
                store.execute([Check(home, one.key, one.version), Put(home, other.key, {}, expect=other.version)])
            else:
                store.put(home, one.key, {}, expect=one)
        except Conflict:
            continue
    raise AssertionError("unreachable")


def test_a_cancelled_deletion_leaves_a_tree_whole_or_gone_and_no_reader_behind(
    tmp_path: Path, scaled: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that were left in its snapshot would keep the log from being emptied, and a fork waiting."""
    monkeypatch.setattr(feed, "LARGE_TREE", 20)
    outcomes = set()

    async def delete_and_cancel(store: holdall.Store, home: tuple[str, ...]) -> None:
        await store.aexecute([Put(home, key, {}) for key in KEYS])
        deletion = asyncio.create_task(store.adelete_tree(home))
        await asyncio.sleep(random.uniform(0, 0.004))
        deletion.cancel()
        outcome = (await asyncio.gather(deletion, return_exceptions=True))[0]
        outcomes.add(type(outcome))
        assert isinstance(outcome, asyncio.CancelledError) or outcome == len(KEYS)
        assert await store.acount(home) in (0, len(KEYS))

    with holdall.open(tmp_path / "agent.db", durability="relaxed") as store:
        for number in range(scaled(60, 600)):
            asyncio.run(delete_and_cancel(store, ("tree", str(number))))
        readers = store._engine_handle.engine._readers  # type: ignore[attr-defined]  # SQLite's own
        until = time.monotonic() + 10
        while len(readers._idle) < len(readers._all) and time.monotonic() < until:
            time.sleep(0.01)
        assert len(readers._idle) == len(readers._all)
    assert asyncio.CancelledError in outcomes


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis", "disk"])
def test_a_move_goes_on_after_kill_9_and_each_file_is_at_one_of_its_paths(
    engine: str, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    at, home = new_location(engine, tmp_path), ("filesystem",)
    unfinished = 0
    with open_at(at) as store:
        cursor = store.cursor()
        for number in itertools.count():
            if number >= scaled(5, 60) and unfinished:
                break
            assert number < 100, "no writer was killed in the middle of a move: this showed nothing"
            roles = ["first", "second"][: 1 + number % 2]  # of processes that move the same folders
            writers = [start(move_folders_until_killed, number=str(number), role=role, **at) for role in roles]
            reported = [kill_at_a_random_moment(writer, once_it_writes=number % 4 != 2) for writer in writers]
            for step in range(max((step for one in reported for _, step in one), default=-1) + 2):
                src, dst = f"/{number}/{step}/src", f"/{number}/{step}/dst"
                found = [entry.key.rpartition("/") for entry in store.scan(home) if entry.key.startswith(src[:-3])]
                names = sorted(name for _, _, name in found)
                assert names in ([], KEYS), f"a file is lost, or at both of its paths: {names}"
                folders = {folder for folder, _, _ in found}
                assert folders <= {src, dst}
                if any(["moved", step] in one for one in reported):
                    assert folders == {dst}
                unfinished += len(folders) == 2
                if src in folders:
                    large_moves.LARGE_FOLDER, usual = 20, large_moves.LARGE_FOLDER
                    try:
                        store.files().move(src, dst)  # of a few files, too: the move was begun
                    finally:
                        large_moves.LARGE_FOLDER = usual
                    assert [info.path for info in store.files().walk(dst)] == [f"{dst}/{name}" for name in KEYS]
                    assert not store.files().exists(src)
        store.put(("end",), "end", {})
        seen: dict[str, str] = {}
        versions = []
        with store.watch(since=cursor) as watch:
            for change in watch:
                versions.append(change.version)
                seen[change.key] = change.kind
                if change.namespace == ("end",):
                    break
        assert versions == sorted(set(versions))
        assert {key for key, kind in seen.items() if kind == "put"} == {entry.key for entry in store.scan(())}


def move_folders_until_killed(number: str, role: str, **at: str) -> None:
    large_moves.LARGE_FOLDER, large_moves._SMALLEST_SLICE, large_moves._LARGEST_SLICE = 20, 1, 2
    store = open_at(at)
    volume = store.files()
    for step in itertools.count():
        src, dst = f"/{number}/{step}/src", f"/{number}/{step}/dst"
        if role == "first":
            store.execute([Put(("filesystem",), f"{src}/{key}", {"content": "x"}) for key in KEYS])
        while not volume.exists(src) and not volume.exists(dst):
            time.sleep(0.001)
        report(["put", step])
        while volume.exists(src):
            with contextlib.suppress(FileNotFound, IsADirectory):  # the other process has just ended it, or goes on
                volume.move(src, dst)
        report(["moved", step])


@pytest.mark.parametrize(
    "engine", ["sqlite", "postgres", "redis", pytest.param("cluster", marks=pytest.mark.not_short), "disk"]
)
def test_a_killed_move_loses_and_doubles_nothing_that_others_write_in_both_folders(
    engine: str, tmp_path: Path, scaled: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file has its name as a word; others append words to the files of both folders."""
    monkeypatch.setattr(large_moves, "LARGE_FOLDER", 20)
    at, home = new_location(engine, tmp_path), ("filesystem",)
    unfinished = 0
    with open_at(at) as store:
        for number in itertools.count():
            if number >= scaled(2, 60) and unfinished:
                break
            assert number < 100, "no process was killed in the middle of a move: this showed nothing"
            store.execute([Put(home, f"/src/{key}", {"content": key}) for key in KEYS])
            movers = [start(move_until_killed, **at) for _ in range(1 + number % 2)]
            writers = [start(append_until_killed, seed=seed, **at) for seed in range(2)]
            moved = [kill_at_a_random_moment(mover, once_it_writes=True) for mover in movers]
            acknowledged = {word for writer in writers for word in writer.kill()}
            stayed = check_words(store, home, acknowledged)
            unfinished += bool(stayed) and len(stayed) < len(KEYS) and not any("ended" in one for one in moved)
            with contextlib.suppress(FileNotFound, IsADirectory):  # it was ended, and others have written since
                store.files().move("/src", "/dst")
            for key in check_words(store, home, acknowledged):
                assert store.files().exists(f"/dst/{key}"), "a file was left behind, though its new path is free"
            store.files().delete("/", recursive=True)


def check_words(store: holdall.Store, home: tuple[str, ...], acknowledged: set[str]) -> set[str]:
    """Check that no word is lost or there twice; return the names of the files that were not moved."""
    files = {entry.key: entry.value["content"].split() for entry in store.scan(home)}
    counts = Counter(word for words in files.values() for word in words)
    assert acknowledged.union(KEYS) <= counts.keys()
    assert set(counts.values()) == {1}
    return {word for path, words in files.items() for word in words if word in KEYS and path.startswith("/src/")}


def move_until_killed(**at: str) -> None:
    large_moves.LARGE_FOLDER, large_moves._SMALLEST_SLICE, large_moves._LARGEST_SLICE = 20, 1, 2
    next_size = large_moves._next_size

    def report_slice(size: int, seconds: float) -> int:
        report("slice")
        return next_size(size, seconds)

    large_moves._next_size = report_slice
    with contextlib.suppress(FileNotFound, IsADirectory):  # the other process has just ended it
        open_at(at).files().move("/src", "/dst")
    report("ended")


def append_until_killed(seed: int, **at: str) -> None:
    volume, chance = open_at(at).files(), random.Random(seed)
    folders = ["/src"]
    for step in itertools.count():
        if folders == ["/src"] and volume.exists("/dst"):  # before that, the move would be refused
            folders.append("/dst")
        volume.append(f"{chance.choice(folders)}/{chance.choice(KEYS)}", f" {seed}.{step}")
        report(f"{seed}.{step}")


def test_a_tree_on_disk_is_deleted_further_by_the_next_call_after_kill_9(
    tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    root, unfinished = tmp_path / "disk", 0
    for number in itertools.count():
        if number >= scaled(5, 60) and unfinished:
            break
        assert number < 100, "no writer was killed in the middle of a deletion: this showed nothing"
        writer = start(delete_folders_until_killed, root=str(root), number=str(number))
        reported = kill_at_a_random_moment(writer, once_it_writes=True)
        with holdall.open(f"disk:///{root}", durability="relaxed") as store:
            volume = store.files()
            for step in range(max(step for _, step in reported) + 2):
                folder = f"/{number}/{step}"
                left = {Path(info.path).name for info in volume.walk(folder)}
                assert left == {path.name for path in (root / folder[1:]).glob("*")}, "plain files and entries differ"
                if ["deleted", step] in reported:
                    assert not left
                unfinished += 0 < len(left) < len(KEYS)
                assert volume.delete(folder, recursive=True) == len(left)
                assert not (root / folder[1:]).exists()


def delete_folders_until_killed(root: str, number: str) -> None:
    feed.LARGE_TREE, disk_engine._SMALLEST_SLICE, disk_engine._SLICE_SECONDS = 20, 2, 0
    store = holdall.open(f"disk:///{root}", durability="relaxed")
    for step in itertools.count():
        folder = f"/{number}/{step}"
        store.execute([Put(("filesystem",), f"{folder}/{key}", {"content": "x"}) for key in KEYS])
        report(["put", step])
        assert store.files().delete(folder, recursive=True) == len(KEYS)
        report(["deleted", step])
