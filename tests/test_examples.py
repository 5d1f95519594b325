"""The examples run as they stand, and print what they are there to show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from support.servers import postgres_url

EXAMPLES = Path(__file__).parents[1] / "examples"
WITHOUT_NETWORK = "import runpy, socket, sys; socket.socket.connect = None; runpy.run_path(sys.argv[1])"


def test_the_example_of_search_finds_by_meaning_and_by_words_without_a_network() -> None:
    command = [sys.executable, "-c", WITHOUT_NETWORK, EXAMPLES / "search.py"]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert [re.split(r" +0\.\d\d  ", line) for line in run.stdout.splitlines()] == [
        ["which nuts make her ill?", "Ada cannot eat peanuts or almonds"],
        ["her apartment", "She lives in Zürich, near the lake"],
        ["publications", "She writes papers about Babbage's engines"],
        ['"near the lake"', "She lives in Zürich, near the lake"],
    ]


@pytest.mark.not_short  # two frameworks: 5 to 10 s
def test_an_ag2_agent_and_a_langgraph_graph_read_each_others_notes() -> None:
    command = [sys.executable, "-W", "error", EXAMPLES / "ag2_and_langgraph.py"]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == [
        "AG2 is notified: /notes/graph.md",
        "ada: They eat nuts, too.",
        "the agent read /notes/graph.md: 'Checked /notes/ada.md: they also eat nuts.\\n'",
        "the graph read /notes/ada.md: 'The parrots eat seeds.\\n'",
    ]


@pytest.mark.not_short  # seven processes, each with its framework: 10 s
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_one_memory_is_seen_by_all(engine: str, tmp_path: Path) -> None:
    url = new_database() if engine == "postgres" else str(tmp_path / "agent.db")
    command = [sys.executable, "-W", "error", str(EXAMPLES / "one_memory.py"), url]
    strands = EXAMPLES.parent / ".venv" / "strands" / "bin" / "python"  # made by `make strands`
    run = subprocess.run(
        command + (["--strands", str(strands)] if strands.exists() else []),
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "langgraph: I keep a fact and a file.",
        "openai_agents: Ada is allergic to peanuts",
        "claude: soup,7",
        "ag2: soup,7",
        "mcp: Ada is allergic to peanuts; salad,9",
        "pandas: the mean price is 8.0",
        *(["strands: Ada is allergic to peanuts; soup,7"] if strands.exists() else []),
    ]


FRAMEWORKS = {
    "adk_sessions": [
        "state of the user: no peanuts",
        "artifact: beans, pasta, basil",
        "memory: My favourite soup is minestrone.",
    ],
    "agent_framework_workflow": [
        "['soup is ready']",
        "again from the first checkpoint: ['soup is ready']",
        "messages: ['I like soup.']",
    ],
    "key_value_settings": [
        "through py-key-value: {'theme': 'dark'}",
        "through holdall: ('key-value', 'settings') ada",
    ],
    "langchain_chat": ["Peanuts.", "from the cache: Peanuts.", "messages: 4"],
    "llama_index_documents": [
        "through LlamaIndex: Ada is allergic to peanuts",
        "through holdall: Ada is allergic to peanuts",
        "chat: ['Hello']",
    ],
    "pydantic_ai_conversation": ["messages: 2", "messages: 4"],
}


@pytest.mark.not_short  # a process for each framework: 2 to 5 s
@pytest.mark.parametrize("example", sorted(FRAMEWORKS))
def test_the_example_of_a_framework_prints_what_it_shows(example: str) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{example}.py")]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == FRAMEWORKS[example]


def new_database() -> str:
    """Create a database, and return its URL: the example uses the default schema."""
    name = f"one_memory_{uuid4().hex}"
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    before, _, query = postgres_url().partition("?")
    return f"{before.rpartition('/')[0]}/{name}" + (f"?{query}" if query else "")
