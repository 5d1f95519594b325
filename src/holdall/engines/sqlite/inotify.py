"""Linux's inotify: events about changes to files and folders.

On a system without inotify, `is_available` is false, `add` returns -1, and there are never any events.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import sys
from typing import Any

#: IN_IGNORED: the kernel has removed the watch, and sends no more events with its number.
WATCH_REMOVED = 0x8000
_HEADER = struct.Struct("iIII")  # of an event: watch, mask, cookie, length of the name that follows
_READ_SIZE, _LARGEST_EVENT = 1 << 13, 1 << 9  # bytes


class Inotify:
    """One inotify queue, and a pipe that interrupts a thread which waits for events."""

    def __init__(self) -> None:
        self._queue = -1
        self._files: list[int] = []
        if sys.platform != "linux":
            return
        with contextlib.suppress(ImportError, OSError, AttributeError):  # a libc without inotify
            import ctypes
            import fcntl
            import termios

            self._ioctl, self._pending_bytes = fcntl.ioctl, termios.FIONREAD
            self._libc: Any = ctypes.CDLL(None)
            self._queue = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._queue >= 0:
            try:
                self._interrupts, self._interrupter = os.pipe()
            except OSError:  # no file handles left
                os.close(self._queue)
                self._queue = -1
                return
            self._files = [self._queue, self._interrupts, self._interrupter]
            self._poll = select.poll()
            self._poll.register(self._queue, select.POLLIN)
            self._poll.register(self._interrupts, select.POLLIN)

    @property
    def is_available(self) -> bool:
        return self._queue >= 0

    def add(self, path: bytes, mask: int) -> int:
        """Watch a file or folder for the events in `mask`; return the number of the watch, or -1."""
        return int(self._libc.inotify_add_watch(self._queue, path, mask)) if self.is_available else -1

    def remove(self, watch: int) -> None:
        """Stop a watch."""
        if self.is_available:
            self._libc.inotify_rm_watch(self._queue, watch)

    def events(self) -> list[tuple[int, int, bytes]]:
        """Take all events from the queue: watch, mask, and the name of the file within a watched folder."""
        found: list[tuple[int, int, bytes]] = []
        while self.is_available:
            try:
                data = os.read(self._queue, _READ_SIZE)
            except BlockingIOError:
                break
            end = 0
            while end < len(data):
                watch, mask, _, length = _HEADER.unpack_from(data, end)
                end += _HEADER.size + length
                found.append((watch, mask, data[end - length : end].rstrip(b"\0")))
            if len(data) < _READ_SIZE - _LARGEST_EVENT:
                break
        return found

    def wait(self, timeout: float) -> None:
        """Wait for an event or an interrupt, at most `timeout` seconds."""
        if self.is_available:
            self._poll.poll(timeout * 1000)

    def interrupt(self) -> None:
        """End every `wait`, now and from now on."""
        if self._files:
            os.write(self._interrupter, b"!")

    def clear_interrupt(self) -> None:
        """Let `wait` wait again after an interrupt."""
        if self._files:
            while select.select([self._interrupts], (), (), 0)[0]:
                os.read(self._interrupts, 64)

    def pending_bytes(self) -> int:
        """Return the size of the events in the queue. Any thread may call this; it takes a microsecond."""
        queue = self._queue
        if queue < 0:
            return 0
        with contextlib.suppress(OSError):  # closed at this moment by another thread
            return int.from_bytes(self._ioctl(queue, self._pending_bytes, b"\0\0\0\0"), sys.byteorder)
        return 0

    def close(self) -> None:
        files, self._files, self._queue = self._files, [], -1
        for file in files:
            os.close(file)
