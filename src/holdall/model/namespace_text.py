"""The text form of a namespace, for the command line, tokens and REST: labels percent-encoded, joined by "/".

`("users", "a/b", "50%")` is `users/a%2Fb/50%25`. Only what would be ambiguous must be encoded: "/" and "%" in a label.
`encode` encodes more, so that its text can stand in a URL's path. `decode` also takes labels that are written as they
are, such as `notes/Zoë`. The root, `()`, is the empty text, and "/" is accepted for it.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from ..errors import InvalidInput, shown
from ..ops import Namespace
from .keys import check_namespace

__all__ = ["decode", "encode", "show"]

_MISREAD = re.compile("[/%\x00-\x1f\x7f-\x9f]")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
#: RFC 3986: the characters of a path's segment that need no escape. A label "." or ".." would be a relative path.
_SAFE = "!$&'()*+,;=:@"
_DOTS = {".": "%2E", "..": "%2E%2E"}


def encode(namespace: Namespace) -> str:
    """Write a namespace as text; `()` is the empty text."""
    return "/".join(_DOTS.get(label) or quote(label, safe=_SAFE) for label in namespace)


def show(namespace: Namespace) -> str:
    """Write a namespace for people: only what `decode` would misread, and control characters, is encoded."""
    return "/".join(_MISREAD.sub(lambda found: quote(found[0], safe=""), label) for label in namespace)


def decode(text: Any, *, empty: bool = True) -> Namespace:
    """Read a namespace from its text, and check it. `empty=False` refuses the root, for what needs a namespace."""
    if not isinstance(text, str):
        raise InvalidInput(f"a namespace is written as text, such as 'users/42'; not {type(text).__name__}")
    if text.strip("/") == "":
        return check_namespace((), empty=empty)
    labels = text.removeprefix("/").removesuffix("/").split("/")
    return check_namespace(tuple(_decode_label(label, text) for label in labels))


def _decode_label(label: str, text: str) -> str:
    if not label:
        raise InvalidInput(f"an empty label in the namespace {shown(text)}: write 'a/b', and '/' in a label as %2F")
    if _BAD_ESCAPE.search(label):
        raise InvalidInput(f"not percent-encoded: {shown(label)} in the namespace {shown(text)}; write '%' as %25")
    try:
        return unquote_to_bytes(label).decode()
    except UnicodeError:  # of escapes, or a lone surrogate
        raise InvalidInput(f"not UTF-8: {shown(label)} in the namespace {shown(text)}") from None
