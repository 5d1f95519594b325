"""What a saver remembers of logs, and how it makes LangGraph's tuples from them."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from .... import Entry
from ....errors import Corrupt, shown
from .grown_lists import StoredList
from .log import Checkpoint, Log, Part, Pointer

_MAIN, _SUB = "/main", "/sub/"
#: The name of the file in its folder.
LOG_NAME = "/log"
#: How many lists of a channel are remembered: forks of a thread have different ones.
_MOST_LISTS = 3
_ELEMENT_SIZE = 1000  # what a remembered element of a list takes, about


class Address(NamedTuple):
    """A log: its thread, and its checkpoint namespace."""

    thread_id: str
    checkpoint_ns: str

    @property
    def path(self) -> str:
        if not self.checkpoint_ns:
            return _MAIN + LOG_NAME
        name = quote(self.checkpoint_ns, safe=":|")
        return _SUB + (name if name.strip(".") else name.replace(".", "%2E")) + LOG_NAME  # "." and ".." are no names


def checkpoint_ns_of(path: str) -> str:
    """Return the checkpoint namespace of a log."""
    return unquote(path.removeprefix(_SUB).removesuffix(LOG_NAME)) if path.startswith(_SUB) else ""


def ttl_of(generation: Entry | None, ttl: float | None) -> float | None:
    """Return the TTL of a thread, which it got from the saver that began it, or from `set_ttl`.

    `ttl` is that of this saver, for a thread that begins now.
    """
    if generation is None:
        return ttl
    own: float | None = generation.value.get("ttl", ttl if generation.expires_at else None)
    return own


class KnownLog:
    """What a saver remembers of a log: its content up to some size, and the lists that were last read or written."""

    def __init__(self, log: Log, generation: Entry | None, ttl: float | None) -> None:
        self.log = log
        self.ttl = ttl_of(generation, ttl)
        self.generation = None if generation is None else generation.version
        self.lists: dict[str, list[StoredList]] = {}  # of each channel the last ones, the newest first

    @property
    def weight(self) -> int:
        """About how many bytes this takes."""
        lists = list(self.lists.values())  # copied at once: other threads add to them
        return self.log.size + _ELEMENT_SIZE * sum(len(stored) for stored in itertools.chain(*lists))

    def add_lists(self, lists: Mapping[str, StoredList]) -> None:
        for channel, stored in lists.items():
            others = (each for each in self.lists.get(channel, ()) if each.last_link != stored.last_link)
            self.lists[channel] = [stored, *others][:_MOST_LISTS]

    def extend(self, offset: int, more: bytes) -> None:
        """Add what was read or appended at an offset, unless something before it is missing here."""
        known = self.log.size - offset  # bytes of it, which another thread has added
        if 0 <= known < len(more):
            self.log.extend(more[known:])


class KnownLogs:
    """The logs that a saver remembers: of about so many bytes in all, those that were used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._logs: OrderedDict[Address, KnownLog] = OrderedDict()
        self._weights: dict[Address, int] = {}  # when they were remembered
        self._weight = 0
        self.lock = threading.Lock()

    def recall(self, address: Address) -> KnownLog | None:
        with self.lock:
            known = self._logs.get(address)
            if known is not None:
                self._logs.move_to_end(address)
            return known

    def remember(self, address: Address, known: KnownLog) -> None:
        with self.lock:
            self._drop(address)
            self._logs[address], self._weights[address] = known, known.weight
            self._weight += known.weight
            while self._weight > self._most and len(self._logs) > 1:
                self._drop(next(iter(self._logs)))

    def forget(self, address: Address) -> None:
        with self.lock:
            self._drop(address)

    def forget_thread(self, thread_id: str) -> None:
        with self.lock:
            for address in [address for address in self._logs if address.thread_id == thread_id]:
                self._drop(address)

    def clear(self) -> None:
        with self.lock:
            for address in list(self._logs):
                self._drop(address)

    def _drop(self, address: Address) -> None:
        if self._logs.pop(address, None) is not None:
            self._weight -= self._weights.pop(address)


class Loader:
    """Makes LangGraph's tuples from a log. An element that several checkpoints share is deserialised once."""

    def __init__(self, address: Address, log: Log) -> None:
        self._address = address
        self._log = log
        self._values: dict[bytes, Any] = {}
        self._lists: dict[bytes, tuple[list[Any], int]] = {}  # of each link a list that begins with its elements

    @property
    def size(self) -> int:
        """How many bytes the log has."""
        return self._log.size

    def load(self, id: str) -> CheckpointTuple:
        """Return a checkpoint."""
        log, record = self._log, self._log.checkpoint(id)
        checkpoint = self.body(record, id)
        checkpoint["channel_values"] = {
            channel: self.value(channel, pointer) for channel, pointer in record.pointers.items()
        }
        return CheckpointTuple(
            config=make_config(self._address, id),
            checkpoint=checkpoint,
            metadata=self._read_dict(record.metadata),
            parent_config=None if record.parent is None else make_config(self._address, record.parent),
            pending_writes=[
                (write.task_id, write.channel, self.read(write.part, write.channel)) for write in log.writes(id)
            ],
        )

    def body(self, record: Checkpoint, id: str) -> Any:
        """Return a checkpoint without its values."""
        return {"id": id, **self._read_dict(record.body)}

    def time(self, id: str) -> float:
        """Return when a checkpoint was made, in seconds since 1970."""
        text = self.body(self._log.checkpoint(id), id).get("ts")
        try:
            return datetime.fromisoformat(text).timestamp()
        except (TypeError, ValueError) as error:
            raise Corrupt(f"the checkpoint {id} has no time: {shown(text)}; restore a copy of the store") from error

    def metadata(self, id: str) -> Any:
        return self._read_dict(self._log.checkpoint(id).metadata)

    def _read_dict(self, part: Part) -> Any:
        value = self.read(part, "")
        if type(value) is not dict:
            raise Corrupt(f"a checkpoint is damaged: {shown(value)} is no dict; restore a copy of the store")
        return value

    def read(self, part: Part, channel: str) -> Any:
        return self._log.codec.deserialise(self._log.typed(channel, part))

    def value(self, channel: str, pointer: Pointer) -> Any:
        if not isinstance(pointer, bytes):
            return self.read(pointer[0], channel)
        if pointer in self._values:
            return self._values[pointer]
        new, before = self._log.chain(pointer, self._lists)
        if before is None:
            self._values[pointer] = self.read(new[0][1].parts[0], channel)
            return self._values[pointer]
        elements, end = self._lists.get(before, ([], 0))
        if len(elements) > end:  # the rest is of a fork
            elements = elements[:end]
        new.reverse()
        typed = [self._log.typed(channel, part) for _, link in new for part in link.parts]
        elements += self._log.codec.deserialise_all(typed)
        for link_id, link in new:
            end += len(link.parts)
            self._lists[link_id] = elements, end
        return elements[:end]


class KnownLoader(Loader):
    """Shares nothing with what was read before, and remembers the lists that it reads, in their serialised form."""

    def __init__(self, address: Address, known: KnownLog) -> None:
        super().__init__(address, known.log)
        self._known = known

    def value(self, channel: str, pointer: Pointer) -> Any:
        if not isinstance(pointer, bytes):
            return self.read(pointer[0], channel)
        lists = self._known.lists.get(channel, ())
        new, before = self._log.chain(pointer, *(each.ends for each in lists))
        if before is None:
            return self.read(new[0][1].parts[0], channel)
        known = next((each for each in lists if before in each.ends), None)
        stored = StoredList() if known is None else known.cut(known.ends[before])
        typed, ends = stored.typed, stored.ends
        for id, link in reversed(new):
            for part in link.parts:  # the usual case without a call, which is 0.1 ms for 400 messages
                typed.append(("msgpack", part) if type(part) is bytes else self._log.typed(channel, part))
            ends[id] = len(typed)
        if new:
            self._known.add_lists({channel: stored})
        return self._log.codec.deserialise_all(stored.typed)


def make_config(address: Address, id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": address.thread_id,
            "checkpoint_ns": address.checkpoint_ns,
            "checkpoint_id": id,
        }
    }
