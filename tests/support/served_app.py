"""An ASGI app for tests that serves many stores, each at `/NAME`: uvicorn runs it with several workers.

The store NAME is described by the file NAME.json in the folder HOLDALL_SERVED: its URL and its options. Its clock is
in the file NAME.clock, where the test sets it.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import holdall
from holdall.server import app as make_app

FOLDER = Path(os.environ["HOLDALL_SERVED"])
MOST_OPEN = 4


class FileClock:
    """A clock whose time is in a file, and by how much it moves each time it is read. -1: the time of this machine."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b", buffering=0)

    def __call__(self) -> int:
        now, step = struct.unpack("<qq", os.pread(self._file.fileno(), 16, 0))
        if now < 0:
            return time.time_ns() // 1000
        if step:
            os.pwrite(self._file.fileno(), struct.pack("<q", now + step), 0)
        return int(now)


class Served:
    """The apps of the stores, made on first use."""

    def __init__(self) -> None:
        self._apps: dict[str, Any] = {}
        self._stores: dict[str, Any] = {}
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._live(receive, send)
            return
        name = scope["path"].split("/")[1]
        if name == "close":
            await self._close(scope["path"].split("/")[2], send)
            return
        async with self._lock:
            if name not in self._apps:
                self._apps[name], self._stores[name] = self._open(name)
                while len(self._apps) > MOST_OPEN:  # those of earlier tests
                    await self._close_store(next(iter(self._apps)))
        await self._apps[name]({**scope, "root_path": f"/{name}"}, receive, send)

    def _open(self, name: str) -> tuple[Any, Any]:
        described = json.loads((FOLDER / f"{name}.json").read_text())
        options = described["options"]
        if (FOLDER / f"{name}.clock").exists():
            options["clock"] = FileClock(FOLDER / f"{name}.clock")
        store = holdall.open(described["url"], **options)
        return make_app(store, **described["app"]), store

    async def _close(self, name: str, send: Any) -> None:
        await self._close_store(name)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def _close_store(self, name: str) -> None:
        self._apps.pop(name, None)
        store = self._stores.pop(name, None)
        if store is not None:
            await store.aclose()

    async def _live(self, receive: Any, send: Any) -> None:
        while True:
            event = (await receive())["type"]
            if event == "lifespan.shutdown":
                for store in self._stores.values():
                    await store.aclose()
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return


app = Served()
