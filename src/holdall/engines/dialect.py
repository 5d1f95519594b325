"""What one database says differently from another: the words that `sql.py` and `sql_files.py` are written in.

A database that speaks SQL brings a `Dialect` (`sqlite_sql.py`, `postgres_dialect.py`). Its attributes are pieces of
SQL, its methods make some.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from ..ops import Op
from ..programs import Program
from .narrowing import Fields
from .statements import ManyTimes, Rows, Statement

#: What to ask of the index of contents, and what its answer means: a query for versions; None where there are too many.
Mentions: TypeAlias = tuple[Statement, Callable[[Rows], Statement | None]]
#: So many that are found are too many: reading all in order is faster.
MOST_FOUND = 4096

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Dialect(Fields):
    """What one database says differently."""

    # Entries
    table: str
    next_version: str  # an expression: a version above every earlier one
    next_versions: str  # the same, for each row of a query
    first_version: str  # the same, as an insert says it
    redrawn_version: str  # and where an insert turns out to be an update
    stamps: Mapping[str, str] = _NOTHING  # further columns that every change sets, and to which expression
    projections: Mapping[str, str] = _NOTHING  # further columns that follow the value, and are null without one
    upserts_return: bool = True  # else `run` reads what an unconditional put has left, where it replaced something
    single_writer: bool = False  # nothing changes while a transaction writes, so nothing has to be locked
    doubt: str = ""  # a statement that says whether a value is stored whose fields this database may misread

    # The feed
    by_version: str = ""  # said after the table, to read it in the order of versions and not by another index
    mark: str = "version"  # an expression: a number that says where in the feed a row is
    settled: str = ""  # a further condition: nobody who reads the feed from now on can have missed the row
    one_at_a_time: str = ""  # a statement that says whether this transaction alone may forget

    # Files
    chunks: str  # the table of the bodies' pieces
    next_body: str  # an expression: the name of a new body
    content: str  # an expression: the whole body that an entry names, null where it names none
    whole: str = ""  # the same, for `part` to make bytes of, where that is less work
    unindexed: str  # the table of what is new to the index of contents, or gone from it
    by_index: Sequence[Statement] = ()  # said before a query that only an index makes fast
    skip_locked: str = ""  # said after a query for rows, to pass over those that others are at
    upkeep: Sequence[Statement] = ()  # said before upkeep of that index, which one process at a time does
    most_files, most_bytes = 100, 1 << 18  # that are indexed before others have their turn

    # Search
    head: str  # an expression: the beginning of the body that an entry names
    state: str  # the tables of `sql_texts` and `sql_search`
    terms: str
    documents: str
    texts: str
    vectors: str
    #: A vector as a parameter, and its bytes as that; a stored one, and what was read as bytes.
    vector_in: tuple[str, Callable[[bytes], dict[str, Any]]] = (":data", lambda data: {"data": data})
    vector_out: tuple[str, Callable[[Any], bytes]] = ("data", bytes)
    for_update: str = ""  # said after a query for a row that nobody else may change until the end

    def part(self, piece: Any, start: int, end: int | None) -> bytes:
        """The bytes `[start, end)` of a piece of a body."""
        return bytes(piece)[start:end]

    def parameters(self, op: Op) -> Mapping[str, Any]:
        """What the expressions above need for one op."""
        del op
        return _NOTHING

    @abstractmethod
    def bury(self, which: str, kind: str) -> str:
        """A statement that makes tombstones of the rows that `which` selects, one row returned for each."""

    @abstractmethod
    def after(self, ns: str, depth: int | None) -> str:
        """`keys.after`, as an expression."""

    @abstractmethod
    def position(self, text: str, part: str) -> str:
        """Where a text has a part, from 1 on; 0 where it has not."""

    @abstractmethod
    def character(self, code: int) -> str:
        """One character."""

    @abstractmethod
    def among(self, column: str, numbers: list[int]) -> tuple[str, dict[str, Any]]:
        """Whether a column is one of these, and the parameters of that."""

    @abstractmethod
    def among_texts(self, column: str, texts: list[str]) -> tuple[str, dict[str, Any]]:
        """The same of texts, of which there may be more than a statement can have parameters."""

    @abstractmethod
    def learn(self, texts: list[tuple[int, str]]) -> Program[None]:
        """Index contents, each by its entry's version."""

    @abstractmethod
    def forget(self, versions: list[int]) -> Program[bool]:
        """Take such out again; whether that has made some that are to be indexed anew."""

    @abstractmethod
    def mentions(self, grams: list[str]) -> Mentions | None:
        """How to find the versions of the indexed contents that have all these parts; None where it cannot say."""

    @abstractmethod
    def insert_many(
        self, table: str, columns: str, rows: list[tuple[Any, ...]], conflict: str
    ) -> Statement | ManyTimes:
        """Insert rows into a table, there called "old"; `conflict` says what to do about those that are there."""

    @abstractmethod
    def delete_many(self, table: str, columns: str, rows: list[tuple[Any, ...]]) -> Statement | ManyTimes:
        """Delete the rows that these columns name."""

    @abstractmethod
    def followed(self, first: str, second: str) -> str:
        """Two expressions for bytes as one."""

    @abstractmethod
    def joined(self, key: str) -> str:
        """What stands after "LEFT JOIN", up to its first condition, to get the row of a key in ":ns" as "file"."""

    @abstractmethod
    def one_of(self, column: str, query: str) -> str:
        """Whether a column is one of a query's few results."""

    @abstractmethod
    def contains(self, data: str, part: str) -> str:
        """Whether bytes have a part."""
