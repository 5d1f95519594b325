"""An agent whose memory, files and threads are in one file, stopped in the middle of an interrupt and started again.

python examples/one_store.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Command, interrupt

import holdall
from holdall.faces.langgraph import HoldallSaver, HoldallStore

THREAD: Any = {"configurable": {"thread_id": "trip"}, "metadata": {"user_id": "ada"}}


def open_agent(db: holdall.Store) -> Any:
    """Compile the agent. It plans with what it remembers, asks, and writes the plan to a file."""

    def plan(state: MessagesState, *, store: BaseStore) -> dict[str, Any]:
        diet = store.get(("users", "ada"), "diet")
        assert diet is not None
        choice = interrupt(f"{state['messages'][-1].text} With {diet.value['text']}: Chez Marie or Le Nord?")
        db.files(("users", "ada", "files")).write("/plan.md", f"# Dinner\n\n{choice}, {diet.value['text']}\n")
        return {"messages": [AIMessage(f"{choice} it is: see /plan.md.")]}

    builder = StateGraph(MessagesState)
    builder.add_node("plan", plan)
    builder.add_edge(START, "plan")
    return builder.compile(checkpointer=HoldallSaver(db), store=HoldallStore(db))


def begin(path: str) -> None:
    """The first process: it stops where the agent asks."""
    with holdall.open(path) as db:
        HoldallStore(db).put(("users", "ada"), "diet", {"text": "no peanuts"})
        state = open_agent(db).invoke({"messages": [HumanMessage("Dinner in Lyon?")]}, THREAD)
        print("asks:   ", state["__interrupt__"][0].value)


def resume(path: str) -> None:
    """The second process: it answers, and the agent goes on."""
    with holdall.open(path) as db:
        state = open_agent(db).invoke(Command(resume="Chez Marie"), THREAD)
        print("answers:", state["messages"][-1].text)
        print("file:   ", db.files(("users", "ada", "files")).read_text("/plan.md").splitlines()[-1])
        [thread] = HoldallSaver(db).threads(filter={"user_id": "ada"})
        print("thread: ", thread.id, "with", thread.checkpoints, "checkpoints")
        print("memory: ", [item.key for item in HoldallStore(db).search(("users",), limit=5) if item.key == "diet"])


def main() -> None:
    if len(sys.argv) > 2:
        {"begin": begin, "resume": resume}[sys.argv[1]](sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "agent.db")
        for step in ("begin", "resume"):  # a process each
            subprocess.run([sys.executable, __file__, step, path], check=True)
        print("in one file:", sorted(file.name for file in Path(folder).iterdir()))


if __name__ == "__main__":
    main()
