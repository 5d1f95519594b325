"""The options of `holdall.open` for the store itself. Those for engines are `holdall.engine.Options`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from ..engine import Clock
from ..errors import InvalidInput, shown
from ..model.field_paths import WHOLE
from ..ops import FrozenStruct, Op
from ..search.embedding_model import EmbeddingModel

#: How a query ranks.
Mode: TypeAlias = Literal["lexical", "semantic", "hybrid"]


@dataclass(frozen=True, slots=True)
class OpEvent:
    """A finished batch, for an `on_op=` hook. It never contains keys or values.

    `ops` are the names of its ops, `seconds` is how long it took, `error` the type of the error it raised, or None.
    """

    ops: tuple[str, ...]
    seconds: float
    error: type[BaseException] | None


class WriteGuard(Protocol):
    """Admits the async writes of a view, such as those of a token with a quota."""

    def admit(self, batch: Sequence[Op]) -> AbstractAsyncContextManager[None]:
        """Raise an error if a batch, as it is sent to the engine, must not be done; else let it be done in a block."""


class StoreOptions(FrozenStruct, frozen=True):
    """The options that a store was opened with."""

    ttl: float | None = None
    refresh_on_read: bool = False
    on_op: Callable[[OpEvent], object] | None = None
    full_text: bool = True
    search_fields: tuple[str, ...] = WHOLE
    embedding: EmbeddingModel | None = None
    clock: Clock | None = None
    at: str | int | None = None  # a view of the store as it was: a cursor, or microseconds since 1970
    acting: str | None = None  # the author and the reason that writes carry
    find_author: Callable[[], tuple[str, str | None] | None] | None = None  # asked before each write without these
    guard: WriteGuard | None = None

    def resolve_ranking(self, query: Any, mode: Any) -> tuple[str, Mode] | tuple[None, None]:
        """Check a query and its mode, and choose the default mode. (None, None) if there is nothing to rank by."""
        if not (query is None or isinstance(query, str)):
            raise InvalidInput(f"query is a str, not {type(query).__name__} {shown(query)}")
        if mode not in (None, "lexical", "semantic", "hybrid"):
            raise InvalidInput(f"mode is 'lexical', 'semantic' or 'hybrid', not {shown(mode)}")
        embeds = self.embedding is not None
        if mode in ("semantic", "hybrid") and not embeds:
            raise InvalidInput(f"mode={mode!r} needs an embedder: open the store with embed=")
        if mode in ("lexical", "hybrid") and not self.full_text:
            raise InvalidInput(f"mode={mode!r} needs full text, but the store was opened with full_text=False")
        if query is None or not query.strip():
            if mode is not None and query is None:
                raise InvalidInput(f"mode={mode!r} needs a query; pass query=")
            return None, None
        if not embeds and not self.full_text:
            raise InvalidInput("a query needs full text or an embedder; open the store with full_text=True or embed=")
        query = query.encode(errors="replace").decode()  # lone surrogates are in no text
        return query, mode or ("lexical" if not embeds else "hybrid" if self.full_text else "semantic")
