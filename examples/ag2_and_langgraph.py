"""An AG2 agent and a LangGraph graph that share one store: each reads the other's notes, and is notified of them.

    python examples/ag2_and_langgraph.py                    in a file that is gone afterwards
    python examples/ag2_and_langgraph.py postgresql://…     ... or there, with nothing else changed

The model is scripted, so that this runs without a network; any of AG2's does instead.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, TypedDict

from ag2 import Agent, KnowledgeConfig, MemoryStream
from ag2.events import ToolCallEvent, ToolResultEvent
from ag2.testing import TestConfig
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

import holdall
from holdall.faces.ag2 import HoldallKnowledgeStore
from holdall.faces.langgraph import HoldallStore

TEAM = ("team", "notes")


class State(TypedDict):
    report: str


async def review(_: State, runtime: Runtime) -> dict[str, Any]:
    """A node of the graph: it reads what the agent noted, and leaves a note of its own."""
    assert runtime.store is not None
    [note] = await runtime.store.asearch(TEAM, query="parrots", limit=1)
    answer = f"Checked {note.key}: they also eat nuts.\n"
    await runtime.store.aput(TEAM, "/notes/graph.md", {"content": answer, "encoding": "utf-8"})
    return {"report": f"the graph read {note.key}: {note.value['content']!r}"}


def knowledge(**arguments: str) -> ToolCallEvent:
    return ToolCallEvent(name="knowledge", arguments=json.dumps(arguments))


def agent(store: HoldallKnowledgeStore, *script: Any) -> Agent:
    return Agent("ada", config=TestConfig(*script), knowledge=KnowledgeConfig(store=store))


async def main(url: str) -> None:
    async with holdall.open(url) as store:
        notes = HoldallKnowledgeStore(store, namespace=TEAM)
        graph = StateGraph(State).add_node("review", review).add_edge(START, "review").add_edge("review", END)
        reviewer = graph.compile(store=HoldallStore(store))

        writes = knowledge(action="write", path="/notes/ada.md", content="The parrots eat seeds.\n")
        await agent(notes, writes, "Noted.").ask("What do the parrots eat?")

        notified = asyncio.Event()

        async def changed(path: str) -> None:
            print(f"AG2 is notified: {path}")
            notified.set()

        subscription = await notes.on_change("/notes", changed)
        print((await reviewer.ainvoke({"report": ""}))["report"])
        await notified.wait()
        await subscription.close()

        reads = knowledge(action="read", path="/notes/graph.md")
        stream = MemoryStream()
        reply = await agent(notes, reads, "They eat nuts, too.").ask("Anything new?", stream=stream)
        for event in await stream.history.get_events():
            if isinstance(event, ToolResultEvent):
                print(f"the agent read /notes/graph.md: {event.result.parts[0].content!r}")
        print(f"ada: {reply.body}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(Path(folder) / "agent.db")))
