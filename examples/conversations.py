"""A conversation that outlives its thread: archived in the same store, found, resumed in a new thread. Run it twice.

python examples/conversations.py                        keeps all of it in agent.db
python examples/conversations.py postgresql://…         ... or there, where SQL can look into it
"""

from __future__ import annotations

import sys
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from holdall.faces.conversations import ConversationRepository
from holdall.faces.langgraph import HoldallSaver


def answer(state: MessagesState) -> dict[str, Any]:
    heard = [message.text for message in state["messages"] if message.type == "human"]
    return {"messages": [AIMessage(f"So far you said: {' '.join(heard)}")]}


def main(url: str) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    with ConversationRepository(url) as repository:
        threads = HoldallSaver(repository)
        graph = builder.compile(checkpointer=threads, store=repository.store)
        before = repository.conversations("ada", query="peanuts")
        messages = repository.resume("ada", before[0].thread_id) if before else []
        thread = f"thread-{uuid4().hex[:8]}"
        said = "I am allergic to peanuts." if not before else "What do you know about me?"
        state = graph.invoke({"messages": [*messages, HumanMessage(said)]}, {"configurable": {"thread_id": thread}})
        print("It remembers." if before else "This is the first time.", state["messages"][-1].text)
        archived = repository.archive("ada", thread)
        threads.delete_thread(thread)
        print(f"Archived as {archived.key}, with {archived.message_count} messages.")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "agent.db")
