"""Vectors in PostgreSQL: with pgvector, whose distances are of float32, or without it, they are ranked exactly."""

from __future__ import annotations

import itertools
import os
import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest

import holdall
from holdall.engines.postgres import entries as postgres_sql
from holdall.engines.postgres.ranker import PostgresRanker
from holdall.ops import Put
from holdall.search import vectors
from holdall.testing import Clock, ranking_machine
from support.servers import postgres_url
from support.small_thresholds import in_small

NS = ("vectors",)
_numbers = itertools.count()


class Crowd:
    """A model whose vectors are all but alike: of so great a length, and so far from each other."""

    def __init__(self, length: float, distance: float) -> None:
        self._random = random.Random(3)
        self._middle = [self._random.gauss(0, length) for _ in range(64)]
        self._distance = distance
        self.vectors: dict[str, list[float]] = {"zero": [0.0] * 64}

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        return [self.vectors.setdefault(text, self._near()) for text in texts]

    def _near(self) -> list[float]:
        return [number + self._random.gauss(0, self._distance) for number in self._middle]

    def bytes_of(self, text: str) -> bytes:
        return array("f", self.vectors[text]).tobytes()


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize(("length", "distance"), [(1, 1), (1, 1e-6), (1e4, 0.1), (1e-3, 1e-9), (1e25, 1e24)])
def test_vectors_that_are_equal_in_float32_are_ranked_exactly(metric: Any, length: float, distance: float) -> None:
    model = Crowd(length, distance)
    with holdall.open(postgres_url(), schema=f"crowd_{next(_numbers)}", embed=model, metric=metric) as store:
        assert store.search(query="x") == []
        assert engine_of(store)._dialect.pgvector is not None
        texts = [f"text {n % 390}" for n in range(400)] + ["zero"]
        store.execute([Put(NS, str(n), {"text": text}) for n, text in enumerate(texts)])
        entries = {entry.version: entry for entry in store.scan()}
        for query in ("one", "another", "zero"):
            hits = store.search(query=query, mode="semantic", limit=200)
            scores = {
                version: vectors.score(model.bytes_of(query), [model.bytes_of(entry.value["text"])], metric)
                for version, entry in entries.items()
            }
            best = sorted(scores.items(), key=lambda item: (item[1], item[0]), reverse=True)[:200]
            assert [(hit.version, hit.score) for hit in hits] == best


def test_an_entry_that_changes_between_ranking_and_loading_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search by vectors has two queries outside a transaction; the second finds that an entry has changed."""
    model, load, calls = Crowd(1, 1), PostgresRanker.load, itertools.count()

    def change_then_load(ranker: Any, op: Any, versions: list[int]) -> Any:
        if next(calls) == 0:
            store.put(NS, "a", {"text": "newer"})
            store.delete(NS, "b")
        return load(ranker, op, versions)

    with holdall.open(postgres_url(), schema=f"changing_{next(_numbers)}", embed=model) as store:
        for key in "abc":
            store.put(NS, key, {"text": key})
        monkeypatch.setattr(PostgresRanker, "load", change_then_load)
        hits = store.search(NS, query="one", mode="semantic")
    assert {hit.key: hit.value["text"] for hit in hits} == {"a": "newer", "c": "c"}
    assert next(calls) == 2


def engine_of(store: holdall.Store) -> Any:
    return store._engine_handle.engine


# Without it ----------------------------------------------------------------------------------------------------------


def new_database() -> str:
    """Create a database without the extension, and return its URL."""
    name = f"without_{next(_numbers)}"
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_url().replace("/postgres?", f"/{name}?")


_elsewhere: list[str] = []
WITHOUT = tuple(
    statements.replace("CREATE EXTENSION IF NOT EXISTS vector", "RAISE EXCEPTION 'there is none'")
    for statements in postgres_sql.MIGRATIONS
)


def open_without(folder: Path, clock: Clock) -> holdall.Store:
    """On a server that does not have the extension."""
    if not _elsewhere:
        _elsewhere.append(new_database())
    own = {"timeout": 30 + next(_numbers)}
    store = holdall.open(_elsewhere[0], schema=folder.name, clock=clock, sweep_interval=None, **own)
    with mock.patch.object(postgres_sql, "MIGRATIONS", WITHOUT):
        store.setup()
    assert engine_of(store)._dialect.pgvector is None
    return store


TestWithoutPgvector = in_small(ranking_machine(open_without), 0.3)


def test_cosines_of_very_long_and_very_short_vectors_are_exact() -> None:
    """pgvector takes them for 0, 1 or -1, where a square of a length is no float32."""
    direction = {f"{n} {size}": [n * size, (100 - n) * size] for n in range(1, 100) for size in (1e-30, 1.0, 1e30)}

    def embed_table(texts: list[str]) -> list[list[float]]:
        return [direction.get(text, [1.0, 0.0]) for text in texts]

    schema = f"extreme_{os.getpid()}"
    with holdall.open(postgres_url(), schema=schema, embed=embed_table, sweep_interval=None) as store:
        store.execute([Put(("n",), text, {"text": text}) for text in direction])
        for query in ("99 1e-30", "99 1.0", "99 1e+30"):
            found = [hit.key.split()[0] for hit in store.search(query=query, mode="semantic", exact=True, limit=6)]
            assert found == ["99"] * 3 + ["98"] * 3
