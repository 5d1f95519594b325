"""Notes which fields filters name, and which searches were slow, so that engines can index those fields.

An `EngineHandle` notes every search and count that has a filter, in memory. Its sweeper thread passes the notes on as
`LearnFields`: soon after a slow search, and otherwise with each sweep. So no search writes anything itself.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence

from ..model.filter_indexes import list_fields
from ..ops import Count, LearnFields, Op, Search

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
