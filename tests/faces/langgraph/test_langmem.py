"""LangMem, unchanged, on `HoldallStore`: its tools and its manager of memories."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage

import holdall
from holdall.faces.langgraph import HoldallStore
from support.scripted_agents import Scripted, call

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # LangMem imports names that LangGraph has moved
    from langmem import create_manage_memory_tool, create_memory_store_manager, create_search_memory_tool

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # LangMem's own


def test_an_agent_manages_and_finds_memories(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    store = HoldallStore(any_store)
    tools = [create_manage_memory_tool((*place, "{user}")), create_search_memory_tool((*place, "{user}"))]
    script = [
        AIMessage("", tool_calls=[call("manage_memory", content="Ada is allergic to peanuts", action="create")]),
        AIMessage("", tool_calls=[call("manage_memory", content="Ada lives in Lyon", action="create")]),
        AIMessage("", tool_calls=[call("search_memory", query="peanuts", limit=1)]),
        AIMessage("done"),
    ]
    agent: Any = create_agent(Scripted(messages=iter(script)), tools, store=store)
    state = agent.invoke({"messages": [("user", "go")]}, {"configurable": {"user": "ada"}})
    *_, found = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    assert "allergic to peanuts" in str(found.content) and "Lyon" not in str(found.content)
    assert any_store.count((*place, "ada")) == 2
    assert store.search((*place, "bob")) == []


def test_the_manager_writes_what_a_model_extracts(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    extracted = AIMessage("", tool_calls=[call("Memory", content="Ada is allergic to peanuts")])
    model = Scripted(messages=iter([extracted, AIMessage("done"), AIMessage("done")]))
    manager = create_memory_store_manager(model, namespace=place, store=HoldallStore(any_store))
    asyncio.run(manager.ainvoke({"messages": [{"role": "user", "content": "I cannot eat peanuts."}]}))
    [kept] = any_store.search(place)
    assert kept.value["content"] == {"content": "Ada is allergic to peanuts"}
