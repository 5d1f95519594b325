"""Maintenance in the background: the sweeper thread of an engine handle, and its notes on which fields filters name.

The sweeper turns expired entries into tombstones, purges old ones, indexes texts, and runs the engine's `Maintain`.
The handle notes every search and count that has a filter, in memory. The sweeper passes the notes on as `LearnFields`:
soon after a slow search, and otherwise with each sweep. So no search writes anything itself.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..engine import Engine
from ..errors import HoldallError, StoreClosed
from ..model.filter_indexes import list_fields
from ..ops import Count, IndexTexts, LearnFields, Maintain, Op, PurgeHistory, PurgeTombstones, Search, Sweep

if TYPE_CHECKING:
    from .engine_handle import EngineHandle

logger = logging.getLogger("holdall")

_LEARNING_TURN = 1.0  # seconds: for how long learned indexes are built before the sweeper does other work
_PAUSE = 0.002  # seconds between slices of maintenance, in which others can write
_INDEX_DELAY = 0.1  # seconds after a write before its texts are indexed

#: Seconds: a search that takes longer has read many entries. Reading 1,000 of them takes 1 to 3 ms on any engine.
SLOW = 0.01
#: How many slow searches have to name a field before it is indexed.
SLOW_TIMES = 3
_MOST_NAMES = 1000  # names come from callers, and memory is limited
_WAKE_INTERVAL = 0.5  # seconds


class FilterUse:
    """The notes of one process about one engine."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may search, too
        self._uses: Counter[str] = Counter()
        self._slow: Counter[str] = Counter()
        self._ordered: set[str] = set()
        self._next_wake = 0.0

    def note(self, op: Search | Count, seconds: float) -> bool:
        """Note a search that has a filter; return whether its notes should be passed on soon."""
        assert op.filter is not None
        fields = list_fields(op.filter)
        with self._lock:
            if len(self._uses) > _MOST_NAMES:
                self._uses.clear()
            if len(self._slow) > _MOST_NAMES:
                self._slow.clear()
                self._ordered.clear()
            self._uses.update(fields.keys())
            if seconds < SLOW:
                return False
            self._slow.update(fields.keys())
            self._ordered.update(name for name, is_ordered in fields.items() if is_ordered)
            now = time.monotonic()
            if now < self._next_wake and not any(self._slow[name] == SLOW_TIMES for name in fields):
                return False
            self._next_wake = now + _WAKE_INTERVAL
            return True

    def take(self) -> LearnFields | None:
        """Return the notes as an op, and begin new ones; None if there are none.

        The slow searches of a field count until it is wanted.
        """
        with self._lock:
            if not self._uses:
                return None
            wanted = tuple(name for name, times in self._slow.items() if times >= SLOW_TIMES)
            ordered = tuple(name for name in wanted if name in self._ordered)
            uses = tuple(self._uses.items())
            self._uses.clear()
            for name in wanted:
                del self._slow[name]
                self._ordered.discard(name)
            return LearnFields(wanted, ordered, uses)


def is_filtered(batch: Sequence[Op]) -> bool:
    """Whether a batch is a search or a count with a filter."""
    op = batch[0]
    return isinstance(op, Search | Count) and op.filter is not None


# The sweeper ----------------------------------------------------------------------------------------------------------


class Sweeper:
    """A thread that turns expired entries into tombstones, and does other maintenance, in small slices."""

    def __init__(self, handle: EngineHandle, interval: float) -> None:
        self._wakeup = _Wakeup()
        weakref.finalize(handle, self._wakeup.stop)
        self._thread = threading.Thread(
            target=_maintain,
            args=(weakref.ref(handle), interval, self._wakeup),
            name="holdall-sweeper",
            daemon=True,
        )
        self._thread.start()

    def wake(self) -> None:
        """Have the engine's maintenance done now."""
        self._wakeup.maintains = True
        self._wakeup.event.set()

    def wake_to_index(self) -> None:
        """Have texts indexed, a moment later."""
        if not self._wakeup.indexes:
            self._wakeup.indexes = True
            self._wakeup.event.set()

    def stop(self) -> None:
        """Stop the thread, and wait until it has ended."""
        self._wakeup.stop()
        if self._thread is not threading.current_thread():
            self._thread.join()


class _Wakeup:
    """An event that wakes the sweeper or stops it."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.stopped = False
        self.maintains = self.indexes = False  # for which it was woken

    def stop(self) -> None:
        self.stopped = True
        self.event.set()


def _maintain(reference: weakref.ref[EngineHandle], interval: float, wakeup: _Wakeup) -> None:
    """Sweep at every interval, and do maintenance when woken. The target of the sweeper thread."""
    next_sweep = time.monotonic() + interval
    next_index = math.inf
    paused_until = 0.0  # after a failure, no maintenance until then; later batches wake the thread again
    while True:
        wakeup.event.wait(max(0.0, min(next_sweep, next_index) - time.monotonic()))
        wakeup.event.clear()
        handle = reference()
        if handle is None or wakeup.stopped:
            return
        now = time.monotonic()
        try:
            if now >= next_sweep:
                next_sweep = now + (handle._sweep_interval or interval)
                _sweep(handle, wakeup)
                if handle.searches_texts:
                    next_index = now
                if handle.feed_retention is not None:
                    _repeat(handle, PurgeTombstones(handle.feed_retention), wakeup)
                if handle.engine.capabilities.keeps_history:
                    _repeat(handle, PurgeHistory(), wakeup)
            if wakeup.maintains and now >= paused_until:
                wakeup.maintains = False
                if getattr(handle.engine, "needs_maintenance", False):
                    _repeat(handle, Maintain(), wakeup)
            if now >= paused_until and _learn_fields(handle, wakeup):
                wakeup.event.set()
            if now >= max(next_index, paused_until):
                next_index, wakeup.indexes = math.inf, False
                _index_texts(handle.engine, wakeup)
            elif wakeup.indexes or next_index < math.inf:
                next_index = max(min(next_index, now + _INDEX_DELAY), paused_until)
        except StoreClosed:
            return
        except Exception as error:  # the thread must continue after any error
            paused_until = time.monotonic() + interval
            unexpected = not isinstance(error, HoldallError)
            logger.warning("maintenance failed, will be tried again later: %s", error, exc_info=unexpected)
        del handle  # keep no reference while waiting, so that an abandoned store can be collected


def _sweep(handle: EngineHandle, wakeup: _Wakeup) -> None:
    slice_ = Sweep()
    while not wakeup.stopped:
        swept = handle.engine.execute([slice_])[0]
        if swept:
            handle.notify()
        if swept < slice_.limit:
            return


def _index_texts(engine: Engine, wakeup: _Wakeup) -> None:
    while not wakeup.stopped:
        _, more = engine.execute([IndexTexts()])[0]
        if not more:
            return
        time.sleep(_PAUSE)


def _learn_fields(handle: EngineHandle, wakeup: _Wakeup) -> bool:
    """Pass on which fields filters have named, and build their indexes; return whether more is left to build."""
    notes = handle.filter_use.take() if handle.filter_use is not None else None
    if notes is None and not handle.is_learning:
        return False
    until = time.monotonic() + _LEARNING_TURN
    op = notes or LearnFields()
    while not wakeup.stopped:
        handle.is_learning = handle.engine.execute([op])[0]
        if not handle.is_learning or time.monotonic() > until:
            break
        op = LearnFields()
        time.sleep(_PAUSE)
    return handle.is_learning


def _repeat(handle: EngineHandle, maintenance: Op, wakeup: _Wakeup) -> None:
    """Run a maintenance op until nothing is left to do, with pauses in which others can write."""
    while not wakeup.stopped and handle.engine.execute([maintenance])[0]:
        handle.notify()  # it may have been a change: the tombstones of a deleted tree
        time.sleep(_PAUSE)
