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

# A fault, and the tests of which one at least must find it.
CASES = [
    ("dropped_expect", "expect or absent"),
    ("prefix_as_text", "prefix or label or alike"),
    ("unbound_filter_key", "example"),
    ("half_a_batch", "leaves_nothing_of_the_batch"),
    ("expired_returned", "expired"),
    ("alias_returned", "alias"),
    ("cursor_forgets", "touched"),
    ("torn_by_cancelling", "cancelled"),
    ("closed_by_forking", "forked"),
    ("folder_as_text", "path_order or whole_labels"),
    ("append_by_rewriting", "appends_from_many_threads"),
    ("aliasing_copies", "copies"),
    ("forgetful_edit", "edits_from_many_threads"),
    ("filter_after_limit", "costs_no_match"),
    ("stale_hits", "found_as_it_is_now"),
    ("index_lags", "found_as_it_is_now"),
    ("inherited_vectors", "drops_the_old_vectors"),
    ("unfenced", "refused_when_the_lease_is_lost"),
    ("fenced_beforehand", "same_batch"),
    ("forgotten_silently", "forgotten"),
]
#: Where a fault is planted in one engine only.
ONLY = {
    "unbound_filter_key": "sqlite",
    "inherited_vectors": "memory",
    "fenced_beforehand": "memory",
}


@pytest.mark.parametrize(("fault", "tests"), CASES, ids=[fault for fault, _ in CASES])
def test_the_contract_finds_a_planted_fault(fault: str, tests: str) -> None:
    engines = [ONLY[fault]] if fault in ONLY else list(SUITES)
    planted = run_contract(engines, tests, fault)
    assert planted.returncode == 1, planted.stdout + planted.stderr
    for engine in engines:
        assert f"FAILED engines/{SUITES[engine]}::" in planted.stdout, planted.stdout


def run_contract(engines: list[str], tests: str, fault: str) -> subprocess.CompletedProcess[str]:
    suites = [f"engines/{SUITES[engine]}" for engine in engines]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", f"faults.{fault}", "-k", tests, *suites],
        cwd=FAULTS.parent, env={"PYTHONPATH": str(FAULTS.parent), "PATH": ""},
        capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
