"""Files of the Agent Framework on any engine: `HoldallFileStore` implements `AgentFileStore`.

Paths are relative to the namespace, and are those of `store.files(namespace)`. The framework searches with its own
regular expressions; the store only says which files have the text of a literal pattern.
"""

from __future__ import annotations

import re
from typing import Any

try:
    from agent_framework import AgentFileStore, FileStoreEntry
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a file store for the Agent Framework", "agent-framework") from missing

from ... import ABSENT, ANY
from ...core import face_api
from ...errors import Conflict, FileNotFound, InvalidInput, IsADirectory
from ...ops import Namespace
from ..base import FilesFace

_LITERAL = re.compile(r"[\w ]+")
_DRIVE = re.compile(r"[A-Za-z]:")


class HoldallFileStore(FilesFace, AgentFileStore):
    """The files of one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given. Names differ by case.
    """

    def __init__(self, store_or_url: Any = None, *, namespace: Namespace = ("files",), **options: Any) -> None:
        self._open_files(store_or_url, namespace, **options)

    async def write(self, path: str, content: str, *, overwrite: bool = True) -> None:
        """Write a file. Without `overwrite`, an existing one is `FileExistsError`."""
        try:
            await self.files.awrite(_absolute(path), content, expect=ANY if overwrite else ABSENT)
        except Conflict:
            raise FileExistsError(f"File already exists: {path!r}") from None

    async def read(self, path: str) -> str | None:
        """Return the text of a file; None if there is none."""
        try:
            return await self.files.aread_text(_absolute(path))
        except (FileNotFound, IsADirectory):
            return None

    async def delete(self, path: str) -> bool:
        """Delete a file. Returns whether it was there."""
        try:
            return await self.files.adelete(_absolute(path)) > 0
        except IsADirectory:
            return False

    async def file_exists(self, path: str) -> bool:
        """Return whether there is a file."""
        try:
            return not (await self.files.astat(_absolute(path))).is_dir
        except FileNotFound:
            return False

    async def list_children(self, directory: str = "") -> list[FileStoreEntry]:
        """List a folder: its subfolders, then its files."""
        names = await self.files.anames(_absolute(directory, is_folder=True))
        folders = [FileStoreEntry(name[:-1], FileStoreEntry.DIRECTORY) for name in names if name.endswith("/")]
        return folders + [FileStoreEntry(name, FileStoreEntry.FILE) for name in names if not name.endswith("/")]

    async def find_matching_files(
        self, directory: str, regex_pattern: str, glob_pattern: str | None = None, *, recursive: bool = False
    ) -> list[str]:
        """Return the files that a search must read: with a literal pattern, those that contain it."""
        folder = _absolute(directory, is_folder=True)
        if not _LITERAL.fullmatch(regex_pattern):
            return await super().find_matching_files(directory, regex_pattern, glob_pattern, recursive=recursive)
        found = await self.files.agrep(regex_pattern, folder, ignore_case=True)
        paths = dict.fromkeys(match.path for match in found)
        start = len(folder.rstrip("/")) + 1
        return [path[start:] for path in paths if recursive or "/" not in path[start:]]

    async def create_directory(self, path: str) -> None:
        """Check a path. Folders exist as long as there are files in them."""
        _absolute(path, is_folder=True)


def _absolute(path: str, *, is_folder: bool = False) -> str:
    """Return the path of a file of the store. One that leads out of the root is `ValueError`, as in the framework."""
    relative = path.strip().replace("\\", "/")
    try:
        if relative.startswith("/") or _DRIVE.match(relative) or "." in relative.split("/"):
            raise InvalidInput(f"a path is relative, without a drive, '.' and '..', not {path!r}")
        folder = face_api.check_folder(f"/{relative}")
        if not is_folder and (folder == "/" or relative.endswith("/")):
            raise InvalidInput(f"{path!r} is not the path of a file")
    except InvalidInput as error:
        raise ValueError(str(error)) from error
    return folder if is_folder else folder[:-1]
