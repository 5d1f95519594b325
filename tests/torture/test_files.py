"""Files under many processes and under `kill -9`: no edit or line is lost, no tree seen or left by halves."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdall
from holdall.errors import Conflict, NotFound
from holdall.files.volume import Files
from holdall.ops import Append, ReadRange, Stat
from support.extent import IS_SHORT
from support.processes import Process, finish_together, receive, report, start, wait_to_begin
from support.stores import new_location
from support.threads import together

PROCESSES = 8
EDITS, APPENDS = (20, 200) if IS_SHORT else (40, 500)  # of each process
NS = ("filesystem",)


@pytest.fixture(params=["sqlite", "postgres", "disk"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """How to open one new store, here and in other processes."""
    return new_location(request.param, tmp_path)


def open_files(where: dict[str, str]) -> Files:
    return holdall.open(**where, timeout=120).files()  # type: ignore[arg-type]  # a URL and a schema


@pytest.fixture
def files(where: dict[str, str]) -> Iterator[Files]:
    files = open_files(where)
    files.store.setup()
    yield files
    files.store.close()


def at_once(function: Callable[..., Any], where: dict[str, str], **job: Any) -> list[list[Any]]:
    """A function in eight processes that begin together; what each reported."""
    crew = [start(function, deadline=300, where=where, worker=worker, **job) for worker in range(PROCESSES)]
    return finish_together(crew)


def ready(where: dict[str, str]) -> Files:
    files = open_files(where)
    files.store.setup()
    wait_to_begin()
    return files


# Nothing is lost -----------------------------------------------------------------------------------------------------


def test_the_edits_of_8_processes_to_one_file_are_all_there(files: Files, where: dict[str, str]) -> None:
    """Of 320, deepagents kept 95."""
    todo = [f"<{worker}.{n}>" for n in range(EDITS) for worker in range(PROCESSES)]
    files.write("/notes.md", "".join(f"{task} open\r\n" for task in todo))
    assert at_once(make_edits, where) == [[[1] * EDITS]] * PROCESSES
    window = files.read_lines("/notes.md")
    assert window.lines == [f"{task} done" for task in todo]
    assert files.read("/notes.md").count(b"\r\n") == EDITS * PROCESSES


def make_edits(where: dict[str, str], worker: int) -> None:
    files = ready(where)
    report([files.edit("/notes.md", f"<{worker}.{n}> open", f"<{worker}.{n}> done") for n in range(EDITS)])
    files.store.close()


def test_the_appends_of_8_processes_to_one_file_are_all_there(files: Files, where: dict[str, str]) -> None:
    """AG2's concurrent disk appends return wrong offsets."""
    reported = at_once(make_appends, where)
    content = files.read("/log")
    lines = content.decode().splitlines(keepends=True)
    assert sorted(lines) == sorted(line(worker, n) for worker in range(PROCESSES) for n in range(APPENDS))
    for worker, [offsets] in enumerate(reported):
        assert len(offsets) == APPENDS
        assert offsets == sorted(offsets)
        for n, offset in enumerate(offsets):
            expected = line(worker, n).encode()
            assert content[offset : offset + len(expected)] == expected
            if n % 50 == 0:
                assert files.read_range("/log", offset, offset + len(expected)) == expected
    assert files.stat("/log").size == len(content)


def line(worker: int, n: int) -> str:
    return f"{worker}.{n} {'é' * (n % 7)}\n"


def make_appends(where: dict[str, str], worker: int) -> None:
    """Half of the processes await."""
    files = ready(where)

    async def appends() -> list[int]:
        return [await files.aappend("/log", line(worker, n)) for n in range(APPENDS)]

    report(asyncio.run(appends()) if worker % 2 else [files.append("/log", line(worker, n)) for n in range(APPENDS)])
    files.store.close()


def test_threads_and_tasks_mixed_lose_nothing(files: Files, scaled: Callable[[int, int], int]) -> None:
    rounds = scaled(15, 150)
    files.write("/counts", "".join(f"<{name}=0>\n" for name in range(8)))
    offsets: list[tuple[int, str]] = []

    async def count(name: int) -> None:
        for n in range(rounds):
            line = f"{name}:{n}\n"
            offsets.append((await files.aappend("/log", line), line))
            assert await files.aedit("/counts", f"<{name}={n}>", f"<{name}={n + 1}>") == 1

    async def count_in_tasks(names: range) -> None:
        await asyncio.gather(*(count(name) for name in names))

    def count_in_a_thread(name: int) -> None:
        for n in range(rounds):
            line = f"{name}:{n}\n"
            offsets.append((files.append("/log", line), line))
            assert files.edit("/counts", f"<{name}={n}>", f"<{name}={n + 1}>") == 1

    together(
        [
            *(partial(count_in_a_thread, name) for name in range(4)),
            lambda: asyncio.run(count_in_tasks(range(4, 6))),
            lambda: asyncio.run(count_in_tasks(range(6, 8))),
        ]
    )
    assert files.read_lines("/counts").lines == [f"<{name}={rounds}>" for name in range(8)]
    content = files.read("/log")
    assert len(offsets) == 8 * rounds
    assert sum(len(line) for _, line in offsets) == len(content)
    assert all(content[offset:].startswith(line.encode()) for offset, line in offsets)


def test_grep_is_never_behind_a_write(where: dict[str, str], files: Files, scaled: Callable[[int, int], int]) -> None:
    """Whatever indexes the contents does so later, and all the same a search finds what was written just before."""
    crew = [start(write_and_grep, deadline=300, where=where, worker=n, steps=scaled(25, 400)) for n in range(3)]
    finish_together(crew)
    assert [match.path for match in files.grep("the last needle")] == ["/0/f", "/1/f", "/2/f"]


def write_and_grep(where: dict[str, str], worker: int, steps: int) -> None:
    files = ready(where)
    path, copy = f"/{worker}/f", f"/{worker}/copy"

    def found(needle: str) -> list[str]:
        return [match.path for match in files.grep(needle)]

    for step in range(steps):
        needle = f"needle {worker}.{step} here"
        files.write(path, f"hay\n{needle}")
        assert found(needle) == [path]
        files.append(path, " and more")
        assert found(f"{needle} and more") == [path]
        files.copy(path, copy)
        assert found(needle) == [copy, path]
        files.edit(path, needle, "the last needle")
        assert found(needle) == [copy]
        files.delete(copy, recursive=True)
        assert found(needle) == []
    files.store.close()


def test_copies_stay_whole_while_others_change_them(files: Files, scaled: Callable[[int, int], int]) -> None:
    """Copies share their bytes: threads and tasks that grow, replace, copy and delete them must not meet in these."""
    paths, until = [f"/{n}" for n in range(4)], time.monotonic() + scaled(3, 30)
    done: Counter[str] = Counter()
    deeds = ["append", "append", "append", "copy", "copy", "move", "write", "delete"]

    def is_over() -> bool:
        """The time is over; on a busy machine, once each was done."""
        now = time.monotonic()
        return now > until + 60 or (now > until and done.keys() == {*deeds})

    async def meddle(seed: str) -> None:
        chance = random.Random(seed)
        while not is_over():
            path, other = chance.sample(paths, 2)
            info, data = await files.store.aexecute([Stat(NS, path), ReadRange(NS, path, 0)])
            count = check_numbered(data or b"")
            assert (info.size if info else None) == (len(data) if data is not None else None)
            deed = chance.choice(deeds)
            with contextlib.suppress(Conflict, NotFound):
                match deed:
                    case "append":
                        expect = holdall.ABSENT if info is None else info.version
                        await files.store.aexecute([Append(NS, path, numbered(count), expect)])
                    case "copy":
                        await files.acopy(path, other)
                    case "move":
                        await files.amove(path, other)
                    case "write":
                        await files.awrite(path, b"".join(map(numbered, range(chance.randrange(60)))))
                    case "delete":
                        await files.adelete(path, recursive=True)
                done[deed] += 1

    async def crowd(name: str) -> None:
        await asyncio.gather(*(meddle(f"{name}.{n}") for n in range(3)))

    together([lambda name=name: asyncio.run(crowd(name)) for name in "abcd"])  # type: ignore[misc]  # bound early
    for info in files.walk():
        check_numbered(files.read(info.path))
    assert done.keys() == {*deeds}, done


def numbered(n: int) -> bytes:
    return f"{n} {'x' * (n * 997 % 3000)}\n".encode()


def check_numbered(data: bytes) -> int:
    """How many lines there are, each of which has its place."""
    lines = data.splitlines(keepends=True)
    assert lines == [numbered(n) for n in range(len(lines))]
    return len(lines)


# Nothing is seen by halves -------------------------------------------------------------------------------------------

TREE = [f"/{n % 3}/{n:02}" for n in range(40)]


def test_a_reader_never_sees_half_of_a_moved_tree(
    files: Files, where: dict[str, str], scaled: Callable[[int, int], int]
) -> None:
    plant(files, "/one", 0)
    mover = start(move_to_and_fro, deadline=300, where=where)
    assert mover.receive() == "ready"
    mover.send("go")
    try:
        looks, seen = look_at_the_tree(files, scaled(2, 20))
    except BaseException:
        mover.kill()
        raise
    mover.send("stop")
    [moves] = mover.finish()
    assert moves > 10
    assert looks > 10
    assert seen == {"one", "two"}


def look_at_the_tree(files: Files, seconds: float) -> tuple[int, set[str]]:
    until, looks, seen = time.monotonic() + seconds, 0, set()
    while time.monotonic() < until:
        listing = list(files.walk())
        root = listing[0].path.split("/")[1]
        assert [info.path for info in listing] == sorted(f"/{root}{path}" for path in TREE)
        assert [info.path for info in files.ls()] in (["/one/"], ["/two/"])
        with contextlib.suppress(NotFound):  # it may have moved since it was listed
            assert files.read(f"/{root}{TREE[7]}") == body(TREE[7], 0)
        looks += 1
        seen.add(root)
    return looks, seen


def move_to_and_fro(where: dict[str, str]) -> None:
    files = ready(where)
    stop: list[Any] = []
    src, dst, moves = "/one", "/two", 0

    def move() -> None:
        nonlocal src, dst, moves
        while not stop:
            files.move(src, dst)
            src, dst, moves = dst, src, moves + 1

    together([move, lambda: stop.append(receive())])
    files.store.close()
    report(moves)


def plant(files: Files, root: str, generation: int) -> None:
    for path in TREE:
        files.write(root + path, body(path, generation))


def body(path: str, generation: int) -> bytes:
    """Content that says whose it is, of many lengths: some in one piece of the storage and some in several."""
    size = zlib.crc32(path.encode()) % 5000 if generation % 3 else 200_000 if path == TREE[0] else 10
    return f"{path} {generation} ".encode() + b"x" * size


# kill -9 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "deed", ["append", "write", "write_in_pieces", "edit", "tree_delete", "tree_move", "tree_copy"]
)
def test_what_kill_9_leaves_is_whole(
    files: Files, where: dict[str, str], scaled: Callable[[int, int], int], deed: str
) -> None:
    """The state is that of the last step that was reported, or of the one after it: never between, and never older."""
    rounds, steps, number = scaled(4, 30), 0, 0
    while number < rounds or (steps == number and number < 10 * rounds):  # a busy machine kills many before they write
        files.delete("/", recursive=True)
        prepare(files, deed)
        writer = start(work_until_killed, where=with_application_name(where), deed=deed)
        reported = kill_at_a_random_moment(writer)
        wait_for_its_connections(where)
        check(files, deed, reported[-1])
        files.append(f"/after/{number}", "the store still works")
        steps += len(reported)
        number += 1
    assert steps > number, "the writers were killed before they could write: this showed nothing"


def kill_at_a_random_moment(writer: Process) -> list[int]:
    reported = [writer.receive()]
    time.sleep(random.uniform(0, 0.25))
    return reported + writer.kill()


def with_application_name(where: dict[str, str]) -> dict[str, str]:
    return {**where, "url": f"{where['url']}&application_name=killed"} if "schema" in where else where


def wait_for_its_connections(where: dict[str, str]) -> None:
    """A server completes a request even if its client died."""
    if "schema" not in where:
        return
    with psycopg.connect(where["url"], autocommit=True) as connection:
        while connection.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'killed'").fetchone():
            time.sleep(0.005)


def prepare(files: Files, deed: str) -> None:
    if deed == "edit":
        files.write("/f", content(0))
    elif deed.startswith("tree"):
        plant(files, "/one", 1)
        files.copy("/one", "/spare")


def work_until_killed(where: dict[str, str], deed: str) -> None:
    files = open_files(where)
    for step in itertools.count(1):
        match deed:
            case "append":
                assert files.append("/f", f"{step}:{'x' * (step * 997 % 3000)}\n") >= 0
            case "write":
                files.write("/f", content(step))
            case "write_in_pieces":
                data = content(step).encode()
                with files.open("/f", "wb") as file:
                    for begin in range(0, len(data), 70_000):
                        file.write(data[begin : begin + 70_000])
            case "edit":
                files.edit("/f", f"step {step - 1} ", f"step {step} ", replace_all=True)
            case "tree_delete":  # gone after odd steps, there again after even ones
                if step % 2:
                    assert files.delete("/one", recursive=True) == len(TREE)
                else:
                    files.copy("/spare", "/one")
            case "tree_move":
                files.move(*(("/one", "/two") if step % 2 else ("/two", "/one")))
            case "tree_copy":
                files.copy("/one", f"/copy {step}")
        report(step)


def content(step: int) -> str:
    return f"step {step} \n" * (1 + step * 79_190 % 200_000)


def check(files: Files, deed: str, reported: int) -> None:
    if deed == "append":
        lines = files.read_lines("/f", limit=10**9).lines
        assert len(lines) in (reported, reported + 1)
        assert lines == [f"{step}:{'x' * (step * 997 % 3000)}" for step in range(1, len(lines) + 1)]
        assert files.append("/f", "!") == sum(len(line) + 1 for line in lines)
    elif deed in ("write", "write_in_pieces"):
        assert files.read_text("/f") in (content(reported), content(reported + 1))
    elif deed == "edit":
        count = content(0).count("\n")
        assert files.read_text("/f") in [f"step {step} \n" * count for step in (reported, reported + 1)]
    else:
        check_trees(files, deed, reported)
    assert {hit.namespace for hit in files.store.search(limit=1000)} == {("filesystem",)}


def check_trees(files: Files, deed: str, reported: int) -> None:
    roots = {info.path.strip("/") for info in files.ls()} - {"spare", "after"}
    allowed: list[set[str]] = []
    for step in (reported, reported + 1):
        match deed:
            case "tree_delete":
                allowed.append(set() if step % 2 else {"one"})
            case "tree_move":
                allowed.append({"two"} if step % 2 else {"one"})
            case "tree_copy":
                allowed.append({"one", *(f"copy {done}" for done in range(1, step + 1))})
    assert roots in allowed
    for root in roots:
        assert [info.path for info in files.walk(f"/{root}")] == sorted(f"/{root}{path}" for path in TREE)
        for path in TREE if deed != "tree_copy" or root == "one" else TREE[:5]:
            assert files.read(f"/{root}{path}") == body(path, 1)
