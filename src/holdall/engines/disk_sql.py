"""The catalogue's words: what a `disk:` store has beside SQLite's tables, and how it reads bodies that are plain files.

    ns, key   whose place that is        path      where in the folder
    is_file   of a volume, or an item    stamp     how the file is known again (`disk_tree`); null: not written yet
    folded    the path as the file system compares it, which may not tell "A" from "a"
    before    the stamp that was there before this one; null: none

A second table has the paths of files that nobody's place is any more, and that are to be removed.
"""

from __future__ import annotations

from typing import Any

from .disk_tree import Stale, Tree
from .sqlite_sql import SqliteDialect

SCHEMA = """
    CREATE TABLE holdall_places (
        ns TEXT NOT NULL, key TEXT NOT NULL, path TEXT NOT NULL, folded TEXT NOT NULL, is_file INTEGER NOT NULL,
        stamp TEXT, before TEXT,
        PRIMARY KEY (ns, key)
    ) WITHOUT ROWID;
    CREATE UNIQUE INDEX holdall_place_as ON holdall_places (folded);
    CREATE TABLE holdall_doomed (path TEXT PRIMARY KEY) WITHOUT ROWID;
"""
#: Catalogues had one table for both, once.
DIVIDE = f"""
    CREATE TEMP TABLE older AS SELECT ns, key, path, folded, is_file, stamp, before FROM holdall_places;
    DROP TABLE holdall_places;
    {SCHEMA}
    INSERT INTO holdall_places SELECT * FROM older WHERE ns IS NOT NULL;
    INSERT OR IGNORE INTO holdall_doomed SELECT path FROM older WHERE ns IS NULL;
    DROP TABLE older;
"""
#: Whether something waits for its place, and above which version that is; no row: all is settled.
SETTLED = "SELECT CAST(value AS INTEGER) FROM holdall_state WHERE name = 'settled'"
UNSETTLED = "INSERT OR REPLACE INTO holdall_state VALUES ('settled', ?)"
SETTLE = "DELETE FROM holdall_state WHERE name = 'settled'"
#: Catalogues had the row at all times, once.
FORGET_SETTLED = f"{SETTLE} AND CAST(value AS INTEGER) = (SELECT coalesce(max(version), 0) FROM holdall_entries)"
CHANGED = """
    FROM holdall_entries AS entry NOT INDEXED LEFT JOIN holdall_places AS place
        ON place.ns = entry.ns AND place.key = entry.key
    WHERE entry.version > ?"""
KNOWN = "SELECT path, ns, key, is_file, stamp FROM holdall_places"
STAMP = "UPDATE holdall_places SET before = stamp, stamp = ? WHERE folded = ?"
TAKEN = "SELECT path FROM holdall_places WHERE folded"
BODY = """
    UPDATE holdall_entries SET body = version, shared = NULL
    WHERE version = ? AND (body <> version OR shared IS NOT NULL)"""
_INSERT = "INSERT OR IGNORE INTO holdall_places VALUES (?, ?, ?, ?, ?, ?, NULL)"
_JOINED = """
    (SELECT holdall_joined(data) FROM (SELECT data FROM holdall_chunks WHERE body_id = body ORDER BY start))"""


class DiskDialect(SqliteDialect):
    """SQLite's, where a piece of a body may be a reference to a plain file: a text, and not bytes."""

    tree: Tree
    content = f"CASE WHEN size > 0 THEN {_JOINED} END"
    # The usual body is one plain file, for good: then all that SQLite has to do with it is to say which.
    whole = f"""CASE WHEN size > 0 THEN coalesce(
        (SELECT data FROM holdall_chunks WHERE body_id = body AND start = 0 AND expires IS NULL
            AND typeof(data) = 'text' AND instr(data, '.' || size || '/') = instr(data, '/') - length(size) - 1),
        {_JOINED}
    ) END"""
    head = """(SELECT holdall_head(data) FROM (
        SELECT data FROM holdall_chunks WHERE body_id = body AND start < 1048576 ORDER BY start
    ))"""

    def part(self, piece: Any, start: int, end: int | None) -> bytes:
        return self.tree.read(piece, start, end) if isinstance(piece, str) else super().part(piece, start, end)


def insert(writer: Any, tree: Tree, path: str, ns: str, key: str, is_file: bool, known: str | None) -> None:
    """Note a place."""
    writer.execute(_INSERT, (ns, key, path, tree.folded(path), is_file, known))
    if not writer.changes():  # another entry has its place there, and its file is gone
        raise Stale(path)


def refer(writer: Any, version: int, reference: str | None) -> None:
    """From now on, the plain file is the body."""
    writer.execute("DELETE FROM holdall_chunks WHERE body_id = ?", (version,))
    if reference is not None:
        writer.execute("INSERT INTO holdall_chunks VALUES (?, 0, ?)", (version, reference))


def is_text(path: str) -> bool:
    """Whether a path is UTF-8. Others may have names that are not, and then nothing there is an entry."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
