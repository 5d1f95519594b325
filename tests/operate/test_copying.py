"""Copying between stores; that every engine can be a source and a destination is in the contract."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

import holdall
from holdall import ops
from holdall.errors import CursorExpired, InvalidInput, Unavailable
from holdall.operate import copying, records
from holdall.testing import Clock
from support.large_contents import leave_out_contents
from support.stores import ENGINES, new_location, open_at


@pytest.fixture
def source(tmp_path: Path) -> holdall.Store:
    return holdall.open(tmp_path / "source.db", durability="relaxed")


@pytest.fixture
def destination(tmp_path: Path) -> holdall.Store:
    return holdall.open(tmp_path / "destination.db", durability="relaxed")


def put_many(store: holdall.Store, count: int, namespace: tuple[str, ...] = ("a",)) -> None:
    store.execute([ops.Put(namespace, f"k{number:05}", {"n": number}) for number in range(count)])


class Killed(Exception):
    pass


def kill_after(pages: int) -> object:
    """Return a progress function that ends a copy after some pages."""
    seen = iter(range(pages))

    def progress(done: int, total: int) -> None:
        if next(seen, None) is None:
            raise Killed

    return progress


def test_a_copy_continues_where_it_was_interrupted_and_writes_nothing_twice(
    source: holdall.Store, destination: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_PAGE", 10)
    put_many(source, 100)
    with pytest.raises(Killed):
        holdall.copy(source, destination, progress=kill_after(3))
    assert destination.count() == 40
    versions = {entry.key: entry.version for entry in destination.scan()}
    source.put(("a",), "k00001", {"n": "changed"})
    source.delete(("a",), "k00002")
    source.put(("b",), "new", {})
    copied = holdall.copy(source, destination, verify=True)
    assert copied.resumed
    assert copied.differences == []
    assert (copied.entries, copied.deletions) == (102, 1)  # k00001 and k00002 were copied before
    kept = [entry for entry in destination.scan() if entry.key in versions and entry.key != "k00001"]
    assert all(entry.version == versions[entry.key] for entry in kept)
    before = destination.cursor()
    assert holdall.copy(source, destination).entries == copied.entries
    assert destination.cursor() == before


def test_a_namespace_can_be_copied_to_another_one(source: holdall.Store, destination: holdall.Store) -> None:
    put_many(source, 3, ("a", "b"))
    source.put(("a", "b", "c"), "below", {})
    source.put(("other",), "x", {})
    holdall.copy(source, destination, prefix=("a", "b"), to=("z",))
    assert [(entry.namespace, entry.key) for entry in destination.scan()] == [
        *((("z",), f"k0000{number}") for number in range(3)),
        (("z", "c"), "below"),
    ]
    assert holdall.compare(source, destination, prefix=("a", "b"), to=("z",)).equal
    source.put(("other",), "y", {})
    assert not holdall.compare(source, destination).equal


def test_a_store_can_be_copied_within_itself_but_not_into_itself(source: holdall.Store) -> None:
    put_many(source, 3)
    assert holdall.copy(source, source, prefix=("a",), to=("copy",)).entries == 3
    for prefix, to in ((("a",), ("a", "b")), ((), ("b",)), (("a",), ("a",))):
        with pytest.raises(InvalidInput, match="beside it"):
            holdall.copy(source, source, prefix=prefix, to=to)


def test_a_scope_is_copied_into_a_scope(source: holdall.Store, destination: holdall.Store) -> None:
    put_many(source, 3, ("a", "b"))
    holdall.copy(source.scoped(("a",)), destination.scoped(("z", "y")))
    assert destination.count(("z", "y", "b")) == 3
    assert holdall.compare(source.scoped(("a",)), destination.scoped(("z", "y"))).equal


def test_entries_of_a_namespace_need_one_in_the_destination(source: holdall.Store, destination: holdall.Store) -> None:
    put_many(source, 1)
    with pytest.raises(InvalidInput, match="pass to="):
        holdall.copy(source, destination, prefix=("a",), to=())


def test_a_second_copy_of_the_same_kind_is_refused(
    source: holdall.Store, destination: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_PAGE", 10)
    put_many(source, 50)
    first = True

    def start_another(done: int, total: int) -> None:
        nonlocal first
        if first:
            first = False
            holdall.copy(source, destination)

    with pytest.raises(Unavailable, match="another process runs the same copy"):
        holdall.copy(source, destination, progress=start_another)
    assert holdall.compare(source, destination).equal


def test_a_copy_that_was_interrupted_for_too_long_can_be_restarted(tmp_path: Path) -> None:
    clock = Clock()
    options = {"clock": clock, "sweep_interval": None, "feed_retention": 60}
    with (
        holdall.open(tmp_path / "s.db", **options) as source,
        holdall.open(tmp_path / "d.db", **options) as destination,
    ):
        put_many(source, 5)
        holdall.copy(source, destination)
        source.delete(("a",), "k00001")
        source.put(("a",), "k00002", {"n": "changed"})
        clock.advance(61)
        source.sweep()
        with pytest.raises(CursorExpired, match="--restart"):
            holdall.copy(source, destination)
        copied = holdall.copy(source, destination, restart=True, verify=True)
        assert copied.differences == []
        assert destination.get(("a",), "k00001") is None


@pytest.mark.parametrize("own", [("a",), (".holdall.threads", "trip")])
def test_a_restarted_copy_leaves_alone_what_was_in_the_destination_before(
    source: holdall.Store, destination: holdall.Store, own: tuple[str, ...]
) -> None:
    destination.put(own, "own", {})
    put_many(source, 3)
    holdall.copy(source, destination)
    holdall.copy(source, destination, restart=True)
    assert destination.get(own, "own") is not None


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "memory"])
def test_a_large_file_is_copied_in_pieces(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 64 MiB; here the contents are left out of the records above 1,000 bytes."""
    with holdall.open(tmp_path / "s.db") as source, open_at(new_location(engine, tmp_path)) as destination:
        files = source.files()
        files.write("/large", bytes(range(256)) * 20)
        files.write("/small", b"s")
        leave_out_contents(source, monkeypatch)
        monkeypatch.setattr(records, "PIECE", 1000)
        holdall.copy(source, destination)
        assert destination.files().read("/large") == files.read("/large")
        monkeypatch.undo()
        assert holdall.compare(source, destination).equal


def test_a_large_file_that_changes_while_it_is_copied_arrives_as_it_is_then(
    source: holdall.Store, destination: holdall.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = source.files()
    files.write("/large", b"old" * 1000)
    leave_out_contents(source, monkeypatch)
    monkeypatch.setattr(records, "PIECE", 1000)
    read, calls = records.read_piece, iter(range(100))

    def change_before_second_piece(*args: object) -> object:
        if next(calls) == 1:
            files.write("/large", b"new!" * 1000)
        return read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(copying, "read_piece", change_before_second_piece)
    assert holdall.copy(source, destination).entries == 1
    assert destination.files().read("/large") == b"new!" * 1000
    monkeypatch.undo()
    assert holdall.compare(source, destination).equal


def test_vectors_are_left_out_if_the_destination_has_another_model(tmp_path: Path) -> None:
    def one(texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.0, float(len(text))] for text in texts]

    def other(texts: list[str]) -> list[list[float]]:
        return [[0.0, 1.0, -float(len(text))] for text in texts]

    with (
        holdall.open(tmp_path / "s.db", embed=one) as source,
        holdall.open(tmp_path / "d.db", embed=other) as destination,
    ):
        source.put(("a",), "k", {"text": "words"})
        destination.put(("b",), "k", {"text": "words"})
        copied = holdall.copy(source, destination)
        assert (copied.vectors, copied.vectors_left_out) == (0, 1)
        assert destination.reindex() == 1


@pytest.mark.timed
def test_follow_goes_on_with_every_change_until_it_is_stopped(
    source: holdall.Store, destination: holdall.Store
) -> None:
    put_many(source, 10)
    stopped = threading.Event()
    results: list[holdall.Copied] = []
    thread = threading.Thread(
        target=lambda: results.append(holdall.copy(source, destination, follow=True, stop=stopped.is_set))
    )
    thread.start()
    for number in range(20):
        source.put(("live",), str(number), {"n": number})
    source.delete(("a",), "k00003")
    deadline = time.monotonic() + 20
    while destination.count() < 29 and time.monotonic() < deadline:
        time.sleep(0.01)
    began = time.perf_counter()
    source.put(("live",), "last", {})
    while destination.get(("live",), "last") is None and time.monotonic() < deadline:
        time.sleep(0.001)
    lag = time.perf_counter() - began
    stopped.set()
    thread.join(timeout=20)
    assert holdall.compare(source, destination).equal
    assert results[0].deletions <= 1  # it may be merged with the put
    assert lag < 1


def test_an_entry_that_expires_soon_keeps_its_expiry(tmp_path: Path) -> None:
    clock = Clock()
    with (
        holdall.open(tmp_path / "s.db", clock=clock) as source,
        holdall.open(tmp_path / "d.db", clock=clock) as destination,
    ):
        source.put(("a",), "short", {}, ttl=10)
        clock.advance(6)
        holdall.copy(source, destination)
        entry = destination.get(("a",), "short")
        assert entry is not None
        assert entry.expires_at == clock.now + timedelta(seconds=4)
        clock.advance(4)
        assert destination.get(("a",), "short") is None


def test_compare_finds_what_differs(source: holdall.Store, destination: holdall.Store) -> None:
    put_many(source, 5)
    holdall.copy(source, destination)
    destination.put(("a",), "k00000", {"n": 0}, ttl=60)
    destination.delete(("a",), "k00001")
    destination.put(("b",), "extra", {})
    destination.execute([ops.Backdate(("a",), "k00002", expires_at=Clock().now + timedelta(days=9999))])
    found = {one.key: one.what for one in holdall.compare(source, destination).differences}
    assert found == {
        "k00000": ("updated_at", "expires_at", "ttl"),
        "k00001": ("only in the first",),
        "k00002": ("expires_at",),
        "extra": ("only in the second",),
    }
    assert len(holdall.compare(source, destination, limit=2).differences) == 2


@pytest.mark.parametrize("arguments", [{"follow": 1}, {"progress": 5}, {"prefix": "a"}, {"stop": True}])
def test_bad_arguments_are_refused(
    source: holdall.Store, destination: holdall.Store, arguments: dict[str, object]
) -> None:
    with pytest.raises(InvalidInput):
        holdall.copy(source, destination, **arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        holdall.copy(source, 5)  # type: ignore[arg-type]
