"""A disk store whose process is killed: before each system call on files, at random, and with its catalogue deleted.

Afterwards all acknowledged writes are there, a batch is complete or absent, the plain files match the store, and no
other files are left.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.engines.disk.file_names import parse_path
from holdall.files.volume import Files
from holdall.ops import Append, Copy, Delete, DeleteTree, Move, Op, Put, ReadRange
from holdall.testing.contract.base import forked
from support.checksums import check, sealed
from support.disk_stores import opened
from support.extent import IS_SHORT
from support.killed_writers import check_round, kill_at_a_random_moment, write_until_killed
from support.processes import Process, finish_together, report, start, wait_to_begin

VOLUME = ("filesystem",)
STEPS = ("open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir")


def plain_files(folder: Path) -> dict[str, bytes]:
    """Return the plain files by the keys of their entries, without `.holdall`."""
    found: dict[str, bytes] = {}
    for path in folder.rglob("*"):
        if ".holdall" in path.parts or path.is_dir():
            continue
        place = parse_path(path.relative_to(folder).as_posix(), VOLUME)
        assert place is not None, path
        key = "|".join((*place.namespace, place.key))
        assert key not in found
        found[key] = path.read_bytes()
    return found


def check_folder(store: holdall.Store, folder: Path) -> None:
    """Check that the plain files match the store."""
    assert [*(folder / ".holdall" / "new").iterdir()] == []
    found = plain_files(folder)
    for entry in store.scan():
        data = found.pop("|".join((*entry.namespace, entry.key)))
        is_path = entry.key.startswith("/")
        content = store.execute([ReadRange(entry.namespace, entry.key, 0)])[0] if is_path else None
        if content is None:
            assert json.loads(data) == entry.value
        else:
            assert data == content
    assert not found, "files that the store does not have"


# Before each step-----------------------------------------------------------------------------------------------------


def file(path: str, text: str) -> Put:
    return Put(VOLUME, path, {"content": text, "encoding": "utf-8"})


BEFORE = [
    *(file(f"/tree/{name}/deep.txt", name * 3000) for name in "abc"),
    *(file("/log", "begun\n"), file("/moved", "moved"), file("/swapped", "left"), file("/other", "right")),
    *(file("/gone/far/away", "x"), file("/a", "a file"), Put(("items",), "k", {"step": 0}), Put(("items",), "l", {})),
]
BATCHES: dict[str, list[Op]] = {
    "new contents": [
        *(
            Put(("items",), "k", {"step": 1}),
            Put(("items", "deep"), "m", {}),
            file("/log", "again"),
            file("/a", "other"),
        ),
        *(file(f"/new/{name}/file", name * 100000) for name in "abc"),
    ],
    "everything": [
        *(Put(("items",), "k", {"step": 1}), Delete(("items",), "l"), file("/new/file", "new")),
        *(Append(VOLUME, "/log", b"x" * 70000), Append(VOLUME, "/log", b"end\n"), Move(VOLUME, "/tree", "/wood")),
        *(Copy(VOLUME, "/wood/a", "/copy"), DeleteTree(VOLUME, "/gone"), Delete(VOLUME, "/a"), file("/a/inside", "b")),
    ],
    "a swap": [
        *(Move(VOLUME, "/swapped", "/t"), Move(VOLUME, "/other", "/swapped"), Move(VOLUME, "/t", "/other")),
        *(Copy(VOLUME, "/moved", "/twice"), Move(VOLUME, "/moved", "/once"), file("/moved", "again")),
    ],
    "moved and grown": [
        *(Move(VOLUME, "/log", "/old.log"), Append(VOLUME, "/old.log", b"last\n"), file("/log", "first\n")),
        *(Delete(VOLUME, "/swapped"), Move(VOLUME, "/other", "/swapped"), Copy(VOLUME, "/log", "/log.copy")),
    ],
}


#: Each is killed before every one of its steps, in the short form before every third, which takes 5 s.
KILLED_IN_SHORT = ("everything",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.not_short] * (name not in KILLED_IN_SHORT)) for name in BATCHES]
)
def test_a_batch_killed_before_any_step_is_complete_or_absent(tmp_path: Path, name: str) -> None:
    first, last = tmp_path / "first", tmp_path / "last"
    with opened(first) as store:
        store.execute(BEFORE)
        before = contents(store)
    shutil.copytree(first, last)
    with opened(last) as store:
        store.execute(BATCHES[name])
        after = contents(store)
        check_folder(store, last)
    assert before != after
    outcomes: list[bool] = []
    for steps in itertools.count(1, 3 if IS_SHORT else 1):
        folder = tmp_path / f"killed{steps}"
        shutil.copytree(first, folder)
        ended = forked(lambda folder=folder, steps=steps: run_and_die(folder, BATCHES[name], steps))
        with opened(folder) as store:
            check_folder(store, folder)
            found = contents(store)
            assert found in (before, after), f"half a batch, killed before step {steps}"
            outcomes.append(found == after)
        shutil.rmtree(folder)
        if ended == 0:
            break
    assert outcomes == sorted(outcomes)
    assert outcomes.count(False) >= 1, "no kill came before the commit"
    assert outcomes.count(True) > (1 if IS_SHORT else 5), "hardly any kill came between the commit and the last file"


def contents(store: holdall.Store) -> dict[str, Any]:
    return {"|".join((*entry.namespace, entry.key)): entry.value.get("content", entry.value) for entry in store.scan()}


def run_and_die(folder: Path, batch: list[Op], steps: int) -> None:
    """Run a batch in a child process that exits before a system call on the folder, after so many of them."""
    store = opened(folder)
    store.setup()
    store.count()
    left = steps

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        changes_something = event != "open" or args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if event in STEPS and changes_something and "catalogue" not in str(args[0]):
            left -= 1
            if left == 0:
                os._exit(9)

    sys.addaudithook(hook)
    store.execute(batch)


# At random -----------------------------------------------------------------------------------------------------------


def test_acknowledged_writes_survive_kill_9_and_the_files_match(
    tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    folder = tmp_path / "agent"
    url = f"disk:///{folder}"
    rounds = scaled(4, 50)
    acknowledged = 0
    for number in range(rounds):
        writer = start(write_until_killed if number % 2 else change_files_until_killed, path=url, number=str(number))
        reported = kill_at_a_random_moment(writer, once_it_writes=number % 4 != 3)
        for content in plain_files(folder).values():  # also before the store is opened again
            if content.startswith(b"{"):
                check(json.loads(content))
        if number % 2:
            check_round(url, number=str(number), reported=reported)
        with holdall.open(url, timeout=10) as store:
            check_folder(store, folder)
            if not number % 2:
                check_changed(store.files(("changed", str(number))), dict(reported))
        acknowledged += len(reported)
        if number % 8 == 7:
            shutil.rmtree(folder / ".holdall")
    assert acknowledged > rounds, "the writers were killed before they could write, so nothing was tested"


def change_files_until_killed(path: str, number: str) -> None:
    files = holdall.open(path).files(("changed", number))
    for step in itertools.count(1):
        files.write(f"/tree/{step}.json", json.dumps(sealed(step=step, filler="x" * (step * 997 % 70000))))
        files.append("/log", f"{step}\n" * 10)
        if step % 5 == 0:
            files.move("/tree", f"/old/{step}")
        report(["step", step])


def check_changed(files: Files, reported: dict[str, int]) -> None:
    last = reported.get("step", 0)
    written = sorted(check(json.loads(files.read(info.path)))["step"] for info in files.walk() if info.path != "/log")
    assert written == list(range(1, len(written) + 1))
    assert len(written) in (last, last + 1)
    log = files.read_text("/log") if files.exists("/log") else ""
    steps = log.count("\n") // 10
    assert log == "".join(f"{step}\n" * 10 for step in range(1, steps + 1))
    assert steps in (last, last + 1)


def test_processes_agree_in_the_end_while_others_edit_the_files(
    tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    folder = tmp_path / "agent"
    seconds = scaled(2, 20)
    with opened(folder) as store:
        crew: list[Process] = [
            start(write_and_edit, deadline=seconds + 60, url=f"disk:///{folder}", seconds=seconds, worker=worker)
            for worker in range(3)
        ]
        until = time.monotonic() + seconds
        chance = random.Random(0)
        while time.monotonic() < until:
            path = folder / f"{chance.randrange(8)}.txt"
            match chance.randrange(4):
                case 0:
                    path.write_text("outside " * chance.randrange(2000))
                case 1:
                    path.unlink(missing_ok=True)
                case 2:
                    (tmp_path / "new").write_text("renamed")
                    (tmp_path / "new").rename(path)
                case _:
                    for info in store.files().walk():
                        assert info.path[0] == "/"
        for process in crew:
            [steps] = process.finish()
            assert steps > 0
        check_folder(store, folder)
        assert all(store.files().exists(f"/own/{worker}") for worker in range(3))


def write_and_edit(url: str, seconds: float, worker: int) -> None:
    files = holdall.open(url, durability="relaxed").files()
    chance = random.Random(worker)
    until = time.monotonic() + seconds
    for step in itertools.count(1):
        path = f"/{chance.randrange(8)}.txt"
        match chance.randrange(4):
            case 0:
                files.write(path, f"{worker} " * chance.randrange(3000))
            case 1:
                files.append(path, f"{worker}.{step}\n")
            case 2:
                files.delete(path, recursive=True)
            case _:
                files.grep("outside")
        files.append(f"/own/{worker}", f"{step}\n")
        if time.monotonic() > until:
            break
    assert files.read_text(f"/own/{worker}") == "".join(f"{n}\n" for n in range(1, step + 1))
    files.store.close()
    report(step)


def test_of_many_writing_processes_none_waits_long(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    """Once, a process waited for others while it held the lock: a tenth of a second for each put."""
    crew = scaled(4, 25)
    url = f"disk:///{tmp_path}/agent"
    began = [start(put_in_turn, url=url, worker=worker) for worker in range(crew)]
    waits = sorted(wait for [wait] in finish_together(began))
    with holdall.open(url) as store:
        assert store.count() == crew * 10
    assert waits[-1] < crew * 0.1, f"the worst of {crew * 10} puts took {waits[-1]:.1f} s"


def put_in_turn(url: str, worker: int) -> None:
    with holdall.open(url) as store:
        store.setup()
        wait_to_begin()
        worst = 0.0
        for step in range(10):
            began = time.monotonic()
            store.put(("turns", str(worker)), str(step), {"by": worker})
            worst = max(worst, time.monotonic() - began)
    report(worst)
