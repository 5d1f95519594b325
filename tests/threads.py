"""Threads for tests, whose failures are the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


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
