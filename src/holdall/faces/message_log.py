"""Message logs: the messages of a session, in order, for frameworks that keep a conversation as a list.

A log has one entry for each message, and one entry for itself: its head, which has the number of messages. Every change
of a log changes its head in the same transaction. So processes that append or remove at the same time lose nothing, and
a log is listed and found by its head.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from .. import ABSENT, Entry, Store, ops
from ..core import face_api
from ..core.face_api import StoreProgram, retry_conflicts
from ..errors import Conflict, InvalidInput, NotFound
from ..ops import Namespace, Value

Head: TypeAlias = dict[str, Any]

_AT_ONCE = 1000  # messages that one batch reads
_DIGITS = 10


@dataclass(frozen=True, slots=True)
class MessageLog:
    """The log `name`: its head is the entry `name` of `heads`, and its messages are the entries of `messages`."""

    store: Store
    heads: Namespace
    name: str
    messages: Namespace

    @classmethod
    def below(cls, store: Store, heads: Namespace, name: str) -> Self:
        """Return a log whose messages are in a namespace with its name, below the one of its head."""
        return cls(store, heads, name, face_api.check_namespace((*heads, name)))

    def read_head(self) -> StoreProgram[Entry | None]:
        """Read the head: None if there is no such log."""
        entry: Entry | None
        [entry] = yield [ops.Get(self.heads, self.name)]
        if entry is not None and not is_head(entry):
            raise InvalidInput(
                f"{self.name!r} in {self.heads!r} is an item of something else; use another name or namespace"
            )
        return entry

    def read(self, limit: int | None = None) -> StoreProgram[tuple[Entry | None, list[dict[str, Any]]]]:
        """Read the head and the messages, or the last `limit` of them, as they were at one moment."""
        head, entries = yield from self.read_entries(limit)
        return head, [entry.value for entry in entries]

    def read_entries(self, limit: int | None = None) -> StoreProgram[tuple[Entry | None, list[Entry]]]:
        """`read`, with the entries of the messages."""

        def attempt() -> StoreProgram[tuple[Entry | None, list[Entry]]]:
            head = yield from self.read_head()
            if head is None:
                return None, []
            length = head.value["length"]
            numbers = range(0 if limit is None else max(0, length - max(limit, 0)), length)
            entries: list[Entry | None] = []
            for some in _slices(numbers):
                gets = [ops.Get(self.messages, _key(number)) for number in some]
                _, *found = yield [ops.Check(self.heads, self.name, head), *gets]
                entries += found
            return head, [entry for entry in entries if entry is not None]  # an old one may have expired

        return (yield from retry_conflicts(attempt))

    def read_one(self, number: int) -> StoreProgram[Entry | None]:
        """Read the entry of a message; -1 is the last one. None if there is no such message."""
        if number < 0:
            head = yield from self.read_head()
            number += 0 if head is None else head.value["length"]
        entry: Entry | None = None
        if number >= 0:
            [entry] = yield [ops.Get(self.messages, _key(number))]
        return entry

    def append(
        self,
        messages: Sequence[Value],
        change_head: Callable[[Head], Head] | None = None,
        *,
        create: bool = True,
        further: Sequence[ops.PointOp] = (),
    ) -> StoreProgram[Entry]:
        """Add messages to the end, and run `further` ops in the same transaction. Returns the new head.

        `change_head` gets the head's value and returns the new one. Without `create`, a missing log is `NotFound`.
        """

        def change(head: Entry | None) -> tuple[int, Sequence[Value], Head]:
            if head is None and not create:
                raise NotFound(f"there is no {self.name!r} in {self.heads!r}")
            value = {"length": 0} if head is None else head.value
            return value["length"], messages, value if change_head is None else change_head(value)

        return (yield from self._write(change, further))

    def replace(self, messages: Sequence[Value]) -> StoreProgram[Entry]:
        """Replace all messages."""
        return (yield from self._write(lambda head: (0, messages, {} if head is None else head.value)))

    def cut(self, length: int) -> StoreProgram[Entry]:
        """Remove the messages from number `length` on."""
        return (yield from self._write(lambda head: (length, [], {} if head is None else head.value)))

    def remove(self, number: int) -> StoreProgram[dict[str, Any] | None]:
        """Remove a message by its number, from the end if it is negative, and return it: None if there is none.

        It rewrites those behind it. Numbers are those of the messages that `read` returns.
        """

        def attempt() -> StoreProgram[dict[str, Any] | None]:
            head, entries = yield from self.read_entries()
            if head is None or not -len(entries) <= number < len(entries):
                return None
            removed, *behind = entries[number % len(entries) :]
            batch = self._write_from(int(removed.key), [entry.value for entry in behind], head, head.value)
            yield from face_api.execute(self.store, batch)
            return removed.value

        return (yield from retry_conflicts(attempt))

    def replace_end(
        self, seen: Entry, number: int, messages: Sequence[Value], is_unwanted: Callable[[Any], bool] | None = None
    ) -> StoreProgram[bool]:
        """Replace the messages from `number` on, and return True: False if the head is not `seen` any more.

        Messages at the beginning of the log for which `is_unwanted` is true are removed in the same transaction.
        """
        kept: Sequence[Value] = ()
        if is_unwanted is not None:
            _, entries = yield from self.read_entries()
            before = [entry.value for entry in entries if int(entry.key) < number]
            wanted = list(itertools.dropwhile(is_unwanted, before))
            if len(wanted) < len(before):
                number, kept = 0, wanted
        try:
            yield from face_api.execute(self.store, self._write_from(number, [*kept, *messages], seen, seen.value))
        except Conflict:
            return False
        return True

    def pop(self) -> StoreProgram[dict[str, Any] | None]:
        """Remove the last message and return it: None if there is none."""

        def attempt() -> StoreProgram[dict[str, Any] | None]:
            head = yield from self.read_head()
            while head is not None and head.value["length"]:
                length = head.value["length"] - 1
                last = _key(length)
                batch = [
                    ops.Get(self.messages, last),
                    ops.Delete(self.messages, last),
                    ops.Put(self.heads, self.name, {**head.value, "length": length}, expect=head),
                ]
                entry, _, head = yield from face_api.execute(self.store, batch)
                if entry is not None:
                    found: dict[str, Any] = entry.value
                    return found  # otherwise it has expired
            return None

        return (yield from retry_conflicts(attempt))

    def take_all(self) -> StoreProgram[list[dict[str, Any]] | None]:
        """Delete the log and return its messages: None if there is no such log."""

        def attempt() -> StoreProgram[list[dict[str, Any]] | None]:
            head, messages = yield from self.read()
            if head is None:
                return None
            batch = [ops.Delete(self.heads, self.name, expect=head), ops.DeleteTree(self.messages)]
            yield from face_api.execute(self.store, batch)
            return messages

        return (yield from retry_conflicts(attempt))

    def delete(self) -> StoreProgram[bool]:
        """Delete the log with all its messages. Returns whether it was there."""

        def attempt() -> StoreProgram[bool]:
            head = yield from self.read_head()
            heads = [] if head is None else [ops.Delete(self.heads, self.name, expect=head)]
            yield from face_api.execute(self.store, [*heads, ops.DeleteTree(self.messages)])
            return head is not None

        return (yield from retry_conflicts(attempt))

    def _write(
        self, change: Callable[[Entry | None], tuple[int, Sequence[Value], Head]], further: Sequence[ops.PointOp] = ()
    ) -> StoreProgram[Entry]:
        """Write messages from a number on, remove those behind them, and write the head, if it is as it was read."""

        def attempt() -> StoreProgram[Entry]:
            head = yield from self.read_head()
            start, messages, value = change(head)
            batch = [*self._write_from(start, messages, head, value), *further]
            written: Entry = (yield from face_api.execute(self.store, batch))[0]
            return written

        return (yield from retry_conflicts(attempt))

    def _write_from(self, start: int, messages: Sequence[Value], head: Entry | None, value: Head) -> list[ops.PointOp]:
        """Return the ops that write messages from a number on, and the head, if it is still `head`."""
        before = 0 if head is None else head.value["length"]
        start = min(start, before)
        end = start + len(messages)
        return [
            ops.Put(self.heads, self.name, {**value, "length": end}, expect=ABSENT if head is None else head),
            *(ops.Put(self.messages, _key(start + index), message) for index, message in enumerate(messages)),
            *(ops.Delete(self.messages, _key(number)) for number in range(end, before)),
        ]


def is_head(entry: Entry) -> bool:
    """Whether an entry is the head of a log, and not an item of another face in the same namespace."""
    return type(entry.value.get("length")) is int


def _key(number: int) -> str:
    return f"{number:0{_DIGITS}}"


def _slices(numbers: range) -> Iterator[range]:
    return (numbers[start : start + _AT_ONCE] for start in range(0, len(numbers), _AT_ONCE))
