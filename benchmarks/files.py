"""Files of 1 KB, 20 to a folder: ls, read, glob, grep and delete among 1,000, 10,000 and 100,000; logs of 50 MB.

The peers are deepagents' `StoreBackend` over langgraph's `SqliteStore` and `InMemoryStore`, AG2's
`SqliteKnowledgeStore` and AgentFS, each for what it can do. They are measured among 1,000 and 10,000 files; ours among
100,000 stands beside theirs among 10,000, and beside itself among 1,000. Every answer is compared before it is timed.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import holdall

from .data import RARE_IN, RARE_TEXT, as_item, files, folder_of, memory_of
from .harness import OURS, Bench, Row, Target, ahead_of, at_least, at_most, no_slower_than
from .postgres import analyze, new_server
from .volumes import AG2, AGENTFS, HERE, MEMORY, SQLITE, Ag2, AgentFs, Deepagents, Ours, Texts, Volume
from .writer import another_writer, hold_against_limit

FEW, SOME, MANY = 1_000, 10_000, 100_000
ITSELF, GET = "itself", "get"
PATIENCE = 60.0
_WATCHED = 25.0  # for how long a writer is watched while an index catches up
LOG = 50 << 20
_KB = ("x" * 1023 + "\n").encode()
_RANDOM = random.Random(3)

#: The ops of a round: many of what is quick, one of what takes seconds.
_OURS = {"ls": 200, "read": 500, "glob": 50, "grep": 3, "delete": 50}
_THEIRS = {
    SQLITE: {"ls": 1, "read": 200, "glob": 1, "grep": 1, "delete": 1},
    MEMORY: {"ls": 1, "read": 200, "glob": 1, "grep": 1, "delete": 1},
    AG2: {"ls": 50, "read": 100, "delete": 10},
    AGENTFS: {"ls": 50, "read": 50, "delete": 10},
}
_WHAT = {
    "ls": "ls, a folder of 20",
    "read": "read",
    "glob": "glob, 5 of a folder's",
    "grep": "grep, a rare literal",
    "delete": "delete, one file",
}


def run(bench: Bench) -> None:
    texts = files(MANY)
    with ExitStack() as stack:
        peers: list[Volume] = [
            Deepagents(SQLITE, bench.folder / "langgraph.db"),
            Deepagents(MEMORY, None),
            Ag2(bench.folder / "ag2.db"),
            AgentFs(bench.folder / "agentfs.db"),
        ]
        for peer in peers:
            stack.callback(peer.close)
        few = _among_few(bench, peers, texts, stack)
        theirs = _among_some(bench, peers, texts, stack)
        _among_many(bench, few, theirs, texts, stack)
    _writes(bench, texts)
    _logs(bench)
    _on_postgres(bench, texts)
    _notes(bench)


#: How what takes peers no minutes is measured among as many files as theirs.
_MEASURED: dict[str, Any] = {"read": {"rounds": 15, "target": ahead_of(SQLITE, MEMORY, AG2, AGENTFS)}}


# Among more and more files -------------------------------------------------------------------------------------------


def _among_few(bench: Bench, peers: list[Volume], texts: Texts, stack: ExitStack) -> Ours:
    ours = _ours(bench, stack, FEW)
    everybody = [ours, *peers]
    _load(bench, everybody, texts[:FEW])
    for op in ("ls", "read", "glob", "grep"):
        _row(bench, op, everybody, texts, FEW, rounds=5)
    return ours


def _among_some(bench: Bench, peers: list[Volume], texts: Texts, stack: ExitStack) -> dict[str, Row]:
    ours = _ours(bench, stack, SOME)
    _load(bench, [ours], texts[:FEW])
    _load(bench, [ours, *peers], texts[FEW:SOME])
    return {op: _row(bench, op, [ours, *peers], texts, SOME, **_MEASURED.get(op, {"rounds": 2})) for op in _WHAT}


def _among_many(bench: Bench, few: Ours, theirs: dict[str, Row], texts: Texts, stack: ExitStack) -> None:
    ours = _ours(bench, stack, MANY)
    _load(bench, [ours], texts)
    _check_items(ours, texts)
    on_disk = _written_to_disk(bench, texts)
    _first_grep(bench, "", str(bench.folder / f"ours-{MANY}.db"), ours, texts)
    targets: dict[str, Callable[[], Target | None]] = {
        "ls": partial(at_least, 1000, SQLITE, MEMORY),
        "read": lambda: None,  # nobody's depends on how many there are: it is held against theirs among as many
        "glob": partial(at_least, 100, SQLITE, MEMORY),
        "grep": partial(at_least, 100, SQLITE, MEMORY),
        "delete": partial(at_least, 100, SQLITE, MEMORY),
    }
    for op, target in targets.items():
        if op == "ls":
            runs = {OURS: _round(ours, op, texts, MANY), ITSELF: _round(few, op, texts, FEW)}
            what = f"{_WHAT[op]}, {MANY:,} files; itself: {FEW:,}"
            row = bench.measure(what, runs, ops=_OURS[op], rounds=15, target=at_most(5, ITSELF))
        elif op == "grep":
            runs = {OURS: _round(ours, op, texts, MANY), on_disk.name: lambda: on_disk.grep(RARE_TEXT)}
            assert on_disk.grep(RARE_TEXT) == _right("grep", (RARE_TEXT,), texts)
            what = f"{_WHAT[op]}, {MANY:,} files"
            ops = {OURS: _OURS[op], on_disk.name: 1}
            row = bench.measure(what, runs, ops=ops, rounds=5, target=no_slower_than(on_disk.name))
        else:
            row = _row(bench, op, [ours], texts, MANY, rounds=15)
            bench.rows.pop()
        _beside(bench, f"{_WHAT[op]}, {MANY:,} files; theirs: {SOME:,}", row, theirs[op], target())
        if op == "glob":
            everywhere = partial(ours.files.glob, "note-07.m?")
            assert len(everywhere()) == MANY // 20
            row = bench.measure("", {OURS: everywhere}, rounds=3)
            bench.rows.pop()
            _beside(
                bench, f"glob, {MANY // 20:,} by name anywhere, {MANY:,} files; theirs: 5 of {SOME:,}", row, theirs[op]
            )


def _beside(bench: Bench, what: str, ours: Row, theirs: Row, target: Target | None = None) -> None:
    """Hold ours against what the peers took for less."""
    peers = {name: spent for name, spent in theirs.seconds.items() if name != OURS}
    bench.rows.append(Row(what, {OURS: ours.seconds[OURS], **peers}, target, ours.fsync, as_rate=False))


def _row(
    bench: Bench, op: str, volumes: Sequence[Volume], texts: Texts, size: int, rounds: int, target: Target | None = None
) -> Row:
    able = [volume for volume in volumes if op in volume.can]
    for volume in able:
        [arguments] = _arguments(op, texts, size, 1)
        if op != "delete":
            answer = volume.plain(op, arguments, volume.do(op, [arguments]))
            assert answer == _right(op, arguments, texts[:size]), f"{op}: {volume.name} answers something else"
        if isinstance(volume, Ours):
            volume.catch_up(PATIENCE)
    return bench.measure(
        f"{_WHAT[op]}, {size:,} files",
        {volume.name: _round(volume, op, texts, size) for volume in able},
        ops={volume.name: _times(volume, op) for volume in able},
        rounds=rounds,
        durable=op == "delete",
        target=target,
    )


def _times(volume: Volume, op: str) -> int:
    return _OURS[op] if volume.name == OURS else _THEIRS[volume.name][op]


def _round(volume: Volume, op: str, texts: Texts, size: int) -> Callable[[], object]:
    """What is timed. Deletes begin with the last file, as long as there are some."""
    last = itertools.count(size - 1, -1)

    def run() -> object:
        times = _times(volume, op)
        if op == "delete":
            return volume.do(op, [(texts[next(last)][0],) for _ in range(times)])
        return volume.do(op, _arguments(op, texts, size, times))

    return run


def _arguments(op: str, texts: Texts, size: int, times: int) -> list[tuple[Any, ...]]:
    numbers = [_RANDOM.randrange(size) for _ in range(times)]
    if op == "grep":
        return [(RARE_TEXT,)] * times
    if op == "ls":
        return [(folder_of(number),) for number in numbers]
    if op == "glob":
        return [("note-1[0-4].md", folder_of(number)) for number in numbers]
    return [(texts[number][0],) for number in numbers]


def _right(op: str, arguments: tuple[Any, ...], texts: Texts) -> Any:
    """The answer, found the plain way."""
    if op == "read":
        return dict(texts)[arguments[0]]
    if op == "grep":
        lines = ((path, text.splitlines()) for path, text in texts if arguments[0] in text)
        return sorted((path, at, line) for path, all in lines for at, line in enumerate(all, 1) if RARE_TEXT in line)
    folder = arguments[0] if op == "ls" else arguments[1]
    inside = [path for path, _ in texts if path.startswith(folder + "/")]
    return sorted(path for path in inside if op == "ls" or "10" <= path[-5:-3] <= "14")


def _load(bench: Bench, volumes: Sequence[Volume], texts: Texts) -> None:
    for volume in volumes:
        bench.progress(f"loading {len(texts):,} files into {volume.name}")
        volume.load(texts)


def _check_items(ours: Ours, texts: Texts) -> None:
    """That what was put as items are files, and that files are the items that they were."""
    for path, text in texts[:: len(texts) // 50]:
        entry = ours.store.get(HERE, path)
        assert entry is not None
        assert entry.value == as_item(text)
        assert ours.files.read_text(path) == text
    assert ours.store.count(HERE) == len(texts)


# Writing -------------------------------------------------------------------------------------------------------------


def _writes(bench: Bench, texts: Texts) -> None:
    """Files one by one, and as items in a batch, which ours have to be recognised in and taken apart."""
    ops, rounds = 50, 7
    with ExitStack() as stack:
        volumes: list[Volume] = [
            Ours(str(bench.folder / "writes.db")),
            Deepagents(SQLITE, bench.folder / "writes-langgraph.db"),
            Deepagents(MEMORY, None),
            Ag2(bench.folder / "writes-ag2.db"),
            AgentFs(bench.folder / "writes-agentfs.db"),
        ]
        for volume in volumes:
            stack.callback(volume.close)
        unused = {volume.name: iter(texts) for volume in volumes}

        def some(volume: Volume, count: int) -> Texts:
            return list(itertools.islice(unused[volume.name], count))

        runs: dict[str, Callable[[], object]] = {
            volume.name: lambda volume=volume: volume.do("write", some(volume, ops))  # type: ignore[misc]  # bound early
            for volume in volumes
        }
        bench.measure("write, 1 KB", runs, ops=ops, rounds=rounds, durable=True)
        for volume in volumes:
            path, text = texts[3]
            assert volume.plain("read", (path,), volume.do("read", [(path,)])) == text
        runs = {
            volume.name: lambda volume=volume: volume.load(some(volume, 1000))  # type: ignore[misc]  # bound early
            for volume in volumes[:3]
        }
        bench.measure("put 1,000 files as items, in a batch", runs, rounds=rounds, durable=True)


# Grep ----------------------------------------------------------------------------------------------------------------


class OnDisk:
    """The same files on the disk, and the grep that this machine has."""

    def __init__(self, folder: Path) -> None:
        ripgrep = shutil.which("rg")
        self.name = "ripgrep" if ripgrep else "grep -rF"
        self._folder = folder
        self._command = [ripgrep, "-nF", "--no-heading"] if ripgrep else ["grep", "-rnF"]

    def grep(self, text: str) -> list[tuple[str, int, str]]:
        found = subprocess.run(
            [*self._command, text, "."], cwd=self._folder, capture_output=True, text=True, check=True
        )
        matches = (line.split(":", 2) for line in found.stdout.splitlines())
        return sorted((path.removeprefix("."), int(number), line) for path, number, line in matches)


def _written_to_disk(bench: Bench, texts: Texts) -> OnDisk:
    bench.progress(f"writing {len(texts):,} files to the disk")
    root = bench.folder / "on-disk"
    for folder in {path.rpartition("/")[0] for path, _ in texts}:
        (root / folder[1:]).mkdir(parents=True)
    for path, text in texts:
        (root / path[1:]).write_text(text)
    return OnDisk(root)


def _first_grep(bench: Bench, where: str, url: str, ours: Ours, texts: Texts) -> None:
    """The first after loading, which indexes may have to catch up for, and what a writer in another process feels."""
    bench.progress("the first grep")
    with another_writer(url) as stop:
        began = time.perf_counter()
        found = ours.files.grep(RARE_TEXT)
        spent = time.perf_counter() - began
        bench.progress("the index catches up")
        has_caught_up = ours.catch_up(_WATCHED)
        lag = time.perf_counter() - began - spent
        waits = stop()
    ours.catch_up(PATIENCE)
    assert ours.plain("grep", (), found) == _right("grep", (RARE_TEXT,), texts)
    assert {path for path, _, _ in ours.plain("grep", (), found)} == {texts[number][0] for number in RARE_IN}
    began = time.perf_counter()
    ours.files.grep(RARE_TEXT)
    again = time.perf_counter() - began
    what = f"the first grep after loading {MANY:,} files{where}; itself: with its index"
    bench.rows.append(Row(what, {OURS: [spent], ITSELF: [again]}, None, [], as_rate=False))
    had = "had" if has_caught_up else "had not"
    bench.note(f"the index {had} caught up {lag:.1f} s after the first grep{where}, while another process was writing")
    hold_against_limit(bench, f"another process's writes meanwhile{where}", waits)


# Logs ----------------------------------------------------------------------------------------------------------------


def _logs(bench: Bench) -> None:
    """A log of 50 MB that was written 1 KB at a time, and an empty one."""
    bench.progress("writing two logs of 50 MB")
    with holdall.open(str(bench.folder / "logs.db")) as store, closing(Ag2(bench.folder / "ag2-logs.db")) as ag2:
        volume = store.files(HERE)
        for _ in range(LOG // len(_KB) // 1000):
            store.execute([holdall.ops.Append(HERE, "/long", _KB)] * 1000)
        volume.append("/long", _KB * (LOG // len(_KB) % 1000))
        assert volume.stat("/long").size == LOG
        ag2.load([("/long", _KB.decode() * (LOG // len(_KB)))])
        made = itertools.count()

        def at_the_beginning() -> None:
            path = f"/short-{next(made)}"
            for _ in range(100):
                volume.append(path, _KB)

        def at_the_end() -> None:
            for _ in range(100):
                volume.append("/long", _KB)

        runs: dict[str, Callable[[], object]] = {
            OURS: at_the_end,
            ITSELF: at_the_beginning,
            AG2: lambda: ag2.do("append", [("/long", _KB.decode())]),
        }
        ops = {OURS: 100, ITSELF: 100, AG2: 1}
        what = "append 1 KB to 50 MB; itself: to 0 MB"
        rounds = 7
        bench.measure(what, runs, ops=ops, rounds=rounds, target=at_most(2, ITSELF), durable=True)
        bench.also(at_least(100, AG2))
        assert volume.stat("/long").size == LOG + 100 * (rounds + 1) * len(_KB)

        starts = [_RANDOM.randrange(LOG - 1024) for _ in range(200)]
        wanted = (_KB * 2)[starts[0] % 1024 :][:1024]
        assert volume.read_range("/long", starts[0], starts[0] + 1024) == wanted
        assert ag2.do("read_range", [("/long", starts[0], starts[0] + 1024)]) == wanted.decode()
        volume.write("/short", _KB * 2)

        def reads(path: str, places: list[int]) -> None:
            for start in places:
                volume.read_range(path, start, start + 1024)

        runs = {
            OURS: partial(reads, "/long", starts),
            ITSELF: partial(reads, "/short", [start % 1024 for start in starts]),
            AG2: lambda: ag2.do("read_range", [("/long", starts[0], starts[0] + 1024)]),
        }
        ops = {OURS: len(starts), ITSELF: len(starts), AG2: 1}
        what = "read_range, 1 KB of 50 MB; itself: of 2 KB"
        bench.measure(what, runs, ops=ops, rounds=7, target=at_most(2, ITSELF))
        bench.also(at_least(100, AG2))


# PostgreSQL ----------------------------------------------------------------------------------------------------------


def _on_postgres(bench: Bench, texts: Texts) -> None:
    with new_server(bench) as urls:
        url = next(urls)
        try:
            with closing(Ours(url)) as ours:
                ours.files.write("/first", "")
                ours.files.delete("/first", recursive=True)
        except (holdall.errors.Unsupported, TypeError, NotImplementedError):
            bench.note("PostgreSQL has no files yet")
            return
        with closing(Ours(url)) as ours:
            _load(bench, [ours], texts)
            _check_items(ours, texts)
            for number in range(FEW):
                ours.store.put(("items",), f"key-{number}", memory_of(number))
            analyze(url)
            _first_grep(bench, ", PostgreSQL", url, ours, texts)
            analyze(url)  # its index is a table too
            for op, times in (("ls", 5), ("grep", 50)):
                [arguments] = _arguments(op, texts, MANY, 1)
                assert ours.plain(op, arguments, ours.do(op, [arguments])) == _right(op, arguments, texts)

                def gets() -> None:
                    for number in range(_OURS["ls"]):
                        ours.store.get(("items",), f"key-{number}")  # it runs before there is another

                bench.measure(
                    f"{_WHAT[op]}, PostgreSQL, {MANY:,} files; a get",
                    {OURS: _round(ours, op, texts, MANY), GET: gets},
                    ops={OURS: _OURS[op], GET: _OURS["ls"]},
                    rounds=11,
                    target=at_most(times, GET),
                )


# Notes --------------------------------------------------------------------------------------------------------------


def _notes(bench: Bench) -> None:
    bench.note(f"{SQLITE} and {MEMORY}: deepagents' StoreBackend over langgraph's, as they open by themselves")
    bench.note(f"{AG2}: SqliteKnowledgeStore; it and {AGENTFS} have no glob and no grep, and {AGENTFS} no append")
    bench.note(
        "ours is at full durability; its files were put as items in deepagents' shape, 1,000 in a batch, as theirs"
    )
    bench.note(f"ls among {MANY:,} files, once: {', '.join(_attempts(bench))}")


def _attempts(bench: Bench) -> list[str]:
    """How the peers that load all files to list a folder fare among 100,000."""
    bench.progress(f"{SQLITE} and {MEMORY} list a folder among {MANY:,} files")
    context = multiprocessing.get_context("spawn")
    tries: list[tuple[str, Any, Connection]] = []
    for name, path in ((SQLITE, bench.folder / "langgraph-many.db"), (MEMORY, None)):
        here, there = context.Pipe()
        process = context.Process(target=_attempt, args=(name, path, there), daemon=True)
        process.start()
        tries.append((name, process, here))
    for _, _, here in tries:
        assert here.recv() == "loaded"
    until = time.monotonic() + PATIENCE
    notes = []
    for name, process, here in tries:
        done = here.poll(max(0.0, until - time.monotonic()))
        notes.append(f"{name} {here.recv():.1f} s" if done else f"{name} was not done after {PATIENCE:.0f} s")
        process.kill()
        process.join()
    return notes


def _attempt(name: str, path: Path | None, tell: Connection) -> None:
    volume = Deepagents(name, path)
    volume.load(files(MANY))
    tell.send("loaded")
    began = time.perf_counter()
    volume.do("ls", [(folder_of(MANY // 2),)])
    tell.send(time.perf_counter() - began)


def _ours(bench: Bench, stack: ExitStack, size: int) -> Ours:
    ours = Ours(str(bench.folder / f"ours-{size}.db"))
    stack.callback(ours.close)
    return ours
