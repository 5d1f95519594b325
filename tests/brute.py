"""Searches computed from everything that a store has, to hold its index against."""

from __future__ import annotations

from array import array
from typing import Any

import holdall
from holdall import fields, search, vectors
from holdall.testing import embed
from holdall.testing.search_machine import Known, by_text, in_order


def lexical(store: holdall.Store, query: str) -> list[tuple[str, float]]:
    """What `query` finds in a store of items that are wholly indexed, and of which none has expired."""
    entries = {entry.version: entry for entry in store.scan()}
    scores = by_text([Known(entry) for entry in entries.values()], search.parse(query))
    return [(entries[version].key, round(score, 9)) for version, score in in_order(scores)]


def shown(page: list[Any]) -> list[tuple[str, float]]:
    return [(hit.key, round(hit.score, 9)) for hit in page]


def check_lexical(store: holdall.Store, *queries: str) -> None:
    """The index says what there is, and all of it."""
    for query in queries:
        assert shown(store.search(query=query, mode="lexical", limit=100_000)) == lexical(store, query)


def semantic(store: holdall.Store, query: str) -> list[tuple[str, float]]:
    """The same by vectors of the test embedder, where all entries were put with it."""
    entries = {entry.version: entry for entry in store.scan()}
    scores = {
        version: vectors.score(vector(query), [vector(text) for text in texts])
        for version, entry in entries.items()
        if (texts := fields.texts(entry.value))
    }
    return [(entries[version].key, round(score, 9)) for version, score in in_order(scores)]


def check_semantic(store: holdall.Store, *queries: str) -> None:
    for query in queries:
        assert shown(store.search(query=query, mode="semantic", limit=100_000)) == semantic(store, query)


def vector(text: str) -> bytes:
    return array("f", embed([text])[0]).tobytes()
