"""Paths to the texts of a value that are searched, in LangGraph's syntax.

A path is `$`, the whole value, or steps: `a.b` (keys), `a[0]` and `a[-1]` (one element), `a[*]` (every element), `*`
(everything in a dict or a list), `{x,y.z}` (several paths from here). The store checks paths once, with `check_paths`.
`find_texts` returns the texts to embed, with one vector each; `find_strings` returns the strings for full text.

Two differences from LangGraph are intended. LangGraph embeds a dict or a list as its JSON, with keys, numbers and
braces; here only its strings are embedded, one a line, since people search for those. And a malformed path is an error;
with LangGraph, no search would find the item.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Generator, Iterable, Iterator
from typing import Any, TypeAlias

from ..errors import InvalidInput, shown

__all__ = ["WHOLE", "check_paths", "find_strings", "find_texts"]

#: The whole value.
WHOLE = ("$",)

#: A key, an index, a wildcard, or several alternatives.
_Step: TypeAlias = "str | int | _Wildcard | tuple[_Steps, ...]"
_Steps: TypeAlias = "tuple[_Step, ...]"
_Location: TypeAlias = tuple[str | int, ...]

_SYNTAX = "a path is '$', or steps such as 'a.b', 'a[0]', 'a[-1]', 'a[*]', '*' and '{x,y.z}'"


class _Wildcard(enum.Enum):
    """`[*]` matches the elements of lists, `*` also the values of dicts."""

    EACH = enum.auto()
    ANY = enum.auto()


def check_paths(paths: Iterable[str]) -> tuple[str, ...]:
    """Check paths and return them as a tuple; `InvalidInput` names a malformed one."""
    if isinstance(paths, str) or not isinstance(paths, Iterable):
        raise InvalidInput(f"search_fields is a list of paths, such as ['title', 'body'], not {shown(paths)}")
    checked = tuple(dict.fromkeys(_check(path) for path in paths))
    if not checked:
        raise InvalidInput(
            "search_fields is empty; leave it out for the whole value, or pass search_fields=False for no search"
        )
    return checked


def find_texts(value: dict[str, Any], paths: tuple[str, ...] = WHOLE) -> list[str]:
    """Find the texts to embed: one for each value that a path leads to, without blank texts and duplicates.

    A dict or a list is one text, its strings with a line each. A number or a bool is a text only if a path names it.
    """
    found = (_to_text(item) for path in paths for _, item in _follow(value, _parse(path), ()))
    return [text for text in dict.fromkeys(found) if text.strip()]


def find_strings(value: dict[str, Any], paths: tuple[str, ...] = WHOLE) -> list[str]:
    """Find every string at or below the paths. A string that several paths lead to is found once."""
    if "$" in paths:
        return _all_strings(value)
    found: dict[_Location, str] = {}
    for path in paths:
        for location, item in _follow(value, _parse(path), ()):
            found.update(_leaves(item, location))
    return list(found.values())


def _to_text(item: Any) -> str:
    if isinstance(item, bool | int | float):
        return str(item)
    return "\n".join(leaf for _, leaf in _leaves(item))


def _all_strings(value: dict[str, Any]) -> list[str]:
    """The strings in a value, in order; as `_leaves`, without locations, in half the time."""
    found: list[str] = []
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            stack.extend(reversed(item.values()))
        elif isinstance(item, list):
            stack.extend(reversed(item))
    return found


def _leaves(item: Any, location: _Location = ()) -> Iterator[tuple[_Location, str]]:
    """The strings in a value, in order, each with its location."""
    stack: list[tuple[_Location, Any]] = [(location, item)]
    while stack:
        location, item = stack.pop()
        if isinstance(item, str):
            yield location, item
        elif isinstance(item, dict):
            stack.extend([((*location, key), inner) for key, inner in reversed(item.items())])
        elif isinstance(item, list):
            stack.extend([((*location, at), item[at]) for at in range(len(item) - 1, -1, -1)])


# Following a path ----------------------------------------------------------------------------------------------------


def _follow(item: Any, steps: _Steps, location: _Location) -> Generator[tuple[_Location, Any], None, None]:
    """The values that the steps lead to, each with its location."""
    if not steps:
        yield location, item
        return
    step, rest = steps[0], steps[1:]
    if isinstance(step, str):
        if isinstance(item, dict) and step in item:
            yield from _follow(item[step], rest, (*location, step))
    elif isinstance(step, int):
        if isinstance(item, list) and -len(item) <= step < len(item):
            index = step % len(item)
            yield from _follow(item[index], rest, (*location, index))
    elif isinstance(step, _Wildcard):
        if isinstance(item, list):
            for index, inner in enumerate(item):
                yield from _follow(inner, rest, (*location, index))
        elif isinstance(item, dict) and step is _Wildcard.ANY:
            for key, inner in item.items():
                yield from _follow(inner, rest, (*location, key))
    else:
        for steps in step:
            yield from _follow(item, steps + rest, location)


# Parsing a path ------------------------------------------------------------------------------------------------------


def _check(path: str) -> str:
    if not isinstance(path, str):
        raise InvalidInput(f"a field's path is a str, not {type(path).__name__} {shown(path)}")
    _parse(path)
    return path


@functools.lru_cache(maxsize=1024)
def _parse(path: str) -> _Steps:
    if path == "$":
        return ()
    if path.startswith(("$.", "$[")):
        raise _bad(path, f"paths begin with a field, so write {path[1:].removeprefix('.')!r}")
    return tuple(_steps(path, path))


def _steps(text: str, path: str) -> Iterator[_Step]:
    """Parse the steps of a path, or of a part between braces."""
    at, needs_step = 0, True  # at the start of a path, and after a dot
    while at < len(text):
        if text[at] == "[":
            end = text.find("]", at)
            if end < 0:
                raise _bad(path, "a '[' is not closed")
            yield _index(text[at + 1 : end], path)
            at, needs_step = end + 1, False
        elif text[at] == "{":
            end = text.find("}", at)
            if end < 0:
                raise _bad(path, "a '{' is not closed")
            if "{" in text[at + 1 : end]:
                raise _bad(path, "braces cannot be nested")
            yield tuple(tuple(_steps(part.strip(), path)) for part in text[at + 1 : end].split(","))
            at, needs_step = end + 1, False
        elif text[at] == ".":
            if needs_step:
                raise _bad(path, "a step is empty")
            at, needs_step = at + 1, True
        elif text[at] in "]}":
            raise _bad(path, f"a {text[at]!r} closes nothing")
        else:
            end = min((found for mark in ".[]{}" if (found := text.find(mark, at)) >= 0), default=len(text))
            yield _Wildcard.ANY if text[at:end] == "*" else text[at:end]
            at, needs_step = end, False
    if needs_step:
        raise _bad(path, "a step is empty")


def _index(text: str, path: str) -> _Step:
    if text == "*":
        return _Wildcard.EACH
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise _bad(path, f"[{text}] is neither an index nor [*]")
    return int(text)


def _bad(path: str, why: str) -> InvalidInput:
    return InvalidInput(f"{shown(path)} is not a path to a field: {why}; {_SYNTAX}")
