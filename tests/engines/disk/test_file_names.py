"""The paths of entries: escaped names, and paths and links that would lead out of the folder."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdall
from holdall.engines.disk.file_names import EntryName, build_names, parse_path, split_long_name
from holdall.engines.disk.folder import Folder, make_stamp
from holdall.errors import Corrupt, HoldallError, InvalidInput, NotFound, Unavailable
from holdall.model import keys
from holdall.ops import Delete, Put
from support.disk_stores import opened

VOLUME = ("filesystem",)
SECRET = b"the secret outside"
#: Names that a file system or the escapes could get wrong.
AWKWARD = [
    *("@a", "@", "%", "%40a", "%2F", "100%.md", "%+", "a%+", "%~", "a%~", ".git", ".GIT", ".holdall", "%2Egit"),
    *(
        "A",
        "a",
        "...",
        ".hidden",
        " ",
        " a ",
        "a.json",
        "@a.json",
        "é",
        "\u2028",
        "\\",
        "a:b",
        "CON",
        "-rf",
        "~",
        "x" * 300,
    ),
    *("é" * 200, "%2F" * 100, "." * 300, "@" + "y" * 600),
]


def read_everything(store: holdall.Store) -> dict[tuple[tuple[str, ...], str], Any]:
    contents = {(entry.namespace, entry.key): entry.value.get("content", entry.value) for entry in store.scan()}
    assert len(contents) == store.count()
    return contents


# Names ---------------------------------------------------------------------------------------------------------------

labels = st.text(min_size=1, max_size=300).filter(lambda text: "\x00" not in text and text != keys.RESERVED)
names = st.one_of(st.sampled_from(AWKWARD), labels)


@given(st.lists(names, min_size=1, max_size=4).map(tuple), names, st.booleans())
def test_the_path_of_any_entry_gives_its_name_back(namespace: tuple[str, ...], key: str, is_file: bool) -> None:
    if is_file:
        key = "/" + key.replace("\x1f", "/")
    try:
        keys.check_namespace(namespace)
        keys.check_key(key)
    except InvalidInput:
        return
    if is_file and not keys.is_path(key):
        return
    path = "/".join(map(split_long_name, build_names(namespace, key, is_file, VOLUME)))
    assert parse_path(path, VOLUME) == EntryName(namespace, key, is_file)
    for name in path.split("/"):
        assert 0 < len(name.encode()) <= 255
        assert name not in (".", "..")
        assert name.lower() not in (".git", ".holdall")
        assert not set(name) & {chr(code) for code in range(32)}


def test_difficult_names_can_be_restored_from_the_files_alone(folder: Path) -> None:
    with opened(folder) as store:
        for name in AWKWARD:
            store.put(("items",), name, {"name": name})
            store.put((name, "below"), "k", {"name": name})
            store.files().write(f"/{name}", name)
            store.files(("other", name)).write(f"/deep/{name}/file", name)
        store.put(("items",), "/a/../b\x01\n", {})
        store.put(("a/b", ".."), "..", {})
        store.put(VOLUME, "/a path", {"but": "an item"})
        before = read_everything(store)
        assert store.files().read_text("/@a.json") == "@a.json"
    shutil.rmtree(folder / ".holdall")
    with opened(folder) as store:
        assert read_everything(store) == before
        for name in AWKWARD:
            store.delete(("items",), name)
            store.delete((name, "below"), "k")
            store.files().delete(f"/{name}", recursive=True)
            store.files(("other", name)).delete("/", recursive=True)
        assert store.count() == 3
        assert len([path for path in folder.rglob("*") if path.is_file() and ".holdall" not in path.parts]) == 3


def test_the_longest_allowed_names(folder: Path) -> None:
    """Their paths are longer than Linux accepts in one call."""
    with opened(folder) as store:
        deep = "/" + "/".join("é" * 60 for _ in range(12))
        store.files(("\x01" * 340,)).write(deep, "deep")
        store.put(("x" * 1000,), "\x01" * 1536, {"a": 1})
        before = read_everything(store)
        assert store.files(("\x01" * 340,)).read_text(deep) == "deep"
    shutil.rmtree(folder / ".holdall")
    with opened(folder) as store:
        assert read_everything(store) == before


def test_a_file_and_a_folder_can_have_one_name(folder: Path) -> None:
    shape = {"content": "text", "encoding": "utf-8"}
    with opened(folder) as store:
        for first, second in (("/a", "/a/b/c"), ("/z/y/x", "/z/y"), ("/m", "/m/n"), ("/m/n/o", "/m/n/p")):
            store.put(VOLUME, first, {**shape, "content": first})
            store.put(VOLUME, second, {**shape, "content": second})
        before = read_everything(store)
        assert before == {(VOLUME, key): key for _, key in before}
        assert (folder / "a").read_text() == "/a"
        assert (folder / "z" / "y" / "x").read_text() == "/z/y/x"
    shutil.rmtree(folder / ".holdall")
    with opened(folder) as store:
        assert read_everything(store) == before
        for _, key in before:
            assert store.delete(VOLUME, key)
        assert [path.name for path in folder.iterdir()] == [".holdall"]
        store.files().write("/a/b/c", "again")
        assert (folder / "a" / "b" / "c").read_text() == "again"


def test_one_batch_frees_a_path_and_uses_it_again(folder: Path) -> None:
    shape = {"content": "new", "encoding": "utf-8"}
    with opened(folder) as store:
        store.files().write("/a", "old")
        store.files().write("/b/c", "old")
        store.execute(
            [
                *(Delete(VOLUME, "/a"), Put(VOLUME, "/a/deep", shape)),
                *(Delete(VOLUME, "/b/c"), Put(VOLUME, "/b", shape)),
            ]
        )
        assert (folder / "a" / "deep").read_text() == (folder / "b").read_text() == "new"
        store.put(VOLUME, "/b", {"now": "an item"})
        assert not (folder / "b").exists()
        store.put(VOLUME, "/b", shape)
        assert sorted(path.name for path in folder.iterdir()) == [".holdall", "a", "b"]


def test_a_case_insensitive_file_system(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Folder.create
    monkeypatch.setattr(Folder, "create", lambda tree: (make(tree), setattr(tree, "is_case_insensitive", True)))
    with opened(folder) as store:
        cases = ("/README.md", "/readme.md", "/Docs/a", "/docs/b", "/docs/A", "/docs")
        for path in (*cases, "/caf\u00e9", "/cafe\u0301", "/CAFE\u0301/a", "/CAF\u00c9/b"):
            store.put(VOLUME, path, {"content": path, "encoding": "utf-8"})
        before = read_everything(store)
        there = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if ".holdall" not in path.parts]
        assert len({unicodedata.normalize("NFC", name).casefold() for name in there}) == len(there)
    shutil.rmtree(folder / ".holdall")
    with opened(folder) as store:
        assert read_everything(store) == before == {(VOLUME, key): key for _, key in before}


def test_names_that_other_programs_chose_are_used_as_they_are(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir()
    for name in ("100%.md", "%41bc", "%2E%2E", "a%2Fb", "@file.txt"):
        (folder / name).write_text(name)
    for name in (b"\xff.md", b"new\nline", b"@.json"):
        (folder / os.fsdecode(name)).write_text("{}")
    with caplog.at_level(logging.WARNING, "holdall"), opened(folder) as store:
        files = store.files()
        assert sorted(info.path for info in files.walk()) == ["/%2E%2E", "/%41bc", "/100%.md", "/@file.txt", "/a%2Fb"]
        assert all(files.read_text(info.path) == info.path[1:] for info in files.walk())
        files.write("/%41bc", "changed")
        files.move("/a%2Fb", "/c")
    assert (folder / "%41bc").read_text() == "changed"
    assert not (folder / "a%2Fb").exists()
    assert caplog.text.count("cannot be the name of an entry") == 3


def test_a_name_that_is_not_utf_8_is_ignored(folder: Path) -> None:
    with opened(folder) as store:
        files = store.files()
        files.write("/a", "x")
        for name in (b"\xff.md", b"\xfe/in/side", b"b/\xff", b"c/\xff"):
            path = folder / os.fsdecode(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("not ours")
            assert [info.path for info in files.walk()] == ["/a"]
        files.write("/b", "a file")
        files.write("/c/d", "beside it")
        assert (folder / "c" / "d").read_text() == "beside it"
        assert (folder / os.fsdecode(b"b/\xff")).read_text() == "not ours"
    with opened(folder) as store:
        assert [info.path for info in store.files().walk()] == ["/a", "/b", "/c/d"]


def test_the_second_of_two_names_for_one_entry_is_ignored(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir()
    (folder / "a").write_text("first")
    (folder / "a%~").write_text("second")
    with caplog.at_level(logging.WARNING, "holdall"), opened(folder) as store:
        assert store.files().read_text("/a") == "first"
        assert "'a%~' would be the same entry as 'a'" in caplog.text
    assert (folder / "a%~").read_text() == "second"


def test_a_file_with_a_very_long_name_that_is_removed_is_not_found(folder: Path) -> None:
    with opened(folder) as store:
        files = store.files(("\x01" * 340,))
        path = "/" + "%+" * 767
        files.write(path, "deep")
        assert files.read_text(path) == "deep"
        shutil.rmtree(next(there for there in folder.iterdir() if there.name != ".holdall"))
        with pytest.raises(NotFound):
            files.read(path)


# Outside of the store ------------------------------------------------------------------------------------------------


def test_entries_never_lie_in_a_git_folder_or_in_the_holdall_folder(folder: Path) -> None:
    (folder / ".git" / "hooks").mkdir(parents=True)
    (folder / ".git" / "config").write_text("[core]")
    with opened(folder) as store:
        files = store.files()
        assert [*files.walk()] == []
        files.write("/.git/hooks/pre-commit", "#!/bin/sh\nrm -rf /")
        files.write("/.holdall/catalogue.db", "not a database")
        files.write("/sub/.git/config", "")
        assert files.read_text("/.git/hooks/pre-commit").startswith("#!")
        files.delete("/.git", recursive=True)
        assert files.ls("/.git") == []
    assert sorted(path.name for path in (folder / ".git").rglob("*")) == ["config", "hooks"]
    assert not (folder / "sub" / ".git").exists()
    with opened(folder) as store:
        assert store.files().read_text("/.holdall/catalogue.db") == "not a database"


@pytest.fixture
def outside(tmp_path: Path, folder: Path) -> Path:
    """A folder beside the store's, whose name starts with the name of the store's folder."""
    folder.mkdir()
    outside = tmp_path / "store-evil"
    outside.mkdir()
    (outside / "secret.txt").write_bytes(SECRET)
    return outside


def test_cve_2025_53110_a_folder_whose_name_starts_alike(folder: Path, outside: Path) -> None:
    """The filesystem MCP server compared path prefixes: /store-evil counted as inside /store."""
    with opened(folder) as store:
        files = store.files()
        for path in (
            "/../store-evil/secret.txt",
            f"{outside}/secret.txt",
            "-evil/secret.txt",
            "/..%2Fstore-evil/secret.txt",
        ):
            with pytest.raises((InvalidInput, NotFound)):
                files.read(path)
        for path in ("/../store-evil/new.txt", "/a/../../store-evil/new.txt", "-evil/new.txt"):
            with pytest.raises(InvalidInput):
                files.write(path, "x")
        files.write(f"{outside}/new.txt", "an absolute path begins at the volume")
        store.put(("..", "store-evil"), "new.txt", {})
        store.put(("..",), "../../store-evil/new.txt", {})
        store.put(VOLUME, "/../store-evil/new.txt", {})
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["store", "store-evil"]


@pytest.mark.parametrize("kind", ["file", "folder", "parent", "dangling"])
def test_cve_2025_53109_links_are_not_followed(folder: Path, outside: Path, kind: str) -> None:
    """The filesystem MCP server followed a symbolic link out of the folder that it was given."""
    target = {"file": outside / "secret.txt", "folder": outside, "parent": outside.parent, "dangling": outside / "new"}[
        kind
    ]
    (folder / "link").symlink_to(target)
    with opened(folder) as store:
        files = store.files()
        assert [*files.walk()] == []
        assert files.grep("secret") == []
        for path in ("/link", "/link/secret.txt", "/link/store-evil/secret.txt"):
            with pytest.raises(HoldallError):
                files.read(path)
        with pytest.raises(InvalidInput, match="symbolic link"):
            files.write("/link/new.txt", "x")
        with pytest.raises(InvalidInput, match="symbolic link"):
            files.write("/link/store-evil/new.txt", "x")
        assert files.delete("/link", recursive=True) == 0
        files.write("/link", "replaces the link itself")
        assert files.read_text("/link") == "replaces the link itself"
        files.delete("/link", recursive=True)
    assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [("secret.txt", SECRET)]


def test_a_link_that_replaces_a_file_is_not_followed(folder: Path, outside: Path) -> None:
    with opened(folder) as store:
        files = store.files()
        files.write("/notes/a.txt", "mine")
        (folder / "notes" / "a.txt").unlink()
        (folder / "notes" / "a.txt").symlink_to(outside / "secret.txt")
        with pytest.raises(NotFound):
            files.read("/notes/a.txt")
        files.append("/notes/a.txt", "appended")
        assert files.read_text("/notes/a.txt") == "appended"
        assert not (folder / "notes" / "a.txt").is_symlink()
    assert (outside / "secret.txt").read_bytes() == SECRET


def test_a_link_that_replaces_a_folder_is_not_followed(folder: Path, outside: Path) -> None:
    with opened(folder) as store:
        files = store.files()
        files.write("/notes/secret.txt", "mine")
        shutil.rmtree(folder / "notes")
        (folder / "notes").symlink_to(outside)
        with pytest.raises(NotFound):
            files.read("/notes/secret.txt")
        assert files.delete("/notes", recursive=True) == 0
        with pytest.raises(InvalidInput, match="symbolic link"):
            files.append("/notes/secret.txt", "x")
    assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [("secret.txt", SECRET)]


@pytest.mark.parametrize("known", [True, False], ids=["read before", "not read before"])
def test_a_link_created_between_check_and_read_is_not_followed(
    folder: Path, outside: Path, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read must return the file that was compared, or fail."""
    with opened(folder) as store:
        files = store.files()
        files.write("/notes/secret.txt", "m" * len(SECRET))
        if known:
            files.read("/notes/secret.txt")
        files.ls("/")
        shutil.rmtree(folder / "notes")
        (folder / "notes").symlink_to(outside)
        monkeypatch.setattr(store._engine_handle.engine, "_import_edits", lambda: None)
        for read in (
            lambda: files.read("/notes/secret.txt"),
            lambda: files.read_range("/notes/secret.txt", 0, 5),
            lambda: store.get(VOLUME, "/notes/secret.txt"),
        ):
            with pytest.raises(Unavailable, match="keeps changing the file"):
                read()


@pytest.mark.parametrize("name", [".holdall", ".holdall/new", ".holdall/catalogue.db", ".holdall/.gitignore"])
def test_a_link_that_replaces_the_catalogue_is_refused(folder: Path, outside: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(outside / "secret.txt" if "." in name[9:] else outside)
    with pytest.raises(InvalidInput, match="Path traversal blocked"):
        opened(folder).files().write("/a", "x")
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]
    assert (outside / "secret.txt").read_bytes() == SECRET


def test_a_forged_catalogue_gives_no_access_to_files_outside(folder: Path, outside: Path) -> None:
    secret = outside / "secret.txt"
    away = f"../{outside.name}/secret.txt"
    stamp = make_stamp(secret.stat())
    statements = {
        "removed": f"INSERT INTO holdall_doomed VALUES ('{away}')",
        "written": f"UPDATE holdall_places SET path = '{away}', folded = '{away}', stamp = '{stamp}'",
        "read": f"UPDATE holdall_chunks SET data = '{stamp}/{away}'",
    }
    for what, statement in statements.items():
        here = folder / what
        with opened(here) as store:
            store.files().write("/a", SECRET)
        catalogue = apsw.Connection(str(here / ".holdall" / "catalogue.db"))
        catalogue.execute(statement.replace("../", "../../"))
        catalogue.close()
        with opened(here) as store, contextlib.suppress(Unavailable, Corrupt):
            assert what != "read" or store.files().read("/a") != SECRET
            store.files().delete("/a", recursive=True)
            store.files().write("/a", "evil")
            store.files().write("/b", "evil")
        assert secret.read_bytes() == SECRET, what


def test_a_deleted_link_leaves_its_target(folder: Path, outside: Path) -> None:
    """AG2's disk store deletes the target of a link."""
    with opened(folder) as store:
        store.files().write("/dir/a.txt", "x")
        (folder / "dir" / "link").symlink_to(outside / "secret.txt")
        assert store.files().delete("/dir", recursive=True) == 1
        assert store.files().ls("/") == []
    assert (outside / "secret.txt").read_bytes() == SECRET
    assert (folder / "dir" / "link").is_symlink()


def test_a_named_pipe_blocks_no_read(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    with opened(folder) as store:
        assert store.files().ls("/") == []
        store.files().write("/pipe", "a file now")
        assert store.files().read_text("/pipe") == "a file now"
