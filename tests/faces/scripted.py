"""Real deepagents agents whose model does what a script says."""

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
    """Says one message after the other, whatever it is told."""

    def bind_tools(self, tools: Any, **_: Any) -> Scripted:
        return self


def call(name: str, **args: Any) -> dict[str, Any]:
    """A tool call, as a model makes it."""
    return {"name": name, "args": args, "id": f"call-{next(_ids)}"}


def agent(backend: Any, calls: Sequence[dict[str, Any]], **options: Any) -> Any:
    """An agent that makes these calls, one a turn, and is done."""
    turns = [AIMessage("", tool_calls=[one]) for one in calls]
    return create_deep_agent(model=Scripted(messages=iter([*turns, AIMessage("done")])), backend=backend, **options)


def answers(made: Any, runner: asyncio.Runner | None = None, **options: Any) -> list[ToolMessage]:
    """What the tools have answered when an agent has run, in the order of its calls."""
    given, config = {"messages": [{"role": "user", "content": "go"}]}, {"recursion_limit": 1000}
    if runner is None:
        return answered(made.invoke(given, config, **options))
    return answered(runner.run(made.ainvoke(given, config, **options)))


def answered(state: Any) -> list[ToolMessage]:
    assert state["messages"][-1].content == "done"
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]
