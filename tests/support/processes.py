"""Processes for tests: a function of a test module, run in a process of its own.

    writer = start(write_forever, path=str(path))      in the test
    writer.send("go")                                  ... a message, which the function receives with receive()
    writer.receive()                                   ... the next message that the function sent with report(...)
    writer.finish()                                    ... the remaining messages, after it has ended with code 0

Messages are JSON, one a line. A process that hangs, or a child that it forked, prints the stack of every thread and
dies after `deadline` seconds, so no test waits for ever. Any output on stderr (a warning, an unhandled exception) fails
the test.

Each test process has one fork server: an interpreter that imports a test module once, and forks for each process that
runs a function of it. A process then starts in milliseconds. To import the modules again takes 0.2 s of CPU time, and 2
s with AG2.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

_FORKING_IS_MEANT = "ignore:This process:DeprecationWarning"
_EXPERIMENTAL = "ignore:[HARNESS]:FutureWarning"  # the file stores of agent-framework


class Process:
    """A running process, from the side of the test."""

    def __init__(self, function: Callable[..., Any], deadline: int, job: dict[str, Any]) -> None:
        self.name = function.__name__
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process
        self._status, theirs = socket.socketpair()
        input, to_process = os.pipe()
        from_process, output = os.pipe()
        self._stdin, self._stdout = os.fdopen(to_process, "wb"), os.fdopen(from_process, "rb")
        self._code: int | None = None
        files = [input, output, self._errors.fileno(), theirs.fileno()]
        socket.send_fds(_fork_server(os.getpid()), [b"!"], files)
        theirs.close()
        for pipe in (input, output):
            os.close(pipe)
        request = [function.__code__.co_filename, self.name, deadline, job, str(Path.cwd()), dict(os.environ)]
        self._status.sendall(json.dumps(request).encode() + b"\n")
        self.pid = self._read_status()

    @property
    def code(self) -> int | None:
        """The exit code; None while the process runs."""
        if self._code is None and select.select([self._status], [], [], 0)[0]:
            self._wait()
        return self._code

    def _wait(self) -> int:
        """Wait for the end of the process, and return its exit code: of a signal, minus its number."""
        if self._code is None:
            self._code = self._read_status()
            self._status.close()
        return self._code

    def _read_status(self) -> int:
        """Wait for the next number from the fork server: the id of the process, later its exit code."""
        number = self._status.recv(8, socket.MSG_WAITALL)
        assert number, "the fork server has ended"
        return int.from_bytes(number, signed=True)

    def send(self, message: Any) -> None:
        """Send a message, which the function gets with `receive()`."""
        self._stdin.write(json.dumps(message).encode() + b"\n")
        self._stdin.flush()

    def receive(self) -> Any:
        """Wait for the next message; fail if the process ends instead."""
        line = self._stdout.readline()
        if not line:
            self.finish()
            raise AssertionError(f"{self.name} ended without a message")
        return json.loads(line)

    def ask(self, message: Any) -> Any:
        """Send a message, and return the next one that comes back."""
        self.send(message)
        return self.receive()

    def has_message_within(self, seconds: float) -> bool:
        """Whether a message comes within this time."""
        return bool(select.select([self._stdout], [], [], seconds)[0])

    def finish(self) -> list[Any]:
        """Wait for the end of the process, which must succeed, and return the remaining messages."""
        messages = self.messages()
        code = self._wait()
        errors = self._read_stderr()
        assert code == 0 and not errors, f"{self.name} ended with {code}:\n{errors}"
        return messages

    def kill(self) -> list[Any]:
        """Kill the process with SIGKILL, and return the remaining messages."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
        messages = self.messages()
        self._wait()
        self._errors.close()
        return messages

    def messages(self) -> list[Any]:
        """Return all messages until the process and its forked children have ended."""
        messages = [json.loads(line) for line in self._stdout if line.endswith(b"\n")]
        with suppress(BrokenPipeError):  # of a message that was not read
            self._stdin.close()
        self._stdout.close()
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
        assert process.receive() == "ready"
    for process in processes:
        process.send("go")
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


@cache
def _fork_server(pid: int) -> socket.socket:
    """Start the fork server of this process, and return the socket that accepts requests."""
    ours, theirs = socket.socketpair()
    command = [
        sys.executable,
        "-W",
        "error",
        "-W",
        _FORKING_IS_MEANT,
        "-W",
        _EXPERIMENTAL,
        __file__,
        str(theirs.fileno()),
    ]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()

    def stop() -> None:
        ours.close()
        if os.getpid() == pid:
            server.wait()

    atexit.register(stop)
    return ours


# In the process ------------------------------------------------------------------------------------------------------

_sending = threading.Lock()


def report(message: Any) -> None:
    """Send a message to the test, as one whole line, from any thread or forked child."""
    line = json.dumps(message).encode() + b"\n"
    with _sending:
        while line:
            line = line[os.write(1, line) :]


def receive() -> Any:
    """Wait for the next message from the test."""
    return json.loads(sys.stdin.readline())


def wait_to_begin() -> None:
    """Report that this process is ready, and wait for the others: see `finish_together`."""
    report("ready")
    receive()


def _main(requests: int) -> None:
    """Serve: fork for each request. Only the forked children return from `_fork_on_request`."""
    sys.path[0] = str(Path(__file__).parents[1])
    sys.modules["support.processes"] = sys.modules["__main__"]
    request = _fork_on_request(socket.socket(fileno=requests))
    if request is None:
        return
    file, name, deadline, job, folder, environment = request
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    faulthandler.register(signal.SIGALRM, chain=True)  # prints the stacks; then SIGALRM does what it always does
    signal.alarm(deadline)
    os.register_at_fork(after_in_child=lambda: _begin_in_child(deadline))
    module = sys.modules[Path(file).stem] = _load_module(file)
    getattr(module, name)(**job)


def _fork_on_request(requests: socket.socket) -> list[Any] | None:
    """Fork for each request, and report each child's id and exit code. Return the request in a child, None at the end.

    A child continues as a new interpreter would: it has imported the test module, and nothing else was done.
    """
    ended, wake_up = socket.socketpair()
    wake_up.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_up.fileno())
    statuses: dict[int, socket.socket] = {}
    while True:
        for ready in select.select([requests, ended], [], [])[0]:
            if ready is ended:
                ended.recv(4096)
                _report_ended(statuses)
                continue
            byte, files, _, _ = socket.recv_fds(requests, 1, 4)
            if not byte:
                return None
            *streams, status = files
            channel = socket.socket(fileno=status)
            request = _receive_request(channel)
            with suppress(BaseException):  # the child raises it again
                _load_module(request[0])
            gc.freeze()  # a garbage collection in the child is of the child's own objects
            if child := os.fork():
                statuses[child] = channel
                _send_number(channel, child)
                for stream in streams:
                    os.close(stream)
                continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            for file in (requests, ended, wake_up, channel, *statuses.values()):
                file.close()
            return request


def _report_ended(statuses: dict[int, socket.socket]) -> None:
    while statuses:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        channel = statuses.pop(child)
        _send_number(channel, os.waitstatus_to_exitcode(status))
        channel.close()


def _receive_request(channel: socket.socket) -> list[Any]:
    line = b""
    while not line.endswith(b"\n"):
        line += channel.recv(1 << 16)
    request: list[Any] = json.loads(line)
    return request


def _send_number(channel: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError):  # a test that has failed does not wait
        channel.sendall(number.to_bytes(8, signed=True))


@cache
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
    _main(int(sys.argv[1]))
