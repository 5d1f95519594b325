"""What CONTRIBUTING.md claims about the source and about the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support.plugins import install_broken_plugin

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "holdall"


def map_of_the_source() -> list[str]:
    """The lines of the map under "Where things are"."""
    [block] = re.findall(r"(?s)\n## Where things are\n.*?\n```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text())
    return block.splitlines()


def paths_in_the_map() -> list[str]:
    """The folders, with a slash, and modules that the map names, as paths below src/holdall."""
    paths: list[str] = []
    folders: list[str] = []
    for line in map_of_the_source():
        entry = re.match(r"( *)(\w+(?:\.py|/))  ", line)
        assert entry, f"a line of the map names a folder or a module, and then says what is in it: {line!r}"
        depth, name = len(entry[1]) // 2, entry[2]
        folders[depth:] = [name] if name.endswith("/") else []
        paths.append("".join(folders[:depth]) + name)
    return paths


def test_the_map_names_every_folder_and_every_top_module() -> None:
    folders = [path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE]
    modules = [path.name for path in SOURCE.glob("*.py")]
    paths = [f"{folder.relative_to(SOURCE).as_posix()}/" for folder in folders] + modules
    assert sorted(paths_in_the_map()) == sorted(paths)


def test_the_map_has_at_most_60_lines() -> None:
    assert len(map_of_the_source()) <= 60


def test_the_tests_have_the_folders_of_the_source() -> None:
    folders = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")}
    tested = {path.parent.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert tested - folders == {"torture"}


def test_an_installed_plugin_makes_no_difference(tmp_path: Path) -> None:
    """pytest-asyncio, for one, warns at its start, and a warning is an error here."""
    path = os.pathsep.join([str(install_broken_plugin(tmp_path)), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/model/test_values.py"]
    environment = os.environ | {"PYTHONPATH": path}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
