"""deepagents' files on any engine: `HoldallBackend` is a `BackendProtocol`, sync and async in one object.

    agent = create_deep_agent(model=…, backend=HoldallBackend("agent.db", namespace=("agents", "ada", "files")))

Each method is one of `holdall.Files`, with deepagents' results and words. Whatever goes wrong with a file is such a
result, for a model to read; only a namespace that cannot be had is raised, since that is the caller's mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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
    from ..errors import MissingExtra

    raise MissingExtra(
        f"deepagents' backend needs the package {missing.name!r}: pip install 'holdall[deepagents]'", name=missing.name
    ) from missing

from .. import keys, ops, seam
from ..errors import HoldallError, InvalidInput, NoMatch, NotFound, shown
from ..files import Files, split_lines
from ..ops import Namespace
from ..programs import Program, arun, run
from ..store import Store
from .opening import Face
from .words import absolute, as_dict, as_match, downloaded, newest_first, not_edited, not_found, number, uploaded

__all__ = ["HoldallBackend"]

#: A namespace, or what makes one for the run that a call is part of: `lambda runtime: ("users", runtime.context.user)`.
NamespaceOrFactory: TypeAlias = Namespace | Callable[[Runtime[Any]], Namespace]

#: What deepagents does not read as lines: images, videos, sounds and documents, which models take whole.
WHOLE = re.compile(
    r".*\.(png|jpe?g|webp|gif|hei[cf]|mp4|mpe?g|mov|avi|flv|webm|wmv|3gpp|mkv|wav|mp3|aiff|aac|ogg|flac|pdf|pptx?)",
    re.IGNORECASE | re.DOTALL,
)
_NO_NEWLINE_AT_END = "Error: old_string ends with a newline, but the file does not end with a newline."


class HoldallBackend(Face, BackendProtocol):
    """The files of one namespace, exactly that one and no child's, as a backend for deepagents.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `namespace` is a tuple, or a
    function that is called for every operation with LangGraph's `Runtime`, or None outside of a graph, as deepagents'
    own `StoreBackend` calls it. It has no default: who shares files with whom is for you to say.
    """

    def __init__(self, store_or_url: Any, *, namespace: NamespaceOrFactory) -> None:
        #: The `holdall.Store` beneath.
        self.store: Store = self._open(store_or_url)
        self._namespace = namespace
        if not callable(namespace):
            self.store.files(namespace)  # so that a wrong one is refused here

    def __repr__(self) -> str:
        return f"<HoldallBackend of {shown(self._namespace)} in {self.store!r}>"

    # Reading ---------------------------------------------------------------------------------------------------------

    def _ls(self, path: str) -> Program[LsResult]:
        """What is in a folder; its subfolders end in "/". Nothing, for a missing one."""
        files = self._files()
        try:
            found = yield from seam.ls(files, absolute(path))
        except HoldallError as error:
            return LsResult(error=str(error))
        return LsResult(entries=[as_dict(info) for info in found])

    ls = run(_ls)
    als = arun(_ls)

    def _read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Program[ReadResult]:
        r"""Up to `limit` lines of a file from line `offset` on, with \n at their ends; what is not text, as a whole."""
        files = self._files()
        try:
            path = _file_path(file_path)
            first, most = number("offset", offset), number("limit", limit)
            info, entry = yield [ops.Stat(files.namespace, path), ops.Get(files.namespace, path)]
            if info is None or info.is_dir or entry is None:
                raise NotFound(path)
        except NotFound:
            return ReadResult(error=f"File '{file_path}' not found")
        except HoldallError as error:
            return ReadResult(error=str(error))
        data = _file_data(entry.value)
        if WHOLE.fullmatch(path) or data["encoding"] == "base64":
            return ReadResult(file_data=data)
        return _window(data, first, most)

    read = run(_read)
    aread = arun(_read)

    def _grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> Program[GrepResult]:
        """The lines that contain a text, as it stands, in path and line order; `truncated` if there are more."""
        files = self._files()
        try:
            most = None if max_count is None else number("max_count", max_count)
            found = yield from seam.grep(
                files, pattern, absolute(path or "/"), glob=glob or None, limit=None if most is None else most + 1
            )
        except HoldallError as error:
            return GrepResult(error=f"Error: {error}")
        matches = [as_match(match) for match in found[:most]]
        return GrepResult(matches=matches, truncated=len(found) > len(matches))

    grep = run(_grep)
    agrep = arun(_grep)

    def _glob(self, pattern: str, path: str | None = None) -> Program[GlobResult]:
        """The files that match, newest first: by name at any depth, or by their path from `path` on."""
        files = self._files()
        try:
            folder = absolute(path or "/")
            keys.check_folder(folder)
        except HoldallError as error:
            return GlobResult(error=str(error))
        try:
            found = yield from seam.glob(files, pattern, folder)
        except InvalidInput as error:
            return GlobResult(error=f"Invalid glob pattern {shown(pattern)}: {error}")
        except HoldallError as error:
            return GlobResult(error=str(error))
        return GlobResult(matches=newest_first(found))

    glob = run(_glob)
    aglob = arun(_glob)

    # Writing ---------------------------------------------------------------------------------------------------------

    def _write(self, file_path: str, content: str) -> Program[WriteResult]:
        """Create a file, or replace it."""
        files = self._files()
        try:
            info = yield from seam.write(files, absolute(file_path), content)
        except HoldallError as error:
            return WriteResult(error=f"Error: {error}")
        return WriteResult(path=info.path)

    write = run(_write)
    awrite = arun(_write)

    def _edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Program[EditResult]:
        """Replace a text that is in a file exactly once, or everywhere. Edits that others make at once are kept."""
        files = self._files()
        try:
            path = _file_path(file_path)
            count = yield from seam.edit(files, path, old_string, new_string, replace_all=replace_all)
        except HoldallError as error:
            if isinstance(error, NoMatch):
                return EditResult(error=(yield from _why_no_match(files, file_path, old_string, error)))
            return EditResult(error=_not_edited(file_path, old_string, error))
        return EditResult(path=path, occurrences=count)

    edit = run(_edit)
    aedit = arun(_edit)

    def _delete(self, file_path: str) -> Program[DeleteResult]:
        """Remove a file, or a folder with all that is in it. `*` is a character like any other."""
        files = self._files()
        try:
            count = yield from seam.delete(files, absolute(file_path))
        except HoldallError as error:
            return DeleteResult(error=f"Error: {error}")
        return DeleteResult(path=file_path) if count else DeleteResult(error=not_found(file_path))

    delete = run(_delete)
    adelete = arun(_delete)

    # Many files ------------------------------------------------------------------------------------------------------

    def _upload_files(self, files: list[tuple[str, bytes]]) -> Program[list[FileUploadResponse]]:
        """Create or replace files, each for itself; the answers are in their order."""
        return (yield from uploaded(self._files(), files, FileUploadResponse))

    upload_files = run(_upload_files)
    aupload_files = arun(_upload_files)

    def _download_files(self, paths: list[str]) -> Program[list[FileDownloadResponse]]:
        """The bytes of files, each for itself; the answers are in their order."""
        return (yield from downloaded(self._files(), paths, FileDownloadResponse))

    download_files = run(_download_files)
    adownload_files = arun(_download_files)

    def _files(self) -> Files:
        """The files of the namespace that is meant in this call."""
        return self.store.files(_made(self._namespace) if callable(self._namespace) else self._namespace)


def _made(factory: Callable[[Runtime[Any]], Namespace]) -> Namespace:
    """What a namespace factory makes of the run that we are in."""
    try:
        runtime: Runtime[Any] | None = get_runtime()
    except (RuntimeError, KeyError):  # outside of any
        runtime = None
    try:
        return factory(cast("Runtime[Any]", runtime))
    except AttributeError as error:
        if runtime is not None:
            raise
        raise RuntimeError(
            "the namespace function reads LangGraph's Runtime, which there is only while a graph runs; call the backend"
            " from an agent (create_deep_agent), or give it a namespace that needs no Runtime"
        ) from error


def _file_path(path: Any) -> str:
    """The path of a file that has to be there, which no folder's is."""
    whole = absolute(path)
    folder = keys.check_folder(whole)
    if whole.endswith("/"):
        raise NotFound(f"{shown(path)} names a folder")
    return folder[:-1]


def _file_data(item: dict[str, Any]) -> FileData:
    """deepagents' form of a file, of any form that it may be kept in."""
    content = item["content"]
    data = FileData(
        content="\n".join(content) if isinstance(content, list) else content, encoding=item.get("encoding", "utf-8")
    )
    if "created_at" in item:
        data["created_at"] = item["created_at"]
    if "modified_at" in item:
        data["modified_at"] = item["modified_at"]
    return data


def _window(data: FileData, offset: int, limit: int) -> ReadResult:
    """Some lines of a text, and which ones they are; a blank text has none to count."""
    text = data["content"]
    if not text.strip():
        return ReadResult(file_data=data)
    if limit == 0:
        return ReadResult(file_data={**data, "content": ""}, no_lines_requested=True)
    lines = split_lines(text)
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


def _not_edited(path: str, old: str, error: HoldallError) -> str:
    return not_edited(path, old, error, " with surrounding context")


def _why_no_match(files: Files, path: str, old: str, error: NoMatch) -> Program[str]:
    """Models put a newline at the end of a file that has none; they are told so."""
    begin = old.removesuffix("\n")
    if begin and begin != old:
        try:
            text = yield from seam.read_text(files, absolute(path))
        except HoldallError:  # gone in the meantime
            return not_found(path)
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
    return _not_edited(path, old, error)
