"""The bells of those who watch: what is collected at whichever moment leaves nothing behind."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest

import holdall
from holdall.live.notification import Notifier, ThreadEvent


def interrupted(code: CodeType, step: int, function: Callable[[], object], call: Callable[[], object]) -> bool:
    """Call something, and a function of a finalizer's in the middle of it, before an instruction; whether it came."""
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps += 1
            if steps == step:
                sys.settrace(None)
                function()
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 gives the first frame none, unless another has asked for them
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps >= step


@pytest.mark.parametrize("method", ["add", "remove", "remove_soon"])
def test_a_bell_that_is_removed_in_the_middle_of_anything_stays_removed(method: str) -> None:
    with holdall.open("memory:") as store:
        engine = store._engine_handle.engine
        code = getattr(Notifier, method).__code__
        step = 1
        while True:
            notifier, collected, kept, other = Notifier(engine), ThreadEvent(), ThreadEvent(), ThreadEvent()
            notifier.add(collected)
            notifier.add(kept)
            if method != "add":
                notifier.add(other)
            came = interrupted(
                code,
                step,
                lambda w=notifier, b=collected: w.remove_soon(b),
                lambda w=notifier, b=other: getattr(w, method)(b),
            )
            if not came:
                break
            assert list(notifier._events) == ([kept, other] if method == "add" else [kept]), (
                f"before instruction {step}"
            )
            step += 1
        assert step > 10


def test_closing_waits_for_every_listener_that_is_being_closed() -> None:
    """Also for those that were begun to be closed in the middle of noting another."""
    slow = threading.Event()

    class Listening:
        def close(self) -> None:
            slow.wait(30)

    class Engine:
        capabilities = holdall.engine.Capabilities(durable=False, multiprocess=False)

        begun = 0

        def listen(self, _: Any) -> Listening:
            self.begun += 1
            return Listening()

    def forget_one() -> None:
        event = ThreadEvent()
        notifier.add(event)
        notifier.remove_soon(event)

    step = 1
    wakers: list[Notifier] = []
    while True:
        engine = Engine()
        notifier = Notifier(engine)  # type: ignore[arg-type]  # as much of one as it takes
        wakers.append(notifier)
        if not interrupted(Notifier.remove_soon.__code__, step, forget_one, forget_one):
            break
        assert len(notifier._closers) >= engine.begun > 0, f"before instruction {step}"
        step += 1
    slow.set()
    for notifier in wakers:
        notifier.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "holdall-closer"]
