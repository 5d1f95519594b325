"""The disk engine: the folder, its catalogue, and files that cannot be written or read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.engines.disk import engine as disk
from holdall.engines.disk.folder import Folder
from holdall.engines.sql import feed
from holdall.errors import Conflict, CursorExpired, InvalidInput, NotFound, StoreClosed, Unavailable
from holdall.ops import Append, Copy, Move, Put, ReadRange
from holdall.testing import Clock
from support.disk_stores import opened
from support.processes import report, start
from support.threads import together

VOLUME = ("filesystem",)


def query_catalogue(store: holdall.Store, sql: str) -> list[Any]:
    engine: Any = store._engine_handle.engine
    return engine._writer.execute(sql).fetchall()  # type: ignore[no-any-return]  # a driver's


# The folder and its catalogue ----------------------------------------------------------------------------------------


def test_the_catalogue_has_no_bytes_of_files(folder: Path) -> None:
    with opened(folder) as store:
        files = store.files()
        files.write("/a.bin", os.urandom(500_000))
        files.append("/a.bin", os.urandom(100_000))
        files.copy("/a.bin", "/b.bin")
        with files.open("/c.bin", "wb") as file:
            for _ in range(4):
                file.write(os.urandom(1 << 20))
        assert query_catalogue(store, "SELECT count(*) FROM holdall_chunks WHERE typeof(data) = 'blob'") == [(0,)]
        assert (folder / "c.bin").read_bytes() == files.read("/c.bin")
        assert (folder / "a.bin").read_bytes() == (folder / "b.bin").read_bytes() == files.read("/a.bin")
        assert files.read_range("/a.bin", 499_990, 500_010) == files.read("/a.bin")[499_990:500_010]
        files.append("/b.bin", "only here")
        assert files.stat("/a.bin").size == 600_000


def test_a_file_and_its_copies_from_one_batch_are_complete(folder: Path) -> None:
    with opened(folder) as store:
        put = Put(VOLUME, "/a", {"content": "text", "encoding": "utf-8"})
        store.execute([put, Copy(VOLUME, "/a", "/b"), Copy(VOLUME, "/b", "/c"), Append(VOLUME, "/b", b"!")])
        assert [store.files().read(path) for path in ("/a", "/b", "/c")] == [b"text", b"text!", b"text"]
        store.execute([Move(VOLUME, "/a", "/d"), Copy(VOLUME, "/d", "/a"), ReadRange(VOLUME, "/a", 0)])
        assert (folder / "a").read_text() == (folder / "d").read_text() == "text"
        assert (folder / "a").stat().st_ino != (folder / "d").stat().st_ino


@pytest.mark.parametrize("is_async", [False, True])
def test_a_large_tree_is_deleted_in_slices_between_which_others_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    for module, name, value in ((feed, "LARGE_TREE", 20), (disk, "_SMALLEST_SLICE", 4), (disk, "_SLICE_SECONDS", 0)):
        monkeypatch.setattr(module, name, value)
    with opened(folder) as store:
        files, commits = store.files(), store._engine_handle.engine._commits  # type: ignore[attr-defined]  # its own
        store.execute([Put(VOLUME, f"/d/{n % 3}/{n:02}", {"content": "x"}) for n in range(60)])
        (folder / "d" / "2" / "external").write_text("written before the deletion")
        submit, slices = commits.submit, []

        def write_before(batch: list[Any]) -> list[Any]:
            if type(batch[-1]) is feed.DeleteTreeSlice:
                slices.append(batch)
                commits.submit = submit
                if len(slices) == 3:
                    files.write("/d/2/new", "new")
                    files.append("/d/2/02", ", and more")
                    (folder / "d" / "2" / "05").write_text("edited by another program")
                    assert store.get(VOLUME, "/d/2/05").value["content"] == "edited by another program"  # type: ignore[union-attr]
                    assert not files.exists("/d/0/00")
                    assert not (folder / "d" / "0" / "00").exists()
                commits.submit = write_before
            return submit(batch)  # type: ignore[no-any-return]  # the results

        monkeypatch.setattr(commits, "submit", write_before)
        count = asyncio.run(files.adelete("/d", recursive=True)) if is_async else files.delete("/d", recursive=True)
        kept = {"/d/2/02": "x, and more", "/d/2/05": "edited by another program", "/d/2/new": "new"}
        assert count == 61 - 2
        assert len(slices) >= 14
        assert {info.path: files.read_text(info.path) for info in files.walk()} == kept
        assert {f"/{path.relative_to(folder)}" for path in (folder / "d").rglob("*") if path.is_file()} == {*kept}
        assert files.delete("/d", recursive=True) == 3


def test_a_deleted_catalogue_is_built_again_from_the_files(folder: Path) -> None:
    with opened(folder) as store:
        store.files().write("/notes/a.md", "fish")
        last = store.put(("users",), "ada", {"n": 1, "text": "tea"})
        cursor = store.cursor()
    shutil.rmtree(folder / ".holdall")
    with opened(folder) as store:
        again = store.get(("users",), "ada")
        assert again is not None and again.value == last.value
        assert again.version > last.version
        assert store.files().grep("fish")[0].path == "/notes/a.md"
        assert [hit.key for hit in store.search((), query="tea")] == ["ada"]
        with pytest.raises(CursorExpired), store.watch(since=cursor) as watch:
            next(watch)
        with pytest.raises(Conflict):
            store.put(("users",), "ada", {}, expect=last)
        version = again.version
    with opened(folder) as store:
        assert store.get(("users",), "ada").version == version


def test_a_catalogue_deleted_while_open_is_an_error_and_nothing_is_lost(folder: Path) -> None:
    with opened(folder) as store:
        store.files().write("/a", "before")
        shutil.rmtree(folder / ".holdall")
        for is_rebuilt in (False, True):
            with pytest.raises(Unavailable, match="open it again"):
                store.files().write("/a", "not written")
            with pytest.raises(Unavailable, match="open it again"):
                store.lease("one", 10).acquire()
            (folder / "b").write_text("made outside")
            with pytest.raises(Unavailable, match="open it again"):
                store.files().read("/b")
            assert is_rebuilt or start(open_and_list, folder=str(folder)).finish() == [["/a", "/b"]]
    with opened(folder) as store:
        assert [info.path for info in store.files().walk()] == ["/a", "/b"]
        assert store.files().read_text("/a") == "before"


def open_and_list(folder: str) -> None:
    """Open the store in another process, which builds the catalogue again."""
    with opened(Path(folder)) as store:
        report([info.path for info in store.files().walk()])


@pytest.mark.parametrize("change", [shutil.rmtree, lambda folder: folder.rename(folder.parent / "moved")])
def test_a_folder_removed_while_open_is_an_error(folder: Path, change: Callable[[Path], object]) -> None:
    with opened(folder) as store:
        store.files().write("/a", "x")
        change(folder)
        with pytest.raises(Unavailable):
            store.files().read("/a")
        with pytest.raises(Unavailable, match="open it again"):
            store.files().write("/b", "x")
    assert not folder.exists()


def test_the_volume_in_the_folder_itself_is_chosen_once(folder: Path) -> None:
    with opened(folder, volume=("team", "wiki")) as store:
        store.files(("team", "wiki")).write("/index.md", "x")
        store.files().write("/index.md", "y")
    assert (folder / "index.md").read_text() == "x"
    assert (folder / "@filesystem" / "index.md").read_text() == "y"
    with opened(folder) as store:
        assert store.files(("team", "wiki")).read_text("/index.md") == "x"
    store = opened(folder, volume=("other",))
    with pytest.raises(InvalidInput, match=r"holds the files of \('team', 'wiki'\)"):
        store.setup()
    store.close()
    for volume in ("team", (), ("",), ("__holdall__",)):
        with pytest.raises(InvalidInput):
            opened(folder, volume=volume)


def test_a_sweep_removes_the_files_of_expired_entries(folder: Path) -> None:
    clock = Clock()
    with opened(folder, clock=clock, sweep_interval=None, ttl=60) as store:
        store.files().write("/a/b", "x")
        store.put(("items",), "k", {})
        assert store.files().read("/a/b") == store.files().read("/a/b") == b"x"
        clock.advance(61)
        assert not store.files().exists("/a/b")
        with pytest.raises(FileNotFoundError):
            store.files().read("/a/b")
        (folder / "@items" / "@k.json").unlink()  # before the sweep
        assert store.sweep() == 2
        assert not (folder / "a").exists()
        assert store.put(("items",), "k", {}) == store.get(("items",), "k")
        assert (folder / "@items" / "@k.json").exists()


def test_leases_and_unfinished_uploads_have_no_plain_files(folder: Path) -> None:
    with opened(folder) as store:
        file = store.files().open("/a", "wb")
        file.write(b"x" * (3 << 20))
        with store.lease("report", 30):
            assert [path.name for path in folder.iterdir()] == [".holdall"]
        file.close()
        assert (folder / "a").stat().st_size == 3 << 20


def test_two_stores_with_different_options_in_one_process_agree(folder: Path) -> None:
    with opened(folder) as one, opened(folder, timeout=20.0) as other:
        assert one._engine_handle is not other._engine_handle

        def count(store: holdall.Store) -> None:
            for _ in range(30):
                store.update(("n",), "n", lambda value: {"n": value["n"] + 1}, default={"n": 0})

        together([lambda: count(one), lambda: count(other), lambda: count(one)])
        assert one.get(("n",), "n") == other.get(("n",), "n")
        assert one.get(("n",), "n").value == {"n": 90}


def test_a_closed_store_refuses_to_read(folder: Path) -> None:
    store = opened(folder)
    store.files().write("/a", "x")
    assert store.files().read("/a") == store.files().read("/a")
    store.close()
    with pytest.raises(StoreClosed):
        store.files().read("/a")
    with pytest.raises(StoreClosed):
        asyncio.run(store.files().aread("/a"))


def test_a_url_that_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="is a file"):
        opened(tmp_path / "file")
    for url in ("disk:", "disk://host/folder", "disk:///folder?volume=a"):
        with pytest.raises(InvalidInput):
            holdall.open(url)


def test_a_file_replaces_an_empty_folder_but_not_a_full_one(folder: Path) -> None:
    with opened(folder) as store:
        (folder / "a" / "b").mkdir(parents=True)
        (folder / "c").mkdir()
        (folder / "c" / "pipe").symlink_to("nowhere")
        for path in ("/a", "/c"):
            store.files().write(path, path)
        assert (folder / "c%~").read_text() == store.files().read_text("/c") == "/c"
        assert store.files().read_text("/a") == "/a"
        assert sorted(path.name for path in folder.iterdir()) == [".holdall", "a", "c", "c%~"]


# Files that cannot be written -----------------------------------------------------------------------------------------


def make_fail(name: str) -> Callable[[], None]:
    """Make a method of `Folder` fail as on a full disk, until the returned function is called."""

    def fail(*args: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    patch = pytest.MonkeyPatch()
    patch.setattr(Folder, name, fail)
    return patch.undo


def test_a_write_that_cannot_be_staged_changes_nothing(folder: Path) -> None:
    with opened(folder) as store:
        store.files().write("/a", "before")
        repair = make_fail("stage")
        for change in (lambda: store.files().write("/a", "after"), lambda: store.put(("items",), "k", {})):
            with pytest.raises(Unavailable, match="No space left"):
                change()
        repair()
        assert store.files().read("/a") == b"before"
        assert store.count() == 1
        assert [*(folder / ".holdall" / "new").iterdir()] == []
        assert store.files().write("/a", "after").size == 5


@pytest.mark.parametrize("step", ["publish", "append", "remove"])
def test_committed_changes_that_cannot_reach_their_files_do_so_later(
    folder: Path, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    changes: dict[str, Callable[[holdall.Store], object]] = {
        "publish": lambda store: store.files().write("/a", "before, after"),
        "append": lambda store: store.files().append("/a", ", after"),
        "remove": lambda store: store.files().move("/a", "/b"),
    }
    with opened(folder) as store:
        store.files().write("/a", "before")
        assert store.files().read("/a") == b"before"
        repair = make_fail(step)
        changes[step](store)  # it is safe in the catalogue
        with contextlib.suppress(Unavailable, NotFound):
            assert store.files().read("/a") == b"before, after"
        assert "cannot update the plain files" in caplog.text
        with pytest.raises(Unavailable, match=r"the disk is full.*only be deleted"):
            store.files().write("/c", "x")
        repair()
        there = "/b" if step == "remove" else "/a"
        assert store.files().write("/c", "x").size == 1
        assert [info.path for info in store.files().walk()] == [there, "/c"]
        assert (folder / there[1:]).read_bytes() == store.files().read(there)
        assert store.files().read_text(there) == ("before" if step == "remove" else "before, after")
        assert [*(folder / ".holdall" / "new").iterdir()] == []


def test_a_file_keeps_its_permissions(folder: Path) -> None:
    with opened(folder) as store:
        files = store.files()
        for name, permissions in (("run.sh", 0o750), ("private", 0o600)):
            files.write(f"/{name}", "before")
            (folder / name).chmod(permissions)
            files.write(f"/{name}", "after")
            files.edit(f"/{name}", "after", "later")
            files.append(f"/{name}", ".")
            files.copy(f"/{name}", f"/copies/{name}")
            files.move(f"/{name}", f"/moved/{name}")
            files.write(f"/moved/{name}", "again")
            for there in ("copies", "moved"):
                assert stat.S_IMODE((folder / there / name).stat().st_mode) == permissions
        store.put(("items",), "k", {})
        (folder / "@items" / "@k.json").chmod(0o600)
        store.put(("items",), "k", {"n": 1})
        assert stat.S_IMODE((folder / "@items" / "@k.json").stat().st_mode) == 0o600


# Without permission to write or to read ------------------------------------------------------------------------------


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """The folder of a store, in a test that runs without root's permissions: root may do everything."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as place:
        if is_root:
            os.chown(place, 65534, 65534)
        with opened(Path(place, "warm")) as store:  # so that all modules are imported before
            store.files().write("/a", "x")
            store.search(query="x")
        if is_root:
            os.setresuid(65534, 65534, 0)
        try:
            with opened(Path(place, "store")) as store:
                store.files().write("/sub/a", "before")
            yield Path(place, "store")
        finally:
            if is_root:
                os.setresuid(0, 0, 0)
            Path(place, "store", "sub").chmod(0o755)


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.write("/sub/a", "after"),
        lambda files: files.write("/sub/b", "new"),
        lambda files: files.write("/sub/deep/er", "new"),
        lambda files: files.delete("/sub/a", recursive=True),
        lambda files: files.move("/sub/a", "/moved"),
        lambda files: files.move("/other", "/sub/other"),
    ],
)
def test_a_write_to_a_read_only_folder_changes_nothing(own_folder: Path, change: Callable[[Any], object]) -> None:
    with opened(own_folder) as store:
        files = store.files()
        files.write("/other", "x")
        (own_folder / "sub").chmod(0o555)
        with pytest.raises(Unavailable, match="'sub/': Permission denied"):
            change(files)
        assert files.write("/other", "y").size == 1
        (own_folder / "new").write_text("made outside")
        assert [info.path for info in files.walk()] == ["/new", "/other", "/sub/a"]
        assert files.read("/sub/a") == b"before"
    with opened(own_folder) as store:
        assert [info.path for info in store.files().walk()] == ["/new", "/other", "/sub/a"]


def test_a_read_only_file_can_be_appended_to(own_folder: Path) -> None:
    with opened(own_folder) as store:
        (own_folder / "sub" / "a").chmod(0o444)
        repair = make_fail("publish")
        store.files().append("/sub/a", ", after")
        repair()
        store.files().write("/b", "this completes the append")
        assert (own_folder / "sub" / "a").read_bytes() == store.files().read("/sub/a") == b"before, after"
        assert store.files().stat("/sub/a").size == 13


@pytest.mark.parametrize("name", ["sub/a", "sub"])
def test_an_unreadable_file_stays_listed_and_reading_it_is_an_error(own_folder: Path, name: str) -> None:
    with opened(own_folder) as store:
        files = store.files()
        files.write("/other", "before")
        store.put(("n",), "k", {"text": "before"})
        before, cursor = files.stat("/sub/a"), store.cursor()
        permissions = (own_folder / name).stat().st_mode
        (own_folder / name).chmod(0)
        for _ in range(2):
            assert files.stat("/sub/a") == before
            assert [info.path for info in files.walk()] == ["/other", "/sub/a"]
            assert [match.path for match in files.grep("before")] == ["/other"]
            assert [match.path for match in files.grep("b?", regex=True)] == ["/other"]
            for entries in (store.scan(), store.search()):
                contents = {entry.key: entry.value.get("content", "") for entry in entries}
                assert contents == {"/other": "before", "/sub/a": None, "k": ""}
            assert sorted(hit.key for hit in store.search(query="before")) == ["/other", "k"]
            assert store.count() == 3
            reads: list[Callable[[], object]] = [
                lambda: files.read("/sub/a"),
                lambda: files.read_range("/sub/a", 0, 2),
                lambda: store.get(VOLUME, "/sub/a"),
                lambda: files.copy("/sub/a", "/copy"),
                lambda: files.append("/sub/a", "more"),
            ]
            for read in reads:
                with pytest.raises(Unavailable, match=r"'sub.*Permission denied"):
                    read()
            with opened(own_folder, timeout=31) as another:
                assert another.files().stat("/sub/a") == before
        (own_folder / name).chmod(permissions)
        assert files.read("/sub/a") == b"before"
        assert [match.path for match in files.grep("before")] == ["/other", "/sub/a"]
        assert sorted(hit.key for hit in store.search(query="before")) == ["/other", "/sub/a", "k"]
        with store.watch(since=cursor) as watch:
            assert [(change.kind, change.key) for change in islice(watch, 1)] == [("put", "/sub/a")]
        files.write("/sub/a", "after")
        assert files.read("/sub/a") == b"after"


def test_a_file_that_was_never_readable_is_listed_and_read_once_it_can_be(own_folder: Path) -> None:
    with opened(own_folder) as store:
        files = store.files()
        for name, text in (("secret", "fish"), ("@n/@k.json", '{"text": "fish"}')):
            (own_folder / name).parent.mkdir(exist_ok=True)
            (own_folder / name).write_text(text)
            (own_folder / name).chmod(0)
        assert files.stat("/secret").size == 4
        with pytest.raises(Unavailable, match=r"'secret'.*Permission denied"):
            files.read("/secret")
        assert store.get(("n",), "k") is None
        files.write("/other", "tea")
        assert [hit.key for hit in store.search(query="fish")] == []
        for name in ("secret", "@n/@k.json"):
            (own_folder / name).chmod(0o644)
        assert sorted(hit.key for hit in store.search(query="fish")) == ["/secret", "k"]
        (own_folder / "secret").chmod(0)
        assert files.delete("/secret", recursive=True) == 1
        assert not (own_folder / "secret").exists()


def test_another_file_system_inside_the_folder_is_refused(folder: Path) -> None:
    with opened(folder) as store:
        store.files().write("/a", "before")
        engine: Any = store._engine_handle.engine
        engine._folder._device, device = -1, engine._folder._device
        with pytest.raises(Unavailable, match="on another file system"):
            store.files().write("/a", "after")
        engine._folder._device = device
        assert store.files().read("/a") == b"before"
        assert store.files().write("/b", "x").size == 1
