"""Each face of a framework under `kill -9`, and with eight processes at once. Strands' are in tests/faces/strands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from agent_framework import Message, WorkflowCheckpoint
from anthropic.types.beta import (
    BetaMemoryTool20250818CreateCommand,
    BetaMemoryTool20250818InsertCommand,
    BetaMemoryTool20250818ViewCommand,
)
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import Session
from google.genai import types
from langchain_core.messages import HumanMessage
from langchain_core.outputs import Generation
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import Document, TextNode
from pydantic_ai import ModelRequest, RunUsage, UserPromptPart
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord

import holdall
from holdall.faces.adk import HoldallArtifactService, HoldallMemoryService, HoldallSessionService
from holdall.faces.agent_framework import HoldallCheckpointStorage, HoldallFileStore, HoldallHistoryProvider
from holdall.faces.claude import AsyncMemoryTool, MemoryTool
from holdall.faces.fsspec import HoldallFileSystem
from holdall.faces.key_value import HoldallKeyValue
from holdall.faces.langchain import HoldallByteStore, HoldallCache, HoldallChatMessageHistory
from holdall.faces.langgraph import HoldallCache as HoldallNodeCache
from holdall.faces.llama_index import HoldallChatStore, HoldallDocumentStore, HoldallKVStore, HoldallVectorStore
from holdall.faces.openai_agents import HoldallSession
from holdall.faces.pydantic_ai import HoldallConversationStore
from support.face_writers import FaceWriter, check_kills, check_several, run_writer


class ClaudeEdits(FaceWriter):
    """All insert into one file."""

    def __init__(self, store: holdall.Store) -> None:
        self.tool = AsyncMemoryTool(store)

    async def prepare(self) -> None:
        made = BetaMemoryTool20250818CreateCommand(command="create", path="/memories/log.txt", file_text="\n")
        await self.tool.create(made)

    async def write(self, name: str, number: int) -> None:
        await self.tool.insert(
            BetaMemoryTool20250818InsertCommand(
                command="insert", path="/memories/log.txt", insert_line=0, insert_text=f"{name} {number}"
            )
        )

    async def read(self) -> list[str]:
        shown = await self.tool.view(BetaMemoryTool20250818ViewCommand(command="view", path="/memories/log.txt"))
        lines = [line.partition("\t")[2] for line in str(shown).splitlines()[1:]]
        return [line for line in lines if line]


class ClaudeFiles(FaceWriter):
    """Each creates files, sync."""

    def __init__(self, store: holdall.Store) -> None:
        self.tool = MemoryTool(store)

    async def write(self, name: str, number: int) -> None:
        path = f"/memories/{name}/{number}"
        self.tool.create(BetaMemoryTool20250818CreateCommand(command="create", path=path, file_text=f"{name} {number}"))

    async def read(self) -> list[str]:
        return [self.tool.files.read_text(info.path) for info in self.tool.files.walk("/")]


class AgentsSession(FaceWriter):
    """All add pairs of items to one session, which stay together."""

    def __init__(self, store: holdall.Store) -> None:
        self.session = HoldallSession("shared", store)

    async def write(self, name: str, number: int) -> None:
        await self.session.add_items([{"role": "user", "content": f"{name} {number}"} for _ in range(2)])

    async def read(self) -> list[str]:
        items: list[Any] = list(await self.session.get_items())
        questions, answers = items[::2], items[1::2]
        assert questions == answers
        return [item["content"] for item in questions]


class PydanticConversation(FaceWriter):
    """All add a message to one conversation, and try again after a conflict."""

    def __init__(self, store: holdall.Store) -> None:
        self.conversations = HoldallConversationStore(store)

    async def write(self, name: str, number: int) -> None:
        step = f"{name} {number}"
        said = ModelRequest(parts=[UserPromptPart(step)])
        while True:
            old = await self.conversations.read_record("shared")
            entry = ConversationEntry(id=step, parent_id=None if old is None else old.head_id, message=said)
            record = ConversationRecord(conversation_id="shared", head_id=step, usage=RunUsage(), revision=step)
            expected = None if old is None else old.revision
            try:
                await self.conversations.write_record(record, new_entries=[entry], expected_revision=expected)
            except ConversationConflict:
                continue
            return

    async def read(self) -> list[str]:
        record = await self.conversations.read_record("shared")
        assert record is not None
        return [entry.id for entry in await self.conversations.read_history(record.head_id)]


class KeyValue(FaceWriter):
    """All put pairs of keys, which are one transaction."""

    def __init__(self, store: holdall.Store) -> None:
        self.values = HoldallKeyValue(store)

    async def write(self, name: str, number: int) -> None:
        await self.values.put_many([f"{name} {number}", f"twin {name} {number}"], [{"n": number}] * 2, collection="c")

    async def read(self) -> list[str]:
        keys = await self.values.keys("c")
        singles = [key for key in keys if not key.startswith("twin")]
        assert len(keys) == 2 * len(singles)
        return singles


class AdkSession(FaceWriter):
    """All append events with state to one session."""

    names: ClassVar = {"app_name": "app", "user_id": "ada", "session_id": "shared"}

    def __init__(self, store: holdall.Store) -> None:
        self.sessions = HoldallSessionService(store)

    async def prepare(self) -> None:
        await self.sessions.create_session(**self.names)

    async def write(self, name: str, number: int) -> None:
        step = f"{name} {number}"
        event = Event(author=step, actions=EventActions(state_delta={step: 1, f"user:{step}": 1}))
        await self.sessions.append_event(Session(id="shared", app_name="app", user_id="ada"), event)

    async def read(self) -> list[str]:
        session = await self.sessions.get_session(**self.names)
        assert session is not None
        steps = [event.author for event in session.events]
        assert set(session.state) == {*steps, *(f"user:{step}" for step in steps)}
        return steps


class AdkArtifacts(FaceWriter):
    """All save versions of one artifact."""

    names: ClassVar = {"app_name": "app", "user_id": "ada", "session_id": "s", "filename": "log"}

    def __init__(self, store: holdall.Store) -> None:
        self.artifacts = HoldallArtifactService(store)

    async def write(self, name: str, number: int) -> None:
        await self.artifacts.save_artifact(**self.names, artifact=types.Part(text=f"{name} {number}"))

    async def read(self) -> list[str]:
        versions = await self.artifacts.list_versions(**self.names)
        assert versions == list(range(len(versions)))
        parts = [await self.artifacts.load_artifact(**self.names, version=version) for version in versions]
        return [part.text or "" for part in parts if part is not None]


class AdkMemory(FaceWriter):
    """All remember events of one user."""

    def __init__(self, store: holdall.Store) -> None:
        self.memory = HoldallMemoryService(store, limit=100_000)

    async def write(self, name: str, number: int) -> None:
        said = types.Content(parts=[types.Part(text=f"{name} {number} remembered")])
        await self.memory.add_events_to_memory(app_name="app", user_id="ada", events=[Event(author="u", content=said)])

    async def read(self) -> list[str]:
        found = await self.memory.search_memory(app_name="app", user_id="ada", query="remembered")
        texts = [(memory.content.parts or [types.Part()])[0].text or "" for memory in found.memories]
        return [text.removesuffix(" remembered") for text in texts]


class LangChainBytes(FaceWriter):
    """All set pairs of keys, which are one transaction."""

    def __init__(self, store: holdall.Store) -> None:
        self.bytes = HoldallByteStore(store)

    async def write(self, name: str, number: int) -> None:
        await self.bytes.amset([(f"{name} {number}", b"\xff"), (f"twin {name} {number}", b"")])

    async def read(self) -> list[str]:
        keys = list(self.bytes.yield_keys())
        singles = [key for key in keys if not key.startswith("twin")]
        assert len(keys) == 2 * len(singles)
        return singles


class LangChainHistory(FaceWriter):
    """All add pairs of messages to one history."""

    def __init__(self, store: holdall.Store) -> None:
        self.history = HoldallChatMessageHistory("shared", store)

    async def write(self, name: str, number: int) -> None:
        await self.history.aadd_messages([HumanMessage(f"{name} {number}"), HumanMessage(f"{name} {number}")])

    async def read(self) -> list[str]:
        texts = [str(message.content) for message in await self.history.aget_messages()]
        assert texts[::2] == texts[1::2]
        return texts[::2]


class LangChainCache(FaceWriter):
    """All keep answers."""

    def __init__(self, store: holdall.Store) -> None:
        self.cache = HoldallCache(store)

    async def write(self, name: str, number: int) -> None:
        await self.cache.aupdate(f"{name} {number}", "model", [Generation(text="yes")])

    async def read(self) -> list[str]:
        return [entry.value["prompt"] for entry in self.cache.store.scan(("llm-cache",))]


class NodeCache(FaceWriter):
    """All keep results of LangGraph's nodes."""

    def __init__(self, store: holdall.Store) -> None:
        self.cache = HoldallNodeCache(store)

    async def write(self, name: str, number: int) -> None:
        await self.cache.aset({(("node",), f"{name} {number}"): ([number], None)})

    async def read(self) -> list[str]:
        keys = [(("node",), entry.key) for entry in self.cache.store.scan(("node-cache",))]
        return [key for _, key in await self.cache.aget(keys)]


class FsspecFiles(FaceWriter):
    """All write files through file objects."""

    def __init__(self, store: holdall.Store) -> None:
        self.files = HoldallFileSystem(store, ("files",), skip_instance_cache=True)

    async def write(self, name: str, number: int) -> None:
        with self.files.open(f"holdall://{name}/{number}", "wb") as file:
            file.write(f"{name} ".encode())
            file.write(str(number).encode())

    async def read(self) -> list[str]:
        return [content.decode() for content in self.files.cat(self.files.find("/")).values()]


class LlamaValues(FaceWriter):
    """All put pairs of values, which are one transaction."""

    def __init__(self, store: holdall.Store) -> None:
        self.values = HoldallKVStore(store)

    async def write(self, name: str, number: int) -> None:
        await self.values.aput_all([(f"{name} {number}", {}), (f"twin {name} {number}", {})])

    async def read(self) -> list[str]:
        keys = list(await self.values.aget_all())
        singles = [key for key in keys if not key.startswith("twin")]
        assert len(keys) == 2 * len(singles)
        return singles


class LlamaDocuments(FaceWriter):
    """All add documents."""

    def __init__(self, store: holdall.Store) -> None:
        self.documents = HoldallDocumentStore(store)

    async def write(self, name: str, number: int) -> None:
        await self.documents.async_add_documents([Document(text="x", id_=f"{name} {number}")])

    async def read(self) -> list[str]:
        return list(self.documents.docs)


class LlamaChat(FaceWriter):
    """All add messages to one chat."""

    def __init__(self, store: holdall.Store) -> None:
        self.chats = HoldallChatStore(store)

    async def write(self, name: str, number: int) -> None:
        await self.chats.async_add_message("shared", ChatMessage(content=f"{name} {number}"))

    async def read(self) -> list[str]:
        return [message.content or "" for message in await self.chats.aget_messages("shared")]


class LlamaVectors(FaceWriter):
    """All add nodes with vectors."""

    def __init__(self, store: holdall.Store) -> None:
        self.nodes = HoldallVectorStore(store, embed_model=MockEmbedding(embed_dim=4))

    async def write(self, name: str, number: int) -> None:
        await self.nodes.async_add([TextNode(id_=f"{name} {number}", text="x", embedding=[1.0, 0.0, 0.0, number])])

    async def read(self) -> list[str]:
        return [node.node_id for node in await self.nodes.aget_nodes()]


class FrameworkHistory(FaceWriter):
    """All save pairs of messages in one session."""

    def __init__(self, store: holdall.Store) -> None:
        self.history = HoldallHistoryProvider(store)

    async def write(self, name: str, number: int) -> None:
        await self.history.save_messages("shared", [Message("user", [f"{name} {number}"]) for _ in range(2)])

    async def read(self) -> list[str]:
        texts = [message.text for message in await self.history.get_messages("shared")]
        assert texts[::2] == texts[1::2]
        return texts[::2]


class FrameworkFiles(FaceWriter):
    """All write files."""

    def __init__(self, store: holdall.Store) -> None:
        self.files = HoldallFileStore(store)

    async def write(self, name: str, number: int) -> None:
        await self.files.write(f"{name}/{number}", f"{name} {number}", overwrite=False)

    async def read(self) -> list[str]:
        return [self.files.files.read_text(info.path) for info in self.files.files.walk("/")]


class FrameworkCheckpoints(FaceWriter):
    """All save checkpoints of one workflow."""

    def __init__(self, store: holdall.Store) -> None:
        self.checkpoints = HoldallCheckpointStorage(store)

    async def write(self, name: str, number: int) -> None:
        await self.checkpoints.save(WorkflowCheckpoint("shared", "hash", checkpoint_id=f"{name} {number}"))

    async def read(self) -> list[str]:
        found = await self.checkpoints.list_checkpoints(workflow_name="shared")
        ids = await self.checkpoints.list_checkpoint_ids(workflow_name="shared")
        assert [one.checkpoint_id for one in found] == ids
        return ids


FACES: dict[str, type[FaceWriter]] = {
    kind.__name__: kind
    for kind in (
        AdkArtifacts,
        AdkMemory,
        AdkSession,
        AgentsSession,
        ClaudeEdits,
        ClaudeFiles,
        FrameworkCheckpoints,
        FrameworkFiles,
        FrameworkHistory,
        FsspecFiles,
        KeyValue,
        LangChainBytes,
        LangChainCache,
        LangChainHistory,
        LlamaChat,
        LlamaDocuments,
        LlamaValues,
        LlamaVectors,
        NodeCache,
        PydanticConversation,
    )
}


def write(at: dict[str, str], face: str, name: str, count: int) -> None:
    """In a process: write through a face."""
    run_writer(FACES[face], at, name, count)


#: Of faces that write in the same way, one is enough in the short form.
RACING = ("AdkSession", "AgentsSession", "ClaudeEdits", "KeyValue", "LlamaVectors", "PydanticConversation")


@pytest.mark.parametrize("face", FACES)
def test_what_a_face_has_acknowledged_survives_kill_9(
    face: str, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    check_kills(FACES[face], "sqlite", write, tmp_path, scaled(2, 50))


@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgres", marks=pytest.mark.not_short)])
@pytest.mark.parametrize(
    "face", [pytest.param(face, marks=[pytest.mark.not_short] * (face not in RACING)) for face in FACES]
)
def test_eight_processes_lose_nothing(
    face: str, engine: str, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    check_several(FACES[face], engine, write, tmp_path, scaled(5, 50))
