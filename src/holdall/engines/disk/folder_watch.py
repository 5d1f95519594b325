"""Watching a folder for changes by other programs: an editor, git, another process with the same store.

`FolderWatch` collects the paths that have changed; the engine asks it before each read and write. On Linux it uses
inotify. The kernel queues an event before the call that changed a file returns, so a read sees every edit that was
complete when it started. Each folder has a watch of its own. A new folder is listed only after its watch was added, so
that no change in it is missed.

Without inotify, or if not all folders could be watched, `is_complete` is false. Then the engine compares all files from
time to time.

`DiskListener` is the thread that imports edits while nothing reads or writes, so that watchers of the store see them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from ...engine import Listener
from ...errors import StoreClosed
from ..sqlite.inotify import WATCH_REMOVED, Inotify
from .file_names import is_excluded

logger = logging.getLogger("holdall")

# From <sys/inotify.h>.
_IS_FOLDER, _OVERFLOW = 0x40000000, 0x4000
_MODIFIED, _ATTRIBUTES, _WRITTEN = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATED, _DELETED = 0x40, 0x80, 0x100, 0x200
_ONLY_FOLDERS, _NO_LINKS = 0x01000000, 0x02000000
_CHANGES = _MODIFIED | _ATTRIBUTES | _WRITTEN | _MOVED_FROM | _MOVED_TO | _CREATED | _DELETED
_MASK = _CHANGES | _ONLY_FOLDERS | _NO_LINKS
# Seconds. An editor saves in several steps: how long to wait for the next step, and for all of them.
_STEP_WAIT, _SAVE_WAIT = 0.004, 0.03
_INTERVAL = 0.05  # seconds between two comparisons of all files, at least
_PAUSE_FACTOR = 10  # the pause after a comparison is at least this many times as long as it took


class FolderWatch:
    """The changes in a folder and all folders below it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._inotify = Inotify()
        self._paths: dict[int, str] = {}  # folders by their inotify watch
        self._watches: dict[str, int] = {}
        self._lock = threading.Lock()
        self.is_complete = self._inotify.is_available
        self._next_comparison = 0.0
        self.waiting = self._inotify.pending_bytes
        self.wait, self.interrupt = self._inotify.wait, self._inotify.interrupt
        self.wait_again = self._inotify.clear_interrupt

    def add_folder(self, path: str) -> None:
        """Watch a folder from now on."""
        if not self._inotify.is_available:
            return
        folder = f"{self._root}/{path}"
        watch = self._inotify.add(os.fsencode(folder), _MASK)
        if watch < 0:  # it was removed meanwhile; or the user's limit of inotify watches is reached
            self.is_complete = self.is_complete and not os.path.isdir(folder)  # noqa: PTH112  # a str
            return
        with self._lock:
            self._paths[watch] = path
            self._watches[path] = watch

    def read_changes(self) -> set[str]:
        """Return the paths at or below which something may have changed since the last call; "" stands for all."""
        events = self._inotify.events()
        changed: set[str] = set()
        with self._lock:
            for watch, mask, name in events:
                if mask & _OVERFLOW:
                    return {""}
                if mask & WATCH_REMOVED:
                    path = self._paths.pop(watch, None)
                    if path is not None and self._watches.get(path) == watch:
                        del self._watches[path]
                    continue
                folder = self._paths.get(watch)
                if folder is None:
                    continue
                text = os.fsdecode(name)
                if not text or is_excluded(text):  # no name: the watch of the parent folder reports this change too
                    continue
                path = f"{folder}/{text}" if folder else text
                changed.add(path)
                if mask & _IS_FOLDER and mask & _MOVED_FROM:
                    self._remove_folder(path)
        return changed

    def _remove_folder(self, path: str) -> None:
        """Stop watching a folder that was moved away, and all folders in it."""
        for inside, watch in list(self._watches.items()):
            if inside == path or inside.startswith(path + "/"):
                self._inotify.remove(watch)
                del self._watches[inside]
                self._paths.pop(watch, None)

    def is_comparison_due(self) -> bool:
        """Whether all files should be compared now, because inotify does not report all changes."""
        return not self.is_complete and time.monotonic() >= self._next_comparison

    def schedule_comparison(self, seconds: float) -> None:
        """Set the time of the next comparison of all files, after one that took so many seconds."""
        self._next_comparison = time.monotonic() + max(_INTERVAL, seconds * _PAUSE_FACTOR)

    def close(self) -> None:
        """Stop watching."""
        self._inotify.close()


class DiskListener:
    """A thread that imports external edits soon after they are made; then the catalogue's listener reports them."""

    def __init__(self, catalogue: Listener, watch: FolderWatch, import_edits: Callable[[], None]) -> None:
        self._catalogue, self._watch, self._import_edits = catalogue, watch, import_edits
        self._stopped = threading.Event()
        watch.wait_again()
        self._thread = threading.Thread(target=self._run, name="holdall-folder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and the catalogue's listener."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._watch.interrupt()
            self._thread.join()
        self._catalogue.close()

    def abandon(self) -> None:
        """In a forked child: leave to the parent what is its own."""
        self._catalogue.abandon()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._listen()
            except StoreClosed:
                return
            except Exception as error:  # reads meet the same error, and raise it
                logger.warning("cannot import external edits, trying again: %s", error)
                self._stopped.wait(1.0)

    def _listen(self) -> None:
        while not self._stopped.is_set():
            if self._watch.is_complete:
                self._watch.wait(1.0)
                self._wait_for_last_step()
            else:
                self._stopped.wait(_INTERVAL)
            if not self._stopped.is_set():
                self._import_edits()

    def _wait_for_last_step(self) -> None:
        """Let an editor finish saving: it may remove a file for a moment, which is not a delete."""
        if not self._watch.waiting():
            return
        deadline = time.monotonic() + _SAVE_WAIT
        count = -1
        while time.monotonic() < deadline and not self._stopped.wait(_STEP_WAIT):
            if count == (count := self._watch.waiting()):
                return
