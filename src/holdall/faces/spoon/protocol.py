"""spoon_ai's types: its own if it is installed, and equal ones if it is not, or has no `spoon_ai.backends`.

The names and fields are those of `spoon_ai.backends.protocol` and `spoon_ai.backends.store`, so that code written for
spoon_ai works with either.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict

__all__ = [
    "BackendProtocol",
    "BaseStore",
    "EditResult",
    "FileDownloadResponse",
    "FileInfo",
    "FileOperationError",
    "FileUploadResponse",
    "GrepMatch",
    "WriteResult",
]

FileOperationError: TypeAlias = Literal["file_not_found", "permission_denied", "is_directory", "invalid_path"]


@dataclass
class FileDownloadResponse:
    """The result of downloading one file."""

    path: str
    content: bytes | None = None
    error: FileOperationError | str | None = None


@dataclass
class FileUploadResponse:
    """The result of uploading one file."""

    path: str
    error: FileOperationError | str | None = None


class FileInfo(TypedDict):
    """A file or folder of a listing."""

    path: str
    is_dir: NotRequired[bool]
    size: NotRequired[int]
    modified_at: NotRequired[str]


class GrepMatch(TypedDict):
    """A line that matches a search. The first line of a file is 1."""

    path: str
    line: int
    text: str


@dataclass
class WriteResult:
    """The result of a write. `files_update` is for backends that keep files in an agent's state; here it is None."""

    error: str | None = None
    path: str | None = None
    files_update: dict[str, Any] | None = None


@dataclass
class EditResult:
    """The result of an edit."""

    error: str | None = None
    path: str | None = None
    files_update: dict[str, Any] | None = None
    occurrences: int | None = None


class BackendProtocol(abc.ABC):
    """The backend of an agent's file tools. Each method also has an async form, with an `a` before its name."""

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


if not TYPE_CHECKING:
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
        pass
