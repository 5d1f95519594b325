"""Replies that are lost: a write is sent again, and done once; killed workers lose nothing that was answered."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import holdall
from holdall import ops, wire
from holdall.errors import OutcomeUnknown
from support.extent import IS_SHORT
from support.serve_command import serving
from support.served import server


class LossyProxy:
    """Forwards connections to a port. While `drops` is above 0, it drops a reply after the server has answered."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.drops = 0
        self.dropped = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                upstream = socket.create_connection(("127.0.0.1", self._to))
                threading.Thread(target=self._copy, args=(client, upstream), daemon=True).start()
                threading.Thread(target=self._reply, args=(upstream, client), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _reply(self, upstream: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError), upstream, client:
            while data := upstream.recv(65536):
                if self.drops > 0:
                    self.drops -= 1
                    self.dropped += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(params=["sqlite"] if IS_SHORT else ["sqlite", "memory"])
def lossy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[holdall.Store, LossyProxy]]:
    if request.param == "sqlite":
        url = server().serve(f"sqlite:///{tmp_path}/store.db", has_clock=False)
        proxy = LossyProxy(server().port)
        with holdall.open(url.replace(str(server().port), str(proxy.port)), timeout=10) as store:
            yield store, proxy
        proxy.close()
        return
    arguments = ("--auth", "none")
    with serving("memory:", tmp_path, *arguments, workers=1) as running:
        proxy = LossyProxy(int(running.url.rpartition(":")[2]))
        with holdall.open(f"http://127.0.0.1:{proxy.port}", timeout=10) as store:
            yield store, proxy
        proxy.close()


WRITES: list[tuple[str, Callable[[holdall.Store], Any]]] = [
    ("put", lambda store: store.put(("a",), "k", {"n": 1}).version),
    ("conditional put", lambda store: store.put(("a",), "new", {"n": 1}, expect=holdall.ABSENT).version),
    ("append", lambda store: store.files().append("/log", "line\n")),
    ("delete", lambda store: store.delete(("a",), "there")),
    ("delete a tree", lambda store: store.delete_tree(("tree",))),
    ("batch", lambda store: store.execute([ops.Delete(("a",), "there"), ops.Put(("a",), "k", {})])[0]),
    ("move", lambda store: store.files().move("/old", "/moved").path),
    ("edit", lambda store: store.files().edit("/text", "a", "aa")),
]


@pytest.mark.parametrize(("name", "write"), WRITES, ids=[name for name, _ in WRITES])
@pytest.mark.parametrize("losses", [1] if IS_SHORT else [1, 3])
def test_a_write_whose_reply_is_lost_is_done_once(
    lossy: tuple[holdall.Store, LossyProxy], name: str, write: Callable[[holdall.Store], Any], losses: int
) -> None:
    store, proxy = lossy
    store.put(("a",), "there", {})
    store.put(("tree", "b"), "k", {})
    store.files().write("/old", "x")
    store.files().write("/text", "a")
    before = store.cursor()
    expected = {"delete": True, "batch": True, "delete a tree": 1, "append": 0, "move": "/moved", "edit": 1}
    proxy.drops = losses
    result = write(store)
    assert proxy.dropped == losses
    assert expected.get(name, result) == result
    store.put(("end",), "end", {})
    with store.watch(since=before) as watch:
        changes = [(change.key, change.kind) for change in itertools.takewhile(lambda one: one.key != "end", watch)]
    assert changes
    assert len(changes) == len(set(changes)), "nothing was done twice"
    if name == "append":
        assert store.files().read("/log") == b"line\n"
    if name == "edit":
        assert store.files().read("/text") == b"aa"
    if name in ("put", "conditional put"):
        key = "k" if name == "put" else "new"
        entry = store.get(("a",), key)
        assert entry is not None
        assert entry.version == result


def test_a_retry_after_ten_minutes_has_an_unknown_outcome(lossy: tuple[holdall.Store, LossyProxy]) -> None:
    store, _ = lossy
    engine: Any = store._engine_handle.engine
    slot = wire.Slot("ab" * 16, 0, 1, None, 600.0)
    body = wire.encode(wire.Batch([ops.Delete(("a",), "k")], slot))
    answer = engine._connections.perform(_send(body))
    with pytest.raises(OutcomeUnknown):
        engine._read_reply([ops.Delete(("a",), "k")], answer)


def _send(body: bytes) -> Any:
    import time

    from holdall.engines.remote.connections import Send

    return Send("/v1/engine", body, time.monotonic() + 10)


def is_worker(process: psutil.Process) -> bool:
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


@pytest.mark.skipif(IS_SHORT, reason="in make test-all")
def test_no_answered_write_is_lost_when_workers_are_killed(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    """Clients continue by themselves: uvicorn starts a new worker for each that is killed."""
    kills, database = scaled(8, 50), f"{tmp_path}/store.db"
    with serving(database, tmp_path, workers=2) as running:
        main = psutil.Process(running.process.pid)
        answered: list[str] = []

        async def write(store: holdall.Store, number: int, stop: asyncio.Event) -> None:
            turn = 0
            while not stop.is_set():
                key = f"{number}-{turn}"
                await store.aexecute([ops.Put(("w", "a"), key, {}), ops.Put(("w", "b"), key, {})])
                answered.append(key)
                turn += 1
                await asyncio.sleep(0.005)

        async def run() -> None:
            async with holdall.open(running.url, token=running.token, timeout=60) as store:
                stop = asyncio.Event()
                tasks = [asyncio.create_task(write(store, number, stop)) for number in range(64)]
                for _ in range(kills):
                    await asyncio.sleep(random.uniform(0.5, 1.0))
                    workers = [child for child in main.children() if is_worker(child)]
                    if len(workers) > 1:  # one stays, so that the port is served
                        os.kill(random.choice(workers).pid, signal.SIGKILL)
                await asyncio.sleep(1)
                stop.set()
                await asyncio.gather(*tasks)

        asyncio.run(run())
    with holdall.open(database) as store:
        for part in ("a", "b"):
            stored = {entry.key for entry in store.scan(("w", part))}
            assert set(answered) <= stored
        assert {entry.key for entry in store.scan(("w", "a"))} == {entry.key for entry in store.scan(("w", "b"))}
    assert len(answered) == len(set(answered)) > 64
