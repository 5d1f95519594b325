"""One memory, seen by all: a LangGraph agent writes a fact and a file, and six others find them by their own means.

    python examples/one_memory.py                                     in a file that is gone afterwards
    python examples/one_memory.py postgresql://…                      ... or there, with nothing else changed
    python examples/one_memory.py agent.db --strands PATH/TO/python   ... and Strands, in an environment of its own

Each framework runs in a process of its own. The models are scripted, so that this runs without a network.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ADA = ("users", "ada")
FACTS = (*ADA, "facts")
FILES = (*ADA, "filesystem")  # where `store.scoped(ADA).files()` has its files


def langgraph(url: str) -> str:
    """The agent that writes: a fact in LangGraph's store, and a file with the tools of deepagents."""
    from deepagents import create_deep_agent
    from langchain_core.language_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool

    from holdall.faces.deepagents import HoldallBackend
    from holdall.faces.langgraph import HoldallStore

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, *_: Any, **__: Any) -> Any:
            return self

    with HoldallStore(url) as store:

        @tool
        def remember(key: str, text: str) -> str:
            """Keep a fact."""
            store.put(FACTS, key, {"text": text})
            return "kept"

        calls = [
            ("remember", {"key": "diet", "text": "Ada is allergic to peanuts"}),
            ("write_file", {"file_path": "/meals.csv", "content": "meal,price\nsoup,7\nsalad,9\n"}),
        ]
        turns = [AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}]) for name, args in calls]
        model = Scripted(messages=iter([*turns, AIMessage("I keep a fact and a file.")]))
        agent = create_deep_agent(model, tools=[remember], backend=HoldallBackend(store, namespace=FILES))
        state = agent.invoke({"messages": [("user", "I am allergic to peanuts. Soup is 7, salad is 9.")]})
    return str(state["messages"][-1].text)


def openai_agents(url: str) -> str:
    """A session of the OpenAI Agents SDK: it searches what is kept of Ada, and its own items are kept beside it."""
    from holdall.faces.openai_agents import HoldallSession

    async def main() -> str:
        async with HoldallSession("monday", url, namespace=ADA) as session:
            await session.add_items([{"role": "user", "content": "What can I eat?"}])
            found = await session.search_sessions("peanut allergies", limit=1)
            return str(found[0].value["text"])

    return asyncio.run(main())


def claude(url: str) -> str:
    """Claude's memory tool: the file is in /memories."""
    from anthropic.types.beta import BetaMemoryTool20250818ViewCommand

    from holdall.faces.claude import MemoryTool

    with MemoryTool(url, namespace=FILES) as tool:
        view = BetaMemoryTool20250818ViewCommand(command="view", path="/memories/meals.csv")
        return str(tool.view(view)).splitlines()[2].split("\t")[1]


def ag2(url: str) -> str:
    """An AG2 agent: the file is in its knowledge store."""
    from ag2 import Agent, KnowledgeConfig, MemoryStream
    from ag2.events import ToolCallEvent, ToolResultEvent
    from ag2.testing import TestConfig

    from holdall.faces.ag2 import HoldallKnowledgeStore

    async def main() -> str:
        async with HoldallKnowledgeStore(url, namespace=FILES) as knowledge:
            reads = ToolCallEvent(name="knowledge", arguments=json.dumps({"action": "read", "path": "/meals.csv"}))
            stream = MemoryStream()
            agent = Agent("bob", config=TestConfig(reads, "Read."), knowledge=KnowledgeConfig(store=knowledge))
            await agent.ask("Which meals are there?", stream=stream)
            [result] = [one for one in await stream.history.get_events() if isinstance(one, ToolResultEvent)]
            return str(result.result.parts[0].content).splitlines()[1]

    return asyncio.run(main())


def mcp(url: str) -> str:
    """An MCP client of `holdall URL mcp`: the fact is a memory, and the file a file."""
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(command=sys.executable, args=["-m", "holdall", url, "mcp", "--scope", "/".join(ADA)])

    async def main() -> str:
        async with Client(server) as client:
            found = await client.call_tool("memory_search", {"query": "peanuts", "namespace": ["facts"]})
            read = await client.call_tool("file_read", {"path": "/meals.csv"})
            fact, file = found.structured_content, read.structured_content
            assert fact is not None and file is not None
            return f"{fact['memories'][0]['value']['text']}; {file['text'].splitlines()[2]}"

    return asyncio.run(main())


def pandas(url: str) -> str:
    """pandas: the file is holdall://meals.csv."""
    import pandas

    table = pandas.read_csv("holdall://meals.csv", storage_options={"url": url, "namespace": list(FILES)})
    return f"the mean price is {table['price'].mean()}"


def strands(url: str) -> str:
    """Strands: the fact is a memory, and the file is the value of a key."""
    from holdall.faces.strands import HoldallMemoryStore, HoldallStorage

    async def main() -> str:
        async with HoldallMemoryStore("facts", url, namespace=FACTS) as facts:
            [fact] = await facts.search("peanuts")
            content = await HoldallStorage(facts, namespace=FILES).read("meals.csv") or b""
            return f"{json.loads(fact.content)['text']}; {content.decode().splitlines()[1]}"

    return asyncio.run(main())


STEPS: dict[str, Callable[[str], str]] = {
    step.__name__: step for step in (langgraph, openai_agents, claude, ag2, mcp, pandas, strands)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="the store")
    parser.add_argument("--strands", help="the Python of an environment with holdall[strands]")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)  # in the process of a framework
    given = parser.parse_args()
    if given.step is not None:
        print(STEPS[given.step](given.url))
        return
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or str(Path(folder) / "agent.db")
        for step in STEPS:
            python = given.strands if step == "strands" else sys.executable
            if python is not None:
                print(f"{step}: ", end="", flush=True)
                warnings = [f"-W{one}" for one in sys.warnoptions]
                subprocess.run([python, *warnings, __file__, "--step", step, url], check=True)


if __name__ == "__main__":
    main()
