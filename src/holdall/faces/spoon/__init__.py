"""spoon_ai: its persistent files on any engine."""

from ..importing import Imported, Refused
from .protocol import (
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
from .stores import InMemoryStore, SQLiteStore, StoreBackend, aimport_from, create_store_backend, import_from

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
