"""What is the disk engine's own: the folder, its catalogue, and what happens where the files cannot be written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdall
from folders import opened
from holdall.engines.disk_tree import Tree
from holdall.errors import Conflict, HistoryGone, InvalidInput, NotFound, StoreClosed, Unavailable
from holdall.ops import Append, Copy, Move, Put, ReadRange
from holdall.testing import Clock
from processes import start, tell
from threads import together

VOLUME = ("filesystem",)


def catalogued(store: holdall.Store, sql: str) -> list[Any]:
    engine: Any = store._shared.engine
    return engine._writer.execute(sql).fetchall()  # type: ignore[no-any-return]  # a driver's


# The folder and its catalogue ----------------------------------------------------------------------------------------


def test_the_bytes_of_files_are_in_the_files_alone(folder: Path) -> None:
    with opened(folder) as store:
        files = store.files()
        files.write("/a.bin", os.urandom(500_000))
        files.append("/a.bin", os.urandom(100_000))
        files.copy("/a.bin", "/b.bin")
        with files.open("/c.bin", "wb") as file:
            for _ in range(4):
                file.write(os.urandom(1 << 20))
        assert catalogued(store, "SELECT count(*) FROM holdall_chunks WHERE typeof(data) = 'blob'") == [(0,)]
        assert (folder / "c.bin").read_bytes() == files.read("/c.bin")
        assert (folder / "a.bin").read_bytes() == (folder / "b.bin").read_bytes() == files.read("/a.bin")
        assert files.read_range("/a.bin", 499_990, 500_010) == files.read("/a.bin")[499_990:500_010]
        files.append("/b.bin", "only here")
        assert files.stat("/a.bin").size == 600_000


def test_copies_made_with_what_they_are_of_are_all_whole(folder: Path) -> None:
    with opened(folder) as store:
        put = Put(VOLUME, "/a", {"content": "text", "encoding": "utf-8"})
        store.execute([put, Copy(VOLUME, "/a", "/b"), Copy(VOLUME, "/b", "/c"), Append(VOLUME, "/b", b"!")])
        assert [store.files().read(path) for path in ("/a", "/b", "/c")] == [b"text", b"text!", b"text"]
        store.execute([Move(VOLUME, "/a", "/d"), Copy(VOLUME, "/d", "/a"), ReadRange(VOLUME, "/a", 0)])
        assert (folder / "a").read_text() == (folder / "d").read_text() == "text"
        assert (folder / "a").stat().st_ino != (folder / "d").stat().st_ino


def test_a_catalogue_that_was_deleted_is_made_anew(folder: Path) -> None:
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
        with pytest.raises(HistoryGone), store.watch(since=cursor) as watch:
            next(watch)
        with pytest.raises(Conflict):
            store.put(("users",), "ada", {}, expect=last)
        version = again.version
    with opened(folder) as store:
        assert store.get(("users",), "ada").version == version


def test_a_catalogue_that_is_deleted_in_use_is_missed_and_nothing_is_lost(folder: Path) -> None:
    with opened(folder) as store:
        store.files().write("/a", "before")
        shutil.rmtree(folder / ".holdall")
        for is_there in (False, True):
            with pytest.raises(Unavailable, match="open it again"):
                store.files().write("/a", "not written")
            with pytest.raises(Unavailable, match="open it again"):
                store.lease("one", 10)
            (folder / "b").write_text("made outside")
            with pytest.raises(Unavailable, match="open it again"):
                store.files().read("/b")
            assert is_there or start(make_anew, folder=str(folder)).finish() == [["/a", "/b"]]
    with opened(folder) as store:
        assert [info.path for info in store.files().walk()] == ["/a", "/b"]
        assert store.files().read_text("/a") == "before"


def make_anew(folder: str) -> None:
    """What another process does that opens the store."""
    with opened(Path(folder)) as store:
        tell([info.path for info in store.files().walk()])


@pytest.mark.parametrize("change", [shutil.rmtree, lambda folder: folder.rename(folder.parent / "moved")])
def test_a_folder_that_goes_away_in_use_is_missed(folder: Path, change: Callable[[Path], object]) -> None:
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


def test_expired_files_go_with_the_sweep(folder: Path) -> None:
    clock = Clock()
    with opened(folder, clock=clock, sweep_interval=None, ttl=60) as store:
        store.files().write("/a/b", "x")
        store.put(("items",), "k", {})
        assert store.files().read("/a/b") == store.files().read("/a/b") == b"x"
        clock.advance(61)
        assert not store.files().exists("/a/b")
        with pytest.raises(FileNotFoundError):
            store.files().read("/a/b")
        (folder / "@items" / "@k.json").unlink()  # by somebody who was quicker
        assert store.sweep() == 2
        assert not (folder / "a").exists()
        assert store.put(("items",), "k", {}) == store.get(("items",), "k")
        assert (folder / "@items" / "@k.json").exists()


def test_leases_and_uploads_are_no_files(folder: Path) -> None:
    with opened(folder) as store:
        file = store.files().open("/a", "wb")
        file.write(b"x" * (3 << 20))
        with store.lease("report", 30):
            assert [path.name for path in folder.iterdir()] == [".holdall"]
        file.close()
        assert (folder / "a").stat().st_size == 3 << 20


def test_stores_in_one_process_with_other_options_agree(folder: Path) -> None:
    with opened(folder) as one, opened(folder, timeout=20.0) as other:
        assert one._shared is not other._shared

        def count(store: holdall.Store) -> None:
            for _ in range(30):
                store.update(("n",), "n", lambda value: {"n": value["n"] + 1}, default={"n": 0})

        together([lambda: count(one), lambda: count(other), lambda: count(one)])
        assert one.get(("n",), "n") == other.get(("n",), "n")
        assert one.get(("n",), "n").value == {"n": 90}


def test_a_closed_store_reads_nothing(folder: Path) -> None:
    store = opened(folder)
    store.files().write("/a", "x")
    assert store.files().read("/a") == store.files().read("/a")
    store.close()
    with pytest.raises(StoreClosed):
        store.files().read("/a")
    with pytest.raises(StoreClosed):
        asyncio.run(store.files().aread("/a"))


def test_a_file_is_no_folder_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="is a file"):
        opened(tmp_path / "file")
    for url in ("disk:", "disk://host/folder", "disk:///folder?volume=a"):
        with pytest.raises(InvalidInput):
            holdall.open(url)


def test_an_empty_folder_in_the_way_gives_way_and_a_full_one_does_not(folder: Path) -> None:
    with opened(folder) as store:
        (folder / "a" / "b").mkdir(parents=True)
        (folder / "c").mkdir()
        (folder / "c" / "pipe").symlink_to("nowhere")
        for path in ("/a", "/c"):
            store.files().write(path, path)
        assert (folder / "c%~").read_text() == store.files().read_text("/c") == "/c"
        assert store.files().read_text("/a") == "/a"
        assert sorted(path.name for path in folder.iterdir()) == [".holdall", "a", "c", "c%~"]


# Where files cannot be written ---------------------------------------------------------------------------------------


def failing(name: str) -> Callable[[], None]:
    """Have a step towards the files fail, as on a full disk, until what this returns is called."""

    def fail(*args: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    patch = pytest.MonkeyPatch()
    patch.setattr(Tree, name, fail)
    return patch.undo


def test_what_cannot_be_staged_is_not_written_at_all(folder: Path) -> None:
    with opened(folder) as store:
        store.files().write("/a", "before")
        mend = failing("stage")
        for change in (lambda: store.files().write("/a", "after"), lambda: store.put(("items",), "k", {})):
            with pytest.raises(Unavailable, match="No space left"):
                change()
        mend()
        assert store.files().read("/a") == b"before"
        assert store.count() == 1
        assert [*(folder / ".holdall" / "new").iterdir()] == []
        assert store.files().write("/a", "after").size == 5


def test_an_interrupt_just_after_the_commit_loses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        store.setup()
        engine: Any = store._shared.engine
        transact = engine._transact_on

        def interrupted(writer: Any, members: Any) -> None:
            monkeypatch.undo()
            transact(writer, members)
            raise KeyboardInterrupt

        monkeypatch.setattr(engine, "_transact_on", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.files().write("/a", "committed")
        assert store.files().read_text("/a") == "committed"
        store.files().write("/b", "the next to write finishes it")
        assert store.files().read_text("/a") == (folder / "a").read_text() == "committed"


@pytest.mark.parametrize("step", ["settle", "append", "remove"])
def test_what_was_committed_and_cannot_reach_its_file_does_so_later(
    folder: Path, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    changes: dict[str, Callable[[holdall.Store], object]] = {
        "settle": lambda store: store.files().write("/a", "before, after"),
        "append": lambda store: store.files().append("/a", ", after"),
        "remove": lambda store: store.files().move("/a", "/b"),
    }
    with opened(folder) as store:
        store.files().write("/a", "before")
        assert store.files().read("/a") == b"before"
        mend = failing(step)
        changes[step](store)  # it is safe in the catalogue
        with contextlib.suppress(Unavailable, NotFound):
            assert store.files().read("/a") == b"before, after"
        assert "the plain files are behind" in caplog.text
        with pytest.raises(Unavailable, match=r"see to that first.*No space left"):
            store.files().write("/c", "x")
        mend()
        there = "/b" if step == "remove" else "/a"
        assert store.files().write("/c", "x").size == 1
        assert [info.path for info in store.files().walk()] == [there, "/c"]
        assert (folder / there[1:]).read_bytes() == store.files().read(there)
        assert store.files().read_text(there) == ("before" if step == "remove" else "before, after")
        assert [*(folder / ".holdall" / "new").iterdir()] == []


def test_a_file_keeps_its_rights(folder: Path) -> None:
    with opened(folder) as store:
        files = store.files()
        for name, rights in (("run.sh", 0o750), ("private", 0o600)):
            files.write(f"/{name}", "before")
            (folder / name).chmod(rights)
            files.write(f"/{name}", "after")
            files.edit(f"/{name}", "after", "later")
            files.append(f"/{name}", ".")
            files.copy(f"/{name}", f"/copies/{name}")
            files.move(f"/{name}", f"/moved/{name}")
            files.write(f"/moved/{name}", "again")
            for there in ("copies", "moved"):
                assert stat.S_IMODE((folder / there / name).stat().st_mode) == rights
        store.put(("items",), "k", {})
        (folder / "@items" / "@k.json").chmod(0o600)
        store.put(("items",), "k", {"n": 1})
        assert stat.S_IMODE((folder / "@items" / "@k.json").stat().st_mode) == 0o600


# Without the right to write, or to read ------------------------------------------------------------------------------


@pytest.fixture
def ours() -> Iterator[Path]:
    """The folder of a store, in a test that runs without root's rights: what root may do says nothing of others."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as place:
        if is_root:
            os.chown(place, 65534, 65534)
        with opened(Path(place, "warm")) as store:  # imports what it needs
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
        lambda files: files.delete("/sub/a"),
        lambda files: files.move("/sub/a", "/moved"),
        lambda files: files.move("/other", "/sub/other"),
    ],
)
def test_where_no_file_can_be_written_nothing_is_promised(ours: Path, change: Callable[[Any], object]) -> None:
    with opened(ours) as store:
        files = store.files()
        files.write("/other", "x")
        (ours / "sub").chmod(0o555)
        with pytest.raises(Unavailable, match="'sub/': Permission denied"):
            change(files)
        assert files.write("/other", "y").size == 1
        (ours / "new").write_text("made outside")
        assert [info.path for info in files.walk()] == ["/new", "/other", "/sub/a"]
        assert files.read("/sub/a") == b"before"
    with opened(ours) as store:
        assert [info.path for info in store.files().walk()] == ["/new", "/other", "/sub/a"]


def test_a_file_that_is_read_only_can_be_replaced_and_so_be_appended_to(ours: Path) -> None:
    with opened(ours) as store:
        (ours / "sub" / "a").chmod(0o444)
        mend = failing("settle")
        store.files().append("/sub/a", ", after")
        mend()
        store.files().write("/b", "and what was left to be done")
        assert (ours / "sub" / "a").read_bytes() == store.files().read("/sub/a") == b"before, after"
        assert store.files().stat("/sub/a").size == 13


@pytest.mark.parametrize("name", ["sub/a", "sub"])
def test_what_may_not_be_read_is_no_file_of_the_store_while_that_is_so(ours: Path, name: str) -> None:
    with opened(ours) as store:
        files = store.files()
        files.write("/other", "before")
        rights = (ours / name).stat().st_mode
        (ours / name).chmod(0)
        assert [match.path for match in files.grep("before")] == ["/other"]
        assert [hit.key for hit in store.search(query="before")] == ["/other"]
        with pytest.raises(NotFound):
            files.read("/sub/a")
        with pytest.raises(NotFound):
            files.copy("/sub/a", "/copy")
        assert [entry.key for entry in store.scan()] == ["/other"]
        (ours / name).chmod(rights)
        assert files.read("/sub/a") == b"before"
        assert [match.path for match in files.grep("before")] == ["/other", "/sub/a"]


def test_a_file_system_within_the_folder_is_refused_as_nothing_can_be_renamed_to_it(folder: Path) -> None:
    with opened(folder) as store:
        store.files().write("/a", "before")
        engine: Any = store._shared.engine
        engine._tree._device, device = -1, engine._tree._device
        with pytest.raises(Unavailable, match="on another file system"):
            store.files().write("/a", "after")
        engine._tree._device = device
        assert store.files().read("/a") == b"before"
        assert store.files().write("/b", "x").size == 1
