"""One interrupt, at each point where Python looks for signals, in a thread that leads a group of others' batches.

What a signal's handler raises comes at the beginning of a function, after a call of one that is not Python code, or at
the end of a turn of a loop. A trace function raises it there: at the first such point, at the second, and so on.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import holdall
from holdall.errors import Conflict
from processes import run, tell
from threads import TimeIsUp

_OURS = str(Path(holdall.__file__).parent)
_CALLS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX"}
HOME = ("home",)


@pytest.mark.parametrize("interrupt", [TimeIsUp, KeyboardInterrupt])
@pytest.mark.parametrize("what", ["put", "append", "refused"])
def test_one_interrupt_anywhere_is_nothing_to_the_others(
    tmp_path: Path, what: str, interrupt: type[BaseException], scaled: Callable[[int, int], int]
) -> None:
    apart = scaled(20, 1)
    [said] = run(
        interrupt_everywhere, deadline=300, folder=str(tmp_path), what=what, kind=interrupt.__name__, apart=apart
    )
    assert said["complaints"] == []
    assert said["points"] * apart > 300, "this showed nothing"


def interrupt_everywhere(folder: str, what: str, kind: str, apart: int) -> None:
    sys.unraisablehook = lambda _: None  # an interrupt that came while a generator was closed
    interrupt = {each.__name__: each for each in (TimeIsUp, KeyboardInterrupt)}[kind]
    points, at = 0, random.randrange(apart)
    while True:
        trace = Interrupting(at, interrupt)
        interrupt_leader(f"{folder}/{at}.db", what, trace)
        if trace.where is None:
            break
        points += 1
        at += random.randint(1, 2 * apart - 1)
    tell({"points": points, "complaints": []})


def interrupt_leader(path: str, what: str, trace: Interrupting) -> None:
    """Have this thread lead, with tasks that queued before and come meanwhile. If something is wrong then, say so."""
    with holdall.open(path, durability="relaxed", sweep_interval=None, timeout=10) as store, Loop() as loop:
        files, tasks = store.files(), dict[str, Future[Any]]()
        store.put(HOME, "there", {})
        commits: Any = store._shared.engine._commits  # type: ignore[attr-defined]  # SQLite's
        commit, main = commits._commit, threading.get_ident()
        may_end, is_under_way, is_over = threading.Event(), threading.Event(), threading.Event()

        def begin(*paths: str) -> None:
            queued = len(commits._queue)
            tasks.update({path: loop.begin(files.aappend(path, "x")) for path in paths})
            while len(commits._queue) < queued + len(paths):
                assert not any(task.done() for task in tasks.values())

        def commit_with_others(group: list[Any]) -> None:
            if not is_under_way.is_set():
                is_under_way.set()
                assert may_end.wait(10)
            elif threading.get_ident() == main and "/late" not in tasks:
                with trace.aside():
                    begin("/late", "/later")
            commit(group)

        def others() -> None:
            while not commits._queue and not is_over.is_set():
                pass
            begin("/early", "/earlier")
            may_end.set()

        commits._commit = commit_with_others
        threads = [threading.Thread(target=store.put, args=(HOME, "first", {}))]
        threads[0].start()
        assert is_under_way.wait(10)
        threads.append(threading.Thread(target=others))
        threads[1].start()
        with suppress(TimeIsUp, KeyboardInterrupt, Conflict), trace:
            if what == "put":
                store.put(HOME, "main", {})
            elif what == "append":
                files.append("/main", "x")
            else:
                store.put(HOME, "there", {}, expect=holdall.ABSENT)
        is_over.set()
        wrong = ["a thread hangs" for thread in threads if thread.join(10) or thread.is_alive()]
        for path, task in [*tasks.items(), ("no more writing", loop.begin(store.aput(HOME, "last", {})))]:
            try:
                task.result(10)
            except BaseException as error:
                wrong.append(f"{path}: {error!r}")
        wrong += [f"{path} was appended to twice" for path in tasks if not wrong and files.read(path) != b"x"]
        if wrong:  # to close it might take for ever
            tell({"points": 0, "complaints": [f"after {trace.where}: {each}" for each in wrong]})
            os._exit(0)


class Loop:
    """An event loop in a thread."""

    def __enter__(self) -> Loop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def begin(self, awaited: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(awaited, self._loop)

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class Interrupting:
    """A trace function that raises once, at the point of this number."""

    def __init__(self, at: int, interrupt: type[BaseException]) -> None:
        self.where: str | None = None
        self._left, self._interrupt = at, interrupt
        self._before: dict[FrameType, str] = {}
        self._returned_to: FrameType | None = None

    def __enter__(self) -> None:
        sys._getframe().f_trace_opcodes = True  # Python 3.12 gives the first frame none, unless another has asked
        sys.settrace(self)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """For what the test itself does meanwhile."""
        sys.settrace(None)
        yield
        sys.settrace(self)

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.startswith(_OURS):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._point(frame)
        elif event == "opcode":
            before, self._before[frame] = self._before.get(frame, ""), _names(frame.f_code).get(frame.f_lasti, "")
            called = before in _CALLS and self._returned_to is not frame
            self._returned_to = None
            if called or before == "JUMP_BACKWARD":
                self._point(frame)
        elif event == "return":
            self._before.pop(frame, None)
            self._returned_to = frame.f_back
        return self

    def _point(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left == -1:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
            raise self._interrupt


@functools.cache
def _names(code: CodeType) -> dict[int, str]:
    return {each.offset: each.opname for each in dis.get_instructions(code)}
