"""Detects what other processes write to a SQLite file, without a busy loop.

SQLite sends no notifications. But every commit writes to the write-ahead log, and inotify reports that write. The
report comes before the commit is visible, because a commit waits for the disk. So after an event the listener polls
often for a short time, then less often for some seconds, in case the disk is slow. At other times it polls slowly, as a
safety net. Without inotify it polls at a medium rate all the time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from ...errors import HoldallError, StoreClosed
from .inotify import WATCH_REMOVED, Inotify

logger = logging.getLogger("holdall")

# All in seconds.
_HOT = 0.1  # for how long to poll often after an event
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.005  # between polls then
_WARM = 5.0  # for how long after an event a slow disk may delay the commit
_WARM_PAUSE = 0.02  # between polls then; and always, without inotify: 0.7 % of a core
_SLOW = 0.5  # between polls otherwise
_IN_MODIFY, _IN_DELETE_SELF = 0x2, 0x400


class WalListener:
    """A thread that calls `notify` when `read_newest`, which returns the end of the feed, returns something new."""

    def __init__(self, wal: str, read_newest: Callable[[], object], notify: Callable[[], None]) -> None:
        self._read_newest, self._notify = read_newest, notify
        self._events = _FileEvents(wal)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="holdall-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._events.interrupt()
            self._thread.join()
        self._events.close()

    def abandon(self) -> None:
        """Release the file handles in a forked child, which does not have the thread."""
        self._events.close()

    def _listen(self) -> None:
        while not self._stopped.is_set():
            try:
                self._poll()
            except Exception:  # any error: without a listener, watchers would wait for ever
                logger.exception("the listener of a SQLite store failed and is started again")
                self._notify()  # watchers read the feed themselves
                self._stopped.wait(_SLOW)
            else:
                return

    def _poll(self) -> None:
        """Poll until the listener is stopped or the store is closed."""
        newest: object = None
        last_event = -_WARM
        pause = 0.0
        while True:
            age = time.monotonic() - last_event
            is_hot = age < _HOT
            if is_hot or not self._events.wait(pause):  # while hot, further events need not wake the thread
                self._stopped.wait(pause)
            if self._stopped.is_set():
                return
            if self._events.has_arrived():
                last_event, pause = time.monotonic(), _SHORTEST_PAUSE
            elif is_hot:
                pause = min(pause * 2, _LONGEST_PAUSE)
            elif self._events.subscribe():  # a commit that is under way now wrote to the log before this
                last_event, pause = time.monotonic(), _SHORTEST_PAUSE
            else:
                pause = _SLOW if self._events.is_subscribed and age > _WARM else _WARM_PAUSE
            try:
                found = self._read_newest()
            except StoreClosed:
                return
            except HoldallError:  # watchers get the same error when they read
                found = object()
            if found != newest:
                newest = found
                self._notify()


class _FileEvents:
    """inotify events about writes to one file, which another file of the same name may replace."""

    def __init__(self, path: str) -> None:
        self._path = os.fsencode(path)
        self._watch = -1
        self._inotify = Inotify()
        self.interrupt = self._inotify.interrupt

    @property
    def is_subscribed(self) -> bool:
        return self._watch >= 0

    def subscribe(self) -> bool:
        """Watch the file, unless it is watched; return whether a watch was added."""
        if self.is_subscribed or not self._inotify.is_available:
            return False
        self._watch = self._inotify.add(self._path, _IN_MODIFY | _IN_DELETE_SELF)
        return self.is_subscribed

    def wait(self, timeout: float) -> bool:
        """Wait for an event, at most `timeout` seconds; return False at once if the file is not watched."""
        if not self.is_subscribed:
            return False
        self._inotify.wait(timeout)
        return True

    def has_arrived(self) -> bool:
        """Take the events from the queue; return whether there were any."""
        events = self._inotify.events()
        if any(mask & WATCH_REMOVED for _, mask, _ in events):  # the file is gone, and the watch with it
            self._watch = -1
        return bool(events)

    def close(self) -> None:
        self._watch = -1
        self._inotify.close()
