"""Checks of arguments: plain values (a count, a flag, a function), and names that arguments had before.

Each raises `InvalidInput`, whose message says what to pass instead.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any, ParamSpec, TypeVar

from ..errors import InvalidInput, shown

T = TypeVar("T")
P = ParamSpec("P")


def check_count(name: str, value: Any, least: int = 0, most: int = 2**31) -> None:
    """Check that an argument is an int from `least` up to below `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name} is an int, not {type(value).__name__} {shown(value)}")
    if not least <= value < most:
        raise InvalidInput(f"{name} is at least {least} and less than 2**{most.bit_length() - 1}, not {shown(value)}")


def check_flag(name: str, value: Any, *, or_none: bool = False) -> None:
    """Check that an argument is True or False: the text "false" would count as true."""
    if not (isinstance(value, bool) or (or_none and value is None)):
        raise InvalidInput(f"{name} is {'True, False or None' if or_none else 'True or False'}, not {shown(value)}")


def check_fraction(name: str, value: Any) -> float:
    """Check that an argument is a number from 0 to 1, and return it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidInput(f"{name} is a number from 0 to 1, not {shown(value)}")
    return float(value)


def check_version(version: Any) -> None:
    """Check that an argument can be the number of a version."""
    if type(version) is not int or not -(2**63) <= version < 2**63:
        raise InvalidInput(f"version is the number of a version from history(), not {shown(version)}")


def check_function(name: str, value: Any) -> None:
    """Check that an argument is a function or None."""
    if not (value is None or callable(value)):
        raise InvalidInput(f"{name} is a function, not {type(value).__name__} {shown(value)}")


# Renamed arguments ----------------------------------------------------------------------------------------------------

#: The new names of each argument that had another one. The first that a function accepts is the right one.
RENAMED = {
    "history": ("feed_retention",),
    "indexed": ("filter_fields",),
    "fields": ("search_fields",),
    "index": ("search_fields",),
    "ns": ("namespace", "prefix"),
    "ns_prefix": ("prefix",),
    "prefix": ("key_prefix",),
}


def check_renamed(given: Iterable[str], accepted: Collection[str]) -> None:
    """Raise `InvalidInput` if a given argument is not accepted, but was renamed to one that is."""
    for name in given:
        new = next((one for one in RENAMED.get(name, ()) if one in accepted), None)
        if name not in accepted and new is not None:
            raise InvalidInput(f"{name}= was renamed: pass {new}=") from None


def explain_renamed(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function: a call with an old argument name raises `InvalidInput`. Others keep their `TypeError`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError:
            check_renamed(kwargs, inspect.signature(function).parameters)
            raise

    return call
