"""What is promised holds: where a step fails after the commit, after a kill, and beside people who edit meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import holdall
from folders import opened
from holdall import shapes
from holdall.engines import disk_catalogue, disk_watch, notices
from holdall.engines.commit import Submission
from holdall.engines.disk_catalogue import Catalogue
from holdall.engines.disk_watch import FolderWatch
from holdall.engines.turns import folder_lock
from holdall.errors import Conflict, Unavailable
from holdall.ops import ANY, KEEP, Append, Delete, File, Put, Refresh
from holdall.testing.contract.base import forked
from holdall.testing.embedder import embed
from threads import together

VOLUME = ("filesystem",)


def engine_of(store: holdall.Store) -> Any:
    return store._shared.engine


# After the commit ----------------------------------------------------------------------------------------------------


def test_an_error_after_the_commit_has_nothing_done_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        store.files().write("/log", "begun\n")
        group = [Submission([Append(VOLUME, "/log", f"{n}\n".encode())]) for n in range(3)]
        fstat = os.fstat

        def fail(handle: int) -> os.stat_result:
            found = fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                return found
            monkeypatch.setattr(os, "fstat", fstat)
            raise ValueError("a fault of ours")

        monkeypatch.setattr(os, "fstat", fail)  # the stamp of the file that was just appended to
        together([lambda: engine_of(store)._commit(group)])  # in the main thread, it might be a signal's
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


def failing(monkeypatch: pytest.MonkeyPatch, name: str, number: int, where: str) -> Callable[[], None]:
    """Have a system call fail for each path that ends so, until what this returns is called."""
    real = getattr(os, name)

    def call(*args: Any, **options: Any) -> Any:
        if any(str(arg).endswith(where) for arg in args):
            raise OSError(number, os.strerror(number))
        return real(*args, **options)

    monkeypatch.setattr(os, name, call)
    return lambda: monkeypatch.setattr(os, name, real)


def test_a_file_that_cannot_be_removed_does_not_come_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        store.files().write("/a/x", "data")
        store.files().write("/b", "b")
        mend = failing(monkeypatch, "unlink", errno.EPERM, "x")
        store.files().delete("/a/x")
        assert (folder / "a" / "x").exists()
        assert [info.path for info in store.files().walk()] == ["/b"]
        (folder / "c").write_text("made outside meanwhile")
        assert [info.path for info in store.files().walk()] == ["/b"]
    with opened(folder) as store:
        assert [info.path for info in store.files().walk()] == ["/b"]
        with pytest.raises(Unavailable, match="cannot be written"):
            store.files().write("/b", "after")
        mend()
        store.files().write("/b", "after")
        assert [info.path for info in store.files().walk()] == ["/b", "/c"]
        assert not (folder / "a").exists()


def test_a_folder_in_the_place_of_a_file_is_no_file_that_stays(folder: Path) -> None:
    with opened(folder) as store:
        store.files().write("/a/x", "data")
        store.files().write("/b/y", "data")
        mend = pytest.MonkeyPatch()
        back = failing(mend, "unlink", errno.EIO, "x")
        store.files().delete("/a/x")
        (folder / "a" / "x").replace(folder / "z")
        (folder / "a" / "x").mkdir()
        (folder / "a" / "x" / "in").write_text("it")
        back()
        assert [info.path for info in store.files().walk()] == ["/a/x/in", "/b/y", "/z"]


# Killed, and edited before the next one comes ------------------------------------------------------------------------


def killed_before(folder: Path, event: str, end: str, change: Callable[[holdall.Store], object]) -> None:
    """Change something in a child that is killed before a system call on a path that ends so."""

    def run() -> None:
        store = opened(folder)
        store.setup()

        def hook(called: str, args: tuple[Any, ...]) -> None:
            if called == event and any(str(arg).endswith(end) for arg in args):
                os._exit(9)

        sys.addaudithook(hook)
        change(store)

    assert os.waitstatus_to_exitcode(forked(run)) == 9


@pytest.mark.parametrize("existed", [True, False])
def test_a_file_that_was_edited_after_a_kill_keeps_the_edit(folder: Path, existed: bool) -> None:
    with opened(folder) as store:
        store.files().write("/a" if existed else "/b", "one")
    killed_before(folder, "os.rename", "a", lambda store: store.files().write("/a", "two"))
    (folder / "a").write_text("a person wrote this")
    with opened(folder) as store:
        assert store.files().read_text("/a") == (folder / "a").read_text() == "a person wrote this"
        assert store.files().stat("/a").size == 19
        assert [*(folder / ".holdall" / "new").iterdir()] == []


def test_an_item_that_was_edited_after_a_kill_keeps_the_edit(folder: Path) -> None:
    with opened(folder) as store:
        store.put(("n",), "k", {"step": 1})
    killed_before(folder, "os.rename", "@k.json", lambda store: store.put(("n",), "k", {"step": 2}))
    with opened(folder) as store:
        assert store.get(("n",), "k").value == {"step": 2}
    killed_before(folder, "os.rename", "@k.json", lambda store: store.put(("n",), "k", {"step": 3}))
    (folder / "@n" / "@k.json").write_text('{"edited": true}')
    with opened(folder) as store:
        assert store.get(("n",), "k").value == {"edited": True}


def test_a_write_after_an_edit_that_nobody_has_noticed_is_the_newer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices.sys, "platform", "plan9")
    monkeypatch.setattr(disk_watch, "_INTERVAL", 1000.0)
    with opened(folder) as store:
        before = store.files().write("/a", "one")
        (folder / "a").write_text("edited")
        store.files().write("/a", "two")
        assert store.files().read_text("/a") == (folder / "a").read_text() == "two"
        (folder / "a").write_text("edited again")
        with pytest.raises(Conflict):
            store.files().write("/a", "three", expect=before)


OLDER = """
    CREATE TEMP TABLE newer AS SELECT path, folded, ns, key, is_file, stamp, before FROM holdall_places
        UNION ALL SELECT path, path, NULL, NULL, 1, NULL, NULL FROM holdall_doomed;
    DROP TABLE holdall_places;
    DROP TABLE holdall_doomed;
    CREATE TABLE holdall_places (
        path TEXT NOT NULL, folded TEXT NOT NULL, ns TEXT, key TEXT, is_file INTEGER NOT NULL, stamp TEXT, before TEXT
    );
    CREATE INDEX holdall_doomed ON holdall_places (path) WHERE ns IS NULL;
    INSERT INTO holdall_places SELECT * FROM newer;
    INSERT OR IGNORE INTO holdall_state SELECT 'settled', max(version) FROM holdall_entries;
"""


def test_a_catalogue_from_when_there_was_one_table_for_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        store.files().write("/a", "one")
        store.files().write("/b", "one")
        version = store.files().stat("/a").version
        engine_of(store)._writer.execute(OLDER)
    with opened(folder) as store:
        assert store.files().stat("/a").version == version
        store.files().write("/a", "two")
        assert (folder / "a").read_text() == "two"
        store.files().write("/c", "two")
        mend = failing(monkeypatch, "unlink", errno.EPERM, "b")
        store.files().delete("/b")
        engine_of(store)._writer.execute(OLDER)
        engine_of(store)._writer.execute("ALTER TABLE holdall_places DROP COLUMN before")
    mend()
    with opened(folder) as store:
        assert [info.path for info in store.files().walk()] == ["/a", "/c"]
        assert not (folder / "b").exists()


def test_a_batch_that_was_edited_after_a_kill_keeps_the_edit(folder: Path) -> None:
    def change(store: holdall.Store) -> None:
        put = [Put(VOLUME, path, {"content": "two", "encoding": "utf-8"}) for path in ("/a", "/b", "/c")]
        store.execute([*put, Put(("n",), "k", {"step": 2}), Delete(VOLUME, "/d")])

    with opened(folder) as store:
        for path in ("/a", "/b", "/c", "/d"):
            store.files().write(path, "one")
    killed_before(folder, "os.rename", "b", change)
    assert [(folder / name).read_text() for name in "abc"] == ["two", "one", "one"]
    (folder / "c").write_text("a person wrote this")
    with opened(folder) as store:
        assert [(folder / name).read_text() for name in "abc"] == ["two", "two", "a person wrote this"]
        assert [store.files().read_text(f"/{name}") for name in "abc"] == ["two", "two", "a person wrote this"]
        assert (store.files().stat("/c").size, store.get(("n",), "k").value) == (19, {"step": 2})
        assert store.files().stat("/c").version > store.files().stat("/b").version
        assert not (folder / "d").exists()


def test_a_copy_that_was_half_made_is_not_taken_for_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source was edited meanwhile, so that nothing is left of what it was a copy of but that half."""
    with opened(folder) as store:
        store.files().write("/source", b"x" * 3_000_000)

    def copy() -> None:
        write, count = os.write, iter(range(10))

        def some(file: int, data: Any) -> int:
            if next(count) == 1:
                os._exit(9)
            return write(file, data)

        store = opened(folder)
        store.setup()
        monkeypatch.setattr(os, "write", some)
        store.files().copy("/source", "/copy")

    assert os.waitstatus_to_exitcode(forked(copy)) == 9
    assert [path.stat().st_size for path in (folder / ".holdall" / "new").iterdir()] == [1 << 20]
    (folder / "source").write_text("edited")
    with opened(folder) as store:
        for path in ("/source", "/copy"):
            assert store.files().read_text(path) == (folder / path[1:]).read_text() == "edited"
            assert store.files().stat(path).size == 6


# A write that cannot reach its place ---------------------------------------------------------------------------------


def test_what_waits_for_its_place_can_be_read_and_so_can_all_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(folder) as store:
        files = store.files()
        files.write("/a", "before, fish")
        files.write("/b", "other fish")
        mend = failing(monkeypatch, "rename", errno.ENOSPC, "a")
        assert files.write("/a", "after, fish").size == 11
        assert (folder / "a").read_text() == "before, fish"
        assert files.read_text("/a") == "after, fish"
        assert files.read_range("/a", 2, 5) == b"ter"
        assert files.read_text("/b") == "other fish"
        assert [match.text for match in files.grep("fish")] == ["after, fish", "other fish"]
        assert [info.path for info in files.ls("/")] == ["/a", "/b"]
        assert store.get(("n",), "k") is None
        (folder / "c").write_text("made outside")
        assert files.read_text("/a") == "after, fish"
        mend()
        assert [info.path for info in files.ls("/")] == ["/a", "/b", "/c"]
        assert (folder / "a").read_text() == files.read_text("/a") == "after, fish"


def test_a_folder_that_cannot_be_synced_is_told_and_synced_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder, durability="full") as store:
        files = store.files()
        files.write("/a/b", "before")
        fsync = os.fsync
        there = (folder / "a").stat().st_ino
        synced: list[int] = []

        def fail(handle: int) -> None:
            synced.append(os.fstat(handle).st_ino)
            if synced[-1] == there:
                raise OSError(errno.EIO, "Input/output error")
            fsync(handle)

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(Unavailable, match="power cut"):
            files.write("/a/b", "after")
        assert (folder / ".holdall" / "new").stat().st_ino in synced[: synced.index(there)]
        with pytest.raises(Unavailable):
            files.write("/c", "x")
        assert files.read_text("/a/b") == "after"
        there, synced[:] = 0, []
        files.write("/c", "x")
        assert (folder / "a").stat().st_ino in synced
        synced[:] = []
        files.write("/c", "y")
        assert (folder / "a").stat().st_ino not in synced


# Power cuts ----------------------------------------------------------------------------------------------------------


class Syncs:
    """What is synced: files, the folder where they are staged, the folder of the store, the catalogue."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        own = folder / ".holdall"
        places = {"staged": own / "new", "folder": folder, "catalogue": own / "catalogue.db-wal"}
        self._names = {place.stat().st_ino: name for name, place in places.items()}
        self._seen: list[str] = []
        self._fsync = os.fsync
        self.failing = ""
        monkeypatch.setattr(os, "fsync", self.note)

    def note(self, handle: int) -> None:
        name = self._names.get(os.fstat(handle).st_ino, "file")
        self._seen.append(name)
        if name == self.failing:
            raise OSError(errno.EIO, "Input/output error")
        self._fsync(handle)

    def take(self) -> list[str]:
        seen, self._seen = self._seen, []
        return seen


def test_what_a_power_cut_could_take_is_synced_before_anybody_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single new entry need not survive where it is staged: until it is at its place, nobody knows of it."""

    def file(path: str) -> Put:
        return Put(VOLUME, path, {"content": "x", "encoding": "utf-8"})

    with opened(folder, durability="full") as store:
        store.files().write("/old", "x")
        store.put(("n",), "k", {}, ttl=1000)
        syncs = Syncs(folder, monkeypatch)
        store.files().write("/new", "x")
        assert syncs.take() == ["file", "folder"]
        store.files().write("/old", "y")
        assert syncs.take() == ["file", "staged", "folder"]
        store.execute([file("/one"), file("/other")])
        assert syncs.take() == ["file", "file", "staged", "folder"]
        store.execute([file("/with"), Refresh(("n",), "k")])
        assert syncs.take() == ["file", "staged", "folder"]
        put = [Put(VOLUME, path, File(shapes.NATIVE, b"x"), KEEP, ANY) for path in ("/member", "/another")]
        group = [Submission([one]) for one in put]
        engine_of(store)._commit(group)
        assert syncs.take() == ["file", "file", "staged", "folder"]


@pytest.mark.parametrize("lost", ["staged", "catalogue", ""])
def test_a_new_file_that_cannot_reach_its_place_survives_where_it_is_staged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    with opened(folder, durability="full") as store:
        store.setup()
        syncs = Syncs(folder, monkeypatch)
        mend = failing(monkeypatch, "rename", errno.ENOSPC, "a")
        if lost:
            syncs.failing = lost
            with pytest.raises(Unavailable, match="power cut"):
                store.files().write("/a", "x")
        else:
            store.files().write("/a", "x")
        assert syncs.take() == ["file", "staged", "catalogue"]
        mend()
        syncs.failing = ""
        store.files().write("/b", "x")
        assert (folder / "a").read_text() == store.files().read_text("/a") == "x"


@pytest.mark.parametrize("kind", ["file", "item", "file again"])
def test_a_new_entry_whose_name_a_power_cut_has_taken_was_never_there(folder: Path, kind: str) -> None:
    """The catalogue is committed, and the file was not at its place yet: old or new, but whole."""

    def write(store: holdall.Store) -> None:
        if kind == "item":
            store.put(("n",), "a", {"text": "x"}, ttl=1000)
        else:
            store.files().write("/a", "x" * 100)

    with opened(folder) as store:
        store.files().write("/kept", "kept")
        if kind == "file again":
            store.files().write("/a", "before")
            store.files().delete("/a")
        before = [(entry.key, entry.value, entry.version) for entry in store.scan()]
        cursor = store.cursor()
    killed_before(folder, "os.rename", "@a.json" if kind == "item" else "a", write)
    [staged] = (folder / ".holdall" / "new").iterdir()
    staged.unlink()
    with opened(folder) as store:
        assert [(entry.key, entry.value, entry.version) for entry in store.scan()] == before
        with store.watch(since=cursor) as watch:
            assert [(change.kind, change.key[-1]) for change in islice(watch, 1)] == [("delete", "a")]
        assert store.files().grep("x") == []
        write(store)
        assert len([*store.scan()]) == len(before) + 1
        assert [*(folder / ".holdall" / "new").iterdir()] == []


def test_what_a_file_says_whole_survives_a_power_cut_that_the_catalogue_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = folder.parent / "saved"
    with opened(folder, durability="full") as store:
        store.files().write("/kept", "kept")
        kept = store.files().stat("/kept").version
        shutil.copytree(folder / ".holdall", saved)
        entry = store.put(("n",), "k", {"text": "x", "n": [1, 2.5, None]})
        written = store.files().write("/a", "y" * 100)
        cursor = store.cursor()
    for lost in (folder / ".holdall").glob("catalogue.db*"):
        lost.unlink()
    for found in ("catalogue.db", "catalogue.db-wal"):
        shutil.copy(saved / found, folder / ".holdall" / found)
    monkeypatch.setattr(disk_catalogue, "_boot", lambda: "after the power cut")
    with opened(folder, durability="full") as store:
        again = store.get(("n",), "k")
        assert again is not None
        assert again.value == entry.value
        assert again.version > max(entry.version, written.version or 0)
        assert store.files().read_text("/a") == "y" * 100
        assert store.files().stat("/kept").version == kept
        with store.watch(since=cursor) as watch:  # nobody has been told of these versions
            assert sorted(change.key for change in islice(watch, 2)) == ["/a", "k"]
        with pytest.raises(Conflict):
            store.put(("n",), "k", {}, expect=entry.version)
        with pytest.raises(Conflict):
            store.files().write("/a", "z", expect=written.version)


NEW: dict[str, tuple[bool, Callable[[holdall.Store], object]]] = {
    "an item": (True, lambda store: store.put(("n",), "new", {})),
    "a file": (True, lambda store: store.files().write("/new", "x")),
    "where one was": (True, lambda store: store.files().write("/gone", "x")),
    "one that is not there": (True, lambda store: store.put(("n",), "new", {}, expect=holdall.ABSENT)),
    "over another": (False, lambda store: store.put(("n",), "old", {"n": 2})),
    "that expires": (False, lambda store: store.put(("n",), "new", {}, ttl=1000)),
    "that a query does not find": (False, lambda store: store.put(("n",), "new", {}, index=False)),
    "a file of deepagents'": (
        False,
        lambda store: store.put(VOLUME, "/new", {"content": ["x"], "created_at": "2026", "modified_at": "2026"}),
    ),
    "two": (False, lambda store: store.execute([Put(("n",), key, {}) for key in ("a", "b")])),
    "a lease": (False, lambda store: store.lease("new", 10).release()),
    "an append": (False, lambda store: store.files().append("/new", "x")),
}


@pytest.mark.parametrize("what", NEW)
def test_only_what_a_file_says_whole_does_without_the_catalogue(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    by_file, write = NEW[what]
    with opened(folder, durability="full") as store:
        store.put(("n",), "old", {"n": 1})
        store.files().write("/gone", "x")
        store.files().delete("/gone")
        asked: list[bool] = []
        told = Catalogue.may_be_told_by_file
        monkeypatch.setattr(Catalogue, "may_be_told_by_file", lambda *args: asked.append(told(*args)) or asked[-1])
        write(store)
        assert set(asked) == {by_file}
        asked.clear()
        monkeypatch.setattr(disk_catalogue, "_boot", lambda: "")  # a system that does not say when it was started
    with opened(folder, durability="full") as store:
        store.put(("n",), "newer", {})
        assert asked == [False]
    monkeypatch.undo()
    with opened(folder) as store:  # where nothing is waited for, there is nothing to spare
        assert not engine_of(store)._catalogue.may_be_told_by_file([Put(("n",), "newest", "{}", None)])


# Locks and listeners -------------------------------------------------------------------------------------------------


def test_a_child_that_was_forked_under_a_lock_does_not_keep_it(folder: Path) -> None:
    folder.mkdir()
    ours, theirs = os.pipe()
    children: list[int] = []

    def fork() -> None:
        children.append(os.fork())
        if not children[-1]:
            os.close(theirs)
            os.read(ours, 1)  # until the parent has done all
            os._exit(0)

    with opened(folder, timeout=2.0) as store:
        with folder_lock(folder, 1.0):
            fork()
        with folder_lock(folder, 1.0):
            pass
        store.files().write("/a", "x")
        with engine_of(store)._lock(None, time.monotonic()):
            fork()
        assert store.files().write("/b", "y").size == 1
    os.close(theirs)
    os.close(ours)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]


def test_a_listener_outlives_any_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        store.files().write("/a", "x")
        with store.watch() as watch:
            (folder / "b").write_text("y")
            assert next(watch).key == "/b"
            failed = threading.Event()
            take = FolderWatch.take

            def fail(folder: FolderWatch) -> set[str]:
                monkeypatch.setattr(FolderWatch, "take", take)
                failed.set()
                raise RuntimeError("a fault of ours")

            monkeypatch.setattr(FolderWatch, "take", fail)
            (folder / "c").write_text("y")
            assert failed.wait(10)
            assert next(watch).key == "/c"


def test_a_log_that_grows_all_the_time_does_not_keep_others_from_being_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(folder) as store:
        store.files().write("/a", "tea")
        log = folder / "noisy.log"
        log.write_text("tea\n")
        file, fstat = log.stat().st_ino, os.fstat

        def grow(handle: int) -> os.stat_result:
            if fstat(handle).st_ino == file:  # between every look at it and the read that follows
                with log.open("a") as other:
                    other.write("more\n")
            return fstat(handle)

        monkeypatch.setattr(os, "fstat", grow)
        assert [match.path for match in store.files().grep("tea")] == ["/a", "/noisy.log"]
        assert len([*store.scan()]) == 2
        assert store.files().read_text("/noisy.log").startswith("tea\nmore\n")
        monkeypatch.setattr(os, "fstat", fstat)
        assert store.files().read_text("/noisy.log") == log.read_text()
        assert store.files().stat("/noisy.log").size == log.stat().st_size


def test_a_copied_folder_has_the_versions_and_vectors_of_its_items(folder: Path, tmp_path: Path) -> None:
    def vectors(store: holdall.Store) -> Any:
        return engine_of(store)._writer.execute("SELECT count(*) FROM holdall_vectors").fetchall()

    with opened(folder, embed=embed) as store:
        before = store.put(("n",), "k", {"text": "tea", "b": [1.5, None]})
        assert vectors(store) == [(1,)]
    shutil.copytree(folder, tmp_path / "copy")
    with opened(tmp_path / "copy", embed=embed) as store:
        assert store.get(("n",), "k") == before
        assert vectors(store) == [(1,)]
        (tmp_path / "copy" / "@n" / "@k.json").write_text('{"text": "milk"}')
        assert store.get(("n",), "k").version > before.version


def test_the_name_of_a_new_folder_is_synced_in_the_one_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        synced.append(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    with opened(tmp_path / "new" / "store") as store:
        store.setup()
        assert {tmp_path.stat().st_ino, (tmp_path / "new").stat().st_ino} <= {*synced}


def test_where_an_fsync_stops_half_way_to_the_disk_the_other_kind_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS."""
    control, calls = fcntl.fcntl, list[int]()

    def note(handle: int, command: int, *args: Any) -> Any:
        calls.append(command)
        return None if command == 51 else control(handle, command, *args)

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", note)
    with opened(folder, durability="full") as store:
        store.setup()
        calls.clear()
        store.files().write("/a", "x")
        assert calls == [51, 51]  # the file, its folder


# Several processes ---------------------------------------------------------------------------------------------------


def test_who_writes_again_sees_what_another_has_left_meanwhile(folder: Path) -> None:
    """It need not look for that as long as nobody else had the lock; here somebody had, and was killed."""
    with opened(folder) as store, opened(folder) as other:
        files = store.files()
        files.write("/a", "a")
        killed_before(folder, "os.rename", "b", lambda store: store.files().write("/b", "left"))
        assert not (folder / "b").exists()
        files.write("/c", "c")
        assert (folder / "b").read_text() == files.read_text("/b") == "left"
        killed_before(folder, "os.remove", "a", lambda store: store.files().move("/a", "/moved"))
        files.write("/d", "d")
        assert not (folder / "a").exists()
        assert [info.path for info in files.walk()] == ["/b", "/c", "/d", "/moved"]
        for number in range(3):
            files.write(f"/ours/{number}", f"{number}")
            other.files().write(f"/theirs/{number}", f"{number}")
            other.put(("n",), "k", {"number": number})
        assert {path.read_text() for path in (folder / "theirs").iterdir()} == {"0", "1", "2"}
        assert {store.files().read_text(info.path) for info in other.files().ls("/theirs")} == {"0", "1", "2"}


def test_a_full_disk_keeps_nobody_from_knowing_that_others_had_the_lock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(folder) as store:
        store.files().write("/a", "a")

        def fail(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as full:
            full.setattr(os, "pwrite", fail)
            killed_before(folder, "os.rename", "b", lambda store: store.files().write("/b", "b"))
        store.files().write("/c", "c")
        assert (folder / "b").read_text() == store.files().read_text("/b") == "b"


def test_an_entry_goes_where_another_was_whose_file_has_gone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices.sys, "platform", "plan9")
    monkeypatch.setattr(disk_watch, "_INTERVAL", 1000.0)
    with opened(folder) as store:
        store.put(("n",), "a", {"n": 1})
        (folder / "@n" / "@a.json").unlink()
        place = "UPDATE holdall_places SET path = '@n/@b.json', folded = '@n/@b.json'"
        engine_of(store)._writer.execute(place)  # as where a name was taken when the entry came
        store.put(("n",), "b", {"n": 2})
        assert (folder / "@n" / "@b.json").exists()
        assert [(entry.key, entry.value) for entry in store.scan()] == [("b", {"n": 2})]
