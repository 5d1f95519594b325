"""A pytest plugin for the frameworks' own tests: it writes the outcome of each to a file, as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_RANK = ("passed", "skipped", "failed")
_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst outcome of a test's set-up, call and tear-down."""
    before = _outcomes.get(report.nodeid, "passed")
    _outcomes[report.nodeid] = max(before, report.outcome, key=_RANK.index)


def pytest_sessionfinish() -> None:
    """Write what was seen."""
    Path(os.environ["SUITE_OUTCOMES"]).write_text(json.dumps(_outcomes))
