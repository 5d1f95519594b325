"""A wrapper that calls a face sync or async, so that each test is written once."""

from __future__ import annotations

import asyncio
from typing import Any


class Calls:
    """`calls.read(…)` is `face.read(…)`, or, with a runner, `face.aread(…)` awaited."""

    def __init__(self, face: Any, runner: asyncio.Runner | None) -> None:
        self.face = face
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        runner = self._runner
        if runner is None:
            return getattr(self.face, name)
        method = getattr(self.face, f"a{name}")
        return lambda *args, **kwargs: runner.run(method(*args, **kwargs))
