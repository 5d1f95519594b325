"""Engines in use: stores of one URL share one. This module shares them, prepares them for forks, and closes them.

`urls.open` gets its engines here. A `Store` holds an `EngineHandle`, and never an engine alone.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..engine import Engine
from ..errors import StoreClosed, Unsupported
from ..live.notification import Notifier
from ..ops import (
    ANY,
    KEEP,
    READS,
    WALKS,
    Get,
    Grep,
    Op,
    Put,
    ReadRange,
    SetHistory,
    Stat,
)
from ..runtime import closers, signals
from ..runtime.signals import await_deferring, defer_signals, is_in_main_thread
from .maintenance import FilterUse, Sweeper, is_filtered

if TYPE_CHECKING:
    from .coalescing import Coalescer

logger = logging.getLogger("holdall")

_FILE_READS = frozenset({ReadRange, Stat, Grep})  # only file reads find out that maintenance is needed
_NO_CHANGES = READS | WALKS

#: How many joined batches run at once, and the longest value of a put that joins one.
_JOINED_BATCHES, _LONGEST_JOINED = 2, 1 << 16

_lock = threading.Lock()
_by_key: dict[Hashable, EngineHandle] = {}
_all: weakref.WeakSet[EngineHandle] = weakref.WeakSet()
_program_has_ended = False


class Companion(Protocol):
    """An object that belongs to an engine, and may have a thread: the `Notifier`, or the renewer of leases."""

    def stop(self) -> None:
        """Stop all threads. Called before the engine is closed."""

    def abandon(self) -> None:
        """Drop everything. Called in a forked child, where the threads do not exist."""


C = TypeVar("C", bound=Companion)


def _can_join(op: Op) -> bool:
    """Whether an op may share a batch with those of other tasks: a put of an item, under no condition."""
    if type(op) is not Put or op.expect is not ANY or op.ttl is KEEP:
        return False
    value: Any = op.value  # its JSON text, or a `File`
    is_plain = op.search_fields is None and op.vectors is None and op.acting is None
    return is_plain and type(value) is str and len(value) <= _LONGEST_JOINED


class EngineHandle:
    """An engine, the number of stores that use it, its sweeper thread, and its companions.

    Its methods defer signals (`holdall.runtime.signals`).
    """

    def __init__(
        self, engine: Engine, sweep_interval: float | None, feed_retention: float | None = None, key: Hashable = None
    ) -> None:
        self.engine = engine
        self.feed_retention = feed_retention  # seconds for which tombstones are kept; None: for ever
        self.notifier: Notifier | None = None  # made by the first watch
        self._key = key
        self._sweep_interval = sweep_interval
        self._users = 0
        self._companions: dict[Any, Companion] = {}
        self._sweeper: Sweeper | None = None
        self.is_swept = sweep_interval is None
        self.filter_use = FilterUse() if engine.capabilities.learns else None
        self.is_learning = False  # set by the sweeper while learned indexes are being built
        self.indexes_texts = False  # set by the first search that lacks changes: the sweeper then indexes what is put
        self.searches_texts = False  # set by the first search by text: each sweep then does the merges that are left
        self.indexes_order = False  # set once a search with neighbours has built their index, or could not
        self._wanted_history: float | None = None  # the setting to make before the next batch; None: leave it as it is
        self.needs_sweeping = engine.capabilities.durable  # entries expire, or leave tombstones
        # Of the type: a wrapper may forward unknown names to its inner engine.
        self._is_async_reentrant = getattr(type(engine), "is_async_reentrant", False)
        self._look_up: Any = getattr(type(engine), "look_up", None)
        self._has_maintenance = hasattr(engine, "needs_maintenance")
        self.joins_tasks = hasattr(type(engine), "aexecute_joined")
        # Separate queues: a read must not wait for a commit.
        if self.joins_tasks:
            self._reads, self._writes = self.new_coalescer(), self.new_coalescer()
        _all.add(self)

    def add_user(self, sweep_interval: float | None, feed_retention: float | None) -> EngineHandle:
        """Count one more store, under the lock. The shortest sweep interval and the longest feed retention apply."""
        self._users += 1
        if sweep_interval is not None and self._sweep_interval is None:
            self._sweep_interval, self.is_swept = sweep_interval, False
        elif sweep_interval is not None and self._sweep_interval is not None:
            self._sweep_interval = min(self._sweep_interval, sweep_interval)
        if feed_retention is None or self.feed_retention is None:
            self.feed_retention = None
        else:
            self.feed_retention = max(self.feed_retention, feed_retention)
        return self

    def execute(self, batch: Sequence[Op]) -> list[Any]:
        """Run a batch for a sync caller, and wake subscriptions."""
        if self._wanted_history is not None:
            self._set_history()
        if self._look_up is not None and is_in_main_thread():
            found: list[Any] | None = self._look_up(self.engine, batch)
            if found is not None:
                self._maintain_if_needed(batch)
                return found
        return defer_signals(self._execute, batch)

    def setup(self) -> None:
        """Set up the engine, and the history if an option of `holdall.open` asks for it."""
        defer_signals(self.engine.setup)
        if self._wanted_history is not None:
            self._set_history()

    async def asetup(self) -> None:
        """`setup`, awaited."""
        await self.engine.asetup()
        if self._wanted_history is not None:
            await self._aset_history()

    def request_history(self, keep: float) -> None:
        """Have old values kept for so many seconds, from the next batch on."""
        if not self.engine.capabilities.keeps_history:
            raise Unsupported("this engine keeps no history: leave history= out")
        self._wanted_history, self.needs_sweeping = keep, True

    def _set_history(self) -> None:
        wanted = self._wanted_history
        defer_signals(self.engine.execute, [SetHistory(wanted)])
        if self._wanted_history == wanted:  # not before, as it may fail
            self._wanted_history = None

    async def _aset_history(self) -> None:
        wanted = self._wanted_history
        await self._aexecute_alone([SetHistory(wanted)])
        if self._wanted_history == wanted:
            self._wanted_history = None

    def new_coalescer(self, execute: Any = None) -> Coalescer:
        """Return a queue for the ops of tasks, for an engine that joins them."""
        from .coalescing import Coalescer  # imported late: it needs asyncio

        return Coalescer(execute or self.aexecute_joined, _JOINED_BATCHES)

    async def aexecute(self, batch: Sequence[Op]) -> list[Any]:
        """`execute`, awaited. Single gets and puts of several tasks may share a batch of the engine."""
        if self._wanted_history is not None:
            await self._aset_history()
        if self.joins_tasks and len(batch) == 1:
            op: Any = batch[0]
            if type(op) is Get:
                return [await self._reads.run(op)]
            if _can_join(op):
                return [await self._writes.run(op)]
        return await self._aexecute_alone(batch)

    def _aexecute_alone(self, batch: Sequence[Op]) -> Awaitable[list[Any]]:
        if self._is_async_reentrant or not is_in_main_thread():
            return self._aexecute(batch)
        return await_deferring(self._aexecute(batch))

    async def _aexecute(self, batch: Sequence[Op]) -> list[Any]:
        self._ensure_sweeper()
        began = time.perf_counter()
        try:
            return await self.engine.aexecute(batch)
        finally:  # a cancelled write may have happened
            self._finish(batch, began)

    async def aexecute_joined(self, batch: Sequence[Op]) -> list[Any] | None:
        """Execute ops of several tasks, which need no common outcome; None if each must be executed alone."""
        if len(batch) == 1 or not (all(type(op) is Get for op in batch) or all(map(_can_join, batch))):
            return await self._aexecute_alone(batch)
        engine: Any = self.engine
        self._ensure_sweeper()
        began = time.perf_counter()
        try:
            joined = engine.aexecute_joined(batch)
            results: list[Any] | None = await (await_deferring(joined) if is_in_main_thread() else joined)
            return results
        finally:
            self._finish(batch, began)

    def _execute(self, batch: Sequence[Op]) -> list[Any]:
        self._ensure_sweeper()
        began = time.perf_counter()
        try:
            return self.engine.execute(batch)
        finally:
            self._finish(batch, began)

    def _finish(self, batch: Sequence[Op], began: float) -> None:
        """Start maintenance, note filters and wake subscriptions, if the batch requires it."""
        if self._has_maintenance and self.engine.needs_maintenance:  # type: ignore[attr-defined]  # checked
            defer_signals(self.maintain_soon)
        if self.filter_use is not None and is_filtered(batch):
            op: Any = batch[0]
            if self.filter_use.note(op, time.perf_counter() - began):
                defer_signals(self.maintain_soon)
        if (self.notifier is None and not self.indexes_texts) or all(type(op) in _NO_CHANGES for op in batch):
            return
        if self.notifier is not None:
            self.notifier.notify()
        if self.indexes_texts:
            self.index_soon()

    def _maintain_if_needed(self, batch: Sequence[Op]) -> None:
        if type(batch[0]) in _FILE_READS and getattr(self.engine, "needs_maintenance", False):
            defer_signals(self.maintain_soon)

    def _ensure_sweeper(self) -> None:
        if self.needs_sweeping and not self.is_swept:
            defer_signals(self.start_sweeper)

    def start_sweeper(self) -> None:
        """Start the sweeper thread, unless it runs already."""
        with _lock:
            if not self.is_swept and self._sweep_interval is not None:
                self._sweeper = Sweeper(self, self._sweep_interval)
                self.is_swept = True

    def companion(self, kind: Callable[[Engine], C]) -> C:
        """Return the companion of this kind. The first call makes it."""
        companion: C = defer_signals(self._companion, kind)
        return companion

    def _companion(self, kind: Callable[[Engine], C]) -> C:
        with _lock:
            if self._users == 0:
                raise StoreClosed("this store is closed; open a new one")
            found: Any = self._companions.get(kind)
            if found is None:
                found = self._companions[kind] = kind(self.engine)
                if isinstance(found, Notifier):
                    self.notifier = found
            return found  # type: ignore[no-any-return]  # of this kind

    def notify(self) -> None:
        """Wake all subscriptions: there was a change, or a store was closed."""
        if self.notifier is not None:
            self.notifier.notify()

    def maintain_soon(self) -> None:
        """Let the sweeper thread do the engine's maintenance."""
        if not self.is_swept:  # checked without the lock, as this may run after every batch
            self.start_sweeper()
        sweeper = self._sweeper
        if sweeper is not None:
            sweeper.wake()

    def index_soon(self) -> None:
        """Let the sweeper thread update the text index, a moment later, so that it indexes several changes at once."""
        sweeper = self._sweeper
        if sweeper is not None:
            sweeper.wake_to_index()

    def release(self) -> None:
        """Count one store less. The last one closes the engine."""
        with _lock:
            self._users -= 1
            if self._users:
                return
            if _by_key.get(self._key) is self:
                del _by_key[self._key]
        self.close()

    def close(self) -> None:
        """Close the engine, even if stores use it."""
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.stop()
        self.stop_companions()
        self.engine.close()

    def stop_companions(self) -> None:
        for companion in list(self._companions.values()):
            companion.stop()

    def release_soon(self) -> None:
        """`release` in another thread, for a finalizer: that may run during any code, even the engine's own."""
        if not _program_has_ended:
            closers.start_closer(self.release)

    def before_fork(self) -> None:
        self.engine.before_fork()

    def after_fork(self, in_child: bool) -> None:
        self.engine.after_fork(in_child)
        if in_child:  # threads do not cross a fork
            companions, self._companions, self.notifier = self._companions, {}, None
            for companion in companions.values():
                companion.abandon()
            self._sweeper = None
            self.is_swept = self._sweep_interval is None
            self.filter_use = FilterUse() if self.filter_use is not None else None  # its lock may be held for ever


def get_or_make_handle(
    key: Hashable, make: Callable[[], Engine], sweep_interval: float | None, feed_retention: float | None
) -> EngineHandle:
    """Return the engine of this key, and count one user. A key of None always makes a new engine."""
    with _lock:
        _register_fork_hooks()
        handle = _by_key.get(key) if key is not None else None
        if handle is not None:
            return handle.add_user(sweep_interval, feed_retention)
    # Without the lock: the user's function may open stores itself.
    made = EngineHandle(make(), sweep_interval, feed_retention, key)
    with _lock:
        handle = made if key is None else _by_key.setdefault(key, made)
        return handle.add_user(sweep_interval, feed_retention)


def engine_module(name: str) -> ModuleType:
    """Import an engine's module. A fork waits for it: a child would inherit a half-imported, locked module."""
    with _lock:
        _register_fork_hooks()
        return import_module(name)


@atexit.register
def _close_all() -> None:
    """Close the engines that are still open when the program ends."""
    global _program_has_ended
    _program_has_ended = True
    for handle in list(_all):
        defer_signals(handle.close)


_forking: list[EngineHandle] = []  # handles that are ready for the fork
_forking_thread: int | None = None


def _before_fork() -> None:
    global _forking_thread
    signals.before_fork()
    _lock.acquire()
    closers.before_fork()  # with the lock: another thread may be forking
    _forking_thread = threading.get_ident()
    for handle in list(_all):
        try:
            handle.before_fork()
        except Exception:  # the other engines must get ready
            logger.exception("%r could not be prepared for a fork", handle.engine)
        else:
            _forking.append(handle)


def _after_fork_in_parent() -> None:
    global _forking_thread
    if _forking_thread != threading.get_ident():  # a signal handler raised before the fork, so nothing was prepared
        return
    try:
        while _forking:
            _leave_fork(_forking.pop(), in_child=False)
    finally:
        _forking_thread = None
        try:
            closers.after_fork(in_child=False)
        finally:
            _lock.release()
            signals.after_fork()


def _after_fork_in_child() -> None:
    global _lock, _forking_thread
    _lock = threading.Lock()
    _forking_thread = None
    _forking.clear()
    for handle in list(_all):  # also those that were not ready: a child must not use the parent's connections
        _leave_fork(handle, in_child=True)
    closers.after_fork(in_child=True)
    signals.after_fork()


def _leave_fork(handle: EngineHandle, in_child: bool) -> None:
    try:
        handle.after_fork(in_child)
    except Exception:  # the other engines must continue
        logger.exception("%r failed after a fork", handle.engine)


@cache
def _register_fork_hooks() -> None:
    """Register the fork hooks, once, after those of `asyncio.to_thread`: its hooks hold a lock that ours need.

    Called with the lock held, since two threads can enter a cached function at once.
    """
    import concurrent.futures.thread  # noqa: F401  # registers its hooks first

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
        )
