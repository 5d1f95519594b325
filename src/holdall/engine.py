"""The boundary below the store: what an engine is, and what engines share.

An engine runs batches of ops (`holdall.ops`): point ops in order, in one atomic transaction, or exactly one walk. What
reaches it is checked already: namespaces, keys and limits are valid, `Put.value` is `Json`, a `ttl` is seconds, None or
KEEP, an `expect` is ANY, ABSENT or a version, a filter is parsed. So an engine only stores and finds.
`holdall.testing` has the suite that says whether it does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from .errors import Conflict, InvalidInput
from .keys import decode as decode_namespace
from .ops import ABSENT, ANY, Check, Delete, Entry, Hit, Op, Page, Put, Search
from .programs import Program
from .values import decode, to_datetime

#: Gives the time in microseconds since 1970.
Clock: TypeAlias = Callable[[], int]


def system_clock() -> int:
    """The machine's clock, for engines that have no server with one of its own."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can promise; the store and the contract suite ask before they rely on it."""

    durable: bool  # what was written is there after closing and opening again
    multiprocess: bool  # several processes may open the same store at once


class Engine(Protocol):
    """What `holdall.open` connects a store to."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can promise."""

    def execute(self, ops: Sequence[Op]) -> list[Any]:
        """Run a batch; the results come in its order. Any error leaves nothing of the batch behind."""

    async def aexecute(self, ops: Sequence[Op]) -> list[Any]:
        """`execute`, without blocking the event loop."""

    def setup(self) -> None:
        """Connect, create and migrate now rather than on first use."""

    async def asetup(self) -> None:
        """`setup`, without blocking the event loop."""

    def close(self) -> None:
        """Let go of everything; later batches raise `StoreClosed`. Closing twice is fine."""

    def before_fork(self) -> None:
        """Get to a state that a child process can inherit, and stay in it until `after_fork`."""

    def after_fork(self, in_child: bool) -> None:
        """Go on; in the child, with nothing that was the parent's."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `holdall.open` that concern engines; one that does not apply to an engine is ignored there."""

    timeout: float = 30.0
    durability: str = "full"
    indexed: tuple[str, ...] = ()
    clock: Clock | None = None


# A row is what an engine keeps of an entry: ns, key, value's text, version, created, updated, expires (microseconds).
Row: TypeAlias = tuple[str, str, str, int, int, int, int | None]


def to_entry(row: Row, kind: Callable[..., Any] = Entry) -> Any:
    """The `Entry` (or `Hit`) of a stored row."""
    ns, key, value, version, created, updated, expires = row
    created_at = to_datetime(created)
    return kind(
        decode_namespace(ns),
        key,
        decode(value),
        version,
        created_at,
        created_at if updated == created else to_datetime(updated),
        None if expires is None else to_datetime(expires),
    )


def check_expectation(op: Put | Delete | Check, actual: int | None) -> None:
    """Raise the `Conflict` of an op whose entry is at version `actual` (None: absent), if there is one."""
    if op.expect is ANY or op.expect == actual or (op.expect is ABSENT and actual is None):
        return
    raise conflict(op, actual)


def conflict(op: Put | Delete | Check, actual: int | None) -> Conflict:
    """The error of an op whose expectation did not hold."""
    expected = op.expect if isinstance(op.expect, int) else None
    return Conflict(type(op).__name__, op.namespace, op.key, expected, actual)


class Finder(Protocol):
    """How an engine finds entries for `search`: matching ones only, at most `want`.

    A *position* says where the feed stands, in the engine's own words.
    """

    def position(self) -> Program[str]:
        """Where the feed stands now."""

    def older(self, op: Search, below: int | None, want: int) -> Program[list[Hit]]:
        """Those with a version below this one, newest first; None: all."""

    def newer(self, op: Search, position: str, want: int) -> Program[list[tuple[Hit, str]]]:
        """Those that changed after a position, in the feed's order, each with the position after it."""


_CURSOR = re.compile(r"(\d{0,18})-(.+)", re.ASCII)


def search(finder: Finder, op: Search) -> Program[Page[Hit]]:
    """A page of a search: the rest of what the first page saw, newest first, then what has changed since.

    So an entry that matched all along comes at least once, whoever touches it meanwhile. A cursor says down to which
    version the first part was given (nothing: all of it), and after which position the second part goes on.
    """
    if op.limit == 0:
        return Page()
    if op.cursor is None:
        position = yield from finder.position()
        hits = yield from finder.older(op, None, op.offset + op.limit + 1)
        hits = hits[op.offset :]
        more = len(hits) > op.limit
        return Page(hits[: op.limit], f"{hits[op.limit - 1].version}-{position}" if more else None)
    cursor = _CURSOR.fullmatch(op.cursor)
    if cursor is None:
        raise InvalidInput(f"not a search cursor: {op.cursor!r:.60}")
    below, position = cursor.groups()
    hits = []
    if below:
        hits = yield from finder.older(op, int(below), op.limit + 1)
        if len(hits) > op.limit:
            return Page(hits[: op.limit], f"{hits[op.limit - 1].version}-{position}")
    changed = yield from finder.newer(op, position, op.limit + 1 - len(hits))
    room = op.limit - len(hits)
    hits += [hit for hit, _ in changed[:room]]
    if len(changed) <= room:
        return Page(hits)
    return Page(hits, f"-{changed[room - 1][1] if room else position}")


def parse_revision(position: str) -> int:
    """A position in the feed of an engine that counts its changes one by one."""
    if not re.fullmatch(r"\d{1,18}", position, re.ASCII):
        raise InvalidInput(f"not a cursor of this store: {position!r:.60}")
    return int(position)
