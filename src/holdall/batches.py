"""Batches on their way to an engine and back: how a store runs its programs.

`_prepared` is the one place where an op is checked and moved into the store's scope before an engine sees it, and
`_finished` the one where results come back out of it. `Store` and its parts are built on this.
"""

from __future__ import annotations

import inspect
import logging
import time
import weakref
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from . import keys, ops
from .engine import Engine
from .errors import Conflict, InvalidInput, StoreClosed, shown
from .fields import WHOLE, check_paths
from .ops import ANY, DEFAULT, KEEP, Change, Entry, Expect, Expectation, Namespace, Op, Ttl, TtlOrDefault
from .programs import Call, Program, Work, adrive, drive
from .settings import OpEvent, Settings
from .shapes import stored
from .sharing import Shared
from .values import check_text, encode, to_microseconds, ttl_seconds

T = TypeVar("T")
_LOOKS = frozenset({ops.ReadRange, ops.Stat, ops.Grep})
_NO_CHANGES = ops.READS | ops.WALKS
logger = logging.getLogger("holdall")


class Batching:
    """What runs programs, on an engine that it shares, inside a scope."""

    def __init__(
        self, shared: Shared, settings: Settings, parent: Batching | None = None, scope: Namespace = ()
    ) -> None:
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
        closed = ", closed" if self._is_closed else ""
        return f"<holdall.{type(self).__name__} on {type(self._shared.engine).__name__}{scope}{closed}>"

    def _run(self, program: Program[T]) -> T:
        return drive(program, self._perform)

    def _arun(self, program: Program[T]) -> Coroutine[Any, Any, T]:
        return adrive(program, self._aperform)

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
        if isinstance(op, ops.Get):  # asked first for those that matter most: a match takes longer
            home = self._home(op.namespace)
            key = keys.check_key(op.key)
            return op if home is op.namespace and key is op.key else ops.Get(home, key)
        if isinstance(op, ops.Put):
            expect = op.expect if op.expect is ANY else _expected(op.expect, op.key)
            ttl, key, value = self._lifetime(op.ttl), keys.check_key(op.key), op.value
            kept: Any = encode(value) if key[0] != "/" else stored(key, value)
            if op.index is None and (self._settings.fields is WHOLE or ttl is KEEP or type(kept) is ops.File):
                return ops.Put(self._home(op.namespace), key, kept, ttl, expect, None, op.vectors)
            index: Any = self._paths(op.index)
            return ops.Put(self._home(op.namespace), key, kept, ttl, expect, index, op.vectors)
        if isinstance(op, ops.ReadRange):
            if op.start or op.end is not None:
                keys.check_count("start", op.start, most=2**62)
                keys.check_count("end", 0 if op.end is None else op.end, most=2**62)
            home, key = self._home(op.namespace), keys.check_path(op.key)
            return op if home is op.namespace and key is op.key else ops.ReadRange(home, key, op.start, op.end)
        if isinstance(op, ops.Stat):
            return ops.Stat(self._home(op.namespace), keys.check_folder(op.path)[:-1])
        match op:
            case ops.Delete(namespace, key, expect):
                self._keep_swept()
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
                self._keep_swept()
                return ops.DeleteTree(
                    self._home(namespace), None if path is None else keys.check_folder(path)[:-1] or "/"
                )
            case ops.Indexing(namespace, key):
                return ops.Indexing(self._home(namespace), keys.check_key(key))
            case ops.Embed(namespace, key, version, vectors):
                return ops.Embed(self._home(namespace), keys.check_key(key), version, vectors)
            case ops.Append(namespace, key, data, expect, ttl):
                if not isinstance(data, bytes):
                    raise InvalidInput(f"what is appended is bytes, not {type(data).__name__} {shown(data)}")
                return ops.Append(
                    self._home(namespace), keys.check_path(key), data, _expected(expect, key), self._lifetime(ttl)
                )
            case ops.CheckPath(namespace, path):
                return ops.CheckPath(self._home(namespace), keys.check_path(path))
            case ops.Move(namespace, src, dst, source, ttl):
                elsewhere = None if source is None else self._home(source)
                return ops.Move(self._home(namespace), *keys.paths(src, dst), elsewhere, self._lifetime(ttl))
            case ops.Copy(namespace, src, dst):
                return ops.Copy(self._home(namespace), *keys.paths(src, dst))
        return op

    def _home(self, namespace: Namespace) -> Namespace:
        """Where an entry lives: inside the scope, whose own namespace is `()`."""
        if type(namespace) is keys.Reserved:
            if len(namespace) == 1:  # of the whole store
                return keys.RESERVED, namespace[0]
            return keys.RESERVED, (self._scope + namespace[1:])[0], namespace[0]
        if type(namespace) is keys.Home:
            return namespace
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
        if seconds is not None:
            self._keep_swept()
        return seconds

    def _keep_swept(self) -> None:
        """There will be something to clear away: what expires, or what is left of what was deleted."""
        if not self._shared.is_swept:
            self._shared.sweep_from_now_on()

    def _finished(self, batch: list[Op], began: float, results: list[Any]) -> list[Any]:
        # Only who looks through files finds upkeep to be done, and an engine need not have any.
        if type(batch[0]) in _LOOKS and getattr(self._shared.engine, "behind", False):
            self._shared.tidy_soon()
        if self._shared.waker is not None:
            self._ring(batch)
        if self._settings.on_op is not None:
            self._tell(batch, began, None)
        return [self._outside(result) for result in results] if self._scope else results

    def _outside(self, result: Any) -> Any:
        """A result with its namespaces relative to the scope. Listed namespaces are relative already."""
        if isinstance(result, Entry | Change):
            return replace(result, namespace=result.namespace[len(self._scope) :])
        if isinstance(result, list) and result and isinstance(result[0], Entry | Change):
            result[:] = [self._outside(entry) for entry in result]
        return result

    def _report(self, batch: list[Op], began: float, error: BaseException) -> None:
        if self._shared.waker is not None:  # who was cancelled may have written all the same
            self._ring(batch)
        if self._settings.on_op is not None:
            self._tell(batch, began, type(error))
        if isinstance(error, Conflict) and self._scope and error.namespace[:1] != (keys.RESERVED,):
            error.namespace = error.namespace[len(self._scope) :]

    def _ring(self, batch: list[Op]) -> None:
        """Wake those who watch, if there may be something new."""
        if not all(type(op) in _NO_CHANGES for op in batch):
            self._shared.ring()

    def _tell(self, batch: list[Op], began: float, error: type[BaseException] | None) -> None:
        """Call the user's hook, whose own failures are not the caller's."""
        assert self._settings.on_op is not None
        event = OpEvent(tuple(type(op).__name__ for op in batch), time.perf_counter() - began, error)
        try:
            self._settings.on_op(event)
        except Exception:  # a broken metric must not fail a write that has happened
            logger.exception("the on_op hook failed")


def _expected(expect: Any, key: str) -> Expectation:
    if isinstance(expect, Entry):
        if expect.key != key:
            raise InvalidInput(f"expect= is an Entry of another key: {shown(expect.key)}, not {key!r}")
        return expect.version
    if isinstance(expect, Expect) or (type(expect) is int and -(2**63) <= expect < 2**63):
        return expect
    hint = " (was a read forgotten? holdall.ABSENT means that nothing may be there)" if expect is None else ""
    raise InvalidInput(f"expect is holdall.ANY, holdall.ABSENT, a version or an Entry, not {shown(expect)}{hint}")
