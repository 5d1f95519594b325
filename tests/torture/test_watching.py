"""Writers and watchers killed and started again at random: no watcher's stream misses, repeats or confuses anything."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.ops import Delete, Put
from support.processes import Process, receive, report, start
from support.stores import new_location, open_at

EACH = 4
FEED = ("feed",)
OFTEN = [f"k{i}" for i in range(5)]  # entries that all writers overwrite and delete


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "disk"])
def test_a_resumed_stream_is_complete_ordered_and_without_duplicates(
    tmp_path: Path, scaled: Callable[[int, int], int], engine: str
) -> None:
    kills = scaled(5, 50)
    at = new_location(engine, tmp_path)
    with open_at(at) as store:
        cursor = store.cursor()
        jobs: list[tuple[Callable[..., None], dict[str, Any]]] = [
            *((write, {"at": at, "name": str(n)}) for n in range(EACH)),
            *(
                (watch, {"at": at, "log": str(tmp_path / f"{n}.log"), "cursor": cursor, "number": n})
                for n in range(EACH)
            ),
        ]
        crew = [begin(*job) for job in jobs]
        try:
            for process in crew:
                process.receive()
            for _ in range(kills):
                time.sleep(random.uniform(0, 0.2))
                chosen = random.randrange(len(crew))
                crew[chosen].kill()
                crew[chosen] = begin(*jobs[chosen])
                if random.random() < 0.7:  # the others die before they have begun
                    crew[chosen].receive()
            for writer in crew[:EACH]:
                writer.send("stop")
                writer.finish()
            end = store.put(FEED, "end", {})
            for watcher in crew[EACH:]:
                watcher.finish()
        finally:
            for process in crew:
                if process.code is None:
                    process.kill()
        once = {entry.key: entry.version for entry in store.scan((*FEED, "once"))}
        often = {entry.key: entry.version for entry in store.scan((*FEED, "often"))}
    assert len(once) > 20 * kills, "hardly anything was written: this showed nothing"
    streams = [[json.loads(line) for line in lines(tmp_path / f"{n}.log")] for n in range(EACH)]
    for stream in streams:
        check(stream, once, often, in_one_order=engine != "postgres")
        assert stream[-1]["version"] == end.version


def check(stream: list[Any], once: dict[str, int], often: dict[str, int], in_one_order: bool) -> None:
    versions = [change["version"] for change in stream]
    assert len(set(versions)) == len(versions), "a change was given twice"
    if in_one_order:
        assert versions == sorted(versions)
    by_key: dict[str, list[Any]] = {}
    for change in stream:
        by_key.setdefault(change["key"], []).append(change)
    by_key.pop("end")
    for key in OFTEN:
        changes = by_key.pop(key)
        assert [change["version"] for change in changes] == sorted(change["version"] for change in changes)
        assert (changes[-1]["kind"] == "put") == (key in often), f"{key} did not end as the stream says"
        if key in often:
            assert changes[-1]["version"] == often[key]
    missing = once.keys() - by_key.keys()
    assert not missing, f"{len(missing)} of {len(once)} changes never came: {sorted(missing)[:5]}"
    assert {key: [change["version"] for change in changes] for key, changes in by_key.items()} == {
        key: [version] for key, version in once.items()
    }
    for writer in range(EACH):  # each writer's own, in its order
        steps = [int(key.split(".")[1]) for key in by_key if key.startswith(f"{writer}.")]
        assert steps == list(range(1, len(steps) + 1))


def begin(job: Callable[..., None], options: dict[str, Any]) -> Process:
    return start(job, deadline=300, **options)


def lines(log: Path) -> list[bytes]:
    """The whole lines of a log: the last may be torn, by a kill."""
    return [line for line in log.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def write(at: dict[str, str], name: str) -> None:
    """Entries that are put once, numbered without a gap, and with each of them one that is overwritten or deleted."""
    store = open_at(at)
    stop = threading.Event()
    threading.Thread(target=lambda: (receive(), stop.set()), daemon=True).start()
    last = store.get(("writers",), name)
    report("ready")
    for step in itertools.count(last.value["step"] + 1 if last else 1):
        often = random.choice(OFTEN)
        change: Any = Put((*FEED, "often"), often, {}) if random.random() < 0.7 else Delete((*FEED, "often"), often)
        once = Put((*FEED, "once"), f"{name}.{step}", {})
        store.execute([once, Put(("writers",), name, {"step": step}), change])
        if stop.wait(random.uniform(0, 0.01)):
            break
    store.close()


def watch(at: dict[str, str], log: str, cursor: str, number: int) -> None:
    """Write down what comes, each with its cursor, and go on after the last that was written down."""
    path = Path(log)
    whole = lines(path) if path.exists() else []
    path.write_bytes(b"".join(whole))
    since = json.loads(whole[-1])["cursor"] if whole else cursor
    with open_at(at) as store, path.open("ab", buffering=0) as file:
        report("ready")
        if number % 2:
            asyncio.run(follow_as_a_task(store, since, file.fileno()))
        else:
            with store.watch(FEED, since=since) as changes:
                for change in changes:
                    note(file.fileno(), change)
                    if change.key == "end":
                        return


async def follow_as_a_task(store: holdall.Store, since: str, file: int) -> None:
    async with store.awatch(FEED, since=since) as changes:
        async for change in changes:
            note(file, change)
            if change.key == "end":
                return


def note(file: int, change: holdall.Change) -> None:
    noted = {"version": change.version, "key": change.key, "kind": change.kind, "cursor": change.cursor}
    os.write(file, json.dumps(noted).encode() + b"\n")
