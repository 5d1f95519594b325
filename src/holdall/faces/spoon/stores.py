"""spoon_ai's persistent files on any engine: the classes of `spoon_ai.backends.store`, implemented on a holdall store.

    backend = StoreBackend(SQLiteStore("agent_files.db"), assistant_id="agent-001")

`SQLiteStore` takes any URL in place of a file name. spoon_ai need not be installed. If it is, these classes derive from
its own and return its result types. `import_from` imports the data of spoon_ai's own `SQLiteStore`.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from ... import ABSENT, Store, ops
from ...core import face_api
from ...core.face_api import StoreProgram, async_method, sync_method
from ...errors import Conflict, HoldallError, InvalidInput, IsADirectory, NotFound, shown
from ...ops import Namespace
from ..base import Face
from ..file_tools import (
    describe_file,
    describe_match,
    download_all,
    edit_error_message,
    not_found_message,
    parse_number,
    sort_newest_first,
    to_absolute,
    upload_all,
)
from ..importing import (
    Imported,
    Progress,
    Refused,
    Source,
    SourceItem,
    aimport_all,
    import_all,
    open_read_only,
    translate_sqlite_errors,
)
from .protocol import (
    BackendProtocol,
    BaseStore,
    EditResult,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GrepMatch,
    WriteResult,
)

_EMPTY_FILE = "System reminder: File exists but has empty contents"
_LONGEST_LINE = 10_000
_PAGE_SIZE = 100  # rows

# Stores --------------------------------------------------------------------------------------------------------------


class _DictStore(Face, BaseStore):
    """spoon_ai's store of dicts, on a `holdall.Store`. A namespace does not include the namespaces below it."""

    def __init__(self, store_or_url: Any) -> None:
        #: The `holdall.Store` that this face runs on.
        self.store: Store = self._open(store_or_url)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.store!r}>"

    def get(self, namespace: tuple[str, ...], key: str) -> dict[str, Any] | None:
        """Return the dict under a key, or None. The dict is a copy that the caller may change."""
        entry = self.store.get(namespace, key)
        return None if entry is None else entry.value

    def put(self, namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> None:
        """Store a dict under a key."""
        self.store.put(namespace, key, value)

    def delete(self, namespace: tuple[str, ...], key: str) -> None:
        """Delete a key, if it exists."""
        self.store.delete(namespace, key)

    def search(
        self,
        namespace: tuple[str, ...],
        query: str | None = None,
        filter: dict[str, Any] | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[dict[str, Any]]:
        """Return `{"key": …, "value": …}` for each matching dict in a namespace, in key order.

        A dict matches if its fields equal those of `filter`, and its content contains `query`, ignoring case.
        """
        wanted = (
            None if not filter else face_api.parse_filter({field: {"$eq": value} for field, value in filter.items()})
        )
        text = (query or "").lower()
        found = (
            {"key": entry.key, "value": entry.value}
            for entry in self._scan(tuple(namespace))
            if (wanted is None or wanted.matches(entry.value)) and (not text or text in _content(entry.value).lower())
        )
        start = max(offset, 0)
        return list(itertools.islice(found, start, start + max(limit, 0)))

    def _scan(self, namespace: Namespace) -> Iterator[ops.Entry]:
        """Iterate over the entries of exactly one namespace. In a scan, those of the namespaces below it come later."""
        return itertools.takewhile(lambda entry: entry.namespace == namespace, self.store.scan(namespace))


class InMemoryStore(_DictStore):
    """A store in memory, which ends with the process."""

    def __init__(self) -> None:
        super().__init__("memory:")


class SQLiteStore(_DictStore):
    """A durable store: in a SQLite file, or on any other engine that a URL names.

    `db_path` is a file name, any URL that `holdall.open` takes, a `holdall.Store`, or another face.
    """

    def __init__(self, db_path: Any = "store.db") -> None:
        self.db_path = db_path
        super().__init__("memory:" if db_path == ":memory:" else db_path)
        if self._owned_store is not None:
            self._set_up()

    def _set_up(self) -> None:
        try:
            self.store.setup()
        except InvalidInput as error:
            self.store.close()
            if _is_spoon_database(self.db_path):
                raise InvalidInput(
                    f"{shown(self.db_path)} is a database of spoon_ai's own SQLiteStore; import it with"
                    f" holdall.faces.spoon.import_from({shown(self.db_path)}, 'new.db'), and open the new store"
                ) from error
            raise


def _content(value: dict[str, Any]) -> str:
    content = value.get("content", [])
    return "\n".join(map(str, content)) if isinstance(content, list) else str(content)


# Files ---------------------------------------------------------------------------------------------------------------


class StoreBackend(Face, BackendProtocol):
    """The files of one namespace, as a backend for spoon_ai's agents.

    The default of `namespace` is `("filesystem",)`. `assistant_id` becomes its first label, so that each agent has its
    own files.
    """

    def __init__(self, store: Any, namespace: tuple[str, ...] | None = None, assistant_id: str | None = None) -> None:
        self.store = store if isinstance(store, _DictStore) else SQLiteStore(store)
        self._store = self.store.store
        self._owned_store = None if self.store is store else self.store._owned_store
        home = (*((assistant_id,) if assistant_id else ()), *(namespace or ("filesystem",)))
        self._files = face_api.files_as_lines(self._store, home)

    def __repr__(self) -> str:
        return f"<StoreBackend of {self._files.namespace!r} in {self.store!r}>"

    # Reading ---------------------------------------------------------------------------------------------------------

    def _ls_info(self, path: str) -> StoreProgram[list[FileInfo]]:
        """List a folder; the paths of subfolders end in "/". A missing folder or invalid path gives an empty list."""
        try:
            found = yield from face_api.ls(self._files, to_absolute(path))
        except InvalidInput:  # no folder can have this path
            return []
        return [describe_file(info) for info in found]

    ls_info = sync_method(_ls_info)
    als_info = async_method(_ls_info)

    def _read(self, file_path: str, offset: int = 0, limit: int = 2000) -> StoreProgram[str]:
        """Return up to `limit` lines from line `offset` on, with line numbers; or a message: "Error: …"."""
        try:
            start, count = parse_number("offset", offset), parse_number("limit", limit)
            text = yield from face_api.read_text(self._files, to_absolute(file_path))
        except (NotFound, IsADirectory):
            return not_found_message(file_path)
        except HoldallError as error:
            return f"Error: {error}"
        if not text.strip():
            return _EMPTY_FILE
        lines = face_api.split_lines(text)
        if start >= len(lines):
            return f"Error: Line offset {start} exceeds file length ({len(lines)} lines)"
        return _number_lines(lines[start : start + count], start + 1)

    read = sync_method(_read)
    aread = async_method(_read)

    def _grep_raw(
        self, pattern: str, path: str | None = None, glob: str | None = None
    ) -> StoreProgram[list[GrepMatch] | str]:
        """Find the lines that contain a text, which is not a regular expression; or return a message."""
        try:
            found = yield from face_api.grep(self._files, pattern, to_absolute(path or "/"), glob=glob or None)
        except HoldallError as error:
            return f"Error: {error}"
        return [describe_match(match) for match in found]

    grep_raw = sync_method(_grep_raw)
    agrep_raw = async_method(_grep_raw)

    def _glob_info(self, pattern: str, path: str = "/") -> StoreProgram[list[FileInfo]]:
        """Find files by their path relative to `path`, the last modified first. An invalid path gives an empty list."""
        anchored = f"/{pattern}" if isinstance(pattern, str) and pattern and "/" not in pattern else pattern
        try:
            found = yield from face_api.glob(self._files, anchored, to_absolute(path or "/"))
        except InvalidInput:
            return []
        return sort_newest_first(found)

    glob_info = sync_method(_glob_info)
    aglob_info = async_method(_glob_info)

    # Writing ---------------------------------------------------------------------------------------------------------

    def _write(self, file_path: str, content: str) -> StoreProgram[WriteResult]:
        """Create a file. An existing file is not changed, even if another agent creates it at the same time."""
        try:
            yield from face_api.write(self._files, to_absolute(file_path), content, expect=ABSENT)
        except Conflict:
            return WriteResult(
                error=f"Cannot write to {file_path} because it already exists. Read and then make an edit, or write to"
                " a new path."
            )
        except HoldallError as error:
            return WriteResult(error=f"Error: {error}")
        return WriteResult(path=file_path)

    write = sync_method(_write)
    awrite = async_method(_write)

    def _edit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> StoreProgram[EditResult]:
        """Replace a text that occurs exactly once in a file, or all occurrences. Concurrent edits are kept."""
        path = to_absolute(file_path)
        try:
            count = yield from face_api.edit(self._files, path, old_string, new_string, replace_all=replace_all)
        except HoldallError as error:
            return EditResult(error=edit_error_message(file_path, old_string, error, ""))
        return EditResult(path=file_path, occurrences=count)

    edit = sync_method(_edit)
    aedit = async_method(_edit)

    # Many files ------------------------------------------------------------------------------------------------------

    def _upload_files(self, files: list[tuple[str, bytes]]) -> StoreProgram[list[FileUploadResponse]]:
        """Create or replace files, each on its own. The responses are in the order of `files`."""
        return (yield from upload_all(self._files, files, FileUploadResponse))

    upload_files = sync_method(_upload_files)
    aupload_files = async_method(_upload_files)

    def _download_files(self, paths: list[str]) -> StoreProgram[list[FileDownloadResponse]]:
        """Read files as bytes, each on its own. The responses are in the order of `paths`."""
        return (yield from download_all(self._files, paths, FileDownloadResponse))

    download_files = sync_method(_download_files)
    adownload_files = async_method(_download_files)


def create_store_backend(
    store: Any = None,
    db_path: Any = "store.db",
    use_sqlite: bool = True,
    namespace: tuple[str, ...] | None = None,
    assistant_id: str | None = None,
) -> StoreBackend:
    """Return a `StoreBackend` on a store, or on a new one: at `db_path`, or in memory if not `use_sqlite`."""
    if store is not None:
        return StoreBackend(store, namespace, assistant_id)
    made = SQLiteStore(db_path) if use_sqlite else InMemoryStore()
    backend = StoreBackend(made, namespace, assistant_id)
    backend._owned_store = made._owned_store  # closed with the backend
    return backend


def _number_lines(lines: list[str], first: int) -> str:
    """Put its number before each line. The rest of a line that is too long follows in rows 12.1, 12.2 and so on."""
    rows = []
    for number, line in enumerate(lines, first):
        rows.append(f"{number:6d}\t{line[:_LONGEST_LINE]}")
        for part, start in enumerate(range(_LONGEST_LINE, len(line), _LONGEST_LINE), 1):
            rows.append(f"{f'{number}.{part}':>6}\t{line[start : start + _LONGEST_LINE]}")
    return "\n".join(rows)


# Import --------------------------------------------------------------------------------------------------------------


def import_from(
    db_path: str | os.PathLike[str],
    into: Any,
    *,
    namespace_of: Callable[[str], Namespace] | None = None,
    progress: Progress | None = None,
) -> Imported:
    """Import the data of spoon_ai's own `SQLiteStore` from its file, which is only read.

    `into` is a URL, a `holdall.Store`, or a face such as `SQLiteStore`. An entry that exists there is kept, unless it
    is an older state of a file; so an import can be run again. `progress(done, total)` is called after each page.

    spoon_ai stores a namespace as its labels joined by "/", so the text is split there. For labels that contain a "/",
    pass `namespace_of`, which returns the namespace for such a text.
    """
    return import_all(_Database(db_path, namespace_of or _split_namespace), into, progress)


async def aimport_from(
    db_path: str | os.PathLike[str],
    into: Any,
    *,
    namespace_of: Callable[[str], Namespace] | None = None,
    progress: Progress | None = None,
) -> Imported:
    """`import_from`, awaited."""
    return await aimport_all(_Database(db_path, namespace_of or _split_namespace), into, progress)


_OWNER = "spoon_ai's SQLiteStore"


class _Database(Source):
    """The table of spoon_ai's `SQLiteStore`."""

    def __init__(self, path: str | os.PathLike[str], namespace_of: Callable[[str], Any]) -> None:
        self._path = os.fspath(path)
        self._namespace_of = namespace_of
        self._connection: Any = None
        self._rows: Any = None

    def count(self) -> int:
        with translate_sqlite_errors(self._path, _OWNER):
            self._connection = open_read_only(self._path)
            self._rows = self._connection.execute("SELECT namespace, key, value FROM store ORDER BY namespace, key")
            return int(self._connection.execute("SELECT count(*) FROM store").fetchone()[0])

    def read_page(self) -> list[SourceItem | Refused | None]:
        with translate_sqlite_errors(self._path, _OWNER):
            rows = self._rows.fetchmany(_PAGE_SIZE)
        return [_read_row(self._namespace_of(namespace), key, text) for namespace, key, text in rows]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _read_row(namespace: Any, key: str, text: str) -> SourceItem | Refused:
    try:
        value = json.loads(text)
    except ValueError as error:
        return Refused(namespace, key, f"not JSON: {error}")
    put = ops.Put(tuple(namespace) if isinstance(namespace, list) else namespace, key, value)
    try:  # only files have times
        created, updated = (
            datetime.fromisoformat(value[time]).astimezone(UTC) for time in ("created_at", "modified_at")
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return SourceItem(put)
    return SourceItem(put, created, updated)


def _split_namespace(namespace: str) -> Namespace:
    labels = tuple(namespace.split("/"))
    return labels if all(labels) else (namespace,)


def _is_spoon_database(path: Any) -> bool:
    try:
        with closing(_Database(path, _split_namespace)) as database:
            database.count()
    except (HoldallError, OSError, TypeError):
        return False
    return True
