"""Engines in use: opened from many threads, by functions, across forks."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import holdall
from holdall import ops
from holdall.core import engine_handle
from holdall.engine import Options
from holdall.engines.memory import MemoryEngine
from holdall.errors import Unavailable
from holdall.runtime import closers


def in_a_process(code: str) -> str:
    """Run code that may hang: a hang is an error here."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_function_that_makes_an_engine_may_open_stores_itself():
    def make(options):
        holdall.open("memory:").close()
        return MemoryEngine(options)

    with holdall.open(make) as store:
        assert store.put(("a",), "k", {}).version == 1


def test_a_wrapper_is_not_reentrant_because_its_inner_engine_is():
    class Wrapper:
        def __init__(self, options):
            self._engine = MemoryEngine(options)

        def __getattr__(self, name):
            return getattr(self._engine, name)

    assert Wrapper(Options()).is_async_reentrant, "it forwards the name"
    with holdall.open(Wrapper) as store:
        assert not store._engine_handle._is_async_reentrant
    with holdall.open("memory:") as store:
        assert store._engine_handle._is_async_reentrant


def test_stores_first_opened_by_several_threads_at_once_survive_a_fork():
    out = in_a_process("""
import os, threading, holdall
barrier = threading.Barrier(8)
def work():
    barrier.wait()
    holdall.open("memory:").put(("a",), "k", {})
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
for _ in range(3):
    child = os.fork()
    if not child:
        holdall.open("memory:").put(("a",), "k", {})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("done")
""")
    assert out == "done\n"


def test_an_engine_that_cannot_get_ready_for_a_fork_stops_nobody_else():
    out = in_a_process("""
import logging, os, holdall
from holdall.engines.memory import MemoryEngine
logging.disable()
class Stubborn(MemoryEngine):
    def before_fork(self): raise RuntimeError("no")
    def after_fork(self, in_child): raise RuntimeError("never")
stubborn, other = holdall.open(Stubborn), holdall.open("memory:")
child = os.fork()
if not child: os._exit(0)
assert os.waitpid(child, 0)[1] == 0
other.put(("a",), "k", {})
holdall.open("memory:").put(("a",), "k", {})
print("done")
""")
    assert out == "done\n"


def test_a_fork_while_an_engine_is_imported_leaves_the_child_able_to_import_it():
    out = in_a_process("""
import os, signal, sys, threading, time, holdall
importing = threading.Event()
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "holdall.engines.memory" and not importing.is_set():
            importing.set()
            time.sleep(0.5)
sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=lambda: holdall.open("memory:").put(("a",), "k", {}))
thread.start()
importing.wait()
child = os.fork()
if not child:
    signal.alarm(10)
    holdall.open("memory:").put(("a",), "k", {})
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread.join()
print("done")
""")
    assert out == "done\n"


class BehindEngine(MemoryEngine):
    """One that always needs maintenance."""

    needs_maintenance = True


class StuckEngine(BehindEngine):
    """One whose maintenance fails."""

    def execute(self, batch):
        if type(batch[0]) is ops.Maintain:
            raise Unavailable("no room")
        return super().execute(batch)


def test_an_engine_that_always_needs_maintenance_is_swept_all_the_same():
    with holdall.open(BehindEngine, sweep_interval=0.05) as store:
        store.put(("a",), "k", {}, ttl=0.001)
        deadline = time.monotonic() + 10
        kinds = []
        while kinds != ["expire"] and time.monotonic() < deadline:
            store.files().exists("/other")  # after which there is more maintenance to do
            kinds = [change.kind for change in store._engine_handle.engine.execute([ops.Changes()])[0]]
        assert kinds == ["expire"]


def test_maintenance_that_fails_is_not_tried_after_every_batch(caplog):
    with holdall.open(StuckEngine, sweep_interval=30) as store, caplog.at_level(logging.WARNING, "holdall"):
        for _ in range(50):
            store.files().exists("/f")
            time.sleep(0.002)
    assert len([record for record in caplog.records if "maintenance failed" in record.message]) == 1


class FaultyEngine(MemoryEngine):
    """One whose first sweep fails with an error that is not ours."""

    has_failed = False

    def execute(self, batch):
        if type(batch[0]) is ops.Sweep and not self.has_failed:
            self.has_failed = True
            raise ValueError("a fault of the engine's")
        return super().execute(batch)


def test_maintenance_goes_on_after_any_error(caplog):
    with holdall.open(FaultyEngine, sweep_interval=0.05) as store, caplog.at_level(logging.WARNING, "holdall"):
        store.put(("a",), "k", {}, ttl=0.001)
        deadline = time.monotonic() + 10
        kinds = []
        while kinds != ["expire"] and time.monotonic() < deadline:
            time.sleep(0.01)
            kinds = [change.kind for change in store._engine_handle.engine.execute([ops.Changes()])[0]]
        assert kinds == ["expire"]
    [record] = [record for record in caplog.records if "maintenance failed" in record.message]
    assert record.exc_info, "what is not ours is logged with its traceback"


def test_stores_that_share_an_engine_use_the_longest_retention_and_the_shortest_sweep_interval(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    options = [
        {"sweep_interval": None, "feed_retention": 5},
        {"sweep_interval": 30.0, "feed_retention": 50},
        {"sweep_interval": 60.0, "feed_retention": 5},
    ]
    stores = [holdall.open(path, **each) for each in options]
    shared = stores[0]._engine_handle
    assert {store._engine_handle for store in stores} == {shared}
    assert (shared._sweep_interval, shared.feed_retention, shared.is_swept) == (30.0, 50, False)
    stores.append(holdall.open(path, feed_retention=None))
    assert shared.feed_retention is None
    for store in stores:
        store.close()


def test_a_forked_child_keeps_nothing_of_an_engine_that_could_not_get_ready(tmp_path: Path) -> None:
    """Its connections are the parent's. A child that used them, or closed them, would damage the file."""
    out = in_a_process(f"""
import logging, os, holdall
from holdall.engines.sqlite import SqliteEngine
logging.disable()
store = holdall.open({str(tmp_path / "agent.db")!r})
store.put(("a",), "before", {{}})
def fail(self):
    raise OSError("no")
SqliteEngine.before_fork = fail
child = os.fork()
if not child:
    assert store._engine_handle.engine._writer is None
    store.put(("a",), "child", {{}})
    assert store.get(("a",), "before")
    store.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
store.put(("a",), "parent", {{}})
print(sorted(entry.key for entry in store.scan(("a",))))
store.close()
""")
    assert out == "['before', 'child', 'parent']\n"


def test_a_thread_that_wants_to_fork_does_not_take_the_mark_of_one_that_forks() -> None:
    """Its closers would start in the middle of the fork."""
    engine_handle._before_fork()
    other_is_done = threading.Event()

    def fork_too() -> None:
        engine_handle._before_fork()
        engine_handle._after_fork_in_parent()
        other_is_done.set()

    other = threading.Thread(target=fork_too)
    try:
        other.start()
        assert not other_is_done.wait(0.05), "it waits until this fork is over"
        closer = closers.start_closer(lambda: None)
        assert closer.ident is None
    finally:
        engine_handle._after_fork_in_parent()
    other.join()
    closer.join()
    assert closers._forking is None
