"""The command `holdall URL serve` in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.servers import free_port


@dataclass
class Serving:
    """A running server, its URL and its admin token."""

    url: str
    token: str
    process: subprocess.Popen[str]


@contextlib.contextmanager
def serving(
    store: str, folder: Path, *arguments: str, workers: int = 2, port: int | None = None, ca_file: Path | None = None
) -> Iterator[Serving]:
    """Serve a store with the command until the block ends; `ca_file` is for a server with TLS."""
    port = port or free_port()
    command = [sys.executable, "-m", "holdall", store, "serve", "--port", str(port), "--workers", str(workers)]
    output = folder / "serve.out"
    with output.open("w") as out, (folder / "serve.err").open("w") as err:
        process = subprocess.Popen(
            [*command, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True, start_new_session=True
        )
    try:
        url = f"{'http' if ca_file is None else 'https'}://127.0.0.1:{port}"
        context = None if ca_file is None else ssl.create_default_context(cafile=str(ca_file))
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/healthz", timeout=5, context=context).close()
                break
            except (urllib.error.URLError, OSError):
                log = (folder / "serve.err").read_text()[-3000:]
                assert process.poll() is None, log
                assert time.monotonic() < deadline, log
                time.sleep(0.05)
        token = re.search(r"hold_\w+_[\w-]{43}", output.read_text())
        yield Serving(url, "" if token is None else token[0], process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
