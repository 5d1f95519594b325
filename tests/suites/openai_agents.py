"""The OpenAI Agents SDK's tests on ours: `SQLiteSession` is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import agents
import agents.memory
import agents.memory.sqlite_session

from holdall.faces.openai_agents import HoldallSession


class SQLiteSession(HoldallSession):
    """A `HoldallSession` with the constructor of `SQLiteSession`."""

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


agents.SQLiteSession = agents.memory.SQLiteSession = SQLiteSession  # type: ignore[misc, assignment]
agents.memory.sqlite_session.SQLiteSession = SQLiteSession  # type: ignore[misc, assignment]
