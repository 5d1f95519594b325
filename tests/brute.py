"""Searches computed from everything that a store has, to hold its indexes against."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import holdall
from holdall import fields, search, vectors
from holdall.testing import embed


def lexical(store: holdall.Store, query: str) -> list[tuple[str, float]]:
    """What `query` finds in a store of items that are wholly indexed, and of which none has expired."""
    entries = list(store.scan())
    counted = [
        Counter(token for text in fields.strings(entry.value) for token in search.tokens(text)) for entry in entries
    ]
    documents = [number for number, counts in enumerate(counted) if counts]
    lengths = [sum(counts.values()) for counts in counted]
    parts = []
    for term in search.parse(query).terms:
        having = [number for number in documents if term in counted[number]]
        parts.append([(array("I", having), bytes(counted[number][term] for number in having))])
    scores = search.bm25(parts, lengths, len(documents), sum(lengths))
    return in_order({entries[number]: score for number, score in scores.items()})


def semantic(store: holdall.Store, query: str) -> list[tuple[str, float]]:
    """The same by vectors of the test embedder, where all entries were put with it."""
    return in_order(
        {
            entry: vectors.score(vector(query), [vector(text) for text in texts])
            for entry in store.scan()
            if (texts := fields.texts(entry.value))
        }
    )


def in_order(scores: dict[holdall.Entry, float]) -> list[tuple[str, float]]:
    """The newest first of those that are alike."""
    ranked = sorted(scores.items(), key=lambda item: (item[1], item[0].version), reverse=True)
    return [(entry.key, round(score, 9)) for entry, score in ranked]


def vector(text: str) -> bytes:
    return array("f", embed([text])[0]).tobytes()


def check_lexical(store: holdall.Store, *queries: str) -> None:
    """The index of texts says what there is, and all of it."""
    for query in queries:
        assert shown(store.search(query=query, mode="lexical", limit=100_000)) == lexical(store, query)


def check_semantic(store: holdall.Store, *queries: str) -> None:
    """And so do the vectors."""
    for query in queries:
        assert shown(store.search(query=query, mode="semantic", limit=100_000)) == semantic(store, query)


def shown(page: list[Any]) -> list[tuple[str, float]]:
    return [(hit.key, round(hit.score, 9)) for hit in page]
