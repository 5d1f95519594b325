"""Vectors on SQLite: loading and indexing, three metrics, memory, and hybrid search."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdall

from ..harness import OURS, Bench, Size, within
from . import footprint
from .costs import ask, load, once, put_all, rate, timed, until_idle
from .files import bytes_beside
from .model import DIMS, METRICS, Metric, Model, hybrid, numbers, recall

if TYPE_CHECKING:
    from . import Sizes

_ASKED, _EXACT = 1_000, 8
_PATIENCE = 900.0


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
        loading = load(bench, "vectors", partial(put_all, store), model.items())
        rate(bench, "loading vectors", {OURS: loading}, count)
        bench.progress("the first search by vectors")
        first = timed(lambda: store.search((), query=model.queries[0], mode="semantic"))
        indexing = first + until_idle(bench, "the index of vectors", _PATIENCE)
        mapped = bytes_beside(Path(url))
        once(bench, "first search by vectors after loading", {OURS: first})
        rate(
            bench,
            "loading and indexing vectors",
            {OURS: loading + indexing},
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
        until_idle(bench, "the text index", _PATIENCE)  # its last merges would count as searching
        hybrid(bench, "hybrid", store, [((), query) for query in model.queries[:300]])
        inside = [(model.namespace(number), query) for number, query in enumerate(model.queries[:300])]
        hybrid(bench, f"hybrid in a namespace of {count // model.users}", store, inside)
        bench.progress("memory of searches by vectors")
        searches = [{"query": query, "mode": "semantic"} for query in model.queries[:200]]
        cost = footprint.of_searches(url, {"embed": Table(model)}, searches)
    shown = ", ".join(f"{name} {size / count:.0f}" for name, size in mapped.items()) or "none"
    bench.note(f"bytes a vector of files beside the database, {of}: {shown}")
    sizes_of = {OURS: (sum(mapped.values()) + cost.memory) / count, "mapped": sum(mapped.values()) / count}
    bench.sizes.append(Size(f"memory of a vector, {of}", sizes_of, "bytes", 600))
    what = f"a tick of 1 ms is late, 99th percentile, {footprint.TASKS} tasks search"
    once(bench, what, {OURS: cost.busy, "idle": cost.alone}, within(0.020))
    shutil.rmtree(folder)  # it is gigabytes


def _search(bench: Bench, metric: Metric, store: holdall.Store, model: Model, right: list[set[int]]) -> None:
    answers: list[set[int]] = []

    def search(query: str) -> None:
        answers.append(numbers(store.search((), query=query, mode="semantic")))

    store.search((), query=model.queries[-1], mode="semantic")  # each metric has an index of its own
    until_idle(bench, f"the index of vectors, {metric}", _PATIENCE)
    ask(bench, f"10 nearest, {metric}", {OURS: search}, model.queries, target=within(0.015))
    recall(bench, metric, {OURS: answers}, right)
    exact: list[set[int]] = []
    first = len(answers) - _EXACT

    def search_exactly(query: str) -> None:
        exact.append(numbers(store.search((), query=query, mode="semantic", exact=True)))

    ask(bench, f"10 nearest, {metric}, exact=True", {OURS: search_exactly}, model.queries[first:], warm_up=2)
    recall(bench, f"{metric}, exact=True", {OURS: exact}, right[first:])


class Table:
    """The same model in another process, for some queries only."""

    def __init__(self, model: Model) -> None:
        self._vectors = {query: model.embed([query])[0].tolist() for query in model.queries}
        self._probe = model.embed([""])[0].tolist()

    def __call__(self, texts: list[str]) -> Any:
        return [self._vectors.get(text, self._probe) for text in texts]
