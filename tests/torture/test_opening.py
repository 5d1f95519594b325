"""Many processes open the same file, which is not there yet, at the same instant."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import apsw

import holdall
from support.processes import receive, report, start

PROCESSES = 10


def test_ten_processes_open_a_new_file_at_once(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    """Nobody gets "database is locked", or anything else but a store that works: while some still open the file,
    others have done their work and close it, which removes its log."""
    rounds = scaled(5, 20)
    crew = [start(open_when_told, name=str(i)) for i in range(PROCESSES)]
    for number in range(rounds):
        path = tmp_path / str(number) / "agent.db"
        begin = time.time() + 0.05
        for process in crew:
            process.send([str(path), begin])
        assert [process.receive() for process in crew] == ["written"] * PROCESSES
        connection = apsw.Connection(str(path))
        assert connection.execute("SELECT version FROM holdall_schema").fetchall() == [(schema_version(),)]
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
        with holdall.open(path) as store:
            assert sorted(entry.key for entry in store.scan()) == [str(i) for i in range(PROCESSES)]
    for process in crew:
        process.send(None)
        process.finish()


def schema_version() -> int:
    from holdall.engines.sqlite.engine import MIGRATIONS

    return len(MIGRATIONS)


def open_when_told(name: str) -> None:
    while (request := receive()) is not None:
        path, begin = request
        while time.time() < begin:
            pass
        with holdall.open(path, filter_fields=["type"]) as store:
            store.put(("home",), name, {"type": name})
            assert [hit.key for hit in store.search(filter={"type": name})] == [name]
        report("written")
