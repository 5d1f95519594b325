"""Copies and backups of the history, between stores that keep one; every engine as source and as destination."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall import ops
from holdall.errors import HistoryGone
from holdall.history import old_records
from holdall.operate import archive, backup, copying, records
from holdall.testing import Clock
from support.stores import ENGINES, new_location, open_at

_DAY = 86400
_PLACES = [(("a",), key) for key in ("item", "short", "gone", "expired", "again", "once", "/log", "/doc")]
Moments = list[tuple[datetime, dict[Any, Any]]]


def open_kept(engine: str, folder: Path, clock: Clock, history: float = _DAY, **options: Any) -> holdall.Store:
    return open_at(new_location(engine, folder), clock=clock, sweep_interval=None, history=history, **options)


def write_history(store: holdall.Store, clock: Clock) -> Moments:
    """Write entries with every kind of change; return what there was at each moment."""
    files, moments = store.files(("a",)), Moments()

    def note() -> None:
        moments.append((clock.now, {(entry.namespace, entry.key): entry.value for entry in store.scan()}))
        clock.advance(1)

    steps: list[Callable[[], object]] = [
        lambda: store.put(("a",), "item", {"n": 1}),
        lambda: store.acting("ann", reason="because").put(("a",), "item", {"n": 2}),
        lambda: store.execute([ops.Put(("a",), "item", {"n": 3}), ops.Put(("a",), "item", {"n": 4})]),
        lambda: store.put(("a",), "short", {"n": 1}, ttl=3),
        lambda: store.put(("a",), "expired", {"n": 1}, ttl=2),
        lambda: store.put(("a",), "gone", {"n": 1}, search_fields=["n"]),
        store.sweep,
        lambda: store.put(("a",), "short", {"n": 2}, ttl=1),
        lambda: store.acting("bob").delete(("a",), "gone"),
        lambda: clock.advance(2),
        lambda: store.put(("a",), "short", {"n": 3}),  # over one that has expired, and was not swept
        lambda: store.put(("a",), "again", {"n": 1}),
        lambda: store.delete(("a",), "again"),
        lambda: store.put(("a",), "again", {"n": 2}),
        lambda: store.put(("a",), "once", {"n": 1}),
        lambda: files.write("/log", "one\n"),
        lambda: files.append("/log", "two\n"),
        lambda: files.append("/log", "three\n"),
        lambda: files.write("/doc", "x" * 100_000),
        lambda: files.edit("/doc", "x" * 100_000, "y" * 70_000),
    ]
    for step in steps:
        step()
        note()
    return moments


def read_history(store: holdall.Store) -> dict[Any, Any]:
    """Return all that is known of the versions of all entries, without their numbers."""
    return {
        place: [
            (one.kind, one.time, one.value, one.author, one.reason, one.expires_at, one.size)
            for one in store.history(*place)
        ]
        for place in _PLACES
    }


def assert_same_past(store: holdall.Store, moments: Moments) -> None:
    for when, entries in moments:
        assert {(entry.namespace, entry.key): entry.value for entry in store.at(when).scan()} == entries, when


@pytest.mark.parametrize("engine", ENGINES)
def test_a_copy_has_the_history(engine: str, tmp_path: Path) -> None:
    clock = Clock()
    with open_kept("sqlite", tmp_path, clock) as source:
        moments = write_history(source, clock)
        with open_kept(engine, tmp_path, clock) as destination:  # its own history begins now
            copied = holdall.copy(source, destination, verify=True)
            assert copied.differences == []
            assert copied.versions > 10
            assert read_history(destination) == read_history(source)
            assert_same_past(destination, moments)
            source.put(("a",), "item", {"n": 5})
            source.put(("a",), "item", {"n": 6})
            source.delete(("a",), "once")
            assert holdall.copy(source, destination).versions == 1  # the destination has the others
            assert read_history(destination) == read_history(source)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "sqlite"])
def test_the_history_of_each_engine_can_be_copied(engine: str, tmp_path: Path) -> None:
    clock = Clock()
    with open_kept(engine, tmp_path, clock) as source:
        moments = write_history(source, clock)
        with open_kept("memory", tmp_path, clock) as destination:
            holdall.copy(source, destination)
            assert read_history(destination) == read_history(source)
            assert_same_past(destination, moments)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_backup_has_the_history(engine: str, tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "store.backup"
    with open_kept(engine, tmp_path, clock) as source:
        moments = write_history(source, clock)
        info = source.backup(path)
        expected = read_history(source)
    assert holdall.check_backup(path).versions == info.versions > 10
    with open_kept(engine, tmp_path / "other", clock) as loaded:
        assert loaded.load(path).versions == info.versions
        assert read_history(loaded) == expected
        assert_same_past(loaded, moments)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_has_expired_and_was_not_swept_keeps_its_history(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the feed it does not exist, until a sweep adds its end. Some of it expires while the feed is read."""
    monkeypatch.setattr(backup, "_PAGE", 1)
    monkeypatch.setattr(copying, "_PAGE", 1)
    clock, path = Clock(), tmp_path / "store.backup"

    def put_some(store: holdall.Store) -> None:
        for key, ttl in (("item", None), ("expired", 1), ("short", 4)):
            store.put(("a",), key, {"n": 1})
            store.put(("a",), key, {"n": 2}, ttl=ttl)
        clock.advance(2)

    def wait(done: int, total: int) -> None:
        clock.advance(5)

    with (
        open_kept(engine, tmp_path, clock) as source,
        open_kept("memory", tmp_path / "copy", clock) as copy,
        open_kept("memory", tmp_path / "loaded", clock) as loaded,
    ):
        put_some(source)
        holdall.copy(source, copy, progress=wait)
        expected = read_history(copy)
        assert [one[0] for one in expected[("a",), "short"]] == ["expire", "put", "put"]
        assert expected == read_history(source)
        put_some(source)
        source.backup(path, progress=wait)
        loaded.load(path)
        assert read_history(loaded) == read_history(source)


@pytest.mark.parametrize("engine", ENGINES)
def test_versions_that_expire_while_a_backup_is_loaded_keep_their_expiry(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The versions of an entry are in several blocks of the archive, which are written one after the other."""
    monkeypatch.setattr(archive, "_MOST_RECORDS", 1)
    clock, path = Clock(), tmp_path / "store.backup"
    with open_kept("memory", tmp_path, clock) as source:
        moments = write_history(source, clock)
        source.backup(path)
        with open_kept(engine, tmp_path, clock) as loaded:

            def wait(done: int, total: int) -> None:
                clock.advance(20)
                loaded.sweep()

            loaded.load(path, progress=wait)
            assert read_history(loaded) == read_history(source)
            assert_same_past(loaded, moments)


def test_many_large_versions_of_an_entry_are_moved_in_little_memory(tmp_path: Path) -> None:
    options: dict[str, Any] = {"history": 3600, "sweep_interval": None, "durability": "relaxed"}
    with (
        holdall.open(tmp_path / "source.db", **options) as source,
        holdall.open(tmp_path / "copy.db", **options) as copy,
        holdall.open(tmp_path / "loaded.db", **options) as loaded,
    ):
        for number in range(300):
            source.put(("a",), "k", {"n": number, "text": "x" * 300_000})
        tracemalloc.start()
        holdall.copy(source, copy)
        source.backup(tmp_path / "all.backup")
        loaded.load(tmp_path / "all.backup")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 300 * 300_000 * 0.7
        for store in (copy, loaded):
            assert [one.value["n"] for one in store.history(("a",), "k", limit=1000)] == [*range(299, -1, -1)]


def test_a_store_without_history_gets_the_present_only(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "store.backup"
    with open_kept("sqlite", tmp_path, clock) as source, holdall.open("memory:", clock=clock) as plain:
        write_history(source, clock)
        assert holdall.copy(source, plain, verify=True).versions == 0
        source.backup(path)
        assert plain.load(path, replace=True).versions == 0
        assert holdall.compare(source, plain).equal
        with pytest.raises(HistoryGone):
            plain.at(clock.now).get(("a",), "item")


def test_history_that_is_copied_into_a_store_in_use_does_not_extend_what_it_remembers(tmp_path: Path) -> None:
    clock = Clock()
    with open_kept("sqlite", tmp_path, clock) as source:
        moments = write_history(source, clock)
        with open_kept("memory", tmp_path, clock) as used:
            used.put(("mine",), "k", {})
            holdall.copy(source, used)
            assert read_history(used) == read_history(source)
            with pytest.raises(HistoryGone):
                used.at(moments[0][0]).get(("a",), "item")


class Killed(Exception):
    pass


def run_with_kills(monkeypatch: pytest.MonkeyPatch, destination: holdall.Store, run: Any, clock: Clock) -> None:
    """Run something again and again until it ends; each time it is killed one write later."""
    real = records.execute
    for calls in range(1, 100):
        left = iter(range(calls))

        def execute(store: Any, batch: list[Any], left: Any = left) -> Any:
            if store is destination and next(left, None) is None:
                raise Killed
            return (yield from real(store, batch))

        for module in (copying, backup, records):
            monkeypatch.setattr(module, "execute", execute)
        try:
            run()
            return
        except Killed:
            clock.advance(20)  # longer than some versions live
            destination.sweep()
    pytest.fail("it did not end")


def forbid_several_roots(monkeypatch: pytest.MonkeyPatch, store: holdall.Store) -> None:
    """Have a page and the note of how far a copy is written one after the other, as on a Redis Cluster."""
    engine = store._engine_handle.engine
    monkeypatch.setattr(engine, "capabilities", ops.replace(engine.capabilities, spans_roots=False))


@pytest.mark.parametrize("spans_roots", [True, False])
def test_a_copy_of_history_that_is_killed_at_any_page_ends_the_same(
    spans_roots: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_PAGE", 2)
    monkeypatch.setattr(copying, "_MOST_OLDS", 1)  # old versions are written before the page that they belong to
    monkeypatch.setattr(old_records, "_MOST_LOADED", 1)  # ... one by one
    clock = Clock()
    with open_kept("sqlite", tmp_path, clock) as source, open_kept("memory", tmp_path, clock) as destination:
        write_history(source, clock)
        if not spans_roots:
            forbid_several_roots(monkeypatch, destination)
        run_with_kills(monkeypatch, destination, lambda: holdall.copy(source, destination), clock)
        assert read_history(destination) == read_history(source)


@pytest.mark.parametrize("most", [1, 3, 500])
@pytest.mark.parametrize("spans_roots", [True, False])
def test_a_load_of_history_that_is_killed_at_any_block_ends_the_same(
    spans_roots: bool, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_MOST_RECORDS", most)
    clock, path = Clock(), tmp_path / "store.backup"
    with open_kept("sqlite", tmp_path, clock) as source, open_kept("memory", tmp_path, clock) as loaded:
        write_history(source, clock)
        source.backup(path)
        if not spans_roots:
            forbid_several_roots(monkeypatch, loaded)
        run_with_kills(monkeypatch, loaded, lambda: loaded.load(path), clock)
        assert read_history(loaded) == read_history(source)


def test_an_entry_that_changes_while_it_is_backed_up_has_each_version_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "_PAGE", 3)
    clock, path = Clock(), tmp_path / "store.backup"
    with open_kept("sqlite", tmp_path, clock) as source:
        write_history(source, clock)
        changes = iter(range(2))  # before the last page is read

        def change(done: int, total: int) -> None:
            clock.advance(1)
            if (number := next(changes, None)) is not None:
                source.put(("a",), "item", {"n": f"during {number}"})
                source.delete(("a",), "once") if number % 2 else source.put(("a",), "once", {"n": number})

        source.backup(path, progress=change)
        with open_kept("memory", tmp_path, clock) as loaded:
            loaded.load(path)
            assert read_history(loaded) == read_history(source)


def test_an_entry_that_a_backup_has_twice_in_a_row_has_each_version_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "_PAGE", 1)
    path, list_versions, changes = tmp_path / "store.backup", old_records.list_versions, iter([3])
    with open_kept("memory", tmp_path, Clock()) as source, open_kept("memory", tmp_path, Clock()) as loaded:
        for number in range(3):
            source.put(("a",), "k", {"n": number})
        source.put(("b",), "later", {})

        def change_afterwards(*args: Any) -> Any:
            found = yield from list_versions(*args)
            if (number := next(changes, None)) is not None:
                source.put(("a",), "k", {"n": number})
                source.delete(("b",), "later")
            return found

        monkeypatch.setattr(old_records, "list_versions", change_afterwards)
        source.backup(path)
        loaded.load(path)
        assert [one.value for one in loaded.history(("a",), "k")] == [{"n": number} for number in (3, 2, 1, 0)]
