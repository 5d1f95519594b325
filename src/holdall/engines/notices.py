"""Noticing what other processes write to a SQLite file, without a busy loop.

SQLite tells nobody. But every commit writes to the write-ahead log, and Linux tells who asks (inotify) that a file was
written. That comes before the commit can be seen, which waits for the disk: so a notice begins a short while of looking
often, and some seconds of looking now and then, as a disk may be slow. Behind it all is a slow look every now and then;
where there are no notices, one that is not so slow.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..errors import HoldallError, StoreClosed

logger = logging.getLogger("holdall")

_HOT = 0.1  # for how long to look often after a notice, in seconds
_SOON, _OFTEN = 0.001, 0.005  # between looks then: the first, and the longest
_WARM = 5.0  # for how long a busy disk may keep back what was written
_SELDOM = 0.02  # between looks then; and always, where there are no notices: 0.7 % of a core
_SLOW = 0.5  # between looks otherwise
_MODIFIED, _GONE = 0x2, 0x400  # IN_MODIFY, IN_DELETE_SELF
#: IN_IGNORED: there will be no more notices of this number.
FORGOTTEN = 0x8000
_HEADER = struct.Struct("iIII")
_MOST, _LONGEST = 1 << 13, 1 << 9  # bytes that are read at once; and more than an event has


class WalListener:
    """A thread that rings when `look`, which says how far the store has got, gives something new."""

    def __init__(self, wal: str, look: Callable[[], object], ring: Callable[[], None]) -> None:
        self._look, self._ring = look, ring
        self._notices = _Notices(wal)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="holdall-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._notices.interrupt()
            self._thread.join()
        self._notices.close()

    def abandon(self) -> None:
        self._notices.close()

    def _listen(self) -> None:
        while not self._stopped.is_set():
            try:
                self._stay()
            except Exception:  # whatever it is: without a listener, those who watch would wait for ever
                logger.exception("a listener failed, beginning again")
                self._ring()  # they look for themselves
                self._stopped.wait(_SLOW)
            else:
                return

    def _stay(self) -> None:
        """Look until we are told to stop, or the store is closed."""
        seen: object = None
        noticed = -_WARM
        pause = 0.0
        while True:
            age = time.monotonic() - noticed
            is_hot = age < _HOT
            if is_hot or not self._notices.wait(pause):  # while hot, what else is written need not wake us
                self._stopped.wait(pause)
            if self._stopped.is_set():
                return
            if self._notices.arrived():
                noticed, pause = time.monotonic(), _SOON
            elif is_hot:
                pause = min(pause * 2, _OFTEN)
            elif self._notices.ask():  # what is under way just now has given its notice before
                noticed, pause = time.monotonic(), _SOON
            else:
                pause = _SLOW if self._notices.will_come and age > _WARM else _SELDOM
            try:
                found = self._look()
            except StoreClosed:
                return
            except HoldallError:  # those who watch will meet it themselves
                found = object()
            if found != seen:
                seen = found
                self._ring()


class _Notices:
    """What Linux says of writes to one file, which may be replaced by another of its name."""

    def __init__(self, path: str) -> None:
        self._path = os.fsencode(path)
        self._watch = -1
        self._kernel = Inotify()
        self.interrupt = self._kernel.interrupt

    @property
    def will_come(self) -> bool:
        return self._watch >= 0

    def ask(self) -> bool:
        """Ask for them, unless that was done; whether they will come from now on."""
        if self.will_come or not self._kernel.works:
            return False
        self._watch = self._kernel.add(self._path, _MODIFIED | _GONE)
        return self.will_come

    def wait(self, timeout: float) -> bool:
        """Until one arrives, or for so many seconds; False at once, if none will come."""
        if not self.will_come:
            return False
        self._kernel.wait(timeout)
        return True

    def arrived(self) -> bool:
        """Whether the file was written since this was asked last."""
        events = self._kernel.events()
        if any(mask & FORGOTTEN for _, mask, _ in events):  # the file is gone, and with it the watch
            self._watch = -1
        return bool(events)

    def close(self) -> None:
        self._watch = -1
        self._kernel.close()


class Inotify:
    """Linux's notices of what is done to files and folders; where there are none, it says so and gives none."""

    def __init__(self) -> None:
        self._file = -1
        self._files: list[int] = []
        if sys.platform != "linux":
            return
        with contextlib.suppress(ImportError, OSError, AttributeError):  # a libc without it
            import ctypes
            import fcntl
            import termios

            self._ioctl, self._how_much = fcntl.ioctl, termios.FIONREAD
            self._libc: Any = ctypes.CDLL(None)
            self._file = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file >= 0:
            ears, self._mouth = os.pipe()
            self._files = [self._file, ears, self._mouth]
            self._poll = select.poll()
            for file in self._files[:2]:
                self._poll.register(file, select.POLLIN)

    @property
    def works(self) -> bool:
        return self._file >= 0

    def add(self, path: bytes, mask: int) -> int:
        """Ask for notices of a file or folder: the number that they will name it by, or -1."""
        return int(self._libc.inotify_add_watch(self._file, path, mask)) if self.works else -1

    def remove(self, number: int) -> None:
        if self.works:
            self._libc.inotify_rm_watch(self._file, number)

    def events(self) -> list[tuple[int, int, bytes]]:
        """What has come since: the number, what happened, and the name of the file in a folder."""
        found: list[tuple[int, int, bytes]] = []
        while self.works:
            try:
                events = os.read(self._file, _MOST)
            except BlockingIOError:
                break
            place = 0
            while place < len(events):
                number, mask, _, length = _HEADER.unpack_from(events, place)
                place += _HEADER.size + length
                found.append((number, mask, events[place - length : place].rstrip(b"\0")))
            if len(events) < _MOST - _LONGEST:
                break
        return found

    def wait(self, timeout: float) -> None:
        """Until something comes, or for so many seconds."""
        if self.works:
            self._poll.poll(timeout * 1000)

    def interrupt(self) -> None:
        """Let nobody wait any more."""
        if self._files:
            os.write(self._mouth, b"!")

    def wait_again(self) -> None:
        """After an interrupt that others do not mean."""
        if self._files:
            while select.select(self._files[1:2], (), (), 0)[0]:
                os.read(self._files[1], 64)

    def waiting(self) -> int:
        """How many bytes of events there are; asked from any thread, and answered in a microsecond."""
        file = self._file
        if file < 0:
            return 0
        with contextlib.suppress(OSError):  # closed in this moment
            return int.from_bytes(self._ioctl(file, self._how_much, b"\0\0\0\0"), sys.byteorder)
        return 0

    def close(self) -> None:
        files, self._files, self._file = self._files, [], -1
        for file in files:
            os.close(file)
