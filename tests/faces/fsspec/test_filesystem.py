"""`holdall://` as a file system: fsspec's own suite, transactions, ranges, and the libraries that read through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.tests import abstract

import holdall
from holdall import errors
from holdall.faces.fsspec import HoldallFileSystem
from support.processes import finish_together, start, wait_to_begin
from support.stores import new_location, open_at

#: fsspec's suite has fixtures of a kind that pytest 10 will remove.
pytestmark = pytest.mark.filterwarnings("ignore:Class-scoped fixtures:pytest.PytestRemovedIn10Warning")


class HoldallFixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self) -> Iterator[HoldallFileSystem]:
        with holdall.open("memory:") as store:
            yield HoldallFileSystem(store, ("files",), skip_instance_cache=True)

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_path(self) -> str:
        return ""

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return True


class TestCopy(abstract.AbstractCopyTests, HoldallFixtures):
    pass


class TestGet(abstract.AbstractGetTests, HoldallFixtures):
    pass


class TestPut(abstract.AbstractPutTests, HoldallFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, HoldallFixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, HoldallFixtures):
    pass


@pytest.fixture
def fs(any_store: holdall.Store, place: tuple[str, ...]) -> HoldallFileSystem:
    return HoldallFileSystem(any_store, place, skip_instance_cache=True)


def test_its_files_are_those_of_the_store(fs: HoldallFileSystem) -> None:
    fs.pipe_file("holdall://data/a.csv", b"x,y\n1,2\n")
    assert fs.files.read_text("/data/a.csv") == "x,y\n1,2\n"
    fs.files.write("/data/b.csv", "z")
    assert fs.ls("data", detail=False) == ["/data/a.csv", "/data/b.csv"]
    assert fs.find("") == ["/data/a.csv", "/data/b.csv"]
    assert fs.glob("data/*.csv") == ["/data/a.csv", "/data/b.csv"]
    info = fs.info("data/a.csv")
    assert (info["type"], info["size"]) == ("file", 8) and fs.modified("data/a.csv") == fs.created("data/a.csv")
    assert fs.cat_file("data/a.csv", 2, 5) == b"y\n1"
    assert fs.cat_file("data/a.csv", -3, -1) == b",2"
    fs.mv("data/a.csv", "moved.csv")
    assert fs.exists("moved.csv") and not fs.exists("data/a.csv")
    with pytest.raises(FileNotFoundError):
        fs.cat_file("missing")
    for folder in ("", "data"):
        with pytest.raises(IsADirectoryError):
            fs.cat_file(folder)
    with pytest.raises(FileNotFoundError):
        fs.info("missing")
    with pytest.raises(FileNotFoundError):
        fs.rm("missing")
    with pytest.raises(FileExistsError):
        fs.pipe_file("moved.csv", b"", mode="create")


def test_an_open_file_is_read_in_ranges_and_written_at_its_end(fs: HoldallFileSystem) -> None:
    content = bytes(range(256)) * 1000
    with fs.open("big", "wb", block_size=2**16) as file:
        file.write(content[:1000])
        file.write(content[1000:])
        assert not fs.exists("big")
    with fs.open("big", "rb", block_size=1000) as file:
        file.seek(100_000)
        assert file.read(10) == content[100_000:100_010]
    with fs.open("big", "ab") as file:
        file.write(b"end")
    assert fs.cat("big") == content + b"end"
    with pytest.raises(FileExistsError):
        fs.open("big", "xb")
    for mode in ("wb", "ab", "xb"):
        fs.open(f"nothing-{mode}", mode).close()
        assert fs.cat_file(f"nothing-{mode}") == b""


def test_a_transaction_writes_at_its_end_and_nothing_if_it_fails(fs: HoldallFileSystem) -> None:
    with fs.transaction:
        for name in ("one", "two"):
            with fs.open(name, "wb") as file:
                file.write(name.encode())
        assert not fs.exists("one")
    assert fs.cat(["one", "two"]) == {"/one": b"one", "/two": b"two"}
    with pytest.raises(ZeroDivisionError), fs.transaction:
        with fs.open("three", "wb") as file:
            file.write(b"3")
        raise ZeroDivisionError
    assert not fs.exists("three")


def test_a_transaction_has_what_is_piped_too(fs: HoldallFileSystem) -> None:
    fs.pipe_file("old", b"old")
    with pytest.raises(ZeroDivisionError), fs.transaction:
        fs.pipe({"old": b"new", "one": b"1"})
        fs.pipe_file("two", b"2", mode="create")
        raise ZeroDivisionError
    assert fs.cat("old") == b"old" and fs.find("") == ["/old"]
    with fs.transaction:
        fs.pipe_file("old", b"new")
        fs.pipe_file("two", b"2", mode="create")
        assert fs.cat("old") == b"old"
    assert fs.cat(["old", "two"]) == {"/old": b"new", "/two": b"2"}


def test_an_open_file_shows_no_parts_of_two_versions(fs: HoldallFileSystem) -> None:
    fs.pipe_file("data", b"a" * 3000)
    with fs.open("data", "rb", block_size=1000, cache_type="none") as file:
        assert file.read(1000) == b"a" * 1000
        fs.pipe_file("data", b"b" * 3000)
        with pytest.raises(holdall.errors.Conflict):
            file.read(1000)
    assert fs.open("data", "rb").read() == b"b" * 3000


def test_a_file_is_moved_where_fsspec_would_copy_it(fs: HoldallFileSystem) -> None:
    """Compared with fsspec's own file system in memory, of which a move is a copy and a deletion."""
    theirs = fsspec.filesystem("memory", skip_instance_cache=True)
    theirs.store, theirs.pseudo_dirs = {}, [""]
    for one in (fs, theirs):
        one.pipe({"/a": b"a", "/b": b"b", "/d/c": b"c", "/e/f": b"f", "/[x]": b"x"})
        for source, target in [("/a", "/b"), ("/b", "/d"), ("/d/b", "/new/"), ("/d/c", "/d/c"), ("/new/b", "/x/y/z")]:
            one.mv(source, target)
        one.mv("/e", "/g", recursive=True)
        with pytest.raises(FileNotFoundError):
            one.mv("/missing", "/d")
    read, wanted = ({path: one.cat_file(path) for path in one.find("/")} for one in (fs, theirs))
    assert read == wanted


def test_a_transaction_that_fails_appends_nothing(fs: HoldallFileSystem) -> None:
    fs.pipe_file("log", b"one\n")
    for size in (10, 2**23):  # in the buffer, and larger than any
        with pytest.raises(ZeroDivisionError), fs.transaction:
            with fs.open("log", "ab") as file:
                file.write(b"x" * size)
            raise ZeroDivisionError
        assert fs.cat("log") == b"one\n"
    with fs.transaction, fs.open("log", "ab") as file:
        file.write(b"two\n")
        assert fs.cat("log") == b"one\n"
    assert fs.cat("log") == b"one\ntwo\n"


def test_empty_folders_stay_until_they_are_removed(fs: HoldallFileSystem) -> None:
    fs.mkdir("a/b")
    assert fs.isdir("a") and fs.isdir("a/b") and fs.ls("a", detail=False) == ["/a/b"] and fs.ls("a/b") == []
    with pytest.raises(FileExistsError):
        fs.mkdir("a/b")
    with pytest.raises(FileNotFoundError):
        fs.mkdir("x/y", create_parents=False)
    fs.pipe_file("a/b/f", b"")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir("a/b")
    fs.rm("a/b/f")
    fs.rmdir("a/b")
    assert not fs.exists("a/b")
    fs.makedirs("c/d")
    fs.makedirs("c/d", exist_ok=True)
    fs.rm("c", recursive=True)
    assert not fs.exists("c")


def test_a_store_is_named_where_fsspec_has_an_argument_url_of_its_own(tmp_path: Path) -> None:
    """pandas reads and writes Parquet with `url_to_fs(url, **storage_options)`."""
    options: dict[str, Any] = {"store_or_url": str(tmp_path / "agent.db"), "namespace": ["files"]}
    fs, path = fsspec.core.url_to_fs("holdall://data/sales.parquet", **options)
    assert (type(fs), path) == (HoldallFileSystem, "/data/sales.parquet")
    assert fs is fsspec.filesystem("holdall", url=options["store_or_url"], namespace=["files"])
    with pytest.raises(errors.InvalidInput, match="pass one of them"):
        HoldallFileSystem("a.db", store_or_url="b.db")
    fs.store.close()


def test_a_url_names_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"url": str(tmp_path / "agent.db"), "namespace": ["files"]}
    with fsspec.open("holdall://notes/a.txt", "w", **options) as file:
        file.write("hello")
    monkeypatch.setenv("HOLDALL_URL", str(tmp_path / "agent.db"))
    assert fsspec.filesystem("holdall", namespace=("files",)).cat("/notes/a.txt") == b"hello"
    with holdall.open(tmp_path / "agent.db") as store:
        assert store.files(("files",)).read_text("/notes/a.txt") == "hello"
    HoldallFileSystem.clear_instance_cache()


@pytest.mark.not_short
def test_processes_append_to_one_file(tmp_path: Path) -> None:
    at = new_location("sqlite", tmp_path)
    finish_together([start(append_some, at=at, name=name) for name in range(4)])
    with open_at(at) as store:
        lines = store.files(("filesystem",)).read_text("/log").splitlines()
        assert sorted(lines) == sorted(f"{name} {n}" for name in range(4) for n in range(10))


def append_some(at: dict[str, str], name: int) -> None:
    with open_at(at) as store:
        fs = HoldallFileSystem(store, skip_instance_cache=True)
        wait_to_begin()
        for n in range(10):
            with fs.open("log", "ab") as file:
                file.write(f"{name} {n}\n".encode())


def test_each_store_has_a_file_system_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec keeps file systems by the text of their arguments: two users of one store have the same."""
    with holdall.open("memory:") as store:
        ada, bob = (HoldallFileSystem(store.scoped(("users", user))) for user in ("ada", "bob"))
        ada.pipe_file("secret", b"of Ada")
        assert not bob.exists("secret")
    for name in ("one.db", "two.db"):
        monkeypatch.setenv("HOLDALL_URL", str(tmp_path / name))
        fsspec.filesystem("holdall").pipe_file(name, b"")
        assert fsspec.filesystem("holdall").find("") == [f"/{name}"]
    assert HoldallFileSystem(str(tmp_path / "one.db")) is HoldallFileSystem(str(tmp_path / "one.db"))
    HoldallFileSystem.clear_instance_cache()


def test_a_file_system_that_is_kept_is_of_an_open_store_in_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        kept.append(fsspec.filesystem("holdall", url="agent.db"))
        kept[-1].pipe_file(name, b"")
        assert kept[-1].find("") == [f"/{name}"]
        assert fsspec.filesystem("holdall", url="agent.db") is kept[-1]
    kept[-1].store.close()
    assert fsspec.filesystem("holdall", url="agent.db").find("") == ["/two"]
    HoldallFileSystem.clear_instance_cache()


def test_no_file_and_folder_have_one_name(fs: HoldallFileSystem) -> None:
    fs.mkdir("folder/below")
    for path in ("folder", "folder/below"):
        with pytest.raises(IsADirectoryError):
            fs.pipe_file(path, b"")
        with pytest.raises(IsADirectoryError):
            fs.open(path, "wb")
    fs.pipe_file("file", b"x")
    with pytest.raises(FileExistsError):
        fs.makedirs("file", exist_ok=True)
    for path in ("file/below", "file/below/deep"):
        with pytest.raises(NotADirectoryError):
            fs.mkdir(path)
    assert fs.find("", withdirs=True) == ["/", "/file", "/folder", "/folder/below"]


def test_of_two_that_create_a_file_one_fails(fs: HoldallFileSystem) -> None:
    first, second = fs.open("new", "xb"), fs.open("new", "xb")
    first.write(b"first")
    second.write(b"second")
    first.close()
    with pytest.raises(FileExistsError):
        second.close()
    assert fs.cat("new") == b"first"


def test_odd_arguments_are_refused_or_mean_what_they_do_elsewhere(fs: HoldallFileSystem) -> None:
    with pytest.raises(TypeError):
        fs.pipe_file("number", 5)  # type: ignore[arg-type]  # bytes(5) would be five zero bytes
    fs.pipe_file("file", b"abc")
    assert fs.cat_file("file", -9, -5) == b""
    with pytest.raises(holdall.errors.InvalidInput, match="did you mean"):
        HoldallFileSystem("memory:", "files")
