"""Copying while others write, killed again and again: nothing is lost, nothing is doubled, and each key is in order."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall import ops
from support.extent import IS_LONG, IS_SHORT
from support.processes import Process, start
from support.servers import s3_credentials, s3_server
from support.stores import new_location, open_at

KILLS = 3 if IS_SHORT else 60 if IS_LONG else 20
PAIRS = [("sqlite", "postgres")]
if not IS_SHORT:
    PAIRS += [("postgres", "redis"), ("sqlite", "disk"), ("sqlite", "s3"), ("redis", "sqlite"), ("sqlite", "cluster")]
WRITERS, KEYS = 4, 40
MOVES = 1 if IS_SHORT else 5


def locate(engine: str, folder: Path) -> dict[str, str]:
    """Return the location of a new store, as plain data."""
    if engine != "s3":
        return new_location(engine, folder)
    options = s3_server().options
    return {"url": f"s3://tests/{folder.name}", "endpoint": options["endpoint"], "region": options["region"]}


def open_there(at: dict[str, str]) -> holdall.Store:
    """Open a store. Each process has a cache of its own of a bucket."""
    if not at["url"].startswith("s3:"):
        return open_at(at)
    return open_at(at, credentials=s3_credentials, cache=Path(tempfile.mkdtemp()))  # type: ignore[arg-type]


def follow(source: dict[str, str], destination: dict[str, str]) -> None:
    with open_at(source) as one, open_there(destination) as other:
        holdall.copy(one, other, follow=True)


def write(store: holdall.Store, writer: int, counts: dict[int, int], stopped: threading.Event) -> None:
    """Put, append and delete. Every value of a key has a higher number than the one before it."""
    number = counts[writer]
    choose = random.Random(writer + number)
    files, home = store.files(("logs",)), ("w", str(writer))
    while not stopped.is_set():
        number += 1
        key = f"k{choose.randrange(KEYS)}"
        store.put(home, key, {"n": number})
        store.execute([ops.Put(home, f"once{number}", {"n": number}), ops.Put(home, "newest", {"n": number})])
        files.append(f"/{writer}.log", f"{number}\n")
        if number % 7 == 0:
            store.delete(home, f"once{number - 3}")
        counts[writer] = number
        time.sleep(0.002)


@contextmanager
def writing(store: holdall.Store, counts: dict[int, int]) -> Iterator[None]:
    """Let all writers write meanwhile."""
    with running([(write, (store, writer, counts)) for writer in range(WRITERS)]):
        yield


@contextmanager
def running(work: list[tuple[Any, tuple[Any, ...]]]) -> Iterator[None]:
    """Run functions in threads until the end of the block; each is given the event that stops it."""
    stopped, errors = threading.Event(), list[BaseException]()

    def run(function: Any, args: tuple[Any, ...]) -> None:
        try:
            function(*args, stopped)
        except BaseException as error:  # shown by the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=one) for one in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert errors == []


def watch_order(store: holdall.Store, faults: list[str], stopped: threading.Event) -> None:
    """Read the destination all the time: no value may be older than one that was there before."""
    seen: dict[tuple[str, str], int] = {}
    while not stopped.is_set():
        for writer in map(str, range(WRITERS)):
            for key in (*(f"k{number}" for number in range(0, KEYS, 5)), "newest"):
                entry = store.get(("w", writer), key)
                if entry is not None:
                    if entry.value["n"] < seen.get((writer, key), 0):
                        faults.append(f"{writer} {key}: {entry.value['n']} after {seen[writer, key]}")
                    seen[writer, key] = max(seen.get((writer, key), 0), entry.value["n"])
        time.sleep(0.005)


def count_writes(watch: holdall.Watch, written: Counter[tuple[Any, str]]) -> None:
    """Count how often each entry that the source writes only once was written."""
    for change in watch:
        if change.kind == "put" and change.key.startswith("once"):
            written[change.namespace, change.key] += 1


def wait_for_all(source: holdall.Store, destination: holdall.Store, copier: Process) -> None:
    """Wait until a last entry has arrived: all changes before it have, too."""
    last = source.put(("w", "last"), "last", {}).updated_at

    def has_arrived() -> bool:
        entry = destination.get(("w", "last"), "last")
        return entry is not None and entry.updated_at == last

    wait_until(has_arrived, copier)


def wait_until(is_true: Callable[[], bool], copier: Process) -> None:
    """Wait while the copier runs. If it hangs, it ends at its own deadline."""
    while not is_true():
        assert copier.code is None, copier.finish()
        time.sleep(0.002)


@pytest.mark.parametrize(("source", "destination"), PAIRS)
def test_a_followed_copy_that_is_killed_again_and_again_ends_equal(
    source: str, destination: str, tmp_path: Path
) -> None:
    here, there = new_location(source, tmp_path), locate(destination, tmp_path)
    faults: list[str] = []
    counts = dict.fromkeys(range(WRITERS), 0)
    written: Counter[tuple[Any, str]] = Counter()
    pauses: list[float] = []
    with open_at(here) as one, open_there(there) as other, other.watch() as watch:
        counter = threading.Thread(target=count_writes, args=(watch, written))
        counter.start()
        with running([(watch_order, (other, faults))]):
            with writing(one, counts):
                for _ in range(KILLS):
                    before = other.cursor()
                    copier = start(follow, source=here, destination=there)
                    wait_until(lambda: other.cursor() != before, copier)  # noqa: B023  # it is called at once
                    time.sleep(random.uniform(0, 0.6))
                    copier.kill()
            copier = start(follow, source=here, destination=there)
            wait_for_all(one, other, copier)
            for _ in range(MOVES):
                with writing(one, counts):
                    time.sleep(0.5)
                began = time.monotonic()
                wait_for_all(one, other, copier)
                pauses.append(time.monotonic() - began)
            copier.kill()
        if not IS_SHORT:  # the pause of those who move; a busy machine can only make it longer, so the shortest counts
            assert min(pauses) < 1, pauses
        assert holdall.copy(one, other).resumed
        watch.close()
        counter.join()
        assert faults == []
        assert holdall.compare(one, other).differences == []
        for writer in range(WRITERS):
            lines = other.files(("logs",)).read_text(f"/{writer}.log").split()
            assert lines == [str(number) for number in range(1, counts[writer] + 1)]
        assert [key for key, count in written.items() if count > 1] == []
