"""Engines in use: shared by the stores of one URL, swept, kept whole across forks, closed after the last store.

`urls.open` gets its engines here; a `Store` holds a `Shared` and never an engine alone.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, TypeVar

from . import closers
from .engine import Engine
from .errors import HoldallError, StoreClosed
from .ops import Forget, Learn, Op, Sweep, Tidy
from .waking import Waker

logger = logging.getLogger("holdall")

_PAUSE = 0.002  # between slices of upkeep, for whoever waits to write

_lock = threading.Lock()
_by_key: dict[Hashable, Shared] = {}
_all: weakref.WeakSet[Shared] = weakref.WeakSet()
_program_has_ended = False


class Companion(Protocol):
    """What goes with an engine, and may have a thread."""

    def stop(self) -> None:
        """Before the engine is closed: leave no thread behind."""

    def abandon(self) -> None:
        """In a forked child, where no thread is: do nothing any more."""


C = TypeVar("C", bound=Companion)


class Shared:
    """An engine, how many stores use it, the thread that sweeps it, and what else goes with it."""

    def __init__(
        self, engine: Engine, sweep_interval: float | None, history: Forget | None = None, key: Hashable = None
    ) -> None:
        self.engine = engine
        self.history = history  # what is forgotten of it; None: nothing
        self.waker: Waker | None = None  # once somebody has watched
        self._key = key
        self._sweep_interval = sweep_interval
        self._users = 0
        self._companions: dict[Any, Companion] = {}
        self._sweeper: _Sweeper | None = None
        self.is_swept = sweep_interval is None
        self.learns = False  # somebody searches by text, so the index is kept up
        _all.add(self)

    def joined(self, sweep_interval: float | None, history: Forget | None) -> Shared:
        """One store more, under the lock. Of what they ask for, the more often counts, and the longer."""
        self._users += 1
        if sweep_interval is not None and self._sweep_interval is None:
            self._sweep_interval, self.is_swept = sweep_interval, False
        elif sweep_interval is not None and self._sweep_interval is not None:
            self._sweep_interval = min(self._sweep_interval, sweep_interval)
        if history is None or self.history is None or (history.age is None) != (self.history.age is None):
            self.history = None  # for ever; and who counts days cannot be compared with who counts entries
        elif self._users > 1:
            self.history = max(self.history, history, key=lambda kept: (kept.age or 0, kept.keep or 0))
        return self

    def sweep_from_now_on(self) -> None:
        """Start the sweeper, unless it runs."""
        with _lock:
            if not self.is_swept and self._sweep_interval is not None:
                self._sweeper = _Sweeper(self, self._sweep_interval)
                self.is_swept = True

    def companion(self, kind: Callable[[Engine], C]) -> C:
        """The one of its kind that goes with this engine: made when it is first asked for."""
        with _lock:
            if self._users == 0:
                raise StoreClosed("this store is closed; open a new one")
            found: Any = self._companions.get(kind)
            if found is None:
                found = self._companions[kind] = kind(self.engine)
                if isinstance(found, Waker):
                    self.waker = found
            return found  # type: ignore[no-any-return]  # of this kind

    def ring(self) -> None:
        """Something has changed: wake those who watch."""
        if self.waker is not None:
            self.waker.ring()

    def tidy_soon(self) -> None:
        """Have the engine's upkeep done, in the sweeper's thread."""
        if not self.is_swept:  # asked after every batch while there is upkeep to do, so without the lock
            self.sweep_from_now_on()
        sweeper = self._sweeper
        if sweeper is not None:
            sweeper.wake()

    def release(self) -> None:
        """One store fewer; the last one closes the engine."""
        with _lock:
            self._users -= 1
            if self._users:
                return
            if _by_key.get(self._key) is self:
                del _by_key[self._key]
            sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.stop()
        self.stop_companions()
        self.engine.close()

    def stop_companions(self) -> None:
        for companion in list(self._companions.values()):
            companion.stop()

    def release_soon(self) -> None:
        """`release`, for a finalizer: it may run in the middle of anything, even of this engine's own work."""
        if not _program_has_ended:
            closers.closer(self.release)

    def before_fork(self) -> None:
        self.engine.before_fork()

    def after_fork(self, in_child: bool) -> None:
        self.engine.after_fork(in_child)
        if in_child:  # threads do not cross a fork
            companions, self._companions, self.waker = self._companions, {}, None
            for companion in companions.values():
                companion.abandon()
            self._sweeper = None
            self.is_swept = self._sweep_interval is None


def share(key: Hashable, make: Callable[[], Engine], sweep_interval: float | None, history: Forget | None) -> Shared:
    """The engine of this key, made if there is none yet; a key of None is never shared. Counts as one user."""
    with _lock:
        _survive_forks()
        shared = _by_key.get(key) if key is not None else None
        if shared is not None:
            return shared.joined(sweep_interval, history)
    # Without the lock: a function of the user's may open stores itself.
    made = Shared(make(), sweep_interval, history, key)
    with _lock:
        shared = made if key is None else _by_key.setdefault(key, made)
        return shared.joined(sweep_interval, history)


def engine_module(name: str) -> ModuleType:
    """An engine's module, imported now. A fork waits meanwhile: a child would find it half there, and locked."""
    with _lock:
        _survive_forks()
        return import_module(name)


@atexit.register
def _close_all() -> None:
    """What nobody closed by the time the program ends, in the thread that ends it."""
    global _program_has_ended
    _program_has_ended = True
    for shared in list(_all):
        if shared._sweeper is not None:
            shared._sweeper.stop()
        shared.stop_companions()
        shared.engine.close()


class _Sweeper:
    """A thread that turns expired entries into tombstones, and sees to other upkeep, in small slices."""

    def __init__(self, shared: Shared, interval: float) -> None:
        self._bell = _Bell()
        weakref.finalize(shared, self._bell.stop)
        self._thread = threading.Thread(
            target=_see_to_upkeep, args=(weakref.ref(shared), interval, self._bell), name="holdall-sweeper", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        self._bell.rings.set()

    def stop(self) -> None:
        self._bell.stop()
        if self._thread is not threading.current_thread():
            self._thread.join()


class _Bell:
    """What wakes the sweeper, and what stops it."""

    def __init__(self) -> None:
        self.rings = threading.Event()
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        self.rings.set()


def _see_to_upkeep(reference: weakref.ref[Shared], interval: float, bell: _Bell) -> None:
    next_sweep = time.monotonic() + interval  # however often the bell rings meanwhile
    deaf_until = 0.0  # after a failure: whoever rang will ring again with its next batch
    while True:
        was_rung = bell.rings.wait(max(0.0, next_sweep - time.monotonic()))
        bell.rings.clear()
        shared = reference()
        if shared is None or bell.stopped:
            return
        now = time.monotonic()
        try:
            if now >= next_sweep:
                next_sweep = now + (shared._sweep_interval or interval)
                _sweep(shared, bell)
                if shared.learns:
                    _learn(shared.engine, bell)
                if shared.history is not None:
                    _repeat(shared.engine, shared.history, bell)
            if was_rung and now >= deaf_until:
                _repeat(shared.engine, Tidy(), bell)
        except StoreClosed:
            return
        except HoldallError as error:
            deaf_until = time.monotonic() + interval
            logger.warning("upkeep failed, trying again later: %s", error)
        del shared  # not held while asleep, so that a forgotten store can go


def _sweep(shared: Shared, bell: _Bell) -> None:
    slice_ = Sweep()
    while not bell.stopped:
        swept = shared.engine.execute([slice_])[0]
        if swept:
            shared.ring()
        if swept < slice_.limit:
            return


def _learn(engine: Engine, bell: _Bell) -> None:
    while not bell.stopped:
        _, more = engine.execute([Learn()])[0]
        if not more:
            return
        time.sleep(_PAUSE)


def _repeat(engine: Engine, upkeep: Op, bell: _Bell) -> None:
    """Slice after slice, with a pause for whoever waits to write."""
    while not bell.stopped and engine.execute([upkeep])[0]:
        time.sleep(_PAUSE)


_forking: list[Shared] = []


def _before_fork() -> None:
    _lock.acquire()
    closers.before_fork()
    for shared in list(_all):
        try:
            shared.before_fork()
        except Exception:  # the others must come out of it all the same
            logger.exception("%r could not get ready for a fork", shared.engine)
        else:
            _forking.append(shared)


def _after_fork(in_child: bool) -> None:
    global _lock
    try:
        while _forking:
            shared = _forking.pop()
            try:
                shared.after_fork(in_child)
            except Exception:
                logger.exception("%r did not come out of a fork", shared.engine)
    finally:
        if in_child:
            _lock = threading.Lock()
        else:
            _lock.release()
        closers.after_fork()


@cache
def _survive_forks() -> None:
    """Hook into forks, once, and after the executor of `asyncio.to_thread`: its hooks hold a lock which ours need.

    Called with the lock held, since `cache` alone lets two threads in.
    """
    import concurrent.futures.thread  # noqa: F401  # whose hooks come with it

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_before_fork,
            after_in_parent=lambda: _after_fork(in_child=False),
            after_in_child=lambda: _after_fork(in_child=True),
        )
