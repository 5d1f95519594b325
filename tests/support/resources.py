"""Threads, file descriptors and connections of a process, compared before and after a test to find leaks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.stores import new_location

_NAMED = {"postgres": "&application_name=counted", "redis": "?client_name=counted"}


def new_counted_location(engine: str, folder: Path) -> dict[str, str]:
    """Return a new location whose connections have a name, so that the server can count them."""
    at = new_location(engine, folder)
    return at | {"url": at["url"] + _NAMED.get(engine, "")}


def resources(engine: str, at: dict[str, str]) -> dict[str, Any]:
    """Count threads, file descriptors, and the connections that the server has."""
    threads = sorted(thread.name for thread in threading.enumerate())
    files: Counter[str] = Counter()
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            files[str(handle.readlink()).partition(":")[0]] += 1  # sockets and pipes have numbers
    return {"threads": threads, "files": files, "connections": connections(engine, at)}


def connections(engine: str, at: dict[str, str]) -> int:
    url = at["url"].removesuffix(_NAMED.get(engine, ""))
    if engine == "postgres":
        import psycopg

        with psycopg.connect(url) as connection:
            query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'"
            return connection.execute(query).fetchone()[0]  # type: ignore[index, no-any-return]  # a count
    if engine == "redis":
        import redis

        with redis.Redis.from_url(url, protocol=2) as client:
            return sum(one["name"] == "counted" for one in client.client_list())
    return 0


def find_leaks(engine: str, at: dict[str, str], before: dict[str, Any]) -> str:
    """Describe what is still held that was not held before, after waiting up to 10 seconds; "" if nothing."""
    until = time.monotonic() + 10
    while not _has_at_most(now := resources(engine, at), before):
        if time.monotonic() > until:
            return f"{before} before, and {now} after"
        time.sleep(0.05)
    return ""


def _has_at_most(now: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether nothing was added. Before, connections of a loop that has ended may still have waited to be collected."""
    return (
        Counter(now["threads"]) <= Counter(before["threads"])
        and now["files"] <= before["files"]
        and now["connections"] <= before["connections"]
    )
