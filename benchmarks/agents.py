"""One agent's day: 1,000 calls of deepagents' own file tools, scripted, over a project of 10,000 files of 1 KB.

The same script is replayed on each backend: ours on SQLite and on PostgreSQL, deepagents' `StoreBackend` over
langgraph's `SqliteStore` and `InMemoryStore`, and its `FilesystemBackend` on this disk. Every answer is compared with
the right one. A peer that would take an hour stops when its time is up. Its total is estimated from what
it has done, and a note gives how far it came.
"""

from __future__ import annotations

import ast
import random
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any

from deepagents.backends import FilesystemBackend
from deepagents.backends.protocol import BackendProtocol
from deepagents.middleware import filesystem
from langchain.tools import ToolRuntime

from holdall.faces.deepagents import HoldallBackend

from .data import RARE_TEXT, files, folder_of
from .harness import OURS, Bench, FsyncProbe, Row, at_least
from .postgres import new_server
from .volumes import HERE, MEMORY, SQLITE, Deepagents, Ours, Texts

FILES, CALLS, DAYS = 10_000, 1_000, 3
DISK, POSTGRES = "FilesystemBackend", "holdall on PostgreSQL"
#: How often each tool is called, in any order.
SHARES = {"read_file": 350, "edit_file": 200, "ls": 150, "grep": 120, "write_file": 100, "glob": 80}
PATIENCE = {SQLITE: 120.0, MEMORY: 60.0, DISK: 90.0}  # seconds that a peer may take


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, and what has to be in its answer."""

    tool: str
    args: dict[str, Any]
    right: Any


def run(bench: Bench) -> None:
    filesystem.GLOB_TIMEOUT = 600.0  # after 10 s it gives up, while its thread is still at work in the peer's database
    texts = files(FILES)
    day = _day(texts)
    took: dict[str, list[list[float]]] = {OURS: [_ours(bench, texts, day, number) for number in range(DAYS)]}
    fsync = _fsync(bench)
    with new_server(bench) as urls:
        took[POSTGRES] = [_on_postgres(next(urls), texts, day) for _ in range(DAYS)]
    for name in (SQLITE, MEMORY):
        took[name] = [_theirs(bench, name, texts, day)]
    took[DISK] = [_on_disk(bench, texts, day)]
    whole = {name: [_whole(day, spent) for spent in days] for name, days in took.items()}
    what = f"a day: {CALLS:,} tool calls, {FILES:,} files"
    bench.rows.append(Row(what, whole, at_least(100, SQLITE), fsync, as_rate=False))
    for tool, share in SHARES.items():
        each = {name: [_of(tool, day, spent) for spent in days] for name, days in took.items()}
        bench.rows.append(Row(f"{tool}, {share} of them: one, in the mean", each, None, [], as_rate=False))
    _notes(bench, took)


# The script ----------------------------------------------------------------------------------------------------------


def _day(texts: Texts) -> list[Call]:
    """What the agent does, with the answers that a plain dict gives."""
    chance = random.Random(5)
    project = dict(texts)
    tools = [tool for tool, share in SHARES.items() for _ in range(share)]
    chance.shuffle(tools)
    makers: dict[str, Callable[[random.Random, dict[str, str], int], Call]] = {
        "read_file": _read,
        "edit_file": _edit,
        "ls": _ls,
        "grep": _grep,
        "write_file": _write,
        "glob": _glob,
    }
    return [makers[tool](chance, project, number) for number, tool in enumerate(tools)]


def _read(chance: random.Random, project: dict[str, str], _: int) -> Call:
    path = chance.choice(list(project))
    lines = project[path].splitlines()
    return Call("read_file", {"file_path": path}, f"@@ lines 1-{len(lines)} of {len(lines)} @@\n" + "\n".join(lines))


def _edit(chance: random.Random, project: dict[str, str], number: int) -> Call:
    path = chance.choice(list(project))
    old = chance.choice([line for line in project[path].splitlines() if project[path].count(line) == 1])
    new = f"changed by call {number}"
    project[path] = project[path].replace(old, new)
    answer = f"Successfully replaced 1 instance(s) of the string in '{path}'"
    return Call("edit_file", {"file_path": path, "old_string": old, "new_string": new}, answer)


def _write(chance: random.Random, project: dict[str, str], number: int) -> Call:
    path = f"{folder_of(chance.randrange(FILES))}/draft-{number}.md"
    project[path] = project[chance.choice(list(project))]
    return Call("write_file", {"file_path": path, "content": project[path]}, f"Updated file {path}")


def _ls(chance: random.Random, project: dict[str, str], _: int) -> Call:
    folder = folder_of(chance.randrange(FILES))
    if chance.random() < 0.2:  # now and then from further up
        folder = folder.rpartition("/")[0]
    inside = (path[len(folder) + 1 :] for path in project if path.startswith(folder + "/"))
    names = {name.partition("/")[0] + ("/" if "/" in name else "") for name in inside}
    return Call("ls", {"path": folder}, sorted(f"{folder}/{name}" for name in names))


def _grep(chance: random.Random, project: dict[str, str], _: int) -> Call:
    """A few words of some file, or what others have looked for too; in the project, or in a part of it."""
    path = chance.choice(list(project))
    line = chance.choice(project[path].splitlines()).split(" ")
    start = chance.randrange(max(1, len(line) - 3))
    text = RARE_TEXT if chance.random() < 0.2 else " ".join(line[start : start + 3])
    folder = "/" + path.split("/")[1] if chance.random() < 0.3 else None
    found = (path for path in project if path.startswith(f"{folder or ''}/") and text in project[path])
    args = {"pattern": text} | ({} if folder is None else {"path": folder})
    return Call("grep", args, sorted(path for path in found if any(text in row for row in project[path].splitlines())))


def _glob(chance: random.Random, project: dict[str, str], _: int) -> Call:
    """In a folder, below one, or by name anywhere."""
    folder = folder_of(chance.randrange(FILES))
    pattern, path, plain = chance.choice(
        [
            ("note-1[0-4].md", folder, f"{folder}/note-1[0-4].md"),
            (f"{folder[1:9]}/**/draft-*.md", None, f"/{folder[1:9]}/*/draft-*.md"),
            (f"note-{chance.randrange(20):02}.md", None, None),
        ]
    )
    plain = plain or f"*/{pattern}"
    args = {"pattern": pattern} | ({} if path is None else {"path": path})
    return Call("glob", args, sorted(path for path in project if fnmatchcase(path, plain)))


# Replaying it --------------------------------------------------------------------------------------------------------


def _replay(backend: BackendProtocol, day: Sequence[Call], patience: float | None = None) -> list[float]:
    """The seconds of each call, of as many as there was time for."""
    given: Any = filesystem.FilesystemMiddleware(backend=backend).tools
    tools = {tool.name: tool.func for tool in given}
    runtime: Any = ToolRuntime(
        state={}, context=None, config={}, stream_writer=lambda _: None, tool_call_id="call", store=None
    )
    spent: list[float] = []
    for call in day:
        began = time.perf_counter()
        answer = tools[call.tool](runtime=runtime, **call.args)
        spent.append(time.perf_counter() - began)
        assert _plain(call, answer) == call.right, (type(backend), call, answer.content)
        if patience is not None and sum(spent) > patience and set(SHARES) == {call.tool for call in day[: len(spent)]}:
            break
    return spent


def _plain(call: Call, answer: Any) -> Any:
    text = answer.content
    if call.tool in ("read_file", "edit_file", "write_file"):
        return text
    if text in ("No files found", "No matches found"):
        return []
    return sorted(text.splitlines() if call.tool == "grep" else ast.literal_eval(text))


def _ours(bench: Bench, texts: Texts, day: Sequence[Call], number: int) -> list[float]:
    bench.progress(f"{OURS}: day {number + 1} of {DAYS}")
    return _ours_at(str(bench.folder / f"agents-{number}.db"), texts, day)


def _on_postgres(url: str, texts: Texts, day: Sequence[Call]) -> list[float]:
    return _ours_at(url, texts, day)


def _ours_at(url: str, texts: Texts, day: Sequence[Call]) -> list[float]:
    with closing(Ours(url)) as volume:
        volume.load(texts)
        return _replay(HoldallBackend(volume.store, namespace=HERE), day)


def _theirs(bench: Bench, name: str, texts: Texts, day: Sequence[Call]) -> list[float]:
    bench.progress(f"{name}: a day, as far as it gets in {PATIENCE[name]:.0f} s")
    with closing(Deepagents(name, bench.folder / "agents-langgraph.db" if name == SQLITE else None)) as volume:
        volume.load(texts)
        return _replay(volume._backend, day, PATIENCE[name])


def _on_disk(bench: Bench, texts: Texts, day: Sequence[Call]) -> list[float]:
    bench.progress(f"{DISK}: a day")
    root = bench.folder / "agents-on-disk"
    for path, text in texts:
        place = root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    try:
        return _replay(FilesystemBackend(root_dir=root, virtual_mode=True), day, PATIENCE[DISK])
    finally:
        shutil.rmtree(root)


# What it comes to ----------------------------------------------------------------------------------------------------


def _of(tool: str, day: Sequence[Call], spent: Sequence[float]) -> float:
    """What a call of a tool took in the mean."""
    return fmean(seconds for call, seconds in zip(day, spent, strict=False) if call.tool == tool)


def _whole(day: Sequence[Call], spent: Sequence[float]) -> float:
    """What the whole day takes; for who did not get through, each call that is left takes what others like it took."""
    return sum(spent) + sum(_of(call.tool, day, spent) for call in day[len(spent) :])


def _fsync(bench: Bench) -> list[float]:
    probe = FsyncProbe(bench.folder)
    try:
        return [probe.sample() for _ in range(50)]
    finally:
        probe.close()


def _notes(bench: Bench, took: dict[str, list[list[float]]]) -> None:
    for name, days in took.items():
        if len(days[0]) < CALLS:
            bench.note(
                f"{name} made {len(days[0])} of the {CALLS:,} calls in {sum(days[0]):.0f} s and was stopped; its day is"
                " estimated, with each remaining call at the mean of those of its kind"
            )
    bench.note("the calls are those of deepagents' own tools (FilesystemMiddleware), without a model or a graph around")
    bench.note("its limit of 10 s for a glob was lifted: the peers may need more")
    bench.note(f"{SQLITE} and {MEMORY}: deepagents' StoreBackend over langgraph's, as they open by themselves")
    ripgrep = "with ripgrep" if shutil.which("rg") else "without ripgrep, which this machine has not"
    bench.note(f"{DISK}: on this disk, {ripgrep}; it waits for no fsync and keeps no edits that come at once apart")
    bench.note(f"{OURS} is at full durability, and its first greps include building the index; {DAYS} new stores")
