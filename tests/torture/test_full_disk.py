"""A disk that fills up while threads write, and is freed again: acknowledged writes are there, and the store works."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.errors import Unavailable
from support.threads import together

SIZE = 20  # MB
FAILURES = 10  # failed writes in a row, after which a writer stops


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}m", "tmpfs", str(place)]
    try:
        failure = subprocess.run(mount, capture_output=True, text=True, check=False).stderr
    except OSError as error:
        failure = str(error)
    if failure:
        pytest.skip(f"this test needs the right to mount a disk of its own: {failure.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


class Writer:
    """Writes items, files and a log until the disk is full, and remembers what was acknowledged."""

    def __init__(self, store: holdall.Store, number: int, failures: int = FAILURES) -> None:
        self.number, self.failures = number, failures
        self.chance = random.Random(number)
        self.items: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}
        self.begin(store)

    def begin(self, store: holdall.Store) -> None:
        self.store, self.home = store, store.files(("volume", str(self.number)))

    def run(self) -> None:
        failed = step = 0
        while failed < self.failures:
            step += 1
            try:
                self.write(f"{len(self.items)}.{len(self.files)}.{step}")
            except Unavailable as error:
                assert type(error) is Unavailable, "a write of unknown outcome"
                assert "the disk is full" in str(error)
                failed += 1

    def write(self, name: str) -> None:
        data = os.urandom(self.chance.choice([100, 5_000, 100_000]))
        match self.chance.randrange(3):
            case 0:
                value = {"text": data[:5_000].hex()}
                self.store.put(("items", str(self.number)), name, value)
                self.items[name] = value
            case 1:
                self.home.write(f"/{name}/file", data)
                self.files[f"/{name}/file"] = data
            case 2:
                self.home.append("/log", data)
                self.files["/log"] = self.files.get("/log", b"") + data

    def check(self) -> None:
        found = {entry.key: entry.value for entry in self.store.scan(("items", str(self.number)))}
        assert found == self.items
        assert {info.path for info in self.home.walk()} == {*self.files}
        for path, data in self.files.items():
            assert self.home.read(path) == data, path

    def delete_files(self, most: int) -> int:
        """Delete as many entries as the full disk allows; return how many."""
        deleted = 0
        for path in [*self.files][:most]:
            try:
                self.home.delete(path)
            except Unavailable as error:
                assert "the disk is full" in str(error)
            else:
                del self.files[path]
                deleted += 1
        return deleted


@pytest.mark.parametrize("engine", ["sqlite", "disk"])
def test_a_disk_that_fills_up_and_is_freed(
    small_disk: Path, engine: str, caplog: pytest.LogCaptureFixture, scaled: Callable[[int, int], int]
) -> None:
    for number in range(scaled(1, 20)):
        folder = small_disk / "agent"
        fill_and_free(folder, engine, number * 4)
        assert len(caplog.records) < 5, "each read logged a warning"
        caplog.clear()
        shutil.rmtree(folder)


def fill_and_free(folder: Path, engine: str, number: int) -> None:
    folder.mkdir()
    url = f"disk:///{folder}" if engine == "disk" else f"{folder}/store.db"
    other = folder.parent / "other"
    other.write_bytes(b"x" * (SIZE << 18))
    with holdall.open(url) as store:
        writers = [Writer(store, number + place) for place in range(4)]
        together([writer.run for writer in writers])
        for writer in writers:
            writer.check()
        deleted = sum(writer.delete_files(3) for writer in writers)
        # Committed writes that have not reached their files may use the space that the first deletes free.
        assert deleted or engine != "disk"
        for writer in writers:
            writer.check()
        other.unlink()
        for writer in writers:
            writer.write("after")
            writer.delete_files(3)
            writer.check()
    with holdall.open(url) as store:
        for writer in writers:
            writer.begin(store)
            writer.check()


def test_a_file_whose_append_found_the_disk_full_can_be_deleted(small_disk: Path) -> None:
    with holdall.open(f"disk:///{small_disk}/agent") as store:
        files = store.files()
        files.write("/log", "begun")
        other = small_disk / "other"
        with other.open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(b"x" * 4096)
        os.truncate(other, other.stat().st_size - (1 << 18))
        with pytest.raises(Unavailable, match="the disk is full"):
            for _ in range(10):
                files.append("/log", b"x" * 90_000)
        assert files.read("/log").startswith(b"begun")
        files.delete("/log", recursive=True)
        assert not (small_disk / "agent" / "log").exists()
        assert store.count() == 0


@pytest.mark.parametrize("name", ["a.backup", "a.jsonl", "a.parquet"])
def test_a_backup_or_an_export_to_a_full_disk_is_unavailable_and_leaves_nothing(small_disk: Path, name: str) -> None:
    target = small_disk / name
    (small_disk / "other").write_bytes(b"x" * (SIZE - 4 << 20))
    with holdall.open("memory:") as store:
        for number in range(60):
            store.put(("a",), str(number), {"text": os.urandom(100_000).hex()})
        write = store.backup if name.endswith("backup") else store.export_entries
        with pytest.raises(Unavailable, match=r"cannot write .*No space left"):
            write(target)
    assert [path.name for path in small_disk.iterdir()] == ["other"]


@pytest.mark.not_short
def test_a_full_disk_of_a_cache_loses_nothing_that_is_in_the_bucket(small_disk: Path, tmp_path: Path) -> None:
    """Also of another machine, whose writes the cache cannot take until there is space."""
    from support.bucket_checks import check_caches, engine_of
    from support.servers import s3_server

    url = f"s3://tests/full{random.random()}"
    options: dict[str, Any] = {**s3_server().options, "sweep_interval": None}
    other = small_disk / "other"
    other.write_bytes(b"x" * (SIZE << 18))
    with (
        holdall.open(url, cache=small_disk / "cache", **options) as store,
        holdall.open(url, cache=tmp_path / "second", **options) as second,
    ):
        writers = [Writer(store, place) for place in range(2)]
        together([writer.run for writer in writers])
        second.put(("items", "more"), "k", {"text": "x" * 100_000})
        with pytest.raises(Unavailable, match="the disk is full, so the cache"):
            for _ in range(100):
                second.put(("items", "more"), "k", {"text": os.urandom(50_000).hex()})
                store.get(("items", "more"), "k")
        for writer in writers:
            writer.begin(second)
            writer.check()
            writer.begin(store)
        other.unlink()
        for writer in writers:
            writer.check()
            writer.write("after")
            writer.check()
        assert store.get(("items", "more"), "k") == second.get(("items", "more"), "k")
        check_caches(url, tmp_path, engine_of(store), engine_of(second))
