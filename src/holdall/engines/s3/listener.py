"""Polls the log for records of other machines: a bucket sends no notifications.

It polls often for a while after a new record, then less and less often.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ...engine import Listener
from ...errors import StoreClosed

logger = logging.getLogger("holdall")

#: Seconds between two polls of the log.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
_GROWTH = 1.3


class LogListener:
    """A thread that applies the records of other machines; then the cache's listener reports them."""

    def __init__(self, cache: Listener, poll: Callable[[], bool]) -> None:
        self._cache, self._poll = cache, poll
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdall-log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and the cache's listener."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._cache.close()

    def abandon(self) -> None:
        """In a forked child: leave to the parent what is its own."""
        self._cache.abandon()

    def _run(self) -> None:
        pause = SHORTEST_PAUSE
        while not self._stopped.wait(pause):
            try:
                has_changed = self._poll()
            except StoreClosed:
                return
            except Exception as error:  # reads meet the same error, and raise it
                logger.warning("cannot poll the log for changes by other machines, trying again: %s", error)
                has_changed = False
            pause = SHORTEST_PAUSE if has_changed else min(pause * _GROWTH, LONGEST_PAUSE)
