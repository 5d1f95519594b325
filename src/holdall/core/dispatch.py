"""Runs the programs of a store: sends their batches to the engine, and returns the results.

Only `_prepare` checks an op and moves it into the store's scope before an engine sees it. Only `_finish_batch` removes
the scope from results. `Store` and its parts are built on this.
"""

from __future__ import annotations

import inspect
import logging
import time
import weakref
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from .. import ops
from ..engine import system_clock
from ..errors import Conflict, InvalidInput, StoreClosed, Unsupported, shown
from ..history import past
from ..history.versions import encode_acting
from ..model import keys
from ..model.field_paths import WHOLE, check_paths
from ..model.file_values import to_stored
from ..model.values import check_text, encode, to_microseconds, ttl_seconds
from ..ops import ANY, DEFAULT, KEEP, Change, Entry, Expect, Expectation, Namespace, Op, Ttl, TtlOrDefault
from ..runtime import arguments
from ..runtime.programs import Call, EngineBatch, Sleep, StoreProgram, StoreRequest, Work, adrive, drive
from .engine_handle import EngineHandle
from .options import OpEvent, StoreOptions, WriteGuard

T = TypeVar("T")
logger = logging.getLogger("holdall")
_GROWING = (ops.Put, ops.Append, ops.Copy, ops.Move)


class Dispatcher:
    """Runs programs on a shared engine, inside a scope."""

    def __init__(
        self, handle: EngineHandle, options: StoreOptions, parent: Dispatcher | None = None, scope: Namespace = ()
    ) -> None:
        self._engine_handle = handle
        self._options = options
        self._parent = parent
        self._scope = scope
        self._closed = False
        self._finalizer = weakref.finalize(self, handle.release_soon) if parent is None else None
        if self._finalizer is not None:
            self._finalizer.atexit = False  # `engine_handle` closes what is left at exit

    def __repr__(self) -> str:
        scope = f" scoped to {self._scope!r}" if self._scope else ""
        closed = ", closed" if self._is_closed else ""
        return f"<holdall.{type(self).__name__} on {type(self._engine_handle.engine).__name__}{scope}{closed}>"

    def _run(self, program: StoreProgram[T]) -> T:
        return drive(program, self._perform)

    def _arun(self, program: StoreProgram[T]) -> Coroutine[Any, Any, T]:
        return adrive(program, self._aperform)

    def _perform(self, request: StoreRequest) -> Any:
        if type(request) is list:
            if not request:  # engines get no empty batch
                self._require_open()
                return []
            batch, began = [self._prepare(op) for op in request], time.perf_counter()
            try:
                if self._options.at is None:
                    results = self._execute_unguarded(batch)
                else:
                    results = drive(past.read(batch, self._options.at), self._require_open().execute)
            except BaseException as error:
                self._report_error(batch, began, error)
                raise
            return self._finish_batch(batch, began, results)
        if type(request) is Call:
            result = request.function(*request.args)
            if inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()
                raise InvalidInput(f"{shown(request.function)} is async; call the method with an 'a' before its name")
            return result
        if type(request) is Work:
            return request.function(*request.args)
        if type(request) is EngineBatch:
            return request.store._require_present()._execute_unguarded(request.batch)
        assert type(request) is Sleep
        return time.sleep(request.seconds)

    async def _aexecute_joined(self, batch: list[Op]) -> list[Any] | None:
        """Execute ops of several tasks, which need no common outcome; None if each of them must be executed alone."""
        if self._options.guard is not None:
            return None
        prepared, began = [self._prepare(op) for op in batch], time.perf_counter()
        try:
            results = await self._require_open().aexecute_joined(prepared)
        except BaseException as error:
            self._report_error(prepared, began, error)
            raise
        return None if results is None else self._finish_batch(prepared, began, results)

    async def _aperform(self, request: StoreRequest) -> Any:
        if type(request) is list:
            if not request:  # engines get no empty batch
                self._require_open()
                return []
            batch, began = [self._prepare(op) for op in request], time.perf_counter()
            try:
                if self._options.at is None:
                    results = await self._aexecute_guarded(batch)
                else:
                    results = await adrive(past.read(batch, self._options.at), self._require_open().aexecute)
            except BaseException as error:
                self._report_error(batch, began, error)
                raise
            return self._finish_batch(batch, began, results)
        if type(request) is Call:
            result = request.function(*request.args)
            return await result if inspect.isawaitable(result) else result
        if type(request) is EngineBatch:
            return await request.store._require_present()._aexecute_guarded(request.batch)
        import asyncio

        if type(request) is Work:
            return await asyncio.to_thread(request.function, *request.args)
        assert type(request) is Sleep
        return await asyncio.sleep(request.seconds)

    def _execute_unguarded(self, batch: Sequence[Op]) -> list[Any]:
        """Execute a batch in this thread. A guard is async, so what it would have to admit is refused here."""
        if self._options.guard is not None and any(isinstance(op, _GROWING) for op in batch):
            raise InvalidInput("a store with a quota is written to by its async methods only")
        return self._require_open().execute(batch)

    def _aexecute_guarded(self, batch: Sequence[Op]) -> Awaitable[list[Any]]:
        """Execute a batch, if the guard of this view admits it."""
        if self._options.guard is None:
            return self._require_open().aexecute(batch)
        return self._admit_and_execute(self._options.guard, batch)

    async def _admit_and_execute(self, guard: WriteGuard, batch: Sequence[Op]) -> list[Any]:
        async with guard.admit(batch):
            return await self._require_open().aexecute(batch)

    def _require_open(self) -> EngineHandle:
        """Return the engine handle, or raise `StoreClosed`."""
        if self._closed or (self._parent is not None and self._is_closed):
            raise StoreClosed("this store is closed; open a new one")
        return self._engine_handle

    def _require_present(self) -> Dispatcher:
        """Return this store; `Unsupported` for a view of the past, which would run such ops on the present."""
        if self._options.at is not None:
            raise Unsupported(
                "store.at(...) cannot be copied, compared, exported, backed up, checked or loaded into: use the store"
                " itself, or store.rewind"
            )
        return self

    @property
    def _is_closed(self) -> bool:
        return self._closed or (self._parent is not None and self._parent._is_closed)

    @property
    def _root(self) -> Dispatcher:
        """The store that `holdall.open` returned, of which this is a view."""
        return self if self._parent is None else self._parent._root

    def _now(self) -> int:
        """Return the time, in microseconds since 1970."""
        return (self._options.clock or system_clock)()

    def _resolve_prefix(self, prefix: Namespace) -> Namespace:
        """Check a prefix, and move it into the scope."""
        return self._scope + keys.check_namespace(prefix, empty=True)

    def _prepare(self, op: Op) -> Op:
        """Check and encode an op for the engine, and move it into the scope. Walks are prepared by their methods."""
        if isinstance(op, ops.Get):  # the most frequent ops come first: `match` takes longer
            resolved = self._resolve_namespace(op.namespace)
            key = keys.check_key(op.key)
            return op if resolved is op.namespace and key is op.key else ops.Get(resolved, key)
        if isinstance(op, ops.Put):
            expect = op.expect if op.expect is ANY else _resolve_expect(op.expect, op.key)
            ttl, key, value = self._resolve_ttl(op.ttl), keys.check_key(op.key), op.value
            kept: Any = encode(value) if key[0] != "/" else to_stored(key, value)
            if op.search_fields is None and (
                self._options.search_fields is WHOLE or ttl is KEEP or type(kept) is ops.File
            ):
                search_fields: Any = None
            else:
                search_fields = self._encode_search_fields(op.search_fields)
            resolved, acting = self._resolve_namespace(op.namespace), self._acting()
            return ops.Put(resolved, key, kept, ttl, expect, search_fields, op.vectors, acting, op.returns_entry)
        if isinstance(op, ops.ReadRange):
            if op.start or op.end is not None:
                arguments.check_count("start", op.start, most=2**62)
                arguments.check_count("end", 0 if op.end is None else op.end, most=2**62)
            if op.version is not None:
                arguments.check_version(op.version)
            resolved, key = self._resolve_namespace(op.namespace), keys.check_path(op.key)
            if resolved is op.namespace and key is op.key:
                return op
            return ops.ReadRange(resolved, key, op.start, op.end, op.version)
        if isinstance(op, ops.Stat):
            return ops.Stat(self._resolve_namespace(op.namespace), keys.check_folder(op.path)[:-1])
        match op:
            case ops.Delete(namespace, key, expect):
                self._engine_handle.needs_sweeping = True
                resolved, expect = self._resolve_namespace(namespace), _resolve_expect(expect, key)
                return ops.Delete(resolved, keys.check_key(key), expect, self._acting())
            case ops.Check(namespace, key, expect):
                return ops.Check(self._resolve_namespace(namespace), keys.check_key(key), _resolve_expect(expect, key))
            case ops.Refresh(namespace, key):
                return ops.Refresh(self._resolve_namespace(namespace), keys.check_key(key))
            case ops.Backdate(namespace, key, created, updated, expires):
                given = (("created_at", created), ("updated_at", updated), ("expires_at", expires))
                times = [None if moment is None else to_microseconds(moment, name) for name, moment in given]
                if expires is not None:
                    self._engine_handle.needs_sweeping = True
                return ops.Backdate(self._resolve_namespace(namespace), keys.check_key(key), *times)
            case ops.DeleteTree(namespace, path):
                if not self._scope and namespace == ():
                    raise InvalidInput("delete_tree(()) would delete the whole store; name a namespace")
                self._engine_handle.needs_sweeping = True
                return ops.DeleteTree(
                    self._resolve_namespace(namespace),
                    None if path is None else keys.check_folder(path)[:-1] or "/",
                    self._acting(),
                )
            case ops.GetSearchFields(namespace, key):
                return ops.GetSearchFields(self._resolve_namespace(namespace), keys.check_key(key))
            case ops.CountVectors(namespace, key):
                return ops.CountVectors(self._resolve_namespace(namespace), keys.check_key(key))
            case ops.Embed(namespace, key, version, vectors):
                return ops.Embed(self._resolve_namespace(namespace), keys.check_key(key), version, vectors)
            case ops.Append(namespace, key, data, expect, ttl):
                if not isinstance(data, bytes):
                    raise InvalidInput(f"append takes bytes, not {type(data).__name__} {shown(data)}")
                return ops.Append(
                    self._resolve_namespace(namespace),
                    keys.check_path(key),
                    data,
                    _resolve_expect(expect, key),
                    self._resolve_ttl(ttl),
                    self._acting(),
                )
            case ops.CheckPath(namespace, path):
                return ops.CheckPath(self._resolve_namespace(namespace), keys.check_path(path))
            case ops.Move(namespace, src, dst, source, ttl):
                elsewhere = None if source is None else self._resolve_namespace(source)
                return ops.Move(
                    self._resolve_namespace(namespace),
                    *keys.check_paths(src, dst),
                    elsewhere,
                    self._resolve_ttl(ttl),
                    self._acting(),
                )
            case ops.MoveSlice(namespace):
                return ops.replace(op, namespace=self._resolve_namespace(namespace), acting=self._acting())
            case ops.Copy(namespace, src, dst):
                resolved, paths = self._resolve_namespace(namespace), keys.check_paths(src, dst)
                return ops.Copy(resolved, *paths, self._acting())
            case ops.GetVersion(namespace, key) | ops.SetChange(namespace, key):
                return ops.replace(op, namespace=self._resolve_namespace(namespace), key=keys.check_key(key))
        return op

    def _acting(self) -> str | None:
        """Return the author and the reason that a write carries."""
        options = self._options
        if options.acting is not None or options.find_author is None:
            return options.acting
        found = options.find_author()
        return None if found is None else encode_acting(*found)

    def _resolve_namespace(self, namespace: Namespace) -> Namespace:
        """Check a namespace, and move it into the scope. `()` is the scope itself."""
        if type(namespace) is keys.Reserved:
            if len(namespace) == 1:  # one for the whole store
                return keys.RESERVED, namespace[0]
            return keys.RESERVED, (self._scope + namespace[1:])[0], namespace[0]
        if type(namespace) is keys.Resolved:
            return namespace
        if not self._scope:
            return keys.check_namespace(namespace)
        inside = keys.check_namespace(namespace, empty=True)
        try:
            return keys.check_namespace(self._scope + inside)
        except InvalidInput:  # each is valid, so together they are too long
            most = keys.MAX_NAMESPACE_BYTES
            raise InvalidInput(
                f"a namespace and its scope have at most {most} bytes; too long: {shown(inside)}"
            ) from None

    def _encode_search_fields(self, search_fields: Any) -> str | None:
        """Encode the search fields of a put as engines keep them: a JSON list, or None for all."""
        if search_fields is False:
            return "[]"
        paths = self._options.search_fields if search_fields is None else check_paths(search_fields)
        return None if paths == WHOLE else check_text(list(paths)).decode()

    def _resolve_ttl(self, ttl: TtlOrDefault) -> Ttl | ops.Lifetime:
        """Return a TTL in seconds, None for ever, or KEEP."""
        if ttl is KEEP:
            return ttl
        seconds = self._options.ttl if ttl is DEFAULT else ttl_seconds(ttl)
        if seconds is not None:
            self._engine_handle.needs_sweeping = True
        return seconds

    def _finish_batch(self, batch: list[Op], began: float, results: list[Any]) -> list[Any]:
        """Report a batch to the `on_op` hook, and remove the scope from its results."""
        if self._options.on_op is not None:
            self._call_hook(batch, began, None)
        return [self._strip_scope(result) for result in results] if self._scope else results

    def _strip_scope(self, result: Any) -> Any:
        """Make the namespaces of a result relative to the scope. Listed namespaces are relative already."""
        if isinstance(result, Entry | Change):
            return replace(result, namespace=result.namespace[len(self._scope) :])
        if isinstance(result, list) and result and isinstance(result[0], Entry | Change):
            result[:] = [self._strip_scope(entry) for entry in result]
        return result

    def _report_error(self, batch: list[Op], began: float, error: BaseException) -> None:
        """Report a batch that failed to the `on_op` hook, and remove the scope from its error."""
        if self._options.on_op is not None:
            self._call_hook(batch, began, type(error))
        if isinstance(error, Conflict) and self._scope and error.namespace[:1] != (keys.RESERVED,):
            error.namespace = error.namespace[len(self._scope) :]

    def _call_hook(self, batch: list[Op], began: float, error: type[BaseException] | None) -> None:
        """Call the `on_op` hook. Its errors are logged, and not raised."""
        assert self._options.on_op is not None
        event = OpEvent(tuple(type(op).__name__ for op in batch), time.perf_counter() - began, error)
        try:
            self._options.on_op(event)
        except Exception:  # a broken metric must not fail a write that has happened
            logger.exception("the on_op hook failed")


def _resolve_expect(expect: Any, key: str) -> Expectation:
    """Return the version that `expect=` names, or ANY, or ABSENT."""
    if isinstance(expect, Entry):
        if expect.key != key:
            raise InvalidInput(f"expect= is the Entry of another key, {shown(expect.key)}, and not of {key!r}")
        return expect.version
    if isinstance(expect, Expect) or (type(expect) is int and -(2**63) <= expect < 2**63):
        return expect
    hint = "; to write only if there is no entry, pass holdall.ABSENT" if expect is None else ""
    raise InvalidInput(f"expect= is holdall.ANY, holdall.ABSENT, a version or an Entry, not {shown(expect)}{hint}")
