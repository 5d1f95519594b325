"""Signal handlers that raise while a lease is acquired or released, at every line where one may run."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import holdall
from holdall import Store
from holdall.errors import LeaseHeld
from holdall.runtime import signals

_TRACED = ("/live/leases.py", "/core/dispatch.py", "/core/engine_handle.py")


class Interrupt(BaseException):
    """What the signal handler raises."""


class Interrupter:
    """Raises at the line with this number, counting from the first. Tracing stops then."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.raised_at = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not (frame.f_code.co_filename.endswith(_TRACED) or frame.f_code is signals.defer_signals.__code__):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # No handler runs while signals are deferred, nor at a line without code.
        if event == "line" and line != "try:" and not signals._is_deferring:
            if self._left == 0:
                self.raised_at = f"{frame.f_code.co_name}: {line}"
                raise Interrupt
            self._left -= 1
        return self


def hold(store: Store) -> None:
    with store.lease("job", 600):
        pass


def end_block(store: Store) -> None:
    with store.lease("job", 600):
        sys.settrace(_postponed)


def release(store: Store) -> None:
    lease = store.lease("job", 600).acquire()
    try:
        sys.settrace(_postponed)
        lease.release()
    except Interrupt:
        lease.release()  # as the caller would, who knows that it was interrupted
        raise


_postponed: Interrupter  # of the part that is interrupted


@pytest.mark.parametrize("part", [hold, end_block, release])
def test_an_interrupted_lease_is_released(part: Callable[[Store], None]) -> None:
    global _postponed
    with holdall.open("memory:") as store:
        hold(store)  # imports and starts what is needed
        for at in range(1000):
            _postponed = Interrupter(at)
            if part is hold:
                sys.settrace(_postponed)
            try:
                part(store)
            except Interrupt:
                pass
            finally:
                sys.settrace(None)
            if not _postponed.raised_at:
                assert at > 0, "nothing was interrupted"
                return
            try:
                store.lease("job", 600).acquire().release()
            except LeaseHeld:
                raise AssertionError(f"interrupted before {_postponed.raised_at}, it is still held") from None
        raise AssertionError("too many lines")
