"""Threads that close resources for finalizers.

A finalizer may run at any point of any code, so it must not close a resource itself. It may also run during a fork, in
the forking thread, where no thread can be started: such threads start after the fork.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_forking: int | None = None  # the id of the thread that forks
_waiting: list[threading.Thread] = []


def start_closer(close: Callable[[], None]) -> threading.Thread:
    """Start a thread that calls `close`, now or after the fork. `RuntimeError` if the interpreter is shutting down."""
    thread = threading.Thread(target=close, name="holdall-closer")
    if _forking == threading.get_ident():
        _waiting.append(thread)
    else:
        thread.start()
    return thread


def before_fork() -> None:
    """Delay new threads of this thread until `after_fork`."""
    global _forking
    _forking = threading.get_ident()


def after_fork() -> None:
    """Start the delayed threads."""
    global _forking
    _forking = None
    while _waiting:
        _waiting.pop().start()
