"""Mutation controls: the contract must fail when an engine has one of these faults.

One process collects the contract of every engine. For each fault it forks. The child plants the fault and runs the
tests that must find it, until one fails. That test is then run without the fault and must pass, which shows that it
found the fault. A contract that passes with a fault planted would be a contract that cannot fail.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.extent import IS_SHORT
from support.plugins import install_broken_plugin
from support.processes import Process, receive, report, start
from support.servers import postgres_url, redis_url, s3_credentials, s3_server

TESTS = Path(__file__).parent
SUITES = {
    "memory": "memory/test_engine.py::TestMemory",
    "sqlite": "sqlite/test_contract.py::TestSqlite",
    "postgres": "postgres/test_engine.py::TestPostgres",
    "redis": "redis/test_engine.py::TestRedis",
    "disk": "disk/test_contract.py::TestDisk",
}
if not IS_SHORT:
    SUITES["s3"] = "s3/test_contract.py::TestS3"

#: Each fault, and the tests of the contract of which one at least must find it.
FAULTS = {
    "dropped_expect": ["test_absent_lets_only_the_first_one_create", "test_delete_honours_expect"],
    "prefix_as_text": ["test_a_prefix_shows_only_its_own", "test_namespaces"],
    "unbound_filter_key": ["test_every_example"],
    "half_a_batch": ["test_a_failed_op_on_files_leaves_nothing_of_the_batch"],
    "expired_returned": ["test_an_expired_entry_is_absent_to_everything"],
    "alias_returned": ["test_nothing_returned_is_an_alias_of_what_is_stored"],
    "cursor_forgets": ["test_an_entry_touched_while_paging_is_not_lost"],
    "torn_by_cancelling": ["test_a_cancelled_batch_is_wholly_there_or_not_at_all"],
    "closed_by_forking": ["test_a_forked_child_goes_on_with_the_store"],
    "folder_as_text": ["test_ls_gives_files_and_folders_once_in_path_order"],
    "append_by_rewriting": ["test_appends_from_many_threads_return_right_offsets"],
    "aliasing_copies": ["test_copies_share_until_one_changes"],
    "forgetful_edit": ["test_edits_from_many_threads_are_all_kept"],
    "filter_after_limit": ["test_a_filter_comes_first_and_costs_no_match"],
    "stale_hits": ["test_what_changed_is_found_as_it_is_now"],
    "index_lags": ["test_what_changed_is_found_as_it_is_now"],
    "inherited_vectors": ["test_a_put_without_an_embedder_drops_the_old_vectors"],
    "unfenced": ["test_every_change_is_refused_when_the_lease_is_lost"],
    "fenced_beforehand": ["test_the_lease_is_checked_in_the_same_batch_as_the_write"],
    "overlooking_slices": ["test_a_large_folder_is_moved_with_every_file"],
    "forgotten_silently": ["test_a_cursor_older_than_the_purged_tombstones_has_expired"],
}
#: The engines of a fault that only some can have.
ONLY = {
    "unbound_filter_key": [engine for engine in SUITES if engine not in ("memory", "redis")],  # these build no SQL
    "overlooking_slices": [engine for engine in SUITES if engine not in ("memory", "s3")],  # these move in one piece
}


def engines_of(number: int, fault: str) -> list[str]:
    """All that can have the fault; in `make test` memory, SQLite, and one of the others, in turn."""
    engines = list(ONLY.get(fault, SUITES))
    if not IS_SHORT:
        return engines
    others = [engine for engine in engines if engine not in ("memory", "sqlite")]
    return [engine for engine in engines if engine not in others or engine == others[number % len(others)]]


CASES = [(engine, fault) for number, fault in enumerate(FAULTS) for engine in engines_of(number, fault)]


@pytest.mark.parametrize(("engine", "fault"), CASES)
def test_the_contract_finds_a_planted_fault(collected: Process, engine: str, fault: str) -> None:
    planted = collected.ask([engine, fault, FAULTS[fault]])
    assert planted["failed"], f"no test found the fault: {planted}"
    without = collected.ask([engine, None, [planted["failed"]]])
    assert without["passed"] == [planted["failed"]], f"the test fails without the fault too: {without}"


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A process that has collected the contract of every engine, and runs the tests that it is sent."""
    plugin = install_broken_plugin(tmp_path_factory.mktemp("plugin"))
    urls = {"postgres": postgres_url(), "redis": redis_url(), "s3": "" if IS_SHORT else s3_server().endpoint}
    folder = tmp_path_factory.mktemp("mutations")
    process = start(run_on_request, deadline=600, **urls, plugin=str(plugin), folder=str(folder / "base"))
    try:
        assert process.receive() == "ready"
        yield process
        process.send(None)
        process.finish()
    finally:
        if process.code is None:
            process.kill()


def run_on_request(postgres: str, redis: str, s3: str, plugin: str, folder: str) -> None:
    from support import servers

    bucket = SimpleNamespace(options={"endpoint": s3, "credentials": s3_credentials})
    servers.postgres_url, servers.redis_url, servers.s3_server = (  # type: ignore[assignment]  # of S3, only options
        lambda: postgres,
        lambda: redis,
        lambda: bucket,
    )  # they run already
    sys.path.append(plugin)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # installed plugins must make no difference
    suites = [str(TESTS / "engines" / suite) for suite in SUITES.values()]
    options = ["--import-mode=importlib", "-s", "-o", "addopts=", "-p", "no:terminal", "-p", "no:cacheprovider"]
    report(pytest.main([*options, "--basetemp", folder, *suites], [ForkedRuns()]))


class ForkedRuns:
    """A pytest plugin that runs the requested tests, each time in a forked child."""

    def __init__(self) -> None:
        self._reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        report("ready")
        while request := receive():
            report(self._run_in_child(session.items, *request))
        return True

    def _run_in_child(
        self, items: list[pytest.Item], engine: str, fault: str | None, names: list[str]
    ) -> dict[str, Any]:
        suite = SUITES[engine].partition("::")[2]
        of_engine = [item for item in items if suite in item.nodeid.split("::")]
        chosen = [item for item in of_engine if item.name in names or item.name.partition("[")[0] in names]
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            signal.alarm(60)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # threads print tracebacks of the fault there
            with os.fdopen(writing, "w") as pipe:
                json.dump(self._first_failure(chosen, fault), pipe)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            report = pipe.read()
        os.waitpid(pid, 0)
        return json.loads(report or '{"failed": "", "text": "it hangs, or is dead"}')  # type: ignore[no-any-return]  # a dict

    def _first_failure(self, items: list[pytest.Item], fault: str | None) -> dict[str, Any]:
        passed: list[str] = []
        try:
            if fault is not None:
                importlib.import_module(f"faults.{fault}")
            for item in items:
                self._reports.clear()
                item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
                for report in self._reports:
                    if report.failed:  # to fail in its set-up is not to find the fault
                        failed = item.name if report.when == "call" else ""
                        return {"passed": passed, "failed": failed, "text": report.longreprtext[-3000:]}
                passed.append(item.name)
        except BaseException:
            return {"passed": passed, "failed": "", "text": traceback.format_exc()}
        return {"passed": passed, "failed": ""}
