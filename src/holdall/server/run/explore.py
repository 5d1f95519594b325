"""Serves a store to a browser on this machine, and opens the explorer. The command `holdall URL ui` calls it."""

from __future__ import annotations

import secrets
import socket
import sys
import threading
import time
import webbrowser
from typing import Any

from .serve import Settings, run

_HOST = "127.0.0.1"
_LONGEST_START = 60.0  # seconds


def explore(url: str, *, port: int | None = None, opens_browser: bool = True, options: dict[str, Any]) -> None:
    """Serve a store on loopback until the process is stopped.

    The address that is printed and opened has a secret of this run, which the page exchanges for a cookie. So other
    users of the machine cannot use the server, and no token is written to the store.
    """
    secret = secrets.token_urlsafe(32)
    settings = Settings(url=url, host=_HOST, port=port or _find_port(), options=options, secret=secret)
    threading.Thread(target=_announce, args=(settings.port, secret, opens_browser), daemon=True).start()
    run(settings, log_level="WARNING")


def _find_port() -> int:
    with socket.create_server((_HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _announce(port: int, secret: str, opens_browser: bool) -> None:
    """Print the address, and open it, as soon as the server answers."""
    deadline = time.monotonic() + _LONGEST_START
    while not _is_listening(port):
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)
    address = f"http://{_HOST}:{port}/#token={secret}"
    sys.stdout.write(f"The explorer is at {address}\nStop it with Ctrl+C.\n")
    sys.stdout.flush()
    if opens_browser:
        webbrowser.open(address)


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection((_HOST, port), timeout=5).close()
    except OSError:
        return False
    return True
