"""Real deepagents agents, with a scripted model, on `HoldallBackend`: what their tools answer, on every engine."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deepagents import FilesystemPermission
from deepagents.backends import CompositeBackend, StateBackend
from langchain_core.tools import tool

import holdall
from holdall.faces.deepagents import HoldallBackend
from support.scripted_agents import agent, answered, answers, call
from support.threads import together

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))

#: A call, and what the tool says; an error where that begins with "Error".
DAY: list[tuple[dict[str, Any], Any]] = [
    (call("ls", path="/"), "No files found"),
    (call("write_file", file_path="/notes/todo.md", content="- tea\n- milk\n- tea\n"), "Updated file /notes/todo.md"),
    (call("write_file", file_path="/notes/old.md", content="gone"), "Updated file /notes/old.md"),
    (call("write_file", file_path="main.py", content="print('tea')"), "Updated file /main.py"),
    (call("ls", path="/"), "['/main.py', '/notes/']"),
    (call("ls", path="/notes"), "['/notes/old.md', '/notes/todo.md']"),
    (call("read_file", file_path="/notes/todo.md"), "@@ lines 1-3 of 3 @@\n- tea\n- milk\n- tea"),
    (
        call("read_file", file_path="/notes/todo.md", offset=1, limit=1),
        "@@ lines 2-2 of 3 | next offset 2 @@\n- milk",
    ),
    (
        call("read_file", file_path="/notes/todo.md", offset=7),
        "Error: Line offset 7 exceeds file length (3 lines)",
    ),
    (call("read_file", file_path="/missing"), "Error: File '/missing' not found"),
    (call("read_file", file_path="/../etc/passwd"), "Error: Path traversal not allowed: /../etc/passwd"),
    (
        call("edit_file", file_path="/notes/todo.md", old_string="milk", new_string="cream"),
        "Successfully replaced 1 instance(s) of the string in '/notes/todo.md'",
    ),
    (
        call("edit_file", file_path="/notes/todo.md", old_string="tea", new_string="coffee"),
        "Error: String 'tea' appears 2 times in file. Use replace_all=True to replace all instances, or provide a more"
        " specific string with surrounding context.",
    ),
    (
        call("edit_file", file_path="/notes/todo.md", old_string="tea", new_string="coffee", replace_all=True),
        "Successfully replaced 2 instance(s) of the string in '/notes/todo.md'",
    ),
    (
        call("edit_file", file_path="/notes/todo.md", old_string="tea", new_string="coffee"),
        "Error: String not found in file: 'tea'",
    ),
    (call("edit_file", file_path="/no", old_string="a", new_string="b"), "Error: File '/no' not found"),
    (call("grep", pattern="tea"), "/main.py"),
    (
        call("grep", pattern="coffee", output_mode="content"),
        "/notes/todo.md:\n  1: - coffee\n  3: - coffee",
    ),
    (call("grep", pattern="coffee", path="/notes", glob="*.md", output_mode="count"), "/notes/todo.md: 2"),
    (call("grep", pattern="espresso"), "No matches found"),
    (call("glob", pattern="*.md"), "['/notes/todo.md', '/notes/old.md']"),
    (call("glob", pattern="**/*.py", path="/"), "['/main.py']"),
    (call("glob", pattern="*.rs"), "No files found"),
    (call("delete", file_path="/notes/old.md"), "Deleted /notes/old.md"),
    (call("delete", file_path="/notes/old.md"), "Error: File '/notes/old.md' not found"),
    (call("delete", file_path="/notes"), "Deleted /notes"),
    (call("ls", path="/"), "['/main.py']"),
    (call("write_file", file_path="/main.py", content=""), "Updated file /main.py"),
    (call("read_file", file_path="/main.py"), "System reminder: File exists but has empty contents"),
]


def test_an_agents_day_with_every_file_tool(any_store: holdall.Store, place: Any, runner: Any) -> None:
    backend = HoldallBackend(any_store, namespace=place)
    replies = answers(agent(backend, [one for one, _ in DAY]), runner)
    assert [(message.name, message.content) for message in replies] == [(one["name"], words) for one, words in DAY]
    wrong = [words.startswith("Error") for _, words in DAY]
    assert [message.status == "error" for message in replies] == wrong


def test_an_agent_reads_what_is_not_text_whole(any_store: holdall.Store, place: Any, runner: Any) -> None:
    backend = HoldallBackend(any_store, namespace=place)
    backend.upload_files([("/p.png", PNG), ("/odd", PNG)])
    picture, odd = answers(agent(backend, [call("read_file", file_path=path) for path in ("/p.png", "/odd")]), runner)
    encoded = base64.b64encode(PNG).decode()
    assert [block["base64"] for block in (*picture.content, *odd.content)] == [encoded] * 2
    assert (picture.content[0]["type"], odd.content[0]["type"]) == ("image", "file")  # type: ignore[index]  # dicts


def test_a_large_result_is_kept_as_a_file(any_store: holdall.Store, place: Any, runner: Any) -> None:
    """deepagents writes what is too large for a model to the backend, and says where."""

    @tool
    def report() -> str:
        """A long report."""
        return "word " * 40_000

    backend = HoldallBackend(any_store, namespace=place)
    asked = call("report")
    [reply] = answers(agent(backend, [asked], tools=[report]), runner)
    path = f"/large_tool_results/{asked['id']}"
    assert path in str(reply.content)
    assert any_store.files(place).read_text(path) == "word " * 40_000


@pytest.mark.parametrize("pace", ["threads", "tasks"])
def test_four_agents_of_15_edits_are_all_kept(any_store: holdall.Store, place: Any, pace: str) -> None:
    """Of 60 edits that were reported as made, 33 to 42 were there."""
    backend = HoldallBackend(any_store, namespace=place)
    backend.write("/shared.md", "".join(f"<{one}>\n" for one in range(4)))

    def edits(one: int) -> list[dict[str, Any]]:
        path, mark = "/shared.md", f"<{one}>"
        return [
            call("edit_file", file_path=path, old_string=mark, new_string=f"{one}.{number} {mark}")
            for number in range(15)
        ]

    agents = [agent(backend, edits(one)) for one in range(4)]
    replies: list[Any] = []
    if pace == "threads":
        together([lambda made=made: replies.extend(answers(made)) for made in agents])  # type: ignore[misc]  # bound early
    else:

        async def all_at_once() -> None:
            given, config = {"messages": [{"role": "user", "content": "go"}]}, {"recursion_limit": 1000}
            for state in await asyncio.gather(*(made.ainvoke(given, config) for made in agents)):
                replies.extend(answered(state))

        asyncio.run(all_at_once())
    assert [message.status for message in replies] == ["success"] * 60
    lines = [" ".join([*(f"{one}.{number}" for number in range(15)), f"<{one}>"]) for one in range(4)]
    assert any_store.files(place).read_text("/shared.md").splitlines() == lines


@dataclass
class Who:
    user: str


def test_a_namespace_callable_is_given_the_runtime_that_deepagents_gives(
    any_store: holdall.Store, place: tuple[str, ...], runner: asyncio.Runner | None
) -> None:
    backend = HoldallBackend(any_store, namespace=lambda runtime: (*place, runtime.context.user))
    calls = [call("write_file", file_path="/a.md", content="mine"), call("glob", pattern="*"), call("ls", path="/")]
    for user in ("ada", "bob"):
        replies = answers(agent(backend, calls, context_schema=Who), runner, context=Who(user))
        assert [message.content for message in replies] == ["Updated file /a.md", "['/a.md']", "['/a.md']"]
    assert any_store.namespaces(prefix=place) == [(*place, "ada"), (*place, "bob")]


def test_permissions_hold(any_store: holdall.Store, place: tuple[str, ...], runner: asyncio.Runner | None) -> None:
    backend = HoldallBackend(any_store, namespace=place)
    backend.upload_files([("/secrets/key", b"word"), ("/open/a.md", b"word"), ("/fixed/b.md", b"word")])
    rules = [
        FilesystemPermission(operations=["read", "write"], paths=["/secrets/**"], mode="deny"),
        FilesystemPermission(operations=["write"], paths=["/fixed/**"], mode="deny"),
    ]
    calls = [
        call("read_file", file_path="/secrets/key"),
        call("write_file", file_path="/secrets/new", content="x"),
        call("edit_file", file_path="/fixed/b.md", old_string="word", new_string="x"),
        call("delete", file_path="/secrets"),
        call("delete", file_path="/fixed/b.md"),
        call("delete", file_path="/"),
        call("grep", pattern="word"),
        call("glob", pattern="*"),
        call("read_file", file_path="/fixed/b.md"),
        call("delete", file_path="/open"),
    ]
    replies = answers(agent(backend, calls, permissions=rules), runner)
    assert [message.status for message in replies] == ["error"] * 6 + ["success"] * 4
    assert all("permission denied" in str(message.content) for message in replies[:6])
    assert [
        set(str(message.content).strip("[]").replace("'", "").split(sep))
        for message, sep in ((replies[6], "\n"), (replies[7], ", "))
    ] == [{"/open/a.md", "/fixed/b.md"}] * 2
    assert [info["path"] for info in backend.glob("*").matches or []] == ["/fixed/b.md", "/secrets/key"]


def test_a_volume_keeps_an_agents_memories_beside_its_state(any_store: Any, place: Any, runner: Any) -> None:
    """The layout of deepagents' own documentation: what is under /memories/ outlives the run."""
    backend = CompositeBackend(
        default=StateBackend(), routes={"/memories/": HoldallBackend(any_store, namespace=place)}
    )
    first = [
        call("write_file", file_path="/draft.md", content="for now"),
        call("write_file", file_path="/memories/ada.md", content="likes tea"),
        call("ls", path="/"),
    ]
    assert answers(agent(backend, first), runner)[-1].content == "['/draft.md', '/memories/']"
    second = [
        call("read_file", file_path="/memories/ada.md"),
        call("grep", pattern="tea"),
        call("read_file", file_path="/draft.md"),
    ]
    replies = [message.content for message in answers(agent(backend, second), runner)]
    assert replies == ["@@ lines 1-1 of 1 @@\nlikes tea", "/memories/ada.md", "Error: File '/draft.md' not found"]


def test_the_example_keeps_every_edit() -> None:
    example = Path(__file__).parents[3] / "examples" / "deepagents_files.py"
    output = subprocess.run([sys.executable, "-W", "error", example], capture_output=True, text=True, check=True).stdout
    assert output == "60 of 60 edits are there.\n"
