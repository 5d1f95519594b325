"""The index of texts: which entry has which tokens how often.

A document is an entry's texts at one version; it has a number, counted from 0. What changes becomes a new document, and
the old one is *gone*: it stays in the lists, and is left out. `Texts` is such an index in memory; the SQL engines write
the same lists into tables, a slice at a time.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable

from . import fields, shapes
from .search import Part, tokens
from .values import decode

#: How much of a file is indexed.
MOST_BYTES = 1 << 20
_MOST_TIMES = 255


def texts(value: str, index: str | None, content: bytes | None, is_file: bool) -> list[str]:
    """The texts that an entry is found by: of a value its strings, of a file its text; `index` as `ops.Put` has it."""
    if index == "[]":
        return []
    paths = fields.WHOLE if index is None else fields.check_paths(decode(index))
    if not is_file:
        return fields.strings(decode(value), paths)
    beginning = _beginning(content or b"")
    if index is not None:
        return fields.strings(shapes.item(value, beginning, 0, 0, False), paths)
    text = None if b"\x00" in beginning else shapes.to_text(beginning)
    return [] if text is None else [text]


def _beginning(content: bytes) -> bytes:
    """As much of a file as is indexed, without the half of a character at its end."""
    if len(content) < MOST_BYTES:
        return content
    cut = content[:MOST_BYTES]
    try:
        cut.decode()
    except UnicodeDecodeError as error:
        return cut[: error.start] if error.end == len(cut) and error.start > error.end - 4 else cut
    return cut


class Texts:
    """An index in memory; `first` is the number of its first document."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.postings: dict[str, tuple[array[int], bytearray]] = {}
        self.versions: array[int] = array("q")
        self.lengths: array[int] = array("I")

    def add(self, version: int, found: Iterable[str]) -> int | None:
        """A document of these texts -> its number; None where there is nothing to be found by."""
        counts: Counter[str] = Counter()
        length = 0
        for text in found:
            taken = tokens(text)
            length += len(taken)
            counts.update(taken)
        if not counts:
            return None
        number = self.first + len(self.versions)
        self.versions.append(version)
        self.lengths.append(length)
        postings = self.postings
        for token, times in counts.items():
            part = postings.get(token)
            if part is None:
                part = postings[token] = array("I"), bytearray()
            part[0].append(number)
            part[1].append(times if times < _MOST_TIMES else _MOST_TIMES)  # noqa: FURB136  # `min` takes longer
        return number

    def parts(self, term: str) -> list[Part]:
        found = self.postings.get(term)
        return [] if found is None else [(found[0], bytes(found[1]))]
