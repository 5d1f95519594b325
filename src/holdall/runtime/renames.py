"""Arguments that were renamed: a call with an old name gets an error that gives the new one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec, TypeVar

from ..errors import InvalidInput

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

T = TypeVar("T")
P = ParamSpec("P")


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
