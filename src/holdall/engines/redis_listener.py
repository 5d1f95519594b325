"""Hearing of what others write to Redis: a subscription, on a connection of its own for each server.

Every script that writes says so on its shard's channel when it is done. A thread waits for that, and rings; when its
connection is lost it rings, too, since it cannot know what it has missed, and again when it listens anew.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from .redis_wire import Address, Line, Lost

logger = logging.getLogger("holdall")

_LONGEST_CONNECT = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # before connecting again
_PING = 20.0  # seconds of silence after which it is asked whether anybody is there; of twice as many, nobody is


class SubscribedListener:
    """A thread that subscribes. `channels()` says where to what, and by which command."""

    def __init__(
        self,
        connect: Callable[[Address, float], Line],
        channels: Callable[[], Mapping[Address, Sequence[Sequence[str]]]],
        ring: Callable[[], None],
    ) -> None:
        self._connect, self._channels, self._ring = connect, channels, ring
        self._ears, self._mouth = socket.socketpair()
        self._stopped = threading.Event()
        self._lines: list[Line] = []
        self._thread = threading.Thread(target=self._listen, name="holdall-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        with contextlib.suppress(OSError):  # closed already
            self._mouth.send(b"!")
        if self._thread is not threading.current_thread():
            self._thread.join()
            self._ears.close()
            self._mouth.close()

    def abandon(self) -> None:
        _abandoned.extend(self._lines)
        self._ears.close()
        self._mouth.close()

    def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                try:
                    self._stay()
                finally:
                    for line in self._lines:
                        line.close()
                    self._lines = []
            except Exception as error:  # whatever it is: without a listener, those who watch would wait for ever
                if isinstance(error, Lost):
                    logger.info("a listener's connection was lost, connecting again: %s", error)
                else:
                    logger.exception("a listener failed, beginning again")
                if time.monotonic() - began > _LONGEST_PAUSE:  # it did well for a while
                    pause = _FIRST_PAUSE
                self._ring()  # those who watch look for themselves, and may meet it too
                self._stopped.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _stay(self) -> None:
        """Listen until a connection is lost, or we are told to stop."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._ears, selectors.EVENT_READ)
            for address, commands in self._channels().items():
                line = self._connect(address, time.monotonic() + _LONGEST_CONNECT)
                self._lines.append(line)
                for command, *names in commands:
                    line.ask_nothing((command, *names))
                    for _ in names:
                        if line.read(_LONGEST_CONNECT) is None:
                            raise Lost("a subscription was not answered")
                selector.register(line.socket, selectors.EVENT_READ, line)
            self._ring()  # from here on nothing is missed
            silence = 0
            while not self._stopped.is_set():
                ready = selector.select(_PING)
                if not ready:
                    silence += 1
                    if silence > 1:
                        raise Lost("nobody answers")
                    for line in self._lines:
                        line.ask_nothing(("PING",))
                    continue
                silence = 0
                for key, _ in ready:
                    if key.data is not None:
                        key.data.listen()
                self._ring()


#: A parent's connections in its forked child: kept, because letting go would end them.
_abandoned: list[Line] = []
