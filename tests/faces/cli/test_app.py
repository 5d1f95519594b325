"""The command `holdall`: what it prints, what it leaves behind, and the exit codes that scripts rely on.

Most tests run the commands in this process, on memory and on SQLite; what only a process of its own has (pipes, a
terminal, signals, a missing package) is tried with the real command.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

import holdall
from holdall.errors import Unavailable
from holdall.faces.cli import app as cli
from support.terminal import read_bars, read_terminal

COMMAND = Path(sys.executable).with_name("holdall")
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "command.md"
BINARY = bytes(range(256)) * 3
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00"
_names = itertools.count()


@dataclass
class Result:
    code: int
    out: bytes
    error: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    @property
    def json(self) -> Any:
        [line] = self.lines
        return json.loads(line)


Run = Callable[..., Result]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdall.Store]:
    url = f"memory:cli-{next(_names)}" if request.param == "memory" else str(tmp_path / "agent.db")
    with holdall.open(url) as opened:
        opened.url = url
        yield opened


@pytest.fixture
def run(store: holdall.Store, monkeypatch: pytest.MonkeyPatch, capsysbinary: Any) -> Run:
    """Run a command on the store, in this process."""

    def run(*words: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.run([store.url, *words])
        sys.stdout.flush()
        captured = capsysbinary.readouterr()
        return Result(code, captured.out, captured.err.decode())

    return run


def process(*words: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the installed command."""
    return subprocess.run(
        [COMMAND, *words], env=os.environ | (env or {}), capture_output=True, timeout=60, check=False, **options
    )


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A SQLite store with a few files."""
    path = str(tmp_path / "agent.db")
    with holdall.open(path) as opened:
        opened.files().write("/notes/a.md", "alpha\nbeta\n")
        opened.files().write("/raw.bin", BINARY)
    return path


# Files, one by one ---------------------------------------------------------------------------------------------------


def test_what_is_written_is_printed_byte_for_byte(run: Run, store: holdall.Store) -> None:
    for data in (b"", b"no line end", b"a\r\nb\rc\n\x0c", "Grüße\n".encode(), BINARY, os.urandom(2_500_000)):
        assert run("write", "/file", "-", stdin=data) == Result(0, b"", "")
        assert store.files().read("/file") == data
        assert run("cat", "/file") == Result(0, data, "")


def test_write_takes_its_text_from_the_command_line_or_from_stdin(run: Run, store: holdall.Store) -> None:
    run("write", "/word", "as it is", stdin=b"not read")
    run("write", "/stdin", stdin=b"piped")
    assert [store.files().read(path) for path in ("/word", "/stdin")] == [b"as it is", b"piped"]


def test_write_new_leaves_a_file_that_is_there_alone(run: Run, store: holdall.Store) -> None:
    assert run("write", "--new", "/a", "first").code == 0
    result = run("write", "--new", "/a", stdin=b"second")
    assert (result.code, store.files().read("/a")) == (4, b"first")
    assert "expected it to be absent" in result.error


def test_append_adds_to_the_end_and_prints_the_offset(run: Run, store: holdall.Store) -> None:
    assert run("append", "/log", "one\n", "--json").json == {"path": "/log", "offset": 0, "bytes": 4}
    assert run("append", "/log", "--json", stdin=b"two\nthree").json == {"path": "/log", "offset": 4, "bytes": 9}
    assert store.files().read("/log") == b"one\ntwo\nthree"


def test_append_of_nothing_makes_no_file(run: Run, store: holdall.Store) -> None:
    assert run("append", "/log", "--json", stdin=b"").json == {"path": "/log", "offset": None, "bytes": 0}
    assert not store.files().exists("/log")


def test_cat_prints_existing_files_and_reports_missing_ones(run: Run, store: holdall.Store) -> None:
    store.files().write("/a", "A")
    store.files().write("/b", "B")
    result = run("cat", "/a", "/missing", "/b")
    assert (result.code, result.out) == (1, b"AB")
    assert result.error == "holdall: there is no '/missing'\n"


def test_cat_as_json_gives_text_or_base64(run: Run, store: holdall.Store) -> None:
    store.files().write("/a", "text")
    store.files().write("/b", b"\xff\x00")
    assert run("cat", "--json", "/a", "/b").json == [
        {"path": "/a", "encoding": "utf-8", "content": "text"},
        {"path": "/b", "encoding": "base64", "content": "/wA="},
    ]


def test_edit_replaces_a_text_that_is_there_once_or_all_of_them(run: Run, store: holdall.Store) -> None:
    store.files().write("/a", "x y y")
    assert run("edit", "/a", "x", "z", "--json").json == {"path": "/a", "replacements": 1}
    result = run("edit", "/a", "y", "w")
    assert result.code == 4
    assert "2 times" in result.error
    assert run("edit", "/a", "y", "w", "--all", "--json").json == {"path": "/a", "replacements": 2}
    assert store.files().read("/a") == b"z w w"
    assert run("edit", "/a", "nowhere", "w").code == 1


# Listing and finding -------------------------------------------------------------------------------------------------


@pytest.fixture
def some(store: holdall.Store) -> None:
    for path in ("/notes/a.md", "/notes/deep/b.md", "/notes/deep/c.txt", "/z.md"):
        store.files().write(path, f"this is {path}\nTODO: more\n")


@pytest.mark.usefixtures("some")
def test_ls_lists_a_folder_or_a_file_and_reports_a_missing_path(run: Run) -> None:
    assert run("ls").lines == ["/notes/", "/z.md"]
    assert run("ls", "/notes").lines == ["/notes/a.md", "/notes/deep/"]
    assert run("ls", "/z.md").lines == ["/z.md"]
    assert run("ls", "/nowhere") == Result(1, b"", "holdall: there is no '/nowhere'\n")


def test_an_empty_store_has_an_empty_root(run: Run) -> None:
    assert run("ls") == Result(0, b"", "")
    assert run("ls", "--json").json == []


@pytest.mark.usefixtures("some")
def test_ls_long_shows_sizes_and_times(run: Run) -> None:
    folder, file = run("ls", "-l").lines
    assert re.fullmatch(r" -  -{25}  /notes/", folder)
    assert re.fullmatch(r"25  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d  /z\.md", file)


@pytest.mark.usefixtures("some")
def test_files_as_json_have_one_shape_everywhere(run: Run) -> None:
    folder, file = run("ls", "--json").json
    assert folder == {
        "path": "/notes/", "is_dir": True, "size": 0, "version": None, "created_at": None, "modified_at": None
    }  # fmt: skip
    assert list(file) == list(folder)
    assert (file["path"], file["is_dir"], file["size"]) == ("/z.md", False, 25)
    assert isinstance(file["version"], int)
    assert re.fullmatch(TIME, file["modified_at"])
    assert [list(info) for info in run("glob", "*.md", "--json").json] == [list(file)] * 3
    for words in (("write", "/w", "x"), ("cp", "/w", "/v"), ("mv", "/v", "/u")):
        assert list(run(*words, "--json").json) == list(file)


@pytest.mark.usefixtures("some")
def test_tree_shows_everything_below_a_folder(run: Run) -> None:
    assert run("tree").out.decode() == (
        "/\n├── notes/\n│   ├── a.md\n│   └── deep/\n│       ├── b.md\n│       └── c.txt\n└── z.md\n"
    )
    assert run("tree", "/notes", "--depth", "1").lines == ["/notes/", "├── a.md", "└── deep/"]
    everything = [info["path"] for info in run("tree", "--json").json]
    assert everything == ["/notes/", "/notes/a.md", "/notes/deep/", "/notes/deep/b.md", "/notes/deep/c.txt", "/z.md"]
    assert run("tree", "/nowhere").code == 1


def test_tree_goes_as_deep_as_paths_do(run: Run, store: holdall.Store) -> None:
    store.files().write("/" + "d/" * 700 + "f", "")
    assert len(run("tree").lines) == 702


@pytest.mark.usefixtures("some")
def test_glob_finds_paths(run: Run) -> None:
    assert run("glob", "*.md").lines == ["/notes/a.md", "/notes/deep/b.md", "/z.md"]
    assert run("glob", "*.{txt,rst}", "/notes").lines == ["/notes/deep/c.txt"]
    assert run("glob", "*.py") == Result(1, b"", "")
    assert run("glob", "*.py", "--json") == Result(1, b"[]\n", "")


@pytest.mark.usefixtures("some")
def test_grep_finds_lines(run: Run) -> None:
    assert run("grep", "is /z").lines == ["/z.md:1:this is /z.md"]
    assert run("grep", "todo", "/notes/deep", "-i").lines == [
        "/notes/deep/b.md:2:TODO: more", "/notes/deep/c.txt:2:TODO: more"
    ]  # fmt: skip
    assert run("grep", r"is /\w\.md$", "-E", "--json").json == [{"path": "/z.md", "line": 1, "text": "this is /z.md"}]
    assert run("grep", "TODO", "--glob", "*.txt").lines == ["/notes/deep/c.txt:2:TODO: more"]
    assert len(run("grep", "TODO", "--limit", "2").lines) == 2
    assert run("grep", "s", "--files", "/notes/deep").lines == ["/notes/deep/b.md", "/notes/deep/c.txt"]
    assert run("grep", "nowhere") == Result(1, b"", "")


def test_search_finds_entries_by_filter_and_pages(run: Run, store: holdall.Store) -> None:
    for number in range(3):
        store.put(("users", "ada"), f"k{number}", {"n": number, "text": "Grüße"})
    store.put(("other",), "k", {"n": 9})
    assert run("search", "-f", '{"n": {"$gte": 2}}', "--ns", "users").lines == [
        'users/ada\tk2\t{"n": 2, "text": "Grüße"}'
    ]
    page = run("search", "--ns", "users/ada", "--limit", "2", "--json").json
    assert [hit["key"] for hit in page["hits"]] == ["k2", "k1"]
    assert list(page["hits"][0]) == [
        "namespace", "key", "value", "version", "created_at", "updated_at", "expires_at", "score"
    ]  # fmt: skip
    rest = run("search", "--ns", "users/ada", "--limit", "2", "--json", "--cursor", page["next"]).json
    assert [hit["key"] for hit in rest["hits"]] == ["k0"]
    assert len(run("search").lines) == 4
    assert run("search", "-f", '{"n": 99}').code == 1
    assert run("search", "-f", "{n}").error.startswith("holdall: --filter is not JSON")


# Searching by a query ------------------------------------------------------------------------------------------------

MODELS = """
from holdall.testing import embed

async def awaited(texts):
    return embed(texts)

def reversed_words(texts):
    return embed([text[::-1] for text in texts])

def fails_at_the_end(texts):
    if "the last one" in texts:
        raise OSError("out of credit")
    return embed(texts)

class Model:
    def embed_documents(self, texts):
        return embed(texts)

    def embed_query(self, text):
        return embed([text])[0]

model = Model()
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the current folder, as a user would have it."""
    (tmp_path / "models_of_mine.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def facts(store: holdall.Store) -> None:
    store.put(("users", "ada"), "diet", {"text": "Ada is allergic to peanuts", "sure": True})
    store.put(("users", "ada"), "snack", {"text": "Peanuts are sold in the bar", "sure": False})
    store.put(("users", "bob"), "work", {"text": "Bob counts things"})
    store.files().write("/menu.md", "Peanut soup, peanut stew, peanut ice cream")


@pytest.mark.usefixtures("facts")
def test_search_by_a_query_gives_the_best_first(run: Run) -> None:
    found = [line.split("\t")[:2] for line in run("search", "allergic to PEANUT").lines]
    assert found == [["users/ada", "diet"], ["filesystem", "/menu.md"], ["users/ada", "snack"]]
    assert [
        line.split("\t")[1] for line in run("search", "peanuts", "--ns", "users", "-f", '{"sure": true}').lines
    ] == ["diet"]
    assert [hit["key"] for hit in run("search", '"sold in the bar"', "--json").json["hits"]] == ["snack"]
    assert run("search", "zebra") == Result(1, b"", "")
    assert run("search", "\udcff NEAR(\"'*").code == 1


@pytest.mark.usefixtures("facts")
def test_search_long_shows_scores_and_times(run: Run) -> None:
    [line] = run("search", "counts", "--long").lines
    assert re.fullmatch(r"\d\.\d{3}\t\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d\tusers/bob\twork\t{.*}", line)
    [hit] = run("search", "counts", "--json").json["hits"]
    assert f"{hit['score']:.3f}" == line.split("\t")[0]
    assert {line.split("\t")[0] for line in run("search", "-l").lines} == {"-"}


@pytest.mark.usefixtures("facts")
def test_search_by_a_query_goes_on_where_a_page_ended(run: Run) -> None:
    first = run("search", "peanuts", "--limit", "2", "--json").json
    rest = run("search", "peanuts", "--limit", "2", "--json", "--cursor", first["next"]).json
    assert [hit["key"] for hit in first["hits"] + rest["hits"]] == [
        "/menu.md",
        "snack",
        "diet",
    ]
    assert rest["next"] is None


@pytest.mark.usefixtures("facts", "models")
@pytest.mark.parametrize("name", ["embed", "awaited", "model", "model.embed_documents"])
def test_reindex_makes_missing_vectors_and_search_uses_them(run: Run, name: str) -> None:
    own = f"models_of_mine:{name}"
    assert run("search", "counting", "--embed", own, "--mode", "semantic").code == 1
    assert run("reindex", "--embed", own) == Result(0, b"3 entries have new vectors\n", "")
    assert run("reindex", "--embed", own, "--json").json == {"embedded": 0}
    found = run("search", "counting", "--embed", own, "--mode", "semantic", "--ns", "users").lines
    assert len(found) == 3
    assert found[0].startswith("users/bob\twork\t")
    hybrid = run("search", "peanuts Bob", "-e", own, "--json").json["hits"]
    assert {hit["key"] for hit in hybrid} == {"diet", "snack", "work", "/menu.md"}
    assert run("search", "counting", "--mode", "semantic").code == 2


@pytest.mark.usefixtures("facts", "models")
def test_a_changed_model_is_reported_with_the_advice_to_reindex(run: Run) -> None:
    run("reindex", "-e", "models_of_mine:embed")
    result = run("search", "counting", "-e", "models_of_mine:reversed_words")
    assert (result.code, result.out) == (2, b"")
    assert "holdall URL reindex" in result.error
    assert run("reindex", "-e", "models_of_mine:reversed_words").lines == ["3 entries have new vectors"]
    assert run("search", "counting", "-e", "models_of_mine:reversed_words").code == 0


@pytest.mark.usefixtures("facts", "models")
def test_to_search_with_a_model_where_there_are_no_vectors_binds_the_store_to_nothing(run: Run) -> None:
    assert len(run("search", "peanuts", "-e", "models_of_mine:embed").lines) == 3
    assert run("search", "peanuts", "-e", "models_of_mine:reversed_words").code == 0


@pytest.mark.usefixtures("models")
def test_a_reindex_that_broke_off_goes_on_where_it_was(run: Run, store: holdall.Store) -> None:
    for number in range(100):
        store.put(("many",), f"{number:03}", {"text": f"note {number}"})
    store.put(("many",), "last", {"text": "the last one"})
    result = run("reindex", "-e", "models_of_mine:fails_at_the_end")
    assert (result.code, result.out) == (3, b"")
    assert "OSError: out of credit" in result.error
    assert run("reindex", "-e", "models_of_mine:embed").lines == ["1 entry has new vectors"]


@pytest.mark.usefixtures("models")
def test_a_model_that_is_none_is_bad_input(run: Run) -> None:
    (Path.cwd() / "model_that_raises.py").write_text("raise RuntimeError('no GPU')")
    names = ("", "nothing", "nowhere:x", "models_of_mine:", ":x", "models_of_mine:Model", "model_that_raises:x")
    for name in names:
        for words in (("reindex",), ("search", "x")):
            result = run(*words, "--embed", name)
            assert (result.code, result.out) == (2, b""), name
            assert re.fullmatch("holdall: .+\n", result.error)
    assert run("reindex").code == 2


def test_namespaces_are_given_joined_or_label_by_label(run: Run, store: holdall.Store) -> None:
    run("write", "/f", "joined", "--ns", "a/b")
    run("write", "/f", "labels", "-n", "a", "-n", "b/c")
    run("write", "/f", "long", "--namespace", "a/c")
    run("write", "/f", "default")
    assert store.files(("a", "b")).read("/f") == b"joined"
    assert store.files(("a", "c")).read("/f") == b"long"
    assert store.files(("a", "b/c")).read("/f") == b"labels"
    assert store.files(("filesystem",)).read("/f") == b"default"
    assert run("cat", "/f", "--ns", "a/b", "-n", "x").code == 2
    unknown = run("cat", "/f", "--nonsense")
    assert (unknown.code, unknown.error) == (2, "holdall: No such option: --nonsense. See holdall cat --help.\n")


def test_a_usage_error_names_the_help_of_the_command(run: Run) -> None:
    for words, help_of in (
        (("item", "set"), "holdall item set"),
        (("item", "nonsense"), "holdall item"),
        (("item",), "holdall item"),
        (("conversations",), "holdall conversations"),
        (("nonsense",), "holdall"),
    ):
        result = run(*words)
        assert (result.code, result.out) == (2, b"")
        assert re.fullmatch(f"holdall: .{{1,60}}\\. See {help_of} --help\\.\n", result.error), result.error


# Trees, and local files ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("some")
def test_rm_removes_folders_only_with_r(run: Run, store: holdall.Store) -> None:
    assert run("rm", "/notes") == Result(4, b"", "holdall: '/notes' is a folder; remove it with -r\n")
    result = run("rm", "/z.md", "/nowhere", "--json")
    assert (result.code, result.json) == (1, {"removed": 1})
    assert run("rm", "-f", "/nowhere").code == 0
    assert run("rm", "-r", "/notes", "--json").json == {"removed": 3}
    assert list(store.files().walk()) == []


@pytest.mark.usefixtures("some")
def test_mv_and_cp_take_files_and_folders_to_a_path_or_into_a_folder(run: Run, store: holdall.Store) -> None:
    assert run("mv", "/z.md", "/notes/").code == 0
    assert run("cp", "/notes", "/copy").code == 0
    assert run("mv", "/copy/", "/in/").code == 0
    assert [info.path for info in store.files().walk("/in")] == [
        "/in/copy/a.md", "/in/copy/deep/b.md", "/in/copy/deep/c.txt", "/in/copy/z.md"
    ]  # fmt: skip
    assert run("mv", "/notes/a.md", "/in").code == 4
    assert run("cp", "/nowhere", "/x").code == 1


def test_a_folder_goes_in_and_comes_out_the_same(run: Run, store: holdall.Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    wanted = {"a.txt": b"a\r\n", "deep/b.bin": BINARY, "deep/deeper/c": b"", "large": os.urandom(2_500_000)}
    for name, data in wanted.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    (source / "loop").symlink_to(source)
    os.mkfifo(source / "pipe")
    written = run("put", str(source), "/in", "--json").json
    assert {info["path"] for info in written} == {f"/in/{name}" for name in wanted}
    out = tmp_path / "out"
    got = run("get", "/in", str(out), "--json").json
    assert {pair["path"]: pair["local"] for pair in got} == {f"/in/{name}": str(out / name) for name in wanted}
    assert {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()} == wanted


def test_a_local_name_that_is_not_utf_8_is_escaped_in_json(run: Run, store: holdall.Store, tmp_path: Path) -> None:
    store.files().write("/a", "text")
    local = str(tmp_path / "\udcff")
    assert run("get", "/a", local, "--json").json == [{"path": "/a", "local": local}]
    assert Path(local).read_text() == "text"


def test_a_copied_file_keeps_its_name_by_default(
    run: Run, store: holdall.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_bytes(b"a")
    assert [run("put", "a.txt").code, run("put", "a.txt", "/in/").code, run("put", "-", "/b", stdin=b"b").code] == [
        0
    ] * 3
    assert [info.path for info in store.files().walk()] == ["/a.txt", "/b", "/in/a.txt"]
    Path("folder").mkdir()
    assert [run("get", "/b").code, run("get", "/b", "folder").code, run("get", "/b", "c").code] == [0] * 3
    assert [Path(name).read_bytes() for name in ("b", "folder/b", "c")] == [b"b"] * 3
    assert Path("b").stat().st_mode == Path("a.txt").stat().st_mode
    assert run("get", "/b", "-").out == b"b"


def test_a_missing_local_file_is_reported_and_nothing_is_left_over(run: Run, tmp_path: Path) -> None:
    run("write", "/a", "x")
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert run("put", str(tmp_path / "nowhere"), "/x").code == 1
    assert run("get", "/nowhere", str(tmp_path / "x")).code == 1
    assert run("get", "/a", str(tmp_path / "missing" / "x")).code == 1
    run("write", "/folder/b", "x")
    assert run("get", "/folder", str(tmp_path / "a")).code == 4
    os.mkfifo(tmp_path / "pipe")  # as /dev/null is no regular file
    assert run("get", "/a", str(tmp_path / "pipe")).code == 2
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "loop").symlink_to("loop")
    assert run("put", str(tmp_path / "loop")).code == 3
    assert run("put", "-").code == 2
    assert run("get", "/").code == 2
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_a_local_file_that_could_not_be_written_whole_is_as_it_was(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> bytes:
        raise Unavailable("the server went away")

    run("write", "/a", "new")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("old")
    monkeypatch.setattr("holdall.Files.read", fails)
    assert run("get", "/a", str(tmp_path / "out")) == Result(3, b"", "holdall: the server went away\n")
    assert [(path.name, path.read_text()) for path in (tmp_path / "out").iterdir()] == [("a", "old")]


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("cat", "/nowhere"), 1),
        (("cat", "relative"), 2),
        (("cat", "/a/../b"), 2),
        (("write", "/file/inside", "x"), 4),
        (("cat", "/folder"), 4),
        (("edit", "/file", "", "x"), 2),
        (("edit", "/binary", "x", "y"), 4),
        (("grep", "(", "-E"), 2),
        (("write", "/x", "\udcff"), 2),
        (("write", "/x", "x", "-n", ""), 2),
        (("frobnicate",), 2),
        (("ls", "--frobnicate"), 2),
        (("cat",), 2),
        ((), 2),
    ],
)
def test_an_error_is_one_line_and_has_its_exit_code(
    run: Run, store: holdall.Store, words: tuple[str, ...], code: int
) -> None:
    store.files().write("/file", "x x")
    store.files().write("/binary", b"\xff")
    store.files().write("/folder/a", "x")
    result = run(*words)
    assert (result.code, result.out) == (code, b"")
    assert re.fullmatch("holdall: .+\n", result.error)


@pytest.mark.parametrize(
    ("url", "code"), [("nowhere:x", 2), ("{here}", 2), ("/proc/missing/agent.db", 3), ("{here}/not-sqlite", 3)]
)
def test_a_store_that_cannot_be_opened_is_one_line(tmp_path: Path, url: str, code: int) -> None:
    (tmp_path / "not-sqlite").write_bytes(b"this is not a database" * 100)
    done = process(url.format(here=tmp_path), "ls")
    assert (done.returncode, done.stdout) == (code, b"")
    assert re.fullmatch("holdall: .+\n", done.stderr.decode())


# A process of its own ------------------------------------------------------------------------------------------------


def test_the_url_comes_first_or_from_the_environment(database: str) -> None:
    listed = [b"/notes/", b"/raw.bin"]
    assert process(database, "ls").stdout.split() == listed
    assert process(f"sqlite:///{database}", "ls").stdout.split() == listed
    assert process("ls", env={"HOLDALL_URL": database}).stdout.split() == listed
    assert process(database, "ls", env={"HOLDALL_URL": "nowhere:"}).stdout.split() == listed
    done = process("ls", env={"HOLDALL_URL": ""})
    assert (done.returncode, b"HOLDALL_URL" in done.stderr) == (2, True)


def test_a_store_called_like_a_command_is_named_with_a_dot(tmp_path: Path) -> None:
    assert process("./ls", "write", "/a", "x", cwd=tmp_path).returncode == 0
    assert process("./ls", "ls", cwd=tmp_path).stdout == b"/a\n"


def test_binary_files_pass_through_real_pipes(database: str) -> None:
    assert process(database, "cat", "/raw.bin").stdout == BINARY
    assert process(database, "write", "/copy", input=BINARY).returncode == 0
    assert process(database, "put", "-", "/copy2", input=BINARY).returncode == 0
    with holdall.open(database) as store:
        assert store.files().read("/copy") == store.files().read("/copy2") == BINARY


def test_names_and_texts_are_utf8_whatever_the_locale(database: str) -> None:
    env = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    with holdall.open(database) as store:
        store.files().write("/ü/ñ.md", "Grüße 🎒")
    assert process(database, "glob", "ñ*", env=env).stdout.decode() == "/ü/ñ.md\n"
    assert process(database, "grep", "🎒", env=env).stdout.decode() == "/ü/ñ.md:1:Grüße 🎒\n"
    assert process(database, "cat", "/ü/ñ.md", env=env).stdout.decode() == "Grüße 🎒"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error_and_a_slow_one_gets_everything(database: str, unbuffered: str) -> None:
    data = b"line\n" * 100_000  # more than a pipe holds
    with holdall.open(database) as store:
        store.files().write("/big", data)
    assert process(database, "cat", "/big", env={"PYTHONUNBUFFERED": unbuffered}).stdout == data
    for words in (["cat", "/big"], ["grep", "line"], ["export", "-"]):
        env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen([COMMAND, database, *words], env=env, **pipes) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            child.stdout.read(1)
            child.stdout.close()
            assert (child.stderr.read(), child.wait(60)) == (b"", 141)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line(database: str, unbuffered: str) -> None:
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [COMMAND, database, "ls"], stdout=full, stderr=subprocess.PIPE, env=env, text=True, check=False
        )
    assert done.returncode == 3
    assert re.fullmatch("holdall: .*No space left.*\n", done.stderr)


def test_lines_from_stdin_are_appended_while_they_come(database: str) -> None:
    with (
        holdall.open(database) as store,
        subprocess.Popen([COMMAND, database, "append", "/log"], stdin=subprocess.PIPE) as child,
    ):
        assert child.stdin is not None
        for text, there in ((b"one\ntwo", b"one\n"), (b" and a half\n", b"one\ntwo and a half\n")):
            child.stdin.write(text)
            child.stdin.flush()
            for _ in range(600):
                if store.files().exists("/log") and store.files().read("/log") == there:
                    break
                signal.sigtimedwait([], 0.1)
            assert store.files().read("/log") == there
        child.stdin.write(b"no end")
        child.stdin.close()
        assert child.wait(60) == 0
        assert store.files().read("/log") == b"one\ntwo and a half\nno end"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Children that an interrupt reaches: what a shell runs in its background ignores it, and would hand that on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_write_is_quiet_and_leaves_nothing(database: str) -> None:
    with subprocess.Popen(
        [COMMAND, database, "write", "/half"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(b"x" * 3_000_000)  # more than a pipe holds: when this returns, it is being read
        child.stdin.flush()
        child.send_signal(signal.SIGINT)
        child.wait(60)
        assert (child.returncode, child.stderr.read()) == (130, b"")
        child.stdin.close()
    with holdall.open(database) as store:
        assert not store.files().exists("/half")


def terminal(*words: str, env: dict[str, str]) -> str:
    """What the command shows on a terminal."""
    ours, theirs = pty.openpty()
    ask = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLORTERM")}
    ask |= {"TERM": "xterm-256color", "COLUMNS": "40"} | env
    with subprocess.Popen([COMMAND, *words], stdout=theirs, env=ask) as child:
        os.close(theirs)
        shown = read_terminal(ours)
        assert child.wait(60) == 0
    return shown.replace("\r\n", "\n")


def test_colours_are_for_terminals_that_want_them(database: str) -> None:
    assert "\x1b[" in terminal(database, "ls", env={})
    assert "34m" in terminal(database, "ls", env={})  # folders are blue
    assert "34m" not in terminal(database, "ls", env={"NO_COLOR": "1"})
    assert terminal(database, "ls", env={"TERM": "dumb"}) == "/notes/\n/raw.bin\n"
    assert b"\x1b" not in process(database, "ls").stdout


def test_reindex_draws_a_bar_on_a_terminal_and_leaves_stdout_alone(database: str) -> None:
    with holdall.open(database) as store:
        for number in range(101):
            store.put(("notes",), str(number), {"text": f"note {number}"})
    shown, out, code = read_bars(database, "reindex", "-e", "holdall.testing:embed", "--json")
    assert (json.loads(out), code) == ({"embedded": 101}, 0)
    assert "embedding" in shown
    assert "101/101" in shown
    assert process(database, "reindex", "-e", "holdall.testing:embed").stderr == b""


def test_stored_control_characters_do_not_reach_a_terminal(database: str) -> None:
    with holdall.open(database) as store:
        store.files().write("/evil", "MARK \x1b]0;title\x07 \x9b31m \x08\n")
        store.put(("evil",), "\x1b[2J", {"evil": "\x9b31m"})
    for words in (["grep", "MARK"], ["search", "--ns", "evil"]):
        shown = terminal(database, *words, env={"NO_COLOR": "1"})
        assert not re.search(r"\x1b[\]\[][^0-9]|\x1b\[2J|[\x07\x08\x9b]|\x1b\]", re.sub(r"\x1b\[[0-9;]*m", "", shown))
        assert r"\x1b" in shown
    assert b"\x1b]0;title\x07" in process(database, "grep", "MARK").stdout


def test_a_missing_package_is_named_with_its_extra(database: str) -> None:
    for package in ("typer", "rich"):
        script = (
            f"import sys; sys.modules[{package!r}] = None; from holdall.__main__ import main;"
            f" sys.argv[1:] = [{database!r}, 'ls']; sys.exit(main())"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (3, "")
        assert re.fullmatch(r"holdall: .*'(typer|rich).*': pip install 'holdall\[cli\]'\n", done.stderr)


def test_python_m_holdall_is_the_same_command(database: str) -> None:
    done = subprocess.run([sys.executable, "-m", "holdall", database, "ls"], capture_output=True, check=True)
    assert done.stdout.split() == [b"/notes/", b"/raw.bin"]


# Documentation -------------------------------------------------------------------------------------------------------

TREE: Any = typer.main.get_command(cli.app)


def commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """All commands, by their names: `ls`, `item get`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


COMMANDS = dict(commands(TREE))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_an_example_and_a_place_in_the_reference(name: str) -> None:
    command = COMMANDS[name]
    sections = dict(re.findall(r"(?ms)^### `([\w -]+)`.*?$(.*?)(?=^##|\Z)", PAGE.read_text()))
    assert command.help
    assert "Example:" in command.epilog
    assert re.search(rf"holdall (?:\S+ )?{name}\b", command.epilog), "the example shows another command"
    assert name in sections, f"{PAGE.name} has no heading for {name}"
    assert name in ("serve", "ui", "mcp") or any(parameter.name == "as_json" for parameter in command.params)
    for parameter in command.params:
        if (
            parameter.param_type_name == "option"
            and parameter.name not in ("ns", "as_json", "help")
            and (parameter.name != "label" or name == "token create")
        ):
            assert parameter.help
            for option in parameter.opts:
                assert f"`{option}" in sections[name] or f", {option}" in sections[name], f"{name} {option}"


def test_the_exit_codes_in_the_reference_are_the_real_ones() -> None:
    documented = {int(code) for code in re.findall(r"(?m)^\| (\d+) \|", PAGE.read_text())}
    assert documented == {
        cli.DONE, cli.NOT_FOUND, cli.BAD_INPUT, cli.UNAVAILABLE, cli.CONFLICT, cli.INTERRUPTED, cli.STDOUT_CLOSED
    }  # fmt: skip


def test_stats_are_a_table_or_json(run: Run, store: holdall.Store) -> None:
    store.put(("notes",), "k", {"n": 1})
    found = store.stats()
    assert run("stats", "--json").json["entries"] == found.entries
    assert run("stats").lines[0].split() == ["entries", str(found.entries)]
