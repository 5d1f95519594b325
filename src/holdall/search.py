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
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import repeat
from math import exp, fsum, log, sqrt
from operator import add
from typing import TypeAlias

# Words ---------------------------------------------------------------------------------------------------------------

_LONGEST = 64  # characters of a token; what is longer is cut
_CACHED = 1 << 16  # words whose stems are remembered

#: Words that say nothing of what a text is about. Contractions are known by their parts.
_STOP_WORDS = frozenset(
    """
    a an the
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves one
    this that these those here there
    who whom whose which what when where why how
    am is are was were be been being do does did doing done have has had having
    can could may might must shall should will would ought
    and or but nor if then else than because as while until although though since unless so
    of at by for with about against between into through during before after above below to from up down in out on off
    over under upon within without toward towards among per via
    not no yes only own same such too very just also again further once ever both each few more most other some any all
    dont didnt doesnt isnt arent wasnt werent wont cant couldnt wouldnt shouldnt hasnt havent hadnt im ive youre theyre
    thats whats
    """.split()  # noqa: SIM905  # a list of 170 literals would be read by nobody
)
_ENDINGS = frozenset(("s", "d", "m", "t", "ll", "re", "ve"))
_ELISIONS = frozenset(("l", "d", "c", "j", "m", "n", "s", "t", "qu", "dell", "nell", "all", "sull", "un"))

# Letters that Unicode does not take apart, apostrophes, and what is dropped: accents and points, joiners, tatweel.
_FOLDED = {"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ħ": "h", "ŧ": "t", "ı": "i"}
_FOLDED |= dict.fromkeys("\u2018\u2019\u02bc\u2032", "'")
_FOLDING = re.compile(
    f"[{''.join(_FOLDED)}"
    "\u00ad\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f"
    "\u0670\u06d6-\u06dc\u200c\u200d\u2060\ufe00-\ufe0f\ufeff]+"
)

# Scripts that write words without spaces between them; and Korean, whose spaces leave particles on the words.
_WHOLE = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\U00020000-\U0003ffff"
_KANA = "\u3041-\u3096\u309d\u309e\u30a1-\u30fa\u30fc-\u30fe\u3105-\u312f\u31f0-\u31ff"
_THAI = "\u0e01-\u0e2e\u0e30-\u0e3a\u0e40-\u0e4e\u0e81-\u0eb9\u0ebb-\u0ecd\u0edc-\u0edf"
_BURMESE = "\u1000-\u103f\u1050-\u109f\u1780-\u17d3\u17d7\u17dc\u17dd\ua9e0-\ua9fe\uaa60-\uaa7f"
_UNSPACED = _WHOLE + _KANA + _THAI + _BURMESE
# Letters and digits, and the vowel signs of Indian scripts, Tibetan and Thaana, which Python's \w is not.
_LETTER = "[^\\W_" + _UNSPACED + "]|[\u0900-\u0963\u0971-\u0dff\u0f71-\u0f84\u0f90-\u0fbc\u07a6-\u07b0]"
_WORDS = re.compile(f"(?:{_LETTER})+(?:'(?:{_LETTER})+)*|[{_UNSPACED}]+")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]").match
_IS_WHOLE = re.compile(f"[{_WHOLE}]").match
_ASCII = {number: chr(number).lower() if chr(number).isalnum() or chr(number) == "'" else " " for number in range(128)}


class _Stems(dict[str, str]):
    """The token of each word that was seen; "" for a stop word. Bounded: it starts again when it is full."""

    def __missing__(self, word: str) -> str:
        token = _token(word)
        if len(word) <= _LONGEST:
            if len(self) >= _CACHED:
                self.clear()
            self[word] = token
        return token


_stems = _Stems()
_stem: Callable[[str], str] | None = None


def tokens(text: str) -> list[str]:
    """What a text is found by, in order, each as often as it occurs."""
    if text.isascii():
        found = text.translate(_ASCII).split()
        return list(filter(None, map(_stems.__getitem__, found))) or [word for word in map(_plain, found) if word]
    folded = _folded(text)
    if folded.isascii():
        return tokens(folded)
    found = _WORDS.findall(folded)
    taken: list[str] = []
    for word in found:
        if word.isascii() or not _IS_UNSPACED(word):
            if token := _stems[word]:
                taken.append(token)
        else:
            taken += _pairs(word)
    return taken or [word for word in map(_plain, found) if word]


def words(text: str) -> list[str]:
    """The words of a text as a phrase has them: stop words too, and of a script without spaces each character."""
    folded = text if text.isascii() else _folded(text)
    if folded.isascii():
        return [token for word in folded.translate(_ASCII).split() if (token := _stems[word] or _plain(word))]
    taken: list[str] = []
    for word in _WORDS.findall(folded):
        if word.isascii() or not _IS_UNSPACED(word):
            taken.append(_stems[word] or _plain(word))
        else:
            taken += word
    return taken


def _folded(text: str) -> str:
    """In lower case, without accents. What has to be composed (Korean, Indian scripts) is, in the end."""
    folded = unicodedata.normalize("NFKD", text).casefold()
    folded = _FOLDING.sub(lambda found: "".join([_FOLDED.get(letter, "") for letter in found[0]]), folded)
    return folded if folded.isascii() else unicodedata.normalize("NFC", folded)


def _plain(word: str) -> str:
    return word.replace("'", "")[:_LONGEST]


def _pairs(run: str) -> list[str]:
    if len(run) == 1:
        return [run]
    pairs = [run[place : place + 2] for place in range(len(run) - 1)]
    return pairs + [letter for letter in run if _IS_WHOLE(letter)]


def _token(word: str) -> str:
    if "'" in word:
        parts = [part for part in word.split("'") if part]
        if len(parts) > 1 and parts[-1] in _ENDINGS:
            if parts[-1] == "t":  # don't, isn't: nothing but words that stop words are made of
                return ""
            parts.pop()
        if len(parts) > 1 and parts[0] in _ELISIONS:
            parts.pop(0)
        word = "".join(parts)
    if word in _STOP_WORDS:
        return ""
    if word.isascii() and word.isalpha() and len(word) <= _LONGEST:
        return _snowball()(word)
    return word[:_LONGEST]


def _snowball() -> Callable[[str], str]:
    global _stem
    if _stem is None:
        import Stemmer

        _stem = Stemmer.Stemmer("english", 0).stemWord  # without its own cache; its C code keeps the GIL
    return _stem


# Queries -------------------------------------------------------------------------------------------------------------

_QUOTED = re.compile('"([^"]*)"|\u201c([^\u201d]*)\u201d')


@dataclass(frozen=True, slots=True)
class Query:
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
    gone: AbstractSet[int] = frozenset(),
) -> dict[int, float]:
    """The score of each document that has one of the terms, of which the parts are given in the query's order.

    `lengths` says how many tokens a document has, `count` how many documents there are and `total` how many tokens they
    have in all, without those that are `gone`. A document is in one part of a term at most.
    """
    scores: dict[int, float] = {}
    average = total / count if total > 0 and count > 0 else 1.0
    for each in terms:
        parts = [_without(part, gone) for part in each] if gone else each
        found = sum(len(documents) for documents, _ in parts)
        weigh = _Weights(found, max(count, found), average).__getitem__
        is_first, before = not scores, scores.get
        for documents, times in parts:
            numbers = documents.tolist()
            added = map(weigh, zip(times, map(lengths.__getitem__, numbers), strict=True))  # all of it runs in C
            scores.update(
                zip(numbers, added if is_first else map(add, map(before, numbers, _ZEROS), added), strict=True)
            )
    return scores


_ZEROS = repeat(0.0)


def _without(part: Part, gone: AbstractSet[int]) -> Part:
    documents, times = part
    if gone.isdisjoint(documents):
        return part
    kept = [place for place, document in enumerate(documents) if document not in gone]
    return array("I", [documents[place] for place in kept]), bytes([times[place] for place in kept])


# Fusion --------------------------------------------------------------------------------------------------------------

#: How many of the best of each side are fused.
FUSED = 1000
_TEXT, _VECTOR = 0.6, 0.4  # what the sides weigh
_UNMATCHED = (0.0,) * 10


def fuse(lexical: Mapping[int, float], semantic: Mapping[int, float]) -> list[tuple[int, float]]:
    """The best `FUSED` by full text and the best `FUSED` by vectors as one ranking, with scores between 0 and 1.

    The scores of each side become standard ones (how far from their mean, in standard deviations), and their sum ranks.
    So it does not matter in which range a model's scores are, and a side counts for as much as its best stand out.
    What only one side has is taken for as good as the weakest of the other's. Where all that matched a query's words
    are there, it did not match: then it is half as good, and a few like it belong to the mean, so that a single match
    stands out.
    """
    is_whole = len(lexical) < FUSED
    by_text, no_text = _standard(lexical, _TEXT, _UNMATCHED if is_whole else (), 0.5 if is_whole else 1.0)
    by_vector, no_vector = _standard(semantic, _VECTOR)
    sums = {number: score + by_vector.get(number, no_vector) for number, score in by_text.items()}
    sums.update((number, no_text + score) for number, score in by_vector.items() if number not in sums)
    ranked = sorted(sums.items(), key=lambda item: (item[1], item[0]), reverse=True)
    return [(number, 1 / (1 + exp(-score))) for number, score in ranked]


def _standard(
    scores: Mapping[int, float], weight: float, others: tuple[float, ...] = (), least: float = 1.0
) -> tuple[dict[int, float], float]:
    """Standard scores, and that of what is missing. The sums are exact, in whichever order the scores are given."""
    if not scores:
        return {}, 0.0
    values = (*scores.values(), *others)
    mean = fsum(values) / len(values)
    deviation = sqrt(fsum((value - mean) * (value - mean) for value in values) / len(values))
    if deviation <= 1e-6 * max(map(abs, values)):  # nothing but what rounding left
        return dict.fromkeys(scores, 0.0), 0.0
    scale = weight / deviation
    missing = (min(scores.values()) * least - mean) * scale
    return {number: (score - mean) * scale for number, score in scores.items()}, missing
