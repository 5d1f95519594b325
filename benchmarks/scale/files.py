"""What a store on SQLite has on disk, by table, and in files beside the database."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw


def bytes_by_table(connection: apsw.Connection) -> dict[str, int]:
    """Bytes of the used pages of each table and index."""
    rows: list[Any] = connection.execute("SELECT name, pgsize FROM dbstat WHERE aggregate = TRUE").fetchall()
    return dict(rows)


def bytes_beside(path: Path) -> dict[str, int]:
    """Bytes of the files in the folder of a database, without itself, its log and their shared memory."""
    own = {path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")}
    others = [other for other in path.parent.rglob("*") if other.is_file() and other not in own]
    return {str(other.relative_to(path.parent)): other.stat().st_size for other in others}


def bytes_of(path: Path) -> dict[str, int]:
    """Both, by name."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return {**bytes_by_table(connection), **bytes_beside(path)}
