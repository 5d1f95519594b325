"""LangGraph's long-term memory on any engine: `HoldallStore` implements `BaseStore`, sync and async in one object.

    graph = builder.compile(store=HoldallStore("postgresql://…"))

Each op of LangGraph becomes one of holdall. The differences are handled here: a batch reads before it writes; of
several puts to one key, only the last is executed; TTLs are minutes; labels follow LangGraph's rules; results are
LangGraph's items.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any, Literal, Self

try:
    from langchain_core.runnables.config import var_child_runnable_config
    from langgraph.store.base import (
        NOT_PROVIDED,
        BaseStore,
        GetOp,
        IndexConfig,
        InvalidNamespaceError,
        Item,
        ListNamespacesOp,
        NotProvided,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        TTLConfig,
        ensure_embeddings,
    )
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "LangGraph's store", "langgraph") from missing

from ... import ANY, Entry, Hit, Store, ops
from ...core import face_api
from ...core.face_api import Call, Metric, StoreProgram, async_method, sync_method
from ...errors import HoldallError, InvalidInput, StoreClosed, shown
from ...ops import Delete, Namespace, Put
from ..base import Face
from ..importing import Imported, Refused
from .conn_strings import open_face
from .importing import aimport_from, import_from

__all__ = ["AsyncHoldallStore", "HoldallStore", "Imported", "Refused", "aimport_from", "import_from"]

logger = logging.getLogger("holdall")

_MOST_AUTHOR = 200  # characters
_SWEEP_MINUTES = 5.0  # the default interval of LangGraph's own stores


class _Base(Face, BaseStore):
    """The methods of `BaseStore` on a `holdall.Store`, for both classes below."""

    supports_ttl = True

    def __init__(
        self,
        store_or_url: Any = None,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        super().__init__()
        store = self._open(store_or_url, **_sweep_options(ttl))
        #: The `holdall.Store` that this face runs on.
        self.store: Store = store if index is None else _with_index(store, index)
        self._store = face_api.with_author(self.store, _find_author)
        self.index_config = index
        self.ttl_config = ttl if ttl is not None else _ttl_config_of(store)
        # Separate queues: a refresh must not wait for a put that is being embedded.
        self._reads, self._writes, self._refreshes = (face_api.new_coalescer(self._store) for _ in range(3))

    @classmethod
    def _open_from(
        cls,
        conn_string: str,
        pool_config: Mapping[str, Any] | None,
        index: IndexConfig | None,
        ttl: TTLConfig | None,
    ) -> Self:
        """Create a face on a new store, which is closed with it."""
        return open_face(
            lambda store: cls(store, index=index, ttl=ttl), conn_string, pool_config, **_sweep_options(ttl)
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.store!r}>"

    # Batches ---------------------------------------------------------------------------------------------------------

    def _batch(self, ops: Iterable[Op]) -> StoreProgram[list[Result]]:
        """Run LangGraph's ops: first the reads, then atomically the last put of each key."""
        batch = list(ops)
        results: list[Result] = [None] * len(batch)
        gets: dict[int, GetOp] = {}
        listings: list[tuple[int, SearchOp | ListNamespacesOp]] = []
        writes: dict[tuple[Namespace, str], Put | Delete] = {}
        for index, op in enumerate(batch):
            if isinstance(op, PutOp):
                write = _to_write(op)
                address = write.namespace, write.key
                writes.pop(address, None)  # the dict's order is the order of the last writes
                writes[address] = write
            elif isinstance(op, GetOp):
                if _check_namespace(op.namespace):  # nothing is stored in ()
                    gets[index] = op
            elif isinstance(op, SearchOp | ListNamespacesOp):
                listings.append((index, op))
            else:
                raise InvalidInput(f"a batch contains GetOp, PutOp, SearchOp and ListNamespacesOp, not {shown(op)}")
        if gets:
            found = yield from self._get_all(list(gets.values()))
            for index, entry in zip(gets, found, strict=True):
                results[index] = None if entry is None else _to_item(entry)
        for index, op in listings:
            results[index] = yield from (
                self._run_search(op) if isinstance(op, SearchOp) else self._list_namespaces(op)
            )
        valid = [write for write in writes.values() if write.namespace]  # a delete in () does nothing
        if valid:
            yield from face_api.execute(self._store, valid)
        return results

    batch = sync_method(_batch)
    abatch = async_method(_batch)

    def _get_all(self, gets: list[GetOp]) -> StoreProgram[list[Entry | None]]:
        found: list[Entry | None] = yield [ops.Get(tuple(op.namespace), op.key) for op in gets]
        yield from self._refresh(
            entry for op, entry in zip(gets, found, strict=True) if entry is not None and op.refresh_ttl
        )
        return found

    def _run_search(self, op: SearchOp) -> StoreProgram[list[SearchItem]]:
        prefix = _check_namespace(op.namespace_prefix)
        is_ranked = bool(op.query) and face_api.options_of(self._store).embedding is not None
        hits: list[Hit] = yield from face_api.search(
            self._store,
            prefix,
            query=op.query,
            mode="semantic" if is_ranked else None,
            filter=op.filter,
            limit=op.limit,
            offset=op.offset,
            rest=True,
        )
        if op.refresh_ttl:
            yield from self._refresh(hits)
        return [_to_search_item(hit) for hit in hits]

    def _refresh(self, entries: Iterable[Entry]) -> StoreProgram[None]:
        """Restart the TTLs of the entries that have one."""
        expiring = [ops.Refresh(entry.namespace, entry.key) for entry in entries if entry.expires_at is not None]
        if expiring:
            yield expiring

    def _list_namespaces(self, op: ListNamespacesOp) -> StoreProgram[list[Namespace]]:
        prefix, suffix = _merge_conditions(op, "prefix"), _merge_conditions(op, "suffix")
        if prefix is None or suffix is None:
            return []
        return (
            yield from face_api.namespaces(
                self._store, prefix=prefix, suffix=suffix, max_depth=op.max_depth, limit=op.limit, offset=op.offset
            )
        )

    # Single ops, without the batch that BaseStore would make ---------------------------------------------------------

    def get(self, namespace: Namespace, key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """Return one item, or None. `refresh_ttl` restarts its TTL; the default is set in `ttl_config`."""
        labels = _check_namespace(namespace)
        entry = self._store.get(labels, str(key), refresh=self._should_refresh(refresh_ttl)) if labels else None
        return None if entry is None else _to_item(entry)

    async def aget(self, namespace: Namespace, key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """`get`, awaited. Concurrent reads of other tasks share its round trip."""
        labels = _check_namespace(namespace)
        if not labels:
            return None
        entry: Entry | None = await self._reads.run(ops.Get(labels, str(key)))
        if entry is None:
            return None
        if entry.expires_at is not None and self._should_refresh(refresh_ttl):
            await self._refreshes.run(ops.Refresh(labels, entry.key))
        return _to_item(entry)

    def put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Write one item. `ttl` is minutes, None for no expiry; the default is that of `ttl_config`."""
        self._store.execute([self._to_put(namespace, key, value, index, ttl)])

    async def aput(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """`put`, awaited. Concurrent writes of other tasks share its commit; each task gets its own errors."""
        await self._writes.run(self._to_put(namespace, key, value, index, ttl))

    def _to_put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None,
        ttl: float | NotProvided | None,
    ) -> Put | Delete:
        minutes = (self.ttl_config or {}).get("default_ttl") if isinstance(ttl, NotProvided) else ttl
        labels = _check_namespace(namespace, put=True)  # also if the value is None, which is a delete
        if labels[0] == "langgraph":  # only here, as in LangGraph: a batch may write there
            raise InvalidNamespaceError(f'Root label for namespace cannot be "langgraph". Got: {labels}')
        return _to_write(PutOp(namespace, str(key), value, index, minutes))

    def delete(self, namespace: Namespace, key: str) -> None:
        """Delete one item, if it exists."""
        labels = _check_namespace(namespace)
        if labels:
            self._store.delete(labels, str(key))

    async def adelete(self, namespace: Namespace, key: str) -> None:
        """`delete`, awaited. Concurrent writes of other tasks share its commit."""
        labels = _check_namespace(namespace)
        if labels:
            await self._writes.run(ops.Delete(labels, str(key)))

    def _should_refresh(self, refresh_ttl: bool | None) -> bool:
        chosen = (self.ttl_config or {}).get("refresh_on_read", True) if refresh_ttl is None else refresh_ttl
        return bool(chosen)  # LangGraph accepts any true value

    def _sweep_seconds(self, minutes: float | None) -> float:
        chosen = minutes or (self.ttl_config or {}).get("sweep_interval_minutes") or _SWEEP_MINUTES
        return float(chosen) * 60


class HoldallStore(_Base):
    """A LangGraph store on a holdall store, for sync and async graphs.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `index` and `ttl` are those of
    LangGraph's own stores.
    """

    _sweeper: _Sweeper | None = None

    @classmethod
    @contextmanager
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        pipeline: bool = False,  # noqa: ARG003  # PostgresStore has it; ignored
        pool_config: Mapping[str, Any] | None = None,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> Iterator[Self]:
        """Open a store for a `with` block, as LangGraph's own stores are opened, and close it after that."""
        with cls._open_from(conn_string, pool_config, index, ttl) as face:
            yield face

    def setup(self) -> None:
        """Connect, create and migrate now, rather than on first use."""
        self._store.setup()

    def sweep_ttl(self) -> int:
        """Delete expired items, and return how many. Reads do not return them before that either."""
        return self._store.sweep()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep at an interval, in a thread, until the future is cancelled.

        A holdall store also sweeps by itself. This is for code that sets its own interval.
        """
        if self.ttl_config is None:
            done: Future[None] = Future()  # without TTLs there is nothing to sweep
            done.set_result(None)
            return done
        if self._sweeper is None or self._sweeper.future.done():
            self._sweeper = _Sweeper(self._store, self._sweep_seconds(sweep_interval_minutes))
            weakref.finalize(self, self._sweeper.end)  # a sweeper must not outlive its store
        return self._sweeper.future

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper, and return whether it has ended within `timeout` seconds."""
        return self._sweeper is None or self._sweeper.stop(timeout)

    def close(self) -> None:
        """Stop the sweeper, and close the store if it was opened here."""
        self.stop_ttl_sweeper()
        super().close()

    async def aclose(self) -> None:
        """`close`, awaited."""
        await asyncio.to_thread(self.close)  # it waits for the sweeper's thread


class AsyncHoldallStore(_Base):
    """`HoldallStore` for code that was written for LangGraph's `Async…` stores: the same methods are awaited."""

    _sweeper: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls,
        conn_string: str,
        *,
        pipeline: bool = False,  # noqa: ARG003  # AsyncPostgresStore has it; ignored
        pool_config: Mapping[str, Any] | None = None,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> AsyncIterator[Self]:
        """Open a store for an `async with` block, as LangGraph's own stores are opened, and close it after that."""
        async with cls._open_from(conn_string, pool_config, index, ttl) as face:
            yield face

    async def setup(self) -> None:
        """Connect, create and migrate now, rather than on first use."""
        await self._store.asetup()

    async def sweep_ttl(self) -> int:
        """Delete expired items, and return how many. Reads do not return them before that either."""
        return await self._store.asweep()

    async def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> asyncio.Task[None]:
        """Sweep at an interval, in a task, until it is cancelled.

        A holdall store also sweeps by itself. This is for code that sets its own interval.
        """
        if self.ttl_config is None:
            return asyncio.create_task(asyncio.sleep(0))
        if self._sweeper is None or self._sweeper.done():
            seconds = self._sweep_seconds(sweep_interval_minutes)
            self._sweeper = asyncio.create_task(
                self._arun(_sweep_repeatedly(self._store, seconds, asyncio.sleep)), name="holdall-ttl-sweeper"
            )
        return self._sweeper

    async def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper, and return whether it has ended within `timeout` seconds."""
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is None or sweeper.done():
            return True
        sweeper.cancel()
        await asyncio.wait([sweeper], timeout=timeout)
        return sweeper.done()

    async def aclose(self) -> None:
        """Stop the sweeper, and close the store if it was opened here."""
        await self.stop_ttl_sweeper()
        await super().aclose()


# Ops and results -----------------------------------------------------------------------------------------------------


def _check_namespace(namespace: Any, put: bool = False) -> Namespace:
    """Return a namespace or prefix as a tuple, if LangGraph allows it. For a `put`, it must not be empty."""
    labels = namespace if type(namespace) is tuple else tuple(namespace)
    try:
        _check_labels(labels)
    except TypeError:  # an unhashable label
        _check_labels.__wrapped__(labels)
    if put and not labels:
        raise InvalidNamespaceError("Namespace cannot be empty.")
    return labels


@lru_cache(maxsize=4096)
def _check_labels(labels: Namespace) -> None:
    for label in labels:
        if isinstance(label, str) and "." in label:
            raise InvalidNamespaceError(
                f"Invalid namespace label '{label}' found in {labels}. Namespace labels cannot contain periods ('.')."
            )
    try:
        face_api.check_namespace(labels, empty=True)
    except InvalidInput as error:
        raise InvalidNamespaceError(str(error)) from error


def _to_write(op: PutOp) -> Put | Delete:
    namespace, key, value, index, minutes = op
    if value is None:
        return Delete(_check_namespace(namespace), key)
    ttl = None if minutes is None else _to_seconds(minutes)
    fields = index if index is None else index or False
    return Put(_check_namespace(namespace, True), key, value, ttl, ANY, fields, None, None, False)


def _to_seconds(minutes: float) -> float:
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not minutes > 0:
        raise InvalidInput(f"a ttl is a number of minutes above 0, or None for no expiry; not {shown(minutes)}")
    return minutes * 60


def _to_item(entry: Entry) -> Item:
    return Item(
        value=entry.value,
        key=entry.key,
        namespace=entry.namespace,
        created_at=entry.created_at,
        updated_at=entry.updated_at,
    )


def _to_search_item(hit: Hit) -> SearchItem:
    return SearchItem(hit.namespace, hit.key, hit.value, hit.created_at, hit.updated_at, hit.score)


def _merge_conditions(op: ListNamespacesOp, kind: Literal["prefix", "suffix"]) -> Namespace | None:
    """Return one pattern for all conditions of a kind; None if no namespace can match all of them."""
    pattern: list[str] = []
    for condition in op.match_conditions or ():
        if condition.match_type not in ("prefix", "suffix"):
            raise InvalidInput(f"a match_type is 'prefix' or 'suffix', not {shown(condition.match_type)}")
        if condition.match_type != kind:
            continue
        path = list(_check_namespace(condition.path))
        if kind == "suffix":
            path.reverse()
        for index, label in enumerate(path):
            if index == len(pattern):
                pattern.append(label)
            elif pattern[index] == "*":
                pattern[index] = label
            elif label not in ("*", pattern[index]):
                return None
    return tuple(pattern if kind == "prefix" else reversed(pattern))


# Embedding -----------------------------------------------------------------------------------------------------------

_METRICS: dict[str, Metric] = {"cosine": "cosine", "inner_product": "dot", "l2": "l2"}


def _with_index(store: Store, index: IndexConfig) -> Store:
    """Return a view of a store that embeds as LangGraph's `IndexConfig` specifies."""
    embed: Any = index.get("embed")
    if isinstance(embed, str) and embed != "local":
        embed = ensure_embeddings(embed)  # "provider:model", through LangChain
    distance = index.get("distance_type", "cosine")
    if distance not in _METRICS:
        raise InvalidInput(f"distance_type is one of {', '.join(map(repr, _METRICS))}, not {shown(distance)}")
    return store.with_embedder(
        embed, dims=index.get("dims"), search_fields=index.get("fields"), metric=_METRICS[distance]
    )


# Lifetimes -----------------------------------------------------------------------------------------------------------


def _find_author() -> tuple[str, str | None] | None:
    """Return the run, or else the thread, of the graph that runs now, and its node; None outside of a graph."""
    config = var_child_runnable_config.get()
    if config is None:
        return None
    metadata, configurable = config.get("metadata") or {}, config.get("configurable") or {}
    run = metadata.get("run_id") or configurable.get("run_id") or config.get("run_id")
    thread, node = configurable.get("thread_id"), metadata.get("langgraph_node")
    if run is None and thread is None:
        return None
    author = f"thread {thread}" if run is None else f"run {run}"
    return author[:_MOST_AUTHOR], None if node is None else f"node {node}"[:_MOST_AUTHOR]


def _ttl_config_of(store: Store) -> TTLConfig | None:
    """Return the TTL options of a store as LangGraph's config, so that they also apply to LangGraph's puts."""
    options = face_api.options_of(store)
    if options.ttl is None:
        return None
    return {"default_ttl": options.ttl / 60, "refresh_on_read": options.refresh_on_read}


def _sweep_options(ttl: TTLConfig | None) -> dict[str, float]:
    """Return the option of `holdall.open` for the sweep interval of a config, if it has one."""
    minutes = (ttl or {}).get("sweep_interval_minutes")
    return {} if minutes is None else {"sweep_interval": minutes * 60}


class _Sweeper:
    """A thread that sweeps a store at an interval. To cancel its future ends it; then the future is done."""

    def __init__(self, store: Store, seconds: float) -> None:
        self.future: Future[None] = Future()
        self._ended = threading.Event()
        self.future.add_done_callback(lambda _: self._ended.set())
        self._thread = threading.Thread(
            target=self._sweep, args=(store, seconds), name="holdall-ttl-sweeper", daemon=True
        )
        self._thread.start()

    def _sweep(self, store: Store, seconds: float) -> None:
        face_api.run(store, _sweep_repeatedly(store, seconds, self._ended.wait))
        if not self.future.done():
            self.future.set_result(None)

    def end(self) -> None:
        self._ended.set()

    def stop(self, timeout: float | None) -> bool:
        self.end()
        self._thread.join(timeout)
        return not self._thread.is_alive()


def _sweep_repeatedly(store: Store, seconds: float, wait: Callable[[float], Any]) -> StoreProgram[None]:
    """Sweep a store at an interval, in a thread or a task, until it is closed or `wait` returns True.

    The store's own maintenance is separate: it belongs to the engine and not to a face, and does more than sweep.
    """
    while not (yield Call(wait, (seconds,))):
        try:
            yield from face_api.sweep(store)
        except StoreClosed:
            return
        except HoldallError:
            logger.exception("a sweep failed; retrying at the next interval")
