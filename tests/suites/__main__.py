"""Run the frameworks' own tests on our faces, and compare the outcomes with the table in docs/reference/face-suites.md.

    python -m suites [--write]

The tests come from the sdists on the package index, in the version that is installed, and are kept in .venv/suites.
`--write` writes the table. Exits 1 if a test fails that `catalogue.py` does not explain, or passes although it is
explained, or if the table is not what was seen.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from suites.catalogue import SUITES, Suite

REPOSITORY = Path(__file__).parents[2]
SOURCES = REPOSITORY / ".venv" / "suites"
PAGE = REPOSITORY / "docs" / "reference" / "face-suites.md"
_BEGIN, _END = "<!-- outcomes -->\n", "<!-- end of outcomes -->\n"


def main() -> int:
    rows, notes, problems = [], [], []
    for suite in SUITES:
        print(f"{suite.package}: ", end="", flush=True)
        version = find_version(suite)
        outcomes = run(suite, version)
        passed = [name for name, outcome in outcomes.items() if outcome == "passed"]
        others = [name for name, outcome in outcomes.items() if outcome != "passed"]
        explained = {name: explain(suite, name) for name in others}
        problems += [f"{suite.package}: {name} did not pass" for name, reason in explained.items() if reason is None]
        problems += [f"{suite.package}: {name} passes" for name in passed if explain(suite, name) is not None]
        rows.append(f"| {suite.faces} | {suite.describe()} | {version} | {len(outcomes)} | {len(passed)} |")
        counts: dict[str, list[str]] = {}
        for name, reason in explained.items():
            counts.setdefault(reason or "not explained", []).append(short_name(name))
        for reason, names in counts.items():
            listed = ", ".join(f"`{name}`" for name in dict.fromkeys(names))
            notes.append(f"- {suite.package}, {len(names)}: {reason}: {listed}.")
        print(f"{len(passed)} of {len(outcomes)} pass")
        if not outcomes:
            problems.append(f"{suite.package}: no test was run")
    seen = "\n".join(
        [
            "| faces | tests | version | tests that ran | passed |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "What does not pass:",
            "",
            *notes,
            "",
        ]
    )
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    table, _, after = rest.partition(_END)
    if "--write" in sys.argv:
        PAGE.write_text(f"{before}{_BEGIN}{seen}{_END}{after}")
    elif table != seen:
        problems.append(f"{PAGE.name} has other outcomes: run it with --write\n{seen}")
    print(*problems, sep="\n", end="\n" if problems else "")
    return bool(problems)


def find_version(suite: Suite) -> str:
    """Return the version of the framework that is installed in the suite's environment."""
    code = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    command = [suite.python(REPOSITORY), "-c", code, suite.package]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run(suite: Suite, version: str) -> dict[str, str]:
    """Run the tests, and return the outcome of each by its name."""
    folder = REPOSITORY if suite.is_installed else fetch(suite.package, version)
    with tempfile.TemporaryDirectory() as temporary:
        outcomes = Path(temporary) / "outcomes.json"
        paths = [str(REPOSITORY / "tests"), *([] if suite.is_installed else [str(folder)])]
        environment = {**os.environ, "SUITE_OUTCOMES": str(outcomes), "PYTHONPATH": os.pathsep.join(paths)}
        plugins = ["-p", "suites.outcomes", *(["-p", f"suites.{suite.plugin}"] if suite.plugin else [])]
        command = [suite.python(REPOSITORY), "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *plugins]
        command += [*suite.arguments, *suite.files]
        ended = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
        if not outcomes.exists():
            raise SystemExit(f"{suite.package}: pytest ended with {ended.returncode}\n{ended.stdout}\n{ended.stderr}")
        found: dict[str, str] = json.loads(outcomes.read_text())
        return found


def fetch(package: str, version: str) -> Path:
    """Return the folder of a package's sdist, which is downloaded if it is not there."""
    folder = SOURCES / f"{package.replace('-', '_')}-{version}"
    if not folder.exists():
        SOURCES.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=SOURCES) as temporary:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package]
            subprocess.run([*command, "--dest", temporary, f"{package}=={version}"], check=True)
            [archive] = Path(temporary).glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(SOURCES, filter="data")
    return folder


def explain(suite: Suite, name: str) -> str | None:
    """Return why a test does not pass; None if `catalogue.py` has no reason."""
    return next((reason for pattern, reason in suite.reasons.items() if re.search(pattern, name)), None)


def short_name(name: str) -> str:
    return name.rpartition("::")[2].partition("[")[0]


if __name__ == "__main__":
    sys.exit(main())
