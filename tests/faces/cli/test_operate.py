"""The commands for entries and for operators."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import holdall
from holdall.faces.cli import app as cli
from support.terminal import read_bars

COMMAND = Path(sys.executable).with_name("holdall")


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = str(tmp_path / "agent.db")
    with holdall.open(path) as store:
        store.put(("users", "ada"), "likes", {"food": "figs"})
        store.put(("users", "a/b"), "likes", {"food": "plums"})
        store.files().write("/notes.md", "tea")
    return path


def run(capsys: Any, *words: str) -> tuple[int, str, str]:
    code = cli.run(list(words))
    out, error = capsys.readouterr()
    return code, out, error


def test_items_are_set_read_listed_and_deleted(url: str, capsys: Any) -> None:
    at = ["--ns", "users/ada"]
    assert run(capsys, url, "item", "set", "new", '{"n": 1}', *at, "--ttl", "60", "--new")[0] == 0
    assert run(capsys, url, "item", "set", "new", '{"n": 1}', *at, "--new")[0] == 4
    assert json.loads(run(capsys, url, "item", "get", "new", *at)[1]) == {"n": 1}
    entry = json.loads(run(capsys, url, "item", "get", "new", *at, "--json")[1])
    assert entry["expires_at"] is not None
    again = ["item", "set", "new", '{"n": 2}', *at, "--version"]
    assert run(capsys, url, *again, str(entry["version"] + 1))[0] == 4
    assert run(capsys, url, *again, str(entry["version"]), "--json")[0] == 0
    assert run(capsys, url, "item", "list", *at)[1] == 'users/ada\tlikes\t{"food": "figs"}\nusers/ada\tnew\t{"n": 2}\n'
    assert len(json.loads(run(capsys, url, "item", "list", "--json", "-m", "2")[1])) == 2
    assert run(capsys, url, "item", "del", "new", "nothing", *at, "--json")[:2] == (1, '{"deleted": 1}\n')
    assert run(capsys, url, "item", "get", "new", *at)[0] == 1
    assert run(capsys, url, "item", "get", "new")[0] == 2
    assert run(capsys, url, "item", "set", "bad", "[1", *at)[0] == 2
    assert run(capsys, url, "item", "set", "bad", "{}", *at, "--expires-at", "soon")[0] == 2
    assert run(capsys, url, "item", "set", "bad", "{}", *at, "--new", "--version", "1")[0] == 2
    assert run(capsys, url, "item", "set", "bad", "{}", *at, "--no-search", "--search-field", "text")[0] == 2


def test_labels_with_a_slash_are_percent_encoded(url: str, capsys: Any) -> None:
    assert json.loads(run(capsys, url, "item", "get", "likes", "--ns", "users/a%2Fb")[1]) == {"food": "plums"}
    assert run(capsys, url, "namespaces")[1].splitlines() == ["filesystem", "users/a%2Fb", "users/ada"]
    assert run(capsys, url, "namespaces", "--depth", "1", "--json")[1] == '[["filesystem"], ["users"]]\n'
    assert run(capsys, url, "search", "--ns", "users/a%2Fb")[1].startswith("users/a%2Fb\t")
    assert run(capsys, url, "search", "--ns", "users/50%")[0] == 2


def test_a_store_is_backed_up_checked_and_loaded(url: str, tmp_path: Path, capsys: Any) -> None:
    file, other = str(tmp_path / "b"), str(tmp_path / "other.db")
    assert json.loads(run(capsys, url, "backup", file, "--json")[1])["entries"] == 3
    assert run(capsys, "backup-check", file)[1].splitlines()[0].split() == ["entries", "3"]
    assert run(capsys, other, "load", file)[:2] == (0, "3 entries loaded\n")
    assert run(capsys, other, "load", file)[0] == 4
    assert run(capsys, other, "load", file, "--into", "--json")[0] == 0
    assert run(capsys, url, "compare", other)[:2] == (0, "3 entries compared, 0 differ\n")
    run(capsys, other, "item", "set", "likes", "{}", "--ns", "users/ada")
    code, out, _ = run(capsys, url, "compare", other, "--json")
    assert (code, json.loads(out)["equal"]) == (1, False)
    assert run(capsys, other, "load", file, "--replace")[0] == 0
    assert run(capsys, url, "compare", other)[0] == 0
    data = bytearray(Path(file).read_bytes())
    data[100] ^= 1
    Path(file).write_bytes(data)
    code, _, error = run(capsys, "backup-check", file)
    assert code == 3
    assert "damaged" in error
    assert run(capsys, other, "load", file, "--replace")[0] == 3
    assert run(capsys, url, "compare", other)[0] == 0


def test_a_store_is_copied(url: str, tmp_path: Path, capsys: Any) -> None:
    other = str(tmp_path / "other.db")
    code, out, _ = run(capsys, url, "copy", other, "--prefix", "users", "--to", "moved/x", "--verify")
    assert (code, out) == (0, "2 entries and 0 deletions copied; 2 entries compared, 0 differ\n")
    with holdall.open(other) as store:
        assert [entry.namespace for entry in store.scan()] == [("moved", "x", "a/b"), ("moved", "x", "ada")]
    assert json.loads(run(capsys, url, "copy", other, "--json")[1])["entries"] == 3


def test_following_ends_with_a_signal_and_prints_what_it_did(url: str, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with subprocess.Popen([COMMAND, url, "copy", str(other), "--follow", "--json"], stdout=subprocess.PIPE) as child:
        with holdall.open(url) as store, holdall.open(other) as copy:
            deadline = time.monotonic() + 30
            while copy.count() < 3 and time.monotonic() < deadline:
                time.sleep(0.02)
            store.put(("live",), "k", {})
            while copy.count() < 4 and time.monotonic() < deadline:
                time.sleep(0.02)
        child.send_signal(signal.SIGTERM)
        assert child.stdout is not None
        assert json.loads(child.stdout.read())["entries"] == 4
        assert child.wait(30) == 0


def test_the_second_signal_ends_a_copy_at_once(
    url: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(*_: Any, stop: Any, **__: Any) -> None:  # as one that waits for a store which does not answer
        signal.raise_signal(signal.SIGINT)
        assert stop()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(holdall, "copy", copy)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert run(capsys, url, "copy", str(tmp_path / "other.db"), "--follow")[0] == 130
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_entries_are_exported_and_imported(url: str, tmp_path: Path, capsys: Any) -> None:
    for name in ("x.jsonl", "x.parquet"):
        file, other = str(tmp_path / name), str(tmp_path / f"{name}.db")
        assert run(capsys, url, "export", file, "--json")[:2] == (0, '{"entries": 3}\n')
        assert run(capsys, other, "import", file)[:2] == (0, "3 entries imported\n")
        assert run(capsys, url, "compare", other)[0] == 0
    theirs = tmp_path / "theirs.jsonl"
    theirs.write_text('{"id": 1, "title": "Tea", "x": 2}\n')
    assert run(capsys, url, "import", str(theirs), "--ns", "n", "-c", "key=id", "-c", "value=title,x")[0] == 0
    assert json.loads(run(capsys, url, "item", "get", "1", "--ns", "n")[1]) == {"title": "Tea", "x": 2}
    assert run(capsys, url, "import", str(theirs), "-c", "key")[0] == 2
    assert run(capsys, url, "export", str(tmp_path / "x.xml"))[0] == 2


def test_watch_prints_changes_as_lines(url: str) -> None:
    with subprocess.Popen([COMMAND, url, "watch", "--json", "-m", "2"], stdout=subprocess.PIPE) as child:
        with holdall.open(url) as store:
            deadline = time.monotonic() + 30
            while child.poll() is None and time.monotonic() < deadline:
                store.put(("live",), "k", {})
                time.sleep(0.05)
        assert child.stdout is not None
        lines = [json.loads(line) for line in child.stdout.read().splitlines()]
    assert [line["key"] for line in lines] == ["k", "k"]
    assert child.returncode == 0


def test_earlier_versions_are_listed_compared_and_brought_back(tmp_path: Path, capsys: Any) -> None:
    url, at = str(tmp_path / "kept.db"), ["--ns", "users/ada"]
    with holdall.open(url, history=3600) as store:
        first = store.acting("ada", reason="first").put(("users", "ada"), "likes", {"food": "figs"})
        before = store.cursor()
        store.put(("users", "ada"), "likes", {"food": "nothing"})
        store.put(("users", "ada"), "extra", {})
    listed = json.loads(run(capsys, url, "item", "history", "likes", *at, "--json")[1])
    assert [version["value"] for version in listed] == [{"food": "nothing"}, {"food": "figs"}]
    assert "ada (first)" in run(capsys, url, "item", "history", "likes", *at)[1]
    assert '- {"food": "figs"}\n+ {"food": "nothing"}\n' in run(capsys, url, "item", "diff", before, *at)[1]
    assert run(capsys, url, "item", "restore", "likes", str(first.version), *at)[0] == 0
    assert json.loads(run(capsys, url, "item", "get", "likes", *at)[1]) == {"food": "figs"}
    run(capsys, url, "item", "set", "likes", "{}", *at)
    assert "2 entries would be restored" not in run(capsys, url, "rewind", before, *at, "--dry-run")[1]
    assert json.loads(run(capsys, url, "rewind", before, *at, "--json")[1]) == {"restored": 1, "deleted": 1}
    assert json.loads(run(capsys, url, "item", "get", "likes", *at)[1]) == {"food": "figs"}


def test_a_namespace_is_erased_after_a_question(url: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert run(capsys, url, "erase", "--ns", "users/ada")[0] == 130
    assert run(capsys, url, "item", "get", "likes", "--ns", "users/ada")[0] == 0
    code, out, _ = run(capsys, url, "erase", "--ns", "users/ada", "--yes", "--json")
    assert (code, json.loads(out)["entries"]) == (0, 1)
    assert run(capsys, url, "item", "get", "likes", "--ns", "users/ada")[0] == 1
    assert run(capsys, url, "erase", "--yes")[0] == 2


def complete(script: Path, *words: str) -> set[str]:
    """What bash offers for the last word."""
    listed = " ".join(f"'{word}'" for word in words)
    asked = f"source {script}; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _holdall; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True, cwd=script.parent)
    return set(done.stdout.split())


def test_bash_completes_commands_and_options(tmp_path: Path, capsys: Any) -> None:
    script = tmp_path / "completion"
    script.write_text(run(capsys, "completion", "bash")[1])
    assert {"backup", "backup-check"} <= complete(script, "holdall", "agent.db", "back")
    assert complete(script, "holdall", "agent.db", "item", "") >= {"get", "set", "del", "list"}
    assert complete(script, "holdall", "agent.db", "item", "set", "--ex") == {"--expires-at"}
    assert complete(script, "holdall", "ls", "--lo") == {"--long"}
    assert "completion" in complete(script, "holdall", "agent.db", "copy", "")  # a file


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_with_every_command(shell: str, tmp_path: Path, capsys: Any) -> None:
    script = run(capsys, "completion", shell)[1]
    assert all(f" {name}" in script for name in cli.COMMANDS)
    if program := shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([program, "-n", str(tmp_path / "script")], check=True, env=dict(os.environ))
    assert run(capsys, "completion", "csh")[0] == 2


def test_a_time_without_a_zone_is_local(url: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        words = [url, "item", "set", "k", "{}", "--ns", "a", "--json", "--expires-at"]
        entry = json.loads(run(capsys, *words, "2090-01-31T12:00:00")[1])
        assert entry["expires_at"] == "2090-01-31T03:00:00+00:00"
        for command in (words, [url, "rewind"], [url, "item", "diff"]):
            code, _, error = run(capsys, *command, "0001-01-01")
            assert (code, "outside of the years" in error) == (2, True)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("words", [["item", "set", "k", "-", "--ns", "a"], ["search", "--filter"]])
def test_json_that_is_nested_too_deeply_is_refused(
    url: str, words: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = '{"a":' * 5000 + "1" + "}" * 5000
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(deep.encode())))
    code, _, error = run(capsys, url, *words, *([deep] if words[0] == "search" else []))
    assert (code, "is not JSON" in error) == (2, True)


def test_a_version_or_a_moment_that_is_not_kept_is_not_found(url: str, capsys: Any) -> None:
    with holdall.open(url, history=3600) as store:
        store.put(("users", "ada"), "likes", {"food": "tea"})
    assert run(capsys, url, "item", "restore", "likes", "999", "--ns", "users/ada")[0] == 1
    assert run(capsys, url, "rewind", "2020-01-31T12:00:00+00:00")[0] == 1
    assert "the cursor '20200131'" in run(capsys, url, "rewind", "20200131")[2]  # and not a date


@pytest.mark.not_short  # nine processes: 5 to 10 s
def test_what_may_take_long_draws_a_bar_on_a_terminal(url: str, tmp_path: Path) -> None:
    with holdall.open(url, history=3600) as store:
        for number in range(150):
            store.put(("many",), str(number), {"n": number})
        moment = store.cursor()
        store.put(("many",), "1", {"n": -1})
    file, copy, folder = str(tmp_path / "all.backup"), str(tmp_path / "copy.db"), tmp_path / "local"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text(name)
    for words, bar in (
        ([url, "put", str(folder), "/"], "2/2"),
        ([url, "get", "/local", str(folder)], "0 s"),
        ([url, "cp", "/local", "/copied"], "0 s"),
        ([url, "mv", "/copied", "/moved"], "0 s"),
        ([url, "rm", "-r", "/moved"], "0 s"),
        ([url, "stats"], "0 s"),
        ([url, "item", "diff", moment], "0 s"),
        ([url, "backup", file], "155/155"),
        ([url, "copy", copy], "155/155"),
        ([url, "compare", copy], "100/155"),
        ([url, "rewind", moment, "--ns", "many"], "0 s"),
        ([url, "erase", "--ns", "many", "--yes"], "0 s"),
    ):
        shown, out, code = read_bars(*words, "--json")
        assert code == 0
        assert json.loads(out)
        assert bar in shown
    size = Path(file).stat().st_size
    assert f"{size}/{size}" in read_bars("backup-check", file)[0]
