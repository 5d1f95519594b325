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

    capabilities: Capabilities

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
    sweep_interval: float | None = 60.0
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
    found = "it is absent" if actual is None else f"it is at version {actual}"
    wanted = "to be absent" if op.expect is ABSENT else f"at version {op.expect}"
    return Conflict(
        f"{type(op).__name__} of {op.key!r} in {op.namespace!r} expected it {wanted}, but {found}; read it and retry",
        namespace=op.namespace,
        key=op.key,
        expected=op.expect if isinstance(op.expect, int) else None,
        actual=actual,
    )


@dataclass(frozen=True, slots=True)
class Paging:
    """Where a search stands: the rest of what its first page saw, newest first, then what changed since.

    `below` is the version down to which the first part was given, None once all of it was. `above` is the version up
    to which the second part was given; it begins as the revision of the first page.
    """

    below: int | None
    above: int

    @classmethod
    def parse(cls, cursor: str) -> Paging:
        match = re.fullmatch(r"(\d{0,18})-(\d{1,18})", cursor, re.ASCII)
        if match is None:
            raise InvalidInput(f"not a search cursor: {cursor!r:.60}")
        return cls(int(match[1]) if match[1] else None, int(match[2]))

    def __str__(self) -> str:
        return f"{'' if self.below is None else self.below}-{self.above}"


class Finder(Protocol):
    """How an engine finds entries for `search`: matching ones only, at most `want`."""

    def newest(self) -> Program[int]:
        """The revision that the feed has reached."""

    def older(self, op: Search, below: int, want: int) -> Program[list[Hit]]:
        """Those with a lower version, newest first."""

    def newer(self, op: Search, above: int, want: int) -> Program[list[Hit]]:
        """Those with a higher version, oldest first."""


def search(finder: Finder, op: Search) -> Program[Page[Hit]]:
    """A page of a search: stable under writes, so that what matched all along comes at least once."""
    if op.cursor is None:
        newest = yield from finder.newest()
        paging = Paging(newest + 1, newest)
    else:
        paging = Paging.parse(op.cursor)
    if op.limit == 0:
        return Page()
    hits: list[Hit] = []
    if paging.below is not None:
        hits = yield from finder.older(op, paging.below, op.offset + op.limit + 1)
        hits = hits[op.offset :]
        if len(hits) > op.limit:
            return Page(hits[: op.limit], str(Paging(hits[op.limit - 1].version, paging.above)))
    if op.cursor is None:
        return Page(hits)
    hits += yield from finder.newer(op, paging.above, op.limit + 1 - len(hits))
    if len(hits) <= op.limit:
        return Page(hits)
    return Page(hits[: op.limit], str(Paging(None, max(paging.above, hits[op.limit - 1].version))))
