"""The reference of the LangGraph faces leaves nothing out, and the examples run."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from holdall.faces.conversations import repository as conversations
from holdall.faces.langgraph import store as langgraph
from support.signatures import documented_signature, signature_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "langgraph.md").read_text()
METHODS = ["archive", "conversations", "resume", "export", "retain", "erase", "put", "get", "search", "delete"]


def names() -> list[str]:
    classes = (langgraph.HoldallStore, langgraph.AsyncHoldallStore, conversations.ConversationRepository)
    own = {name for one in classes for base in one.__mro__[:2] for name in vars(base) if not name.startswith("_")}
    records = (langgraph.Imported, langgraph.Refused, conversations.Conversation)
    twins = {name for name in own if name[1:] in own and name.startswith("a")}
    return sorted((own - twins) | {one.name for record in records for one in fields(record)})


@pytest.mark.parametrize("name", [*langgraph.__all__, *conversations.__all__, *names()])
def test_a_public_name_is_in_the_reference(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE), f"{name} is not in docs/reference/langgraph.md"


@pytest.mark.parametrize("name", METHODS)
def test_a_signature_in_the_reference_is_the_real_one_and_its_twins(name: str) -> None:
    documented = re.search(rf"^repository\.{name}(\(.*?\) -> .*?)$", PAGE, re.MULTILINE)
    assert documented is not None
    real, twin = (getattr(conversations.ConversationRepository, found) for found in (name, f"a{name}"))
    assert documented_signature(documented[1]) == signature_of(real)
    assert signature_of(twin) == signature_of(real)


@pytest.mark.parametrize("owner", [langgraph.HoldallStore, conversations.ConversationRepository, langgraph.import_from])
def test_how_it_is_made_is_as_in_the_reference(owner: Any) -> None:
    documented = re.search(rf"^{owner.__name__}(\(.*?\))", PAGE, re.MULTILINE)
    assert documented is not None
    assert documented_signature(documented[1] + " -> None")[:-1] == signature_of(owner)[:-1]


def test_every_method_has_a_docstring() -> None:
    for owner in (langgraph.HoldallStore, langgraph.AsyncHoldallStore, conversations.ConversationRepository):
        for name, method in inspect.getmembers(owner, callable):
            if not name.startswith("_"):
                assert inspect.getdoc(method), f"{owner.__name__}.{name} has no docstring"


@pytest.mark.parametrize("example", ["langgraph_memory.py", "conversations.py"])
def test_the_example_runs(example: str, tmp_path: Path) -> None:
    script = ROOT / "examples" / example
    for turn in range(2):  # and finds what it left behind
        run = subprocess.run(
            [sys.executable, script, str(tmp_path / "agent.db")],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert run.returncode == 0, run.stderr
        assert ("remembers" in run.stdout) or turn == 0
