"""Old versions of a large file share their contents: an edit costs what it changes, not the size of the file."""

from __future__ import annotations

import random
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdall
from holdall import ops
from holdall.testing import Clock
from support.extent import IS_SHORT
from support.stores import new_location, open_at

NS = ("filesystem",)
ENGINES = ("sqlite", "postgres", "disk") if IS_SHORT else ("sqlite", "postgres", "disk", "s3")


def stored_bytes(store: holdall.Store, at: dict[str, str]) -> int:
    """Return how many bytes the pieces of all contents have in the database; names of plain files do not count."""
    if "schema" in at:
        with psycopg.connect(at["url"]) as connection:
            sql = f'SELECT coalesce(sum(length(data)), 0) FROM "{at["schema"]}".chunks'
            return int(connection.execute(sql).fetchall()[0][0])  # type: ignore[arg-type]
    engine: Any = store._engine_handle.engine
    reader = engine._readers.take()
    try:
        sql = "SELECT coalesce(sum(length(data)), 0) FROM holdall_chunks WHERE typeof(data) = 'blob'"
        return int(reader.execute(sql).fetchall()[0][0])
    finally:
        engine._readers.give_back(reader)


@pytest.mark.parametrize("engine", ENGINES)
def test_edits_of_a_large_file_keep_only_what_they_change(engine: str, tmp_path: Path) -> None:
    clock, choose = Clock(), random.Random(4)
    at = new_location(engine, tmp_path)
    with open_at(at, clock=clock, history=3600, sweep_interval=None) as store:
        files = store.files()
        content = choose.randbytes(400_000)
        files.write("/f", content)
        written = [content]
        for number in range(40):
            clock.advance(1)
            place = choose.randrange(len(content))
            if number % 10 == 9:
                content += b"appended"
                files.append("/f", b"appended")
            else:
                added, left = choose.randbytes(choose.randrange(200)), place + choose.randrange(100)
                content = content[:place] + added + content[left:]
                files.write("/f", content)
            written.append(content)
            if number == 20:
                store.sweep()  # the rest is compared later
        store.sweep()
        versions = files.history("/f", limit=100)[::-1]
        assert [files.read("/f", version=one.version) for one in versions] == written
        for one, whole in zip(versions, written, strict=True):
            [part] = store.execute([ops.ReadRange(NS, "/f", 1000, 300_000, one.version)])
            assert part == whole[1000:300_000]
        assert stored_bytes(store, at) < 10 * 400_000  # of 41 versions
        assert store.check().faults == []
        clock.advance(3590)  # the first are purged
        store.sweep()
        kept = files.history("/f", limit=100)[::-1]
        assert 1 < len(kept) < len(versions)
        assert [files.read("/f", version=one.version) for one in kept] == written[-len(kept) :]
        files.restore("/f", kept[0].version)
        assert files.read("/f") == written[-len(kept)]
        store.erase(NS, "/f")
        assert stored_bytes(store, at) == 0
        assert store.check().faults == []


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_contents_are_right_while_several_stores_compare_and_others_read(engine: str, tmp_path: Path) -> None:
    at, choose = new_location(engine, tmp_path), random.Random(5)
    with open_at(at, history=3600, sweep_interval=None) as store:
        files, content = store.files(), choose.randbytes(200_000)
        written: dict[int, bytes] = {}
        for number in range(30):
            content = content[: number * 1000] + b"edit" + content[number * 1000 + 4 :]
            version = files.write("/f", content).version
            assert version is not None
            written[version] = content
        wrong: list[int] = []

        def sweep() -> None:
            with open_at(at, sweep_interval=None) as other:
                other.sweep()

        def read() -> None:
            with open_at(at, sweep_interval=None) as other:
                for _ in range(3):
                    wrong.extend(
                        version
                        for version, expected in written.items()
                        if other.files().read("/f", version=version) != expected
                    )

        threads = [threading.Thread(target=work) for work in (sweep, read, sweep, read, sweep)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert stored_bytes(store, at) < 6 * 200_000
        assert store.check().faults == []


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_a_clock_that_was_set_back_removes_no_version_that_an_older_one_needs(engine: str, tmp_path: Path) -> None:
    clock, content = Clock(), random.Random(6).randbytes(200_000)
    at = new_location(engine, tmp_path)
    with open_at(at, clock=clock, history=3600, sweep_interval=None) as store:
        files = store.files()
        written: dict[int, bytes] = {}
        for number, step in enumerate((0, 3000, 0, -3000, 0)):  # the third ends after the clock was set back
            clock.advance(step)
            content = content[:number] + b"edit" + content[number + 4 :]
            version = files.write("/f", content).version
            assert version is not None
            written[version] = content
        store.sweep()
        clock.advance(3601)  # only what ended after the clock was set back is due
        store.sweep()
        kept = [one.version for one in files.history("/f")]
        assert kept == sorted(written, reverse=True)
        assert all(files.read("/f", version=version) == written[version] for version in kept)
        clock.advance(3000)
        store.sweep()
        assert [one.version for one in files.history("/f")] == kept[:1]
        assert stored_bytes(store, at) == len(content)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_very_large_file_is_compared_in_steps_and_a_range_of_it_reads_no_more(engine: str, tmp_path: Path) -> None:
    size, choose = 10 << 20, random.Random(7)
    at = new_location(engine, tmp_path)
    with open_at(at, history=3600, sweep_interval=None) as store:
        files, content = store.files(), choose.randbytes(size)
        written: dict[int, bytes] = {}
        edits = (size // 2, 4), (size // 3, 4), (100, 6 << 20), (size - 5, 5)  # where, and how many bytes
        for place, length in ((0, 0), *edits):
            content = content[:place] + choose.randbytes(length) + content[place + length :]
            version = files.write("/f", content).version
            assert version is not None
            written[version] = content
        steps, before = 0, stored_bytes(store, at)
        while store._engine_handle.engine.execute([ops.PurgeHistory()])[0]:
            steps += 1
        assert steps > 20  # others can write after each
        if engine != "s3":  # there, contents are in blobs
            freed = before - stored_bytes(store, at)
            assert 2 * size - 10_000 < freed < 2 * size  # of one version more than half differs
        tracemalloc.start()
        for version, whole in written.items():
            for start in (0, 50, size // 3 - 100, size // 2 - 100, size - 1000):
                [part] = store.execute([ops.ReadRange(NS, "/f", start, start + 1000, version)])
                assert part == whole[start : start + 1000]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 3 << 20
        assert all(files.read("/f", version=version) == whole for version, whole in written.items())
        assert store.check().faults == []
