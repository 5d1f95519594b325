"""An agent that remembers, on LangGraph: run it twice.

    python examples/langgraph_memory.py                     keeps everything in agent.db
    python examples/langgraph_memory.py postgresql://…      ... or there, with nothing else changed

The chat model is scripted, so that nothing has to be installed or paid for; any model of LangChain's does instead.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.prebuilt import InjectedStore
from langgraph.store.base import BaseStore

from holdall.faces.langgraph import HoldallStore

MEMORIES = ("users", "ada", "memories")


@tool
def remember(key: str, text: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Keep something for later."""
    store.put(MEMORIES, key, {"text": text})
    return "kept"


@tool
def recall(about: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Find what was kept."""
    found = store.search(MEMORIES, query=about, limit=3)
    return "; ".join(item.value["text"] for item in found if item.score is not None) or "nothing"


class Scripted(GenericFakeChatModel):
    """A model that calls the tools it is given."""

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self


def script() -> Scripted:
    calls = [("recall", {"about": "peanuts"}), ("remember", {"key": "diet", "text": "Ada is allergic to peanuts"})]
    messages = [AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}]) for name, args in calls]
    return Scripted(messages=iter([*messages, AIMessage("I will keep that in mind.")]))


def main(url: str) -> None:
    with HoldallStore(url) as store:
        agent = create_agent(script(), [remember, recall], store=store)
        result = agent.invoke({"messages": [("user", "I am allergic to peanuts.")]})
    [before, *_] = [message.text for message in result["messages"] if message.type == "tool"]
    print("This is the first time." if before == "nothing" else f"The agent remembers: {before}")
    print(result["messages"][-1].text)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "agent.db")
