"""The commands for LangGraph's data: what they print, the bars they draw, and their exit codes."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import PutOp
from langgraph.store.sqlite import SqliteStore

import holdall
from holdall.faces.cli import app as cli
from holdall.faces.conversations import ConversationRepository
from holdall.faces.langgraph import HoldallSaver
from support.langgraph_stores import Saver
from support.servers import postgres_url
from support.terminal import read_bars

COMMAND = Path(sys.executable).with_name("holdall")


@pytest.fixture
def theirs(tmp_path: Path) -> str:
    path = str(tmp_path / "theirs.db")
    with SqliteStore.from_conn_string(path) as store:
        store.batch([PutOp(("users", "ada"), f"k{n}", {"text": f"note {n}"}) for n in range(1200)])
    return path


@pytest.fixture
def ours(tmp_path: Path) -> str:
    path = str(tmp_path / "ours.db")
    with ConversationRepository(path) as repository:
        for user, thread, said in (
            ("ada", "diet", "No peanuts."),
            ("ada", "trip", "At nine."),
            ("bob", "diet", "=1+1"),
        ):
            messages = [HumanMessage(said), AIMessage("Noted.")]
            repository.archive(user, thread, Saver(messages, id=f"{user}-{thread}"))
    return path


def run(capsys: Any, *words: str) -> tuple[int, str, str]:
    code = cli.run(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_import_prints_a_summary(theirs: str, tmp_path: Path, capsys: Any) -> None:
    ours = str(tmp_path / "ours.db")
    assert run(capsys, ours, "langgraph", "import", theirs) == (0, "1200 of 1200 items imported\n", "")
    assert run(capsys, ours, "langgraph", "import", theirs) == (0, "0 of 1200 items imported (1200 here already)\n", "")
    code, out, _ = run(capsys, ours, "langgraph", "import", theirs, "--json")
    assert (code, json.loads(out)["present"]) == (0, 1200)
    with holdall.open(ours) as store:
        assert store.count() == 1200


def test_import_reports_items_that_it_cannot_import(theirs: str, tmp_path: Path, capsys: Any) -> None:
    with SqliteStore.from_conn_string(theirs) as store:
        store.put(("users", "ada"), "", {})
    code, out, error = run(capsys, str(tmp_path / "ours.db"), "langgraph", "import", theirs)
    assert (code, out) == (4, "1200 of 1201 items imported (1 refused)\n")
    assert error.startswith("holdall: users/ada '': ")
    assert run(capsys, str(tmp_path / "ours.db"), "langgraph", "import", str(tmp_path / "nothing"))[0] == 1
    assert run(capsys, str(tmp_path / "ours.db"), "langgraph", "import", postgres_url())[0] == 2


def test_import_gives_vectors(theirs: str, tmp_path: Path, capsys: Any) -> None:
    ours = str(tmp_path / "ours.db")
    assert run(capsys, ours, "langgraph", "import", theirs, "--embed", "holdall.testing:embed")[0] == 0
    code, out, _ = run(capsys, ours, "reindex", "--embed", "holdall.testing:embed", "--json")
    assert (code, json.loads(out)) == (0, {"embedded": 0})


def test_conversations_are_listed_and_found(ours: str, capsys: Any) -> None:
    code, out, _ = run(capsys, ours, "conversations", "list", "ada")
    assert code == 0
    assert [line.split("\t")[1:3] for line in out.splitlines()] == [["2", "trip"], ["2", "diet"]]
    assert [
        one["thread_id"] for one in json.loads(run(capsys, ours, "conversations", "list", "ada", "peanut", "--json")[1])
    ] == ["diet"]
    assert len(run(capsys, ours, "conversations", "list", "ada", "-t", "trip")[1].splitlines()) == 1
    assert len(run(capsys, ours, "conversations", "list", "ada", "-m", "1")[1].splitlines()) == 1
    assert run(capsys, ours, "conversations", "list", "nobody") == (1, "", "")


def test_export_writes_the_selected_conversations(ours: str, tmp_path: Path, capsysbinary: Any) -> None:
    target = str(tmp_path / "audit.jsonl")
    assert run(capsysbinary, ours, "conversations", "export", target) == (0, b"", b"")
    assert len(Path(target).read_text().splitlines()) == 6
    code, out, _ = run(capsysbinary, ours, "conversations", "export", target, "--user", "bob", "--json")
    assert (code, json.loads(out)) == (0, {"messages": 2})
    code, out, _ = run(capsysbinary, ours, "conversations", "export", "-", "--format", "csv", "-t", "diet")
    texts = [row["text"] for row in csv.DictReader(io.StringIO(out.decode()))]
    assert (code, sorted(texts)) == (0, ["'=1+1", "No peanuts.", "Noted.", "Noted."])
    assert run(capsysbinary, ours, "conversations", "export", target, "--user", "nobody")[0] == 1
    assert run(capsysbinary, ours, "conversations", "export", str(tmp_path / "audit.xml"))[0] == 2


@pytest.mark.parametrize(
    ("words", "bar"),
    [(["langgraph", "import", "{theirs}"], "1200/1200"), (["conversations", "export", "{target}"], "3/3")],
    ids=["import", "export"],
)
def test_a_bar_is_drawn_on_a_terminal(ours: str, theirs: str, tmp_path: Path, words: list[str], bar: str) -> None:
    given = [word.format(theirs=theirs, target=tmp_path / "audit.csv") for word in words]
    shown, out, code = read_bars(ours, *given, "--json")
    assert (bool(json.loads(out)), code) == (True, 0)
    assert bar in shown


def chat(saver: Any, thread: str, *said: str) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [AIMessage(f"Heard {len(state['messages'])}.")]})
    builder.add_edge(START, "model")
    config: Any = {"configurable": {"thread_id": thread}, "metadata": {"user_id": thread.partition("-")[0]}}
    for text in said:
        builder.compile(checkpointer=saver).invoke({"messages": [HumanMessage(text)]}, config)


def test_threads_are_listed_shown_and_pruned(tmp_path: Path, capsys: Any) -> None:
    path = str(tmp_path / "agent.db")
    with HoldallSaver(path) as saver:
        chat(saver, "ada-1", "No peanuts.", "At nine.")
        chat(saver, "bob-1", "Tea.")
    code, out, _ = run(capsys, path, "threads")
    assert code == 0
    assert [line.split("\t")[1:] for line in out.splitlines()] == [
        ["3", "bob-1", "Heard 1."],
        ["6", "ada-1", "Heard 3."],
    ]
    for words in (["-q", "ada"], ["--prefix", "ada-"], ["-f", '{"user_id": "ada"}']):
        found = json.loads(run(capsys, path, "threads", *words, "--json")[1])
        assert [one["id"] for one in found] == ["ada-1"]
    assert run(capsys, path, "threads", "-f", "{")[0] == 2
    assert run(capsys, path, "threads", "--prefix", "x") == (1, "", "")
    assert run(capsys, path, "threads", "show", "ada-1")[1].splitlines() == [
        "human\tNo peanuts.",
        "ai\tHeard 1.",
        "human\tAt nine.",
        "ai\tHeard 3.",
    ]
    shown = json.loads(run(capsys, path, "threads", "show", "ada-1", "--json")[1])
    assert (shown["step"], shown["metadata"]["user_id"], len(shown["values"]["messages"])) == (4, "ada", 4)
    lines = run(capsys, path, "threads", "show", "ada-1", "--checkpoints")[1].splitlines()
    assert [line.split("\t")[1:3] for line in lines][-1] == ["-1", "input"]
    assert run(capsys, path, "threads", "show", "nobody")[0] == 1
    assert run(capsys, path, "threads", "prune", "ada-1", "--keep-last", "2", "--yes") == (
        0,
        "4 checkpoints deleted\n",
        "",
    )
    assert run(capsys, path, "threads", "prune", "--older-than", "1", "--yes", "--json")[1] == '{"checkpoints": 0}\n'
    assert run(capsys, path, "threads", "prune", "--older-than", "1e300", "-y")[1] == "0 checkpoints deleted\n"
    assert json.loads(run(capsys, path, "threads", "prune", "-y", "--json")[1]) == {"checkpoints": 3}
    assert len(run(capsys, path, "threads", "show", "ada-1")[1].splitlines()) == 4
    assert run(capsys, path, "threads", "prune", "--delete", "-y")[0] == 2
    deleted = run(capsys, path, "threads", "prune", "bob-1", "--delete", "-y", "--json")
    assert deleted[:2] == (0, '{"deleted": ["bob-1"]}\n')
    assert run(capsys, path, "threads", "show", "bob-1")[0] == 1


def test_threads_are_imported(tmp_path: Path, capsys: Any) -> None:
    theirs, path = str(tmp_path / "theirs.db"), str(tmp_path / "agent.db")
    with SqliteSaver.from_conn_string(theirs) as saver:
        chat(saver, "t", "Hello.", "Again.")
    assert run(capsys, path, "threads", "import", theirs) == (0, "6 of 6 checkpoints imported\n", "")
    assert json.loads(run(capsys, path, "threads", "import", theirs, "--json")[1])["present"] == 6
    assert run(capsys, path, "threads", "show", "t")[1].splitlines()[-1] == "ai\tHeard 3."
    with SqliteSaver.from_conn_string(theirs) as saver:
        chat(saver, "", "A thread without an ID.")
    code, out, error = run(capsys, path, "threads", "import", theirs)
    assert (code, out) == (4, "0 of 9 checkpoints imported (6 here already, 3 refused)\n")
    assert len(error.splitlines()) == 3


def test_without_langgraph_the_extra_is_named(ours: str) -> None:
    for words in (
        ["langgraph", "import", "x"],
        ["conversations", "list", "ada"],
        ["conversations", "export", "-"],
        ["threads"],
    ):
        script = (
            "import sys; sys.modules['langgraph'] = None; from holdall.__main__ import main;"
            f" sys.argv[1:] = [{ours!r}, *{words!r}]; sys.exit(main())"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (3, "")
        assert "pip install 'holdall[langgraph]'" in done.stderr
