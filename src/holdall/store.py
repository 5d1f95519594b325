"""The store: the object that users and faces hold.

Every method is written once, as a program (`holdall.programs`), and stands here twice: `put` runs it, `aput` awaits it.
Programs yield batches of ops; `_prepared` is the one place where a batch is checked and moved into the store's scope
before an engine sees it, and `_finished` the one where results come back out of it.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, TypeVar

from . import cursors, filters, keys, ops
from .embed import Embedder, Metric, check_metric
from .embedding import Embedding
from .engine import Engine
from .errors import Conflict, InvalidInput, InvalidValue, NotFound, StoreClosed, Unsupported, shown
from .fields import WHOLE, check_paths
from .files import Files, paths
from .ops import (
    ABSENT,
    ANY,
    DEFAULT,
    KEEP,
    Entry,
    Expect,
    Expectation,
    Hit,
    Namespace,
    Op,
    Page,
    PointOp,
    Ttl,
    TtlOrDefault,
    Value,
)
from .programs import Call, Program, Work, adrive, apages, arun, before_retry, drive, pages, run
from .search import parse
from .settings import Mode, OpEvent, Settings
from .shapes import stored
from .sharing import Shared
from .values import check_text, decode, encode, to_microseconds, ttl_seconds

T = TypeVar("T")
_LOOKS = frozenset({ops.ReadRange, ops.Stat, ops.Grep})
logger = logging.getLogger("holdall")


class Store:
    """A durable store of entries. Get one from `holdall.open`.

    Sync and async methods may be mixed, from any thread and any event loop.
    """

    def __init__(self, shared: Shared, settings: Settings, parent: Store | None = None, scope: Namespace = ()) -> None:
        self._shared = shared
        self._settings = settings
        self._parent = parent
        self._scope = scope
        self._closed = False
        self._finalizer = weakref.finalize(self, shared.release_soon) if parent is None else None
        if self._finalizer is not None:
            self._finalizer.atexit = False  # `sharing` closes what is left then

    def __repr__(self) -> str:
        scope = f" scoped to {self._scope!r}" if self._scope else ""
        return f"<holdall.Store on {type(self._shared.engine).__name__}{scope}{', closed' if self._is_closed else ''}>"

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
    ) -> Program[Entry]:
        """Write an entry and return it as stored.

        `ttl` is seconds or a timedelta, None for never, DEFAULT for the store's own. `expect` makes the write
        conditional: ABSENT, or the version or `Entry` that must still be there; else `Conflict`, with nothing written.
        `index` says what of it a `query` finds: paths such as `["title", "notes[*].text"]`, False for nothing, None for
        what the store was opened with.
        """
        entry: Entry = (yield from self._embedded([ops.Put(ns, key, value, ttl, expect, index)]))[0]
        return entry

    put = run(_put)
    aput = arun(_put)

    def _get(self, ns: Namespace, key: str, *, refresh: bool | None = None) -> Program[Entry | None]:
        """Read an entry, or None. `refresh=True` starts its TTL anew; None does as the store was opened to do."""
        entry: Entry | None = (yield [ops.Get(ns, key)])[0]
        if entry is not None and entry.expires_at is not None and self._refreshes(refresh):
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
    ) -> Program[Entry]:
        """Read, call `fn(value)`, write what it returns; again whenever somebody else wrote in between.

        A missing entry starts from `default`, or is `NotFound` without one. The entry's TTL is kept. `fn` may run
        several times; `aupdate` takes an async one too.
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
                written: Entry = (yield from self._embedded([put]))[0]
            except Conflict as conflict:
                yield from before_retry(conflict, tries)
            else:
                return written
        raise AssertionError("unreachable")

    update = run(_update)
    aupdate = arun(_update)

    def _delete(self, ns: Namespace, key: str, *, expect: Expectation = ANY) -> Program[bool]:
        """Remove an entry; whether it was there."""
        deleted: bool = (yield [ops.Delete(ns, key, expect)])[0]
        return deleted

    delete = run(_delete)
    adelete = arun(_delete)

    def _delete_tree(self, ns_prefix: Namespace) -> Program[int]:
        """Remove every entry in a namespace and below it, atomically; how many there were."""
        count: int = (yield [ops.DeleteTree(ns_prefix)])[0]
        return count

    delete_tree = run(_delete_tree)
    adelete_tree = arun(_delete_tree)

    def _execute(self, batch: Iterable[PointOp]) -> Program[list[Any]]:
        """Run `holdall.ops` in order, atomically: all of them, or on any error none. Returns their results."""
        if not isinstance(batch, Iterable):
            raise _no_point_op(batch)
        operations = list(batch)
        for op in operations:
            if not isinstance(op, ops.POINT_OPS):
                raise _no_point_op(op)
        return (yield from self._embedded(operations)) if operations else []

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
        if cursor is not None and offset:
            raise InvalidInput("offset= and cursor= cannot go together: the cursor says where to go on")
        words, how = self._settings.ranking(query, mode)
        if words is not None and not self._shared.engine.capabilities.ranks:
            raise Unsupported("this engine cannot rank by a query")
        asked = ""
        if cursor is not None or limit:
            asked = cursors.digest(
                prefix, filter if parsed else None, bool(recursive), words and (words, how, bool(rest))
            )
        mark = None if cursor is None else cursors.unwrapped(cursor, asked)
        walk = ops.Search(prefix, parsed, limit, offset, mark, bool(recursive))
        if words is not None:
            walk = replace(
                walk,
                query=None if how == "semantic" else parse(words),
                vector=None if how == "lexical" else (yield from self._vector(words)),
                rest=bool(rest),
            )
        page: Page[Hit] | None = (yield [walk])[0]
        if page is None:
            self._shared.learns = True
            while (yield [ops.Learn()])[0]:
                pass
            page = (yield [replace(walk, caught_up=True)])[0]
            assert page is not None
        if page.next is not None:
            page.next = f"{asked}.{page.next}"
        return page

    search = run(_search)
    asearch = arun(_search)

    def _count(
        self, ns_prefix: Namespace = (), *, filter: Mapping[str, Any] | None = None, recursive: bool = True
    ) -> Program[int]:
        """How many entries in a namespace and below it match a filter."""
        walk = ops.Count(self._inside(ns_prefix), filters.parse(filter), bool(recursive))
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

    def _embedded(self, batch: list[Any]) -> Program[list[Any]]:
        """Run a batch; what its puts put has vectors where there is an embedder."""
        embedding = self._settings.embedding
        if embedding is not None:
            batch = yield from embedding.embedded(batch, self._settings.fields)
        results: list[Any] = yield batch
        return results

    def _vector(self, query: str) -> Program[ops.Vector]:
        assert self._settings.embedding is not None
        return (yield from self._settings.embedding.vector(query))

    def _reindex(self, *, progress: Callable[[int], object] | None = None) -> Program[int]:
        """Give vectors to all entries that have none of this store's model; how many entries.

        For after a change of model, or where entries were put without an embedder. It may be interrupted and called
        again, while the store is in use. `progress` is told how many are done.
        """
        self._engine()  # or a closed store would rather ask for an embedder
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
        """Clear away what has expired, now rather than when the sweeper comes; how many entries."""
        total, slice_ = 0, ops.Sweep(prefix=self._scope)
        while True:
            swept: int = (yield [slice_])[0]
            total += swept
            if swept < slice_.limit:
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

    # Running programs ------------------------------------------------------------------------------------------------

    def _run(self, program: Program[T]) -> T:
        return drive(program, self._perform)

    async def _arun(self, program: Program[T]) -> T:
        return await adrive(program, self._aperform)

    def _perform(self, request: Any) -> Any:
        if type(request) is list:
            batch, began = [self._prepared(op) for op in request], time.perf_counter()
            try:
                results = self._engine().execute(batch)
            except BaseException as error:
                self._report(batch, began, error)
                raise
            return self._finished(batch, began, results)
        if type(request) is Call:
            result = request.function(*request.args)
            if inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()
                raise InvalidInput(f"{shown(request.function)} is async; call the method with an 'a' before its name")
            return result
        if type(request) is Work:
            return request.function(*request.args)
        return time.sleep(request.seconds)

    async def _aperform(self, request: Any) -> Any:
        if type(request) is list:
            batch, began = [self._prepared(op) for op in request], time.perf_counter()
            try:
                results = await self._engine().aexecute(batch)
            except BaseException as error:
                self._report(batch, began, error)
                raise
            return self._finished(batch, began, results)
        if type(request) is Call:
            result = request.function(*request.args)
            return await result if inspect.isawaitable(result) else result
        import asyncio

        if type(request) is Work:
            return await asyncio.to_thread(request.function, *request.args)
        return await asyncio.sleep(request.seconds)

    def _engine(self) -> Engine:
        if self._closed or (self._parent is not None and self._is_closed):
            raise StoreClosed("this store is closed; open a new one")
        shared = self._shared
        if not shared.is_swept and shared.engine.capabilities.durable:
            shared.sweep_from_now_on()
        return shared.engine

    @property
    def _is_closed(self) -> bool:
        return self._closed or (self._parent is not None and self._parent._is_closed)

    def _inside(self, ns_prefix: Namespace) -> Namespace:
        return self._scope + keys.check_namespace(ns_prefix, empty=True)

    def _prepared(self, op: Op) -> Op:
        """An op as engines want it: checked, encoded, in the store's scope. Walks come from our own methods."""
        if isinstance(op, ops.Get):  # asked first for the two that matter most: a match takes longer
            home = self._home(op.namespace)
            key = keys.check_key(op.key)
            return op if home is op.namespace and key is op.key else ops.Get(home, key)
        if isinstance(op, ops.Put):
            expect = op.expect if op.expect is ANY else _expected(op.expect, op.key)
            ttl, key, value = self._lifetime(op.ttl), keys.check_key(op.key), op.value
            kept: Any = encode(value) if key[0] != "/" else stored(key, value)
            if op.index is None and self._settings.fields is WHOLE:
                return ops.Put(self._home(op.namespace), key, kept, ttl, expect, None, op.vectors)
            index: Any = self._paths(op.index)
            return ops.Put(self._home(op.namespace), key, kept, ttl, expect, index, op.vectors)
        match op:
            case ops.Delete(namespace, key, expect):
                return ops.Delete(self._home(namespace), keys.check_key(key), _expected(expect, key))
            case ops.Check(namespace, key, expect):
                return ops.Check(self._home(namespace), keys.check_key(key), _expected(expect, key))
            case ops.Refresh(namespace, key):
                return ops.Refresh(self._home(namespace), keys.check_key(key))
            case ops.Backdate(namespace, key, created, updated, expires):
                times = to_microseconds(created), to_microseconds(updated)
                ends = None if expires is None else to_microseconds(expires)
                return ops.Backdate(self._home(namespace), keys.check_key(key), *times, ends)
            case ops.DeleteTree(namespace, path):
                if not self._scope and namespace == ():
                    raise InvalidInput("delete_tree(()) would delete the whole store; name a namespace")
                return ops.DeleteTree(
                    self._home(namespace), None if path is None else keys.check_folder(path)[:-1] or "/"
                )
            case ops.Embed(namespace, key, version, vectors):
                return ops.Embed(self._home(namespace), keys.check_key(key), version, vectors)
            case ops.Append(namespace, key, data, expect, ttl):
                if not isinstance(data, bytes):
                    raise InvalidInput(f"what is appended is bytes, not {type(data).__name__} {shown(data)}")
                return ops.Append(
                    self._home(namespace), keys.check_path(key), data, _expected(expect, key), self._lifetime(ttl)
                )
            case ops.ReadRange(namespace, key, start, end):
                keys.check_count("start", start, most=2**62)
                keys.check_count("end", 0 if end is None else end, most=2**62)
                return ops.ReadRange(self._home(namespace), keys.check_path(key), start, end)
            case ops.Stat(namespace, path):
                return ops.Stat(self._home(namespace), keys.check_folder(path)[:-1])
            case ops.CheckPath(namespace, path):
                return ops.CheckPath(self._home(namespace), keys.check_path(path))
            case ops.Move(namespace, src, dst, source, ttl):
                elsewhere = None if source is None else self._home(source)
                return ops.Move(self._home(namespace), *paths(src, dst), elsewhere, self._lifetime(ttl))
            case ops.Copy(namespace, src, dst):
                return ops.Copy(self._home(namespace), *paths(src, dst))
        return op

    def _home(self, namespace: Namespace) -> Namespace:
        """Where an entry lives: inside the scope, whose own namespace is `()`."""
        if type(namespace) is keys.Reserved:
            if len(namespace) == 1:  # of the whole store
                return keys.RESERVED, namespace[0]
            return keys.RESERVED, (self._scope + namespace[1:])[0], namespace[0]
        if not self._scope:
            return keys.check_namespace(namespace)
        inside = keys.check_namespace(namespace, empty=True)
        try:
            return keys.check_namespace(self._scope + inside)
        except InvalidInput:  # both are good by themselves, so together they are too long
            most = keys.MAX_NAMESPACE_BYTES
            raise InvalidInput(
                f"a namespace and its scope have at most {most} bytes; too long: {shown(inside)}"
            ) from None

    def _paths(self, index: Any) -> str | None:
        """Which paths of a value a query finds, as engines keep them."""
        if index is False:
            return "[]"
        paths = self._settings.fields if index is None else check_paths(index)
        return None if paths == WHOLE else check_text(list(paths)).decode()

    def _lifetime(self, ttl: TtlOrDefault) -> Ttl | ops.Lifetime:
        if ttl is KEEP:
            return ttl
        seconds = self._settings.ttl if ttl is DEFAULT else ttl_seconds(ttl)
        if seconds is not None and not self._shared.is_swept:
            self._shared.sweep_from_now_on()
        return seconds

    def _refreshes(self, refresh: bool | None) -> bool:
        if not (refresh is None or isinstance(refresh, bool)):
            raise InvalidInput(f"refresh is True, False or None, not {shown(refresh)}")
        return self._settings.refresh_on_read if refresh is None else refresh

    def _finished(self, batch: list[Op], began: float, results: list[Any]) -> list[Any]:
        # Only who looks through files finds upkeep to be done, and an engine need not have any.
        if type(batch[0]) in _LOOKS and getattr(self._shared.engine, "behind", False):
            self._shared.tidy_soon()
        if self._settings.on_op is not None:
            self._tell(batch, began, None)
        return [self._outside(result) for result in results] if self._scope else results

    def _outside(self, result: Any) -> Any:
        """A result with its namespaces relative to the scope. Listed namespaces are relative already."""
        if isinstance(result, Entry):
            return replace(result, namespace=result.namespace[len(self._scope) :])
        if isinstance(result, list) and result and isinstance(result[0], Entry):
            result[:] = [self._outside(entry) for entry in result]
        return result

    def _report(self, batch: list[Op], began: float, error: BaseException) -> None:
        if self._settings.on_op is not None:
            self._tell(batch, began, type(error))
        if isinstance(error, Conflict) and self._scope:
            error.namespace = error.namespace[len(self._scope) :]

    def _tell(self, batch: list[Op], began: float, error: type[BaseException] | None) -> None:
        """Call the user's hook, whose own failures are not the caller's."""
        assert self._settings.on_op is not None
        event = OpEvent(tuple(type(op).__name__ for op in batch), time.perf_counter() - began, error)
        try:
            self._settings.on_op(event)
        except Exception:  # a broken metric must not fail a write that has happened
            logger.exception("the on_op hook failed")


def _no_point_op(given: Any) -> InvalidInput:
    names = ", ".join(kind.__name__ for kind in ops.POINT_OPS)
    return InvalidInput(f"execute takes a list of point ops ({names}), not {shown(given)}")


def _expected(expect: Any, key: str) -> Expectation:
    if isinstance(expect, Entry):
        if expect.key != key:
            raise InvalidInput(f"expect= is an Entry of another key: {shown(expect.key)}, not {key!r}")
        return expect.version
    if isinstance(expect, Expect) or (type(expect) is int and -(2**63) <= expect < 2**63):
        return expect
    hint = " (was a read forgotten? holdall.ABSENT means that nothing may be there)" if expect is None else ""
    raise InvalidInput(f"expect is holdall.ANY, holdall.ABSENT, a version or an Entry, not {shown(expect)}{hint}")
