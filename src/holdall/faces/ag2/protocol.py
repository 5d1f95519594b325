"""AG2's types and constants: its own types if it is installed, and equal ones if it is not.

AG2 finds stores by its `KnowledgeStore` class, so if AG2 is installed, ours must be the same object. Nothing else of
AG2 is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from ... import ABSENT
from ...errors import Conflict

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
    "create_file",
    "has_parameter",
]

#: The paths that AG2 uses.
LOG_PREFIX = "/log/"
CONVERSATIONS_PREFIX = "/memory/conversations/"
WORKING_MEMORY_PATH = "/memory/working.md"

ChangeCallback: TypeAlias = Callable[[str], Awaitable[None]]
_Names: TypeAlias = list[str]


class ChangeSubscription(Protocol):
    """What `on_change` returns. After `close`, the callback is not called any more."""

    async def close(self) -> None: ...


class NoopChangeSubscription:
    """What `on_change` returns in a store that cannot watch: its caller must poll. holdall's stores never return it."""

    async def close(self) -> None:
        """Do nothing."""


@runtime_checkable
class KnowledgeStore(Protocol):
    """An agent's knowledge: text files. A folder exists if a file is in it."""

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
    """Prepares an agent's knowledge before its first run."""

    async def bootstrap(self, store: KnowledgeStore, actor_name: str) -> None: ...


@dataclass
class UnknownEvent:
    """An event whose class is not available here, or a line that is no event. `data` is what the line contains."""

    type_name: str
    data: dict[str, Any] = field(default_factory=dict)


if not TYPE_CHECKING:
    try:
        from ag2.events import UnknownEvent
        from ag2.knowledge import ChangeSubscription, KnowledgeStore, NoopChangeSubscription, StoreBootstrap
    except ImportError:
        try:  # its name before 1.0
            from autogen.beta.events import UnknownEvent
            from autogen.beta.knowledge import (
                ChangeSubscription,
                KnowledgeStore,
                NoopChangeSubscription,
                StoreBootstrap,
            )
        except ImportError:
            pass


async def create_file(store: KnowledgeStore, path: str, content: str) -> bool:
    """Write a file unless it exists; return whether it was written. Atomic only in holdall's stores."""
    if has_parameter(store.write, "expect"):
        try:
            await store.write(path, content, expect=ABSENT)  # type: ignore[call-arg]  # checked above
        except Conflict:
            return False
        return True
    if await store.exists(path):
        return False
    await store.write(path, content)
    return True


def has_parameter(method: Callable[..., Any], name: str) -> bool:
    """Whether a method of a store takes a parameter that AG2's protocol does not have, but our stores do."""
    return name in inspect.signature(method).parameters
