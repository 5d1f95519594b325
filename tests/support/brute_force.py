"""Rankings computed from all entries of a store, to compare with the results of its indexes."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import holdall
from holdall.model import field_paths
from holdall.search import scoring, tokens, vectors
from holdall.testing import embed


def lexical(store: holdall.Store, query: str) -> list[tuple[str, float]]:
    """Rank the items of a store by BM25. All of them must be indexed, and none expired."""
    entries = list(store.scan())
    counted = [
        Counter(token for text in field_paths.find_strings(entry.value) for token in tokens.tokens(text))
        for entry in entries
    ]
    documents = [number for number, counts in enumerate(counted) if counts]
    lengths = [sum(counts.values()) for counts in counted]
    parts = []
    for term in tokens.parse_query(query).terms:
        having = [number for number in documents if term in counted[number]]
        parts.append([(array("I", having), bytes(counted[number][term] for number in having))])
    scores = scoring.bm25(parts, lengths, len(documents), sum(lengths))
    return in_order({entries[number]: score for number, score in scores.items()})


def semantic(store: holdall.Store, query: str) -> list[tuple[str, float]]:
    """Rank the entries of a store by vectors of the test embedder, with which all of them were put."""
    return in_order(
        {
            entry: vectors.score(vector(query), [vector(text) for text in texts])
            for entry in store.scan()
            if (texts := field_paths.find_texts(entry.value))
        }
    )


def in_order(scores: dict[holdall.Entry, float]) -> list[tuple[str, float]]:
    """Sort by score, and by version, newest first, where scores are equal."""
    ranked = sorted(scores.items(), key=lambda item: (item[1], item[0].version), reverse=True)
    return [(entry.key, round(score, 9)) for entry, score in ranked]


def vector(text: str) -> bytes:
    return array("f", embed([text])[0]).tobytes()


def check_lexical(store: holdall.Store, *queries: str) -> None:
    """Check that the text index gives the brute-force ranking."""
    for query in queries:
        assert shown(store.search(query=query, mode="lexical", limit=100_000)) == lexical(store, query)


def check_semantic(store: holdall.Store, *queries: str) -> None:
    """Check that the vector index gives the brute-force ranking."""
    for query in queries:
        assert shown(store.search(query=query, mode="semantic", limit=100_000)) == semantic(store, query)


def shown(page: list[Any]) -> list[tuple[str, float]]:
    return [(hit.key, round(hit.score, 9)) for hit in page]
