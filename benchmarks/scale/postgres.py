"""Vectors on PostgreSQL, beside langgraph's `PostgresStore` with its own HNSW index, on one server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from langgraph.store.base import PutOp
from langgraph.store.postgres import PostgresStore

import holdall

from ..harness import OURS, Bench, at_most, no_slower_than, within
from ..postgres import STORE, analyze, new_server
from .corpus import Question
from .costs import ask, once, rate, timed
from .model import DIMS, Model, hybrid, load, numbers, recall

if TYPE_CHECKING:
    from . import Sizes

_ASKED = 200


def measure(bench: Bench, sizes: Sizes) -> None:
    count = sizes.postgres
    bench.progress(f"making {count:,} vectors")
    model = Model(count, _ASKED)
    items = list(model.items())
    of = f"{count:,} × {DIMS} on PostgreSQL"
    bench.part = of
    with new_server(bench) as urls, ExitStack() as stack:
        our_url, their_url = next(urls), next(urls)
        store = stack.enter_context(holdall.open(our_url, embed=model.embed))
        index: Any = {"dims": DIMS, "embed": model.embed_lists, "fields": ["text"]}
        peer = stack.enter_context(PostgresStore.from_conn_string(their_url, index=index))
        peer.setup()
        loading = {
            OURS: load(bench, "loading ours", lambda some: _put(store, some), items),
            STORE: load(bench, f"loading {STORE}", lambda some: peer.batch([PutOp(*item) for item in some]), items),
        }
        rate(bench, "loading vectors", loading, count, no_slower_than(STORE))
        first = timed(lambda: store.search((), query=model.queries[0], mode="semantic"))
        once(bench, "first search by vectors after loading", {OURS: first})
        rate(
            bench,
            "loading and indexing vectors",
            {OURS: loading[OURS] + first, STORE: loading[STORE]},
            count,
            within(1 / 3_000, "at least 3,000/s"),
        )
        for url in (our_url, their_url):
            analyze(url)
        right = model.nearest()["cosine"]
        found: dict[str, list[set[int]]] = {OURS: [], STORE: []}

        def ours(question: Question) -> None:
            found[OURS].append(numbers(store.search(question[0], query=question[1], mode="semantic")))

        def theirs(question: Question) -> None:
            found[STORE].append(numbers(peer.search(question[0], query=question[1], limit=10)))

        both: dict[str, Callable[[Question], None]] = {OURS: ours, STORE: theirs}
        everywhere: list[Question] = [((), query) for query in model.queries]
        # LangGraph's stores take a prefix of any length for all, and all are users'.
        ask(bench, "10 nearest", both, [(("users",), query) for _, query in everywhere], target=at_most(2, STORE))
        recall(bench, "whole store", found, right)

        inside = [(model.namespace(number), query) for number, query in enumerate(model.queries)]
        each = count // model.users
        right = [set(range(number, count, model.users)) for number in range(len(inside))]
        found = {OURS: [], STORE: []}
        ask(bench, f"10 nearest in a namespace of {each}", both, inside, target=no_slower_than(STORE))
        if each == 10:
            recall(bench, f"in a namespace of {each}", found, right)
        first = timed(lambda: store.search((), query=model.queries[0]))
        once(bench, "first search for words after loading", {OURS: first})
        hybrid(bench, "hybrid", store, everywhere[:60])
        hybrid(bench, f"hybrid in a namespace of {each}", store, inside[:60])


def _put(store: holdall.Store, items: list[Any]) -> None:
    store.execute([holdall.ops.Put(*item) for item in items])
