"""Full text without storage: tokens of any script, queries that cannot go wrong, BM25 and fusion."""

from __future__ import annotations

import math
import random
import threading
from array import array
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdall.search import tokens as search
from holdall.search.scoring import FUSED, Part, bm25
from holdall.search.scoring import fuse as fuse_most
from holdall.search.tokens import Query, has_phrases, parse_query, tokens, words

fuse = partial(fuse_most, most=FUSED)
#: Anything that Python holds as text, lone surrogates too, and more of what is special to us than chance would give.
ANY_TEXT = st.text() | st.lists(
    st.sampled_from(["the", "who", "running", "don't", "'", "_", '"', "\x00", "\ud800", "é", "e\u0301", "İ", "ß",
                     "東京都", "한국어", "ภาษา", "हिन्दी", "مُحَمَّد", "ｶﾞ", "⑴", "½", "’", "“", "—", "👍🏽", " ",
                     "\n", "x" * 70])
).map("".join)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    search._tokens.clear()
    search._words.clear()
    yield


# Tokens --------------------------------------------------------------------------------------------------------------


@given(ANY_TEXT)
@example("\x00a\x00b")
@example("x" * 1000)
@example("東" * 1000)
def test_tokens_of_any_text_can_be_stored(text: str) -> None:
    for token in [*tokens(text), *words(text)]:
        assert 1 <= len(token) <= 64
        assert token.split() == [token]
        assert "\x00" not in token
        token.encode()


@given(ANY_TEXT)
def test_tokens_do_not_depend_on_what_was_seen_before(text: str) -> None:
    first = tokens(text), words(text)
    assert (tokens(text), words(text)) == first
    search._tokens.clear()
    search._words.clear()
    assert (tokens(text), words(text)) == first


@given(ANY_TEXT)
@example("a_b don't 'x'")
def test_the_quick_ways_give_what_the_slow_one_does(text: str) -> None:
    """A sign of another script sends a text the slow way; a dash, the one for prose."""
    assert tokens(text + " \u2603") == tokens(text + " \u2014") == tokens(text)
    assert words(text + " \u2603") == words(text + " \u2014") == words(text)


@given(ANY_TEXT, ANY_TEXT)
def test_the_words_of_a_text_are_those_of_its_lines(one: str, other: str) -> None:
    assert words(f"{one}\n{other}") == words(one) + words(other)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The Runners were RUNNING quickly", ["runner", "run", "quick"]),
        ("user_name=alice_42", ["user", "name", "alic", "42"]),
        ("v1.25 costs $1,000", ["v1", "25", "cost", "1", "000"]),
        ("café CAFE\u0301 Cafe", ["cafe"] * 3),
        ("straße STRASSE", ["strass"] * 2),
        ("Øre ægir Łódź İzmir ısı", ["ore", "aegir", "lodz", "izmir", "isi"]),
        ("ﬁle ２０２４ ｆｕｌｌ", ["file", "2024", "full"]),
        ("Ёлка ёлка елка", ["елка"] * 3),
        ("ΟΔΟΣ οδός", ["οδοσ"] * 2),
        ("مُحَمَّد محمد", ["محمد"] * 2),
        ("שָׁלוֹם שלום", ["שלום"] * 2),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("soft\u00adhyphen", ["softhyphen"]),
        ("😀 hello 👍🏽", ["hello"]),
    ],
)
def test_words_are_folded_and_stemmed(text: str, wanted: list[str]) -> None:
    assert tokens(text) == wanted


@pytest.mark.parametrize("apostrophe", ["'", "\u2019", "\u02bc"])
def test_apostrophes(apostrophe: str) -> None:
    text = "John's dogs' O'Brien l'eau rock'n'roll 'quoted' I'm don't they'll".replace("'", apostrophe)
    assert tokens(text) == ["john", "dog", "obrien", "eau", "rocknrol", "quot"]
    assert words(text)[-3:] == ["i", "dont", "they"]


@pytest.mark.parametrize(
    ("text", "queries"),
    [
        ("我喜欢东京的猫。", ["东京", "猫", "喜欢"]),
        ("私は東京タワーに行きました", ["東京", "タワー", "ﾀﾜｰ", "行きました"]),
        ("서울에서 만나요", ["서울", "만나"]),
        ("ผมชอบอาหารไทย", ["อาหาร", "ไทย"]),
        ("ខ្ញុំស្រលាញ់ភាសាខ្មែរ", ["ភាសា", "ខ្មែរ"]),
        ("ကျွန်တော် မြန်မာစကား", ["မြန်မာ"]),
        ("买了iPhone手机", ["iphone", "手机"]),
    ],
)
def test_scripts_without_spaces_are_found_by_what_is_inside(text: str, queries: list[str]) -> None:
    found = set(tokens(text))
    for query in queries:
        assert set(parse_query(query).terms) <= found, query
        assert has_phrases(parse_query(f'"{query}"'), [text]), query


def test_pairs_are_of_neighbours() -> None:
    assert tokens("東京都に") == ["東京", "京都", "都に", "東", "京", "都"]
    assert tokens("東 京 の") == ["東", "京", "の"]


def test_stop_words_are_left_out_of_texts_that_have_others() -> None:
    assert tokens("The Who are playing at the hall, and I don't care") == ["play", "hall", "care"]


def test_a_text_of_nothing_but_stop_words_is_found_by_them() -> None:
    assert tokens("The Who") == ["the", "who"] == list(parse_query("the WHO").terms)
    assert tokens("To be — or not to be?") == ["to", "be", "or", "not", "to", "be"]
    assert parse_query("the who concert").terms == ("concert",)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_CACHED", 100)
    text = " ".join(f"word{number}" for number in range(1000))
    assert tokens(text) == text.split()
    assert len(search._tokens) <= 100
    tokens("y" * 100_000)
    assert max(map(len, search._tokens)) <= 64


def test_threads_get_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Snowball stemmer is not to be shared: each of these must have its own, and none of what it knows remembered."""
    monkeypatch.setattr(search, "_CACHED", 1)
    stemmers = set()
    texts = [" ".join(f"{stem}{end}" for end in ("ing", "ed", "s")) for stem in ("walk", "jump", "play", "talk")]
    wanted = [[stem] * 3 for stem in ("walk", "jump", "play", "talk")]
    found: dict[int, list[list[list[str]]]] = {}
    started = threading.Barrier(4)

    def work(number: int) -> None:
        started.wait()
        found[number] = [[tokens(text) for text in texts] for _ in range(100)]
        stemmers.add(search._snowball().stem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [wanted] * 100 for number in range(4)}
    assert len(stemmers) == 4


# Queries -------------------------------------------------------------------------------------------------------------


@given(ANY_TEXT)
def test_no_query_is_an_error(text: str) -> None:
    query = parse_query(text)
    assert set(query.terms) == set(tokens(text))
    assert len(set(query.terms)) == len(query.terms)
    assert isinstance(has_phrases(query, [text]), bool)
    assert has_phrases(query, []) is (not query.phrases)


@pytest.mark.parametrize(
    "text",
    ["AND", "NOT x OR", "a NEAR/3 b", "x*", "^y", "col:z", "-w", "(", "';DROP TABLE entries;--", "%", "\\", "a & b"],
)
def test_nothing_in_a_query_is_an_operator(text: str) -> None:
    assert parse_query(text) == Query(tuple(dict.fromkeys(tokens(text))))


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ('plain "to be or" “Running Dogs”', [("to", "be", "or"), ("run", "dog")]),
        ('one "two three', []),
        ('a "b" c "d', [("b",)]),
        ('"" " " "!"', []),
        ('a 5" disk and a 3" one', []),
        ('"same" "SAME"', [("same",)]),
        ('他说"你好"吗', [("你", "好")]),
    ],
)
def test_what_is_in_quotes_is_a_phrase(text: str, phrases: list[tuple[str, ...]]) -> None:
    assert list(parse_query(text).phrases) == phrases


def test_a_phrase_occurs_word_for_word_in_one_text() -> None:
    query = parse_query('"running a marathon"')
    assert has_phrases(query, ["no", "She runs, a marathon!"])
    assert not has_phrases(query, ["running the marathon"])
    assert not has_phrases(query, ["a marathon running"])
    assert not has_phrases(query, ["running a", "marathon"])
    assert not has_phrases(query, ["trunning a marathons"])
    assert not has_phrases(parse_query('"run" "walk"'), ["run"])
    assert has_phrases(parse_query('"run" "walk"'), ["run", "walk"])


@given(
    st.lists(st.sampled_from(["the", "cat", "who", "Don't", "RAN", "café", "東京", "x_y", "naïve"]), min_size=1),
    st.data(),
)
def test_every_part_of_a_text_is_a_phrase_of_it(parts: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(parts) - 1))
    end = data.draw(st.integers(start + 1, len(parts)))
    text, phrase = " ".join(parts), " ".join(parts[start:end])
    query = parse_query(f'"{phrase}"')
    assert has_phrases(query, [text])


# Scores --------------------------------------------------------------------------------------------------------------


def naive_bm25(terms: list[str], documents: dict[int, list[str]]) -> dict[int, float]:
    average = sum(map(len, documents.values())) / len(documents)
    scores: dict[int, float] = {}
    for term in terms:
        found = {number: Counter(tokens)[term] for number, tokens in documents.items() if term in tokens}
        idf = math.log(1 + (len(documents) - len(found) + 0.5) / (len(found) + 0.5))
        for number, times in found.items():
            norm = 0.9 * (1 - 0.4 + 0.4 * len(documents[number]) / average)
            scores[number] = scores.get(number, 0.0) + idf * times / (times + norm)
    return scores


DOCUMENTS = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=30), min_size=1, max_size=20)


@given(DOCUMENTS, st.data())
def test_scores_are_bm25_of_the_documents_that_are_left(documents: list[list[str]], data: st.DataObject) -> None:
    terms = data.draw(st.permutations("abcdx"))
    gone = data.draw(st.sets(st.sampled_from(range(len(documents))), max_size=len(documents) - 1))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(documents)), max_size=3)))
    left = {number: document for number, document in enumerate(documents) if number not in gone}
    total = sum(map(len, left.values()))
    lengths = array("I", map(len, documents))

    def scored(bounds: list[int], absent: frozenset[int] | set[int]) -> dict[int, float]:
        parts = [postings(documents, term, bounds) for term in terms]
        return bm25(parts, lengths, len(left), total, absent)

    scores = scored([0, *cuts, len(documents)], gone)
    assert scores == pytest.approx(naive_bm25(terms, left))
    assert scores == scored([0, len(documents)], frozenset(gone)), (
        "how a list is cut changes nothing, not even rounding"
    )


def postings(documents: list[list[str]], term: str, bounds: list[int]) -> list[Part]:
    parts: list[Part] = []
    for start, end in pairwise(bounds):
        found = [number for number in range(start, end) if term in documents[number]]
        parts.append((array("I", found), bytes(documents[number].count(term) for number in found)))
    return parts


def test_scores_of_nothing() -> None:
    assert bm25([], array("I"), 0, 0) == {}
    assert bm25([[], [(array("I"), b"")]], array("I"), 0, 0) == {}
    assert bm25([[(array("I", [0]), b"\x01")]], array("I", [3]), 0, 0, {0}) == {}


def test_rare_terms_frequent_ones_and_short_documents_score_higher() -> None:
    lengths = array("I", [10, 10, 100, 10])
    common, rare = (array("I", [0, 1, 2]), b"\x01\x05\x01"), (array("I", [3]), b"\x01")
    scores = bm25([[common], [rare]], lengths, 4, sum(lengths))
    assert scores[3] > scores[1] > scores[0] > scores[2] > 0


# Fusion --------------------------------------------------------------------------------------------------------------

SCORES = st.dictionaries(st.integers(0, 50), st.floats(-1, 1).map(lambda score: round(score, 3)), max_size=30)
POSITIVE = st.dictionaries(st.integers(0, 50), st.floats(0.001, 30).map(lambda score: round(score, 3)), max_size=30)


@given(POSITIVE, SCORES)
def test_a_fusion_has_everything_once_best_first(lexical: dict[int, float], semantic: dict[int, float]) -> None:
    fused = fuse(lexical, semantic)
    assert sorted(number for number, _ in fused) == sorted(lexical.keys() | semantic.keys())
    assert all(0 < score < 1 for _, score in fused)
    assert fused == sorted(fused, key=lambda item: (item[1], item[0]), reverse=True)


@given(POSITIVE, SCORES, st.randoms(use_true_random=False))
def test_a_fusion_does_not_depend_on_the_order_of_what_it_is_given(
    lexical: dict[int, float], semantic: dict[int, float], chance: random.Random
) -> None:
    def shuffled(scores: dict[int, float]) -> dict[int, float]:
        return dict(chance.sample(sorted(scores.items()), len(scores)))

    assert fuse(shuffled(lexical), shuffled(semantic)) == fuse(lexical, semantic)


@given(POSITIVE, SCORES)
def test_the_range_of_a_models_scores_does_not_matter(lexical: dict[int, float], semantic: dict[int, float]) -> None:
    """Some models give cosines between 0.7 and 0.9 only, and distances are negative."""
    moved = {number: score / 16 - 2 for number, score in semantic.items()}
    before, after = dict(fuse(lexical, semantic)), dict(fuse(lexical, moved))
    assert after == pytest.approx(before, abs=1e-6)


@given(POSITIVE, SCORES)
def test_one_side_alone_ranks_as_it_is(lexical: dict[int, float], semantic: dict[int, float]) -> None:
    for scores, fused in ((lexical, fuse(lexical, {})), (semantic, fuse({}, semantic))):
        if max(map(abs, scores.values()), default=0) > 0:
            wanted = sorted(scores, key=lambda number: (scores[number], number), reverse=True)
            assert [number for number, _ in fused] == wanted
    assert fuse({}, {}) == []


def test_what_both_sides_like_comes_before_what_one_likes() -> None:
    lexical = {1: 9.0, 2: 8.9, 3: 1.0, 4: 0.9}
    semantic = {5: 0.9, 2: 0.89, 6: 0.1, 3: 0.05, 1: 0.0}
    assert fuse(lexical, semantic)[0][0] == 2


def test_the_only_text_with_a_rare_word_comes_first_though_vectors_do_not_see_it() -> None:
    chance = random.Random(1)
    semantic = {number: chance.gauss(0.3, 0.05) for number in range(FUSED)}
    best = max(semantic, key=semantic.__getitem__)
    assert fuse({7: 4.2}, semantic)[0][0] == 7
    assert fuse({7: 4.2, best: 4.2}, semantic)[0][0] == best


def test_words_that_all_documents_share_alike_leave_the_ranking_to_the_vectors() -> None:
    lexical = dict.fromkeys(range(100), 0.3)
    semantic = {number: number / 100 for number in range(100)}
    assert [number for number, _ in fuse(lexical, semantic)] == list(reversed(range(100)))


def test_equal_documents_are_ordered_by_words_and_not_by_rounding() -> None:
    semantic = {number: 0.9 + number * 1e-9 for number in range(20)}
    assert fuse({3: 1.0, 4: 2.0}, semantic)[:2] == [(4, pytest.approx(0.8, abs=0.2)), (3, pytest.approx(0.6, abs=0.2))]


def test_what_has_no_vector_is_as_near_as_the_farthest_that_has_one() -> None:
    scores = dict(fuse({1: 2.0, 2: 2.0, 3: 2.0}, {1: 0.9, 2: 0.1}))
    assert scores[1] > scores[2] == pytest.approx(scores[3])


def test_what_was_cut_off_is_as_good_as_the_weakest_that_was_not() -> None:
    """With as many lexical matches as are fused there may be more: what is not among them may have matched, too."""
    lexical = {number: 10.0 + number / FUSED for number in range(FUSED)}
    scores = dict(fuse(lexical, {0: 0.5, FUSED: 0.5, FUSED + 1: 0.4}))
    assert scores[0] == pytest.approx(scores[FUSED])
    lexical.pop(1)
    scores = dict(fuse(lexical, {0: 0.5, FUSED: 0.5, FUSED + 1: 0.4}))
    assert scores[0] > scores[FUSED] + 0.1
