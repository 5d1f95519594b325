"""The store: the object that users and faces hold.

Every method is written once, as a program (`holdall.runtime.programs`), and has two public names: `put` runs it, `aput`
awaits it. Programs yield batches of ops. `holdall.core.dispatch` checks these and sends them to the engine. `watch` and
`lease` are in `holdall.live`.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal

from .. import ops
from ..errors import Conflict, InvalidInput, InvalidValue, NotFound, Unavailable, Unsupported, shown
from ..files.volume import Files
from ..history import erasing, versions
from ..history.erasing import Erased
from ..history.versions import Rewound
from ..live.leases import Lease, LeaseMethods
from ..live.watch import WatchMethods
from ..model import cursors, filters, keys
from ..model.field_paths import check_paths
from ..model.values import decode, encode, to_datetime, to_microseconds
from ..operate.public import OperateMethods
from ..ops import (
    ABSENT,
    ANY,
    DEFAULT,
    KEEP,
    Diff,
    Entry,
    Expectation,
    Hit,
    Namespace,
    Page,
    PointOp,
    Stats,
    TtlOrDefault,
    Value,
    Version,
    replace,
)
from ..runtime import arguments
from ..runtime.arguments import explain_renamed
from ..runtime.closers import wait_for_closers
from ..runtime.programs import Call, StoreProgram, apages, arun, pages, pause_before_retry, run
from ..runtime.signals import defer_signals
from ..search.embedders import Embedder, Metric, check_metric
from ..search.embedding_model import EmbeddingModel
from .options import Mode

logger = logging.getLogger("holdall")


class Store(WatchMethods, LeaseMethods, OperateMethods):
    """A durable store of entries. Get one from `holdall.open`.

    Sync and async methods may be mixed, from any thread and any event loop.
    """

    # Items -----------------------------------------------------------------------------------------------------------

    def _put(
        self,
        namespace: Namespace,
        key: str,
        value: Value,
        *,
        ttl: TtlOrDefault = DEFAULT,
        expires_at: datetime | None = None,
        expect: Expectation = ANY,
        search_fields: Literal[False] | Sequence[str] | None = None,
        lease: Lease | None = None,
    ) -> StoreProgram[Entry]:
        """Write an entry and return it as stored.

        `ttl` is seconds or a timedelta, None for never, DEFAULT for the store's own. Instead of it, `expires_at` is an
        aware datetime, which no refresh moves; one that has passed makes the entry absent at once. `expect` makes the
        write conditional: ABSENT, or the version or `Entry` that must still be there; else `Conflict`, with nothing
        written. `lease` must still be held, else `LeaseLost`. `search_fields` are the paths that a `query` finds the
        entry by, such as `["title", "notes[*].text"]`: False for none, None for those that the store was opened with.
        """
        entry: Entry
        if expires_at is None:
            put = ops.Put(namespace, key, value, ttl, expect, search_fields)
            [entry] = yield from self._write_batch([put], lease)
            return entry
        if ttl is not DEFAULT:
            raise InvalidInput("pass ttl= or expires_at=, not both")
        put = ops.Put(namespace, key, value, None, expect, search_fields)
        expiry = ops.Backdate(namespace, key, expires_at=expires_at)
        entry, _ = yield from self._write_batch([put, expiry], lease)
        return dataclasses.replace(entry, expires_at=to_datetime(to_microseconds(expires_at)))

    put = run(_put)
    aput = arun(_put)

    def _get(self, namespace: Namespace, key: str, *, refresh: bool | None = None) -> StoreProgram[Entry | None]:
        """Read an entry, or None. `refresh=True` restarts its TTL; None uses the store's `refresh_on_read`."""
        if refresh is None:
            refresh = self._options.refresh_on_read
        else:
            arguments.check_flag("refresh", refresh, or_none=True)
        entry: Entry | None = (yield [ops.Get(namespace, key)])[0]
        if refresh and entry is not None and entry.expires_at is not None:
            entry = (yield [ops.Refresh(namespace, key), ops.Get(namespace, key)])[1]
        return entry

    get = run(_get)
    aget = arun(_get)

    def _update(
        self,
        namespace: Namespace,
        key: str,
        fn: Callable[[dict[str, Any]], Value | Awaitable[Value]],
        *,
        default: Value | None = None,
        lease: Lease | None = None,
    ) -> StoreProgram[Entry]:
        """Read an entry, call `fn(value)`, and write what it returns. If the entry changed in between, do it again.

        A missing entry starts from `default`, or is `NotFound` without one. The entry keeps its TTL and its search
        fields. `fn` may run several times. `aupdate` also takes an async function.
        """
        if not callable(fn):
            raise InvalidInput(f"update takes a function that gets the value, not {type(fn).__name__} {shown(fn)}")
        for tries in itertools.count(1):
            entry: Entry | None = (yield [ops.Get(namespace, key)])[0]
            if entry is None and default is None:
                raise NotFound(f"there is no {key!r} in {namespace!r} to update; pass default= to create it")
            value = yield Call(fn, (decode(encode(default)) if entry is None else entry.value,))
            if value is None:
                raise InvalidValue("the function given to update returned None; it must return the new value")
            put = ops.Put(namespace, key, value, DEFAULT if entry is None else KEEP, ABSENT if entry is None else entry)
            try:
                written: Entry = (yield from self._write_batch([put], lease))[0]
            except Conflict as conflict:
                yield from pause_before_retry(conflict, tries)
            else:
                return written
        raise AssertionError("unreachable")

    update = run(_update)
    aupdate = arun(_update)

    def _delete(
        self, namespace: Namespace, key: str, *, expect: Expectation = ANY, lease: Lease | None = None
    ) -> StoreProgram[bool]:
        """Remove an entry. Returns whether it was there."""
        deleted: bool = (yield from self._change([ops.Delete(namespace, key, expect)], lease))[0]
        return deleted

    delete = run(_delete)
    adelete = arun(_delete)

    def _delete_tree(self, prefix: Namespace, *, lease: Lease | None = None) -> StoreProgram[int]:
        """Remove every entry in a namespace and below it, in one transaction. Returns how many there were.

        A disk store removes a large tree in slices.
        """
        count: int = (yield from self._change([ops.DeleteTree(prefix)], lease))[0]
        return count

    delete_tree = run(_delete_tree)
    adelete_tree = arun(_delete_tree)

    def _execute(self, batch: Iterable[PointOp], *, lease: Lease | None = None) -> StoreProgram[list[Any]]:
        """Run `holdall.ops` in order, in one transaction: all of them, or on any error none. Returns their results."""
        if not isinstance(batch, Iterable):
            raise _not_a_point_op(batch)
        operations = list(batch)
        for op in operations:
            if not isinstance(op, ops.POINT_OPS):
                raise _not_a_point_op(op)
            if isinstance(op, ops.Put) and op.vectors is not None:
                raise InvalidInput(
                    "the store makes the vectors of a Put: leave them out, and open the store with embed="
                )
        return (yield from self._write_batch(operations, lease))

    execute = run(_execute)
    aexecute = arun(_execute)

    # Search and listing ----------------------------------------------------------------------------------------------

    def _search(
        self,
        prefix: Namespace = (),
        *,
        query: str | None = None,
        filter: Mapping[str, Any] | None = None,
        mode: Mode | None = None,
        limit: int = 10,
        offset: int = 0,
        cursor: str | None = None,
        recursive: bool = True,
        rest: bool = False,
        exact: bool = False,
        neighbours: float = 0.0,
    ) -> StoreProgram[Page[Hit]]:
        """Find the entries in a namespace and below it that match a filter, newest change first.

        `page.next` is the cursor of the next page. Pages are stable while others write: an entry that matches the whole
        time is found at least once.

        With a `query`, the best entries come first, with their score. `mode` is "lexical" (BM25: entries that share
        words with the query; "words in quotes" must occur as a phrase), "semantic" (by vectors) or "hybrid" (both: the
        default if the store has an embedder). With `rest`, the other entries follow. Among more than 10,000 vectors, an
        engine may look for the nearest in an approximate index; with `exact`, it compares all of them. With
        `neighbours`, a number from 0 to 1, an entry lends that part of its score to the entries written just before
        and after it.
        """
        inside = self._resolve_prefix(prefix)
        wanted = filters.encode(filter)
        arguments.check_count("limit", limit)
        arguments.check_count("offset", offset)
        arguments.check_flag("recursive", recursive)
        arguments.check_flag("rest", rest)
        arguments.check_flag("exact", exact)
        part = arguments.check_fraction("neighbours", neighbours)
        if cursor is not None and offset:
            raise InvalidInput("pass offset= or cursor=, not both: a cursor already contains the position")
        words, how = self._options.resolve_ranking(query, mode)
        if words is not None and not self._engine_handle.engine.capabilities.ranks:
            raise Unsupported("this engine cannot rank by a query")
        asked = ""
        if cursor is not None or limit:
            ranked = (words, how, rest, *(["exact"] if exact else []), *([part] if part else []))
            asked = cursors.digest(inside, filter if wanted else None, recursive, words and ranked)
        mark = None if cursor is None else cursors.unwrap(cursor, asked)
        walk = ops.Search(inside, wanted, limit, offset, mark, recursive)
        if words is not None:
            walk = replace(
                walk,
                query=None if how == "semantic" else words,
                vector=None if how == "lexical" else (yield from self._embed_query(words)),
                rest=rest,
                exact=exact,
                neighbours=part,
            )
        page = yield from self._find(walk)
        if page.next is not None:
            page.next = f"{asked}.{page.next}"
        return page

    def _search_vector(
        self,
        prefix: Namespace,
        vector: Sequence[float],
        *,
        query: str | None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int = 10,
        recursive: bool = True,
    ) -> StoreProgram[Page[Hit]]:
        """`_search` by a vector that the caller has computed with the model of this store: hybrid, with a `query`."""
        embedding = self._options.embedding
        assert embedding is not None
        walk = ops.Search(self._resolve_prefix(prefix), filters.encode(filter), limit, recursive=recursive)
        words = None if query is None else self._options.resolve_ranking(query, "hybrid")[0]
        return (yield from self._find(replace(walk, query=words, vector=(yield from embedding.use_query(vector)))))

    def _find(self, walk: ops.Search) -> StoreProgram[Page[Hit]]:
        """Run a search in the engine. Indexes that it needs are brought up to date first."""
        if walk.neighbours and not self._engine_handle.indexes_order:
            yield from self._index_order()
        if walk.query is not None:
            self._engine_handle.searches_texts = True
        page: Page[Hit] | ops.IndexLag = (yield [walk])[0]
        if isinstance(page, ops.IndexLag):
            yield from self._index_texts(page.changes)
            page = (yield [replace(walk, caught_up=True)])[0]
            assert isinstance(page, Page)
        return page

    search = run(_search)
    asearch = arun(_search)

    def _count(
        self, prefix: Namespace = (), *, filter: Mapping[str, Any] | None = None, recursive: bool = True
    ) -> StoreProgram[int]:
        """Count the entries in a namespace and below it that match a filter."""
        arguments.check_flag("recursive", recursive)
        walk = ops.Count(self._resolve_prefix(prefix), filters.encode(filter), recursive)
        count: int = (yield [walk])[0]
        return count

    count = run(_count)
    acount = arun(_count)

    def _stats(self) -> StoreProgram[Stats]:
        """Describe the store: how much it holds, and the state of its indexes.

        It counts all files, so it is for operators, and not for every request. Of a scope, it has only `entries`,
        `files` and `bytes`.
        """
        stats: Stats = (yield [ops.ReadStats(self._scope)])[0]
        if self._scope:  # names of fields and the amount of changes are about what is outside, too
            return Stats(entries=stats.entries, files=stats.files, bytes=stats.bytes)
        return stats

    stats = run(_stats)
    astats = arun(_stats)

    def _namespaces(
        self,
        *,
        prefix: Namespace | None = None,
        suffix: Namespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> StoreProgram[list[Namespace]]:
        """List the namespaces that hold entries, sorted.

        `"*"` in `prefix` or `suffix` stands for any one label. `max_depth` cuts namespaces to that many labels, and
        lists each once.
        """
        starts, ends = keys.check_pattern(prefix, "prefix"), keys.check_pattern(suffix, "suffix")
        arguments.check_count("limit", limit)
        arguments.check_count("offset", offset)
        if max_depth is not None:
            arguments.check_count("max_depth", max_depth, least=1)
        found: list[Namespace] = (yield [ops.Namespaces(starts, ends, max_depth, limit, offset, self._scope)])[0]
        return found

    namespaces = run(_namespaces)
    anamespaces = arun(_namespaces)

    @explain_renamed
    def scan(self, prefix: Namespace = ()) -> Generator[Entry, None, None]:
        """Iterate over every entry in a namespace and below it, in key order, a page at a time."""
        return pages(self, self._scan_pages(prefix))

    @explain_renamed
    def ascan(self, prefix: Namespace = ()) -> AsyncGenerator[Entry, None]:
        """`scan`, as an async iterator."""
        return apages(self, self._scan_pages(prefix))

    def _scan_pages(self, prefix: Namespace) -> Callable[[Any], StoreProgram[tuple[list[Entry], Any]]]:
        walk = ops.Scan(self._resolve_prefix(prefix))

        def page(after: Any) -> StoreProgram[tuple[list[Entry], Any]]:
            entries: Page[Entry] = (yield [replace(walk, after=after)])[0]
            if entries.next is None:
                return entries, None
            return entries, (self._scope + entries[-1].namespace, entries[-1].key)

        return page

    # Embedding and indexing ------------------------------------------------------------------------------------------

    def _write_batch(self, batch: list[Any], lease: Lease | None) -> StoreProgram[list[Any]]:
        """Run a batch, if a lease is held. If the store has an embedder, its puts get vectors."""
        embedding = self._options.embedding
        if embedding is not None and self._engine_handle.engine.capabilities.ranks:
            batch = yield from embedding.embed_batch(batch, self._options.search_fields)
            if embedding.has_vectors(batch):
                return (yield from embedding.write_if_current(batch, lambda checked: self._change(checked, lease)))
        results: list[Any] = (yield batch) if lease is None and batch else (yield from self._change(batch, lease))
        return results

    def _index_texts(self, changes: int) -> StoreProgram[None]:
        """Add so many changes to the text index. Changes that arrive in the meantime are not waited for."""
        self._engine_handle.indexes_texts = more = True
        while more and changes > 0:
            indexed, more = (yield [ops.IndexTexts()])[0]
            changes -= indexed
        self._engine_handle.index_soon()  # merges are left

    def _index_order(self) -> StoreProgram[None]:
        """Build the index of neighbours. Searches work without it, so a full disk or a busy writer is no error."""
        try:
            yield [ops.IndexOrder()]
        except Unavailable as error:
            logger.warning("cannot build the index of neighbours, so searching them is slow: %s", error)
        self._engine_handle.indexes_order = True  # not before: the call may be cancelled

    def _embed_query(self, query: str) -> StoreProgram[ops.Vector]:
        assert self._options.embedding is not None
        return (yield from self._options.embedding.embed_query(query))

    def _reindex(self, *, progress: Callable[[int, int], object] | None = None) -> StoreProgram[int]:
        """Make vectors for all entries that have none of this store's model. Returns how many entries.

        Call it after a change of model, or for entries that were put without an embedder. The store can be used in the
        meantime. An interrupted call can be repeated. `progress(done, total)` is called after each step.
        """
        arguments.check_function("progress", progress)
        if not self._require_open().engine.capabilities.ranks:
            raise Unsupported("this engine keeps no vectors")
        embedding = self._options.embedding
        if embedding is None:
            raise InvalidInput("reindex needs an embedder: open the store with embed=")
        return (yield from embedding.reindex(self._scope, self._options.search_fields, progress))

    reindex = run(_reindex)
    areindex = arun(_reindex)

    @explain_renamed
    def with_embedder(
        self,
        embed: Any,
        *,
        dims: int | None = None,
        search_fields: Sequence[str] | None = None,
        metric: Metric = "cosine",
    ) -> Store:
        """Return a view of this store that embeds what is put, and searches by vectors.

        Closing the view leaves the store open.
        """
        options = replace(
            self._options,
            embedding=EmbeddingModel(Embedder(embed, dims), check_metric(metric)),
            search_fields=self._options.search_fields if search_fields is None else check_paths(search_fields),
        )
        return Store(self._engine_handle, options, self, self._scope)

    # Sweeping --------------------------------------------------------------------------------------------------------

    def _sweep(self) -> StoreProgram[int]:
        """Remove expired entries, old tombstones and old versions now instead of in the background.

        Returns how many entries had expired.
        """
        total, slice_ = 0, ops.Sweep(prefix=self._scope)
        while True:
            swept: int = (yield [slice_])[0]
            total += swept
            if swept < slice_.limit:
                break
        retention = self._engine_handle.feed_retention
        if retention is not None and not self._scope:
            while (yield [ops.PurgeTombstones(retention)])[0]:
                pass
        if not self._scope and self._engine_handle.engine.capabilities.keeps_history:
            while (yield [ops.PurgeHistory()])[0]:
                pass
        while getattr(self._engine_handle.engine, "needs_maintenance", False) and (yield [ops.Maintain()])[0]:
            pass
        return total

    sweep = run(_sweep)
    asweep = arun(_sweep)

    # History ---------------------------------------------------------------------------------------------------------

    def _history(self, namespace: Namespace, key: str, *, limit: int = 100) -> StoreProgram[list[Version]]:
        """Return the versions of an entry that the store keeps (`history=` of `holdall.open`), newest first.

        The present one is the first, unless the entry was deleted or has expired: that is a version, too.
        """
        return (yield from versions.read_history(self, namespace, key, limit))

    history = run(_history)
    ahistory = arun(_history)

    @explain_renamed
    def at(self, when: datetime | str) -> Store:
        """Return a view of the store as it was at a moment, which can be read, but not ranked by a query or copied.

        `when` is an aware datetime, or a cursor, which stands for the moment after its change. Reading raises
        `HistoryGone` if old values of that moment are not kept. An entry is there until its last known expiry; at a
        cursor, until its expiry was in the feed.
        """
        options = replace(self._options, at=versions.to_moment(when), refresh_on_read=False)
        return Store(self._engine_handle, options, self, self._scope)

    @explain_renamed
    def diff(
        self, prefix: Namespace, since: datetime | str, until: datetime | str | None = None
    ) -> Generator[Diff, None, None]:
        """Iterate over the entries in a namespace and below it that differ between two moments, in key order.

        The moments are as in `at`; without `until`, it is now.
        """
        return pages(self, versions.diff_pages(self, prefix, since, until))

    @explain_renamed
    def adiff(
        self, prefix: Namespace, since: datetime | str, until: datetime | str | None = None
    ) -> AsyncGenerator[Diff, None]:
        """`diff`, as an async iterator."""
        return apages(self, versions.diff_pages(self, prefix, since, until))

    def _restore(
        self, namespace: Namespace, key: str, version: int, *, expect: Expectation = ANY, lease: Lease | None = None
    ) -> StoreProgram[Entry]:
        """Write an old version of an entry again, as a new change, and return it. Its TTL restarts.

        `HistoryGone` if the store does not keep that version. `expect=` as in `put`.
        """
        entry: Entry = yield from versions.restore(self, namespace, key, version, expect, lease)
        return entry

    restore = run(_restore)
    arestore = arun(_restore)

    def _rewind(
        self,
        prefix: Namespace,
        when: datetime | str,
        *,
        dry_run: bool = False,
        sliced: bool = False,
        lease: Lease | None = None,
    ) -> StoreProgram[Rewound]:
        """Bring everything in a namespace and below it back to how it was at a moment, as new changes.

        So watchers see it, and a rewind can be rewound. `when` is as in `at`. With `dry_run`, nothing is changed. It is
        one transaction of at most 100,000 changes; `sliced` allows several transactions, and any number.
        """
        return (yield from versions.rewind(self, prefix, when, dry_run, sliced, lease))

    rewind = run(_rewind)
    arewind = arun(_rewind)

    def _erase(
        self, namespace: Namespace, key: str | None = None, *, recursive: bool = False, compact: bool = False
    ) -> StoreProgram[Erased]:
        """Remove an entry, or all entries of a namespace, and of those below it with `recursive`, with every trace.

        That is values, contents, vectors, index terms, old values and the names of tombstones, in the engine's own
        files. It takes long, as the files are written again. `compact` also does what keeps others waiting: on
        PostgreSQL, a full vacuum. The report says what is outside its reach.
        """
        return (yield from erasing.erase(self, namespace, key, recursive, compact))

    erase = run(_erase)
    aerase = arun(_erase)

    @explain_renamed
    def acting(self, author: str, *, reason: str | None = None) -> Store:
        """Return a view whose writes carry an author and a reason, which `Change` and `history` show."""
        options = replace(self._options, acting=versions.encode_acting(author, reason))
        return Store(self._engine_handle, options, self, self._scope)

    # Views -----------------------------------------------------------------------------------------------------------

    @explain_renamed
    def scoped(self, prefix: Namespace) -> Store:
        """Return a view of this store that cannot name, list, search or delete anything outside a namespace.

        Namespaces in arguments and results are relative to it, and `()` is its own. Closing the view leaves the store
        open.
        """
        return Store(self._engine_handle, self._options, self, self._scope + keys.check_namespace(prefix))

    @explain_renamed
    def files(self, namespace: Namespace = ("filesystem",)) -> Files:
        """Return the files of one namespace: a volume."""
        self._resolve_namespace(namespace)
        return Files(self, namespace)

    # Opening and closing ---------------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Connect, create and migrate now instead of on first use."""
        self._require_open().setup()

    async def asetup(self) -> None:
        """`setup`, awaited."""
        await self._require_open().asetup()

    def close(self) -> None:
        """Close the store. The last store of a URL closes the connections. Closing twice is allowed."""
        defer_signals(self._close)

    def _close(self) -> None:
        if self._finalizer is not None and self._finalizer.alive:
            wait_for_closers(self)  # a file object that was collected may still have to write
        self._closed = True
        self._engine_handle.notify()  # subscriptions end with their store
        if self._finalizer is not None and self._finalizer.detach():
            self._engine_handle.release()

    async def aclose(self) -> None:
        """`close`, awaited."""
        import asyncio

        await asyncio.to_thread(self.close)

    def __enter__(self) -> Store:
        self.setup()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Store:
        await self.asetup()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _not_a_point_op(given: Any) -> InvalidInput:
    names = ", ".join(kind.__name__ for kind in ops.POINT_OPS)
    return InvalidInput(f"execute takes a list of point ops ({names}), not {shown(given)}")
