"""Backups: what they keep, that they are of one moment, and that a damaged one is refused."""

from __future__ import annotations

import os
import random
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall import ops
from holdall.errors import AlreadyExists, Corrupt, FileNotFound, InvalidInput, SchemaTooNew
from holdall.operate import archive, backup
from holdall.testing import Clock, embed
from holdall.testing.contract.records import fill
from support.large_contents import leave_out_contents
from support.stores import ENGINES, new_location, open_at


@pytest.fixture
def store(tmp_path: Path) -> holdall.Store:
    return holdall.open(tmp_path / "store.db", durability="relaxed")


@pytest.fixture
def target(tmp_path: Path) -> holdall.Store:
    return holdall.open(tmp_path / "target.db", durability="relaxed")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_backup_loads_on_every_engine_as_an_equal_store(engine: str, tmp_path: Path) -> None:
    clock = Clock()
    with (
        holdall.open(tmp_path / "s.db", clock=clock, embed=embed) as source,
        open_at(new_location(engine, tmp_path), clock=clock) as first,
        holdall.open(f"memory:{tmp_path.name}", clock=clock) as second,
    ):
        fill(source, clock)
        info = source.backup(tmp_path / "one.backup")
        assert holdall.check_backup(tmp_path / "one.backup") == info
        assert (info.entries, info.files) == (source.stats().entries, source.stats().files)
        first.load(tmp_path / "one.backup")
        assert holdall.compare(source, first).differences == []
        first.backup(tmp_path / "two.backup")
        second.load(tmp_path / "two.backup")
        assert holdall.compare(source, second).differences == []


async def abackup_and_load(store: holdall.Store, target: holdall.Store, path: Path) -> None:
    await store.abackup(path)
    await target.aload(path)


def test_backup_and_load_can_be_awaited(store: holdall.Store, target: holdall.Store, tmp_path: Path) -> None:
    import asyncio

    store.put(("a",), "k", {"n": 1})
    asyncio.run(abackup_and_load(store, target, tmp_path / "x"))
    assert holdall.compare(store, target).equal


def test_every_flip_and_cut_is_refused(store: holdall.Store, target: holdall.Store, tmp_path: Path) -> None:
    store.execute([ops.Put(("a", str(n % 5)), str(n), {"text": f"number {n} " * 20}) for n in range(1000)])
    store.files().write("/f", random.Random(1).randbytes(300_000))
    path, damaged = tmp_path / "good", tmp_path / "damaged"
    store.backup(path)
    good = path.read_bytes()
    choose = random.Random(20)
    for number in range(50):
        data = bytearray(good)
        if number % 5 == 4:
            del data[choose.randrange(len(data)) :]
        else:
            at = choose.randrange(len(data)) if number >= 20 else choose.randrange(200)
            data[at] ^= 1 << choose.randrange(8)
        damaged.write_bytes(data)
        with pytest.raises((Corrupt, SchemaTooNew)):
            target.load(damaged)
        with pytest.raises((Corrupt, SchemaTooNew)):
            holdall.check_backup(damaged)
        assert target.count() == 0
    damaged.write_bytes(good + b"x")
    with pytest.raises(Corrupt, match="follows its end"):
        target.load(damaged)
    target.load(path)
    assert holdall.compare(store, target).equal


def test_blocks_cannot_be_moved_or_left_out(store: holdall.Store, tmp_path: Path) -> None:
    store.execute([ops.Put(("a",), str(n), {"n": n}) for n in range(2000)])
    store.backup(tmp_path / "b")
    data = (tmp_path / "b").read_bytes()
    start, blocks = len(archive.MAGIC) + 2, []
    while start < len(data) - 32:
        size = archive._BLOCK.size + archive._BLOCK.unpack_from(data, start)[2]
        blocks.append(data[start : start + size])
        start += size
    assert len(blocks) > 4
    head, end = data[: len(archive.MAGIC) + 2], data[-32:]
    for wrong in (
        [*blocks[:2], *blocks[3:]],
        [blocks[0], blocks[2], blocks[1], *blocks[3:]],
        [*blocks[:2], *blocks[1:]],
    ):
        (tmp_path / "c").write_bytes(head + b"".join(wrong) + end)
        with pytest.raises(Corrupt):
            holdall.check_backup(tmp_path / "c")


def test_pieces_of_another_size_are_refused_before_anything_is_loaded(
    store: holdall.Store, target: holdall.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.files().write("/large", b"12345" * 1000)
    leave_out_contents(store, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(backup, "PIECE", 1000)
        store.backup(tmp_path / "b")
    with pytest.raises(Corrupt, match="not in order"):
        target.load(tmp_path / "b")
    assert target.count() == 0


def test_other_files_and_newer_formats_are_refused_with_the_reason(store: holdall.Store, tmp_path: Path) -> None:
    path = tmp_path / "b"
    store.backup(path)
    data = bytearray(path.read_bytes())
    data[len(archive.MAGIC)] = archive.FORMAT + 1
    path.write_bytes(data)
    with pytest.raises(SchemaTooNew, match="newer holdall"):
        store.load(path)
    path.write_bytes(b"SQLite format 3\x00" * 10)
    with pytest.raises(Corrupt, match="not a backup of holdall"):
        store.load(path)
    with pytest.raises(FileNotFound):
        store.load(tmp_path / "nothing")
    with pytest.raises(InvalidInput, match="folder"):
        store.backup(tmp_path)


def test_a_device_is_not_replaced_and_a_link_stays_one(store: holdall.Store, tmp_path: Path) -> None:
    store.put(("a",), "k", {})
    pipe, link = tmp_path / "pipe", tmp_path / "link"  # as /dev/null is no regular file
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "all.backup")
    for call in (store.backup, partial(store.export_entries, format="jsonl")):
        with pytest.raises(InvalidInput, match="no regular file"):
            call(pipe)
        assert pipe.is_fifo()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InvalidInput, match="a link to itself"):
        store.backup(tmp_path / "loop")
    for _ in range(2):
        store.backup(link)
        assert link.is_symlink()
    assert holdall.check_backup(tmp_path / "all.backup").entries == 1


@pytest.mark.parametrize("path", [5, None, b"x", "", "a\x00b", Path(), Path("/no/such/folder/x.jsonl")], ids=repr)
def test_a_path_that_cannot_be_used_is_refused(store: holdall.Store, path: Any) -> None:
    calls: list[Any] = [store.backup, store.load, holdall.check_backup]
    if isinstance(path, str | Path):  # others are taken for open files
        calls += [partial(store.export_entries, format="jsonl"), partial(store.import_entries, format="jsonl")]
        calls += [partial(store.import_entries, format="parquet")]
    for call in calls:
        with pytest.raises((InvalidInput, FileNotFound)):
            call(path)


def test_a_store_that_is_not_empty_is_refused(store: holdall.Store, target: holdall.Store, tmp_path: Path) -> None:
    store.put(("a",), "both", {"from": "backup"})
    store.backup(tmp_path / "b")
    target.put(("a",), "both", {"from": "target"})
    target.put(("z",), "own", {})
    with pytest.raises(AlreadyExists, match="--into"):
        target.load(tmp_path / "b")
    target.load(tmp_path / "b", into=True)
    assert [entry.key for entry in target.scan()] == ["both", "own"]
    target.load(tmp_path / "b", replace=True)
    assert holdall.compare(store, target).equal
    with pytest.raises(InvalidInput):
        target.load(tmp_path / "b", replace=True, into=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_hidden_namespaces_are_no_empty_store_and_are_replaced(engine: str, tmp_path: Path) -> None:
    threads = (".holdall.threads", "trip")
    with open_at(new_location("memory", tmp_path)) as store, open_at(new_location(engine, tmp_path)) as target:
        store.put(("notes",), "k", {})
        store.backup(tmp_path / "all.backup")
        target.put(threads, "checkpoint", {})
        with pytest.raises(AlreadyExists):
            target.load(tmp_path / "all.backup")
        target.load(tmp_path / "all.backup", replace=True)
        assert target.get(threads, "checkpoint") is None
        assert holdall.compare(store, target).equal


def test_a_load_does_not_delete_what_the_backup_never_had(
    store: holdall.Store, target: holdall.Store, tmp_path: Path
) -> None:
    store.put(("a",), "k", {})
    store.delete(("a",), "k")
    store.put(("a",), "other", {})
    store.backup(tmp_path / "b")
    target.put(("a",), "k", {})
    target.load(tmp_path / "b", into=True)
    assert target.get(("a",), "k") is not None


def test_a_namespace_is_backed_up_and_loaded_elsewhere(
    store: holdall.Store, target: holdall.Store, tmp_path: Path
) -> None:
    store.put(("users", "ada"), "k", {"n": 1})
    store.put(("users", "bob"), "k", {"n": 2})
    assert store.backup(tmp_path / "b", prefix=("users", "ada")).entries == 1
    target.load(tmp_path / "b")
    assert [entry.namespace for entry in target.scan()] == [("users", "ada")]
    target.load(tmp_path / "b", to=("copy",))
    assert holdall.compare(store, target, prefix=("users", "ada"), to=("copy",)).equal
    store.scoped(("users",)).backup(tmp_path / "c")
    target.scoped(("tenant",)).load(tmp_path / "c")
    assert holdall.compare(store.scoped(("users",)), target.scoped(("tenant",))).equal


@pytest.mark.parametrize("engine", ENGINES)
def test_a_backup_is_of_one_moment_while_others_write(engine: str, tmp_path: Path) -> None:
    """Each writer moves amounts between two entries in one transaction, so at each moment the sum is the same."""
    with open_at(new_location(engine, tmp_path)) as store:
        pairs = 200
        store.execute([ops.Put(("a",), f"{side}{n}", {"n": 0}) for n in range(pairs) for side in "xy"])
        stopped = threading.Event()

        def write(seed: int) -> None:
            choose = random.Random(seed)
            while not stopped.is_set():
                n, amount = choose.randrange(pairs), choose.randrange(-9, 10)
                store.execute([ops.Put(("a",), f"x{n}", {"n": amount}), ops.Put(("a",), f"y{n}", {"n": -amount})])

        threads = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        try:
            for number in range(3):
                store.backup(tmp_path / f"b{number}")
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
    for number in range(3):
        with holdall.open(f"memory:{tmp_path.name}{number}") as loaded:
            loaded.load(tmp_path / f"b{number}")
            values = {entry.key: entry.value["n"] for entry in loaded.scan()}
            assert len(values) == 2 * pairs
            assert all(values[f"x{n}"] == -values[f"y{n}"] for n in range(pairs))


def test_an_interrupted_load_continues(
    store: holdall.Store, target: holdall.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.execute([ops.Put(("a",), f"{n:04}", {"n": n}) for n in range(2000)])
    store.backup(tmp_path / "b")

    class Killed(Exception):
        pass

    def kill(done: int, total: int) -> None:
        if done >= 1000:
            raise Killed

    with pytest.raises(Killed):
        target.load(tmp_path / "b", progress=kill)
    versions = {entry.key: entry.version for entry in target.scan()}
    assert len(versions) == 1000
    loaded = target.load(tmp_path / "b")
    assert loaded.resumed
    assert holdall.compare(store, target).equal
    assert all(entry.version == versions.get(entry.key, entry.version) for entry in target.scan())
    with pytest.raises(AlreadyExists):
        target.load(tmp_path / "b")


def test_large_files_are_in_pieces_and_one_that_changes_meanwhile_comes_again(
    store: holdall.Store, target: holdall.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = store.files()
    files.write("/large", b"old" * 1000)
    files.write("/steady", b"12345" * 1000)
    leave_out_contents(store, monkeypatch)
    for module in (backup, holdall.operate.records):
        monkeypatch.setattr(module, "PIECE", 1000)
    read, calls = backup.read_piece, iter(range(100))

    def change_before_second_piece(*args: object) -> object:
        if next(calls) == 1:
            files.write("/large", b"new!" * 1000)
        return read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(backup, "read_piece", change_before_second_piece)
    store.backup(tmp_path / "b")
    target.load(tmp_path / "b")
    assert target.files().read("/large") == b"new!" * 1000
    assert target.files().read("/steady") == b"12345" * 1000


def test_a_backup_that_fails_leaves_the_earlier_one(store: holdall.Store, tmp_path: Path) -> None:
    store.put(("a",), "k", {})
    store.backup(tmp_path / "b")
    before = (tmp_path / "b").read_bytes()

    def fail(done: int, total: int) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        store.backup(tmp_path / "b", progress=fail)
    assert (tmp_path / "b").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


_FILE: dict[str, Any] = {"key": "/k", "value": "{}", "size": 3, "content": b"123"}


@pytest.mark.parametrize(
    "fields",
    [
        {"namespace": ("__holdall__", "tokens")},
        {"key": ""},
        {"value": "[1]"},
        {"value": '{"a": NaN}'},
        {"value": '{"a": "\\ud800"}'},
        {"value": f'{{"a": {"[" * 5000}{"]" * 5000}}}'},
        {"created": 2**62},
        {"updated": -(2**62)},
        {"expires": 2**63 - 1},
        {"changed": 2**62},
        {"ttl": 2**62},
        {"ttl": -1},
        {"search_fields": "tea"},
        {"search_fields": "[1]"},
        {"search_fields": '{"a": 1}'},
        {"acting": "tea"},
        {"acting": '{"author": 5}'},
        {"acting": '{"reason": "none"}'},
        {"vectors": ops.Vectors(1, (b"123",))},
        {"vectors": ops.Vectors(1, (b"",))},
        {**_FILE, "size": 5},
        {**_FILE, "value": None},
        {**_FILE, "value": '{"n": 1}'},
        {**_FILE, "value": '{"content": ["text"]}'},
        {**_FILE, "key": "k"},
        {**_FILE, "key": "/a/../../k"},
        {**_FILE, "key": "/a/"},
    ],
    ids=lambda fields: repr(fields)[:60],
)
def test_a_record_that_is_not_valid_is_refused(fields: dict[str, Any], tmp_path: Path, target: holdall.Store) -> None:
    """An archive with right checksums that something else wrote."""
    record = ops.Record(**{"namespace": ("a",), "key": "k", "version": 1, "kind": "put", "value": "{}", **fields})
    with (tmp_path / "b").open("wb") as file:
        writer = archive.ArchiveWriter(file)
        writer.write_header({"prefix": [], "created": "2026-01-01T00:00:00+00:00", "holdall": "1"})
        writer.add([record])
        writer.finish({"entries": 1, "deletions": 0, "files": 0, "vectors": 0})
    with pytest.raises(Corrupt, match="nothing of it was loaded: the record"):
        target.load(tmp_path / "b")
    assert target.count() == 0


def test_an_entry_that_is_deleted_and_written_again_while_the_backup_runs_is_loaded(
    store: holdall.Store, target: holdall.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "_PAGE", 2)
    store.execute([ops.Put(("a",), str(n), {"n": n}) for n in range(8)])
    calls = iter(range(100))

    def change(done: int, total: int) -> None:
        number = next(calls)
        if number == 0:
            store.delete(("a",), "1")
            store.execute([ops.Put(("b",), str(n), {}) for n in range(6)])
        elif number == 5:  # the page with the deletion was read
            store.put(("a",), "1", {"n": "again"})

    store.backup(tmp_path / "b", progress=change)
    target.load(tmp_path / "b")
    assert holdall.compare(store, target).equal


def list_boundaries(data: bytes) -> list[int]:
    """Return where each part of an archive ends: its beginning, and the header and data of each block."""
    ends = [0, len(archive.MAGIC), len(archive.MAGIC) + 2]
    while ends[-1] < len(data) - 32:
        block = ends[-1] + archive._BLOCK.size
        ends += [block, block + archive._BLOCK.unpack_from(data, ends[-1])[2]]
    return ends


def test_an_archive_that_is_cut_at_any_boundary_is_refused(tmp_path: Path) -> None:
    with holdall.open(tmp_path / "kept.db", history=3600) as store, holdall.open("memory:", history=3600) as target:
        for number in range(300):
            store.put(("a",), str(number % 50), {"n": number})
        store.files().write("/f", random.Random(1).randbytes(50_000))
        path, cut = tmp_path / "whole", tmp_path / "cut"
        assert store.backup(path).versions == 250
        data = path.read_bytes()
        ends = list_boundaries(data)
        assert ends[-1] == len(data) - 32
        places = {place for end in ends for place in (end - 1, end, end + 1)}
        for place in sorted(place for place in places if 0 <= place < len(data)):
            cut.write_bytes(data[:place])
            for refused in (holdall.check_backup, target.load):
                with pytest.raises(Corrupt):
                    refused(cut)
        assert target.count() == 0
        target.load(path)
        assert holdall.compare(store, target).equal


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_erased_while_a_backup_runs_is_not_loaded_from_it(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletions are erased, too, so the backup begins again."""
    monkeypatch.setattr(backup, "_PAGE", 20)
    with (
        open_at(new_location(engine, tmp_path), history=3600) as store,
        holdall.open("memory:", history=3600) as target,
    ):
        for name in ("ada", "bob"):
            for number in range(60):
                store.put(("users", name), str(number % 30), {"n": number})
        calls = iter(range(100))

        def erase(done: int, total: int) -> None:
            if next(calls) == 1:
                store.erase(("users", "ada"))

        store.backup(tmp_path / "b", progress=erase)
        target.load(tmp_path / "b")
        assert holdall.compare(store, target).equal
        assert target.count(("users", "ada")) == 0
        assert target.count(("users", "bob")) == 30
        assert target.history(("users", "ada"), "0") == []
