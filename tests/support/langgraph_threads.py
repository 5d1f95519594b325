"""Threads for the tests of LangGraph's checkpointer: their configs, a graph that talks, and a cipher."""

from __future__ import annotations

from typing import Any

from cryptography.fernet import Fernet
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph

from holdall.faces.langgraph import HoldallSaver


def thread(name: str, **configurable: Any) -> Any:
    return {"configurable": {"thread_id": name, "checkpoint_ns": "", **configurable}}


def chat(saver: Any) -> Any:
    """A graph that answers each message."""
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [AIMessage(f"answer to {state['messages'][-1].content}")]})
    builder.add_edge(START, "model")
    return builder.compile(checkpointer=saver)


def put_empty(saver: HoldallSaver, name: str, **metadata: Any) -> None:
    """Put a checkpoint without values. LangGraph's type of metadata lacks the fields that an app adds."""
    details: Any = metadata
    saver.put(thread(name), empty_checkpoint(), details, {})


def say(graph: Any, name: str, text: str, **metadata: Any) -> None:
    graph.invoke({"messages": [HumanMessage(text)]}, {**thread(name), "metadata": metadata})


def texts(graph: Any, name: str) -> list[Any]:
    return [message.content for message in graph.get_state(thread(name)).values["messages"]]


def put_values(saver: BaseCheckpointSaver[Any], values: dict[str, Any], parent: Any = None) -> Any:
    """Put a checkpoint with these values, after another one or as the first. Returns its config."""
    id = empty_checkpoint()["id"]
    versions: Any = dict.fromkeys(values, id)
    checkpoint: Any = {**empty_checkpoint(), "id": id, "channel_values": values, "channel_versions": versions}
    return saver.put(parent or thread("t"), checkpoint, {}, versions)


def size_of_log(saver: HoldallSaver, name: str) -> int:
    return saver.store.files((".holdall.threads", name)).stat("/main/log").size


class FernetCipher:
    """LangGraph's protocol of ciphers, with authenticated encryption and a key of its own."""

    def __init__(self) -> None:
        self._fernet = Fernet(Fernet.generate_key())

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "fernet", self._fernet.encrypt(plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "fernet"
        return self._fernet.decrypt(ciphertext)
