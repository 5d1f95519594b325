"""Threads whose exceptions fail the test, and a wait for a condition."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class TimeIsUp(Exception):
    """Raised by a test's handler of SIGALRM."""


def together(functions: list[Callable[[], Any]]) -> None:
    """Run each function in its own thread, and raise the first exception."""
    failures: list[BaseException] = []

    def call(function: Callable[[], Any]) -> None:
        try:
            function()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=call, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def eventually(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {seconds} s"
        time.sleep(0.01)
