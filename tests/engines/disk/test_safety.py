"""The disk engine's guarantees hold when a step fails after the commit, after a kill, and during external edits."""

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
from holdall.engines.disk import folder_watch
from holdall.engines.disk.folder_watch import FolderWatch
from holdall.engines.sqlite import SqliteEngine, inotify
from holdall.engines.sqlite.group_commit import Submission
from holdall.engines.sqlite.write_turns import WriteTurns, folder_lock
from holdall.errors import Conflict, Unavailable
from holdall.model import file_values
from holdall.ops import ANY, KEEP, Append, Delete, File, Put, Refresh
from holdall.testing.contract.base import forked
from holdall.testing.embedder import embed
from support.disk_stores import opened
from support.threads import together

VOLUME = ("filesystem",)


def get_engine(store: holdall.Store) -> Any:
    return store._engine_handle.engine


# After the commit ----------------------------------------------------------------------------------------------------


def test_an_error_after_the_commit_repeats_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        store.files().write("/log", "begun\n")
        group = [Submission([Append(VOLUME, "/log", f"{n}\n".encode())]) for n in range(3)]
        fstat = os.fstat

        def fail(handle: int) -> os.stat_result:
            found = fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                return found
            monkeypatch.setattr(os, "fstat", fstat)
            raise ValueError("an error in the engine")

        monkeypatch.setattr(os, "fstat", fail)  # the stamp of the file that was just appended to
        together([lambda: get_engine(store)._commit(group)])  # a signal could interrupt the main thread
        assert os.fstat is fstat, "the make_fail call was never made"
        assert [(one.finished, one.error) for one in group] == [(True, None)] * 3
        assert store.files().read_text("/log") == (folder / "log").read_text() == "begun\n0\n1\n2\n"


def test_reads_wait_for_changes_that_have_left_the_queue(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their edits are not imported yet, and a read must not miss them."""
    with opened(folder) as store:
        store.files().write("/a", "a")
        taken, go_on = threading.Event(), threading.Event()
        take = FolderWatch.read_changes

        def slowly(watch: FolderWatch) -> set[str]:
            noticed = take(watch)
            if threading.current_thread() is writer:
                taken.set()
                go_on.wait(10)
            return noticed

        monkeypatch.setattr(FolderWatch, "read_changes", slowly)
        writer = threading.Thread(target=lambda: store.files().write("/b", "b"))
        writer.start()
        assert taken.wait(10)
        assert get_engine(store)._is_importing
        go_on.set()
        writer.join()


def make_fail(monkeypatch: pytest.MonkeyPatch, name: str, number: int, where: str) -> Callable[[], None]:
    """Make a system call fail for each path with this ending, until the returned function is called."""
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
        repair = make_fail(monkeypatch, "unlink", errno.EPERM, "x")
        store.files().delete("/a/x", recursive=True)
        assert (folder / "a" / "x").exists()
        assert [info.path for info in store.files().walk()] == ["/b"]
        (folder / "c").write_text("made outside meanwhile")
        assert [info.path for info in store.files().walk()] == ["/b"]
    with opened(folder) as store:
        assert [info.path for info in store.files().walk()] == ["/b"]
        with pytest.raises(Unavailable, match="only be deleted"):
            store.files().write("/b", "after")
        repair()
        store.files().write("/b", "after")
        assert [info.path for info in store.files().walk()] == ["/b", "/c"]
        assert not (folder / "a").exists()


def test_a_folder_that_replaces_a_file_deletes_its_entry(folder: Path) -> None:
    with opened(folder) as store:
        store.files().write("/a/x", "data")
        store.files().write("/b/y", "data")
        repair = pytest.MonkeyPatch()
        back = make_fail(repair, "unlink", errno.EIO, "x")
        store.files().delete("/a/x", recursive=True)
        (folder / "a" / "x").replace(folder / "z")
        (folder / "a" / "x").mkdir()
        (folder / "a" / "x" / "in").write_text("it")
        back()
        assert [info.path for info in store.files().walk()] == ["/a/x/in", "/b/y", "/z"]


# Edits after a kill --------------------------------------------------------------------------------------------------


def kill_before(folder: Path, event: str, end: str, change: Callable[[holdall.Store], object]) -> None:
    """Make a change in a child process that is killed before a system call on a path with this ending."""

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
def test_an_edit_of_a_file_after_a_kill_is_kept(folder: Path, existed: bool) -> None:
    with opened(folder) as store:
        store.files().write("/a" if existed else "/b", "one")
    kill_before(folder, "os.rename", "a", lambda store: store.files().write("/a", "two"))
    (folder / "a").write_text("edited by a human")
    with opened(folder) as store:
        assert store.files().read_text("/a") == (folder / "a").read_text() == "edited by a human"
        assert store.files().stat("/a").size == len("edited by a human")
        assert [*(folder / ".holdall" / "new").iterdir()] == []


def test_an_edit_of_an_item_after_a_kill_is_kept(folder: Path) -> None:
    with opened(folder) as store:
        store.put(("n",), "k", {"step": 1})
    kill_before(folder, "os.rename", "@k.json", lambda store: store.put(("n",), "k", {"step": 2}))
    with opened(folder) as store:
        assert store.get(("n",), "k").value == {"step": 2}
    kill_before(folder, "os.rename", "@k.json", lambda store: store.put(("n",), "k", {"step": 3}))
    (folder / "@n" / "@k.json").write_text('{"edited": true}')
    with opened(folder) as store:
        assert store.get(("n",), "k").value == {"edited": True}


def test_a_write_after_an_edit_that_was_not_imported_is_newer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify.sys, "platform", "plan9")
    monkeypatch.setattr(folder_watch, "_INTERVAL", 1000.0)
    with opened(folder) as store:
        before = store.files().write("/a", "one")
        (folder / "a").write_text("edited")
        store.files().write("/a", "two")
        assert store.files().read_text("/a") == (folder / "a").read_text() == "two"
        (folder / "a").write_text("edited again")
        with pytest.raises(Conflict):
            store.files().write("/a", "three", expect=before)


def test_an_edit_of_one_file_of_a_batch_after_a_kill_is_kept(folder: Path) -> None:
    def change(store: holdall.Store) -> None:
        put = [Put(VOLUME, path, {"content": "two", "encoding": "utf-8"}) for path in ("/a", "/b", "/c")]
        store.execute([*put, Put(("n",), "k", {"step": 2}), Delete(VOLUME, "/d")])

    with opened(folder) as store:
        for path in ("/a", "/b", "/c", "/d"):
            store.files().write(path, "one")
    kill_before(folder, "os.rename", "b", change)
    assert [(folder / name).read_text() for name in "abc"] == ["two", "one", "one"]
    (folder / "c").write_text("edited by a human")
    with opened(folder) as store:
        assert [(folder / name).read_text() for name in "abc"] == ["two", "two", "edited by a human"]
        assert [store.files().read_text(f"/{name}") for name in "abc"] == ["two", "two", "edited by a human"]
        assert (store.files().stat("/c").size, store.get(("n",), "k").value) == (17, {"step": 2})
        assert store.files().stat("/c").version > store.files().stat("/b").version
        assert not (folder / "d").exists()


def test_an_unfinished_copy_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source was edited meanwhile, so that the unfinished copy has all that is left of the old bytes."""
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


# A write that cannot reach its file ----------------------------------------------------------------------------------


def test_a_committed_file_that_is_still_staged_can_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        files = store.files()
        files.write("/a", "before, fish")
        files.write("/b", "other fish")
        repair = make_fail(monkeypatch, "rename", errno.ENOSPC, "a")
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
        repair()
        assert [info.path for info in files.ls("/")] == ["/a", "/b", "/c"]
        assert (folder / "a").read_text() == files.read_text("/a") == "after, fish"


def test_a_delete_that_fails_removes_no_committed_staged_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        files = store.files()
        files.write("/a", "before")
        files.write("/b", "b")
        repair = make_fail(monkeypatch, "rename", errno.ENOSPC, "a")
        files.write("/a", "after")
        files.read("/b")
        transact, failures = SqliteEngine._transact, [Unavailable("full"), Unavailable("full")]

        def fail(*args: Any) -> None:
            if failures:
                raise failures.pop()
            transact(*args)

        monkeypatch.setattr(SqliteEngine, "_transact", fail)
        with pytest.raises(Unavailable, match="full"):
            files.delete("/b", recursive=True)
        assert files.read_text("/a") == "after"
        assert files.delete("/b", recursive=True) == 1
        assert failures == []
        assert not (folder / "b").exists()
        assert (folder / "a").read_text() == "before"
        repair()
        files.write("/c", "c")
        assert files.read_text("/a") == (folder / "a").read_text() == "after"
        assert [info.path for info in files.walk()] == ["/a", "/c"]


def test_a_failed_fsync_of_a_folder_is_reported_and_repeated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Records each fsync: of a file, the staging folder, the folder of the store, or the catalogue."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        own = folder / ".holdall"
        places = {"staged": own / "new", "folder": folder, "catalogue": own / "catalogue.db-wal"}
        self._names = {place.stat().st_ino: name for name, place in places.items()}
        self._seen: list[str] = []
        self._fsync = os.fsync
        self.make_fail = ""
        monkeypatch.setattr(os, "fsync", self.note)

    def note(self, handle: int) -> None:
        name = self._names.get(os.fstat(handle).st_ino, "file")
        self._seen.append(name)
        if name == self.make_fail:
            raise OSError(errno.EIO, "Input/output error")
        self._fsync(handle)

    def take(self) -> list[str]:
        seen, self._seen = self._seen, []
        return seen


def test_a_write_returns_after_all_that_it_needs_is_synced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For one new entry the staging folder needs no fsync: the write returns after the file is published."""

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
        put = [Put(VOLUME, path, File(file_values.NATIVE, b"x"), KEEP, ANY) for path in ("/member", "/another")]
        group = [Submission([one]) for one in put]
        get_engine(store)._commit(group)
        assert syncs.take() == ["file", "file", "staged", "folder"]


@pytest.mark.parametrize("lost", ["staged", ""])
def test_a_new_file_that_cannot_be_published_is_synced_where_it_is_staged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    with opened(folder, durability="full") as store:
        store.setup()
        syncs = Syncs(folder, monkeypatch)
        repair = make_fail(monkeypatch, "rename", errno.ENOSPC, "a")
        if lost:
            syncs.make_fail = lost
            with pytest.raises(Unavailable, match="power cut"):
                store.files().write("/a", "x")
        else:
            store.files().write("/a", "x")
        assert syncs.take() == ["file", "staged"]
        repair()
        syncs.make_fail = ""
        store.files().write("/b", "x")
        assert (folder / "a").read_text() == store.files().read_text("/a") == "x"


@pytest.mark.parametrize("kind", ["file", "item", "file again"])
def test_a_new_entry_whose_staged_file_is_lost_in_a_power_cut_was_never_there(folder: Path, kind: str) -> None:
    """The catalogue was committed, but the file was not published yet: the store is as before the write."""

    def write(store: holdall.Store) -> None:
        if kind == "item":
            store.put(("n",), "a", {"text": "x"}, ttl=1000)
        else:
            store.files().write("/a", "x" * 100)

    with opened(folder) as store:
        store.files().write("/kept", "kept")
        if kind == "file again":
            store.files().write("/a", "before")
            store.files().delete("/a", recursive=True)
        before = [(entry.key, entry.value, entry.version) for entry in store.scan()]
        cursor = store.cursor()
    kill_before(folder, "os.rename", "@a.json" if kind == "item" else "a", write)
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


@pytest.mark.parametrize("kind", ["item", "file"])
def test_the_version_that_a_write_returned_is_synced(folder: Path, kind: str) -> None:
    """Only the catalogue has it. If it were lost, another entry could get the same version."""
    with opened(folder, durability="full") as store:
        store.setup()
        writer = get_engine(store)._writer
        levels: list[int] = []
        writer.set_commit_hook(lambda: bool(levels.append(writer.pragma("synchronous"))))  # False: commit
        store.put(("n",), "k", {}) if kind == "item" else store.files().write("/a", "y")
        writer.set_commit_hook(None)
    assert 2 in levels, "committed without an fsync"


def test_files_survive_when_a_power_cut_takes_the_last_commits_of_the_catalogue(folder: Path) -> None:
    """As it may with relaxed durability: the files are imported as external edits."""
    saved = folder.parent / "saved"
    with opened(folder, durability="relaxed") as store:
        store.files().write("/kept", "kept")
        kept = store.files().stat("/kept").version
        shutil.copytree(folder / ".holdall", saved)
        entry = store.put(("n",), "k", {"text": "x", "n": [1, 2.5, None]})
        store.files().write("/a", "y" * 100)
    for lost in (folder / ".holdall").glob("catalogue.db*"):
        lost.unlink()
    for found in ("catalogue.db", "catalogue.db-wal"):
        shutil.copy(saved / found, folder / ".holdall" / found)
    with opened(folder, durability="relaxed") as store:
        again = store.get(("n",), "k")
        assert again is not None
        assert again.value == entry.value
        assert store.files().read_text("/a") == "y" * 100
        assert store.files().stat("/kept").version == kept


# Locks and listeners -------------------------------------------------------------------------------------------------


def test_a_child_forked_while_the_lock_is_held_does_not_keep_it(folder: Path) -> None:
    folder.mkdir()
    ours, theirs = os.pipe()
    children: list[int] = []

    def fork() -> None:
        children.append(os.fork())
        if not children[-1]:
            os.close(theirs)
            os.read(ours, 1)  # until the parent is done
            os._exit(0)

    with opened(folder, timeout=2.0) as store:
        with folder_lock(folder, 1.0):
            fork()
        with folder_lock(folder, 1.0):
            pass
        store.files().write("/a", "x")
        with get_engine(store)._lock(None, time.monotonic()):
            fork()
        assert store.files().write("/b", "y").size == 1
    os.close(theirs)
    os.close(ours)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]


def test_a_listener_continues_after_any_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        store.files().write("/a", "x")
        with store.watch() as watch:
            (folder / "b").write_text("y")
            assert next(watch).key == "/b"
            failed = threading.Event()
            take = FolderWatch.read_changes

            def fail(folder: FolderWatch) -> set[str]:
                monkeypatch.setattr(FolderWatch, "read_changes", take)
                failed.set()
                raise RuntimeError("an error in the engine")

            monkeypatch.setattr(FolderWatch, "read_changes", fail)
            (folder / "c").write_text("y")
            assert failed.wait(10)
            assert next(watch).key == "/c"


def test_a_file_that_grows_all_the_time_can_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        store.files().write("/a", "tea")
        log = folder / "noisy.log"
        log.write_text("tea\n")
        file, fstat = log.stat().st_ino, os.fstat

        def grow(handle: int) -> os.stat_result:
            if fstat(handle).st_ino == file:  # between each check of its stamp and the read
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


def test_entries_keep_versions_and_vectors_in_a_copied_folder(folder: Path, tmp_path: Path) -> None:
    def vectors(store: holdall.Store) -> Any:
        return get_engine(store)._writer.execute("SELECT count(*) FROM holdall_vectors").fetchall()

    with opened(folder, embed=embed) as store:
        item = store.put(("n",), "k", {"text": "tea", "b": [1.5, None]})
        file = store.put(VOLUME, "/a", {"content": "tea", "encoding": "utf-8"})
        edited = store.put(VOLUME, "/b", {"content": "tea", "encoding": "utf-8"})
        assert vectors(store) == [(3,)]
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "b").write_text("jam")
    with opened(copy, embed=embed) as store:
        assert store.get(("n",), "k") == item
        assert store.get(VOLUME, "/a") == file
        assert vectors(store) == [(2,)]
        assert store.files().stat("/b").version > edited.version
        (copy / "@n" / "@k.json").write_text('{"text": "milk"}')
        assert store.get(("n",), "k").version > item.version
        state = (copy / "a").stat()
        (copy / "new").write_text("jam")
        os.utime(copy / "new", ns=(state.st_atime_ns, state.st_mtime_ns))
        (copy / "new").rename(copy / "a")  # another file: the copy has been imported, so inodes count again
        assert store.files().stat("/a").version > file.version
        assert store.files().read("/a") == b"jam"


def test_a_restored_folder_whose_catalogue_has_the_inode_of_the_original_is_a_copy(folder: Path) -> None:
    """A file system may give a new file the inode of one that was just deleted."""
    with opened(folder) as store:
        file = store.files().write("/a", "tea")
        item = store.put(("n",), "k", {"text": "tea"})
    for path in (folder / "a", folder / "@n" / "@k.json"):
        copy = folder / "copy"
        shutil.copy2(path, copy)
        assert copy.stat().st_ino != path.stat().st_ino
        copy.replace(path)
    time.sleep(0.01)  # a clock tick: a restore is later than the original
    ignore = folder / ".holdall" / ".gitignore"
    state = ignore.stat()
    ignore.write_bytes(ignore.read_bytes())
    os.utime(ignore, ns=(state.st_atime_ns, state.st_mtime_ns))
    with opened(folder) as store:
        assert store.files().stat("/a").version == file.version
        assert store.get(("n",), "k") == item
        state = (folder / "a").stat()
        (folder / "new").write_text("jam")
        os.utime(folder / "new", ns=(state.st_atime_ns, state.st_mtime_ns))
        (folder / "new").replace(folder / "a")
        assert store.files().read_text("/a") == "jam"


def test_an_unchanged_folder_is_no_copy_when_it_is_opened_again(folder: Path) -> None:
    """Then another inode means another file, even with the same time and size."""
    with opened(folder) as store:
        store.files().write("/a", "tea")
    for name in ("lock", ".gitignore"):
        (folder / ".holdall" / name).chmod(0o600)  # as a recursive chmod does: this looks like a copy, once
    for content in ("jam", "ham"):
        with opened(folder) as store:
            store.files().ls("/")
        state = (folder / "a").stat()
        (folder / "new").write_text(content)
        os.utime(folder / "new", ns=(state.st_atime_ns, state.st_mtime_ns))
        (folder / "new").replace(folder / "a")
        with opened(folder) as store:
            assert store.files().read_text("/a") == content


def test_the_name_of_a_new_folder_is_synced_in_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        synced.append(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    with opened(tmp_path / "new" / "store") as store:
        store.setup()
        assert {tmp_path.stat().st_ino, (tmp_path / "new").stat().st_ino} <= {*synced}


def test_full_fsync_is_used_where_it_exists(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS, a plain fsync does not reach the disk."""
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


def test_a_write_completes_what_a_killed_process_has_left(folder: Path) -> None:
    """A process skips that check only if no other process has held the lock since."""
    with opened(folder) as store, opened(folder) as other:
        files = store.files()
        files.write("/a", "a")
        kill_before(folder, "os.rename", "b", lambda store: store.files().write("/b", "left"))
        assert not (folder / "b").exists()
        files.write("/c", "c")
        assert (folder / "b").read_text() == files.read_text("/b") == "left"
        kill_before(folder, "os.remove", "a", lambda store: store.files().move("/a", "/moved"))
        files.write("/d", "d")
        assert not (folder / "a").exists()
        assert [info.path for info in files.walk()] == ["/b", "/c", "/d", "/moved"]
        for number in range(3):
            files.write(f"/ours/{number}", f"{number}")
            other.files().write(f"/theirs/{number}", f"{number}")
            other.put(("n",), "k", {"number": number})
        assert {path.read_text() for path in (folder / "theirs").iterdir()} == {"0", "1", "2"}
        assert {store.files().read_text(info.path) for info in other.files().ls("/theirs")} == {"0", "1", "2"}


def test_a_process_that_holds_the_lock_does_not_wait_for_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for that lock."""
    stood_back: list[bool] = []

    def note(turns: WriteTurns, version: Callable[[], object]) -> None:
        with (folder / ".holdall" / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stood_back.append(False)
            else:
                stood_back.append(True)

    with opened(folder) as store:
        store.setup()
        get_engine(store)._writer.turns.next_check = 0.0
        monkeypatch.setattr(WriteTurns, "yield_to_waiters", note)
        store.files().write("/a", "a")
        assert stood_back == [True]


def test_a_change_of_the_lock_owner_is_noticed_on_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        store.files().write("/a", "a")

        def fail(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as full:
            full.setattr(os, "pwrite", fail)
            kill_before(folder, "os.rename", "b", lambda store: store.files().write("/b", "b"))
        store.files().write("/c", "c")
        assert (folder / "b").read_text() == store.files().read_text("/b") == "b"


def test_a_new_entry_can_use_the_path_of_a_removed_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify.sys, "platform", "plan9")
    monkeypatch.setattr(folder_watch, "_INTERVAL", 1000.0)
    with opened(folder) as store:
        store.put(("n",), "a", {"n": 1})
        (folder / "@n" / "@a.json").unlink()
        place = "UPDATE holdall_places SET path = '@n/@b.json', folded = '@n/@b.json'"
        get_engine(store)._writer.execute(place)  # as if the usual path was taken when the entry was put
        store.put(("n",), "b", {"n": 2})
        assert (folder / "@n" / "@b.json").exists()
        assert [(entry.key, entry.value) for entry in store.scan()] == [("b", {"n": 2})]
