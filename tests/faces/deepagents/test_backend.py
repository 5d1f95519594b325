"""`HoldallBackend`: deepagents' results and words, on every engine, sync and async.

Where deepagents' own `StoreBackend` is right, it is the judge: both are asked the same, and must say the same. Where it
fails, a test is named after the failure. `test_deepagents_agents.py` has the agents.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import random
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import pytest
from deepagents.backends import CompositeBackend, StateBackend, StoreBackend
from deepagents.backends.protocol import (
    BackendProtocol,
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.utils import _EXTENSION_TO_FILE_TYPE, _VIDEO_EXTRA_EXTENSIONS
from langgraph.store.memory import InMemoryStore

import holdall
from holdall.errors import InvalidInput
from holdall.faces.deepagents.backend import MEDIA, HoldallBackend
from holdall.model import file_values
from support.face_calls import Calls
from support.threads import together

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@pytest.fixture
def backend(any_store: holdall.Store, runner: asyncio.Runner | None, place: tuple[str, ...]) -> Any:
    return Calls(HoldallBackend(any_store, namespace=place), runner)


@pytest.fixture
def stock() -> StoreBackend:
    return StoreBackend(store=InMemoryStore(), namespace=lambda _: ("filesystem",))


def paths(result: Any) -> list[str]:
    assert result.error is None
    return [info["path"] for info in (result.entries if isinstance(result, LsResult) else result.matches)]


def text_of(result: ReadResult) -> str:
    assert result.file_data is not None, result.error
    return result.file_data["content"]


# The protocol --------------------------------------------------------------------------------------------------------

METHODS = [name for name, _ in inspect.getmembers(BackendProtocol, inspect.isfunction) if not name.startswith("_")]


def test_the_protocol_is_the_one_we_know() -> None:
    known = ["ls", "read", "write", "edit", "delete", "grep", "glob", "upload_files", "download_files"]
    assert sorted(METHODS) == sorted([*known, *(f"a{name}" for name in known)])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_our_own_with_the_protocols_signature(name: str) -> None:
    ours, theirs = getattr(HoldallBackend, name), getattr(BackendProtocol, name)
    assert ours is not theirs
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
    taken, given = (
        [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]
        for method in (ours, theirs)
    )
    assert taken == given


def test_async_is_native(any_store: holdall.Store, place: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """deepagents' own async twins of ls, grep, glob, uploads and downloads are its sync ones in a thread."""
    backend = HoldallBackend(any_store, namespace=place)
    for name in METHODS:
        if not inspect.iscoroutinefunction(getattr(BackendProtocol, name)):
            monkeypatch.setattr(HoldallBackend, name, None)

    async def everything() -> None:
        assert (await backend.awrite("/a.md", "x")).error is None
        assert (await backend.aedit("/a.md", "x", "y")).error is None
        assert (await backend.aread("/a.md")).error is None
        assert paths(await backend.als("/")) == paths(await backend.aglob("*")) == ["/a.md"]
        assert paths(await backend.agrep("y")) == ["/a.md"]
        assert [one.error for one in await backend.aupload_files([("/b", b"")])] == [None]
        assert [one.content for one in await backend.adownload_files(["/b"])] == [b""]
        assert (await backend.adelete("/a.md")).error is None

    asyncio.run(everything())


# As deepagents' own backend says it ----------------------------------------------------------------------------------

LINES = "".join(f"line {number}\n" for number in range(1, 11))
TREE = {
    "/a.py": "a",
    "/sub/b.py": "b",
    "/sub/nested/c.py": "c",
    "/readme.md": "docs",
    "/.hidden.py": "h",
    "/.hidden/x.py": "x",
    "/.github/workflows/ci.yml": "name: ci",
}
SAME: list[list[tuple[Any, ...]]] = [
    # windows
    [("write", "/f.txt", LINES), ("read", "/f.txt"), ("read", "/f.txt", 0, 3), ("read", "/f.txt", 4, 3)],
    [("write", "/f.txt", LINES), ("read", "/f.txt", 9, 1), ("read", "/f.txt", 9, 5), ("read", "/f.txt", 0, 10)],
    [("write", "/f.txt", LINES), ("read", "/f.txt", 10, 1), ("read", "/f.txt", 99), ("read", "/f.txt", -3, 2)],
    [("write", "/f.txt", LINES), ("read", "/f.txt", 0, 0), ("read", "/f.txt", 5, -1), ("read", "/f.txt", 50, 0)],
    [("write", "/f.txt", "no end"), ("read", "/f.txt"), ("read", "/f.txt", 1, 1)],
    [("write", "/f.txt", "a\r\nb\rc\n\nd"), ("read", "/f.txt"), ("read", "/f.txt", 1, 2), ("read", "/f.txt", 3, 1)],
    [("write", "/f.txt", ""), ("read", "/f.txt"), ("read", "/f.txt", 5, 5), ("read", "/f.txt", 0, 0)],
    [("write", "/f.txt", " \n\t\n"), ("read", "/f.txt"), ("read", "/f.txt", 1, 1), ("read", "/f.txt", 0, 0)],
    [("write", "/f.txt", "\n\nx\n"), ("read", "/f.txt", 0, 1), ("read", "/f.txt", 0, 2)],
    [("write", "/f.md", "é\n\t\n𝄞"), ("read", "/f.md"), ("grep", "𝄞")],
    [("read", "/missing"), ("read", "/"), ("write", "/d/f", "x"), ("read", "/d"), ("edit", "/d", "x", "y")],
    # what is not text
    [("write", "/f.pdf", LINES), ("read", "/f.pdf", 2, 2), ("write", "/F.PNG", ""), ("read", "/F.PNG", 5, 0)],
    [("upload_files", [("/p.png", PNG), ("/q.MKV", PNG)]), ("read", "/p.png", 3, 1), ("read", "/q.MKV")],
    [("upload_files", [("/x", PNG)]), ("edit", "/x", "P", "Q"), ("grep", "PNG"), ("download_files", ["/x", "/no"])],
    [("upload_files", [("/t", "é\r\n".encode())]), ("read", "/t"), ("download_files", ["/t"]), ("write", "/t", "u")],
    # writing and editing
    [("write", "/f", "one"), ("write", "/f", "two"), ("read", "/f"), ("ls", "/")],
    [("edit", "/missing", "a", "b"), ("write", "/f", "a b a"), ("edit", "/f", "c", "d"), ("edit", "/f", "a", "x")],
    [
        ("write", "/f", "a b a"),
        ("edit", "/f", "a", "x", True),
        ("read", "/f"),
        ("edit", "/f", "b", "b"),
        ("read", "/f"),
    ],
    [("write", "/f", "a b a"), ("edit", "/f", "", "x"), ("edit", "/f", "", "x", True), ("edit", "/f", "b", "")],
    [("write", "/f", "x\nend"), ("edit", "/f", "end\n", "fin\n"), ("write", "/f", "e\ne"), ("edit", "/f", "e\n\n", "")],
    [("write", "/f", "end x end"), ("edit", "/f", "end\n", "fin\n"), ("edit", "/f", "\n", "fin"), ("read", "/f")],
    [("write", "/f", r"a\1(.*)$"), ("edit", "/f", r"\1(.*)", r"\0\g<1>"), ("read", "/f")],
    # deleting
    [("delete", "/missing"), ("write", "/a", "x"), ("delete", "/a"), ("ls", "/"), ("delete", "/a")],
    [("write", "/a/b/c", "x"), ("write", "/a/d", "x"), ("write", "/ab", "x"), ("delete", "/a"), ("ls", "/")],
    [("write", "/a/b/c", "x"), ("write", "/a/d", "x"), ("delete", "/a/b/"), ("ls", "/a"), ("delete", "/a/e")],
    [("write", "/a1", "x"), ("write", "/a*", "x"), ("delete", "/a*"), ("ls", "/"), ("delete", "/a?")],
    [("write", "/a", "x"), ("write", "/b/c", "x"), ("delete", "/"), ("ls", "/"), ("delete", "/")],
    # listing
    [
        *(("write", path, "x" * 3) for path in ("/z", "/a-b", "/a.md", "/a/b", "/a/c/d", "/é")),
        ("ls", "/"),
        ("ls", "/a"),
    ],
    [("write", "/a/b", "é"), ("ls", "/a/"), ("ls", "/a"), ("ls", "/a/b"), ("ls", "/missing"), ("ls", "/missing/")],
    # grep
    [("write", "/a.py", "x\nTODO 1\n"), ("grep", "TODO"), ("grep", "todo"), ("grep", "TODO", "/a.py"), ("grep", "(")],
    [("write", "/f", "a.c\nabc\n[x\n"), ("grep", "a.c"), ("grep", "[x"), ("grep", ".*"), ("grep", "no|a")],
    [("write", "/f", "x\nx\nx\n"), *(("grep", "x", None, None, most) for most in (None, 0, 1, 2, 3, 4))],
    [*(("write", path, "x") for path in TREE), ("grep", "x", "/sub"), ("grep", "x", "/sub/"), ("grep", "x", "sub")],
    [
        *(("write", path, "x") for path in TREE),
        *(("grep", "x", None, glob) for glob in ("*.py", "**/*.py", "", "/*.py")),
    ],
    [*(("write", path, "x") for path in TREE), ("grep", "x", "/sub", "nested/*"), ("grep", "x", "/sub/b.py", "*.py")],
    [*(("write", path, "x") for path in TREE), ("grep", "x", "/sub/b.py", "*.md"), ("grep", "x", "/missing", "*")],
    # many at once
    [("upload_files", []), ("download_files", []), ("upload_files", [("/a", b"1"), ("/a", b"2")]), ("read", "/a")],
    [("upload_files", [("/a", b"1"), ("/b/c", b"2")]), ("download_files", ["/b/c", "/no", "/a", "/b/c"])],
]


def comparable(answer: Any) -> Any:
    """A result, without the times, which are nobody's to foresee."""
    if isinstance(answer, list):
        return [comparable(one) for one in answer]
    if isinstance(answer, dict):
        return {key: comparable(value) for key, value in answer.items() if key not in ("created_at", "modified_at")}
    known = (ReadResult, WriteResult, EditResult, DeleteResult, LsResult, GrepResult, GlobResult)
    if isinstance(answer, GrepResult) and answer.matches is not None:  # theirs come in the order of their dict
        answer.matches.sort(key=lambda match: (match["path"], match["line"]))
    if isinstance(answer, (*known, FileUploadResponse, FileDownloadResponse)):
        return type(answer), comparable(vars(answer))
    return answer


def ask(backend: Any, call: tuple[Any, ...]) -> Any:
    name, *args = call
    if name == "grep" and len(args) == 4:
        return comparable(backend.grep(*args[:3], max_count=args[3]))
    return comparable(getattr(backend, name)(*args))


@pytest.mark.parametrize("calls", SAME, ids=lambda calls: "-".join(call[0] for call in calls)[:60])
def test_results_are_those_of_deepagents_own_backend(backend: Any, stock: StoreBackend, calls: list[Any]) -> None:
    for call in calls:
        ours, theirs = ask(backend, call), ask(stock, call)
        assert ours == theirs, call


def test_a_long_day_of_any_calls_goes_as_with_deepagents_own_backend(stock: StoreBackend) -> None:
    """Where the two differ on purpose, they are not led: line ends but \\n, folders in files, sizes of binary ones."""
    chance = random.Random(8)
    backend = HoldallBackend("memory:", namespace=("day",))
    files = ["/a.md", "/b.py", "/d/a.md", "/d/e/b.py", "/d/e/.c", "/f/g.png"]
    words = ["x", "y\n", "x y", "\n", "é", "xx"]

    def text() -> str:
        return "".join(chance.choices(words, k=chance.randrange(6)))

    def call() -> tuple[Any, ...]:
        file, folder = chance.choice(files), chance.choice(["/", "/d", "/d/", "/d/e", "/f", "/none", "/a.md"])
        return chance.choice(
            [
                ("write", file, text()),
                ("edit", file, chance.choice(words), chance.choice(words), chance.random() < 0.5),
                ("read", file, chance.randrange(-1, 5), chance.randrange(-1, 5)),
                ("delete", chance.choice([*files, "/d/e", "/f"])),
                ("ls", folder),
                ("grep", chance.choice("xyé"), chance.choice([None, folder]), chance.choice([None, "*.md", "e/*"])),
                ("upload_files", [(file, text().encode()), (chance.choice(files), b"")]),
                ("download_files", chance.choices(files, k=3)),
            ]
        )

    for _ in range(1500):
        asked = call()
        ours, theirs = ask(backend, asked), ask(stock, asked)
        assert ours == theirs, asked
    backend.close()


# Globs ---------------------------------------------------------------------------------------------------------------

GLOBS = [
    ("*.py", "/", {"/a.py", "/sub/b.py", "/sub/nested/c.py", "/.hidden/x.py"}),
    ("**/*.py", "/", {"/a.py", "/sub/b.py", "/sub/nested/c.py"}),
    ("**/*.py", None, {"/a.py", "/sub/b.py", "/sub/nested/c.py"}),
    ("sub/*.py", "/", {"/sub/b.py"}),
    ("sub/**/*.py", "/", {"/sub/b.py", "/sub/nested/c.py"}),
    ("/*.py", "/", {"/a.py"}),
    ("/*.py", "/sub", {"/sub/b.py"}),
    ("/sub/*.py", "/", {"/sub/b.py"}),
    ("a.py/**", "/", set()),
    ("*.py", "/sub", {"/sub/b.py", "/sub/nested/c.py"}),
    ("*.py", "sub/", {"/sub/b.py", "/sub/nested/c.py"}),
    ("*.py", "/missing", set()),
    ("*.py", "/sub/b.py", {"/sub/b.py"}),
    ("*.md", "/sub/b.py", set()),
    ("*.yml", "/", {"/.github/workflows/ci.yml"}),
    ("**/*.yml", "/", set()),
    (".github/**/*.yml", "/", {"/.github/workflows/ci.yml"}),
    (".hidden.py", "/", {"/.hidden.py"}),
    (".*.py", "/", {"/.hidden.py"}),
    ("*", "/", set(TREE) - {"/.hidden.py"}),
    ("*.{py,md}", "/", {"/a.py", "/sub/b.py", "/sub/nested/c.py", "/.hidden/x.py", "/readme.md"}),
    ("{a,{b,c}}.py", "/", {"/a.py", "/sub/b.py", "/sub/nested/c.py"}),
    ("?.py", "/", {"/a.py", "/sub/b.py", "/sub/nested/c.py", "/.hidden/x.py"}),
    ("[ab].py", "/", {"/a.py", "/sub/b.py"}),
    ("[!a].py", "/", {"/sub/b.py", "/sub/nested/c.py", "/.hidden/x.py"}),
    ("[^a].py", "/", {"/sub/b.py", "/sub/nested/c.py", "/.hidden/x.py"}),
    ("[a-", "/", set()),
    ("!a.py", "/", set()),
    ("sub", "/", set()),
]


def test_globs_find_what_deepagents_globs_find(backend: Any, stock: StoreBackend) -> None:
    for path, content in TREE.items():
        assert backend.write(path, content).error is stock.write(path, content).error is None
    for pattern, folder, found in GLOBS:
        assert set(paths(backend.glob(pattern, folder))) == found == set(paths(stock.glob(pattern, folder))), pattern


def test_globs_come_newest_first_with_sizes_and_times(backend: Any) -> None:
    for name in "bca":
        backend.write(f"/{name}.md", name * 3)
    backend.edit("/c.md", "ccc", "é")
    result = backend.glob("*.md")
    assert paths(result) == ["/c.md", "/a.md", "/b.md"]
    assert [(info["is_dir"], info["size"]) for info in result.matches] == [(False, 2), (False, 3), (False, 3)]
    times = [info["modified_at"] for info in result.matches]
    assert times == sorted(times, reverse=True)
    assert times[0] == backend.read("/c.md").file_data["modified_at"]


@pytest.mark.parametrize("pattern", ["../*.py", "sub/../*.py", "{a,}" * 18 + "x", "", None])
def test_a_glob_that_cannot_be_is_an_error_result(backend: Any, pattern: Any) -> None:
    backend.write("/a.py", "x")
    result = backend.glob(pattern)
    assert result.matches is None
    assert result.error.startswith("Invalid glob pattern")
    if pattern:
        assert backend.grep("x", glob=pattern).error.startswith("Error: ")


# Words ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["", "/", ".", "./", "d", "d/a", "/.", "/./", "/d/.", "./d", "/d/", "/d", "//", "/*", "/d/a"]
)
def test_delete_removes_what_deepagents_own_backend_removes(backend: Any, stock: StoreBackend, path: str) -> None:
    """A model that passes "." must not lose the whole volume."""
    for one in (backend, stock):
        one.write("/d/a", "1")
        one.write("/x", "2")
    assert backend.delete(path) == stock.delete(path)
    assert sorted(paths(backend.glob("**/*"))) == sorted(paths(stock.glob("**/*")))


def test_the_words_that_models_rely_on(backend: Any) -> None:
    assert backend.read("/no").error == "File '/no' not found"
    assert backend.edit("/no", "a", "b").error == backend.delete("/no").error == "Error: File '/no' not found"
    backend.write("/f", "a\na\n")
    assert backend.read("/f", offset=7).error == "Line offset 7 exceeds file length (2 lines)"
    assert backend.edit("/f", "b", "c").error == "Error: String not found in file: 'b'"
    assert backend.edit("/f", "a", "c").error == (
        "Error: String 'a' appears 2 times in file. Use replace_all=True to replace all instances, or provide a more"
        " specific string with surrounding context."
    )
    assert backend.edit("/f", "", "c").error == "Error: old_string cannot be empty. Provide the exact text to replace."
    backend.upload_files([("/p", PNG)])
    assert backend.edit("/p", "a", "b").error == "Error: Cannot edit binary files with text replacements."


def test_files_of_every_form_are_read(any_store: holdall.Store, runner: Any, place: tuple[str, ...]) -> None:
    times = {"created_at": "2025-01-01T00:00:00+00:00", "modified_at": "2025-02-01T00:00:00+00:00"}
    any_store.put(place, "/lines", {"content": ["a", "b", ""], **times})
    any_store.put(place, "/text", {"content": "a\nb\n", "encoding": "utf-8", **times})
    any_store.put(place, "/binary", {"content": base64.b64encode(PNG).decode(), "encoding": "base64"})
    any_store.put(place, "/bare", {"content": "a"})
    backend = Calls(HoldallBackend(any_store, namespace=place), runner)
    assert paths(backend.ls("/")) == ["/bare", "/binary", "/lines", "/text"]
    assert backend.read("/lines").file_data == backend.read("/text").file_data
    assert backend.read("/text").file_data == {"content": "a\nb\n", "encoding": "utf-8", **times}
    assert backend.read("/bare").file_data == {"content": "a", "encoding": "utf-8"}
    assert backend.read("/binary").file_data == {"content": base64.b64encode(PNG).decode(), "encoding": "base64"}
    assert [one.content for one in backend.download_files(["/lines", "/binary"])] == [b"a\nb\n", PNG]
    assert paths(backend.grep("b")) == ["/lines", "/text"]
    assert backend.edit("/lines", "a\nb", "c").occurrences == 1
    assert text_of(backend.read("/lines")) == "c\n"


def test_a_file_too_large_to_search_is_an_error() -> None:
    with holdall.open("memory://") as store:
        store.files(("docs",)).write("/large", bytes(file_values.LARGEST + 1))
        found = HoldallBackend(store, namespace=("docs",)).read("/large")
    assert found.error == f"File '/large' is too large to read: {file_values.LARGEST + 1} bytes"


@pytest.mark.parametrize("created", ["2025-01-01T00:00:00+00:00", "2025-01-01T00:00:00Z", "long ago"])
def test_the_time_of_creation_in_an_item_outlives_writes_and_edits(
    any_store: holdall.Store, runner: Any, place: tuple[str, ...], created: str
) -> None:
    """deepagents' own backend keeps it, too."""
    modified = "2025-02-01T00:00:00+00:00"
    for path in ("/written", "/edited"):
        any_store.put(place, path, {"content": ["a", "b"], "created_at": created, "modified_at": modified})
    any_store.put(
        place, "/binary", {"content": base64.b64encode(PNG).decode(), "encoding": "base64", "created_at": created}
    )
    backend = Calls(HoldallBackend(any_store, namespace=place), runner)
    for content in ("new", "newer\n"):
        assert backend.write("/written", content).error is None
    assert backend.write("/binary", "newer\n").error is None
    assert backend.edit("/edited", "a", "newer").occurrences == 1
    assert backend.edit("/edited", "no", "x").error == "Error: String not found in file: 'no'"
    assert backend.edit("/edited", "r\nb", "r\n").occurrences == 1
    for path in ("/written", "/edited", "/binary"):
        data = backend.read(path).file_data
        assert data["content"] == "newer\n"
        assert data["encoding"] == "utf-8"
        assert data["created_at"] == created
        assert data["modified_at"] > modified
        assert backend.download_files([path])[0].content == b"newer\n"


def test_the_files_that_are_not_read_as_lines_are_those_of_deepagents() -> None:
    named = [*_EXTENSION_TO_FILE_TYPE, *_VIDEO_EXTRA_EXTENSIONS]
    assert [name for name in named if MEDIA.fullmatch(f"/a.b/c{name}") is None] == []
    for other in ("/a.png/b", "/pdf", "/a.txt", "/a.pngx", "/a.md", "/a.svg"):
        assert (PurePosixPath(other).suffix in named) == bool(MEDIA.fullmatch(other)) is False


# Errors are values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/a/../b", "..", "/a\x00b", "/\ud800", "/" + "x" * 2000, "/a\nb", None, 5, b"/a"])
def test_a_path_that_cannot_be_is_an_error_result(backend: Any, path: Any) -> None:
    results = [backend.ls(path), backend.read(path), backend.write(path, "x"), backend.edit(path, "a", "b")]
    results += [backend.delete(path)]
    if path is not None:
        results += [backend.grep("x", path), backend.glob("*", path)]
    assert all(result.error for result in results)
    assert [one.error for one in backend.upload_files([(path, b"x")])] == ["invalid_path"]
    assert [one.error for one in backend.download_files([path])] == ["invalid_path"]


def test_other_errors_are_error_results(backend: Any) -> None:
    backend.write("/d/f", "x")
    results = [
        backend.write("/d", "a folder is there"),
        backend.write("/d/f/g", "a file is there"),
        backend.write("/x", "\ud800"),
        backend.write("/x", 5),
        backend.write("/x/", "a folder's name"),
        backend.edit("/d/f", "x", "\ud800"),
        backend.edit("/d/f", None, "y"),
        backend.edit("/d/f", "x", 5),
        backend.grep("\ud800"),
        backend.grep(None),
        backend.read("/d/f", "one", 2),
        backend.read("/d/f", 0, None),
    ]
    assert all(result.error for result in results)
    assert all(result.error.startswith("Error: ") for result in results[:10])
    assert text_of(backend.read("/d/f")) == "x"
    assert paths(backend.glob("**")) == ["/d/f"]


def test_a_store_that_cannot_be_reached_is_an_error_result(runner: Any) -> None:
    backend = Calls(HoldallBackend("memory:", namespace=("closed",)), runner)
    backend.face.close()
    results = [backend.ls("/"), backend.read("/f"), backend.write("/f", "x"), backend.edit("/f", "a", "b")]
    results += [backend.delete("/f"), backend.grep("x"), backend.glob("*")]
    assert all("closed" in result.error for result in results)
    many = [*backend.upload_files([("/a", b""), ("/b", b"")]), *backend.download_files(["/a", "/b"])]
    assert [one.path for one in many if "closed" in one.error] == ["/a", "/b"] * 2


def test_uploads_and_downloads_answer_file_by_file(backend: Any) -> None:
    backend.write("/d/f", "x")
    given = [
        ("/a", b"1"),
        ("/d", b"2"),
        ("/../b", b"3"),
        ("/d/f/g", b"4"),
        ("/c", "no bytes"),
        ("/e", 5),
        ("/a/b", b""),
    ]
    done = backend.upload_files(given)
    assert [one.path for one in done] == [path for path, _ in given]
    assert [one.error for one in done[:5]] == [None, "is_directory", "invalid_path", "invalid_path", None]
    assert "a file holds str or bytes" in done[5].error
    assert done[6].error == "invalid_path"
    found = backend.download_files(["/a", "/d", "/no", "/../b", "/c"])
    assert [one.error for one in found] == [None, "is_directory", "file_not_found", "invalid_path", None]
    assert [one.content for one in found] == [b"1", None, None, None, b"no bytes"]


def test_uploads_and_downloads_by_the_hundred_keep_their_order(backend: Any) -> None:
    given = [(f"/f/{number:03}" if number % 50 else "/f", b"%d" % number) for number in range(1, 230)]
    errors = [one.error for one in backend.upload_files(given)]
    assert [number for number, error in enumerate(errors, 1) if error] == [50, 100, 150, 200]
    found = backend.download_files([path for path, _ in given])
    assert [one.content for one in found if not one.error] == [content for path, content in given if path != "/f"]


# Namespaces ----------------------------------------------------------------------------------------------------------


def test_a_namespace_has_to_be_given() -> None:
    with pytest.raises(TypeError, match="namespace"):
        HoldallBackend("memory:")  # type: ignore[call-arg]  # the mistake


@pytest.mark.parametrize("bad", [(), "files", ("a", ""), ("a", 5), None, ("a\x00",)])
def test_a_namespace_that_cannot_be_is_raised_at_once_or_when_it_is_made(bad: Any) -> None:
    if bad is not None:
        with pytest.raises(InvalidInput):
            HoldallBackend("memory:", namespace=bad)
    with HoldallBackend("memory:", namespace=lambda _: bad) as backend, pytest.raises(ValueError, match="namespace"):
        backend.ls("/")


def test_a_namespace_callable_that_fails_raises(any_store: holdall.Store, runner: asyncio.Runner | None) -> None:
    def failing(_: Any) -> tuple[str, ...]:
        raise KeyError("user_id")

    backend = Calls(HoldallBackend(any_store, namespace=failing), runner)
    for call in (("ls", "/"), ("read", "/f"), ("write", "/f", ""), ("grep", "x"), ("upload_files", [("/f", b"")])):
        with pytest.raises(KeyError, match="user_id"):
            ask(backend, call)


def test_a_namespace_callable_outside_of_a_graph_gets_none_and_a_clear_error() -> None:
    given: list[Any] = []
    with HoldallBackend("memory:", namespace=lambda runtime: given.append(runtime) or ("a",)) as backend:
        assert backend.ls("/").entries == []
        assert given == [None]
    backend = HoldallBackend("memory:", namespace=lambda runtime: (runtime.context.user_id,))
    with backend, pytest.raises(RuntimeError, match="Runtime"):
        backend.ls("/")


def test_a_callable_is_asked_for_every_call(any_store: holdall.Store, place: tuple[str, ...], runner: Any) -> None:
    user = ["ada"]
    backend = Calls(HoldallBackend(any_store, namespace=lambda _: (*place, user[0])), runner)
    backend.write("/f", "ada's")
    user[0] = "bob"
    assert backend.read("/f").error == "File '/f' not found"
    backend.write("/f", "bob's")
    user[0] = "ada"
    assert text_of(backend.read("/f")) == "ada's"


def test_a_backend_closes_only_what_it_opened_and_runs_on_any_face(runner: Any) -> None:
    with holdall.open("memory:") as store:
        with HoldallBackend(store, namespace=("a",)) as first:
            first.write("/f", "x")
        second = HoldallBackend(first, namespace=("a",))
        assert second.store is store
        assert text_of(second.read("/f")) == "x"
        tenant = HoldallBackend(store.scoped(("a",)), namespace=())
        assert paths(tenant.ls("/")) == ["/f"]
    opened = HoldallBackend("memory:", namespace=("a",))
    if runner is None:
        opened.close()
    else:
        runner.run(opened.aclose())
    assert "closed" in str(opened.ls("/").error)
    with pytest.raises(InvalidInput, match="URL"):
        HoldallBackend(5, namespace=("a",))


# Inside a CompositeBackend -------------------------------------------------------------------------------------------


@pytest.fixture
def composite(any_store: holdall.Store, runner: asyncio.Runner | None, place: tuple[str, ...]) -> Any:
    def volume(name: str) -> HoldallBackend:
        return HoldallBackend(any_store, namespace=(*place, name))

    routes: dict[str, Any] = {"/memories/": volume("memories"), "/memories/deep/": volume("deep")}
    return Calls(CompositeBackend(default=volume("default"), routes=routes), runner)


def test_a_composite_routes_by_the_longest_prefix_and_merges_at_the_root(composite: Any) -> None:
    for path in ("/a.md", "/memories/b.md", "/memories/deep/c.md", "/memoriesx/d.md"):
        assert composite.write(path, f"in {path}").path == path
        assert text_of(composite.read(path)) == f"in {path}"
        assert composite.edit(path, "in", "at").path == path
    default, routes = composite.face.default, composite.face.routes
    assert paths(default.glob("*")) == ["/memoriesx/d.md", "/a.md"]
    assert paths(routes["/memories/"].glob("*")) == ["/b.md"]
    assert paths(routes["/memories/deep/"].glob("*")) == ["/c.md"]
    assert paths(composite.ls("/")) == ["/a.md", "/memories/", "/memories/deep/", "/memoriesx/"]
    assert paths(composite.ls("/memories")) == paths(composite.ls("/memories/")) == ["/memories/b.md"]
    every = ["/a.md", "/memories/b.md", "/memories/deep/c.md", "/memoriesx/d.md"]
    assert paths(composite.glob("*.md")) == sorted(paths(composite.grep("at /"))) == every
    assert paths(composite.glob("/*.md")) == ["/a.md"]
    assert paths(composite.glob("/memories/deep/*.md")) == ["/memories/deep/c.md"]
    assert paths(composite.grep("at", path="/memories/deep")) == ["/memories/deep/c.md"]
    limited = composite.grep("at", max_count=2)
    assert (len(limited.matches), limited.truncated) == (2, True)
    assert composite.glob("../*").error
    assert composite.grep("at", glob="../*").error


def test_a_composite_uploads_downloads_and_deletes_in_each_volume(composite: Any) -> None:
    given = [("/a", b"1"), ("/memories/b", PNG), ("/memories/../x", b""), ("/memories/deep/c", b"3")]
    assert [one.error for one in composite.upload_files(given)] == [None, None, "invalid_path", None]
    found = composite.download_files(["/memories/deep/c", "/no", "/memories/b", "/memories/no"])
    assert [one.content for one in found] == [b"3", None, PNG, None]
    assert [one.path for one in found] == ["/memories/deep/c", "/no", "/memories/b", "/memories/no"]
    assert composite.delete("/memories/b").path == "/memories/b"
    assert composite.delete("/memories/b").error == "Error: File '/b' not found"
    assert paths(composite.ls("/memories/deep")) == ["/memories/deep/c"]


def test_a_volume_serves_beside_a_state_backend(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    volume = HoldallBackend(any_store, namespace=place)
    backend = CompositeBackend(default=StateBackend(), routes={"/memories/": volume})
    assert backend.write("/memories/a.md", "kept").error is None
    assert text_of(volume.read("/a.md")) == "kept"


# Where deepagents' own backend fails ---------------------------------------------------------------------------------


def test_ls_grep_glob_and_delete_do_not_page_through_the_whole_namespace(place: tuple[str, ...]) -> None:
    """Among 10,000 files each took 3.6 s, and among 50,000 more than a minute."""
    seen: list[tuple[str, ...]] = []
    with holdall.open("memory:", on_op=lambda event: seen.append(event.ops)) as store:
        backend = HoldallBackend(store, namespace=place)
        backend.upload_files([(f"/{number % 40}/{number}.md", b"x") for number in range(2400)])
        asked = {
            ("Children",): lambda: backend.ls("/7"),
            ("Get",): lambda: backend.read("/7/7.md"),
            ("Grep",): lambda: backend.grep("x", "/7/"),
            ("DeleteTree",): lambda: backend.delete("/7/7.md"),
        }
        for ops, call in asked.items():
            seen.clear()
            assert call().error is None
            assert seen == [ops]
        seen.clear()
        assert len(paths(backend.glob("/9/*.md"))) == 60
        assert seen == [("Children",)]


def test_files_that_others_touch_meanwhile_are_not_skipped(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    """Pages by offset, newest first, skip what is touched between two of them: it moves to the front."""
    backend = HoldallBackend(any_store, namespace=place)
    every = [f"/d/{number:04}.md" for number in range(1100)]
    backend.upload_files([(path, b"text") for path in every])
    touched = iter(every[1040:])
    perform = type(any_store)._perform

    def touching(store: holdall.Store, request: Any) -> Any:
        answer = perform(store, request)
        if isinstance(request, list) and type(request[0]).__name__ in ("Children", "Grep"):
            for _ in range(10):
                perform(store, [holdall.ops.Append(place, next(touched), b" more")])
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holdall.Store, "_perform", touching)
        assert paths(backend.ls("/d")) == every
        assert sorted(paths(backend.glob("*.md"))) == every
        assert paths(backend.grep("text")) == every
    assert next(touched) > every[1060]


def test_8_threads_of_40_edits_are_all_kept(any_store: holdall.Store, place: tuple[str, ...]) -> None:
    """320 were reported as made, and 95 were there."""
    backend = HoldallBackend(any_store, namespace=place)
    backend.write("/f", "".join(f"<{thread}>\n" for thread in range(8)))

    def edit(thread: int) -> None:
        for number in range(40):
            result = backend.edit("/f", f"<{thread}>", f"{thread}.{number} <{thread}>")
            assert (result.error, result.occurrences) == (None, 1)

    together([partial(edit, thread) for thread in range(8)])
    expected = [" ".join([*(f"{thread}.{number}" for number in range(40)), f"<{thread}>"]) for thread in range(8)]
    assert text_of(backend.read("/f")).splitlines() == expected


def test_a_childs_files_do_not_leak_into_its_parents_namespace(backend: Any, place: tuple[str, ...]) -> None:
    child = Calls(HoldallBackend(backend.face.store, namespace=(*place, "child")), backend._runner)
    backend.write("/mine", "mine")
    child.write("/theirs", "theirs")
    child.write("/mine", "also called so")
    assert paths(backend.ls("/")) == paths(backend.glob("*")) == paths(backend.grep("e")) == ["/mine"]
    assert backend.delete("/theirs").error == "Error: File '/theirs' not found"
    assert backend.delete("/").error is None
    assert paths(child.ls("/")) == ["/mine", "/theirs"]


def test_a_malformed_item_breaks_nothing(any_store: holdall.Store, backend: Any, place: tuple[str, ...]) -> None:
    backend.write("/good", "text")
    malformed = [{}, {"content": 5}, {"content": [1, 2]}, {"content": None}, {"content": "x", "encoding": "latin-1"}]
    for number, value in enumerate(malformed):
        any_store.put(place, f"/bad-{number}", value)
    any_store.put(place, "not a path", {"content": "text"})
    assert paths(backend.ls("/")) == paths(backend.glob("*")) == paths(backend.grep("text")) == ["/good"]
    for number in range(len(malformed)):
        path = f"/bad-{number}"
        assert backend.read(path).error == f"File '{path}' not found"
        assert backend.edit(path, "a", "b").error == f"Error: File '{path}' not found"
        assert [one.error for one in backend.download_files([path])] == ["file_not_found"]
    assert backend.write("/bad-0", "now a file").error is None
    assert text_of(backend.read("/bad-0")) == "now a file"


def test_grep_and_read_agree_on_line_numbers_after_a_form_feed(backend: Any) -> None:
    text = "one\ftwo\nthree\x1cthree\x85three\u2028three\nneedle\n"
    backend.write("/f", text)
    [match] = backend.grep("needle").matches
    assert match == {"path": "/f", "line": 3, "text": "needle"}
    assert text_of(backend.read("/f", offset=match["line"] - 1, limit=1)) == "needle\n"
    result = backend.read("/f")
    assert (text_of(result), result.total_lines) == (text, 3)


def test_crlf_text_that_was_read_can_be_edited_back(backend: Any) -> None:
    backend.upload_files([("/f", b"one\r\ntwo\r\nthree\r\n")])
    shown = text_of(backend.read("/f", 0, 2))
    assert shown == "one\ntwo\n"
    assert backend.edit("/f", shown, "1\n2\n").occurrences == 1
    assert backend.download_files(["/f"])[0].content == b"1\r\n2\r\nthree\r\n"
