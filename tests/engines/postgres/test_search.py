"""Rankings by pgvector, whose distances are as exact as float32, are those of float64."""

from __future__ import annotations

import asyncio
import random
import threading
from array import array
from typing import Any

import pytest

import holdall
from holdall.engines.sql import ranker as sql_search
from holdall.model import filters
from holdall.ops import Put
from holdall.search import ranking, vectors
from support.servers import postgres_url

DIMS = 64


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("size", [1, 1000])
def test_neighbours_that_are_equal_in_float32_are_in_order(
    metric: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read a few at a time, so that many of them are in different stretches of the ranking."""
    monkeypatch.setattr(ranking, "_FIRST_LOOK", 3)
    monkeypatch.setattr(ranking, "_LARGEST_LOOK", 3)
    chance = random.Random(7)
    middle = [chance.uniform(-size, size) for _ in range(DIMS)]
    given = {"query": [chance.uniform(-size, size) for _ in range(DIMS)]}
    for n in range(150):  # two digits further on than float32 can sum
        given[f"text {n}"] = [number * (1 + chance.uniform(-2e-7, 2e-7)) for number in middle]
    data = {text: array("f", numbers).tobytes() for text, numbers in given.items()}

    def embed(texts: list[str]) -> list[list[float]]:
        return [given.get(text, middle) for text in texts]

    schema = f"near_{metric}_{size}"
    with holdall.open(postgres_url(), schema=schema, embed=embed, metric=metric, search_fields=["text"]) as store:
        store.execute([Put(("notes",), text, {"text": text}) for text in given if text != "query"])
        engine: Any = store._engine_handle.engine
        assert engine._dialect.pgvector is not None
        versions = {entry.version: entry.key for entry in store.scan()}
        scores = {version: vectors.score(data["query"], [data[key]], metric) for version, key in versions.items()}
        found = store.search(query="query", mode="semantic", limit=1000)
        assert [hit.version for hit in found] == sorted(scores, key=lambda one: (scores[one], one), reverse=True)


MANY, FEW = 500, 3  # many at each step: they are looked at 256 at a time, or more


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda store, ns: store.asearch(ns, filter={"n": {"$gte": 0}}, limit=1000), id="a filter"),
        pytest.param(lambda store, ns: store.acount(ns, filter={"n": {"$gte": 0}}), id="a filter, counted"),
        pytest.param(lambda store, ns: store.asearch(ns, query='"red apple"', limit=1000), id="a phrase"),
        pytest.param(
            lambda store, ns: store.asearch(ns, query="apple", filter={"n": {"$gte": 0}}, limit=1000),
            id="a query and a filter",
        ),
    ],
)
@pytest.mark.parametrize("many", [True, False])
def test_many_entries_are_looked_through_beside_the_event_loop(
    look: Any, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a few in it, since a thread would take longer than they do. Long ones are as good as many."""
    threads: set[int] = set()

    def noting(function: Any) -> Any:
        def noted(*args: Any) -> Any:
            threads.add(threading.get_ident())
            return function(*args)

        return noted

    monkeypatch.setattr(filters.Filter, "matches", noting(filters.Filter.matches))
    monkeypatch.setattr(sql_search, "has_phrases", noting(sql_search.has_phrases))

    async def main(store: holdall.Store) -> int:
        await look(store, ("many",) if many else ("few",))
        if many:
            await look(store, ("long",))
        return threading.get_ident()

    with holdall.open(postgres_url(), schema="beside") as store:
        if not store.count():
            store.execute([Put(("many",), str(n), {"n": n, "text": "red apple"}) for n in range(MANY)])
            store.execute([Put(("few",), str(n), {"n": n, "text": "red apple"}) for n in range(FEW)])
            store.put(("long",), "k", {"n": 1, "text": "red apple " + "pie " * 20_000})
        loop_thread = asyncio.run(main(store))
    assert threads
    assert (loop_thread in threads) is not many
