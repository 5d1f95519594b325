"""Threads for tests, whose failures are the test's, and what a signal's handler raises in one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class TimeIsUp(Exception):
    """As somebody's handler of SIGALRM raises it."""


def together(functions: list[Callable[[], Any]]) -> None:
    """Each in a thread of its own; the first failure is raised here."""
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
