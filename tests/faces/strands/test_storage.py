"""Strands' storage and memory on every engine, compared with its own storage in memory."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("strands", reason="Strands has an environment of its own: make strands")

from strands import Agent
from strands.memory import MemoryManager
from strands.session.snapshot_session_manager import SnapshotSessionManager
from strands.storage import InMemoryStorage, Storage
from strands.types.exceptions import StorageError

import holdall
from holdall.errors import StoreClosed
from holdall.faces.strands import HoldallMemoryStore, HoldallSessionRepository, HoldallStorage
from support.strands_models import ScriptedModel

keys = st.lists(st.sampled_from(["a", "b", "ä", "a.b", "...", " ", "~", "%2F", "名"]), min_size=1, max_size=3).map(
    "/".join
)
odd_keys = st.sampled_from(["", "/", "//", "..", "a/../b", "a\\b", "//a//b//", "a/"])
steps = st.lists(
    st.tuples(st.just("write"), keys | odd_keys, st.binary(max_size=5))
    | st.tuples(st.sampled_from(["read", "delete", "list"]), keys | odd_keys),
    max_size=12,
)


def is_prefix_of_another(key: str, others: set[str]) -> bool:
    """A file cannot be a folder: this is where ours differs from a dict, as files on a disk do."""
    return any(one != key and (one.startswith(f"{key}/") or key.startswith(f"{one}/")) for one in others)


async def do(storage: Any, step: tuple[Any, ...]) -> Any:
    name, *arguments = step
    try:
        return await getattr(storage, name)(*arguments)
    except StorageError:
        return "StorageError"


@given(steps=steps, prefix=st.sampled_from(["", "scope", "a/b/"]))
def test_random_steps_give_what_the_storage_in_memory_gives(steps: list[tuple[Any, ...]], prefix: str) -> None:
    async def main() -> None:
        async with HoldallStorage("memory:") as whole:
            ours: Any = whole.namespace(prefix) if prefix else whole
            theirs: Any = InMemoryStorage().namespace(prefix)
            written: set[str] = set()
            for step in steps:
                if step[0] == "write":
                    key = "/".join(part for part in step[1].split("/") if part)
                    if is_prefix_of_another(key, written):
                        continue
                    written.add(key)
                assert await do(ours, step) == await do(theirs, step), step
            assert await ours.list() == await theirs.list()

    asyncio.run(main())


def test_keys_are_files_that_others_see(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    async def main() -> None:
        storage = HoldallStorage(any_store, namespace=place)
        assert isinstance(storage, Storage)
        await storage.write("notes/ada.md", b"allergic to peanuts")
        await storage.write("notes/picture", b"\xff\xfe")
        assert any_store.files(place).read_text("/notes/ada.md") == "allergic to peanuts"
        assert [found.key for found in await storage.search("peanut")] == ["notes/ada.md"]
        assert await storage.namespace("notes").list("a") == ["ada.md"]
        assert [found.key for found in await storage.namespace("notes").search("peanut")] == ["ada.md"]
        with pytest.raises(StorageError):
            await storage.write("notes", b"a folder")
        with pytest.raises(StorageError):
            await storage.write("k" * 5000, b"")
        assert await storage.read("notes") is None and await storage.read("notes/ada.md/x") is None
        await storage.delete("notes")
        await storage.delete("notes/ada.md/x")
        storage.namespace("notes").clear()
        assert await storage.list() == []

    asyncio.run(main())


def test_an_agent_goes_on_from_its_snapshot(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    for answer in ("Noted.", "Peanuts."):
        manager = SnapshotSessionManager("ada", storage=HoldallStorage(any_store, namespace=place))
        agent = Agent(model=ScriptedModel([answer]), session_manager=manager, agent_id="helper", callback_handler=None)
        agent("I am allergic to peanuts." if answer == "Noted." else "What am I allergic to?")
    assert [message["content"][0].get("text") for message in agent.messages] == [
        "I am allergic to peanuts.",
        "Noted.",
        "What am I allergic to?",
        "Peanuts.",
    ]


def test_memories_are_kept_once_and_found(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    async def main() -> None:
        memory = HoldallMemoryStore("facts", any_store, namespace=place, max_search_results=5)
        key = await memory.add("Ada is allergic to peanuts", {"by": "ada"})
        assert await memory.add("Ada is allergic to peanuts", {"by": "ada"}) == key
        await memory.add("The parrots eat seeds")
        any_store.put(place, "other", {"said": "peanuts, by another face"})
        [found] = await memory.search("allergic")
        assert found.content == "Ada is allergic to peanuts"
        assert found.metadata is not None and found.metadata["by"] == "ada"
        assert sorted("by another face" in entry.content for entry in await memory.search("peanut")) == [False, True]
        assert len(await memory.search("peanut", {"max_search_results": 1})) == 1
        assert await memory.search("  ") == []
        manager = MemoryManager(stores=[memory])
        assert [entry.store_name for entry in await manager.search("seeds")] == ["facts"]

    asyncio.run(main())


def test_a_view_finds_its_keys_among_many_others() -> None:
    async def main() -> None:
        storage = HoldallStorage("memory:")
        for n in range(110):
            await storage.write(f"a/{n}", b"apple apple")
        await storage.write("b/one", b"an apple among many other words")
        assert [found.key for found in await storage.namespace("b").search("apple")] == ["one"]
        assert len(await storage.namespace("a").search("apple")) == 100
        with pytest.raises(TypeError):
            await storage.write("number", 5)  # type: ignore[arg-type]  # bytes(5) would be five zero bytes

    asyncio.run(main())


@pytest.mark.parametrize("how", ["with", "async with"])
@pytest.mark.parametrize("make", [HoldallStorage, HoldallSessionRepository, partial(HoldallMemoryStore, "facts")])
def test_a_face_closes_only_the_store_that_it_opened(make: Any, how: str) -> None:
    async def enter_and_leave(face: Any) -> None:
        async with face:
            pass

    def leave(face: Any) -> None:
        if how == "async with":
            asyncio.run(enter_and_leave(face))
        else:
            with face:
                pass

    face = make("memory:")
    leave(face)
    with pytest.raises(StoreClosed):
        face.store.count()
    with holdall.open("memory:") as store:
        for given_store in (store, HoldallStorage(store)):
            face = make(given_store)
            assert face.store is store
            leave(face)
            assert store.count() == 0


def test_a_view_of_a_storage_closes_nothing() -> None:
    with HoldallStorage("memory:") as storage:
        with storage.namespace("below"):
            pass
        assert storage.store.count() == 0
