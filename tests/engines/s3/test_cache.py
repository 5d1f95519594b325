"""The cache of a bucket: how it is built, and what may happen to its folder."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdall
from holdall.engines.s3 import Client, bucket, compaction, contents
from holdall.engines.s3.contents import parse_reference
from holdall.engines.s3.effects import Effects, read_position
from holdall.engines.s3.engine import S3Engine
from holdall.engines.s3.objects import Floor, is_blob, log_name
from holdall.errors import Corrupt, InvalidInput, Unavailable
from holdall.ops import Delete, Put
from support.bucket_checks import check_caches, engine_of
from support.http_proxy import Fault, HttpProxy
from support.machines import make_engine
from support.processes import report, run, start
from support.servers import s3_credentials, s3_server

_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    return f"s3://tests/cache{next(_numbers)}"


def open_at(url: str, cache: Path, **options: Any) -> holdall.Store:
    return holdall.open(url, **{**s3_server().options, "cache": cache, "sweep_interval": None, **options})


def open_process(url: str, cache: Path) -> holdall.Store:
    """Open a store as another process on the same cache does. With one URL, stores of a process share an engine."""
    return holdall.open(lambda options: make_engine(url, options, cache), sweep_interval=None)


# Building it ---------------------------------------------------------------------------------------------------------


@pytest.mark.not_short  # 8 s
def test_of_several_segments_the_newest_state_of_each_key_is_in_the_cache(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that were changed, deleted and written again, with vectors and contents, in parts of a few bytes."""
    monkeypatch.setattr(compaction, "_PART", 100)

    def embed(texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), 1.0] for text in texts]

    with open_at(url, tmp_path / "one", embed=embed) as store:
        for turn in range(6):
            store.execute([Put(("a",), str(key), {"text": f"{turn} {key}"}) for key in range(turn, 20)])
            store.execute([Delete(("a",), str(key)) for key in range(turn, 20, 5)])
            store.files().write(f"/{turn % 2}", bytes([turn]) * 20_000)
            store.put(("b",), "vector", {"text": "x" * turn})
            engine_of(store)._compact()
        assert len(engine_of(store)._bucket.floor.segments) == 6
        check_caches(url, tmp_path, engine_of(store))
    with open_at(url, tmp_path / "two", embed=embed) as store:
        assert store.files().read("/1") == b"\x05" * 20_000
        assert [hit.key for hit in store.search(("a",), query="5 7", limit=1)] == ["7"]


@pytest.mark.timed
def test_a_cache_may_take_longer_to_build_than_the_timeout(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a machine with a slow network could never begin. A write that has waited for it has time left."""
    monkeypatch.setattr(compaction, "_AT_ONCE", 1)
    with open_at(url, tmp_path / "one") as store:
        for number in range(6):
            store.put(("a",), str(number), {})
            engine_of(store)._compact()

    def choose(method: str, path: str) -> Fault:
        return "late" if "/seg/" in path or (method == "PUT" and "/log/" in path) else None

    with HttpProxy(s3_server().port, choose, seconds=0.3) as proxy:
        began = time.monotonic()
        store = open_at(url, tmp_path / "two", endpoint=proxy.endpoint, timeout=0.8)
        assert store.put(("a",), "more", {}).version == 7  # the first call opens it
        assert time.monotonic() - began > 1.5, "this showed nothing"
        assert store.count() == 7
        store.close()


def load_and_die(url: str, endpoint: str, cache: str) -> None:
    """Open a store; be killed when most of its cache is written."""

    def die(self: S3Engine, effects: Effects) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    S3Engine._obey_history = die  # type: ignore[method-assign]  # in a process of its own
    options: dict[str, Any] = {"endpoint": endpoint, "cache": cache, "credentials": s3_credentials}
    holdall.open(url, **options).count()


def test_a_cache_whose_builder_was_killed_is_built_by_the_next(url: str, tmp_path: Path) -> None:
    with open_at(url, tmp_path / "one") as store:
        store.execute([Put(("a",), str(number), {"text": "x" * 5000}) for number in range(2000)])
        engine_of(store)._compact()
    process = start(load_and_die, url=url, endpoint=s3_server().endpoint, cache=str(tmp_path / "two"))
    while process.code is None:
        time.sleep(0.01)
    process.kill()
    [folder] = (tmp_path / "two").iterdir()
    [built] = [path for path in folder.iterdir() if path.name.endswith("-new")]  # a part is not taken for all
    assert built.stat().st_size > 100_000, "this showed nothing"
    assert not (folder / built.name.removesuffix("-new")).exists()
    with open_at(url, tmp_path / "two") as store:
        assert store.count() == 2000
        assert not [path for path in folder.iterdir() if path.name.endswith("-new")]
        check_caches(url, tmp_path, engine_of(store))


@pytest.mark.not_short  # 12 MB, so that SQLite writes some of it
def test_a_cache_whose_segments_are_erased_while_it_is_built_is_whole(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of them is rolled back. It is more than SQLite keeps in memory."""
    with open_at(url, tmp_path / "one") as one:
        one.execute([Put(("a",), str(number), {"text": "x" * 5000}) for number in range(2500)])
        engine_of(one)._compact()
        read = compaction.SegmentReader.read

        def read_and_lose(reader: compaction.SegmentReader) -> Iterator[Any]:
            yield from read(reader)
            monkeypatch.undo()
            one.put(("a",), "later", {})
            engine_of(one)._compact()
            raise Corrupt("as if a segment of the floor before had been erased")

        monkeypatch.setattr(compaction.SegmentReader, "read", read_and_lose)
        with open_at(url, tmp_path / "two") as two:
            assert two.count() == 2501
            with contextlib.closing(apsw.Connection(engine_of(two)._path)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def measure_opening(url: str, endpoint: str, cache: str) -> None:
    import resource

    options: dict[str, Any] = {"endpoint": endpoint, "credentials": s3_credentials, "sweep_interval": None}
    with holdall.open(f"{url}-other", cache=cache, **options) as store:
        store.count()  # loads the modules
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with holdall.open(url, cache=cache, **options) as store:
        assert store.get(("a",), "7") is not None
        report((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)


@pytest.mark.not_short
def test_a_cold_start_needs_memory_for_parts_of_segments_only(url: str, tmp_path: Path) -> None:
    """200 MB in segments, which do not compress well."""
    dice = random.Random(1)
    with open_at(url, tmp_path / "one") as store:
        for start_at in range(0, 10_000, 500):
            store.execute(
                [
                    Put(("a",), str(key), {"text": dice.randbytes(10_000).hex()})
                    for key in range(start_at, start_at + 500)
                ]
            )
        engine_of(store)._compact()
        assert sum(segment.size for segment in engine_of(store)._bucket.floor.segments) > 50 << 20
    [megabytes] = run(
        measure_opening, deadline=120, url=url, endpoint=s3_server().endpoint, cache=str(tmp_path / "two")
    )
    assert megabytes < 250


# Its folder ----------------------------------------------------------------------------------------------------------


def test_a_cache_that_is_ahead_of_a_restored_bucket_is_built_again(url: str, tmp_path: Path) -> None:
    """Otherwise it would write after a gap, where no other machine looks."""
    objects = s3_server().client(url.removeprefix("s3://tests/") + "/")
    with open_at(url, tmp_path / "one") as store:
        for number in range(5):
            store.put(("a",), str(number), {})
    deadline = time.monotonic() + 5
    for seq in (4, 5):
        objects.delete(log_name(seq), deadline)
    objects.close()
    with open_at(url, tmp_path / "one") as one, open_at(url, tmp_path / "two") as two:
        assert [entry.key for entry in one.scan()] == ["0", "1", "2"]
        one.put(("a",), "one", {})
        two.put(("a",), "two", {})
        assert [entry.key for entry in two.scan()] == ["0", "1", "2", "one", "two"]
        check_caches(url, tmp_path, engine_of(one), engine_of(two))


def test_a_cache_that_went_another_way_than_the_bucket_is_built_again(url: str, tmp_path: Path) -> None:
    objects = s3_server().client(url.removeprefix("s3://tests/") + "/")
    with open_at(url, tmp_path / "one") as store:
        store.put(("a",), "both", {})
        store.put(("a",), "one", {})
    objects.delete(log_name(2), time.monotonic() + 5)
    objects.close()
    with open_at(url, tmp_path / "two") as store:
        store.put(("a",), "two", {})
    with open_at(url, tmp_path / "one") as store:
        assert [entry.key for entry in store.scan()] == ["both", "two"]
        check_caches(url, tmp_path, engine_of(store))


def copy_objects(source: Client, target: Client) -> None:
    """Have one prefix be as the other is, as a restored backup is."""
    deadline = time.monotonic() + 20
    for client in (target, source):
        after = ""
        while page := client.list("", after, deadline):
            for name, _ in page:
                if client is target:
                    target.delete(name, deadline)
                else:
                    target.put(name, source.get(name, deadline) or b"", deadline)
            after = page[-1][0]


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("others", [0, 2, 9])
def test_a_cache_of_a_bucket_that_was_restored_has_what_the_bucket_has(
    url: str, tmp_path: Path, compacts: bool, is_reopened: bool, others: int
) -> None:
    """The backup is older than the cache. Others may have written since, and compacted. The cache may be a new one."""
    objects, backup = (s3_server().client(f"{url.removeprefix('s3://tests/')}{end}/") for end in ("", "-backup"))

    def compact(store: holdall.Store) -> None:
        if compacts:
            engine_of(store)._compact()

    with open_at(url, tmp_path / "one") as one:
        one.put(("a",), "kept", {})
        compact(one)
        copy_objects(objects, backup)
        for number in range(5):
            one.put(("a",), f"lost{number}", {})
        compact(one)
    if is_reopened:  # a cache that was built from a floor
        shutil.rmtree(tmp_path / "one")
        with open_at(url, tmp_path / "one") as one:
            assert one.count() == 6
    copy_objects(backup, objects)
    with open_at(url, tmp_path / "two") as two:
        for number in range(others):
            two.put(("a",), f"new{number}", {})
        compact(two)
        with open_at(url, tmp_path / "one") as one:
            assert [entry.key for entry in one.scan(("a",))] == ["kept", *(f"new{number}" for number in range(others))]
            one.put(("a",), "one", {})
            two.put(("a",), "two", {})
            assert one.count() == two.count() == others + 3
            check_caches(url, tmp_path, engine_of(one), engine_of(two))
    objects.close()
    backup.close()


# Several processes ----------------------------------------------------------------------------------------------------


def test_a_cache_that_another_process_has_brought_on_does_not_go_back(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes find that the cache is too old, and one is faster. Its reads rely on what it has found."""
    with open_process(url, tmp_path) as one, open_process(url, tmp_path) as two:
        one.put(("a",), "0", {})
        two.get(("a",), "0")
        engine_of(one)._compact()
        has_log_since, load, seqs = engine_of(two)._bucket.has_log_since, compaction.load, []

        answers = iter([False, False])  # the first has it look again, with the right to change the cache

        def lose_log(*rest: Any) -> bool:
            answer = next(answers, None)
            if answer is None:
                return bool(has_log_since(*rest))
            one.put(("a",), "1", {})
            seqs.append(read_position(engine_of(one)._writer).seq)
            return answer

        def load_and_look(*rest: Any) -> None:
            load(*rest)
            seqs.append(read_position(engine_of(one)._writer).seq)

        monkeypatch.setattr(engine_of(two)._bucket, "has_log_since", lose_log)
        monkeypatch.setattr(compaction, "load", load_and_look)
        assert two.count() == 2
        assert len(seqs) == 3, "this showed nothing"
        assert seqs == sorted(seqs), "it went back"
        check_caches(url, tmp_path, engine_of(one), engine_of(two))


def test_processes_that_find_a_damaged_cache_at_once_build_one_that_stays(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_at(url, tmp_path) as store:
        store.put(("a",), "k", {})
        Path(engine_of(store)._path + "-damaged").touch()
    remove, callers, has_opened = S3Engine._remove_cache, threading.Barrier(2), threading.Event()

    def remove_late(engine: S3Engine) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # there is no second caller
            if callers.wait(1) == 1:
                has_opened.wait(5)
        remove(engine)

    def use(number: int) -> None:
        with open_process(url, tmp_path) as store:
            store.put(("b",), str(number), {})
            has_opened.set()
            has_both.wait(10)
            assert store.count() == 3

    has_both = threading.Barrier(2)
    monkeypatch.setattr(S3Engine, "_remove_cache", remove_late)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(use, range(2)))


def test_a_process_that_has_not_written_for_long_waits_for_another_one(url: str, tmp_path: Path) -> None:
    """Its timeout counts from the read, not from its last write."""
    with open_at(url, tmp_path / "one", timeout=2) as one, open_at(url, tmp_path / "two") as two:
        one.put(("a",), "0", {})
        time.sleep(2.1)
        two.put(("a",), "1", {})
        other = apsw.Connection(engine_of(one)._path)
        other.execute("BEGIN IMMEDIATE")
        end = threading.Timer(0.3, other.close, [True])
        end.start()
        assert one.count() == 2
        end.join()


def test_times_do_not_go_back_between_processes(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each knows the time of the server to a second or so."""
    with open_process(url, tmp_path) as one, open_process(url, tmp_path) as two:
        two.put(("a",), "0", {})
        clock = engine_of(one)._client.clock
        now = clock.now
        monkeypatch.setattr(clock, "now", lambda: now() + 5)
        first = one.put(("a",), "1", {})
        assert two.put(("a",), "2", {}).updated_at >= first.updated_at


@pytest.mark.parametrize("blob", ["../../x", "0000000001-00000000000000zz", "", "0000000001-0000000000000000/../x"])
def test_a_reference_that_is_no_name_of_a_blob_is_damage(blob: str) -> None:
    """It names a file of the cache, too, and must not lead to one elsewhere."""
    with pytest.raises(Corrupt, match="damaged"):
        parse_reference(f"{blob}:0:1")


def test_objects_of_others_below_the_prefix_are_left_alone(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another store whose prefix begins with that of this one, and files of other programs."""
    monkeypatch.setattr(compaction, "TIER", 2)
    monkeypatch.setattr(bucket, "COLLECT_AFTER", 0.0)
    objects = s3_server().client(url.removeprefix("s3://tests/") + "/")
    inner = [f"{url}/blob/0", f"{url}/seg/inner"]
    theirs = ["blob/0000000001", "blob/0000000001.png", "seg/0000000001-0000000002", "seg/notes.txt"]
    for name in theirs:
        objects.put(name, b"theirs", time.monotonic() + 5)
    for number, one in enumerate(inner):
        with open_at(one, tmp_path / f"inner{number}") as store:
            store.put(("a",), "k", {})
            store.files().write("/f", b"x" * 20_000)
    with open_at(url, tmp_path / "outer") as store:
        for number in range(6):
            store.files().write("/f", bytes([number]) * 20_000)
            engine_of(store)._compact()
            time.sleep(0.3)
        blobs = [name for name, _ in objects.list("blob/", "blob/0000000001-", time.monotonic() + 5)]
        assert sum(1 for name in blobs if is_blob(name)) < 6, "nothing was collected: this showed nothing"
    for name in theirs:
        assert objects.get(name, time.monotonic() + 5) == b"theirs", name
    objects.close()
    for number, one in enumerate(inner):
        with open_at(one, tmp_path / f"again{number}") as store:
            assert store.count() == 2
            assert store.files().read("/f") == b"x" * 20_000


def test_the_log_below_a_floor_whose_compactor_slept_stays_for_its_time(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor's own time is from before the sleep. Machines that do not know it yet rely on its log."""
    objects = s3_server().client(url.removeprefix("s3://tests/") + "/")
    with open_at(url, tmp_path) as store:
        store.put(("a",), "k", {})

        def make_old(number: int, upto: int, t: int, *rest: Any) -> Floor:
            return Floor(number, upto, t - int(2e6 * bucket.COLLECT_AFTER), *rest)

        with monkeypatch.context() as asleep:
            asleep.setattr(compaction, "Floor", make_old)
            engine_of(store)._compact()
        for number in range(3):
            store.put(("a",), str(number), {})
            engine_of(store)._compact()
        assert engine_of(store)._bucket.floor.number == 4
        assert objects.get(log_name(1), time.monotonic() + 5) is not None
    objects.close()


@pytest.mark.parametrize("first", ["read", "write", "delete"])
@pytest.mark.parametrize("floors", [2, 6])
def test_a_cache_whose_log_was_collected_while_it_was_closed_is_built_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, floors: int
) -> None:
    """Otherwise its next slot seems to be free: reads would be old, and a write would be lost."""
    monkeypatch.setattr(bucket, "COLLECT_AFTER", 0.0)
    with open_at(url, tmp_path / "one") as one:
        one.put(("a",), "k", {"n": -1})
    with open_at(url, tmp_path / "two") as two:
        for number in range(floors):
            two.put(("a",), "k", {"n": number})
            engine_of(two)._compact()
        assert engine_of(two)._bucket.read(2, time.monotonic() + 5) is None, "this showed nothing"
        with open_at(url, tmp_path / "one") as one:
            if first == "write":
                assert one.put(("a",), "new", {}).version == floors + 2
            elif first == "delete":
                assert one.delete(("a",), "k")
            found = one.get(("a",), "k")
            assert (found.value if found else None) == (None if first == "delete" else {"n": floors - 1})
            assert [entry.key for entry in two.scan()] == [entry.key for entry in one.scan()]
            check_caches(url, tmp_path, engine_of(one), engine_of(two))


def test_a_folder_that_is_deleted_while_it_is_open_loses_nothing(url: str, tmp_path: Path) -> None:
    acknowledged = []
    with open_at(url, tmp_path / "cache") as store:
        store.put(("a",), "before", {})
        store.files().write("/f", b"x" * 20_000)
        shutil.rmtree(tmp_path / "cache")
        with pytest.raises(Unavailable, match="was deleted, moved or replaced while it was open"):
            for number in range(1000):
                store.put(("a",), str(number), {})
                acknowledged.append(str(number))
                time.sleep(0.001)
    with open_at(url, tmp_path / "cache") as store:
        found = [entry.key for entry in store.scan(("a",))]
        assert sorted(found) == sorted(["before", *acknowledged])
        assert store.files().read("/f") == b"x" * 20_000
        store.put(("a",), "after", {})
        check_caches(url, tmp_path, engine_of(store))


def test_a_folder_that_cannot_be_created_is_unavailable(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot create the folder"), open_at(url, tmp_path / "file") as store:
        store.put(("a",), "k", {})
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # as in a container with a user of its own
    with pytest.raises(InvalidInput, match="pass cache="):
        holdall.open(url, **s3_server().options)


def test_contents_of_many_short_processes_stay_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MOST_BYTES", 80_000)
    random.seed(7)
    for number in range(400):
        one = contents.Contents(tmp_path, None, 1)  # type: ignore[arg-type]  # it sends nothing
        one.keep(contents.Reference(f"{number:010d}-{0:016x}", 0, 1000), b"x" * 1000)
    assert 70_000 <= sum(path.stat().st_size for path in tmp_path.iterdir()) <= 120_000


@pytest.mark.parametrize("prefix", ["a b+c", "ü/日本", "%41&=", "it's (one)!*", "~x;y,z:w"])
def test_a_prefix_may_have_any_characters(
    prefix: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "TIER", 2)
    monkeypatch.setattr(bucket, "COLLECT_AFTER", 0.0)
    where = f"{url}/{prefix}"
    with open_at(where, tmp_path / "one") as store:
        for number in range(4):
            store.put(("a",), str(number), {})
            store.files().write("/f", bytes([number]) * 20_000)
            engine_of(store)._compact()
        names = [name for name, _ in engine_of(store)._client.list("blob/", "", time.monotonic() + 5)]
        assert len(names) < 4, "blobs that nothing refers to were not found in the list"
    with open_at(where, tmp_path / "two") as store:
        assert store.count() == 5
        assert store.files().read("/f") == b"\x03" * 20_000


# Everything at random ------------------------------------------------------------------------------------------------


def test_machines_that_do_anything_in_any_order_have_the_same_store(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scaled: Callable[[int, int], int]
) -> None:
    """Also slots are burned, logs compacted and collected, caches deleted and copied, and machines restarted."""
    monkeypatch.setattr(compaction, "TIER", 3)
    monkeypatch.setattr(compaction, "RECORDS", 10)
    monkeypatch.setattr(bucket, "COLLECT_AFTER", 0.2)
    monkeypatch.setattr(bucket, "LOOK_AFTER", 0.05)
    seed = random.randrange(1 << 30)
    print("seed", seed)
    dice = random.Random(seed)
    objects = s3_server().client(url.removeprefix("s3://tests/") + "/")
    names = ("one", "two", "three")
    machines = {name: open_at(url, tmp_path / name) for name in names}
    items: dict[str, Any] = {}
    files: dict[str, bytes] = {}

    def put(store: holdall.Store, key: str) -> None:
        items[key] = {"n": dice.random()}
        store.put(("a",), key, items[key])

    def delete(store: holdall.Store, key: str) -> None:
        items.pop(key, None)
        store.delete(("a",), key)

    def write(store: holdall.Store, key: str) -> None:
        files[f"/{key}"] = dice.randbytes(dice.choice([10, 9_000]))
        store.files().write(f"/{key}", files[f"/{key}"])

    def append(store: holdall.Store, key: str) -> None:
        data = dice.randbytes(dice.choice([10, 9_000]))
        files[f"/{key}"] = files.get(f"/{key}", b"") + data
        store.files().append(f"/{key}", data)

    def copy(store: holdall.Store, key: str) -> None:
        if f"/{key}" in files:
            files["/copy"] = files[f"/{key}"]
            store.files().delete("/copy")
            store.files().copy(f"/{key}", "/copy")

    def remove(store: holdall.Store, key: str) -> None:
        store.files().delete(f"/{key}")
        files.pop(f"/{key}", None)

    def read(store: holdall.Store, key: str) -> None:
        found = store.get(("a",), key)
        assert (found.value if found else None) == items.get(key)
        if f"/{key}" in files:
            assert store.files().read(f"/{key}") == files[f"/{key}"]

    def burn(store: holdall.Store, key: str) -> None:
        store.count()
        seq = engine_of(store)._writer.execute("SELECT seq FROM holdall_bucket").fetchall()[0][0]
        objects.create(log_name(seq + 1), dice.choice([b"", b"torn"]), time.monotonic() + 5)

    def compact(store: holdall.Store, key: str) -> None:
        engine_of(store)._compact()

    def sleep(store: holdall.Store, key: str) -> None:
        time.sleep(0.1)

    def restart(store: holdall.Store, key: str) -> None:
        name = next(name for name in names if machines[name] is store)
        store.close()
        match dice.randrange(4):
            case 0:
                shutil.rmtree(tmp_path / name, ignore_errors=True)
            case 1:  # a copy of another machine's cache
                other = dice.choice([one for one in names if one != name])
                machines[other].count()
                machines[other].close()
                shutil.rmtree(tmp_path / name, ignore_errors=True)
                shutil.copytree(tmp_path / other, tmp_path / name)
                machines[other] = open_at(url, tmp_path / other)
            case 2:  # it is away until its part of the log is collected
                other = dice.choice([one for one in names if one != name])
                for _ in range(3):
                    put(machines[other], key)
                    compact(machines[other], key)
                    time.sleep(0.1)
        machines[name] = open_at(url, tmp_path / name)

    often = (put, put, put, delete, write, append, append, copy, remove, read, read)
    rare = (burn, compact, sleep, restart)
    for _ in range(scaled(250, 5000)):
        do = dice.choice(rare if dice.random() < 0.15 else often)
        do(machines[dice.choice(names)], str(dice.randrange(6)))
    for store in machines.values():
        assert {entry.key: entry.value for entry in store.scan(("a",))} == items
        assert {info.path: store.files().read(info.path) for info in store.files().walk()} == files
    check_caches(url, tmp_path, *map(engine_of, machines.values()))
    for store in machines.values():
        store.close()
    objects.close()


@pytest.mark.not_short
def test_a_thousand_watchers_share_one_look_at_the_log(url: str, tmp_path: Path) -> None:
    import threading

    with open_at(url, tmp_path / "one") as one, open_at(url, tmp_path / "two") as two:
        watches = [one.watch(("a",)) for _ in range(1000)]
        threads, sent = threading.active_count(), engine_of(one)._client.requests["GET"]
        two.put(("a",), "k", {})
        assert {next(watch).key for watch in watches} == {"k"}
        assert threading.active_count() <= threads + 2
        assert threads < 20
        assert engine_of(one)._client.requests["GET"] - sent < 1200
        for watch in watches:
            watch.close()


@pytest.mark.not_short
def test_huge_batches_and_values_are_stored_whole(url: str, tmp_path: Path) -> None:
    large = {"text": random.Random(2).randbytes(10 << 20).hex()}
    content = random.Random(3).randbytes(80 << 20)  # more than one blob takes
    with open_at(url, tmp_path / "one") as store:
        store.execute([Put(("many",), str(number), {"n": number}) for number in range(50_000)])
        store.put(("large",), "k", large)
        store.files().write("/large", content)
    with open_at(url, tmp_path / "two") as store:
        assert store.count(("many",)) == 50_000
        found = store.get(("large",), "k")
        assert found is not None
        assert found.value == large
        assert store.files().read("/large") == content
        check_caches(url, tmp_path, engine_of(store))
