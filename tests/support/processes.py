"""Processes for tests: a function of a test module, run in a new interpreter.

    writer = start(write_forever, path=str(path))      in the test
    writer.tell("go")                                  ... a message, which the function receives with hear()
    writer.hear()                                      ... the next message that the function sent with tell(...)
    writer.finish()                                    ... the remaining messages, after it has ended with code 0

Messages are JSON, one a line. A process that hangs, or a child that it forked, prints the stack of every thread and
dies after `deadline` seconds, so no test waits for ever. Any output on stderr (a warning, an unhandled exception) fails
the test.
"""

from __future__ import annotations

import faulthandler
import importlib.util
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
from types import ModuleType
from typing import Any

_FORKING_IS_MEANT = "ignore:This process:DeprecationWarning"


class Process:
    """A running process, from the side of the test."""

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
        """The exit code; None while the process runs."""
        return self._popen.poll()

    def tell(self, message: Any) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps(message).encode() + b"\n")
        self._popen.stdin.flush()

    def hear(self) -> Any:
        """Wait for the next message; fail if the process ends instead."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            self.finish()
            raise AssertionError(f"{self.name} ended without a message")
        return json.loads(line)

    def ask(self, message: Any) -> Any:
        """Send a message, and return the next one that comes back."""
        self.tell(message)
        return self.hear()

    def says_something_within(self, seconds: float) -> bool:
        """Whether a message comes within this time."""
        return bool(select.select([self._popen.stdout], [], [], seconds)[0])

    def finish(self) -> list[Any]:
        """Wait for the end of the process, which must succeed, and return the remaining messages."""
        messages = self.messages()
        code = self._popen.wait()
        errors = self._read_stderr()
        assert code == 0 and not errors, f"{self.name} ended with {code}:\n{errors}"
        return messages

    def kill(self) -> list[Any]:
        """Kill the process with SIGKILL, and return the remaining messages."""
        self._popen.kill()
        messages = self.messages()
        self._popen.wait()
        self._errors.close()
        return messages

    def messages(self) -> list[Any]:
        """Return all messages until the process and its forked children have ended."""
        assert self._popen.stdin is not None and self._popen.stdout is not None
        messages = [json.loads(line) for line in self._popen.stdout if line.endswith(b"\n")]
        self._popen.stdin.close()
        self._popen.stdout.close()
        return messages

    def _read_stderr(self) -> str:
        self._errors.seek(0)
        with self._errors:
            return self._errors.read().decode(errors="replace")


def start(function: Callable[..., Any], /, *, deadline: int = 120, **job: Any) -> Process:
    """Start `function(**job)` in a new process."""
    return Process(function, deadline, job)


def run(function: Callable[..., Any], /, *, deadline: int = 120, **job: Any) -> list[Any]:
    """Run `function(**job)` in a new process to its end, and return its messages."""
    return start(function, deadline=deadline, **job).finish()


def finish_together(processes: list[Process]) -> list[list[Any]]:
    """Let processes that `wait_to_begin` continue at once, and return their later messages after all have ended."""
    for process in processes:
        assert process.hear() == "ready"
    for process in processes:
        process.tell("go")
    return [process.finish() for process in processes]


@contextmanager
def beginning(*processes: Process) -> Iterator[tuple[Process, ...]]:
    """Kill the processes at the end of the block. If one has failed, and so the test, its error is raised."""
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

_sending = threading.Lock()


def tell(message: Any) -> None:
    """Send a message to the test, as one whole line, from any thread or forked child."""
    line = json.dumps(message).encode() + b"\n"
    with _sending:
        while line:
            line = line[os.write(1, line) :]


def hear() -> Any:
    """Wait for the next message from the test."""
    return json.loads(sys.stdin.readline())


def wait_to_begin() -> None:
    """Report that this process is ready, and wait for the others: see `finish_together`."""
    tell("ready")
    hear()


def _main(file: str, name: str, deadline: str, job: str) -> None:
    sys.path[0] = str(Path(__file__).parents[1])
    sys.modules["support.processes"] = sys.modules["__main__"]
    faulthandler.register(signal.SIGALRM, chain=True)  # prints the stacks; then SIGALRM does what it always does
    signal.alarm(int(deadline))
    os.register_at_fork(after_in_child=lambda: _begin_in_child(int(deadline)))
    getattr(_load_module(file), name)(**json.loads(job))


def _load_module(file: str) -> ModuleType:
    """Import a test module by its path: folders of tests are no packages."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _begin_in_child(deadline: int) -> None:
    global _sending
    _sending = threading.Lock()
    signal.alarm(deadline)


if __name__ == "__main__":
    _main(*sys.argv[1:])
