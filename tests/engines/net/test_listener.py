"""Listeners recover from every failure: without one, a watch would wait for ever."""

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
from holdall.engines.postgres.listener import Channel
from holdall.engines.sqlite.wal_listener import WalListener
from support.processes import receive, report, start
from support.servers import postgres_url

NS = ("notes",)


def test_a_listener_whose_connection_is_terminated_repeatedly_still_learns_of_changes() -> None:
    writer = start(put_on_request, deadline=120, url=postgres_url(), schema="listening")
    terminated: set[int] = set()
    with (
        holdall.open(postgres_url(), schema="listening") as store,
        psycopg.connect(postgres_url(), autocommit=True) as admin,
        ThreadPoolExecutor(1) as threads,
    ):
        watch = store.watch(NS)
        for n in range(4):
            change = threads.submit(next, watch)
            try:
                terminated.add(terminate_listener(admin, terminated))
                wait_for_new_listener(admin, terminated)
                writer.send(str(n))
                assert writer.receive() == "done"
                assert change.result(20).key == str(n)
            finally:
                if not change.done():
                    watch.close()  # else its thread would wait for ever
        watch.close()
    writer.send(None)
    writer.finish()


def put_on_request(url: str, schema: str) -> None:
    with holdall.open(url, schema=schema) as store:
        while (key := receive()) is not None:
            store.put(NS, key, {})
            report("done")


def terminate_listener(admin: psycopg.Connection, terminated: set[int]) -> int:
    pid = wait_for_new_listener(admin, terminated)
    admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    return pid


def wait_for_new_listener(admin: psycopg.Connection, terminated: set[int]) -> int:
    """Wait for a listener with another server process than those; return the process id."""
    lock = re.findall(r"-?\d+", Channel("listening").listen[0])[0]
    sql = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = {lock}"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pids = {pid for (pid,) in admin.execute(sql)} - terminated
        if pids:
            return int(pids.pop())
        time.sleep(0.01)
    raise AssertionError("there is no listener")


def test_a_listener_of_a_file_recovers_from_an_error_of_any_kind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    looks, notified, well = [0], threading.Event(), threading.Event()

    def look() -> object:
        looks[0] += 1
        if looks[0] == 1:
            raise RuntimeError("a look that failed")
        well.set()
        return looks[0]

    listener = WalListener(str(tmp_path / "wal"), look, notified.set)
    try:
        assert well.wait(20), "it has ended"
        assert notified.is_set()
    finally:
        listener.close()
    assert "a look that failed" in caplog.text


def test_a_collected_watch_does_not_wait_for_its_listener(tmp_path: Path) -> None:
    """It may be collected in any thread, also in one that holds a lock which the listener needs."""
    with holdall.open(tmp_path / "store.db") as store:
        watches = [store.watch(NS)]
        store.put(NS, "k", {})
        next(watches[0])
        watches[0]._listen()
        engine: Any = store._engine_handle.engine
        lock = engine._readers._connecting = ObservedLock()
        collected = threading.Event()

        def collect() -> None:
            with lock:
                deadline = time.monotonic() + 20
                while not lock.is_wanted.wait(0.01):  # a reader that was in use may have been returned
                    engine._readers._idle.clear()
                    assert time.monotonic() < deadline, "the listener does not read"
                watches.clear()
                gc.collect()
                collected.set()

        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        try:
            assert collected.wait(40), "it waits for the listener, which waits for it"
        finally:
            if not collected.is_set():
                lock.lock.release()
            thread.join()
    assert [thread for thread in threading.enumerate() if thread.name in ("holdall-listener", "holdall-closer")] == []


class ObservedLock:
    """A lock that records when a listener wants it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_wanted = threading.Event()

    def __enter__(self) -> None:
        if threading.current_thread().name == "holdall-listener":
            self.is_wanted.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):  # the test has released it
            self.lock.release()
