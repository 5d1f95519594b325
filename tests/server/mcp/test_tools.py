"""MCP: the SDK's client in memory and over stdio; processes that share a store lose nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.types import Implementation

import holdall
from holdall.errors import AccessDenied
from holdall.server.mcp.stdio import make_server
from support.extent import IS_SHORT


def stdio(database: Path, *arguments: str) -> Client:
    command = ["-m", "holdall", str(database), "mcp", *arguments]
    return Client(StdioServerParameters(command=sys.executable, args=command))


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    return answer.structured_content


def test_every_tool_in_memory() -> None:
    async def main() -> None:
        with holdall.open("memory:", history=3600) as store:
            async with Client(make_server(store)) as client:
                await use_every_tool(client)

    asyncio.run(main())


def test_writes_carry_the_name_of_the_client() -> None:
    async def main() -> None:
        with holdall.open("memory:", history=3600) as store:
            who = Implementation(name="claude-code", version="1")
            async with Client(make_server(store), client_info=who) as client:
                await call(client, "memory_put", namespace=["a"], key="k", value={})
            assert [one.author for one in store.history(("a",), "k")] == ["client claude-code"]

    asyncio.run(main())


def test_answers_are_bounded_and_the_rest_can_be_read() -> None:
    async def main() -> None:
        with holdall.open("memory:", history=3600) as store:
            value = {"text": "tea " * 50_000}
            for number in range(30):
                store.put(("long",), str(number), value)
            store.put(("long",), "0", value)
            store.files().write("/line", "x" * 100_000)
            store.files().write("/large", b"x" * (11 << 20))
            async with Client(make_server(store)) as client:
                text, offset = "", 0
                while offset is not None:
                    part = await call(client, "memory_get", namespace=["long"], key="0", offset=offset)
                    text, offset = text + part["text"], part["next"]
                assert json.loads(text) == value
                for tool, given in [
                    ("memory_search", {"query": "tea", "limit": 30}),
                    ("history", {"namespace": ["long"], "key": "0"}),
                    ("file_read", {"path": "/line"}),
                ]:
                    assert len(json.dumps(await call(client, tool, **given))) < 60_000, tool
                assert (await call(client, "file_read", path="/line"))["is_cut"]
                with pytest.raises(MCPError, match="file_read"):
                    await client.read_resource("holdall://files/large")
                with pytest.raises(MCPError, match="FileNotFound"):
                    await client.read_resource("holdall://files/missing")

    asyncio.run(main())


async def use_every_tool(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert all(tool.description and tool.output_schema and tool.annotations for tool in tools.values())
    assert tools["memory_get"].annotations.read_only_hint
    assert tools["file_write"].annotations.destructive_hint
    put = {"namespace": ["facts", "ada"], "key": "tea", "value": {"text": "Ada likes green tea"}}
    version = (await call(client, "memory_put", **put))["version"]
    assert (await call(client, "memory_get", namespace=["facts", "ada"], key="tea"))["value"] == put["value"]
    assert (await call(client, "memory_search", query="green tea"))["memories"][0]["key"] == "tea"
    assert (await call(client, "memory_list"))["namespaces"] == [["facts", "ada"]]
    refused = await client.call_tool("memory_put", {**put, "expect": 0})
    assert refused.is_error
    assert "Conflict" in refused.content[0].text
    await call(client, "memory_put", **(put | {"value": {"text": "coffee"}, "expect": version}))
    assert len((await call(client, "history", namespace=["facts", "ada"], key="tea"))["versions"]) == 2
    await call(client, "restore", namespace=["facts", "ada"], key="tea", version=version)
    assert (await call(client, "memory_get", namespace=["facts", "ada"], key="tea"))["value"] == put["value"]
    assert (await call(client, "memory_delete", namespace=["facts", "ada"], key="tea"))["deleted"]
    written = await call(client, "file_write", path="/notes/a.md", text="one\ntwo\n", expect=0)
    assert (await call(client, "file_read", path="/notes/a.md", limit=1)) == {
        "text": "one", "total": 2, "next": 1, "version": written["version"],
        "is_cut": False,
    }  # fmt: skip
    for tool, given in (
        ("file_edit", {"path": "/notes/a.md", "old": "two", "new": "2"}),
        ("file_append", {"path": "/notes/a.md", "text": "x"}),
        ("file_move", {"src": "/notes/a.md", "dst": "/b.md"}),
        ("file_delete", {"path": "/notes/a.md"}),
    ):
        stale = await client.call_tool(tool, {**given, "expect": written["version"] + 1})
        assert stale.is_error, tool
        assert "Conflict" in str(stale.content), tool
    edit = {"path": "/notes/a.md", "old": "two", "new": "2", "expect": written["version"]}
    assert (await call(client, "file_edit", **edit))["replaced"] == 1
    await call(client, "file_append", path="/notes/a.md", text="three\n")
    assert (await call(client, "file_grep", pattern="three"))["matches"][0]["line"] == 3
    assert [one["path"] for one in (await call(client, "file_list"))["files"]] == ["/notes/"]
    assert (await call(client, "file_glob", pattern="*.md"))["files"][0]["path"] == "/notes/a.md"
    await call(client, "file_move", src="/notes/a.md", dst="/b.md")
    resource = await client.read_resource("holdall://files/b.md")
    assert resource.contents[0].text == "one\n2\nthree\n"
    assert (await call(client, "file_delete", path="/b.md"))["deleted"] == 1
    assert "memory_search" in (await client.get_prompt("keep_a_memory")).messages[0].content.text


def test_tools_work_without_the_right_to_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(files: holdall.Files) -> Any:
        raise AccessDenied("this token does not allow 'watch'")

    monkeypatch.setattr(holdall.Files, "awatch", refuse)

    async def main() -> None:
        with holdall.open("memory:") as store:
            async with Client(make_server(store)) as client:
                await call(client, "file_write", path="/a", text="one")

    asyncio.run(main())
    assert "not announced" in caplog.text


def test_a_read_only_server_has_no_tool_that_writes() -> None:
    async def main() -> set[str]:
        with holdall.open("memory:") as store:
            async with Client(make_server(store, read_only=True)) as client:
                return {tool.name for tool in (await client.list_tools()).tools if not tool.annotations.read_only_hint}

    assert asyncio.run(main()) == set()


@pytest.mark.parametrize("processes", [2 if IS_SHORT else 8])
def test_stdio_processes_on_one_file_lose_no_write(tmp_path: Path, processes: int) -> None:
    """modelcontextprotocol/servers#4797: two processes of the reference server lose writes."""
    database, each = tmp_path / "store.db", 100 if not IS_SHORT else 20

    async def write(number: int) -> None:
        async with stdio(database, "--scope", "team") as client:
            for turn in range(each):
                await call(client, "memory_put", namespace=["facts"], key=f"{number}-{turn}", value={"n": turn})
                await call(client, "file_append", path="/log.txt", text=f"{number}-{turn}\n")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(processes):
                group.create_task(write(number))

    asyncio.run(main())
    with holdall.open(database) as store:
        scoped = store.scoped(("team",))
        assert scoped.count(("facts",)) == processes * each
        assert len(set(scoped.files().read_text("/log.txt").splitlines())) == processes * each
