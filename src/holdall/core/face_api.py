"""The face API: everything that a face may use of the core, besides the public names of `holdall`.

A face's methods are programs, like the store's own (`holdall.runtime.programs`): each is written once, and runs sync
and async. Inside a program, `yield from face_api.search(store, …)` does what `store.search(…)` does outside.
tests/test_imports.py checks that faces import nothing else of the core.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

from ..engine import Capabilities, PoolState, decode_acting
from ..errors import AccessDenied, InvalidInput, shown
from ..files.texts import make_edit, split_lines
from ..files.volume import Files
from ..live.leases import Lease
from ..model import file_values
from ..model.file_values import is_item_of_file
from ..model.filters import parse as parse_filter
from ..model.keys import (
    RESERVED,
    Reserved,
    check_folder,
    check_key,
    check_namespace,
    check_path,
)
from ..model.namespace_text import decode as decode_namespace
from ..model.namespace_text import encode as encode_namespace
from ..model.namespace_text import show as show_namespace
from ..model.values import decode as decode_value
from ..model.values import duration_seconds, ttl_seconds
from ..model.values import encode as encode_value
from ..ops import (
    Backdate,
    Children,
    CountVectors,
    Entry,
    File,
    FileInfo,
    HistoryReach,
    ListVersions,
    Namespace,
    OldVersion,
    Op,
    Page,
    Put,
    RecordPage,
    Records,
    Scan,
    SetHistory,
    Vectors,
    replace,
)
from ..runtime.arguments import check_count, check_fraction, check_function
from ..runtime.programs import Call, EngineBatch, StoreProgram, Work, apages, pages, pause_before_retry, retry_conflicts
from ..runtime.programs import arun as async_method
from ..runtime.programs import run as sync_method
from ..runtime.signals import trust_handler
from ..search.embedders import Metric, is_same_model
from ..search.ranking import rank_texts
from ..search.tokens import find_words
from .dispatch import Dispatcher
from .options import StoreOptions, WriteGuard
from .remote_batches import run_batch, scope_digest, view_for
from .store import Store
from .urls import SCHEMES

if TYPE_CHECKING:
    from .coalescing import Coalescer

__all__ = [  # noqa: RUF022  # in groups, for readers
    # Programs: the requests that they yield, and the public methods that are made from them.
    "Call",
    "StoreProgram",
    "Work",
    "apages",
    "async_method",
    "pause_before_retry",
    "pages",
    "retry_conflicts",
    "sync_method",
    # Run a program on a store.
    "arun",
    "run",
    # The store's methods as programs; the first argument is the store.
    "count",
    "delete_tree",
    "namespaces",
    "put",
    "read_authors",
    "search",
    "search_vector",
    "sweep",
    # The methods of `Files` as programs; the first argument is the files.
    "change_text",
    "delete",
    "edit",
    "exists",
    "glob",
    "grep",
    "list_files",
    "ls",
    "read_each",
    "read_text",
    "write",
    "write_each",
    # Batches of ops, with the ops and fields that only faces may use.
    "Backdate",
    "Vectors",
    "check_op",
    "execute",
    "new_coalescer",
    "new_file",
    "use_vectors",
    # For the server: batches of remote engines, entries of holdall's own, and its signal handlers.
    "Reserved",
    "RESERVED",
    "execute_prepared",
    "guarded",
    "held_lease",
    "measure",
    "run_batch",
    "read_history_setting",
    "scan_page",
    "scan_reserved",
    "scope_of",
    "trust_handler",
    "view_for",
    # What is known of a store and its embedding model.
    "SCHEMES",
    "VERSION",
    "capabilities_of",
    "is_closed",
    "count_vectors",
    "Metric",
    "is_same_model",
    "is_same_storage",
    "options_of",
    "pool_of",
    # Checks of arguments: each raises `InvalidInput`.
    "check_count",
    "check_folder",
    "check_function",
    "check_key",
    "check_namespace",
    "check_fraction",
    "check_path",
    "duration_seconds",
    "ttl_seconds",
    # Values, filters and texts.
    "decode_namespace",
    "decode_value",
    "encode_value",
    "encode_namespace",
    "files_as_lines",
    "find_words",
    "is_item_of_file",
    "show_namespace",
    "parse_filter",
    "rank_texts",
    "make_edit",
    "split_lines",
    "with_author",
]

T = TypeVar("T")

VERSION = version("holdall")

put = Store._put
search = Store._search
search_vector = Store._search_vector
count = Store._count
namespaces = Store._namespaces
delete_tree = Store._delete_tree
sweep = Store._sweep

exists = Files._exists
ls = Files._ls
glob = Files._glob
grep = Files._grep
read_text = Files._read_text
write = Files._write
edit = Files._edit
change_text = Files._change_text
delete = Files._delete
write_each = Files._write_each
read_each = Files._read_each


def run(store: Store, program: StoreProgram[T]) -> T:
    """Run a program on a store."""
    return store._run(program)


def arun(store: Store, program: StoreProgram[T]) -> Coroutine[Any, Any, T]:
    """`run`, awaited."""
    return store._arun(program)


def execute(store: Store, batch: list[Any]) -> StoreProgram[list[Any]]:
    """Run a batch as `Store.execute` does, without its refusals: puts may carry vectors, and ops may set times."""
    return store._write_batch(batch, None)


def new_coalescer(store: Store) -> Coalescer:
    """Return a queue that joins the ops of tasks into batches of a store. Ops for one key run in their order."""
    from .coalescing import Coalescer  # imported late: it needs asyncio

    handle = store._engine_handle
    if handle.joins_tasks and store._options.embedding is None:
        return handle.new_coalescer(store._aexecute_joined)
    return Coalescer(store.aexecute)


def new_file(content: bytes) -> File:
    """Return a file's content, for a `Put` in a batch."""
    return File(file_values.NATIVE, content)


def use_vectors(store: Store, puts: list[Put], vectors: list[Sequence[float]]) -> StoreProgram[list[Any]]:
    """Return puts with vectors that the caller has computed with the model of a store."""
    embedding = store._options.embedding
    assert embedding is not None
    return embedding.use_vectors(puts, vectors)


def check_op(store: Store, op: Op) -> None:
    """Raise `InvalidInput` if a store refuses an op by its arguments alone."""
    store._prepare(op)


def scan_reserved(store: Store, purpose: str) -> StoreProgram[list[Entry]]:
    """Read all entries of holdall's own for a purpose of the whole store, in key order."""
    found: list[Entry] = []
    walk = Scan(store._resolve_namespace(Reserved((purpose,))))
    while True:
        page: Page[Entry] = (yield [walk])[0]
        found += page
        if page.next is None:
            return found
        walk = replace(walk, after=(walk.prefix, page[-1].key))


def read_authors(store: Store, entries: Sequence[Entry]) -> StoreProgram[list[tuple[str | None, str | None]]]:
    """Return the author and the reason of the last change of each entry; None if this client may not read them."""
    unknown: list[tuple[str | None, str | None]] = [(None, None)] * len(entries)
    if not entries or not capabilities_of(store).keeps_history:
        return unknown
    addresses = tuple((store._resolve_namespace(entry.namespace), entry.key) for entry in entries)
    try:
        listed: list[list[OldVersion]] = (yield [ListVersions(addresses, limit=1)])[0]
    except AccessDenied:
        return unknown
    return [decode_acting(ones[0].acting) if ones else (None, None) for ones in listed]


def count_vectors(namespace: Namespace, key: str) -> StoreProgram[int]:
    """Return how many vectors an entry has."""
    count: int = (yield [CountVectors(namespace, key)])[0]
    return count


def scan_page(
    store: Store, prefix: Namespace, after: tuple[Namespace, str] | None, limit: int
) -> StoreProgram[Page[Entry]]:
    """Read one page of `Store.scan`, after an entry."""
    mark = None if after is None else (store._resolve_prefix(after[0]), check_key(after[1]))
    page: Page[Entry] = (yield [Scan(store._resolve_prefix(prefix), mark, limit)])[0]
    return page


def list_files(
    files: Files, path: str, after: str | None, limit: int, *, prefix: str = "", deep: bool = False
) -> StoreProgram[Page[FileInfo]]:
    """Read one page of `Files.ls`, or with `deep` of `Files.walk`, after a path. Its `next` is the next `after`."""
    check_count("limit", limit, least=1)
    folder = check_folder(path)
    if after is not None and not (check_key(after, "after").startswith(folder + prefix) and after != folder):
        raise InvalidInput(f"after= is the 'next' of an earlier page of {shown(folder)}, not {shown(after)}")
    # One more than is returned, to know whether it is the last page.
    if deep:
        found: Page[FileInfo] = (yield [Children(files._resolve_namespace(), folder, after, limit + 1, deep=True)])[0]
    else:
        found = yield from files._list_page(folder, prefix, after, limit + 1)
    page = Page(found[:limit])
    if len(found) > limit or found.next is not None:
        page.next = page[-1].path
    return page


def guarded(store: Store, guard: WriteGuard) -> Store:
    """Return a view of a store whose async writes a guard must admit. Its sync methods cannot add anything."""
    return Store(store._engine_handle, replace(store._options, guard=guard), store, store._scope)


def execute_prepared(store: Store, batch: list[Any]) -> StoreProgram[list[Any]]:
    """Run ops in the namespaces of the engine, such as those that a guard is given."""
    results: list[Any] = yield EngineBatch(store, batch)
    return results


def measure(store: Store) -> StoreProgram[tuple[int, int]]:
    """Return how many entries and bytes a store, or its scope, holds, with hidden ones and unfinished uploads."""
    uploaded = 0
    if store._scope:
        uploads = yield from Files(store, Reserved(("uploads", "")))._ls("/", prefix=scope_digest(store))
        uploaded = sum(info.size for info in uploads)
    stats = yield from store._stats()
    if stats.bytes is not None:
        return stats.entries, stats.bytes + uploaded
    entries, size, walk = 0, uploaded, Records(store._scope)
    while True:
        page: RecordPage = (yield EngineBatch(store, [walk]))[0]
        entries += len(page.records)
        size += sum(len((one.value or "").encode()) + (one.size or 0) for one in page.records)
        if not page.more:
            return entries, size
        walk = replace(walk, after=(page.records[-1].namespace, page.records[-1].key))


def held_lease(store: Store, name: str, token: int, namespace: Namespace) -> Lease:
    """Return a lease that was acquired elsewhere, for a write that carries its token."""
    return Lease.held(store, name, token, namespace)


def read_history_setting(store: Store) -> StoreProgram[HistoryReach | None]:
    """Return for how long and since when old values are kept; None if none are."""
    if not capabilities_of(store).keeps_history:
        return None
    reach: HistoryReach | None = (yield [SetHistory()])[0]
    return reach


def is_closed(store: Store) -> bool:
    """Whether a store was closed, or the one that it is a view of."""
    return store._is_closed


def scope_of(store: Store) -> Namespace:
    """Return the namespace that a store is scoped to."""
    return store._scope


def with_author(store: Store, find_author: Callable[[], tuple[str, str | None] | None]) -> Store:
    """Return a view whose writes carry the author and the reason that the framework knows at that moment."""
    return Store(store._engine_handle, replace(store._options, find_author=find_author), store, store._scope)


def capabilities_of(store: Store) -> Capabilities:
    """Return what the engine of a store guarantees."""
    return store._engine_handle.engine.capabilities


def pool_of(store: Store) -> PoolState | None:
    """Return the state of the engine's pool of connections, if it has one."""
    describe = getattr(store._engine_handle.engine, "describe_pool", None)
    return None if describe is None else describe()


def options_of(store: Store) -> StoreOptions:
    """Return the options that a store was opened with."""
    return store._options


def is_same_storage(one: Dispatcher, other: Dispatcher) -> bool:
    """Whether two stores share an engine, so that a batch of one can check entries of the other."""
    return one._engine_handle is other._engine_handle


def files_as_lines(store: Store, namespace: Namespace) -> Files:
    """Return `store.files(namespace)`, but files written there are lists of lines when they are read as items."""
    return Files(store, store.files(namespace).namespace, file_values.LINES)
