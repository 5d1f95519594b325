"""What the sections store: memories of about 1 KB, the same for every contender."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any, TypeAlias

Item: TypeAlias = tuple[tuple[str, ...], str, dict[str, Any]]

RANDOM = random.Random(7)
_PROSE = " ".join("".join(RANDOM.choices("etaoinshrdlu", k=RANDOM.randint(2, 9))) for _ in range(20_000))

#: Fields that ten of `among_many` have with a value of their own, and that value.
RARE = (("kind", "recipe"), ("topic", "sailing"), ("rank", 12345))
MANY, SPACES = 100_000, 10_000


def memory_of(number: int) -> dict[str, Any]:
    """A memory of about 1 KB."""
    start = RANDOM.randrange(len(_PROSE) - 1000)
    return {
        "kind": f"kind-{number % 7}",
        "topic": f"topic-{number % 11}",
        "rank": number % 1000,
        "text": _PROSE[start : start + 950],
    }


def new_keys() -> Iterator[str]:
    return (f"key-{number}" for number in itertools.count())


def among_many() -> tuple[list[Item], dict[str, set[str]]]:
    """100,000 items in 10,000 namespaces, written in turns, and the keys of the ten that have each of the `RARE`."""
    wanted: dict[str, set[str]] = {field: set() for field, _ in RARE}
    items: list[Item] = []
    for number in range(MANY):
        space = number % SPACES
        item = (("users", f"user-{space // 100:02}", f"thread-{space % 100:02}"), f"key-{number}", memory_of(number))
        if space < len(RARE):
            field, value = RARE[space]
            item[2][field] = value
            wanted[field].add(item[1])
        items.append(item)
    return items, wanted


#: The namespaces of `among_many`, cut to two labels, and whole.
USERS = [("users", f"user-{number:02}") for number in range(100)]
THREADS = [(*user, f"thread-{number:02}") for user in USERS for number in range(100)]
