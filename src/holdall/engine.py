"""The interface between the store and engines, and functions that engines share.

An engine runs batches of ops (`holdall.ops`): point ops in order, in one atomic transaction, or exactly one walk. The
store has checked them: namespaces, keys, paths and limits are valid, `Put.value` is `Json` or a `File`, a `ttl` is
seconds, None or KEEP, an `expect` is ANY, ABSENT or a version, and filters and globs are valid texts. `holdall.testing`
has the contract suite that tests an engine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from .errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    CursorExpired,
    FileNotFound,
    HistoryGone,
    InvalidInput,
    IsADirectory,
    NotADirectory,
    shown,
)
from .model import file_values, filters, globs, keys
from .model.keys import decode as decode_namespace
from .model.values import decode, to_datetime
from .ops import (
    ABSENT,
    ANY,
    READS,
    WALKS,
    Append,
    Change,
    ChangedRecords,
    Changes,
    Check,
    Children,
    Copy,
    Count,
    CountVectors,
    Delete,
    Embed,
    Entry,
    Fault,
    File,
    FileInfo,
    FindFaults,
    Forget,
    Forgotten,
    FrozenStruct,
    GetSearchFields,
    GetVersion,
    Grep,
    HistoryReach,
    Hit,
    IndexLag,
    IndexOrder,
    IndexTexts,
    Json,
    LearnedField,
    LearnFields,
    ListPast,
    ListVersions,
    Maintain,
    Move,
    MoveSlice,
    Namespaces,
    OldEntry,
    OldHead,
    OldVersion,
    Op,
    Page,
    PurgeHistory,
    PurgeTombstones,
    Put,
    ReadStats,
    Record,
    RecordPage,
    Records,
    Remember,
    RepairFaults,
    Scan,
    Scrub,
    Scrubbed,
    Search,
    SetChange,
    SetHistory,
    Stats,
    Sweep,
    Unembedded,
    Vector,
    Vectors,
)
from .runtime.programs import Program
from .runtime.signals import restart_if_signaled, run_pending_handlers
from .search.ranking import LARGEST_GAP, MOST_EXACT, LocalRanking, Ranker, Ranking, rank_entries, sort_by_score
from .search.scoring import bm25
from .search.text_index import TextIndex, texts
from .search.tokens import has_phrases

if TYPE_CHECKING:
    from .search.vectors import Matrix
else:

    def __getattr__(name: str) -> Any:
        """Import `Matrix` when it is used: it needs numpy, which is not always installed."""
        if name == "Matrix":
            from .search.vectors import Matrix

            return Matrix
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


#: What an engine author needs: the interface, the ops that only engines see, and functions that engines share.
__all__ = [
    "LARGEST_GAP",
    "MOST_EXACT",
    "NO_FILE",
    "PAGE_BYTES",
    "READS",
    "WALKS",
    "Capabilities",
    "ChangedRecords",
    "Changes",
    "Children",
    "Clock",
    "Count",
    "CountVectors",
    "Embed",
    "Engine",
    "Fault",
    "File",
    "FindFaults",
    "Finder",
    "Forget",
    "Forgotten",
    "GetSearchFields",
    "GetVersion",
    "Grep",
    "HistoryReach",
    "HistorySetting",
    "IndexLag",
    "IndexOrder",
    "IndexTexts",
    "Json",
    "LearnFields",
    "LearnedField",
    "ListPast",
    "ListVersions",
    "Listener",
    "LocalRanking",
    "Maintain",
    "Matrix",
    "MoveSlice",
    "Namespaces",
    "OldEntry",
    "OldHead",
    "OldVersion",
    "Op",
    "Options",
    "PoolState",
    "Program",
    "PurgeHistory",
    "PurgeTombstones",
    "Ranker",
    "Ranking",
    "ReadStats",
    "Record",
    "RecordPage",
    "Records",
    "Remember",
    "RepairFaults",
    "Row",
    "Scan",
    "Scrub",
    "Scrubbed",
    "Search",
    "SetChange",
    "SetHistory",
    "Stats",
    "Sweep",
    "TextIndex",
    "Unembedded",
    "Vector",
    "Vectors",
    "bm25",
    "check_expectation",
    "check_transfer",
    "check_unblocked",
    "conflict",
    "corrupt_entry",
    "cursor_expired",
    "decode_acting",
    "end_of",
    "feed_from",
    "filters",
    "globs",
    "has_phrases",
    "history_gone",
    "item_exists",
    "keys",
    "no_history",
    "not_a_cursor",
    "parse_revision",
    "put_entry",
    "rank_entries",
    "restart_if_signaled",
    "run_pending_handlers",
    "search",
    "sort_by_score",
    "system_clock",
    "texts",
    "to_change",
    "to_entry",
    "to_info",
    "to_old_entry",
    "transfer_result",
]

#: The requests that an engine's programs yield.
RequestT = TypeVar("RequestT", covariant=True)
#: Returns the time in microseconds since 1970.
Clock: TypeAlias = Callable[[], int]


def system_clock() -> int:
    """Read the clock of this machine, for engines without a server that has a clock."""
    return time.time_ns() // 1000


class PoolState(NamedTuple):
    """Connections of an engine to its server: open, idle, how many may be open; and callers that wait for one."""

    open: int
    idle: int
    most: int
    waiting: int


class Capabilities(FrozenStruct, frozen=True):
    """What an engine guarantees. The store and the contract suite rely on nothing else."""

    durable: bool  # writes survive closing and reopening
    multiprocess: bool  # several processes may open the same store at once
    ranks: bool = False  # `Search` takes a query and a vector
    learns: bool = False  # `LearnFields` builds indexes of fields
    keeps_history: bool = False  # old values are kept if `SetHistory` asks for it
    spans_roots: bool = True  # a batch may write to several roots (first labels of namespaces)
    remembers: bool = False  # a batch may end with `Remember`
    moves_in_slices: bool = False  # `MoveSlice` moves some files of a folder


class Listener(Protocol):
    """Waits in the background for changes by other processes."""

    def close(self) -> None:
        """Stop, and end all threads. Closing twice does no harm."""

    def abandon(self) -> None:
        """In a forked child: drop what belongs to the parent, without affecting it."""


class Engine(Protocol):
    """The storage below a store, which `holdall.open` connects.

    No signal interrupts the sync methods. One that waits for long checks for signals with `restart_if_signaled` or
    `run_pending_handlers`.

    An engine that can answer some batches without waiting may have a method `look_up(ops)`, which returns the results
    or None. A signal may interrupt that method, so it must take no lock.

    No signal interrupts a step of `aexecute` either, which costs 10 to 20 us a call. The class of an engine sets
    `is_async_reentrant` to True if a signal handler may call the store in the middle of `aexecute`: then no step is
    protected.

    An engine with indexes of its own may have an attribute `needs_maintenance`. While it is true, the store sends
    `Maintain` in the background.

    An engine that talks to a server may have a method `aexecute_joined(ops)`. It runs gets, or puts of items under no
    condition, that several tasks send at once and that need no common outcome. It returns the result or the exception
    of each op, or None if nothing was done and each op must be executed alone. One op must not hold up the others.

    An engine with a pool of connections may have a method `describe_pool()`, which returns a `PoolState` for metrics.

    An engine that can wait for changes by other processes may have a method `listen(notify)`. It returns a `Listener`,
    which calls `notify()` once it has started, and soon after each commit by any process, from any thread. Extra calls
    do no harm. Where a multiprocess engine has no `listen`, subscriptions poll.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this engine guarantees."""

    def execute(self, ops: Sequence[Op]) -> list[Any]:
        """Run a batch; return its results in order. After an error, no op of the batch has an effect."""

    async def aexecute(self, ops: Sequence[Op]) -> list[Any]:
        """`execute`, without blocking the event loop."""

    def setup(self) -> None:
        """Connect, create and migrate now rather than on first use."""

    async def asetup(self) -> None:
        """`setup`, without blocking the event loop."""

    def close(self) -> None:
        """Release all resources; later batches raise `StoreClosed`. Closing twice does no harm."""

    def before_fork(self) -> None:
        """Reach a state that a child process can inherit, and stay in it until `after_fork`."""

    def after_fork(self, in_child: bool) -> None:
        """Resume. A child drops everything that belongs to the parent."""


class Options(FrozenStruct, frozen=True):
    """The options of `holdall.open` for engines. An engine ignores those that do not apply to it."""

    timeout: float = 30.0
    durability: str = "full"
    filter_fields: tuple[str, ...] = ()
    clock: Clock | None = None


# An entry as engines store it: encoded namespace, key, JSON text of the value, version, created, updated, expires (in
# microseconds). Of a file, the value is its template, and there are: content, whether it was appended to since it was
# put, size. Of an item, these three are None.
Row: TypeAlias = tuple[str, str, str, int, int, int, int | None, bytes | None, int | None, int | None]
NO_FILE = (None, None, None)
#: The most bytes of file contents in a page of several entries.
PAGE_BYTES = 8 << 20
#: The errors that decoding damaged data may raise.
DECODE_ERRORS = (Corrupt, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
_KINDS = frozenset({"put", "delete", "expire"})


def to_entry(row: Row, kind: Callable[..., Any] = Entry) -> Any:
    """Make the `Entry` (or `Hit`) of a stored row; `Corrupt` if the row is damaged."""
    ns, key, value, version, created, updated, expires, content, appended, size = row
    try:
        created_at = to_datetime(created)
        if size is None:
            fields = decode(value)
        else:
            fields = file_values.to_item(value, content or b"", created, updated, bool(appended), size)
        if type(fields) is not dict or type(key) is not str:
            raise Corrupt(f"not a key and an object: {shown(key)}, {shown(fields)}")
        return kind(
            decode_namespace(ns),
            key,
            fields,
            version,
            created_at,
            created_at if updated == created else to_datetime(updated),
            None if expires is None else to_datetime(expires),
        )
    except DECODE_ERRORS as error:
        raise corrupt_entry(ns, key, error) from error


def corrupt_entry(ns: Any, key: Any, error: Exception) -> Corrupt:
    """Make the error for a stored row that is not a valid entry."""
    try:
        where = repr(decode_namespace(ns))
    except Corrupt:
        where = f"a damaged namespace, {shown(ns)}"
    return Corrupt(
        f"the entry {shown(key)} in {where} is damaged ({error}); other entries can be read: put or delete this one, or"
        " restore a copy of the store"
    )


def to_change(version: int, ns: str, key: str, kind: Any, cursor: str, acting: str | None = None) -> Change:
    """Make the `Change` of a stored row."""
    if type(key) is not str or kind not in _KINDS:
        raise corrupt_entry(ns, key, ValueError(f"not a change: {shown(kind)}"))
    return Change(version, decode_namespace(ns), key, kind, cursor, *decode_acting(acting))


def decode_acting(acting: str | None) -> tuple[str | None, str | None]:
    """Return the author and the reason of a change."""
    if acting is None:
        return None, None
    found = decode(acting)
    return found.get("author"), found.get("reason")


def to_old_entry(row: Row, search_fields: str | None, ttl: int | None) -> OldEntry:
    """Make the `OldEntry` of a stored row. Without its content, it has no `file`."""
    entry, content, size = to_entry(row), row[7], row[9]
    file = None if size is None or (content is None and size) else File(Json(row[2]), content or b"")
    return OldEntry(entry, file, search_fields, ttl)


def put_entry(op: Put, value: dict[str, Any], version: int, created: int, updated: int, expires: int | None) -> Entry:
    """Make the `Entry` that a put has written, of a value that is decoded already."""
    created_at = to_datetime(created)
    updated_at = created_at if updated == created else to_datetime(updated)
    expires_at = None if expires is None else to_datetime(expires)
    return Entry(op.namespace, op.key, value, version, created_at, updated_at, expires_at)


def to_info(path: str, size: int, version: int, created: int, updated: int) -> FileInfo:
    """Make the `FileInfo` of a stored file."""
    try:
        created_at = to_datetime(created)
        updated_at = created_at if updated == created else to_datetime(updated)
        if type(path) is not str or type(size) is not int:
            raise Corrupt(f"not a path and a size: {shown(path)}, {shown(size)}")
        return FileInfo(path, False, size, version, created_at, updated_at)
    except DECODE_ERRORS as error:
        raise Corrupt(f"the file {shown(path)} is damaged ({error}); write or delete it, or restore a copy") from error


def check_unblocked(path: str, files: Iterable[str]) -> None:
    """Raise the error of `CheckPath` if there is a file that is a parent of the path, or below it."""
    for file in files:
        if len(file) > len(path):
            raise IsADirectory(f"{path!r} is a folder; a file cannot have its name")
        raise NotADirectory(f"{file!r} is a file, so nothing can be in it: {path!r}")


def check_transfer(op: Move | Copy, sources: Sequence[str], there: Iterable[str]) -> None:
    """Raise the error of `Move` or `Copy`. `sources` are the files to transfer, `there` those at the destination."""
    if not sources:
        raise FileNotFound(f"there is no file or folder {op.src!r}")
    is_folder = any(path != op.src for path in sources)
    for path in sources:
        keys.check_key(op.dst + path[len(op.src) :])
    for file in there:
        if file != op.dst:
            raise IsADirectory(f"{op.dst!r} is a folder already; name a path in it, or delete it first")
        if is_folder:
            raise AlreadyExists(f"{op.dst!r} is a file; a folder cannot replace it")


def transfer_result(op: Move | Copy, info: FileInfo | None) -> FileInfo:
    """Return the result of `Move` and `Copy`: the destination's file, or the folder."""
    return info or FileInfo(op.dst + "/", is_dir=True)


def item_exists(op: Append) -> AlreadyExists:
    """Make the error of an append to an item."""
    return AlreadyExists(f"{op.key!r} is an item, not a file: it cannot grow, only be replaced")


def check_expectation(op: Append | Put | Delete | Check, actual: int | None) -> None:
    """Raise `Conflict` if the op expects another version than `actual`; None means that there is no entry."""
    if op.expect is ANY or op.expect == actual or (op.expect is ABSENT and actual is None):
        return
    raise conflict(op, actual)


def conflict(op: Append | Put | Delete | Check, actual: int | None) -> Conflict:
    """Make the error of an op whose entry is not at the expected version."""
    expected = op.expect if isinstance(op.expect, int) else None
    return Conflict(type(op).__name__, op.namespace, op.key, expected, actual)


class Finder(Protocol[RequestT]):
    """How an engine finds entries for `search`. Each method returns at most `want` entries, all of which match.

    A *position* is a point in the feed, in a format of the engine.
    """

    def position(self) -> Program[RequestT, str]:
        """The position of the end of the feed."""

    def older(self, op: Search, below: int | None, want: int) -> Program[RequestT, list[Hit]]:
        """Entries with a version lower than `below`, or all, newest first."""

    def newer(self, op: Search, position: str, want: int) -> Program[RequestT, list[tuple[Hit, str]]]:
        """Entries that changed after a position, in the order of the feed, each with the position after it."""


_CURSOR = re.compile(r"(\d{0,18})-(.+)", re.ASCII)


def search(finder: Finder[RequestT], op: Search) -> Program[RequestT, Page[Hit]]:
    """Find a page of a search: first the entries as of the first page, newest first, then those that changed since.

    So an entry that matches all the time is found at least once, even if it changes between two pages. A cursor is
    `version-position`: the lowest version found so far, empty once the first part is done, and the position from which
    the second part continues.
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


def feed_from(since: str | None, newest: int, purge_mark: int) -> tuple[int, Callable[[int], str]]:
    """Parse a cursor of an engine that numbers its changes; return the number, and a function from number to cursor.

    `newest` is the number of the last change, `purge_mark` that of the last purged tombstone. A cursor before it has
    expired: its reader would miss a deletion. This does not apply to a reader that started from the beginning later
    than that, since it never saw the deleted entry. So the cursor of such a reader (`57-1000`) also has the number of
    the newest change when it started.
    """
    match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", f"0-{newest}" if since is None else since, re.ASCII)
    if match is None:
        raise not_a_cursor(since)
    at, began = int(match[1]), int(match[2] or 0)
    if not purge_mark <= max(at, began) <= newest:
        raise cursor_expired(since)
    return at, lambda version: str(version) if version >= began else f"{version}-{began}"


def cursor_expired(since: str | None) -> CursorExpired:
    """Make the error of a cursor that is too old."""
    return CursorExpired(
        f"the cursor {shown(since, 60)} is older than feed_retention= keeps deletions, or is another store's: take a"
        " new one from store.cursor(), read what is there now, and watch since= that cursor"
    )


class HistorySetting(FrozenStruct, frozen=True):
    """The setting of a store's history, as an engine stores it. Times are microseconds, positions are numbers."""

    keep: int  # how long old values are kept
    since: int  # all old values since then are kept, as far as `keep` allows
    position: int  # the last change before it was turned on
    purged: int = 0  # the last change that ended a value which was purged

    def check_time(self, when: int, now: int) -> None:
        """Raise `HistoryGone` if the values of that time are not kept."""
        if when < max(self.since, now - self.keep):
            first = to_datetime(max(self.since, now - self.keep))
            raise HistoryGone(f"the history of this store begins at {first}, later than {to_datetime(when)}")

    def check_position(self, position: int, at: str) -> None:
        """Raise `HistoryGone` if the values of that position of the feed are not kept."""
        if position < max(self.position, self.purged):
            raise history_gone(at)

    def reach(self) -> HistoryReach:
        """Return the result of `SetHistory`."""
        return HistoryReach(self.keep / 1_000_000, self.since)

    def extend(self, since: int) -> HistorySetting:
        """Return the setting of a store to which old values since an earlier time were copied."""
        return HistorySetting(self.keep, min(self.since, since), self.position, self.purged)

    def change(self, keep: int, now: int) -> HistorySetting:
        """Return the setting for another duration. What was purged by now does not come back."""
        return HistorySetting(keep, max(self.since, now - self.keep), self.position, self.purged)


def history_gone(cursor: str) -> HistoryGone:
    """Make the error of a cursor whose old values are not kept."""
    return HistoryGone(f"the cursor {shown(cursor, 60)} is older than the history of this store")


def no_history() -> HistoryGone:
    """Make the error of a store that keeps no history."""
    return HistoryGone("this store keeps no history: open it with history=, the time for which old values are kept")


def end_of(kind: Any, expires: int | None, ended: int) -> int:
    """Return the time at which a value ended: of an expired one, the expiry and not its removal."""
    return ended if kind != "expire" or expires is None else min(expires, ended)


def not_a_cursor(position: str | None) -> InvalidInput:
    """Make the error of a malformed cursor."""
    return InvalidInput(f"not a cursor of this store: {shown(position, 60)}")


def parse_revision(position: str) -> int:
    """Parse a position of an engine that numbers its changes."""
    if not re.fullmatch(r"\d{1,18}", position, re.ASCII):
        raise not_a_cursor(position)
    return int(position)
