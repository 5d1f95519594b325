"""What the tests of LangGraph's faces share: every engine, each call sync or async, and a checkpointer to fill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import holdall
from places import open_at, place

Open: TypeAlias = Callable[..., holdall.Store]


def opener(engine: str, folder: Path) -> Open:
    """A function that opens one and the same store each time, with the options it is given."""
    at = place(engine, folder)
    return lambda **options: open_at(at, **options)


@dataclass
class Saver:
    """A checkpointer with one thread, of which a test can say what is in it."""

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
