"""Many texts tokenised at once have the same tokens as one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdall.search.segments import word_table
from holdall.search.segments.word_table import ArrayNumbering
from holdall.search.tokens import Numbering, tokens

word = (
    st.sampled_from(["the", "The", "who", "tea", "Teas", "john's", "'", "l'eau", "x" * 8, "y" * 9, "z" * 16, "z" * 17])
    | st.text("aB9'_-. \n", min_size=1, max_size=20)
    | st.sampled_from(["\u2019s", "caf\u00e9", "\u6771\u4eac", "\u00ad", "w" * 70])
)
text = st.lists(word, max_size=6).map(" ".join)


def as_lists(found: Any) -> list[list[Any]]:
    return [[item if isinstance(item, str) else int(item) for item in one] for one in found]


@given(st.lists(st.lists(text, max_size=8), max_size=4), st.sampled_from([2, 5, 1 << 17]))
def test_tokens_of_many_texts_are_those_of_each(groups: list[list[str]], most: int) -> None:
    """With numbers that become known between the groups, and with a table that has to be emptied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_table, "_SHORT", 0)
        patch.setattr(word_table, "_MOST_WORDS", most)
        fast, plain = ArrayNumbering(), Numbering()
        for group in groups:
            for _ in range(2):
                assert as_lists(fast.tokenise(group)) == as_lists(plain.tokenise(group))
            terms = sorted({token for one in group for token in tokens(one)})
            numbers = [(term, len(plain.terms) + number) for number, term in enumerate(terms[::2], 1)]
            for numbering in (fast, plain):
                numbering.learn((term, number) for term, number in numbers if term not in numbering.terms)
        everything = [one for group in groups for one in group]
        assert as_lists(fast.tokenise(everything)) == as_lists(plain.tokenise(everything))


def test_a_table_grows_and_keeps_its_words() -> None:
    numbering = ArrayNumbering()
    words = [f"word{number}x" for number in range(20_000)]
    known = {token: number for number, word in enumerate(words, 1) for token in tokens(word)}
    numbering.learn(known.items())
    for start in range(0, len(words), 3_000):
        numbering.tokenise([" ".join(words[start : start + 3_000])])
    [found] = numbering.tokenise([" ".join(words)])
    assert list(found) == [known[token] for token in tokens(" ".join(words))]
    assert numbering._table.count == len(words)


@pytest.mark.parametrize("length", [7, 8, 9, 15, 16, 17])
def test_words_that_begin_alike_are_different(length: int) -> None:
    numbering = ArrayNumbering()
    words = ["q" * length, "q" * (length + 1)]
    numbering.learn([(token, number) for number, word in enumerate(words, 1) for token in tokens(word)])
    texts = [" ".join(words) for _ in range(200)]
    for _ in range(2):
        assert {tuple(map(int, found)) for found in numbering.tokenise(texts)} == {(1, 2)}
