"""The options of `holdall.open` that concern the store itself, and no engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .embedding import Embedding
from .errors import InvalidInput, shown
from .fields import WHOLE
from .ops import FrozenStruct

#: How a query ranks.
Mode: TypeAlias = Literal["lexical", "semantic", "hybrid"]


@dataclass(frozen=True, slots=True)
class OpEvent:
    """What an `on_op=` hook is told of a batch: never keys or values.

    `ops` are the names of its ops, `seconds` how long it took, `error` the type of what it raised, or None.
    """

    ops: tuple[str, ...]
    seconds: float
    error: type[BaseException] | None


class Settings(FrozenStruct, frozen=True):
    """What a store was opened with."""

    ttl: float | None = None
    refresh_on_read: bool = False
    on_op: Callable[[OpEvent], object] | None = None
    full_text: bool = True
    fields: tuple[str, ...] = WHOLE
    embedding: Embedding | None = None

    def ranking(self, query: Any, mode: Any) -> tuple[str, Mode] | tuple[None, None]:
        """What to rank by, and how; None where there is nothing to rank by."""
        if not (query is None or isinstance(query, str)):
            raise InvalidInput(f"query is a str, not {type(query).__name__} {shown(query)}")
        if mode not in (None, "lexical", "semantic", "hybrid"):
            raise InvalidInput(f"mode is 'lexical', 'semantic' or 'hybrid', not {shown(mode)}")
        embeds = self.embedding is not None
        if mode in ("semantic", "hybrid") and not embeds:
            raise InvalidInput(f"mode={mode!r} needs an embedder: open the store with embed=")
        if mode in ("lexical", "hybrid") and not self.full_text:
            raise InvalidInput(f"mode={mode!r} needs full text, and this store was opened with full_text=False")
        if query is None or not query.strip():
            if mode is not None and query is None:
                raise InvalidInput(f"mode={mode!r} says how to rank by a query; pass query=")
            return None, None
        if not embeds and not self.full_text:
            raise InvalidInput("a query needs full text or an embedder, and this store was opened without either")
        return query, mode or ("lexical" if not embeds else "hybrid" if self.full_text else "semantic")
