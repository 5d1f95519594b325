"""A chat model for Strands that says what a test has written."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any

from strands.models.model import Model


class ScriptedModel(Model):
    """Answers with the next of its texts."""

    def __init__(self, answers: list[str]) -> None:
        self._answers = iter(answers)

    def update_config(self, **model_config: Any) -> None:
        """Take no settings."""

    def get_config(self) -> Any:
        """Return no settings."""
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: no test needs it."""
        raise NotImplementedError

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncIterable[Any]:
        """Answer."""
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": next(self._answers)}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}
