"""The benchmarks say what they claim to say: the harness, without the peers that `make bench` installs."""

import io
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from benchmarks.harness import (
    Bench,
    Row,
    Score,
    Size,
    Target,
    ahead_of,
    at_least,
    at_most,
    show,
    show_verdict,
    within,
)
from benchmarks.scale.corpus import ARCHIVE, Corpus
from benchmarks.scale.costs import Costs, ask
from benchmarks.scale.model import METRICS, Model
from benchmarks.scale.plot import draw


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
        (within(2.0), True),
        (within(1.9), False),
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


def test_sizes_are_held_to_the_most_that_they_may_be(tmp_path: Path) -> None:
    good, bad = (Size("an entry", {"holdall": size, "peer": 5000.0}, "bytes", 400) for size in (400.0, 401.0))
    bench = Bench(tmp_path, print, sizes=[good, Size("no target", {"holdall": 1.0}, "MB")])
    screen = io.StringIO()
    show(Console(file=screen, width=140), "scale", bench)
    assert "an entry    400 bytes   5,000 bytes   at most 400 bytes   yes" in screen.getvalue()
    assert show_verdict(Console(file=screen, width=140), {"scale": bench}) is True
    assert "Every target is met: 1 of 1.\n" in screen.getvalue()
    bench.sizes.append(bad)
    assert show_verdict(Console(file=screen, width=140), {"scale": bench}) is False
    assert "MISSED scale: an entry: 401 bytes, should be at most 400 bytes\n" in screen.getvalue()


def test_each_part_of_a_section_has_a_table_with_its_own_contenders(tmp_path: Path) -> None:
    bench = Bench(tmp_path, print)
    for bench.part, name in (("first", "a peer"), ("second", "another")):
        bench.measure("work", {"holdall": lambda: None, name: lambda: None}, rounds=1)
    bench.rows.append(Row("limited", {"holdall": [2.0]}, within(1.0), [], False, False, "second"))
    screen = io.StringIO()
    show(Console(file=screen, width=140), "scale", bench)
    first, second = screen.getvalue().split("scale, second")
    assert ("a peer" in first, "another" in first) == (True, False)
    assert ("a peer" in second, "another" in second) == (False, True)
    assert show_verdict(Console(file=screen, width=140), {"scale": bench}) is False
    assert "MISSED scale, second: limited: 2.00× the limit, should be at most 1.00 s\n" in screen.getvalue()


def test_every_question_is_asked_once_in_turns_and_the_slow_are_asked_fewer(tmp_path: Path) -> None:
    asked: dict[str, list[int]] = {"holdall": [], "slow": []}
    contenders = {name: numbers.append for name, numbers in asked.items()}
    row = ask(Bench(tmp_path, lambda _: None), "questions", contenders, range(10), fewer={"slow": 3}, warm_up=2)
    assert asked == {"holdall": list(range(10)), "slow": list(range(5))}
    assert {name: len(spent) for name, spent in row.seconds.items()} == {"holdall": 8, "slow": 3}


def test_the_corpus_has_as_many_entries_for_each_user_and_one_large_namespace() -> None:
    corpus = Corpus(2000)
    items = list(corpus.items())
    spaces = Counter(namespace for namespace, _, _ in items)
    assert spaces.pop(ARCHIVE) == 200
    assert set(spaces.values()) == {10}
    assert len(spaces) == 200
    assert Counter(value["day"] for _, _, value in items).total() == 2200
    texts = {key: value["text"].split() for _, key, value in items}
    assert {len(words) for words in texts.values()} == {120}
    for namespace, words in [*corpus.questions(20), *corpus.large_questions(20)]:
        inside = [texts[key] for space, key, _ in items if space == namespace]
        assert any(set(words.split()) <= set(text) for text in inside)


def test_the_right_answers_for_vectors_are_those_of_comparing_each_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.scale.model._BLOCK", 300)
    model = Model(1000, 5)
    stored, queries = (rows.astype(np.float64) for rows in (model.rows[:1000], model.rows[1000:]))
    scores = {
        "dot": queries @ stored.T,
        "cosine": queries @ stored.T / np.linalg.norm(stored, axis=1),
        "l2": -np.linalg.norm(queries[:, None] - stored[None], axis=2),
    }
    found = model.nearest()
    for metric in METRICS:
        assert found[metric] == [set(np.argsort(-each)[:10].tolist()) for each in scores[metric]]
    assert (model.embed([model.queries[2], "no number"]) == model.rows[[1002, 0]]).all()


def test_the_plot_has_a_panel_for_each_question_and_a_line_for_each_contender() -> None:
    costs = Costs()
    for size in (1000, 1_000_000):
        costs.add("slow & <slower>", size, {"holdall": size / 1e6, "peer": 0.01})
        costs.add("quick", size, {"holdall": 0.001})
    costs.add("known at one size", 1000, {"holdall": 1.0})
    drawn = ElementTree.fromstring(draw(costs))
    space = {"svg": "http://www.w3.org/2000/svg"}
    titles = [text.text for text in drawn.iterfind(".//svg:text[@class='title']", space)]
    assert titles == ["slow & <slower>", "quick"]
    lines = [len(panel.findall("svg:circle", space)) for panel in drawn.iterfind("svg:g", space)]
    assert lines == [4, 2]
    [steep, flat] = drawn.findall("svg:g", space)[0].findall("svg:path[@d]", space)[-2:]
    ends = [[float(y) for _, y in (p.split() for p in path.attrib["d"][1:].split("L"))] for path in (steep, flat)]
    assert ends[0][0] - ends[0][1] == pytest.approx(146)  # three decades, from the bottom to the top
    assert ends[1][0] == ends[1][1]
    with pytest.raises(ValueError, match="two sizes or more"):
        draw(Costs())


@pytest.mark.parametrize(("ours", "code"), [(0.5, 0), (2.0, 1)])
def test_the_exit_code_shows_whether_every_target_is_met(tmp_path: Path, ours: float, code: int) -> None:
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
