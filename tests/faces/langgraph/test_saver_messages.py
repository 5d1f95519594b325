"""Messages are made as LangGraph's serializer makes them, whether or not it is called."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdall.faces.langgraph.checkpoints.log import Codec
from holdall.faces.langgraph.checkpoints.messages import MessageMaker

_CALL = {"name": "look", "args": {"at": [1, 2]}, "id": "c1"}
_USAGE: Any = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "input_token_details": {"cache_read": 1}}


class Loud(HumanMessage):
    """A message that says something else when it is made."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{**fields, "content": fields["content"] + "!"})


def _late_call() -> AIMessage:
    """A message that got its tool calls after it was made; they are found when it is made again."""
    function = {"name": "look", "arguments": "{}"}
    message = AIMessage("")
    message.additional_kwargs = {"tool_calls": [{"id": "c2", "type": "function", "function": function}]}
    return message


MESSAGES: list[Any] = [
    HumanMessage("text", id="1"),
    HumanMessage("text"),
    HumanMessage("", name="me"),
    HumanMessage([{"type": "text", "text": "one"}, "two"]),
    HumanMessage("text", additional_kwargs={"a": (1, 2)}),
    HumanMessage("text", further="field"),
    AIMessage("text", id="2"),
    AIMessage("text", usage_metadata=_USAGE, response_metadata={"model": "m", "at": {"x": [1.5, None, True]}}),
    AIMessage("text", response_metadata={"at": datetime(2026, 1, 1, tzinfo=UTC)}),
    AIMessage("", tool_calls=[_CALL]),
    AIMessageChunk("part", tool_call_chunks=[{"name": "look", "args": "{", "id": "c1", "index": 0}]),
    SystemMessage("rules"),
    ToolMessage("seen", tool_call_id="c1"),
    ToolMessage("seen", tool_call_id="c1", artifact={"bytes": b"x"}, status="error"),
    RemoveMessage(id="1"),
    Loud(content="hey"),
    _late_call(),
    {"role": "user"},
    "text",
    None,
]


def _parts(message: Any) -> Any:
    if not isinstance(message, BaseMessage):
        return message
    fields = {name: (type(value), value) for name, value in message.__dict__.items()}
    return (
        type(message),
        fields,
        message.__pydantic_fields_set__,
        message.__pydantic_extra__,
        message.__pydantic_private__,
    )


@pytest.mark.parametrize("serde", [JsonPlusSerializer(), JsonPlusSerializer(allowed_msgpack_modules=None)])
def test_elements_are_what_the_serializer_makes_of_them(serde: JsonPlusSerializer) -> None:
    codec = Codec(serde, "t", "")
    typed = [serde.dumps_typed(message) for message in MESSAGES] * 2  # the second of each shape is made directly
    expected = [_parts(serde.loads_typed(each)) for each in typed]
    assert [_parts(each) for each in codec.deserialise_all(typed)] == expected


def test_usual_messages_are_made_without_the_serializer() -> None:
    serde = JsonPlusSerializer()
    calls: list[bytes] = []

    def deserialise(data: bytes) -> Any:
        calls.append(data)
        return serde.loads_typed(("msgpack", data))

    maker = MessageMaker(deserialise)
    for number in range(10):
        usual: list[AnyMessage] = [
            HumanMessage(f"text {number}", id=f"{number}"),
            AIMessage(f"text {number}", usage_metadata=_USAGE),
        ]
        for message in usual:
            made = maker.make(serde.dumps_typed(message)[1])
            assert _parts(made) == _parts(serde.loads_typed(serde.dumps_typed(message)))
            assert made is not None
            made.content = "changed"  # nothing is shared with the next one
            made.additional_kwargs["a"] = 1
            made.model_fields_set.clear()
    assert len(calls) == 2
