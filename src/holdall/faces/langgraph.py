"""LangGraph's long-term memory on any engine: `HoldallStore` is a `BaseStore`, sync and async in one object.

    graph = builder.compile(store=HoldallStore("postgresql://…"))

Each of LangGraph's ops becomes one of ours; what differs is kept here. A batch reads before it writes and of several
puts to one key the last one counts; TTLs are minutes; labels have LangGraph's rules; items are LangGraph's.
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
    from ..errors import MissingExtra

    raise MissingExtra(
        f"LangGraph's store needs the package {missing.name!r}: pip install 'holdall[langgraph]'", name=missing.name
    ) from missing

from .. import keys, ops, seam
from ..embed import Metric
from ..errors import HoldallError, InvalidInput, StoreClosed, shown
from ..gathering import Gathering
from ..ops import ANY, Delete, Entry, Hit, Namespace, Put
from ..programs import Call, Program, arun, run
from ..store import Store
from .conn_strings import open_from
from .importing import Imported, Refused
from .langgraph_import import aimport_from, import_from
from .opening import Face

__all__ = ["AsyncHoldallStore", "HoldallStore", "Imported", "Refused", "aimport_from", "import_from"]

logger = logging.getLogger("holdall")

_SWEEP_MINUTES = 5.0  # between two sweeps, unless somebody says otherwise, as at LangGraph's own stores


class _Base(Face, BaseStore):
    """What both stores are: LangGraph's methods, over a `Store`."""

    supports_ttl = True

    def __init__(
        self,
        store_or_url: Any = None,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        super().__init__()
        store = self._open(store_or_url, **_sweeping(ttl))
        #: The `holdall.Store` beneath.
        self.store: Store = store if index is None else _embedding(store, index)
        self._beneath = self.store
        self.index_config = index
        self.ttl_config = ttl if ttl is not None else _ttl_config_of(store)
        execute = self.store.aexecute
        # A refresh must not wait for what is being embedded.
        self._reads, self._writes, self._refreshes = Gathering(execute), Gathering(execute), Gathering(execute)

    @classmethod
    def _opened_from(
        cls,
        conn_string: str,
        pool_config: Mapping[str, Any] | None,
        index: IndexConfig | None,
        ttl: TTLConfig | None,
    ) -> Self:
        """One on a store of its own, which is closed with it."""
        store = open_from(conn_string, pool_config, **_sweeping(ttl))
        try:
            face = cls(store, index=index, ttl=ttl)
        except BaseException:
            store.close()
            raise
        face._to_close = store
        return face

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.store!r}>"

    # Batches ---------------------------------------------------------------------------------------------------------

    def _batch(self, ops: Iterable[Op]) -> Program[list[Result]]:
        """Run LangGraph's ops: reads first, then what the last put of each key says, atomically."""
        asked = list(ops)
        results: list[Result] = [None] * len(asked)
        gets: dict[int, GetOp] = {}
        walks: list[tuple[int, SearchOp | ListNamespacesOp]] = []
        writes: dict[tuple[Namespace, str], Put | Delete] = {}
        for place, op in enumerate(asked):
            if isinstance(op, PutOp):
                write = _write(op)
                there = write.namespace, write.key
                writes.pop(there, None)  # so that it is the newest where it stands last
                writes[there] = write
            elif isinstance(op, GetOp):
                if _checked(op.namespace):  # in () there is nothing
                    gets[place] = op
            elif isinstance(op, SearchOp | ListNamespacesOp):
                walks.append((place, op))
            else:
                raise InvalidInput(f"a batch is made of GetOp, PutOp, SearchOp and ListNamespacesOp, not {shown(op)}")
        if gets:
            found = yield from self._get_all(list(gets.values()))
            for place, entry in zip(gets, found, strict=True):
                results[place] = None if entry is None else _item(entry)
        for place, op in walks:
            results[place] = yield from self._searched(op) if isinstance(op, SearchOp) else self._listed(op)
        written = [write for write in writes.values() if write.namespace]
        if written:
            yield from seam.written(self.store, written)
        return results

    batch = run(_batch)
    abatch = arun(_batch)

    def _get_all(self, asked: list[GetOp]) -> Program[list[Entry | None]]:
        found: list[Entry | None] = yield [ops.Get(tuple(op.namespace), op.key) for op in asked]
        yield from self._refresh(
            entry for op, entry in zip(asked, found, strict=True) if entry is not None and op.refresh_ttl
        )
        return found

    def _searched(self, op: SearchOp) -> Program[list[SearchItem]]:
        prefix = _checked(op.namespace_prefix)
        ranks = bool(op.query) and seam.settings(self.store).embedding is not None
        hits: list[Hit] = yield from seam.search(
            self.store,
            prefix,
            query=op.query,
            mode="semantic" if ranks else None,
            filter=op.filter,
            limit=op.limit,
            offset=op.offset,
            rest=True,
        )
        if op.refresh_ttl:
            yield from self._refresh(hits)
        return [_search_item(hit) for hit in hits]

    def _refresh(self, entries: Iterable[Entry]) -> Program[None]:
        """Start the TTLs of what was read anew, where there are any."""
        expiring = [ops.Refresh(entry.namespace, entry.key) for entry in entries if entry.expires_at is not None]
        if expiring:
            yield expiring

    def _listed(self, op: ListNamespacesOp) -> Program[list[Namespace]]:
        prefix, suffix = _pattern(op, "prefix"), _pattern(op, "suffix")
        if prefix is None or suffix is None:
            return []
        return (
            yield from seam.namespaces(
                self.store, prefix=prefix, suffix=suffix, max_depth=op.max_depth, limit=op.limit, offset=op.offset
            )
        )

    # One op, of which BaseStore would make a batch --------------------------------------------------------------------

    def get(self, namespace: Namespace, key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """One item, or None. `refresh_ttl` starts its TTL anew; None does as `ttl_config` says."""
        home = _checked(namespace)
        entry = self.store.get(home, str(key), refresh=self._is_refreshing(refresh_ttl)) if home else None
        return None if entry is None else _item(entry)

    async def aget(self, namespace: Namespace, key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """`get`, awaited. What other tasks ask for meanwhile is read with it."""
        home = _checked(namespace)
        if not home:
            return None
        entry: Entry | None = await self._reads.ask(ops.Get(home, str(key)))
        if entry is None:
            return None
        if entry.expires_at is not None and self._is_refreshing(refresh_ttl):
            await self._refreshes.ask(ops.Refresh(home, entry.key))
        return _item(entry)

    def put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Write one item. `ttl` is minutes, None for never; without one, that of `ttl_config`."""
        self.store.execute([self._put(namespace, key, value, index, ttl)])

    async def aput(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """`put`, awaited. What other tasks put and delete meanwhile is written with it; each has its own errors."""
        await self._writes.ask(self._put(namespace, key, value, index, ttl))

    def _put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None,
        ttl: float | NotProvided | None,
    ) -> Put | Delete:
        minutes = (self.ttl_config or {}).get("default_ttl") if isinstance(ttl, NotProvided) else ttl
        _checked(namespace, put=True)  # whatever the value is
        return _write(PutOp(namespace, str(key), value, index, minutes))

    def delete(self, namespace: Namespace, key: str) -> None:
        """Remove one item, if it is there."""
        home = _checked(namespace)
        if home:
            self.store.delete(home, str(key))

    async def adelete(self, namespace: Namespace, key: str) -> None:
        """`delete`, awaited, and written with what other tasks write meanwhile."""
        home = _checked(namespace)
        if home:
            await self._writes.ask(ops.Delete(home, str(key)))

    def _is_refreshing(self, refresh_ttl: bool | None) -> bool:
        chosen = (self.ttl_config or {}).get("refresh_on_read", True) if refresh_ttl is None else refresh_ttl
        return bool(chosen)  # LangGraph takes whatever is true

    def _sweep_seconds(self, minutes: float | None) -> float:
        chosen = minutes or (self.ttl_config or {}).get("sweep_interval_minutes") or _SWEEP_MINUTES
        return float(chosen) * 60


class HoldallStore(_Base):
    """A LangGraph store on a holdall store, for sync and async graphs alike.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `index` and `ttl` are what
    LangGraph's own stores take.
    """

    _sweeper: _Sweeper | None = None

    @classmethod
    @contextmanager
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        pipeline: bool = False,  # noqa: ARG003  # of PostgresStore's: ours decides for itself
        pool_config: Mapping[str, Any] | None = None,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> Iterator[Self]:
        """A store for a `with` block, made as LangGraph's own are, and closed after it."""
        with cls._opened_from(conn_string, pool_config, index, ttl) as face:
            yield face

    def setup(self) -> None:
        """Connect, create and migrate now, rather than on first use."""
        self.store.setup()

    def sweep_ttl(self) -> int:
        """Clear away what has expired; how many items. Nobody sees them before that either."""
        return self.store.sweep()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep every so often, in a thread, until the future is cancelled.

        A holdall store is swept by itself, too; this is for code that wants to say when.
        """
        if self.ttl_config is None:
            nothing_to_do: Future[None] = Future()
            nothing_to_do.set_result(None)
            return nothing_to_do
        if self._sweeper is None or self._sweeper.future.done():
            self._sweeper = _Sweeper(self.store, self._sweep_seconds(sweep_interval_minutes))
            weakref.finalize(self, self._sweeper.end)  # or it would sweep for a store that nobody has
        return self._sweeper.future

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop what `start_ttl_sweeper` began; whether it has ended within so many seconds."""
        return self._sweeper is None or self._sweeper.stop(timeout)

    def close(self) -> None:
        """Stop the sweeper, and close the store if it was opened here."""
        self.stop_ttl_sweeper()
        super().close()

    async def aclose(self) -> None:
        """`close`, awaited."""
        await asyncio.to_thread(self.close)  # which waits for the sweeper


class AsyncHoldallStore(_Base):
    """`HoldallStore` for code that was written for LangGraph's `Async…` stores: what they await is awaited here."""

    _sweeper: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls,
        conn_string: str,
        *,
        pipeline: bool = False,  # noqa: ARG003  # of AsyncPostgresStore's: ours decides for itself
        pool_config: Mapping[str, Any] | None = None,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> AsyncIterator[Self]:
        """A store for an `async with` block, made as LangGraph's own are, and closed after it."""
        async with cls._opened_from(conn_string, pool_config, index, ttl) as face:
            yield face

    async def setup(self) -> None:
        """Connect, create and migrate now, rather than on first use."""
        await self.store.asetup()

    async def sweep_ttl(self) -> int:
        """Clear away what has expired; how many items. Nobody sees them before that either."""
        return await self.store.asweep()

    async def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> asyncio.Task[None]:
        """Sweep every so often, in a task, until it is cancelled.

        A holdall store is swept by itself, too; this is for code that wants to say when.
        """
        if self.ttl_config is None:
            return asyncio.create_task(asyncio.sleep(0))
        if self._sweeper is None or self._sweeper.done():
            seconds = self._sweep_seconds(sweep_interval_minutes)
            self._sweeper = asyncio.create_task(
                self._arun(_sweeping_every(self.store, seconds, asyncio.sleep)), name="holdall-ttl-sweeper"
            )
        return self._sweeper

    async def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop what `start_ttl_sweeper` began; whether it has ended within so many seconds."""
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


def _checked(namespace: Any, put: bool = False) -> Namespace:
    """A namespace or prefix that LangGraph allows; `put` where something is to be written there."""
    labels = namespace if type(namespace) is tuple else tuple(namespace)
    try:
        _check_labels(labels)
    except TypeError:  # an unhashable label
        _check_labels.__wrapped__(labels)
    if put and not labels:
        raise InvalidNamespaceError("Namespace cannot be empty.")
    if put and labels[0] == "langgraph":
        raise InvalidNamespaceError(f'Root label for namespace cannot be "langgraph". Got: {labels}')
    return labels


@lru_cache(maxsize=4096)
def _check_labels(labels: Namespace) -> None:
    for label in labels:
        if isinstance(label, str) and "." in label:
            raise InvalidNamespaceError(
                f"Invalid namespace label '{label}' found in {labels}. Namespace labels cannot contain periods ('.')."
            )
    try:
        keys.check_namespace(labels, empty=True)
    except InvalidInput as error:
        raise InvalidNamespaceError(str(error)) from error


def _write(op: PutOp) -> Put | Delete:
    namespace, key, value, index, minutes = op
    if value is None:
        return Delete(_checked(namespace), key)
    ttl = None if minutes is None else _seconds(minutes)
    return Put(_checked(namespace, True), key, value, ttl, ANY, index if index is None else index or False)


def _seconds(minutes: float) -> float:
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not minutes > 0:
        raise InvalidInput(f"a ttl is minutes, more than 0, or None for never; not {shown(minutes)}")
    return minutes * 60


def _item(entry: Entry) -> Item:
    return Item(
        value=entry.value,
        key=entry.key,
        namespace=entry.namespace,
        created_at=entry.created_at,
        updated_at=entry.updated_at,
    )


def _search_item(hit: Hit) -> SearchItem:
    return SearchItem(hit.namespace, hit.key, hit.value, hit.created_at, hit.updated_at, hit.score)


def _pattern(op: ListNamespacesOp, kind: Literal["prefix", "suffix"]) -> Namespace | None:
    """The one pattern that says what all conditions of a kind say; None where they contradict each other."""
    pattern: list[str] = []
    for condition in op.match_conditions or ():
        if condition.match_type not in ("prefix", "suffix"):
            raise InvalidInput(f"a match_type is 'prefix' or 'suffix', not {shown(condition.match_type)}")
        if condition.match_type != kind:
            continue
        path = list(_checked(condition.path))
        if kind == "suffix":
            path.reverse()
        for place, label in enumerate(path):
            if place == len(pattern):
                pattern.append(label)
            elif pattern[place] == "*":
                pattern[place] = label
            elif label not in ("*", pattern[place]):
                return None
    return tuple(pattern if kind == "prefix" else reversed(pattern))


# Embedding -----------------------------------------------------------------------------------------------------------

_METRICS: dict[str, Metric] = {"cosine": "cosine", "inner_product": "dot", "l2": "l2"}


def _embedding(store: Store, index: IndexConfig) -> Store:
    """A view of a store that embeds as LangGraph's `IndexConfig` says."""
    embed: Any = index.get("embed")
    if isinstance(embed, str) and embed != "local":
        embed = ensure_embeddings(embed)  # "provider:model", through LangChain
    said = index.get("distance_type", "cosine")
    if said not in _METRICS:
        raise InvalidInput(f"distance_type is one of {', '.join(map(repr, _METRICS))}, not {shown(said)}")
    return store.with_embedder(embed, dims=index.get("dims"), fields=index.get("fields"), metric=_METRICS[said])


# Lifetimes -----------------------------------------------------------------------------------------------------------


def _ttl_config_of(store: Store) -> TTLConfig | None:
    """What a store was opened with, in LangGraph's words, so that its own TTL holds for LangGraph's puts too."""
    settings = seam.settings(store)
    if settings.ttl is None:
        return None
    return {"default_ttl": settings.ttl / 60, "refresh_on_read": settings.refresh_on_read}


def _sweeping(ttl: TTLConfig | None) -> dict[str, float]:
    """How often a store that is opened here is swept, where that was said."""
    minutes = (ttl or {}).get("sweep_interval_minutes")
    return {} if minutes is None else {"sweep_interval": minutes * 60}


class _Sweeper:
    """A thread that sweeps a store every so often. Its future is done when it has ended; cancelled, it ends."""

    def __init__(self, store: Store, seconds: float) -> None:
        self.future: Future[None] = Future()
        self._ended = threading.Event()
        self.future.add_done_callback(lambda _: self._ended.set())
        self._thread = threading.Thread(
            target=self._sweep, args=(store, seconds), name="holdall-ttl-sweeper", daemon=True
        )
        self._thread.start()

    def _sweep(self, store: Store, seconds: float) -> None:
        seam.run(store, _sweeping_every(store, seconds, self._ended.wait))
        if not self.future.done():
            self.future.set_result(None)

    def end(self) -> None:
        self._ended.set()

    def stop(self, timeout: float | None) -> bool:
        self.end()
        self._thread.join(timeout)
        return not self._thread.is_alive()


def _sweeping_every(store: Store, seconds: float, wait: Callable[[float], Any]) -> Program[None]:
    """Sweep a store every so often, in a thread or a task, until it is closed or `wait` says that it is time to end.

    The store's own upkeep is another: it goes with an engine and not with a face, and does more than sweep.
    """
    while not (yield Call(wait, (seconds,))):
        try:
            yield from seam.sweep(store)
        except StoreClosed:
            return
        except HoldallError:
            logger.exception("a sweep failed, trying again later")
