"""AG2's event logs: its format in both directions, any event, and no line lost."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
import sys
from typing import Any
from uuid import UUID, uuid4

import pydantic
import pytest

import holdall
from holdall.errors import InvalidInput
from holdall.faces.ag2 import (
    EventLogWriter,
    HoldallKnowledgeStore,
    LockedKnowledgeStore,
    MemoryKnowledgeStore,
    UnknownEvent,
)
from support import ag2_installed as ag2
from support.ag2_callbacks import awaited

events = ag2.events


@pytest.fixture
def store(any_store: holdall.Store, place: tuple[str, ...]) -> HoldallKnowledgeStore:
    return HoldallKnowledgeStore(any_store, namespace=place)


def request(text: str) -> Any:
    return events.ModelRequest([events.TextInput(text)])


def texts(loaded: list[Any]) -> list[str]:
    return [event.parts[0].content for event in loaded]


def all_kinds() -> list[Any]:
    return [
        request("ünïcödé\nand a second line"),
        events.ModelRequest([events.BinaryInput(b"\x89PNG", media_type="image/png", kind=events.BinaryType.IMAGE)]),
        events.ToolCallsEvent([events.ToolCallEvent(name="knowledge", arguments='{"action": "list"}')]),
        events.ModelResponse(events.ModelMessage("hi"), usage=events.Usage(prompt_tokens=3)),
        events.TaskCompleted(
            task_id="t1", agent_name="ada", objective="sum up", result="done", task_stream=ag2.MemoryStream().id
        ),
        events.UnknownEvent(type_name="", data={"line": "x"}),
    ]


# AG2's format --------------------------------------------------------------------------------------------------------


@awaited
async def test_the_bytes_are_those_of_ag2s_writer(store: HoldallKnowledgeStore) -> None:
    ours, theirs, written = uuid4(), uuid4(), all_kinds()
    await EventLogWriter(store).persist(ours, written)
    await ag2.knowledge.EventLogWriter(store).persist(theirs, written)
    assert await store.read(f"/log/{ours}.jsonl") == await store.read(f"/log/{theirs}.jsonl")


@pytest.mark.parametrize("written_by", [EventLogWriter, ag2.knowledge.EventLogWriter])
@pytest.mark.parametrize("read_by", [EventLogWriter, ag2.knowledge.EventLogWriter])
@awaited
async def test_logs_are_interchangeable_with_ag2s(store: HoldallKnowledgeStore, written_by: Any, read_by: Any) -> None:
    for kept in (store, ag2.knowledge.MemoryKnowledgeStore(), MemoryKnowledgeStore()):
        stream, written = uuid4(), all_kinds()
        await written_by(kept).persist_dropped(stream, [request("first")])
        await written_by(kept).persist_dropped(stream, [request("second")])
        await written_by(kept).persist(stream, written)
        loaded = await read_by(kept).load(stream)
        assert loaded == [request("first"), request("second"), *written]
        if events.__name__ == "ag2.events":  # before, AG2 forgot that it was an enum
            assert loaded[3].parts[0].kind is events.BinaryType.IMAGE
        assert [event.created_at for event in loaded[2:]] == [event.created_at for event in written]


@awaited
async def test_a_log_that_is_not_there_has_no_events(store: HoldallKnowledgeStore) -> None:
    writer = EventLogWriter(store)
    assert await writer.load(uuid4()) == []
    await writer.persist("empty", [])
    assert await writer.load("empty") == []


@awaited
async def test_segments_are_numbered_after_the_highest(store: HoldallKnowledgeStore) -> None:
    for number in range(1, 12):
        await EventLogWriter(store).persist_dropped("s", [request(str(number))])
    await store.delete("/log/s.dropped-3.jsonl")
    await store.write("/log/s.dropped-x.jsonl", "not one")
    await store.write("/log/s.dropped-2.jsonl.bak", "nor this")
    await store.write("/log/s2.dropped-40.jsonl", "nor this")
    await EventLogWriter(store).persist_dropped("s", [request("12")])
    await EventLogWriter(store).persist("s", [request("last")])
    assert texts(await EventLogWriter(store).load("s")) == [*map(str, [1, 2, *range(4, 13)]), "last"]


@awaited
async def test_a_stream_in_a_folder_of_its_own_keeps_its_segments(store: HoldallKnowledgeStore) -> None:
    for text in ("one", "two"):
        await EventLogWriter(store).persist_dropped("team/s", [request(text)])
    assert texts(await EventLogWriter(store).load("team/s")) == ["one", "two"]
    with pytest.raises(InvalidInput):
        await EventLogWriter(store).persist("../escape", [])


# Where AG2's writer fails --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapped", [False, True])
@awaited
async def test_five_concurrent_persist_dropped_keep_five(store: HoldallKnowledgeStore, wrapped: bool) -> None:
    """AG2's keep one: each lists the segments, and all of them take the same number."""
    place = LockedKnowledgeStore(store) if wrapped else store
    await asyncio.gather(*(EventLogWriter(place).persist_dropped("s", [request(str(number))]) for number in range(5)))
    assert sorted(texts(await EventLogWriter(place).load("s"))) == list("01234")
    assert [name async for name in aiter_names(store)] == [f"s.dropped-{n}.jsonl" for n in range(1, 6)]


async def aiter_names(store: HoldallKnowledgeStore) -> Any:
    for name in await store.list("/log"):
        yield name


@awaited
async def test_a_torn_last_line_becomes_an_unknown_event(store: HoldallKnowledgeStore) -> None:
    """AG2's `load` raises, and with that nothing of the log can be had."""
    writer = EventLogWriter(store)
    await writer.persist("s", [request("whole")])
    torn = '{"type": "ag2.events.input_events.ModelRequest", "data": {"par'
    await store.append("/log/s.jsonl", "\n" + torn)
    first, last = await writer.load("s")
    assert first == request("whole")
    assert isinstance(last, UnknownEvent) and (last.type_name, last.data) == ("", {"line": torn})
    await writer.append_events("s", [request("after")])
    assert await writer.load("s") == [first, last, request("after")]


@awaited
async def test_a_character_that_was_torn_is_kept_too(store: HoldallKnowledgeStore) -> None:
    await EventLogWriter(store).persist("s", [request("whole")])
    await store.files.aappend("/log/s.jsonl", '\n{"text": "é'.encode()[:-1])
    first, last = await EventLogWriter(store).load("s")
    assert first == request("whole")
    assert last.data["line"].encode(errors="surrogateescape") == b'{"text": "\xc3'
    await EventLogWriter(store).append_events("s", [last])
    assert (await EventLogWriter(store).load("s"))[-1] == last


@pytest.mark.parametrize(
    ("line", "type_name", "data"),
    [
        ('{"type": "nonexistent.module.Fake", "data": {"k": "v"}}', "nonexistent.module.Fake", {"k": "v"}),
        ('{"type": "json.JSONDecoder", "data": {}}', "json.JSONDecoder", {}),
        ('{"type": "subprocess.Popen", "data": {"args": ["false"]}}', "subprocess.Popen", {"args": ["false"]}),
        ('{"type": "nowhere", "data": [1]}', "nowhere", {"data": [1]}),
        ('{"type": "ag2.events.types.Usage", "data": {"no": 1}, "more": 2}', None, None),
        ('{"type": 5, "data": {}}', "", {"type": 5, "data": {}}),
        ('{"level": "info"}', "", {"level": "info"}),
        ("[1, 2]", "", {"line": "[1, 2]"}),
        ("plain text", "", {"line": "plain text"}),
        ('{"type": "", "data": {}}', "", {}),
        ("[" * 100_000, "", {"line": "[" * 100_000}),
    ],
)
@awaited
async def test_a_foreign_line_never_raises(line: str, type_name: str | None, data: Any) -> None:
    store = MemoryKnowledgeStore()
    await store.write("/log/s.jsonl", f"\n\n{line}\n  \n")
    [event] = await EventLogWriter(store).load("s")
    if type_name is not None:
        assert isinstance(event, UnknownEvent)
        assert (event.type_name, event.data) == (type_name, data)


# Any event -----------------------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    raw: bytes = b""


@dataclasses.dataclass
class Moved:
    to: Point
    by: UUID
    color: Color = Color.RED
    why: Exception | None = None
    seen: list[Any] = dataclasses.field(default_factory=list)
    tags: set[str] = dataclasses.field(default_factory=set)
    length: int = dataclasses.field(init=False, default=0)


class Rated(pydantic.BaseModel):
    stars: int
    point: Point | None = None
    blob: bytes = b""


class WithOwnForm:
    def __init__(self, text: str) -> None:
        self.text = text

    def to_dict(self) -> dict[str, Any]:
        return {"words": self.text.split()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WithOwnForm:
        return cls(" ".join(data["words"]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WithOwnForm) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


@awaited
async def test_dataclasses_models_and_dicts_come_back_equal(store: HoldallKnowledgeStore) -> None:
    writer = EventLogWriter(store)
    written = [
        Moved(Point(1, b"\xff"), uuid4(), seen=[Point(2), {"deep": [Rated(stars=1)]}, request("inside")], tags={"a"}),
        Rated(stars=5, point=Point(3), blob=b"\x00\xff"),
        {"type": "note", "text": "hi", "at": [uuid4(), b"\x00", Color.RED, None, 1.5]},
        {"type": "note", "data": {"text": "hi"}},
        {},
    ]
    await writer.persist("s", written)
    loaded = await writer.load("s")
    loaded[0].tags = set(loaded[0].tags)
    assert loaded == written
    assert all(type(event) is type(other) for event, other in zip(loaded, written, strict=True))
    theirs = await ag2.knowledge.EventLogWriter(store).load("s")
    assert [type(event) for event in theirs] == [ag2.events.UnknownEvent] * 5
    await writer.persist("again", theirs)
    assert (await writer.load("again"))[1:] == written[1:]


@awaited
async def test_only_objects_with_fields_are_events(store: HoldallKnowledgeStore) -> None:
    for bad in (5, "text", object(), Point, None):
        with pytest.raises(InvalidInput):
            await EventLogWriter(store).persist("s", [request("fine"), bad])
    assert not await store.exists("/log/s.jsonl")
    with pytest.raises(InvalidInput):
        EventLogWriter("sqlite:///a.db")  # type: ignore[arg-type]  # no store
    with pytest.raises(InvalidInput):
        EventLogWriter(store).register(object)


@awaited
async def test_classes_that_no_module_has_can_be_registered() -> None:
    @dataclasses.dataclass
    class Local:
        n: int

    store = MemoryKnowledgeStore()
    await EventLogWriter(store).persist("s", [Local(1), WithOwnForm("two words")])
    unknown = await EventLogWriter(store).load("s")
    assert [type(event) for event in unknown] == [UnknownEvent, UnknownEvent]
    assert unknown[0].data == {"n": 1} and unknown[1].data == {"words": ["two", "words"]}
    writer = EventLogWriter(store)
    writer.register(Local, WithOwnForm)
    assert await writer.load("s") == [Local(1), WithOwnForm("two words")]
    await writer.persist("again", unknown)  # what was not known here is what it was for those who know it
    assert await writer.load("again") == [Local(1), WithOwnForm("two words")]


@awaited
async def test_nothing_that_a_log_names_is_imported(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "holdall_trap.py").write_text("class Thing: ...")
    monkeypatch.syspath_prepend(tmp_path)
    lazy = type(sys)("holdall_lazy")
    lazy.__getattr__ = lambda name: __import__("holdall_trap")  # type: ignore[method-assign]  # a module may have one
    monkeypatch.setitem(sys.modules, "holdall_lazy", lazy)
    traps: list[Any] = [
        {"__dataclass__": "holdall_trap.Thing", "data": {}},
        {"__pydantic__": "holdall_trap.Thing", "data": {}},
        {"__event__": "holdall_trap.Thing"},
        {"__enum__": "holdall_trap.Thing", "value": 1},
        {"__event__": "holdall_lazy.thing.Thing"},
        {"__dataclass__": "subprocess.Popen", "data": {"args": ["false"]}},
    ]
    name = f"{events.TextInput.__module__}.TextInput"
    records = [{"type": "holdall_trap.Thing", "data": {}}, {"type": "holdall_lazy.Thing", "data": {}}]
    records += [{"type": name, "data": {"content": "hi", "metadata": {"trap": [trap]}}} for trap in traps]
    store = MemoryKnowledgeStore()
    await store.write("/log/s.jsonl", "\n".join(map(json.dumps, records)))
    loaded = await EventLogWriter(store).load("s")
    assert [type(event) for event in loaded[:5]] == [UnknownEvent] * 5
    assert loaded[5].metadata == {"trap": [1]}  # an enum's value, as AG2 does
    assert [type(event) for event in loaded[6:]] == [UnknownEvent] * 2
    assert loaded[-1].data == records[-1]["data"]
    assert "holdall_trap" not in sys.modules


@awaited
async def test_logs_from_before_ag2_had_its_name_are_read(store: HoldallKnowledgeStore) -> None:
    if events.__name__ != "ag2.events":
        return
    await EventLogWriter(store).persist("s", [request("old")])
    text = await store.read("/log/s.jsonl") or ""
    await store.write("/log/s.jsonl", text.replace('"ag2.events.', '"autogen.beta.events.'))
    assert await EventLogWriter(store).load("s") == [request("old")]


# Logs that grow ------------------------------------------------------------------------------------------------------


@awaited
async def test_events_are_appended_whatever_the_log_ends_with(store: HoldallKnowledgeStore) -> None:
    writer = EventLogWriter(store)
    assert await writer.append_events("s", [request("1"), request("2")]) == 0
    size = len((await store.read("/log/s.jsonl") or "").encode())
    assert await EventLogWriter(store).append_events("s", [request("3")]) == size + 1
    await writer.append_events("s", [])
    await store.append("/log/s.jsonl", "\n")
    await writer.append_events("s", [request("4")])
    assert texts(await writer.load("s")) == texts(await ag2.knowledge.EventLogWriter(store).load("s")) == list("1234")
    await ag2.knowledge.EventLogWriter(store).persist("s", [request("again")])
    await writer.append_events("s", [request("5")])
    await store.delete("/log")
    await writer.append_events("s", [request("6")])
    assert texts(await writer.load("s")) == texts(await ag2.knowledge.EventLogWriter(store).load("s")) == ["6"]


@awaited
async def test_concurrent_appends_lose_no_event(store: HoldallKnowledgeStore) -> None:
    writers = [EventLogWriter(store) for _ in range(4)]
    await asyncio.gather(*(writers[n % 4].append_events("s", [{"n": n}, {"n": n + 100}]) for n in range(20)))
    loaded = [event["n"] for event in await writers[0].load("s")]
    assert sorted(loaded) == [*range(20), *range(100, 120)]
    assert all(loaded[loaded.index(n) + 1] == n + 100 for n in range(20))


@awaited
async def test_awaiting_a_tail_returns_the_events_since_the_last_call(store: HoldallKnowledgeStore) -> None:
    writer = EventLogWriter(store)
    tail = writer.tail("s")
    assert await tail == []
    await writer.append_events("s", [request("1"), request("2")])
    assert texts(await tail) == ["1", "2"]
    assert await tail == []
    offset = await writer.append_events("s", [request("3")])
    assert texts(await tail) == texts(await writer.tail("s", offset)) == ["3"]
    await writer.append_events("s", [request("4")])
    assert texts(await writer.tail("s", since=tail.cursor)) == ["4"]
    with pytest.raises(InvalidInput):
        writer.tail("s", since=-1)


@awaited
async def test_a_tail_follows_a_log_that_grows(store: HoldallKnowledgeStore) -> None:
    writer = EventLogWriter(store)
    await writer.append_events("s", [{"n": 0}])
    tail, found = writer.tail("s"), []
    async for event in tail:
        found.append(event["n"])
        if len(found) == 5:
            break
        await EventLogWriter(store).append_events("s", [{"n": len(found)}])
    assert found == [0, 1, 2, 3, 4]
    await tail.aclose()
    await tail.aclose()
    await writer.append_events("s", [{"n": 5}])
    assert await writer.tail("s", tail.cursor) == [{"n": 5}]
    assert len(asyncio.all_tasks()) == 1


@awaited
async def test_a_tail_may_be_closed_while_others_wait_in_it(store: HoldallKnowledgeStore) -> None:
    for turns in (0, 1, 2, 5, None):
        tail = EventLogWriter(store).tail("s")
        waiting = [asyncio.ensure_future(anext(tail, "ended")) for _ in range(2)]
        while turns is None and not store._subscriptions:
            await asyncio.sleep(0)
        for _ in range(turns or 0):
            await asyncio.sleep(0)
        await asyncio.create_task(tail.aclose())
        assert await asyncio.gather(*waiting, anext(tail, "ended")) == ["ended"] * 3
    assert len(asyncio.all_tasks()) == 1


@awaited
async def test_a_step_of_a_tail_that_was_given_up_loses_nothing(store: HoldallKnowledgeStore) -> None:
    writer = EventLogWriter(store)
    tail = writer.tail("s")
    waiting = asyncio.ensure_future(anext(tail))
    while not store._subscriptions:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await writer.append_events("s", [{"n": 1}])
    assert await anext(tail) == {"n": 1}
    await tail.aclose()


@awaited
async def test_a_tail_follows_stores_of_ag2s_too() -> None:
    class CannotWatch(ag2.knowledge.MemoryKnowledgeStore):
        async def on_change(self, path: str, callback: Any) -> Any:
            return ag2.knowledge.NoopChangeSubscription()

    for store in (ag2.knowledge.MemoryKnowledgeStore(), CannotWatch()):
        writer, tail = EventLogWriter(store), EventLogWriter(store).tail("s")
        waiting = asyncio.ensure_future(anext(tail))
        await asyncio.sleep(0)
        await writer.append_events("s", [request("1")])
        assert texts([await waiting]) == ["1"]
        await tail.aclose()


@awaited
async def test_a_tail_waits_for_the_rest_of_a_line(store: HoldallKnowledgeStore) -> None:
    tail = EventLogWriter(store).tail("s")
    line = json.dumps({"type": "builtins.dict", "data": {"text": "é"}}, ensure_ascii=False).encode()
    await store.files.aappend("/log/s.jsonl", b'{"type": "builtins.dict", "data": {}}\n' + line[:-4])
    assert await tail == [{}]
    await store.files.aappend("/log/s.jsonl", line[-4:])
    assert await tail == [{"text": "é"}]
    await store.files.aappend("/log/s.jsonl", b"\ntorn")
    assert await tail == []
    await EventLogWriter(store).append_events("s", [{"n": 1}])
    torn, last = await tail
    assert torn.data == {"line": "torn"} and last == {"n": 1}


@awaited
async def test_a_tail_of_a_replaced_log_starts_at_its_beginning(store: HoldallKnowledgeStore) -> None:
    writer = EventLogWriter(store)
    tail = writer.tail("s")
    history = [request(str(number)) for number in range(3)]
    await writer.persist("s", history)
    assert texts(await tail) == ["0", "1", "2"]
    history += [request("3")]
    await writer.persist("s", history)  # as agents do after each turn
    assert texts(await tail) == ["3"]
    await writer.persist("s", history[-1:])  # ... and after they have dropped what was old
    assert texts(await tail) == ["3"]
    await writer.persist("s", [request("something longer " * 50)])
    assert len(await tail) == 1
    await store.delete("/log")
    assert await tail == []
    await writer.append_events("s", [request("again")])
    assert texts(await tail) == ["again"]


@awaited
async def test_an_overridden_method_of_a_store_is_always_called() -> None:
    class Shouting(MemoryKnowledgeStore):
        """What somebody makes to encrypt, say: all that is written goes through here."""

        async def write(self, path: str, content: str) -> None:  # type: ignore[override]  # as people do
            await super().write(path, content.upper())

    store = Shouting()
    await EventLogWriter(store).persist_dropped("s", [request("hi")])
    await EventLogWriter(store).append_events("s", [request("hi")])
    for path in ("/log/s.dropped-1.jsonl", "/log/s.jsonl"):
        text = await store.read(path) or ""
        assert "HI" in text and text == text.upper()
