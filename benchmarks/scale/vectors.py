"""Vectors on SQLite: loading and indexing, three metrics, memory, and hybrid search."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdall

from ..harness import OURS, Bench, Size, within
from . import footprint
from .costs import ask, once, rate, timed
from .files import bytes_beside
from .model import DIMS, METRICS, Metric, Model, hybrid, load, numbers, recall

if TYPE_CHECKING:
    from . import Sizes

_ASKED, _TIMED, _EXACT = 1_000, 200, 8


def measure(bench: Bench, sizes: Sizes) -> None:
    count = sizes.vectors
    bench.progress(f"making {count:,} vectors")
    model = Model(count, _ASKED)
    folder = bench.folder / "vectors"
    folder.mkdir()
    url = str(folder / "store.db")
    of = f"{count:,} × {DIMS} on SQLite"
    bench.part = of
    with ExitStack() as stack:
        store = stack.enter_context(holdall.open(url, embed=model.embed))
        loading = load(bench, "loading vectors", lambda items: _put(store, items), list(model.items()))
        rate(bench, "loading vectors", {OURS: loading}, count)
        bench.progress("the first search by vectors")
        first = timed(lambda: store.search((), query=model.queries[0], mode="semantic"))
        once(bench, "first search by vectors after loading", {OURS: first})
        rate(
            bench,
            "loading and indexing vectors",
            {OURS: loading + first},
            count,
            within(1 / 3_000, "at least 3,000/s"),
        )
        bench.progress("the right answers, by comparing all")
        right = model.nearest()
        for metric in METRICS:
            view = store.with_embedder(model.embed, metric=metric)
            _search(bench, metric, view, model, right[metric])
        first = timed(lambda: store.search((), query=model.queries[0]))
        once(bench, "first search for words after loading", {OURS: first})
        hybrid(bench, "hybrid", store, [((), query) for query in model.queries[:100]])
        bench.progress("memory of searches by vectors")
        searches = [{"query": query, "mode": "semantic"} for query in model.queries[:200]]
        cost = footprint.of_searches(url, {"embed": Table(model)}, searches)
    mapped = bytes_beside(Path(url))
    shown = ", ".join(f"{name} {size / count:.0f}" for name, size in mapped.items()) or "none"
    bench.note(f"bytes a vector of files beside the database, {of}: {shown}")
    sizes_of = {OURS: (sum(mapped.values()) + cost.memory) / count, "mapped": sum(mapped.values()) / count}
    bench.sizes.append(Size(f"memory of a vector, {of}", sizes_of, "bytes", 600))
    what = f"a tick of 1 ms is late, 99th percentile, {footprint.TASKS} tasks search"
    once(bench, what, {OURS: cost.busy, "idle": cost.alone}, within(0.020))


def _search(bench: Bench, metric: Metric, store: holdall.Store, model: Model, right: list[set[int]]) -> None:
    answers: list[set[int]] = []

    def search(query: str) -> None:
        answers.append(numbers(store.search((), query=query, mode="semantic")))

    store.search((), query=model.queries[-1], mode="semantic")  # may prepare what this metric needs
    ask(bench, "10 nearest", {OURS: search}, model.queries, target=within(0.015))
    recall(bench, metric, {OURS: answers}, right)
    if not hasattr(holdall.ops.Search, "exact"):
        bench.note("search has no exact= yet: exact search is not measured")
        return
    exact: list[set[int]] = []
    first = len(answers) - _EXACT

    def search_exactly(query: str) -> None:
        exact.append(numbers(store.search((), query=query, mode="semantic", exact=True)))

    ask(bench, "10 nearest, exact=True", {OURS: search_exactly}, model.queries[first:], warm_up=2)
    recall(bench, f"{metric}, exact=True", {OURS: exact}, right[first:])


class Table:
    """The same model in another process, for some queries only."""

    def __init__(self, model: Model) -> None:
        self._vectors = {query: model.embed([query])[0].tolist() for query in model.queries}
        self._probe = model.embed([""])[0].tolist()

    def __call__(self, texts: list[str]) -> Any:
        return [self._vectors.get(text, self._probe) for text in texts]


def _put(store: holdall.Store, items: list[Any]) -> None:
    store.execute([holdall.ops.Put(*item) for item in items])
