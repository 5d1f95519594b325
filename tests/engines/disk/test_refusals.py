"""System calls that fail, foreign files in `.holdall`, and very large files: other entries stay usable."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.engines.disk.folder import Folder
from holdall.errors import HoldallError
from support.disk_stores import opened
from support.processes import report, run

READS: dict[str, Callable[[holdall.Store], object]] = {
    "read": lambda store: store.files().read("/a/b"),
    "read_range": lambda store: store.files().read_range("/a/b", 1, 3),
    "grep": lambda store: store.files().grep("fish"),
    "scan": lambda store: [*store.scan()],
    "search": lambda store: store.search(query="fish"),
    "get": lambda store: store.get(("n",), "k"),
    "walk": lambda store: [*store.files().walk()],
}
WRITES: dict[str, Callable[[holdall.Store], object]] = {
    "write": lambda store: store.files().write("/a/new", "fish"),
    "append": lambda store: store.files().append("/a/b", "!"),
    "put": lambda store: store.put(("n",), "k", {"text": "other fish"}),
    "copy": lambda store: store.files().copy("/a/b", "/copies/b"),
    "delete": lambda store: store.files().delete("/a/b", recursive=True),
}
CALLS = READS | WRITES


def open_filled(folder: Path) -> holdall.Store:
    store = opened(folder)
    store.files().write("/a/b", "fish\n")
    store.put(("n",), "k", {"text": "tea"})
    for read in READS.values():  # so that all modules are imported before
        read(store)
    return store


def count_handles() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


# Handles -------------------------------------------------------------------------------------------------------------


def test_running_out_of_file_handles_is_an_error_that_passes(folder: Path) -> None:
    [messages] = run(run_short_of_handles, folder=str(folder))
    assert len(messages) > 10, "the calls hardly ever ran out of handles"
    for message in messages:
        assert "file handles left" in message or "Too many open files" in message


def run_short_of_handles(folder: str) -> None:
    logging.getLogger("holdall").addHandler(logging.NullHandler())
    messages: list[str] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    for name, call in CALLS.items():
        for free in (0, 1, 3):
            place = Path(folder, name, str(free))
            with open_filled(place) as store:
                (place / "a" / "edited").write_text("fish")  # has to be imported
                before = count_handles()
                taken: list[int] = []
                try:
                    while True:
                        taken.append(os.open(os.devnull, os.O_RDONLY))
                except OSError:
                    for handle in taken[len(taken) - free :]:
                        os.close(handle)
                    del taken[len(taken) - free :]
                try:
                    call(store)
                except HoldallError as error:
                    messages.append(str(error))
                finally:
                    for handle in taken:
                        os.close(handle)
                assert store.files().read("/a/edited") == b"fish"
                call(store)
                assert count_handles() <= before + 2, name  # a reading connection has two handles
    report(messages)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="/proc/self/fd is needed")
@pytest.mark.parametrize("name", CALLS)
def test_a_failed_call_leaves_no_file_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, scaled: Callable[[int, int], int]
) -> None:
    """Whichever system call fails, and without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        with open_filled(folder) as store:
            for call in ("open", "stat", "fstat", "pread", "scandir", "listdir", "access", "mkdir", "rename"):
                for number in range(1, scaled(8, 100)):
                    store.files().write("/a/b", "fish\n")
                    (folder / "@n" / "@k.json").write_text(f'{{"text": "{call}{number}"}}')
                    (folder / "a" / "edited").write_text("fish")
                    before = count_handles()
                    failing = FailAt(getattr(os, call), number)
                    with monkeypatch.context() as patch, contextlib.suppress(HoldallError):
                        patch.setattr(os, call, failing)
                        CALLS[name](store)
                    assert count_handles() <= before, f"{call} failed at its call {number}"
                    if not failing.failed:
                        break
                    assert "k" in [entry.key for entry in store.scan(("n",))]
    finally:
        gc.enable()


class FailAt:
    """A system call that fails once."""

    def __init__(self, real: Callable[..., Any], number: int) -> None:
        self.real, self.left, self.failed = real, number, False

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self.real(*args, **options)


def test_reading_a_folder_as_a_file_leaves_no_handle_open(folder: Path) -> None:
    opened_folder = Folder(str(folder))
    (folder / "a").mkdir(parents=True)
    before = count_handles()
    assert opened_folder.read_current("a") is None
    assert count_handles() == before


# Foreign files in .holdall --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["1" * 30, "9" * 19, "٣", "0", "-1", "77/"])
def test_a_foreign_file_beside_staged_files_is_left_alone(folder: Path, name: str) -> None:
    with opened(folder) as store:
        store.files().write("/a", "x")
        path = folder / ".holdall" / "new" / name
        path.mkdir() if name.endswith("/") else path.write_text("foreign")
    with opened(folder) as store:
        assert store.files().read("/a") == b"x"
        for step in range(8):
            store.files().write("/a", f"{step}")
        assert path.exists()


# Large files ---------------------------------------------------------------------------------------------------------


def test_a_very_large_file_is_read_in_pieces_and_blocks_nothing(folder: Path) -> None:
    [peak] = run(use_beside_a_video, folder=str(folder))
    assert peak < 100 << 20, "the video was read as a whole"


def use_beside_a_video(folder: str) -> None:
    size = 1_200_000_000
    video = Path(folder, "video.mp4")
    with open_filled(Path(folder)) as store:
        files = store.files()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        video.touch()
        os.truncate(video, size)
        assert [match.path for match in files.grep("fish")] == ["/a/b"]
        assert [match.path for match in files.grep("fis+h", regex=True, glob="*")] == ["/a/b"]
        assert {entry.key for entry in store.scan()} >= {"/a/b", "k"}
        assert {hit.key for hit in store.search()} >= {"/a/b", "k"}
        assert [hit.key for hit in store.search(query="tea")] == ["k"]
        assert files.stat("/video.mp4").size == size
        with files.open("/video.mp4", "rb") as file:
            file.seek(size - 10)
            assert file.read(100) == bytes(10)
            file.seek(0)
            assert len(file.read(1 << 20)) == 1 << 20
        files.move("/video.mp4", "/moved.mp4")
        assert [match.path for match in files.grep("fish")] == ["/a/b"]
        files.delete("/moved.mp4", recursive=True)
        report((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
