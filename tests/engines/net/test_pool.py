"""The pool of connections, whose servers close some of them, and whose process forks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from holdall.engines.net.pool import Pool
from support.servers import postgres_url, redis_url


class Connection:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def is_closed(self) -> bool:
        return self.closed


def test_an_idle_connection_that_was_closed_is_neither_counted_nor_used() -> None:
    pool = Pool(0, 2, 1.0, Connection.close, Connection.is_closed)

    async def connect() -> Connection:
        return Connection()

    async def acquire() -> None:
        loop, deadline = asyncio.get_running_loop(), time.monotonic() + 10
        first, second = [await pool.aacquire(connect, deadline) for _ in range(2)]
        for connection in (first, second):
            pool.release(loop, connection)
        second.close()
        assert (pool.describe().open, pool.describe().idle) == (1, 1)
        assert await pool.aacquire(connect, deadline) is first
        assert pool.size == 1
        assert await pool.aacquire(connect, deadline) not in (first, second)
        assert pool.size == 2

    asyncio.run(acquire())


_FORK = """
import asyncio, os, sys, holdall
store = holdall.open(sys.argv[1], timeout=5)
loop = asyncio.new_event_loop()
loop.run_until_complete(store.aput(("home",), "key", {"n": 1}))
if os.fork() == 0:
    sys.exit()
os.wait()
print(loop.run_until_complete(asyncio.wait_for(store.aget(("home",), "key"), 4)).value)
"""


@pytest.mark.parametrize("server", [redis_url, postgres_url])
def test_a_forked_child_that_exits_leaves_the_connections_of_the_event_loop_to_its_parent(
    server: Callable[[], str],
) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORK, server()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("{'n': 1}\n", "")
