"""Where the stores of tests are, on each engine, in words that another process can be told, too."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import holdall
from servers import postgres_url, redis_cluster_url, redis_url

ENGINES: tuple[str, ...] = ("memory", "sqlite", "postgres", "redis", "disk")
if os.environ.get("HOLDALL_TORTURE") == "long":
    ENGINES += ("cluster",)
_numbers = itertools.count()


def place(engine: str, folder: Path) -> dict[str, str]:
    """A new one, for `open_at`."""
    name = f"place_{next(_numbers)}"
    match engine:
        case "memory":
            return {"url": f"memory:{name}"}
        case "sqlite":
            return {"url": f"{folder}/{name}.db"}
        case "disk":
            return {"url": f"disk:///{folder}/{name}", "durability": "relaxed"}
        case "redis":
            return {"url": redis_url(), "prefix": name}
        case "cluster":
            return {"url": redis_cluster_url(), "prefix": name}
    return {"url": postgres_url(), "schema": name}


def open_at(at: dict[str, str], **options: Any) -> holdall.Store:
    own: dict[str, Any] = {name: value for name, value in at.items() if name != "url"}
    return holdall.open(at["url"], **(own | options))
