"""The text index: how often each token occurs in each document.

A document is the texts of an entry at one version; documents are numbered from 0. A changed entry becomes a new
document, and the old one is *removed*: it stays in the posting lists and is skipped. `TextIndex` is an index in memory.
Redis stores its posting lists, a slice of changes at a time (`engines/redis/search`). SQL engines store an index of
another format (`search/segments`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from ..model import field_paths, file_values
from ..model.values import decode
from .scoring import MOST_TIMES, Part
from .tokens import tokens

#: How many bytes of a file are indexed.
MOST_BYTES = 1 << 20

_Row = TypeVar("_Row", bound=Sequence[Any])


def texts(value: str, search_fields: str | None, content: bytes | None, is_file: bool) -> list[str]:
    """Return the searched texts of an entry: the strings of a value, or the text of a file.

    `search_fields` is a JSON list of paths, or None for all texts.
    """
    if search_fields == "[]":
        return []
    paths = field_paths.WHOLE if search_fields is None else field_paths.check_paths(decode(search_fields))
    if not is_file:
        return field_paths.find_strings(decode(value), paths)
    beginning = _cut_beginning(content or b"")
    if search_fields is not None:
        return field_paths.find_strings(file_values.to_item(value, beginning, 0, 0, False), paths)
    text = None if b"\x00" in beginning else file_values.to_text(beginning)
    return [] if text is None else [text]


def _cut_beginning(content: bytes) -> bytes:
    """The part of a file that is indexed, without an incomplete character at its end."""
    if len(content) < MOST_BYTES:
        return content
    cut = content[:MOST_BYTES]
    try:
        cut.decode()
    except UnicodeDecodeError as error:
        return cut[: error.start] if error.end == len(cut) and error.start > error.end - 4 else cut
    return cut


def size_of(row: Sequence[Any]) -> int:
    """Return about how many bytes a changed row has to index: those of a file, or of its value.

    Of SQL and of Redis, such a row begins with a version, a namespace, a key, a value and the size of a file.
    """
    _, _, _, value, size, *_ = row
    return size or len(value or "")


def take_first(rows: list[_Row], room: int) -> list[_Row]:
    """Return the first changed rows, at least one, that have about `room` bytes to index."""
    for index, row in enumerate(rows):
        room -= size_of(row)
        if room < 0:
            return rows[: index + 1]
    return rows


class TextIndex:
    """An index in memory; `first` is the number of its first document."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.postings: dict[str, tuple[array[int], bytearray]] = {}
        self.versions: array[int] = array("q")
        self.lengths: array[int] = array("I")

    def add(self, version: int, found: Iterable[str]) -> int | None:
        """Add a document with these texts; return its number, or None if it has no tokens."""
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
            part[1].append(times if times < MOST_TIMES else MOST_TIMES)  # noqa: FURB136  # `min` takes longer
        return number

    def list_length(self, term: str) -> int:
        """How many documents the list of a term has."""
        found = self.postings.get(term)
        return 0 if found is None else len(found[0])

    def count(self, term: str, number: int) -> int:
        """How often a document has a term."""
        found = self.postings.get(term)
        if found is None:
            return 0
        index = bisect_left(found[0], number)
        return found[1][index] if index < len(found[0]) and found[0][index] == number else 0

    def parts(self, term: str) -> list[Part]:
        """The posting lists of a term."""
        found = self.postings.get(term)
        return [] if found is None else [(found[0], bytes(found[1]))]
