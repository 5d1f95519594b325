"""Threads that close what a finalizer found, as that may run in the middle of anything.

Also in the middle of a fork, when no thread can begin: those of the thread that forks wait for its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_forking: int | None = None  # the thread that does
_waiting: list[threading.Thread] = []


def closer(close: Callable[[], None]) -> threading.Thread:
    """A thread that does it, begun now or after the fork. A RuntimeError if the program is ending."""
    thread = threading.Thread(target=close, name="holdall-closer")
    if _forking == threading.get_ident():
        _waiting.append(thread)
    else:
        thread.start()
    return thread


def before_fork() -> None:
    global _forking
    _forking = threading.get_ident()


def after_fork() -> None:
    global _forking
    _forking = None
    while _waiting:
        _waiting.pop().start()
