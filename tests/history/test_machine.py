"""The state machine of the history, on every engine that keeps one."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from hypothesis import settings

import holdall
from holdall.testing import Clock, history_machine
from support.extent import IS_SHORT
from support.machines import open_alternating
from support.servers import postgres_url, redis_cluster_url, redis_url

HOUR = 3600
_numbers = itertools.count()
_EXAMPLES = {"short": 6, "all": 50, "long": 300}[os.environ.get("HOLDALL_TESTS", "short")]


def on_memory(folder: Path, clock: Clock) -> holdall.Store:
    return holdall.open("memory:", clock=clock, sweep_interval=None, history=HOUR)


def on_sqlite(folder: Path, clock: Clock) -> holdall.Store:
    return holdall.open(folder / "store.db", clock=clock, sweep_interval=None, history=HOUR, durability="relaxed")


def on_disk(folder: Path, clock: Clock) -> holdall.Store:
    url = f"disk:///{folder}/store"
    return holdall.open(url, clock=clock, sweep_interval=None, history=HOUR, durability="relaxed")


def on_postgres(folder: Path, clock: Clock) -> holdall.Store:
    schema = f"machine_{next(_numbers)}"
    return holdall.open(postgres_url(), clock=clock, sweep_interval=None, history=HOUR, schema=schema)


def on_redis(folder: Path, clock: Clock) -> holdall.Store:
    prefix = f"machine-{next(_numbers)}"
    return holdall.open(redis_url(), clock=clock, sweep_interval=None, history=HOUR, key_prefix=prefix)


def on_cluster(folder: Path, clock: Clock) -> holdall.Store:
    prefix = f"machine-{next(_numbers)}"
    return holdall.open(redis_cluster_url(), clock=clock, sweep_interval=None, history=HOUR, key_prefix=prefix)


def on_bucket(folder: Path, clock: Clock) -> holdall.Store:
    """On two machines in turns."""
    return open_alternating(f"s3://tests/{folder}", folder, clock=clock, sweep_interval=None, history=HOUR)


TestMemory = history_machine(on_memory).TestCase
TestSqlite = history_machine(on_sqlite).TestCase
TestDisk = history_machine(on_disk).TestCase
TestPostgres = history_machine(on_postgres).TestCase
TestRedis = history_machine(on_redis).TestCase
if not IS_SHORT:  # on a cluster as other machines; in a bucket it takes ten seconds
    TestBucket = history_machine(on_bucket).TestCase
    TestCluster = history_machine(on_cluster).TestCase
for _name in [name for name in globals() if name.startswith("Test")]:
    globals()[_name].settings = settings(max_examples=_EXAMPLES, stateful_step_count=25, deadline=None)
