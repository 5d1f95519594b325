"""The ops: everything a store can be asked, as small frozen structs.

A batch given to an engine is either **point ops**, run in order in one atomic transaction, or exactly one **walk**.
Users build point ops for `Store.execute`; the store builds walks. This module imports nothing of ours, so that
engines, faces and tests can share its words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, make_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Literal, NewType, Protocol, TypeAlias, TypeVar

from msgspec import Struct

__all__ = [
    "ABSENT",
    "ANY",
    "DEFAULT",
    "KEEP",
    "Append",
    "Backdate",
    "Change",
    "Changes",
    "Check",
    "CheckPath",
    "Children",
    "Copy",
    "Count",
    "Delete",
    "DeleteTree",
    "Embed",
    "Entry",
    "FileInfo",
    "Forget",
    "Get",
    "Grep",
    "Hit",
    "Indexing",
    "Learn",
    "Move",
    "Namespaces",
    "Page",
    "Put",
    "ReadRange",
    "Refresh",
    "Scan",
    "Search",
    "Stat",
    "Sweep",
    "Tidy",
    "Unembedded",
    "Vector",
    "Vectors",
]

T = TypeVar("T")
Namespace: TypeAlias = tuple[str, ...]


class Expect(Enum):
    """What a write may find in place of a version."""

    ANY = "ANY"
    ABSENT = "ABSENT"

    def __repr__(self) -> str:
        return f"holdall.{self.name}"


class Lifetime(Enum):
    """A TTL that is not a length of time."""

    DEFAULT = "DEFAULT"
    KEEP = "KEEP"

    def __repr__(self) -> str:
        return f"holdall.{'ops.' if self is Lifetime.KEEP else ''}{self.name}"


#: Write whatever is there: the default of `expect=`.
ANY: Literal[Expect.ANY] = Expect.ANY
#: Write only if nothing is there.
ABSENT: Literal[Expect.ABSENT] = Expect.ABSENT
#: The store's own TTL: the default of `ttl=`.
DEFAULT: Literal[Lifetime.DEFAULT] = Lifetime.DEFAULT
#: The TTL and expiry that the entry has already; and, unless `index` says otherwise, what it is found by.
KEEP: Literal[Lifetime.KEEP] = Lifetime.KEEP


#: A value as it is stored: its exact JSON text. What `Put.value` is by the time that an engine sees it.
Json = NewType("Json", str)


class DataclassLike(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class ModelLike(Protocol):
    """Any model of pydantic's."""

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


class _AsDataclass:
    """What `dataclasses` looks for, made when it does: its `replace`, `fields` and `asdict` work on structs too.

    mypy checks the names that `dataclasses.replace` is given, and not those of msgspec's.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, struct: object, kind: type[Struct]) -> Any:
        return getattr(_dataclass_of(kind), self._name)


@cache
def _dataclass_of(kind: type[Struct]) -> type:
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    types = {
        name: hint for base in reversed(kind.__mro__) for name, hint in vars(base).get("__annotations__", {}).items()
    }
    missing = (MISSING,) * (len(names) - len(defaults))
    made = [(name, types[name], field(default=value)) for name, value in zip(names, missing + defaults, strict=True)]
    return make_dataclass(kind.__name__, made, init=False, repr=False, eq=False, frozen=True)


class FrozenStruct(Struct, frozen=True):
    """Like a frozen dataclass, but to define one and to make one takes a fraction of the time.

    Subclasses say `frozen=True` again for type checkers. Results (`Entry` and others that users keep) are real
    dataclasses, which can be named in a pydantic model.
    """

    __dataclass_fields__: ClassVar[Any] = _AsDataclass()
    __dataclass_params__: ClassVar[Any] = _AsDataclass()


class File(FrozenStruct, frozen=True):
    """A file as it is stored: its bytes, and in `shape` what else there is to say of it (`holdall.shapes`)."""

    shape: Json
    content: bytes


class Vectors(FrozenStruct, frozen=True):
    """What a model made of an entry's texts: for each a vector, as little-endian float32."""

    model: int
    data: tuple[bytes, ...]


class Vector(FrozenStruct, frozen=True):
    """What a model made of a query, and how to compare it: "cosine", "dot" or "l2"."""

    model: int
    data: bytes
    metric: Literal["cosine", "dot", "l2"] = "cosine"


#: What can be put: a JSON object, or something that becomes one.
Value: TypeAlias = Mapping[str, Any] | DataclassLike | ModelLike


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored thing, as it was when it was read. `value` is the caller's own copy."""

    namespace: Namespace
    key: str
    value: dict[str, Any]
    version: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None

    def __hash__(self) -> int:
        return hash((self.namespace, self.key, self.version))


@dataclass(frozen=True, slots=True)
class Hit(Entry):
    """An entry that a search found; `score` is None where nothing was ranked."""

    score: float | None = None

    __hash__ = Entry.__hash__


@dataclass(frozen=True, slots=True)
class Change:
    """One step of the feed: this entry is now at this version. `cursor` resumes after it."""

    version: int
    namespace: Namespace
    key: str
    kind: Literal["put", "delete", "expire"]
    cursor: str


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What is known of a file without reading it. A folder's path ends in "/"; folders have no version or times."""

    path: str
    is_dir: bool = False
    size: int = 0
    version: int | None = None
    created_at: datetime | None = None
    modified_at: datetime | None = None


class Page(list[T]):
    """A list of results; `next` is the cursor of the page after it, or None after the last."""

    __slots__ = ("next",)

    def __init__(self, items: Iterable[T] = (), next: str | None = None) -> None:
        super().__init__(items)
        self.next = next


Expectation: TypeAlias = Literal[Expect.ANY, Expect.ABSENT] | int | Entry
Ttl: TypeAlias = float | timedelta | None
TtlOrDefault: TypeAlias = Ttl | Literal[Lifetime.DEFAULT, Lifetime.KEEP]


class Op(FrozenStruct, frozen=True):
    """What an engine can be asked."""


class PointOp(Op, frozen=True):
    """An op on one place or tree, of which a batch may have many."""


# Point ops -----------------------------------------------------------------------------------------------------------


class Get(PointOp, frozen=True):
    """Read one entry -> `Entry | None`."""

    namespace: Namespace
    key: str


class Put(PointOp, frozen=True):
    """Write one entry -> the `Entry` as stored; of one written as a file, its `FileInfo`."""

    namespace: Namespace
    key: str
    value: Value | File  # what an engine sees is `Json` or a `File`
    ttl: TtlOrDefault = DEFAULT
    expect: Expectation = ANY
    #: What of it a `query` finds: None for all its texts, False for nothing, or paths such as "title" and
    #: "notes[*].text". What an engine sees is None or a JSON list of paths.
    index: Literal[False] | Sequence[str] | None = None
    vectors: Vectors | None = None  # the store's, which has them made


class Delete(PointOp, frozen=True):
    """Remove one entry -> whether it was there."""

    namespace: Namespace
    key: str
    expect: Expectation = ANY


class Check(PointOp, frozen=True):
    """Assert an entry's state without touching it -> None; `Conflict` fails the whole batch."""

    namespace: Namespace
    key: str
    expect: Expectation


class Refresh(PointOp, frozen=True):
    """Start an entry's TTL anew -> whether it has one. Not a change: no revision, no event, no wait for an fsync."""

    namespace: Namespace
    key: str


class Backdate(PointOp, frozen=True):
    """Give an entry the times that it had elsewhere -> whether it is there. For who brings entries from other stores.

    Not a change. `expires_at=None` leaves the expiry as it is.
    """

    namespace: Namespace
    key: str
    created_at: datetime | int  # what an engine sees is microseconds since 1970
    updated_at: datetime | int
    expires_at: datetime | int | None = None


class DeleteTree(PointOp, frozen=True):
    """Remove every entry in a namespace and below it -> how many there were.

    With a path: the file or folder at that path of exactly this namespace, and nothing but files.
    """

    namespace: Namespace
    path: str | None = None


class Append(PointOp, frozen=True):
    """Add bytes to the end of a file, which costs no more than these; a missing file begins empty -> their offset."""

    namespace: Namespace
    key: str
    data: bytes
    expect: Expectation = ANY
    ttl: TtlOrDefault = DEFAULT  # of a file that was missing


class ReadRange(PointOp, frozen=True):
    """The bytes `[start, end)` of a file, None for to its end -> `bytes | None`, None where there is no such file."""

    namespace: Namespace
    key: str
    start: int
    end: int | None = None


class Stat(PointOp, frozen=True):
    """What is at a path -> `FileInfo | None`; a file, where there are both a file and a folder."""

    namespace: Namespace
    path: str


class CheckPath(PointOp, frozen=True):
    """Assert that a path can be a file's -> None; `NotADirectory` or `IsADirectory` fails the whole batch."""

    namespace: Namespace
    path: str


class Move(PointOp, frozen=True):
    """Give a file or folder another path; no content is copied -> the `FileInfo` of what is there now."""

    namespace: Namespace
    src: str
    dst: str
    source: Namespace | None = None  # where `src` is, if elsewhere; then `created_at` is that of what is replaced
    ttl: TtlOrDefault = KEEP


class Copy(PointOp, frozen=True):
    """Make a file or folder appear at another path too; no content is copied -> the `FileInfo` of what is there now."""

    namespace: Namespace
    src: str
    dst: str


class Indexing(Op, frozen=True):
    """By which of its texts an entry is found -> None for all, or a JSON list of paths."""

    namespace: Namespace
    key: str


class Embed(PointOp, frozen=True):
    """Give an entry vectors, if it is still at this version -> whether it was. Not a change."""

    namespace: Namespace
    key: str
    version: int
    vectors: Vectors


class Learn(Op, frozen=True):
    """Index the texts of up to `limit` entries that have changed -> how many there were, and whether there are more.

    Not a change.
    """

    limit: int = 512
    prepared: Any = None  # an engine's own, which did what it could before anybody had to wait for it


class Tidy(Op, frozen=True):
    """A slice of upkeep: index the contents of up to `limit` files, join a file's pieces -> whether more is to be done.

    Not a change. An engine that is `behind` asks for it.
    """

    limit: int = 1024


class Sweep(Op, frozen=True):
    """Turn up to `limit` expired entries under a prefix into tombstones -> how many were turned.

    Expired entries are absent to every op before that; sweeping frees their room and puts the expiry in the feed.
    """

    limit: int = 500
    prefix: Namespace = ()


class Forget(Op, frozen=True):
    """Remove up to `limit` tombstones, the oldest first -> whether there is more to be done.

    Those of more than `age` seconds, or all but the newest `keep`, once no index of the engine's own needs them. That
    they went is remembered: `Changes` after a position from before that raises `HistoryGone`.
    """

    age: float | None = None
    keep: int | None = None
    limit: int = 500


# Walks ---------------------------------------------------------------------------------------------------------------


class Search(Op, frozen=True):
    """Entries under a prefix that match a filter, newest change first -> `Page[Hit]`.

    `filter` is a parsed `holdall.filters.Filter` or None. `cursor` is the engine's own, from an earlier page.

    With a `query` (a parsed `holdall.search.Query`), a `vector` or both they come ranked, best first. Where
    the index of texts is behind, the answer is by how many changes: the store has the engine `Learn`, and asks again.
    """

    prefix: Namespace
    filter: Any = None
    limit: int = 10
    offset: int = 0
    cursor: str | None = None
    recursive: bool = True
    query: Any = None
    vector: Vector | None = None
    caught_up: bool = False  # it did: now answer, however far the index is behind by then
    rest: bool = False  # after what was ranked, what was not, newest first


class Unembedded(Op, frozen=True):
    """Entries that have texts to be found by, but no vectors of a model, in key order, those after `after`
    -> `list[tuple[Entry, index]]`, at most `limit`."""

    model: int
    prefix: Namespace = ()
    after: tuple[Namespace, str] | None = None
    limit: int = 100


class Count(Op, frozen=True):
    """How many entries under a prefix match a filter -> int. Loads no value where there is no filter.

    `unembedded` is a model: only those that `Unembedded` gives.
    """

    prefix: Namespace
    filter: Any = None
    recursive: bool = True
    unembedded: int | None = None


class Namespaces(Op, frozen=True):
    """The namespaces that hold entries, sorted by label -> `list[Namespace]`.

    `"*"` in `prefix` or `suffix` stands for any one label. `max_depth` truncates, and what becomes equal is given once.
    """

    prefix: Namespace = ()
    suffix: Namespace = ()
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0
    base: Namespace = ()  # a scope: only namespaces below it, and depth, prefix and suffix are counted from there


class Scan(Op, frozen=True):
    """Entries under a prefix in key order, those after `after` -> `list[Entry]`, at most `limit`."""

    prefix: Namespace
    after: tuple[Namespace, str] | None = None
    limit: int = 500


class Changes(Op, frozen=True):
    """The feed after `since`, in order of change -> `Page[Change]`, whose `next` resumes after the page.

    `since=None` starts before the first change. One entry's changes may arrive merged into its newest; what has expired
    and is not swept yet is left out, as its expiry is still to come. With a path: those of the file or folder there, in
    exactly this namespace. With a limit of 0, `next` is where it stands now.
    """

    prefix: Namespace = ()
    since: str | None = None
    limit: int = 500
    path: str | None = None


class Children(Op, frozen=True):
    """What is in a folder, in path order, after the path `after` -> `Page[FileInfo]`, whose `next` is the next `after`.

    `path` ends in "/", and so does `after` where it was a folder. Subfolders are given once each and stepped over;
    `deep` gives all files below instead, of which `matches`, a function of a path, may choose some. `bare` asks for
    paths alone, as plain str, which are less work.
    """

    namespace: Namespace
    path: str
    after: str | None = None
    limit: int = 1000
    deep: bool = False
    matches: Callable[[str], bool] | None = None
    bare: bool = False


class Grep(Op, frozen=True):
    """Files below a folder that may contain a text, in path order -> `Page[tuple[str, bytes]]`: paths and contents.

    Each file that contains all of `literals` (UTF-8, in any case where `ignore_case`) is given; others may be. `next`
    is the next `after`.
    """

    namespace: Namespace
    path: str
    literals: tuple[str, ...] = ()
    ignore_case: bool = False
    after: str | None = None
    matches: Callable[[str], bool] | None = None


#: What `Store.execute` takes.
POINT_OPS: tuple[type[PointOp], ...] = (
    Get,
    Put,
    Delete,
    Check,
    Refresh,
    Backdate,
    Append,
    ReadRange,
    Stat,
    CheckPath,
    DeleteTree,
    Move,
    Copy,
)
READS: frozenset[type] = frozenset({Get, Check, ReadRange, Stat, CheckPath, Indexing})
WALKS: frozenset[type] = frozenset({Search, Unembedded, Count, Namespaces, Scan, Changes, Children, Grep})


def _quicken(kind: type[Any]) -> None:
    """Set the fields of a frozen dataclass through its slots: half the time of `object.__setattr__` for each.

    For those that are made all the time.
    """
    names = kind.__match_args__
    scope: dict[str, Any] = {f"set_{name}": getattr(kind, name).__set__ for name in names}
    lines = "; ".join(f"set_{name}(self, {name})" for name in names)
    exec(f"def __init__(self, {', '.join(names)}): {lines}", scope)  # noqa: S102  # of our own field names
    init = scope["__init__"]
    init.__defaults__, init.__qualname__ = kind.__init__.__defaults__, f"{kind.__name__}.__init__"
    init.__annotations__ = kind.__init__.__annotations__
    kind.__init__ = init


for _kind in (Entry, Hit, FileInfo):
    _quicken(_kind)
