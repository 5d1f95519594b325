"""Noticing what is done to a folder outside: by an editor, by git, by another process's writes.

Linux puts a notice in our queue before the call that changed something returns to whoever made it. So who asks the
queue before a read has seen every edit that was over by then. Each folder is watched by itself; one that is new, or was
moved here, is read after its watch was set, so that nothing falls in between.

Where there are no notices, or not for all folders, `is_complete` is false, and all has to be compared now and then.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from ..engine import Listener
from ..errors import StoreClosed
from .disk_names import is_foreign
from .notices import FORGOTTEN, Inotify

logger = logging.getLogger("holdall")

_IS_FOLDER, _OVERFLOW = 0x40000000, 0x4000
_MODIFIED, _ATTRIBUTES, _WRITTEN = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATED, _DELETED = 0x40, 0x80, 0x100, 0x200
_ONLY_FOLDERS, _NO_LINKS = 0x01000000, 0x02000000
_CHANGES = _MODIFIED | _ATTRIBUTES | _WRITTEN | _MOVED_FROM | _MOVED_TO | _CREATED | _DELETED
_MASK = _CHANGES | _ONLY_FOLDERS | _NO_LINKS
_QUIET, _SOON = 0.004, 0.03  # an editor saves in several steps: how long to wait for the next, and for all of them
_INTERVAL = 0.05  # between two comparisons of everything, at least, where there are no notices, in seconds
_SHARE = 10  # of the time, at most so much of a tenth goes into that


class FolderWatch:
    """The notices of a folder and all below it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._kernel = Inotify()
        self._paths: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        self.is_complete = self._kernel.works
        self._next_comparison = 0.0
        self.waiting = self._kernel.waiting
        self.wait, self.interrupt, self.wait_again = self._kernel.wait, self._kernel.interrupt, self._kernel.wait_again

    def enter(self, path: str) -> None:
        """Have notices of a folder from now on."""
        if not self._kernel.works:
            return
        folder = f"{self._root}/{path}"
        number = self._kernel.add(os.fsencode(folder), _MASK)
        if number < 0:  # gone meanwhile; or there are more folders than Linux will watch
            self.is_complete = self.is_complete and not os.path.isdir(folder)  # noqa: PTH112  # a str
            return
        with self._lock:
            self._paths[number] = path
            self._numbers[path] = number

    def take(self) -> set[str]:
        """The paths at or below which something may have changed since this was asked last; "" is all."""
        events = self._kernel.events()
        changed: set[str] = set()
        with self._lock:
            for number, mask, name in events:
                if mask & _OVERFLOW:
                    return {""}
                if mask & FORGOTTEN:
                    path = self._paths.pop(number, None)
                    if path is not None and self._numbers.get(path) == number:
                        del self._numbers[path]
                    continue
                folder = self._paths.get(number)
                if folder is None:
                    continue
                text = os.fsdecode(name)
                if not text or is_foreign(text):  # the folder itself is a name in the one above
                    continue
                path = f"{folder}/{text}" if folder else text
                changed.add(path)
                if mask & _IS_FOLDER and mask & _MOVED_FROM:
                    self._leave(path)
        return changed

    def _leave(self, path: str) -> None:
        """A folder has gone elsewhere, and what is done there is not done here."""
        for inside, number in list(self._numbers.items()):
            if inside == path or inside.startswith(path + "/"):
                self._kernel.remove(number)
                del self._numbers[inside]
                self._paths.pop(number, None)

    def is_due(self) -> bool:
        """Whether it is time to compare everything, where notices will not tell."""
        return not self.is_complete and time.monotonic() >= self._next_comparison

    def compared(self, seconds: float) -> None:
        """Everything was compared, which took so long."""
        self._next_comparison = time.monotonic() + max(_INTERVAL, seconds * _SHARE)

    def close(self) -> None:
        self._kernel.close()


class DiskListener:
    """A thread that has outside edits taken in soon after they are made; then they are commits like any other."""

    def __init__(self, catalogue: Listener, watch: FolderWatch, look: Callable[[], None]) -> None:
        self._catalogue, self._watch, self._look = catalogue, watch, look
        self._stopped = threading.Event()
        watch.wait_again()
        self._thread = threading.Thread(target=self._listen, name="holdall-folder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._watch.interrupt()
            self._thread.join()
        self._catalogue.close()

    def abandon(self) -> None:
        self._catalogue.abandon()

    def _listen(self) -> None:
        while not self._stopped.is_set():
            try:
                self._stay()
            except StoreClosed:
                return
            except Exception as error:  # whoever reads will meet it, too
                logger.warning("could not take in what was edited outside, trying again: %s", error)
                self._stopped.wait(1.0)

    def _stay(self) -> None:
        while not self._stopped.is_set():
            if self._watch.is_complete:
                self._watch.wait(1.0)
                self._wait_for_quiet()
            else:
                self._stopped.wait(_INTERVAL)
            if not self._stopped.is_set():
                self._look()

    def _wait_for_quiet(self) -> None:
        """Let an editor finish: a file that is away for a moment was not deleted."""
        if not self._watch.waiting():
            return
        until = time.monotonic() + _SOON
        count = -1
        while time.monotonic() < until and not self._stopped.wait(_QUIET):
            if count == (count := self._watch.waiting()):
                return
