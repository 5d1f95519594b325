"""Worker threads that run functions one after another, for callers that must not wait.

Like Python's `ThreadPoolExecutor`, but without futures: a function delivers its own result. Futures are a good part of
the cost of passing work to a thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from .signals import defer_signals

logger = logging.getLogger("holdall")


class Workers:
    """A limited number of threads, which start when they are needed."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit, self._name = limit, name
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._mutex = threading.RLock()  # a signal handler may call the store while an event loop has it
        self._threads: list[threading.Thread] = []
        self._unfinished = self._running = 0

    def submit(self, function: Callable[[], None]) -> None:
        """Run a function soon. Raises RuntimeError if Python is shutting down or cannot start a thread."""
        with self._mutex:
            if self._unfinished >= len(self._threads) < self._limit:
                defer_signals(self._start_thread)
            self._unfinished += 1
            self._queue.put(function)

    def _start_thread(self) -> None:
        # A daemon, so that the interpreter does not wait for it at exit: the engine is closed then, and its workers
        # with it.
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def close(self) -> None:
        """Wait until all submitted functions have run."""
        self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        with self._mutex:
            if self._running >= self._limit:  # a signal interrupted `submit` after a start, and it started another
                return
            self._running += 1
            if threading.current_thread() not in self._threads:  # this is the thread of the interrupted `submit`
                self._threads.append(threading.current_thread())
        while (function := self._queue.get()) is not None:
            try:
                function()
            except BaseException:
                logger.exception("a bug in holdall: an unexpected error in a worker thread")
            del function  # free what it holds, before the wait for the next one
            with self._mutex:
                self._unfinished -= 1
        self._queue.put(None)  # ends the next thread
