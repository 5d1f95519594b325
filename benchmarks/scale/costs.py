"""How questions are asked and timed in all parts of this section, and the costs that the plot shows."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from langgraph.store.base import BaseStore, PutOp

import holdall

from ..data import Item
from ..harness import Bench, Row, Target

Q = TypeVar("Q")

_AT_ONCE = 1000
_LOOK = 0.25  # seconds between two looks at what the background does
_IDLE, _IDLE_FOR = 0.1, 1.0  # the part of a core that counts as nothing, and how many seconds it must be so


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


def load(bench: Bench, what: str, put: Callable[[list[Item]], object], items: Iterable[Item]) -> float:
    """Seconds to put all items, a thousand at a time. To make them takes no part in it."""
    spent, loaded = 0.0, 0
    for some in slices(items):
        began = time.perf_counter()
        put(some)
        spent += time.perf_counter() - began
        loaded += len(some)
        bench.progress(f"loading {what}: {loaded:,}")
    return spent


def put_all(store: holdall.Store, items: Iterable[Item]) -> None:
    store.execute([holdall.ops.Put(*item) for item in items])


def put_all_langgraph(store: BaseStore, items: Iterable[Item]) -> None:
    store.batch([PutOp(*item) for item in items])


def slices(items: Iterable[Item]) -> Iterator[list[Item]]:
    left = iter(items)
    while some := list(itertools.islice(left, _AT_ONCE)):
        yield some


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

    No contender has seen a question before, as in real use. Those named in `fewer` are slow, and get fewer questions.
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


def until_idle(bench: Bench, what: str, patience: float, is_busy: Callable[[], bool] = lambda: False) -> float:
    """Wait until this process does nothing in the background any more, and return after how many seconds that was.

    `is_busy` tells the same of a server. A store does not have to say what it does there: it shows in CPU time.
    """
    began = last = time.perf_counter()
    while last - began < patience:
        bench.progress(f"{what}: waiting for the background, {last - began:.0f} s")
        before = time.process_time()
        time.sleep(_LOOK)
        now = time.perf_counter()
        if time.process_time() - before > _LOOK * _IDLE or is_busy():
            last = now
        elif now - last >= _IDLE_FOR:
            return last - began
    bench.note(f"{what}: there was still work in the background after {patience:.0f} s")
    return last - began


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
