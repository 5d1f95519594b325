"""Arguments that were renamed: a call with an old name gets an error that gives the new one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec, TypeVar

from ..errors import InvalidInput

#: The new name of each argument that had another one.
RENAMED = {
    "history": "feed_retention",
    "indexed": "filter_fields",
    "fields": "search_fields",
    "index": "search_fields",
    "ns": "namespace",
    "ns_prefix": "prefix",
    "prefix": "key_prefix",
}

T = TypeVar("T")
P = ParamSpec("P")


def check_renamed(given: Iterable[str], accepted: Collection[str]) -> None:
    """Raise `InvalidInput` if a given argument is not accepted, but was renamed to one that is."""
    for name in given:
        if name not in accepted and RENAMED.get(name) in accepted:
            raise InvalidInput(f"{name}= was renamed: pass {RENAMED[name]}=") from None


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
