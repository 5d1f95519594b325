"""Where the stores of a torture test are: a file, a folder, a schema of a real PostgreSQL, as a process is told."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import holdall
from servers import postgres_url

_numbers = itertools.count()


def place(engine: str, tmp_path: Path) -> dict[str, str]:
    """What `open_at` opens."""
    if engine == "sqlite":
        return {"url": str(tmp_path / "agent.db")}
    if engine == "disk":
        return {"url": f"disk:///{tmp_path}/agent", "durability": "relaxed"}
    return {"url": postgres_url(), "schema": f"torture_{next(_numbers)}"}


def open_at(at: dict[str, str], **options: Any) -> holdall.Store:
    own = {name: value for name, value in at.items() if name != "url"}
    return holdall.open(at["url"], **own, **options)
