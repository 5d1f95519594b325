"""LlamaIndex' stores, compared step by step with its own in memory, on every engine."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import Document, TextNode
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.storage.kvstore import SimpleKVStore

import holdall
from holdall.faces.llama_index import HoldallChatStore, HoldallDocumentStore, HoldallKVStore


def kv_steps(store: Any) -> list[Any]:
    seen = [store.get("missing"), store.delete("missing"), store.get_all()]
    store.put("a", {"x": 1})
    store.put("a", {"x": 2}, collection="other")
    asyncio.run(store.aput("b", {"y": [1, {"z": None}]}))
    seen += [store.get("a"), store.get("a", collection="other"), store.get_all(), asyncio.run(store.aget_all("other"))]
    seen += [asyncio.run(store.adelete("a")), store.get("a"), asyncio.run(store.aget("a", "other"))]
    return seen


def test_values_are_those_of_the_store_in_memory(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    ours = HoldallKVStore(any_store, namespace=place)
    assert kv_steps(ours) == kv_steps(SimpleKVStore())
    ours.put_all([(str(n), {"n": n}) for n in range(25)], collection="many", batch_size=10)
    assert len(ours.get_all("many")) == 25


def document_steps(store: Any) -> list[Any]:
    node = TextNode(text="part", id_="node")
    store.add_documents([Document(text="hello", id_="one", metadata={"k": 1}), Document(text="two", id_="two"), node])
    seen = [store.get_document("one").text, store.document_exists("three"), sorted(store.docs)]
    store.set_document_hash("one", "hash")
    seen += [store.get_document_hash("one"), asyncio.run(store.aget_document("two")).text]
    store.delete_document("one")
    seen += [store.document_exists("one"), store.get_document("one", raise_error=False), sorted(store.docs)]
    return seen


def test_documents_are_those_of_the_store_in_memory(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    assert document_steps(HoldallDocumentStore(any_store, namespace=place)) == document_steps(SimpleDocumentStore())


def chat_steps(store: Any) -> list[Any]:
    seen = [list(store.get_messages("ada")), store.delete_last_message("ada"), store.get_keys()]
    for n in range(4):
        store.add_message("ada", ChatMessage(role="user", content=f"message {n}", additional_kwargs={"n": n}))
    asyncio.run(store.async_add_message("bob", ChatMessage(role="assistant", content="hello")))
    seen += [list(store.get_messages("ada")), sorted(store.get_keys())]
    seen += [store.delete_message("ada", -2), store.delete_message("ada", 9), list(store.get_messages("ada"))]
    seen += [store.delete_last_message("ada"), list(asyncio.run(store.aget_messages("ada")))]
    store.set_messages("ada", [ChatMessage(content="only")])
    seen += [list(store.get_messages("ada")), store.delete_messages("ada"), store.delete_messages("ada")]
    seen.append(store.get_messages("ada"))
    return seen


def test_chats_are_those_of_the_store_in_memory(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    ours = chat_steps(HoldallChatStore(any_store, namespace=place))
    for mine, theirs in zip(ours, chat_steps(SimpleChatStore()), strict=True):
        assert mine == theirs


def test_an_item_of_another_face_is_no_chat(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    chats = HoldallChatStore(any_store, namespace=place)
    chats.add_message("ada", ChatMessage("hello"))
    any_store.put(place, "note", {"text": "of another face"})
    assert chats.get_keys() == asyncio.run(chats.aget_keys()) == ["ada"]
