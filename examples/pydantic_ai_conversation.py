"""A pydantic-ai agent whose conversation goes on after a restart.

    python examples/pydantic_ai_conversation.py                     in a file that is gone afterwards
    python examples/pydantic_ai_conversation.py postgresql://…      ... or there, with nothing else changed

It needs holdall[pydantic-ai]. The model is scripted, so that this runs without a network.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.models.test import TestModel

from holdall.faces.pydantic_ai import HoldallConversationStore

agent = Agent(TestModel(custom_output_text="Noted."))


async def turn(url: str, text: str) -> int:
    """One turn, as a process of its own would do it. Returns how many messages the conversation has then."""
    async with HoldallConversationStore(url) as conversations:
        conversation = await conversations.load("ada-1") or Conversation(conversation_id="ada-1")
        await conversations.save(await agent.run(text, conversation=conversation))
        saved = await conversations.load("ada-1")
        return 0 if saved is None else len(saved.messages)


async def main(url: str) -> None:
    print("messages:", await turn(url, "I am allergic to peanuts."))
    print("messages:", await turn(url, "What am I allergic to?"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(Path(folder) / "agent.db")))
