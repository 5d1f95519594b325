"""The SQL of the catalogue: its tables beside those of the SQLite engine, and expressions that read plain files.

`holdall_places` has one row for each entry that has a plain file:

    ns, key   the entry
    path      the path of its file in the folder
    folded    the path as the file system compares it: "A" and "a" may be the same name
    is_file   1: a file of a volume; 0: an item
    stamp     the stamp of the file (`stamps.py`); null: not written yet
    before    the stamp that the file had before; null: there was no file

`holdall_doomed` has the paths of files that belong to no entry any more, and have yet to be removed.

The content of a file is not in the catalogue. In `holdall_chunks`, its only piece is a *reference*: text, where a piece
of other bodies is bytes. A reference is a stamp, a "/" and a path.
"""

from __future__ import annotations

from typing import Any

from ..sqlite.dialect import SqliteDialect
from .folder import FileChanged, Folder

SCHEMA = """
    CREATE TABLE holdall_places (
        ns TEXT NOT NULL, key TEXT NOT NULL, path TEXT NOT NULL, folded TEXT NOT NULL, is_file INTEGER NOT NULL,
        stamp TEXT, before TEXT,
        PRIMARY KEY (ns, key)
    ) WITHOUT ROWID;
    CREATE UNIQUE INDEX holdall_place_as ON holdall_places (folded);
    CREATE TABLE holdall_doomed (path TEXT PRIMARY KEY) WITHOUT ROWID;
"""
# While committed changes are pending, which means not yet in the plain files, a row named 'settled' has the newest
# version before them.
SELECT_APPLIED_VERSION = "SELECT CAST(value AS INTEGER) FROM holdall_state WHERE name = 'settled'"
INSERT_APPLIED_VERSION = "INSERT OR IGNORE INTO holdall_state VALUES ('settled', ?)"
DELETE_APPLIED_VERSION = "DELETE FROM holdall_state WHERE name = 'settled'"
#: The entries above a version, each with its row of `holdall_places`, if it has one.
FROM_CHANGED_ENTRIES = """
    FROM holdall_entries AS entry NOT INDEXED LEFT JOIN holdall_places AS place
        ON place.ns = entry.ns AND place.key = entry.key
    WHERE entry.version > ?"""
#: Old rows of files, ended after a version, whose bodies are not copies: those have numbers below 0.
SELECT_OLD_FILES = "SELECT ended, body, size FROM holdall_history WHERE body > 0 AND ended > ? ORDER BY ended"
#: Remove the pieces of a body to which no row refers.
DELETE_UNUSED = """
    DELETE FROM holdall_chunks WHERE body_id = ?1
        AND NOT EXISTS (SELECT 1 FROM holdall_entries WHERE body = ?1)
        AND NOT EXISTS (SELECT 1 FROM holdall_history WHERE body = ?1)"""
SELECT_FILES = "SELECT path, ns, key, is_file, stamp FROM holdall_places"
#: A condition on the folded path follows.
SELECT_PATH_WHERE = "SELECT path FROM holdall_places WHERE folded"
UPDATE_STAMP = "UPDATE holdall_places SET before = stamp, stamp = ? WHERE folded = ?"
#: Give an entry that shares its body with others a body of its own.
UNSHARE_BODY = """
    UPDATE holdall_entries SET body = version, shared = NULL
    WHERE version = ? AND (body <> version OR shared IS NOT NULL)"""
_INSERT_FILE = "INSERT OR IGNORE INTO holdall_places VALUES (?, ?, ?, ?, ?, ?, NULL)"
_JOIN_PIECES = """
    (SELECT holdall_joined(data) FROM (SELECT data FROM holdall_chunks WHERE body_id = body ORDER BY start))"""


class DiskDialect(SqliteDialect):
    """SQLite's dialect, for bodies whose pieces may be references to plain files."""

    folder: Folder
    reads_pieces = False  # a plain file is read without SQLite
    is_reference = "typeof(data) = 'text'"
    content = f"CASE WHEN size > 0 THEN {_JOIN_PIECES} END"
    # Most bodies are one plain file that does not expire. Then SQLite returns the reference, and Python reads the file.
    whole = f"""CASE WHEN size > 0 THEN coalesce(
        (SELECT data FROM holdall_chunks WHERE body_id = body AND start = 0 AND expires IS NULL
            AND typeof(data) = 'text' AND instr(data, '.' || size || '/') = instr(data, '/') - length(size) - 1),
        {_JOIN_PIECES}
    ) END"""
    head = """(SELECT holdall_head(data) FROM (
        SELECT data FROM holdall_chunks WHERE body_id = body AND start < 1048576 ORDER BY start
    ))"""

    def part(self, piece: Any, start: int, end: int | None) -> bytes:
        return self.folder.read(piece, start, end) if isinstance(piece, str) else super().part(piece, start, end)


def insert_file(writer: Any, folder: Folder, path: str, ns: str, key: str, is_file: bool, stamp: str | None) -> None:
    """Record that the file at a path belongs to an entry. Raise `FileChanged` if another entry has that path."""
    writer.execute(_INSERT_FILE, (ns, key, path, folder.fold(path), is_file, stamp))
    if not writer.changes():  # the file of the other entry was removed, and that edit is not imported yet
        raise FileChanged(path)


def set_reference(writer: Any, version: int, reference: str | None) -> None:
    """Replace the pieces of a body by a reference; by nothing, if it is empty."""
    writer.execute("DELETE FROM holdall_chunks WHERE body_id = ?", (version,))
    if reference is not None:
        writer.execute("INSERT INTO holdall_chunks VALUES (?, 0, ?)", (version, reference))


def is_utf8(path: str) -> bool:
    """Whether a path is valid UTF-8. A path that is not cannot be that of an entry."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
