"""The store: the object that users and faces hold.

Every method is written once, as a program (`holdall.programs`), and stands here twice: `put` runs it, `aput` awaits it.
Programs yield batches of ops, which `holdall.batches` checks, and takes to the engine and back. What watches and what
leases is in modules of its own, and `Store` is made of all three.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

from . import cursors, filters, keys, ops
from .embed import Embedder, Metric, check_metric
from .embedding import Embedding
from .errors import Conflict, InvalidInput, InvalidValue, NotFound, Unsupported, shown
from .fields import check_paths
from .files import Files
from .leases import Lease, Leasing
from .ops import (
    ABSENT,
    ANY,
    DEFAULT,
    KEEP,
    Entry,
    Expectation,
    Hit,
    Namespace,
    Page,
    PointOp,
    TtlOrDefault,
    Value,
)
from .programs import Call, Program, apages, arun, before_retry, pages, run
from .search import parse
from .settings import Mode
from .values import decode, encode
from .watch import Watching


class Store(Watching, Leasing):
    """A durable store of entries. Get one from `holdall.open`.

    Sync and async methods may be mixed, from any thread and any event loop.
    """

    # Items -----------------------------------------------------------------------------------------------------------

    def _put(
        self,
        ns: Namespace,
        key: str,
        value: Value,
        *,
        ttl: TtlOrDefault = DEFAULT,
        expect: Expectation = ANY,
        index: Literal[False] | Sequence[str] | None = None,
        lease: Lease | None = None,
    ) -> Program[Entry]:
        """Write an entry and return it as stored.

        `ttl` is seconds or a timedelta, None for never, DEFAULT for the store's own. `expect` makes the write
        conditional: ABSENT, or the version or `Entry` that must still be there; else `Conflict`, with nothing written.
        `lease` must still be held, else `LeaseLost`. `index` says what of it a `query` finds: paths such as `["title",
        "notes[*].text"]`, False for nothing, None for what the store was opened with.
        """
        entry: Entry = (yield from self._embedded([ops.Put(ns, key, value, ttl, expect, index)], lease))[0]
        return entry

    put = run(_put)
    aput = arun(_put)

    def _get(self, ns: Namespace, key: str, *, refresh: bool | None = None) -> Program[Entry | None]:
        """Read an entry, or None. `refresh=True` starts its TTL anew; None does as the store was opened to do."""
        if refresh is None:
            refresh = self._settings.refresh_on_read
        else:
            keys.check_flag("refresh", refresh, or_none=True)
        entry: Entry | None = (yield [ops.Get(ns, key)])[0]
        if refresh and entry is not None and entry.expires_at is not None:
            entry = (yield [ops.Refresh(ns, key), ops.Get(ns, key)])[1]
        return entry

    get = run(_get)
    aget = arun(_get)

    def _update(
        self,
        ns: Namespace,
        key: str,
        fn: Callable[[dict[str, Any]], Value | Awaitable[Value]],
        *,
        default: Value | None = None,
        lease: Lease | None = None,
    ) -> Program[Entry]:
        """Read, call `fn(value)`, write what it returns; again whenever somebody else wrote in between.

        A missing entry starts from `default`, or is `NotFound` without one. The entry's TTL is kept, and
        what it is found by. `fn` may run several times; `aupdate` takes an async one too.
        """
        if not callable(fn):
            raise InvalidInput(f"update takes a function of the value, not {type(fn).__name__} {shown(fn)}")
        for tries in itertools.count(1):
            entry: Entry | None = (yield [ops.Get(ns, key)])[0]
            if entry is None and default is None:
                raise NotFound(f"there is no {key!r} in {ns!r} to update; pass default= to begin with one")
            value = yield Call(fn, (decode(encode(default)) if entry is None else entry.value,))
            if value is None:
                raise InvalidValue("the function given to update returned None; it must return the new value")
            put = ops.Put(ns, key, value, DEFAULT if entry is None else KEEP, ABSENT if entry is None else entry)
            try:
                written: Entry = (yield from self._embedded([put], lease))[0]
            except Conflict as conflict:
                yield from before_retry(conflict, tries)
            else:
                return written
        raise AssertionError("unreachable")

    update = run(_update)
    aupdate = arun(_update)

    def _delete(
        self, ns: Namespace, key: str, *, expect: Expectation = ANY, lease: Lease | None = None
    ) -> Program[bool]:
        """Remove an entry; whether it was there."""
        deleted: bool = (yield from self._change([ops.Delete(ns, key, expect)], lease))[0]
        return deleted

    delete = run(_delete)
    adelete = arun(_delete)

    def _delete_tree(self, ns_prefix: Namespace, *, lease: Lease | None = None) -> Program[int]:
        """Remove every entry in a namespace and below it, atomically; how many there were."""
        count: int = (yield from self._change([ops.DeleteTree(ns_prefix)], lease))[0]
        return count

    delete_tree = run(_delete_tree)
    adelete_tree = arun(_delete_tree)

    def _execute(self, batch: Iterable[PointOp], *, lease: Lease | None = None) -> Program[list[Any]]:
        """Run `holdall.ops` in order, atomically: all of them, or on any error none. Returns their results."""
        if not isinstance(batch, Iterable):
            raise _no_point_op(batch)
        operations = list(batch)
        for op in operations:
            if not isinstance(op, ops.POINT_OPS):
                raise _no_point_op(op)
            if isinstance(op, ops.Put) and op.vectors is not None:
                raise InvalidInput("a Put's vectors are made by the store: open it with embed=, and leave them out")
        return (yield from self._embedded(operations, lease))

    execute = run(_execute)
    aexecute = arun(_execute)

    # Finding ---------------------------------------------------------------------------------------------------------

    def _search(
        self,
        ns_prefix: Namespace = (),
        *,
        query: str | None = None,
        filter: Mapping[str, Any] | None = None,
        mode: Mode | None = None,
        limit: int = 10,
        offset: int = 0,
        cursor: str | None = None,
        recursive: bool = True,
        rest: bool = False,
    ) -> Program[Page[Hit]]:
        """The entries in a namespace and below it that match a filter, newest change first.

        `page.next` is the cursor of the next page: pages are stable while others write, and an entry that matched all
        along comes at least once.

        With a `query`, the best come first, with their score. `mode` says how: "lexical" by the words that they have in
        common with it (BM25; what has none is left out, and "words in quotes" must be there as they stand), "semantic"
        by vectors, "hybrid" by both: the default where the store has an embedder. With `rest`, the others follow.
        """
        prefix = self._inside(ns_prefix)
        parsed = filters.parse(filter)
        keys.check_count("limit", limit)
        keys.check_count("offset", offset)
        keys.check_flag("recursive", recursive)
        keys.check_flag("rest", rest)
        if cursor is not None and offset:
            raise InvalidInput("offset= and cursor= cannot go together: the cursor says where to go on")
        words, how = self._settings.ranking(query, mode)
        if words is not None and not self._shared.engine.capabilities.ranks:
            raise Unsupported("this engine cannot rank by a query")
        asked = ""
        if cursor is not None or limit:
            asked = cursors.digest(prefix, filter if parsed else None, recursive, words and (words, how, rest))
        mark = None if cursor is None else cursors.unwrapped(cursor, asked)
        walk = ops.Search(prefix, parsed, limit, offset, mark, recursive)
        if words is not None:
            walk = replace(
                walk,
                query=None if how == "semantic" else parse(words),
                vector=None if how == "lexical" else (yield from self._vector(words)),
                rest=rest,
            )
        page: Any = (yield [walk])[0]
        if isinstance(page, int):
            yield from self._learn(page)
            page = (yield [replace(walk, caught_up=True)])[0]
        if page.next is not None:
            page.next = f"{asked}.{page.next}"
        return page  # type: ignore[no-any-return]  # a Page

    search = run(_search)
    asearch = arun(_search)

    def _count(
        self, ns_prefix: Namespace = (), *, filter: Mapping[str, Any] | None = None, recursive: bool = True
    ) -> Program[int]:
        """How many entries in a namespace and below it match a filter."""
        keys.check_flag("recursive", recursive)
        walk = ops.Count(self._inside(ns_prefix), filters.parse(filter), recursive)
        count: int = (yield [walk])[0]
        return count

    count = run(_count)
    acount = arun(_count)

    def _namespaces(
        self,
        *,
        prefix: Namespace | None = None,
        suffix: Namespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Program[list[Namespace]]:
        """The namespaces that hold entries, sorted. `"*"` in `prefix` or `suffix` stands for any one label;
        `max_depth` cuts them short, and gives each once."""
        starts, ends = keys.check_pattern(prefix, "prefix"), keys.check_pattern(suffix, "suffix")
        keys.check_count("limit", limit)
        keys.check_count("offset", offset)
        if max_depth is not None:
            keys.check_count("max_depth", max_depth, least=1)
        found: list[Namespace] = (yield [ops.Namespaces(starts, ends, max_depth, limit, offset, self._scope)])[0]
        return found

    namespaces = run(_namespaces)
    anamespaces = arun(_namespaces)

    def scan(self, ns_prefix: Namespace = ()) -> Generator[Entry, None, None]:
        """Iterate over every entry in a namespace and below it, in key order, a page at a time."""
        return pages(self, self._scan_pages(ns_prefix))

    def ascan(self, ns_prefix: Namespace = ()) -> AsyncGenerator[Entry, None]:
        """`scan`, as an async iterator."""
        return apages(self, self._scan_pages(ns_prefix))

    def _scan_pages(self, ns_prefix: Namespace) -> Callable[[Any], Program[tuple[list[Entry], Any]]]:
        walk = ops.Scan(self._inside(ns_prefix))

        def page(after: Any) -> Program[tuple[list[Entry], Any]]:
            entries: list[Entry] = (yield [replace(walk, after=after)])[0]
            if len(entries) < walk.limit:
                return entries, None
            return entries, (self._scope + entries[-1].namespace, entries[-1].key)

        return page

    # Searching by text and by vectors --------------------------------------------------------------------------------

    def _embedded(self, batch: list[Any], lease: Lease | None) -> Program[list[Any]]:
        """Run a batch, if a lease is held; what its puts put has vectors where there is an embedder."""
        embedding = self._settings.embedding
        if embedding is not None and self._shared.engine.capabilities.ranks:
            batch = yield from embedding.embedded(batch, self._settings.fields)
            if embedding.has_embedded(batch):
                return (yield from embedding.checked(batch, lambda checked: self._change(checked, lease)))
        results: list[Any] = (yield batch) if lease is None and batch else (yield from self._change(batch, lease))
        return results

    def _learn(self, behind: int) -> Program[None]:
        """Have the index of texts catch up with so many changes, and not with those that come meanwhile for ever."""
        self._shared.learns = more = True
        while more and behind > 0:
            taken, more = (yield [ops.Learn()])[0]
            behind -= taken

    def _vector(self, query: str) -> Program[ops.Vector]:
        assert self._settings.embedding is not None
        return (yield from self._settings.embedding.vector(query))

    def _reindex(self, *, progress: Callable[[int, int], object] | None = None) -> Program[int]:
        """Give vectors to all entries that have none of this store's model; how many entries.

        For after a change of model, or where entries were put without an embedder. It may be interrupted and called
        again, while the store is in use. `progress` is told how many of how many it has seen to.
        """
        keys.check_function("progress", progress)
        if not self._engine().capabilities.ranks:
            raise Unsupported("this engine keeps no vectors")
        embedding = self._settings.embedding
        if embedding is None:
            raise InvalidInput("reindex needs an embedder: open the store with embed=")
        return (yield from embedding.reindex(self._scope, self._settings.fields, progress))

    reindex = run(_reindex)
    areindex = arun(_reindex)

    def with_embedder(
        self, embed: Any, *, dims: int | None = None, fields: Sequence[str] | None = None, metric: Metric = "cosine"
    ) -> Store:
        """A view of this store that embeds what is put, and searches by vectors. Closing it leaves the store open."""
        settings = replace(
            self._settings,
            embedding=Embedding(Embedder(embed, dims), check_metric(metric)),
            fields=self._settings.fields if fields is None else check_paths(fields),
        )
        return Store(self._shared, settings, self, self._scope)

    # Sweeping --------------------------------------------------------------------------------------------------------

    def _sweep(self) -> Program[int]:
        """Clear away what has expired, and what history need not be kept, now rather than when the sweeper comes;
        how many entries had expired."""
        total, slice_ = 0, ops.Sweep(prefix=self._scope)
        while True:
            swept: int = (yield [slice_])[0]
            total += swept
            if swept < slice_.limit:
                break
        forget = None if self._scope else self._shared.history
        while forget is not None and (yield [forget])[0]:
            pass
        return total

    sweep = run(_sweep)
    asweep = arun(_sweep)

    # Views -----------------------------------------------------------------------------------------------------------

    def scoped(self, ns_prefix: Namespace) -> Store:
        """A view of this store that cannot name, list, search or delete anything outside a namespace.

        Namespaces are relative to it, in and out, and `()` is its own. Closing the view leaves the store open.
        """
        return Store(self._shared, self._settings, self, self._scope + keys.check_namespace(ns_prefix))

    def files(self, ns: Namespace = ("filesystem",)) -> Files:
        """The files of a namespace, and of no other: a volume."""
        self._home(ns)
        return Files(self, ns)

    # Opening and closing ---------------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Connect, create and migrate now, rather than on first use."""
        self._engine().setup()

    async def asetup(self) -> None:
        """`setup`, awaited."""
        await self._engine().asetup()

    def close(self) -> None:
        """Close the store; the last store of a URL closes its connections. Closing twice is fine."""
        self._closed = True
        self._shared.ring()  # who watches finds out
        if self._finalizer is not None and self._finalizer.detach():
            self._shared.release()

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


def _no_point_op(given: Any) -> InvalidInput:
    names = ", ".join(kind.__name__ for kind in ops.POINT_OPS)
    return InvalidInput(f"execute takes a list of point ops ({names}), not {shown(given)}")
