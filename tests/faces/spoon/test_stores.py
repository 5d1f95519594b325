"""spoon_ai's names over a holdall store: its documentation's examples, its words, and where its own store fails.

spoon_ai's wheel ships no `spoon_ai.backends`, so nothing here imports it; what a release that has them would see is
tried with a stand-in of the same names.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.errors import InvalidInput, NotFound, StoreClosed
from holdall.faces import spoon
from holdall.faces.spoon import (
    BackendProtocol,
    BaseStore,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    Imported,
    InMemoryStore,
    SQLiteStore,
    StoreBackend,
    WriteResult,
    aimport_from,
    create_store_backend,
    import_from,
)
from holdall.faces.spoon import protocol as spoon_protocol
from support.face_calls import Calls
from support.servers import postgres_url
from support.threads import together

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
_numbers = itertools.count()


@pytest.fixture
def store(any_store: holdall.Store) -> SQLiteStore:
    return SQLiteStore(any_store)


@pytest.fixture
def backend(store: SQLiteStore, runner: asyncio.Runner | None, place: tuple[str, ...]) -> Any:
    return Calls(StoreBackend(store, namespace=place), runner)


# The examples of its documentation -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_example_of_store_backend() -> None:
    store = SQLiteStore("agent_files.db")
    backend = StoreBackend(store)

    # Write persists across sessions
    backend.write("/notes.txt", "Important notes")

    # Read from any thread
    content = backend.read("/notes.txt")

    assert content == "     1\tImportant notes"
    store.close()
    assert Path("agent_files.db").exists()
    with closing(SQLiteStore("agent_files.db")) as again:
        assert StoreBackend(again).read("/notes.txt") == content


@pytest.mark.usefixtures("folder")
def test_the_examples_of_create_store_backend() -> None:
    # Use SQLite for persistence
    persistent = create_store_backend(db_path="agent.db")
    # Use in-memory store for testing
    passing = create_store_backend(use_sqlite=False)
    # With assistant isolation
    isolated = create_store_backend(assistant_id="agent-001")

    for backend in (persistent, passing, isolated):
        assert backend.write("/f.txt", "x").error is None
        assert backend.read("/f.txt") == "     1\tx"
        backend.store.close()
    assert Path("agent.db").exists()
    with closing(SQLiteStore()) as store:
        assert store.db_path == "store.db"
        assert store.get(("agent-001", "filesystem"), "/f.txt")["content"] == ["x"]
        assert store.get(("filesystem",), "/f.txt") is None
        assert isinstance(passing.store, InMemoryStore)


@pytest.mark.parametrize("use_sqlite", [True, False])
def test_a_created_backend_closes_the_store_that_was_made_for_it(use_sqlite: bool, tmp_path: Path) -> None:
    with create_store_backend(db_path=tmp_path / "store.db", use_sqlite=use_sqlite) as backend:
        backend.write("/f", "x")
    with pytest.raises(StoreClosed):
        backend.store.get(("filesystem",), "/f")
    with SQLiteStore("memory:") as store:
        create_store_backend(store).close()
        assert store.get(("filesystem",), "/f") is None


def test_the_examples_of_the_protocol(backend: Any) -> None:
    result = backend.write("/workspace/hello.txt", "Hello, World!")
    assert f"Created: {result.path}" == "Created: /workspace/hello.txt"

    backend.write("/workspace/main.py", "import os\nimport sys\n\ndef main():\n    pass  # TODO\n")
    content = backend.read("/workspace/main.py", limit=100)
    shown = ["     1\timport os", "     2\timport sys", "     3\t", "     4\tdef main():", "     5\t    pass  # TODO"]
    assert content.split("\n") == shown

    backend.write("/workspace/config.py", "DEBUG = False")
    result = backend.edit("/workspace/config.py", old_string="DEBUG = False", new_string="DEBUG = True")
    assert (result.path, result.occurrences, result.error) == ("/workspace/config.py", 1, None)
    backend.write("/workspace/code.py", "old_function() + old_function()")
    result = backend.edit("/workspace/code.py", "old_function", "new_function", replace_all=True)
    assert f"Replaced {result.occurrences} occurrences" == "Replaced 2 occurrences"

    matches = backend.grep_raw("TODO", path="/workspace", glob="*.py")
    assert [f"{m['path']}:{m['line']}: {m['text']}" for m in matches] == ["/workspace/main.py:5:     pass  # TODO"]

    backend.write("/workspace/deep/test_a.py", "")
    backend.write("/workspace/package.json", "{}")
    every = {"/workspace/config.py", "/workspace/code.py", "/workspace/main.py", "/workspace/deep/test_a.py"}
    assert {info["path"] for info in backend.glob_info("**/*.py", path="/workspace")} == every
    assert [info["path"] for info in backend.glob_info("*.json", path="/workspace")] == ["/workspace/package.json"]
    assert [info["path"] for info in backend.glob_info("**/test_*.py", path="/workspace")] == [
        "/workspace/deep/test_a.py"
    ]

    responses = backend.upload_files([("/app/config.json", b'{"key": "value"}'), ("/app/data.txt", b"content here")])
    assert [(response.path, response.error) for response in responses] == [
        ("/app/config.json", None),
        ("/app/data.txt", None),
    ]
    responses = backend.download_files(["/app/config.json", "/app/data.txt"])
    assert [len(response.content) for response in responses] == [16, 12]
    assert backend.download_files(["/nonexistent.txt"])[0].error == "file_not_found"


@pytest.mark.usefixtures("folder")
def test_any_engines_url_is_taken_in_place_of_a_file_name() -> None:
    urls = ["memory:spoon", "sqlite:///other.db", f"{postgres_url()}", ":memory:", Path("path.db")]
    for url in urls:
        space = ("spoon", f"url-{next(_numbers)}")
        with closing(SQLiteStore(url)) as store:
            assert store.db_path == url
            backend = create_store_backend(store, namespace=space)
            assert backend.write("/f", "kept").error is None
            assert StoreBackend(store, space).read("/f") == "     1\tkept"
        if url not in (":memory:", "memory:spoon"):
            again = create_store_backend(db_path=url, namespace=space)
            assert again.read("/f") == "     1\tkept"
            again.store.close()


# Signatures, formats and words ---------------------------------------------------------------------------------------

SIGNATURES = {
    "__init__": "(self, store, namespace=None, assistant_id=None)",
    "ls_info": "(self, path)",
    "read": "(self, file_path, offset=0, limit=2000)",
    "write": "(self, file_path, content)",
    "edit": "(self, file_path, old_string, new_string, replace_all=False)",
    "grep_raw": "(self, pattern, path=None, glob=None)",
    "glob_info": "(self, pattern, path='/')",
    "upload_files": "(self, files)",
    "download_files": "(self, paths)",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_spoon_ais(name: str) -> None:
    assert bare(getattr(StoreBackend, name)) == SIGNATURES[name]
    if name != "__init__":
        twin = getattr(StoreBackend, f"a{name}")
        assert inspect.iscoroutinefunction(twin)
        assert bare(twin) == SIGNATURES[name]


def test_other_signatures_are_spoon_ais_too() -> None:
    assert bare(create_store_backend) == (
        "(store=None, db_path='store.db', use_sqlite=True, namespace=None, assistant_id=None)"
    )
    assert bare(SQLiteStore) == "(db_path='store.db')"
    assert bare(InMemoryStore) == "()"
    for kind in (BaseStore, InMemoryStore, SQLiteStore):
        assert bare(kind.get) == "(self, namespace, key)"
        assert bare(kind.put) == "(self, namespace, key, value)"
        assert bare(kind.delete) == "(self, namespace, key)"
        assert bare(kind.search) == "(self, namespace, query=None, filter=None, limit=100, offset=0)"
    assert issubclass(SQLiteStore, BaseStore)
    assert issubclass(StoreBackend, BackendProtocol)
    assert bare(WriteResult) == "(error=None, path=None, files_update=None)"
    assert list(inspect.signature(EditResult).parameters) == ["error", "path", "files_update", "occurrences"]
    assert list(inspect.signature(FileUploadResponse).parameters) == ["path", "error"]
    assert list(inspect.signature(FileDownloadResponse).parameters) == ["path", "content", "error"]


def bare(function: Any) -> str:
    signature = inspect.signature(function)
    without = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=without, return_annotation=inspect.Signature.empty))


def test_the_words(backend: Any) -> None:
    assert backend.read("/no") == backend.edit("/no", "a", "b").error == "Error: File '/no' not found"
    assert backend.write("/f", "a\na") == WriteResult(path="/f")
    assert backend.write("/f", "b") == WriteResult(
        error="Cannot write to /f because it already exists. Read and then make an edit, or write to a new path."
    )
    assert backend.read("/f", 2) == "Error: Line offset 2 exceeds file length (2 lines)"
    assert backend.edit("/f", "b", "c").error == "Error: String not found in file: 'b'"
    assert backend.edit("/f", "a", "c").error == (
        "Error: String 'a' appears 2 times in file. Use replace_all=True to replace all instances, or provide a more"
        " specific string."
    )
    assert backend.edit("/f", "a", "c", True) == EditResult(path="/f", occurrences=2)
    assert backend.write("/empty", "") == WriteResult(path="/empty")
    backend.write("/blank", " \n ")
    assert backend.read("/empty") == backend.read("/blank") == "System reminder: File exists but has empty contents"


def test_lines_are_numbered_and_long_ones_go_on_below(backend: Any) -> None:
    long = "x" * 10_000 + "y" * 10_000 + "z"
    backend.write("/f", f"one\n\n{long}\n{'w' * 10_000}\nlast\n")
    rows = backend.read("/f").split("\n")
    assert rows == [
        "     1\tone",
        "     2\t",
        "     3\t" + "x" * 10_000,
        "   3.1\t" + "y" * 10_000,
        "   3.2\tz",
        "     4\t" + "w" * 10_000,
        "     5\tlast",
    ]
    assert backend.read("/f", 4, 7) == "     5\tlast"
    assert backend.read("/f", 0, 1) == backend.read("/f", -5, 1) == "     1\tone"
    assert backend.read("/f", 0, 0) == ""


def test_files_are_lists_of_lines(store: SQLiteStore, backend: Any, place: tuple[str, ...]) -> None:
    backend.write("/f", "a\nb\r\n")
    value = store.get(place, "/f")
    assert list(value) == ["content", "created_at", "modified_at"]
    assert value["content"] == ["a", "b\r", ""]
    backend.edit("/f", "a", "c")
    changed = store.get(place, "/f")
    assert (list(changed), changed["content"]) == (list(value), ["c", "b\r", ""])
    assert changed["created_at"] == value["created_at"] == value["modified_at"] < changed["modified_at"]
    backend.upload_files([("/g", b"x\ny"), ("/h", PNG)])
    assert store.get(place, "/g")["content"] == ["x", "y"]
    assert store.get(place, "/h")["encoding"] == "base64"


def test_listings_say_path_kind_size_and_time(backend: Any) -> None:
    backend.write("/d/é.md", "é")
    backend.write("/d/e/f", "")
    [folder, file] = backend.ls_info("/d")
    assert folder == {"path": "/d/e/", "is_dir": True, "size": 0, "modified_at": ""}
    assert {key: file[key] for key in ("path", "is_dir", "size")} == {"path": "/d/é.md", "is_dir": False, "size": 2}
    assert file["modified_at"].endswith("+00:00")
    assert [info["path"] for info in backend.ls_info("/")] == ["/d/"]
    assert backend.ls_info("/none") == backend.ls_info("/d/é.md") == backend.ls_info("/../d") == []
    backend.edit("/d/é.md", "é", "e")
    assert [info["path"] for info in backend.glob_info("**")] == ["/d/é.md", "/d/e/f"]


def test_a_pattern_without_a_slash_looks_in_the_folder_itself(backend: Any) -> None:
    for path in ("/a.py", "/s/b.py", "/s/t/c.py"):
        backend.write(path, "x")

    def found(*args: str) -> list[str]:
        return sorted(info["path"] for info in backend.glob_info(*args))

    assert found("*.py") == found("*.py", "/") == found("/*.py") == ["/a.py"]
    assert found("*.py", "/s") == found("*.py", "s/") == ["/s/b.py"]
    assert found("**/*.py") == ["/a.py", "/s/b.py", "/s/t/c.py"]
    assert found("s/**") == found("/s/**/*.py") == ["/s/b.py", "/s/t/c.py"]
    assert found("{a,b}.py") == ["/a.py"]
    assert found("../*") == found("{a,}" * 18) == found("") == found("*.rs") == []


def test_bad_input_is_an_error_in_its_place(backend: Any) -> None:
    backend.write("/d/f", "x")
    for path in ("/../f", "/a\x00", "/\ud800", None, 5):
        assert backend.read(path).startswith("Error: ")
        assert backend.write(path, "x").error.startswith("Error: ")
        assert backend.edit(path, "a", "b").error.startswith("Error: ")
        assert backend.upload_files([(path, b"")])[0].error == "invalid_path"
        assert backend.download_files([path])[0].error == "invalid_path"
        assert backend.ls_info(path) == []
    assert backend.write("/d", "x").error.startswith("Error: ")
    assert backend.write("/d/f/g", "x").error.startswith("Error: ")
    assert backend.read("/d") == "Error: File '/d' not found"
    assert backend.grep_raw("x", "/../f").startswith("Error: ")
    assert backend.grep_raw("x", glob="../*").startswith("Error: ")
    assert backend.grep_raw(None).startswith("Error: ")


def test_only_errors_that_a_model_can_read_are_results(runner: asyncio.Runner | None) -> None:
    """A list has no room for an error, and an outage is not an empty folder."""
    store = SQLiteStore("memory:")
    backend = Calls(StoreBackend(store), runner)
    store.close()
    assert "closed" in backend.read("/f")
    assert "closed" in backend.write("/f", "x").error
    assert "closed" in backend.grep_raw("x")
    assert "closed" in backend.upload_files([("/f", b"")])[0].error
    for method in (backend.ls_info, backend.glob_info):
        with pytest.raises(StoreClosed):
            method("/f")


# The store of dicts --------------------------------------------------------------------------------------------------


def test_dicts_come_back_equal_and_are_the_callers_own(store: SQLiteStore, place: tuple[str, ...]) -> None:
    value = {"content": ["a"], "extra": {"n": [1, None, 2.5]}, "é": True}
    assert store.put(place, "any key", value) is None
    given = store.get(place, "any key")
    assert given == value
    given["extra"]["n"].append("changed")
    value["content"].append("changed")
    assert store.get(place, "any key") == {"content": ["a"], "extra": {"n": [1, None, 2.5]}, "é": True}
    assert store.delete(place, "any key") is store.delete(place, "any key") is None
    assert store.get(place, "any key") is None


def test_search_filters_looks_for_text_and_pages(store: SQLiteStore, place: tuple[str, ...]) -> None:
    for number in range(7):
        store.put(place, f"k{number}", {"content": ["Tea", f"line {number}"], "odd": number % 2, "n": {"x": number}})
    store.put(place, "z", {"content": "plain TEXT", "odd": 1, "a.b": 1})
    store.put((*place, "child"), "k9", {"content": ["tea"]})

    def found(**options: Any) -> list[str]:
        return [hit["key"] for hit in store.search(place, **options)]

    every = [f"k{number}" for number in range(7)] + ["z"]
    assert found() == every
    assert store.search(place, limit=1) == [{"key": "k0", "value": store.get(place, "k0")}]
    assert found(filter={"odd": 1}) == ["k1", "k3", "k5", "z"]
    assert found(filter={"odd": 1, "n": {"x": 3}}) == ["k3"]
    assert found(filter={"n": {}}) == found(filter={"odd": "1"}) == []
    assert found(filter={"missing": None}) == found(filter={}) == every
    assert found(filter={"a.b": 1}) == ["z"]
    assert found(query="tea") == every[:-1]
    assert found(query="text") == ["z"]
    assert found(query="LINE 3", filter={"odd": 1}) == ["k3"]
    assert found(offset=3, limit=2) == ["k3", "k4"]
    assert found(offset=8) == found(limit=0) == []
    paged = [hit["key"] for start in range(0, 9, 3) for hit in store.search(place, limit=3, offset=start)]
    assert paged == every


def test_in_memory_stores_are_private() -> None:
    one, other = InMemoryStore(), InMemoryStore()
    one.put(("a",), "k", {"v": 1})
    assert (one.get(("a",), "k"), other.get(("a",), "k")) == ({"v": 1}, None)


def test_a_backend_stands_on_stores_urls_and_other_faces(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    first = StoreBackend(any_store, place, "agent")
    first.write("/f", "x")
    second = StoreBackend(first, place, "agent")
    assert second.read("/f") == "     1\tx"
    assert second.store.store is any_store
    second.store.close()
    assert any_store.files(("agent", *place)).read_text("/f") == "x"
    with pytest.raises(InvalidInput, match="URL"):
        StoreBackend(object())
    with pytest.raises(InvalidInput, match="namespace"):
        StoreBackend(any_store, namespace=("a", ""))


# Where spoon_ai's own store fails ------------------------------------------------------------------------------------


def test_namespaces_with_a_slash_neither_collide_nor_leak(store: SQLiteStore, place: tuple[str, ...]) -> None:
    """spoon_ai joins labels with "/", so these three were one."""
    spaces = [(*place, "a/b"), (*place, "a", "b"), (*place, "a"), (f"{place[0]}/{place[1]}", "a", "b")]
    for number, space in enumerate(spaces):
        StoreBackend(store, space).write("/f", f"in {number}")
    for number, space in enumerate(spaces):
        backend = StoreBackend(store, space)
        assert backend.read("/f") == f"     1\tin {number}"
        assert [info["path"] for info in backend.ls_info("/")] == ["/f"]
        assert [hit["key"] for hit in store.search(space)] == ["/f"]
    assert StoreBackend(store, place, "b").read("/f") == "Error: File '/f' not found"


def test_8_threads_on_one_store_keep_every_write_that_was_acknowledged(tmp_path: Path) -> None:
    """Of 1,272 that were acknowledged, 50 were absent after reopening."""
    store = SQLiteStore(tmp_path / "agent_files.db")
    backend = StoreBackend(store, namespace=("shared",))

    def write(thread: int) -> None:
        for number in range(40):
            assert backend.write(f"/{thread}/{number}.txt", f"{thread}:{number}").error is None

    together([partial(write, thread) for thread in range(8)])
    store.close()
    with closing(SQLiteStore(tmp_path / "agent_files.db")) as again:
        backend = StoreBackend(again, namespace=("shared",))
        for thread, number in itertools.product(range(8), range(40)):
            assert backend.read(f"/{thread}/{number}.txt") == f"     1\t{thread}:{number}"


def test_of_two_writes_of_one_new_file_one_succeeds(store: SQLiteStore, place: tuple[str, ...]) -> None:
    backend = StoreBackend(store, place)
    done: dict[int, list[WriteResult]] = {number: [] for number in range(20)}

    def write(who: str) -> None:
        for number, results in done.items():
            results.append(backend.write(f"/{number}", who))

    together([partial(write, who) for who in "abcd"])
    for results in done.values():
        assert sorted(result.error is None for result in results) == [False, False, False, True]
        assert all("already exists" in str(result.error) for result in results if result.error)


def test_an_edit_of_nothing_does_not_shred_the_file(backend: Any) -> None:
    backend.write("/f", "text")
    assert "cannot be empty" in backend.edit("/f", "", "-", replace_all=True).error
    assert backend.read("/f") == "     1\ttext"


def test_binary_files_are_taken_and_given_back(backend: Any) -> None:
    assert [one.error for one in backend.upload_files([("/p.png", PNG), ("/t", "é\r\n".encode())])] == [None, None]
    assert [one.content for one in backend.download_files(["/p.png", "/t"])] == [PNG, "é\r\n".encode()]
    assert backend.read("/p.png").startswith("Error: '/p.png' is not text")
    assert backend.edit("/p.png", "P", "Q").error == "Error: Cannot edit binary files with text replacements."


def test_grep_raw_is_literal_as_it_is_documented(backend: Any) -> None:
    backend.write("/f", "a.c\nabc\n(x\n")
    assert [match["text"] for match in backend.grep_raw("a.c")] == ["a.c"]
    assert backend.grep_raw("(") == [{"path": "/f", "line": 3, "text": "(x"}]
    assert backend.grep_raw(".*") == []


def test_ls_does_not_read_the_whole_namespace_again_and_again() -> None:
    """It was read by pages of 100, each of which read all of it."""
    seen: list[tuple[str, ...]] = []
    with holdall.open("memory:", on_op=lambda event: seen.append(event.ops)) as store:
        backend = StoreBackend(store)
        backend.upload_files([(f"/{number % 40}/{number}", b"x") for number in range(800)])
        seen.clear()
        assert len(backend.ls_info("/7")) == 20
        assert seen == [("Children",)]


def test_edits_at_once_are_all_kept(store: SQLiteStore, place: tuple[str, ...]) -> None:
    backend = StoreBackend(store, place)
    backend.write("/f", "".join(f"<{thread}>\n" for thread in range(4)))

    def edit(thread: int) -> None:
        for number in range(20):
            assert backend.edit("/f", f"<{thread}>", f"{number} <{thread}>").error is None

    together([partial(edit, thread) for thread in range(4)])
    expected = [" ".join([*map(str, range(20)), f"<{thread}>"]) for thread in range(4)]
    assert store.get(place, "/f")["content"] == [*expected, ""]


# What spoon_ai has kept ----------------------------------------------------------------------------------------------


def old_database(path: Path, rows: list[tuple[str, str, Any]]) -> None:
    """A file as spoon_ai's own `SQLiteStore` writes it."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TABLE store (namespace TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,"
            " PRIMARY KEY (namespace, key))"
        )
        database.executemany(
            "INSERT INTO store VALUES (?, ?, ?)",
            [(space, key, value if isinstance(value, str) else json.dumps(value)) for space, key, value in rows],
        )
        database.commit()


TIMES = {"created_at": "2026-06-01T10:00:00+00:00", "modified_at": "2026-06-02T10:00:00+00:00"}


def bring(path: Path, into: Any, runner: asyncio.Runner | None) -> Imported:
    return import_from(path, into) if runner is None else runner.run(aimport_from(path, into))


def test_a_database_of_spoon_ais_is_imported(
    any_store: holdall.Store, runner: asyncio.Runner | None, place: tuple[str, ...], tmp_path: Path
) -> None:
    home = "/".join(place)
    notes = {"content": ["a", "é", ""], **TIMES}
    rows: list[tuple[str, str, Any]] = [(home, f"/d/{number:03}", {"content": [str(number)]}) for number in range(250)]
    rows += [(f"{home}/agent-1/filesystem", "/notes.txt", notes), (home, "a fact", {"any": ["thing"]})]
    old_database(tmp_path / "old.db", rows)
    assert bring(tmp_path / "old.db", any_store, runner) == Imported(total=252, imported=252)
    backend = StoreBackend(any_store, (*place, "agent-1", "filesystem"))
    assert backend.read("/notes.txt") == "     1\ta\n     2\té"
    assert backend.store.get((*place, "agent-1", "filesystem"), "/notes.txt") == notes
    assert backend.store.get(place, "a fact") == {"any": ["thing"]}
    assert len(StoreBackend(any_store, place).ls_info("/d")) == 250
    # again: what has changed since stays
    backend.edit("/notes.txt", "é", "e")
    assert bring(tmp_path / "old.db", any_store, runner) == Imported(total=252, present=252)
    assert backend.read("/notes.txt") == "     1\ta\n     2\te"


def test_namespace_of_sets_the_labels_of_an_import(tmp_path: Path) -> None:
    old_database(tmp_path / "old.db", [("a/b", "k", {"n": 1}), ("a//b", "k", {"n": 2})])
    assert import_from(tmp_path / "old.db", tmp_path / "new.db", namespace_of=lambda text: ["kept", text]).imported == 2
    with closing(SQLiteStore(tmp_path / "new.db")) as store:
        assert store.get(("kept", "a/b"), "k") == {"n": 1}
        assert store.get(("kept", "a//b"), "k") == {"n": 2}
    with holdall.open("memory:") as store_itself:
        assert import_from(str(tmp_path / "old.db"), store_itself).imported == 2
        assert store_itself.namespaces() == [("a", "b"), ("a//b",)]


def test_an_import_that_is_not_possible_explains_why(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no file"):
        import_from(tmp_path / "missing.db", "memory:")
    assert not (tmp_path / "missing.db").exists()
    (tmp_path / "text").write_text("no database at all")
    with closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("CREATE TABLE other (x)")
    for name in ("text", "other.db"):
        with pytest.raises(InvalidInput, match="not a database of spoon_ai's"):
            import_from(tmp_path / name, "memory:")


def test_a_row_that_cannot_be_imported_is_reported_and_the_others_are_imported(tmp_path: Path) -> None:
    rows = [("a", "k", "{not json"), ("a", "l", "[]"), ("a", "m", {}), ("b", "m", {"second": True}), ("c", "m", {})]
    old_database(tmp_path / "old.db", rows)
    recorded: list[tuple[int, int]] = []
    with holdall.open("memory:") as store:
        outcome = import_from(
            tmp_path / "old.db",
            store,
            namespace_of=lambda label: "no tuple" if label == "c" else ("one",),  # type: ignore[return-value]  # the mistake
            progress=lambda done, total: recorded.append((done, total)),
        )
        assert [(entry.namespace, entry.key, entry.value) for entry in store.scan()] == [(("one",), "m", {})]
    assert (outcome.total, outcome.imported, outcome.present) == (5, 1, 1)
    assert [(one.namespace, one.key) for one in outcome.refused] == [
        (("one",), "k"),
        (("one",), "l"),
        ("no tuple", "m"),
    ]
    assert recorded == [(5, 5)]


def test_a_file_comes_with_its_times_and_comes_again_where_it_has_changed(tmp_path: Path) -> None:
    old_database(tmp_path / "old.db", [("filesystem", "/f", {"content": ["a"], **TIMES})])
    with holdall.open("memory:") as store:
        import_from(tmp_path / "old.db", store)
        info = store.files().stat("/f")
        assert [info.created_at, info.modified_at] == [datetime.fromisoformat(time) for time in TIMES.values()]
        with closing(sqlite3.connect(tmp_path / "old.db")) as database:
            changed = {"content": ["b"], **TIMES, "modified_at": "2026-06-03T10:00:00+00:00"}
            database.execute("UPDATE store SET value = ?", [json.dumps(changed)])
            database.commit()
        assert import_from(tmp_path / "old.db", store).imported == 1
        backend = StoreBackend(store)
        assert backend.read("/f") == "     1\tb"
        backend.edit("/f", "b", "c")
        assert backend.store.get(("filesystem",), "/f")["created_at"] == TIMES["created_at"]
        assert import_from(tmp_path / "old.db", store).present == 1


def test_a_database_of_spoon_ais_is_left_alone_and_the_way_is_shown(tmp_path: Path) -> None:
    old = tmp_path / "agent_files.db"
    old_database(old, [("filesystem", "/f", {"content": ["x"]})])
    before = old.read_bytes()
    with pytest.raises(InvalidInput, match="import_from"):
        SQLiteStore(old)
    assert old.read_bytes() == before
    with closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("CREATE TABLE other (x)")
    with pytest.raises(InvalidInput, match="another program's"):
        SQLiteStore(str(tmp_path / "other.db"))


# With and without spoon_ai -------------------------------------------------------------------------------------------


def test_it_needs_no_spoon_ai() -> None:
    script = (
        "import sys; sys.modules['spoon_ai'] = None\n"
        "from holdall.faces import spoon\n"
        "assert spoon.BackendProtocol.__module__ == spoon.BaseStore.__module__ == 'holdall.faces.spoon.protocol'\n"
        "assert spoon.create_store_backend(use_sqlite=False).write('/f', 'x').path == '/f'"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_where_spoon_ai_is_installed_its_classes_are_the_base(tmp_path: Path) -> None:
    package = tmp_path / "spoon_ai" / "backends"
    package.mkdir(parents=True)
    (tmp_path / "spoon_ai" / "__init__.py").touch()
    (package / "__init__.py").touch()
    source = inspect.getsource(spoon_protocol)
    (package / "protocol.py").write_text(source)
    (package / "store.py").write_text(source)
    script = (
        "from spoon_ai.backends.protocol import BackendProtocol, WriteResult, EditResult\n"
        "from spoon_ai.backends.store import BaseStore\n"
        "from holdall.faces import spoon\n"
        "backend = spoon.create_store_backend(use_sqlite=False)\n"
        "assert isinstance(backend, BackendProtocol) and isinstance(backend.store, BaseStore)\n"
        "assert type(backend.write('/f', 'x')) is WriteResult and type(backend.edit('/f', 'x', 'y')) is EditResult\n"
        "assert backend.read('/f') == '     1\\ty'"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, env={"PYTHONPATH": str(tmp_path)})


def test_every_name_is_there() -> None:
    assert all(hasattr(spoon, name) for name in spoon.__all__)


def test_the_example_runs() -> None:
    example = Path(__file__).parents[3] / "examples" / "spoon_files.py"
    output = subprocess.run([sys.executable, "-W", "error", example], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == [
        "     1\t- call the bank",
        "     2\t- buy almonds",
        "['/notes/']",
        "{'path': '/notes/todo.md', 'line': 2, 'text': '- buy almonds'}",
    ]
