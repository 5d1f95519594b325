"""AG2's event logs: a stream's events as JSON lines, in the files that AG2's own `EventLogWriter` reads and writes.

`/log/{stream}.jsonl` has a stream's events, and `/log/{stream}.dropped-{n}.jsonl` those that were dropped from it when
it was compacted. Lines have "\\n" between them. What is appended begins with one, so that it stays a line of its own
whatever the file ended with: another writer's last line, which has none, or one that was torn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable
from typing import Any

from ..errors import InvalidInput, shown
from ..keys import check_count
from .ag2_events import can_be_made, from_line, is_whole, name_of, to_line
from .ag2_protocol import LOG_PREFIX, KnowledgeStore, NoopChangeSubscription, create, takes

_REMEMBERED = 10_000  # streams whose logs are known to be there

_INTERVAL = 0.5  # how often a log is looked at in a store of others' that cannot watch, in seconds


class EventLogWriter:
    """Keeps streams' events in a store: AG2's own, dataclasses, pydantic models, dicts, or whatever has `to_dict()`.

    On a store of holdall's, any number of tasks and processes may keep the same stream's at once. Events come back as
    instances of their classes where those are imported already, or registered here; nothing that a log names is ever
    imported. What cannot be had back is an `UnknownEvent`, with all that was written.
    """

    def __init__(self, store: KnowledgeStore) -> None:
        if not isinstance(store, KnowledgeStore):
            raise InvalidInput(f"an EventLogWriter needs a KnowledgeStore, not {shown(store)}")
        self._store = store
        self._classes: dict[str, type] = {}
        self._begun: set[str] = set()

    def register(self, *classes: type) -> None:
        """Make events of these classes when logs are read, though no module that is imported has them by their name."""
        for kind in classes:
            if not isinstance(kind, type) or not can_be_made(kind):
                raise InvalidInput(
                    f"events can be made of dataclasses, pydantic models, and classes with to_dict() and from_dict();"
                    f" not of {shown(kind)}"
                )
            self._classes[name_of(kind)] = kind

    # Writing ---------------------------------------------------------------------------------------------------------

    async def persist(self, stream_id: object, events: Iterable[Any]) -> None:
        """Have a stream's log say exactly this."""
        await self._store.write(_log(stream_id), "\n".join(map(to_line, events)))

    async def persist_dropped(self, stream_id: object, events: Iterable[Any]) -> None:
        """Keep events that were dropped from a stream, in a segment of their own after those that are there."""
        lines = "\n".join(map(to_line, events))
        segments = await self._segments(stream_id)
        number = segments[-1][0] + 1 if segments else 1
        while not await create(self._store, _segment(stream_id, number), lines):  # somebody else's by now
            number += 1

    async def append_events(self, stream_id: object, events: Iterable[Any]) -> int:
        """Add events to a stream's log, at the cost of what is added; the byte offset at which they begin."""
        path, lines = _log(stream_id), "\n".join(map(to_line, events))
        if path not in self._begun:
            is_new = await create(self._store, path, lines)
            if len(self._begun) >= _REMEMBERED:
                self._begun.clear()  # which costs a look for each that is written again
            self._begun.add(path)
            if is_new:
                return 0
        return await self._store.append(path, "\n" + lines) + 1

    # Reading ---------------------------------------------------------------------------------------------------------

    async def load(self, stream_id: object) -> list[Any]:
        """All events of a stream: those that were dropped, in the order of their segments, then those of its log."""
        events: list[Any] = []
        for _, path in await self._segments(stream_id):
            events += await self._events(path)
        return events + await self._events(_log(stream_id))

    def tail(self, stream_id: object, since: int = 0) -> Tail:
        """A stream's log from a byte offset on: `async for` follows it, `await` gives what is there by now."""
        check_count("since", since, most=2**62)
        return Tail(self._store, _log(stream_id), since, self._classes)

    async def _events(self, path: str) -> list[Any]:
        text = await _text(self._store, path)
        return [from_line(line, self._classes) for line in text.split("\n") if line.strip()]

    async def _segments(self, stream_id: object) -> list[tuple[int, str]]:
        """The numbers and paths of a stream's dropped segments, in order."""
        folder, _, begin = _segment(stream_id, "").removesuffix(".jsonl").rpartition("/")
        ours = {"prefix": begin} if takes(self._store.list, "prefix") else {}
        found = []
        for name in await self._store.list(folder, **ours):
            number, end, rest = name.removeprefix(begin).partition(".jsonl")
            if name.startswith(begin) and end and not rest and number.isascii() and number.isdigit():
                found.append((int(number), f"{folder}/{name}"))
        return sorted(found)


class Tail:
    """A log that grows, from `EventLogWriter.tail`.

    `async for` gives what is there and then what comes, until it is closed; `await` gives a list of what has come by
    now, and again of what has come since. A last line that is not whole waits for its rest. A log that was written anew
    is read from its beginning, unless it only became longer.
    """

    def __init__(self, store: KnowledgeStore, path: str, since: int, classes: dict[str, type]) -> None:
        self._store = store
        self._path = path
        self._classes = classes
        self._following: AsyncGenerator[Any, None] | None = None
        self._steps = asyncio.Lock()
        self._changed = asyncio.Event()
        self._is_closed = False
        #: After the last event that was given: another `tail` with this goes on there.
        self.cursor = since

    def __aiter__(self) -> Tail:
        return self

    async def __anext__(self) -> Any:
        async with self._steps:  # of several tasks, one after the other: each event is given once
            if self._is_closed:
                raise StopAsyncIteration
            if self._following is None:
                self._following = self._follow()
            try:
                return await anext(self._following)
            except BaseException:  # cancelled, or the store is away: who asks again goes on after the cursor
                self._following = None
                raise

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        return self._so_far().__await__()

    async def aclose(self) -> None:
        """End the iteration, also for another task that waits in it. Closing twice is fine."""
        self._is_closed = True
        self._changed.set()
        async with self._steps:
            if self._following is not None:
                await self._following.aclose()

    async def _so_far(self) -> list[Any]:
        found = await self._lines()
        self.cursor = found[-1][1] if found else self.cursor
        return [from_line(line, self._classes) for line, _ in found]

    async def _follow(self) -> AsyncGenerator[Any, None]:
        async def ring(_path: str) -> None:
            self._changed.set()

        subscription = await self._store.on_change(self._path, ring)
        interval = _INTERVAL if isinstance(subscription, NoopChangeSubscription) else None
        try:
            while not self._is_closed:
                self._changed.clear()
                for line, end in await self._lines():
                    self.cursor = end
                    yield from_line(line, self._classes)
                try:
                    await asyncio.wait_for(self._changed.wait(), interval)
                except TimeoutError:
                    continue
        finally:
            await subscription.close()

    async def _lines(self) -> list[tuple[str, int]]:
        """The lines after the cursor, each with the offset after it."""
        text = await self._after_the_cursor()
        found, end = [], self.cursor
        pieces = text.split("\n")
        for number, line in enumerate(pieces):
            is_last = number == len(pieces) - 1
            if is_last and line.strip() and not is_whole(line):
                break
            end += len(line.encode(errors="surrogateescape")) + (not is_last)
            if line.strip():
                found.append((line, end))
        return found

    async def _after_the_cursor(self) -> str:
        if self.cursor:
            text = await _text(self._store, self._path, self.cursor - 1)
            before, new = text[:1], text[1:]
            if before and (not new or "\n" in (before, new[0])):
                return new
            self.cursor = 0  # no line ends there: it is another log by now
        return await _text(self._store, self._path)


async def _text(store: KnowledgeStore, path: str, start: int = 0) -> str:
    """A log from a byte on. Bytes that are no text, of a line that was torn, stand in it as lone surrogates."""
    try:
        return await store.read_range(path, start)
    except UnicodeDecodeError as error:
        return bytes(error.object).decode(errors="surrogateescape")


def _log(stream_id: object) -> str:
    return f"{LOG_PREFIX}{stream_id}.jsonl"


def _segment(stream_id: object, number: object) -> str:
    return f"{LOG_PREFIX}{stream_id}.dropped-{number}.jsonl"
