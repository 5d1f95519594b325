"""The names that AG2 and this face share: AG2's own where it is installed, and others like them where it is not.

AG2 looks stores up by its `KnowledgeStore`, so where it is there, ours must be the same object. All of AG2 that this
face needs is imported here.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from ..errors import Conflict
from ..ops import ABSENT

__all__ = [
    "CONVERSATIONS_PREFIX",
    "LOG_PREFIX",
    "WORKING_MEMORY_PATH",
    "ChangeCallback",
    "ChangeSubscription",
    "KnowledgeStore",
    "NoopChangeSubscription",
    "StoreBootstrap",
    "UnknownEvent",
    "create",
    "takes",
]

#: Where AG2 keeps things.
LOG_PREFIX = "/log/"
CONVERSATIONS_PREFIX = "/memory/conversations/"
WORKING_MEMORY_PATH = "/memory/working.md"

ChangeCallback: TypeAlias = Callable[[str], Awaitable[None]]
_Names: TypeAlias = list[str]


class ChangeSubscription(Protocol):
    """What `on_change` gives: close it, and the callback is not called any more."""

    async def close(self) -> None: ...


class NoopChangeSubscription:
    """What a store gives that cannot watch: whoever gets it has to look for changes by himself. Ours never do."""

    async def close(self) -> None:
        """Nothing to end."""


@runtime_checkable
class KnowledgeStore(Protocol):
    """An agent's knowledge: text in files, whose folders are implied by their paths."""

    async def read(self, path: str) -> str | None: ...

    async def write(self, path: str, content: str) -> None: ...

    async def list(self, path: str = "/") -> _Names: ...

    async def delete(self, path: str) -> None: ...

    async def exists(self, path: str) -> bool: ...

    async def append(self, path: str, content: str) -> int: ...

    async def read_range(self, path: str, start: int, end: int | None = None) -> str: ...

    async def on_change(self, path: str, callback: ChangeCallback) -> ChangeSubscription: ...


@runtime_checkable
class StoreBootstrap(Protocol):
    """What lays out an agent's knowledge before its first run."""

    async def bootstrap(self, store: KnowledgeStore, actor_name: str) -> None: ...


@dataclass
class UnknownEvent:
    """An event of a log whose class is not here, or a line that is none: `data` has what was written."""

    type_name: str
    data: dict[str, Any] = field(default_factory=dict)


if not TYPE_CHECKING:
    try:
        from ag2.events import UnknownEvent
        from ag2.knowledge import ChangeSubscription, KnowledgeStore, NoopChangeSubscription, StoreBootstrap
    except ImportError:
        try:  # as it was called before 1.0
            from autogen.beta.events import UnknownEvent
            from autogen.beta.knowledge import (
                ChangeSubscription,
                KnowledgeStore,
                NoopChangeSubscription,
                StoreBootstrap,
            )
        except ImportError:
            pass


async def create(store: KnowledgeStore, path: str, content: str) -> bool:
    """Write a file that is not there yet; whether it was not. In stores of others', that is a look and a write."""
    if takes(store.write, "expect"):
        try:
            await store.write(path, content, expect=ABSENT)  # type: ignore[call-arg]  # as was asked
        except Conflict:
            return False
        return True
    if await store.exists(path):
        return False
    await store.write(path, content)
    return True


def takes(method: Callable[..., Any], option: str) -> bool:
    """Whether a store's method has an option that AG2's protocol does not: ours do, unless somebody overrides them."""
    return option in inspect.signature(method).parameters
