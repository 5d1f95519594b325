"""What every section of the benchmarks is measured and shown with.

A section is a module with one function, `run(bench)`. It sets contenders up in `bench.folder`, checks that they give
the same answers, and hands them to `bench.measure`, once for each row of its table. All contenders of a row run in this
process and take turns, a round at a time, so that whatever else the machine does hits them alike. A number is the
median of the rounds, and so is a ratio: of what it was in each of them, as the machine may be slow for some of them. A
durable number stands beside what an fsync cost on the same disk during the same rounds.
"""

from __future__ import annotations

import gc
import os
import platform
import random
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

OURS = "holdall"
_MET = {True: "[green]yes", False: "[bold red]NO", None: ""}
_TITLE = "{name}: medians of rounds, ratios too: to the fastest of the peers that the target names, or of all"


@dataclass(frozen=True, slots=True)
class Target:
    """What a row has to show against some of its peers. Made by `at_most`, `at_least` and their like."""

    words: str
    peers: tuple[str, ...]
    speed: float  # the least that is allowed of ours, as a multiple of a peer's
    in_time: bool = False  # stated as a multiple of the peer's time, where ours may be more
    limit: float | None = None  # seconds that ours may take, whatever the peers take


def at_most(times: float, peer: str) -> Target:
    """We may take this many times as long as the peer."""
    return Target(f"at most {times:g}× {peer}", (peer,), 1 / times, in_time=True)


def at_least(times: float, *peers: str) -> Target:
    """We must be this many times as fast as each of the peers."""
    return Target(f"at least {times:g}× {', '.join(peers)}", peers, times)


def ahead_of(*peers: str) -> Target:
    """We must be faster than each of the peers."""
    return Target(f"ahead of {', '.join(peers)}", peers, 1.0)


def no_slower_than(peer: str) -> Target:
    return Target(f"no slower than {peer}", (peer,), 1.0)


def within(seconds: float, words: str = "") -> Target:
    """We must take no longer than this, whatever the peers take."""
    return Target(words or f"at most {_duration(seconds)}", (), 1.0, in_time=True, limit=seconds)


@dataclass(frozen=True, slots=True)
class Row:
    """One thing measured. `seconds` are what one op took, by contender and round."""

    what: str
    seconds: dict[str, list[float]]
    target: Target | None
    fsync: list[float]  # empty where nothing had to be durable
    as_rate: bool
    in_turns: bool = False  # a round of one contender's was right beside that of another's
    part: str = ""  # the rows of a part of the section have a table of their own

    def median(self, contender: str) -> float:
        return median(self.seconds[contender])

    def speed(self) -> float | None:
        """Ours as a multiple of the limit's or of the fastest peer's, of those that the target names or of all.

        None where there is nothing to compare with.
        """
        if self.target is not None and self.target.limit is not None:
            return self.target.limit / self.median(OURS)
        peers = self.target.peers if self.target else [name for name in self.seconds if name != OURS]
        return min((self._speed_beside(peer) for peer in peers), default=None)

    def _speed_beside(self, peer: str) -> float:
        if not self.in_turns:
            return self.median(peer) / self.median(OURS)
        rounds = zip(self.seconds[OURS], self.seconds[peer], strict=True)
        return median(theirs / ours for ours, theirs in rounds)

    def is_met(self) -> bool | None:
        speed = self.speed()
        return None if self.target is None or speed is None else speed >= self.target.speed


@dataclass(frozen=True, slots=True)
class Score:
    """How good answers are, by several measures, and the least that each should be."""

    what: str
    measures: dict[str, float]
    least: dict[str, float] | None = None

    def is_met(self) -> bool | None:
        return None if self.least is None else all(self.measures[name] >= least for name, least in self.least.items())

    def target(self) -> str:
        return ", ".join(f"{name} at least {least:.4g}" for name, least in (self.least or {}).items())


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes or the like, by contender, and the most that ours should be."""

    what: str
    sizes: dict[str, float]
    unit: str
    most: float | None = None

    def is_met(self) -> bool | None:
        return None if self.most is None else self.sizes[OURS] <= self.most

    def target(self) -> str:
        return "" if self.most is None else f"at most {self.shown(self.most)}"

    def shown(self, size: float) -> str:
        return f"{_three_digits(size)} {self.unit}"


@dataclass(slots=True)
class Bench:
    """A section while it is measured: a folder of its own, its rows, and notes about them."""

    folder: Path
    progress: Callable[[str], object]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    part: str = ""  # of the section: what rows are measured for now

    def measure(
        self,
        what: str,
        runs: Mapping[str, Callable[[], object]],
        *,
        rounds: int,
        ops: int | Mapping[str, int] = 1,
        target: Target | None = None,
        durable: bool = False,
        as_rate: bool = False,
        rest: float = 0,
    ) -> Row:
        """Time what each contender does, `holdall` among them. A run is `ops` ops, and must find new work each time.

        Where contenders are so unlike that the slow would take all day, each has its own number of `ops`.

        There is one round more, before the others, that does not count: it warms the caches. All `rest` for so many
        seconds before each run, where it must not matter what this process did before it.

        What is there when the rounds begin is out of the garbage collector's sight until they end. Else the collections
        before each run, of all that the peers import, would take longer than some runs, and a contender's own would
        look through the others' data.
        """
        contenders, chance = list(runs), random.Random(what)
        row = Row(what, {name: [] for name in contenders}, target, [], as_rate, True, self.part)
        probe = FsyncProbe(self.folder) if durable else None
        gc.collect()
        gc.freeze()
        try:
            for number in range(rounds + 1):
                self.progress(f"{what}: round {number} of {rounds}")
                for name in contenders:
                    gc.collect()
                    time.sleep(rest)
                    began = time.perf_counter()
                    runs[name]()
                    spent = time.perf_counter() - began
                    if number:
                        row.seconds[name].append(spent / (ops if isinstance(ops, int) else ops[name]))
                if probe is not None:
                    row.fsync.extend(probe.sample() for _ in range(10))
                chance.shuffle(contenders)  # nobody follows the same other more often than not
        finally:
            gc.unfreeze()
            if probe is not None:
                probe.close()
        self.rows.append(row)
        return row

    def also(self, target: Target) -> None:
        """Hold what was measured last against a second target, in a row of its own."""
        last = self.rows[-1]
        self.rows.append(replace(last, target=target))

    def note(self, text: str) -> None:
        """Say something under the table, once: how a peer was set up, what a row leaves out."""
        if text not in self.notes:
            self.notes.append(text)


class FsyncProbe:
    """What the disk asks for durability: 4 KB written over a part of a file that is there, then fdatasync.

    That is the least that a commit can cost; SQLite's write-ahead log does the same once it has grown to its size.
    """

    _BLOCKS = 64

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "fsync-probe", os.O_RDWR | os.O_CREAT)
        self._sync = getattr(os, "fdatasync", os.fsync)
        self._turn = 0
        os.pwrite(self._file, bytes(4096 * self._BLOCKS), 0)
        os.fsync(self._file)

    def sample(self) -> float:
        block = os.urandom(4096)
        self._turn = (self._turn + 1) % self._BLOCKS
        began = time.perf_counter()
        os.pwrite(self._file, block, self._turn * 4096)
        self._sync(self._file)
        return time.perf_counter() - began

    def close(self) -> None:
        os.close(self._file)


# Showing -------------------------------------------------------------------------------------------------------------


def show(console: Console, name: str, bench: Bench) -> None:
    """A section's tables, and its notes."""
    if bench.scores:
        console.print(_scores(name, bench.scores))
    for part in dict.fromkeys(row.part for row in bench.rows):
        console.print(_speed(_titled(name, part), [row for row in bench.rows if row.part == part]))
    if bench.sizes:
        console.print(_sizes(name, bench.sizes))
    for note in bench.notes:
        console.print(f"[dim]- {note}", highlight=False)


def _titled(name: str, part: str) -> str:
    return f"{name}, {part}" if part else name


def _speed(name: str, rows: Sequence[Row]) -> Table:
    peers = list(dict.fromkeys(peer for row in rows for peer in row.seconds if peer != OURS))
    table = Table(title=_TITLE.format(name=name), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("what")
    durable = any(row.fsync for row in rows)
    for heading in (OURS, *peers, *(["fsync"] if durable else []), "ratio"):
        table.add_column(heading, justify="right", no_wrap=True, style="bold" if heading == OURS else "")
    table.add_column("target")
    table.add_column("met", justify="center", no_wrap=True)
    for row in rows:
        table.add_row(
            row.what,
            *(_cell(row, contender) for contender in (OURS, *peers)),
            *([_duration(median(row.fsync)) if row.fsync else ""] if durable else []),
            _ratio(row),
            row.target.words if row.target else "",
            _MET[row.is_met()],
        )
    return table


def _scores(name: str, scores: Sequence[Score]) -> Table:
    measures = list(dict.fromkeys(measure for score in scores for measure in score.measures))
    table = Table(title=f"{name}: how good the answers are", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("what")
    for measure in measures:
        table.add_column(measure, justify="right", no_wrap=True)
    table.add_column("target")
    table.add_column("met", justify="center", no_wrap=True)
    for score in scores:
        cells = (f"{score.measures[measure]:.4f}" if measure in score.measures else "" for measure in measures)
        table.add_row(score.what, *cells, score.target(), _MET[score.is_met()])
    return table


def _sizes(name: str, sizes: Sequence[Size]) -> Table:
    contenders = [OURS, *dict.fromkeys(peer for size in sizes for peer in size.sizes if peer != OURS)]
    table = Table(title=f"{name}: sizes", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("what")
    for heading in contenders:
        table.add_column(heading, justify="right", no_wrap=True, style="bold" if heading == OURS else "")
    table.add_column("target")
    table.add_column("met", justify="center", no_wrap=True)
    for size in sizes:
        cells = (size.shown(size.sizes[peer]) if peer in size.sizes else "" for peer in contenders)
        table.add_row(size.what, *cells, size.target(), _MET[size.is_met()])
    return table


def show_verdict(console: Console, sections: Mapping[str, Bench]) -> bool:
    """The last word: a line for each target that was missed. Whether all were met."""
    held, missed = 0, []
    for name, bench in sections.items():
        for score in bench.scores:
            held += score.least is not None
            if score.is_met() is False:
                shown = ", ".join(f"{measure} {value:.4f}" for measure, value in score.measures.items())
                missed.append(f"{name}: {score.what}: {shown}, should be {score.target()}")
        for size in bench.sizes:
            held += size.most is not None
            if size.is_met() is False:
                missed.append(f"{name}: {size.what}: {size.shown(size.sizes[OURS])}, should be {size.target()}")
        for row in bench.rows:
            held += row.target is not None
            if row.target is not None and not row.is_met():
                what = f"{_titled(name, row.part)}: {row.what}"
                missed.append(f"{what}: {_ratio(row)}, should be {row.target.words}")
    for line in missed:
        console.print(f"MISSED {line}", style="bold red")
    if not missed:
        console.print(f"Every target is met: {held} of {held}." if held else "There was no target to meet.")
    return not missed


def _cell(row: Row, contender: str) -> str:
    if contender not in row.seconds:
        return ""
    seconds = row.median(contender)
    return f"{_three_digits(1 / seconds)}/s" if row.as_rate else _duration(seconds)


def _ratio(row: Row) -> str:
    speed = row.speed()
    if speed is None:
        return ""
    if row.target is not None and row.target.in_time:
        return f"{_three_digits(1 / speed)}× the {'time' if row.target.limit is None else 'limit'}"
    return f"{_three_digits(speed)}× as fast"


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds * 1e6)} µs"


def _three_digits(number: float) -> str:
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


# Facts ---------------------------------------------------------------------------------------------------------------


def machine(packages: Sequence[str]) -> dict[str, str]:
    """What a number means nothing without."""
    import sqlite3

    import apsw

    return {
        "commit": _commit(),
        "machine": f"{_processor()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        "system": platform.platform(terse=True),
        "Python": platform.python_version(),
        "SQLite": f"{apsw.sqlite_lib_version()} (apsw, for holdall), {sqlite3.sqlite_version} (sqlite3, for langgraph)",
        "packages": ", ".join(f"{name} {metadata.version(name)}" for name in packages),
    }


def as_json(facts: Mapping[str, str], sections: Mapping[str, Bench]) -> dict[str, Any]:
    """Everything measured, in seconds an op, for machines to read."""
    return {
        "machine": dict(facts),
        "sections": {
            name: {
                "rows": [
                    {
                        "part": row.part,
                        "what": row.what,
                        "medians": {contender: row.median(contender) for contender in row.seconds},
                        "rounds": row.seconds,
                        "fsync": median(row.fsync) if row.fsync else None,
                        "speed": row.speed(),
                        "target": row.target and row.target.words,
                        "met": row.is_met(),
                    }
                    for row in bench.rows
                ],
                "scores": [
                    {"what": score.what, "measures": score.measures, "least": score.least, "met": score.is_met()}
                    for score in bench.scores
                ],
                "sizes": [
                    {"what": size.what, "sizes": size.sizes, "unit": size.unit, "most": size.most, "met": size.is_met()}
                    for size in bench.sizes
                ],
                "notes": bench.notes,
            }
            for name, bench in sections.items()
        },
    }


def _commit() -> str:
    def git(*words: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (" with changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown: not in a git checkout"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
