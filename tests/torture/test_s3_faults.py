"""Machines that share a bucket, killed and starved: acknowledged writes are there once, and every cache is the same."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

import holdall
from holdall.engine import Options
from holdall.engines.s3 import compaction
from holdall.errors import OutcomeUnknown, Unavailable
from support.bucket_checks import check_caches, find_text
from support.extent import IS_LONG, IS_SHORT
from support.machines import make_engine
from support.processes import beginning, receive, report, start
from support.servers import S3, s3_credentials, s3_server

pytestmark = pytest.mark.skipif(IS_SHORT, reason="in make test-all: the short forms take half a minute")


SECRET = "xq7sekrit"


def open_machine(url: str, endpoint: str, cache: str, **options: Any) -> holdall.Store:
    own = {"endpoint": endpoint, "region": "us-east-1", "credentials": s3_credentials, "cache": cache}
    return holdall.open(url, sweep_interval=None, **own, **options)


def write_until_killed(url: str, endpoint: str, cache: str, name: str) -> None:
    """Put, count, append and erase, and report each step that was acknowledged."""
    compaction.RECORDS, compaction.LARGEST_MERGED = 20, 20_000
    store = open_machine(url, endpoint, cache)
    entry = store.get(("steps",), name)
    step = entry.value["n"] if entry else 0
    while True:
        step += 1
        store.put(("own", name), str(step), {"step": step})
        store.files().append(f"/{name}", f"{step}\n" * (3000 if step % 7 == 0 else 1))
        if step % 5 == 0:
            store.put(("gone", name), str(step), {"text": SECRET})
            store.erase(("gone", name))
        store.put(("steps",), name, {"n": step})
        report(step)


def test_writers_that_are_killed_lose_and_double_nothing(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    """Two machines, each with a writer that is killed again and again."""
    url, endpoint = f"s3://tests/kills{random.random()}", s3_server().endpoint
    kills = scaled(4, 50)
    names = ("one", "two")
    last = dict.fromkeys(names, 0)
    for number in range(kills):
        writers = {
            name: start(write_until_killed, url=url, endpoint=endpoint, cache=str(tmp_path / name), name=name)
            for name in names
        }
        for name, writer in writers.items():
            first = writer.receive() if number % 3 else None
            if name == "two":
                time.sleep(random.uniform(0, 0.3))
            reported = [first, *writer.kill()] if first else writer.kill()
            last[name] = max([last[name], *reported])
    assert all(last.values()), "nothing was written: this showed nothing"
    engines = [make_engine(url, Options(), tmp_path / name) for name in names]
    try:
        check_caches(url, tmp_path, *engines)
    finally:
        for engine in engines:
            engine.close()
    with open_machine(url, endpoint, str(tmp_path / "reader")) as store:
        for name in names:
            store.erase(("gone", name))
            steps = sorted(entry.value["step"] for entry in store.scan(("own", name)))
            assert set(range(1, last[name] + 1)) <= set(steps), f"{name} lost a put"
            assert steps[-1] <= last[name] + kills, "more was written than was acknowledged"
            appended = store.files().read_text(f"/{name}").split()
            assert {str(step) for step in range(1, last[name] + 1)} <= set(appended), f"{name} lost an append"
    objects = s3_server().client(url.removeprefix("s3://tests/") + "/")
    left = find_text(objects, SECRET)
    objects.close()
    assert all(name.startswith("seg/") for name in left), "only what a killed process left unfinished stays, for a day"


def count_until_stopped(url: str, endpoint: str, cache: str, name: str) -> None:
    """Count up while the server is killed; report what was acknowledged, and what is unknown."""
    compaction.RECORDS = 40
    store = open_machine(url, endpoint, cache, timeout=60)
    stop = threading.Event()
    threading.Thread(target=lambda: (receive(), stop.set()), daemon=True).start()
    done = unknown = 0
    report("ready")
    while not stop.is_set():
        try:
            store.put(("own", name), str(done), {})
            store.update(("shared",), "counter", lambda value: {"n": value["n"] + 1}, default={"n": 0})
            done += 1
        except OutcomeUnknown:
            unknown += 1
        except Unavailable:
            continue
    report([done, unknown])
    store.close()


def test_a_server_that_is_killed_loses_and_doubles_nothing(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    names = ("one", "two")
    with S3() as server:
        url = "s3://tests/server-kills"
        processes = [
            start(
                count_until_stopped,
                deadline=600,
                url=url,
                endpoint=server.endpoint,
                cache=str(tmp_path / name),
                name=name,
            )
            for name in names
        ]
        with beginning(*processes):
            for process in processes:
                assert process.receive() == "ready"
            for _ in range(scaled(2, 20)):
                time.sleep(random.uniform(0.5, 1.5))
                server.kill()
                server.start()
            time.sleep(1)
            for process in processes:
                process.send("stop")
            reported = [process.finish()[-1] for process in processes]
        done, unknown = sum(one[0] for one in reported), sum(one[1] for one in reported)
        print(f"{done} acknowledged, {unknown} of unknown outcome")
        assert done > 100, "hardly anything was written: this showed nothing"
        with open_machine(url, server.endpoint, str(tmp_path / "reader")) as store:
            counter = store.get(("shared",), "counter")
            assert counter is not None
            assert done <= counter.value["n"] <= done + unknown
            for name, (own, _) in zip(names, reported, strict=True):
                keys = {entry.key for entry in store.scan(("own", name))}
                assert {str(number) for number in range(own)} <= keys
        engines = [make_engine(url, Options(), tmp_path / name, endpoint=server.endpoint) for name in names]
        try:
            check_caches(url, tmp_path, *engines, endpoint=server.endpoint)
        finally:
            for engine in engines:
                engine.close()


def write_for(url: str, endpoint: str, cache: str, seconds: float) -> None:
    """Write as fast as possible; report how many commits there were, and how long each took."""
    with open_machine(url, endpoint, cache) as store:
        store.put(("warm",), cache, {})
        report("ready")
        receive()
        took: list[float] = []
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            store.put(("own", cache), str(len(took)), {"n": len(took)})
            took.append(time.monotonic() - began)
    report([len(took), quantiles(took, n=100)[-1], max(took)])


def test_no_machine_starves(tmp_path: Path) -> None:
    """Four machines that write as fast as they can: each gets at least half of its share, and none waits for long."""
    seconds = 60 if IS_LONG else 15
    url = f"s3://tests/starve{random.random()}"
    processes = [
        start(write_for, url=url, endpoint=s3_server().endpoint, cache=str(tmp_path / str(number)), seconds=seconds)
        for number in range(4)
    ]
    with beginning(*processes):
        for process in processes:
            assert process.receive() == "ready"
        for process in processes:
            process.send("go")
        reported = [process.finish()[-1] for process in processes]
    commits = [one[0] for one in reported]
    print(f"{sum(commits) / seconds:.0f} commits/s; each {commits}; p99 {[round(one[1], 3) for one in reported]}")
    print(f"longest {[round(one[2], 3) for one in reported]}")
    assert min(commits) >= sum(commits) / 4 / 2
    assert max(one[1] for one in reported) < 2
