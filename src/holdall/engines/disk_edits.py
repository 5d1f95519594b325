"""What is edited outside: files of a `disk:` store that others have written, moved or removed become changes.

Done under the lock that one process at a time has, and within one transaction.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

from .. import keys, ops, shapes
from ..errors import HoldallError
from ..ops import ANY, KEEP, Namespace
from ..programs import drive
from ..values import decode, encode
from .disk_names import place_of
from .disk_sql import KNOWN, STAMP, insert, is_text, refer
from .disk_tree import Tree, size_of, stamp
from .sqlite_sql import DOUBT_FIELDS, SqliteSql, is_misread

logger = logging.getLogger("holdall")

_KNOWN_BELOW = f"{KNOWN} WHERE (folded = ? OR folded > ? AND folded < ?) AND (path = ? OR path > ? AND path < ?)"
_TICK, _SMALL, _MANY = 50_000_000, 1 << 20, 1000  # nanoseconds; bytes; files


class Edits:
    """Takes them in, on the connection that writes."""

    def __init__(self, tree: Tree, sql: SqliteSql) -> None:
        self._tree, self._sql = tree, sql
        self._young: dict[str, tuple[int, bytes]] = {}

    def take_in(
        self, writer: Any, volume: Namespace, paths: Iterable[str], entering: Callable[[str], None]
    ) -> Callable[[], int] | None:
        """Compare the files at or below some paths with what is known of them; None where nothing has changed.

        Else a function that makes changes of that, and says how many, within a transaction.
        """
        known: dict[str, tuple[str, str, int, str | None]] = {}
        found: dict[str, str] = {}
        for path in _outermost(paths):
            if is_text(path):
                rows = writer.execute(_KNOWN_BELOW, self._below(path)) if path else writer.execute(KNOWN)
                known |= {there: (ns, key, is_file, then) for there, ns, key, is_file, then in rows}
            found |= {there: stamp(state) for there, state in self._tree.scan(path, entering)}
        gone = [path for path in known if path not in found]
        changed = [
            path for path, there in found.items() if path not in known or known[path][3] != there or self._differs(path)
        ]
        if not gone and not changed:
            return None
        return lambda: self._take_in(writer, volume, gone, changed, known, found)

    def _below(self, path: str) -> tuple[str, ...]:
        folded = self._tree.folded(path)
        return folded, folded + "/", folded + "0", path, path + "/", path + "0"

    def _take_in(
        self,
        writer: Any,
        volume: Namespace,
        gone: list[str],
        changed: list[str],
        known: dict[str, tuple[str, str, int, str | None]],
        found: dict[str, str],
    ) -> int:
        count = 0
        for path in gone:
            ns, key, *_ = known[path]
            self._run(writer, ops.Delete(keys.decode(ns), key))
            writer.execute("DELETE FROM holdall_places WHERE ns = ? AND key = ?", (ns, key))
            count += 1
        for path in sorted(changed):
            if path in known:
                ns, key, is_file, _ = known[path]
                count += self._take(writer, path, keys.decode(ns), key, bool(is_file), found[path])
                writer.execute(STAMP, (found[path], self._tree.folded(path)))
                continue
            place = place_of(path, volume)
            if place is None:
                logger.warning("%r cannot be the name of an entry, and is left alone", path)
                continue
            ns = keys.encode(place.namespace)
            taken = writer.execute(
                "SELECT path FROM holdall_places WHERE ns = ? AND key = ?", (ns, place.key)
            ).fetchall()
            if taken:
                logger.warning("%r would be the same entry as %r, and is left alone", path, taken[0][0])
                continue
            if self._take(writer, path, *place, found[path]):
                insert(writer, self._tree, path, ns, place.key, place.is_file, found[path])
                count += 1
        return count

    def _take(self, writer: Any, path: str, namespace: Namespace, key: str, is_file: bool, known: str) -> int:
        """Make a file an entry; whether it can be one."""
        self._remember(path, known)
        if not is_file:
            try:
                value = decode((self._tree.current(path) or b"").decode())
                put = ops.Put(namespace, key, cast(Any, encode(value)), KEEP, ANY)
            except (HoldallError, UnicodeDecodeError, RecursionError) as error:
                logger.warning("%r does not hold a JSON object, and is left alone: %s", path, error)
                return 0
            same = "SELECT 1 FROM holdall_entries WHERE ns = ? AND key = ? AND value = ? AND size IS NULL"
            if writer.execute(same, (keys.encode(namespace), key, put.value)).fetchall():  # touched, or copied
                return 0
            if is_misread(put):
                writer.execute(DOUBT_FIELDS)
            self._run(writer, put)
            return 1
        self._run(writer, ops.Put(namespace, key, ops.File(shapes.NATIVE, b""), KEEP, ANY))
        size = size_of(known)
        [(version,)] = writer.execute(
            "UPDATE holdall_entries SET size = ? WHERE ns = ? AND key = ? RETURNING version",
            (size, keys.encode(namespace), key),
        ).fetchall()
        refer(writer, version, f"{known}/{path}" if size else None)
        return 1

    # A clock may tick every few milliseconds only: what is changed twice in one tick has the same stamp.

    def _remember(self, path: str, known: str) -> None:
        """Of a file that was just written, what is in it."""
        if abs(time.time_ns() - int(known.split(".")[1])) < _TICK and size_of(known) <= _SMALL:
            if len(self._young) >= _MANY:
                self._young.clear()
            self._young[path] = (time.monotonic_ns(), self._digest(path))

    def _differs(self, path: str) -> bool:
        """Whether a file that somebody has written to has other contents than it had in the same tick."""
        if path not in self._young:
            return False
        then, before = self._young.pop(path)
        return time.monotonic_ns() - then < 2 * _TICK and self._digest(path) != before

    def _digest(self, path: str) -> bytes:
        return hashlib.blake2b(self._tree.current(path) or b"").digest()

    def _run(self, writer: Any, op: ops.Op) -> None:
        drive(self._sql.batch([op]), writer.run)


def _outermost(paths: Iterable[str]) -> list[str]:
    """Those of some paths that are not below another."""
    outer: list[str] = []
    for path in sorted(paths, key=lambda path: path.split("/")):
        if not outer or (outer[-1] and path != outer[-1] and not path.startswith(outer[-1] + "/")):
            outer.append(path)
    return outer
