"""Hybrid search on Redis, beside its halves."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import holdall

from ..harness import OURS, Bench, at_most
from ..redis import new_server
from .corpus import Question
from .costs import load, once, put_all, rate, timed
from .model import DIMS, TEXT_HALF, VECTOR_HALF, Model, hybrid, numbers, recall

if TYPE_CHECKING:
    from . import Sizes

_ASKED = 180
SLOWER = "slower half"


def measure(bench: Bench, sizes: Sizes) -> None:
    count = sizes.redis
    model = Model(count, _ASKED)
    of = f"{count:,} × {DIMS} on Redis"
    folder = bench.folder / "redis"
    folder.mkdir()
    bench.part = of
    with new_server(folder) as url, holdall.open(url, embed=model.embed) as store:
        loading = load(bench, "vectors", partial(put_all, store), model.items())
        rate(bench, "loading vectors", {OURS: loading}, count)
        first = timed(lambda: store.search((), query=model.queries[0]))
        once(bench, "first search after loading", {OURS: first})
        everywhere: list[Question] = [((), query) for query in model.queries]
        row = hybrid(bench, "hybrid", store, everywhere)
        slower = max(row.seconds[TEXT_HALF], row.seconds[VECTOR_HALF], key=median)
        bench.rows.append(replace(row, seconds={**row.seconds, SLOWER: slower}, target=at_most(2, SLOWER)))
        inside = [(model.namespace(number), query) for number, query in enumerate(model.queries)]
        hybrid(bench, f"hybrid in a namespace of {count // model.users}", store, inside)
        found = [numbers(store.search((), query=query, mode="semantic")) for query in model.queries]
        recall(bench, "whole store", {OURS: found}, model.nearest()["cosine"])
