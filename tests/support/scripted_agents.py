"""Real deepagents agents with a scripted model."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage

_ids = itertools.count()


class Scripted(GenericFakeChatModel):
    """A model that gives one message after the other, for any input."""

    def bind_tools(self, tools: Any, **_: Any) -> Scripted:
        return self


def call(name: str, **args: Any) -> dict[str, Any]:
    """Return a tool call in the form of a model's."""
    return {"name": name, "args": args, "id": f"call-{next(_ids)}"}


def agent(backend: Any, calls: Sequence[dict[str, Any]], **options: Any) -> Any:
    """Create an agent that makes these calls, one in each turn."""
    turns = [AIMessage("", tool_calls=[one]) for one in calls]
    return create_deep_agent(model=Scripted(messages=iter([*turns, AIMessage("done")])), backend=backend, **options)


def answers(made: Any, runner: asyncio.Runner | None = None, **options: Any) -> list[ToolMessage]:
    """Run an agent, and return the results of its tools in the order of its calls."""
    given, config = {"messages": [{"role": "user", "content": "go"}]}, {"recursion_limit": 1000}
    if runner is None:
        return answered(made.invoke(given, config, **options))
    return answered(runner.run(made.ainvoke(given, config, **options)))


def answered(state: Any) -> list[ToolMessage]:
    assert state["messages"][-1].content == "done"
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]
