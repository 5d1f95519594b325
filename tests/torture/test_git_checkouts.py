"""A git work tree that is a disk store: branches are checked out while four agents write there, edit and commit.

At the end each branch has exactly the files that were committed to it, and each file that git ignores is there once.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import holdall
from support.disk_stores import opened
from support.threads import together

BRANCHES = ("left", "right")
AGENTS, SHARED = 4, 12


class Repository:
    """The work tree, and the files that each branch must have; runs one git command at a time, as git requires."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.branch = BRANCHES[0]
        self.committed: dict[str, dict[str, str]] = {branch: {} for branch in BRANCHES}
        self.git("init", "-q", "-b", self.branch)
        (folder / ".gitignore").write_text("/log\n.gitignore\n")
        for branch in BRANCHES:
            if branch != self.branch:
                self.git("checkout", "-q", "-b", branch)
                self.branch = branch
                self.committed[branch] = dict(self.committed[BRANCHES[0]])
            files = {f"shared/{number}.txt": f"{branch} " * (number + 1) for number in range(SHARED)}
            files |= (
                {f"only {branch}/deep/file": branch, "folder or file": "file"}
                if branch == "left"
                else {f"only {branch}/file": branch, "folder or file/inside": "folder"}
            )
            shutil.rmtree(folder / "folder or file", ignore_errors=True)
            (folder / "folder or file").unlink(missing_ok=True)
            shutil.rmtree(folder / "only left", ignore_errors=True)
            self.committed[branch] = files | {f"own/{agent}.md": "" for agent in range(AGENTS)}
            for path, text in self.committed[branch].items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text)
            self.commit()

    def git(self, *arguments: str) -> None:
        own = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "gc.auto=0", "-c", "core.fsync=none"]
        subprocess.run(["git", *own, *arguments], cwd=self.folder, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a step")

    def has_notes(self) -> bool:
        """Whether notes were committed to the current branch."""
        return any("notes/" in path for path in self.committed[self.branch].copy())

    def check_out(self, branch: str) -> None:
        self.git("checkout", "-q", branch)
        self.branch = branch


class Agent:
    """Writes a log that git ignores, and notes of its own, which it commits to the current branch."""

    def __init__(self, number: int, store: holdall.Store, repository: Repository, is_over: threading.Event) -> None:
        self.number, self.files, self.repository, self.is_over = number, store.files(), repository, is_over
        self.chance = random.Random(number)
        self.log: list[str] = []

    def run(self) -> None:
        step = 0
        while not self.is_over.is_set():
            step += 1
            line = f"{self.number}.{step}\n"
            self.files.append(f"/log/{self.number}", line)
            self.log.append(line)
            if step % 25 == 5:
                self.work(line, step % 20)
            shared = self.chance.randrange(SHARED)
            if self.files.exists(path := f"/shared/{shared}.txt"):  # git removes a file before it writes it again
                try:
                    found = self.files.read_text(path)
                except holdall.errors.NotFound:
                    continue
                assert found in ("", *(f"{branch} " * (shared + 1) for branch in BRANCHES))

    def work(self, line: str, place: int) -> None:
        own, note = f"own/{self.number}.md", f"notes/{self.number}/{place}.md"
        with self.repository.lock:
            committed = self.repository.committed[self.repository.branch]
            self.files.append(f"/{own}", line)
            self.files.write(f"/{note}", line * 10)
            committed[own] += line
            committed[note] = line * 10
            self.repository.commit()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_branches_are_checked_out_while_agents_write(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    repository = Repository(folder)
    is_over = threading.Event()
    with opened(folder) as store, opened(folder, timeout=29) as other:
        agents = [Agent(number, (store, other)[number % 2], repository, is_over) for number in range(AGENTS)]

        def check_out() -> None:
            try:
                for number in range(scaled(6, 930)):
                    with repository.lock:
                        repository.check_out(BRANCHES[number % 2])
                        check_tree(store, repository)
                    until = time.monotonic() + 60
                    while not repository.has_notes() and time.monotonic() < until:
                        is_over.wait(0.01)
                    is_over.wait(0.01)
            finally:
                is_over.set()

        together([check_out, *(agent.run for agent in agents)])
        for branch in BRANCHES:
            repository.check_out(branch)
            for one in (store, other):
                check_tree(one, repository)
                for agent in agents:
                    assert one.files().read_text(f"/log/{agent.number}") == "".join(agent.log)
        assert all(agent.log for agent in agents)
    assert min(sum("notes/" in path for path in tree) for tree in repository.committed.values()) > 0
    with opened(folder) as store:
        check_tree(store, repository)


def check_tree(store: holdall.Store, repository: Repository) -> None:
    """Check that the store has exactly the files that the branch must have."""
    files = store.files()
    expected = repository.committed[repository.branch]
    found = {info.path[1:] for info in files.walk()} - {".gitignore"}
    assert {path for path in found if not path.startswith("log/")} == expected.keys()
    for path, text in expected.items():
        assert files.read_text(f"/{path}") == text, path
