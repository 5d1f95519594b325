"""Threads that run functions one after another, for callers that must not wait.

As Python's own executor, but nobody is told what became of a function: it tells those whom it concerns. That is a good
part of what a hop to a thread and back costs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger("holdall")


class Workers:
    """At most so many threads, which begin when they are needed."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._mutex = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._unfinished = self._working = 0

    def submit(self, function: Callable[[], None]) -> None:
        """Have a function run soon. A RuntimeError if the program is ending, or no thread can be had."""
        with self._mutex:
            if self._unfinished >= len(self._threads) < self._most:
                # Not waited for when the program ends: whoever has the engine closes it then, and us with it.
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()
                self._threads.append(thread)
            self._unfinished += 1
            self._queue.put(function)

    def close(self) -> None:
        """Wait for what was submitted."""
        self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        with self._mutex:
            if self._working >= self._most:  # the start of another was interrupted, but it is there
                return
            self._working += 1
            if threading.current_thread() not in self._threads:  # this is that other
                self._threads.append(threading.current_thread())
        while (function := self._queue.get()) is not None:
            try:
                function()
            except BaseException:
                logger.exception("a fault of holdall's own, in a thread")
            del function  # and with it all that it holds, while we wait for the next
            with self._mutex:
                self._unfinished -= 1
        self._queue.put(None)  # for the next
