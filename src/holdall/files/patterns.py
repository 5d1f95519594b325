"""Patterns of `Files.grep`: texts and regular expressions, which it finds in the lines of files."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

import regex

from ..errors import InvalidInput, shown
from .texts import split_lines

_SECONDS = 5.0  # the most time for one regular expression, over all files
_LONGEST_PATTERN = 10_000  # characters; compiling takes 5 to 10 us for each
_MOST_PARTS = 50_000  # parts of a pattern with its repetitions expanded, of about 250 bytes each
_MOST_STEPS = 5_000_000_000  # characters of a pattern times those of a line: inside a set, no time limit is checked
_LONGEST_LINE = 1 << 18  # characters, if a group repeats: `regex` keeps 100 to 400 bytes for each repetition


class LineMatcher:
    """Finds the lines of files that contain a text, or match a regular expression.

    `literals` are texts that each such line contains. An index uses them to select files.
    """

    def __init__(self, pattern: str, is_regex: bool, ignore_case: bool) -> None:
        if not isinstance(pattern, str):
            raise InvalidInput(f"grep takes a str, not {type(pattern).__name__} {shown(pattern, 80)}")
        if not pattern.isascii() and any("\ud800" <= letter <= "\udfff" for letter in pattern):
            raise InvalidInput(f"lone surrogates are not text, and in no file: {pattern!r:.80}")
        self._pattern = pattern
        self._left = _SECONDS
        self._plain = not is_regex and not ignore_case
        self._compiled: Any = None
        self._end: int | None = None  # where the search in a line ends
        self.literals: tuple[str, ...] = ()
        if not is_regex:
            self.literals = (pattern,) if pattern else ()
        if not self._plain:
            self._compiled = _regex(pattern, is_regex, ignore_case)
            if is_regex:
                self.literals = _required_literals(pattern)
                self._end = _LONGEST_LINE if re.search(r"\)[*+{]", _without_escapes(pattern)) else None

    @property
    def may_take_long(self) -> bool:
        """Whether it may block an event loop for too long."""
        return not self._plain

    def find_all(self, files: Iterable[tuple[str, bytes]]) -> list[tuple[str, int, str]]:
        """Find the matching lines of several files: their paths, numbers and texts."""
        return [(path, number, line) for path, content in files for number, line in self.find(path, content)]

    def find(self, path: str, content: bytes) -> Iterator[tuple[int, str]]:
        """Find the matching lines of a file, with their numbers. A file that is not text has none."""
        if self._plain and self._pattern.encode(errors="replace") not in content:
            return
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return
        for number, line in enumerate(split_lines(text), 1):
            if self._pattern in line if self._plain else self._matches(path, line):
                yield number, line

    def _matches(self, path: str, line: str) -> bool:
        began = time.monotonic()
        try:
            if self._left <= 0 or len(self._pattern) * len(line) > _MOST_STEPS:
                raise TimeoutError
            return self._compiled.search(line, 0, self._end, timeout=self._left, concurrent=True) is not None
        except TimeoutError:
            raise InvalidInput(
                f"the regular expression {self._pattern!r:.80} takes more than {_SECONDS:g} s, at {path!r}: simplify"
                " it (nested repetitions take long), or select fewer files"
            ) from None
        except MemoryError:
            raise InvalidInput(
                f"the regular expression {self._pattern!r:.80} takes too much memory, at {path!r}: simplify it"
            ) from None
        finally:
            self._left -= time.monotonic() - began


def _regex(pattern: str, is_regex: bool, ignore_case: bool) -> Any:
    if len(pattern) > _LONGEST_PATTERN:
        raise InvalidInput(
            f"a regular expression, or a text in any case, has at most {_LONGEST_PATTERN} characters, not"
            f" {len(pattern)}: {pattern!r:.80}; search for its parts one by one"
        )
    if is_regex:
        _check_cost(pattern)
    try:
        return regex.compile(
            pattern if is_regex else regex.escape(pattern, literal_spaces=True),
            regex.IGNORECASE if ignore_case else 0,
        )
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        raise InvalidInput(f"not a regular expression: {pattern!r:.80}: {error}") from None


# Calls of groups, which may recurse; and the flag x (comments and spaces), which could hide a count.
_REFUSED = re.compile(r"\(\?(?:R\)|[+-]?[0-9]+\)|&|P[>&]|[\w-]*x[\w-]*[:)])")
_COUNTED = re.compile(r"(.?)\{([0-9]+)")


def _check_cost(pattern: str) -> None:
    """Refuse a pattern that takes long to compile, or much memory: compiling cannot be stopped.

    `regex` expands a minimum count: `(?:a{1000}){1000}` has a million parts. This does not check which counts contain
    which others: a count after a group is taken to repeat the whole pattern.
    """
    bare = _without_escapes(pattern)
    if refused := _REFUSED.search(bare):
        raise InvalidInput(
            f"a regular expression cannot call groups or have the flag x here, as {refused[0]!r} does: {pattern!r:.80}"
        )
    parts, times = len(pattern), 1
    for before, digits in _COUNTED.findall(bare):
        count = int(digits.lstrip("0")[:9] or 0)
        if before in (")", "}", ""):
            times *= max(count, 1)
        else:
            parts += count
    if parts * times > _MOST_PARTS:
        raise InvalidInput(
            f"a regular expression repeats too much: {pattern!r:.80} stands for up to {parts * times} parts, and"
            f" {_MOST_PARTS} are possible; use smaller counts in {{}}, or + and *"
        )


def _without_escapes(pattern: str) -> str:
    """Replace each escaped character of a pattern by a letter."""
    return re.sub(r"\\.", "a", pattern, flags=re.DOTALL)


def _required_literals(pattern: str) -> tuple[str, ...]:
    """Return texts that every match contains: only the plain beginning of a pattern, or nothing if unsure."""
    plain = re.match(r"[A-Za-z0-9 _\-/:=,;'\"<>@#%&~`!]*", pattern)
    assert plain is not None
    text = plain[0]
    if "|" in pattern or "(?" in pattern or "[[" in pattern:
        return ()
    if len(text) < len(pattern) and pattern[len(text)] in "*?{":  # the last character is optional
        text = text[:-1]
    return (text,) if text else ()
