"""What differs between the SQL of one database and another.

`entries.py` and its neighbours write the SQL that databases have in common. Each database brings a `Dialect` for the
rest (`sqlite/dialect.py`, `postgres/dialect.py`). Its attributes are fragments of SQL; its methods return some.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from ...errors import Corrupt
from ...ops import Op
from .narrowing import Fields
from .statements import TREES, ManyTimes, Rows, SqlProgram, Statement

#: A query of the index of contents, and a function of its rows: a query for versions, or None if there are too many.
ContentQuery: TypeAlias = tuple[Statement, Callable[[Rows], Statement | None]]
#: From so many versions on, reading all files in order is faster than looking them up.
MOST_FOUND = 4096
#: How many grams of a search are looked up; more would hardly exclude more files.
_MOST_GRAMS = 6

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_Gram = TypeVar("_Gram")


class Dialect(Fields):
    """The SQL of one database."""

    # Entries
    table: str
    declared: tuple[str, ...]  # the fields of `filter_fields=`
    next_version: str  # an expression: a version above every earlier one
    next_versions: str  # the same, for each row of a query
    first_version: str  # the same, in the VALUES of an insert
    version_on_conflict: str  # the same, where the insert becomes an update
    stamps: Mapping[str, str] = _NOTHING  # further columns that every change sets, and to which expression
    projections: Mapping[str, str] = _NOTHING  # further columns that depend on the value, and are null without one
    single_writer: bool = False  # nothing else changes while a transaction writes, so rows need no lock
    for_update: str = ""  # follows a query for a row that must not change until the end of the transaction
    misread_check: str = ""  # a query: not 0 if a value is stored whose fields this database may misread

    # The feed
    by_version: str = ""  # follows the table, to read it in the order of versions and not by another index
    feed_mark: str = "version"  # an expression: the position of a row in the feed, as a number
    settled: str = ""  # a further condition: every reader of the feed from now on can see the row
    purge_lock: str = ""  # a query: whether this transaction alone may purge tombstones
    trees: str = TREES  # the table of `feed.DeletedTrees`

    # History
    history: str  # the table of old rows (`engines/history`)
    start_history: Sequence[str] = ()  # statements that have old rows kept from now on
    stop_history: Sequence[str] = ()
    server_time: str = ""  # an expression: the server's time at this moment; for an engine without a clock of its own
    history_lock: Sequence[Statement] = ()  # precede a change of the setting, by one process at a time
    history_mark: str = "ended"  # an expression: the number, in the feed, of the change that replaced an old row
    old_content: str  # an expression: the body of an old row, at least up to its size

    # Files
    chunks: str  # the table of the pieces of bodies
    piece_length: str = "length(data)"  # an expression: the bytes of a piece, as far as merging small ones is concerned
    next_body: str  # an expression: the id of a new body
    content: str  # an expression: the whole body of an entry, null if it has none
    whole: str = ""  # the same in a form that `part` makes bytes of, if that is faster
    reads_pieces: bool = False  # whether a file is read faster as its pieces than as one value
    unindexed: str  # the table of versions that the index of contents must add or remove
    by_index: Sequence[Statement] = ()  # precede a query that needs an index to be fast
    skip_locked: str = ""  # follows a query for rows, to leave out those that others have locked
    maintenance_lock: Sequence[Statement] = ()  # precede maintenance of that index, by one process at a time
    most_files, most_bytes = 100, 1 << 18  # the most that one transaction adds to that index

    # Search
    head: str  # an expression: the beginning of the body of an entry
    state: str  # the tables of `text_index.py` and `ranker.py`
    words: str
    forward: str
    lists: str
    old_texts: tuple[str, str, str]  # the tables of the index of the first schema
    vectors: str
    #: Statements around a query for a few rows, so that it reads them in the order of an index.
    in_index_order: tuple[Sequence[Statement], Sequence[Statement]] = ((), ())
    #: The expression of a vector parameter, and a function that makes the parameter of the vector's bytes.
    vector_in: tuple[str, Callable[[bytes], dict[str, Any]]] = (":data", lambda data: {"data": data})
    #: The expression that reads a stored vector, and a function that makes bytes of what was read.
    vector_out: tuple[str, Callable[[Any], bytes]] = ("data", bytes)

    # Checks (`engines/checks`)
    whole_length: str = "length(data)"  # an expression: how many bytes of content a piece stands for
    indexed_contents: str  # a query: the versions in the index of contents
    clear_contents: Sequence[str]  # statements that empty the index of contents
    checks: Any  # a `TableChecks`
    integrity_check: Sequence[Statement] = ()  # the last one: what the database's own check has found, "ok" for nothing
    is_reference: str = ""  # a condition: a piece is the name of a plain file, and not bytes

    def part(self, piece: Any, start: int, end: int | None) -> bytes:
        """Return the bytes `[start, end)` of a piece of a body."""
        if type(piece) is not bytes:
            raise Corrupt("a piece of a file is damaged; write or delete the file, or restore a copy of the store")
        return piece[start:end]

    def parameters(self, op: Op) -> Mapping[str, Any]:
        """Return the parameters that the expressions above need for an op."""
        del op
        return _NOTHING

    def lock_bodies(self, bodies: Sequence[int]) -> Sequence[Statement]:
        """Return statements that lock bodies until the end of the transaction, before their last user may go."""
        del bodies
        return ()

    @abstractmethod
    def history_position(self) -> SqlProgram[int]:
        """Return the number, in the feed, of the last change that no trigger has copied."""

    @abstractmethod
    def make_tombstones(self, which: str, kind: str, above: str = "") -> str:
        """Return a statement that makes tombstones of the rows that `which` selects. It returns one row for each.

        Their versions are new, or those above the expression `above`.
        """

    @abstractmethod
    def reserve_versions(self, count: int, now: int | None) -> SqlProgram[int]:
        """Reserve versions that no later write takes; return the version before them, the last one that is in use."""

    @abstractmethod
    def next_namespace(self, ns: str, depth: int | None) -> str:
        """Return `keys.after` as an expression."""

    @abstractmethod
    def find_text(self, text: str, part: str) -> str:
        """Return an expression: the index of a part in a text, from 1 on; 0 if it is not there."""

    @abstractmethod
    def character(self, code: int) -> str:
        """Return an expression: one character."""

    @abstractmethod
    def among(self, column: str, numbers: list[int]) -> tuple[str, dict[str, Any]]:
        """Return the condition that a column is one of these numbers, and its parameters."""

    @abstractmethod
    def each_number(self, numbers: list[int]) -> tuple[str, dict[str, Any]]:
        """Return a FROM item whose column `value` has these numbers, and its parameters."""

    @abstractmethod
    def among_texts(self, column: str, texts: list[str]) -> tuple[str, dict[str, Any]]:
        """Return `among` for texts. They may be more than a statement can have parameters."""

    @abstractmethod
    def index_contents(self, texts: list[tuple[int, str]]) -> SqlProgram[None]:
        """Add contents to the index of contents, each with its entry's version."""

    @abstractmethod
    def remove_contents(self, versions: list[int]) -> SqlProgram[bool]:
        """Remove versions from the index of contents; return whether others must be indexed again because of that."""

    def merge_contents(self, has_lag: bool) -> SqlProgram[bool]:  # noqa: ARG002  # only some databases have parts
        """Merge parts of the index of contents, so that a search reads fewer; return whether there is more to merge.

        If contents wait to be indexed (`has_lag`), only what must not wait is merged.
        """
        yield from ()
        return False

    @abstractmethod
    def find_contents(self, grams: list[str]) -> ContentQuery | None:
        """Return how to find indexed contents that have all these parts; None if the index cannot find them."""

    @abstractmethod
    def index_order(self) -> SqlProgram[None]:
        """Create the index of entries in the order of creation, if it is missing and this role may create it."""

    @abstractmethod
    def insert_many(
        self, table: str, columns: str, rows: list[tuple[Any, ...]], conflict: str
    ) -> Statement | ManyTimes:
        """Return a statement that inserts rows; `conflict` is its ON CONFLICT clause, in which the table is "old"."""

    @abstractmethod
    def join_file(self, key: str) -> str:
        """Return what follows LEFT JOIN, up to its first condition, to join the row of a key in ":ns" as "file"."""

    @abstractmethod
    def one_of(self, column: str, query: str) -> str:
        """Return the condition that a column is one of the few results of a query."""

    @abstractmethod
    def contains(self, data: str, part: str) -> str:
        """Return the condition that a byte string has a part."""


def choose_grams(grams: list[_Gram], most: int = _MOST_GRAMS) -> list[_Gram]:
    """Return the grams of a search that are looked up, taken from all over it."""
    if len(grams) <= most:
        return grams
    return [grams[number * len(grams) // most] for number in range(most)]
