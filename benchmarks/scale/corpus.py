"""The texts: values of 120 words in the namespaces of many users, and in one large namespace."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from ..data import Item, words_of

#: A namespace, and what is asked there.
Question: TypeAlias = tuple[tuple[str, ...], str]

WORDS, ASKED_WORDS = 120, 6
USERS, LARGE = 10_000, 10_000
ARCHIVE = ("archive",)
#: Of so many values of the field `day` each entry has one; those of a day were written one after the other.
DAYS = 1_000
_VOCABULARY = 60_000
_SLOTS = 1 << 22


class Corpus:
    """So many entries of users, and a tenth of them more, at most 10,000, in one namespace: `ARCHIVE`.

    All texts are in memory, so that making them takes no part in what is measured.
    """

    def __init__(self, count: int) -> None:
        self.large = min(LARGE, count // 10)
        self.users = min(USERS, count // 10)
        self.each = count // self.users
        self._step = count // self.large + 1
        self.texts = list(make_texts(count + self.large))
        self._chance = random.Random(3)

    def __len__(self) -> int:
        return len(self.texts)

    def namespace(self, number: int) -> tuple[str, ...]:
        if number % self._step == 0:
            return ARCHIVE
        return user((number - number // self._step - 1) % self.users)

    def items(self) -> Iterator[Item]:
        """Entries in the order in which they are written: users take turns."""
        for number, text in enumerate(self.texts):
            yield self.namespace(number), str(number), {"text": text, "day": number * DAYS // len(self.texts)}

    def items_in(self, namespace: tuple[str, ...]) -> list[Item]:
        return [item for item in self.items() if item[0] == namespace]

    def questions(self, count: int) -> list[Question]:
        """Six words of some text, with the namespace that it is in. Common words are as common as in texts."""
        numbers = (self._chance.randrange(len(self.texts)) for _ in itertools.count())
        some = (number for number in numbers if number % self._step)
        return [(self.namespace(number), self.words(number)) for number in itertools.islice(some, count)]

    def large_questions(self, count: int) -> list[Question]:
        numbers = self._chance.sample(range(self.large), count)
        return [(ARCHIVE, self.words(number * self._step)) for number in numbers]

    def questions_in(self, items: list[Item], count: int) -> list[Question]:
        """The same in one namespace, given its entries."""
        some = self._chance.choices(items, k=count)
        return [(namespace, self.words(int(key))) for namespace, key, _ in some]

    def words(self, number: int) -> str:
        return " ".join(self._chance.sample(self.texts[number].split(), ASKED_WORDS))


def user(number: int) -> tuple[str, ...]:
    return ("users", f"u{number}")


def make_texts(count: int, words: int = WORDS) -> Iterator[str]:
    """Texts whose word in place n is about n times rarer than the first: as in English, without its stop words."""
    chance: Any = np.random.default_rng(9)
    vocabulary = words_of(_VOCABULARY)
    shares = 1 / (np.arange(len(vocabulary)) + 2.7)
    slots = np.repeat(np.arange(len(vocabulary), dtype=np.int32), np.ceil(shares / shares.sum() * _SLOTS).astype(int))
    for start in range(0, count, 10_000):
        rows = slots[chance.integers(0, len(slots), (min(10_000, count - start), words))].tolist()
        yield from (" ".join([vocabulary[place] for place in row]) for row in rows)
