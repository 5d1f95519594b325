"""The Agent Framework's histories and file stores, compared with its own in memory, on every engine."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from agent_framework import Content, InMemoryAgentFileStore, Message

import holdall
from holdall.errors import InvalidInput
from holdall.faces.agent_framework import HoldallFileStore, HoldallHistoryProvider
from support.processes import finish_together, start, wait_to_begin
from support.stores import new_location, open_at


def test_messages_of_a_session_are_kept_in_order(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    async def main() -> None:
        history = HoldallHistoryProvider(any_store, namespace=place)
        call = Content.from_function_call("call", "look", arguments={"x": 1})
        messages = [Message("user", ["hello"]), Message("assistant", [call])]
        assert await history.get_messages("s") == []
        await history.save_messages("s", messages)
        await history.save_messages("s", [Message("user", ["peanuts"], author_name="ada")])
        found = await history.get_messages("s")
        assert [one.to_dict() for one in found] == [
            *(one.to_dict() for one in messages),
            Message("user", ["peanuts"], author_name="ada").to_dict(),
        ]
        assert await history.get_messages("other") == []
        assert (await any_store.asearch(place, query="peanuts"))[0].namespace == (*place, "s")
        with pytest.raises(InvalidInput, match="session"):
            await history.get_messages(None)

    asyncio.run(main())


async def file_steps(store: Any) -> list[Any]:
    seen: list[Any] = [await store.read("a.txt"), await store.delete("a.txt"), await store.file_exists("a.txt")]
    await store.write("a.txt", "one\nTwo\nthree\n")
    await store.write("sub/b.txt", "two\n")
    await store.write("sub/deep/c.md", "nothing\n")
    with pytest.raises(FileExistsError):
        await store.write("a.txt", "x", overwrite=False)
    await store.write("new.txt", "x", overwrite=False)
    seen += [
        sorted((one.name, one.type) for one in await store.list_children(directory))
        for directory in ("", "sub", "missing")
    ]
    for pattern, glob, recursive in [
        ("two", None, True),
        ("two", None, False),
        ("t.o", "*.txt", True),
        ("two", "sub/*", True),
        ("zebra", None, True),
    ]:
        found = await store.search("", pattern, glob, recursive=recursive)
        seen.append(sorted((one.file_name, [line.line_number for line in one.matching_lines]) for one in found))
    found = await store.search("sub", "two", recursive=True)
    seen.append([one.file_name for one in found])
    for bad in ("../x", "/x", "", "a/../b"):
        with pytest.raises(ValueError):
            await store.read(bad)
    for bad, pattern in itertools.product(("../x", "/x", "a/../b"), ("two", "t.o")):
        with pytest.raises(ValueError):
            await store.search(bad, pattern)
    seen += [await store.read("a.txt"), await store.delete("a.txt"), await store.read("a.txt"), await store.read("sub")]
    seen += [await store.file_exists("sub"), await store.file_exists("new.txt")]
    return seen


def test_files_are_those_of_the_store_in_memory(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    ours = asyncio.run(file_steps(HoldallFileStore(any_store, namespace=place)))
    for mine, theirs in zip(ours, asyncio.run(file_steps(InMemoryAgentFileStore())), strict=True):
        assert mine == theirs


@pytest.mark.not_short
def test_of_processes_that_create_a_file_one_wins(tmp_path: Path) -> None:
    at = new_location("sqlite", tmp_path)
    finish_together([start(create_some, at=at, name=name) for name in range(4)])
    with open_at(at) as store:
        files = store.files(("files",))
        assert len(files.ls()) == 20
        assert store.count(("won",)) == 20


def create_some(at: dict[str, str], name: int) -> None:
    async def main() -> None:
        async with open_at(at) as store:
            files = HoldallFileStore(store)
            wait_to_begin()
            for n in range(20):
                try:
                    await files.write(f"{n}.txt", str(name), overwrite=False)
                except FileExistsError:
                    continue
                await store.aput(("won",), f"{name} {n}", {})

    asyncio.run(main())
