"""How another process's changes to a SQLite file are noticed: by notices of the system, or by looking."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdall
from holdall.engines.sqlite import wal_listener
from holdall.ops import Changes, Put
from holdall.testing.caller import WatchCaller
from support.processes import Process, receive, report, start

HOME = ("home",)
NEVER = 1000.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "agent.db")


@pytest.fixture
def writer(path: str) -> Iterator[Process]:
    process = start(write, path=path)
    assert process.receive() == "ready"
    yield process
    process.send(None)
    process.finish()


def key_of_next(changes: holdall.Watch) -> str:
    """What comes next; a failure if nothing does."""
    return WatchCaller(changes, None).take(1)[0].key


def write(path: str) -> None:
    """Put what the test asks for, in another process."""
    with holdall.open(path) as store:
        store.put(("elsewhere",), "k", {})
        report("ready")
        while (key := receive()) is not None:
            store.put(HOME, key, {})


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives notices")
def test_another_process_is_noticed_without_looking_for_it(
    path: str, writer: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_listener, "_SLOW", NEVER)
    with holdall.open(path) as store, store.watch(HOME) as changes:
        for number in range(5):
            writer.send(f"k{number}")
            assert key_of_next(changes) == f"k{number}"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives notices")
def test_a_log_that_was_replaced_is_noticed_too(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a fork, before which all is closed: the write-ahead log goes, and comes again as another file."""
    monkeypatch.setattr(wal_listener, "_SLOW", 0.05)  # only until it is noticed that the file was gone
    with holdall.open(path) as store, store.watch(HOME) as changes:
        store.put(HOME, "before", {})
        assert key_of_next(changes) == "before"
        engine = store._engine_handle.engine
        for number in range(3):
            engine.before_fork()
            assert not Path(f"{path}-wal").exists()
            engine.after_fork(in_child=False)
            with holdall.open(path, timeout=29) as other:  # another engine, which does not ring here
                other.put(HOME, str(number), {})
                assert key_of_next(changes) == str(number)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives notices")
@pytest.mark.parametrize("written", ["before it listens", "while it listens"])
def test_what_a_slow_disk_keeps_back_is_seen_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """The file is written, and long after that the commit can be seen, of which there is no notice."""
    monkeypatch.setattr(wal_listener, "_SLOW", NEVER)
    monkeypatch.setattr(wal_listener, "_HOT", 0.01)
    monkeypatch.setattr(wal_listener, "_WARM", 1.0)
    wal, newest, rung = tmp_path / "wal", [1], threading.Event()
    wal.write_text("frames")
    listener = wal_listener.WalListener(str(wal), lambda: newest[0], rung.set)
    try:
        assert rung.wait(30)  # it has begun
        rung.clear()
        if written == "while it listens":
            time.sleep(1.1)  # until it looks no more for what was under way
            wal.write_text("more frames")
        time.sleep(0.1)  # the disk
        newest[0] = 2
        assert rung.wait(5)
    finally:
        listener.close()


def test_where_there_are_no_notices_it_looks_often(path: str, writer: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_listener, "_SLOW", NEVER)
    monkeypatch.setattr(wal_listener._FileEvents, "subscribe", lambda self: False)
    with holdall.open(path) as store, store.watch(HOME) as changes:
        for number in range(3):
            writer.send(f"k{number}")
            assert key_of_next(changes) == f"k{number}"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives notices")
def test_a_subscription_leaves_nothing_open(path: str, writer: Process) -> None:
    def of_the_system() -> list[str]:
        """Pipes, and what notices come from; readers of the file are kept for the next one."""
        links = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
        return sorted(link for link in links if link.startswith(("pipe:", "anon_inode:")))

    with holdall.open(path) as store:
        before = of_the_system()
        for number in range(3):
            with store.watch(HOME) as changes:
                writer.send(f"k{number}")
                assert key_of_next(changes) == f"k{number}"
                assert "anon_inode:inotify" in of_the_system()
        assert of_the_system() == before


def test_the_feed_is_read_in_the_order_of_the_table(path: str) -> None:
    """By its own order from the cursor on, whatever is asked for: an index of namespaces would read all of one."""
    with holdall.open(path, durability="relaxed") as store:
        store.execute([Put(HOME, f"/f{i}", {}) for i in range(100)])
        engine = store._engine_handle.engine
        reader = engine._readers.take()
        seen = []
        reader.exec_trace = lambda cursor, sql, bindings: seen.append((sql, bindings)) or True
        engine._readers.give_back(reader)
        for walk in (Changes(HOME, "50"), Changes((), "50"), Changes(HOME, "50", path="/f1")):
            engine.execute([walk])
        reader.exec_trace = None
        asked = [(sql, bindings) for sql, bindings in seen if "ORDER BY version" in sql]
        assert len(asked) == 3
        for sql, bindings in asked:
            plan = [row[-1] for row in reader.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
            assert plan[0] == "SEARCH holdall_entries USING INTEGER PRIMARY KEY (rowid>?)"
            assert not [step for step in plan[1:] if "holdall_entries" in step]
