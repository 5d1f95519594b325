"""History while others write, and at its limits: what an operator may do to a store that is in use."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall import ops
from holdall.errors import Conflict, HistoryGone, InvalidInput
from holdall.history import versions
from holdall.testing import Clock
from support.extent import IS_SHORT
from support.stores import ENGINES, new_location, open_at

NS = ("notes",)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rewind_under_writers_is_one_transaction(engine: str, tmp_path: Path) -> None:
    """Each writer writes pairs of equal values. A rewind that mixed two moments would leave an unequal pair."""
    with open_at(new_location(engine, tmp_path), history=3600) as store:
        store.execute([ops.Put(NS, f"{side}{pair}", {"n": 0}) for pair in range(4) for side in "ab"])
        start, ended = store.cursor(), threading.Event()
        errors: list[BaseException] = []

        def write(pair: int) -> None:
            try:
                for number in range(1, 40):
                    store.execute([ops.Put(NS, f"{side}{pair}", {"n": number}) for side in "ab"])
            except BaseException as error:  # shown by the test
                errors.append(error)

        def read() -> None:
            while not ended.is_set():
                found = {hit.key: hit.value["n"] for hit in store.search(NS, limit=100)}
                if any(found[f"a{pair}"] != found[f"b{pair}"] for pair in range(4)):
                    errors.append(AssertionError(found))

        writers = [threading.Thread(target=write, args=(pair,)) for pair in range(4)]
        reader = threading.Thread(target=read)
        for thread in (*writers, reader):
            thread.start()
        rewound = 0
        while any(writer.is_alive() for writer in writers):
            try:
                store.rewind(NS, start)
                rewound += 1
            except Conflict:  # writers were faster each time
                pass
        ended.set()
        for thread in (*writers, reader):
            thread.join()
        assert errors == []
        store.rewind(NS, start)
        assert {hit.value["n"] for hit in store.search(NS, limit=100)} == {0}


@pytest.mark.parametrize("engine", ENGINES)
def test_all_changes_of_a_batch_have_one_time(engine: str, tmp_path: Path) -> None:
    """So the store as it was at a datetime has all of them or none."""
    with open_at(new_location(engine, tmp_path), history=3600) as store:
        store.execute([ops.Put(NS, key, {}) for key in ("old", "kept", "last")])
        store.files(NS).write("/from", "text")
        store.execute(
            [
                *(ops.Put(NS, f"k{number}", {"n": number}) for number in range(20)),
                ops.Append(NS, "/log", b"text"),
                ops.Move(NS, "/from", "/to"),
                ops.Delete(NS, "old"),
                ops.Put(NS, "last", {}),
            ]
        )
        places = [*(f"k{number}" for number in range(20)), "/log", "/to", "/from", "old", "last"]
        assert len({store.history(NS, key)[0].time for key in places}) == 1
        [before] = store.history(NS, "kept")
        assert store.at(before.time).count() == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_the_past_around_an_expiry(engine: str, tmp_path: Path) -> None:
    clock = Clock()
    with open_at(new_location(engine, tmp_path), clock=clock, history=3600, sweep_interval=None) as store:
        start = clock.now
        store.put(NS, "k", {"n": 1}, ttl=10)
        just_before, at_expiry = start + timedelta(seconds=10, microseconds=-1), start + timedelta(seconds=10)
        for is_swept in (False, True):
            clock.advance(20)
            if is_swept:
                store.sweep()
            assert store.at(start).get(NS, "k") is not None
            assert store.at(just_before).get(NS, "k") is not None
            assert store.at(at_expiry).get(NS, "k") is None
            assert store.at(just_before).count() == 1
            assert store.at(at_expiry).count() == 0
        store.rewind(NS, just_before)
        entry = store.get(NS, "k")
        assert entry is not None
        assert entry.expires_at == clock.now + timedelta(seconds=10)  # its TTL starts again


@pytest.mark.parametrize("engine", ENGINES)
def test_history_that_is_turned_off_under_readers_is_gone_and_never_wrong(engine: str, tmp_path: Path) -> None:
    at = new_location(engine, tmp_path)
    with open_at(at, history=3600) as store:
        for number in range(50):
            store.put(NS, f"k{number % 5}", {"n": number})
        then = store.cursor()
        expected = {entry.key: entry.value for entry in store.scan()}
        for number in range(5):
            store.put(NS, f"k{number}", {"n": -1})
        results: list[Any] = []

        def look() -> None:
            while True:
                try:
                    results.append({entry.key: entry.value for entry in store.at(then).scan()})
                except HistoryGone:
                    return

        readers = [threading.Thread(target=look) for _ in range(3)]
        for reader in readers:
            reader.start()
        open_at(at, history=0).close() if engine != "memory" else store._engine_handle.engine.execute(
            [holdall.engine.SetHistory(0)]
        )
        with open_at(at, history=0) as other:
            other.sweep()
        for reader in readers:
            reader.join(30)
            assert not reader.is_alive()
        assert all(result == expected for result in results)
        store.put(NS, "k0", {"n": -2})
        assert len(store.history(NS, "k0")) == 1


def test_a_scope_cannot_set_history(tmp_path: Path) -> None:
    with open_at(new_location("sqlite", tmp_path)) as store:
        scope = store.scoped(("users", "ada"))
        assert not hasattr(scope, "set_history")
        with pytest.raises(InvalidInput):
            scope.execute([holdall.engine.SetHistory(60)])  # type: ignore[list-item]
        with pytest.raises(InvalidInput):
            scope.execute([holdall.engine.SetChange(("a",), "k", 1)])  # type: ignore[list-item]


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_a_rewind_of_more_changes_than_one_transaction_takes_needs_slices(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert versions.MOST_ATOMIC == 100_000
    monkeypatch.setattr(versions, "MOST_ATOMIC", 2500)
    with open_at(new_location(engine, tmp_path), history=3600) as store:
        store.execute([ops.Put(NS, f"k{number}", {"n": 1}) for number in range(2500)])
        start = store.cursor()
        store.execute([ops.Put(NS, f"k{number}", {"n": 2}) for number in range(2500)])
        assert store.rewind(NS, start).restored == 2500
        store.put(NS, "one more", {})
        store.execute([ops.Put(NS, f"k{number}", {"n": 3}) for number in range(2500)])
        before = store.cursor()
        with pytest.raises(InvalidInput, match="sliced=True"):
            store.rewind(NS, start)
        assert store.cursor() == before
        assert store.rewind(NS, start, dry_run=True) == holdall.Rewound(2500, 1)
        assert store.rewind(NS, start, sliced=True) == holdall.Rewound(2500, 1)
        assert store.count(NS, filter={"n": 1}) == store.count(NS) == 2500


@pytest.mark.parametrize("kind", ["item", "file"])
def test_a_rewind_of_more_bytes_than_one_transaction_takes_needs_slices(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert versions.MOST_BYTES == 1 << 30
    monkeypatch.setattr(versions, "MOST_BYTES", 1500)
    with holdall.open("memory:", history=3600) as store:
        for key in map("/{}".format, range(16)):
            store.put(NS, key, {"text": "x" * 100}) if kind == "item" else store.files(NS).write(key, "x" * 100)
        start = store.cursor()
        store.delete_tree(NS)
        with pytest.raises(InvalidInput, match="sliced=True"):
            store.rewind(NS, start)
        assert store.count() == 0
        assert store.rewind(NS, start, sliced=True).restored == 16


@pytest.mark.skipif(IS_SHORT, reason="in make test-all: it takes half a minute")
def test_a_rewind_of_100_000_changes_is_one_transaction_and_one_more_is_refused(tmp_path: Path) -> None:
    with open_at(new_location("sqlite", tmp_path), history=3600) as store:
        many = range(100_000)
        store.execute([ops.Put(NS, f"k{number}", {"n": 1}) for number in many])
        start = store.cursor()
        store.execute([ops.Put(NS, f"k{number}", {"n": 2}) for number in many])
        assert store.rewind(NS, start) == holdall.Rewound(100_000, 0)
        store.execute([ops.Put(NS, f"k{number}", {"n": 3}) for number in range(100_001)])
        with pytest.raises(InvalidInput, match="100,000"):
            store.rewind(NS, start)
        assert store.rewind(NS, start, sliced=True) == holdall.Rewound(100_000, 1)
        assert store.count(NS, filter={"n": 1}) == store.count(NS) == 100_000
