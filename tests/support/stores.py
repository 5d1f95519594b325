"""Locations of stores on each engine: a URL and options, as plain data that can be sent to another process."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import holdall
from support.extent import IS_SHORT
from support.served import server
from support.servers import postgres_url, redis_cluster_url, redis_url, s3_credentials, s3_server

ENGINES: tuple[str, ...] = ("memory", "sqlite", "postgres", "redis", "disk")
if not IS_SHORT:
    ENGINES += ("cluster", "s3")
#: The engines for tests of faces. A remote engine has a store on SQLite behind a server with two workers.
FACE_ENGINES = ENGINES if IS_SHORT else (*ENGINES, "remote")
_numbers = itertools.count()


def new_location(engine: str, folder: Path) -> dict[str, str]:
    """Return the location of a store that does not exist yet, for `open_at`."""
    name = f"store_{next(_numbers)}"
    match engine:
        case "memory":
            return {"url": f"memory:{name}"}
        case "sqlite":
            return {"url": f"{folder}/{name}.db"}
        case "disk":
            return {"url": f"disk:///{folder}/{name}", "durability": "relaxed"}
        case "redis":
            return {"url": redis_url(), "key_prefix": name}
        case "cluster":
            return {"url": redis_cluster_url(), "key_prefix": name}
        case "remote":
            url = server().serve(f"sqlite:///{folder}/{name}.db", durability="relaxed")
            server().clock(url).follow(None)
            return {"url": url}
        case "s3":
            bucket, (key, secret) = s3_server(), s3_credentials()
            os.environ |= {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}  # for other processes, too
            return {"url": f"s3://{bucket.bucket}/{name}", "endpoint": bucket.endpoint, "cache": str(folder / "cache")}
    return {"url": postgres_url(), "schema": name}


def open_at(at: dict[str, str], **options: Any) -> holdall.Store:
    """Open the store at a location."""
    if at["url"].startswith("http://") and options.get("clock") is not None:
        server().clock(at["url"]).mirror(options["clock"])
    own: dict[str, Any] = {name: value for name, value in at.items() if name != "url"}
    return holdall.open(at["url"], **(own | options))
