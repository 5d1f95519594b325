"""How another process's changes to a SQLite file are noticed: by notices of the system, or by looking."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdall
from holdall.engines import notices
from holdall.ops import Changes, Put
from processes import Process, hear, start, tell

HOME = ("home",)
NEVER = 1000.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "agent.db")


@pytest.fixture
def writer(path: str) -> Iterator[Process]:
    process = start(write, path=path)
    assert process.hear() == "ready"
    yield process
    process.tell(None)
    process.finish()


def write(path: str) -> None:
    """Put what we are told to, in another process."""
    with holdall.open(path) as store:
        store.put(("elsewhere",), "k", {})
        tell("ready")
        while (key := hear()) is not None:
            store.put(HOME, key, {})


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives notices")
def test_another_process_is_noticed_without_looking_for_it(
    path: str, writer: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_SLOW", NEVER)
    with holdall.open(path) as store, store.watch(HOME) as changes:
        for number in range(5):
            writer.tell(f"k{number}")
            assert next(changes).key == f"k{number}"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives notices")
def test_a_log_that_was_replaced_is_noticed_too(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a fork, before which all is closed: the write-ahead log goes, and comes again as another file."""
    monkeypatch.setattr(notices, "_SLOW", 0.05)  # only until it is noticed that the file was gone
    with holdall.open(path) as store, store.watch(HOME) as changes:
        store.put(HOME, "before", {})
        assert next(changes).key == "before"
        engine = store._shared.engine
        for number in range(3):
            engine.before_fork()
            assert not Path(f"{path}-wal").exists()
            engine.after_fork(in_child=False)
            with holdall.open(path, timeout=29) as other:  # another engine, which does not ring here
                other.put(HOME, str(number), {})
                assert next(changes).key == str(number)


def test_where_there_are_no_notices_it_looks_often(path: str, writer: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_SLOW", NEVER)
    monkeypatch.setattr(notices._Notices, "asked_for", lambda self: False)
    with holdall.open(path) as store, store.watch(HOME) as changes:
        for number in range(3):
            writer.tell(f"k{number}")
            assert next(changes).key == f"k{number}"


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
                writer.tell(f"k{number}")
                assert next(changes).key == f"k{number}"
                assert "anon_inode:inotify" in of_the_system()
        assert of_the_system() == before


def test_the_feed_is_read_in_the_order_of_the_table(path: str) -> None:
    """By its own order from the cursor on, whatever is asked for: an index of namespaces would read all of one."""
    with holdall.open(path, durability="relaxed") as store:
        store.execute([Put(HOME, f"/f{i}", {}) for i in range(100)])
        engine = store._shared.engine
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
            assert plan == ["SEARCH holdall_entries USING INTEGER PRIMARY KEY (rowid>?)"]
