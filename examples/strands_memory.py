"""A Strands agent that remembers: its session and its memories are in one store, where others find them.

    python examples/strands_memory.py                     in a file that is gone afterwards
    python examples/strands_memory.py postgresql://…      ... or there, with nothing else changed

It needs holdall[strands]. The model is scripted, so that this runs without a network; any of Strands' does instead.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterable
from pathlib import Path
from typing import Any

from strands import Agent
from strands.models.model import Model
from strands.session.repository_session_manager import RepositorySessionManager

from holdall.faces.strands import HoldallMemoryStore, HoldallSessionRepository


class Scripted(Model):
    """A model that says one text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def update_config(self, **model_config: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncIterable[Any]:
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": self._text}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def turn(sessions: HoldallSessionRepository, question: str, answer: str) -> int:
    """One turn, as a process of its own would do it. Returns how many messages the agent knows then."""
    manager = RepositorySessionManager("ada-1", session_repository=sessions)
    agent = Agent(model=Scripted(answer), agent_id="helper", session_manager=manager, callback_handler=None)
    agent(question)
    return len(agent.messages)


async def remember(sessions: HoldallSessionRepository) -> str:
    facts = HoldallMemoryStore("facts", sessions)
    await facts.add("Ada is allergic to peanuts", {"said_in": "ada-1"})
    [found] = await facts.search("peanuts")
    return found.content


def main(url: str) -> None:
    with HoldallSessionRepository(url) as sessions:
        turn(sessions, "I am allergic to peanuts.", "Noted.")
        print("messages:", turn(sessions, "What am I allergic to?", "Peanuts."))
        print("memory:", asyncio.run(remember(sessions)))
        print("found in the session:", sessions.search_messages("allergic")[0].value["message"]["content"][0]["text"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else str(Path(folder) / "agent.db"))
