"""A bucket: our engine beside raw conditional PUTs and GETs of the same client, on one SeaweedFS.

Raw is what any store in a bucket has to do at least: one PUT of an object for a durable write, one GET for a read that
sees the newest. Reads from the cache are held against our SQLite engine. Last, a machine without a cache opens a store
of 100,000 entries. The note counts requests, and what they cost on AWS by its list prices.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdall
from holdall.engines.s3.client import Address, Client
from holdall.engines.s3.credentials import Credentials

from .data import memory_of
from .harness import OURS, Bench, Row, at_most, within

RAW_PUT, RAW_GET, SQLITE = "raw PUT", "raw GET", "SQLite engine"
TASKS, EACH = 64, 50
MANY = 100_000
_HERE = ("users", "alice", "memories")
_PRICES = {"PUT": 5.0, "GET": 0.4}  # dollars for a million, S3 Standard in us-east-1; a list costs as a PUT
_RANDOM = random.Random(3)


def run(bench: Bench) -> None:
    with new_server(bench.folder) as endpoint:

        def open_store(prefix: str, cache: str, **options: Any) -> holdall.Store:
            own: dict[str, Any] = {"endpoint": endpoint, "credentials": _credentials, "cache": bench.folder / cache}
            return holdall.open(f"s3://bench/{prefix}", sweep_interval=None, **own, **options)

        raw = Client(Address(endpoint, "bench", "raw/", "us-east-1", True), lambda: Credentials(*_credentials()))
        _lone(bench, open_store, raw)
        _tasks(bench, open_store)
        _cold(bench, open_store)
    bench.note("SeaweedFS 4.48 on the same machine, so a request takes about 1 ms; on AWS it takes 10 to 40 ms")


def _credentials() -> tuple[str, str]:
    return "key", "secret"


@contextmanager
def new_server(folder: Path) -> Iterator[str]:
    """A SeaweedFS of our own, with a bucket."""
    home = folder / "seaweedfs"
    home.mkdir()
    ports = []
    for _ in range(8):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            ports.append(probe.getsockname()[1])
    key, secret = _credentials()
    identity = {"name": "bench", "credentials": [{"accessKey": key, "secretKey": secret}], "actions": ["Admin"]}
    (home / "s3.json").write_text(json.dumps({"identities": [identity]}))
    names = ("s3", "master", "volume", "filer")
    options = [f"-{name}.port={port}" for name, port in zip(names, ports, strict=False)]
    options += [f"-{name}.port.grpc={port}" for name, port in zip(names, ports[4:], strict=True)]
    command = f"""server -dir={home} -ip=127.0.0.1 -ip.bind=127.0.0.1 -filer -s3 -s3.config={home}/s3.json
        -s3.port.iceberg=0 -s3.port.lance=0 -master.volumeSizeLimitMB=64 -volume.max=20 -master.telemetry=false
        -master.electionTimeout=1s -master.heartbeatInterval=100ms"""
    weed = Path(sys.executable).with_name("weed")
    endpoint = f"http://127.0.0.1:{ports[0]}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([str(weed), *command.split(), *options], **quiet)  # type: ignore[call-overload]  # a dict
    client = Client(Address(endpoint, "bench", "", "us-east-1", True), lambda: Credentials(key, secret))
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                client.make_bucket(time.monotonic() + 1)
                client.put("ready", b"", time.monotonic() + 1)
                break
            except holdall.HoldallError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield endpoint
    finally:
        client.close()
        process.kill()
        process.wait()


def _lone(bench: Bench, open_store: Callable[..., holdall.Store], raw: Client) -> None:
    """Puts and gets one after another."""
    values, keys = [memory_of(number) for number in range(200)], itertools.count()
    with (
        open_store("lone", "lone") as store,
        open_store("lone", "lone", stale=3600) as stale,
        holdall.open(bench.folder / "sqlite.db", sweep_interval=None) as sqlite,
    ):
        before = _requests(store)

        def put_ours() -> None:
            for value in values:
                store.put(_HERE, str(next(keys)), value)

        def put_raw() -> None:
            for value in values:
                assert raw.create(f"log/{next(keys):010}", json.dumps(value).encode(), time.monotonic() + 30)

        runs = {OURS: put_ours, RAW_PUT: put_raw}
        bench.measure("put", runs, ops=len(values), rounds=9, target=at_most(2.5, RAW_PUT))
        _note_costs(bench, "lone puts", before, _requests(store), 10 * len(values))

        for number, value in enumerate(values):
            for one in (store, sqlite):
                one.put(_HERE, f"old-{number}", value)
            raw.put(f"old/{number}", json.dumps(value).encode(), time.monotonic() + 30)
        order = [_RANDOM.randrange(len(values)) for _ in range(200)]

        def get(one: holdall.Store) -> Callable[[], None]:
            def turn() -> None:
                for number in order:
                    one.get(_HERE, f"old-{number}")

            return turn

        def get_raw() -> None:
            for number in order:
                json.loads(raw.get(f"old/{number}", time.monotonic() + 30) or b"")

        runs = {OURS: get(store), RAW_GET: get_raw}
        bench.measure("get, of the newest", runs, ops=200, rounds=9, target=at_most(1.3, RAW_GET))
        stale.count()
        runs = {OURS: get(stale), SQLITE: get(sqlite)}
        bench.measure("get, from the cache (stale=)", runs, ops=200, rounds=15, target=at_most(2, SQLITE))


def _tasks(bench: Bench, open_store: Callable[..., holdall.Store]) -> None:
    """Puts of many tasks."""
    values, keys = [memory_of(number) for number in range(EACH)], itertools.count()
    with open_store("tasks", "tasks") as store, asyncio.Runner() as runner:
        before = _requests(store)

        async def write() -> None:
            for value in values:
                await store.aput(_HERE, str(next(keys)), value)

        async def write_all() -> None:
            await asyncio.gather(*(write() for _ in range(TASKS)))

        bench.measure(
            f"put, {TASKS} tasks",
            {OURS: lambda: runner.run(write_all())},
            ops=TASKS * EACH,
            rounds=9,
            as_rate=True,
            target=within(1 / 10_000, "at least 10,000 a second"),
        )
        _note_costs(bench, f"puts of {TASKS} tasks", before, _requests(store), 10 * TASKS * EACH)


def _cold(bench: Bench, open_store: Callable[..., holdall.Store]) -> None:
    """The first read on a machine without a cache."""
    with open_store("cold", "warm") as store:
        for start in range(0, MANY, 1000):
            puts = [holdall.ops.Put(_HERE, f"{number:06}", memory_of(number)) for number in range(start, start + 1000)]
            store.execute(puts)
    row = Row(f"open and first get, {MANY:,} entries", {OURS: []}, within(2.0), [], as_rate=False)
    for number in range(5):
        began = time.perf_counter()
        with open_store("cold", f"cold{number}") as store:  # which connects
            assert store.get(_HERE, "000007") is not None
            row.seconds[OURS].append(time.perf_counter() - began)
            assert store.count() == MANY
        shutil.rmtree(bench.folder / f"cold{number}")
    bench.rows.append(row)


def _requests(store: holdall.Store) -> dict[str, int]:
    store.setup()
    engine: Any = store._engine_handle.engine
    return dict(engine._client.requests)


def _note_costs(bench: Bench, what: str, before: dict[str, int], after: dict[str, int], puts: int) -> None:
    sent = {name: after[name] - before.get(name, 0) for name in _PRICES}
    dollars = sum(sent[name] * price for name, price in _PRICES.items()) / puts
    each = ", ".join(f"{1000 * count / puts:.1f} {name}s" for name, count in sent.items())
    bench.note(f"1,000 {what}: {each}; a million: ${dollars:.2f} at AWS's list prices")
