"""External edits of a disk store's files: the next call sees them, and they appear in the feed."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.engines.disk import folder_watch
from holdall.engines.disk.catalogue import Catalogue
from holdall.engines.sqlite import inotify
from holdall.errors import Conflict
from holdall.ops import ABSENT, Change
from support.disk_stores import opened

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]


needs_inotify = pytest.mark.parametrize("store", ["inotify"], indirect=True)


@pytest.fixture(params=["inotify", "no inotify"])
def store(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[holdall.Store]:
    if request.param == "no inotify":  # not on Linux, or more folders than inotify watches
        monkeypatch.setattr(inotify.sys, "platform", "plan9")
        monkeypatch.setattr(folder_watch, "_INTERVAL", 0.0)
        monkeypatch.setattr(folder_watch, "_PAUSE_FACTOR", 0)
    with opened(folder) as store:
        yield store


def paths(store: holdall.Store) -> list[str]:
    return [info.path for info in store.files().walk()]


# The next call sees edits ---------------------------------------------------------------------------------------------


def test_a_file_that_another_program_creates_is_a_file(store: holdall.Store, folder: Path) -> None:
    files = store.files()
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "new.md").write_bytes(b"made\r\noutside\r\n")
    assert [info.path for info in files.ls("/")] == ["/deep/"]
    assert files.read("/deep/er/new.md") == b"made\r\noutside\r\n"
    assert files.stat("/deep/er/new.md").size == 15
    assert [match.path for match in files.grep("outside")] == ["/deep/er/new.md"]
    files.append("/deep/er/new.md", "and in")
    assert (folder / "deep" / "er" / "new.md").read_bytes() == b"made\r\noutside\r\nand in"


def test_an_edit_in_place_is_a_new_version(store: holdall.Store, folder: Path) -> None:
    files = store.files()
    before = files.write("/a.md", "one fish")
    (folder / "a.md").write_text("two fish")
    after = files.stat("/a.md")
    assert after.version > before.version
    assert (after.created_at, after.size) == (before.created_at, 8)
    assert files.read("/a.md") == b"two fish"
    assert (files.grep("one"), [match.text for match in files.grep("two")]) == ([], ["two fish"])
    with pytest.raises(Conflict):
        files.write("/a.md", "mine", expect=before)
    assert (folder / "a.md").read_text() == "two fish"


@pytest.mark.timed
@needs_inotify
def test_a_second_edit_in_the_same_tick_of_the_clock_is_seen(store: holdall.Store, folder: Path) -> None:
    """Some file systems have clocks that tick every few milliseconds; git calls such files racy."""
    files = store.files()
    (folder / "a.md").write_text("one")
    first, before = files.stat("/a.md"), (folder / "a.md").stat()
    (folder / "a.md").write_text("two")
    os.utime(folder / "a.md", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert files.stat("/a.md").version > first.version
    assert [match.text for match in files.grep("two")] == ["two"]
    assert files.stat("/a.md") == files.stat("/a.md")


def test_a_save_by_vim_is_one_edit(store: holdall.Store, folder: Path) -> None:
    files = store.files()
    before = files.write("/notes/todo.md", "milk\n")
    save_like_vim(folder / "notes" / "todo.md", "milk\neggs\n")
    assert paths(store) == ["/notes/todo.md"]
    assert files.read_text("/notes/todo.md") == "milk\neggs\n"
    assert files.stat("/notes/todo.md").version > before.version
    assert [match.line for match in files.grep("eggs")] == [2]


def save_like_vim(path: Path, text: str) -> None:
    """Save with a swap file, a test whether the folder is writable, and the old file moved away during the write."""
    swap, probe, backup = path.with_name(f".{path.name}.swp"), path.with_name("4913"), path.with_name(path.name + "~")
    swap.write_bytes(b"b0VIM")
    probe.touch()
    probe.unlink()
    path.rename(backup)
    path.write_text(text)
    backup.unlink()
    swap.unlink()


def test_files_and_folders_that_another_program_moves(store: holdall.Store, folder: Path) -> None:
    files = store.files()
    for name in ("/a/one.md", "/a/b/two.md", "/c.md"):
        files.write(name, name)
    (folder / "a").rename(folder / "z")
    (folder / "c.md").rename(folder / "z" / "d.md")
    assert paths(store) == ["/z/b/two.md", "/z/d.md", "/z/one.md"]
    assert files.read("/z/b/two.md") == b"/a/b/two.md"
    (folder / "z" / "b" / "two.md").write_text("edited where it is now")
    (folder / "a").mkdir()
    (folder / "a" / "new.md").write_text("in the old place")
    assert files.read_text("/z/b/two.md") == "edited where it is now"
    assert files.read_text("/a/new.md") == "in the old place"


def test_rm_r_by_another_program(store: holdall.Store, folder: Path) -> None:
    files = store.files()
    for number in range(20):
        files.write(f"/a/{number % 3}/{number}.md", "x")
    kept = files.write("/kept.md", "x")
    store.put(("users", "ada"), "likes", {"tea": True})
    subprocess.run(["rm", "-r", folder / "a", folder / "@users"], check=True)
    assert [*files.walk()] == [kept]
    assert files.grep("x")[0].path == "/kept.md"
    assert store.get(("users", "ada"), "likes") is None
    assert files.write("/a/1/1.md", "back", expect=ABSENT).version > kept.version


def run_git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True)


def test_git_checkout(store: holdall.Store, folder: Path) -> None:
    files = store.files()
    git = partial(run_git, folder)
    git("init")
    files.write("/src/a.py", "print('one')\n")
    files.write("/src/only_here.py", "")
    store.put(("memories",), "first", {"text": "hello"})
    git("add", ".")
    git("commit", "-m", "one")
    assert b"catalogue" not in git("ls-files").stdout
    git("checkout", "-b", "other")
    git("rm", "src/only_here.py")
    files.write("/src/a.py", "print('two')\n")
    files.write("/src/b.py", "")
    git("add", ".")
    git("commit", "-m", "two")
    git("checkout", "main")
    assert paths(store) == ["/src/a.py", "/src/only_here.py"]
    assert [match.text for match in files.grep("print")] == ["print('one')"]
    git("checkout", "other")
    assert paths(store) == ["/src/a.py", "/src/b.py"]
    assert [match.text for match in files.grep("print")] == ["print('two')"]
    assert store.get(("memories",), "first").value == {"text": "hello"}


def test_an_item_is_a_json_file(store: holdall.Store, folder: Path) -> None:
    store.put(("users", "ada"), "likes", {"tea": True, "n": 10**30, "é": [1.0, None]})
    file = folder / "@users" / "@ada" / "@likes.json"
    assert json.loads(file.read_text()) == {"tea": True, "n": 10**30, "é": [1.0, None]}
    file.write_text('{"tea": false,\n "n": 1}')
    assert store.get(("users", "ada"), "likes").value == {"tea": False, "n": 1}
    assert [hit.key for hit in store.search(("users",), filter={"tea": False})] == ["likes"]
    (folder / "@users" / "@ada" / "@new.json").write_text('{"text": "made outside"}')
    assert [hit.key for hit in store.search((), query="outside")] == ["new"]


def test_an_item_stays_as_it_was_while_its_file_is_no_json_object(
    store: holdall.Store, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = store.put(("users",), "ada", {"n": 1})
    too_deep = '{"n": ' + "[" * 100_000 + "]" * 100_000 + "}"
    for broken in ('{"n": ', "[1]", '{"n": NaN}', "\udcff", too_deep):
        (folder / "@users" / "@ada.json").write_text(broken, errors="surrogateescape")
        with caplog.at_level(logging.WARNING, "holdall"):
            assert store.get(("users",), "ada") == before
        assert "@ada.json' does not hold a JSON object" in caplog.text
        caplog.clear()
    (folder / "@users" / "@ada.json").write_text('{"n": 2}')
    assert store.get(("users",), "ada").value == {"n": 2}


def test_a_lifetime_survives_an_edit(store: holdall.Store, folder: Path) -> None:
    before = store.put(("users",), "ada", {"n": 1}, ttl=1000)
    (folder / "@users" / "@ada.json").write_text('{"n": 2}')
    after = store.get(("users",), "ada")
    assert (after.value, after.expires_at, after.created_at) == ({"n": 2}, before.expires_at, before.created_at)


def test_edits_made_while_the_store_was_closed_are_found_when_it_opens(folder: Path) -> None:
    with holdall.open(f"disk:///{folder}") as store:
        versions = [store.files().write(f"/{name}.md", name).version for name in "abc"]
        cursor = store.cursor()
    (folder / "a.md").write_text("edited")
    (folder / "b.md").unlink()
    (folder / "d.md").write_text("new")
    with holdall.open(f"disk:///{folder}") as store:
        assert paths(store) == ["/a.md", "/c.md", "/d.md"]
        assert [store.files().read_text(path) for path in paths(store)] == ["edited", "c", "new"]
        assert store.files().stat("/c.md").version == versions[2]
        assert sorted(read_feed(store, cursor, 3)) == [("delete", "/b.md"), ("put", "/a.md"), ("put", "/d.md")]


def read_feed(store: holdall.Store, since: str | None, count: int) -> list[tuple[str, str]]:
    with store.watch(since=since) as watch:
        return [(change.kind, change.key) for change in islice(watch, count)]


@needs_inotify
def test_own_writes_and_excluded_folders_cause_no_comparison(
    store: holdall.Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = store.files()
    files.write("/a/b/c.md", "x")
    files.write("/d/e.md", "x")
    (folder / "a").rename(tmp_path / "elsewhere")
    assert paths(store) == ["/d/e.md"]
    looks: list[object] = []
    engine: Any = store._engine_handle.engine
    monkeypatch.setattr(engine, "_edits", Spy(engine._edits, "find", looks))
    files.write("/d/e.md", "y")
    files.append("/d/e.md", "z")
    files.move("/d/e.md", "/d/f.md")
    (tmp_path / "elsewhere" / "b" / "c.md").write_text("nobody's business")
    assert files.read("/d/f.md") == b"yz"
    assert looks == []
    (folder / "d" / "f.md").write_text("edited")
    assert files.read("/d/f.md") == b"edited"
    assert len(looks) == 1


class Spy:
    """A proxy that records the calls of one method."""

    def __init__(self, spied: Any, name: str, calls: list[object]) -> None:
        self._spied, self._name, self._calls = spied, name, calls

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            self._calls.append(name)
        return getattr(self._spied, name)


@pytest.mark.parametrize("change", ["append", "move", "copy", "write"])
@pytest.mark.parametrize("edit", ["removed", "replaced", "cut off", "longer"])
def test_an_edit_between_commit_and_file_changes_leaves_the_store_consistent(
    store: holdall.Store, folder: Path, monkeypatch: pytest.MonkeyPatch, change: str, edit: str
) -> None:
    """This is the last moment in which an edit can come first: then the files in the folder count."""
    engine: Any = store._engine_handle.engine
    files = store.files()
    files.write("/a", "before")
    target = folder / "a"
    edited_to = {"replaced": b"new", "cut off": b"b", "longer": b"before and more"}.get(edit)

    def edit_just_now() -> None:
        if edit in ("removed", "replaced"):
            target.unlink()
        if edited_to is not None:
            target.write_bytes(edited_to)

    for name in ("apply_pending", "publish_staged"):
        step = getattr(engine._catalogue, name)
        monkeypatch.setattr(
            engine._catalogue, name, lambda *args, step=step: (monkeypatch.undo(), edit_just_now(), step(*args))[-1]
        )
    {
        "append": lambda: files.append("/a", ", after"),
        "move": lambda: files.move("/a", "/b"),
        "copy": lambda: files.copy("/a", "/b"),
        "write": lambda: files.write("/a", "after"),
    }[change]()
    plain = {f"/{path.name}": path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert {info.path: files.read(info.path) for info in files.walk()} == plain
    assert {info.path: info.size for info in files.walk()} == {path: len(data) for path, data in plain.items()}
    if change == "write":  # an edit after the commit is newer, and stays
        assert plain == {"/a": edited_to or b"after"}
    if change == "append":
        assert plain["/a"].endswith(b", after")
    files.append("/a", "!")
    assert files.read("/a") == target.read_bytes()
    assert [*(folder / ".holdall" / "new").iterdir()] == []


@pytest.mark.parametrize("edit", ["removed", "moved", "replaced", "a link"])
@pytest.mark.parametrize("path", ["/d/old", "/d/new"])
def test_a_folder_removed_between_commit_and_file_changes_leaves_the_store_consistent(
    store: holdall.Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str, path: str
) -> None:
    """The folder is open by then: the file is written to it where it is now, or to a new folder if it is gone."""
    engine: Any = store._engine_handle.engine
    files = store.files()
    files.write("/d/old", "before")
    publish = engine._catalogue.publish_staged
    (tmp_path / "outside").mkdir()

    def edited() -> Any:
        monkeypatch.undo()
        (folder / "d").rename(folder / "e")
        if edit == "removed":
            shutil.rmtree(folder / "e")
        elif edit == "replaced":
            (folder / "d").mkdir()
        elif edit == "a link":
            (folder / "d").symlink_to(tmp_path / "outside")
        return publish()

    monkeypatch.setattr(engine._catalogue, "publish_staged", edited)
    files.write(path, "after")
    plain = {f"/{file.relative_to(folder)}": file.read_bytes() for file in folder.glob("[de]/*")}
    assert {info.path: files.read(info.path) for info in files.walk()} == plain
    assert plain[path if edit == "removed" else path.replace("d", "e", 1)] == b"after"
    assert [*(tmp_path / "outside").iterdir()] == []
    assert [*(folder / ".holdall" / "new").iterdir()] == []
    files.write("/f", "and on")
    assert (folder / "f").read_text() == "and on"


# The feed -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def changes(store: holdall.Store) -> Iterator[Callable[[Callable[[Change], bool]], list[Change]]]:
    """A function that returns the changes of the feed, up to an awaited one."""
    came: list[Change] = []
    news = threading.Condition()
    watch = store.watch()

    def listen() -> None:
        for change in watch:
            with news:
                came.append(change)
                news.notify_all()

    thread = threading.Thread(target=listen)
    thread.start()

    def until(awaited: Callable[[Change], bool]) -> list[Change]:
        with news:
            assert news.wait_for(lambda: any(map(awaited, came)), timeout=30), came
            return came[:]

    store.put(("begun",), "k", {})
    until(lambda change: change.key == "k")
    yield until
    watch.close()
    thread.join()


def test_edits_appear_in_the_feed(store: holdall.Store, folder: Path, changes: Any) -> None:
    (folder / "notes").mkdir()
    (folder / "notes" / "a.md").write_text("new")
    changes(is_("put", "/notes/a.md"))
    save_like_vim(folder / "notes" / "a.md", "edited")
    (folder / "last").touch()
    seen = changes(is_("put", "/last"))
    assert [change.kind for change in seen if change.key == "/notes/a.md"][-1] == "put"
    (folder / "notes").rename(folder / "moved")
    changes(is_("delete", "/notes/a.md"))
    changes(is_("put", "/moved/a.md"))
    (folder / "moved" / "a.md").write_text("once more")
    changes(lambda change: change.key == "/moved/a.md" and change.version > seen[-1].version + 1)
    subprocess.run(["rm", "-r", folder / "moved"], check=True)
    changes(is_("delete", "/moved/a.md"))


def is_(kind: str, key: str) -> Callable[[Change], bool]:
    return lambda change: (change.kind, change.key) == (kind, key)


def test_own_writes_appear_in_the_feed_once(store: holdall.Store, changes: Any) -> None:
    files = store.files()
    for number in range(10):
        files.write(f"/a/{number}.md", "x")
        files.append(f"/a/{number}.md", "y")
    files.move("/a", "/b")
    files.write("/last", "x")
    seen = changes(is_("put", "/last"))
    assert files.stat("/last").version == 1 + 20 + 20 + 1
    assert len([change for change in seen if change.key == "/b/0.md"]) == 1


@needs_inotify
def test_reads_of_an_unchanged_folder_import_nothing(
    store: holdall.Store, changes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = store._engine_handle.engine
    store.files().write("/a.md", "x")
    changes(is_("put", "/a.md"))
    store.files().ls("/")
    calls: list[object] = []
    monkeypatch.setattr(engine, "_import_edits_locked", calls.append)
    for _ in range(100):
        store.files().ls("/")
    assert calls == []


# Edits during a write ------------------------------------------------------------------------------------------------


def edit_before_applying(monkeypatch: pytest.MonkeyPatch, edit: Callable[[], object]) -> None:
    """Edit files between a commit and its changes of files."""
    apply_pending = Catalogue.apply_pending

    def edit_and_apply(*args: Any) -> Any:
        edit()
        return apply_pending(*args)

    monkeypatch.setattr(Catalogue, "apply_pending", edit_and_apply)


def test_two_appends_to_one_file_at_once_are_both_kept(
    store: holdall.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = store.files()
    files.write("/log", "begun\n")

    def append() -> None:
        if lines:
            with (folder / "log").open("ab") as file:
                file.write(lines.pop())

    edit_before_applying(monkeypatch, append)
    for line in (b"theirs, which is longer\n", b"t\n", b"ours\n"):
        lines = [line]
        files.append("/log", "ours\n")
        assert not lines
        assert files.read("/log") == (folder / "log").read_bytes()
        assert files.stat("/log").size == len(files.read("/log"))
    assert files.read("/log") == b"begun\ntheirs, which is longer\nours\nt\nours\nours\nours\n"


def test_an_append_to_a_file_that_is_removed_meanwhile_is_kept(
    store: holdall.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = store.files()
    files.write("/log", "begun\n")
    edit_before_applying(monkeypatch, lambda: (folder / "log").unlink(missing_ok=True))
    files.append("/log", "ours\n")
    monkeypatch.undo()
    assert files.read("/log") == (folder / "log").read_bytes() == b"ours\n"
    assert files.stat("/log").size == 5


@pytest.mark.parametrize("text", ["edited, and longer", "e"])
def test_a_copy_of_a_file_that_is_edited_meanwhile_is_complete(
    store: holdall.Store, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    files = store.files()
    files.write("/a", "before")
    files.write("/b", "other:")  # the same length
    edit_before_applying(monkeypatch, lambda: (folder / "a").write_text(text))
    files.copy("/a", "/b")
    monkeypatch.undo()
    for name in "ab":
        assert files.read_text(f"/{name}") == (folder / name).read_text() == text
        assert files.stat(f"/{name}").size == len(text)


def test_an_edited_file_loses_its_old_version_and_an_edited_item_keeps_it(tmp_path: Path) -> None:
    with holdall.open(f"disk:///{tmp_path}", history=3600) as store:
        files = store.files()
        files.write("/notes.md", "first")
        files.write("/notes.md", "second")
        store.put(("a",), "k", {"n": 1})
        (tmp_path / "notes.md").write_text("edited by hand")
        [item] = [path for path in tmp_path.rglob("*.json") if ".holdall" not in path.parts]
        item.write_text('{"n": 2}')
        assert files.read("/notes.md") == b"edited by hand"
        versions = files.history("/notes.md")
        assert [files.read("/notes.md", version=one.version) for one in versions] == [b"edited by hand", b"first"]
        assert [one.value for one in store.history(("a",), "k")] == [{"n": 2}, {"n": 1}]
        files.restore("/notes.md", versions[-1].version)
        assert (tmp_path / "notes.md").read_text() == "first"
