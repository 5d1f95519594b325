"""Who leads, and who is told what, where a thread is interrupted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdall.engines.commit import GroupCommit, Submission
from holdall.ops import Get, Op

BATCH: list[Op] = [Get(("home",), "key")]


class TimeIsUp(Exception):
    """As somebody's handler of SIGALRM raises it."""


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TimeIsUp])
def test_an_interrupt_while_the_lead_is_handed_over_is_not_the_next_leaders(interrupt: type[BaseException]) -> None:
    """A signal comes in the thread that has to start one for a task."""
    under_way, has_queued, interrupted = threading.Event(), threading.Event(), threading.Event()

    def commit(group: list[Submission]) -> None:
        under_way.set()
        assert has_queued.wait(10)
        for submission in group:
            submission.results, submission.finished = ["done"], True

    def spawn(lead: Callable[[], None]) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise interrupt
        threading.Thread(target=lead).start()

    def put() -> None:
        with pytest.raises(interrupt):
            commits.submit(BATCH)

    async def aput() -> list[Any]:
        assert await asyncio.to_thread(under_way.wait, 10)
        asyncio.get_running_loop().call_later(0.05, has_queued.set)
        return await asyncio.wait_for(commits.asubmit(BATCH), 10)

    commits = GroupCommit(commit, spawn)
    thread = threading.Thread(target=put)
    thread.start()
    assert asyncio.run(aput()) == ["done"]
    thread.join(10)
    assert interrupted.is_set()
    assert commits.submit(BATCH) == ["done"]
