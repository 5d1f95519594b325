"""Segments that are written again: after an erasure, and when they have grown."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.engines.s3 import Client, S3Engine, bucket, compaction
from holdall.errors import Unavailable
from holdall.testing import embed
from support.bucket_checks import check_caches, engine_of, find_text
from support.extent import IS_SHORT
from support.http_proxy import Fault, HttpProxy
from support.servers import s3_server

_numbers = itertools.count()
SECRET = "xq7sekrit"  # in values, contents, keys, paths and namespaces
NS = ("users", f"alice-{SECRET}")


@pytest.fixture
def url() -> str:
    return f"s3://tests/rewriting{next(_numbers)}"


@pytest.fixture
def objects(url: str) -> Iterator[Client]:
    """The objects of the store."""
    found = s3_server().client(url.removeprefix("s3://tests/") + "/")
    yield found
    found.close()


def open_at(url: str, cache: Path, **options: Any) -> holdall.Store:
    return holdall.open(url, **{**s3_server().options, "cache": cache, "sweep_interval": None, **options})


def fill(store: holdall.Store) -> None:
    """Write the secret everywhere that a store can have it, in the log and in segments."""
    store.put(("users", "bob"), "k", {"text": "stays " * 50})
    for number in range(6):
        store.put(NS, f"key-{SECRET}-{number}", {"text": f"{SECRET} {number} " * 20, "kind": SECRET})
        if number == 3:
            engine_of(store)._compact()
    store.put(NS, f"key-{SECRET}-1", {"text": f"overwritten {SECRET}"})
    store.files(NS).write(f"/{SECRET}.md", f"{SECRET} in a file\n" * 5000)
    store.files(NS).append(f"/{SECRET}.md", f"more {SECRET}\n")
    store.files(("users", "bob")).write("/f", b"bob's\n" * 5000)
    engine_of(store)._compact()
    store.delete(NS, f"key-{SECRET}-2")
    signed = store.acting(f"agent of {SECRET}")  # holdall's own entries have tombstones, too
    with signed.files(NS).open("/stream", "wb") as file, signed.lease(f"work {SECRET}", 30, namespace=NS):
        file.write(SECRET.encode() * 50_000)
    assert store.search(query=SECRET, mode="lexical", limit=50)


def test_what_was_erased_is_in_no_object_and_in_no_file_of_the_cache(url: str, objects: Client, tmp_path: Path) -> None:
    """Bob's entries stay, and a machine that was behind has the same as a new one."""
    with (
        open_at(url, tmp_path / "one", history=86400, embed=embed) as one,
        open_at(url, tmp_path / "two", embed=embed) as two,
    ):
        two.put(("a",), "k", {})
        fill(one)
        [cache] = (tmp_path / "one").rglob("cache-*.db")
        cache.with_name("cache-1.db-wal").write_text(SECRET)  # of an older release
        assert {name.partition("/")[0] for name in find_text(objects, SECRET)} == {"log", "seg", "blob"}
        report = one.erase(NS, recursive=True)
        assert report.entries == 7
        assert "the log, the segments and the contents in the bucket" in report.cleared
        assert any("other machines" in what for what in report.beyond)
        assert find_text(objects, SECRET) == []
        held = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
        assert [path for path in held if SECRET.encode() in path.read_bytes()] == []
        assert two.count(NS) == 0
        assert two.files(("users", "bob")).read("/f") == b"bob's\n" * 5000
        two.put(("a",), "two", {})
        one.put(("a",), "one", {})
        assert one.count() == two.count() == 5
        check_caches(url, tmp_path, engine_of(one), engine_of(two))
    with open_at(url, tmp_path / "one", embed=embed) as one:
        assert one.count() == 5
        one.put(("a",), "later", {})
        check_caches(url, tmp_path, engine_of(one))


def test_an_erasure_that_was_interrupted_is_done_by_the_next(
    url: str, objects: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_at(url, tmp_path) as store:
        fill(store)

        def fail(*_: Any) -> None:
            raise Unavailable("as if the server refused")

        with monkeypatch.context() as broken, pytest.raises(Unavailable, match="as if"):
            broken.setattr(compaction, "purge", fail)
            store.erase(NS, recursive=True)
        assert find_text(objects, SECRET), "this showed nothing"
        store.erase(NS, recursive=True)
        assert find_text(objects, SECRET) == []
        assert store.count() == 2
        check_caches(url, tmp_path, engine_of(store))


def test_an_empty_store_can_be_erased(url: str, tmp_path: Path) -> None:
    with open_at(url, tmp_path) as store:
        assert store.erase(("a",)).entries == 0
        store.put(("a",), "k", {})
        assert store.erase(("a",)).entries == 1
        assert store.count() == 0
        check_caches(url, tmp_path, engine_of(store))


def test_a_write_whose_record_was_erased_before_its_reply_came_is_done_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply was lost, and the next try finds what is left of the record."""
    with open_at(url, tmp_path / "one") as one, open_at(url, tmp_path / "two") as two:
        one.files().append("/log", "first\n")
        create = engine_of(one)._client.create

        def lose_reply(name: str, *rest: Any) -> bool:
            assert create(name, *rest)
            two.erase(("b",))
            monkeypatch.undo()
            return bool(create(name, *rest))

        monkeypatch.setattr(engine_of(one)._client, "create", lose_reply)
        one.files().append("/log", "second\n")
        assert two.files().read_text("/log") == "first\nsecond\n"
        assert one.files().read_text("/log") == "first\nsecond\n"
        check_caches(url, tmp_path, engine_of(one), engine_of(two))


@pytest.mark.skipif(IS_SHORT, reason="in make test-all: it takes ten seconds")
def test_machines_that_write_while_others_erase_lose_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "RECORDS", 8)
    monkeypatch.setattr(compaction, "TIER", 3)
    is_over = threading.Event()
    counts = {"one": 0, "two": 0}

    def write(name: str) -> None:
        with open_at(url, tmp_path / name) as store:
            while not is_over.is_set():
                store.put(("own", name), str(counts[name]), {})
                store.files().append("/log", f"{name} {counts[name]}\n" * 1000)
                counts[name] += 1

    threads = [threading.Thread(target=write, args=(name,)) for name in counts]
    for thread in threads:
        thread.start()
    try:
        with open_at(url, tmp_path / "three") as store:
            for number in range(5):
                store.put(("gone",), str(number), {})
                assert store.erase(("gone",)).entries == 1
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    with open_at(url, tmp_path / "four") as store:
        lines = store.files().read_text("/log").splitlines()
        for name, count in counts.items():
            assert count > 3, "this showed nothing"
            assert store.count(("own", name)) == count
            assert [line for line in lines if line.startswith(name)] == [
                f"{name} {number}" for number in range(count) for _ in range(1000)
            ]
        check_caches(url, tmp_path, engine_of(store))


@pytest.mark.not_short  # they sleep for seconds
@pytest.mark.parametrize("moment", ["before its floor", "before it deletes"])
def test_a_machine_that_sleeps_while_it_erases_deletes_nothing_that_is_used(
    url: str, objects: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Others take its new segments for those of a killed machine, and have segments that it does not know."""
    monkeypatch.setattr(bucket, "COLLECT_AFTER", 0.2)
    monkeypatch.setattr(bucket, "LOOK_AFTER", 0.1)
    monkeypatch.setattr(compaction, "TIER", 2)
    with open_at(url, tmp_path / "one") as one, open_at(url, tmp_path / "two") as two:
        create, purge, slept = engine_of(one)._client.create, compaction.purge, []

        def compact(times: int) -> None:
            for _ in range(times):
                two.put(("a",), str(two.count()), {})
                engine_of(two)._compact()

        def sleep() -> None:
            slept.append(moment)
            time.sleep(1.5)  # times of objects are in whole seconds
            compact(2)
            time.sleep(1.5)

        def create_later(name: str, *rest: Any) -> bool:
            if name.startswith("floor/") and not slept:
                sleep()
            return bool(create(name, *rest))

        def purge_later(*arguments: Any) -> None:
            sleep()
            purge(*arguments)

        one.put(("a",), "0", {})
        one.erase(("b",))
        compact(4)
        levels = [segment.level for segment in engine_of(two)._bucket.floor.segments]
        assert levels == [compaction._WHOLE, 2], "the next two segments would be merged with these"
        with monkeypatch.context() as sleepy:
            if moment == "before its floor":
                sleepy.setattr(engine_of(one)._client, "create", create_later)
                engine_of(one)._rewrite()
            else:
                sleepy.setattr(compaction, "purge", purge_later)
                one.erase(("b",))
        assert slept, "this showed nothing"
        for _ in range(2):  # until the objects that floors replace are deleted
            time.sleep(1.5)
            compact(2)
        floor = engine_of(two)._bucket.find_newest_floor(time.monotonic() + 5)
        held = {name for name, _ in objects.list("seg/", "", time.monotonic() + 5)}
        assert {segment.name for segment in floor.segments} <= held
        assert one.count() == two.count() == 1 + 4 + 2 + 4
        check_caches(url, tmp_path, engine_of(one), engine_of(two))


@pytest.mark.skipif(IS_SHORT, reason="in make test-all: it waits for four seconds")
def test_a_compaction_may_take_longer_than_each_of_its_requests(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the log would only grow where the network is slow."""
    monkeypatch.setattr(compaction, "TIER", 3)
    monkeypatch.setattr(S3Engine, "_patience", 1.5)

    def choose(method: str, path: str) -> Fault:
        return "late" if "/seg/" in path else None

    with (
        HttpProxy(s3_server().port, choose, seconds=0.5) as proxy,
        open_at(url, tmp_path, endpoint=proxy.endpoint) as store,
    ):
        for number in range(3):
            store.put(("a",), str(number), {})
            engine_of(store)._compact()
        assert [segment.level for segment in engine_of(store)._bucket.floor.segments] == [1]
        check_caches(url, tmp_path, engine_of(store))


def test_segments_do_not_grow_without_end(
    url: str, objects: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are too large to be merged are written again when they are twice as large as what is stored."""
    monkeypatch.setattr(compaction, "LARGEST_MERGED", 20_000)
    monkeypatch.setattr(compaction, "_WHOLE_BYTES", 10_000)
    with open_at(url, tmp_path) as store:
        for turn in range(40):
            for key in range(5):
                store.put(("a",), str(key), {"turn": turn, "text": random.randbytes(2000).hex()})
            store.delete(("a",), "0")
            engine_of(store)._compact()
        floor = engine_of(store)._bucket.floor
        assert sum(segment.size for segment in floor.segments) < 60_000
        assert len(floor.segments) < 20
        assert store.count() == 4
        check_caches(url, tmp_path, engine_of(store))
