"""What is true of every face: it takes a URL, a store or another face, and closes what it opened, and only that.

Strands' faces, which have an environment of their own, fsspec's, which are never closed, py-key-value's, which are only
closed async, and LlamaIndex' vector store, which runs on a view of the store, have tests in their own folders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import holdall
from holdall.errors import InvalidInput, StoreClosed
from holdall.faces.adk import HoldallArtifactService, HoldallMemoryService, HoldallSessionService
from holdall.faces.ag2 import HoldallKnowledgeStore
from holdall.faces.agent_framework import HoldallCheckpointStorage, HoldallFileStore, HoldallHistoryProvider
from holdall.faces.claude import AsyncMemoryTool, MemoryTool
from holdall.faces.conversations import ConversationRepository
from holdall.faces.deepagents import HoldallBackend
from holdall.faces.langchain import HoldallByteStore, HoldallCache, HoldallChatMessageHistory
from holdall.faces.langgraph import AsyncHoldallStore, HoldallSaver, HoldallStore
from holdall.faces.langgraph import HoldallCache as HoldallNodeCache
from holdall.faces.llama_index import HoldallChatStore, HoldallDocumentStore, HoldallKVStore
from holdall.faces.openai_agents import HoldallSession
from holdall.faces.pydantic_ai import HoldallConversationStore
from holdall.faces.spoon import SQLiteStore, StoreBackend

FACES: list[Callable[[Any], Any]] = [
    HoldallStore,
    AsyncHoldallStore,
    HoldallSaver,
    HoldallNodeCache,
    ConversationRepository,
    partial(HoldallBackend, namespace=("n",)),
    SQLiteStore,
    StoreBackend,
    HoldallKnowledgeStore,
    MemoryTool,
    AsyncMemoryTool,
    partial(HoldallSession, "session"),
    HoldallConversationStore,
    HoldallSessionService,
    HoldallArtifactService,
    HoldallMemoryService,
    HoldallByteStore,
    HoldallCache,
    partial(HoldallChatMessageHistory, "session"),
    HoldallKVStore,
    HoldallDocumentStore,
    HoldallChatStore,
    HoldallHistoryProvider,
    HoldallFileStore,
    HoldallCheckpointStorage,
]


def name_of(make: Any) -> str:
    kind = getattr(make, "func", make)
    return f"{kind.__module__.split('.')[2]}.{kind.__name__}"


each_face = pytest.mark.parametrize("make", FACES, ids=name_of)


def beneath(face: Any) -> holdall.Store:
    while not isinstance(face, holdall.Store):
        face = face.store
    return face


def leave(face: Any, how: str) -> None:
    async def aleave() -> None:
        async with face as entered:
            assert entered is face

    if how == "async with":
        asyncio.run(aleave())
    else:
        with face as entered:
            assert entered is face


@each_face
@pytest.mark.parametrize("how", ["with", "async with"])
def test_a_face_closes_only_the_store_that_it_opened(make: Callable[[Any], Any], how: str) -> None:
    face = make("memory:")
    beneath(face).count()
    leave(face, how)
    leave(face, how)
    with pytest.raises(StoreClosed):
        beneath(face).count()
    with holdall.open("memory:") as store:
        for given in (store, HoldallStore(store), StoreBackend(store)):
            face = make(given)
            assert beneath(face) is store
            leave(face, how)
            assert store.count() == 0


@each_face
@pytest.mark.parametrize("wrong", [5, object(), ["memory:"]])
def test_an_object_without_a_store_is_refused(make: Callable[[Any], Any], wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="expected a URL"):
        make(wrong)
