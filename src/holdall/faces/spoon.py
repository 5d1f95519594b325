"""spoon_ai's persistent files on any engine: the names of `spoon_ai.backends.store`, with a holdall store beneath.

    backend = StoreBackend(SQLiteStore("agent_files.db"), assistant_id="agent-001")

`SQLiteStore` takes any URL in place of a file's name. spoon_ai need not be installed; where it is, its own classes are
the base of these, and its results are what they give. `import_from` brings what spoon_ai's `SQLiteStore` has kept.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .. import filters, ops, seam
from ..errors import (
    Conflict,
    HoldallError,
    InvalidInput,
    IsADirectory,
    NotFound,
    shown,
)
from ..files import split_lines
from ..ops import ABSENT, Namespace
from ..programs import Program, arun, run
from ..store import Store
from .importing import Found, Imported, Progress, Refused, Source, aimport_all, import_all, read_only, reading
from .opening import Face
from .words import absolute, as_dict, as_match, downloaded, newest_first, not_edited, not_found, number, uploaded

if TYPE_CHECKING:
    from .spoon_protocol import (
        BackendProtocol,
        BaseStore,
        EditResult,
        FileDownloadResponse,
        FileInfo,
        FileOperationError,
        FileUploadResponse,
        GrepMatch,
        WriteResult,
    )
else:
    try:
        from spoon_ai.backends.protocol import (
            BackendProtocol,
            EditResult,
            FileDownloadResponse,
            FileInfo,
            FileOperationError,
            FileUploadResponse,
            GrepMatch,
            WriteResult,
        )
        from spoon_ai.backends.store import BaseStore
    except ImportError:
        from .spoon_protocol import (
            BackendProtocol,
            BaseStore,
            EditResult,
            FileDownloadResponse,
            FileInfo,
            FileOperationError,
            FileUploadResponse,
            GrepMatch,
            WriteResult,
        )

__all__ = [
    "BackendProtocol",
    "BaseStore",
    "EditResult",
    "FileDownloadResponse",
    "FileInfo",
    "FileOperationError",
    "FileUploadResponse",
    "GrepMatch",
    "Imported",
    "InMemoryStore",
    "Refused",
    "SQLiteStore",
    "StoreBackend",
    "WriteResult",
    "aimport_from",
    "create_store_backend",
    "import_from",
]

_EMPTY = "System reminder: File exists but has empty contents"
_LONGEST_LINE = 10_000
_AT_ONCE = 100

# Stores --------------------------------------------------------------------------------------------------------------


class _Kept(Face, BaseStore):
    """spoon_ai's store of dicts, over a `holdall.Store`. A namespace is exactly itself, and no child's."""

    def __init__(self, store_or_url: Any) -> None:
        #: The `holdall.Store` beneath.
        self.store: Store = self._open(store_or_url)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.store!r}>"

    def get(self, namespace: tuple[str, ...], key: str) -> dict[str, Any] | None:
        """The dict under a key, or None; it is the caller's own copy."""
        entry = self.store.get(namespace, key)
        return None if entry is None else entry.value

    def put(self, namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> None:
        """Keep a dict under a key."""
        self.store.put(namespace, key, value)

    def delete(self, namespace: tuple[str, ...], key: str) -> None:
        """Remove a key; a missing one is fine."""
        self.store.delete(namespace, key)

    def search(
        self,
        namespace: tuple[str, ...],
        query: str | None = None,
        filter: dict[str, Any] | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[dict[str, Any]]:
        """`{"key": …, "value": …}` for each dict in a namespace, in the order of their keys.

        Of those whose fields equal `filter`'s, and whose content contains `query`, in any case.
        """
        wanted = None if not filter else filters.parse({field: {"$eq": value} for field, value in filter.items()})
        text = (query or "").lower()
        found = (
            {"key": entry.key, "value": entry.value}
            for entry in self._all(tuple(namespace))
            if (wanted is None or wanted.matches(entry.value)) and (not text or text in _content(entry.value).lower())
        )
        start = max(offset, 0)
        return list(itertools.islice(found, start, start + max(limit, 0)))

    def _all(self, namespace: Namespace) -> Iterator[ops.Entry]:
        """The entries of exactly a namespace: in a scan, its children's come after them."""
        return itertools.takewhile(lambda entry: entry.namespace == namespace, self.store.scan(namespace))


class InMemoryStore(_Kept):
    """A store that is gone with the process."""

    def __init__(self) -> None:
        super().__init__("memory:")


class SQLiteStore(_Kept):
    """A store that persists: in a SQLite file, or wherever else a URL says.

    `db_path` is a file's name, any URL that `holdall.open` takes, a `holdall.Store`, or another face.
    """

    def __init__(self, db_path: Any = "store.db") -> None:
        self.db_path = db_path
        super().__init__("memory:" if db_path == ":memory:" else db_path)
        if self._to_close is not None:
            self._set_up()

    def _set_up(self) -> None:
        try:
            self.store.setup()
        except InvalidInput as error:
            self.store.close()
            if _is_spoons(self.db_path):
                raise InvalidInput(
                    f"{shown(self.db_path)} was made by spoon_ai itself; bring what is in it to a store of holdall's"
                    f" with holdall.faces.spoon.import_from({shown(self.db_path)}, 'new.db'), and open that"
                ) from error
            raise


def _content(value: dict[str, Any]) -> str:
    content = value.get("content", [])
    return "\n".join(map(str, content)) if isinstance(content, list) else str(content)


# Files ---------------------------------------------------------------------------------------------------------------


class StoreBackend(Face, BackendProtocol):
    """The files of one namespace, as a backend for spoon_ai's agents.

    `namespace` is `("filesystem",)` unless said otherwise; `assistant_id` comes before it, so that agents have files of
    their own.
    """

    def __init__(self, store: Any, namespace: tuple[str, ...] | None = None, assistant_id: str | None = None) -> None:
        self.store = store if isinstance(store, _Kept) else SQLiteStore(store)
        self._beneath = self.store.store
        self._to_close = None if self.store is store else self.store._to_close
        home = (*((assistant_id,) if assistant_id else ()), *(namespace or ("filesystem",)))
        self._files = seam.files_as_lines(self._beneath, home)

    def __repr__(self) -> str:
        return f"<StoreBackend of {self._files.namespace!r} in {self.store!r}>"

    # Reading ---------------------------------------------------------------------------------------------------------

    def _ls_info(self, path: str) -> Program[list[FileInfo]]:
        """What is in a folder; its subfolders end in "/". Nothing, for one that is missing or cannot be."""
        try:
            found = yield from seam.ls(self._files, absolute(path))
        except InvalidInput:  # there is nothing of that name
            return []
        return [as_dict(info) for info in found]

    ls_info = run(_ls_info)
    als_info = arun(_ls_info)

    def _read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Program[str]:
        """Up to `limit` lines from line `offset` on, with their numbers; or what is wrong, beginning with "Error:"."""
        try:
            start, most = number("offset", offset), number("limit", limit)
            text = yield from seam.read_text(self._files, absolute(file_path))
        except (NotFound, IsADirectory):
            return not_found(file_path)
        except HoldallError as error:
            return f"Error: {error}"
        if not text.strip():
            return _EMPTY
        lines = split_lines(text)
        if start >= len(lines):
            return f"Error: Line offset {start} exceeds file length ({len(lines)} lines)"
        return _numbered(lines[start : start + most], start + 1)

    read = run(_read)
    aread = arun(_read)

    def _grep_raw(
        self, pattern: str, path: str | None = None, glob: str | None = None
    ) -> Program[list[GrepMatch] | str]:
        """The lines that contain a text, as it stands; or what is wrong."""
        try:
            found = yield from seam.grep(self._files, pattern, absolute(path or "/"), glob=glob or None)
        except HoldallError as error:
            return f"Error: {error}"
        return [as_match(match) for match in found]

    grep_raw = run(_grep_raw)
    agrep_raw = arun(_grep_raw)

    def _glob_info(self, pattern: str, path: str = "/") -> Program[list[FileInfo]]:
        """The files whose path from `path` on matches, newest first. Nothing, where no path can match."""
        anchored = f"/{pattern}" if isinstance(pattern, str) and pattern and "/" not in pattern else pattern
        try:
            found = yield from seam.glob(self._files, anchored, absolute(path or "/"))
        except InvalidInput:
            return []
        return newest_first(found)

    glob_info = run(_glob_info)
    aglob_info = arun(_glob_info)

    # Writing ---------------------------------------------------------------------------------------------------------

    def _write(self, file_path: str, content: str) -> Program[WriteResult]:
        """Create a file; one that is there stays as it is, whoever came first."""
        try:
            yield from seam.write(self._files, absolute(file_path), content, expect=ABSENT)
        except Conflict:
            return WriteResult(
                error=f"Cannot write to {file_path} because it already exists. Read and then make an edit, or write to"
                " a new path."
            )
        except HoldallError as error:
            return WriteResult(error=f"Error: {error}")
        return WriteResult(path=file_path)

    write = run(_write)
    awrite = arun(_write)

    def _edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Program[EditResult]:
        """Replace a text that is in a file exactly once, or everywhere. Edits that others make at once are kept."""
        path = absolute(file_path)
        try:
            count = yield from seam.edit(self._files, path, old_string, new_string, replace_all=replace_all)
        except HoldallError as error:
            return EditResult(error=not_edited(file_path, old_string, error, ""))
        return EditResult(path=file_path, occurrences=count)

    edit = run(_edit)
    aedit = arun(_edit)

    # Many files ------------------------------------------------------------------------------------------------------

    def _upload_files(self, files: list[tuple[str, bytes]]) -> Program[list[FileUploadResponse]]:
        """Create or replace files, each for itself; the answers are in their order."""
        return (yield from uploaded(self._files, files, FileUploadResponse))

    upload_files = run(_upload_files)
    aupload_files = arun(_upload_files)

    def _download_files(self, paths: list[str]) -> Program[list[FileDownloadResponse]]:
        """The bytes of files, each for itself; the answers are in their order."""
        return (yield from downloaded(self._files, paths, FileDownloadResponse))

    download_files = run(_download_files)
    adownload_files = arun(_download_files)


def create_store_backend(
    store: Any = None,
    db_path: Any = "store.db",
    use_sqlite: bool = True,
    namespace: tuple[str, ...] | None = None,
    assistant_id: str | None = None,
) -> StoreBackend:
    """A `StoreBackend` on a store, or on one that is opened here: `db_path`'s, or one in memory."""
    if store is None:
        store = SQLiteStore(db_path) if use_sqlite else InMemoryStore()
    return StoreBackend(store, namespace, assistant_id)


def _numbered(lines: list[str], first: int) -> str:
    """Lines with their numbers before them; what is longer than a line should be goes on below, as 12.1, 12.2 …"""
    rows = []
    for place, line in enumerate(lines, first):
        rows.append(f"{place:6d}\t{line[:_LONGEST_LINE]}")
        for part, start in enumerate(range(_LONGEST_LINE, len(line), _LONGEST_LINE), 1):
            rows.append(f"{f'{place}.{part}':>6}\t{line[start : start + _LONGEST_LINE]}")
    return "\n".join(rows)


# What spoon_ai has kept ----------------------------------------------------------------------------------------------


def import_from(
    db_path: str | os.PathLike[str],
    into: Any,
    *,
    namespace_of: Callable[[str], Namespace] | None = None,
    progress: Progress | None = None,
) -> Imported:
    """Bring what spoon_ai's own `SQLiteStore` kept in a file to a store. The file is only read.

    `into` is a URL, a `holdall.Store`, or a face such as `SQLiteStore`. What is there already stays as it is, unless it
    is an older state of a file; so an import may be made again. `progress(done, total)` is called as it goes on.

    spoon_ai wrote a namespace's labels with "/" between them and forgot where one ends, so they are taken apart there;
    `namespace_of` says otherwise for those of yours that contain one.
    """
    return import_all(_Database(db_path, namespace_of or _split), into, progress)


async def aimport_from(
    db_path: str | os.PathLike[str],
    into: Any,
    *,
    namespace_of: Callable[[str], Namespace] | None = None,
    progress: Progress | None = None,
) -> Imported:
    """`import_from`, awaited."""
    return await aimport_all(_Database(db_path, namespace_of or _split), into, progress)


_WHOSE = "spoon_ai's SQLiteStore"


class _Database(Source):
    """The table that spoon_ai's `SQLiteStore` keeps in a file."""

    def __init__(self, path: str | os.PathLike[str], namespace_of: Callable[[str], Any]) -> None:
        self._path = os.fspath(path)
        self._namespace_of = namespace_of
        self._connection: Any = None
        self._rows: Any = None

    def count(self) -> int:
        with reading(self._path, _WHOSE):
            self._connection = read_only(self._path)
            self._rows = self._connection.execute("SELECT namespace, key, value FROM store ORDER BY namespace, key")
            return int(self._connection.execute("SELECT count(*) FROM store").fetchone()[0])

    def page(self) -> list[Found | Refused | None]:
        with reading(self._path, _WHOSE):
            rows = self._rows.fetchmany(_AT_ONCE)
        return [_found(self._namespace_of(namespace), key, text) for namespace, key, text in rows]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _found(namespace: Any, key: str, text: str) -> Found | Refused:
    try:
        value = json.loads(text)
    except ValueError as error:
        return Refused(namespace, key, f"not JSON: {error}")
    put = ops.Put(tuple(namespace) if isinstance(namespace, list) else namespace, key, value)
    try:  # files say when they were made and changed
        created, updated = (
            datetime.fromisoformat(value[time]).astimezone(UTC) for time in ("created_at", "modified_at")
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return Found(put)
    return Found(put, created, updated)


def _split(namespace: str) -> Namespace:
    labels = tuple(namespace.split("/"))
    return labels if all(labels) else (namespace,)


def _is_spoons(path: Any) -> bool:
    try:
        with closing(_Database(path, _split)) as database:
            database.count()
    except (HoldallError, OSError, TypeError):
        return False
    return True
