"""Threads that close resources for finalizers.

A finalizer may run at any point of any code, so it must not close a resource itself. It may also run during a fork, in
the forking thread, where no thread can be started: such threads start after the fork.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from .signals import defer_signals

_forking: int | None = None  # the id of the thread that forks
_waiting: list[threading.Thread] = []
_awaited: dict[threading.Thread, object] = {}  # with the owners of what they close


def start_closer(close: Callable[[], None], owner: object = None) -> threading.Thread:
    """Start a thread that calls `close`, now or after the fork. `RuntimeError` if the interpreter is shutting down.

    If it has an owner, `wait_for_closers` waits for it.
    """
    return defer_signals(_start_closer, close, owner)


def _start_closer(close: Callable[[], None], owner: object) -> threading.Thread:
    if sys.is_finalizing():  # a new thread would never run, and `start` would wait for it
        raise RuntimeError("the interpreter is shutting down")
    if owner is not None:
        thread = threading.Thread(target=_close_awaited, args=(close,), name="holdall-closer")
        _awaited[thread] = owner
    else:
        thread = threading.Thread(target=close, name="holdall-closer")
    if _forking == threading.get_ident():
        _waiting.append(thread)
        return thread
    try:
        thread.start()
    except RuntimeError:
        _awaited.pop(thread, None)
        raise
    return thread


def wait_for_closers(owner: object = None) -> None:
    """Wait for the threads of an owner, or of all owners."""
    for thread, its_owner in list(_awaited.items()):
        if owner is not None and its_owner is not owner:
            continue
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join()


def _close_awaited(close: Callable[[], None]) -> None:
    try:
        close()
    finally:
        _awaited.pop(threading.current_thread(), None)


def before_fork() -> None:
    """Delay new threads of this thread until `after_fork`."""
    global _forking
    _forking = threading.get_ident()


def after_fork(in_child: bool) -> None:
    """Start the delayed threads. In the child, forget those of the parent."""
    global _forking
    _forking = None
    if in_child:
        _awaited.clear()
    while _waiting:
        _waiting.pop().start()
