"""What is promised holds: where a step fails after the commit, after a kill, and beside people who edit meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.engines.commit import Submission
from holdall.engines.disk_watch import FolderWatch
from holdall.ops import Append

VOLUME = ("filesystem",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def opened(folder: Path, **options: Any) -> holdall.Store:
    return holdall.open(f"disk:///{folder}", **{"durability": "relaxed", **options})


def engine_of(store: holdall.Store) -> Any:
    return store._shared.engine


# After the commit ----------------------------------------------------------------------------------------------------


def test_an_error_after_the_commit_has_nothing_done_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        store.files().write("/log", "begun\n")
        group = [Submission([Append(VOLUME, "/log", f"{n}\n".encode())]) for n in range(3)]
        fstat = os.fstat

        def fail(handle: int) -> os.stat_result:
            monkeypatch.setattr(os, "fstat", fstat)
            raise ValueError("a fault of ours")

        monkeypatch.setattr(os, "fstat", fail)  # the stamp of the file that was just appended to
        engine_of(store)._commit(group)
        assert os.fstat is fstat, "the step that was to fail was not taken"
        assert [(one.finished, one.error) for one in group] == [(True, None)] * 3
        assert store.files().read_text("/log") == (folder / "log").read_text() == "begun\n0\n1\n2\n"


def test_what_is_noticed_between_two_steps_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edits that have left the queue and are not looked at yet: who reads then must not read without them."""
    with opened(folder) as store:
        store.files().write("/a", "a")
        taken, go_on = threading.Event(), threading.Event()
        take = FolderWatch.take

        def slowly(watch: FolderWatch) -> set[str]:
            noticed = take(watch)
            if threading.current_thread() is writer:
                taken.set()
                go_on.wait(10)
            return noticed

        monkeypatch.setattr(FolderWatch, "take", slowly)
        writer = threading.Thread(target=lambda: store.files().write("/b", "b"))
        writer.start()
        assert taken.wait(10)
        assert engine_of(store)._is_looking
        go_on.set()
        writer.join()
