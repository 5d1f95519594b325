"""Vectors on PostgreSQL, beside langgraph's `PostgresStore` with its own HNSW index, on one server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from langgraph.store.postgres import PostgresStore

import holdall

from ..harness import OURS, Bench, at_most, no_slower_than, within
from ..postgres import STORE, analyze, new_server
from .corpus import Question
from .costs import ask, load, once, put_all, put_all_langgraph, rate, timed, until_idle
from .model import DIMS, Model, hybrid, numbers, recall

if TYPE_CHECKING:
    from . import Sizes

_ASKED, _PATIENCE = 200, 300.0


def measure(bench: Bench, sizes: Sizes) -> None:
    count = sizes.postgres
    bench.progress(f"making {count:,} vectors")
    model = Model(count, _ASKED)
    of = f"{count:,} × {DIMS} on PostgreSQL"
    bench.part = of
    with new_server(bench) as urls, ExitStack() as stack:
        our_url, their_url = next(urls), next(urls)
        store = stack.enter_context(holdall.open(our_url, embed=model.embed))
        index: Any = {"dims": DIMS, "embed": model.embed_lists, "fields": ["text"]}
        peer = stack.enter_context(PostgresStore.from_conn_string(their_url, index=index))
        peer.setup()
        loading = load(bench, OURS, partial(put_all, store), model.items())
        first = timed(lambda: store.search((), query=model.queries[0], mode="semantic"))
        indexing = first + until_idle(bench, "the index of vectors", _PATIENCE, partial(_is_busy, our_url))
        theirs = load(bench, STORE, partial(put_all_langgraph, peer), model.items())
        rate(bench, "loading vectors", {OURS: loading, STORE: theirs}, count)
        once(bench, "first search by vectors after loading", {OURS: first})
        spent = {OURS: loading + indexing, STORE: theirs}
        rate(bench, "loading and indexing vectors", spent, count, no_slower_than(STORE))
        bench.also(within(1 / 3_000, "at least 3,000/s"))
        for url in (our_url, their_url):
            analyze(url)
        right = model.nearest()["cosine"]
        found: dict[str, list[set[int]]] = {OURS: [], STORE: []}

        def search(question: Question) -> None:
            found[OURS].append(numbers(store.search(question[0], query=question[1], mode="semantic")))

        def search_theirs(question: Question) -> None:
            found[STORE].append(numbers(peer.search(question[0], query=question[1], limit=10)))

        both: dict[str, Callable[[Question], None]] = {OURS: search, STORE: search_theirs}
        everywhere: list[Question] = [((), query) for query in model.queries]
        ask(bench, "10 nearest", both, everywhere, target=at_most(2, STORE))
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
        hybrid(bench, "hybrid", store, everywhere)
        hybrid(bench, f"hybrid in a namespace of {each}", store, inside)


def _is_busy(url: str) -> bool:
    """Whether the server works for some other client: builds an index, for example."""
    with psycopg.connect(url, autocommit=True) as connection:
        sql = "SELECT FROM pg_stat_activity WHERE state = 'active' AND pid != pg_backend_pid() AND backend_type LIKE %s"
        return bool(connection.execute(sql, ["client%"]).fetchall())
