"""The threads that SQLite's async callers hop to."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from holdall.runtime.workers import Workers
from support.processes import run


def test_closing_ends_a_thread_whose_start_was_interrupted() -> None:
    """Ctrl-C comes while the event loop waits for the new thread to say that it is there: so it is, and unknown."""
    run(close_after_an_interrupted_start, deadline=20)


def close_after_an_interrupted_start() -> None:
    workers, done = Workers(1, "worker"), threading.Event()
    start, started = threading.Thread.start, []

    def interrupted(thread: Any) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            workers.submit(done.set)
    workers.submit(done.set)
    assert done.wait(10)
    workers.close()
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


def test_there_are_no_more_threads_than_there_should_be_after_an_interrupted_start() -> None:
    """Functions that must run one after another do."""
    run(submit_after_an_interrupted_start, deadline=20)


def submit_after_an_interrupted_start() -> None:
    workers, start = Workers(1, "worker"), threading.Thread.start
    at_work: list[threading.Thread] = []

    def work() -> None:
        time.sleep(0.02)  # for another to come in between, if there is one
        at_work.append(threading.current_thread())

    def interrupted(thread: Any) -> None:
        start(thread)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            workers.submit(work)
    for _ in range(4):
        workers.submit(work)
    workers.close()
    assert len(at_work) == 4
    assert len(set(at_work)) == 1
    assert not any(thread.name == "worker" for thread in threading.enumerate())
