"""deepagents' files on any engine: `HoldallBackend` implements `BackendProtocol`, sync and async in one object.

    agent = create_deep_agent(model=…, backend=HoldallBackend("agent.db", namespace=("agents", "ada", "files")))

Each method calls one of `holdall.Files`, and returns deepagents' result types and messages. An error with a file is
such a result, for a model to read. Only an invalid namespace is raised, because it is the caller's mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

try:
    from deepagents.backends.protocol import (
        BackendProtocol,
        DeleteResult,
        EditResult,
        FileData,
        FileDownloadResponse,
        FileUploadResponse,
        GlobResult,
        GrepResult,
        LsResult,
        ReadResult,
        WriteResult,
    )
    from langgraph.runtime import Runtime, get_runtime
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "deepagents' backend", "deepagents") from missing

from ... import DEFAULT, Files, Store, ops
from ...core import face_api
from ...core.face_api import StoreProgram, async_method, retry_conflicts, sync_method
from ...errors import FileNotFound, HoldallError, InvalidInput, NoMatch, NotText, shown
from ...ops import KEEP, Lifetime, Namespace
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

__all__ = ["HoldallBackend"]

#: A namespace, or a function that returns one for the current run: `lambda runtime: ("users", runtime.context.user)`.
NamespaceOrFactory: TypeAlias = Namespace | Callable[[Runtime[Any]], Namespace]

#: The files that deepagents does not read as lines: images, videos, sounds and documents. A model gets all of one.
MEDIA = re.compile(
    r".*\.(png|jpe?g|webp|gif|hei[cf]|mp4|mpe?g|mov|avi|flv|webm|wmv|3gpp|mkv|wav|mp3|aiff|aac|ogg|flac|pdf|pptx?)",
    re.IGNORECASE | re.DOTALL,
)
_NO_NEWLINE_AT_END = "Error: old_string ends with a newline, but the file does not end with a newline."


class HoldallBackend(Face, BackendProtocol):
    """The files of exactly one namespace, without those below it, as a backend for deepagents.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `namespace` is a tuple, or a
    function that is called for every operation with LangGraph's `Runtime`, or None outside of a graph, as deepagents'
    own `StoreBackend` does. It has no default: you decide which agents share files.
    """

    def __init__(self, store_or_url: Any, *, namespace: NamespaceOrFactory) -> None:
        #: The `holdall.Store` that this face runs on.
        self.store: Store = self._open(store_or_url)
        self._namespace = namespace
        if not callable(namespace):
            self.store.files(namespace)  # refuses an invalid one here

    def __repr__(self) -> str:
        return f"<HoldallBackend of {shown(self._namespace)} in {self.store!r}>"

    # Reading ---------------------------------------------------------------------------------------------------------

    def _ls(self, path: str) -> StoreProgram[LsResult]:
        """List a folder; the paths of subfolders end in "/". A missing folder gives an empty list."""
        files = self._files()
        try:
            found = yield from face_api.ls(files, to_absolute(path))
        except HoldallError as error:
            return LsResult(error=str(error))
        return LsResult(entries=[describe_file(info) for info in found])

    ls = sync_method(_ls)
    als = async_method(_ls)

    def _read(self, file_path: str, offset: int = 0, limit: int = 2000) -> StoreProgram[ReadResult]:
        r"""Read up to `limit` lines from line `offset` on, ending in \n. A file that is not text is read whole."""
        files = self._files()
        try:
            path = _file_path(file_path)
            start, count = parse_number("offset", offset), parse_number("limit", limit)
            [entry] = yield [ops.Get(files.namespace, path)]
            if entry is None or not face_api.is_item_of_file(path, entry.value):
                raise FileNotFound(path)
            if entry.value["content"] is None:
                [info] = yield [ops.Stat(files.namespace, path)]
                size = "" if info is None else f": {info.size} bytes"
                return ReadResult(error=f"File '{file_path}' is too large to read{size}")
        except FileNotFound:
            return ReadResult(error=f"File '{file_path}' not found")
        except HoldallError as error:
            return ReadResult(error=str(error))
        data = _file_data(entry.value)
        if MEDIA.fullmatch(path) or data["encoding"] == "base64":
            return ReadResult(file_data=data)
        return _read_window(data, start, count)

    read = sync_method(_read)
    aread = async_method(_read)

    def _grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> StoreProgram[GrepResult]:
        """Find the lines that contain a text (no regular expression), sorted; `truncated` if there are more."""
        files = self._files()
        try:
            most = None if max_count is None else parse_number("max_count", max_count)
            found = yield from face_api.grep(
                files, pattern, to_absolute(path or "/"), glob=glob or None, limit=None if most is None else most + 1
            )
        except HoldallError as error:
            return GrepResult(error=f"Error: {error}")
        matches = [describe_match(match) for match in found[:most]]
        return GrepResult(matches=matches, truncated=len(found) > len(matches))

    grep = sync_method(_grep)
    agrep = async_method(_grep)

    def _glob(self, pattern: str, path: str | None = None) -> StoreProgram[GlobResult]:
        """Find files by name at any depth, or by their path relative to `path`; the last modified first."""
        files = self._files()
        try:
            folder = to_absolute(path or "/")
            face_api.check_folder(folder)
        except HoldallError as error:
            return GlobResult(error=str(error))
        try:
            found = yield from face_api.glob(files, pattern, folder)
        except InvalidInput as error:
            return GlobResult(error=f"Invalid glob pattern {shown(pattern)}: {error}")
        except HoldallError as error:
            return GlobResult(error=str(error))
        return GlobResult(matches=sort_newest_first(found))

    glob = sync_method(_glob)
    aglob = async_method(_glob)

    # Writing ---------------------------------------------------------------------------------------------------------

    def _write(self, file_path: str, content: str) -> StoreProgram[WriteResult]:
        """Create a file, or replace it."""
        files = self._files()
        try:
            path = face_api.check_path(to_absolute(file_path))
            is_text = isinstance(content, str)
            if not (is_text and (yield from self._rewrite(files, path, lambda _: (content, 1), DEFAULT))):
                yield from face_api.write(files, path, content)
        except HoldallError as error:
            return WriteResult(error=f"Error: {error}")
        return WriteResult(path=path)

    write = sync_method(_write)
    awrite = async_method(_write)

    def _edit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> StoreProgram[EditResult]:
        """Replace a text that occurs exactly once in a file, or all occurrences. Concurrent edits are kept."""
        files = self._files()
        try:
            path = _file_path(file_path)
            replace = face_api.make_edit(path, old_string, new_string, replace_all=replace_all)
            count = yield from self._rewrite(files, path, lambda data: replace(_text(path, data)), KEEP)
            if not count:
                count = yield from face_api.edit(files, path, old_string, new_string, replace_all=replace_all)
        except HoldallError as error:
            if isinstance(error, NoMatch):
                return EditResult(error=(yield from _why_no_match(files, file_path, old_string, error)))
            return EditResult(error=_edit_error(file_path, old_string, error))
        return EditResult(path=path, occurrences=count)

    edit = sync_method(_edit)
    aedit = async_method(_edit)

    def _rewrite(
        self, files: Files, path: str, change: Callable[[FileData], tuple[str, int]], ttl: Lifetime
    ) -> StoreProgram[int]:
        """Rewrite a file whose item has its own `created_at`, and keep that, as deepagents' own backend does.

        Returns the count that `change` returns; 0, with nothing done, if the file has no `created_at` of its own.
        """

        def attempt() -> StoreProgram[int]:
            [entry] = yield [ops.Get(files.namespace, path)]
            if entry is None or not face_api.is_item_of_file(path, entry.value):
                return 0
            created = entry.value.get("created_at")
            if created in (None, entry.created_at.isoformat()):
                return 0
            if entry.value.get("content") is None:  # too large for an item; its times are not kept either
                return 0
            text, count = change(_file_data(entry.value))
            now = datetime.now(UTC).isoformat()
            value = {"content": text, "encoding": "utf-8", "created_at": created, "modified_at": now}
            yield from face_api.execute(self.store, [ops.Put(files.namespace, path, value, ttl, entry.version)])
            return count

        return (yield from retry_conflicts(attempt))

    def _delete(self, file_path: str) -> StoreProgram[DeleteResult]:
        """Delete a file, or a folder and all files in it. `*` is not a wildcard.

        The path is taken as it is, as deepagents does: a relative path, and one with ".", is not found.
        """
        files = self._files()
        try:
            face_api.check_folder(to_absolute(file_path))  # refuses what is no path
            if file_path and (not file_path.startswith("/") or "." in file_path.split("/")):
                return DeleteResult(error=not_found_message(file_path))
            count = yield from face_api.delete(files, to_absolute(file_path), recursive=True)
        except HoldallError as error:
            return DeleteResult(error=f"Error: {error}")
        return DeleteResult(path=file_path) if count else DeleteResult(error=not_found_message(file_path))

    delete = sync_method(_delete)
    adelete = async_method(_delete)

    # Many files ------------------------------------------------------------------------------------------------------

    def _upload_files(self, files: list[tuple[str, bytes]]) -> StoreProgram[list[FileUploadResponse]]:
        """Create or replace files, each on its own. The responses are in the order of `files`."""
        return (yield from upload_all(self._files(), files, FileUploadResponse))

    upload_files = sync_method(_upload_files)
    aupload_files = async_method(_upload_files)

    def _download_files(self, paths: list[str]) -> StoreProgram[list[FileDownloadResponse]]:
        """Read files as bytes, each on its own. The responses are in the order of `paths`."""
        return (yield from download_all(self._files(), paths, FileDownloadResponse))

    download_files = sync_method(_download_files)
    adownload_files = async_method(_download_files)

    def _files(self) -> Files:
        """Return the files of the namespace for this call."""
        return self.store.files(_call_factory(self._namespace) if callable(self._namespace) else self._namespace)


def _call_factory(factory: Callable[[Runtime[Any]], Namespace]) -> Namespace:
    """Return the namespace that a factory makes for the current run."""
    try:
        runtime: Runtime[Any] | None = get_runtime()
    except (RuntimeError, KeyError):  # outside of a run
        runtime = None
    try:
        return factory(cast("Runtime[Any]", runtime))
    except AttributeError as error:
        if runtime is not None:
            raise
        raise RuntimeError(
            "the namespace function reads LangGraph's Runtime, which exists only while a graph runs; call the backend"
            " from an agent (create_deep_agent), or pass a namespace that needs no Runtime"
        ) from error


def _file_path(path: Any) -> str:
    """Return the normalised path of an existing file, or raise `FileNotFound` for the path of a folder."""
    absolute = to_absolute(path)
    folder = face_api.check_folder(absolute)
    if absolute.endswith("/"):
        raise FileNotFound(f"{shown(path)} names a folder")
    return folder[:-1]


def _file_data(item: dict[str, Any]) -> FileData:
    """Return a file as deepagents has it, from any form in which its item may be stored."""
    content = item["content"]
    data = FileData(
        content="\n".join(content) if isinstance(content, list) else content, encoding=item.get("encoding", "utf-8")
    )
    if "created_at" in item:
        data["created_at"] = item["created_at"]
    if "modified_at" in item:
        data["modified_at"] = item["modified_at"]
    return data


def _text(path: str, data: FileData) -> str:
    if data["encoding"] == "base64":
        raise NotText(f"{path!r} is not UTF-8 text")
    return data["content"]


def _read_window(data: FileData, offset: int, limit: int) -> ReadResult:
    """Return some lines of a text, and their numbers. A blank text is returned whole, without numbers."""
    text = data["content"]
    if not text.strip():
        return ReadResult(file_data=data)
    if limit == 0:
        return ReadResult(file_data={**data, "content": ""}, no_lines_requested=True)
    lines = face_api.split_lines(text)
    total = len(lines)
    if offset >= total:
        return ReadResult(error=f"Line offset {offset} exceeds file length ({total} lines)")
    end = min(offset + limit, total)
    last = "\n" if end < total or text[-1] in "\r\n" else ""
    return ReadResult(
        file_data={**data, "content": "\n".join(lines[offset:end]) + last},
        total_lines=total,
        start_line=offset + 1,
        end_line=end,
        next_offset=end if end < total else None,
    )


def _edit_error(path: str, old: str, error: HoldallError) -> str:
    return edit_error_message(path, old, error, " with surrounding context")


def _why_no_match(files: Files, path: str, old: str, error: NoMatch) -> StoreProgram[str]:
    """Return the message for a text that was not found. Models often add a newline at the end: it explains that."""
    begin = old.removesuffix("\n")
    if begin and begin != old:
        try:
            text = yield from face_api.read_text(files, to_absolute(path))
        except HoldallError:  # deleted meanwhile
            return not_found_message(path)
        if text.endswith(begin):
            if text.count(begin) == 1:
                return (
                    f"{_NO_NEWLINE_AT_END} Retry with the trailing newline removed from old_string (and from new_string"
                    " if it also ends with a newline)."
                )
            return (
                f"{_NO_NEWLINE_AT_END} With the trailing newline removed, old_string would appear {text.count(begin)}"
                " times in the file. Retry with the trailing newline removed and add surrounding context so the match"
                " is unique."
            )
    return _edit_error(path, old, error)
