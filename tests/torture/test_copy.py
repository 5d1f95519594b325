"""Copying while others write, killed again and again: nothing is lost, nothing is doubled, and each key is in order."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall import ops
from support.extent import IS_LONG, IS_SHORT
from support.processes import start
from support.servers import s3_credentials, s3_server
from support.stores import new_location, open_at

KILLS = 3 if IS_SHORT else 60 if IS_LONG else 20
PAIRS = [("sqlite", "postgres")]
if not IS_SHORT:
    PAIRS += [("postgres", "redis"), ("sqlite", "disk"), ("sqlite", "s3"), ("redis", "sqlite"), ("sqlite", "cluster")]
WRITERS, KEYS = 4, 40


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


def write(store: holdall.Store, writer: int, stopped: threading.Event, counts: dict[int, int]) -> None:
    """Put, append and delete. Every value of a key has a higher number than the one before it."""
    choose, number = random.Random(writer), 0
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


def watch_order(store: holdall.Store, stopped: threading.Event, faults: list[str]) -> None:
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


@pytest.mark.parametrize(("source", "destination"), PAIRS)
def test_a_followed_copy_that_is_killed_again_and_again_ends_equal(
    source: str, destination: str, tmp_path: Path
) -> None:
    here, there = new_location(source, tmp_path), locate(destination, tmp_path)
    stopped, faults = threading.Event(), list[str]()
    counts: dict[int, int] = {}
    written: Counter[tuple[Any, str]] = Counter()
    with open_at(here) as one, open_there(there) as other, other.watch() as watch:
        counter = threading.Thread(target=count_writes, args=(watch, written))
        counter.start()
        threads = [threading.Thread(target=write, args=(one, number, stopped, counts)) for number in range(WRITERS)]
        threads.append(threading.Thread(target=watch_order, args=(other, stopped, faults)))
        for thread in threads:
            thread.start()
        try:
            for _ in range(KILLS):
                copier = start(follow, source=here, destination=there)
                time.sleep(random.uniform(0.2, 0.8))
                copier.kill()
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
        began = time.monotonic()
        copied = holdall.copy(one, other)
        assert time.monotonic() - began < (1 if not IS_SHORT else 5)  # the pause of those who move
        assert copied.resumed
        watch.close()
        counter.join()
        assert faults == []
        assert holdall.compare(one, other).differences == []
        for writer in range(WRITERS):
            lines = other.files(("logs",)).read_text(f"/{writer}.log").split()
            assert lines == [str(number) for number in range(1, counts[writer] + 1)]
        assert [key for key, count in written.items() if count > 1] == []
