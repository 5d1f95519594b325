"""Mutation controls: the contract must fail when an engine has one of these faults.

Each fault is planted in a process of its own, which then runs the contract on one engine. A suite that stays green
there would be a suite that cannot fail.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parent / "faults"
SUITES = {"memory": "test_memory.py::TestMemory", "sqlite": "test_sqlite_contract.py::TestSqlite"}

# A fault, the engine it is planted in, and the tests of which one at least must find it.
CASES = [
    ("dropped_expect", "memory", "expect or absent"),
    ("dropped_expect", "sqlite", "expect or absent"),
    ("prefix_as_text", "memory", "prefix or label or alike"),
    ("prefix_as_text", "sqlite", "prefix or label or alike"),
    ("unbound_filter_key", "sqlite", "example"),
    ("half_a_batch", "memory", "leaves_nothing_of_the_batch"),
    ("half_a_batch", "sqlite", "leaves_nothing_of_the_batch"),
    ("expired_returned", "memory", "expired"),
    ("expired_returned", "sqlite", "expired"),
    ("alias_returned", "memory", "alias"),
    ("alias_returned", "sqlite", "alias"),
    ("cursor_forgets", "memory", "touched"),
    ("cursor_forgets", "sqlite", "touched"),
    ("torn_by_cancelling", "memory", "cancelled"),
    ("torn_by_cancelling", "sqlite", "cancelled"),
    ("closed_by_forking", "memory", "forked"),
    ("closed_by_forking", "sqlite", "forked"),
    ("folder_as_text", "memory", "path_order or whole_labels"),
    ("folder_as_text", "sqlite", "path_order or whole_labels"),
    ("append_by_rewriting", "memory", "appends_from_many_threads"),
    ("append_by_rewriting", "sqlite", "appends_from_many_threads"),
    ("aliasing_copies", "memory", "copies"),
    ("aliasing_copies", "sqlite", "copies"),
    ("forgetful_edit", "memory", "edits_from_many_threads"),
    ("forgetful_edit", "sqlite", "edits_from_many_threads"),
    ("filter_after_limit", "memory", "costs_no_match"),
    ("filter_after_limit", "sqlite", "costs_no_match"),
    ("stale_hits", "memory", "found_as_it_is_now"),
    ("stale_hits", "sqlite", "found_as_it_is_now"),
    ("index_lags", "memory", "found_as_it_is_now"),
    ("index_lags", "sqlite", "found_as_it_is_now"),
    ("inherited_vectors", "memory", "drops_the_old_vectors"),
    ("unfenced", "memory", "refused_when_the_lease_is_lost"),
    ("unfenced", "sqlite", "refused_when_the_lease_is_lost"),
    ("fenced_beforehand", "memory", "same_batch"),
    ("forgotten_silently", "memory", "forgotten"),
    ("forgotten_silently", "sqlite", "forgotten"),
]


def run_contract(engine: str, tests: str, fault: str | None) -> subprocess.CompletedProcess[str]:
    plant = ["-p", f"faults.{fault}"] if fault else []
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *plant, "-k", tests,
         str(FAULTS.parent / "engines" / SUITES[engine])],
        cwd=FAULTS.parent, env={"PYTHONPATH": str(FAULTS.parent), "PATH": ""},
        capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("fault", "engine", "tests"), CASES, ids=lambda case: case if " " not in case else "")
def test_the_contract_finds_a_planted_fault(fault: str, engine: str, tests: str) -> None:
    planted = run_contract(engine, tests, fault)
    assert planted.returncode == 1, planted.stdout + planted.stderr
    assert "1 failed" in planted.stdout, planted.stdout


def test_the_same_tests_pass_without_a_fault() -> None:
    for engine in SUITES:
        chosen = " or ".join(tests for _, on, tests in CASES if on == engine)
        clean = run_contract(engine, chosen, None)
        assert clean.returncode == 0, clean.stdout + clean.stderr
