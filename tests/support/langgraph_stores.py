"""A function that opens one store again and again, and a checkpointer for the tests of the LangGraph faces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import holdall
from support.extent import FEW_FSYNCS
from support.stores import new_location, open_at

Open: TypeAlias = Callable[..., holdall.Store]


def opener(engine: str, folder: Path) -> Open:
    """Return a function that opens the same store each time, with the given options."""
    at = new_location(engine, folder)
    return lambda **options: open_at(at, **(FEW_FSYNCS | options))


@dataclass
class Saver:
    """A checkpointer with one thread, whose messages a test sets."""

    messages: Any
    id: str = "1f0-a"
    ts: str = "2026-03-04T05:06:07.890000+00:00"

    def get_tuple(self, config: Any) -> Any:
        @dataclass
        class Tuple:
            checkpoint: Any
            metadata: Any = None

        values = {} if self.messages is None else {"messages": self.messages}
        return Tuple({"id": self.id, "ts": self.ts, "channel_values": values})

    async def aget_tuple(self, config: Any) -> Any:
        return self.get_tuple(config)
