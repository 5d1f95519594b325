"""Interrupts for tests: one at a chosen point, or signals at random moments.

A signal handler runs, and so may raise, at the beginning of a function, after a call of a function that is not Python
code, or at the end of a turn of a loop. A trace function raises a signal there: at the first such point, at the
second, and so on. While a thread waits in a call that is not Python code, only another process can send a signal.
"""

from __future__ import annotations

import dis
import functools
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_TESTS = str(Path(__file__).parents[1])
_CALLS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX"}


class Interrupted(BaseException):
    """Raised by the signal handler; like KeyboardInterrupt, it is no Exception."""


class InterruptAt:
    """Interrupt the code of a `with` block once, at the point with this number; `where` is its location.

    With `module`, only the points in the file of this name count.
    """

    def __init__(self, number: int, module: str = "") -> None:
        self.where: str | None = None
        self.passed = 0  # points
        self._number = number
        self._module = module
        self._before: dict[FrameType, str] = {}
        self._returned_to: FrameType | None = None

    def __enter__(self) -> None:
        signal.signal(signal.SIGUSR1, _interrupt)
        sys._getframe().f_trace_opcodes = True  # Python 3.12 gives the first frame none, unless another has asked
        sys.settrace(self)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            if frame.f_code.co_filename.startswith(_TESTS):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._reach(frame)
        elif event == "opcode":
            before, self._before[frame] = self._before.get(frame, ""), _names(frame.f_code).get(frame.f_lasti, "")
            has_called = before in _CALLS and self._returned_to is not frame
            self._returned_to = None
            if has_called or before == "JUMP_BACKWARD":
                self._reach(frame)
        elif event == "return":
            self._before.pop(frame, None)
            self._returned_to = frame.f_back
        return self

    def _reach(self, frame: FrameType) -> None:
        if not frame.f_code.co_filename.endswith(self._module):
            return
        self.passed += 1
        if self.passed == self._number + 1:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
            sys.settrace(None)
            self._before.clear()  # a frame would keep alive what it refers to
            self._returned_to = None
            signal.raise_signal(signal.SIGUSR1)


def _interrupt(*_: Any) -> None:
    raise Interrupted


@functools.cache
def _names(code: CodeType) -> dict[int, str]:
    return {each.offset: each.opname for each in dis.get_instructions(code)}


class Signals:
    """Real signals at random moments: `with signals.at_random(): …` may raise `Interrupted`, and at most once."""

    def __init__(self) -> None:
        self.count = 0
        self._is_armed = False
        signal.signal(signal.SIGALRM, self._interrupt)

    @contextmanager
    def at_random(self, most: float) -> Iterator[None]:
        self._is_armed = True
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, random.uniform(0, most)))
        try:
            yield
        finally:
            self._is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _interrupt(self, *_: Any) -> None:
        if self._is_armed and threading.current_thread() is threading.main_thread():
            self._is_armed = False
            self.count += 1
            raise Interrupted
