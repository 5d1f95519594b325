"""AG2's event logs: a stream's events as JSON lines, in the files that AG2's own `EventLogWriter` reads and writes.

`/log/{stream}.jsonl` has a stream's events. `/log/{stream}.dropped-{n}.jsonl` has events that were dropped from it when
it was compacted. Lines are separated by "\\n". An append begins with "\\n", so that it starts a new line whatever the
file ends with: a complete line of another writer, which has no "\\n" at its end, or a partial one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable
from typing import Any

from ...core.face_api import check_count
from ...errors import InvalidInput, shown
from .events import can_be_restored, from_line, is_complete, name_of, to_line
from .protocol import LOG_PREFIX, KnowledgeStore, NoopChangeSubscription, create_file, has_parameter

_MAX_KNOWN_LOGS = 10_000  # streams whose logs are known to exist

_POLL_INTERVAL = 0.5  # seconds between reads of a log in a store that cannot watch


class EventLogWriter:
    """Stores the events of streams: AG2's own, dataclasses, pydantic models, dicts, or objects with `to_dict()`.

    On a holdall store, any number of tasks and processes may write the same stream at once. Events are read as
    instances of their classes if those are imported already, or registered here. Nothing that a log names is ever
    imported. An event that cannot be created is an `UnknownEvent` with its data.
    """

    def __init__(self, store: KnowledgeStore) -> None:
        if not isinstance(store, KnowledgeStore):
            raise InvalidInput(f"an EventLogWriter needs a KnowledgeStore, not {shown(store)}")
        self._store = store
        self._classes: dict[str, type] = {}
        self._known_logs: set[str] = set()

    def register(self, *classes: type) -> None:
        """Let logs be read as events of these classes, even if no imported module has them under their names."""
        for kind in classes:
            if not isinstance(kind, type) or not can_be_restored(kind):
                raise InvalidInput(
                    f"an event class is a dataclass, a pydantic model, or a class with to_dict() and from_dict(); not"
                    f" {shown(kind)}"
                )
            self._classes[name_of(kind)] = kind

    # Writing ---------------------------------------------------------------------------------------------------------

    async def persist(self, stream_id: object, events: Iterable[Any]) -> None:
        """Replace a stream's log by these events."""
        await self._store.write(_log_path(stream_id), "\n".join(map(to_line, events)))

    async def persist_dropped(self, stream_id: object, events: Iterable[Any]) -> None:
        """Store events that were dropped from a stream, in a new segment after the existing ones."""
        lines = "\n".join(map(to_line, events))
        segments = await self._segments(stream_id)
        number = segments[-1][0] + 1 if segments else 1
        while not await create_file(self._store, _segment_path(stream_id, number), lines):  # taken by another writer
            number += 1

    async def append_events(self, stream_id: object, events: Iterable[Any]) -> int:
        """Append events to a stream's log, at the cost of these events alone. Returns their byte offset."""
        path, lines = _log_path(stream_id), "\n".join(map(to_line, events))
        if path not in self._known_logs:
            is_new = await create_file(self._store, path, lines)
            if len(self._known_logs) >= _MAX_KNOWN_LOGS:
                self._known_logs.clear()  # bounds memory; costs one more request for each log that is written again
            self._known_logs.add(path)
            if is_new:
                return 0
        return await self._store.append(path, "\n" + lines) + 1

    # Reading ---------------------------------------------------------------------------------------------------------

    async def load(self, stream_id: object) -> list[Any]:
        """Return all events of a stream: first the dropped ones, segment by segment, then those of its log."""
        events: list[Any] = []
        for _, path in await self._segments(stream_id):
            events += await self._read_events(path)
        return events + await self._read_events(_log_path(stream_id))

    def tail(self, stream_id: object, since: int = 0) -> Tail:
        """Read a stream's log from a byte offset on: `async for` follows it, `await` returns the events so far."""
        check_count("since", since, most=2**62)
        return Tail(self._store, _log_path(stream_id), since, self._classes)

    async def _read_events(self, path: str) -> list[Any]:
        text = await _read_text(self._store, path)
        return [from_line(line, self._classes) for line in text.split("\n") if line.strip()]

    async def _segments(self, stream_id: object) -> list[tuple[int, str]]:
        """Return the numbers and paths of a stream's dropped segments, in order."""
        folder, _, begin = _segment_path(stream_id, "").removesuffix(".jsonl").rpartition("/")
        options = {"prefix": begin} if has_parameter(self._store.list, "prefix") else {}
        found = []
        for name in await self._store.list(folder, **options):
            number, end, rest = name.removeprefix(begin).partition(".jsonl")
            if name.startswith(begin) and end and not rest and number.isascii() and number.isdigit():
                found.append((int(number), f"{folder}/{name}"))
        return sorted(found)


class Tail:
    """The end of a log that grows, from `EventLogWriter.tail`.

    `async for` yields the events so far, then new ones until the tail is closed. `await` returns a list of the events
    since the last call. An incomplete last line is not read before it is complete. A log that was replaced is read
    from its beginning, unless it only became longer.
    """

    def __init__(self, store: KnowledgeStore, path: str, since: int, classes: dict[str, type]) -> None:
        self._store = store
        self._path = path
        self._classes = classes
        self._following: AsyncGenerator[Any, None] | None = None
        self._steps = asyncio.Lock()
        self._changed = asyncio.Event()
        self._is_closed = False
        #: The offset after the last event that was returned. `tail(stream_id, cursor)` continues there.
        self.cursor = since

    def __aiter__(self) -> Tail:
        return self

    async def __anext__(self) -> Any:
        async with self._steps:  # several tasks take turns, and each event is yielded once
            if self._is_closed:
                raise StopAsyncIteration
            if self._following is None:
                self._following = self._follow()
            try:
                return await anext(self._following)
            except BaseException:  # cancelled, or an error of the store: the next call continues at the cursor
                self._following = None
                raise

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        return self._read_new().__await__()

    async def aclose(self) -> None:
        """End the iteration, also for a task that waits in it. It may be called twice."""
        self._is_closed = True
        self._changed.set()
        async with self._steps:
            if self._following is not None:
                await self._following.aclose()

    async def _read_new(self) -> list[Any]:
        lines = await self._read_lines()
        self.cursor = lines[-1][1] if lines else self.cursor
        return [from_line(line, self._classes) for line, _ in lines]

    async def _follow(self) -> AsyncGenerator[Any, None]:
        async def notify(_path: str) -> None:
            self._changed.set()

        subscription = await self._store.on_change(self._path, notify)
        interval = _POLL_INTERVAL if isinstance(subscription, NoopChangeSubscription) else None
        try:
            while not self._is_closed:
                self._changed.clear()
                for line, end in await self._read_lines():
                    self.cursor = end
                    yield from_line(line, self._classes)
                try:
                    await asyncio.wait_for(self._changed.wait(), interval)
                except TimeoutError:
                    continue
        finally:
            await subscription.close()

    async def _read_lines(self) -> list[tuple[str, int]]:
        """Return the complete lines after the cursor, each with the offset after it."""
        lines = (await self._read_after_cursor()).split("\n")
        complete, end = [], self.cursor
        for number, line in enumerate(lines):
            is_last = number == len(lines) - 1
            if is_last and line.strip() and not is_complete(line):
                break
            end += len(line.encode(errors="surrogateescape")) + (not is_last)
            if line.strip():
                complete.append((line, end))
        return complete

    async def _read_after_cursor(self) -> str:
        if self.cursor:
            text = await _read_text(self._store, self._path, self.cursor - 1)
            before, new = text[:1], text[1:]
            if before and (not new or "\n" in (before, new[0])):
                return new
            self.cursor = 0  # no line ends at the cursor: the log was replaced
        return await _read_text(self._store, self._path)


async def _read_text(store: KnowledgeStore, path: str, start: int = 0) -> str:
    """Read a log from a byte offset on. Bytes of a partial line that are not UTF-8 become lone surrogates."""
    try:
        return await store.read_range(path, start)
    except UnicodeDecodeError as error:
        return bytes(error.object).decode(errors="surrogateescape")


def _log_path(stream_id: object) -> str:
    return f"{LOG_PREFIX}{stream_id}.jsonl"


def _segment_path(stream_id: object, number: object) -> str:
    return f"{LOG_PREFIX}{stream_id}.dropped-{number}.jsonl"
