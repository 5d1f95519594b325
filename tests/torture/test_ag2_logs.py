"""AG2's logs under several processes: every line is there, once, at the offset that was returned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdall.faces.ag2 import EventLogWriter, HoldallKnowledgeStore
from support.processes import finish_together, report, start, wait_to_begin
from support.stores import new_location, open_at

WRITERS = 2


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_two_processes_append_and_every_offset_is_right(
    tmp_path: Path, scaled: Callable[[int, int], int], engine: str
) -> None:
    count = scaled(300, 5000)
    at = new_location(engine, tmp_path)
    crew = [start(append, deadline=600, at=at, name=name, count=count) for name in "ab"[:WRITERS]]
    returned = [offset for [offsets] in finish_together(crew) for offset in offsets]

    async def check() -> None:
        store = HoldallKnowledgeStore(open_at(at))
        text = await store.read("/wal/log") or ""
        assert sorted(text.splitlines()) == sorted(line(name, n)[:-1] for name in "ab" for n in range(count))
        content = text.encode()
        expected = [line(name, number).encode() for name in "ab" for number in range(count)]
        assert [content[offset : offset + len(one)] for offset, one in zip(returned, expected, strict=True)] == expected
        await store.store.aclose()

    asyncio.run(check())


def append(at: dict[str, str], name: str, count: int) -> None:
    async def main() -> None:
        store = HoldallKnowledgeStore(open_at(at, timeout=120))
        await store.list()
        wait_to_begin()
        report([await store.append("/wal/log", line(name, number)) for number in range(count)])
        await store.store.aclose()

    asyncio.run(main())


def line(name: str, number: int) -> str:
    return f"{name} {number} {'ü' * (number % 7)}\n"


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_processes_drop_and_append_events_at_once(
    tmp_path: Path, scaled: Callable[[int, int], int], engine: str
) -> None:
    rounds = scaled(4, 100)
    at = new_location(engine, tmp_path)
    crew = [start(drop, deadline=600, at=at, name=name, rounds=rounds) for name in "ab"[:WRITERS]]
    finish_together(crew)

    async def check() -> None:
        store = HoldallKnowledgeStore(open_at(at))
        loaded = [(event["by"], event["n"]) for event in await EventLogWriter(store).load("s")]
        dropped, kept = loaded[: 10 * rounds], loaded[10 * rounds :]
        assert sorted(dropped) == [(name, n) for name in "ab" for n in range(5 * rounds)]
        assert sorted(kept) == [(name, -1 - n) for name in "ab" for n in reversed(range(rounds))]
        names = await store.list("/log", prefix="s.dropped-")
        assert len(names) == 10 * rounds
        await store.store.aclose()

    asyncio.run(check())


def drop(at: dict[str, str], name: str, rounds: int) -> None:
    async def main() -> None:
        store = HoldallKnowledgeStore(open_at(at, timeout=120))
        await store.list()
        wait_to_begin()

        def event(number: int) -> list[Any]:
            return [{"by": name, "n": number}]

        for number in range(rounds):
            five = range(5 * number, 5 * number + 5)
            await asyncio.gather(
                EventLogWriter(store).append_events("s", event(-1 - number)),
                *(EventLogWriter(store).persist_dropped("s", event(n)) for n in five),
            )
        await store.store.aclose()

    asyncio.run(main())
