"""The benchmarks say what they claim to say: the harness, without the peers that `make bench` installs."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness import Bench, Row, Score, Target, ahead_of, at_least, at_most, show, show_verdict


def row(target: Target | None, **seconds: float) -> Row:
    return Row("a row", {name: [spent] for name, spent in seconds.items()}, target, [], as_rate=False)


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (at_most(3, "peer"), True),
        (at_most(1.5, "peer"), False),
        (at_least(2, "slow"), True),
        (at_least(2, "slow", "peer"), False),
        (ahead_of("peer"), False),
    ],
)
def test_a_target_is_met_against_each_peer_that_it_names(target: Target, met: bool) -> None:
    assert row(target, holdall=2.0, peer=1.0, slow=5.0).is_met() is met


def test_where_contenders_take_turns_a_slow_phase_of_the_machine_makes_no_difference() -> None:
    spent = {"holdall": [1.0, 1.0, 9.0, 9.0, 1.0], "peer": [1.5, 9.0, 13.5, 13.5, 1.5]}
    assert Row("a row", spent, None, [], as_rate=False, in_turns=True).speed() == 1.5
    assert Row("a row", spent, None, [], as_rate=False).speed() == 9


def test_contenders_take_turns_and_the_first_round_does_not_count(tmp_path: Path) -> None:
    calls: list[str] = []
    bench = Bench(tmp_path, progress=lambda _: None)
    runs = {name: lambda name=name: calls.append(name) for name in ("holdall", "a", "b")}
    bench.measure("turns", runs, rounds=20, durable=True)
    rounds = [tuple(calls[start : start + 3]) for start in range(0, len(calls), 3)]
    assert len(rounds) == 21
    assert {frozenset(turns) for turns in rounds} == {frozenset(runs)}
    assert len(set(rounds)) == 6  # nobody always follows the same other
    assert [len(spent) for spent in bench.rows[0].seconds.values()] == [20, 20, 20]
    assert bench.rows[0].in_turns
    bench.also(ahead_of("a"))
    assert bench.rows[1].in_turns
    assert min(bench.rows[0].fsync) > 0


def test_contenders_may_do_as_many_ops_as_they_have_time_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, progress=lambda _: None)
    runs = {"holdall": lambda: time.sleep(0.02), "slow": lambda: time.sleep(0.02)}
    row = bench.measure("unlike", runs, rounds=1, ops={"holdall": 1000, "slow": 1})
    assert row.median("slow") > 0.015 > 0.001 > row.median("holdall")


def test_the_table_shows_every_contender_the_ratio_and_the_verdict(tmp_path: Path) -> None:
    bench = Bench(tmp_path, progress=lambda _: None)
    bench.rows += [row(at_most(3, "peer"), holdall=0.002, peer=0.001), row(ahead_of("peer"), holdall=2.0, peer=1.0)]
    bench.note("said once")
    bench.note("said once")
    screen = io.StringIO()
    show(Console(file=screen, width=140), "kv", bench)
    text = screen.getvalue()
    assert all(part in text for part in ("2.00 ms", "1.00 ms", "2.00× the time", "0.50× as fast", "yes", "NO"))
    assert text.count("said once") == 1


def test_the_verdict_names_each_target_that_was_missed(tmp_path: Path) -> None:
    met, missed = row(at_most(3, "peer"), holdall=2.0, peer=1.0), row(ahead_of("peer"), holdall=2.0, peer=1.0)
    good, bad = (Bench(tmp_path, print, rows) for rows in ([met, row(None, holdall=9.0, peer=1.0)], [met, missed]))
    screen = io.StringIO()
    assert show_verdict(Console(file=screen, width=140), {"kv": good}) is True
    assert screen.getvalue() == "Every target is met: 1 of 1.\n"
    assert show_verdict(Console(file=screen, width=140), {"kv": good, "files": bad}) is False
    assert "MISSED files: a row: 0.50× as fast, should be ahead of peer\n" in screen.getvalue()
    assert screen.getvalue().count("MISSED") == 1


def test_answers_are_held_to_the_least_of_each_measure(tmp_path: Path) -> None:
    peer, good = Score("a peer", {"MAP": 0.3}), Score("ours", {"MAP": 0.31, "R@100": 0.6}, {"MAP": 0.3, "R@100": 0.6})
    bad = Score("ours, by luck", {"MAP": 0.31, "R@100": 0.5999}, {"MAP": 0.3, "R@100": 0.6})
    assert [score.is_met() for score in (peer, good, bad)] == [None, True, False]
    screen = io.StringIO()
    sections = {"search": Bench(tmp_path, print, scores=[peer, good])}
    show(Console(file=screen, width=140), "search", sections["search"])
    last = " ".join(screen.getvalue().splitlines()[-2].split())
    assert last == "ours 0.3100 0.6000 MAP at least 0.3, R@100 at least 0.6 yes"
    assert show_verdict(Console(file=screen, width=140), sections) is True
    assert "Every target is met: 1 of 1.\n" in screen.getvalue()
    sections["search"].scores.append(bad)
    assert show_verdict(Console(file=screen, width=140), sections) is False
    wanted = "MISSED search: ours, by luck: MAP 0.3100, R@100 0.5999, should be MAP at least 0.3, R@100 at least 0.6\n"
    assert wanted in screen.getvalue()


@pytest.mark.parametrize(("ours", "code"), [(0.5, 0), (2.0, 1)])
def test_the_exit_code_says_whether_every_target_is_met(tmp_path: Path, ours: float, code: int) -> None:
    """A maintainer's script asks for no more than that."""
    (tmp_path / "section.py").write_text(
        "from benchmarks.harness import Row, ahead_of\n"
        "def run(bench):\n"
        f"    bench.rows.append(Row('a row', {{'holdall': [{ours}], 'peer': [1.0]}}, ahead_of('peer'), [], False))\n"
    )
    start = (
        "import runpy, sys, benchmarks, section\n"
        "sys.modules['benchmarks.kv'] = section\n"
        "sys.argv[1:] = ['kv']\n"
        "import importlib.metadata; importlib.metadata.version = str\n"
        "runpy.run_module('benchmarks', run_name='__main__')\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent.parent)])
    done = subprocess.run(
        [sys.executable, "-c", start],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert ("MISSED kv: a row" in done.stdout) is bool(code)


def test_an_unknown_section_is_refused_with_the_names_of_those_there_are() -> None:
    command = [sys.executable, "-m", "benchmarks", "nope"]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no section is called 'nope': there are kv, files, " in done.stderr
    assert ", postgres, and all" in done.stderr
