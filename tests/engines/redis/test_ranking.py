"""Ranking by stored posting lists: that of several indexes is the ranking of all their documents."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdall.engines.redis.search import postings, text_index
from holdall.engines.redis.search.postings import DocumentCache, Slice, State, build_lists, split_by_part
from holdall.engines.redis.search.text_index import rank_matches
from holdall.search.scoring import Weights
from holdall.search.segments.arrays import ArrayKernel
from holdall.search.segments.plain import PlainKernel
from holdall.search.text_index import TextIndex

TERMS = ("red", "green", "blue")
documents = st.lists(st.lists(st.sampled_from([*TERMS, "black"]), min_size=1, max_size=6), max_size=8)
indexes = st.lists(st.tuples(documents, documents), min_size=1, max_size=3)


def stored_lists(first: int, stored: list[list[str]], late: list[list[str]], removed: set[int]) -> postings.Lists:
    """The lists of an index whose versions begin at `first`: some documents are stored, the others are late."""
    index, known = TextIndex(), DocumentCache(0)
    for version, words in enumerate(stored, first):
        index.add(version, [" ".join(words)])
    added = Slice(TextIndex(len(stored)), [number for number in sorted(removed) if number % 2])
    for version, words in enumerate(late, first + len(stored)):
        added.added.add(version, [" ".join(words)])
    known.versions, known.lengths = index.versions, index.lengths
    known.removed = array("I", [number for number in sorted(removed) if number % 2 == 0])
    left = [words for number, words in enumerate(stored) if number not in known.removed]
    state = State("", len(stored), len(left), sum(map(len, left)))
    rows = [(term, numbers, times) for _, term, numbers, times in split_by_part(index)] if stored else []
    return build_lists(TERMS, [row for row in rows if row[0] in TERMS], known, added, state)


@pytest.mark.parametrize("kernel", [ArrayKernel(), PlainKernel()], ids=["numpy", "plain"])
@given(indexes, st.data())
def test_the_ranking_is_that_of_all_documents_that_are_left(
    kernel: Any, indexes: list[tuple[list[list[str]], list[list[str]]]], data: st.DataObject
) -> None:
    lists, left = [], {}
    for number, (stored, late) in enumerate(indexes):
        removed = data.draw(st.sets(st.integers(0, len(stored) - 1))) if stored else set()
        lists.append(stored_lists(1000 * number, stored, late, removed))
        left |= {1000 * number + at: words for at, words in enumerate([*stored, *late]) if at not in removed}
    among = data.draw(st.none() | st.sets(st.sampled_from([*left, 77]))) if left else None
    found = [sum(term in words for words in left.values()) for term in TERMS]
    weights = Weights(found, len(left), sum(map(len, left.values())))
    scores = {
        version: weights.score([Counter(words)[term] for term in TERMS], len(words))
        for version, words in left.items()
        if not set(TERMS).isdisjoint(words) and (among is None or version in among)
    }
    with patch.object(text_index, "kernel", lambda: kernel):
        ranked = list(rank_matches(TERMS, lists, among))
    assert ranked == sorted(scores.items(), key=lambda pair: (pair[1], pair[0]), reverse=True)
