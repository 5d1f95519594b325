"""`kill -9` at random moments: what was acknowledged is there, what was not is there wholly or not at all."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import holdall
from support.checksums import sealed
from support.killed_writers import check_round, kill_at_a_random_moment, write_until_killed
from support.processes import receive, report, start


@pytest.mark.parametrize("company", ["alone", "beside another process"])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, scaled: Callable[[int, int], int], company: str) -> None:
    path = str(tmp_path / "agent.db")
    rounds = scaled(5, 50)
    bystander = start(write_on, deadline=rounds * 10 + 120, path=path) if company != "alone" else None
    acknowledged = 0
    for number in range(rounds):
        writer = start(write_until_killed, path=path, number=str(number))
        reported = kill_at_a_random_moment(writer, once_it_writes=number % 4 != 3)
        check_file(path)
        check_round(path, str(number), reported)
        acknowledged += len(reported)
    assert acknowledged > rounds, "the writers were killed before they could write: this showed nothing"
    if bystander is not None:
        bystander.send("stop")
        [written] = bystander.finish()
        with holdall.open(path) as store:
            assert store.count(("bystander",)) == written > 0


def check_file(path: str) -> None:
    connection = apsw.Connection(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def write_on(path: str) -> None:
    """Another process at the same file, which must not notice that its neighbours die."""
    store = holdall.open(path)
    stop = threading.Event()
    threading.Thread(target=lambda: (receive(), stop.set())).start()
    for step in itertools.count(1):
        store.put(("bystander",), str(step), sealed(step=step))
        if stop.wait(0.005):
            break
    store.close()
    report(step)
