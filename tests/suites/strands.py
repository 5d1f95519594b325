"""Strands' tests on ours: its storage in memory and its repositories are replaced."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import strands.session.file_session_manager
import strands.storage.in_memory_storage
from strands.session.repository_session_manager import RepositorySessionManager
from strands.storage.storage import _EPHEMERAL

from holdall.faces.strands import HoldallSessionRepository, HoldallStorage
from suites.new_stores import new_store, store_at


class InMemoryStorage(HoldallStorage):
    """A `HoldallStorage` with the constructor of `InMemoryStorage`, and its mark that what it holds may be lost."""

    _ephemeral = _EPHEMERAL

    def __init__(self, *, search_strategy: Any = None) -> None:
        super().__init__(new_store(), search_strategy=search_strategy)


class LocalFileStorage(HoldallStorage):
    """A `HoldallStorage` with the constructor of `LocalFileStorage`."""

    def __init__(self, base_dir: str | None = None, *, search_strategy: Any = None) -> None:
        super().__init__(store_at(base_dir or ""), search_strategy=search_strategy)


class Repository(HoldallSessionRepository):
    """A `HoldallSessionRepository` with the constructor of the tests' own repository."""

    def __init__(self) -> None:
        super().__init__(new_store())


class Manager(HoldallSessionRepository, RepositorySessionManager):
    """A session manager on ours, with the constructor of `FileSessionManager`."""

    def __init__(self, session_id: str, storage_dir: str | None = None, **kwargs: Any) -> None:
        HoldallSessionRepository.__init__(self, store_at(storage_dir or ""))
        RepositorySessionManager.__init__(self, session_id=session_id, session_repository=self, **kwargs)


strands.storage.InMemoryStorage = strands.storage.in_memory_storage.InMemoryStorage = InMemoryStorage  # type: ignore[misc, assignment]
strands.storage.LocalFileStorage = LocalFileStorage  # type: ignore[misc, assignment]
strands.session.file_session_manager.FileSessionManager = Manager  # type: ignore[misc, assignment]
ours = ModuleType("tests.fixtures.mock_session_repository")
ours.MockedSessionRepository = Repository  # type: ignore[attr-defined]
sys.modules[ours.__name__] = ours
