"""The boundary below the store: what an engine is, and what engines share.

An engine runs batches of ops (`holdall.ops`): point ops in order, in one atomic transaction, or exactly one walk. What
reaches it is checked already: namespaces, keys, paths and limits are valid, `Put.value` is `Json` or a `File`, a `ttl`
is seconds, None or KEEP, an `expect` is ANY, ABSENT or a version, a filter is parsed. So an engine only stores and
finds. `holdall.testing` has the suite that says whether it does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from . import keys, shapes
from .errors import (
    AlreadyExists,
    Conflict,
    HistoryGone,
    InvalidInput,
    IsADirectory,
    NotADirectory,
    NotFound,
    shown,
)
from .keys import decode as decode_namespace
from .ops import (
    ABSENT,
    ANY,
    Append,
    Check,
    Copy,
    Delete,
    Entry,
    FileInfo,
    FrozenStruct,
    Hit,
    Move,
    Op,
    Page,
    Put,
    Search,
)
from .programs import Program
from .values import decode, to_datetime

#: Gives the time in microseconds since 1970.
Clock: TypeAlias = Callable[[], int]


def system_clock() -> int:
    """The machine's clock, for engines that have no server with one of its own."""
    return time.time_ns() // 1000


class Capabilities(FrozenStruct, frozen=True):
    """What an engine can promise; the store and the contract suite ask before they rely on it."""

    durable: bool  # what was written is there after closing and opening again
    multiprocess: bool  # several processes may open the same store at once
    ranks: bool = False  # `Search` takes a query and a vector
    spans_roots: bool = True  # a batch may be about several roots, the first labels of namespaces


class Listener(Protocol):
    """What an engine does, in the background, to learn that somebody else has changed something."""

    def close(self) -> None:
        """Stop, and leave no thread behind. Closing twice is fine."""

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's, without disturbing it."""


class Engine(Protocol):
    """What `holdall.open` connects a store to.

    One that keeps indexes of its own may have an attribute `behind`: where it is true after an op that looks through
    files, the store sends it `ops.Tidy`. One that can be told of others' changes may have a method `listen(ring)`,
    which gives a `Listener` that calls `ring()` once it has begun, and then soon after anybody, in whichever process,
    has committed a change; from any thread, and rather once too often. Where several processes may use an engine that
    has none, those who watch look again and again.
    """

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


class Options(FrozenStruct, frozen=True):
    """The options of `holdall.open` that concern engines; one that does not apply to an engine is ignored there."""

    timeout: float = 30.0
    durability: str = "full"
    indexed: tuple[str, ...] = ()
    clock: Clock | None = None


# A row is what an engine keeps of an entry: ns, key, value's text, version, created, updated, expires (microseconds);
# and of a file, whose value is its shape: the bytes, whether they grew since it was put, and their number.
Row: TypeAlias = tuple[str, str, str, int, int, int, int | None, bytes | None, int | None, int | None]
NO_FILE = (None, None, None)


def to_entry(row: Row, kind: Callable[..., Any] = Entry) -> Any:
    """The `Entry` (or `Hit`) of a stored row."""
    ns, key, value, version, created, updated, expires, content, appended, size = row
    created_at = to_datetime(created)
    return kind(
        decode_namespace(ns),
        key,
        decode(value) if size is None else shapes.item(value, content or b"", created, updated, bool(appended)),
        version,
        created_at,
        created_at if updated == created else to_datetime(updated),
        None if expires is None else to_datetime(expires),
    )


def put_entry(op: Put, value: dict[str, Any], version: int, created: int, updated: int, expires: int | None) -> Entry:
    """The `Entry` that a put has left, where its value has been decoded already."""
    created_at = to_datetime(created)
    updated_at = created_at if updated == created else to_datetime(updated)
    expires_at = None if expires is None else to_datetime(expires)
    return Entry(op.namespace, op.key, value, version, created_at, updated_at, expires_at)


def to_info(path: str, size: int, version: int, created: int, updated: int) -> FileInfo:
    """The `FileInfo` of a stored file."""
    created_at = to_datetime(created)
    return FileInfo(path, False, size, version, created_at, created_at if updated == created else to_datetime(updated))


def check_unblocked(path: str, files: Iterable[str]) -> None:
    """Raise what `CheckPath` raises, where one of these is a file: a parent of the path, or one below it."""
    for file in files:
        if len(file) > len(path):
            raise IsADirectory(f"{path!r} is a folder; a file cannot have its name")
        raise NotADirectory(f"{file!r} is a file, so nothing can be in it: {path!r}")


def check_transfer(op: Move | Copy, sources: Sequence[str], there: Iterable[str]) -> None:
    """Raise what `Move` and `Copy` raise: `sources` are the files they mean, `there` those at or in the destination."""
    if not sources:
        raise NotFound(f"there is no file or folder {op.src!r}")
    is_folder = any(path != op.src for path in sources)
    for path in sources:
        keys.check_key(op.dst + path[len(op.src) :])
    for file in there:
        if file != op.dst:
            raise IsADirectory(f"{op.dst!r} is a folder already; name a path in it, or delete it first")
        if is_folder:
            raise AlreadyExists(f"{op.dst!r} is a file; a folder cannot replace it")


def transferred(op: Move | Copy, info: FileInfo | None) -> FileInfo:
    """What `Move` and `Copy` answer: the destination's file, or the folder."""
    return info or FileInfo(op.dst + "/", is_dir=True)


def item_in_the_way(op: Append) -> AlreadyExists:
    return AlreadyExists(f"{op.key!r} is an item, not a file: it cannot grow, only be replaced")


def check_expectation(op: Append | Put | Delete | Check, actual: int | None) -> None:
    """Raise the `Conflict` of an op whose entry is at version `actual` (None: absent), if there is one."""
    if op.expect is ANY or op.expect == actual or (op.expect is ABSENT and actual is None):
        return
    raise conflict(op, actual)


def conflict(op: Append | Put | Delete | Check, actual: int | None) -> Conflict:
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


def feed_from(since: str | None, newest: int, forgotten: int) -> tuple[int, Callable[[int], str]]:
    """Where to go on in the feed of an engine that counts its changes one by one, and what the position after one is.

    `newest` is the last change there is, `forgotten` the last tombstone that was removed. Whoever reads on from before
    that would never learn of a deletion; but not one that began with nothing later than that, who has not seen what was
    deleted. So a position on the way from the beginning (`57-1000`) also says where the feed stood then.
    """
    match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", f"0-{newest}" if since is None else since, re.ASCII)
    if match is None:
        raise not_a_cursor(since)
    at, began = int(match[1]), int(match[2] or 0)
    if not forgotten <= max(at, began) <= newest:
        raise history_gone(since)
    return at, lambda version: str(version) if version >= began else f"{version}-{began}"


def history_gone(since: str | None) -> HistoryGone:
    return HistoryGone(
        f"the changes after the cursor {shown(since, 60)} are not all known any more (see the option history=), or it"
        " is another store's: take a new one from store.cursor(), read what is there now, and watch since= that cursor"
    )


def not_a_cursor(position: str | None) -> InvalidInput:
    return InvalidInput(f"not a cursor of this store: {shown(position, 60)}")


def parse_revision(position: str) -> int:
    """A position in the feed of an engine that counts its changes one by one."""
    if not re.fullmatch(r"\d{1,18}", position, re.ASCII):
        raise not_a_cursor(position)
    return int(position)
