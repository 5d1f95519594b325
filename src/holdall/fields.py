"""Which texts of a value are searched: paths into it, in LangGraph's syntax.

A path is `$`, the whole value, or steps: `a.b` (keys), `a[0]` and `a[-1]` (one element), `a[*]` (every element), `*`
(everything in a dict or a list), `{x,y.z}` (several paths from here). The store checks paths once, with `check_paths`;
`texts` gives what is embedded, one vector each, and `strings` what full text reads.

Two differences from LangGraph are meant. It embeds a dict or a list as its JSON, keys, numbers and braces too; here it
is the strings in it, a line each, for those are what people search for. And a path that could never lead anywhere is
an error, not an item that no search finds.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Generator, Iterable, Iterator
from typing import Any, TypeAlias

from .errors import InvalidInput, shown

__all__ = ["WHOLE", "check_paths", "strings", "texts"]

#: The whole value.
WHOLE = ("$",)

#: A key, an index, a wildcard, or several ways on.
_Step: TypeAlias = "str | int | _Wildcard | tuple[_Steps, ...]"
_Steps: TypeAlias = "tuple[_Step, ...]"
_Place: TypeAlias = tuple[str | int, ...]

_SYNTAX = "a path is '$', or steps such as 'a.b', 'a[0]', 'a[-1]', 'a[*]', '*' and '{x,y.z}'"


class _Wildcard(enum.Enum):
    """`[*]`, which goes into lists, and `*`, which goes into dicts too."""

    EACH = enum.auto()
    ANY = enum.auto()


def check_paths(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths as a tuple, or InvalidInput that says which of them is none."""
    if isinstance(paths, str) or not isinstance(paths, Iterable):
        raise InvalidInput(f"fields are a list of paths, such as ['title', 'body'], not {shown(paths)}")
    checked = tuple(dict.fromkeys(_checked(path) for path in paths))
    if not checked:
        raise InvalidInput("no fields are named; leave them out for the whole value, or say index=False for none")
    return checked


def texts(value: dict[str, Any], paths: tuple[str, ...] = WHOLE) -> list[str]:
    """The texts that are embedded: one for each thing that a path leads to; blank ones and repetitions are left out.

    A dict or a list is one text, its strings with a line each. A number or a bool is a text only if a path names it.
    """
    found = (_text(thing) for path in paths for _, thing in _reached(value, _parsed(path), ()))
    return [text for text in dict.fromkeys(found) if text.strip()]


def strings(value: dict[str, Any], paths: tuple[str, ...] = WHOLE) -> list[str]:
    """Every string at or below the paths, once each however many paths lead to it."""
    if "$" in paths:
        return [leaf for _, leaf in _leaves(value)]
    found: dict[_Place, str] = {}
    for path in paths:
        for place, thing in _reached(value, _parsed(path), ()):
            found.update(_leaves(thing, place))
    return list(found.values())


def _text(thing: Any) -> str:
    if isinstance(thing, bool | int | float):
        return str(thing)
    return "\n".join(leaf for _, leaf in _leaves(thing))


def _leaves(thing: Any, place: _Place = ()) -> Iterator[tuple[_Place, str]]:
    """The strings in something, in order, and where each is."""
    ahead: list[tuple[_Place, Any]] = [(place, thing)]
    while ahead:
        place, thing = ahead.pop()
        if isinstance(thing, str):
            yield place, thing
        elif isinstance(thing, dict):
            ahead.extend([((*place, key), inner) for key, inner in reversed(thing.items())])
        elif isinstance(thing, list):
            ahead.extend([((*place, at), thing[at]) for at in range(len(thing) - 1, -1, -1)])


# Following a path ----------------------------------------------------------------------------------------------------


def _reached(thing: Any, steps: _Steps, place: _Place) -> Generator[tuple[_Place, Any], None, None]:
    """What the steps lead to, and where it is."""
    if not steps:
        yield place, thing
        return
    step, rest = steps[0], steps[1:]
    if isinstance(step, str):
        if isinstance(thing, dict) and step in thing:
            yield from _reached(thing[step], rest, (*place, step))
    elif isinstance(step, int):
        if isinstance(thing, list) and -len(thing) <= step < len(thing):
            index = step % len(thing)
            yield from _reached(thing[index], rest, (*place, index))
    elif isinstance(step, _Wildcard):
        if isinstance(thing, list):
            for index, inner in enumerate(thing):
                yield from _reached(inner, rest, (*place, index))
        elif isinstance(thing, dict) and step is _Wildcard.ANY:
            for key, inner in thing.items():
                yield from _reached(inner, rest, (*place, key))
    else:
        for way in step:
            yield from _reached(thing, way + rest, place)


# Reading a path ------------------------------------------------------------------------------------------------------


def _checked(path: str) -> str:
    if not isinstance(path, str):
        raise InvalidInput(f"a field's path is a str, not {type(path).__name__} {shown(path)}")
    _parsed(path)
    return path


@functools.lru_cache(maxsize=1024)
def _parsed(path: str) -> _Steps:
    if path == "$":
        return ()
    if path.startswith(("$.", "$[")):
        raise _bad(path, f"paths begin with a field, so write {path[1:].removeprefix('.')!r}")
    return tuple(_steps(path, path))


def _steps(text: str, path: str) -> Iterator[_Step]:
    """The steps of a path, or of a part of one between braces."""
    at, dot = 0, True  # a step must follow: the path begins, or a dot was read
    while at < len(text):
        if text[at] == "[":
            end = text.find("]", at)
            if end < 0:
                raise _bad(path, "a '[' is not closed")
            yield _index(text[at + 1 : end], path)
            at, dot = end + 1, False
        elif text[at] == "{":
            end = text.find("}", at)
            if end < 0:
                raise _bad(path, "a '{' is not closed")
            if "{" in text[at + 1 : end]:
                raise _bad(path, "braces do not go into braces")
            yield tuple(tuple(_steps(part.strip(), path)) for part in text[at + 1 : end].split(","))
            at, dot = end + 1, False
        elif text[at] == ".":
            if dot:
                raise _bad(path, "a step is empty")
            at, dot = at + 1, True
        elif text[at] in "]}":
            raise _bad(path, f"a {text[at]!r} closes nothing")
        else:
            end = min((found for mark in ".[]{}" if (found := text.find(mark, at)) >= 0), default=len(text))
            yield _Wildcard.ANY if text[at:end] == "*" else text[at:end]
            at, dot = end, False
    if dot:
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
