"""A scripted model for the OpenAI Agents SDK: it answers with given texts, and keeps what it was sent."""

from __future__ import annotations

from typing import Any

from agents import Model, ModelResponse, Usage
from openai.types.responses import ResponseOutputMessage, ResponseOutputText


class ScriptedModel(Model):
    """Answers each request with the next text."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = list(answers)
        self.inputs: list[Any] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        self.inputs.append(input)
        text = ResponseOutputText(type="output_text", text=self.answers.pop(0), annotations=[])
        message = ResponseOutputMessage(
            id=f"message-{len(self.inputs)}", type="message", role="assistant", status="completed", content=[text]
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=f"response-{len(self.inputs)}")

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError
