"""Listeners go on, whatever happens to them: who watches would wait for ever without."""

from __future__ import annotations

import gc
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdall
from holdall.engines.notices import WalListener
from holdall.engines.postgres_listener import Channel
from processes import hear, start, tell
from servers import postgres_url

NS = ("notes",)


def test_a_listener_whose_connection_is_ended_again_and_again_hears_of_others_changes() -> None:
    writer = start(put_when_told, deadline=120, url=postgres_url(), schema="listening")
    ended: set[int] = set()
    with (
        holdall.open(postgres_url(), schema="listening") as store,
        psycopg.connect(postgres_url(), autocommit=True) as admin,
        ThreadPoolExecutor(1) as threads,
    ):
        watch = store.watch(NS)
        for n in range(4):
            change = threads.submit(next, watch)
            try:
                ended.add(end_listener(admin, ended))
                listening_anew(admin, ended)
                writer.tell(str(n))
                assert writer.hear() == "done"
                assert change.result(20).key == str(n)
            finally:
                if not change.done():
                    watch.close()  # or its thread would wait for ever
        watch.close()
    writer.tell(None)
    writer.finish()


def put_when_told(url: str, schema: str) -> None:
    with holdall.open(url, schema=schema) as store:
        while (key := hear()) is not None:
            store.put(NS, key, {})
            tell("done")


def end_listener(admin: psycopg.Connection, ended: set[int]) -> int:
    pid = listening_anew(admin, ended)
    admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    return pid


def listening_anew(admin: psycopg.Connection, ended: set[int]) -> int:
    """The server's process that a listener talks to, once there is another than those."""
    lock = re.findall(r"-?\d+", Channel("listening").listen[0])[0]
    sql = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = {lock}"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pids = {pid for (pid,) in admin.execute(sql)} - ended
        if pids:
            return int(pids.pop())
        time.sleep(0.01)
    raise AssertionError("nobody listens")


def test_a_listener_of_a_file_goes_on_after_an_error_of_any_kind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    looks, rung, well = [0], threading.Event(), threading.Event()

    def look() -> object:
        looks[0] += 1
        if looks[0] == 1:
            raise RuntimeError("a look that failed")
        well.set()
        return looks[0]

    listener = WalListener(str(tmp_path / "wal"), look, rung.set)
    try:
        assert well.wait(20), "it has ended"
        assert rung.is_set()
    finally:
        listener.close()
    assert "a look that failed" in caplog.text


def test_a_forgotten_watch_waits_for_nobody(tmp_path: Path) -> None:
    """It may be collected in any thread, also in one that has a lock which the listener waits for."""
    with holdall.open(tmp_path / "store.db") as store:
        watches = [store.watch(NS)]
        store.put(NS, "k", {})
        next(watches[0])
        watches[0]._listening()
        engine: Any = store._shared.engine
        door = engine._readers._making = Door()
        forgotten = threading.Event()

        def forget() -> None:
            with door:
                deadline = time.monotonic() + 20
                while not door.knocked.wait(0.01):  # what it reads with may have been out, and come back
                    engine._readers._idle.clear()
                    assert time.monotonic() < deadline, "the listener does not read"
                watches.clear()
                gc.collect()
                forgotten.set()

        thread = threading.Thread(target=forget, daemon=True)
        thread.start()
        try:
            assert forgotten.wait(40), "it waits for the listener, which waits for it"
        finally:
            if not forgotten.is_set():
                door.lock.release()
            thread.join()
    assert [thread for thread in threading.enumerate() if thread.name in ("holdall-listener", "holdall-closer")] == []


class Door:
    """A lock that says when a listener has come to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.knocked = threading.Event()

    def __enter__(self) -> None:
        if threading.current_thread().name == "holdall-listener":
            self.knocked.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):  # the test has let the listener in
            self.lock.release()
