"""Texts of files: their bytes, their lines, and edits that replace a part of one. Nothing here touches storage."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from ..errors import AmbiguousMatch, InvalidInput, InvalidValue, NoMatch, NotText, shown
from ..runtime import arguments

#: The content of a file, as callers pass it.
Data: TypeAlias = str | bytes | bytearray | memoryview

_LINE_END = re.compile("\r\n|\r|\n")
_ANY_END = "(?:\r\n|\r(?!\n)|(?<!\r)\n)"


def split_lines(text: str) -> list[str]:
    r"""Split a text at \n, \r\n and \r. A line end at the very end starts no further line."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")  # five times as fast as a regular expression
    if not lines[-1]:
        lines.pop()
    return lines


def make_edit(path: str, old: str, new: str, *, replace_all: bool) -> Callable[[str], tuple[str, int]]:
    """Return a function that applies an edit to a text, and counts the replacements. Checks the arguments now."""
    if not isinstance(old, str) or not isinstance(new, str):
        raise InvalidInput("edit takes two str: the text to replace, and the new text")
    if not old:
        raise InvalidInput("the text to replace cannot be empty; pass the text, or use write or append")
    check_unicode(new)
    arguments.check_flag("replace_all", replace_all)
    return lambda text: _replace(text, old, new, path, replace_all)


def _replace(text: str, old: str, new: str, path: str, replace_all: bool) -> tuple[str, int]:
    # A match never contains only one half of a \r\n.
    find = re.compile(("(?<!\r)" if old[0] == "\n" else "") + re.escape(old) + ("(?!\n)" if old[-1] == "\r" else ""))
    count = len(find.findall(text))
    if not count and _LINE_END.search(old):  # the caller may have seen lines without their line ends
        find = re.compile(_ANY_END.join(re.escape(line) for line in _LINE_END.split(old)))
        count = len(find.findall(text))

    def substitute(found: re.Match[str]) -> str:
        end = _LINE_END.search(found[0])
        return new if end is None or found[0] == old else _LINE_END.sub(end[0], new)

    if not count:
        raise NoMatch(f"the text to replace is not in {path!r} (0 matches): {old!r:.200}")
    if count > 1 and not replace_all:
        raise AmbiguousMatch(
            f"the text to replace is in {path!r} {count} times; pass more of the text around it, or replace_all=True:"
            f" {old!r:.200}",
            count,
        )
    return find.sub(substitute, text), count


def to_bytes(data: Any) -> bytes:
    """Return the bytes to store for a text or bytes."""
    if isinstance(data, str):
        check_unicode(data)
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidValue(f"a file holds str or bytes, not {type(data).__name__} {shown(data)}")


def check_unicode(text: str) -> None:
    """Raise `InvalidValue` if a text has lone surrogates, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(f"lone surrogates are not text: at character {error.start}") from None


def to_text(path: str, content: bytes) -> str:
    """Return the text of a file; `NotText` if it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise NotText(f"{path!r} is not text: byte {error.start} is not UTF-8; read it as bytes") from None
