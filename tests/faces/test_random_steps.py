"""Each face does what its framework's own store in memory does, in random steps with odd names.

Strands' and the Agent Framework's checkpoints have such tests of their own, and so has LlamaIndex' vector store.
"""

from __future__ import annotations

import asyncio
import errno
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from agent_framework import InMemoryAgentFileStore
from agents import SQLiteSession
from anthropic.lib.tools import ToolError
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool
from anthropic.types.beta import (
    BetaMemoryTool20250818CreateCommand,
    BetaMemoryTool20250818DeleteCommand,
    BetaMemoryTool20250818InsertCommand,
    BetaMemoryTool20250818RenameCommand,
    BetaMemoryTool20250818StrReplaceCommand,
    BetaMemoryTool20250818ViewCommand,
)
from google.adk.artifacts import InMemoryArtifactService
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from key_value.aio.stores.memory import MemoryStore
from langchain_core.stores import InMemoryByteStore
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.storage.kvstore import SimpleKVStore

import holdall
from holdall.faces.adk import HoldallArtifactService, HoldallSessionService
from holdall.faces.agent_framework import HoldallFileStore
from holdall.faces.claude import MemoryTool
from holdall.faces.key_value import HoldallKeyValue
from holdall.faces.langchain import HoldallByteStore
from holdall.faces.llama_index import HoldallChatStore, HoldallKVStore
from holdall.faces.openai_agents import HoldallSession

NAMES = ["a", "b", "a/b", "../a", "名前", " ", "%2F", "a\tb", "é", "e\u0301", "k" * 300, ".", "*", "[x]"]
names = st.sampled_from(NAMES)
texts = st.sampled_from(["", "x", "two\nlines\n", "ünïcode 😀", "\r\n", "{}"])
Step = tuple[Any, ...]


def steps(*kinds: st.SearchStrategy[Step]) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.one_of(*kinds), max_size=12)


def step(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), *arguments)


def compare(
    ours: Any, theirs: Any, given_steps: list[Step], show: Callable[[Any], Any] = lambda result: result
) -> None:
    """Do the same steps with both, and compare every result, and the class of every error that is the framework's."""

    async def main() -> None:
        for name, *arguments in given_steps:
            seen = []
            for one in (theirs, ours):
                try:
                    result = getattr(one, name)(*arguments)
                    seen.append(show(await result if asyncio.iscoroutine(result) else result))
                except NotADirectoryError:  # Claude's own tool, of a path below a file: ours is a `ToolError`
                    return
                except IndexError:  # SimpleChatStore, of the last message of an empty chat
                    seen.append(None)
                except (ToolError, ValueError, FileExistsError) as error:
                    seen.append(ToolError if isinstance(error, ToolError) else ValueError)
                except OSError as error:  # Claude's own tool, of a folder that is moved into itself
                    assert error.errno == errno.EINVAL
                    return
            assert seen[1] == seen[0], (name, arguments)

    asyncio.run(main())


@given(
    given_steps=steps(
        step("add_items", st.lists(texts.map(lambda text: {"role": "user", "content": text}), max_size=3)),
        step("pop_item"),
        step("get_items", st.none() | st.integers(0, 5)),
        step("clear_session"),
    ),
    name=names,
)
def test_sessions_of_the_openai_agents_sdk(given_steps: list[Step], name: str) -> None:
    with holdall.open("memory:") as store:
        compare(HoldallSession(name, store), SQLiteSession(name), given_steps)


collections = st.sampled_from(["data", "other", "a/b", "名"])
values = st.dictionaries(texts.filter(bool), texts | st.none() | st.integers(-5, 5), max_size=3)


@given(
    given_steps=steps(
        step("put", names, values, collections),
        step("get", names, collections),
        step("delete", names, collections),
        step("get_all", collections),
        step("put_all", st.lists(st.tuples(names, values), max_size=3), collections),
    )
)
def test_values_of_llama_index(given_steps: list[Step]) -> None:
    with holdall.open("memory:") as store:
        compare(HoldallKVStore(store), SimpleKVStore(), given_steps)


messages = texts.map(lambda text: ChatMessage(role="user", content=text))


@given(
    given_steps=steps(
        step("add_message", names, messages),
        step("set_messages", names, st.lists(messages, max_size=3)),
        step("get_messages", names),
        step("delete_message", names, st.integers(0, 4)),
        step("delete_last_message", names),
        step("delete_messages", names),
    )
)
def test_chats_of_llama_index(given_steps: list[Step]) -> None:
    with holdall.open("memory:") as store:
        compare(HoldallChatStore(store), SimpleChatStore(), given_steps)


@given(
    given_steps=steps(
        step("mset", st.lists(st.tuples(names, st.binary(max_size=4)), max_size=3)),
        step("mget", st.lists(names, max_size=3)),
        step("mdelete", st.lists(names, max_size=3)),
        step("keys", st.none() | st.sampled_from(["", "a", "../"])),
    )
)
def test_bytes_of_langchain(given_steps: list[Step]) -> None:
    class Listed(InMemoryByteStore):
        def keys(self, prefix: str | None) -> list[str]:
            return sorted(self.yield_keys(prefix=prefix))

    class Ours(HoldallByteStore):
        def keys(self, prefix: str | None) -> list[str]:
            return sorted(self.yield_keys(prefix=prefix))

    with holdall.open("memory:") as store:
        compare(Ours(store), Listed(), given_steps)


#: None of these is a folder of another: only a dict allows both.
paths = st.sampled_from(
    ["a", "b.txt", "sub/c", "sub/deep/d", "/a", "../a", "", "a/", "d//b", "d\\e", "名.txt", " ", "c:x", "./a"]
)


@given(
    given_steps=steps(
        step("write", paths, texts),
        step("read", paths),
        step("delete", paths),
        step("file_exists", paths),
        step("list_children", st.sampled_from(["", "sub", "sub/deep", "none", "../x"])),
    )
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_files_of_the_agent_framework(given_steps: list[Step]) -> None:
    def show(result: Any) -> Any:
        return sorted((one.name, one.type) for one in result) if isinstance(result, list) else result

    with holdall.open("memory:") as store:
        compare(HoldallFileStore(store), InMemoryAgentFileStore(), given_steps, show)


@given(
    given_steps=steps(
        step("put", names, values),
        step("get", names),
        step("delete", names),
        step("get_many", st.lists(names, max_size=3)),
        step("put_many", st.lists(names, min_size=2, max_size=2), st.lists(values, min_size=2, max_size=2)),
        step("delete_many", st.lists(names, max_size=3, unique=True)),
    )
)
def test_values_of_py_key_value(given_steps: list[Step]) -> None:
    with holdall.open("memory:") as store:
        compare(HoldallKeyValue(store), MemoryStore(), given_steps)


class Artifacts:
    """Artifacts with positional arguments."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        def call(filename: str, *rest: Any) -> Any:
            who = {"app_name": "app", "user_id": "ada", "session_id": "s", "filename": filename}
            if name == "save_artifact":
                who["artifact"] = types.Part(text=rest[0])
            elif rest:
                who["version"] = rest[0]
            return getattr(self._service, name)(**who)

        return call


artifact_names = st.sampled_from(["a", "b.txt", "user:c", "名", " "])


@given(
    given_steps=steps(
        step("save_artifact", artifact_names, texts.filter(bool)),
        step("load_artifact", artifact_names),
        step("load_artifact", artifact_names, st.integers(0, 3)),
        step("list_versions", artifact_names),
        step("delete_artifact", artifact_names),
    )
)
def test_artifacts_of_adk(given_steps: list[Step]) -> None:
    with holdall.open("memory:") as store:
        compare(Artifacts(HoldallArtifactService(store)), Artifacts(InMemoryArtifactService()), given_steps)


class Sessions:
    """Sessions with positional arguments."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._loaded: dict[tuple[str, str], Any] = {}

    async def create(self, user: str, name: str, state: dict[str, Any]) -> Any:
        try:
            made = await self._service.create_session(app_name="app", user_id=user, session_id=name, state=state)
        except Exception as error:  # its class is compared
            return type(error).__name__
        return made.id, made.state

    async def get(self, user: str, name: str, newest: int | None = None, since: float | None = None) -> Any:
        config = GetSessionConfig(num_recent_events=newest, after_timestamp=since)
        found = await self._service.get_session(app_name="app", user_id=user, session_id=name, config=config)
        if found is None:
            return None
        return found.id, found.state, [event.model_dump(exclude_none=True) for event in found.events]

    async def append(self, user: str, name: str, number: int, delta: dict[str, Any], text: str, partial: bool) -> Any:
        """Append an event to a session as it was loaded first, which may be long ago."""
        found = await self._service.get_session(app_name="app", user_id=user, session_id=name)
        session = self._loaded.setdefault((user, name), found)
        if session is None:
            return None
        event = Event(
            id=str(number),
            timestamp=float(number),
            author="agent",
            partial=partial,
            content=types.Content(parts=[types.Part(text=text)]),
            actions=EventActions(state_delta=dict(delta)),
        )
        try:
            event = await self._service.append_event(session, event)
        except SessionNotFoundError as error:
            return str(error)
        shown = event.model_dump(exclude_none=True)
        return shown, session.state, [one.id for one in session.events]

    async def user_state(self, user: str) -> Any:
        return await self._service.get_user_state(app_name="app", user_id=user)

    async def delete(self, user: str, name: str) -> None:
        await self._service.delete_session(app_name="app", user_id=user, session_id=name)

    async def list(self, user: str | None) -> Any:
        found = await self._service.list_sessions(app_name="app", user_id=user)
        return sorted((one.user_id, one.id, sorted(one.state.items())) for one in found.sessions)


states = st.dictionaries(st.sampled_from(["x", "user:y", "app:z", "temp:t"]), st.integers(0, 3), max_size=3)
users = st.sampled_from(["ada", "bob", "a/b"])
session_names = st.sampled_from(["s", " t ", "名", "a/b"])


@given(
    given_steps=steps(
        step("create", users, session_names, states),
        step("get", users, session_names),
        step("get", users, session_names, st.none() | st.integers(0, 3), st.none() | st.floats(0, 4)),
        step("append", users, session_names, st.integers(0, 4), states, texts, st.sampled_from([None, False, True])),
        step("user_state", users),
        step("delete", users, session_names),
        step("list", st.none() | users),
    )
)
def test_sessions_of_adk(given_steps: list[Step]) -> None:
    with holdall.open("memory:") as store:
        compare(Sessions(HoldallSessionService(store)), Sessions(InMemorySessionService()), given_steps)


memory_paths = st.sampled_from(["/other", "a", "/memoriesa"]) | st.lists(
    st.sampled_from(["a", "a", "a.md", "sub", ".hidden", "..", ".", "", "memories"]), max_size=4
).map(lambda names: "/".join(["/memories", *names]))
lines = st.sampled_from(["", "one", "one\n", "one\ntwo\n", "one\none\n", "\n", "ü\r\n", "x" * 1024, "x" * 1025])


class Tool:
    """A memory tool with positional arguments, whose errors are compared by their texts."""

    def __init__(self, tool: Any) -> None:
        self._tool = tool

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            command, fields = COMMANDS[name]
            try:
                made = command(command=name, **dict(zip(fields, arguments, strict=True)))
                shown = str(getattr(self._tool, name)(made))
            except ToolError as error:
                return str(error)
            finally:
                self._remove_empty_folders()
            header, *lines = shown.split("\n")
            if not header.startswith("Here're the files"):
                return shown
            # Sizes of folders differ: a store has none.
            return [line.partition("\t")[2] if line.endswith("/") else line for line in lines[1:]]

        return call

    def _remove_empty_folders(self) -> None:
        """Remove those of Claude's own tool: a store has none."""
        if isinstance(self._tool, BetaLocalFilesystemMemoryTool):
            for path in sorted(self._tool.memory_root.rglob("*"), reverse=True):
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()


COMMANDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "view": (BetaMemoryTool20250818ViewCommand, ("path",)),
    "create": (BetaMemoryTool20250818CreateCommand, ("path", "file_text")),
    "str_replace": (BetaMemoryTool20250818StrReplaceCommand, ("path", "old_str", "new_str")),
    "insert": (BetaMemoryTool20250818InsertCommand, ("path", "insert_line", "insert_text")),
    "delete": (BetaMemoryTool20250818DeleteCommand, ("path",)),
    "rename": (BetaMemoryTool20250818RenameCommand, ("old_path", "new_path")),
}


@given(
    given_steps=steps(
        step("create", memory_paths, lines),
        step("view", memory_paths),
        step("str_replace", memory_paths, st.sampled_from(["one", "two", "\n"]), lines),
        step("insert", memory_paths, st.integers(-1, 3), lines),
        step("delete", memory_paths),
        step("rename", memory_paths, memory_paths),
    )
)
def test_commands_of_claudes_memory_tool(given_steps: list[Step]) -> None:
    with holdall.open("memory:") as store, tempfile.TemporaryDirectory() as folder:
        compare(Tool(MemoryTool(store)), Tool(BetaLocalFilesystemMemoryTool(base_path=folder)), given_steps)
