"""External edits: changes that other programs make in the folder of a `disk:` store become changes of its entries.

The engine calls this before each read and write, if the folder may have changed, while it holds the store's lock. The
files are compared with the stamps in the catalogue. Then all edits are imported in one transaction, with the ops that
the store itself uses. So they take versions, are indexed, and appear in the feed.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

from ... import ops
from ...errors import HoldallError
from ...model import file_values, keys
from ...model.values import decode, encode
from ...ops import ANY, KEEP, Namespace
from ...runtime.programs import drive
from ..sqlite.dialect import NOTE_NUL_KEY, has_nul_key
from ..sqlite.entries import SqliteEntries
from .dialect import SELECT_FILES, UPDATE_STAMP, insert_file, is_utf8, set_reference
from .file_names import parse_path
from .folder import Folder
from .stamps import get_size, is_unreadable, mark_unreadable

logger = logging.getLogger("holdall")

_SELECT_FILES_BELOW = (
    f"{SELECT_FILES} WHERE (folded = ? OR folded > ? AND folded < ?) AND (path = ? OR path > ? AND path < ?)"
)
_UPDATE_REFERENCE = """
    UPDATE holdall_chunks SET data = ? WHERE start = 0 AND typeof(data) = 'text'
    AND body_id = (SELECT body FROM holdall_entries WHERE ns = ? AND key = ?)"""
_CLOCK_TICK = 50_000_000  # nanoseconds: more than between two ticks of any file system's clock
_MAX_DIGESTED, _MAX_DIGESTS = 1 << 20, 1000  # bytes of a file; files


class _KnownFile(NamedTuple):
    """A file that the catalogue has."""

    ns: str
    key: str
    is_file: int
    stamp: str | None


class ExternalEdits:
    """Compares the files with the catalogue, and imports what has changed, on the connection that writes."""

    def __init__(self, folder: Folder, sql: SqliteEntries) -> None:
        self._folder, self._sql = folder, sql
        self._digests: dict[str, tuple[int, bytes]] = {}  # of files that were modified just before they were imported

    def find(
        self,
        writer: Any,
        volume: Namespace,
        paths: Iterable[str],
        before_folder: Callable[[str], None],
        is_copied: bool = False,
    ) -> Callable[[], None] | None:
        """Compare the files at or below some paths with the catalogue; return None if nothing has changed.

        Else return a function that imports the edits; call it within a transaction. `before_folder` is called with
        each folder before it is listed. In a copied folder, a file with the same size and time is unchanged.
        """
        known: dict[str, _KnownFile] = {}
        found: dict[str, str] = {}
        unseen: list[str] = []  # what is below these paths cannot be listed
        for path in _remove_nested(paths):
            if is_utf8(path):
                rows = writer.execute(_SELECT_FILES_BELOW, self._bounds(path)) if path else writer.execute(SELECT_FILES)
                known |= {known_path: _KnownFile(*rest) for known_path, *rest in rows}
            for found_path, stamp in self._folder.scan(path, before_folder):
                if stamp is None:
                    unseen.append(found_path)
                else:
                    found[found_path] = stamp
        if unseen:  # the files there are not deleted
            hidden = [path for path in known if _is_below_any(path, unseen)]
            found |= {path: mark_unreadable(known[path].stamp or "") for path in hidden}
        removed = [path for path in known if path not in found]
        changed = [
            path
            for path, stamp in found.items()
            if path not in known or known[path].stamp != stamp or self._has_new_digest(path)
        ]
        if not removed and not changed:
            return None
        unedited = {
            path
            for path in changed
            if path in known and _is_same_content(known[path].stamp or "", found[path], is_copied)
        }
        return lambda: self._import(writer, volume, removed, changed, unedited, known, found)

    def _bounds(self, path: str) -> tuple[str, ...]:
        """Return the parameters of `_SELECT_FILES_BELOW`."""
        folded = self._folder.fold(path)
        return folded, folded + "/", folded + "0", path, path + "/", path + "0"

    def _import(
        self,
        writer: Any,
        volume: Namespace,
        removed: list[str],
        changed: list[str],
        unedited: set[str],
        known: dict[str, _KnownFile],
        found: dict[str, str],
    ) -> None:
        for path in removed:
            ns, key, *_ = known[path]
            self._run(writer, ops.Delete(keys.decode(ns), key))
            writer.execute("DELETE FROM holdall_places WHERE ns = ? AND key = ?", (ns, key))
        for path in sorted(changed):
            stamp = found[path]
            if path in known:
                ns, key, is_file, _ = known[path]
                if path in unedited:
                    writer.execute(_UPDATE_REFERENCE, (f"{stamp}/{path}", ns, key))
                else:
                    self._import_file(writer, path, keys.decode(ns), key, bool(is_file), stamp)
                writer.execute(UPDATE_STAMP, (stamp, self._folder.fold(path)))
                continue
            name = parse_path(path, volume)
            if name is None:
                logger.warning("%r cannot be the name of an entry: the file is ignored", path)
                continue
            ns = keys.encode(name.namespace)
            sql = "SELECT path FROM holdall_places WHERE ns = ? AND key = ?"
            if taken := writer.execute(sql, (ns, name.key)).fetchall():
                logger.warning("%r would be the same entry as %r: the file is ignored", path, taken[0][0])
                continue
            if self._import_file(writer, path, *name, stamp):
                insert_file(writer, self._folder, path, ns, name.key, name.is_file, stamp)

    def _import_file(self, writer: Any, path: str, namespace: Namespace, key: str, is_file: bool, stamp: str) -> bool:
        """Put the content of a file as an entry; return False if nothing was put."""
        if not is_file and is_unreadable(stamp):
            logger.warning("%r may not be read: the item stays as it was", path)
            return False
        self._save_digest(path, stamp)
        if not is_file:
            try:
                value = decode((self._folder.read_current(path) or b"").decode())
                put = ops.Put(namespace, key, cast(Any, encode(value)), KEEP, ANY)
            except (HoldallError, UnicodeDecodeError, RecursionError) as error:
                logger.warning("%r does not hold a JSON object: the file is ignored: %s", path, error)
                return False
            has_value = "SELECT 1 FROM holdall_entries WHERE ns = ? AND key = ? AND value = ? AND size IS NULL"
            if writer.execute(has_value, (keys.encode(namespace), key, put.value)).fetchall():
                return False
            if has_nul_key(put):
                writer.execute(NOTE_NUL_KEY)
            self._run(writer, put)
            return True
        self._run(writer, ops.Put(namespace, key, ops.File(file_values.NATIVE, b""), KEEP, ANY))
        size = get_size(stamp)
        [(version,)] = writer.execute(
            "UPDATE holdall_entries SET size = ? WHERE ns = ? AND key = ? RETURNING version",
            (size, keys.encode(namespace), key),
        ).fetchall()
        set_reference(writer, version, f"{stamp}/{path}" if size else None)
        return True

    # A file system's clock may tick only every few milliseconds. A file that is modified twice within a tick has the
    # same stamp both times. So the digest of a file that was modified just now is kept and compared.

    def _save_digest(self, path: str, stamp: str) -> None:
        """Keep the digest of a small file that was modified just now."""
        if abs(time.time_ns() - int(stamp.split(".")[1])) < _CLOCK_TICK and get_size(stamp) <= _MAX_DIGESTED:
            if len(self._digests) >= _MAX_DIGESTS:
                self._digests.clear()
            self._digests[path] = (time.monotonic_ns(), self._digest(path))

    def _has_new_digest(self, path: str) -> bool:
        """Whether a file was modified again since its digest was kept."""
        if path not in self._digests:
            return False
        saved_at, digest = self._digests.pop(path)
        return time.monotonic_ns() - saved_at < 2 * _CLOCK_TICK and self._digest(path) != digest

    def _digest(self, path: str) -> bytes:
        try:
            return hashlib.blake2b(self._folder.read_current(path) or b"").digest()
        except PermissionError:
            return b""

    def _run(self, writer: Any, op: ops.Op) -> None:
        drive(self._sql.batch([op]), writer.run)


def _is_same_content(known: str, found: str, is_copied: bool) -> bool:
    """Whether a file with another stamp was not edited: it became unreadable, or it is a copy of the known file."""
    if is_unreadable(known):
        return False
    return found == mark_unreadable(known) or (is_copied and found.partition(".")[2] == known.partition(".")[2])


def _is_below_any(path: str, folders: Iterable[str]) -> bool:
    return any(not folder or path == folder or path.startswith(folder + "/") for folder in folders)


def _remove_nested(paths: Iterable[str]) -> list[str]:
    """Return the paths that are not below another of them."""
    outermost: list[str] = []
    for path in sorted(paths, key=lambda path: path.split("/")):
        last = outermost[-1] if outermost else None
        if last is None or (last and path != last and not path.startswith(last + "/")):
            outermost.append(path)
    return outermost
