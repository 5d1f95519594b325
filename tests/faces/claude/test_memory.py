"""Claude's memory tool: the SDK's own texts, on every engine, and edits of several sessions at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaLocalFilesystemMemoryTool

import holdall
from holdall.faces.claude import AsyncMemoryTool, MemoryTool
from support.processes import finish_together, start, wait_to_begin
from support.stores import new_location, open_at


class Tool:
    """Runs a command as the SDK does, with the input of a model, sync or async."""

    def __init__(self, tool: Any, runner: asyncio.Runner | None = None) -> None:
        self.tool, self.runner = tool, runner

    def __call__(self, command: str, **given: Any) -> Any:
        result = self.tool.call({"command": command, **given})
        return result if self.runner is None else self.runner.run(result)


@pytest.fixture
def tool(any_store: holdall.Store, place: tuple[str, ...], runner: asyncio.Runner | None) -> Tool:
    kind = MemoryTool if runner is None else AsyncMemoryTool
    return Tool(kind(any_store, namespace=place), runner)


def test_commands_answer_as_the_sdks_own_tool(tool: Tool, tmp_path: Path) -> None:
    """The same commands to both; folders have a size only in a file system, so it is left out."""
    theirs = Tool(BetaLocalFilesystemMemoryTool(str(tmp_path)))
    for command, given in COMMANDS:
        assert answer(tool, command, given) == answer(theirs, command, given), (command, given)


def answer(tool: Tool, command: str, given: dict[str, Any]) -> Any:
    try:
        answer = tool(command, **given)
    except ToolError as error:
        return "error", str(error)
    if answer.startswith("Here're"):
        header, folder, *found = answer.split("\n")
        return [header, folder.split("\t")[1], *(line.split("\t")[1] if line[-1] == "/" else line for line in found)]
    return answer


COMMANDS: list[tuple[str, dict[str, Any]]] = [
    ("view", {"path": "/memories"}),
    ("create", {"path": "/memories/notes.md", "file_text": "one\ntwo\nthree\ntwo\n"}),
    ("create", {"path": "/memories/notes.md", "file_text": "other"}),
    ("create", {"path": "/memories/deep/er/file.txt", "file_text": "x" * 1500}),
    ("create", {"path": "/memories/.hidden", "file_text": ""}),
    ("create", {"path": "/memories/deep.txt", "file_text": "y" * 1025}),
    ("create", {"path": "/memories/../memories/deep-er", "file_text": "z" * 2048}),
    ("create", {"path": "/memories/crlf.txt", "file_text": "a\r\nb\r\n"}),
    ("view", {"path": "/memories"}),
    ("view", {"path": "/memories/deep"}),
    ("view", {"path": "/memories/notes.md"}),
    ("view", {"path": "/memories/crlf.txt"}),
    ("view", {"path": "/memories/notes.md", "view_range": [2, 3]}),
    ("view", {"path": "/memories/notes.md", "view_range": [3, -1]}),
    ("view", {"path": "/memories/notes.md", "view_range": [0, 99]}),
    ("view", {"path": "/memories/missing"}),
    ("view", {"path": "/memories/notes.md/below"}),
    ("str_replace", {"path": "/memories/notes.md", "old_str": "three", "new_str": "THREE\nlines"}),
    ("str_replace", {"path": "/memories/notes.md", "old_str": "two", "new_str": "2"}),
    ("str_replace", {"path": "/memories/notes.md", "old_str": "four", "new_str": "4"}),
    ("str_replace", {"path": "/memories/notes.md", "old_str": "", "new_str": "4"}),
    ("str_replace", {"path": "/memories/crlf.txt", "old_str": "a\r\nb", "new_str": "c"}),
    ("str_replace", {"path": "/memories/missing", "old_str": "four", "new_str": "4"}),
    ("str_replace", {"path": "/memories/deep", "old_str": "four", "new_str": "4"}),
    ("insert", {"path": "/memories/notes.md", "insert_line": 0, "insert_text": "first\n"}),
    ("insert", {"path": "/memories/notes.md", "insert_line": 2, "insert_text": "middle"}),
    ("insert", {"path": "/memories/notes.md", "insert_line": 7, "insert_text": "last"}),
    ("insert", {"path": "/memories/notes.md", "insert_line": 99, "insert_text": "x"}),
    ("insert", {"path": "/memories/notes.md", "insert_line": -1, "insert_text": "x"}),
    ("insert", {"path": "/memories/missing", "insert_line": 0, "insert_text": "x"}),
    ("insert", {"path": "/memories/deep", "insert_line": 0, "insert_text": "x"}),
    ("insert", {"path": "/memories/.hidden", "insert_line": 0, "insert_text": "x"}),
    ("view", {"path": "/memories/.hidden"}),
    ("view", {"path": "/memories/notes.md"}),
    ("rename", {"old_path": "/memories/notes.md", "new_path": "/memories/new/notes.md"}),
    ("rename", {"old_path": "/memories/notes.md", "new_path": "/memories/other.md"}),
    ("rename", {"old_path": "/memories/deep", "new_path": "/memories/new"}),
    ("rename", {"old_path": "/memories/crlf.txt", "new_path": "/memories/new/notes.md"}),
    ("rename", {"old_path": "/memories/deep", "new_path": "/memories/moved"}),
    ("rename", {"old_path": "/memories", "new_path": "/memories/moved2"}),
    ("rename", {"old_path": "/memories/missing", "new_path": "/memories/moved2"}),
    ("rename", {"old_path": "/memories/missing", "new_path": "/memories/moved"}),
    ("rename", {"old_path": "/memories/missing", "new_path": "/memories/new/notes.md"}),
    ("view", {"path": "/memories/moved/er"}),
    ("delete", {"path": "/memories/moved"}),
    ("delete", {"path": "/memories/moved"}),
    ("delete", {"path": "/memories/x/.."}),
    ("view", {"path": "/memories/new/../crlf.txt"}),
    ("view", {"path": "/memories/../etc/passwd"}),
    ("view", {"path": "/memories/../../etc/passwd"}),
    ("view", {"path": "/etc/passwd"}),
    ("create", {"path": "relative", "file_text": "x"}),
    ("view", {"path": "/memories"}),
]


def test_too_many_lines_are_refused(tool: Tool) -> None:
    tool("create", path="/memories/long", file_text="\n" * 999_999)
    with pytest.raises(ToolError, match="exceeds maximum line limit of 999,999 lines"):
        tool("view", path="/memories/long")


def test_its_files_are_those_of_the_namespace(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    tool = MemoryTool(any_store, namespace=place)
    assert tool.to_dict() == {"type": "memory_20250818", "name": "memory"}
    any_store.files(place).write("/notes.md", "- likes tea\n")
    other = MemoryTool(any_store, namespace=(*place, "other"))
    assert "likes tea" in tool.call({"command": "view", "path": "/memories/notes.md"})  # type: ignore[operator]
    with pytest.raises(ToolError):
        other.call({"command": "view", "path": "/memories/notes.md"})
    assert tool.clear_all_memory() == "All memory cleared"
    assert any_store.files(place).ls() == []


@pytest.mark.not_short
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_concurrent_sessions_lose_no_edit(engine: str, tmp_path: Path) -> None:
    at = new_location(engine, tmp_path)
    with open_at(at) as store:
        tool = Tool(MemoryTool(store))
        tool("create", path="/memories/log.md", file_text="".join(f"- todo {n}\n" for n in range(40)))
        finish_together([start(edit_some, at=at, name=name) for name in range(4)])
        assert sorted(store.files(("memories",)).read_text("/log.md").splitlines()) == sorted(
            [f"- done {n}" for n in range(40)] + [f"- new {name} {n}" for name in range(4) for n in range(5)]
        )


def edit_some(at: dict[str, str], name: int) -> None:
    with open_at(at) as store:
        tool = Tool(MemoryTool(store))
        wait_to_begin()
        for n in range(name, 40, 4):
            tool("str_replace", path="/memories/log.md", old_str=f"todo {n}\n", new_str=f"done {n}\n")
        for n in range(5):
            tool("insert", path="/memories/log.md", insert_line=0, insert_text=f"- new {name} {n}")


def test_a_path_that_no_store_takes_is_an_error_for_the_model(tool: Tool) -> None:
    for path in ("/memories/a\0b", "/memories/" + "x" * 2000):
        for command, given in (
            ("view", {"path": path}),
            ("create", {"path": path, "file_text": ""}),
            ("str_replace", {"path": path, "old_str": "a", "new_str": "b"}),
            ("insert", {"path": path, "insert_line": 0, "insert_text": "x"}),
            ("delete", {"path": path}),
            ("rename", {"old_path": path, "new_path": "/memories/x"}),
        ):
            with pytest.raises(ToolError):
                tool(command, **given)


@pytest.mark.parametrize("command", ["create", "rename"])
def test_a_link_that_leads_out_of_a_folder_is_refused_with_the_sdks_text(tmp_path: Path, command: str) -> None:
    """On the disk engine, somebody may put a link among the files."""
    outside = tmp_path / "outside"
    outside.mkdir()
    with holdall.open(f"disk:///{tmp_path}/store") as store:
        tool = Tool(MemoryTool(store))
        tool("create", path="/memories/a", file_text="x")
        (tmp_path / "store" / "@memories" / "link").symlink_to(outside)
        target = "/memories/link/b"
        given = (
            {"path": target, "file_text": "x"}
            if command == "create"
            else {"old_path": "/memories/a", "new_path": target}
        )
        with pytest.raises(ToolError, match="Path /memories/link/b would escape /memories directory"):
            tool(command, **given)
        assert list(outside.iterdir()) == []
        assert "/memories/a" in tool("view", path="/memories")
