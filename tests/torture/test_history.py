"""History is exact when writers are killed: each old value once, in the transaction of its change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import holdall
import holdall.engine
from support.servers import postgres_url, redis_url

WRITER = """
import sys, holdall
store = holdall.open(sys.argv[1])
while True:
    store.update(("a",), "k", lambda value: {"n": value["n"] + 1}, default={"n": 0})
"""


ENGINES = ["sqlite", "redis", "disk", "postgres"]
if os.environ.get("HOLDALL_TESTS", "short") == "short":
    ENGINES = ENGINES[:2]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_value_is_kept_once_when_writers_are_killed(tmp_path: Path, engine: str) -> None:
    urls = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/store.db",
        "disk": lambda: f"disk:///{tmp_path}/store",
        "postgres": postgres_url,
        "redis": redis_url,
    }
    url = urls[engine]()
    with holdall.open(url, history=3600) as store:
        store.delete_tree(("a",))
        store.erase(("a",), recursive=True)
        for _ in range(2):
            writers = [subprocess.Popen([sys.executable, "-c", WRITER, url]) for _ in range(3)]
            target, until = _count(store) + 20, time.monotonic() + 120
            while _count(store) < target and time.monotonic() < until:
                time.sleep(0.01)
            for writer in writers:
                os.kill(writer.pid, signal.SIGKILL)
                writer.wait()
        last = _count(store)
        assert last > 20
        values = [one.value for one in store.history(("a",), "k", limit=100_000)]
        assert values == [{"n": number} for number in range(last, 0, -1)]
        store.erase(("a",), recursive=True)
        store._engine_handle.engine.execute([holdall.engine.SetHistory(0)])


def _count(store: holdall.Store) -> int:
    entry = store.get(("a",), "k")
    return 0 if entry is None else int(entry.value["n"])
