"""The OpenAI Agents SDK's tests on ours: `SQLiteSession` is replaced. Tests that do not use it are left out."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import agents
import agents.memory
import agents.memory.sqlite_session
import pytest

from holdall.errors import StoreClosed
from holdall.faces.openai_agents import HoldallSession


class SQLiteSession(HoldallSession):
    """A `HoldallSession` with the constructor of `SQLiteSession`, and its error after it was closed."""

    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        sessions_table: str = "agent_sessions",
        messages_table: str = "agent_messages",
        session_settings: Any = None,
    ) -> None:
        url = "memory:" if db_path == ":memory:" else db_path
        super().__init__(session_id, url, namespace=(sessions_table, messages_table), session_settings=session_settings)

    async def add_items(self, items: list[Any]) -> None:
        """Add items. The SDK has no class for the error of a closed session, but the name of its own in the text."""
        try:
            await super().add_items(items)
        except StoreClosed as error:
            raise RuntimeError("SQLiteSession is closed") from error

    async def _get_compaction_snapshot(self, limit: int, *, prune_prefix: Any = None) -> Any:
        return await self._read_snapshot(limit, prune_prefix) if type(self) is SQLiteSession else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that do not use `SQLiteSession`."""
    items[:] = [
        item
        for item in items
        if isinstance(item, pytest.Function)
        and "async-sqlite" not in item.nodeid
        and ("sqlite" in item.nodeid or "SQLiteSession" in inspect.getsource(item.function))
    ]


agents.SQLiteSession = agents.memory.SQLiteSession = SQLiteSession  # type: ignore[misc, assignment]
agents.memory.sqlite_session.SQLiteSession = SQLiteSession  # type: ignore[misc, assignment]
