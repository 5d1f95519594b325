"""What the sections store: memories of about 1 KB, the same for every contender."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

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


#: A text that three of the `files` contain, made of letters and words like all the others.
RARE_TEXT = "stone lantern"
RARE_IN = (7, 503, 911)
IN_A_FOLDER = 20


def folder_of(number: int) -> str:
    """Where a file is: 20 to a folder, 50 of these folders to a folder of their own."""
    folder = number // IN_A_FOLDER
    return f"/area-{folder // 50:03}/topic-{folder % 50:02}"


def files(count: int) -> list[tuple[str, str]]:
    """Paths and texts of 1 KB; fewer files are the first of more."""
    made, prose = random.Random(11), _PROSE.replace(RARE_TEXT, "")
    found = []
    for number in range(count):
        start = made.randrange(len(prose) - 1100)
        words = prose[start : start + 1000].split(" ")
        if number in RARE_IN:
            words[40] = RARE_TEXT
        lines = [" ".join(words[place : place + 12]) for place in range(0, len(words), 12)]
        found.append((f"{folder_of(number)}/note-{number % IN_A_FOLDER:02}.md", "\n".join(lines) + "\n"))
    return found


def as_item(text: str) -> dict[str, str]:
    """A file in the shape that deepagents stores."""
    time = "2026-01-01T00:00:00+00:00"
    return {"content": text, "encoding": "utf-8", "created_at": time, "modified_at": time}


def words_of(count: int) -> list[str]:
    """So many words of one to four syllables, none of them twice."""
    chance = random.Random(5)
    syllables = [
        "".join(pair) for pair in itertools.product("bcdfghklmnprstvwz", ("a", "e", "i", "o", "u", "ai", "ou"))
    ]
    words: dict[str, None] = {}
    while len(words) < count:
        word = "".join(chance.choices(syllables, k=chance.choice((1, 2, 2, 3, 3, 4)))) + chance.choice(("", "n", "r"))
        words[word] = None
    return list(words)


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


#: How far the vectors of a cluster are from its centre, in parts of the length of a centre.
_SPREAD = 0.5
_CHUNK = 10_000


def clustered_vectors(
    count: int, dims: int, clusters: int = 10_000, seed: int = 7
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Make seeded vectors in Gaussian clusters, in random order: for measurements of recall.

    Fewer vectors are the first of more. So the last of them can serve as queries for those before.
    """
    import numpy as np

    centres = np.random.default_rng(seed).standard_normal((clusters, dims), dtype=np.float32)
    vectors = np.empty((count, dims), np.float32)
    for start in range(0, count, _CHUNK):  # each chunk has a generator of its own, and is made whole
        chance = np.random.default_rng((seed, start))
        chunk = chance.standard_normal((_CHUNK, dims), dtype=np.float32) * np.float32(_SPREAD)
        chunk += centres[chance.integers(0, clusters, _CHUNK)]
        vectors[start : start + _CHUNK] = chunk[: count - start]
    return vectors
