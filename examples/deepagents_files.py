"""Four deepagents agents on one file, at once: `python examples/deepagents_files.py [URL]`.

Each crosses its own items off a list that all of them share. The model is a script, so that this runs without a
network; put a real one in its place. The URL may be a file (the default is one in a temporary folder) or a PostgreSQL.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from holdall.faces.deepagents import HoldallBackend

AGENTS, ITEMS = ("ada", "bob", "eve", "kim"), 15


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **_: Any) -> Scripted:
        return self


def agent(name: str, backend: HoldallBackend) -> Any:
    edits = [
        {"file_path": "/list.md", "old_string": f"[ ] {name} {item}\n", "new_string": f"[x] {name} {item}\n"}
        for item in range(ITEMS)
    ]
    turns = [
        AIMessage("", tool_calls=[{"name": "edit_file", "args": edit, "id": f"{name}-{number}"}])
        for number, edit in enumerate(edits)
    ]
    return create_deep_agent(model=Scripted(messages=iter([*turns, AIMessage("Done.")])), backend=backend)


async def work(backend: HoldallBackend) -> None:
    task = {"messages": [{"role": "user", "content": "Do what is on your list."}]}
    agents = [agent(name, backend) for name in AGENTS]
    await asyncio.gather(*(one.ainvoke(task, {"recursion_limit": 100}) for one in agents))


def main(url: str) -> None:
    with HoldallBackend(url, namespace=("examples", "deepagents")) as backend:
        backend.write("/list.md", "".join(f"[ ] {name} {item}\n" for name in AGENTS for item in range(ITEMS)))
        asyncio.run(work(backend))
        done = backend.grep("[x]", "/list.md").matches or []
        print(f"{len(done)} of {len(AGENTS) * ITEMS} edits are there.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else str(Path(folder) / "agent.db"))
