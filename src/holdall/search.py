"""Full text: the words of a text, the words of a query, how well they match (BM25), and the fusion with vectors.

Nothing here touches storage. Every engine keeps the `tokens` of its entries, and asks `bm25` for the scores of those
that a query's terms were found in: the tokeniser and the sums are the same everywhere, so the ranking is too.

A word is lower-cased, loses its accents and, where it is of ASCII letters, its English ending (Snowball). Words that
say nothing by themselves ("the", "who") are left out of the index; only a text with no other words is indexed by them,
so that a note that says "The Who" is found by that name. Scripts that put no spaces between words have no words to
stem: their texts become overlapping pairs of characters, and Chinese and Korean ones their single characters, too.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import repeat
from math import exp, fsum, log, sqrt
from operator import add
from typing import TypeAlias

from .ops import FrozenStruct

# Words ---------------------------------------------------------------------------------------------------------------

_LONGEST = 64  # characters of a token; what is longer is cut
_CACHED, _CACHED_LENGTH = 1 << 16, 32  # words that are remembered, and how long these are at most

#: Words that say nothing of what a text is about. Of "I'm" and "they'll" only the first part counts.
_STOP_WORDS = frozenset(
    """
    a an the
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves
    this that these those here there
    who whom whose which what when where why how
    am is are was were be been being do does did doing done have has had having
    can could might must shall should will would ought
    and or but nor if then else than because as while until although though since unless so
    of at by for with about against between into through during before after above below to from up down in out on off
    over under upon within without toward towards among per via
    not no only own same such too very just also again further once ever both each few more most other some any all
    dont didnt doesnt isnt arent wasnt werent wont cant couldnt wouldnt shouldnt hasnt havent hadnt aint mustnt mightnt
    neednt shant oughtnt im ive youre theyre thats whats
    """.split()  # noqa: SIM905  # a list of 170 literals would be read by nobody
)
_ENDINGS = frozenset(("s", "d", "m", "ll", "re", "ve"))
_ELISIONS = frozenset(("l", "d", "c", "j", "m", "n", "s", "t", "qu", "dell", "nell", "all", "sull", "un"))

# What Unicode does not take apart, and what is dropped: accents and points, joiners, tatweel, soft hyphens.
_FOLDED = {"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ħ": "h", "ŧ": "t", "ı": "i"}
_FOLDED |= dict.fromkeys("\u2018\u2019\u02bc\u2032\uff07", "'")
_DROPPED = (
    "\u00ad\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f"
    "\u0670\u06d6-\u06dc\u200c\u200d\u2060\ufe00-\ufe0f\ufeff"
)
_FOLDING = f"[{''.join(_FOLDED)}{_DROPPED}]+"

# Scripts that write words without spaces between them; and Korean, whose spaces leave particles on the words.
_CHARACTERS = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\U00020000-\U0003ffff"
_KANA = "\u3041-\u3096\u309d\u309e\u30a1-\u30fa\u30fc-\u30fe\u3105-\u312f\u31f0-\u31ff"
_THAI = "\u0e01-\u0e2e\u0e30-\u0e3a\u0e40-\u0e4e\u0e81-\u0eb9\u0ebb-\u0ecd\u0edc-\u0edf"
_BURMESE = "\u1000-\u103f\u1050-\u109f\u1780-\u17d3\u17d7\u17dc\u17dd\ua9e0-\ua9fe\uaa60-\uaa7f"
_UNSPACED = _CHARACTERS + _KANA + _THAI + _BURMESE
# Vowel signs, which \w leaves out.
_MARKS = "\u0900-\u0963\u0971-\u0dff\u0f71-\u0f84\u0f90-\u0fbc\u07a6-\u07b0\u3099\u309a"
_WORDS = f"[\\w{_MARKS}{_UNSPACED}{_DROPPED}'{''.join(_FOLDED)}]+"
_PIECES = f"([{_UNSPACED}]+)|((?:(?![{_UNSPACED}])[\\w{_MARKS}'])+)"
_SINGLE = f"[{_CHARACTERS}]"
_compiled = cache(re.compile)  # when they are needed: that takes milliseconds, and most texts are ASCII
# Signs that English prose is full of: without them it is ASCII, which is several times as quick.
_SIGNS = [
    *zip("\u2018\u2019", "''", strict=True),
    *((sign, " ") for sign in "\u201c\u201d\u2013\u2014\u2026\u2022\xa0_"),
]
_ASCII = {number: chr(number).lower() if chr(number).isalnum() or chr(number) == "'" else " " for number in range(128)}


class _Cache(dict[str, str]):
    """What became of the words that were seen, several tokens with spaces between them; "" for none. It is bounded."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[str], Iterable[str]]) -> None:
        self._make = make

    def __missing__(self, word: str) -> str:
        made = " ".join(self._make(word))
        if len(word) <= _CACHED_LENGTH:
            if len(self) >= _CACHED:
                self.clear()
            self[word] = made
        return made


def tokens(text: str) -> list[str]:
    """What a text is found by, in order, each as often as it occurs."""
    return _made(text, _tokens) or _made(text, _words)


def words(text: str) -> list[str]:
    """The words of a text as phrases have them: stop words too, and of a script without spaces each character."""
    return _made(text, _words)


def _made(text: str, known: _Cache) -> list[str]:
    made = known.__getitem__
    if text.isascii():
        return list(filter(None, map(made, text.translate(_ASCII).split())))
    for sign, plain in _SIGNS:
        text = text.replace(sign, plain)
    if text.isascii():
        return _made(text, known)
    return " ".join(map(made, _compiled(_WORDS).findall(text.lower()))).split()


def _tokens_of(word: str) -> Iterator[str]:
    for run, other in _pieces(word):
        if other:
            if other not in _STOP_WORDS:
                yield _stem(other)
        elif len(run) == 1:
            yield run
        else:
            yield from map(add, run, run[1:])
            yield from _compiled(_SINGLE).findall(run)


def _words_of(word: str) -> Iterator[str]:
    for run, other in _pieces(word):
        if other:
            yield other if other in _STOP_WORDS else _stem(other)
        yield from run


_tokens, _words = _Cache(_tokens_of), _Cache(_words_of)


def _pieces(word: str) -> Iterator[tuple[str, str]]:
    """What a word is made of, without accents: runs of a script without spaces, and others; each with "" beside it."""
    if word.isascii():
        found = [("", word)]
    else:
        folded = unicodedata.normalize("NFKD", word).casefold()
        folded = _compiled(_FOLDING).sub(lambda run: "".join([_FOLDED.get(letter, "") for letter in run[0]]), folded)
        found = _compiled(_PIECES).findall(
            unicodedata.normalize("NFC", folded)
        )  # Korean and Indian scripts, put together again
    for run, other in found:
        plain = _without_apostrophes(other)[:_LONGEST]
        if run or plain:
            yield run, plain


def _without_apostrophes(word: str) -> str:
    """John's is John, l'eau is eau, O'Brien is obrien."""
    if "'" not in word:
        return word
    parts = [part for part in word.split("'") if part]
    if len(parts) > 1 and parts[-1] in _ENDINGS:
        parts.pop()
    if len(parts) > 1 and parts[0] in _ELISIONS:
        parts.pop(0)
    return "".join(parts)


def _stem(word: str) -> str:
    return _snowball().stem(word) if word.isascii() and word.isalpha() else word


class _Snowball(threading.local):  # a stemmer serves one thread at a time
    def __init__(self) -> None:
        import Stemmer

        self.stem: Callable[[str], str] = Stemmer.Stemmer("english", 0).stemWord  # without a cache of its own


@cache
def _snowball() -> _Snowball:
    return _Snowball()


# Queries -------------------------------------------------------------------------------------------------------------

# Not inches: what opens comes after no letter or digit, and none comes after what closes.
_QUOTED = re.compile('(?<![A-Za-z0-9])(?:"([^"]*)"|\u201c([^\u201d]*)\u201d)(?![A-Za-z0-9])')


class Query(FrozenStruct, frozen=True):
    """What to look for: any of the `terms`; in quotes, `phrases` that must occur word for word.

    `required` are those of the terms that each phrase has, so whatever has the phrases has them.
    """

    terms: tuple[str, ...]
    phrases: tuple[tuple[str, ...], ...] = ()
    required: tuple[str, ...] = ()


def parse(query: str) -> Query:
    """Whatever characters it has, a query is words and phrases: nothing in it can be an error or an operator."""
    terms = tuple(dict.fromkeys(tokens(query)))
    quoted = [straight or curly for straight, curly in _QUOTED.findall(query)]
    phrases = tuple(dict.fromkeys(phrase for text in quoted if (phrase := tuple(words(text)))))
    known = frozenset(terms)
    required = tuple(dict.fromkeys(token for text in quoted for token in tokens(text) if token in known))
    return Query(terms, phrases, required)


def has_phrases(query: Query, texts: Iterable[str]) -> bool:
    """Whether each of the phrases is in one of the texts."""
    missing = [" ".join(("", *phrase, "")) for phrase in query.phrases]
    if not missing:
        return True
    for text in texts:
        inside = " ".join(("", *words(text), ""))
        missing = [phrase for phrase in missing if phrase not in inside]
        if not missing:
            return True
    return False


# Scores --------------------------------------------------------------------------------------------------------------

# How soon another occurrence of a term adds nothing, and how much long documents pay for their length. Both are low,
# which is sound for short texts and long ones alike.
_K1, _B = 0.9, 0.4

#: Where a term occurs: the numbers of documents, and how often in each, at most 255 times.
Part: TypeAlias = "tuple[array[int], bytes]"


class _Weights(dict[tuple[int, int], float]):
    """What a term adds to a score, by how often it occurs in a document, and how many tokens that has."""

    __slots__ = ("_base", "_idf", "_slope")

    def __init__(self, found: int, count: int, average: float) -> None:
        self._idf = log(1 + (count - found + 0.5) / (found + 0.5))
        self._base, self._slope = _K1 * (1 - _B), _K1 * _B / average

    def __missing__(self, pair: tuple[int, int]) -> float:
        times, length = pair
        weight = self[pair] = self._idf * times / (times + self._base + self._slope * length)
        return weight


def bm25(
    terms: Iterable[Sequence[Part]],
    lengths: Sequence[int],
    count: int,
    total: int,
    gone: set[int] | frozenset[int] = frozenset(),
) -> dict[int, float]:
    """The score of each document that has one of the terms, of which the parts are given in the query's order.

    `lengths` says how many tokens a document has, `count` how many documents there are and `total` how many tokens they
    have in all, without those that are `gone`. A document is in one part of a term at most.
    """
    scores: dict[int, float] = {}
    left_out: set[int] = set()
    average = total / count if total > 0 and count > 0 else 1.0
    for each in terms:
        parts = [(documents.tolist(), times) for documents, times in each]
        found = sum(len(numbers) for numbers, _ in parts)
        if gone:
            old = set[int]().union(*(gone.intersection(numbers) for numbers, _ in parts))
            found -= len(old)
            left_out |= old
        weigh = _Weights(found, max(count, found), average).__getitem__
        is_first, before = not scores, scores.get
        for numbers, times in parts:  # millions of numbers, so what handles them is all in C
            added = map(weigh, zip(times, map(lengths.__getitem__, numbers), strict=True))
            summed = added if is_first else map(add, map(before, numbers, _ZEROS), added)
            scores.update(zip(numbers, summed, strict=True))
    for number in left_out:
        del scores[number]
    return scores


_ZEROS = repeat(0.0)


# Fusion --------------------------------------------------------------------------------------------------------------

#: How many of the best of each side are fused.
FUSED = 1000
_TEXT, _VECTOR = 0.6, 0.4  # what the sides weigh
_UNMATCHED = (0.0,) * 10


def fuse(lexical: Mapping[int, float], semantic: Mapping[int, float]) -> list[tuple[int, float]]:
    """The best `FUSED` by full text and the best `FUSED` by vectors as one ranking, with scores between 0 and 1.

    The scores of each side become standard ones (how far from their mean, in standard deviations), and their sum ranks.
    So it does not matter in which range a model's scores are, and a side counts for as much as its best stand out.
    What only one side has is taken for as good as the weakest of the other's. But where all that match a query's words
    are there, it has none of them and its score is 0; a few like it belong to the mean, so that a single match stands
    out, too.
    """
    is_whole = len(lexical) < FUSED
    by_text, no_text = _standard(lexical, _TEXT, _UNMATCHED if is_whole else ())
    by_vector, no_vector = _standard(semantic, _VECTOR)
    sums = {number: score + by_vector.get(number, no_vector) for number, score in by_text.items()}
    sums.update((number, no_text + score) for number, score in by_vector.items() if number not in sums)
    ranked = sorted(sums.items(), key=lambda item: (item[1], item[0]), reverse=True)
    return [(number, 1 / (1 + exp(-score))) for number, score in ranked]


def _standard(
    scores: Mapping[int, float], weight: float, others: tuple[float, ...] = ()
) -> tuple[dict[int, float], float]:
    """Standard scores, and the least of them. The sums are exact, in whichever order the scores are given."""
    if not scores:
        return {}, 0.0
    values = (*scores.values(), *others)
    mean = fsum(values) / len(values)
    deviation = sqrt(fsum((value - mean) * (value - mean) for value in values) / len(values))
    if deviation <= 1e-6 * max(map(abs, values)):  # nothing but what rounding left
        return dict.fromkeys(scores, 0.0), 0.0
    scale = weight / deviation
    return {number: (score - mean) * scale for number, score in scores.items()}, (min(values) - mean) * scale
