"""Sessions, artifacts and memory of Google's ADK in one store: a second session knows what the first one learned.

    python examples/adk_sessions.py                     in a file that is gone afterwards
    python examples/adk_sessions.py postgresql://…      ... or there, with nothing else changed

It needs holdall[adk]. There is no model here: this is what ADK's Runner does with the three services.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from google.adk.events import Event
from google.genai.types import Content, Part

import holdall
from holdall.faces.adk import HoldallArtifactService, HoldallMemoryService, HoldallSessionService

ADA = {"app_name": "notes", "user_id": "ada"}


async def main(url: str) -> None:
    with holdall.open(url) as store:
        sessions, artifacts = HoldallSessionService(store), HoldallArtifactService(store)
        memory = HoldallMemoryService(store)

        first = await sessions.create_session(**ADA, session_id="one", state={"user:diet": "no peanuts"})
        said = Content(role="user", parts=[Part(text="My favourite soup is minestrone.")])
        await sessions.append_event(first, Event(author="user", content=said))
        recipe = Part.from_bytes(data=b"beans, pasta, basil", mime_type="text/plain")
        await artifacts.save_artifact(**ADA, session_id="one", filename="user:minestrone.txt", artifact=recipe)
        kept = await sessions.get_session(**ADA, session_id="one")
        assert kept is not None
        await memory.add_session_to_memory(kept)

        second = await sessions.create_session(**ADA, session_id="two")
        print("state of the user:", second.state["user:diet"])
        loaded = await artifacts.load_artifact(**ADA, session_id="two", filename="user:minestrone.txt")
        assert loaded is not None
        assert loaded.inline_data is not None
        print("artifact:", (loaded.inline_data.data or b"").decode())
        found = await memory.search_memory(**ADA, query="which soup?")
        parts = found.memories[0].content.parts or []
        print("memory:", parts[0].text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(Path(folder) / "agent.db")))
