"""The listener of the Redis engine: it notifies a store of the writes of other clients.

Every script that writes publishes a message on its shard's channel. A background thread subscribes to these channels,
with one connection to each node, and calls `notify` for each message. It also calls `notify` when a connection is lost
and when it has subscribed again, because it may have missed messages.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Mapping, Sequence

from ..net.listener import ServerListener
from ..net.sockets import ConnectionLost
from .connections import Address, Connection

_CONNECT_TIMEOUT = 5.0  # seconds
_PING_INTERVAL = 20.0  # seconds without a message, after which a PING is sent; after two, the connection is lost


class SubscribedListener(ServerListener):
    """A thread that subscribes. `list_subscriptions` returns the commands that subscribe, by the node's address."""

    _connection_errors = ConnectionLost

    def __init__(
        self,
        connect: Callable[[Address, float], Connection],
        list_subscriptions: Callable[[], Mapping[Address, Sequence[Sequence[str]]]],
        notify: Callable[[], None],
    ) -> None:
        super().__init__(notify)
        self._connect, self._list_subscriptions = connect, list_subscriptions
        self._thread.start()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_up, selectors.EVENT_READ)
            for address, commands in self._list_subscriptions().items():
                connection = self._connect(address, time.monotonic() + _CONNECT_TIMEOUT)
                self._connections.append(connection)
                for command, *names in commands:
                    connection.send((command, *names))
                    for _ in names:
                        if connection.read(_CONNECT_TIMEOUT) is None:
                            raise ConnectionLost("the server did not confirm a subscription")
                selector.register(connection.socket, selectors.EVENT_READ, connection)
            self._notify()  # all messages from here on are received
            silent_intervals = 0
            while not self._stopped.is_set():
                ready = selector.select(_PING_INTERVAL)
                if not ready:
                    silent_intervals += 1
                    if silent_intervals > 1:
                        raise ConnectionLost("the server does not reply to PING")
                    for connection in self._connections:
                        connection.send(("PING",))
                    continue
                silent_intervals = 0
                for key, _ in ready:
                    if key.data is not None:
                        key.data.drain()
                self._notify()
