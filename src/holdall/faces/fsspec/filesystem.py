"""fsspec's file system on any engine: `HoldallFileSystem` implements `AbstractFileSystem`.

    pandas.read_csv("holdall://data/sales.csv", storage_options={"store_or_url": "agent.db", "namespace": ["files"]})

The paths are those of `store.files(namespace)`. A folder of a store exists while it has files; folders that fsspec made
and that may be empty have a marker each, in a volume of its own.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

try:
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a file system for fsspec", "fsspec") from missing

from ... import ABSENT, FileInfo, Files, Store, ops
from ...core import face_api
from ...errors import Conflict, FileNotFound, InvalidInput, IsADirectory, NotADirectory
from ..base import open_store

_FOLDERS = "fsspec folders"  # the label of the volume of markers, below the namespace of the files
_MARKER = "/.folder"  # the name of a marker


class _CachedByUrl(type(AbstractFileSystem)):  # type: ignore[misc]  # fsspec has no types
    """fsspec keeps file systems by the text of their arguments, which does not tell one store from another.

    So only those of a URL are kept, by the URL that `HOLDALL_URL` has when they are made, and by the working directory,
    which a URL may be relative to. One whose store was closed is made again.
    """

    @property
    def working_directory(cls) -> str:
        """A part of the name that fsspec keeps a file system by."""
        try:
            return str(Path.cwd())
        except FileNotFoundError:  # it was deleted
            return ""

    def _check_instance_cache(cls, token: str) -> Any:
        found = super()._check_instance_cache(token)
        return None if found is None or face_api.is_closed(found.store) else found

    def __call__(cls, url: Any = None, *args: Any, store_or_url: Any = None, **storage: Any) -> Any:
        if url is not None and store_or_url is not None:
            raise InvalidInput("url and store_or_url are the same: pass one of them")
        url = store_or_url if url is None else url
        url = os.environ.get("HOLDALL_URL") if url is None else url
        if not (url is None or isinstance(url, str | os.PathLike)):
            storage["skip_instance_cache"] = True
        if url is not None or args:
            args = (url, *args)
        return super().__call__(*args, **storage)


class HoldallFileSystem(AbstractFileSystem, metaclass=_CachedByUrl):  # type: ignore[misc]  # fsspec has no types
    """The files of one namespace of a holdall store.

    `url` is what `holdall.open` takes, a `holdall.Store`, or another face; None is the URL in `HOLDALL_URL`. It is also
    taken as `store_or_url`: `fsspec.core.url_to_fs`, which pandas reads Parquet with, has an argument `url` of its own.
    `namespace` is a list of labels. `options` are passed to `holdall.open` if a URL is given.
    """

    protocol = "holdall"
    root_marker = "/"
    _extra_tokenize_attributes = ("working_directory",)

    def __init__(
        self, url: Any = None, namespace: Sequence[str] = ("filesystem",), *, options: Any = None, **storage: Any
    ) -> None:
        super().__init__(**storage)
        self.store: Store = open_store(url, **(options or {}))[0]
        labels: Any = namespace if isinstance(namespace, str) else tuple(namespace)  # a str is refused
        self.files: Files = self.store.files(labels)
        self._markers: Files = self.store.files((*self.files.namespace, _FOLDERS))

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        stripped = str(path).removeprefix("holdall://").removeprefix("holdall:").strip("/")
        return f"/{stripped}"

    # Reading ---------------------------------------------------------------------------------------------------------

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:  # fsspec's signature
        """Describe a file or folder. `FileNotFoundError` if there is neither."""
        path = self._strip_protocol(path)
        try:
            return _describe(self.files.stat(path))
        except FileNotFound:
            if path == "/" or self._markers.exists(path):
                return _describe_folder(path)
            raise

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:  # fsspec's signature
        """List a folder. For a file, it is the only one in the list."""
        path = self._strip_protocol(path)
        found = {one["name"]: one for one in map(_describe, self.files.ls(path))}
        for one in self._markers.ls(path):
            if one.is_dir:
                found.setdefault(one.path.rstrip("/"), _describe(one))
        if not found:
            info = self.info(path)
            if info["type"] == "file":
                found[path] = info
        names = sorted(found)
        return [found[name] for name in names] if detail else names

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Return the bytes of a file, or of a part of it. Numbers below 0 count from its end."""
        path = self._strip_protocol(path)
        if path == "/":
            raise IsADirectory("'/' is a folder")
        if (start or 0) < 0 or (end or 0) < 0:
            size = self.files.stat(path).size
            start = size + start if start is not None and start < 0 else start
            end = max(size + end, 0) if end is not None and end < 0 else end
        return self.files.read_range(path, max(start or 0, 0), end)

    def created(self, path: str) -> datetime:
        """Return when a file was created."""
        created: datetime = self.info(path)["created"]
        return created

    def modified(self, path: str) -> datetime:
        """Return when a file was last changed."""
        modified: datetime = self.info(path)["modified"]
        return modified

    # Writing ---------------------------------------------------------------------------------------------------------

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a file in one step, or at the end of a transaction. With the mode "create", it must be new."""
        path, content = self._check_target(path), memoryview(value).tobytes()
        if self._intrans:
            with self.open(path, "xb" if mode == "create" else "wb") as file:
                file.write(content)
        elif mode == "create":
            self._create(path, content)
        else:
            self.files.write(path, content)

    def _create(self, path: str, content: bytes) -> None:
        try:
            self.files.write(path, content, expect=ABSENT)
        except Conflict:
            raise FileExistsError(path) from None

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:  # fsspec's signature
        """Copy a file without reading it, or make a folder."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
        else:
            self.files.copy(path1, self._check_target(path2))

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any
    ) -> None:  # fsspec's signature
        """Move files and, with `recursive`, folders. A single file is moved in one step."""
        if not self._is_one(path1) or not self._is_one(path2) or not self.isfile(path1):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if str(path2).endswith("/") or self.isdir(target):
            target = f"{target.rstrip('/')}/{source.rpartition('/')[2]}"
        if source != target:
            self.files.move(source, self._check_target(target))

    def rm_file(self, path: str) -> None:
        """Delete a file."""
        path = self._strip_protocol(path)
        if not self.files.delete(path):
            raise FileNotFoundError(path)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete files and, with `recursive`, folders with everything in them."""
        if maxdepth is not None or not self._is_one(path):
            for one in reversed(self.expand_path(path, recursive=recursive, maxdepth=maxdepth)):
                if self.isfile(one):
                    self.rm_file(one)
                elif self._markers.exists(one + _MARKER):
                    self.rmdir(one)
            return
        path = self._strip_protocol(path)
        info = self.info(path)
        if info["type"] == "file":
            self.rm_file(path)
        elif not recursive:
            raise IsADirectory(f"{path!r} is a folder; pass recursive=True to delete it with everything in it")
        else:
            batch = [ops.DeleteTree(files.namespace, path) for files in (self.files, self._markers)]
            self.store.execute(batch)

    def _check_target(self, path: str) -> str:
        """Return the path of a file to write. A folder that fsspec made is `IsADirectory`."""
        path = self._strip_protocol(path)
        if path != "/" and self._markers.exists(path):
            raise IsADirectory(f"{path!r} is a folder; a file cannot have its name")
        return path

    @staticmethod
    def _is_one(path: Any) -> bool:
        """Whether a path names one file or folder: it is no list, and has no wildcard."""
        return not isinstance(path, list) and not any(sign in str(path) for sign in "*?[")

    # Folders ---------------------------------------------------------------------------------------------------------

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Make a folder, which stays when it is empty."""
        path = self._strip_protocol(path)
        if self.exists(path):
            raise FileExistsError(path)
        parent = self._parent(path)
        if not create_parents and not self.isdir(parent):
            raise FileNotFoundError(parent)
        while parent != "/":
            if self.isfile(parent):
                raise NotADirectory(f"{parent!r} is a file, so nothing can be in it: {path!r}")
            parent = self._parent(parent)
        self._markers.write(path + _MARKER, b"")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder and those above it."""
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok or self.isfile(path):
                raise

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        path = self._strip_protocol(path)
        if any(not one.path.endswith(_MARKER) for files in (self.files, self._markers) for one in files.ls(path)):
            raise OSError(f"Directory not empty: {path}")
        if not self._markers.delete(path + _MARKER):
            raise FileNotFoundError(path)

    # File objects ----------------------------------------------------------------------------------------------------

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> HoldallFile:
        path = self._strip_protocol(path)
        if mode not in ("rb", "wb", "ab", "xb"):
            raise InvalidInput(f"a file of fsspec is opened with rb, wb, ab or xb, not {mode!r}")
        if mode == "rb" and self.isdir(path):
            raise IsADirectory(f"{path!r} is a folder")
        if mode == "xb" and self.exists(path):
            raise FileExistsError(path)
        if mode != "rb":
            self._check_target(path)
        return HoldallFile(self, path, mode, block_size or "default", autocommit, cache_options=cache_options, **kwargs)


class HoldallFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An open file. What is written becomes visible when it is closed, or when its transaction ends.

    Reading a file that has changed since it was opened is `Conflict`.
    """

    fs: HoldallFileSystem
    _writer: io.BufferedIOBase | None = None

    def _initiate_upload(self) -> None:
        # A file that must be new is written in one step, so that it fails if another has become it in the meantime.
        # What a transaction appends is also written in one step, at its end, because an append cannot be undone.
        in_one_step = self.mode == "xb" or (self.mode == "ab" and not self.autocommit)
        self._writer = io.BytesIO() if in_one_step else self.fs.files.open(self.path, self.mode)

    def _upload_chunk(self, final: bool = False) -> bool:
        assert self._writer is not None
        buffer: io.BytesIO = self.buffer
        self._writer.write(buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Make what was written visible."""
        if isinstance(self._writer, io.BytesIO) and self.mode == "ab":
            self.fs.files.append(self.path, self._writer.getvalue())
        elif isinstance(self._writer, io.BytesIO):
            self.fs._create(self.path, self._writer.getvalue())
        elif self._writer is not None:
            self._writer.close()

    def discard(self) -> None:
        """Drop what was written."""
        if not isinstance(self._writer, io.BytesIO | None):  # an error in its block drops what was written
            self._writer.__exit__(InterruptedError, InterruptedError(), None)

    def _fetch_range(self, start: int, end: int) -> bytes:
        # Only of the version that was opened: parts of two versions would be no file that ever was.
        namespace = self.fs.files.namespace
        check = ops.Check(namespace, self.path, self.details["version"])
        content: bytes = self.fs.store.execute([check, ops.ReadRange(namespace, self.path, start, end)])[1]
        return content


def _describe(info: FileInfo) -> dict[str, Any]:
    if info.is_dir:
        return _describe_folder(info.path)
    times = {"created": info.created_at, "modified": info.modified_at}
    return {"name": info.path, "size": info.size, "type": "file", "version": info.version, **times}


def _describe_folder(path: str) -> dict[str, Any]:
    return {"name": path.rstrip("/") or "/", "size": 0, "type": "directory"}
