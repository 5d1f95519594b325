"""What must hold of a store in a bucket, whatever has happened to its machines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import apsw

import holdall
from holdall.engine import Options
from holdall.engines.s3 import Client, S3Engine
from holdall.engines.s3.effects import SHIPPED
from holdall.engines.s3.objects import decode_lines
from holdall.ops import ReadStats
from support.machines import make_engine


def dump(engine: S3Engine) -> dict[str, list[Any]]:
    """Return the rows of the cache that are shipped, once it is up to date."""
    engine.execute([ReadStats()])
    connection = apsw.Connection(engine._path)
    try:
        rows = {}
        for table in SHIPPED:
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table.name})").fetchall()]
            kept = ", ".join(name for name in names if name not in table.local)
            which = f"WHERE {table.key[0]} = '{table.only}'" if table.only else ""
            found = connection.execute(f"SELECT {kept} FROM {table.name} {which}").fetchall()
            rows[table.name] = sorted(found, key=repr)
        rows["seq"] = connection.execute("SELECT seq FROM holdall_bucket").fetchall()
        return rows
    finally:
        connection.close()


def check_caches(url: str, folder: Path, *engines: S3Engine, **own: Any) -> None:
    """Check that the caches of machines are equal, to each other and to one that is built from the bucket."""
    fresh = make_engine(url, Options(), folder / "fresh", **own)
    try:
        built = dump(fresh)
        for engine in engines:
            held = dump(engine)
            for name, rows in built.items():
                assert held[name] == rows, f"{name} differs in {engine._path}"
    finally:
        fresh.close()


def find_text(objects: Client, text: str) -> list[str]:
    """Return the names of the objects of a store that have a text."""
    deadline, found, after = time.monotonic() + 60, [], ""
    while page := objects.list("", after, deadline):
        for name, _ in page:
            data = objects.get(name, deadline) or b""
            lines = decode_lines(data) if name.startswith(("log/", "seg/")) else None
            if text.encode() in (lines[1] if lines else data) + name.encode():
                found.append(name)
        after = page[-1][0]
    return found


def engine_of(store: holdall.Store) -> Any:
    """Return the engine of a store."""
    return store._engine_handle.engine
