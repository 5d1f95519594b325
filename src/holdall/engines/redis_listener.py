"""Hearing of what others write to Redis: a subscription, on a connection of its own for each server.

Every script that writes says so on its shard's channel when it is done. A thread waits for that, and rings; when its
connection is lost it rings, too, since it cannot know what it has missed, and again when it listens anew.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Mapping, Sequence

from .listening import ConnectedListener
from .redis_wire import Address, Line, Lost

_LONGEST_CONNECT = 5.0
_PING = 20.0  # seconds of silence after which it is asked whether anybody is there; of twice as many, nobody is


class SubscribedListener(ConnectedListener):
    """A thread that subscribes. `channels()` says where to what, and by which command."""

    _lost = Lost

    def __init__(
        self,
        connect: Callable[[Address, float], Line],
        channels: Callable[[], Mapping[Address, Sequence[Sequence[str]]]],
        ring: Callable[[], None],
    ) -> None:
        super().__init__(ring)
        self._connect, self._channels = connect, channels
        self._thread.start()

    def _stay(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._ears, selectors.EVENT_READ)
            for address, commands in self._channels().items():
                line = self._connect(address, time.monotonic() + _LONGEST_CONNECT)
                self._connections.append(line)
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
                    for line in self._connections:
                        line.ask_nothing(("PING",))
                    continue
                silence = 0
                for key, _ in ready:
                    if key.data is not None:
                        key.data.listen()
                self._ring()
