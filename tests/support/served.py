"""Stores behind a real server: uvicorn with two workers, started once for each test process."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import holdall
from holdall.testing import Clock
from support.servers import free_port

_numbers = itertools.count()


class SharedClock(Clock):
    """A test's clock that the server's workers share through a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(datetime(2026, 1, 1, tzinfo=UTC))
        self._path = path
        self._share(self())

    def advance(self, time: Any) -> None:
        super().advance(time)
        self._share(self())

    def follow(self, clock: Clock | None) -> None:
        """Let the server have the time of another clock: this machine's, or one that moves when it is read."""
        if clock is None:
            self._share(-1)
        elif clock is not self:
            now = clock()
            self._share(now, clock() - now)

    def mirror(self, clock: Clock) -> None:
        """Let the server have the time of a test's own clock, whenever that is moved."""
        advance = clock.advance

        def advance_both(time: Any) -> None:
            advance(time)
            self._share(clock())

        clock.advance = advance_both  # type: ignore[method-assign]  # of this clock only
        self._share(clock())

    def _share(self, now: int, step: int = 0) -> None:
        with self._path.open("r+b" if self._path.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("<qq", now, step))


class Server:
    """uvicorn with workers, in processes of its own."""

    def __init__(self, workers: int = 2) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdall-served-"))
        self.port = free_port()
        tests = Path(__file__).parents[1]
        command = [sys.executable, "-m", "uvicorn", "support.served_app:app", "--workers", str(workers)]
        options = ["--port", str(self.port), "--log-level", "warning", "--timeout-keep-alive", "75"]
        own = {"HOLDALL_SERVED": str(self.folder), "HOLDALL_WORKERS": str(workers), "PYTHONPATH": str(tests)}
        environment = os.environ | own
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *options],
                env=environment,
                cwd=tests,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/close/none", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.folder / "log").read_text()[-3000:]) from None
                time.sleep(0.05)

    def serve(self, url: str, *, has_clock: bool = True, app: dict[str, Any] | None = None, **options: Any) -> str:
        """Serve a store from now on; return the URL for remote engines. It is opened on first use."""
        name = f"s{next(_numbers)}"
        if has_clock:
            SharedClock(self.folder / f"{name}.clock")
        described = {"url": url, "options": options, "app": app or {"auth": "none"}}
        (self.folder / f"{name}.json").write_text(json.dumps(described))
        return f"http://127.0.0.1:{self.port}/{name}"

    def clock(self, url: str) -> SharedClock:
        """The clock of a served store, from its start."""
        return SharedClock(self.folder / f"{url.rpartition('/')[2]}.clock")

    def change_options(self, url: str, **options: Any) -> None:
        """Serve a store with other options, if no request has opened it yet."""
        described = self.folder / f"{url.rpartition('/')[2]}.json"
        known = json.loads(described.read_text())
        known["options"] |= options
        described.write_text(json.dumps(known))

    def open_directly(self, url: str, **options: Any) -> holdall.Store:
        """Open the store itself that is served at a URL."""
        known = json.loads((self.folder / f"{url.rpartition('/')[2]}.json").read_text())
        return holdall.open(known["url"], **(known["options"] | options))

    def close(self, url: str) -> None:
        """Let the workers close a store. Which worker answers is chance: ask until both have."""
        for _ in range(8):
            name = url.rpartition("/")[2]
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/close/{name}", timeout=30).close()

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def server() -> Server:
    """The server of this test process."""
    started = Server()
    pid = os.getpid()
    atexit.register(lambda: os.getpid() == pid and started.stop())
    return started
