"""The tokeniser: the words of a text, and of a query. It is the same for every engine, and touches no storage.

A word is lower-cased and loses its accents and, if it has only ASCII letters, its English ending (Snowball stemmer).
Stop words ("the", "who") are not indexed, except in a text that has no other words: so a note "The Who" is found by
that name. Scripts without spaces between words have no words to stem: their texts become overlapping pairs of
characters; Chinese and Korean texts also become single characters.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from operator import add
from typing import Any

from ..ops import FrozenStruct

# Words ---------------------------------------------------------------------------------------------------------------

_LONGEST = 64  # characters of a token; longer ones are cut
_CACHED, _CACHED_LENGTH = 1 << 16, 32  # the most cached words, and the longest of them

#: Words that do not describe the content of a text. Of "I'm" and "they'll" only the first part counts.
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

# Letters that Unicode does not decompose, and characters that are dropped: accents, joiners, tatweel, soft hyphens.
_FOLDED = {"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ħ": "h", "ŧ": "t", "ı": "i"}
_FOLDED |= dict.fromkeys("\u2018\u2019\u02bc\u2032\uff07", "'")
_DROPPED = (
    "\u00ad\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f"
    "\u0670\u06d6-\u06dc\u200c\u200d\u2060\ufe00-\ufe0f\ufeff"
)
_FOLDING = f"[{''.join(_FOLDED)}{_DROPPED}]+"

# Scripts without spaces between words; and Korean, whose words keep their particles.
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
_compiled = cache(re.compile)  # on first use: compiling takes milliseconds, and most texts are ASCII
# Frequent signs in English texts. Without them the text is ASCII, which is several times as fast.
_SIGNS = [
    *zip("\u2018\u2019", "''", strict=True),
    *((sign, " ") for sign in "\u201c\u201d\u2013\u2014\u2026\u2022\xa0_"),
]
#: What an ASCII character is in a word: a lower-case letter, a digit or an apostrophe. The others are between words.
ASCII_WORDS = {
    number: chr(number).lower() if chr(number).isalnum() or chr(number) == "'" else " " for number in range(128)
}


class _Cache(dict[str, str]):
    """A bounded cache: the tokens of a word, separated by spaces; "" for none."""

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
    """The tokens of a text, in order, each as often as it occurs."""
    return _tokenise(text, _tokens) or _tokenise(text, _words)


def words(text: str) -> list[str]:
    """The words of a text for phrases: with stop words, and each character of a script without spaces."""
    return _tokenise(text, _words)


class Numbering:
    """The numbers of terms in one index, as far as they are known, and of the words that become those terms.

    So one look-up leads from a word to the number of its term. Numbers start at 1; 0 is the number of a stop word.
    """

    def __init__(self) -> None:
        self.terms: dict[str, int] = {}
        self._words: dict[str, int] = {}

    def tokens(self, text: str) -> list[int | str]:
        """`tokens`, with the number of each token, or the token itself if its number is not known."""
        if not text.isascii():
            return [self.terms.get(token, token) for token in tokens(text)]
        words = text.translate(ASCII_WORDS).split()
        found: list[int | str | None] = list(map(self._words.get, words))
        if None in found:
            found = [
                self._remember(word) if number is None else number for word, number in zip(words, found, strict=True)
            ]
        return list(filter(None, found)) or [*_tokenise(text, _words)]

    def tokenise(self, texts: Sequence[str]) -> list[Sequence[Any]]:
        """`tokens` of each text. With numpy, those of a text whose numbers are all known are an array."""
        return [self.tokens(text) for text in texts]

    def look_up(self, word: str) -> int | str:
        """Return the number of an ASCII word in lower case, or its token if that has no number that is known."""
        token = _tokens[word]
        number = self.terms.get(token) if token else 0
        return token if number is None else number

    def _remember(self, word: str) -> int | str:
        number = self.look_up(word)
        if isinstance(number, int) and len(word) <= _CACHED_LENGTH:
            if len(self._words) >= 2 * _CACHED:
                self._words.clear()
            self._words[word] = number
        return number

    def learn(self, numbers: Iterable[tuple[str, int]]) -> None:
        """Remember the numbers of terms."""
        if len(self.terms) >= 2 * _CACHED:
            self.terms.clear()
        self.terms.update(numbers)


def _tokenise(text: str, known: _Cache) -> list[str]:
    look_up = known.__getitem__
    if text.isascii():
        return list(filter(None, map(look_up, text.translate(ASCII_WORDS).split())))
    for sign, plain in _SIGNS:
        text = text.replace(sign, plain)
    if text.isascii():
        return _tokenise(text, known)
    return " ".join(map(look_up, _compiled(_WORDS).findall(text.lower()))).split()


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
    """Split a word, without accents, into (run, "") for a script without spaces, and ("", other)."""
    if word.isascii():
        found = [("", word)]
    else:
        folded = unicodedata.normalize("NFKD", word).casefold()
        folded = _compiled(_FOLDING).sub(lambda run: "".join([_FOLDED.get(letter, "") for letter in run[0]]), folded)
        found = _compiled(_PIECES).findall(
            unicodedata.normalize("NFC", folded)
        )  # composes Korean and Indian scripts again
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

        self.stem: Callable[[str], str] = Stemmer.Stemmer("english", 0).stemWord  # without its own cache


@cache
def _snowball() -> _Snowball:
    return _Snowball()


# Queries -------------------------------------------------------------------------------------------------------------

# An opening quote does not follow a letter or digit, where it may mean inches; a closing one does not precede them.
_QUOTED = re.compile('(?<![A-Za-z0-9])(?:"([^"]*)"|\u201c([^\u201d]*)\u201d)(?![A-Za-z0-9])')


class Query(FrozenStruct, frozen=True):
    """A parsed query: any of the `terms`, and all of the `phrases`, which were in quotes."""

    terms: tuple[str, ...]
    phrases: tuple[tuple[str, ...], ...] = ()


@lru_cache(maxsize=32)  # an engine parses the query of an op wherever it needs it
def parse_query(query: str) -> Query:
    """Parse a query into words and phrases. There are no operators and no syntax errors."""
    terms = tuple(dict.fromkeys(tokens(query)))
    quoted = [straight or curly for straight, curly in _QUOTED.findall(query)]
    phrases = tuple(dict.fromkeys(phrase for text in quoted if (phrase := tuple(words(text)))))
    return Query(terms, phrases)


def has_phrases(query: Query, texts: Iterable[str]) -> bool:
    """Whether each phrase of the query is in one of the texts."""
    missing = [" ".join(("", *phrase, "")) for phrase in query.phrases]
    if not missing:
        return True
    for text in texts:
        inside = " ".join(("", *words(text), ""))
        missing = [phrase for phrase in missing if phrase not in inside]
        if not missing:
            return True
    return False


_LETTERS = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")


def find_words(query: str, text: str) -> list[tuple[int, int]]:
    """Return where the words of a query are in a text: their first characters, and those after their last."""
    terms = set(parse_query(query).terms)
    found: list[tuple[int, int]] = []
    for match in _LETTERS.finditer(text):
        word, start = match[0], match.start()
        if _compiled(f"[{_UNSPACED}]").search(word) is None:
            if not terms.isdisjoint(tokens(word)):
                found.append(match.span())
            continue
        pairs = [at for at in range(len(word)) if word[at : at + 2] in terms or word[at] in terms]
        for at in pairs:
            end = start + at + (2 if word[at : at + 2] in terms else 1)
            if found and found[-1][1] >= start + at:
                found[-1] = found[-1][0], max(end, found[-1][1])
            else:
                found.append((start + at, end))
    return found
