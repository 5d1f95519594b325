"""spoon_ai's types, for where spoon_ai is not installed, or is a release without `spoon_ai.backends`.

The names and fields are those of `spoon_ai.backends.protocol` and `spoon_ai.backends.store`, so that code that was
written for them finds here what it knows.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

FileOperationError: TypeAlias = Literal["file_not_found", "permission_denied", "is_directory", "invalid_path"]


@dataclass
class FileDownloadResponse:
    """What became of one file that was downloaded."""

    path: str
    content: bytes | None = None
    error: FileOperationError | str | None = None


@dataclass
class FileUploadResponse:
    """What became of one file that was uploaded."""

    path: str
    error: FileOperationError | str | None = None


class FileInfo(TypedDict):
    """What a listing says of a file or folder."""

    path: str
    is_dir: NotRequired[bool]
    size: NotRequired[int]
    modified_at: NotRequired[str]


class GrepMatch(TypedDict):
    """A line that was found; the first of a file is line 1."""

    path: str
    line: int
    text: str


@dataclass
class WriteResult:
    """What became of a write. `files_update` is for backends that keep files in an agent's state, which ours do not."""

    error: str | None = None
    path: str | None = None
    files_update: dict[str, Any] | None = None


@dataclass
class EditResult:
    """What became of an edit."""

    error: str | None = None
    path: str | None = None
    files_update: dict[str, Any] | None = None
    occurrences: int | None = None


class BackendProtocol(abc.ABC):
    """What an agent's file tools stand on. Each method has an `a…` twin."""

    @abc.abstractmethod
    def ls_info(self, path: str) -> list[FileInfo]: ...

    @abc.abstractmethod
    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> str: ...

    @abc.abstractmethod
    def write(self, file_path: str, content: str) -> WriteResult: ...

    @abc.abstractmethod
    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult: ...

    @abc.abstractmethod
    def grep_raw(self, pattern: str, path: str | None = None, glob: str | None = None) -> list[GrepMatch] | str: ...

    @abc.abstractmethod
    def glob_info(self, pattern: str, path: str = "/") -> list[FileInfo]: ...


class BaseStore(abc.ABC):
    """A store of dicts under a namespace and a key."""

    @abc.abstractmethod
    def get(self, namespace: tuple[str, ...], key: str) -> dict[str, Any] | None: ...

    @abc.abstractmethod
    def put(self, namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> None: ...

    @abc.abstractmethod
    def delete(self, namespace: tuple[str, ...], key: str) -> None: ...

    @abc.abstractmethod
    def search(
        self,
        namespace: tuple[str, ...],
        query: str | None = None,
        filter: dict[str, Any] | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[dict[str, Any]]: ...
