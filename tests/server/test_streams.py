"""Streams of changes: what they listen with is closed, however they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdall
from holdall.server import Limits, app

STREAMS = ["/v1/changes", "/v1/engine/notifications"]


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[holdall.AsyncWatch]:
    """The subscriptions that were closed, and that had not been before."""
    real, found = holdall.AsyncWatch.aclose, list[holdall.AsyncWatch]()

    async def note(watch: holdall.AsyncWatch) -> None:
        found.append(watch)
        await real(watch)

    monkeypatch.setattr(holdall.AsyncWatch, "aclose", note)
    return found


async def ask(served: Any, path: str, *, leaves_at_once: bool) -> list[Any]:
    """Ask for a stream, and leave: at once, or after the first chunk. Returns what was received."""
    received: list[Any] = []
    leaves = asyncio.Event()
    if leaves_at_once:
        leaves.set()

    async def receive() -> Any:
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        received.append(message)
        if message["type"] == "http.response.body":
            leaves.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": None,
        "server": ("localhost", 80),
    }
    await served(scope, receive, send)
    return received


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("leaves_at_once", [True, False], ids=["at once", "later"])
def test_a_stream_whose_client_leaves_is_closed(
    closed: list[holdall.AsyncWatch], path: str, leaves_at_once: bool
) -> None:
    with holdall.open("memory:") as store:
        served = app(store, auth="none")
        asyncio.run(ask(served, path, leaves_at_once=leaves_at_once))
        assert len(closed) == 1
        assert served.state.service.watchers == 0


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_that_is_refused_is_closed(closed: list[holdall.AsyncWatch], path: str) -> None:
    with holdall.open("memory:") as store:
        received = asyncio.run(ask(app(store, auth="none", limits=Limits(watchers=0)), path, leaves_at_once=False))
        assert received[0]["status"] == 503
        assert len(closed) == 1
