"""How questions are asked and timed in all parts of this section, and the costs that the plot shows."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..harness import Bench, Row, Target

Q = TypeVar("Q")


class Costs:
    """Seconds by question, contender and number of entries."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, dict[int, float]]] = {}

    def add(self, question: str, count: int, seconds: Mapping[str, float]) -> None:
        """Note what each contender took."""
        for contender, spent in seconds.items():
            self.seconds.setdefault(question, {}).setdefault(contender, {})[count] = spent

    def add_row(self, question: str, count: int, row: Row) -> None:
        self.add(question, count, {contender: row.median(contender) for contender in row.seconds})


def ask(
    bench: Bench,
    what: str,
    contenders: Mapping[str, Callable[[Q], object]],
    questions: Sequence[Q],
    *,
    target: Target | None = None,
    fewer: Mapping[str, int] | None = None,
    warm_up: int = 5,
) -> Row:
    """Ask each contender every question once, in turns. The first few do not count.

    A question is new to whoever is asked, as it is in an agent's day. The slow are asked `fewer`, by name.
    """
    fewer = fewer or {}
    row = Row(what, {name: [] for name in contenders}, target, [], False, not fewer, bench.part)
    gc.collect()
    gc.freeze()  # else a collection would look through all texts
    try:
        for number, question in enumerate(questions):
            bench.progress(f"{what}: {number + 1} of {len(questions)}")
            for name, answer in contenders.items():
                if number - warm_up >= fewer.get(name, len(questions)):
                    continue
                spent = timed(lambda answer=answer, question=question: answer(question))  # type: ignore[misc]
                if number >= warm_up:
                    row.seconds[name].append(spent)
    finally:
        gc.unfreeze()
    bench.rows.append(row)
    return row


def once(bench: Bench, what: str, seconds: Mapping[str, float], target: Target | None = None) -> Row:
    """A row for what can be done only once to each contender."""
    row = Row(what, {name: [spent] for name, spent in seconds.items()}, target, [], False, False, bench.part)
    bench.rows.append(row)
    return row


def rate(bench: Bench, what: str, seconds: Mapping[str, float], count: int, target: Target | None = None) -> Row:
    """A row for so many things done in these seconds, as a rate."""
    row = Row(what, {name: [spent / count] for name, spent in seconds.items()}, target, [], True, False, bench.part)
    bench.rows.append(row)
    return row


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
