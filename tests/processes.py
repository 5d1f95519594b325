"""Real processes for tests: a function of a test module, run in an interpreter of its own.

    writer = start(write_forever, path=str(path))      in the test
    writer.tell("go")                                  ... which the function gets from hear()
    writer.hear()                                      ... what the function said with tell(...)
    writer.finish()                                    ... and the rest of what it said, once it has ended well

Messages are JSON, one a line. A process that hangs, or a child that it forked, prints the stack of every thread and
dies after `deadline` seconds, so no test waits for ever. What it prints on stderr (a warning, an exception that nobody
saw) fails the test.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FORKING_IS_MEANT = "ignore:This process:DeprecationWarning"


class Process:
    """A running process, as the test sees it."""

    def __init__(self, function: Callable[..., Any], deadline: int, job: dict[str, Any]) -> None:
        self.name = function.__name__
        arguments = [function.__code__.co_filename, self.name, str(deadline), json.dumps(job)]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process
        self._popen = subprocess.Popen(
            [sys.executable, "-W", "error", "-W", _FORKING_IS_MEANT, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def code(self) -> int | None:
        """What it ended with; None while it runs."""
        return self._popen.poll()

    def tell(self, message: Any) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps(message).encode() + b"\n")
        self._popen.stdin.flush()

    def hear(self) -> Any:
        """The next message; a failure if the process ended instead."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            self.finish()
            raise AssertionError(f"{self.name} ended without a word")
        return json.loads(line)

    def says_something_within(self, seconds: float) -> bool:
        """Whether there is a message to hear by then, of a process that speaks when it is spoken to."""
        return bool(select.select([self._popen.stdout], [], [], seconds)[0])

    def finish(self) -> list[Any]:
        """The rest of the messages, once the process has ended, and ended well."""
        messages = self.messages()
        code = self._popen.wait()
        errors = self._said_on_stderr()
        assert code == 0 and not errors, f"{self.name} ended with {code}:\n{errors}"
        return messages

    def kill(self) -> list[Any]:
        """End it with SIGKILL, wherever it is; the rest of the messages."""
        self._popen.kill()
        messages = self.messages()
        self._popen.wait()
        self._errors.close()
        return messages

    def messages(self) -> list[Any]:
        """All messages until the process, and whatever it forked, has ended."""
        assert self._popen.stdin is not None and self._popen.stdout is not None
        messages = [json.loads(line) for line in self._popen.stdout if line.endswith(b"\n")]
        self._popen.stdin.close()
        self._popen.stdout.close()
        return messages

    def _said_on_stderr(self) -> str:
        self._errors.seek(0)
        with self._errors:
            return self._errors.read().decode(errors="replace")


def start(function: Callable[..., Any], /, *, deadline: int = 120, **job: Any) -> Process:
    """Begin `function(**job)` in a new process."""
    return Process(function, deadline, job)


def run(function: Callable[..., Any], /, *, deadline: int = 120, **job: Any) -> list[Any]:
    """`function(**job)` in a new process, from beginning to end; what it told."""
    return start(function, deadline=deadline, **job).finish()


def finish_together(processes: list[Process]) -> list[list[Any]]:
    """Let processes that `wait_to_begin` go on at once; what each told after that, when all have ended well."""
    for process in processes:
        assert process.hear() == "ready"
    for process in processes:
        process.tell("go")
    return [process.finish() for process in processes]


@contextmanager
def beginning(*processes: Process) -> Iterator[tuple[Process, ...]]:
    """Processes that end with the test, even if it fails; if it does because one of them has, this says why."""
    try:
        yield processes
    except BaseException:
        for process in processes:
            if process.code not in (None, 0):
                process.finish()
        raise
    finally:
        for process in processes:
            if process.code is None:
                process.kill()


# In the process ------------------------------------------------------------------------------------------------------

_speaking = threading.Lock()


def tell(message: Any) -> None:
    """Say something to the test; whole lines, whichever thread or forked child speaks."""
    line = json.dumps(message).encode() + b"\n"
    with _speaking:
        while line:
            line = line[os.write(1, line) :]


def hear() -> Any:
    """The next message from the test, waited for."""
    return json.loads(sys.stdin.readline())


def wait_to_begin() -> None:
    """Say that all is ready, and wait for those that are to begin at the same time: see `finish_together`."""
    tell("ready")
    hear()


def _main(file: str, name: str, deadline: str, job: str) -> None:
    sys.modules["processes"] = sys.modules["__main__"]
    sys.path[:0] = [str(Path(file).parent)]
    faulthandler.register(signal.SIGALRM, chain=True)  # prints the stacks; then SIGALRM does what it always does
    signal.alarm(int(deadline))
    os.register_at_fork(after_in_child=lambda: _begin_in_child(int(deadline)))
    getattr(importlib.import_module(Path(file).stem), name)(**json.loads(job))


def _begin_in_child(deadline: int) -> None:
    global _speaking
    _speaking = threading.Lock()
    signal.alarm(deadline)


if __name__ == "__main__":
    _main(*sys.argv[1:])
