"""A face without its framework is `MissingExtra`, which names the extra."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from support.processes import report, run

REPOSITORY = Path(__file__).parents[2]
#: Each face that needs a framework: the package that it imports first, and its extra.
FACES = {
    "adk": ("google.adk", "adk"),
    "agent_framework": ("agent_framework", "agent-framework"),
    "claude": ("anthropic", "claude"),
    "cli": ("typer", "cli"),
    "conversations": ("langgraph", "langgraph"),
    "deepagents": ("deepagents", "deepagents"),
    "fsspec": ("fsspec", "fsspec"),
    "key_value": ("key_value", "key-value"),
    "langchain": ("langchain_core", "langchain"),
    "langgraph": ("langgraph", "langgraph"),
    "llama_index": ("llama_index", "llama-index"),
    "openai_agents": ("agents", "openai-agents"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "strands": ("strands", "strands"),
}
#: They have equal types of their own.
_WITHOUT_FRAMEWORK = {"ag2", "spoon"}


def test_every_face_is_in_the_table() -> None:
    folders = {path.name for path in (REPOSITORY / "src/holdall/faces").iterdir() if (path / "__init__.py").exists()}
    assert folders == {*FACES, *_WITHOUT_FRAMEWORK}
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {extra for _, extra in FACES.values()} <= set(extras)


@pytest.mark.parametrize("face", FACES)
def test_a_face_without_its_framework_names_the_extra(face: str) -> None:
    package, extra = FACES[face]
    [message] = run(import_without, face=face, package=package)
    assert re.search(rf"pip install 'holdall\[{extra}\]'", message), message


def import_without(face: str, package: str) -> None:
    """Import a face where a package does not exist, and report the error."""
    import importlib
    import sys

    from holdall.errors import MissingExtra

    gone = (package, f"holdall.faces.{face}")  # the process is forked from one that has imported other tests
    for name in [one for one in sys.modules if one in gone or one.startswith(tuple(f"{name}." for name in gone))]:
        del sys.modules[name]
    sys.modules[package] = None  # type: ignore[assignment]  # what makes Python say that there is none
    try:
        importlib.import_module(f"holdall.faces.{face}")
    except MissingExtra as error:
        report(str(error))
