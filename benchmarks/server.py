"""The server: gets and puts over HTTP beside an empty route of Starlette, the remote engine, and idle watchers.

uvicorn serves a store on SQLite with relaxed durability, through `holdall URL serve`. The empty route is served by
uvicorn with the same protocol class and as many workers: what it takes is HTTP alone. One client with one connection
asks both in turns. The remote engine is used by tasks of one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]  # it has no types

import holdall

from .data import memory_of, new_keys
from .harness import OURS, Bench, Size, at_most, within

EMPTY = "an empty Starlette route"
GET, PUT = "store.aget alone", "store.aput alone"  # of such a store in the client's process: the part that is not HTTP
_HERE = ("users", "alice", "memories")
_OPS = 300
_TASKS = 64
_PUTS = 50  # of each task
_WATCHERS = 1000


def run(bench: Bench) -> None:
    with _serving(bench.folder) as (url, token, process), _serving_nothing() as empty:
        _over_http(bench, url, token, empty)
        _remote(bench, url, token)
        _watchers(bench, url, token, process)
    bench.note("two workers each, on loopback; the client shares the two cores with them")


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[tuple[str, str, psutil.Process]]:
    port = _free_port()
    command = [sys.executable, "-m", "holdall", f"{folder}/served.db", "serve", "--port", str(port), "--workers", "2"]
    with (folder / "served.out").open("w") as out, (folder / "served.err").open("w") as err:
        process = subprocess.Popen(
            [*command, "--option", "durability=relaxed"], stdout=out, stderr=err, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/healthz")
        token = re.search(r"hold_\w+_[\w-]{43}", (folder / "served.out").read_text())
        assert token is not None
        yield url, token[0], psutil.Process(process.pid)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def _serving_nothing() -> Iterator[str]:
    port = _free_port()
    command = [sys.executable, "-m", "uvicorn", "benchmarks.server:make_empty_app", "--factory", "--workers", "2"]
    options = ["--port", str(port), "--no-access-log", "--log-level", "warning", "--http", "httptools"]
    process = subprocess.Popen([*command, *options], start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/empty")
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def make_empty_app() -> Any:
    """An app with a route that reads the body, and answers with nothing."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def nothing(request: Request) -> Response:
        await request.body()
        return Response(b"{}", media_type="application/json")

    return Starlette(routes=[Route("/empty", nothing, methods=["GET", "PUT"])])


def _over_http(bench: Bench, url: str, token: str, empty: str) -> None:
    ours, theirs = (HTTPConnection(one.removeprefix("http://")) for one in (url, empty))
    headers = {"Authorization": f"Bearer {token}"}
    keys = new_keys()
    bodies = [msgspec.json.encode(memory_of(number)) for number in range(_OPS)]
    for number, body in enumerate(bodies):
        _ask(ours, "PUT", f"/v1/items/users/alice/memories/old-{number}", body, headers)

    def get_ours() -> None:
        for number in range(_OPS):
            _ask(ours, "GET", f"/v1/items/users/alice/memories/old-{number}", None, headers)

    def put_ours() -> None:
        for body in bodies:
            _ask(ours, "PUT", f"/v1/items/users/alice/memories/{next(keys)}", body, headers)

    def get_empty() -> None:
        for _ in range(_OPS):
            _ask(theirs, "GET", "/empty", None, headers)

    def put_empty() -> None:
        for body in bodies:
            _ask(theirs, "PUT", "/empty", body, headers)

    values = [memory_of(number) for number in range(_OPS)]
    with holdall.open(f"{bench.folder}/direct.db", durability="relaxed") as store, asyncio.Runner() as runner:

        async def get_directly() -> None:
            for number in range(_OPS):
                assert await store.aget(_HERE, f"old-{number}") is not None

        async def put_directly() -> None:
            for value in values:
                await store.aput(_HERE, next(keys), value)

        for number, value in enumerate(values):
            store.put(_HERE, f"old-{number}", value)
        target = at_most(2, EMPTY)
        gets = {OURS: get_ours, EMPTY: get_empty, GET: lambda: runner.run(get_directly())}
        bench.measure("get over HTTP, 1 KB", gets, rounds=15, ops=_OPS, target=target)
        puts = {OURS: put_ours, EMPTY: put_empty, PUT: lambda: runner.run(put_directly())}
        bench.measure("put over HTTP, 1 KB", puts, rounds=15, ops=_OPS, target=target)


def _ask(connection: HTTPConnection, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> None:
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status


def _remote(bench: Bench, url: str, token: str) -> None:
    keys = new_keys()
    values = [memory_of(number) for number in range(_PUTS)]
    with holdall.open(url, token=token) as store, asyncio.Runner() as runner:

        def get() -> None:
            for number in range(_OPS):
                assert store.get(_HERE, f"old-{number}") is not None

        async def put_some() -> None:
            for value in values:
                await store.aput(_HERE, next(keys), value)

        async def put_all() -> None:
            await asyncio.gather(*(put_some() for _ in range(_TASKS)))

        bench.measure("remote engine: get, 1 KB", {OURS: get}, rounds=15, ops=_OPS, target=within(0.0013))
        bench.measure(
            f"remote engine: puts of {_TASKS} tasks",
            {OURS: lambda: runner.run(put_all())},
            rounds=7,
            ops=_TASKS * _PUTS,
            target=within(1 / 5000, "at least 5,000/s"),
            as_rate=True,
        )


def _watchers(bench: Bench, url: str, token: str, process: psutil.Process) -> None:
    bench.progress(f"{_WATCHERS:,} idle watchers")
    before = _memory(process)
    host, port = url.removeprefix("http://").split(":")
    request = f"GET /v1/changes HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        for _ in range(_WATCHERS):
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            connection.sendall(request)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        time.sleep(2)
        grown = _memory(process) - before
    bench.sizes.append(Size(f"memory of {_WATCHERS:,} idle watchers", {OURS: grown / 1e6}, "MB", 200))


def _memory(process: psutil.Process) -> int:
    """The memory of a server and its workers that no other process shares."""
    return sum(one.memory_full_info().uss for one in [process, *process.children(recursive=True)])


def _wait(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.05)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
