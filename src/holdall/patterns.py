"""What `Files.glob` and `Files.grep` look for: patterns of paths, and texts in lines."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import regex
from wcmatch import glob as wcglob

from .errors import InvalidInput, shown
from .files import split_lines

_FLAGS = wcglob.GLOBSTAR | wcglob.BRACE | wcglob.FORCEUNIX
_MAGIC = re.compile(r"[*?\[\]{}!\\]")
_SECONDS = 5.0  # that a regular expression may take, in all

# Paths ---------------------------------------------------------------------------------------------------------------


def glob(pattern: str, folder: str) -> tuple[str, Callable[[str], bool]]:
    """The folder below which all matches are, and whether a path in it matches."""
    if not isinstance(pattern, str) or not pattern:
        raise InvalidInput(f"a glob is a str such as '*.md' or 'notes/**/*.md', not {shown(pattern)}")
    if ".." in re.split(r"[/{},]", pattern):
        raise InvalidInput(f"a glob cannot contain '..': {shown(pattern)}")
    if "/" not in pattern:
        name = _compiled(pattern)
        return folder, lambda path: name(path[path.rindex("/") + 1 :])
    labels = [label for label in pattern.split("/") if label not in ("", ".")]
    if not labels:
        raise InvalidInput(f"a glob names files; {shown(pattern)} names a folder")
    while len(labels) > 1 and not _MAGIC.search(labels[0]):  # plain folders bound where to look
        folder += labels.pop(0) + "/"
    whole = _compiled("/".join(labels))
    start = len(folder)
    return folder, lambda path: whole(path[start:])


def chooses(pattern: str, path: str) -> bool:
    """Whether a file would be found in its own folder."""
    folder, matches = glob(pattern, path[: path.rindex("/") + 1])
    return path.startswith(folder) and matches(path)


@lru_cache(maxsize=256)  # models ask for the same ones again and again
def _compiled(pattern: str) -> Callable[[str], bool]:
    try:
        included, _ = wcglob.translate(pattern, flags=_FLAGS)
    except Exception as error:  # its own for too many braces, and whatever else it makes of a pattern
        raise InvalidInput(f"not a glob, or one that stands for too many: {shown(pattern)}: {error}") from None
    found = [re.compile(one).fullmatch for one in included]
    if len(found) == 1:
        first = found[0]
        return lambda path: first(path) is not None
    return lambda path: any(one(path) is not None for one in found)


# Lines ---------------------------------------------------------------------------------------------------------------


class Lines:
    """Finds the lines of files that contain a text, or match a regular expression.

    `literals` are texts that each such line contains, so that an index can say where to look.
    """

    def __init__(self, pattern: str, is_regex: bool, ignore_case: bool) -> None:
        if not isinstance(pattern, str):
            raise InvalidInput(f"grep looks for a str, not {type(pattern).__name__} {shown(pattern, 80)}")
        if not pattern.isascii() and any("\ud800" <= letter <= "\udfff" for letter in pattern):
            raise InvalidInput(f"lone surrogates are not text, and in no file: {pattern!r:.80}")
        self._pattern = pattern
        self._left = _SECONDS
        self._plain = not is_regex and not ignore_case
        self._compiled: Any = None
        self.literals: tuple[str, ...] = ()
        if not is_regex:
            self.literals = (pattern,) if pattern else ()
        if not self._plain:
            self._compiled = _regex(pattern, is_regex, ignore_case)
            if is_regex:
                self.literals = _required(pattern)

    @property
    def may_take_long(self) -> bool:
        """Whether an event loop should not wait for it."""
        return not self._plain

    def of_all(self, files: Iterable[tuple[str, bytes]]) -> list[tuple[str, int, str]]:
        """Paths, numbers and texts of the matching lines of several files."""
        return [(path, number, line) for path, content in files for number, line in self.of(path, content)]

    def of(self, path: str, content: bytes) -> Iterator[tuple[int, str]]:
        """The matching lines of a file and their numbers; none of one that is not text."""
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
            if self._left <= 0:
                raise TimeoutError
            return self._compiled.search(line, timeout=self._left, concurrent=True) is not None
        except TimeoutError:
            raise InvalidInput(
                f"the regular expression {self._pattern!r:.80} takes more than {_SECONDS:g} s, at {path!r}: say it more"
                " simply (nested repetitions are what takes long), or choose fewer files"
            ) from None
        finally:
            self._left -= time.monotonic() - began


def _regex(pattern: str, is_regex: bool, ignore_case: bool) -> Any:
    try:
        return regex.compile(
            pattern if is_regex else regex.escape(pattern, literal_spaces=True),
            regex.IGNORECASE if ignore_case else 0,
        )
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        raise InvalidInput(f"not a regular expression: {pattern!r:.80}: {error}") from None


def _required(pattern: str) -> tuple[str, ...]:
    """Texts that every match contains: of a pattern's beginning only, and nothing where that is not sure."""
    plain = re.match(r"[A-Za-z0-9 _\-/:=,;'\"<>@#%&~`!]*", pattern)
    assert plain is not None
    text = plain[0]
    if "|" in pattern or "(?" in pattern or "[[" in pattern:
        return ()
    if len(text) < len(pattern) and pattern[len(text)] in "*?{":  # the last one may not be there
        text = text[:-1]
    return (text,) if text else ()
