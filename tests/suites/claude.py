"""The Anthropic SDK's tests of its memory tool on ours: the tools that keep files in a folder are replaced.

Ours keep them in a folder, too: the tests run on the disk engine, where a file of a store is a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from anthropic.lib.tools import _beta_builtin_memory_tool

from holdall.faces.claude import AsyncMemoryTool, MemoryTool

_FOLDER = "@memories"  # of the namespace ("memories",)


class _InFolder:
    """The constructor and the attributes of the SDK's tools."""

    def __init__(self, base_path: str = "./memory") -> None:
        super().__init__(f"disk:///{base_path}", durability="relaxed")  # type: ignore[call-arg]  # of the tool beside it
        self.base_path = Path(base_path)
        self.memory_root = self.base_path / _FOLDER
        self.memory_root.mkdir(exist_ok=True)


class BetaLocalFilesystemMemoryTool(_InFolder, MemoryTool):
    """A `MemoryTool` whose files are in a folder, as those of the SDK's own tool are."""


class BetaAsyncLocalFilesystemMemoryTool(_InFolder, AsyncMemoryTool):
    """`BetaLocalFilesystemMemoryTool`, async."""

    def __init__(self, base_path: str = "./memory") -> None:
        super().__init__(base_path)
        self.memory_root: Any = anyio.Path(self.memory_root)


def read_folder(base_path: str) -> dict[str, str]:
    """Return the files of a tool by path: the tests' own function would also read the engine's catalogue."""
    root = Path(base_path) / _FOLDER
    files = [path for path in root.rglob("*") if path.is_file()]
    return {f"memories/{path.relative_to(root)}": path.read_text() for path in files}


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Put our function in place of the tests' own."""
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        module.get_directory_snapshot = read_folder


_beta_builtin_memory_tool.BetaLocalFilesystemMemoryTool = BetaLocalFilesystemMemoryTool  # type: ignore[misc, assignment]
_beta_builtin_memory_tool.BetaAsyncLocalFilesystemMemoryTool = BetaAsyncLocalFilesystemMemoryTool  # type: ignore[misc, assignment]
